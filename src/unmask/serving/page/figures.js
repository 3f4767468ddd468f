// Figures as SVG. Colours are the page's variables, so that light and dark both work; a saved figure has their values.
import { html } from "./html.js";

const MARGIN = 4;
const LINE = 30;
const measured = document.createElement("canvas").getContext("2d");

/** How wide a text is, in CSS pixels. */
export function widthOf(text, size = 15) {
  measured.font = `${size}px system-ui, "Noto Sans", "Noto Sans CJK KR", sans-serif`;
  return measured.measureText(text).width;
}

const segmenter = new Intl.Segmenter();

/** A text in what a reader takes for characters: a syllable of several letters, or an emoji of several signs, is one. */
const charactersOf = (value) => Array.from(segmenter.segment(value), (each) => each.segment);

/** A text, cut with an ellipsis to a width: at its end or, as of long answers that begin alike, in its middle. */
function fit(value, wide, size = 15, isCutInside = false) {
  if (widthOf(value, size) <= wide) return value;
  const characters = charactersOf(value);
  for (let kept = characters.length - 1; kept > 0; kept--) {
    const begin = isCutInside ? Math.ceil(kept / 2) : kept;
    const cut = `${characters.slice(0, begin).join("")}…${characters.slice(characters.length - kept + begin).join("")}`;
    if (widthOf(cut, size) <= wide) return cut;
  }
  return "…";
}

export function percent(share) {
  if (!share) return "0 %";
  if (share < 1e-5) return "< 0.001 %";
  return `${share >= 0.0995 ? Math.round(share * 100) : (share * 100).toPrecision(2)} %`;
}

const text = (x, y, value, more = {}) =>
  html`<text x=${x} y=${y} fill="var(--ink)" font-size="15" ...${more}>${value}</text>`;

/** `said` is what the drawing shows, for those who do not see it. */
function frame(width, height, label, content, said = "") {
  return html`<svg
    role="img" aria-label=${said ? `${label}: ${said}` : label} viewBox="0 0 ${width} ${height}" width=${width} height=${height}
    font-family="system-ui, 'Noto Sans', 'Noto Sans CJK KR', sans-serif">${content}</svg>`;
}

/** Rows of `{label, values}`, each value in 0..1 with a bar, or a word in place of one; `names` say what the values are where there are several. */
export function bars(rows, width, label, names = []) {
  const inks = ["var(--training)", "var(--held-out)"];
  const left = Math.min(width / 2.5, Math.max(60, ...rows.map((row) => widthOf(row.label))) + 14);
  const scale = width - left - 62;
  const thick = names.length > 1 ? 11 : 18;
  const step = names.length > 1 ? 36 : 28;
  const wide = (name) => 34 + widthOf(name, 13);
  const isStacked = names.reduce((sum, name) => sum + wide(name), left) > width;
  const top = names.length > 1 ? (isStacked ? 4 + 20 * names.length : 24) : 0;
  const legend = names.length > 1
    ? names.map((name, place) => {
        const [x, y] = isStacked ? [left, 20 * place] : [left + place * Math.max(scale / 2, wide(names[0])), 0];
        return html`<rect x=${x} y=${y + 4} width="12" height="12" fill=${inks[place]} />
          ${text(x + 18, y + 15, fit(name, width - x - 18, 13), { "font-size": 13 })}`;
      })
    : "";
  const drawn = rows.map((row, number) => {
    const y = top + number * step;
    return html`<g><title>${row.label}</title>${text(left - 10, y + step / 2 + 4, fit(row.label, left - 14, 15, true), { "text-anchor": "end" })}
      ${row.values.map((value, place) => typeof value === "string"
        ? text(left, y + 4 + place * (thick + 2) + thick / 2 + 5, value, { "font-size": 12, fill: "var(--muted)" })
        : html`<rect x=${left} y=${y + 5 + place * (thick + 2)} height=${thick} width=${Math.max(1, value * scale)} rx="2" fill=${inks[place]} />
        ${text(left + value * scale + 6, y + 4 + place * (thick + 2) + thick / 2 + 5, percent(value), { "font-size": 12, fill: "var(--muted)" })}`)}</g>`;
  });
  const written = (value, place) => `${names.length > 1 ? `${names[place]} ` : ""}${typeof value === "string" ? value : percent(value)}`;
  const said = rows.map((row) => `${row.label}: ${row.values.map(written).join(", ")}`).join("; ");
  return frame(width, top + rows.length * step + 4, label, html`${legend}${drawn}`, said);
}

