// The page at /: a panel for each thing that can be done with a model.
import { render } from "./vendor/preact.js";
import { signal } from "./vendor/signals.js";
import { listModels } from "./api.js";
import { html } from "./html.js";
import { answers } from "./panels/answers.js";
import { attention } from "./panels/attention.js";
import { classes } from "./panels/classes.js";
import { continuing } from "./panels/continuing.js";
import { entities } from "./panels/entities.js";
import { fill } from "./panels/fill.js";
import { layers } from "./panels/layers.js";
import { learning } from "./panels/learning.js";
import { matrix } from "./panels/matrix.js";
import { pairs } from "./panels/pairs.js";
import { tokens } from "./panels/tokens.js";
import { Panel, width } from "./parts.js";
import { goTo, models, modelsFor, panel, readAddress, writeAddress } from "./state.js";

const PANELS = [fill, learning, layers, pairs, continuing, classes, entities, answers, matrix, attention, tokens];

const isThere = (each) => modelsFor(each.use).length > 0;

/** How often the browser has gone back or forward, or to an address that was typed: each shows a panel anew. */
const visits = signal(0);

function open(event, id) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // the browser's own: another tab
  event.preventDefault();
  goTo(id);
  settle();
}

function arrive() {
  readAddress();
  if (!PANELS.some((each) => each.id === panel.value)) panel.value = PANELS.find(isThere)?.id ?? "tokens";
}

function settle() {
  requestAnimationFrame(() => {
    document.getElementById("title")?.focus({ preventScroll: true });
    showTab();
  });
}

/** On a phone the names of the panels are one line, wider than the window. */
function showTab() {
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

async function copyLink(event) {
  try {
    await navigator.clipboard.writeText(location.href);
  } catch { // on plain http from another machine a page has no clipboard
    prompt("The link, to be copied", location.href);
    return;
  }
  event.target.textContent = "Copied";
  setTimeout(() => (event.target.textContent = "Copy link"), 1500);
}

function App() {
  const shown = PANELS.find((each) => each.id === panel.value);
  document.title = `${shown.name} – unmask`;
  return html`<nav aria-label="What to look at"><ul>
      ${PANELS.map((each) => html`<li><a href=${`#${each.id}`} aria-current=${each === shown ? "page" : undefined}
        class=${isThere(each) ? "" : "absent"} onClick=${(event) => open(event, each.id)}>${each.name}</a></li>`)}
    </ul></nav>
    <main id="main">${isThere(shown) ? html`<${Panel} key=${`${shown.id}${visits.value}`} panel=${shown} /><p class="foot"><button type="button" class="quiet" onClick=${copyLink}>Copy link</button></p>`
      : html`<section><h2 id="title" tabindex="-1">${shown.name}</h2><p class="about">${shown.missing}</p></section>`}</main>`;
}

function measure() {
  const main = document.getElementById("main");
  if (main) width.value = Math.max(280, Math.min(760, main.clientWidth - 34));
}

async function start() {
  const place = document.getElementById("app");
  render(null, place);
  place.textContent = "Asking the server for its models …";
  try {
    models.value = await listModels();
  } catch (error) {
    place.textContent = "";
    render(html`<div><p class="error" role="alert">${error.message}</p><p class="samples"><button type="button" onClick=${start}>Try again</button></p></div>`, place);
    return;
  }
  arrive();
  place.textContent = "";
  render(html`<${App} />`, place);
  measure();
  showTab();
  writeAddress();
  addEventListener("resize", measure);
  addEventListener("popstate", () => {
    arrive();
    visits.value += 1;
    settle();
  });
}

start();
