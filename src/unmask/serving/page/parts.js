// What every panel is made of: a choice of a model, a text to edit, samples, a button, a figure.
import { signal } from "./vendor/signals.js";
import { useEffect, useRef } from "./vendor/hooks.js";
import { askModel } from "./api.js";
import { saveFigure } from "./figures.js";
import { html } from "./html.js";
import { field, fieldsOf, has, idOf, linked, models, modelsFor, nameOf, panel, readersOf, reads, withMask } from "./state.js";

/** How wide a figure may be, in CSS pixels. */
export const width = signal(680);

/** The model, or checkpoint, that a field names, or the first model that has the use, for so many texts at once. */
export function chosen(model, use, texts = 1) {
  return has(idOf(model.value), use) ? model.value : (readersOf(use, texts)[0]?.id ?? "");
}

/** A choice of a model; with `steps`, of a checkpoint of its run too. The first of the server is written into the field:
 * on another server, which a link may lead to, another may be the first. */
export function ModelChoice({ model, use, label = "Model", none, steps, texts }) {
  const there = modelsFor(use).flatMap(({ id, steps: its }) => [id, ...(steps && its ? its.map((step) => `${id}@${step}`) : [])]);
  const value = none && !model.value ? "" : chosen(model, use, texts);
  useEffect(() => {
    if (!model.value) model.value = value;
  }, [value]);
  const isAbsent = model.value && !has(idOf(model.value), use);
  return html`<label class="choice">${label}
    <select value=${value} onChange=${(event) => (model.value = event.target.value)}>
      ${none ? html`<option value="">${none}</option>` : ""}
      ${there.map((each) => html`<option value=${each}>${nameOf(each)}</option>`)}
    </select></label>${isAbsent && html`<p class="remark" role="status">No model ${nameOf(model.value)} is here for this.</p>`}`;
}

export function Choice({ field, label, options }) {
  return html`<label class="choice">${label}
    <select value=${String(field.value)} onChange=${(event) => {
      field.value = typeof field.peek() === "number" ? Number(event.target.value) : event.target.value;
    }}>
      ${options.map(([value, name]) => html`<option value=${String(value)}>${name}</option>`)}
    </select></label>`;
}

export function TextBox({ field, label, rows = 1, lang }) {
  const put = (event) => (field.value = event.target.value);
  return html`<label class="text">${label}
    ${rows === 1
      ? html`<input dir="auto" value=${field.value} onInput=${put} spellcheck="false" lang=${lang} autocomplete="off" />`
      : html`<textarea dir="auto" rows=${rows} value=${field.value} onInput=${put} spellcheck="false" lang=${lang}></textarea>`}</label>`;
}

/** A number from 0 on; the browser itself says where it is another. */
export function NumberBox({ field, label, most, step = 1 }) {
  return html`<label class="choice">${label}
    <input type="number" min="0" max=${most} step=${step} required value=${field.value}
      onInput=${(event) => event.target.value && (field.value = Number(event.target.value))} /></label>`;
}

/** A text with a blank, as the chosen model writes it; below it `remark`, or that further blanks are not looked at. */
export function BlankBox({ field, label, panel, remark }) {
  const its = panel.current();
  const mask = models.value.find((each) => each.id === idOf(its))?.mask_token;
  const told = remark || (mask && field.value.split(mask).length > 2 && "Only the first blank is looked at.");
  useEffect(() => {
    field.value = withMask(field.value, its);
  }, [its]);
  return html`<${TextBox} field=${field} label=${label} />${told && html`<p class="remark" role="status">${told}</p>`}`;
}

/** The panels that have been shown. */
const begun = new Set();

/** Buttons that put the panel's samples into its fields. A model that
 * cannot read the text gives way to the one that knows most of it. The panel begins with the first sample of as many texts
 * as the model reads, or with another that the model reads better; with the texts of a link where the address has some. */
function Samples({ panel: { id, samples, fields, use, run } }) {
  const fill = (values, its) => {
    fields.model.value = its;
    for (const [name, value] of Object.entries(values)) fields[name].value = withMask(value, its);
  };
  const put = (values) => run(async () => {
    const best = await bestReader(chosen(fields.model, use), use, textsOf(values));
    return () => fill(values, best);
  });
  useEffect(() => {
    const its = chosen(fields.model, use);
    const isNew = !begun.has(id) && linked !== id;
    begun.add(id);
    run(isNew ? async () => {
      const best = await bestSample(samples, its);
      return () => best !== samples[0][1] && fill(best, its);
    } : undefined);
  }, []);
  return html`<p class="samples">Try ${samples.map(([name, values]) => html`<button type="button" onClick=${() => put(values)}>${name}</button>`)}</p>`;
}

