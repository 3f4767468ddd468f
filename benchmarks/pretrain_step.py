"""Claim: on the CPU a pre-training step of BERT-Small is 2.8 times as fast as with `transformers` in fp32, and in bf16
4 times with AMX, 3 times with AVX512-BF16; one of a ModernBERT of that size 2.5 times; and it computes the same: the
losses of 200 steps stay equal.

A step is 32 sequences of 128 tokens, every one full, from `samples/text`; 15 % targets, masked-LM and next-sentence
loss, dropout 0.1 on both sides, forward, backward, clipping, AdamW. Ours runs in the loop of `unmask pretrain`, drawing
of the masks included; `transformers`' BertForPreTraining (fused attention, its default) is given masked batches, and
the same AdamW (fused, no decay on biases and LayerNorm). Both have the same threads, and autocast in bf16.

With `--architecture modernbert` sequences are of one segment, the loss is the masked-LM loss alone, dropout is off as
in the paper, and the other side is ModernBertForMaskedLM, which computes logits at every token unless
`sparse_prediction` is on in its config.json: it is off by default, as in the released models.

Losses are compared from the same weights on the same batches with dropout off: every step within 1e-4 in fp32, the mean
of the last 50 steps within 0.5 % in bf16. The exit code is 1 if that fails.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal

from measure import (
    SAMPLE_TEXT,
    Row,
    compare,
    full_sequences,
    in_own_process,
    interleave,
    machine,
    num_cores,
    parser,
    report,
)

if TYPE_CHECKING:
    from unmask.batch import Batch
    from unmask.models.settings import EncoderSettings
    from unmask.objectives.masked_lm import MaskedLM, MaskedLMModule

Architecture = Literal["bert", "modernbert"]

VOCAB_SIZE = 30522
LENGTH = 128
SEED = 0
TIMED_BATCHES = 20
"""How many batches the timed steps cycle through."""
TARGETS = {
    "bert": {"fp32": 2.8, "bf16 with AMX": 4.0, "bf16 with AVX512-BF16": 3.0},
    "modernbert": {"fp32": 2.5, "bf16 with AMX": 2.5, "bf16 with AVX512-BF16": 2.5},
}
DROPOUT = {"bert": 0.1, "modernbert": 0.0}
LAST_STEPS = 50
LARGEST_DIFFERENCE = {"fp32": 1e-4, "bf16": 5e-3}
"""Of a step's loss in fp32, where only the order of sums differs; of the mean over `LAST_STEPS` in bf16, which keeps
eight bits and rounds in different places."""


@dataclass(frozen=True)
class Setup:
    """What both sides are built from.

    Attributes:
        architecture: of the encoder.
        directory: with `store/`, the tokenized samples, and `model/`, the weights that both start from.
        precision: `fp32` or `bf16`.
        dropout_prob: everywhere.
        batch_size: sequences in a step.
        num_batches: how many different batches steps cycle through.
        threads: of PyTorch.
    """

    architecture: Architecture
    directory: Path
    precision: str
    dropout_prob: float
    batch_size: int
    num_batches: int
    threads: int


@dataclass(frozen=True)
class Step:
    """One step taken."""

    seconds: float
    loss: float


def make_text_and_weights(architecture: Architecture, directory: Path) -> None:
    """Tokenizes the sample text, and saves the weights that both sides start from."""
    from unmask import TokenizerSettings, prepare, save_model, train_tokenizer

    train_tokenizer([SAMPLE_TEXT], directory / "tokenizer", TokenizerSettings(vocab_size=VOCAB_SIZE))
    prepare([SAMPLE_TEXT], directory / "tokenizer", directory / "store")
    module = build_module(architecture, make_objective(architecture, directory), DROPOUT[architecture])
    saved = module.saved()[""]
    save_model(directory / "model", saved.encoder, saved.heads)


def make_objective(architecture: Architecture, directory: Path) -> MaskedLM:
    from unmask import load_tokenizer
    from unmask.objectives.masked_lm import MaskedLM
    from unmask.objectives.settings import MaskedLMSettings

    settings = MaskedLMSettings(sentence_objective="nsp" if architecture == "bert" else "none")
    return MaskedLM(settings, load_tokenizer(directory / "store" / "tokenizer").vocabulary)


def encoder_sizes(architecture: Architecture, dropout_prob: float) -> EncoderSettings:
    """BERT-Small's layers, width and heads."""
    from unmask.models.settings import ModelSettings

    model = ModelSettings(
        architecture=architecture,
        preset="small",
        num_hidden_layers=4,
        hidden_dropout_prob=dropout_prob,
        attention_probs_dropout_prob=dropout_prob,
    )
    return model.resolve(VOCAB_SIZE)


