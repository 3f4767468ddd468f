"""What an exported model answers beside the model that it was made from: the proof that goes with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unmask.batch import Batch
from unmask.errors import InputError
from unmask.inference.coverage import Coverage
from unmask.inference.example_sets import ExampleSet, counted_in
from unmask.inference.features.batches import FeatureModel, InputSet, input_sets
from unmask.inference.features.extraction import read_file
from unmask.inference.features.rows import PLACE
from unmask.inference.onnx_model import HIDDEN
from unmask.inference.predictor import Predictor
from unmask.io.input_files import DataPath
from unmask.io.progress import Progress
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead
from unmask.tasks.base import ExampleCounts, chosen_last
from unmask.tasks.encoded import EncodedExamples

_TIMED = 64
"""Examples that are timed, one at a time, after one that is not."""

_MASKED_EVERY = 7
"""Of the tokens of a text that a masked language model is measured on: about the share that it learns from."""

_BATCH_TOKENS = 1024
"""With logits of a vocabulary of 30,000 for each, twice 125 MB."""


class _Differences:
    """Of each output: the largest difference of the exported model's, and how large the original's are."""

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, name: str, before: Tensor, after: Tensor) -> None:
        """Counts one batch of an output, of the same shape from both models."""
        largest = float((before - after).abs().max())
        self._largest[name] = float(np.maximum(self._largest.get(name, 0.0), largest))  # of NaN it is NaN
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + float(before.norm()) ** 2, count + before.numel()

    def figures(self) -> dict[str, Any]:
        """`largest_difference` and `root_mean_square` by output."""
        sizes = {name: (total / count) ** 0.5 for name, (total, count) in self._sums.items()}
        return {"largest_difference": self._largest, "root_mean_square": sizes}


def read_examples(model: Predictor, check: DataPath) -> list[ExampleSet]:
    """Labelled examples, as for `unmask evaluate`, in sets.

    Raises:
        InputError: the file cannot be read, or has no labels.
    """
    counts = ExampleCounts()
    examples = model.task.load(check, counts)
    return list(model.sets(examples, counts, str(check)))


def read_texts(model: FeatureModel, check: DataPath) -> list[InputSet]:
    """Texts, as for `unmask features`, in sets.

    Raises:
        InputError: the file cannot be read, or has no token.
    """
    coverage = Coverage(model.tokenizer, "texts")
    texts = list(input_sets(model, read_file(model, check), "mean", coverage))
    if not any((each.rows.alignment[PLACE].astype(np.int64) >= 0).any() for each in texts):
        raise InputError(f"{check}: no text with a token: expected texts like those that the model is for")
    coverage.log()
    return texts


def certify_task(before: Predictor, after: Predictor, sets: Sequence[ExampleSet]) -> dict[str, Any]:
    """Both models on labelled examples.

    Args:
        before: in fp32.
        sets: from `read_examples`.

    Returns:
        `examples`, `largest_difference` by output, and the `root_mean_square` of the original's, `metrics` and
        `latency_ms` (the median of single examples), each `before` and `after`, and of the task's first metric, of
        question answering `f1`, `metric` and its `loss`, as a share of its range, positive where the exported model is
        worse.
    """
    task = before.task
    scores = task.score(), task.score()
    differences = _Differences()
    timed: list[ExampleSet] = []
    with Progress("checking", unit="examples") as progress:
        for part in sets:
            advance = counted_in(len(part.examples) / 2, progress.advance)
            outputs = [predictor.outputs(part, advance) for predictor in (before, after)]
            known = outputs[0].isfinite()  # questions with fewer choices are filled with minus infinity
            differences.add("logits", outputs[0][known], outputs[1][known])
            for score, predictor, its in zip(scores, (before, after), outputs, strict=True):
                score.add(part.examples, predictor.task.decide(part.examples, part.encoded, its))
            timed += _single(before, part, _TIMED - len(timed))
    metrics = [score.metrics() for score in scores]
    primary = next(iter(chosen_last(metrics[0])))  # the exported model keeps its threshold
    lost = metrics[0][primary] - metrics[1][primary]
    return {
        "examples": scores[0].num_examples,
        **differences.figures(),
        "metrics": {"before": metrics[0], "after": metrics[1]},
        "metric": primary,
        "loss": (-lost if primary in scores[0].lower_is_better else lost) / (100 if task.kind == "qa" else 1),
        "latency_ms": {
            when: _latency(predictor.outputs, timed) for when, predictor in (("before", before), ("after", after))
        },
        "tokens_of_a_timed_example": median(len(each.encoded.input_ids) for each in timed),
        "threads": torch.get_num_threads(),
    }


@torch.inference_mode()
def compare_texts(
    before: FeatureModel, head: MaskedLMHead | DiscriminatorHead | None, after: FeatureModel, texts: Sequence[InputSet]
) -> dict[str, Any]:
    """A model that is not fine-tuned and its ONNX file on texts; a masked language model on texts with masks.

    Args:
        before: in fp32, on the CPU.
        head: its head, if it has one.
        texts: from `read_texts`.

    Returns:
        As `certify_task`. The metric is of a masked language model `masked_accuracy`, how often the likeliest entry at
        a mask is what was there; of others `cosine`, the mean over tokens of that between hidden states before and
        after.
    """
    encoder: Any = after.encoder
    models = {"before": partial(_outputs_of_texts, before, head), "after": encoder.of_tokens}
    is_masked = isinstance(head, MaskedLMHead)
    differences = _Differences()
    sums, num_counted, num_texts = {"before": 0.0, "after": 0.0}, 0, 0
    timed: list[Batch] = []
    with Progress("checking", unit="texts") as progress:
        for encoded in texts:
            rows, places = encoded.rows, encoded.rows.alignment[PLACE].astype(np.int64)  # -1 at special tokens
            counted = places >= 0
            if is_masked:
                counted = places % _MASKED_EVERY == 0
                rows = _masked(rows, counted, before.tokenizer)
            for units, batch in rows.batches_by_length(_BATCH_TOKENS):
                numbers = rows.token_numbers(units)
                at = torch.from_numpy(counted[numbers])
                found = {when: model(batch) for when, model in models.items()}
                for name, its in found["before"].items():
                    differences.add(name, its, found["after"][name])
                original = torch.from_numpy(encoded.rows.input_ids[numbers]).long()[at]
                for when, its in found.items():
                    if is_masked:
                        scores = (its["logits"][at].argmax(-1) == original).double()
                    else:
                        scores = cosine_similarity(its[HIDDEN][at].double(), found["before"][HIDDEN][at].double())
                    sums[when] += float(scores.sum())
                num_counted += len(original)
            timed += [rows.batch([unit]) for unit in range(min(len(rows), _TIMED - len(timed)))]
            num_texts += len(encoded.inputs)
            progress.advance(len(encoded.inputs))
    metric = "masked_accuracy" if is_masked else "cosine"
    metrics = {when: {metric: total / num_counted} for when, total in sums.items()}
    return {
        "examples": num_texts,
        **differences.figures(),
        "metrics": metrics,
        "metric": metric,
        "loss": metrics["before"][metric] - metrics["after"][metric],
        "latency_ms": {when: _latency(model, timed) for when, model in models.items()},
        "tokens_of_a_timed_example": median(batch.num_tokens for batch in timed),
        "threads": torch.get_num_threads(),
    }


def _masked(rows: EncodedExamples, at: NDArray[np.bool_], tokenizer: Any) -> EncodedExamples:
    return replace(rows, input_ids=np.where(at, tokenizer.mask_id, rows.input_ids).astype(rows.input_ids.dtype))


def _outputs_of_texts(model: FeatureModel, head: Any, batch: Batch) -> dict[str, Tensor]:
    encoder: Any = model.encoder
    hidden = encoder(batch)
    if head is None:
        return {HIDDEN: hidden}
    return {
        "logits": head(hidden, encoder.word_embeddings) if isinstance(head, MaskedLMHead) else head(hidden),
        HIDDEN: hidden,
    }


def _single(predictor: Predictor, part: ExampleSet, most: int) -> list[ExampleSet]:
    """Each of the first examples by itself."""
    examples = part.examples[: max(0, most)]
    return [ExampleSet([example], predictor.encode([example], ExampleCounts())) for example in examples]


def _latency(answer: Callable[[Any], object], examples: Sequence[Any]) -> float:
    """The median time of one example, tokenization left out, in milliseconds."""
    answer(examples[0])
    times = []
    with Progress("timing", unit="examples") as progress:
        for example in examples:
            started = time.perf_counter()
            answer(example)
            times.append(1000 * (time.perf_counter() - started))
            progress.advance(1)
    return median(times)