const textsOf = (values) => Object.values(values).filter(Boolean);

const isUnknown = (token) => /^[[<]unk[\]>]$/i.test(token);

/** How a model cuts some texts: of each its tokens, what each unknown one stands for, and how many it needs for each byte. */
async function cuttings(texts, its) {
  const { predictions } = await askModel(idOf(its), "tokenize", { inputs: texts });
  return predictions.map(({ tokens, ids, offsets }, number) => {
    const characters = [...texts[number]]; // the server counts characters, not halves of them
    const unknown = offsets.filter((_, place) => isUnknown(tokens[place])).map((bounds) => characters.slice(...bounds).join(""));
    return { tokens, ids, unknown, tokensPerByte: tokens.length / new TextEncoder().encode(texts[number]).length };
  });
}

export const cutting = async (text, its) => (await cuttings([text], its))[0];

/** Tokens as pieces of a figure: an unknown one is the text that it stands for, with a line under it. */
export function piecesOf(tokens, unknown) {
  const texts = unknown.values();
  return tokens.map((token) => (isUnknown(token) ? { text: texts.next().value || token, title: token, isMarked: true } : { text: token }));
}

/** What is to be said of texts with many tokens that are unknown to the model which is asked, or of a line of such tokens alone. */
async function unknownTo(its, use, texts) {
  if (!has(idOf(its), "tokenize")) return "";
  const lines = await cuttings(texts.flatMap((text) => withMask(text, its).split("\n")), its);
  const unknown = lines.flatMap((line) => line.unknown);
  const [{ length }, all] = [unknown, lines.reduce((sum, line) => sum + line.tokens.length, 0)];
  const isLost = lines.some((line) => line.unknown.length && line.unknown.length === line.tokens.length);
  if (!isLost && (length < 3 || length <= 0.05 * all)) return ""; // as in inference/coverage.py
  const best = await bestReader(its, use, texts);
  const told = `${length} of ${all} tokens, such as “${unknown[0]}”, ${length === 1 ? "is" : "are"} unknown to ${idOf(its)}`;
  return `${told}${best === its ? (length > 1 ? ", and all the same to it" : "") : `: choose ${best}`}`;
}

/** The first sample of as many texts as the model reads, or of those the one that it reads best, if much better: in a
 * third less tokens for each byte, or without unknown ones. */
async function bestSample(samples, its) {
  const all = samples.map(([, values]) => values);
  const model = models.value.find((each) => each.id === idOf(its));
  const first = all.find((values) => model && reads(model, textsOf(values).length)) ?? all[0];
  if (!has(idOf(its), "tokenize")) return first;
  const alike = all.filter((values) => values === first || textsOf(values).length === textsOf(first).length);
  alike.sort((one, other) => (other === first) - (one === first));
  const costs = await Promise.all(alike.map(async (values) => {
    const { unknown, tokensPerByte } = await cutting(withMask(textsOf(values).join(" "), its), its);
    return unknown.length + tokensPerByte;
  }));
  const least = Math.min(...costs);
  return 3 * least < 2 * costs[0] ? alike[costs.indexOf(least)] : first;
}

/** Of the models that read so many texts at once, the one with the fewest unknown tokens; `current` if no other has
 * fewer. */
async function bestReader(current, use, texts) {
  const ids = readersOf(use, texts.length).map((each) => each.id);
  const names = [...(ids.includes(idOf(current)) ? [current] : []), ...ids.filter((id) => id !== idOf(current))];
  const unknown = await Promise.all(names.map(async (name) => {
    if (!has(idOf(name), "tokenize")) return name === names[0] ? 0 : Infinity;
    return (await cutting(withMask(texts.join(" "), name), name)).unknown.length;
  }));
  return names[unknown.indexOf(Math.min(...unknown))];
}

