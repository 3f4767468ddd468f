"""The sample predictions of a report, drawn from a run's `samples.json`.

That file is a list of `{"title", "text": [token, ...]}` or of `{"title", "input": {...}, "label", "prediction",
"probability"}`, these with `correct` where equal texts do not decide it: True, False, or None for numbers. A token has

    token           as the model reads it
    kind            plain, special, masked, next or checked: whether something is predicted there, and what
    joined          True if it continues the word before it
    label           masked: the original entry; next: the token itself; checked: original or replaced
    prediction      masked, next: the likeliest entry; checked: original or replaced
    probability     of the prediction; checked: of replaced
    correct         whether label and prediction are equal
    label_probability   next: of the token itself
    original        checked: the original entry, where it was replaced
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Token:
    """What the template draws of a token."""

    text: str
    kind: str = "plain"  # right or wrong, special, or plain
    hover: str = ""  # what is shown where one points at it
    replaced: str | None = None  # the entry that it replaces, struck through before it; None for none
    share: str = ""  # a percentage beside it
    joined: bool = False


def view_samples(samples: Sequence[Row]) -> dict[str, Any]:
    """The values of the template `samples.html`."""
    texts = [sample for sample in samples if "text" in sample]
    answers = [sample for sample in samples if "text" not in sample]
    fields = list(dict.fromkeys(name for sample in answers for name in sample.get("input", {})))
    return {
        "notes": sorted({str(token.get("kind")) for sample in texts for token in sample["text"]}),
        "texts": [(sample.get("title", ""), [_token(token) for token in sample["text"]]) for sample in texts],
        "head": [*fields, "label", "prediction"],
        "has_probability": any(sample.get("probability") is not None for sample in answers),
        "answers": [_answer(sample, fields) for sample in answers],
    }


def _token(token: Row) -> _Token:
    joined = bool(token.get("joined"))
    kind = str(token.get("kind"))
    if kind == "special":
        return _Token(str(token.get("token", "")), kind, joined=joined)
    return _Token(**_PREDICTED.get(kind, _plain)(token), joined=joined)


def _plain(token: Row) -> dict[str, Any]:
    return {"text": _bare(token, "token")}


def _masked(token: Row) -> dict[str, Any]:
    hover = f"input {token.get('token') or ''} · original {_whole(token, 'label')}"
    hover += f" · predicted {_whole(token, 'prediction')}{_chance(token, ' with probability ')}"
    label, prediction = _bare(token, "label"), _bare(token, "prediction")
    if token.get("correct"):
        return {"text": label, "kind": "right", "hover": hover, "share": _share(token)}
    if label == prediction:  # they differ in their marks alone
        label, prediction = str(token.get("label") or ""), str(token.get("prediction") or "")
    return {"text": label, "kind": "wrong", "hover": hover, "replaced": prediction, "share": _share(token)}


def _next(token: Row) -> dict[str, Any]:
    hover = f"expected {_whole(token, 'prediction')}{_chance(token, ' with probability ')}"
    if token.get("correct"):
        return {"text": _bare(token, "label"), "kind": "right", "hover": hover}
    hover += f" · {_whole(token, 'label')} itself{_chance(token, ' with ', 'label_probability')}"
    return {"text": _bare(token, "label"), "hover": hover}


def _checked(token: Row) -> dict[str, Any]:
    verdict = f"{token.get('label') or ''} · the discriminator says {token.get('prediction') or ''}"
    drawn = {"text": _bare(token, "token"), "hover": f"{verdict}: replaced{_chance(token, ' with probability ')}"}
    is_replaced, right = token.get("label") == "replaced", token.get("correct")
    if right and not is_replaced:
        return drawn
    replaced = _bare(token, "original") if is_replaced else None
    return {**drawn, "kind": "right" if right else "wrong", "replaced": replaced, "share": _share(token)}


_PREDICTED: dict[str, Callable[[Row], dict[str, Any]]] = {"masked": _masked, "next": _next, "checked": _checked}
"""What is drawn of a token at which something is predicted, by its kind."""


def _whole(token: Row, name: str) -> str:
    """An entry shown by itself: without BPE's end-of-word mark, which nearly every one has."""
    return str(token.get(name) or "").removesuffix("</w>")


def _bare(token: Row, name: str) -> str:
    """An entry shown in its text: without the mark that says whether it begins or ends a word."""
    return _whole(token, name).removeprefix("##").removeprefix("␣")


def _share(token: Row) -> str:
    probability = token.get("probability")
    return "" if probability is None else f"{probability:.0%}"


def _answer(sample: Row, fields: Sequence[str]) -> dict[str, Any]:
    label, prediction = sample.get("label"), sample.get("prediction")
    correct = sample.get("correct", None if label is None else label == prediction)
    return {
        "input": [sample.get("input", {}).get(name) for name in fields],
        "label": label,
        "prediction": prediction,
        "kind": "" if correct is None else "right" if correct else "wrong",
        "probability": _chance(sample, ""),
    }


def _chance(row: Row, before: str, name: str = "probability") -> str:
    probability = row.get(name)
    return "" if probability is None else f"{before}{probability:.2f}"
