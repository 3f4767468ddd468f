"""A tokenizer as data: the content of `tokenizer.json`, the one description that every version of the library reads.

It names the steps in order (normalizer, pre_tokenizer, model, post_processor, decoder) and the tokens that are looked
for before all of them (added_tokens). Here are the parts that several kinds share, and the facts read from one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import ModelError

Definition = dict[str, Any]

SPACE = "Ġ"
"""A space before a word, as byte-level BPE writes it (Radford et al. 2019)."""

SENTENCEPIECE_SPACE = "▁"
"""The same, as SentencePiece writes it (Kudo and Richardson 2018)."""


def json_bytes(value: Mapping[str, object]) -> bytes:
    """A JSON file of a tokenizer's directory."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def make_definition(
    *,
    added_tokens: Iterable[Mapping[str, Any]],
    normalizer: Definition | None,
    pre_tokenizer: Definition,
    post_processor: Definition | None,
    decoder: Definition,
    model: Definition,
) -> Definition:
    """Assembles the parts in the library's own order."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def special_added_tokens(
    vocab: Mapping[str, int], entries: Iterable[str], takes_space: Sequence[str] = ()
) -> list[Definition]:
    """The special tokens, ascending by id.

    Args:
        entries: of the special tokens; one may be named twice.
        takes_space: those that absorb white space before them.
    """
    return [
        {
            "id": vocab[entry],
            "content": entry,
            "single_word": False,
            "lstrip": entry in takes_space,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for entry in sorted(set(entries), key=vocab.__getitem__)
    ]


def bert_normalizer(
    lowercase: bool, strip_accents: bool | None = None, *, compose: bool, split_han: bool = True
) -> Definition:
    """BERT's normaliser.

    Args:
        lowercase: True for an uncased vocabulary.
        strip_accents: None strips them if `lowercase`.
        compose: True ends with NFC, as in all tokenizers trained here; False is exactly what Google released.
        split_han: True puts spaces around Han characters.
    """
    bert = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": split_han,
        "strip_accents": strip_accents,
        "lowercase": lowercase,
    }
    return {"type": "Sequence", "normalizers": [bert, {"type": "NFC"}]} if compose else bert


def bpe_model(
    vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], unknown: str | None, suffix: str
) -> Definition:
    """A model of BPE.

    Args:
        suffix: of an entry that ends a word.
    """
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": suffix,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [list(pair) for pair in merges],
    }


def template(vocab: Mapping[str, int], single: str, pair: str) -> Definition:
    """A post-processor that puts special tokens around texts.

    Args:
        single: entries, and `$A`, each with its segment: "[CLS]:0 $A:0 [SEP]:0".
        pair: likewise, with `$B`.
    """
    used: dict[str, Definition] = {}

    def pieces(words: str) -> Iterator[Definition]:
        for word in words.split():
            name, _, segment = word.rpartition(":")
            if name in ("$A", "$B"):
                yield {"Sequence": {"id": name[1:], "type_id": int(segment)}}
            else:
                used[name] = {"id": name, "ids": [vocab[name]], "tokens": [name]}
                yield {"SpecialToken": {"id": name, "type_id": int(segment)}}

    pieces_of = {"single": list(pieces(single)), "pair": list(pieces(pair))}
    return {"type": "TemplateProcessing", **pieces_of, "special_tokens": {name: used[name] for name in sorted(used)}}


MOST_IDS = 1 << 24
"""Far over every vocabulary: a list with a place for each id has to fit into memory."""


@dataclass(frozen=True)
class Piece:
    """One piece of an input."""

    text: str  # "A" or "B" for a text's tokens; "" for special tokens
    ids: tuple[int, ...]  # of the special tokens
    segment: int  # its `token_type_ids`


@dataclass(frozen=True)
class TextTemplate:
    """Where special tokens stand: the pieces of a single text, and of a pair."""

    single: tuple[Piece, ...]
    pair: tuple[Piece, ...]


_A, _B = Piece("A", (), 0), Piece("B", (), 0)
BARE = TextTemplate((_A,), (_A, Piece("B", (), 1)))
"""No special tokens around text, as in GPT-1's contiguous sequences (Radford et al. 2018, section 4.1)."""


@dataclass(frozen=True)
class Facts:
    """Facts about a tokenizer, from its definition."""

    # a key of `unmask.tokenization.learning.train.TOKENIZERS`, or `sentencepiece` for its BPE, which is only opened:
    # characters that are no entries become bytes
    kind: str
    template: TextTemplate  # what is added around texts
    entries: tuple[str, ...]  # the entry of each id, added tokens included; the empty string for an unused id
    special_ids: frozenset[int]  # of the added tokens that are special
    unknown: str | None  # the entry that unknown characters or words become; None if nothing is unknown
    prefix: str  # of an entry that continues a word; empty if such entries have no prefix


