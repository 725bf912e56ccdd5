// One run: its progress and curves while it goes on, and its whole report; or the page of a comparison.
import { MEASURES, address, ago, count, el, epsilon, figure, percent, say } from "./dom.js";
import { Figures, damage, sections, tiles } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

const TABS = [["", "Progress"], ["report", "Report"], ["attacks", "Attacks"]];
const STATES = {
  running: "It is running now.", finished: "It has finished.", stopped: "It has stopped before its end.",
  unknown: "It is a copy of its public part, without an end.",
};

export function run(main, place) {
  const [id] = place.parts, whole = place.name === "comparison";
  const title = el("h1", { tabindex: "-1" }, whole ? "Comparison" : "Run"), about = el("p", { class: "subtitle" }), tabs = el("ul", { class: "tabs" }), body = el("div");
  main.append(el("p", { class: "crumb" }, el("a", { href: address("runs") }, "All runs")), title, about);
  if (!whole) main.append(el("nav", { "aria-label": "Parts of the run" }, tabs));
  main.append(body);
  let figures = new Figures(), look = null, tab = null;

  function named(line) {
    title.textContent = line.name;
    document.title = `${line.name}: Sordino`;
    const what = [line.method, line.data && `on ${line.data}`].filter(Boolean).join(" ");
    about.replaceChildren(...[el("span", { class: `state ${line.state}` }, line.state), what, el("span", { class: "when" }, ` last written ${ago(line.changed)}`)]);
  }

  function open(next) {
    tab = whole ? "report" : next;
    delete body.dataset.shown;
    if (look) look.stop();
    figures.dispose();
    figures = new Figures();
    body.replaceChildren(el("p", { class: "quiet" }, "Reading the records ..."));
    tabs.replaceChildren(...TABS.map(([name, text]) => el("li", {}, el("a", { href: address(`run/${id}${name ? `/${name}` : ""}`), "aria-current": name === tab ? "page" : null }, text))));
    look = tab === "" ? again(progress(figures), 1) : again(document_(figures), 5);
    if (tab !== "" && !whole) ask(`run/${id}/line`).then(named, () => {});
  }

  function failed(error) {
    delete body.dataset.shown;  // so that it is shown anew as soon as it can be read
    body.replaceChildren(el("p", { class: "warning" }, error.message));
  }

  function document_(figures) {
    const mine = tab;
    return async () => {
      try {
        const data = await ask(`run/${id}/${mine}`);
        if (mine !== tab || (data.same && body.dataset.shown === mine)) return 5;
        if (body.dataset.shown === mine && data.sections.length) return refreshed(data);
        if (whole) {
          title.textContent = data.title;
          document.title = `${data.title}: Sordino`;
          about.textContent = data.subtitle;
        }
        const note = mine === "report" && el("p", { class: "audience" }, el("span", { class: `badge ${data.audience}` }, data.audience === "owner" ? "For the owner" : "Public"),
          data.audience === "owner" ? " Holds figures that were not released." : " Made from the public part alone.");
        body.replaceChildren(...[note, ...sections(data, figures, { contents: mine === "report", title: mine === "report" })].filter(Boolean));
        body.dataset.shown = mine;
      } catch (error) {
        if (mine === tab) failed(error);
      }
      return 5;
    };
  }

  function refreshed(data) {  // the run has gone on: the curves follow, and the rest when the reader asks for it
    for (const section of data.sections) for (const b of section.blocks) if (b.block === "Chart") figures.update(b);
    if (!body.querySelector(".renew")) {
      body.prepend(el("p", { class: "renew" }, "The records have changed since this was shown. ", el("button", { type: "button", class: "plain", onclick: () => open(tab) }, "Show them as they are now")));
    }
    return 5;
  }

  function progress(figures) {
    const bad = el("div"), lead = el("p", { class: "lead" }), bar = el("progress", { max: 1, value: 0, "aria-label": "Rounds done" }), words = el("p", { class: "progress-words" }), numbers = el("div", { class: "block" }), drawn = el("div", { class: "figures" });
    let ready = false, state = "";
    return async () => {
      let data;
      try {
        data = await ask(`run/${id}/live`);
      } catch (error) {
        ready = false;
        if (tab === "") failed(error);
        return 3;
      }
      if (tab !== "") return 5;
      const { line } = data;
      if (!ready) {
        body.replaceChildren(bad, lead, el("div", { class: "progress" }, bar, words), numbers, drawn);
        ready = true;
      } else if (data.same) {
        named(line);
        return line.state === "running" ? 1 : 3;
      }
      named(line);
      bad.replaceChildren(...[damage(data.damage)].filter(Boolean));
      lead.textContent = data.sentence;
      lead.hidden = !data.sentence;
      bar.max = line.planned || 1;
      bar.value = line.state === "finished" ? bar.max : line.planned ? Math.min(line.planned, line.rounds || 0) : 0;
      words.textContent = `${line.rounds === null ? "No round yet" : `Round ${count(line.rounds)}${line.planned ? ` of ${count(line.planned)}` : ""}`}. ${STATES[line.state] || ""}${data.last && data.last.lost ? ` Of the last round nothing was released: ${data.last.lost}` : ""}`;
      numbers.replaceChildren(tiles(values(data)));
      const kept = new Set(data.charts.map((c) => c.id));
      for (const known of [...figures.shown.keys()]) if (!kept.has(known)) figures.drop(known);
      for (const chart of data.charts) if (!figures.update(chart)) drawn.append(figures.figure(chart));
      if (state && state !== line.state) say(`${line.name}: ${line.state}.`);
      state = line.state;
      return line.state === "running" ? 1 : 3;
    };
  }

  open(place.parts[1] || "");
  return {
    change: (next) => open(next.parts[1] || ""),
    leave: () => { look.stop(); figures.dispose(); },
  };
}

function values({ line, last, spent, total, evaluated_on: on }) {
  const out = [];
  const viewers = Object.entries(spent).filter(([v]) => v !== line.viewer).map(([v, e]) => `${e} against the ${v}`).join(", ");
  if (line.unbounded) out.push({ value: "none", label: "guarantee", detail: "epsilon is infinite" });
  else if (line.epsilon !== null) out.push({ value: epsilon(line.epsilon), label: `epsilon spent, of ${total || "?"}`, detail: [line.viewer && `against the ${line.viewer}`, viewers].filter(Boolean).join("; ") });
  else if (total) out.push({ value: total, label: "epsilon, in total", detail: line.viewer ? `against the ${line.viewer}` : "" });
  if (line.delta) out.push({ value: figure(line.delta), label: "delta", detail: line.unit ? `for a ${line.unit}, ${line.relation}` : "" });
  if (line.score !== null) out.push({ value: line.measure === "accuracy" ? percent(line.score) : figure(line.score), label: MEASURES[line.measure], detail: on ? `on ${on}` : "" });
  if (last && last.loss !== null && line.measure !== "loss") out.push({ value: figure(last.loss), label: "loss", detail: on ? `on ${on}` : "" });
  if (last && last.noise) out.push({ value: figure(last.noise), label: "noise", detail: "standard deviation per coordinate" });
  return out;
}
