"""Tokens named beside a `vocab.txt`, or a vocabulary with merges: `added_tokens.json`, and keys of
`tokenizer_config.json`.

They are looked for in a text before all other steps, with the flags of a `tokenizer.json`: `special` ones are skipped
in decoding, `normalized` ones are looked for after the normaliser, `lstrip` and `rstrip` absorb the white space beside
them, `single_word` ones are no part of a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.io.json_files import read_object
from unmask.tokenization.definition import Definition

ADDED_TOKENS, BY_ID = "added_tokens.json", "added_tokens_decoder"
"""The file of tokens and their ids, and the key of `tokenizer_config.json` that is read in its place."""
EXTRA = ("extra_special_tokens", "additional_special_tokens")
"""Keys of further special tokens, as `transformers` 5 and 4 name it."""


def as_texts(config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The further special tokens without flags, by key: as `special_tokens_map.json` has flags, `transformers` refuses
    them in `tokenizer_config.json`."""
    return {key: [_content(token) for token in config[key]] for key in EXTRA if isinstance(config.get(key), list)}


def tokens_beside(
    path: Path, config: Mapping[str, Any], roles: Collection[str], vocab: Mapping[str, int]
) -> dict[str, Definition]:
    """The tokens by content, with the ids and flags that `transformers` gives them, as in a `tokenizer.json`, which has
    all of its own.

    Args:
        path: of the vocabulary.
        config: `special_tokens_map.json`, and over it `tokenizer_config.json`.
        roles: keys of special tokens with a role, of which those with flags are read.
        vocab: entry -> id, without added tokens.

    Raises:
        ModelError: a token is not laid out as `transformers` writes it, or its id is neither that of the vocabulary
            nor the next one after it.
    """
    where, named = path.with_name("tokenizer_config.json"), config.get(BY_ID)
    try:
        extra = config.get(EXTRA[0]) or config.get(EXTRA[1]) or []
        extra = list(extra.values() if isinstance(extra, dict) else extra)
        flagged = [config[role] for role in roles if isinstance(config.get(role), dict)]
        others = [(None, _token(token, special=True)) for token in (*flagged, *extra)]
        if named is None and path.with_name(ADDED_TOKENS).is_file():
            where = path.with_name(ADDED_TOKENS)
            special = {_content(token) for token in (*(config.get(role) for role in roles), *extra)}
            ids = read_object(where, ModelError)
            named = {index: {"content": content, "special": content in special} for content, index in ids.items()}
        numbered = sorted(((int(index), _token(token)) for index, token in (named or {}).items()), key=itemgetter(0))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{where}: its added tokens are not laid out as transformers writes them ({error!r}): correct them, or "
            "get the file again"
        ) from error
    tokens: dict[str, Definition] = {}
    for index, token in (*numbered, *others):
        content = token["content"]
        after = max(len(vocab), *(each["id"] + 1 for each in tokens.values()), 0)
        expected = tokens[content]["id"] if content in tokens else vocab.get(content, after)
        if index not in (None, expected):
            raise ModelError(
                f"{where}: the added token {content!r} has the id {index}; expected {expected}, as in {path.name} or "
                "the next one after it: correct the id, or the vocabulary"
            )
        tokens.setdefault(content, {"id": expected, **token})
    return tokens


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _token(named: Any, special: bool = False) -> Definition:
    content = _content(named)
    if not isinstance(content, str) or not content:
        raise TypeError(f"{named!r} is no token")
    given = named if isinstance(named, dict) else {}
    special = special or given.get("special") is True
    flags = {flag: given.get(flag) is True for flag in ("single_word", "lstrip", "rstrip")}
    return {"content": content, **flags, "normalized": given.get("normalized", not special) is True, "special": special}
