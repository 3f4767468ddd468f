"""A trained tokenizer: text to ids and back, opened from a directory that `transformers` opens too.

Wraps the `tokenizers` library, which does the work. Opened are directories of ours, directories saved by
`transformers`, and a bare `vocab.txt` as Google released it. One that was opened is saved again with the very files it
had, so that it keeps its class and its behaviour everywhere else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from unmask.errors import ModelError, SettingsError
from unmask.files import writing
from unmask.tokenization.pipeline import (
    CONTINUATION_PREFIX,
    SPECIAL_TOKENS,
    directory_files,
    make_backend,
    make_normalizer,
)
from unmask.tokenization.plain_text import PlainTextEncoder
from unmask.tokenization.vocabulary import Vocabulary

_KEPT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class EncodedInput:
    """One text or pair of texts as a model takes it.

    Attributes:
        input_ids: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`.
        token_type_ids: 0 up to the first `[SEP]`, 1 after it.
        truncated: True if tokens of the texts were left out.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    truncated: bool


class TextTokenizer:
    """Text to ids and back, and the facts about the vocabulary.

    Attributes:
        backend: the library's tokenizer, for what this class does not offer (offsets of characters ...).
        vocab_size: number of ids, added tokens included.
        pad_id, unk_id, cls_id, sep_id, mask_id: the special tokens' ids.
        special_ids: ids of all special tokens, ascending.
        token_strings: the entry of each id.
        continuation: (vocab_size,) bool, True for entries that continue a word (`##ing`).
    """

    def __init__(self, backend: Tokenizer, special_tokens: Mapping[str, str], files: Mapping[str, bytes]) -> None:
        """Wraps a WordPiece tokenizer; `load_tokenizer` and `train_tokenizer` are the usual ways to get one.

        Args:
            backend: neither truncating nor padding.
            special_tokens: role (`pad_token` ...) -> entry, as `unmask.tokenization.pipeline.SPECIAL_TOKENS`; all in
                the vocabulary.
            files: what `save` writes, by name.
        """
        self.backend = backend
        self._files = dict(files)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values()) + 1
        strings = [""] * self.vocab_size
        for entry, index in vocab.items():
            strings[index] = entry
        self.token_strings = tuple(strings)
        self.pad_id = vocab[special_tokens["pad_token"]]
        self.unk_id = vocab[special_tokens["unk_token"]]
        self.cls_id = vocab[special_tokens["cls_token"]]
        self.sep_id = vocab[special_tokens["sep_token"]]
        self.mask_id = vocab[special_tokens["mask_token"]]
        added = {index for index, token in backend.get_added_tokens_decoder().items() if token.special}
        named = {vocab[entry] for entry in special_tokens.values()}
        self.special_ids = tuple(sorted(added | named))
        self.continuation: npt.NDArray[np.bool_] = np.array(
            [entry.startswith(CONTINUATION_PREFIX) and entry != CONTINUATION_PREFIX for entry in strings]
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The facts that objectives need."""
        return Vocabulary(self.vocab_size, self.mask_id, self.special_ids, self.continuation)

    @cached_property
    def _plain_encoder(self) -> PlainTextEncoder:
        return PlainTextEncoder(self.backend)

    def encode_batch(self, texts: Sequence[str], *, specials_in_text: bool = False) -> list[list[int]]:
        """Encodes texts, without adding special tokens.

        Args:
            texts: one list of ids comes back for each; an empty text gives an empty list.
            specials_in_text: True makes `[MASK]` in a text the special token, as `transformers` does; False, the way
                for corpora, takes it for the ordinary characters it is made of.
        """
        if not specials_in_text:
            return self._plain_encoder.encode_batch(texts)
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_inputs(
        self, pairs: Sequence[tuple[str, str | None]], max_length: int | None = None, *, specials_in_text: bool = True
    ) -> list[EncodedInput]:
        """Encodes texts and pairs of texts with their special tokens, as `transformers` does.

        Args:
            pairs: (A, B), or (A, None) for a single text.
            max_length: most tokens of an input, special tokens included; what is longer is cut at the end, the longer
                of A and B first. None never cuts.
            specials_in_text: see `encode_batch`; users' inputs may hold `[MASK]` on purpose.

        Raises:
            SettingsError: `max_length` leaves no room for the special tokens.
        """
        texts = [text for pair in pairs for text in pair if text is not None]
        encoded = iter(self.encode_batch(texts, specials_in_text=specials_in_text))
        return [self._assemble(next(encoded), None if b is None else next(encoded), max_length) for _, b in pairs]

    def _assemble(self, a: list[int], b: list[int] | None, max_length: int | None) -> EncodedInput:
        num_special = 2 if b is None else 3
        length_a, length_b = len(a), 0 if b is None else len(b)
        if max_length is not None:
            if max_length < num_special:
                raise SettingsError(
                    f"a maximal length of {max_length} tokens has no room for the {num_special} special tokens of an "
                    f"input: give at least {num_special + 1}"
                )
            length_a, length_b = truncated_lengths(length_a, length_b, max_length - num_special)
        first = [self.cls_id, *a[:length_a], self.sep_id]
        if b is None:
            return EncodedInput(first, [0] * len(first), length_a < len(a))
        second = [*b[:length_b], self.sep_id]
        truncated = length_a < len(a) or length_b < len(b)
        return EncodedInput(first + second, [0] * len(first) + [1] * len(second), truncated)

    def decode(self, ids: Sequence[int], *, skip_specials: bool = False) -> str:
        """The text of some ids, pieces joined into words; True for `skip_specials` leaves special tokens out."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_specials)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The entry of each id."""
        return [self.token_strings[index] for index in ids]

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of `ids` are `[UNK]`."""
        return sum(index == self.unk_id for index in ids)

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what `tokenizer.json` says.

        Independent of layout, of the order of keys, and of truncation and padding, which are not the tokenizer's own.
        """
        said = json.loads(self._files["tokenizer.json"])
        said = {key: value for key, value in said.items() if key not in ("truncation", "padding")}
        canonical = json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Writes the tokenizer's files into a directory that exists.

        Raises:
            OutputError: the disk is full, or the place cannot be written.
        """
        for name, content in self._files.items():
            with writing(directory / name) as file:
                file.write(content)


def truncated_lengths(length_a: int, length_b: int, room: int) -> tuple[int, int]:
    """How much of two texts to keep, "longest first": the longer loses tokens until both are equally long.

    Where both lose, they share the room; an odd token goes to the longer, to B if they are equally long.
    """
    if length_a + length_b <= room:
        return length_a, length_b
    shorter = min(length_a, length_b, room // 2)
    return (room - shorter, shorter) if length_a > length_b else (shorter, room - shorter)


def load_tokenizer(path: Path, lowercase: bool | None = None) -> TextTokenizer:
    """Opens a tokenizer.

    `tokenizer.json` is taken as it is. A `vocab.txt` alone gets Google's normaliser, as `tokenizer_config.json` sets
    it where there is one.

    Args:
        path: a directory with `tokenizer.json` or `vocab.txt`, or a file of entries, one a line.
        lowercase: whether a bare `vocab.txt` is uncased; None asks `do_lower_case` of `tokenizer_config.json`, and
            takes True, BERT's default, where that says nothing.

    Raises:
        ModelError: the path, or a file that is needed, is missing, unreadable, or not what its name says.
    """
    if not path.exists():
        raise ModelError(f"{path} does not exist: expected a directory with tokenizer.json or vocab.txt")
    if path.is_file():
        return _open_vocab(path, {}, lowercase)
    config = _read_json(path / "tokenizer_config.json")
    roles = _read_json(path / "special_tokens_map.json") | config
    if (path / "tokenizer.json").is_file():
        return _open_tokenizer_json(path, roles)
    if (path / "vocab.txt").is_file():
        return _open_vocab(path / "vocab.txt", roles, lowercase)
    raise ModelError(f"{path} holds no tokenizer: expected tokenizer.json or vocab.txt in it")


def _open_tokenizer_json(directory: Path, config: dict[str, Any]) -> TextTokenizer:
    path = directory / "tokenizer.json"
    kind = (_read_json(path).get("model") or {}).get("type")
    if kind != "WordPiece":
        raise ModelError(f"{path}: the model's type is {kind!r}; expected 'WordPiece', as of the BERT family")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{path} is not a tokenizer that this version can open: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    special_tokens = _special_tokens(path, backend.get_vocab(), config)
    files = {name: (directory / name).read_bytes() for name in _KEPT_FILES if (directory / name).is_file()}
    return TextTokenizer(backend, special_tokens, files)


def _open_vocab(path: Path, config: dict[str, Any], lowercase: bool | None) -> TextTokenizer:
    vocab = _read_vocab(path)
    special_tokens = _special_tokens(path, vocab, config)
    if lowercase is None:
        lowercase = bool(config.get("do_lower_case", True))
    normalizer = make_normalizer(
        lowercase,
        compose=False,
        strip_accents=config.get("strip_accents"),
        split_han=config.get("tokenize_chinese_chars", True),
    )
    backend = make_backend(vocab, normalizer, special_tokens)
    # With this class `transformers` builds the same normaliser again from these very keys.
    saved_config = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, **config, "do_lower_case": lowercase}
    return TextTokenizer(backend, special_tokens, directory_files(backend, special_tokens, saved_config))


def _special_tokens(path: Path, vocab: dict[str, int], config: dict[str, Any]) -> dict[str, str]:
    """The entry of each role: as the configuration names it, plainly or under `content`, else BERT's."""
    named = {role: config.get(role) or entry for role, entry in SPECIAL_TOKENS.items()}
    entries = {role: entry["content"] if isinstance(entry, dict) else str(entry) for role, entry in named.items()}
    missing = [f"{entry} ({role})" for role, entry in entries.items() if entry not in vocab]
    if missing:
        raise ModelError(f"{path} lacks {', '.join(missing)}: expected every special token of BERT in the vocabulary")
    return entries


def _read_vocab(path: Path) -> dict[str, int]:
    entries = _read_text(path).split("\n")
    if entries[-1] == "":
        entries.pop()
    vocab: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry in vocab:
            raise ModelError(
                f"{path}, line {index + 1}: {entry!r} stands on line {vocab[entry] + 1} already; "
                "expected a vocabulary of one entry a line, each once"
            )
        vocab[entry] = index
    return vocab


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}, line {error.lineno}: not JSON ({error.msg}); is the file complete?") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text: byte {error.start} cannot be decoded") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
