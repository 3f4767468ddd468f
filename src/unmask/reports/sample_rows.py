"""The sample predictions of a report, drawn from a run's `samples.json`.

That file is a list of `{"title", "text": [token, ...]}` or of `{"title", "input": {...}, "label", "prediction",
"probability"}`. A token has

    token           as the model reads it
    kind            plain, special, masked, next or checked: whether something is predicted there, and what
    joined          True if it continues the word before it; left out: if it begins with `##`
    label           masked: the entry that stood there; next: the token itself; checked: original or replaced
    prediction      masked, next: the likeliest entry; checked: original or replaced
    probability     of the prediction; checked: of replaced
    correct         whether label and prediction are equal
    label_probability   next: of the token itself
    original        checked: the entry that stood there, where it was replaced
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from unmask.reports.html_table import Html, table

Row = Mapping[str, Any]


def are_samples(value: Any) -> bool:
    """Whether a value has the shape described above."""
    return isinstance(value, list) and all(
        isinstance(sample, dict)
        and isinstance(sample.get("input", {}), dict)
        and isinstance(sample.get("text", []), list)
        and all(isinstance(token, dict) for token in sample.get("text", []))
        for sample in value
    )


def draw_samples(samples: Sequence[Row]) -> str:
    """The section as HTML; nothing without samples."""
    texts = [sample for sample in samples if "text" in sample]
    answers = [sample for sample in samples if "text" not in sample]
    kinds = {token.get("kind") for sample in texts for token in sample["text"]}
    parts = [f'<p class="note">{note}</p>' for kind, note in NOTES.items() if kind in kinds]
    parts += map(_text, texts)
    if answers:
        fields = list(dict.fromkeys(name for sample in answers for name in sample.get("input", {})))
        head = (*fields, "label", "prediction", "probability")
        parts.append(table(head, [_answer(sample, fields) for sample in answers], "samples"))
    return "".join(parts)


NOTES = {
    "masked": '<mark class="right">restored</mark> or <mark class="wrong"><del>predicted</del> <ins>original</ins>'
    "</mark>, at masked positions. Point at one for its probability.",
    "next": 'Each token from those before it: <mark class="right">as expected</mark> where it was the likeliest. '
    "Point at any for what the model expected there.",
    "checked": 'Tokens that the generator replaced, <mark class="right"><del>original</del> <ins>replacement</ins>'
    '</mark> where the discriminator says so and <mark class="wrong"><del>original</del> <ins>replacement</ins></mark> '
    'where it does not, and <mark class="wrong">original tokens</mark> that it takes for replaced; each with the '
    "probability that it gives to a replacement.",
}
"""How to read a text, by the kind of its tokens."""


def _text(sample: Row) -> str:
    words = [("" if _is_joined(token) else " ") + _token(token) for token in sample["text"]]
    title = escape(str(sample.get("title", "")))
    return f'<article><h3>{title}</h3><p class="text">{"".join(words).strip()}</p></article>'


def _is_joined(token: Row) -> bool:
    """Whether no space is put before a token, as between the pieces of a word."""
    joined = token.get("joined")
    return str(token.get("label") or token.get("token", "")).startswith("##") if joined is None else bool(joined)


def _token(token: Row) -> str:
    kind = str(token.get("kind"))
    if kind in DRAWN:
        return DRAWN[kind](token)
    text = str(token.get("token", ""))
    return f'<span class="special">{escape(text)}</span>' if kind == "special" else escape(_bare(text))


def _masked(token: Row) -> str:
    text, label, prediction = (str(token.get(name) or "") for name in ("token", "label", "prediction"))
    hover = (
        f"input {text} · original {_whole(label)} · predicted {_whole(prediction)}"
        f"{_chance(token, ' with probability ')}"
    )
    right = bool(token.get("correct"))
    if not right and _bare(prediction) != _bare(label):
        label, prediction = _bare(label), _bare(prediction)
    shown = escape(_bare(label)) if right else f"<del>{escape(prediction)}</del> <ins>{escape(label)}</ins>"
    return _mark(right, hover, shown)


def _next(token: Row) -> str:
    label, prediction = (str(token.get(name) or "") for name in ("label", "prediction"))
    hover = f"expected {_whole(prediction)}{_chance(token, ' with probability ')}"
    if not token.get("correct"):
        hover += f" · {_whole(label)} itself{_chance(token, ' with ', 'label_probability')}"
        return f'<span title="{escape(hover)}">{escape(_bare(label))}</span>'
    return _mark(True, hover, escape(_bare(label)))


def _checked(token: Row) -> str:
    text, label, prediction = (str(token.get(name) or "") for name in ("token", "label", "prediction"))
    hover = f"{label} · the discriminator says {prediction}: replaced{_chance(token, ' with probability ')}"
    right = bool(token.get("correct"))
    probability = token.get("probability")
    share = "" if probability is None else f" <small>{probability:.0%}</small>"
    if label == "replaced":
        original = escape(_bare(str(token.get("original") or "")))
        return _mark(right, hover, f"<del>{original}</del> <ins>{escape(_bare(text))}</ins>{share}")
    if not right:
        return _mark(False, hover, f"{escape(_bare(text))}{share}")
    return f'<span title="{escape(hover)}">{escape(_bare(text))}</span>'


DRAWN: dict[str, Callable[[Row], str]] = {"masked": _masked, "next": _next, "checked": _checked}
"""The functions that draw tokens at which something is predicted, by kind."""


def _mark(right: bool, hover: str, shown: str) -> str:
    return f'<mark class="{"right" if right else "wrong"}" title="{escape(hover)}">{shown}</mark>'


def _whole(entry: str) -> str:
    """An entry shown by itself: without BPE's end-of-word mark, which nearly every one has."""
    return entry.removesuffix("</w>")


def _bare(entry: str) -> str:
    """An entry shown in its text: without the mark that says whether it begins or ends a word."""
    return _whole(entry).removeprefix("##").removeprefix("␣")


def _answer(sample: Row, fields: Sequence[str]) -> tuple[Any, ...]:
    label, prediction = sample.get("label"), sample.get("prediction")
    kind = "" if label is None else "right" if label == prediction else "wrong"
    told = Html(f'<mark class="{kind}">{escape(str(prediction))}</mark>')
    return (*(sample.get("input", {}).get(name) for name in fields), label, told, _chance(sample, ""))


def _chance(sample: Row, lead: str, name: str = "probability") -> str:
    probability = sample.get(name)
    return "" if probability is None else f"{lead}{probability:.2f}"
