// How two tokenizers cut a text.
import { flow } from "../figures.js";
import { html } from "../html.js";
import { answering, chosen, cutting, Figure, ModelChoice, piecesOf, TextBox, width } from "../parts.js";
import { field } from "../state.js";

const SAMPLES = [
  ["English", { text: "The unaffable mathematician overslept." }],
  ["한국어", { text: "졸업한 학생들이 도서관에서 공부하고 있었다." }],
];

const model = field("tokens", "model", "");
const other = field("tokens", "other", "");
const text = field("tokens", "text", SAMPLES[0][1].text);

const INKS = ["var(--training)", "var(--held-out)"];

const answer = answering({ model, use: "tokenize", fields: { text }, samples: SAMPLES }, async () => {
  const names = [chosen(model, "tokenize"), ...(other.value ? [other.value] : [])];
  return Promise.all(names.map(async (name) => ({ name, ...(await cutting(text.value, name)) })));
});

const show = (found) => found.map(({ name, tokens, ids, unknown }) => html`<${Figure} title=${`${name}: ${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`}>
  ${flow(piecesOf(tokens, unknown).map((piece, place) => ({ ...piece, note: String(ids[place]), ink: INKS[place % 2], strength: 0.22 })), width.value, `The tokens of ${name}`)}<//>`);

export const tokens = {
  id: "tokens",
  name: "Tokens",
  missing: "Serve any model but an ensemble, to see how it cuts a text.",
  about: "How tokenizers cut a text, with the number of each entry.",
  answer,
  show,
  form: () => html`
    <${TextBox} field=${text} label="Text" rows="2" />
    <${ModelChoice} model=${model} use="tokenize" />
    <${ModelChoice} model=${other} use="tokenize" label="Beside it" none="no other" />`,
};
