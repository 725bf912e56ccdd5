// Shows a document of the server: the same sections, tables and charts as a report, in the same looks.
import { el } from "./dom.js";

const ROWS = 200;  // numbers of a chart that are listed
const FIGURE = /^[<>\u2264\u2265~\u2248]?\s*[-+\u2212]?[\d.,]+(e[-+\u2212]?\d+)?(\s?(%|s|MB|kB|GB|bytes|pp))?(\s*(\u00b1|to|of|\().*)?$/;
const BLANK = new Set(["", "-", "\u2013", "\u2014", "infinite", "none", "unknown", "not known"]);
let loading = null;

function charts() {  // the plotting library, when the first chart is near
  loading ||= ["echarts.min.js", "charts.js"].reduce((before, name) => before.then(() => new Promise((done, failed) => {
    const script = el("script", { src: `/assets/${name}` });
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  })), Promise.resolve());
  return loading;
}

// ---- charts: drawn when they come near, updated in place, given up with their page

export class Figures {
  constructor() {
    this.shown = new Map();
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.draw(this.shown.get(entry.target.dataset.chart));
    }, { rootMargin: "500px 0px" });
  }

  figure(chart) {
    const drawing = el("div", { class: "drawing" }), numbers = el("details", { class: "numbers" }, el("summary", {}, "Numbers"));
    const summary = el("p", { class: "summary" }, chart.summary), source = el("p", { class: "source" });
    const node = el("figure", { class: `chart${chart.kind === "heat" && chart.x.categories.length > 24 ? " wide" : ""}`, "data-chart": chart.id },
      el("figcaption", {}, el("h3", {}, chart.title), summary), drawing, source, numbers);
    const held = { chart, node, drawing, numbers, summary, source, drawn: null };
    numbers.addEventListener("toggle", () => this.list(held));
    this.words(held);
    this.shown.set(chart.id, held);
    this.watch.observe(node);
    return node;
  }

  words(held) {
    const { chart } = held;
    held.summary.textContent = chart.summary || "";
    held.summary.hidden = !chart.summary;
    held.source.textContent = chart.source ? `Source: ${chart.source}` : "";
    held.source.hidden = !chart.source;
  }

  async draw(held) {
    if (!held || held.drawn || held.begun) return;
    held.begun = true;
    try {
      await charts();
      if (held.gone) return;
      held.drawn = window.SordinoCharts.draw(held.drawing, held.chart);
    } catch (error) {
      held.drawing.className = "chart-failed";
      held.drawing.textContent = "This figure could not be drawn; its numbers are in the table below.";
      console.error(error);
    }
  }

  update(chart) {  // returns whether there is such a chart
    const held = this.shown.get(chart.id);
    if (!held) return false;
    held.chart = chart;
    this.words(held);
    if (held.drawn) held.drawn.update(chart);
    if (held.numbers.open) this.list(held);
    return true;
  }

  list(held) {
    const old = held.numbers.querySelector(".frame");
    if (old) old.remove();
    if (held.numbers.open) held.numbers.append(numbers(held.chart));
  }

  drop(id) {
    const held = this.shown.get(id);
    if (!held) return;
    held.gone = true;
    this.watch.unobserve(held.node);
    if (held.drawn) held.drawn.dispose();
    held.node.remove();
    this.shown.delete(id);
  }

  dispose() {
    this.watch.disconnect();
    for (const held of this.shown.values()) {
      held.gone = true;
      if (held.drawn) held.drawn.dispose();
    }
    this.shown.clear();
  }
}

function numbers(chart) {
  const at = (axis, v) => (axis.scale === "category" ? (axis.categories[v] ?? "") : v === null ? "" : window.SordinoCharts ? window.SordinoCharts.worded(v, axis) : String(v));
  let head, rows = [];
  if (chart.kind === "heat") {
    head = [chart.y.label, chart.x.label, chart.cell_label || "value"];
    chart.cells.forEach((line, r) => line.forEach((v, c) => { if (v !== null) rows.push([at(chart.y, r), at(chart.x, c), String(v)]); }));
  } else {
    head = ["series", chart.x.label || "x", chart.y.label || "y"];
    for (const s of chart.series) {
      const y = s.axis === "right" && chart.right ? chart.right : chart.y;
      for (const p of s.points) if (p[1] !== null) rows.push([s.name, at(chart.x, p[0]), at(y, p[1])]);
    }
  }
  const all = rows.length;
  if (all > ROWS) rows = rows.filter((_, k) => k % Math.ceil(all / ROWS) === 0 || k === all - 1);
  return frame(`Numbers of ${chart.title}`, grid(head, rows));
}

// ---- tables

export function frame(label, table) {
  return el("div", { class: "frame", tabindex: "0", role: "region", "aria-label": label }, table);
}

