// The label of a text with its probabilities and, if asked, the words that it rests on; or the number of a text.
import { askModel, predict } from "../api.js";
import { bars, flow } from "../figures.js";
import { html } from "../html.js";
import { answering, Choice, chosen, cutting, Figure, ModelChoice, piecesOf, TextBox, width } from "../parts.js";
import { field, has, JUDGING, models, reads } from "../state.js";

const SAMPLES = [
  ["praise", { text: "a gripping , beautifully acted film", second: "" }],
  ["blame", { text: "too long , and not funny for a minute", second: "" }],
  ["a pair", { text: "A man plays the guitar on a stage .", second: "A man is asleep ." }],
  ["한국어", { text: "정말 재미있게 본 영화입니다", second: "" }],
];

const model = field("classes", "model", "");
const text = field("classes", "text", SAMPLES[0][1].text);
const second = field("classes", "second", "");
const method = field("classes", "method", "none");

/** The model that is shown. */
const current = () => chosen(model, JUDGING, texts().length);
const readsPairs = () => reads(models.value.find((each) => each.id === current()), 2);
const texts = () => (second.value ? [text.value, second.value] : [text.value]);

/** The texts under the names that a model reads; under the usual ones where it reads another number of texts. */
function input(its) {
  const { columns } = models.value.find((each) => each.id === its);
  const names = [...columns, ["text"], ["text_a", "text_b"]].find((each) => each.length === texts().length);
  return Object.fromEntries(texts().map((each, place) => [names[place], each]));
}

const answer = answering({ model, use: JUDGING, fields: { text, second }, samples: SAMPLES }, async () => {
  const name = current();
  const [asked, how] = [input(name), method.value];
  if (has(name, "regress")) return predict(name, "regress", asked);
  const read = await predict(name, "classify", asked);
  if (how === "none") return read;
  if (!has(name, "words")) return { ...read, note: `${name} gives its answer alone, as an ensemble does, and any model that is served as ONNX.` };
  const said = Object.values(asked).join(" ");
  try {
    const [words, { unknown }] = await Promise.all([askModel(name, "words", { input: asked, method: how }), cutting(said, name)]);
    return { ...read, said, how, words, unknown };
  } catch (error) {
    return { ...read, note: error.message };
  }
});

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

export const classes = {
  id: "classes",
  name: "Classify",
  missing: "Serve a model of finetune/classification to see it label a text, or one of finetune/regression.",
  about: "The label of a text, how probable each is and, on request, which words carried it: hidden one at a time, or by integrated gradients. Of a model of regression, its number.",
  answer,
  show,
  form: () => html`
    <${TextBox} field=${text} label="Text" rows="2" />
    ${readsPairs() || second.value ? html`<${TextBox} field=${second} label="Second text" />` : ""}
    <${ModelChoice} model=${model} use=${JUDGING} texts=${texts().length} />
    ${has(current(), "classify") ? html`<${Choice} field=${method} label="Words that carried it" options=${[["none", "no"], ["erasure", "by hiding each"], ["integrated_gradients", "by integrated gradients"]]} />` : ""}`,
};