def build_module(architecture: Architecture, objective: MaskedLM, dropout_prob: float) -> MaskedLMModule:
    """The module with the weights that `SEED` draws, which do not depend on dropout."""
    import torch

    from unmask.models.encoder import new_encoder

    torch.manual_seed(SEED)
    return objective.build(new_encoder(encoder_sizes(architecture, dropout_prob)))


def full_batches(setup: Setup) -> list[Batch]:
    """Batches as `unmask pretrain` makes them, but only of pairs, or for a ModernBERT of segments, that fill a whole
    sequence; not masked yet."""
    from unmask import TokenStore, load_tokenizer
    from unmask.packing.formats import open_planner
    from unmask.packing.sequences import pack_sequences
    from unmask.packing.settings import PackingSettings
    from unmask.packing.split import Split
    from unmask.packing.templates import SequenceTemplate

    store = TokenStore(setup.directory / "store")
    tokenizer = load_tokenizer(store.tokenizer_directory)
    of_pairs = setup.architecture == "bert"
    format_ = "segment_pair" if of_pairs else "single_segment"
    settings = PackingSettings(format=format_, max_length=LENGTH, short_sequence_prob=0)
    split, template = Split(store, held_out=0, is_held_out=False), SequenceTemplate(tokenizer.template)
    objective = "nsp" if of_pairs else "none"
    planner = open_planner(split, settings, objective, template, SEED)
    sequences = full_sequences(planner, template.capacity(LENGTH, num_segments=2 if of_pairs else 1))
    label = "next_sentence_label" if of_pairs else None
    return [
        pack_sequences(list(islice(sequences, setup.batch_size)), store, template, label)
        for _ in range(setup.num_batches)
    ]


def build_ours(setup: Setup) -> Callable[[int], list[Step]]:
    """Our side: a function that takes a number of steps with the real loop."""
    import torch

    from unmask.batch import StepBatches
    from unmask.packing.loader import Position
    from unmask.training.device import choose_compute, keep_freed_memory
    from unmask.training.loop import Hooks, train
    from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
    from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
    from unmask.training.state import StepResult, TrainState
    from unmask.training.stepping.eager import EagerStepper
    from unmask.training.steps import Learner

    torch.set_num_threads(setup.threads)
    keep_freed_memory()  # as in every run on the CPU
    objective = make_objective(setup.architecture, setup.directory)
    module = build_module(setup.architecture, objective, setup.dropout_prob)
    optimizer = build_optimizer(module, OptimizerSettings())
    compute = choose_compute("cpu", setup.precision)
    schedule = Schedule(ScheduleSettings(name="constant"))
    steps = (StepBatches([batch], Position(), epochs=0.0) for batch in cycle(full_batches(setup)))
    state = TrainState()

    def take_steps(number: int) -> list[Step]:
        taken: list[Step] = []
        seconds_before = state.seconds

        def on_step(state: TrainState, result: StepResult) -> None:
            nonlocal seconds_before
            taken.append(Step(state.seconds - seconds_before, sum(state.take_means().values())))
            seconds_before = state.seconds

        settings = TrainSettings(steps=state.step + number, batch_size=setup.batch_size)
        train(
            Learner(module, objective.counts, objective.prepare),
            steps,
            ScheduledOptimizer(optimizer, schedule),
            EagerStepper(module, optimizer, settings.max_grad_norm, compute),
            settings,
            state,
            Hooks(on_step),
        )
        return taken

    return take_steps


def build_theirs(setup: Setup) -> Callable[[int], list[Step]]:
    """The same steps by `transformers`, on batches masked beforehand."""
    import torch
    from transformers import BertForPreTraining, ModernBertForMaskedLM

    from unmask.training.settings import OptimizerSettings, TrainSettings

    torch.set_num_threads(setup.threads)
    objective = make_objective(setup.architecture, setup.directory)
    if setup.architecture == "bert":
        drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), setup.dropout_prob)
        peer_class: Any = BertForPreTraining
    else:
        drops = dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), setup.dropout_prob)
        peer_class = ModernBertForMaskedLM
    model = peer_class.from_pretrained(setup.directory / "model", attn_implementation="sdpa", **drops)
    model.train()
    optimizer = _adamw(model, OptimizerSettings())
    max_norm = TrainSettings(steps=1).max_grad_norm
    assert max_norm is not None, "our default clips"

    def unpacked(batch: Batch) -> dict[str, Any]:
        columns = {"input_ids": batch.input_ids, "labels": batch.columns["labels"]}
        of_sequences = {}
        if setup.architecture == "bert":
            columns["token_type_ids"] = batch.token_type_ids
            of_sequences["next_sentence_label"] = batch.columns["next_sentence_label"]
        rows = {name: column.view(setup.batch_size, LENGTH) for name, column in columns.items()}
        mask = torch.ones_like(rows["labels"])  # what a tokenizer and a collator give
        return {**rows, **of_sequences, "attention_mask": mask}

    inputs = cycle([unpacked(objective.prepare(batch)) for batch in full_batches(setup)])

    def take_step() -> Step:
        batch = next(inputs)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if setup.precision == "bf16" else nullcontext():
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        return Step(time.perf_counter() - began, loss.item())

    return lambda number: [take_step() for _ in range(number)]


