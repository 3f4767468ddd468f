// Entities coloured in a text.
import { predict } from "../api.js";
import { flow } from "../figures.js";
import { html } from "../html.js";
import { definePanel, Figure, width } from "../parts.js";

const SAMPLES = [
  ["English", { text: "Anna Schmidt works for Siemens in Berlin." }],
  ["한국어", { text: "이순신 장군은 1545년 서울에서 태어났다." }],
];

const INKS = ["var(--training)", "var(--held-out)", "var(--right)", "var(--warning)", "var(--wrong)", "var(--floor)"];

function show({ found, text }) {
  const kinds = [...new Set(found.entities.map((each) => each.label))];
  const pieces = [];
  let at = 0;
  const words = (start, end) => text.slice(start, end).join("");
  const isBlank = (place) => place >= text.length || !text[place].trim();
  const gapAt = (place) => (isBlank(place) || isBlank(place - 1) ? 4 : 0); // a particle stays at its name
  const plain = (end) => {
    const there = words(at, end).split(/\s+/).filter(Boolean);
    there.forEach((word, number) => pieces.push({ text: word, gap: number === there.length - 1 ? gapAt(end) : 4 }));
  };
  for (const each of found.entities) {
    plain(each.start);
    const ink = INKS[kinds.indexOf(each.label) % INKS.length];
    pieces.push({ text: words(each.start, each.end), note: each.label, ink, strength: 0.35, gap: gapAt(each.end) });
    at = each.end;
  }
  plain(text.length);
  return html`<${Figure} title=${found.entities.length ? "The entities that were found" : "No entity was found"}>${flow(pieces, width.value, "The text with its entities")}<//>
    ${found.entities.length ? html`<table><thead><tr><th>entity</th><th>kind</th><th>from character</th><th>before</th></tr></thead><tbody>
      ${found.entities.map((each) => html`<tr><td><bdi>${words(each.start, each.end)}</bdi></td><td><bdi>${each.label}</bdi></td><td>${each.start}</td><td>${each.end}</td></tr>`)}
    </tbody></table>` : ""}`;
}

export const entities = definePanel({
  id: "entities",
  name: "Find entities",
  missing: "Serve a model of finetune/tagging to see it find entities.",
  about: "Names and other spans, with their characters in the text as you wrote it.",
  use: "tag",
  samples: SAMPLES,
  boxes: () => ({ text: { label: "Text", rows: 3 } }),
  look: async (model, { text }) => ({
    ...(await predict(model, "tag", { text })),
    text: [...text], // the server counts characters, not halves of them
  }),
  show,
});
