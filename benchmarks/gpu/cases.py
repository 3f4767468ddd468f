"""What the two sides of `run.py` share: cases and their measurements, text and weights, batches, timed rounds, and a
process with a deadline for each measurement.

A side has the whole device to itself, so sides run one after another, each in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from measure import SAMPLE_TEXT, full_sequences

if TYPE_CHECKING:
    from unmask.batch import Batch
    from unmask.models.settings import EncoderSettings
    from unmask.objectives.base import Objective
    from unmask.packing.loader import SequenceLoader

VOCAB_SIZE = 30522
"""BERT's, for every model. The tokenizer of the samples has fewer entries; higher ids never occur in the text."""
SEED = 0
NUM_BATCHES = 4
"""How many batches timed steps cycle through."""
WARM_STEPS = 4


@dataclass(frozen=True)
class System:
    """An objective: its settings, those of the model that replace the preset's, and the format of its sequences."""

    objective: dict[str, Any]
    model: dict[str, Any]
    format: str


SYSTEMS = {
    "mlm+nsp": System({"sentence_objective": "nsp"}, {}, "segment_pair"),
    "mlm": System({"sentence_objective": "none"}, {}, "single_segment"),
    "span": System({"sentence_objective": "none", "masking": "span", "span_boundary": True}, {}, "single_segment"),
    "rtd": System({"name": "replaced_token", "generator_size": 1 / 3}, {"architecture": "electra"}, "single_segment"),
    "causal": System({"name": "causal_lm"}, {"architecture": "gpt1"}, "single_segment"),
}
"""RTD has ELECTRA-Base's generator, a third as wide as the model; spans are SpanBERT's, with the boundary objective."""


@dataclass(frozen=True)
class Case:
    """A training step to be measured.

    Attributes:
        folder: the working folder, with `store/` and `weights-PRESET/`.
        preset: the model's size.
        length: the most tokens of a sequence.
        tokens: real tokens in a step, about.
        rows: `full` (every sequence has `length` tokens), `pairs` (BERT's segment pairs, one in ten short) or `glue`
            (the lengths of MRPC and SST-2 by turns).
        objective: a key of `SYSTEMS`.
        dropout_prob: everywhere, in attention too.
        device: `cpu` or `cuda`.
        seconds: to spend on timed steps, about.
        rounds: how many rounds the timed steps are divided into.
    """

    folder: Path
    preset: str
    length: int
    tokens: int
    rows: str = "full"
    objective: str = "mlm+nsp"
    dropout_prob: float = 0.1
    device: str = "cuda"
    seconds: float = 5.0
    rounds: int = 5

    @property
    def name(self) -> str:
        dropout = f"dropout {self.dropout_prob:g}" if self.dropout_prob else "no dropout"
        rows = {"full": f"@{self.length}", "pairs": f"segment pairs @{self.length}", "glue": "GLUE's lengths"}[
            self.rows
        ]
        return f"{self.preset} {self.objective} {rows}, {dropout}"


@dataclass(frozen=True)
class Taken:
    """What was measured on one side.

    Attributes:
        seconds: of a step, one entry per round.
        tokens: real tokens in a step, the mean of the batches.
        flops: necessary work of a step, the mean of the batches; 0 if a side leaves counting to the other.
        memory: most bytes allocated and reserved; None on the CPU, and if losses were computed in fp32.
        losses: of the first batch at the start without dropout, by precision; empty with dropout.
        gradient_norm: of the first step; None with dropout.
        recompilations, new_captures: graphs compiled, and shapes of batches captured, after the warm-up.
        loader_share: the loader's share of a step if it makes batches as they are needed; None if not measured.
        micro_batches: how many a step had to be cut into to fit.
        notes: messages, such as which path was chosen and why.
    """

    seconds: list[float]
    tokens: float
    flops: float = 0.0
    memory: tuple[int, int] | None = None
    losses: dict[str, float] = field(default_factory=dict)
    gradient_norm: float | None = None
    recompilations: int = 0
    new_captures: int = 0
    loader_share: float | None = None
    micro_batches: int = 1
    notes: tuple[str, ...] = ()


def encoder_sizes(case: Case) -> EncoderSettings:
    from unmask.models.settings import ModelSettings

    dropout = {"hidden_dropout_prob": case.dropout_prob, "attention_probs_dropout_prob": case.dropout_prob}
    model: dict[str, Any] = {"preset": case.preset, **SYSTEMS[case.objective].model, **dropout}
    return ModelSettings(**model).resolve(VOCAB_SIZE)


def make_objective(case: Case) -> Objective:
    from pydantic import TypeAdapter

    from unmask import load_tokenizer
    from unmask.objectives.table import AnyObjective, new_objective

    settings: Any = TypeAdapter(AnyObjective).validate_python(SYSTEMS[case.objective].objective)
    return new_objective(settings, load_tokenizer(case.folder / "store" / "tokenizer").vocabulary)


def build_module(case: Case) -> Any:
    """The objective's module with the weights that `SEED` draws, which do not depend on dropout."""
    import torch

    from unmask.models.encoder import new_encoder

    objective = make_objective(case)
    torch.manual_seed(SEED)
    return objective.build(new_encoder(encoder_sizes(case), pooler=objective.needs_pooler))


def make_store(folder: Path) -> None:
    """Tokenizes the sample text into `folder/store`, unless that exists."""
    from unmask import TokenizerSettings, prepare, train_tokenizer

    if not (folder / "store" / "manifest.json").exists():
        train_tokenizer([SAMPLE_TEXT], folder / "tokenizer", TokenizerSettings(vocab_size=VOCAB_SIZE), overwrite=True)
        prepare([SAMPLE_TEXT], folder / "tokenizer", folder / "store", overwrite=True)


