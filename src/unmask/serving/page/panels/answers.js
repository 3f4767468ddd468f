// A question about a passage: the answer marked, and where it may begin and end.
import { askModel, predict } from "../api.js";
import { bars, flow } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";
import { has } from "../state.js";

const SAMPLES = [
  ["a place", { question: "Where was the book written?", context: "The book was written by Ada in London, and printed in Paris two years later." }],
  ["a person", { question: "Who wrote the book?", context: "The book was written by Ada in London, and printed in Paris two years later." }],
  ["한국어", { question: "책은 어디에서 쓰였나?", context: "그 책은 1840년에 런던에서 쓰였고 2년 뒤에 파리에서 출판되었다." }],
];

async function look(model, asked) {
  const read = await predict(model, "answer", asked);
  const shown = { ...read, context: [...asked.context] };
  if (!has(model, "spans")) return shown;
  try {
    return { ...shown, spans: await askModel(model, "spans", asked) };
  } catch (error) {
    return { ...shown, note: error.message };
  }
}

/** The words of a text that is a list of characters. */
const words = (characters) => characters.join("").split(/\s+/).filter(Boolean);

function show({ found, spans, note, context }) {
  const pieces = spans?.starts.map((start, place) => {
    const inside = found.start !== null && start >= found.start && spans.ends[place] <= found.end;
    return {
      // The server counts characters, not halves of them; bytes of one character may be in two tokens.
      text: context.slice(Math.max(start, spans.ends[place - 1] ?? 0), spans.ends[place]).join(""),
      ink: spans.begins[place] >= spans.stops[place] ? "var(--training)" : "var(--held-out)",
      strength: 0.5 * Math.max(spans.begins[place], spans.stops[place]),
      isMarked: inside,
      gap: spans.starts[place + 1] <= spans.ends[place] ? 0 : 4,
      title: `begins here: ${spans.begins[place].toPrecision(2)}, ends here: ${spans.stops[place].toPrecision(2)}`,
    };
  });
  const [from, to] = spans ? [spans.starts[0], spans.ends.at(-1)] : [];
  const isPart = spans && words(context.slice(0, from)).length + words(context.slice(to)).length > 0;
  const part = isPart ? words(context.slice(from, to)) : [];
  const best = found.n_best.slice(0, 6).map((each) => ({ label: each.answer, values: [each.probability] }));
  return html`<p class="big"><bdi>${found.answer || "no answer"}</bdi></p>
    ${note && html`<p class="about">Where it may begin and end is not shown: ${note}</p>`}
    ${isPart ? html`<p class="about">A long passage is read in parts. Shown is the one with the likeliest beginning and end, from “<bdi>${part.slice(0, 3).join(" ")}</bdi>” to “<bdi>${part.slice(-3).join(" ")}</bdi>”.</p>` : ""}
    ${pieces ? html`<${Figure} title=${`Where it may begin (blue) and end (orange)${pieces.some((each) => each.isMarked) ? "; the answer is underlined" : ""}`}>${flow(pieces, width.value, "The passage with the answer")}<//>` : ""}
    ${best.length ? html`<${Figure} title="The best answers">${bars(best, width.value, "The best answers")}<//>` : ""}`;
}

export const answers = definePanel({
  id: "answers",
  name: "Answer a question",
  missing: "Serve a model of finetune/qa to see it answer questions.",
  about: "The part of a passage that answers a question, and how probable each beginning and each end is.",
  use: "answer",
  samples: SAMPLES,
  boxes: () => ({ question: { label: "Question" }, context: { label: "Passage", rows: 5 } }),
  look,
  show,
});
