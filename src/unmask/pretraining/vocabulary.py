"""The vocabulary of `init_from` beside that of the run's tokenizer: what is refused, and how new entries start."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from unmask.errors import SettingsError
from unmask.io.progress import listed
from unmask.pretraining.start import Start
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.encoding.plain_text import PlainTextEncoder
from unmask.tokenization.library import open_definition
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer

logger = logging.getLogger("unmask")


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


def describe_new_entries(start: Start, tokenizer: Tokenizer) -> str | None:
    """A note on the entries that the store's tokenizer adds to those of `init_from`, or that the two cannot be
    compared; None where they are the same.

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


def new_entries(start: Start, tokenizer: Tokenizer) -> list[list[int]]:
    """The pieces that the model's tokenizer makes of each entry at the end of the store's that the model lacks."""
    check_vocabulary(start, tokenizer)
    before = start.tokenizer
    if start.source is None or before is None or before.reads_words or tokenizer.reads_words:
        return []
    known = start.source.settings.vocab_size
    if known < before.vocab_size:
        _warn_of_added(start.recipe, before, known)
    return _pieces(before, min(before.vocab_size, known), tokenizer)


def _pieces(before: TextTokenizer, known: int, tokenizer: TextTokenizer) -> list[list[int]]:
    """The pieces, among the first `known` entries of a tokenizer, of each further entry of another tokenizer.

    A special token has none. An entry that continues a word is cut as it would be inside a word.
    """
    definition = json.loads(before.backend.to_str())
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["id"] < known]
    encoder = PlainTextEncoder(open_definition(definition, "the model's tokenizer"))
    prefix = definition["model"].get("continuing_subword_prefix") or ""
    inside = before.inside_words if before.kind == "wordpiece" else None
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


def _warn_of_added(settings: PretrainRecipe, before: TextTokenizer, known: int) -> None:
    """Warns of tokens that were added to a model's tokenizer but not to the model (`add_tokens` of `transformers`
    without `resize_token_embeddings`)."""
    added = before.token_strings[known:]
    logger.warning(
        "%s: the model gets the %s that it lacks (%s), each as the mean of the pieces it was written with before",
        _both_sizes(settings, before, known),
        f"{len(added):,}",
        listed(added),
    )


def _both_sizes(settings: PretrainRecipe, before: TextTokenizer, known: int) -> str:
    return (
        f"init_from={settings.init_from} has {known:,} vocabulary entries by its config.json, and the tokenizer beside "
        f"it {before.vocab_size:,}"
    )


def _preparing_with(directory: Path) -> str:
    return f"by `unmask prepare TEXT --tokenizer {directory} --out STORE`, and give store=STORE"
