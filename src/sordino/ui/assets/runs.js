// The list of runs: a page of it, sorted and filtered by the server.
import { address, ago, count, el, epsilon, pager, say, score } from "./dom.js";
import { frame } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

const COLUMNS = [["name", "run"], ["state", "state"], ["method", "method"], ["data", "data"], ["epsilon", "epsilon"], ["score", "score"], ["rounds", "rounds"], ["changed", "changed"]];
const DOWN = new Set(["epsilon", "score", "rounds", "changed"]);  // columns whose largest come first
const RIGHT = new Set(["epsilon", "score", "rounds"]);
const MOST = 8;
const chosen = new Map();  // runs to compare, by id, kept while the page is open

export function runs(main, place) {
  let query = place.query, typing = 0;
  const filter = el("input", { type: "search", id: "find", value: query.find || "", placeholder: "name, method, data, state", autocomplete: "off", spellcheck: "false" });
  const found = el("p", { class: "found" }), against = el("a", { class: "action", hidden: true }, ""), clear = el("button", { type: "button", class: "plain", hidden: true }, "Clear");
  const body = el("tbody"), below = el("div"), heads = COLUMNS.map(([column, text]) => head(column, text));
  const table = el("table", { class: "runs", "aria-label": "Runs" }, el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "pick" }, el("span", { class: "hidden" }, "compare")), ...heads)), body);
  const held = frame("Runs", table);
  main.append(el("h1", { tabindex: "-1" }, "Runs"),
    el("div", { class: "tools" }, el("label", { for: "find" }, "Filter"), filter, found, el("span", { class: "push" }, against, clear)), held, below);

  function head(column, text) {
    return el("th", { scope: "col", class: `c-${column}${RIGHT.has(column) ? " figure" : ""}` }, el("button", { type: "button", onclick: () => {
      const now = query.sort || "-changed", first = DOWN.has(column) ? `-${column}` : column;
      const other = first.startsWith("-") ? column : `-${column}`;
      location.hash = address("runs", { ...query, page: "", sort: now === first ? other : first });
    } }, text));
  }

  filter.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      query = { ...query, page: "", find: filter.value.trim() };
      history.replaceState(null, "", address("runs", query));
      look.now();
    }, 150);
  });
  clear.addEventListener("click", () => {
    chosen.clear();
    for (const box of body.querySelectorAll("input")) box.checked = false;
    offered();
    filter.focus();
  });

  function offered() {
    const n = chosen.size;
    against.hidden = n < 2;
    clear.hidden = n < 1;
    against.textContent = `Compare ${n} runs`;
    against.href = address("compare", { runs: [...chosen.keys()].join(",") });
    for (const box of body.querySelectorAll("input")) box.disabled = n >= MOST && !box.checked;
  }

  function row(r) {
    const one = r.kind === "run", to = address(`${one ? "run" : "comparison"}/${r.id}`);
    const box = one && el("input", { type: "checkbox", "data-key": `pick ${r.id}`, "aria-label": `Compare ${r.name}`, checked: chosen.has(r.id), onchange: (event) => {
      if (event.target.checked) chosen.set(r.id, r.name);
      else chosen.delete(r.id);
      offered();
    } });
    const below = [one ? r.method : "comparison", r.data].filter(Boolean).join(" on ");
    const spent = r.unbounded ? "no guarantee" : r.epsilon === null && r.total === null ? "" : r.state === "finished" || r.epsilon === null ? epsilon(r.total) : `${epsilon(r.epsilon)} of ${epsilon(r.total)}`;
    const rounds = r.rounds === null ? "" : r.state === "finished" || !r.planned ? count(r.rounds) : `${count(r.rounds)} of ${count(r.planned)}`;
    return el("tr", {}, el("td", { class: "pick" }, box || null),
      el("th", { scope: "row" }, el("a", { href: to, "data-key": `open ${r.id}` }, r.name), el("span", { class: "below" }, one && el("span", { class: `state ${r.state}` }, r.state), below), r.damaged && el("span", { class: "mark-damaged" }, "damaged")),
      el("td", { class: "c-state" }, one ? el("span", { class: `state ${r.state}` }, r.state) : null), el("td", { class: "c-method" }, one ? r.method : "comparison"), el("td", { class: "c-data" }, r.data),
      el("td", { class: "c-epsilon figure" }, spent), el("td", { class: "c-score figure" }, score(r)), el("td", { class: "c-rounds figure" }, rounds),
      el("td", { class: "c-changed" }, el("time", { datetime: new Date(1000 * r.changed).toISOString(), title: new Date(1000 * r.changed).toLocaleString() }, ago(r.changed))));
  }

  function show(data) {
    const focus = body.contains(document.activeElement) ? document.activeElement.dataset.key : "";
    body.replaceChildren(...data.rows.map(row));
    if (focus) {
      const again = [...body.querySelectorAll("[data-key]")].find((node) => node.dataset.key === focus);
      if (again) again.focus({ preventScroll: true });
    }
    COLUMNS.forEach(([column], k) => {
      const sort = data.sort === column ? "ascending" : data.sort === `-${column}` ? "descending" : "";
      if (sort) heads[k].setAttribute("aria-sort", sort);
      else heads[k].removeAttribute("aria-sort");
    });
    const text = data.found === data.all ? `${count(data.all)} run${data.all === 1 ? "" : "s"}` : `${count(data.found)} of ${count(data.all)} runs`;
    found.textContent = text;
    say(text);
    held.hidden = !data.rows.length;
    const gone = data.missing.map((sentence) => el("p", { class: "warning" }, sentence));
    const empty = !data.rows.length && !gone.length && el("p", { class: "quiet" }, data.all ? "No run fits this filter." : "There are no runs in this folder yet. \u201csordino run\u201d starts one; it then appears here.");
    below.replaceChildren(...[...gone, empty, pager(data.page, data.pages, (page) => address("runs", { ...query, page }))].filter(Boolean));
    offered();
  }

  async function ordered() {
    const asked = query, key = JSON.stringify(asked);
    try {
      const data = await ask("runs", { page: asked.page, sort: asked.sort, find: asked.find });
      if (asked !== query) return;  // the reader has asked for something else meanwhile
      if (!data.same || table.dataset.query !== key) show(data);
      table.dataset.query = key;
    } catch (error) {
      if (asked !== query) return;
      delete table.dataset.query;
      held.hidden = !body.children.length;
      below.replaceChildren(el("p", { class: "warning" }, error.message));
    }
  }

  const look = again(ordered, 2);
  return {
    change: (next) => {
      query = next.query;
      if (filter.value.trim() !== (query.find || "")) filter.value = query.find || "";
      look.now();
    },
    leave: () => { clearTimeout(typing); look.stop(); },
  };
}
