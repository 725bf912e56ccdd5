// What a report does in a browser: draws its charts when they come into view, writes out all of their numbers when they
// are asked for, sorts tables, changes the theme, unfolds everything for the printer. Without it the page shows all
// texts and tables.
"use strict";

(() => {
  const CELLS = 60000;  // of a table of numbers; a file holds more
  const ROOM = "320px";  // kept for a chart that is not drawn yet, so that links lead to where they should
  const drawn = new Map();

  function draw(figure) {
    if (drawn.has(figure) || !window.SordinoCharts) return;
    const box = figure.querySelector(".drawing");
    try {
      box.style.minHeight = "";
      drawn.set(figure, SordinoCharts.draw(box, JSON.parse(figure.querySelector("script").textContent)));
      figure.classList.add("drawn");
    } catch (error) {
      drawn.set(figure, null);
      box.className = "chart-failed";
      box.textContent = "This figure could not be drawn; its numbers are in the table below.";
      console.error(error);
    }
  }

  function figures() {
    const all = [...document.querySelectorAll("figure.chart")];
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "600px 0px" });
    for (const figure of all) {
      if (window.SordinoCharts) figure.querySelector(".drawing").style.minHeight = ROOM;
      seen.observe(figure);
      const part = figure.querySelector("details[data-more]");
      if (part) part.addEventListener("toggle", () => written(figure, part), { once: true });
      const button = figure.querySelector("button.save");
      if (button) {
        button.hidden = false;
        button.addEventListener("click", () => save(figure));
      }
    }
    return all;
  }

  // ---- the numbers of a figure

  function written(figure, part) {
    const chart = JSON.parse(figure.querySelector("script").textContent), note = part.querySelector(".note");
    const rows = chart.kind === "heat" ? ofCells(chart) : ofSeries(chart);
    if (rows.length * rows[0].length > CELLS) return;
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    rows[0].forEach((text, k) => head.append(cell("th", text, "col", k)));
    for (const row of rows.slice(1)) {
      const line = body.insertRow();
      row.forEach((text, k) => line.append(cell(k ? "td" : "th", text, k ? null : "row", k)));
    }
    part.querySelector(".frame").replaceChildren(table);
    if (part.dataset.more === "thinned") note.textContent = "Of long lines the page holds as many points as a screen can show.";
    else note.remove();
  }

  function cell(tag, text, scope, column) {
    const node = document.createElement(tag);
    node.textContent = text;
    if (scope) node.scope = scope;
    if (column) node.className = "figure";
    return node;
  }

  function ofCells(chart) {
    const { worded, number } = SordinoCharts;
    const rows = chart.cells.map((line, r) => [worded(r, chart.y), ...line.map((v) => (v === null ? "" : number(v)))]);
    return [[chart.y.label, ...(chart.cells[0] || []).map((_, c) => worded(c, chart.x))], ...rows];
  }

  function ofSeries(chart) {
    const { worded } = SordinoCharts, side = (s) => (s.axis === "right" && chart.right ? chart.right : chart.y);
    const value = (s, k) => {
      const y = s.points[k][1], [low, high] = s.band[k] || [null, null];
      if (y === null) return "";
      return worded(y, side(s)) + (low === null || high === null ? "" : ` (${worded(low, side(s))} to ${worded(high, side(s))})`);
    };
    const at = chart.series.map((s) => new Map(s.points.map((p, k) => [p[0], k])));
    if (chart.series.some((s, k) => at[k].size < s.points.length)) {
      const rows = chart.series.flatMap((s) => s.points.map((p, k) => [s.name, worded(p[0], chart.x), value(s, k)]));
      return [["series", chart.x.label, chart.y.label], ...rows];
    }
    const places = [...new Set(at.flatMap((m) => [...m.keys()]))].sort((a, b) => a - b);
    const rows = places.map((x) => [worded(x, chart.x), ...chart.series.map((s, k) => (at[k].has(x) ? value(s, at[k].get(x)) : ""))]);
    return [[chart.x.label, ...chart.series.map((s) => s.name)], ...rows];
  }

  function save(figure) {
    const chart = JSON.parse(figure.querySelector("script").textContent), rows = [];
    const cell = (v) => {
      let text = v === null || v === undefined ? "" : String(v);
      if (typeof v === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;  // no formula for a spreadsheet
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    const at = (axis, v) => (axis.scale === "category" ? axis.categories[v] : v);
    if (chart.kind === "heat") {
      rows.push([chart.y.label, chart.x.label, chart.cell_label]);
      chart.cells.forEach((line, r) => line.forEach((v, c) => rows.push([at(chart.y, r), at(chart.x, c), v])));
    } else {
      rows.push(["series", chart.x.label, chart.y.label, "low", "high"]);
      for (const s of chart.series) {
        s.points.forEach(([x, y], k) => rows.push([s.name, at(chart.x, x), at(chart.y, y), ...(s.band[k] || [null, null])]));
      }
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.map((r) => r.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
    link.download = `${chart.id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function sortable(table) {
    const body = table.tBodies[0], rows = [...body.rows], keys = JSON.parse(table.querySelector("script").textContent);
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
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

  function compare(a, b, down) {  // what has no number comes last either way
    const none = (v) => v === null || v === undefined || v === "";
    if (none(a) || none(b)) return none(a) - none(b);
    const mixed = typeof a !== typeof b;
    if (mixed) return typeof a === "number" ? -1 : 1;
    const way = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return down ? -way : way;
  }

  function theme() {
    const button = document.querySelector("button.theme");
    if (!button) return;
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const now = () => document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
    const label = () => { button.textContent = now() === "dark" ? "Light theme" : "Dark theme"; };
    button.hidden = false;
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
      label();
    });
    system.addEventListener("change", label);
    label();
  }

  function printing(all) {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("main > details:not([open])")];
      for (const part of opened) part.open = true;
      all.forEach(draw);
    });
    window.addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
  }

  function unfold() {  // a link to a folded part opens it
    const part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (part && part.tagName === "DETAILS") part.open = true;
  }

  const all = figures();
  document.querySelectorAll("table[data-sortable]").forEach(sortable);
  theme();
  printing(all);
  window.addEventListener("hashchange", unfold);
  unfold();
})();