/** A piece of `flow` in parts that are no wider than a line; what belongs to it as a whole stays at the first. */
function partsOf(piece, width) {
  const parts = [""];
  for (const character of widthOf(piece.text) > width ? charactersOf(piece.text) : [piece.text]) {
    if (parts.at(-1) && widthOf(parts.at(-1) + character) > width) parts.push("");
    parts[parts.length - 1] += character;
  }
  return parts.map((text, place) => ({ ...piece, text, note: place ? "" : piece.note, title: piece.title ?? piece.note, gap: place < parts.length - 1 ? 0 : piece.gap }));
}

const RIGHT_TO_LEFT = /(?=[\p{L}\p{M}])[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const [BEGINS_SO, ENDS_SO] = [new RegExp(`^${RIGHT_TO_LEFT.source}`, "u"), new RegExp(`${RIGHT_TO_LEFT.source}$`, "u")];
const ENDS_IN_WORD = /[\p{L}\p{M}\p{Nd}>\]]$/u; // or is a special token, such as <s>
const JOINER = "\u200d"; // letters of Arabic join across it

/** From which side a text is written, by its first letter. */
function directionOf(text) {
  const first = text.match(/\p{L}/u)?.[0];
  return first && (RIGHT_TO_LEFT.test(first) ? "rtl" : "ltr");
}

function mirror(placed, from, to) {
  for (const each of placed) each.at = from + to - each.at - each.wide;
}

/** Puts pieces, which stand from left to right, in the order of a text of this direction; on each line those of the other
 * are turned together. */
function turn(placed, direction, width) {
  for (let first = 0; first < placed.length; first++) {
    if ((placed[first].side || direction) === direction) continue;
    let last = first;
    for (let next = first; placed[next]?.top === placed[first].top && placed[next].side !== direction; next++)
      if (placed[next].side) last = next;
    mirror(placed.slice(first, last + 1), placed[first].at, placed[last].at + placed[last].wide);
    first = last;
  }
  if (direction === "rtl") mirror(placed, 0, width);
}

/** Pieces of a text one after another, each `{text, ink, strength, note, isMarked, least}`: a ground of a colour, a word
 * below it, a line under it, the least width. The strength is at most 0.5: a text on more cannot be read in the dark.
 * `whole`, if it is not the pieces together, is the text whose first letter says from which side it is written; "" for
 * words that are no text. */
export function flow(pieces, width, label, whole = pieces.map((piece) => piece.text).join(" ")) {
  const direction = directionOf(whole) ?? "ltr";
  const noted = pieces.some((piece) => piece.note);
  const line = noted ? LINE + 16 : LINE;
  let x = 0;
  let y = 0;
  const parts = pieces.flatMap((piece) => partsOf(piece, width - 2 * MARGIN));
  const joins = parts.map((part, place) => part.gap === 0 && ENDS_SO.test(part.text) && BEGINS_SO.test(parts[place + 1]?.text));
  const placed = parts.map((piece, place) => {
    const shown = `${joins[place - 1] ? JOINER : ""}${piece.text}${joins[place] ? JOINER : ""}`;
    const own = widthOf(shown);
    const wide = Math.max(own + (piece.gap === 0 ? MARGIN : 2 * MARGIN), piece.least ?? 0, piece.note ? widthOf(piece.note, 11) + 6 : 0);
    if (x > 0 && x + wide > width) [x, y] = [0, y + line];
    const at = x;
    x += wide + (piece.gap ?? 2);
    return { piece, shown, own, wide, at, top: y, side: directionOf(piece.text) ?? (/\p{Nd}/u.test(piece.text) ? "ltr" : "") };
  });
  if (whole) turn(placed, direction, width);
  const drawn = placed.map(({ piece, shown, own, wide, at, top, side }) => {
    const written = ENDS_IN_WORD.test(piece.text) && side ? side : direction;
    return html`<g>
      ${piece.title ? html`<title>${piece.title}</title>` : ""}
      <rect x=${at} y=${top + 3} width=${wide} height="24" rx="4" fill=${piece.ink ?? "none"} fill-opacity=${piece.strength ?? 1} />
      ${piece.isMarked ? html`<rect x=${at} y=${top + 28} width=${wide} height="2" fill="var(--ink)" />` : ""}
      ${text(at + (wide - own) / 2, top + 20, shown, written === "rtl" ? { direction: "rtl", "text-anchor": "end" } : {})}
      ${piece.note ? text(at + wide / 2, top + 39, piece.note, { "font-size": 11, "text-anchor": "middle", fill: "var(--muted)" }) : ""}
    </g>`;
  });
  const said = pieces.map(({ text, title, note }) => (note || title ? `${text} (${note || title})` : text)).join(" ");
  return frame(width, y + line + 2, label, drawn, said);
}

