"""Encoders and examples for each kind of task, and how `transformers` and we compute the same for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    ElectraConfig,
    RobertaConfig,
)

from support.sizes import sizes_of
from unmask.inference.example_sets import run_module
from unmask.inference.predictor import Predictor, load_predictor
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Logits are of order 1, so this is some 100 roundings of fp32 (6e-8 each); measured are at most 8e-7. A weight that is
off by a thousandth of its scale is over it (`test_family_parity`)."""

SIZES = sizes_of(width=32, layers=2, heads=2, inner=64, positions=50, std=0.2)
FAMILIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    # configuration, what differs from the sizes, preset of the tokenizer
    "bert": (BertConfig, {}, "bert"),
    "roberta": (RobertaConfig, {"type_vocab_size": 1, "layer_norm_eps": 1e-5}, "roberta"),
    "electra": (ElectraConfig, {"embedding_size": 20}, "bert"),
}

PEOPLE, PLACES = ("Ada Lovelace", "Grace Hopper", "Émilie du Châtelet"), ("London", "New York", "서울", "Bath")
TEXTS = [f"{PEOPLE[n % 3]} wrote {'a dull' if n % 2 else 'a warm'} paper in {PLACES[n % 4]}" for n in range(12)]
WINDOW, STRIDE = 24, 6
"""Tokens of a question with a window of its passage, and from one window's beginning to the next one's."""
QUESTION = "Where did they write it?"
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def tags_of(text: str) -> list[str]:
    tags, inside = [], ""
    for word in text.split():
        kind = next(
            (kind for kind, names in (("PER", PEOPLE), ("LOC", PLACES)) for n in names if word in n.split()), ""
        )
        tags.append(f"{'I' if kind == inside else 'B'}-{kind}" if kind else "O")
        inside = kind
    return tags


def question(text: str, number: int) -> dict[str, Any]:
    """About a passage of several windows."""
    place, context = PLACES[number % 4], f"{text}." + " It was read in many towns." * (number % 3)
    answers = {"text": [place], "answer_start": [context.index(place)]}
    return {"id": str(number), "question": QUESTION, "context": context, "answers": answers}


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
        recipe: of `finetune/`.
        model: the class of `transformers`.
        rows: examples.
        settings: of the task.
        config: what `transformers` is told to make such a model.
    """

    recipe: str
    model: Any
    rows: list[dict[str, Any]]
    settings: tuple[str, ...] = ("task.max_length=40",)
    config: dict[str, Any] | None = None


def labelled(*labels: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}


KINDS: dict[str, Kind] = {
    "classification": Kind(
        "classification",
        AutoModelForSequenceClassification,
        [{"text": text, "label": ("좋음", "bad")[n % 2]} for n, text in enumerate(TEXTS)],
        config=labelled("bad", "좋음"),
    ),
    "pairs": Kind(
        "classification",
        AutoModelForSequenceClassification,
        [{"text_a": text, "text_b": TEXTS[n * 5 % 12], "label": "xyz"[n % 3]} for n, text in enumerate(TEXTS)],
        config=labelled("x", "y", "z"),
    ),
    "multi-label": Kind(
        "multi_label",
        AutoModelForSequenceClassification,
        [{"text": text, "label": ["a", "b", "c"][: n % 4]} for n, text in enumerate(TEXTS)],
        config={**labelled("a", "b", "c"), "problem_type": "multi_label_classification"},
    ),
    "regression": Kind(
        "regression",
        AutoModelForSequenceClassification,
        [{"text_a": text, "text_b": TEXTS[n * 5 % 12], "label": n / 4} for n, text in enumerate(TEXTS)],
        config={"num_labels": 1, "problem_type": "regression"},
    ),
    "qa": Kind(
        "qa",
        AutoModelForQuestionAnswering,
        [question(text, number) for number, text in enumerate(TEXTS)],
        (f"task.max_length={WINDOW}", f"task.doc_stride={STRIDE}"),
    ),
    "choice": Kind(
        "choice",
        AutoModelForMultipleChoice,
        [{"context": text, "choices": [*PLACES], "label": n % 4} for n, text in enumerate(TEXTS)],
    ),
    "tagging": Kind(
        "tagging",
        AutoModelForTokenClassification,
        [{"tokens": text.split(), "tags": tags_of(text)} for text in TEXTS],
        config=labelled(*TAGS),
    ),
}


def load_whole(kind: Kind, directory: Path) -> Any:
    """The model, in eval mode; nothing of it is missing or left over."""
    opened, info = kind.model.from_pretrained(directory, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return opened.eval()


def batch_of(name: str, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """All rows, padded by the tokenizer; windows of questions begin where ours do."""
    padded = {"padding": True, "return_tensors": "pt"}
    if name == "tagging":
        batch = tokenizer([" ".join(row["tokens"]) for row in rows], **padded)
    elif name in ("pairs", "regression"):
        batch = tokenizer([row["text_a"] for row in rows], [row["text_b"] for row in rows], **padded)
    elif name == "choice":
        pairs = [(row["context"], choice) for row in rows for choice in row["choices"]]
        batch = tokenizer(*map(list, zip(*pairs, strict=True)), **padded)
    elif name == "qa":
        room = WINDOW - len(tokenizer.tokenize(QUESTION)) - tokenizer.num_special_tokens_to_add(pair=True)
        batch = tokenizer([row["question"] for row in rows], [row["context"] for row in rows], **padded,
                          truncation="only_second", max_length=WINDOW, stride=room - STRIDE,
                          return_overflowing_tokens=True)  # fmt: skip
        assert len(batch["input_ids"]) > len(rows) + 8
        batch.pop("overflow_to_sample_mapping")
    else:
        batch = tokenizer([row["text"] for row in rows], **padded)
    return dict(batch)


@torch.inference_mode()
def outputs_of(name: str, model: Any, batch: dict[str, Tensor]) -> Tensor:
    """In the shape of our modules' outputs."""
    if name == "choice":
        grouped = {key: value.view(-1, len(PLACES), value.shape[-1]) for key, value in batch.items()}
        return model(**grouped).logits
    outputs = model(**batch)
    mask = batch["attention_mask"].bool()
    if name == "qa":
        return torch.stack([outputs.start_logits[mask], outputs.end_logits[mask]], -1)
    return (
        outputs.logits[mask]
        if name == "tagging"
        else outputs.logits.squeeze(-1)
        if name == "regression"
        else outputs.logits
    )


@torch.inference_mode()
def our_outputs(predictor: Predictor, rows: list[dict[str, Any]]) -> tuple[EncodedExamples, Tensor]:
    task = predictor.task
    examples = [task.read(Row(row, f"row {number}")) for number, row in enumerate(rows)]
    encoded = task.encode(examples, predictor.tokenizer, ExampleCounts(), predictor.num_segments)
    return encoded, run_module(task, predictor.module, encoded, predictor.compute)


def assert_equal(name: str, directory: Path, model: Any) -> None:
    """The same tokens, and the same logits for them."""
    kind, predictor = KINDS[name], load_predictor(directory, device="cpu")
    batch = batch_of(name, AutoTokenizer.from_pretrained(directory), kind.rows)
    encoded, ours = our_outputs(predictor, kind.rows)
    assert encoded.input_ids.tolist() == batch["input_ids"][batch["attention_mask"].bool()].tolist()
    theirs = outputs_of(name, model, batch)
    assert ours.squeeze(-1).shape == theirs.shape if name == "regression" else ours.shape == theirs.shape
    assert float(theirs.std()) > 0.05  # nothing that would be equal whatever the weights
    torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=0, atol=TOLERANCE)