def read_facts(definition: Definition, where: object) -> Facts:
    """Reads a definition.

    Raises:
        ModelError: it is of an unknown kind, not laid out as the library writes it, or lacks its unknown token.
    """
    try:
        return Facts(
            kind=_read_kind(definition, where),
            template=_read_template(definition, where),
            entries=_read_entries(definition),
            special_ids=frozenset(token["id"] for token in _added_tokens(definition) if token["special"]),
            unknown=_read_unknown(definition, where),
            prefix=definition["model"].get("continuing_subword_prefix") or "",
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{where} is not laid out as a tokenizer.json of the tokenizers library ({error!r}): is it one?"
        ) from error


def in_order(vocab: Mapping[str, int]) -> tuple[str, ...]:
    """The entry of each id; the empty string for an unused one. Raises ValueError if an id is negative or too high."""
    for entry, index in vocab.items():
        if not 0 <= index < MOST_IDS:
            raise ValueError(f"the id of {entry!r} is {index:,}: expected 0 to {MOST_IDS - 1:,}")
    entries = [""] * (max(vocab.values(), default=-1) + 1)
    for entry, index in vocab.items():
        entries[index] = entry
    return tuple(entries)


def _added_tokens(definition: Definition) -> list[Definition]:
    return definition.get("added_tokens") or []


def _read_template(definition: Definition, where: object) -> TextTemplate:
    """What the post-processor adds."""
    template = BARE
    for step in steps_of(definition.get("post_processor"), "processors"):
        kind = step["type"]
        if kind == "TemplateProcessing":
            template = TextTemplate(_template_pieces(step, "single"), _template_pieces(step, "pair"))
        elif kind in ("BertProcessing", "RobertaProcessing"):
            cls, sep = Piece("", (step["cls"][1],), 0), Piece("", (step["sep"][1],), 0)
            pair: tuple[Piece, ...]
            if kind == "BertProcessing":
                pair = (cls, _A, sep, Piece("B", (), 1), Piece("", sep.ids, 1))
            else:
                pair = (cls, _A, sep, sep, _B, sep)
            template = TextTemplate((cls, _A, sep), pair)
        elif kind != "ByteLevel":  # which only trims offsets
            raise ModelError(f"{where}: the post-processor {kind!r} is not known; expected one of a BERT or GPT family")
    texts = ["".join(piece.text for piece in pieces) for pieces in (template.single, template.pair)]
    if texts != ["A", "AB"]:
        raise ModelError(f"{where}: its template has the texts {texts[0]!r} and {texts[1]!r}; expected 'A' and 'AB'")
    return template


def _template_pieces(step: Definition, which: str) -> tuple[Piece, ...]:
    pieces = []
    for piece in step[which]:
        if "Sequence" in piece:
            pieces.append(Piece(piece["Sequence"]["id"], (), piece["Sequence"]["type_id"]))
        else:
            named = piece["SpecialToken"]
            pieces.append(Piece("", tuple(step["special_tokens"][named["id"]]["ids"]), named["type_id"]))
    return tuple(pieces)


def _read_kind(definition: Definition, where: object) -> str:
    model = definition.get("model") or {}
    # Files of old versions omit the type.
    untyped = "BPE" if "merges" in model else "WordPiece" if "max_input_chars_per_word" in model else None
    kind = model.get("type") or untyped
    splitters = {step["type"] for step in steps_of(definition.get("pre_tokenizer"), "pretokenizers")}
    if kind == "WordPiece":
        return "wordpiece"
    if kind == "BPE" and model.get("end_of_word_suffix"):
        return "bpe"
    if kind == "BPE" and "ByteLevel" in splitters:
        return "byte_bpe"
    if kind == "BPE" and definition["model"].get("byte_fallback"):
        return "sentencepiece"
    raise ModelError(
        f"{where}: the model's type is {kind!r}; expected WordPiece as of the BERT family, BPE with an end-of-word "
        "mark as of GPT-1, byte-level BPE as of GPT-2, RoBERTa and ModernBERT, or SentencePiece's BPE as of mmBERT"
    )


def _read_unknown(definition: Definition, where: object) -> str | None:
    model = definition["model"]
    unknown: str | None = model.get("unk_token")
    if unknown is not None and unknown not in model["vocab"] and _read_kind(definition, where) in ("wordpiece", "bpe"):
        raise ModelError(
            f"{where}: model.unk_token is {unknown!r}, which is not in model.vocab: expected the entry there that "
            "unknown words become; correct one of the two"
        )
    return unknown


def _read_entries(definition: Definition) -> tuple[str, ...]:
    vocab: dict[str, int] = dict(definition["model"]["vocab"])
    return in_order(vocab | {token["content"]: token["id"] for token in _added_tokens(definition)})


def steps_of(step: Definition | None, inner: str) -> Iterator[Definition]:
    """A step of a definition, or the steps inside it if it is a sequence, which keeps them under `inner`."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for each in step[inner]:
            yield from steps_of(each, inner)
    else:
        yield step