def make_weights(case: Case) -> Path:
    """Saves the weights that both sides start from, unless they exist, with the tokenizer beside them."""
    import shutil

    from unmask import save_model

    directory = case.folder / f"weights-{case.preset}"
    if not (directory / "model.safetensors").exists():
        module = build_module(case)
        shutil.copytree(case.folder / "store" / "tokenizer", directory, dirs_exist_ok=True)
        saved = module.saved()[""]
        save_model(directory, saved.encoder, saved.heads)
    return directory


def open_case_loader(case: Case, batch_size: int) -> SequenceLoader:
    """The loader of `unmask pretrain` over the store."""
    from unmask import TokenStore, load_tokenizer
    from unmask.packing.formats import open_planner
    from unmask.packing.loader import SequenceLoader
    from unmask.packing.settings import LABEL_COLUMNS, PackingSettings
    from unmask.packing.split import Split
    from unmask.packing.templates import SequenceTemplate

    system = SYSTEMS[case.objective]
    store = TokenStore(case.folder / "store")
    tokenizer = load_tokenizer(store.tokenizer_directory)
    short = {"short_sequence_prob": 0.1 if case.rows == "pairs" else 0.0}
    packing: Any = PackingSettings(format=system.format, max_length=case.length, **short)
    template = SequenceTemplate(tokenizer.template, tokenizer.sep_id)
    sentences: Any = system.objective.get("sentence_objective", "none")
    planner = open_planner(Split(store, 0, is_held_out=False), packing, sentences, template, SEED)
    label = None if sentences == "none" else LABEL_COLUMNS[sentences]
    return SequenceLoader(planner, template, batch_size, batch_size, label_column=label)


def make_batches(case: Case) -> list[Batch]:
    """`NUM_BATCHES` batches of about `case.tokens` real tokens, not masked yet."""
    if case.rows == "glue":
        return list(islice(_glue_batches(case), NUM_BATCHES))
    if case.rows == "pairs":
        return [step.batches[0] for step in islice(live_loader(case).steps(), NUM_BATCHES)]
    from unmask.packing.sequences import pack_sequences

    loader = open_case_loader(case, batch_size=case.tokens // case.length)
    num_segments = 2 if SYSTEMS[case.objective].format == "segment_pair" else 1
    sequences = full_sequences(loader.planner, loader.template.capacity(case.length, num_segments))
    store = loader.planner.split.store
    return [
        pack_sequences(list(islice(sequences, loader.batch_size)), store, loader.template, loader.label_column)
        for _ in range(NUM_BATCHES)
    ]


def live_loader(case: Case) -> SequenceLoader:
    """The loader whose steps have about `case.tokens` real tokens."""
    some = open_case_loader(case, batch_size=256)
    lengths = next(some.steps()).batches[0].lengths
    return open_case_loader(case, batch_size=max(2, round(case.tokens / mean(lengths))))


def _glue_batches(case: Case) -> Iterator[Batch]:
    """Running text of the store cut to the lengths of MRPC and SST-2 by turns, framed by [CLS] and [SEP]."""
    import torch

    from gpu.lengths import read_lengths
    from unmask import TokenStore, load_tokenizer
    from unmask.batch import pack

    store = TokenStore(case.folder / "store")
    tokenizer = load_tokenizer(store.tokenizer_directory)
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    text = cycle([token for n in range(store.num_documents) for token in store.document(n).tokens.tolist()])
    lengths = cycle(
        [n for pair in zip(*(read_lengths(task, 2048) for task in ("mrpc", "sst2")), strict=True) for n in pair]
    )
    number = 0
    while True:
        sequences: list[list[int]] = []
        while sum(map(len, sequences)) < case.tokens:
            sequences.append([cls_id, *islice(text, next(lengths) - 2), sep_id])
        batch = pack(sequences, keys=[number + n for n in range(len(sequences))])
        number += len(sequences)
        special = (batch.input_ids == cls_id) | (batch.input_ids == sep_id)
        labels = torch.arange(len(sequences)) % 2
        yield batch.with_columns(special_tokens_mask=special, next_sentence_label=labels)


def timed_rounds(case: Case, take: Callable[[int], object]) -> list[float]:
    """Seconds of a step, one entry per round of about `case.seconds / case.rounds`.

    Args:
        take: takes a given number of steps and waits for the device; it is warm.
    """
    began = time.perf_counter()
    take(1)
    once = time.perf_counter() - began
    steps = max(1, min(100, round(case.seconds / case.rounds / max(once, 1e-4))))
    seconds = []
    for _ in range(case.rounds):
        began = time.perf_counter()
        take(steps)
        seconds.append((time.perf_counter() - began) / steps)
    return seconds


class NotReachedError(Exception):
    """The time of a part was over."""


def in_time(deadline: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns in a fresh process, which is killed at the deadline.

    Args:
        deadline: by `time.monotonic`.
        function: a module-level function; it imports what it needs.

    Raises:
        NotReachedError: the deadline has come.
        RuntimeError: the function failed; holds its traceback.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, arguments))
    try:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotReachedError
        process.start()
        there.close()
        if not here.poll(left):
            raise NotReachedError
        is_answer, answer = here.recv()
        if not is_answer:
            raise RuntimeError(answer)
        process.join(10)
        return answer
    except EOFError:
        raise RuntimeError("the process was killed (out of memory?)") from None
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        here.close()


def _answer(there: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = (True, function(*arguments))
    except Exception:
        answer = (False, traceback.format_exc())
    there.send(answer)
