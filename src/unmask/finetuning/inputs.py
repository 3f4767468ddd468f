"""What a fine-tuning run needs, opened and checked to fit together before its first step: model, task and examples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.batch import StepBatches
from unmask.chance import Permutation, Purpose
from unmask.errors import CheckpointError, SettingsError
from unmask.finetuning.files import Base, check_same_data, text_hashes, warn_of_known
from unmask.finetuning.fitting import warn_of_untrained_positions
from unmask.finetuning.kept_head import module_on_kept_head
from unmask.finetuning.transfer import freeze_layers, transfer_layers
from unmask.inference.example_sets import ExampleSet, encode_sets, measure
from unmask.inference.opening import attach_tokenizer
from unmask.inference.task_options import adjusted_task
from unmask.io.input_files import InputFiles
from unmask.io.paths import model_directory
from unmask.io.progress import Progress, counted
from unmask.io.tables import warn_of_notation
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.heads.heads import needs_pooler
from unmask.models.hub.conversion import widen_vocabulary, with_dropout
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.source import ModelSource, open_source
from unmask.packing.sharing import WHOLE, Share
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.base import ExampleCounts, Task, TaskModule
from unmask.tasks.encoded import EncodedExamples, ExampleLoader, UnitPosition, concatenate
from unmask.tasks.table import open_task
from unmask.tasks.tagging.module import with_features
from unmask.tokenization.gpt1_template import load_tokenizer_with_template
from unmask.tokenization.opening import Tokenizer
from unmask.training.device import Compute, choose_compute
from unmask.training.run.best import choose_metric
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.settings import Cut

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class ExampleSteps:
    """The steps of a run; see `unmask.training.steps.StepSource`. Batches are counted in units, which stay together.

    Attributes:
        loader: of the training examples.
        start: the position that the steps begin at.
    """

    loader: ExampleLoader
    start: UnitPosition

    @property
    def longest(self) -> int:
        """See `StepSource`."""
        return int(self.loader.examples.row_lengths.max())

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        """See `StepSource`."""
        loader, longest = self.loader, int(self.loader.examples.lengths.max())
        cut = Cut(loader.batch_size, loader.micro_batch_size, longest, length_key="task.max_length")
        return cut.at_most(most_tokens)

    def steps(
        self, progress: Callable[[], float], position: Any, most_tokens: int | None
    ) -> Iterator[StepBatches[UnitPosition]]:
        """See `StepSource`."""
        place = self.start if position is None else position
        start = place if isinstance(place, UnitPosition) else UnitPosition(**place)
        return replace(self.loader, micro_batch_size=self.cut(start, most_tokens).micro_batch_size).steps(start)


@dataclass(frozen=True)
class TaskInputs:
    """What a run needs, opened and checked to fit together.

    Attributes:
        task: with its labels, and the columns that the training file has.
        tokenizer: of the model.
        module: with its initial weights.
        loader: of the training examples.
        start: the position among them at which the run starts or continues.
        checkpoint: what the run continues from; None at its beginning.
        dev, test: what the run is measured on; None where the recipe names no such file.
        counts: of the examples of these files, by split.
        trained_length: the longest sequence that the model had seen before; None: as long as it has positions.
        known: warnings of texts of dev and test that are in another file too.
    """

    task: Task[Any]
    tokenizer: Tokenizer
    module: TaskModule
    loader: ExampleLoader
    start: UnitPosition
    checkpoint: Checkpoint | None
    dev: list[ExampleSet] | None
    test: list[ExampleSet] | None
    counts: Mapping[str, ExampleCounts]
    trained_length: int | None
    known: Sequence[str]

    def fingerprints(self) -> tuple[str, dict[str, int]]:
        """Of what the run learns from, under a name for messages."""
        return "data.train", {"its content": self.loader.examples.checksum()}


def check_run(settings: FinetuneRecipe, directory: Path, bases: Mapping[str, Base]) -> None:
    """Refuses a trial whose run could not begin, and one from another model than the trials that have ended.

    Args:
        directory: the search's.
        bases: the models that its trials begin from, by their keys in the recipe.
    """
    compute = choose_compute(settings.device, settings.precision)
    with compute.keeping_torch_state():
        open_run(settings, directory, compute, None, bases=bases)


def open_run(
    settings: FinetuneRecipe,
    directory: Path,
    compute: Compute,
    checkpoint: Checkpoint | None,
    share: Share = WHOLE,
    source: ModelSource | None = None,
    bases: Mapping[str, Base] = {},
) -> TaskInputs:
    """`open_inputs` of a run, with its module on the device; a metric that the task does not have is refused now, not
    at the first evaluation."""
    inputs = open_inputs(settings, directory, checkpoint, share, source)
    check_same_data(directory, settings.data, bases)
    # Some figures have names that only examples show, such as a tag's.
    known = (None, "loss", *inputs.task.score().metrics())
    is_unknown = settings.train.metric not in known and inputs.checkpoint is None
    if is_unknown and inputs.dev is not None and not settings.task.reads_features:  # which are not computed yet
        loss, score = measure(inputs.task, inputs.module.to(compute.device).eval(), inputs.dev, compute.for_figures())
        choose_metric({"loss": loss, **score.metrics()}, settings.train.metric, score.lower_is_better)
    compute.place(inputs.module)
    return inputs


def open_inputs(
    settings: FinetuneRecipe,
    directory: Path,
    checkpoint: Checkpoint | None,
    share: Share = WHOLE,
    source: ModelSource | None = None,
) -> TaskInputs:
    """Loads the model, and reads and encodes every file, so that anything wrong is reported before training.

    Args:
        checkpoint: what the run continues from.
        source: `init_from`, if it is open already.

    Raises:
        UserError: the model or a file is missing, damaged, or does not fit the others.
    """
    source = source or open_source(model_directory(settings.init_from))
    tokenizer, new_entries = load_tokenizer_with_template(source.directory)
    data = settings.data
    train = data.files("train")
    assert train is not None, "a recipe names it"
    for files in (train, *(files for _, files, _ in data.measured())):
        warn_of_notation(files)
    task = open_task(settings.task, data.columns).fit_to(train)
    torch.manual_seed(settings.seed)
    module = build_module(settings, task, source, tokenizer, len(new_entries))
    read = read_examples(task, "train", train)
    if data.train_examples is not None:
        read = read.some(data.train_examples, settings.seed)
    tokenizer = task.fit_tokenizer(tokenizer, read.examples, train)
    sets = read.encode(task, tokenizer, module)
    training = concatenate([part.encoded.without_alignment() for part in sets])
    task.check_examples(read.examples, read.counts, train)
    known_texts = text_hashes(read.examples)
    del read, sets  # the examples are not needed any more
    task.check(training, train)
    task.fit_loss(module, training, settings.keep_head)
    measured, counts, known = _read_measured(settings, task, tokenizer, module, known_texts)
    batch_size = settings.train.batch_size
    loader = ExampleLoader(training, settings.seed, batch_size, settings.train.micro_batch_of(batch_size), share)
    start = loader.start()
    if checkpoint is not None:
        start = _continued(checkpoint, start, settings, directory)
    trained = settings.task.max_length if settings.from_scratch else source.trained_length
    warn_of_untrained_positions(int(training.row_lengths.max()), trained, source.directory, "task.max_length")
    dev, test = measured.get("dev"), measured.get("test")
    return TaskInputs(task, tokenizer, module, loader, start, checkpoint, dev, test, counts, trained, known)


def _read_measured(
    settings: FinetuneRecipe, task: Task[Any], tokenizer: Tokenizer, module: TaskModule, known_texts: frozenset[int]
) -> tuple[dict[str, list[ExampleSet]], dict[str, ExampleCounts], list[str]]:
    """The examples of dev and test, encoded, their counts, and the warnings of those that are in another file too.

    Args:
        known_texts: hashes of those of the training file.
    """
    known = {"data.train": known_texts}
    measured: dict[str, list[ExampleSet]] = {}
    counts: dict[str, ExampleCounts] = {}
    warnings: list[str] = []
    for split, file, columns in settings.data.measured():
        its_task = adjusted_task(task, columns, {}, module.encoder.settings.num_positions)
        read = read_examples(its_task, split, file)
        measured[split], counts[split] = read.encode(its_task, tokenizer, module), read.counts
        task.check_measured([part.encoded for part in measured[split]], file)
        examples = [example for part in measured[split] for example in part.examples]
        warnings += warn_of_known(split, file, examples, known)
        known[f"data.{split}"] = text_hashes(examples)
    return measured, counts, warnings


def _continued(checkpoint: Checkpoint, start: UnitPosition, settings: FinetuneRecipe, directory: Path) -> UnitPosition:
    """The position of a checkpoint; raises CheckpointError if the examples are others than at its run's `start`."""
    saved = checkpoint.position(UnitPosition)
    if saved.data != start.data:
        raise CheckpointError(
            f"{directory}: {settings.data.files('train')} gives other examples than when this run was begun: restore "
            f"the file, or the tokenizer of {settings.init_from}, or start again with --overwrite"
        )
    return saved


