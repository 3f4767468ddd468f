// A masked word being learnt: what each checkpoint of a run expects.
import { askModel } from "../api.js";
import { bars, lines } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";
import { withMask } from "../state.js";

const SAMPLES = [
  ["a queen", { text: "The king and the [MASK] went to London ." }],
  ["a number", { text: "He was [MASK] years old ." }],
  ["한국어", { text: "그는 서울에서 [MASK] ." }],
];

/** Also the words that are among the first at the end or at the beginning, with their probabilities at every step. */
async function look(model, { text }) {
  const asked = { text: withMask(text, model) };
  const ask = async (more) => (await askModel(model, "checkpoints", { ...asked, ...more })).checkpoints;
  const checkpoints = await ask({ top_k: 8 });
  const words = [...new Set([...checkpoints.at(-1).tokens.slice(0, 3), ...checkpoints[0].tokens.slice(0, 2)])];
  const scored = await ask({ targets: words });
  const followed = words.map((name) => ({ name, values: scored.map((each) => each.scores[each.tokens.indexOf(name)]) }));
  return { checkpoints, followed };
}

function show({ checkpoints, followed }, { at }) {
  const found = checkpoints.findIndex((each) => each.step === at.value);
  const place = found < 0 ? checkpoints.length - 1 : found;
  const now = checkpoints[place];
  const rows = now.tokens.map((label, number) => ({ label, values: [now.scores[number]] }));
  return html`
    <label class="slider">Checkpoint: step ${now.step.toLocaleString("en")}
      <input type="range" min="0" max=${checkpoints.length - 1} value=${place} onInput=${(event) => (at.value = checkpoints[Number(event.target.value)].step)} /></label>
    <${Figure} title=${`The likeliest words at step ${now.step.toLocaleString("en")}`}>${bars(rows, width.value, "The likeliest words")}<//>
    <${Figure} title="How likely words have become">${lines(checkpoints.map((each) => each.step), followed, place, width.value, "Probabilities by step")}<//>`;
}

export const learning = definePanel({
  id: "learning",
  name: "Watch it learn",
  missing: "Serve a run of unmask pretrain with its checkpoints (train.keep_every=1000) to see how a word is learnt.",
  about: "What a model expected in the blank at each checkpoint of its run. Move the slider, by arrow keys too.",
  use: "checkpoints",
  samples: SAMPLES,
  boxes: () => ({ text: { label: "Text", mask: true } }),
  fields: { at: -1 }, // a step; of any other number, the last checkpoint is shown
  look,
  show,
});