def _adamw(model: Any, settings: Any) -> Any:
    import torch

    parameters = list(model.parameters())  # biases and LayerNorm are vectors
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True)


def measure_speed(setup: Setup, peer: str, rounds: int, steps: int, instructions: list[str]) -> Row:
    """The row of one precision; a round is the median of a few steps."""
    what = setup.precision
    if setup.precision == "bf16":
        names = {"amx_bf16": "bf16 with AMX", "avx512_bf16": "bf16 with AVX512-BF16"}
        what = next((what for name, what in names.items() if name in instructions), "")
    if not what:
        return Row("step in bf16: the processor has neither AMX nor AVX512-BF16", ours=None, peer=peer)
    print(f"speed, {what}", file=sys.stderr)
    with in_own_process(build_ours, setup) as ours, in_own_process(build_theirs, setup) as theirs:
        sides = {"ours": ours, "peer": theirs}
        for take_steps in sides.values():
            take_steps(2)  # the first steps allocate

        def median_step(take_steps: Callable[[int], list[Step]]) -> float:
            return median(step.seconds for step in take_steps(steps))

        seconds = interleave({name: partial(median_step, side) for name, side in sides.items()}, rounds)
    return compare(f"step, {what}", seconds["ours"], peer, seconds["peer"], at_least=TARGETS[setup.architecture][what])


def check_losses(setup: Setup, peer: str) -> Row:
    """Takes the same steps on both sides, dropout off, and compares their losses."""
    print(f"losses of {setup.num_batches} steps, {setup.precision}", file=sys.stderr)
    losses = []
    for build in (build_ours, build_theirs):
        with in_own_process(build, setup) as take_steps:
            losses.append([step.loss for step in take_steps(setup.num_batches)])
    ours, theirs = losses
    means = [mean(side[-LAST_STEPS:]) for side in losses]
    bound = LARGEST_DIFFERENCE[setup.precision]
    if setup.precision == "fp32":
        difference = max(abs(our - its) / its for our, its in zip(ours, theirs, strict=True))
        target = f"each step within {bound:g} (largest {difference:.1e})"
    else:
        difference = abs(means[0] - means[1]) / means[1]
        target = f"mean within {bound:.1%} ({difference:.3%})"
    last = min(LAST_STEPS, setup.num_batches)
    what = f"loss, {setup.precision}, mean of the last {last} of {setup.num_batches} steps from {ours[0]:.3f}"
    return Row(what, means[0], peer, means[1], unit="nats", target=target, met=difference <= bound)


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--architecture", choices=list(TARGETS), default="bert")
    words.add_argument("--precision", choices=["fp32", "bf16"], action="append", help="both where left out")
    words.add_argument("--threads", type=int, default=num_cores(), help="of each side; all cores where left out")
    words.add_argument("--rounds", type=int, default=15, help="0 measures no speed")
    words.add_argument("--steps", type=int, default=3, help="in a round, of which the median counts")
    words.add_argument("--batch-size", type=int, default=32)
    words.add_argument("--check-steps", type=int, default=200, help="whose losses are compared; 0 compares none")
    words.add_argument("--check-batch-size", type=int, default=8, help="sequences in a step of that comparison")
    given = words.parse_args()
    on = machine(given.threads)
    peer = f"transformers {version('transformers')}"
    precisions = given.precision or ["fp32", "bf16"]
    of: Architecture = given.architecture
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make_text_and_weights(of, directory)
        for precision in precisions if given.rounds else []:
            setup = Setup(of, directory, precision, DROPOUT[of], given.batch_size, TIMED_BATCHES, given.threads)
            rows.append(measure_speed(setup, peer, given.rounds, given.steps, on["instructions"]))
        checks = [
            check_losses(
                Setup(of, directory, precision, 0.0, given.check_batch_size, given.check_steps, given.threads), peer
            )
            for precision in (precisions if given.check_steps else [])
        ]
    notes = [
        f"{'BERT-Small' if of == 'bert' else 'ModernBERT'} (L=4 H=512 A=8), {VOCAB_SIZE:,} entries; "
        f"{given.batch_size} x {LENGTH} tokens a step; "
        f"{given.rounds} rounds of {given.steps} steps",
        f"losses: {given.check_batch_size} x {LENGTH} tokens a step, dropout off",
    ]
    report("Pre-training step on the CPU", rows + checks, on, notes, given.json)
    return 0 if all(row.met for row in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
