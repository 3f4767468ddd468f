"""Fine-tuning: a pre-trained model, labelled examples and a recipe to a model that answers. The whole run.

The loop and the session are those of pre-training. The order of the examples is a pure function of the recipe; an
interrupted run that is resumed ends with the same weights, bit for bit, as one that never stopped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.batch import Batch
from unmask.errors import CheckpointError, InputError, ModelError, SettingsError
from unmask.evaluation import measure, tell_constant
from unmask.files import refuse_existing, write_json
from unmask.interruption import Interruption
from unmask.models.attention import describe_attention
from unmask.models.bert import BertEncoder
from unmask.models.hub import load_encoder, save_model
from unmask.paths import model_directory
from unmask.progress import Progress, human_count
from unmask.recipe import FinetuneRecipe, load_finetune_recipe
from unmask.report import write_report
from unmask.tasks.base import ExampleCounts
from unmask.tasks.classification import Classification, ClassificationModule, find_labels
from unmask.tasks.encoded import EncodedExamples, ExampleLoader, Position
from unmask.tasks.examples import Example, choose_columns
from unmask.tasks.table import open_task, remembered
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.checkpoint import find_checkpoint, restore
from unmask.training.device import Compute, choose_compute
from unmask.training.loop import TrainState, train
from unmask.training.optimizer import Schedule, build_optimizer
from unmask.training.run_directory import open_run
from unmask.training.run_log import RunLog, write_environment
from unmask.training.session import Session

logger = logging.getLogger("unmask")

_NUM_SAMPLES = 12


@dataclass(frozen=True)
class LabelledData:
    """What a fine-tuning run learns from and is measured on.

    Attributes:
        task: with its labels, and the layout that the training file has.
        train, dev, test: encoded; None where the recipe names no such file.
        samples: the first examples of the dev file, for the report.
        notes: what was read and mended, for the log.
    """

    task: Classification
    train: EncodedExamples
    dev: EncodedExamples | None
    test: EncodedExamples | None
    samples: list[Example]
    notes: list[str]


def finetune(
    recipe: str, overrides: Sequence[str] = (), *, out: str | Path, resume: bool = False, overwrite: bool = False
) -> Path:
    """Fine-tunes a model.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with `unmask`: `finetune/sst2`.
        overrides: `key.path=value` words, such as `init_from=runs/bert` and `data.train=train.tsv`.
        out: the run directory; the model is in its `model/`.
        resume: True goes on from the newest sound checkpoint, and starts from nothing where there is none.
        overwrite: True replaces a run at `out`.

    Returns:
        The model's directory.

    Raises:
        UserError: whatever is wrong with recipe, model, examples or output; nothing has been half-written.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    settings = load_finetune_recipe(recipe, overrides)
    directory = Path(out)
    compute = choose_compute(settings.device, settings.precision)
    refuse_existing(directory, resume or overwrite, "choose another --out, or pass --resume or --overwrite")
    source = model_directory(settings.init_from)
    tokenizer = load_tokenizer(source)
    torch.manual_seed(settings.seed)
    encoder = build_encoder(settings, source, tokenizer)
    data = read_data(settings, tokenizer, encoder)
    changes: list[str] = []
    open_run(directory, settings, resume=resume, overwrite=overwrite, warn=changes.append)
    with RunLog(directory, echo=True) as log:
        for line in (*changes, *data.notes):
            logger.info(line)
        write_environment(
            directory,
            recipe=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=compute.describe(),
            num_threads=torch.get_num_threads(),
        )
        _run(settings, data, encoder, tokenizer, directory, compute, log)
    write_report(directory)
    return directory / "model"


