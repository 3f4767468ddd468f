// What each layer would put in place of [MASK], as if it were the last.
import { askModel } from "../api.js";
import { flow, percent } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";
import { withMask } from "../state.js";

const SAMPLES = [
  ["a city", { text: "He was born in the [MASK] of London ." }],
  ["a verb", { text: "They [MASK] to the station every day ." }],
  ["한국어", { text: "그는 1945년 서울에서 [MASK] ." }],
];

const show = ({ layers }) => html`<${Figure} title="From the embeddings (0) to the last layer, whose answer is the model's">
  ${flow(
    layers.flatMap(({ layer, tokens, scores }) => [
      { text: String(layer), least: 28, gap: 4 },
      ...tokens.map((token, place) => ({
        text: token,
        note: percent(scores[place]),
        ink: "var(--training)",
        strength: 0.06 + 0.44 * scores[place],
        gap: place === tokens.length - 1 ? width.value : 4,
      })),
    ]),
    width.value,
    "The likeliest words of each layer",
    "",
  )}<//>`;

export const layers = definePanel({
  id: "layers",
  name: "Layer by layer",
  missing: "Serve a masked language model of attention layers, not as ONNX, to see what each layer expects.",
  about: "What the head for masked words makes of each layer's output: where in the model an answer comes up.",
  use: "layers",
  samples: SAMPLES,
  boxes: () => ({ text: { label: "Text", mask: true } }),
  look: (model, { text }) => askModel(model, "layers", { text: withMask(text, model), top_k: 5 }),
  show,
});
