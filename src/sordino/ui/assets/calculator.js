// The epsilon calculator and the planner. The accountants that price runs compute every number; nothing is computed here.
import { address, el, figure, say } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";

const STEPS = 1000;  // of a slider
const FIELDS = {
  noise: { text: "noise multiplier", low: 0.2, high: 200, start: 1, hint: "standard deviation of the noise over the clip bound" },
  epsilon: { text: "epsilon, in total", low: 0.01, high: 100, start: 2, hint: "what all steps together may cost" },
  rate: { text: "sampling rate", low: 1e-6, high: 1, start: 0.01, hint: "share of the units in a step, drawn in secret" },
  steps: { text: "steps", low: 1, high: 1e6, start: 1000, whole: true, hint: "how often the mechanism is used" },
  delta: { text: "delta", low: 1e-12, high: 0.01, start: 1e-5, hint: "below one over the number of units" },
  clients: { text: "clients", low: 1, high: 1e6, start: 100, whole: true, hint: "in the federation" },
  records: { text: "records of a client", low: 1, high: 1e6, start: 500, whole: true, hint: "on average" },
  parameters: { text: "parameters", low: 10, high: 1e9, start: 20000, whole: true, hint: "of the model, trainable" },
  client_rate: { text: "client rate", low: 1e-4, high: 1, start: 1, hint: "share of the clients in a round" },
  batch_rate: { text: "batch rate", low: 1e-4, high: 1, start: 1, hint: "share of a client\u2019s records in a step" },
  rounds: { text: "rounds", low: 1, high: 10000, start: "", whole: true, hint: "empty: the best of a few", optional: true },
};
const MODES = { epsilon: ["noise", "rate", "steps", "delta"], noise: ["epsilon", "rate", "steps", "delta"] };

const rounded = (field, value) => (field.whole ? Math.round(value) : Number(value.toPrecision(3)));
const slid = (field, at) => rounded(field, field.low * (field.high / field.low) ** (at / STEPS));
const position = (field, value) => Math.round((STEPS * Math.log(value / field.low)) / Math.log(field.high / field.low));
const written = (value) => (typeof value !== "number" ? String(value) : Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential().replace("e+", "e") : String(value));

function slider(name, value, changed) {
  const field = FIELDS[name], id = `field-${name}`, fits = (v) => Number.isFinite(v) && v > 0;
  const number = el("input", { id, type: "text", inputmode: "decimal", autocomplete: "off", value: written(value), "aria-describedby": `${id}-hint` });
  const range = el("input", { type: "range", min: "0", max: String(STEPS), step: "1", "aria-label": `${field.text}, slider` });
  const set = (given) => {
    const v = given === "" ? "" : Number(given);
    range.disabled = v === "";
    if (fits(v)) range.value = String(Math.min(STEPS, Math.max(0, position(field, v))));
    range.setAttribute("aria-valuetext", v === "" ? "not given" : figure(v, 4));
  };
  set(value);
  range.addEventListener("input", () => {
    const v = slid(field, Number(range.value));
    number.value = written(v);
    range.setAttribute("aria-valuetext", figure(v, 4));
    changed();
  });
  number.addEventListener("input", () => {
    set(number.value.trim() === "" && field.optional ? "" : number.value);
    changed();
  });
  const node = el("div", { class: "field" }, el("label", { for: id }, field.text), number, field.optional ? null : range, el("span", { class: "hint", id: `${id}-hint` }, field.hint));
  return { name, node, value: () => number.value.trim(), put: (v) => { if (number !== document.activeElement) number.value = written(v); set(v); } };
}

