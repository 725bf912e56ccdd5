// The attack gallery: what was found, with pictures; for the owner alone.
import { address, el, pager } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

export function attacks(main, place) {
  let { query } = place, shown = null;
  const figures = new Figures(), body = el("div", { class: "gallery" }, el("p", { class: "quiet" }, "Reading the attacks ..."));
  main.append(el("h1", { tabindex: "-1" }, "Attacks"), el("p", { class: "subtitle" }, "What a curious server, client or outsider really learnt from the runs in these folders."), body);
  const look = again(async () => {
    const asked = query.page;
    try {
      const data = await ask("attacks", { page: asked });
      if (asked !== query.page || (data.same && shown === asked)) return 6;
      body.replaceChildren(...[...sections(data, figures), pager(data.page, data.pages, (page) => address("attacks", { page }))].filter(Boolean));
      shown = asked;
    } catch (error) {
      body.replaceChildren(el("p", { class: "warning" }, error.message));
      shown = null;
    }
    return 6;
  }, 6);
  return { change: (next) => { query = next.query; look.now(); }, leave: () => { look.stop(); figures.dispose(); } };
}
