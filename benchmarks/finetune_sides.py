"""Both sides of `finetune.py`, ours and the Trainer: what they share, and a training run on each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.inference.example_sets import ExampleSet
    from unmask.tasks.base import Task
    from unmask.tasks.encoded import EncodedExamples
    from unmask.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Protocol:
    """How a task is trained and measured.

    Attributes:
        train, dev: files under `UNMASK_DATA`; the same one is split by its articles.
        metric: that is compared.
        max_length: most tokens of a row.
        batch_size, learning_rate, epochs: of both sides.
    """

    train: str
    dev: str
    metric: str
    max_length: int = 128
    batch_size: int = 32
    learning_rate: float = 5e-5
    epochs: int = 3


@dataclass(frozen=True)
class Setup:
    """What both sides are built from.

    Attributes:
        name: of the task.
        protocol: of the task.
        model: directory of the pre-trained model.
        train, dev: files.
        max_examples: of the training file, at most.
        threads: of PyTorch.
        folder: for files that both sides read.
    """

    name: str
    protocol: Protocol
    model: Path
    train: Path
    dev: Path
    max_examples: int
    threads: int
    folder: Path


@dataclass(frozen=True)
class Wanted:
    """A training run.

    Attributes:
        seed: of order, head and dropout.
        steps: of the run; None: as many as its epochs have.
        start: a directory with a head, from which both sides start; None: each side draws its own.
        rate_factor: on the learning rate.
        measured: whether dev is measured afterwards; the Trainer then orders the examples as it does, else as we do.
    """

    seed: int
    steps: int | None = None
    start: Path | None = None
    rate_factor: float = 1.0
    measured: bool = False


@dataclass(frozen=True)
class Done:
    """What came of it: losses of the steps, when each ended, and the figures on dev."""

    losses: list[float]
    ends: list[float]
    figures: dict[str, float]


@dataclass(frozen=True)
class Material:
    """A task with its data, encoded."""

    task: Task[Any]
    tokenizer: TextTokenizer
    training: EncodedExamples
    dev: list[ExampleSet]

    def steps_of(self, setup: Setup, wanted: Wanted) -> int:
        per_epoch = -(-len(self.training) // setup.protocol.batch_size)
        return wanted.steps or setup.protocol.epochs * per_epoch


def open_material(setup: Setup) -> Material:
    """Reads and encodes the files; the same in every process."""
    import torch

    from unmask.inference.example_sets import encode_sets
    from unmask.models.hub.directory import load_encoder
    from unmask.tasks.base import ExampleCounts
    from unmask.tasks.encoded import concatenate
    from unmask.tasks.settings import ColumnSettings, TaskSettings
    from unmask.tasks.table import open_task
    from unmask.tokenization.tokenizer import load_tokenizer

    torch.set_num_threads(setup.threads)
    settings = TaskSettings.model_validate({"name": setup.name, "max_length": setup.protocol.max_length})
    task = open_task(settings, ColumnSettings()).fit_to(setup.train)
    tokenizer = load_tokenizer(setup.model)
    segments = load_encoder(setup.model).encoder.settings.type_vocab_size

    def sets(path: Path, most: int | None) -> list[ExampleSet]:
        counts, load = ExampleCounts(), task.load_training if path == setup.train else task.load
        return list(encode_sets(task, islice(load(path, counts), most), tokenizer, counts, segments))

    training = concatenate([part.encoded.without_alignment() for part in sets(setup.train, setup.max_examples)])
    return Material(task, tokenizer, training, sets(setup.dev, None))


def save_start(setup: Setup, seed: int) -> Path:
    """A model directory with a fresh head of ours, and dropout off, for both sides to start from."""
    import torch

    from unmask.finetuning.run import save_finetuned
    from unmask.models.hub.directory import load_encoder

    material = open_material(setup)
    torch.manual_seed(seed)
    encoder = load_encoder(setup.model, material.task.head_kind).encoder
    directory = setup.folder / f"start-{setup.name}"
    save_finetuned(material.task.module(encoder), material.task, material.tokenizer, directory)
    config = json.loads((directory / "config.json").read_text("utf-8"))
    config |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0)
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return directory


def measure_dev(material: Material, module: Any) -> dict[str, float]:
    """The figures on dev of anything that gives outputs for a batch."""
    import torch

    from unmask.inference.example_sets import predict_set
    from unmask.training.device import Compute

    score = material.task.score()
    for part in material.dev:
        compute = Compute(torch.device("cpu"), torch.float32, "as the peer")
        score.add(part.examples, predict_set(material.task, module, part, compute))
    return score.metrics()


def build_ours(setup: Setup) -> Callable[[Wanted], Done]:
    import torch

    from unmask.models.hub.directory import load_encoder, load_model
    from unmask.models.hub.uses import FINE_TUNED
    from unmask.tasks.encoded import ExampleLoader
    from unmask.training.device import choose_compute, keep_freed_memory
    from unmask.training.loop import Hooks, train
    from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
    from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
    from unmask.training.state import StepResult, TrainState
    from unmask.training.stepping.eager import EagerStepper
    from unmask.training.steps import Learner

    material, protocol = open_material(setup), setup.protocol

    keep_freed_memory()  # as every run on the CPU

    def run(wanted: Wanted) -> Done:
        task = material.task
        torch.manual_seed(wanted.seed)
        if wanted.start is not None:
            loaded = load_model(wanted.start, FINE_TUNED)
            module: Any = task.module(loaded.encoder, loaded.head)
        else:
            module = task.module(load_encoder(setup.model, task.head_kind).encoder)
        steps = material.steps_of(setup, wanted)
        loader = ExampleLoader(material.training, wanted.seed, protocol.batch_size, protocol.batch_size)
        compute = choose_compute("cpu", "fp32")
        losses: list[float] = []
        ends: list[float] = []

        def on_step(state: TrainState, result: StepResult) -> None:
            losses.append(sum(state.take_means().values()))
            ends.append(time.perf_counter())

        rate = protocol.learning_rate * wanted.rate_factor
        optimizer = build_optimizer(module, OptimizerSettings(learning_rate=rate))
        settings = TrainSettings(steps=steps, batch_size=protocol.batch_size)
        train(
            Learner(module, module.counts),
            loader.steps(loader.start()),
            ScheduledOptimizer(optimizer, Schedule(ScheduleSettings(warmup_steps=steps // 10))),
            EagerStepper(module, optimizer, settings.max_grad_norm, compute),
            settings,
            TrainState(),
            Hooks(on_step),
        )
        return Done(losses, ends, measure_dev(material, module.eval()) if wanted.measured else {})

    return run


def build_theirs(setup: Setup) -> Callable[[Wanted], Done]:
    from peers import trainer
    from unmask.training.settings import OptimizerSettings, TrainSettings

    material, protocol = open_material(setup), setup.protocol
    head_kind = material.task.head_kind
    training = trainer.features(material.training)
    max_grad_norm = TrainSettings(steps=1).max_grad_norm
    assert max_grad_norm is not None, "our default clips"

    def run(wanted: Wanted) -> Done:
        model = trainer.load_model(wanted.start or setup.model, head_kind, material.task.labels, wanted.seed)
        steps = material.steps_of(setup, wanted)
        losses, ends = trainer.train(
            model,
            head_kind,
            setup.model,
            training,
            seed=wanted.seed,
            steps=steps,
            warmup_steps=steps // 10,
            batch_size=protocol.batch_size,
            learning_rate=protocol.learning_rate * wanted.rate_factor,
            optimizer=OptimizerSettings(),
            max_grad_norm=max_grad_norm,
            our_order=not wanted.measured,
            masks_positions=wanted.start is not None,
            folder=setup.folder / "trainer",
        )
        return Done(
            losses, ends, measure_dev(material, trainer.PaddedModel(model, head_kind)) if wanted.measured else {}
        )

    return run
