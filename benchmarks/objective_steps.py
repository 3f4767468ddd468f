"""Claim: beside a step of plain masked language modelling, span masking takes at most 3 % more time, next-sentence
prediction at most 2 % more at equal tokens, and replaced-token detection at most 1.6 times as much.

Each system takes its steps in a process of its own, masking, forward, backward, clipping and AdamW included, as in
`unmask pretrain`: BERT-Mini's size (L=4 H=256), 32 sequences of 128 tokens of the sample books, dropout as published.
The peer is our own plain masked LM on the same batches, in alternation. ELECTRA is measured with embeddings of 128 and
a generator of a quarter of the width, as in ELECTRA-Small, and with embeddings of full width.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from measure import SAMPLE_TEXT, Row, full_sequences, in_own_process, interleave, machine, num_cores, parser, report

if TYPE_CHECKING:
    from unmask.batch import Batch

LENGTH, BATCH_SIZE, NUM_BATCHES, SEED = 128, 32, 4, 0
VOCAB_SIZE = 8192
PLAIN = "masked LM"


@dataclass(frozen=True)
class System:
    """What is measured.

    Attributes:
        objective, model, packing: settings of a recipe.
        most: the largest claimed ratio of its time to that of plain masked LM; None claims nothing.
    """

    objective: dict[str, Any]
    model: dict[str, Any]
    packing: dict[str, Any]
    most: float | None


_SINGLE = {"format": "single_segment"}
_PAIRS = {"format": "segment_pair", "short_sequence_prob": 0}
_NO_SENTENCES = {"sentence_objective": "none"}

SYSTEMS = {
    PLAIN: System(_NO_SENTENCES, {}, _SINGLE, None),
    "masked LM, pairs": System(_NO_SENTENCES, {}, _PAIRS, None),
    "whole words": System(_NO_SENTENCES | {"masking": "whole_word"}, {}, _SINGLE, None),
    "spans": System(_NO_SENTENCES | {"masking": "span"}, {}, _SINGLE, 1.03),
    "spans and boundaries": System(_NO_SENTENCES | {"masking": "span", "span_boundary": True}, {}, _SINGLE, None),
    "next sentence": System({"sentence_objective": "nsp"}, {}, _PAIRS, 1.02),
    "replaced tokens, 128": System(
        {"name": "replaced_token"}, {"architecture": "electra", "embedding_size": 128}, _SINGLE, 1.6
    ),
    "replaced tokens, 256": System(
        {"name": "replaced_token"}, {"architecture": "electra", "embedding_size": 256}, _SINGLE, 1.6
    ),
    "left to right": System({"name": "causal_lm"}, {"architecture": "gpt1"}, _SINGLE, None),
}
BESIDE = {"next sentence": "masked LM, pairs"}
"""What a system is compared with if not with `PLAIN`: the same batches without its second objective."""


def make_store(directory: Path) -> None:
    from unmask import TokenizerSettings, prepare, train_tokenizer

    train_tokenizer([SAMPLE_TEXT], directory / "tokenizer", TokenizerSettings(vocab_size=VOCAB_SIZE))
    prepare([SAMPLE_TEXT], directory / "tokenizer", directory / "store")


def full_batches(directory: Path, system: System) -> list[Batch]:
    """Batches of sequences that all have `LENGTH` tokens, not masked yet."""
    from unmask import TokenStore, load_tokenizer
    from unmask.packing.formats import open_planner
    from unmask.packing.sequences import pack_sequences
    from unmask.packing.settings import LABEL_COLUMNS, PackingSettings
    from unmask.packing.split import Split
    from unmask.packing.templates import SequenceTemplate

    store = TokenStore(directory / "store")
    tokenizer = load_tokenizer(store.tokenizer_directory)
    sentences = system.objective.get("sentence_objective", "none")
    template = SequenceTemplate(tokenizer.template, tokenizer.sep_id)
    settings = PackingSettings(max_length=LENGTH, **system.packing)
    split = Split(store, held_out=0, is_held_out=False)
    planner = open_planner(split, settings, sentences, template, SEED)
    labels = None if sentences == "none" else LABEL_COLUMNS[sentences]
    longest = template.capacity(LENGTH, num_segments=2 if settings.format == "segment_pair" else 1)

    sequences = full_sequences(planner, longest)
    return [pack_sequences(list(islice(sequences, BATCH_SIZE)), store, template, labels) for _ in range(NUM_BATCHES)]


def build(directory: Path, name: str, threads: int) -> Callable[[int], float]:
    """A function that takes a number of steps with the real loop and returns their median seconds."""
    import torch
    from pydantic import TypeAdapter

    from unmask import load_tokenizer
    from unmask.batch import StepBatches
    from unmask.models.encoder import new_encoder
    from unmask.models.settings import ModelSettings
    from unmask.objectives.table import AnyObjective, new_objective
    from unmask.packing.loader import Position
    from unmask.training.device import choose_compute, keep_freed_memory
    from unmask.training.loop import Hooks, train
    from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
    from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
    from unmask.training.state import StepResult, TrainState
    from unmask.training.stepping.eager import EagerStepper
    from unmask.training.steps import Learner

    torch.set_num_threads(threads)
    keep_freed_memory()  # as in every run on the CPU
    torch.manual_seed(SEED)
    system = SYSTEMS[name]
    settings = TypeAdapter(AnyObjective).validate_python(system.objective)
    vocabulary = load_tokenizer(directory / "store" / "tokenizer").vocabulary
    objective = new_objective(settings, vocabulary)
    sizes = ModelSettings(preset="mini", **system.model).resolve(vocabulary.size)
    module = objective.build(new_encoder(sizes, pooler=objective.needs_pooler))
    assert isinstance(module, torch.nn.Module)
    optimizer = build_optimizer(module, OptimizerSettings())
    compute = choose_compute("cpu", "fp32")
    schedule = Schedule(ScheduleSettings(name="constant"))
    steps = (StepBatches([batch], Position(), epochs=0.0) for batch in cycle(full_batches(directory, system)))
    state = TrainState()

    def take_steps(number: int) -> float:
        seconds: list[float] = []
        before = state.seconds

        def on_step(state: TrainState, result: StepResult) -> None:
            nonlocal before
            seconds.append(state.seconds - before)
            before = state.seconds

        budget = TrainSettings(steps=state.step + number, batch_size=BATCH_SIZE)
        train(
            Learner(module, objective.counts, objective.prepare),
            steps,
            ScheduledOptimizer(optimizer, schedule),
            EagerStepper(module, optimizer, budget.max_grad_norm, compute),
            budget,
            state,
            Hooks(on_step),
        )
        return median(seconds)

    return take_steps


def row(name: str, figures: dict[str, list[float]]) -> Row:
    """A system's time beside that of the system that it is compared with."""
    ours, theirs = figures[name], figures[BESIDE.get(name, PLAIN)]
    most = SYSTEMS[name].most
    ratios = [our / its for our, its in zip(ours, theirs, strict=True)]
    took = median(ours) / median(theirs)
    return Row(
        f"a step of {name}",
        ours=median(ours),
        peer=f"ours, {BESIDE.get(name, PLAIN)}",
        peer_figure=median(theirs),
        unit="s",
        ratio=took,
        spread=(min(ratios), max(ratios)),
        target="" if most is None else f"at most {most:.2f}x the time",
        met=None if most is None else took <= most,
    )


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--steps", type=int, default=6, help="in a round, whose median counts")
    words.add_argument("--threads", type=int, default=num_cores())
    words.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    given = words.parse_args()
    wanted = [name for name in SYSTEMS if name in given.systems or name in (PLAIN, *map(BESIDE.get, given.systems))]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        make_store(Path(folder))
        takers = {
            name: stack.enter_context(in_own_process(build, Path(folder), name, given.threads)) for name in wanted
        }
        for name, take in takers.items():
            print(f"{name}: {take(2):.3f} s a step while it warms up", file=sys.stderr)
        figures = interleave({name: partial(take, given.steps) for name, take in takers.items()}, given.rounds)
    notes = [
        f"BERT-Mini's size, {BATCH_SIZE} x {LENGTH} tokens, vocabulary {VOCAB_SIZE}, fp32, {given.rounds} rounds of "
        f"{given.steps} steps; the ratio is of times: below 1 is faster than the peer"
    ]
    rows = [row(name, figures) for name in wanted if name != PLAIN]
    report("A step of each objective beside plain masked LM", rows, machine(given.threads), notes, given.json)


if __name__ == "__main__":
    main()
