// The label of a text with its probabilities and, if asked, the words that it rests on; or the number of a text.
import { askModel, predict } from "../api.js";
import { bars, flow } from "../figures.js";
import { html } from "../html.js";
import { Choice, cutting, definePanel, Figure, piecesOf, width } from "../parts.js";
import { has, JUDGING, models, reads } from "../state.js";

const SAMPLES = [
  ["praise", { text: "a gripping , beautifully acted film", second: "" }],
  ["blame", { text: "too long , and not funny for a minute", second: "" }],
  ["a pair", { text: "A man plays the guitar on a stage .", second: "A man is asleep ." }],
  ["한국어", { text: "정말 재미있게 본 영화입니다", second: "" }],
];

const modelOf = (id) => models.value.find((each) => each.id === id);

/** The texts under the names that a model reads; under the usual ones where it reads another number of texts. */
function input(model, { text, second }) {
  const texts = second ? [text, second] : [text];
  const names = [...modelOf(model).columns, ["text"], ["text_a", "text_b"]].find((each) => each.length === texts.length);
  return Object.fromEntries(texts.map((each, place) => [names[place], each]));
}

async function look(model, texts, { method }) {
  const [asked, how] = [input(model, texts), method.value];
  if (has(model, "regress")) return predict(model, "regress", asked);
  const read = await predict(model, "classify", asked);
  if (how === "none") return read;
  if (!has(model, "words")) return { ...read, note: `${model} gives its answer alone, as an ensemble does, and any model that is served as ONNX.` };
  const said = Object.values(asked).join(" ");
  try {
    const [words, { unknown }] = await Promise.all([askModel(model, "words", { input: asked, method: how }), cutting(said, model)]);
    return { ...read, said, how, words, unknown };
  } catch (error) {
    return { ...read, note: error.message };
  }
}

/** What the number below a word is, by the way it was found. */
const WEIGHTS = {
  erasure: "by how much the label’s probability falls with the token hidden",
  integrated_gradients: "its part of the difference that hiding all tokens makes to the label’s logit",
};

function show({ found, said, how, words, unknown, note }) {
  if ("value" in found) return html`<p class="big">${Number(found.value.toPrecision(6))}</p><p class="about">On the scale of the numbers that the model was trained with.</p>`;
  const rows = Object.entries(found.probabilities)
    .map(([label, value]) => ({ label: found.labels?.includes(label) ? `✓ ${label}` : label, values: [value] }))
    .sort((one, other) => other.values[0] - one.values[0])
    .slice(0, 20);
  const most = words ? Math.max(1e-9, ...words.weights.map(Math.abs)) : 1;
  const title = found.labels ? `Probabilities; ${found.labels.length ? "✓ reaches its label’s threshold" : "none reaches its label’s threshold"}` : "Probabilities";
  return html`<${Figure} title=${title}>${bars(rows, width.value, "Probabilities of labels")}<//>
    ${note && html`<p class="about">Which words carried it is not shown: ${note}</p>`}
    ${words && html`<${Figure} title=${`What speaks for (blue) and against (orange) “${words.label}”`}>
      ${flow(piecesOf(words.tokens, unknown).map((piece, place) => ({
        ...piece,
        ink: words.weights[place] >= 0 ? "var(--training)" : "var(--held-out)",
        strength: (0.5 * Math.abs(words.weights[place])) / most,
        note: Math.abs(words.weights[place]) >= 0.005 ? words.weights[place].toFixed(2) : "",
        title: `${words.tokens[place]}: ${words.weights[place].toPrecision(3)}`,
      })), width.value, "The words that the label rests on", said)}<//>
      <p class="about">Below a token: ${WEIGHTS[how]}.</p>`}`;
}

export const classes = definePanel({
  id: "classes",
  name: "Classify",
  missing: "Serve a model of finetune/classification to see it label a text, or one of finetune/regression.",
  about: "The label of a text, how probable each is and, on request, which words carried it: hidden one at a time, or by integrated gradients. Of a model of regression, its number.",
  use: JUDGING,
  samples: SAMPLES,
  boxes: ({ second }) => ({
    text: { label: "Text", rows: 2 },
    ...((second.value || reads(modelOf(classes.current()), 2)) && { second: { label: "Second text" } }),
  }),
  fields: { method: "none" },
  more: ({ method }) => has(classes.current(), "classify") && html`<${Choice} field=${method} label="Words that carried it" options=${[["none", "no"], ["erasure", "by hiding each"], ["integrated_gradients", "by integrated gradients"]]} />`,
  look,
  show,
});
