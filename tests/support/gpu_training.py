"""Small models in bfloat16 in training, by captured steps or by steps computed as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from support.captured_toy import read_all
from support.sizes import sizes_of
from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.models.buckets import Paddings
from unmask.models.encoder import new_encoder
from unmask.models.family import HeadKind
from unmask.models.heads.heads import new_head
from unmask.models.settings import EncoderSettings, ModelSettings
from unmask.objectives.table import new_objective
from unmask.packing.loader import Position
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import build_loader, with_rates
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tasks.qa.module import QaModule
from unmask.tasks.sequence_module import SequenceModule
from unmask.tasks.tagging.module import TaggingModule
from unmask.tokenization.opening import open_tokenizer
from unmask.training.captured.cautious import CautiousStepper
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.device import Compute
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.muon import MuonWithAdamW
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import StepFigures, Stepper

LONGEST = 32
VOCAB_SIZE = 200
SIZES = sizes_of(width=64, layers=2, heads=2, inner=128, positions=LONGEST)


@dataclass(frozen=True)
class Work:
    """A module to train, and its steps, each of one or two batches; `optimizer` are settings beside the rate."""

    build: Callable[[float], nn.Module]
    steps: list[list[Batch]]
    counts: Callable[[Batch], dict[str, int]]
    optimizer: dict[str, Any] = field(default_factory=dict)

    def module(self, dropout_prob: float = 0.0) -> Any:
        torch.manual_seed(0)
        return self.build(dropout_prob).train()


OBJECTIVE_VARIANTS: dict[str, dict[str, Any]] = {
    "masked LM and NSP": {"objective": {"name": "masked_lm"}},
    "replaced tokens": {
        "objective": {"name": "replaced_token"},
        "model": {"architecture": "electra", "embedding_size": 32},
    },
    "spans and boundaries": {
        "objective": {
            "name": "masked_lm",
            "masking": "span",
            "span_boundary": True,
            "sentence_objective": "none",
            "masking_mode": "static",
        },
        "packing": {"format": "single_segment"},
    },
    "left to right": {
        "objective": {"name": "causal_lm"},
        "model": {"architecture": "gpt1", "intermediate_size": 256},
        "packing": {"format": "single_segment"},
    },
    "ModernBERT by Muon": {
        "objective": {"name": "masked_lm", "sentence_objective": "none", "causal_share": 0.5},
        "model": {"architecture": "modernbert", "local_attention": 8},
        "packing": {"format": "full_sentences"},
        "optimizer": {"name": "muon"},
    },
}
"""Of the last, every other step is read from left to right."""
TASKS = ("classification", "classification by ModernBERT", "tagging", "answers")


def work_of_objective(name: str, directory: Path, batch_size: int = 24) -> Work:
    changes = OBJECTIVE_VARIANTS[name]
    tokenizer = open_tokenizer(directory / "tokenizer")
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(directory / "store"),
            "objective": changes["objective"],
            "packing": {"max_length": LONGEST, **changes.get("packing", {})},
            "model": {**SIZES, **changes.get("model", {})},
            "train": {"steps": 1, "batch_size": batch_size, "micro_batch_size": 16},
        }
    )
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    loader = build_loader(
        open_start(recipe), TokenStore(directory / "store"), tokenizer, held_out=False, phase=recipe.all_phases[0]
    )

    def build(dropout_prob: float) -> nn.Module:
        sizes = recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        probs = {"hidden_dropout_prob": dropout_prob, "attention_probs_dropout_prob": dropout_prob}
        return objective.build(new_encoder(sizes.model_copy(update=probs), pooler=objective.needs_pooler))

    loaded = islice(loader.steps(Position()), 12)
    steps = []
    for number, step in enumerate(loaded):
        rates = recipe.objective.rates(0.0, float(number % 2))
        steps.append([objective.prepare(with_rates(batch, rates)) for batch in step.batches])
    return Work(build, steps, objective.counts, changes.get("optimizer", {}))


def summed_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")


def work_of_task(name: str) -> Work:
    """Random words and labels; every fifth one is missing."""

    def build(dropout_prob: float) -> nn.Module:
        probs = {"hidden_dropout_prob": dropout_prob, "attention_probs_dropout_prob": dropout_prob}
        if name == "classification by ModernBERT":
            model = {"architecture": "modernbert", "classifier_pooling": "mean", **SIZES, **probs}
            sizes = ModelSettings.model_validate(model).resolve(VOCAB_SIZE)
        else:
            sizes = EncoderSettings(vocab_size=VOCAB_SIZE, **SIZES, **probs)
        if name.startswith("classification"):
            return SequenceModule(new_encoder(sizes), new_head("sequence_classification", sizes, 3), summed_loss)
        kind: HeadKind = "token_classification" if name == "tagging" else "question_answering"
        encoder = new_encoder(sizes, pooler=False)
        head = new_head(kind, sizes, 3 if name == "tagging" else 2)
        return TaggingModule(encoder, head) if name == "tagging" else QaModule(encoder, head)

    draw = torch.Generator().manual_seed(3)

    def drawn(*sizes: int, below: int) -> Tensor:
        return torch.randint(below, sizes, generator=draw)

    def batch() -> Batch:
        lengths = (1 + drawn(int(drawn(1, below=20)) + 4, below=LONGEST)).tolist()
        packed = pack([drawn(length, below=VOCAB_SIZE).tolist() for length in lengths])
        if name == "answers":
            ends = torch.tensor(lengths) - 1
            ends[::5] = IGNORE_INDEX
            return packed.with_columns(start_positions=ends.clamp(max=0), end_positions=ends)
        labels = drawn(len(lengths) if name.startswith("classification") else packed.num_tokens, below=3)
        labels[::5] = IGNORE_INDEX
        return packed.with_columns(labels=labels)

    def counts(batch: Batch) -> dict[str, int]:
        column = batch.columns["end_positions" if name == "answers" else "labels"]
        return {"task": int((column != IGNORE_INDEX).sum())}

    return Work(build, [[batch(), batch()] for _ in range(12)], counts)


def new_compute(device: str, dtype: torch.dtype = torch.bfloat16) -> Compute:
    return Compute(torch.device(device), dtype, "a test")


@dataclass
class Trained:
    module: Any
    optimizer: AdamW | MuonWithAdamW
    stepper: Stepper

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()]).cpu()


def begin_training(
    work: Work, compute: Compute, kind: str, *, dropout_prob: float = 0.0, compiles: bool = False, seed: int = 5
) -> Trained:
    module = work.module(dropout_prob).to(compute.device)
    settings = OptimizerSettings.model_validate({"learning_rate": 1e-3, "epsilon": 1e-6, **work.optimizer})
    optimizer = build_optimizer(module, settings)
    eager = EagerStepper(module, optimizer, 1.0, compute)
    paddings: Paddings = module.paddings
    captured = CapturedStepper(module, optimizer, 1.0, None, compute, paddings, LONGEST, compiles)
    steppers: dict[str, Stepper] = {"eager": eager, "captured": captured, "cautious": CautiousStepper(captured, eager)}
    stepper = steppers[kind]
    stepper.restart({})
    torch.manual_seed(seed)
    return Trained(module, optimizer, stepper)


def take_steps(work: Work, trained: Trained, numbers: Iterator[int] | range) -> list[StepFigures]:
    """Steps by number, over and over the same twelve; they are looked at in the end where they may be."""
    figures: list[StepFigures] = []
    for number in numbers:
        batches = work.steps[number % len(work.steps)]
        trained.stepper.launch(batches, count_targets(work, batches))
        if not trained.stepper.runs_ahead:
            figures += trained.stepper.read(read_all)
    return figures if figures else trained.stepper.read(read_all)


def count_targets(work: Work, batches: list[Batch]) -> dict[str, int]:
    counts = [work.counts(batch) for batch in batches]
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def losses_of(work: Work, figures: list[StepFigures]) -> list[float]:
    return [each.loss(count_targets(work, work.steps[number % len(work.steps)])) for number, each in enumerate(figures)]


def merge(batches: list[Batch]) -> Batch:
    """One batch of the sequences of several."""
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + batch.num_tokens)
    columns = {name: torch.cat([batch.columns[name] for batch in batches]) for name in batches[0].columns}
    columns["target_positions"] = torch.cat(
        [batch.columns["target_positions"] + start for batch, start in zip(batches, starts, strict=False)]
    )
    return Batch(
        torch.cat([batch.input_ids for batch in batches]),
        torch.cat([batch.token_type_ids for batch in batches]),
        torch.cat([batch.position_ids for batch in batches]),
        torch.cat(
            [torch.zeros(1, dtype=torch.int32)]
            + [batch.bounds[1:] + start for batch, start in zip(batches, starts, strict=False)]
        ).int(),
        tuple(length for batch in batches for length in batch.lengths),
        None,
        columns,
    )
