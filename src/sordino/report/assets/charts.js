// Draws the charts of a report with Apache ECharts: `SordinoCharts.draw(element, chart)`, where `chart` is what
// Chart.to_json() returns. ECharts lays out axes and shapes as SVG; legend, reading of values and zoom are ours.
// Every text becomes a text node, and colours are custom properties of report.css, so that a theme needs no redrawing.
"use strict";

window.SordinoCharts = (() => {
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
  const COLOURS = 8, LEVELS = 20, NEAR = 28;
  const SYMBOLS = ["circle", "diamond", "triangle", "rect"];
  const pen = document.createElement("canvas").getContext("2d");
  const known = (v) => typeof v === "number" && Number.isFinite(v);

  function widthOf(text, size = 12) {
    pen.font = `${size}px ${FONT}`;
    return pen.measureText(text).width;
  }

  function make(tag, name, text) {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // ---- numbers -----------------------------------------------------------------------------------------------------

  // A bound is rounded to its safe side; an error of floating point is no difference.
  function bounded(value, digits, rounded) {
    if (!rounded || rounded === "nearest" || Number.isInteger(value)) return value;
    const size = Math.abs(value), kept = size >= 1e-3 && size < 1e6 ? digits : digits - 1;
    const near = Number(value.toPrecision(kept)), step = 10 ** (Math.floor(Math.log10(size)) - kept + 1);
    const away = rounded === "up" ? value - near : near - value;
    if (away <= 1e-9 * size) return near;
    return Number((near + (rounded === "up" ? step : -step)).toPrecision(kept));
  }

  function number(value, digits = 4, rounded = "nearest") {
    if (!known(value)) return "not known";
    value = bounded(value, digits, rounded);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) {
      return value.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    const short = Number(value.toPrecision(Number.isInteger(value) ? 7 : digits));
    return short.toLocaleString("en", { maximumFractionDigits: 8 }).replace(/^-/, "\u2212");
  }

  function worded(value, axis, digits) {
    if (axis.scale === "category") return axis.categories[Math.round(value)] ?? "";
    if (!known(value)) return "not known";
    return axis.percent ? `${number(100 * value, digits, axis.rounded)} %` : number(value, digits, axis.rounded);
  }

  function linearTicks(low, high, count, whole) {
    const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
    if (whole) step = Math.max(1, Math.round(step));
    const out = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(Number((k * step).toPrecision(12)));
    return { ticks: out, step };
  }

  function logTicks(low, high, count) {  // low, high: powers of ten
    const out = [], decades = high - low;
    const steps = decades <= 1.2 ? [1, 2, 3, 5, 7] : decades <= 3.2 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil(decades / Math.max(2, count)));
    for (let k = Math.floor(low); k <= Math.ceil(high); k++) {
      if (decades > 3.2 && k % every) continue;
      for (const s of steps) out.push(k + Math.log10(s));
    }
    const inside = out.filter((v) => v >= low - 1e-9 && v <= high + 1e-9);
    const most = Math.max(3, count + 1);
    return inside.length > most ? inside.filter((v) => Math.abs(v - Math.round(v)) < 1e-9 || inside.length <= most) : inside;
  }

  // An axis on a linear scale of its own: categories are 0, 1, 2, ..., logarithms are powers of ten.
  function measured(axis, values, { count, include, tight, whole, window }) {
    const log = axis.scale === "log";
    if (axis.scale === "category") {
      const last = axis.categories.length - 0.5;
      return { axis, low: -0.5, high: Math.max(0.5, last), ticks: axis.categories.map((_, k) => k) };
    }
    const to = (v) => (log ? (v > 0 ? Math.log10(v) : NaN) : v);
    const all = values.map(to).filter(known);
    let low = Math.min(...all), high = Math.max(...all);
    if (!all.length) [low, high] = log ? [-1, 0] : [0, 1];
    const fixedLow = window ? window[0] : known(axis.low) ? to(axis.low) : NaN;
    const fixedHigh = window ? window[1] : known(axis.high) ? to(axis.high) : NaN;
    if (include && !log) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
    if (known(fixedLow)) low = fixedLow;
    if (known(fixedHigh)) high = fixedHigh;
    if (!tight && !log && !known(fixedLow) && low > 0 && low < 0.45 * high) low = 0;
    if (!(high - low > 1e-12 * Math.max(1, Math.abs(high)))) {
      const half = log ? 0.3 : whole ? 0.5 : Math.abs(high) * 0.1 || 0.5;
      if (!known(fixedLow)) low -= half;
      if (!known(fixedHigh) || !(high > low)) high += half;
    }
    if (log) {
      if (!tight && !known(fixedLow)) low -= 0.04 * (high - low);
      if (!tight && !known(fixedHigh)) high += 0.04 * (high - low);
      return { axis, low, high, ticks: logTicks(low, high, count) };
    }
    const scale = axis.percent ? 100 : 1;
    let { ticks, step } = linearTicks(low * scale, high * scale, count, whole);
    if (!tight) {
      if (!known(fixedLow)) low = Math.floor((low * scale) / step + 1e-9) * step / scale;
      if (!known(fixedHigh)) high = Math.ceil((high * scale) / step - 1e-9) * step / scale;
      ticks = linearTicks(low * scale, high * scale, count, whole).ticks;
    }
    return { axis, low, high, ticks: ticks.map((v) => v / scale) };
  }

  const placed = (v, axis) => (axis.scale === "log" ? (v > 0 ? Math.log10(v) : NaN) : known(v) ? v : NaN);
  const tickText = (v, axis) => {
    if (axis.scale === "category") return worded(v, axis).replace(/\s+/g, " ");
    const raw = axis.scale === "log" ? Number((10 ** v).toPrecision(6)) : v;
    return worded(raw, axis, 6);
  };

  // ---- looks of series ---------------------------------------------------------------------------------------------

  function looks(series) {
    let k = -1;
    return series.map((s) => {
      if (s.role === "reference") return { colour: "var(--chart-reference)", dash: "solid", symbol: "circle", width: 1.5 };
      if (s.role === "limit") return { colour: "var(--chart-limit)", dash: [6, 4], symbol: "rect", width: 1.5 };
      k += 1;
      const round = Math.floor(k / COLOURS);
      const dash = round ? [[2, 3], [8, 3, 2, 3]][(round - 1) % 2] : "solid";
      return { colour: `var(--chart-${(k % COLOURS) + 1})`, dash, symbol: SYMBOLS[k % 4], width: 2 };
    });
  }

  function swatch(kind, look) {
    const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
    svg.setAttribute("viewBox", "0 0 22 12");
    svg.setAttribute("class", "chart-swatch");
    svg.setAttribute("aria-hidden", "true");
    const add = (tag, data) => {
      const node = svg.appendChild(document.createElementNS(ns, tag));
      for (const [key, value] of Object.entries(data)) node.setAttribute(key, value);
    };
    const dash = Array.isArray(look.dash) ? look.dash.join(" ") : "none";
    if (kind === "bars" && dash === "none") add("rect", { x: 4, y: 1, width: 14, height: 10, rx: 1.5, fill: look.colour });
    else if (kind === "dots" && dash === "none") {
      const shapes = { circle: "M11 2a4 4 0 1 1 0 8a4 4 0 1 1 0-8z", diamond: "M11 1l5 5l-5 5l-5-5z",
        triangle: "M11 1.5l5 9h-10z", rect: "M7 2h8v8h-8z" };
      add("path", { d: shapes[look.symbol], fill: look.colour });
    } else add("line", { x1: 1, x2: 21, y1: 6, y2: 6, stroke: look.colour, "stroke-width": look.width + 0.5, "stroke-dasharray": dash });
    return svg;
  }

  // ---- one chart ---------------------------------------------------------------------------------------------------

  class Drawing {
    constructor(element, chart) {
      this.element = element;
      this.hidden = new Set();
      this.window = null;  // what a zoom shows of the horizontal axis
      this.cursor = -1;
      element.replaceChildren();
      element.classList.add("chart-drawing");
      this.legend = element.appendChild(make("div", "chart-legend"));
      this.names = element.appendChild(make("div", "chart-axis-names"));
      this.plot = element.appendChild(make("div", "chart-plot"));
      this.canvas = this.plot.appendChild(make("div", "chart-canvas"));
      this.under = element.appendChild(make("div", "chart-x-name"));
      this.layer = this.plot.appendChild(make("div", "chart-layer"));
      this.tip = this.plot.appendChild(make("div", "chart-tip"));
      this.tip.hidden = true;
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "img");
      this.reset = make("button", "chart-reset", "Reset zoom");
      this.reset.type = "button";
      this.reset.addEventListener("click", () => this.zoom(null));
      this.events();
      this.update(chart);
      let width = element.clientWidth, waiting = 0;
      this.observer = new ResizeObserver(() => {
        if (Math.abs(element.clientWidth - width) < 1 || !element.clientWidth) return;
        width = element.clientWidth;
        cancelAnimationFrame(waiting);
        waiting = requestAnimationFrame(() => this.resize());
      });
      this.observer.observe(element);
    }

    update(chart) {
      this.chart = chart;
      this.looks = looks(chart.series);
      const about = [chart.title, chart.summary].filter(Boolean).join(". ");
      this.plot.setAttribute("aria-label", `${about} Arrow keys read single values.`);
      this.showLegend();
      this.redraw();
    }

    resize() { if (this.element.isConnected) this.redraw(); }

    dispose() {
      this.observer.disconnect();
      if (this.echart) this.echart.dispose();
      this.echart = null;
      this.element.replaceChildren();
    }

    zoom(window) {
      this.window = window;
      this.reset.hidden = !window;
      this.hide();
      this.redraw();
    }

    showLegend() {
      const { series, kind } = this.chart;
      const focus = this.legend.contains(document.activeElement) ? document.activeElement.dataset.index : null;
      this.legend.replaceChildren();
      if (kind === "heat") this.legend.append(...this.colourScale());
      else if (series.length > 1 || (series[0] && series[0].role !== "data")) {
        series.forEach((s, k) => {
          const button = make("button", "chart-key");
          button.type = "button";
          button.dataset.index = k;
          button.append(swatch(kind, this.looks[k]), make("span", "", s.name));
          button.setAttribute("aria-pressed", String(!this.hidden.has(s.name)));
          button.addEventListener("click", () => {
            if (!this.hidden.delete(s.name)) this.hidden.add(s.name);
            button.setAttribute("aria-pressed", String(!this.hidden.has(s.name)));
            this.hide();
            this.redraw();
          });
          this.legend.append(button);
          if (String(k) === focus) button.focus();
        });
      }
      this.reset.hidden = !this.window;
      this.legend.append(this.reset);
    }

    colourScale() {
      const [low, high] = this.range();
      const bar = make("span", "chart-scale");
      for (let k = 0; k < 6; k++) {
        const step = bar.appendChild(make("i"));
        step.style.opacity = 0.06 + (0.94 * k) / 5;
      }
      const blank = this.chart.cells.some((row) => row.some((v) => !known(v)));
      const parts = [make("span", "", this.chart.cell_label || "value"), make("b", "", this.cellText(low)), bar, make("b", "", this.cellText(high))];
      return blank ? [...parts, make("span", "chart-blank", "blank: no value")] : parts;
    }

    cellText(value) { return worded(value, { percent: this.chart.cell_percent }); }

    range() {
      let low = Infinity, high = -Infinity;
      for (const row of this.chart.cells) for (const v of row) if (known(v)) [low, high] = [Math.min(low, v), Math.max(high, v)];
      if (low > high) return [0, 1];
      return [low > 0 && (this.chart.cell_percent || low < 0.5 * high) ? 0 : low, low === high && low === 0 ? 1 : high];
    }

    // ---- layout

    layout() {
      const { chart } = this, width = this.element.clientWidth || 680, narrow = width < 480;
      let { x, y } = chart;
      const shown = chart.series.filter((s) => !this.hidden.has(s.name));
      const series = (shown.length ? shown : chart.series).map((s) => ({ ...s, look: this.looks[chart.series.indexOf(s)], ghost: !shown.length }));
      let flip = false;
      if (chart.kind !== "lines" && chart.kind !== "heat" && x.scale === "category") {
        const widest = Math.max(0, ...x.categories.map((c) => widthOf(c)));
        flip = x.categories.length * (widest + 14) > width - 60;
      }
      if (flip) [x, y] = [y, x];
      const rows = y.scale === "category" ? y.categories.length : 0;
      let height = narrow ? 230 : 290;
      if (chart.kind === "heat") height = Math.max(110, Math.min(520, rows * Math.max(3, Math.min(26, 420 / Math.max(1, rows))) + 40));
      else if (rows) {
        const groups = Math.max(1, series.filter((s) => s.role === "data").length);
        height = Math.min(2400, rows * Math.max(26, (chart.kind === "bars" ? 10 : 9) * groups + 12) + 44);
      }
      return { x, y, right: flip ? null : chart.right, flip, width, height, narrow, series };
    }

    points(s, flip) {  // of a series on the axes as drawn: [x, y, low, high]
      return s.points.map((p, k) => {
        const band = s.band[k] || [null, null];
        return flip ? { x: p[1], y: p[0], low: band[0], high: band[1] } : { x: p[0], y: p[1], low: band[0], high: band[1] };
      });
    }

    scales(lay) {
      const { chart } = this, sideways = lay.y.scale === "category" && chart.kind !== "heat";
      lay.sideways = sideways;
      const xs = [], left = [], right = [];
      for (const s of lay.series) {
        s.at = this.points(s, lay.flip);
        for (const p of s.at) {
          xs.push(p.x, ...(sideways ? [p.low, p.high] : []));
          const side = s.axis === "right" && lay.right ? right : left;
          const inside = !this.window || this.within(placed(p.x, lay.x));
          if (inside) side.push(p.y, ...(sideways ? [] : [p.low, p.high]));
        }
      }
      const clean = (values) => values.filter(known), bars = chart.kind === "bars";
      const whole = (values) => values.length > 0 && values.every(Number.isInteger);
      const across = clean(xs);
      const reach = Math.max(2, Math.floor((lay.width - 60) / (lay.narrow ? 64 : 80)));
      lay.ax = measured(lay.x, across, { count: reach, include: bars && sideways, tight: !sideways && chart.kind !== "dots", whole: whole(across), window: this.window });
      if (bars && !sideways && lay.x.scale !== "category") {
        const unique = [...new Set(across)].sort((a, b) => a - b);
        lay.gap = Math.min(...unique.slice(1).map((v, k) => v - unique[k]), Infinity);
        if (!Number.isFinite(lay.gap)) lay.gap = 1;
        if (!this.window) { lay.ax.low -= lay.gap / 2; lay.ax.high += lay.gap / 2; }
      }
      const below = clean(left);
      lay.ay = measured(lay.y, below, { count: 5, include: bars && !sideways, whole: whole(below) });
      if (lay.right) lay.ar = measured(lay.right, clean(right), { count: 5, include: bars, whole: false });
    }

    within(v) { return !this.window || (v >= this.window[0] && v <= this.window[1]); }

    // ---- drawing

    redraw() {
      const lay = this.layout();
      this.scales(lay);
      this.lay = lay;
      const axisName = (axis) => (axis && axis.label ? axis.label : "");
      this.names.replaceChildren(make("span", "", axisName(lay.y)), make("span", "", axisName(lay.right)));
      this.under.textContent = axisName(lay.x);
      this.plot.style.height = `${lay.height}px`;
      this.canvas.style.height = `${lay.height}px`;
      if (!this.echart) {
        this.echart = echarts.init(this.canvas, null, { renderer: "svg", width: lay.width, height: lay.height });
      } else this.echart.resize({ width: lay.width, height: lay.height });
      this.echart.setOption(this.option(lay), { notMerge: true, lazyUpdate: false });
      this.echart.getZr().flush();
      const svg = this.canvas.querySelector("svg");
      if (svg) {
        svg.setAttribute("viewBox", `0 0 ${lay.width} ${lay.height}`);
        svg.setAttribute("aria-hidden", "true");
      }
    }

    axisOption(scale, side, lay) {
      const { axis, low, high } = scale, category = axis.scale === "category", horizontal = side === "bottom";
      let ticks = scale.ticks, rotate = 0, label = { hideOverlap: !category };
      if (category && horizontal) {
        const room = (lay.width - 70) / Math.max(1, ticks.length);
        const widest = Math.max(0, ...axis.categories.map((c) => widthOf(c)));
        const numeric = axis.categories.every((c) => c.trim() !== "" && Number.isFinite(Number(c)));
        if (widest + 8 > room) {
          if (!numeric && room >= 16) { rotate = 40; label = { width: 110, overflow: "truncate" }; }
          else ticks = this.thinTicks(ticks, axis, Math.max(1, Math.ceil((widest + 10) / room)), numeric);
        }
      } else if (category) {
        const room = (lay.height - 40) / Math.max(1, ticks.length), every = Math.ceil(14 / room);
        const numeric = axis.categories.every((c) => c.trim() !== "" && Number.isFinite(Number(c)));
        if (every > 1) ticks = this.thinTicks(ticks, axis, every, numeric);
        label = { width: Math.min(220, lay.width * 0.36), overflow: "truncate" };
      }
      const line = { show: horizontal || category, lineStyle: { color: "var(--chart-axis)", width: 1 }, onZero: false };
      return {
        type: "value", min: low, max: high, position: side, animation: false, inverse: !horizontal && category,
        axisLine: line, silent: true,
        axisTick: { show: horizontal && !category, customValues: ticks, length: 4, lineStyle: { color: "var(--chart-axis)" } },
        axisLabel: {
          customValues: ticks, rotate, margin: 8, color: "var(--chart-text)", fontFamily: FONT, fontSize: 12,
          formatter: (v) => tickText(v, axis), showMinLabel: true, showMaxLabel: true, ...label,
        },
        splitLine: { show: !category && side !== "right" && this.chart.kind !== "heat" && (!horizontal || lay.sideways || this.chart.kind === "dots"),
          customValues: ticks, lineStyle: { color: "var(--chart-grid)", width: 1 } },
        minorTick: { show: false }, splitArea: { show: false },
      };
    }

    thinTicks(ticks, axis, every, numeric) {
      if (numeric) {  // multiples of a round number
        const nice = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 5000, 10000].find((k) => k >= every) ?? every;
        const some = ticks.filter((k) => Number(axis.categories[k]) % nice === 0);
        if (some.length > 1) return some;
      }
      return ticks.filter((k) => k % every === 0);
    }

    option(lay) {
      const kinds = { lines: "lines", dots: "dots", bars: "bars", heat: "heat" };
      const series = this[kinds[this.chart.kind]](lay);
      return {
        animation: false, backgroundColor: "transparent", textStyle: { fontFamily: FONT },
        grid: { left: 2, right: lay.ar ? 2 : 14, top: 10, bottom: 2, outerBoundsMode: "same", outerBoundsContain: "axisLabel", show: false },
        xAxis: this.axisOption(lay.ax, "bottom", lay),
        yAxis: [this.axisOption(lay.ay, "left", lay), ...(lay.ar ? [this.axisOption(lay.ar, "right", lay)] : [])],
        series: series.map((s) => ({ silent: true, animation: false, clip: true, emphasis: { disabled: true }, ...s })),
      };
    }

    side(s, lay) { return s.axis === "right" && lay.ar ? 1 : 0; }

    yOf(s, lay) { return this.side(s, lay) ? lay.right : lay.y; }

    lines(lay) {
      const out = [];
      for (const s of lay.series) {
        const axis = this.yOf(s, lay), side = this.side(s, lay);
        if (s.ghost) { out.push({ type: "line", data: [] }); continue; }
        const data = s.at.map((p) => [placed(p.x, lay.x), placed(p.y, axis)]);
        if (s.band.length) out.push(this.band(s, lay, axis, side));
        const few = data.length <= 12 && s.role === "data";
        const alone = data.map((p, k) => known(p[1]) && !known((data[k - 1] || [])[1]) && !known((data[k + 1] || [])[1]));
        out.push({
          type: "line", yAxisIndex: side, data: data.map(([x, y]) => [x, known(y) ? y : "-"]), connectNulls: false, z: s.role === "data" ? 4 : 3,
          showSymbol: few || alone.some(Boolean), symbol: "circle", symbolSize: (_, p) => (few || alone[p.dataIndex] ? 6 : 0), showAllSymbol: true,
          itemStyle: { color: s.look.colour, borderWidth: 0 },
          lineStyle: { color: s.look.colour, width: s.look.width, type: s.look.dash, cap: "round", join: "round" },
        });
      }
      return out;
    }

    band(s, lay, axis, side) {
      const pieces = [[]];
      for (const p of s.at) {
        const at = [placed(p.x, lay.x), placed(p.low, axis), placed(p.high, axis)];
        if (at.every(known)) pieces[pieces.length - 1].push(at);
        else if (pieces[pieces.length - 1].length) pieces.push([]);
      }
      const children = (api) => pieces.filter((piece) => piece.length).map((piece) => {
        const up = piece.map(([x, , high]) => api.coord([x, high])), down = piece.map(([x, low]) => api.coord([x, low])).reverse();
        return { type: "polygon", silent: true, shape: { points: [...up, ...down] }, style: { fill: s.look.colour, opacity: 0.16 } };
      });
      return { type: "custom", yAxisIndex: side, data: [[lay.ax.low, lay.ay.low]], z: 2,
        renderItem: (_, api) => ({ type: "group", children: children(api) }) };
    }

    // The place of a series beside the others in a category, in parts of the category's width.
    dodge(lay) {
      const beside = lay.series.filter((s) => s.role === "data"), count = Math.max(1, beside.length);
      return (s) => {
        const k = beside.indexOf(s);
        return k < 0 ? { shift: 0, size: 0.8 } : { shift: ((k + 0.5) / count - 0.5) * 0.72, size: 0.72 / count };
      };
    }

    // Lines across a category or the whole chart, for references and limits.
    rule(s, lay) {
      const at = s.at.map((p) => [placed(p.x, lay.x), placed(p.y, lay.y)]);
      const spread = lay.sideways ? lay.y.scale === "category" : lay.x.scale === "category";
      const half = spread ? 0.42 : 0;
      const item = (api, x, y) => {
        const [from, to] = lay.sideways ? [api.coord([x, y - half]), api.coord([x, y + half])] : [api.coord([x - half, y]), api.coord([x + half, y])];
        return { type: "line", shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] },
          style: { stroke: s.look.colour, lineWidth: 2, lineDash: Array.isArray(s.look.dash) ? [4, 3] : "solid" } };
      };
      return { type: "custom", z: 5, yAxisIndex: this.side(s, lay), data: [[lay.ax.low, lay.ay.low]],
        renderItem: (_, api) => ({ type: "group", children: at.filter((p) => p.every(known)).map(([x, y]) => item(api, x, y)) }) };
    }

    dots(lay) {
      const place = this.dodge(lay), category = lay.sideways || lay.x.scale === "category", out = [];
      for (const s of lay.series) {
        if (s.ghost) { out.push({ type: "scatter", data: [] }); continue; }
        const axis = this.yOf(s, lay), shift = category ? place(s).shift : 0;
        if (s.role !== "data" && category) { out.push(this.rule(s, lay)); continue; }
        if (s.role !== "data") { out.push(...this.lines({ ...lay, series: [s] })); continue; }
        s.drawn = s.at.map((p) => (lay.sideways ? [placed(p.x, lay.x), p.y + shift] : [placed(p.x, lay.x) + shift, placed(p.y, axis)]));
        if (s.band.length) out.push(this.whiskers(s, lay, axis));
        const size = s.at.length > 400 ? 4 : s.at.length > 60 ? 6 : 9;
        out.push({ type: "scatter", yAxisIndex: this.side(s, lay), data: s.drawn.filter((p) => p.every(known)), symbol: s.look.symbol, symbolSize: size, z: 5,
          itemStyle: { color: s.look.colour, opacity: s.at.length > 60 ? 0.7 : 1, borderColor: "var(--chart-paper)", borderWidth: size > 6 ? 1 : 0 } });
      }
      return out;
    }

    whiskers(s, lay, axis) {
      const value = lay.sideways ? lay.x : axis;
      const child = (api, p, k) => {
        const low = placed(p.low, value), high = placed(p.high, value), [x, y] = s.drawn[k];
        if (![low, high, x, y].every(known)) return null;
        const [from, to] = lay.sideways ? [api.coord([low, y]), api.coord([high, y])] : [api.coord([x, low]), api.coord([x, high])];
        const [dx, dy] = lay.sideways ? [0, 3.5] : [3.5, 0];
        const path = [from, to].map(([a, b]) => `M${a - dx} ${b - dy}L${a + dx} ${b + dy}`).join("") + `M${from.join(" ")}L${to.join(" ")}`;
        return { type: "path", shape: { pathData: path }, style: { stroke: s.look.colour, lineWidth: 1.5, fill: "none" }, silent: true };
      };
      return { type: "custom", yAxisIndex: this.side(s, lay), data: [[lay.ax.low, lay.ay.low]], z: 4,
        renderItem: (_, api) => ({ type: "group", children: s.at.map((p, k) => child(api, p, k)).filter(Boolean) }) };
    }

    bars(lay) {
      const place = this.dodge(lay), unit = lay.gap || 1, out = [];
      for (const s of lay.series) {
        if (s.ghost) { out.push({ type: "scatter", data: [] }); continue; }
        const category = lay.sideways || lay.x.scale === "category";
        if (s.role !== "data") { out.push(category ? this.rule(s, lay) : this.lines({ ...lay, series: [s] }).at(-1)); continue; }
        const axis = this.yOf(s, lay), { shift, size } = place(s), scale = lay.sideways ? lay.ax : this.side(s, lay) ? lay.ar : lay.ay;
        const zero = scale.axis.scale === "log" ? scale.low : Math.min(Math.max(0, scale.low), scale.high);
        const wide = category ? size : (size / 0.72) * 0.94 * unit, move = category ? shift : (shift / 0.72) * 0.94 * unit;
        s.drawn = s.at.map((p) => (lay.sideways ? [placed(p.x, lay.x), p.y + move] : [placed(p.x, lay.x) + move, placed(p.y, axis)]));
        const bar = (api, [x, y]) => {
          if (![x, y].every(known)) return null;
          const a = lay.sideways ? api.coord([zero, y - wide / 2]) : api.coord([x - wide / 2, zero]);
          const b = lay.sideways ? api.coord([x, y + wide / 2]) : api.coord([x + wide / 2, y]);
          const shape = { x: Math.min(a[0], b[0]), y: Math.min(a[1], b[1]), width: Math.abs(a[0] - b[0]), height: Math.abs(a[1] - b[1]) };
          const across = lay.sideways ? "height" : "width", start = lay.sideways ? "y" : "x";
          if (category && shape[across] > 44) { shape[start] += (shape[across] - 44) / 2; shape[across] = 44; }
          return { type: "rect", shape, style: { fill: s.look.colour, opacity: 0.92 } };
        };
        out.push({ type: "custom", yAxisIndex: this.side(s, lay), data: [[lay.ax.low, lay.ay.low]], z: 3,
          renderItem: (_, api) => ({ type: "group", children: s.drawn.map((p) => bar(api, p)).filter(Boolean) }) });
        if (s.band.length) out.push({ ...this.whiskers({ ...s, look: { ...s.look, colour: "var(--chart-strong)" } }, lay, axis), z: 5 });
      }
      return out;
    }

    heat(lay) {
      const { cells } = this.chart, [low, high] = this.range();
      const level = (v) => Math.min(LEVELS - 1, Math.floor((LEVELS * (v - low)) / (high - low || 1)));
      const draw = (api) => {
        const paths = Array.from({ length: LEVELS }, () => []);
        const [x0] = api.coord([-0.5, 0]), [x1] = api.coord([0.5, 0]), y0 = api.coord([0, -0.5])[1], y1 = api.coord([0, 0.5])[1];
        const wide = x1 - x0, tall = y1 - y0, gapX = wide > 7 ? 1 : 0, gapY = Math.abs(tall) > 7 ? 1 : 0;
        const at = (start, size, k) => Math.round(start + size * k);
        cells.forEach((row, r) => row.forEach((v, c) => {
          if (!known(v)) return;
          const left = at(x0, wide, c), top = at(y0, tall, r), right = at(x0, wide, c + 1) - gapX, bottom = at(y0, tall, r + 1) - gapY;
          paths[level(v)].push(`M${left} ${top}H${Math.max(right, left + 1)}V${Math.max(bottom, top + 1)}H${left}Z`);
        }));
        return paths.map((parts, k) => parts.length && { type: "path", shape: { pathData: parts.join("") },
          style: { fill: "var(--chart-heat)", opacity: 0.06 + (0.94 * k) / (LEVELS - 1) } }).filter(Boolean);
      };
      return [{ type: "custom", data: [[0, 0]], renderItem: (_, api) => ({ type: "group", children: draw(api) }), clip: true }];
    }

    // ---- reading values

    pixel(s, x, y) { return this.echart.convertToPixel({ xAxisIndex: 0, yAxisIndex: s ? this.side(s, this.lay) : 0 }, [x, y]); }

    frame() {
      const { ax, ay } = this.lay, a = this.pixel(null, ax.low, ay.low), b = this.pixel(null, ax.high, ay.high);
      return { left: Math.min(a[0], b[0]), right: Math.max(a[0], b[0]), top: Math.min(a[1], b[1]), bottom: Math.max(a[1], b[1]) };
    }

    visible() { return this.lay.series.filter((s) => !s.ghost); }

    near(px, py) {
      const f = this.frame();
      if (px < f.left - 12 || px > f.right + 12 || py < f.top - 12 || py > f.bottom + 12) return null;
      const [x, y] = this.echart.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [px, py]);
      const { lay } = this;
      if (this.chart.kind === "heat") return this.cell(Math.round(x), Math.round(y));
      if (lay.sideways) return this.category(Math.round(y));
      if (lay.x.scale === "category" && this.chart.kind !== "lines") return this.category(Math.round(x));
      return this.chart.kind === "dots" ? this.dot(px, py) : this.column(x);
    }

    cell(c, r) {
      const { lay, chart } = this, row = chart.cells[r];
      if (!row || c < 0 || c >= row.length) return null;
      const a = this.pixel(null, c - 0.5, r - 0.5), b = this.pixel(null, c + 0.5, r + 0.5);
      const value = known(row[c]) ? this.cellText(row[c]) : "no value";
      return { head: `${worded(r, lay.y)}, ${named(lay.x, worded(c, lay.x))}`, rows: [{ name: chart.cell_label || "value", value }],
        box: [a, b], at: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] };
    }

    category(k) {
      const { lay } = this, axis = lay.sideways ? lay.y : lay.x, names = axis.categories;
      if (k < 0 || k >= names.length) return null;
      const rows = [], marks = [];
      for (const s of this.visible()) {
        s.at.forEach((p, n) => {
          if (Math.round(lay.sideways ? p.y : p.x) !== k) return;
          rows.push(this.row(s, p, lay.sideways ? p.x : p.y, lay.sideways ? lay.x : this.yOf(s, lay)));
          const at = s.drawn ? s.drawn[n] : [placed(p.x, lay.x), placed(p.y, lay.y)];
          if (at.every(known)) marks.push(this.pixel(s, ...at));
        });
      }
      if (!rows.length) return null;
      const a = lay.sideways ? this.pixel(null, lay.ax.low, k - 0.5) : this.pixel(null, k - 0.5, lay.ay.low);
      const b = lay.sideways ? this.pixel(null, lay.ax.high, k + 0.5) : this.pixel(null, k + 0.5, lay.ay.high);
      return { head: names[k], rows, box: [a, b], at: marks[0] || [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] };
    }

    row(s, p, value, axis, place) {
      let text = worded(value, axis);
      if (known(p.low) && known(p.high)) text += ` (${worded(p.low, axis)} to ${worded(p.high, axis)})`;
      return { name: s.name, value: place ? `${text}, at ${place}` : text, look: s.look };
    }

    dot(px, py) {
      let best = null;
      for (const s of this.visible()) {
        for (const p of s.at) {
          const at = [placed(p.x, this.lay.x), placed(p.y, this.yOf(s, this.lay))];
          if (!at.every(known)) continue;
          const [a, b] = this.pixel(s, ...at), far = Math.hypot(a - px, b - py);
          if (!best || far < best.far) best = { far, s, p, at: [a, b] };
        }
      }
      if (!best || best.far > NEAR * 1.5) return null;
      const head = named(this.lay.x, worded(best.p.x, this.lay.x));
      return { head, rows: [this.row(best.s, best.p, best.p.y, this.yOf(best.s, this.lay))], marks: [[...best.at, best.s.look.colour]], at: best.at };
    }

    column(x) {
      const { lay } = this, found = [];
      for (const s of this.visible()) {
        let best = null;
        for (const p of s.at) {
          const at = placed(p.x, lay.x), up = placed(p.y, this.yOf(s, lay));
          if (known(at) && known(up) && this.within(at) && (!best || Math.abs(at - x) < Math.abs(best.x - x))) best = { x: at, y: up, p, s };
        }
        if (best) found.push(best);
      }
      if (!found.length) return null;
      const first = found.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
      const middle = this.pixel(first.s, first.x, first.y)[0];
      const rows = [], marks = [];
      for (const f of found) {
        const [a, b] = this.pixel(f.s, f.x, f.y);
        if (Math.abs(a - middle) > NEAR) continue;
        rows.push(this.row(f.s, f.p, f.p.y, this.yOf(f.s, lay), f.p.x === first.p.x ? "" : worded(f.p.x, lay.x)));
        marks.push([a, b, f.s.look.colour]);
      }
      return { head: named(lay.x, worded(first.p.x, lay.x)), rows, marks, line: middle, at: [middle, marks[0][1]], x: first.p.x };
    }

    show(found, loud) {
      if (!found) return this.hide();
      const f = this.frame();
      this.layer.replaceChildren();
      const put = (name, left, top, width, height) => {
        const node = this.layer.appendChild(make("div", name));
        Object.assign(node.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
        return node;
      };
      if (found.box) {
        const [a, b] = found.box;
        put("chart-box", Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.abs(a[0] - b[0]), Math.abs(a[1] - b[1]));
      }
      if (found.line !== undefined) put("chart-cross", found.line, f.top, 1, f.bottom - f.top);
      for (const [x, y, colour] of found.marks || []) put("chart-mark", x - 5, y - 5, 10, 10).style.background = colour;
      this.fill(found, loud);
    }

    fill(found, loud) {
      const body = [make("strong", "", found.head)];
      for (const r of found.rows) {
        const line = make("div", "chart-tip-row");
        if (r.look) line.append(swatch(this.chart.kind, r.look));
        line.append(make("span", "", r.name), make("b", "", r.value));
        body.push(line);
      }
      this.tip.replaceChildren(...body);
      this.tip.setAttribute("role", loud ? "status" : "presentation");
      this.tip.hidden = false;
      const wide = this.plot.clientWidth, tip = this.tip.getBoundingClientRect(), [x, y] = found.at;
      const left = x + 14 + tip.width <= wide ? x + 14 : Math.max(0, x - 14 - tip.width);
      this.tip.style.left = `${Math.max(0, Math.min(left, wide - tip.width))}px`;
      this.tip.style.top = `${Math.max(0, Math.min(y - tip.height / 2, this.lay.height - tip.height))}px`;
    }

    hide() {
      this.tip.hidden = true;
      this.layer.replaceChildren();
    }

    // ---- pointer and keys

    events() {
      const { plot } = this;
      const place = (e) => { const r = this.canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
      let start = null;
      plot.addEventListener("pointermove", (e) => {
        const [x, y] = place(e);
        if (start !== null && Math.abs(x - start) > 6) this.select(start, x);
        else if (e.pointerType === "mouse" || e.buttons) this.show(this.near(x, y));
      });
      plot.addEventListener("pointerdown", (e) => {
        const [x, y] = place(e);
        if (e.pointerType === "mouse" && e.button === 0 && this.zooms()) start = x;
        else this.show(this.near(x, y));
      });
      const end = (e) => {
        if (start === null) return;
        const from = start, [x] = place(e);
        start = null;
        if (Math.abs(x - from) > 10) this.zoomTo(from, x);
        else this.hide();
      };
      plot.addEventListener("pointerup", end);
      plot.addEventListener("pointerleave", (e) => { end(e); this.hide(); });
      plot.addEventListener("dblclick", () => this.zoom(null));
      plot.addEventListener("blur", () => this.hide());
      plot.addEventListener("keydown", (e) => { if (this.key(e.key)) e.preventDefault(); });
    }

    zooms() {
      const numeric = this.lay.x.scale !== "category" && !this.lay.sideways;
      return numeric && this.chart.kind === "lines" && this.stops().length > 8;
    }

    select(from, to) {
      const f = this.frame();
      this.hide();
      const box = this.layer.appendChild(make("div", "chart-select")), clamp = (v) => Math.max(f.left, Math.min(f.right, v));
      Object.assign(box.style, { left: `${clamp(Math.min(from, to))}px`, top: `${f.top}px`, width: `${Math.abs(clamp(to) - clamp(from))}px`, height: `${f.bottom - f.top}px` });
    }

    zoomTo(from, to) {
      const at = (px) => this.echart.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [px, 0])[0], { ax } = this.lay;
      const low = Math.max(ax.low, at(Math.min(from, to))), high = Math.min(ax.high, at(Math.max(from, to)));
      const inside = this.stops().filter((v) => { const k = placed(v, this.lay.x); return k >= low && k <= high; });
      if (inside.length > 1) this.zoom([low, high]);
      else this.hide();
    }

    stops() {  // the horizontal places at which there are values
      const all = new Set();
      for (const s of this.visible()) for (const p of s.at) if (known(p.x) && known(p.y)) all.add(p.x);
      return [...all].sort((a, b) => a - b);
    }

    key(name) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[name];
      if (name === "Escape") { this.hide(); if (this.window) this.zoom(null); return true; }
      if (!step) return false;
      const { lay, chart } = this;
      if (chart.kind === "heat") return this.moveCell(name);
      const categories = lay.sideways ? lay.y.categories : lay.x.scale === "category" ? lay.x.categories : null;
      const stops = categories ? categories.map((_, k) => k) : this.stops().filter((v) => this.within(placed(v, lay.x)));
      if (!stops.length) return false;
      const most = stops.length - 1, jump = Math.max(1, Math.floor(stops.length / 100));
      this.cursor = Math.max(0, Math.min(most, this.cursor < 0 ? (step > 0 ? 0 : most) : this.cursor + step * jump));
      const at = stops[this.cursor];
      this.show(categories && chart.kind !== "lines" ? this.category(at) : this.column(placed(at, lay.x)), true);
      return true;
    }

    moveCell(name) {
      const { cells } = this.chart, last = this.at || [0, 0];
      const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[name];
      const next = this.at ? [last[0] + dx, last[1] + dy] : last;
      if (!cells[next[1]] || next[0] < 0 || next[0] >= cells[next[1]].length) return true;
      this.at = next;
      this.show(this.cell(...next), true);
      return true;
    }
  }

  const named = (axis, text) => (axis.scale === "category" || !axis.label ? text : `${axis.label.replace(/,? *\(?%\)?$/, "")} ${text}`);

  return {
    draw(element, chart) {
      const drawing = new Drawing(element, chart);
      return { update: (next) => drawing.update(next), resize: () => drawing.resize(), dispose: () => drawing.dispose() };
    },
    number, worded,
  };
})();
