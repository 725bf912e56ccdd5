// Several runs beside each other.
import { address, el } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

export function compare(main, place) {
  let { query } = place, figures = new Figures(), shown = "";
  const about = el("p", { class: "subtitle" }), body = el("div", {}, el("p", { class: "quiet" }, "Reading the records ..."));
  main.append(el("p", { class: "crumb" }, el("a", { href: address("runs") }, "All runs")), el("h1", { tabindex: "-1" }, "Runs beside each other"), about, body);
  const look = again(async () => {
    try {
      const data = await ask("compare", { runs: query.runs });
      if (data.same && shown === query.runs) return 3;
      const open = new Set([...body.querySelectorAll("details[open]")].map((node) => node.closest("figure")?.dataset.chart));
      if (shown === query.runs && !open.size && body.contains(document.activeElement)) {
        for (const section of data.sections) for (const b of section.blocks) if (b.block === "Chart") figures.update(b);
        return 3;
      }
      about.textContent = data.title;
      figures.dispose();
      figures = new Figures();
      body.replaceChildren(...sections(data, figures));
      shown = query.runs;
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(el("p", { class: "warning" }, error.message));
      shown = "";
    }
    return 3;
  }, 3);
  return { change: (next) => { query = next.query; look.now(); }, leave: () => { look.stop(); figures.dispose(); } };
}