/** Adds to a panel its fields and what it has been answered.
 *
 * A panel is `{id, name, about, missing, use, samples, boxes, steps, fields, more, look, show}`. `missing` is shown where no
 * model has its `use`. `samples` are `[name, {field: text}]`: each text is a field, which begins as in the first sample and
 * has its box in the form, `boxes(fields)`: `{field: {label, rows}}`, with `mask` a text with a blank. Below them are the
 * choice of the model, with `steps` also of a checkpoint, and what `more(fields)` gives for further `fields`, `{field: initial}`.
 * `look(model, texts, fields)` asks the model, `show(value, fields)` draws its answer. */
export function definePanel(panel) {
  const { id, use, samples, look } = panel;
  const initials = { model: "", ...samples[0][1], ...panel.fields };
  const fields = Object.fromEntries(Object.entries(initials).map(([name, initial]) => [name, field(id, name, initial)]));
  const state = signal({}); // {waiting, error, value, unknown}
  const isChanged = signal(false); // since it was asked
  let turn = 0;
  const texts = () => Object.fromEntries(Object.keys(samples[0][1]).map((name) => [name, fields[name].value]));
  const current = () => chosen(fields.model, use, textsOf(texts()).length);

  /** Asks, after calling what `prepare` gives, unless somebody has typed or the panel has been asked again meanwhile. */
  const run = async (prepare) => {
    const own = ++turn;
    isChanged.value = false;
    state.value = { ...state.value, waiting: true, error: "" };
    try {
      const put = await prepare?.();
      if (own !== turn) return;
      if (!isChanged.value) put?.();
      isChanged.value = false;
      const unknown = unknownTo(current(), use, textsOf(texts())).catch(() => "");
      const value = await look(current(), texts(), fields);
      if (own === turn) state.value = { value };
      const told = await unknown;
      if (own === turn && told) state.value = { value, unknown: told };
    } catch (error) {
      if (own === turn) state.value = { error: error.message };
    }
  };
  return Object.assign(panel, { fields, state, isChanged, run, texts, current });
}

/** A panel as `definePanel` gives it: what it is for, its form (Enter or Ctrl+Enter asks), and below it what came out. */
export function Panel({ panel: own }) {
  const { name, about, use, fields, steps, run, isChanged } = own;
  const { waiting, error, value, unknown } = own.state.value;
  const isOld = value && isChanged.value;
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  };
  return html`<section aria-labelledby="title">
    <h2 id="title" tabindex="-1">${name}</h2>
    <p class="about">${about}</p>
    <form onSubmit=${(event) => { event.preventDefault(); run(); }} onKeyDown=${keys} onInput=${() => (isChanged.value = true)}>
      ${Object.entries(own.boxes(fields)).map(([each, box]) => html`<${box.mask ? BlankBox : TextBox} key=${each} field=${fields[each]} panel=${own} ...${box} />`)}
      <${ModelChoice} model=${fields.model} use=${use} steps=${steps} texts=${textsOf(own.texts()).length} />
      ${own.more?.(fields)}<${Samples} panel=${own} />
      <button class="main">${waiting ? "…" : "Show"}</button>
      <p class="remark" role="status">${isOld && "Changed: press Show."}</p></form>
    <div class=${isOld ? "answer changed" : "answer"} aria-live="polite" aria-busy=${Boolean(waiting)}>
      ${error ? html`<p class="error" role="alert">${error}</p>` : value ? html`${value.leftOut
        ? html`<p class="cut">Too long for this model: ${value.leftOut.toLocaleString("en")} ${value.leftOut === 1 ? "token was" : "tokens were"} not read.</p>`
        : ""}${unknown && html`<p class="cut">${unknown}</p>`}${own.show(value, fields)}` : ""}
    </div></section>`;
}

/** A figure with its title and the button that saves it. */
export function Figure({ title, children }) {
  const place = useRef(null);
  const save = () => {
    const number = [...document.querySelectorAll("figure")].indexOf(place.current);
    const said = fieldsOf(panel.value).map(([name, value]) => `${name}: ${value}`).join(" · ");
    saveFigure(place.current.querySelector("svg"), `unmask-${panel.value}${number ? `-${number + 1}` : ""}`, [title, said]);
  };
  return html`<figure ref=${place}><figcaption><b>${title}</b>
    <button type="button" class="quiet" onClick=${save}>Save as SVG</button></figcaption>
    <div class="scroll" tabindex="0" role="group" aria-label=${title}>${children}</div></figure>`;
}
