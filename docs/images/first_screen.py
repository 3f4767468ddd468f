"""Draws the picture of the README from a finished run: texts as the model sees them, its predictions, its curve.

    python docs/images/first_screen.py RUN

README.md's is the one that made `samples/models/en`; its card has the command.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

import unmask

TEXTS = ("He did not [MASK] what to say.", "The album was [MASK] in 1998.", "The film was directed [MASK] John Ford.")
PICTURE = Path(__file__).parent / "first-screen.svg"
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.mask { fill: #1f6feb } .shown { fill: #fff; font-weight: 600 } .bar { fill: #1f6feb; opacity: .75 }
.curve { stroke: #1f6feb; stroke-width: 2.5; fill: none } .floor { stroke: #bc4c00; stroke-dasharray: 5 4 }
.axis { stroke: #8c959f } .dot { fill: #1f6feb } .floor-text { font-size: 12px; fill: #bc4c00 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .mask, .bar, .dot { fill: #4493f8 } .shown { fill: #0d1117 }
.curve { stroke: #4493f8 } .floor { stroke: #f0883e } .floor-text { fill: #f0883e } .axis { stroke: #6e7681 } }
"""


def predictions(model: Path) -> str:
    """Each text with its mask, and below it the three likeliest tokens with their probabilities."""
    drawn, y = [], 24
    for text in TEXTS:
        before, after = text.split("[MASK]")
        width = 7.4 * len(before.strip())
        x = 14 + width
        drawn.append(f'<text x="8" y="{y}" textLength="{width}">{escape(before.strip())}</text>')
        drawn.append(f'<rect class="mask" x="{x:.0f}" y="{y - 15}" width="64" height="20" rx="4"/>')
        drawn.append(f'<text class="shown" x="{x + 32:.0f}" y="{y}" text-anchor="middle">[MASK]</text>')
        drawn.append(f'<text x="{x + 71:.0f}" y="{y}">{escape(after.strip())}</text>')
        for place, answer in enumerate(unmask.fill_mask(model, text, 3)):
            line = y + 22 + 18 * place
            drawn.append(f'<text x="100" y="{line}" text-anchor="end">{escape(answer["token_str"].strip())}</text>')
            bar = 200 * answer["score"]
            drawn.append(f'<rect class="bar" x="108" y="{line - 11}" width="{bar:.1f}" height="12" rx="2"/>')
            drawn.append(f'<text class="small" x="{114 + bar:.0f}" y="{line}">{answer["score"]:.2f}</text>')
        y += 92
    return "\n".join(drawn)


def curve(run: Path) -> str:
    """The loss in training over tokens, of words to come and of masked ones, and what is had without any context."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    results = json.loads((run / "results.json").read_text("utf-8"))
    floor, last = results["floors"]["loss/mlm"]["no context"], results["mlm_loss"]
    left, right, top, bottom, lowest, highest = 480, 840, 40, 240, 1.0, 7.5
    most = max(row["tokens"] for row in rows if "tokens" in row)

    def at(count: float, loss: float) -> tuple[float, float]:
        across, down = count / most, (highest - min(loss, highest)) / (highest - lowest)
        return left + (right - left) * across, top + (bottom - top) * down

    parts = [f'<text x="{left}" y="20">loss in training (nats) over tokens read</text>']
    parts += [f'<path class="axis" d="M{left} {top}V{bottom}H{right}" fill="none"/>']
    for loss in (7, 6, 5, 4, 3, 2):
        parts.append(f'<text class="small" x="{left - 8}" y="{at(0, loss)[1] + 4:.0f}" text-anchor="end">{loss}</text>')
    for share in (0.5, 1.0):
        x, words = at(share * most, lowest)[0], f"{share * most / 1e6:.3g} million"
        parts.append(f'<text class="small" x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{words}</text>')
    y = at(0, floor)[1]
    parts.append(f'<path class="floor" d="M{left} {y:.1f}H{right}"/>')
    parts.append(
        f'<text class="floor-text" x="{right}" y="{y - 6:.0f}" text-anchor="end">without context: {floor:.2f}</text>'
    )
    for kind, words in (("loss/lm", "words to come"), ("loss/mlm", "masked words")):
        places = [at(row["tokens"], row[kind]) for row in rows if kind in row]
        if not places:
            continue
        parts.append('<path class="curve" d="M' + " L".join(f"{x:.1f} {y:.1f}" for x, y in places) + '"/>')
        x, y = places[len(places) // 2]
        parts.append(f'<text class="small" x="{x:.0f}" y="{y - 16:.0f}" text-anchor="middle">{words}</text>')
    x, y = at(most, last)
    parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    parts.append(f'<text x="{x:.0f}" y="{y + 20:.0f}" text-anchor="end">held out: {last:.2f}</text>')
    return "\n".join(parts)


def main() -> None:
    run = Path(sys.argv[1])
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 282" role="img" font-size="14">'
    title = "<title>Masked texts with a model's predictions, and its loss over tokens</title>"
    picture = f"{head}\n{title}\n<style>{STYLE}</style>\n{predictions(run)}\n{curve(run)}\n</svg>\n"
    PICTURE.write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