/** A square of numbers in 0..1, on grounds on which ink can be read, with a name for each row and column; beside it a
 * table for those who do not see it. */
export function grid(names, values, width, label) {
  const numbered = names.map((name, number) => `${number + 1}  ${name}`);
  const left = Math.min(width * 0.42, Math.max(...numbered.map((name) => widthOf(name, 13))) + 12);
  const short = numbered.map((name) => fit(name, left - 12, 13));
  const cell = Math.max(18, Math.min(64, (width - left) / names.length));
  const cells = values.flatMap((row, y) => row.map((value, x) => html`<g>
      <title>${`${names[y]} – ${names[x]}: ${value.toFixed(3)}`}</title>
      <rect x=${left + x * cell} y=${22 + y * cell} width=${cell - 2} height=${cell - 2} rx="3" fill="var(--training)" fill-opacity=${Math.max(0.04, 0.5 * value)} />
      ${cell > 34 ? text(left + (x + 0.5) * cell - 1, 22 + (y + 0.5) * cell + 4, value.toFixed(2), { "font-size": 12, "text-anchor": "middle" }) : ""}
    </g>`));
  const titles = short.map((name, place) => html`
    ${text(left - 8, 22 + (place + 0.5) * cell + 4, name, { "font-size": 13, "text-anchor": "end" })}
    ${text(left + (place + 0.5) * cell, 14, place + 1, { "font-size": 12, "text-anchor": "middle", fill: "var(--muted)" })}`);
  return html`${frame(Math.max(width, left + names.length * cell), 24 + names.length * cell, label, html`${titles}${cells}`)}
    <div class="unseen"><table><tr><td></td>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr>
      ${values.map((row, y) => html`<tr><th scope="row">${names[y]}</th>${row.map((value) => html`<td>${value.toFixed(3)}</td>`)}</tr>`)}</table></div>`;
}

/** Lines over steps, each `{name, values}` in 0..1 with dashes of its own, and a mark at one of the steps. */
export function lines(steps, series, at, width, label) {
  const [left, right, top, bottom] = [44, 130, 10, 26];
  const height = 240;
  const most = Math.max(0.05, ...series.flatMap((each) => each.values));
  const x = (place) => left + ((steps[place] - steps[0]) / Math.max(1, steps.at(-1) - steps[0])) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const inks = ["var(--training)", "var(--held-out)", "var(--right)", "var(--warning)", "var(--wrong)"];
  const dashes = ["", "7 3", "2 3", "8 3 2 3", "4 2"];
  const lineOf = (place) => ({ fill: "none", stroke: inks[place % inks.length], "stroke-width": 2, "stroke-dasharray": dashes[place % dashes.length] });
  const ends = series.map((each, place) => ({ place, y: y(each.values.at(-1)) })).sort((one, other) => one.y - other.y);
  for (let place = 1; place < ends.length; place++) ends[place].y = Math.max(ends[place].y, ends[place - 1].y + 16);
  for (let place = ends.length; place--; ) ends[place].y = Math.min(ends[place].y, height - bottom - 16 * (ends.length - 1 - place));
  const rules = [0, 0.5, 1].map((share) => html`
    <line x1=${left} x2=${width - right} y1=${y(share * most)} y2=${y(share * most)} stroke="var(--line)" />
    ${text(left - 6, y(share * most) + 4, percent(share * most), { "font-size": 11, "text-anchor": "end", fill: "var(--muted)" })}`);
  const curves = series.map((each, place) => html`<polyline ...${lineOf(place)}
    points=${each.values.map((value, step) => `${x(step)},${y(value)}`).join(" ")} />`);
  const named = ends.map(({ place, y: at }) => {
    const { name } = series[place];
    return html`<g><title>${name}</title><line x1=${width - right + 6} x2=${width - right + 26} y1=${at} y2=${at} ...${lineOf(place)} />
      ${text(width - right + 31, at + 4, fit(/\p{L}/u.test(name) ? name : `“${name}”`, right - 31, 14), { fill: inks[place % inks.length], "font-size": 14 })}</g>`;
  });
  return frame(width, height, label, html`${rules}
    <line x1=${x(at)} x2=${x(at)} y1=${top} y2=${height - bottom} stroke="var(--muted)" stroke-dasharray="4 3" />
    ${curves}${named}
    ${text(left, height - 6, `step ${steps[0].toLocaleString("en")}`, { "font-size": 11, fill: "var(--muted)" })}
    ${text(width - right, height - 6, `step ${steps.at(-1).toLocaleString("en")}`, { "font-size": 11, "text-anchor": "end", fill: "var(--muted)" })}`,
  series.map(({ name, values }) => `${name}: ${values.map((value, step) => `${percent(value)} at step ${steps[step]}`).join(", ")}`).join("; "));
}

