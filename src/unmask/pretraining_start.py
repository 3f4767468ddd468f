"""Where pre-training starts: random weights, or those of a model, whose objective and family may have been others."""

from __future__ import annotations

from pathlib import Path

from unmask.errors import SettingsError
from unmask.models.conversion import convert_encoder, widen_vocabulary
from unmask.models.elmo import ElmoEncoder
from unmask.models.elmo_settings import ElmoSettings
from unmask.models.encoder import new_encoder
from unmask.models.heads import MaskedLMHead
from unmask.models.hub import load_encoder
from unmask.models.hub_source import read_settings
from unmask.models.settings import AnyArchitecture, EncoderSettings, ModelSettings
from unmask.models.span_boundary_head import SpanBoundaryHead
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.pairings import contradiction, packing_contradiction
from unmask.paths import model_directory
from unmask.recipe import PretrainRecipe
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.word_characters import WordTokenizer


def trained_architecture(settings: PretrainRecipe) -> AnyArchitecture:
    """The family of the encoder that a run trains: the recipe's, or that of `init_from`, which may become another.

    Raises:
        ModelError: `init_from` is no model.
    """
    if settings.init_from is None:
        return settings.model.architecture
    family = read_settings(model_directory(settings.init_from)).architecture
    return "electra" if family == "bert" and settings.objective.name == "replaced_token" else family


def check_model(settings: PretrainRecipe) -> None:
    """Refuses sizes that contradict each other, as far as they are known before there is a tokenizer.

    Raises:
        SettingsError: such a contradiction.
        ModelError: `init_from` is no model.
    """
    if settings.init_from is None:
        _check_positions(settings, settings.model.resolve(settings.model.vocab_size or TokenizerSettings().vocab_size))
        return
    sizes = read_settings(model_directory(settings.init_from))
    _check_positions(settings, sizes)
    architecture, model = trained_architecture(settings), ModelSettings(causal=sizes.causal)
    wrong = contradiction(architecture, model, settings.objective) or packing_contradiction(
        architecture, settings.objective, settings.packing
    )
    if wrong is not None:
        raise SettingsError(f"init_from={settings.init_from} is of the family {sizes.architecture}: {wrong}")


def build_module(settings: PretrainRecipe, objective: Objective, tokenizer: Tokenizer) -> ObjectiveModule:
    """The module to train: random weights, or those of `init_from`, whose sizes then hold.

    Entries that the store's tokenizer has beyond those of `init_from` start as the mean of the pieces that the model's
    own tokenizer makes of them.

    Raises:
        SettingsError: `init_from` has another vocabulary than the store, fewer positions than a sequence, other sizes
            than `model.*` says, or is of a family that the objective does not train.
    """
    if settings.init_from is None:
        sizes = settings.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        _check_positions(settings, sizes)
        return objective.build(new_encoder(sizes, pooler=objective.needs_pooler))
    check_model(settings)
    directory = model_directory(settings.init_from)
    encoder = load_encoder(directory, pooler=objective.needs_pooler).encoder
    pieces = _new_entries(settings, directory, encoder.settings, tokenizer)
    if settings.model != ModelSettings() and settings.model.resolve(*_vocabulary(encoder.settings)) != encoder.settings:
        raise SettingsError(f"model.* says other sizes than init_from={settings.init_from}: leave model.* out")
    module = objective.build(convert_encoder(encoder, trained_architecture(settings), pooler=objective.needs_pooler))
    objective.restore_heads(module, directory)
    for kept in module.saved().values() if pieces else ():
        heads = [part for part in kept.parts.values() if isinstance(part, MaskedLMHead | SpanBoundaryHead)]
        assert not isinstance(kept.encoder, ElmoEncoder), "its words have been compared"
        widen_vocabulary(kept.encoder, heads, tokenizer.vocab_size, pieces)
    return module


def _vocabulary(sizes: EncoderSettings | ElmoSettings) -> tuple[int, int | None]:
    return sizes.vocab_size, sizes.pad_token_id


def _new_entries(
    settings: PretrainRecipe, directory: Path, sizes: EncoderSettings | ElmoSettings, tokenizer: Tokenizer
) -> list[list[int]]:
    """What the model's tokenizer makes of each entry that the store's has beyond it; none where both have the same."""
    before = open_tokenizer(directory) if has_tokenizer(directory) else None
    if before is None and sizes.vocab_size != tokenizer.vocab_size:
        raise SettingsError(
            f"init_from={settings.init_from} has {sizes.vocab_size} vocabulary entries, the store's tokenizer has "
            f"{tokenizer.vocab_size}: prepare the store with the model's tokenizer"
        )
    if before is None or before.token_strings == tokenizer.token_strings:
        return []
    kept = before.vocab_size
    if isinstance(tokenizer, WordTokenizer):
        raise SettingsError(
            f"init_from={settings.init_from} predicts other words than the store's vocabulary holds: prepare the store "
            "with the model's tokenizer"
        )
    if tokenizer.token_strings[:kept] != before.token_strings:
        raise SettingsError(
            f"init_from={settings.init_from} has other vocabulary entries than the store's tokenizer: prepare the "
            "store with the model's tokenizer, or with one made of it by `unmask tokenizer extend`"
        )
    return before.encode_batch([tokenizer.decode([entry]) for entry in range(kept, tokenizer.vocab_size)])


def _check_positions(settings: PretrainRecipe, sizes: EncoderSettings | ElmoSettings) -> None:
    if settings.longest > sizes.num_positions:
        raise SettingsError(
            f"packing.max_length {settings.longest} is over the model's {sizes.num_positions} "
            "positions: shorten the sequences, or raise model.max_position_embeddings"
        )
