// Fill in the blank: the likeliest words, beside another model's or those of an edited text.
import { predict } from "../api.js";
import { bars } from "../figures.js";
import { html } from "../html.js";
import { answering, chosen, Figure, ModelChoice, Panel, Samples, TextBox, width } from "../parts.js";
import { field } from "../state.js";

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
  const ask = (its, words) => predict(its, "fill-mask", words, { top_k: 12 });
  const first = chosen(model, "fill-mask");
  const asked = [[first, text.value]];
  if (other.value && other.value !== first) asked.push([other.value, text.value]);
  else if (edited.value) asked.push([first, edited.value]);
  const found = await Promise.all(asked.map(([its, words]) => ask(its, words)));
  const ofFirstMask = found.map((each) => each.filter((one) => !one.mask));
  const names = asked.map(([its, words]) => (words === text.value ? its : "edited"));
  const words = [...new Set(ofFirstMask.flatMap((each) => each.slice(0, asked.length > 1 ? 8 : 12).map((one) => one.token_str)))];
  const rows = words.map((word) => ({
    label: word,
    values: ofFirstMask.map((each) => each.find((one) => one.token_str === word)?.score ?? 0),
  }));
  return { names, rows };
});

export const fill = {
  id: "fill",
  name: "Fill in the blank",
  uses: ["fill-mask"],
  view: () => html`<${Panel} title="Fill in the blank" answer=${answer}
    about="Which words a model expects at [MASK], beside what another model expects, or what an edited text changes."
    show=${({ names, rows }) => html`<${Figure} title="The likeliest words at [MASK]">${bars(rows, width.value, "The likeliest words", names)}<//>`}>
    <${TextBox} field=${text} label="Text" />
    <${TextBox} field=${edited} label="The same, edited (optional)" />
    <${ModelChoice} model=${model} use="fill-mask" />
    <${ModelChoice} model=${other} use="fill-mask" label="Beside it" none="no other" />
    <${Samples} samples=${SAMPLES} model=${model} use="fill-mask" fields=${{ text, edited }} run=${answer.run} />
  <//>`,
};
