"""Where pre-training starts: random weights, or those of a model, perhaps of another objective and family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.errors import SettingsError
from unmask.io.paths import model_directory
from unmask.models.elmo.settings import ELMO_PRESETS, ElmoModelSettings
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.models.hub.conversion import sizes_with_dropout
from unmask.models.hub.source import ModelSource, open_source
from unmask.models.settings import DROPOUTS, EncoderSettings, ModelSettings
from unmask.models.sizes import AnyModelSettings, Sizes
from unmask.recipe.pairings import contradiction
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings


@dataclass(frozen=True)
class Start:
    """Where a run starts, opened once and passed on.

    Attributes:
        recipe: of the run.
        source: the model directory in `init_from`; None for random weights.
        sizes: of its encoder, with the dropout, and where there are more, the layers, that `model.*` gives in its
            place; None for random weights, whose vocabulary is that of a tokenizer.
        family: of the encoder that the run trains: the recipe's, or what that of `init_from` becomes.
        tokenizer: the one beside `init_from`; None where there is none.
        has_two_segments: whether the encoder distinguishes segments; else every token is in segment 0.
    """

    recipe: PretrainRecipe
    source: ModelSource | None
    sizes: Sizes | None
    family: Family
    tokenizer: Tokenizer | None
    has_two_segments: bool

    def trained_length(self, phase: int | None = None) -> int | None:
        """The longest sequence that the run's model has seen, in tokens: position embeddings beyond it are as they were
        drawn. None: all positions of `init_from` have been trained, as far as its `config.json` says.

        Args:
            phase: the one that it is in, from 0; None after the last.
        """
        recipe = self.recipe
        seen = recipe.phases if phase is None else recipe.phases[: phase + 1]
        lengths = [each.packing(recipe.packing).max_length for each in seen]
        longest = max(lengths, default=recipe.packing.max_length)
        if self.source is None:
            return longest
        before = self.source.trained_length
        return None if before is None else max(before, longest)


def open_start(recipe: PretrainRecipe) -> Start:
    """Opens what a run starts from, and refuses sizes that contradict each other, as far as they are known before the
    text's tokenizer is.

    Raises:
        SettingsError: sizes contradict each other, or what the objective trains.
        ModelError: `init_from` is not a model.
    """
    if recipe.init_from is None:
        fresh = recipe.model.resolve(recipe.model.vocab_size or TokenizerSettings().vocab_size)
        check_positions(recipe, fresh)
        return Start(recipe, None, None, recipe.model.family, None, fresh.type_vocab_size > 1)
    source = open_source(model_directory(recipe.init_from))
    sizes = sizes_with_dropout(source.settings, given_dropout(recipe.model), recipe.init_from)
    family = ARCHITECTURES[recipe.objective.becomes.get(source.family.name, source.family.name)]
    _check_sizes(recipe, sizes)
    wrong = contradiction(recipe.objective, family.name, sizes.is_causal, recipe.packing, recipe.init_from)
    if wrong is not None:
        raise SettingsError(wrong)
    if isinstance(sizes, EncoderSettings):
        sizes = sizes.model_copy(update={"num_hidden_layers": _depth(recipe.model, sizes)})
    check_positions(recipe, sizes)
    tokenizer = open_tokenizer(source.directory) if has_tokenizer(source.directory) else None
    return Start(recipe, source, sizes, family, tokenizer, sizes.type_vocab_size > 1)


def _check_sizes(settings: PretrainRecipe, sizes: Sizes) -> None:
    """Refuses `model.*` if what it gives differs from the model in `init_from`, and what is said of random weights."""
    ours, theirs = _given_sizes(settings.model, sizes.family), sizes.model_dump()
    if isinstance(sizes, EncoderSettings):
        theirs["num_hidden_layers"] = _depth(settings.model, sizes)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if "architecture" in differing:
        differing = ["architecture"]  # the rest follows from it
    if differing:
        given = ", ".join(f"{name} {ours[name]} and not {theirs[name]}" for name in differing)
        raise SettingsError(
            f"model.* says other sizes than init_from={settings.init_from} by its config.json: {given}; the model that "
            "is there has its sizes, so leave model.* out, or take a recipe without it, such as pretrain/continued or "
            "pretrain/continued_electra"
        )
    zeroed = isinstance(settings.model, ModelSettings) and settings.model.zero_output_projections
    if settings.objective.output_bias != "zero" or zeroed:
        raise SettingsError(
            f"init_from={settings.init_from} has weights, and objective.output_bias and model.zero_output_projections "
            "are for random ones: leave them out, or, where the recipe has them, give objective.output_bias=zero and "
            "model.zero_output_projections=false"
        )


def _given_sizes(model: AnyModelSettings, family: Family) -> dict[str, Any]:
    """The sizes that `model.*` gives, including those of a preset, but not those that follow from defaults."""
    no_size = {"preset", "zero_output_projections", *DROPOUTS}
    given = model.model_dump(include=model.model_fields_set - no_size, exclude_none=True)
    has_preset = "preset" in model.model_fields_set
    if isinstance(model, ElmoModelSettings) != family.reads_words:
        return {"architecture": model.architecture} if given or has_preset else {}
    if not has_preset:
        return given
    if isinstance(model, ElmoModelSettings):
        return ELMO_PRESETS[model.preset].model_dump(exclude={"vocab_size", *DROPOUTS}) | given
    sizes = {**model.family.presets[model.preset], **given}
    return {"intermediate_size": round(model.family.feed_forward_factor * sizes["hidden_size"])} | sizes


def _depth(model: AnyModelSettings, sizes: EncoderSettings) -> int:
    """The layers of the run's encoder: those of `init_from`, or more where `model.num_hidden_layers` says so and its
    family can be deepened."""
    given = getattr(model, "num_hidden_layers", None) or 0
    return max(given, sizes.num_hidden_layers) if sizes.family.deepen else sizes.num_hidden_layers


def given_dropout(model: AnyModelSettings) -> dict[str, float]:
    """The dropout that `model.*` gives in place of that of `init_from`."""
    return model.model_dump(include=model.model_fields_set.intersection(DROPOUTS), exclude_none=True)


def check_positions(settings: PretrainRecipe, sizes: Sizes) -> None:
    """Refuses, by a SettingsError, sequences that are longer than the encoder has positions."""
    (key, longest), most = settings.longest, sizes.num_positions
    if longest <= most:
        return
    whose, fix = f"init_from={settings.init_from}", "shorten the sequences"
    if settings.init_from is None:
        whose, fix = "the model", f"{fix}, or raise model.max_position_embeddings"
    raise SettingsError(f"{key} {longest} is over the {most} positions of {whose}: {fix}")
