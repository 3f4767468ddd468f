// Fill in the blank: the likeliest words, beside those of another model or checkpoint, or of an edited text.
import { predict } from "../api.js";
import { bars } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, ModelChoice, width } from "../parts.js";
import { idOf, nameOf, withMask } from "../state.js";

const SAMPLES = [
  ["a door", { text: "She opened the [MASK] and went out .", edited: "" }],
  ["a verb", { text: "The children [MASK] in the garden .", edited: "The child [MASK] in the garden ." }],
  ["한국어", { text: "그는 대학교를 [MASK] 뒤 미국으로 건너갔다 .", edited: "" }],
  ["조사", { text: "그는 [MASK]를 졸업하였다 .", edited: "그는 [MASK]에 입학하였다 ." }],
];

/** Whether another model is looked at, and the edited text is not. */
const isBeside = (other) => other.value && other.value !== fill.current();

async function look(model, { text, edited }, { other }) {
  // Some tokenizers begin a word with its space; the same word of two models is one row.
  const ask = async ([its, text], more) => {
    const step = its.split("@")[1];
    const { found } = await predict(idOf(its), "fill-mask", withMask(text, its), { ...more, ...(step && { step: Number(step) }) });
    return found.filter((one) => !one.mask).map((one) => ({ word: one.token_str.trim() || one.token_str, score: one.score }));
  };
  const asked = [[model, text]];
  if (isBeside(other)) asked.push([other.value, text]);
  else if (edited) asked.push([model, edited]);
  const isEdited = asked.length > 1 && asked[1][0] === model;
  const names = isEdited ? ["the text", "edited"] : asked.map(([its]) => nameOf(its));
  const likeliest = await Promise.all(asked.map((one) => ask(one, { top_k: asked.length > 1 ? 8 : 12 })));
  const words = [...new Set(likeliest.flat().map((one) => one.word))];
  const scored = asked.length > 1 ? await Promise.all(asked.map((one) => ask(one, { targets: words }))) : likeliest;
  const rows = words.map((label) => ({
    label,
    values: scored.map((each) => each.find((one) => one.word === label)?.score ?? "not one of its tokens"),
  }));
  return { names, rows };
}

export const fill = definePanel({
  id: "fill",
  name: "Fill in the blank",
  missing: "Serve a masked language model, such as a run of unmask pretrain, to see it fill a blank.",
  about: "Which words a model expects in the blank, beside what another model or an earlier checkpoint expects, or what an edited text changes.",
  use: "fill-mask",
  samples: SAMPLES,
  boxes: ({ edited, other }) => ({
    text: { label: "Text", mask: true },
    edited: {
      label: "The same, edited (optional)",
      mask: true,
      remark: edited.value && isBeside(other) && "The edited text is not looked at while “Beside it” names another model.",
    },
  }),
  steps: true,
  fields: { other: "" },
  more: ({ other }) => html`<${ModelChoice} model=${other} use="fill-mask" label="Beside it" none="no other" steps />`,
  look,
  show: ({ names, rows }) => html`<${Figure} title="The likeliest words in the blank">${bars(rows, width.value, "The likeliest words", names)}<//>`,
});
