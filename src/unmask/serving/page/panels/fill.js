// Fill in the blank: the likeliest words, beside those of another model or checkpoint, or of an edited text.
import { predict } from "../api.js";
import { bars } from "../figures.js";
import { html } from "../html.js";
import { answering, BlankBox, chosen, Figure, ModelChoice, Panel, Samples, width } from "../parts.js";
import { field, idOf, nameOf, withMask } from "../state.js";

const model = field("fill", "model", "");
const other = field("fill", "other", "");
const text = field("fill", "text", "She opened the [MASK] and went out .");
const edited = field("fill", "edited", "");

const SAMPLES = [
  ["a door", { text: "She opened the [MASK] and went out .", edited: "" }],
  ["a verb", { text: "The children [MASK] in the garden .", edited: "The child [MASK] in the garden ." }],
  ["한국어", { text: "대한민국의 [MASK]는 서울이다 .", edited: "" }],
];

const answer = answering(async () => {
  const ask = (its, words) => {
    const step = its.split("@")[1];
    return predict(idOf(its), "fill-mask", withMask(words, its), { top_k: 200, ...(step && { step: Number(step) }) });
  };
  const first = chosen(model, "fill-mask");
  const asked = [[first, text.value]];
  if (other.value && other.value !== first) asked.push([other.value, text.value]);
  else if (edited.value) asked.push([first, edited.value]);
  const found = await Promise.all(asked.map(([its, words]) => ask(its, words)));
  // Some tokenizers begin a word with its space; the same word of two models is one row.
  const ofFirstMask = found.map((each) => each.filter((one) => !one.mask).map((one) => ({ word: one.token_str.trim() || one.token_str, score: one.score })));
  const isEdited = asked.length > 1 && asked[1][0] === first;
  const names = isEdited ? ["the text", "edited"] : asked.map(([its]) => nameOf(its));
  const words = [...new Set(ofFirstMask.flatMap((each) => each.slice(0, asked.length > 1 ? 8 : 12).map((one) => one.word)))];
  const rows = words.map((word) => ({
    label: word,
    values: ofFirstMask.map((each) => each.find((one) => one.word === word)?.score ?? 0),
  }));
  return { names, rows };
});

export const fill = {
  id: "fill",
  name: "Fill in the blank",
  uses: ["fill-mask"],
  view: () => html`<${Panel} title="Fill in the blank" answer=${answer}
    about="Which words a model expects in the blank, beside what another model or an earlier checkpoint expects, or what an edited text changes."
    show=${({ names, rows }) => html`<${Figure} title="The likeliest words in the blank">${bars(rows, width.value, "The likeliest words", names)}<//>`}>
    <${BlankBox} field=${text} label="Text" model=${model} use="fill-mask" />
    <${BlankBox} field=${edited} label="The same, edited (optional)" model=${model} use="fill-mask" />
    <${ModelChoice} model=${model} use="fill-mask" steps />
    <${ModelChoice} model=${other} use="fill-mask" label="Beside it" none="no other" steps />
    <${Samples} samples=${SAMPLES} model=${model} use="fill-mask" fields=${{ text, edited }} run=${answer.run} />
  <//>`,
};
