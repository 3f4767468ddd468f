// How much each token attends to each, by layer and head.
import { askModel } from "../api.js";
import { links } from "../figures.js";
import { html } from "../html.js";
import { Choice, cutting, definePanel, Figure, piecesOf, width } from "../parts.js";

const SAMPLES = [
  ["agreement", { text: "The dog that chased the cats was tired ." }],
  ["a pronoun", { text: "Anna told Tom that she was late ." }],
  ["한국어", { text: "선생님께서 학생들에게 책을 주셨다 ." }],
];

async function look(model, { text }, { layer, head }) {
  const [found, { unknown }] = await Promise.all([askModel(model, "attention", { text }), cutting(text, model)]);
  layer.value = Math.max(0, Math.min(Math.trunc(layer.value), found.weights.length - 1)); // another model may have fewer
  head.value = Math.max(-1, Math.min(Math.trunc(head.value), found.weights[0].length - 1));
  return { ...found, unknown };
}

function show({ tokens, weights, unknown }, { layer, head, least }) {
  const number = Math.max(0, Math.min(Math.trunc(layer.value), weights.length - 1));
  const its = weights[number];
  const rows = (head.value < 0
    ? its[0].map((row, from) => row.map((_, to) => its.reduce((sum, one) => sum + one[from][to], 0) / its.length))
    : its[Math.min(Math.trunc(head.value), its.length - 1)]
  ).map((row) => row.map((value) => value / 1000));
  return html`<div class="row">
      <${Choice} field=${layer} label="Layer" options=${weights.map((_, place) => [place, place + 1])} />
      <${Choice} field=${head} label="Head" options=${[[-1, "mean of all"], ...its.map((_, place) => [place, place + 1])]} />
      <label class="slider">At least ${Math.round(least.value * 100)} %
        <input type="range" min="0" max="0.9" step="0.05" value=${least.value} onInput=${(event) => (least.value = Number(event.target.value))} /></label>
    </div>
    <${Figure} title=${`Layer ${number + 1}, ${head.value < 0 ? "all heads" : `head ${Math.trunc(head.value) + 1}`}: from each token (left) to those it attends to (right)`}>${links(piecesOf(tokens, unknown), rows, least.value, width.value, "Attention")}<//>`;
}

export const attention = definePanel({
  id: "attention",
  name: "Attention",
  missing: "Serve a model of attention layers, such as BERT, not as ONNX, to see where each head looks.",
  about: "Where each head of each layer looks. Many look at one place for want of a better one: what it looks at is not yet why it answers.",
  use: "attention",
  samples: SAMPLES,
  boxes: () => ({ text: { label: "Text" } }),
  fields: { layer: 0, head: 0, least: 0.1 },
  look,
  show,
});
