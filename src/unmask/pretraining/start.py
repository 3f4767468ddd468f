"""Where pre-training starts: random weights, or those of a model, perhaps of another objective and family."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tokenizers.models import WordPiece

from unmask.errors import SettingsError
from unmask.io.paths import model_directory
from unmask.models.bert import BertEncoder
from unmask.models.elmo.settings import ELMO_PRESETS, AnyModelSettings, ElmoModelSettings, ElmoSettings
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.hub.conversion import bert_as_electra, sizes_with_dropout, widen_vocabulary, with_dropout
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.source import ModelSource, open_source
from unmask.models.settings import DROPOUTS, EncoderSettings, ModelSettings
from unmask.objectives.base import Objective, ObjectiveModule, fresh_module
from unmask.recipe.pairings import contradiction
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.encoding.plain_text import PlainTextEncoder
from unmask.tokenization.library import open_definition
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

logger = logging.getLogger("unmask")

_MOST_SHOWN = 5


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
    """

    recipe: PretrainRecipe
    source: ModelSource | None
    sizes: EncoderSettings | ElmoSettings | None
    family: Family
    tokenizer: Tokenizer | None

    @property
    def has_two_segments(self) -> bool:
        """Whether the encoder distinguishes segments; else every token is in segment 0."""
        if self.sizes is not None:
            return self.sizes.type_vocab_size > 1
        model = self.recipe.model
        assert isinstance(model, ModelSettings), "ELMo's text is in no segments"
        usual = model.family.presets[model.preset].get("type_vocab_size", EncoderSettings().type_vocab_size)
        return (model.type_vocab_size or int(usual)) > 1

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
        _check_positions(recipe, recipe.model.resolve(recipe.model.vocab_size or TokenizerSettings().vocab_size))
        return Start(recipe, None, None, recipe.model.family, None)
    source = open_source(model_directory(recipe.init_from))
    sizes = sizes_with_dropout(source.settings, _dropout(recipe.model), recipe.init_from)
    family = ARCHITECTURES[recipe.objective.becomes.get(source.family.name, source.family.name)]
    _check_sizes(recipe, sizes)
    wrong = contradiction(recipe.objective, family.name, sizes.is_causal, recipe.packing, recipe.init_from)
    if wrong is not None:
        raise SettingsError(wrong)
    if isinstance(sizes, EncoderSettings):
        sizes = sizes.model_copy(update={"num_hidden_layers": _depth(recipe.model, sizes)})
    _check_positions(recipe, sizes)
    tokenizer = open_tokenizer(source.directory) if has_tokenizer(source.directory) else None
    return Start(recipe, source, sizes, family, tokenizer)


def build_module(start: Start, objective: Objective, tokenizer: Tokenizer) -> ObjectiveModule:
    """The module to train: with random weights, or with the weights and sizes of `init_from`, and its dropout unless
    `model.*` gives another.

    Entries that the store's tokenizer has beyond those of `init_from` start as the mean of the pieces that the model's
    own tokenizer makes of them, and so do tokens that were added to that tokenizer but not to the model.

    Raises:
        SettingsError: `init_from` has another vocabulary than the store or than the tokenizer beside it, or sizes
            contradict each other.
    """
    recipe = start.recipe
    if start.source is None:
        sizes = recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        _check_positions(recipe, sizes)
        return fresh_module(objective, sizes)
    dropout, name = _dropout(recipe.model), str(recipe.init_from)
    encoder = with_dropout(load_encoder(start.source, pooler=objective.needs_pooler).encoder, dropout, name)
    pieces = _new_entries(start, tokenizer)
    if isinstance(encoder.settings, EncoderSettings):
        depth, deepen = _depth(recipe.model, encoder.settings), encoder.settings.family.deepen
        if deepen is not None and depth > encoder.settings.num_hidden_layers:
            encoder = resolve_name(deepen)(encoder, depth)
    if start.family != encoder.settings.family:
        assert isinstance(encoder, BertEncoder), "no other family becomes one"
        encoder = bert_as_electra(encoder)
    module = objective.build(encoder)
    objective.restore_heads(module, start.source, partial(with_dropout, dropout=dropout, name=name))
    for kept in module.saved().values() if pieces else ():
        heads = [head for head in kept.all_heads if isinstance(head, MaskedLMHead | SpanBoundaryHead)]
        assert not kept.encoder.reads_words, "its words have been compared"
        widen_vocabulary(kept.encoder, heads, tokenizer.vocab_size, pieces)
    return module


