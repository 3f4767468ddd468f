// What a left-to-right model writes after the beginning of a text.
import { predict } from "../api.js";
import { flow } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, NumberBox, width } from "../parts.js";

const SAMPLES = [
  ["a story", { prompt: "Once upon a time" }],
  ["a letter", { prompt: "She wrote a letter to" }],
  ["한국어", { prompt: "옛날 옛적에" }],
];

const words = (text, more) => text.split(/\s+/).filter(Boolean).map((word) => ({ text: word, gap: 4, ...more }));

function show({ found }) {
  const before = words(found.prompt);
  if (before.length && /^\S/.test(found.text)) before.at(-1).gap = 0; // the last word goes on
  const added = words(found.text, { ink: "var(--training)", strength: 0.2 });
  return html`<${Figure} title="The text, and what continues it (blue)">${flow([...before, ...added], width.value, "The text, continued")}<//>`;
}

export const continuing = definePanel({
  id: "continue",
  name: "Continue a text",
  missing: "Serve a left-to-right language model, such as GPT-1, not as ONNX, to see it continue a text.",
  about: "What a left-to-right model writes next, token after token. Temperature 0 takes the likeliest each time; the same seed draws the same.",
  use: "generate",
  samples: SAMPLES,
  boxes: () => ({ prompt: { label: "Beginning", rows: 2 } }),
  fields: { tokens: 30, temperature: 1, top_k: 40, seed: 0 },
  more: ({ tokens, temperature, top_k, seed }) => html`
    <${NumberBox} field=${tokens} label="Tokens to add" most="200" />
    <${NumberBox} field=${temperature} label="Temperature" step="0.1" />
    <${NumberBox} field=${top_k} label="Top k (0: all)" />
    <${NumberBox} field=${seed} label="Seed" />`,
  look: (model, { prompt }, { tokens, temperature, top_k, seed }) => predict(model, "generate", prompt, {
    num_tokens: tokens.value, temperature: temperature.value, top_k: top_k.value, seed: seed.value,
  }),
  show,
});
