// Two sentences: which of them a model finds likelier, and where.
import { askModel } from "../api.js";
import { flow } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";
import { has } from "../state.js";

const SAMPLES = [
  ["agreement", { first: "The cats near the door sleep .", second: "The cats near the door sleeps ." }],
  ["reflexive", { first: "The girl saw herself .", second: "The girl saw himself ." }],
  ["한국어", { first: "할아버지께서 집에 가신다 .", second: "할아버지께서 집에 간다 ." }],
];

/** What a model knows where it scores a token; a null is the first token of a model that reads nothing before it. */
const given = () => has(pairs.current(), "generate")
  ? "those before it given, as this model reads from left to right"
  : "the others given; a masked model hides each token in turn";

/** A logarithm with one digit; none is written as -0.0. */
const shown = (score) => (Math.round(10 * score) / 10 || 0).toFixed(1);

function show(found) {
  const sums = found.map((each) => each.scores.reduce((sum, score) => sum + score, 0));
  const worst = Math.min(-1, ...found.flatMap((each) => each.scores));
  const pieces = (each) => each.tokens.map((token, place) => ({
    text: token,
    note: each.scores[place] == null ? "not scored" : shown(each.scores[place]),
    ink: "var(--held-out)",
    strength: (0.5 * each.scores[place]) / worst,
    gap: 4,
  }));
  const preferred = sums[0] > sums[1] ? "first" : "second";
  const lead = Math.abs(sums[0] - sums[1]);
  const verdict = !lead ? "Both are equally likely" : `It prefers the ${preferred}, by ${lead < 10 ? lead.toPrecision(2) : lead.toFixed(1)}`;
  return html`<p class="big">${verdict}</p>
    ${found.map((each, place) => html`<${Figure} title=${`${place ? "Second" : "First"} sentence: ${shown(sums[place])}`}>${flow(pieces(each), width.value, "How likely each token is")}<//>`)}`;
}

export const pairs = definePanel({
  id: "pairs",
  name: "Which is likelier",
  missing: "Serve a language model that is not fine-tuned, not as ONNX, to see which sentence it finds likelier.",
  get about() {
    return `Natural logarithms of how likely each token is, ${given()}; the more colour, the more surprising.`;
  },
  use: "token-scores",
  samples: SAMPLES,
  boxes: () => ({ first: { label: "First sentence" }, second: { label: "Second sentence" } }),
  look: (model, { first, second }) => Promise.all([first, second].map((text) => askModel(model, "token-scores", { text }))),
  show,
});
