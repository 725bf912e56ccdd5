// Makes elements. Texts of records become text nodes and nothing else: no string is ever parsed as HTML.

export function el(tag, about, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

export function address(path, query) {
  const given = Object.entries(query || {}).filter(([, v]) => v !== undefined && v !== null && v !== "");
  const text = new URLSearchParams(given.map(([k, v]) => [k, String(v)])).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, name] of [[86400 * 365, "year"], [86400 * 30, "month"], [86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const n = Math.floor(s / size);
    if (n >= 1) return `${n} ${name}${n === 1 ? "" : "s"} ago`;
  }
  return "just now";
}

export const count = (n) => (typeof n === "number" ? n.toLocaleString("en") : "");

// An epsilon is rounded up and never down, as everywhere in Sordino.
export function epsilon(value) {
  if (typeof value !== "number") return "";
  if (value >= 1e6) return value.toExponential(2).replace("e+", "e");
  return (Math.ceil(value * 1000 - 1e-6) / 1000).toLocaleString("en", { maximumFractionDigits: 3 });
}

export const percent = (v, digits = 1) => (typeof v === "number" ? `${(100 * v).toFixed(digits)} %` : "");

export function figure(v, digits = 3) {
  if (typeof v !== "number") return "";
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size >= 1e6 || size < 1e-3) return v.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return Number(v.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 8 });
}

export const MEASURES = { accuracy: "accuracy", rmse: "RMSE", mae: "mean absolute error", loss: "loss" };

export function score(line) {  // of a run, with its name unless it is an accuracy
  if (typeof line.score !== "number") return "";
  return line.measure === "accuracy" ? percent(line.score) : `${MEASURES[line.measure]} ${figure(line.score)}`;
}

let spoken = "";
export function say(text) {  // to a screen reader, once
  if (text === spoken) return;
  spoken = text;
  document.getElementById("status").textContent = text;
}

export function pager(page, pages, to) {
  if (pages <= 1) return null;
  const step = (text, p, on) => (on ? el("a", { href: to(p), rel: p < page ? "prev" : "next" }, text) : el("span", { class: "off" }, text));
  return el("nav", { class: "pager", "aria-label": "Pages" }, step("Previous", page - 1, page > 1), el("span", {}, `Page ${count(page)} of ${count(pages)}`),
    step("Next", page + 1, page < pages));
}