def describe_new_layers(start: Start) -> str | None:
    """A note on the layers that the run has beyond those of `init_from`; None if there are none."""
    before = None if start.source is None else start.source.settings
    if not (isinstance(before, EncoderSettings) and isinstance(start.sizes, EncoderSettings)):
        return None
    known, number = before.num_hidden_layers, start.sizes.num_hidden_layers
    if number == known:
        return None
    return (
        f"init_from={start.recipe.init_from} has {known} layers, and the run {number}: the {number - known} new ones "
        "are copies that change nothing at first"
    )


def describe_new_entries(start: Start, tokenizer: Tokenizer) -> str | None:
    """A note on the entries that `init_from` gets from the tokenizer of a store, or that its own are unknown; None if
    they are the same.

    Args:
        tokenizer: the store's, which `build_module` has accepted.
    """
    if start.source is None:
        return None
    if start.tokenizer is None:
        return (
            f"init_from={start.recipe.init_from} has no tokenizer beside it: it has as many entries as the store's, "
            f"{tokenizer.vocab_size:,}, but whether they are the same cannot be checked"
        )
    known = start.tokenizer.vocab_size
    if tokenizer.vocab_size == known:
        return None
    return (
        f"{tokenizer.vocab_size - known:,} of the {tokenizer.vocab_size:,} entries of the store's tokenizer are new to "
        f"init_from={start.recipe.init_from}: each starts as the mean of the pieces that the model's own tokenizer "
        "makes of it, a special token as the mean of all entries"
    )


def _check_sizes(settings: PretrainRecipe, sizes: EncoderSettings | ElmoSettings) -> None:
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


def _dropout(model: AnyModelSettings) -> dict[str, float]:
    """The dropout that `model.*` gives in place of that of `init_from`."""
    return model.model_dump(include=model.model_fields_set.intersection(DROPOUTS), exclude_none=True)


def check_vocabulary(start: Start, tokenizer: Tokenizer, whose: str = "the store's tokenizer") -> None:
    """Refuses a tokenizer whose first entries are not those of `init_from`, in their order, and a model whose generator
    has other entries than itself.

    Args:
        whose: where the tokenizer is, for the message.
    """
    if start.source is None:
        return  # any will do
    settings, sizes, before = start.recipe, start.source.settings, start.tokenizer
    directory = start.source.directory
    own = f"tokenizer={directory}" if settings.store is None else _preparing_with(directory)
    if before is None and sizes.vocab_size != tokenizer.vocab_size:
        raise SettingsError(
            f"init_from={settings.init_from} has {sizes.vocab_size} vocabulary entries by its config.json, and no "
            f"tokenizer beside it; {whose} has {tokenizer.vocab_size}: prepare the text with the one that the model "
            "was trained with, `unmask prepare TEXT --tokenizer DIR --out STORE`"
        )
    if before is None:
        return
    if tokenizer.reads_words or before.reads_words:
        if before.token_strings != tokenizer.token_strings:
            raise SettingsError(
                f"init_from={settings.init_from} predicts other words than those of {whose}: take the model's own, "
                f"{own}"
            )
        return
    if tokenizer.token_strings[: before.vocab_size] != before.token_strings:
        raise SettingsError(
            f"init_from={settings.init_from} has other vocabulary entries than {whose}: take the model's own, {own}, "
            f"or one that `unmask tokenizer extend {directory} --words FILE --out DIR` has made of it"
        )
    for folder in settings.objective.folders:
        beside = directory / folder
        if has_tokenizer(beside) and open_tokenizer(beside).token_strings != before.token_strings:
            raise SettingsError(
                f"{beside} has other vocabulary entries than {directory}, by the tokenizers beside them: put the "
                f"{folder} there that was trained with it, or remove the folder for a fresh one"
            )
    if before.backend.get_vocab_size(with_added_tokens=False) > sizes.vocab_size:
        raise SettingsError(
            f"{_both_sizes(settings, before, sizes.vocab_size)}, which are not added tokens: put the tokenizer beside "
            "it that the model was trained with"
        )