def build_encoder(settings: FinetuneRecipe, source: Path, tokenizer: TextTokenizer) -> BertEncoder:
    """The encoder of `init_from`, with a pooler: its weights, or fresh ones of the same sizes where the recipe says so.

    Raises:
        ModelError: it does not load, or its tokenizer has more entries than it.
        SettingsError: examples may be longer than it can take.
    """
    loaded = load_encoder(source)
    encoder = BertEncoder(loaded.encoder.settings) if settings.from_scratch else loaded.encoder
    sizes = encoder.settings
    if tokenizer.vocab_size > sizes.vocab_size:
        raise ModelError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} entries and the model {sizes.vocab_size}: "
            "they do not belong together"
        )
    if settings.task.max_length > sizes.max_position_embeddings:
        raise SettingsError(
            f"task.max_length {settings.task.max_length} is over the {sizes.max_position_embeddings} positions of "
            f"{source} (max_position_embeddings): lower it"
        )
    return encoder


def read_data(settings: FinetuneRecipe, tokenizer: TextTokenizer, encoder: BertEncoder) -> LabelledData:
    """Reads and encodes every file of the recipe, so that whatever is wrong with one is told before training.

    Raises:
        InputError: a file cannot be read as the task asks, or the training file shows fewer than two labels.
    """
    files, notes = settings.data, []
    task = open_task(settings.task, files.columns)
    train_path = Path(files.train)
    first = next(task.load_rows(train_path))
    task = replace(task, layouts=(choose_columns(task.layouts, first),))
    if not task.labels:
        task = replace(task, labels=find_labels(task, train_path))

    def read(name: str, file: str) -> EncodedExamples:
        counts = ExampleCounts()
        with Progress(f"reading {name}", unit="examples") as progress:
            examples = _advancing(task.load(Path(file), counts), progress)
            encoded = task.encode(examples, tokenizer, counts, encoder.settings.type_vocab_size)
        notes.append(f"{name}: {counts.summary()} ({file})")
        return encoded

    training = read("train", files.train)
    check_labels(task, training, train_path)
    return LabelledData(
        task=task,
        train=training,
        dev=None if files.dev is None else read("dev", files.dev),
        test=None if files.test is None else read("test", files.test),
        samples=[] if files.dev is None else list(islice(task.load(Path(files.dev), ExampleCounts()), _NUM_SAMPLES)),
        notes=notes,
    )


def _advancing(examples: Iterable[Example], progress: Progress) -> Iterator[Example]:
    for example in examples:
        progress.advance()
        yield example


def check_labels(task: Classification, training: EncodedExamples, path: Path) -> None:
    """Refuses training examples of one label; tells of labels that have none."""
    counts = np.bincount(training.labels, minlength=len(task.labels))
    present = [label for label, count in zip(task.labels, counts, strict=True) if count]
    if len(present) < 2:
        raise InputError(
            f"{path}: every example has the label {present[0]!r}: there is nothing to tell apart; "
            "give examples of at least two labels"
        )
    if absent := [label for label in task.labels if label not in present]:
        logger.warning("%s: no example with the label %s", path, ", ".join(absent))


