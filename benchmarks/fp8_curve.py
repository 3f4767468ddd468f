"""Claim: BERT-Large learns with the linear layers of its blocks in 8 bits (`precision: fp8`) as it learns in bfloat16:
from the same weights, on the same batches, the mean loss of the last 50 of 200 steps is within 0.5 %.

A step is full sequences of 128 tokens from `samples/text`, 15 % targets, masked-LM and next-sentence loss, dropout off,
forward, backward, clipping, AdamW, with a warm-up over the first tenth of the steps. It needs a GPU of compute
capability 8.9 or later; without one both runs are on the CPU, with a plain reference that rounds in the same way: to
try a small model, `--preset tiny --vocab-size 2000 --batch-size 16 --learning-rate 1e-3`. Speed is not measured here.

The exit code is 1 if the curves differ by more.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from measure import SAMPLE_TEXT, Row, machine, num_cores, parser, report
from pretrain_step import LENGTH, SEED, VOCAB_SIZE, Setup, full_batches, make_objective

if TYPE_CHECKING:
    from unmask.training.device import Compute

LAST_STEPS = 50
LARGEST_DIFFERENCE = 0.005
"""The largest relative difference between the means of the last steps: what bfloat16 may differ from fp32 by."""
NUM_PARTS = 10
"""Rows of the table, each the mean of an equal number of steps."""


def prepare_text(directory: Path, vocab_size: int) -> None:
    from unmask import TokenizerSettings, prepare, train_tokenizer

    train_tokenizer([SAMPLE_TEXT], directory / "tokenizer", TokenizerSettings(vocab_size=vocab_size))
    prepare([SAMPLE_TEXT], directory / "tokenizer", directory / "store")


def find_computes() -> tuple[Compute, Compute]:
    """bf16 and fp8, on the GPU if it supports both, else on the CPU."""
    import torch

    from unmask.errors import SettingsError
    from unmask.training.device import Compute, choose_compute

    try:
        return choose_compute("auto", "bf16", training=True), choose_compute("auto", "fp8", training=True)
    except SettingsError as error:
        print(f"{error}; here the plain reference takes its place", file=sys.stderr)
        cpu = torch.device("cpu")
        return Compute(cpu, torch.bfloat16, "beside it"), Compute(cpu, torch.bfloat16, "plain reference", fp8=True)


def losses(setup: Setup, preset: str, learning_rate: float, compute: Compute) -> list[float]:
    """The loss of every step of a run from the weights that `SEED` draws."""
    import torch

    from unmask import load_tokenizer
    from unmask.models.bert import BertEncoder
    from unmask.models.settings import ModelSettings
    from unmask.training.optimizers.optimizer import build_optimizer
    from unmask.training.settings import OptimizerSettings, TrainSettings

    objective = make_objective(setup.directory)
    vocab_size = load_tokenizer(setup.directory / "store" / "tokenizer").vocab_size
    model = ModelSettings(
        preset=preset, hidden_dropout_prob=setup.dropout_prob, attention_probs_dropout_prob=setup.dropout_prob
    )
    torch.manual_seed(SEED)
    module = compute.place(objective.build(BertEncoder(model.resolve(vocab_size)))).train()
    optimizer = build_optimizer(module, OptimizerSettings(learning_rate=learning_rate))
    max_norm = TrainSettings(steps=1).max_grad_norm
    assert max_norm is not None, "our default clips"
    warmup_steps = max(1, setup.num_batches // 10)

    taken = []
    for step, batch in enumerate(full_batches(setup), start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, step / warmup_steps)
        with compute.autocast():
            terms = module(objective.prepare(batch).to(compute.device))
        loss = sum(term.coefficient * term.total / term.count for term in terms)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        taken.append(loss.detach())
        if step % max(1, setup.num_batches // NUM_PARTS) == 0:
            print(f"step {step} of {setup.num_batches}: loss {taken[-1].item():.4f}", file=sys.stderr)
    return [loss.item() for loss in taken]


def rows_of(of_fp8: list[float], of_bf16: list[float]) -> list[Row]:
    """The two curves in parts, and the claim about their ends."""
    length = max(1, len(of_fp8) // NUM_PARTS)
    curve = [
        Row(
            f"loss, steps {start + 1} to {start + length}",
            mean(of_fp8[start : start + length]),
            "bf16",
            mean(of_bf16[start : start + length]),
            unit="nats",
        )
        for start in range(0, len(of_fp8) - length + 1, length)
    ]
    ours, theirs = mean(of_fp8[-LAST_STEPS:]), mean(of_bf16[-LAST_STEPS:])
    difference = abs(ours - theirs) / theirs
    target = f"within {LARGEST_DIFFERENCE:.1%} ({difference:.2%})"
    what = f"loss, mean of the last {min(LAST_STEPS, len(of_fp8))} of {len(of_fp8)} steps"
    return [*curve, Row(what, ours, "bf16", theirs, unit="nats", target=target, met=difference <= LARGEST_DIFFERENCE)]


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--preset", default="large", help="the sizes of BERT: large, base, small ... tiny")
    words.add_argument("--steps", type=int, default=200)
    words.add_argument("--batch-size", type=int, default=64, help="sequences in a step")
    words.add_argument("--learning-rate", type=float, default=1e-4, help="after warm-up")
    words.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    words.add_argument("--threads", type=int, default=num_cores(), help="all cores where left out")
    given = words.parse_args()
    on = machine(given.threads)  # imports torch, which --help does not need

    import torch

    torch.set_num_threads(given.threads)
    in_bf16, in_fp8 = find_computes()
    with tempfile.TemporaryDirectory() as folder:
        prepare_text(Path(folder), given.vocab_size)
        setup = Setup(Path(folder), "fp8", 0.0, given.batch_size, given.steps, given.threads)
        of_bf16, of_fp8 = (losses(setup, given.preset, given.learning_rate, compute) for compute in (in_bf16, in_fp8))
    rows = rows_of(of_fp8, of_bf16)
    notes = [
        in_fp8.describe(),
        f"BERT, {given.preset}, {given.vocab_size:,} entries; {given.batch_size} x {LENGTH} tokens a step; dropout off",
    ]
    report("Learning in 8 bits beside bfloat16", rows, on, notes, given.json)
    return 0 if rows[-1].met else 1


if __name__ == "__main__":
    sys.exit(main())