def build_module(
    settings: FinetuneRecipe, task: Task[Any], source: ModelSource, tokenizer: Tokenizer, num_new_entries: int = 0
) -> TaskModule:
    """The encoder of `init_from`, transferred and frozen as the recipe says, with a head on it.

    Args:
        num_new_entries: how many entries at the end of the vocabulary the model does not know: GPT-1's special tokens.

    Raises:
        ModelError: the model does not load, has fewer entries than its tokenizer, or has no head that could be kept.
        SettingsError: examples may be longer than the model can take, or a setting asks for something that it lacks.
    """
    loaded = load_encoder(source, head=task.head_kind)
    encoder = with_dropout(loaded.encoder, settings.model.model_dump(exclude_none=True), settings.init_from)
    if num_new_entries and tokenizer.vocab_size - num_new_entries <= encoder.settings.vocab_size:
        _add_rows(encoder, tokenizer, num_new_entries)
    sizes = encoder.settings
    if task.head_kind not in sizes.family.heads:
        raise SettingsError(
            f"task.name={settings.task.name} and init_from={settings.init_from}, which is an {sizes.family.title}, do "
            "not go together: it reads each text by itself, so an answer would not depend on its question; take a "
            "classification, regression or tagging task, or a model of another family"
        )
    if settings.task.max_length > sizes.num_positions:
        raise SettingsError(
            f"task.max_length {settings.task.max_length} is over the {sizes.num_positions} positions of "
            f"{source.directory} (max_position_embeddings): lower it"
        )
    if settings.from_scratch or settings.transfer_layers is not None:
        fresh = new_encoder(sizes, pooler=needs_pooler(sizes, task.head_kind))
        if settings.transfer_layers is not None:
            transfer_layers(fresh, encoder, settings.transfer_layers)
        encoder = fresh
    attach_tokenizer(encoder, tokenizer, source.directory)
    module = module_on_kept_head(settings, task, encoder, source) if settings.keep_head else task.module(encoder)
    if settings.freeze_layers is not None:
        random_pooler = bool(loaded.fresh) or settings.transfer_layers is not None
        freeze_layers(encoder, settings.freeze_layers, trains_pooler=random_pooler)
    return module


