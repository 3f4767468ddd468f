// How two tokenizers cut a text.
import { flow } from "../figures.js";
import { html } from "../html.js";
import { cutting, definePanel, Figure, ModelChoice, piecesOf, width } from "../parts.js";

const SAMPLES = [
  ["English", { text: "The unaffable mathematician overslept." }],
  ["한국어", { text: "졸업한 학생들이 도서관에서 공부하고 있었다." }],
];

const INKS = ["var(--training)", "var(--held-out)"];

const show = (found) => found.map(({ name, tokens, ids, unknown }) => html`<${Figure} title=${`${name}: ${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`}>
  ${flow(piecesOf(tokens, unknown).map((piece, place) => ({ ...piece, note: String(ids[place]), ink: INKS[place % 2], strength: 0.22 })), width.value, `The tokens of ${name}`)}<//>`);

export const tokens = definePanel({
  id: "tokens",
  name: "Tokens",
  missing: "Serve any model but an ensemble, to see how it cuts a text.",
  about: "How tokenizers cut a text, with the number of each entry.",
  use: "tokenize",
  samples: SAMPLES,
  boxes: () => ({ text: { label: "Text", rows: 2 } }),
  fields: { other: "" },
  more: ({ other }) => html`<${ModelChoice} model=${other} use="tokenize" label="Beside it" none="no other" />`,
  look: (model, { text }, { other }) => Promise.all([model, other.value].filter(Boolean)
    .map(async (name) => ({ name, ...(await cutting(text, name)) }))),
  show,
});
