// Several runs beside each other.
import { address, el } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

const only = (data, charts) => ({  // the charts of a document, or everything else
  damage: charts ? [] : data.damage,
  sections: data.sections.map((s) => ({ ...s, blocks: s.blocks.filter((b) => (b.block === "Chart") === charts) })).filter((s) => s.blocks.length),
});

export function compare(main, place) {
  let { query } = place, figures = new Figures(), shown = "", drawn = "";
  const about = el("p", { class: "subtitle" }), words = el("div", {}, el("p", { class: "quiet" }, "Reading the records ...")), curves = el("div");
  main.append(el("p", { class: "crumb" }, el("a", { href: address("runs") }, "All runs")), el("h1", { tabindex: "-1" }, "Runs beside each other"), about, words, curves);

  function renew(data) {  // the table, in the order and with the focus that it has
    const head = words.querySelector("th[aria-sort]"), order = head && [head.textContent, head.getAttribute("aria-sort")];
    const focus = words.contains(document.activeElement) ? document.activeElement.textContent : "";
    words.replaceChildren(...sections(only(data, false), figures));
    for (const button of words.querySelectorAll("thead button")) {
      if (order && button.textContent === order[0]) for (let k = 0; k < (order[1] === "descending" ? 2 : 1); k++) button.click();
      if (button.textContent === focus) button.focus({ preventScroll: true });
    }
  }

  function draw(data) {
    const charts = data.sections.flatMap((s) => s.blocks).filter((b) => b.block === "Chart"), ids = charts.map((c) => c.id).join(" ");
    if (ids === drawn) {
      for (const chart of charts) figures.update(chart);
      return;
    }
    figures.dispose();
    figures = new Figures();
    curves.replaceChildren(...sections(only(data, true), figures));
    drawn = ids;
  }

  const look = again(async () => {
    const asked = query.runs;
    try {
      const data = await ask("compare", { runs: asked });
      if (asked !== query.runs || (data.same && shown === asked)) return 3;
      about.textContent = data.title;
      if (shown !== asked) drawn = "";
      renew(data);
      draw(data);
      shown = asked;
    } catch (error) {
      if (asked !== query.runs) return 3;
      words.replaceChildren(el("p", { class: "warning" }, error.message));
      curves.replaceChildren();
      shown = drawn = "";
    }
    return 3;
  }, 3);
  return { change: (next) => { query = next.query; look.now(); }, leave: () => { look.stop(); figures.dispose(); } };
}
