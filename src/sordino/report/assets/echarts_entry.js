// What the bundle of Apache ECharts contains; README.md has the command that builds it.
// Legends, tooltips and zooming are in charts.js, where their texts are plain text and can be reached by keyboard.
import { init, use } from "echarts/core";
import { CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([CustomChart, LineChart, ScatterChart, GridComponent, SVGRenderer]);

export { init };
