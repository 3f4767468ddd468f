"""Running a fine-tuned module over examples: outputs, predictions and losses, some thousands of examples at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import LossTerm
from unmask.errors import ModelError
from unmask.inference.coverage import Coverage
from unmask.io.progress import Advance, not_shown
from unmask.models.hub.uses import NOT_FINITE
from unmask.models.kernels.products import packed_weights
from unmask.tasks.base import Example, ExampleCounts, Prediction, Score, Task, TaskModule
from unmask.tasks.encoded import BATCH_TOKENS, EncodedExamples
from unmask.tokenization.opening import Tokenizer
from unmask.training.device import Compute

MOST_EXAMPLES = 4096
"""How many examples are read, sorted by length and put back in order at once; fewer where each has many outputs."""
STREAMED = 512
"""The most on the CPU where somebody waits for answers: they come after as many inputs."""
MOST_CHARACTERS = 2**22
"""A set ends here too, since texts are tokenized whole before they are cut: this much takes seconds and some 100 MB. It
is a thousand characters of each of the most examples, so that only long texts have smaller sets."""
_MOST_OUTPUTS, _FEWEST_EXAMPLES = 2**20, 16
"""Rough limits of a set: predictions with a probability for each output then take some 60 MB."""
_TOKENS = 100
"""Tokens of an example, roughly, where there is one output per token."""

_CPU = torch.device("cpu")

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ExampleSet:
    """Some examples, and their encoding."""

    examples: Sequence[Example]
    encoded: EncodedExamples


@dataclass
class Losses:
    """Running sums and counts of loss terms."""

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    coefficients: dict[str, float] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """The sum over terms of coefficient x mean."""
        return sum(self.coefficients[name] * total / max(1, self.counts[name]) for name, total in self.totals.items())


def in_sets(
    items: Iterable[Item], size: int = MOST_EXAMPLES, length: Callable[[Item], int] = lambda _: 0
) -> Iterator[list[Item]]:
    """Cuts a stream into lists of `size`, the last one shorter; one that has `MOST_CHARACTERS`, which `length` counts,
    ends there."""
    part: list[Item] = []
    characters = 0
    for item in items:
        part.append(item)
        characters += length(item)
        if len(part) == size or characters >= MOST_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def characters_of(example: Example) -> int:
    """Of all its texts."""
    return sum(map(len, example.texts))


def map_ahead(function: Callable[[Item], Made], items: Iterable[Item], device: torch.device) -> Iterator[Made]:
    """`function` of each item; with a GPU, computed in a thread while the result before it is used.

    The items themselves are always read in the caller's thread, where an open database or file may have to be used.
    """
    if device.type != "cuda":  # the CPU's threads are busy computing
        yield from map(function, items)
        return
    thread = ThreadPoolExecutor(1)
    try:
        coming: Future[Made] | None = None
        for item in items:
            before, coming = coming, thread.submit(function, item)
            if before is not None:
                yield before.result()
        if coming is not None:
            yield coming.result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


def set_size(task: Task[Any]) -> int:
    """How many examples of a task are taken at a time, at most `MOST_EXAMPLES`: fewer where there are many labels."""
    outputs = max(1, len(task.labels)) * (_TOKENS if task.per_token else 1)
    return min(MOST_EXAMPLES, max(_FEWEST_EXAMPLES, _MOST_OUTPUTS // outputs))


def encode_sets(
    task: Task[Any],
    examples: Iterable[Example],
    tokenizer: Tokenizer,
    counts: ExampleCounts,
    num_segments: int,
    name: str = "inputs",
    device: torch.device = _CPU,
    most: int = MOST_EXAMPLES,
) -> Iterator[ExampleSet]:
    """Encodes a stream of examples set by set; warns if the vocabulary does not cover the texts of `name`.

    Args:
        device: computes the sets; while a GPU does, the next one is encoded.
        most: examples of a set, at most.
    """
    coverage = Coverage(tokenizer, name, counts)

    def encode(part: list[Example]) -> ExampleSet:
        encoded = task.encode(part, tokenizer, counts, num_segments)
        coverage.add(encoded.input_ids, encoded.bounds, [text for example in part for text in example.texts])
        return ExampleSet(part, encoded)

    yield from map_ahead(encode, in_sets(examples, min(most, set_size(task)), characters_of), device)
    coverage.note()


def counted_in(number: float, advance: Advance) -> Advance:
    """Shows shares of a set in examples, of which it has `number`."""
    return lambda share: advance(share * number)


def predict_set(task: Task[Any], module: TaskModule, part: ExampleSet, compute: Compute) -> list[Prediction]:
    """One prediction for each example of a set; `module` is in eval mode, on the device."""
    return task.decode(part.examples, part.encoded, run_module(task, module, part.encoded, compute))


@torch.inference_mode()
def run_module(
    task: Task[Any],
    module: TaskModule,
    encoded: EncodedExamples,
    compute: Compute,
    losses: Losses | None = None,
    advance: Advance = not_shown,
) -> Tensor:
    """The outputs for all units or tokens, in order; float32 on the CPU.

    Units may have outputs of different widths, such as questions with more or fewer choices: narrower ones are padded
    with minus infinity.

    Args:
        module: in eval mode, on the device.
        losses: these are added to it; None computes no loss, and needs no labels.
        advance: called after each batch, with its share of the units.

    Raises:
        ModelError: what the model computes is not finite.
    """
    parts: list[tuple[Any, Tensor]] = []
    terms: list[tuple[LossTerm, int]] = []
    for units, batch in encoded.batches_by_length(BATCH_TOKENS[compute.device.type]):
        counts = {} if losses is None else module.counts(batch)
        batch = batch.to(compute.device)
        with compute.autocast():
            outputs = module.outputs(batch)
            terms += [] if losses is None else [(term, counts[term.name]) for term in module.loss(outputs, batch)]
        parts.append((encoded.token_numbers(units) if task.per_token else units, outputs.float()))
        advance(len(units) / len(encoded))
    for term, count in terms:  # reading a figure waits for the device: not before all work is queued
        assert losses is not None
        losses.totals[term.name] = losses.totals.get(term.name, 0.0) + float(term.total)
        losses.counts[term.name] = losses.counts.get(term.name, 0) + count
        losses.coefficients[term.name] = term.coefficient
    total = len(encoded.input_ids) if task.per_token else len(encoded)
    width = max((part.shape[-1] for _, part in parts if part.dim() > 1), default=0)
    shape = (total, *parts[0][1].shape[1:-1], width) if parts[0][1].dim() > 1 else (total,)
    gathered = torch.empty(shape, dtype=torch.float32)
    for numbers, part in parts:
        missing = width - part.shape[-1] if width else 0
        padded = functional.pad(part, (0, missing), value=float("-inf")) if missing else part
        gathered[torch.from_numpy(numbers)] = padded.cpu()
    largest = gathered.amax(-1) if width else gathered  # minus infinity is in place of a missing choice
    if not largest.isfinite().all():
        raise ModelError(NOT_FINITE)
    return gathered


def measure(
    task: Task[Any], module: TaskModule, sets: Iterable[ExampleSet], compute: Compute, advance: Advance = not_shown
) -> tuple[float, Score[Any]]:
    """Runs a module, in eval mode, over labelled examples.

    Memory does not grow with their number, except for what some scores keep; see `Score`.

    Args:
        advance: called after each batch, with its number of examples, in fractions.

    Returns:
        The loss, and the score.
    """
    losses, score = Losses(), task.score()
    with packed_weights(module):  # as in a model that answers, so that the figures are the same
        for part in sets:
            shown = counted_in(len(part.examples), advance)
            outputs = run_module(task, module, part.encoded, compute, losses, shown)
            score.add(part.examples, task.decide(part.examples, part.encoded, outputs))
    return losses.loss, score