// A form whose fields are part of the address; every change asks the server anew, and gives up what it asked before.
function form(main, { path, title, subtitle, names, start, more, asks, top, wide }) {
  const figures = new Map(asks.map((a) => [a, new Figures()])), places = new Map(asks.map((a) => [a, el("div")])), stop = new AbortController();
  let asking = null, timer = 0;
  const changed = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState(null, "", address(path, { ...start.query, ...values() }));
      compute();
    }, 120);
  };
  const fields = names.map((name) => slider(name, start.query[name] ?? FIELDS[name].start, changed));
  const extra = more ? more(start.query, changed) : { node: null, values: () => ({}), put: () => {} };
  const values = () => ({ ...Object.fromEntries(fields.map((f) => [f.name, f.value()])), ...extra.values() });
  const bad = el("p", { class: "warning", hidden: true }), answer = el("div", { class: "answer" }, bad, places.get(asks[0]));
  main.append(el("h1", { tabindex: "-1" }, title), el("p", { class: "subtitle" }, subtitle), ...[top].filter(Boolean),
    el("div", { class: `calculator${wide ? " wide" : ""}` }, el("form", { "aria-label": title, onsubmit: (event) => event.preventDefault() }, ...fields.map((f) => f.node), extra.node), answer), ...asks.slice(1).map((a) => places.get(a)));

  async function compute() {
    if (asking) asking.abort();
    asking = new AbortController();
    const { signal } = asking;
    answer.setAttribute("aria-busy", "true");
    if (!places.get(asks[0]).hasChildNodes() && bad.hidden) places.get(asks[0]).append(el("p", { class: "quiet" }, "Computing ..."));
    for (const [k, what] of asks.entries()) {
      try {
        const data = await ask(what, values(), signal);
        if (signal.aborted || stop.signal.aborted) return;
        show(what, data, k === 0);
        if (k === 0) bad.hidden = true;
      } catch (error) {
        if (error.name === "AbortError" || signal.aborted) return;
        bad.textContent = error.message;
        bad.hidden = false;
        for (const key of asks.slice(k)) { figures.get(key).dispose(); figures.set(key, new Figures()); places.get(key).replaceChildren(); }
        break;
      }
    }
    if (!signal.aborted) answer.removeAttribute("aria-busy");
  }

  function show(what, data, first) {
    const drawn = figures.get(what), charts = data.sections.flatMap((s) => s.blocks).filter((b) => b.block === "Chart");
    const same = charts.length > 0 && charts.length === drawn.shown.size && charts.every((c) => drawn.shown.has(c.id));
    if (same) charts.forEach((c) => drawn.update(c));
    else {
      drawn.dispose();
      figures.set(what, new Figures());
      places.get(what).replaceChildren(...sections(data, figures.get(what), { title: false }));
    }
    const tile = data.sections.flatMap((s) => s.blocks).find((b) => b.block === "Tiles");
    if (first && tile) say(`${tile.tiles[0].label}: ${tile.tiles[0].value}`);
  }

  compute();
  return {
    change: (next) => {
      for (const f of fields) f.put(next.query[f.name] ?? FIELDS[f.name].start);
      extra.put(next.query);
      compute();
    },
    leave: () => {
      stop.abort();
      if (asking) asking.abort();
      clearTimeout(timer);
      for (const f of figures.values()) f.dispose();
    },
  };
}

function relation(query, changed) {
  const list = el("select", { id: "field-relation", onchange: changed }, el("option", { value: "add/remove" }, "added or removed"), el("option", { value: "replace" }, "replaced"));
  list.value = query.relation === "replace" ? "replace" : "add/remove";
  return {
    node: el("div", { class: "field chosen" }, el("label", { for: "field-relation" }, "a unit is"), list, el("span", { class: "hint" }, "the neighbouring relation")),
    values: () => ({ relation: list.value }),
    put: (next) => { list.value = next.relation === "replace" ? "replace" : "add/remove"; },
  };
}

export function calculator(main, place) {
  const mode = place.parts[0] === "noise" ? "noise" : "epsilon";
  const top = el("nav", { "aria-label": "What is computed" }, el("ul", { class: "tabs" },
    el("li", {}, el("a", { href: address("calculator"), "aria-current": mode === "epsilon" ? "page" : null }, "Epsilon of some noise")),
    el("li", {}, el("a", { href: address("calculator/noise"), "aria-current": mode === "noise" ? "page" : null }, "Noise for an epsilon"))));
  return form(main, {
    path: mode === "noise" ? "calculator/noise" : "calculator", title: "Calculator", subtitle: "Gaussian noise on a clipped sum, in every step, by the accountants that price runs.",
    names: MODES[mode], start: place, more: relation, asks: mode === "noise" ? ["noise"] : ["epsilon", "curves"], top,
  });
}

export function planner(main, place) {
  return form(main, {
    path: "plan", title: "Planner", subtitle: "What would work, before anything is trained: whom the noise protects, from whom, and what accuracy it keeps.",
    names: ["clients", "records", "parameters", "epsilon", "delta", "client_rate", "batch_rate", "rounds"], start: place, asks: ["plan"], wide: true,
  });
}
