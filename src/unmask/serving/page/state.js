// What is shown: the panel, and the fields of each panel. All of it is in the address, so that a link restores it.
import { batch, effect, signal } from "./vendor/signals.js";

/** The models of the server. */
export const models = signal([]);

/** The id of the panel that is shown. */
export const panel = signal("");

const fields = new Map();
const initials = new Map();

/** A signal that is in the address while its panel is shown; `initial` where the address says nothing. */
export function field(panelId, name, initial) {
  const key = `${panelId}.${name}`;
  if (!fields.has(key)) {
    fields.set(key, signal(initial));
    initials.set(key, initial);
  }
  return fields.get(key);
}

/** What has been written and chosen in a panel, as [name, value]; numbers, which its figures tell, left out. */
export const fieldsOf = (id) => [...fields].filter(([key, known]) => key.startsWith(`${id}.`) && known.value && typeof known.value === "string")
  .map(([key, known]) => [key.slice(id.length + 1), known.value]);

/** What models do that say something of a text, or of a pair, as they were fine-tuned to. */
export const JUDGING = ["classify", "regress"];

/** The models that have a use, or one of several. */
export const modelsFor = (use) => models.value.filter((model) => [use].flat().some((one) => model.uses.includes(one)));

/** Whether a model reads so many texts at once, as far as is known. */
export const reads = ({ columns }, texts) => columns?.some((names) => names.length === texts) ?? true;

/** Of the models that have a use, those that read so many texts at once, where the use is to judge them and some do. */
export function readersOf(use, texts) {
  const there = modelsFor(use);
  const reading = there.filter((model) => reads(model, texts));
  return use === JUDGING && reading.length ? reading : there;
}

/** A choice is a model's id, or that of a checkpoint of its run: `id@step`. */
export const idOf = (choice) => choice.split("@")[0];
export const nameOf = (choice) => choice.replace(/@(\d+)$/, (_, step) => `, step ${Number(step).toLocaleString("en")}`);

/** A text with its blanks as a model writes them; people, samples and other models may write them otherwise. */
export function withMask(text, choice) {
  const own = models.value.find((each) => each.id === idOf(choice))?.mask_token;
  const known = new Set(["[MASK]", ...models.value.map((each) => each.mask_token)]);
  return own ? [...known].reduce((written, mask) => (mask ? written.replaceAll(mask, () => own) : written), text) : text;
}

/** Whether a model has a use, or one of several. */
export const has = (id, use) => modelsFor(use).some((model) => model.id === id);

/** The panel whose fields are those of a link; "" where the address had none. */
export let linked = "";

/** Reads the address: `#panel?name=value&...`. A field that is not in it has its initial value. */
export function readAddress() {
  const [id, query = ""] = location.hash.slice(1).split("?");
  const values = new URLSearchParams(query);
  batch(() => {
    panel.value = id;
    linked = query && id;
    for (const [key, known] of fields) {
      const [of, name] = key.split(".");
      if (of !== id) continue;
      const [initial, value] = [initials.get(key), values.get(name)];
      if (value === null) known.value = initial;
      else if (typeof initial !== "number") known.value = value;
      else known.value = Number.isFinite(Number(value)) ? Number(value) : initial;
    }
  });
}

/** Goes to a panel, as a step in the browser's history. */
export function goTo(id) {
  if (id !== panel.value) history.pushState(null, "", `#${id}`);
  panel.value = id;
}

/** Keeps the address up to date, without a step in the browser's history for each letter. */
export function writeAddress() {
  effect(() => {
    if (!panel.value) return;
    const query = new URLSearchParams();
    for (const [key, value] of fields) {
      const [id, name] = key.split(".");
      if (id === panel.value && value.value !== initials.get(key)) query.set(name, value.value);
    }
    history.replaceState(null, "", `#${panel.value}?${query}`);
  });
}
