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
from unmask.files import write_json
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
from unmask.training.checkpoint import Checkpoint, find_checkpoint
from unmask.training.device import Compute, choose_compute
from unmask.training.run_directory import opening_run
from unmask.training.run_log import RunLog, write_environment
from unmask.training.session import run_session

logger = logging.getLogger("unmask")

_NUM_SAMPLES = 12


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
        UserError: whatever is wrong with recipe, model, examples or output. Where it is found before the first step,
            nothing has been written, and a run that was to be overwritten is as it was.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    settings = load_finetune_recipe(recipe, overrides)
    directory = Path(out)
    compute = choose_compute(settings.device, settings.precision)
    with (
        opening_run(directory, settings, resume=resume, overwrite=overwrite) as changes,
        RunLog(directory, echo=True),
    ):
        for change in changes:
            logger.info(change)
        write_environment(
            directory,
            recipe=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=compute.describe(),
            num_threads=torch.get_num_threads(),
        )
        run = open_inputs(settings, directory)
    with RunLog(directory, echo=True) as log:
        _train(settings, run, directory, compute, log)
    write_report(directory)
    return directory / "model"


@dataclass(frozen=True)
class Inputs:
    """What a run needs, opened and found to fit together.

    Attributes:
        task: with its labels, and the one layout that the training file has.
        tokenizer: of the model.
        module: with its first weights.
        loader: of the training examples.
        start: their place from which the run goes on.
        checkpoint: what it goes on from; None at its beginning.
        dev, test: what it is measured on; None where the recipe names no such file.
        samples: the first dev examples, for the report.
    """

    task: Classification
    tokenizer: TextTokenizer
    module: ClassificationModule
    loader: ExampleLoader
    start: Position
    checkpoint: Checkpoint | None
    dev: EncodedExamples | None
    test: EncodedExamples | None
    samples: list[Example]


def open_inputs(settings: FinetuneRecipe, directory: Path) -> Inputs:
    """Opens the model, and reads and encodes every file, so that whatever is wrong with one is told before training.

    Raises:
        UserError: the model or a file is missing, damaged, or does not fit the others.
    """
    checkpoint = find_checkpoint(directory / "checkpoints")
    source = model_directory(settings.init_from)
    tokenizer = load_tokenizer(source)
    torch.manual_seed(settings.seed)
    encoder = build_encoder(settings, source, tokenizer)
    files = settings.data
    task = open_training_task(settings)
    training = read_examples(task, "train", files.train, tokenizer, encoder)
    check_labels(task, training, files.train)
    batch_size = settings.train.batch_size
    loader = ExampleLoader(training, settings.seed, batch_size, settings.train.micro_batch_size or batch_size)
    start = loader.start()
    if checkpoint is not None:
        saved = Position(**checkpoint.state["position"])
        if saved.data != start.data:
            raise CheckpointError(
                f"{directory}: {files.train} gives other examples than when this run was begun: restore the file, or "
                "start again with --overwrite"
            )
        start = saved
    return Inputs(
        task=task,
        tokenizer=tokenizer,
        module=task.head(encoder),
        loader=loader,
        start=start,
        checkpoint=checkpoint,
        dev=None if files.dev is None else read_examples(task, "dev", files.dev, tokenizer, encoder),
        test=None if files.test is None else read_examples(task, "test", files.test, tokenizer, encoder),
        samples=[] if files.dev is None else list(islice(task.load(Path(files.dev), ExampleCounts()), _NUM_SAMPLES)),
    )


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


def open_training_task(settings: FinetuneRecipe) -> Classification:
    """The task, with the layout that the training file has, and with its labels where nothing else tells them.

    Raises:
        InputError: the training file has none of the layouts, or cannot be read.
    """
    task = open_task(settings.task, settings.data.columns)
    path = Path(settings.data.train)
    task = replace(task, layouts=(choose_columns(task.layouts, next(task.load_rows(path))),))
    return task if task.labels else replace(task, labels=find_labels(task, path))


def read_examples(
    task: Classification, name: str, file: str, tokenizer: TextTokenizer, encoder: BertEncoder
) -> EncodedExamples:
    """Reads and encodes a file, and tells what was mended or skipped.

    Raises:
        InputError: it cannot be read as the task asks.
    """
    counts = ExampleCounts()
    with Progress(f"reading {name}", unit="examples") as progress:
        examples = _advancing(task.load(Path(file), counts), progress)
        encoded = task.encode(examples, tokenizer, counts, encoder.settings.type_vocab_size)
    logger.info("%s: %s (%s)", name, counts.summary(), file)
    return encoded


def _advancing(examples: Iterable[Example], progress: Progress) -> Iterator[Example]:
    for example in examples:
        progress.advance()
        yield example


def check_labels(task: Classification, training: EncodedExamples, path: str) -> None:
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


def _train(settings: FinetuneRecipe, run: Inputs, directory: Path, compute: Compute, log: RunLog) -> None:
    task, module = run.task, run.module.to(compute.device)
    encoder = module.encoder.settings
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    origin = f"the sizes of {settings.init_from}, random weights" if settings.from_scratch else settings.init_from
    logger.info("%s parameters, from %s; labels %s", human_count(num_parameters), origin, ", ".join(task.labels))
    logger.info(compute.describe())
    logger.info(
        describe_attention(compute.device, compute.dtype, encoder.attention_probs_dropout_prob, encoder.head_size)
    )

    with Interruption() as interruption:
        last_evaluation = run_session(
            "fine-tuning",
            directory,
            module=module,
            steps=run.loader.steps(run.start),
            prepare=_as_it_is,
            counts=_counts,
            settings=settings.train,
            optimizer=settings.optimizer,
            schedule=settings.schedule,
            checkpoint=run.checkpoint,
            evaluate=None if run.dev is None else evaluator(module, task, run.dev, compute.device, "dev"),
            compute=compute,
            log=log,
            interruption=interruption,
        )
        save_finetuned(module, task, run.tokenizer, directory / "model")
        module.eval()
        results: dict[str, Any] = {"num_parameters": num_parameters}
        if run.dev is not None:
            results |= {"dev": last_evaluation, "floors": floors(run.loader.examples, run.dev)}
            write_json(directory / "samples.json", classification_samples(run, compute.device))
        if run.test is not None:
            results["test"] = evaluator(module, task, run.test, compute.device, "test")()
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


def floors(training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
    """What the accuracy is to be compared with: that of always saying the most frequent label of the training file."""
    most_frequent = np.bincount(training.labels).argmax()
    floor = {"most frequent label": float((dev.labels == most_frequent).mean())}
    return {"eval/accuracy": floor, "dev.accuracy": floor}


@torch.no_grad()
def classification_samples(run: Inputs, device: torch.device) -> list[dict[str, Any]]:
    """What the module, in eval mode, says about the first dev examples; see `unmask.report` for the shape."""
    segments = run.module.encoder.settings.type_vocab_size
    encoded = run.task.encode(run.samples, run.tokenizer, ExampleCounts(), segments)
    predictions = run.task.decode(run.module.logits(encoded.batch(range(len(encoded))).to(device)))
    return [
        {
            "title": f"dev example {number}",
            "input": {name: example.fields[name] for name in run.task.layouts[0].texts},
            "label": example.label,
            "prediction": prediction["label"],
            "probability": prediction["score"],
        }
        for number, (example, prediction) in enumerate(zip(run.samples, predictions, strict=True), start=1)
    ]


def save_finetuned(
    module: ClassificationModule, task: Classification, tokenizer: TextTokenizer, directory: Path
) -> None:
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