def _add_rows(encoder: Encoder, tokenizer: Tokenizer, num_new_entries: int) -> None:
    """Gives the encoder fresh embeddings for the tokenizer's last entries, drawn as in GPT-1's released code."""
    assert not encoder.reads_words, "its tokenizer is whole"
    names = ", ".join(tokenizer.token_strings[-num_new_entries:])
    logger.info(
        "the vocabulary gets %s, with fresh embeddings: the model's has no special tokens to put around inputs", names
    )
    missing = tokenizer.vocab_size - encoder.settings.vocab_size
    if missing > 0:
        widen_vocabulary(encoder, (), tokenizer.vocab_size, [()] * missing)
    with torch.no_grad():
        fresh = encoder.word_embeddings[tokenizer.vocab_size - num_new_entries : tokenizer.vocab_size]
        fresh.normal_(std=encoder.settings.initializer_range)


@dataclass(frozen=True)
class ReadExamples:
    """The examples of a file, not yet encoded.

    Attributes:
        name: what the log calls them.
        counts: what was repaired or skipped.
    """

    name: str
    file: InputFiles
    examples: list[Any]
    counts: ExampleCounts

    def some(self, number: int, seed: int) -> ReadExamples:
        """So many of them, drawn by the seed; of one seed, fewer are among more.

        Raises:
            SettingsError: there are not as many.
        """
        if number > len(self.examples):
            has = counted(len(self.examples), "example")
            raise SettingsError(f"data.train_examples={number}: {self.file} has {has}: give that many at most")
        drawn = Permutation(len(self.examples), seed, 0, Purpose.EXAMPLES)
        chosen = sorted(drawn[place] for place in range(number))
        return replace(self, examples=[self.examples[place] for place in chosen])

    def encode(self, task: Task[Any], tokenizer: Tokenizer, module: TaskModule) -> list[ExampleSet]:
        """Encodes them, and logs what was repaired or skipped."""
        num_segments = module.encoder.settings.type_vocab_size
        sets: list[ExampleSet] = []
        with Progress(f"encoding {self.name}", total=len(self.examples), unit="examples") as progress:
            for part in encode_sets(task, self.examples, tokenizer, self.counts, num_segments, str(self.file)):
                sets.append(part)
                progress.advance(len(part.examples))
        self.counts.log(f"{self.name} ({self.file})")
        return sets


def read_examples(task: Task[Any], name: str, file: InputFiles) -> ReadExamples:
    """Reads a file; of `train`, the examples to learn from. Raises InputError if the task cannot read it.

    The examples are without the fields of their rows, which only `predict` repeats, and which may be many columns.
    """
    counts, load = ExampleCounts(), task.load_training if name == "train" else task.load
    with Progress(f"reading {name}", unit="examples") as progress:
        examples = [replace(example, fields={}) for example in progress.counting(load(file, counts))]
    return ReadExamples(name, file, examples, counts)


def add_features(feature_layers: str, inputs: TaskInputs, directory: Path, device: torch.device) -> TaskInputs:
    """The same inputs with the frozen encoder's features added, which are computed once and kept in `directory`."""

    def add(encoded: EncodedExamples, name: str) -> EncodedExamples:
        return with_features(encoded, inputs.module.encoder, feature_layers, directory / f"{name}.npy", device)

    def add_all(sets: list[ExampleSet] | None, name: str) -> list[ExampleSet] | None:
        if sets is None:
            return None
        return [replace(part, encoded=add(part.encoded, f"{name}-{number}")) for number, part in enumerate(sets)]

    loader = replace(inputs.loader, examples=add(inputs.loader.examples, "train"))
    return replace(inputs, loader=loader, dev=add_all(inputs.dev, "dev"), test=add_all(inputs.test, "test"))