function grid(header, rows, about) {
  const right = header.map((_, k) => {
    const told = rows.map((r) => String(r[k] ?? "").trim()).filter((t) => !BLANK.has(t.toLowerCase()));
    return k > 0 && told.length > 0 && told.every((t) => FIGURE.test(t));
  });
  const body = el("tbody", {}, ...rows.map((row, r) => el("tr", { class: about && about.caution.includes(r) ? "caution" : null },
    ...header.map((_, k) => (k ? el("td", { class: right[k] ? "figure" : null }, row[k] ?? "") : el("th", { scope: "row" }, row[k] ?? ""))))));
  const heads = header.map((text, k) => el("th", { scope: "col", class: right[k] ? "figure" : null }, text));
  return el("table", about ? { "aria-labelledby": about.id } : {}, el("thead", {}, el("tr", {}, ...heads)), body);
}

let tables = 0;
function dataTable(block) {
  tables += 1;
  const id = `table-${tables}`, table = grid(block.header, block.rows, { id, caution: block.caution || [] });
  const keys = block.keys || [];
  if (keys.length === block.rows.length && block.rows.length > 1 && keys.every((k) => k.length === block.header.length)) sortable(table, keys);
  return el("div", { class: "block" }, el("h3", { id }, block.title), frame(block.title, table), block.note && el("p", { class: "note" }, block.note), source(block.source));
}

function sortable(table, keys) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", order = rows.map((_, k) => k);
      order.sort((a, b) => compare(keys[a][column], keys[b][column], down) || a - b);
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...order.map((k) => rows[k]));
    });
  });
}

function compare(a, b, down) {  // what has no value comes last either way
  const none = (v) => v === null || v === undefined || v === "";
  if (none(a) || none(b)) return none(a) - none(b);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  const way = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return down ? -way : way;
}

const source = (text) => (text ? el("p", { class: "source" }, `Source: ${text}`) : null);

// ---- blocks and sections

function block(b, figures) {
  switch (b.block) {
    case "Paragraph": return el("p", { class: b.tone === "plain" ? null : b.tone }, b.text);
    case "Listing": return el("ul", { class: "listing" }, ...b.items.map((text) => el("li", {}, text)));
    case "FactSheet": return el("div", { class: "block" }, el("dl", { class: "facts" }, ...b.rows.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))), source(b.source));
    case "Tiles": return el("div", { class: "block" }, tiles(b.tiles), source(b.source));
    case "DataTable": return dataTable(b);
    case "Chart": return figures.figure(b);
    case "PictureFile": return el("figure", {}, el("figcaption", {}, el("h3", {}, b.title), b.summary && el("p", {}, b.summary)),
      el("img", { src: `data:image/png;base64,${b.png.replace(/[^A-Za-z0-9+/=]/g, "")}`, alt: b.summary || b.title }), source(b.source));
    default: return null;
  }
}

export function tiles(all) {
  return el("dl", { class: "tiles" }, ...all.map((t) => el("div", { class: "tile" }, el("dt", {}, t.label), el("dd", { class: "value" }, t.value), t.detail && el("dd", { class: "detail" }, t.detail))));
}

export function damage(sentences) {
  if (!sentences || !sentences.length) return null;
  const shown = sentences.slice(0, 20), more = sentences.length - shown.length;
  return el("aside", { class: "warning damage", "aria-label": "Damaged records" }, el("strong", {}, "These records are damaged or incomplete."),
    el("ul", {}, ...shown.map((text) => el("li", {}, text)), more > 0 && el("li", {}, `${more.toLocaleString("en")} further findings are left out.`)));
}

function inside(section, figures) {
  const out = [];
  let row = null;
  for (const b of section.blocks) {
    const node = block(b, figures);
    if (!node) continue;
    if (b.block === "Chart") {
      if (!row) out.push(row = el("div", { class: "figures" }));
      row.append(node);
    } else {
      row = null;
      out.push(node);
    }
  }
  return out;
}

let parts = 0;
export function sections(document, figures, { contents = false, title = true } = {}) {
  const out = [damage(document.damage)].filter(Boolean), made = [];
  for (const section of document.sections) {
    parts += 1;
    const id = `part-${parts}`, head = title ? el("h2", { id, tabindex: "-1" }, section.title) : null;
    const node = section.folded ? el("details", {}, el("summary", {}, head || section.title), ...inside(section, figures))
      : el("section", head ? { "aria-labelledby": id } : {}, head, ...inside(section, figures));
    made.push([section.title, node]);
  }
  if (contents && made.length > 2) {
    out.push(el("nav", { class: "contents", "aria-label": "Contents" }, el("ol", {}, ...made.map(([text, node]) => el("li", {}, el("button", { type: "button", class: "jump", onclick: () => {
      if (node.tagName === "DETAILS") node.open = true;
      node.scrollIntoView();
      const head = node.querySelector("h2");
      if (head) head.focus({ preventScroll: true });
    } }, text))))));
  }
  return [...out, el("div", { class: "sections" }, ...made.map(([, node]) => node))];
}
