// Fill in the blank: the likeliest words, beside those of another model or checkpoint, or of an edited text.
import { predict } from "../api.js";
import { bars } from "../figures.js";
import { html } from "../html.js";
import { answering, BlankBox, chosen, Figure, ModelChoice, width } from "../parts.js";
import { field, idOf, nameOf, withMask } from "../state.js";

const SAMPLES = [
  ["a door", { text: "She opened the [MASK] and went out .", edited: "" }],
  ["a verb", { text: "The children [MASK] in the garden .", edited: "The child [MASK] in the garden ." }],
  ["한국어", { text: "그는 대학교를 [MASK] 뒤 미국으로 건너갔다 .", edited: "" }],
  ["조사", { text: "그는 [MASK]를 졸업하였다 .", edited: "그는 [MASK]에 입학하였다 ." }],
];

const model = field("fill", "model", "");
const other = field("fill", "other", "");
const text = field("fill", "text", SAMPLES[0][1].text);
const edited = field("fill", "edited", "");

/** Whether another model is looked at, and the edited text is not. */
const isBeside = () => other.value && other.value !== chosen(model, "fill-mask");

const answer = answering({ model, use: "fill-mask", fields: { text, edited }, samples: SAMPLES }, async () => {
  // Some tokenizers begin a word with its space; the same word of two models is one row.
  const ask = async ([its, text], more) => {
    const step = its.split("@")[1];
    const { found } = await predict(idOf(its), "fill-mask", withMask(text, its), { ...more, ...(step && { step: Number(step) }) });
    return found.filter((one) => !one.mask).map((one) => ({ word: one.token_str.trim() || one.token_str, score: one.score }));
  };
  const first = chosen(model, "fill-mask");
  const asked = [[first, text.value]];
  if (isBeside()) asked.push([other.value, text.value]);
  else if (edited.value) asked.push([first, edited.value]);
  const isEdited = asked.length > 1 && asked[1][0] === first;
  const names = isEdited ? ["the text", "edited"] : asked.map(([its]) => nameOf(its));
  const likeliest = await Promise.all(asked.map((one) => ask(one, { top_k: asked.length > 1 ? 8 : 12 })));
  const words = [...new Set(likeliest.flat().map((one) => one.word))];
  const scored = asked.length > 1 ? await Promise.all(asked.map((one) => ask(one, { targets: words }))) : likeliest;
  const rows = words.map((label) => ({
    label,
    values: scored.map((each) => each.find((one) => one.word === label)?.score ?? "not one of its tokens"),
  }));
  return { names, rows };
});

export const fill = {
  id: "fill",
  name: "Fill in the blank",
  missing: "Serve a masked language model, such as a run of unmask pretrain, to see it fill a blank.",
  about: "Which words a model expects in the blank, beside what another model or an earlier checkpoint expects, or what an edited text changes.",
  answer,
  show: ({ names, rows }) => html`<${Figure} title="The likeliest words in the blank">${bars(rows, width.value, "The likeliest words", names)}<//>`,
  form: () => html`
    <${BlankBox} field=${text} label="Text" model=${model} use="fill-mask" />
    <${BlankBox} field=${edited} label="The same, edited (optional)" model=${model} use="fill-mask"
      remark=${edited.value && isBeside() && "The edited text is not looked at while “Beside it” names another model."} />
    <${ModelChoice} model=${model} use="fill-mask" steps />
    <${ModelChoice} model=${other} use="fill-mask" label="Beside it" none="no other" steps />`,
};
