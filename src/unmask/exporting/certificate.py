"""What an exported model answers beside the model that it was made from: the proof that goes with it."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from unmask.inference.predictor import Predictor
from unmask.inference.windows import ExampleSet, encode_windows, run_module
from unmask.io.input_files import DataPath
from unmask.io.progress import Progress
from unmask.tasks.base import ExampleCounts

_TIMED = 64
"""Examples that are timed, one at a time, after one that is not."""


def compare(before: Predictor, after: Predictor, check: DataPath) -> dict[str, Any]:
    """Both models on labelled examples.

    Args:
        before: in fp32.
        check: as for `unmask evaluate`.

    Returns:
        `examples`, `largest_logit_difference`, `metrics` and `latency_ms` (the median of single examples), each
        `before` and `after`, and of the first metric, by which models of the task are compared, `metric` and its
        `loss`, as a share of its range, positive where the exported model is worse.

    Raises:
        InputError: the file cannot be read, or has no labels.
    """
    task, counts = before.task, ExampleCounts()
    scores = task.score(), task.score()
    largest = 0.0
    timed: list[ExampleSet] = []
    with Progress("checking", unit="examples") as progress:
        examples = task.load(check, counts)
        for window in encode_windows(
            task, examples, before.tokenizer, counts, before.num_segments, str(check), before.compute.device
        ):
            outputs = [_outputs(predictor, window) for predictor in (before, after)]
            known = outputs[0].isfinite()  # questions with fewer choices are filled with minus infinity
            largest = max(largest, float((outputs[0] - outputs[1])[known].abs().max()))
            for score, predictor, its in zip(scores, (before, after), outputs, strict=True):
                score.add(window.examples, predictor.task.decode(window.examples, window.encoded, its))
            progress.advance(len(window.examples))
            timed += _single(before, window, _TIMED - len(timed))
    metrics = [score.metrics() for score in scores]
    primary = next(iter(metrics[0]))
    return {
        "examples": scores[0].num_examples,
        "largest_logit_difference": largest,
        "metrics": {"before": metrics[0], "after": metrics[1]},
        "metric": primary,
        "loss": (metrics[0][primary] - metrics[1][primary]) / (100 if task.kind == "qa" else 1),
        "latency_ms": {"before": _latency(before, timed), "after": _latency(after, timed)},
        "tokens_of_a_timed_example": median(len(each.encoded.input_ids) for each in timed),
        "threads": torch.get_num_threads(),
    }


@torch.inference_mode()
def _outputs(predictor: Predictor, window: ExampleSet) -> Tensor:
    return run_module(predictor.task, predictor.module, window.encoded, predictor.compute)


def _single(predictor: Predictor, window: ExampleSet, most: int) -> list[ExampleSet]:
    """Each of the first examples by itself."""
    task, tokenizer, num_segments = predictor.task, predictor.tokenizer, predictor.num_segments
    return [
        ExampleSet([example], task.encode([example], tokenizer, ExampleCounts(), num_segments))
        for example in window.examples[: max(0, most)]
    ]


def _latency(predictor: Predictor, examples: list[ExampleSet]) -> float:
    """The median time of one example, tokenization left out, in milliseconds."""
    _outputs(predictor, examples[0])
    times = []
    for example in examples:
        started = time.perf_counter()
        _outputs(predictor, example)
        times.append(1000 * (time.perf_counter() - started))
    return median(times)


def size_of(directory: Path, pattern: str) -> int:
    """Bytes of the files of a directory that match."""
    return sum(path.stat().st_size for path in directory.glob(pattern))