def _new_entries(start: Start, tokenizer: Tokenizer) -> list[list[int]]:
    """The pieces that the model's tokenizer makes of each entry at the end of the store's that the model lacks."""
    check_vocabulary(start, tokenizer)
    before = start.tokenizer
    if start.source is None or before is None or before.reads_words or tokenizer.reads_words:
        return []
    known = start.source.settings.vocab_size
    if known < before.vocab_size:
        _warn_of_added(start.recipe, before, known)
    return _pieces(before, min(before.vocab_size, known), tokenizer)


def _both_sizes(settings: PretrainRecipe, before: TextTokenizer, known: int) -> str:
    return (
        f"init_from={settings.init_from} has {known:,} vocabulary entries by its config.json, and the tokenizer beside "
        f"it {before.vocab_size:,}"
    )


def _warn_of_added(settings: PretrainRecipe, before: TextTokenizer, known: int) -> None:
    """Warns of tokens that were added to a model's tokenizer but not to the model (`add_tokens` of `transformers`
    without `resize_token_embeddings`)."""
    added = before.token_strings[known:]
    listed = ", ".join(added[:_MOST_SHOWN]) + (", ..." if len(added) > _MOST_SHOWN else "")
    logger.warning(
        "%s: the model gets the %s that it lacks (%s), each as the mean of the pieces it was written with before",
        _both_sizes(settings, before, known),
        f"{len(added):,}",
        listed,
    )


def _pieces(before: TextTokenizer, known: int, tokenizer: TextTokenizer) -> list[list[int]]:
    """The pieces, among the first `known` entries of a tokenizer, of each further entry of another tokenizer.

    A special token has none. An entry that continues a word is cut as it would be inside a word.
    """
    definition = json.loads(before.backend.to_str())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] < known]
    encoder = PlainTextEncoder(open_definition(definition, "the model's tokenizer"))
    prefix = definition["model"].get("continuing_subword_prefix") or ""
    inside = _inside_words(before) if before.kind == "wordpiece" else None
    added = tokenizer.backend.get_added_tokens_decoder()
    pieces: list[list[int]] = []
    for entry in range(known, tokenizer.vocab_size):
        if entry in tokenizer.special_ids:
            pieces.append([])
        elif inside is not None and tokenizer.continuation[entry]:
            rest = tokenizer.token_strings[entry].removeprefix(prefix)
            pieces.append([piece.id for piece in inside.tokenize(rest)])
        else:  # an added token means its own text, not for what a decoder would make of it
            text = added[entry].content if entry in added else tokenizer.decode([entry])
            pieces += encoder.encode_batch([before.segment(text)])
    return pieces


def _inside_words(tokenizer: TextTokenizer) -> WordPiece:
    """A tokenizer's longest-match rule as it works inside a word, after its beginning."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    prefix, unknown = model["continuing_subword_prefix"], model["unk_token"]
    continuing = {entry: index for entry, index in model["vocab"].items() if entry.startswith(prefix)}
    begins = {entry.removeprefix(prefix): index for entry, index in continuing.items()}
    return WordPiece(
        begins | continuing | {unknown: model["vocab"][unknown]},
        unk_token=unknown,
        max_input_chars_per_word=model["max_input_chars_per_word"],
        continuing_subword_prefix=prefix,
    )


def _preparing_with(directory: Path) -> str:
    return f"by `unmask prepare TEXT --tokenizer {directory} --out STORE`, and give store=STORE"


def _check_positions(settings: PretrainRecipe, sizes: EncoderSettings | ElmoSettings) -> None:
    (key, longest), most = settings.longest, sizes.num_positions
    if longest <= most:
        return
    if settings.init_from is None:
        found, fix = f"the model's {most} positions", "shorten the sequences, or raise model.max_position_embeddings"
    else:
        found, fix = (
            f"the {most} positions of init_from={settings.init_from} by its config.json",
            "shorten the sequences",
        )
    raise SettingsError(f"{key} {longest} is over {found}: {fix}")
