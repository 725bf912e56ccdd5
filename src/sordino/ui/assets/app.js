// The view: which page is shown follows from the fragment of the address, so back, forward and reload work.
import { address, el } from "./dom.js";
import { ask } from "./server.js";
import { attacks } from "./attacks.js";
import { calculator, planner } from "./calculator.js";
import { compare } from "./compare.js";
import { federation } from "./federation.js";
import { ledger } from "./ledger.js";
import { run } from "./run.js";
import { runs } from "./runs.js";

const PAGES = { runs, run, comparison: run, compare, calculator, plan: planner, ledger, attacks, federation };
const main = document.getElementById("main");
let shown = null;  // the page: { key, change(place), leave() }

function placed() {  // where the address points to
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?"), parts = path.split("/").filter(Boolean);
  return { name: parts[0] || "runs", parts: parts.slice(1).map(decoded), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function go() {
  if (location.hash === "#main") return;  // the link that skips the head
  const place = placed(), key = `${place.name}/${place.parts[0] || ""}`;
  for (const link of document.querySelectorAll("#views a")) {
    const at = link.getAttribute("href").slice(2), here = at === place.name || at === key || (at === "runs" && ["run", "comparison", "compare"].includes(place.name));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (shown && shown.key === key && shown.change) {
    shown.change(place);
    return;
  }
  const first = !shown;
  if (shown && shown.leave) shown.leave();
  main.replaceChildren();
  const make = Object.hasOwn(PAGES, place.name) ? PAGES[place.name] : null;
  shown = make ? { key, ...make(main, place) } : { key };
  if (!make) main.append(el("h1", { tabindex: "-1" }, "There is no such page"), el("p", {}, el("a", { href: address("runs") }, "All runs")));
  const head = main.querySelector("h1");
  if (head) document.title = `${head.textContent}: Sordino`;
  if (!first) {
    window.scrollTo(0, 0);
    if (head) head.focus({ preventScroll: true });
  }
}

function theme() {
  const button = document.querySelector("button.theme"), system = window.matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const now = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const label = () => { button.textContent = now() === "dark" ? "Light theme" : "Dark theme"; };
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("sordino-theme", root.dataset.theme); } catch { /* it lasts until the page is left */ }
    label();
  });
  system.addEventListener("change", label);
  label();
}

async function about() {
  const known = await ask("about");
  const badge = document.getElementById("audience"), owner = known.audience === "owner";
  badge.textContent = owner ? "For the owner" : "Public";
  badge.title = owner ? "Shows what was not released, too." : "Shows what is public of each run.";
  badge.classList.toggle("owner", owner);
  badge.hidden = false;
  document.getElementById("about").textContent = `Sordino ${known.version}, looking at ${known.folders.join(", ")}. Looking changes nothing in them.`
    + (owner ? " Started for the owner: figures that were not released are shown too." : " Only what is public of each run is shown; \u201csordino ui --for owner\u201d shows the rest.");
  known.federations.forEach((name, k) => {
    document.getElementById("views").append(el("li", {}, el("a", { href: address(`federation/${k + 1}`) }, known.federations.length > 1 ? name : "Federation")));
  });
}

window.addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
theme();
go();
about().then(() => { for (const link of document.querySelectorAll("#views a")) if (location.hash === link.getAttribute("href")) link.setAttribute("aria-current", "page"); }, () => {});
