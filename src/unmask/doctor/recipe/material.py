"""What a recipe's steps are made of, opened to examine it: its store, a store of its small corpus, or random tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from unmask.batch import Batch
from unmask.config import build_settings
from unmask.corpus.files import find_files
from unmask.corpus.mixture import SUFFIXES as MIXTURE_SUFFIXES
from unmask.doctor.findings import Finding
from unmask.doctor.recipe.estimates import MEASURED_TOKENS, any_vocabulary
from unmask.doctor.recipe.synthetic_batches import expected_length, random_batches
from unmask.doctor.samples import FirstStep, first_step
from unmask.errors import InputError, StoreError
from unmask.io.progress import human_bytes
from unmask.io.writing import temporary_directory
from unmask.models.settings import EncoderSettings
from unmask.objectives.base import Objective, ObjectiveModule, fresh_module
from unmask.objectives.settings import CAUSAL_SHARE
from unmask.objectives.table import new_objective
from unmask.packing.loader import SequenceLoader
from unmask.packing.planning import PlannedSequence, Planner
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.own_store import open_store
from unmask.pretraining.start import Start
from unmask.pretraining.steps import sequence_loader, with_rates
from unmask.recipe.loading import merged_values
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

CORPUS_BYTES = 20_000_000
"""A corpus of files up to this size is tokenized to examine it; for a larger one a store has to be made first."""


def load_recipe(name: str, overrides: Sequence[str]) -> tuple[PretrainRecipe, bool]:
    """Reads a recipe, even one that leaves its text to the command line.

    Returns:
        The recipe, and whether it names its text; if not, `corpus` is a mere placeholder.

    Raises:
        SettingsError: see `unmask.recipe.loading.load_pretrain_recipe`.
    """
    values = merged_values(PretrainRecipe, name, overrides)
    names_text = any(values.get(key) is not None for key in ("corpus", "store"))
    return build_settings(PretrainRecipe, values if names_text else {**values, "corpus": "TEXT"}, name), names_text


def each_phase(settings: PretrainRecipe) -> list[PretrainRecipe]:
    """The recipe as it is in each of its phases, without phases of its own; itself alone if there are none."""
    recipes = []
    for phase in settings.phases:
        batch_size = phase.batch_size or settings.train.batch_size
        given = phase.micro_batch_size or settings.train.micro_batch_size or batch_size
        micro_batch_size = min(given, batch_size) if isinstance(given, int) else given
        train = settings.train.model_copy(update={"batch_size": batch_size, "micro_batch_size": micro_batch_size})
        objective = settings.objective
        if phase.causal_share is not None:
            objective = objective.model_copy(update={CAUSAL_SHARE: phase.causal_share})
        update = {"phases": (), "packing": phase.packing(settings.packing), "train": train, "objective": objective}
        recipes.append(settings.model_copy(update=update))
    return recipes or [settings]


def largest_phase(settings: PretrainRecipe) -> PretrainRecipe:
    """The recipe as it is in the phase whose micro-batches have the most tokens; see `each_phase`."""
    return max(each_phase(settings), key=_tokens_at_once)


def _tokens_at_once(settings: PretrainRecipe) -> tuple[int, int]:
    """The tokens of a micro-batch, and of a sequence: of equal micro-batches, longer sequences cost more attention."""
    train, length = settings.train, settings.packing.max_length
    return train.micro_batch_of(train.batch_size) * length, length


def open_text(start: Start, names_text: bool, stack: ExitStack) -> FirstStep | Finding:
    """The first step of a run on the recipe's text, or a finding that says why there is none.

    Args:
        names_text: see `load_recipe`.
        stack: keeps temporary files.

    Raises:
        UserError: the corpus cannot be read.
    """
    settings = start.recipe
    if not names_text:
        advice = "give store=DIR or corpus=FILE for floors, decoded samples and exact figures"
        return Finding("no-text", "note", "the recipe names no text: random tokens are measured", advice)
    if settings.corpus is not None and (why := _why_not_read(settings, settings.corpus)):
        advice = "make a store of it with `unmask prepare`, and give store=DIR"
        return Finding("text-not-read", "note", f"the corpus is {why}: random tokens are measured in its place", advice)
    directory = stack.enter_context(temporary_directory("unmask-doctor"))
    try:
        store = open_store(start, directory, workers=1)
        return first_step(start, store, load_tokenizer(store.tokenizer_directory))
    except (StoreError, InputError) as error:
        if settings.store is None:
            raise
        return Finding("store-unusable", "fault", str(error), "random tokens are measured in its place")


def _why_not_read(settings: PretrainRecipe, corpus: Sequence[str]) -> str | None:
    """Why a corpus cannot be tokenized to examine it; None if it can."""
    if any(Path(path).suffix in MIXTURE_SUFFIXES for path in corpus):
        return "a mixture, of which a store has to be made first"
    size = sum(path.stat().st_size for path in find_files(corpus, settings.reading.format))
    return f"{human_bytes(size)}, too large to be tokenized for this" if size > CORPUS_BYTES else None


@dataclass(frozen=True)
class _PlannedOnce(Planner):
    """Keeps the plans of blocks, each of which may take seconds."""

    plans: dict[tuple[int, int], list[PlannedSequence]] = field(default_factory=dict)

    def plan_block(self, copy: int, block: int) -> list[PlannedSequence]:
        if (copy, block) not in self.plans:
            self.plans[copy, block] = super().plan_block(copy, block)
        return self.plans[copy, block]


@dataclass(frozen=True)
class Material:
    """What a recipe trains, and on what."""

    start: Start
    objective: Objective  # masks the batches
    sizes: EncoderSettings  # the encoder's
    text: FirstStep | None  # None if random tokens replace it

    @classmethod
    def of(cls, start: Start, text: FirstStep | None) -> Material:
        """Brings a recipe and its text together.

        Raises:
            UserError: the tokenizer does not load, or the sizes contradict each other.
        """
        settings, sizes = start.recipe, start.sizes
        if sizes is not None:
            widened = {} if text is None else {"vocab_size": text.tokenizer.vocab_size}
            sizes = sizes.model_copy(update={"architecture": start.family.name} | widened)
        elif text is not None:
            sizes = settings.model.resolve(text.tokenizer.vocab_size, text.tokenizer.pad_id)
        elif isinstance(settings.tokenizer, TokenizerSettings):
            sizes = settings.model.resolve(settings.model.vocab_size or settings.tokenizer.vocab_size)
        else:
            tokenizer = settings.tokenizer
            sizes = settings.model.resolve(settings.model.vocab_size or load_tokenizer(Path(tokenizer)).vocab_size)
        assert isinstance(sizes, EncoderSettings), "recipes of ELMo are not examined"
        if text is not None:
            return cls(start, text.objective, sizes, text)
        return cls(start, new_objective(settings.objective, any_vocabulary(sizes.vocab_size)), sizes, None)

    @property
    def settings(self) -> PretrainRecipe:
        return self.start.recipe

    @property
    def tokens_per_step(self) -> float:
        if self.text is not None:
            return float(self.text.num_tokens)
        return self.settings.train.batch_size * expected_length(self.settings)

    @property
    def epochs_per_step(self) -> float | None:
        """The share of the text that a step shows; None: there is no text."""
        return None if self.text is None else self.text.epochs

    @property
    def length(self) -> float:
        """The mean tokens of a sequence."""
        return self.tokens_per_step / self.settings.train.batch_size

    @property
    def rates(self) -> dict[str, float]:
        """What the objective does when its last stage begins, which takes the longest and keeps the most."""
        objective = self.settings.objective
        return objective.rates((0.0, *objective.stages)[-2], self.settings.all_phases[0].causal_share)

    @cached_property
    def usual_batch(self) -> Batch:
        """About `MEASURED_TOKENS` tokens in sequences like those that the last stage begins with, prepared."""
        return self.objective.prepare(next(self.batches(max(1, int(MEASURED_TOKENS / self.length)))))

    def batches(self, sequences: int) -> Iterator[Batch]:
        """Endless batches of `sequences` sequences, not masked yet."""
        return (with_rates(batch, self.rates) for batch in self._batches(sequences))

    def _batches(self, sequences: int) -> Iterator[Batch]:
        if self.text is None:
            yield from random_batches(self.settings, self.sizes.vocab_size, sequences)
            return
        for step in replace(self._loader, batch_size=sequences, micro_batch_size=sequences).steps():
            yield step.batches[0]

    @cached_property
    def _loader(self) -> SequenceLoader:
        assert self.text is not None, "there are no documents"
        store, tokenizer, phase = self.text.store, self.text.tokenizer, self.settings.all_phases[0]
        loader = sequence_loader(self.start, store, tokenizer, held_out=False, phase=phase)
        planner = loader.planner
        return replace(loader, planner=_PlannedOnce(planner.split, planner.format, planner.seed))

    def module(self) -> ObjectiveModule:
        """The module that a run would train, with its initial weights."""
        if self.text is not None:
            return build_module(self.start, self.objective, self.text.tokenizer)
        return fresh_module(self.objective, self.sizes)
