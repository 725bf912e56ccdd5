// A federation of `sordino deploy`: its processes, its newest job and its sites.
import { el } from "./dom.js";
import { Figures, sections } from "./blocks.js";
import { ask } from "./server.js";
import { again } from "./polling.js";

export function federation(main, place) {
  const figures = new Figures(), title = el("h1", { tabindex: "-1" }, "Federation"), about = el("p", { class: "subtitle" }), body = el("div", {}, el("p", { class: "quiet" }, "Reading its files ..."));
  main.append(title, about, body);
  let shown = false;
  const look = again(async () => {
    try {
      const data = await ask("federation", { number: place.parts[0] });
      if (data.same && shown) return 2;
      title.textContent = data.title;
      document.title = `${data.title}: Sordino`;
      about.textContent = data.subtitle;
      body.replaceChildren(...sections(data, figures));
      shown = true;
    } catch (error) {
      body.replaceChildren(el("p", { class: "warning" }, error.message));
      shown = false;
    }
    return 2;
  }, 2);
  return { leave: () => { look.stop(); figures.dispose(); } };
}