def _run(
    settings: FinetuneRecipe,
    data: LabelledData,
    encoder: BertEncoder,
    tokenizer: TextTokenizer,
    directory: Path,
    compute: Compute,
    log: RunLog,
) -> None:
    task = data.task
    module = task.head(encoder).to(compute.device)
    optimizer = build_optimizer(module, settings.optimizer)
    schedule = Schedule(settings.schedule)
    batch_size = settings.train.batch_size
    loader = ExampleLoader(data.train, settings.seed, batch_size, settings.train.micro_batch_size or batch_size)
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    start_from = "random weights" if settings.from_scratch else settings.init_from
    logger.info("%s parameters, from %s; labels %s", human_count(num_parameters), start_from, ", ".join(task.labels))
    logger.info(compute.describe())
    sizes = encoder.settings
    logger.info(describe_attention(compute.device, compute.dtype, sizes.attention_probs_dropout_prob, sizes.head_size))

    state = TrainState()
    start = loader.start()
    checkpoint = find_checkpoint(directory / "checkpoints")
    if checkpoint is not None:
        for damage in checkpoint.damaged:
            logger.warning("a damaged checkpoint is passed over: %s", damage)
        state = restore(checkpoint, module, optimizer, schedule, compute.device)
        saved = Position(**state.position)
        if saved.data != start.data:
            raise CheckpointError(
                f"{directory}: {settings.data.train} gives other examples than when this run was begun: "
                "restore the file, or start again with --overwrite"
            )
        start = saved
        logger.info("resumed from step %s", f"{state.step:,}")
    log.rewind(state.step)

    with (
        Interruption() as interruption,
        Progress("fine-tuning", start_count=state.tokens, start_fraction=state.progress(settings.train)) as progress,
    ):
        log.echo_above(progress)
        session = Session(
            directory=directory,
            settings=settings.train,
            module=module,
            optimizer=optimizer,
            schedule=schedule,
            log=log,
            progress=progress,
            interruption=interruption,
            evaluate=None if data.dev is None else evaluator(module, task, data.dev, compute.device, "dev"),
            position=Position.as_dict,
        )
        session.start(state)
        train(
            module,
            loader.steps(start),
            _as_it_is,
            _counts,
            optimizer,
            schedule,
            settings.train,
            state,
            compute.device,
            compute.autocast,
            session,
        )
        session.finish(state)
    _save(module, task, tokenizer, directory / "model")
    module.eval()
    results: dict[str, Any] = {"num_parameters": num_parameters, "floors": floors(data)}
    if data.dev is not None:
        results["dev"] = session.last_evaluation
        write_json(directory / "samples.json", classification_samples(module, data, tokenizer, compute.device))
    if data.test is not None:
        results["test"] = evaluator(module, task, data.test, compute.device, "test")()
        logger.info("test: %s", " · ".join(f"{name} {value:.4g}" for name, value in results["test"].items()))
    write_json(directory / "results.json", results)


def _as_it_is(batch: Batch) -> Batch:
    """Examples need no masks."""
    return batch


def _counts(batch: Batch) -> dict[str, int]:
    return {"task": batch.num_sequences}


def evaluator(
    module: ClassificationModule, task: Classification, examples: EncodedExamples, device: torch.device, name: str
) -> Callable[[], dict[str, float]]:
    """A function that measures the module, in eval mode, on labelled examples: its loss and the task's metrics.

    It computes in fp32 whatever the run trains in, so that the saved model has these very figures anywhere.

    Args:
        name: of the examples, for the log.
    """
    compute = Compute(device, torch.float32, "so that figures are the same everywhere")

    def evaluate() -> dict[str, float]:
        loss, score = measure(module, [examples], task.score(), compute)
        tell_constant(score, task.labels, name)
        return {"loss": loss, **score.metrics()}

    return evaluate


def floors(data: LabelledData) -> dict[str, dict[str, float]]:
    """What the figures are to be compared with: always saying the most frequent label of the training file."""
    if data.dev is None:
        return {}
    most_frequent = np.bincount(data.train.labels).argmax()
    share = float((data.dev.labels == most_frequent).mean())
    floor = {"most frequent label": share}
    return {"eval/accuracy": floor, "dev.accuracy": floor}


@torch.no_grad()
def classification_samples(
    module: ClassificationModule, data: LabelledData, tokenizer: TextTokenizer, device: torch.device
) -> list[dict[str, Any]]:
    """What the model says about the first dev examples; see `unmask.report` for the shape."""
    task, columns = data.task, data.task.layouts[0]
    segments = module.encoder.settings.type_vocab_size
    encoded = task.encode(data.samples, tokenizer, ExampleCounts(), segments)
    batch = encoded.batch(range(len(encoded))).to(device)
    return [
        {
            "title": f"dev example {number}",
            "input": {name: example.fields[name] for name in columns.texts},
            "label": example.label,
            "prediction": prediction["label"],
            "probability": prediction["score"],
        }
        for number, (example, prediction) in enumerate(
            zip(data.samples, task.decode(module.logits(batch)), strict=True), start=1
        )
    ]


def _save(module: ClassificationModule, task: Classification, tokenizer: TextTokenizer, directory: Path) -> None:
    """Writes the model directory: encoder, classifier, labels, tokenizer, and what `predict` needs to know."""
    save_model(
        directory,
        module.encoder,
        classifier=module.classifier,
        labels=task.labels,
        problem_type="single_label_classification",
        extra_config={"unmask_task": remembered(task, task.layouts[0])},
    )
    tokenizer.save(directory)
