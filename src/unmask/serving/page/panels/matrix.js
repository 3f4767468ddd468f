// How similar some sentences are, each to each.
import { askModel } from "../api.js";
import { grid } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";

const ENGLISH = "A man plays the guitar .\nSomeone is making music .\nThe stock market fell on Monday .\nShares lost value this week .\nThe cat sleeps on the sofa .";
const KOREAN = "남자가 기타를 치고 있다 .\n누군가 음악을 연주한다 .\n월요일에 주가가 떨어졌다 .\n고양이가 소파에서 잔다 .";

const SAMPLES = [["English", { sentences: ENGLISH }], ["한국어", { sentences: KOREAN }]];

async function look(model, { sentences }) {
  const names = sentences.split("\n").map((line) => line.trim()).filter(Boolean);
  if (names.length < 2) throw new Error("give at least two sentences, one a line");
  if (names.length > 32) throw new Error(`${names.length} sentences: up to 32 can be shown`);
  const reply = await askModel(model, "features", { inputs: names, normalise: true });
  const values = reply.predictions.map((one) => reply.predictions.map((other) => one.reduce((sum, value, place) => sum + value * other[place], 0)));
  return { names, values };
}

export const matrix = definePanel({
  id: "matrix",
  name: "Similarity",
  missing: "Serve an encoder, or one fine-tuned model (no ensemble, not as ONNX), to see which sentences it finds alike.",
  about: "The cosine of the mean vectors of sentences, one a line. A model that was not fine-tuned for it finds much alike.",
  use: "features",
  samples: SAMPLES,
  boxes: () => ({ sentences: { label: "Sentences, one a line", rows: 6 } }),
  look,
  show: ({ names, values }) => html`<${Figure} title="Cosine of each two sentences, from 0 (pale) to 1 (strong)">${grid(names, values, width.value, "Similarities")}<//>`,
});
