// The ledger: what was spent by data and run, and whether its chain is intact.
import { address, el } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

export function ledger(main, place) {
  let { query } = place, shown = "";
  const figures = new Figures(), chain = el("p", { class: "chain" }, "The chain is being checked ..."), body = el("div", {}, el("p", { class: "quiet" }, "Reading the ledger ...")), choice = el("div", { class: "tools" });
  main.append(el("h1", { tabindex: "-1" }, "Ledger"), el("p", { class: "subtitle" }, "What all runs on the same people\u2019s data have spent together."), choice, chain, body);

  async function check() {
    try {
      const { intact, sentence } = await ask("chain", { ledger: query.ledger });
      chain.textContent = sentence;
      chain.className = intact ? "chain intact" : "chain warning";
    } catch {
      chain.textContent = "";
      chain.className = "chain";
    }
  }

  function choices(data) {
    if (data.ledgers.length < 2) return choice.replaceChildren();
    const list = el("select", { id: "ledger", onchange: () => { location.hash = address("ledger", { ledger: list.value }); } },
      ...data.ledgers.map((path, k) => el("option", { value: String(k + 1) }, path)));
    list.value = String(data.ledger);
    return choice.replaceChildren(el("label", { for: "ledger" }, "Ledger"), list);
  }

  function pages(data) {
    const most = Math.max(1, ...data.sections.flatMap((s) => s.blocks).map((b) => Number(/^Page [\d,]+ of ([\d,]+)/.exec(b.note || "")?.[1].replaceAll(",", "") || 1)));
    if (most < 2) return null;
    const to = (page) => address("ledger", { ...query, page });
    return el("nav", { class: "pager", "aria-label": "Pages" }, data.page > 1 ? el("a", { href: to(data.page - 1) }, "Newer") : el("span", { class: "off" }, "Newer"),
      data.page < most ? el("a", { href: to(data.page + 1) }, "Older") : el("span", { class: "off" }, "Older"));
  }

  const look = again(async () => {
    const key = JSON.stringify(query);
    try {
      const data = await ask("ledger", { ledger: query.ledger, page: query.page });
      if (key !== JSON.stringify(query) || (data.same && shown === key)) return 4;
      choices(data);
      body.replaceChildren(...[...sections(data, figures), pages(data)].filter(Boolean));
      shown = key;
      check();
    } catch (error) {
      chain.textContent = "";
      body.replaceChildren(el("p", { class: "quiet" }, error.message));
      shown = "";
    }
    return 4;
  }, 4);
  return { change: (next) => { query = next.query; look.now(); }, leave: () => { look.stop(); figures.dispose(); } };
}