/** Tokens, pieces as those of `flow`, on both sides, a line from each to those that it attends to by at least `least`. */
export function links(tokens, weights, least, width, label) {
  const step = 24;
  const side = Math.min(width / 3, Math.max(...tokens.map((token) => widthOf(token.text))) + 12);
  const drawn = weights.flatMap((row, from) => row.map((value, to) => ({ from, to, value })).filter((each) => each.value >= least));
  const y = (place) => place * step + 16;
  const titled = (each) => `${tokens[each.from].text} → ${tokens[each.to].text}: ${percent(each.value)}`;
  return frame(width, tokens.length * step + 6, label, html`
    ${drawn.map((each) => html`<line x1=${side + 4} x2=${width - side - 4} y1=${y(each.from)} y2=${y(each.to)}
      stroke="var(--training)" stroke-width=${0.5 + 4 * each.value} stroke-opacity=${0.15 + 0.85 * each.value}><title>${titled(each)}</title></line>`)}
    ${tokens.map((token, place) => html`<g><title>${token.title ? `${token.text}: ${token.title}` : token.text}</title>
      ${[{ x: side - 4, "text-anchor": "end" }, { x: width - side + 4 }].map(({ x, ...more }) =>
        text(x, y(place) + 5, fit(token.text, side - 8), { ...more, "text-decoration": token.isMarked ? "underline" : "none" }))}</g>`)}`, drawn.map(titled).join("; "));
}

const SVG = "http://www.w3.org/2000/svg";

function part(name, attributes, content = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(content);
  return made;
}

/** Saves a figure, on the ground of its card and below the lines of its caption, as a file that needs no style sheet. */
export function saveFigure(svg, name, caption) {
  const style = getComputedStyle(document.documentElement);
  const copy = svg.cloneNode(true);
  const [wide, high] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const told = caption.flatMap((line) => partsOf({ text: line }, wide - 2 * MARGIN)).map((each) => each.text);
  const top = 20 * told.length + 8;
  const drawn = part("g", { transform: `translate(0 ${top})` });
  drawn.append(...copy.childNodes);
  copy.append(
    part("title", {}, caption[0]), part("rect", { width: "100%", height: "100%", fill: "var(--card)" }),
    ...told.map((line, place) => part("text", { x: MARGIN, y: 16 + 20 * place, fill: "var(--ink)", "font-size": place ? 13 : 15 }, line)), drawn,
  );
  for (const [key, value] of Object.entries({ xmlns: SVG, height: high + top, viewBox: `0 0 ${wide} ${high + top}` })) copy.setAttribute(key, value);
  for (const each of [copy, ...copy.querySelectorAll("*")])
    for (const { name: key, value } of [...each.attributes])
      each.setAttribute(key, value.replace(/var\((--[\w-]+)\)/g, (_, variable) => style.getPropertyValue(variable).trim()));
  // A text may hold characters that XML forbids, such as a form feed.
  const whole = new XMLSerializer().serializeToString(copy).replace(/[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu, "\uFFFD");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([whole], { type: "image/svg+xml" }));
  link.download = `${name}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}
