"""A trained tokenizer: text to ids and back, opened from a directory that `transformers` opens too.

Wraps the `tokenizers` library, which does the work. `unmask.tokenization.directory` lists what can be opened. Saving
writes the same files that were opened, so that the tokenizer keeps its class and behaviour in other programs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers.models import WordPiece

from unmask.corpus.segmenters import SEGMENTERS
from unmask.errors import ModelError, SettingsError
from unmask.io.paths import as_path, model_in
from unmask.io.writing import as_output_error, writing
from unmask.tokenization.class_settings import class_in
from unmask.tokenization.definition import Definition, TextTemplate, json_bytes, read_facts
from unmask.tokenization.directory import (
    CONFIG,
    INPUT_NAMES,
    SEGMENTER_KEY,
    SEGMENTS,
    WITHOUT_SEGMENTS,
    OpenedDirectory,
    read_directory,
    vocab_txt,
)
from unmask.tokenization.encoding.plain_text import PlainTextEncoder
from unmask.tokenization.library import inside_words, open_definition
from unmask.tokenization.vocabulary import Vocabulary, continuations


@dataclass(frozen=True)
class EncodedInput:
    """One text or pair of texts as input to a model."""

    input_ids: list[int]  # with special tokens as in the tokenizer's own template: `[CLS] A [SEP] B [SEP]` for BERT
    token_type_ids: list[int]  # the segment of each token, 1 from B on; all 0 for families without segments
    num_cut: int  # tokens of the texts that were cut off

    @property
    def truncated(self) -> bool:
        return self.num_cut > 0


class TextTokenizer:
    """Text to ids and back, and the facts about the vocabulary.

    Attributes:
        reads_words: False: an id is of a piece of text.
        backend: the library's tokenizer, for what this class does not offer (offsets of characters ...).
        opened: what `save` writes; not to be changed.
        where: what it was read from, for messages.
        kind: a key of `unmask.tokenization.learning.train.TOKENIZERS`, or `sentencepiece`, which is not trained here.
        segmenter: a key of `unmask.corpus.segmenters.SEGMENTERS`, or "none".
        vocab_size: number of ids, added tokens included.
        unk_id: the id of unknown characters or words; None for byte-level BPE, to which nothing is unknown.
        pad_id: the padding token's id; None if there is none.
        special_ids: ids of all special tokens, ascending.
        token_strings: the entry of each id.
        continuation: (vocab_size,) bool, True for entries that continue a word; see
            `unmask.tokenization.vocabulary.continuations`. All False where `marks_words` is False.
        template: where special tokens stand, in an input of one text and in one of two.
        marks_words: False where entries do not show it, as in BPE with an end-of-word mark, where the preceding entry
            decides whether a word begins.
    """

    reads_words: Literal[False] = False

    def __init__(self, opened: OpenedDirectory, where: object = "the tokenizer") -> None:
        """Opens `tokenizer.json`; `load_tokenizer` and `train_tokenizer` are the usual ways to get one.

        Raises:
            ModelError: the tokenizer is of an unknown kind, or does not open.
        """
        self.opened = opened
        self.where = where
        definition = self.definition
        facts = read_facts(definition, where)
        self.kind = facts.kind
        self.backend = open_definition(definition, where)
        self.template = facts.template
        self.segmenter = opened.segmenter
        if self.segmenter not in ("none", *SEGMENTERS):
            known = ", ".join(SEGMENTERS)
            raise ModelError(f"{where}: the segmenter {self.segmenter!r} is not known; expected one of {known}")
        self.token_strings = facts.entries
        self.vocab_size = len(self.token_strings)
        ids = {entry: index for index, entry in enumerate(self.token_strings)}
        self._id_of_role = {role: ids[entry] for role, entry in opened.special_tokens.items()}
        self.unk_id: int | None = None if facts.unknown is None else ids.get(facts.unknown)
        self.pad_id = self.find_role("pad_token")
        self.special_ids = tuple(sorted(facts.special_ids.union(self._id_of_role.values())))
        self._prefix = facts.prefix
        found = continuations(self.kind, self.token_strings, facts.prefix, self.special_ids)
        self.marks_words = found is not None
        self.continuation = np.zeros(self.vocab_size, dtype=np.bool_) if found is None else found

    def __repr__(self) -> str:
        return f"TextTokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    @property
    def definition(self) -> Definition:
        """The content of `tokenizer.json`: a new dictionary each time, since it takes several times a file's memory."""
        definition: Definition = json.loads(self.opened.files["tokenizer.json"])
        return definition

    @property
    def lowercases(self) -> bool:
        """Whether it makes no difference between upper and lower case ("uncased")."""
        normalizer = self.backend.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == normalizer.normalize_str("a")

    @property
    def gives_segments(self) -> bool:
        """Whether `transformers` gives a model the segments of a pair, as far as `tokenizer_config.json` says it."""
        config = json.loads(self.opened.files.get(CONFIG, b"{}"))
        names = config.get(INPUT_NAMES)
        if isinstance(names, list):
            return SEGMENTS in names
        return class_in(config) not in WITHOUT_SEGMENTS

    @property
    def cls_id(self) -> int:
        """The token that represents the whole text: the first, or GPT-1's last."""
        return self._role("cls_token")

    @property
    def sep_id(self) -> int:
        """The token between texts and at the end."""
        return self._role("sep_token")

    @property
    def mask_id(self) -> int:
        """The token that replaces a masked one."""
        return self._role("mask_token")

    @property
    def bos_id(self) -> int:
        """The token at the beginning of a text."""
        return self._role("bos_token")

    @property
    def eos_id(self) -> int:
        """The token at the end of a text."""
        return self._role("eos_token")

    def find_role(self, role: str) -> int | None:
        """The id of the token in a role such as `eos_token`; None if there is none."""
        return self._id_of_role.get(role)

    def _role(self, role: str) -> int:
        if role not in self._id_of_role:
            has = ", ".join(f"{role} {self.token_strings[index]}" for role, index in self._id_of_role.items())
            raise ModelError(
                f"{self.where} has no {role} (it has {has or 'no special tokens'}): this use of it needs one; "
                "choose another kind of tokenizer"
            )
        return self._id_of_role[role]

    @property
    def vocabulary(self) -> Vocabulary:
        """The facts that objectives need."""
        return Vocabulary(
            self.vocab_size, self.find_role("mask_token"), self.special_ids, self.continuation, self.marks_words
        )

    @cached_property
    def _entries(self) -> frozenset[str]:
        return frozenset(self.token_strings)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        added = self.definition.get("added_tokens") or []
        return frozenset(token["id"] for token in added).union(self.special_ids)

    @cached_property
    def _segment(self) -> Callable[[str], str]:
        return SEGMENTERS[self.segmenter]()

    @cached_property
    def _plain_encoder(self) -> PlainTextEncoder:
        return PlainTextEncoder(self.backend)

    @cached_property
    def inside_words(self) -> WordPiece:
        """The longest-match rule of a WordPiece tokenizer as it works inside a word, after its beginning."""
        return inside_words(self.backend)

    @cached_property
    def _special_in_text(self) -> re.Pattern[str]:
        longest_first = sorted((self.token_strings[index] for index in self.special_ids), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def load_segmenter(self) -> None:
        """Loads now what the first text would load, so that a missing package is named before any work; raises as
        `segment`."""
        if self.segmenter != "none":
            _ = self._segment

    def segment(self, text: str) -> str:
        """The text segmented, with special tokens left whole; the text itself if there is no segmenter.

        Encoding does this by itself. `transformers` does not: to get the same ids, give it the segmented text.

        Raises:
            SettingsError: the segmenter needs a package that is not installed.
        """
        if self.segmenter == "none":
            return text
        parts = self._special_in_text.split(text) if self.special_ids else [text]
        parts[::2] = map(self._segment, parts[::2])
        return " ".join(filter(None, map(str.strip, parts)))

    def encode_batch(self, texts: Sequence[str], *, specials_in_text: bool = False) -> list[list[int]]:
        """Encodes texts, without adding special tokens.

        Args:
            texts: one list of ids is returned for each; an empty text gives an empty list.
            specials_in_text: True reads `[MASK]` in a text as the special token, as `transformers` does; False, used
                for corpora, reads it as ordinary characters.
        """
        texts = [self.segment(text) for text in texts] if self.segmenter != "none" else texts
        if not specials_in_text:
            return self._plain_encoder.encode_batch(texts)
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_inputs(
        self, pairs: Sequence[tuple[str, str | None]], max_length: int | None = None, *, specials_in_text: bool = True
    ) -> list[EncodedInput]:
        """Encodes texts and pairs of texts with their special tokens, as `transformers` does.

        A pair whose B is empty keeps B's `[SEP]` (Devlin et al. 2019, section 3.2: "text-empty pairs"), which
        `transformers` leaves out.

        Args:
            pairs: (A, B), or (A, None) for a single text.
            max_length: most tokens of an input, special tokens included; longer inputs are cut at the end, the longer
                of A and B first. None never cuts.
            specials_in_text: see `encode_batch`; users' inputs may hold `[MASK]` on purpose.

        Raises:
            SettingsError: `max_length` leaves no room for the special tokens.
        """
        texts = [text for pair in pairs for text in pair if text is not None]
        encoded = iter(self.encode_batch(texts, specials_in_text=specials_in_text))
        return [
            assemble(self.template, next(encoded), None if b is None else next(encoded), max_length) for _, b in pairs
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, pieces joined into words."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The entry of each id."""
        return [self.token_strings[index] for index in ids]

    @cached_property
    def tokens_by_word(self) -> dict[str, list[int]]:
        """The ids that read as a word, blanks around it aside."""
        found: dict[str, list[int]] = {}
        for token in range(self.vocab_size):
            text = self.decode([token])
            found.setdefault(text.strip() or text, []).append(token)
        return found

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of `ids` are the unknown token, such as `[UNK]`."""
        return sum(index == self.unk_id for index in ids)

    def fingerprint(self) -> str:
        """The SHA-256, in hexadecimal, of the content of `tokenizer.json`, and of the segmenter's name if there is one.

        Independent of layout, key order, and the settings of truncation and padding, which depend on the use.
        """
        definition = {key: value for key, value in self.definition.items() if key not in ("truncation", "padding")}
        if self.segmenter != "none":
            definition[SEGMENTER_KEY] = self.segmenter
        canonical = json.dumps(definition, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def without_template(self) -> TextTokenizer:
        """The same tokenizer without its post-processor: neither this nor `transformers` adds special tokens."""
        return self.changed(self.definition | {"post_processor": None})

    def can_be_cut(self, index: int) -> bool:
        """Whether a WordPiece entry has several characters, and each of them is an entry too, so that its text is known
        without it. Added tokens are looked for before the entries, and cannot."""
        begins = not self.continuation[index]
        text = self.token_strings[index].removeprefix("" if begins else self._prefix)
        parts = [
            character if begins and not place else self._prefix + character for place, character in enumerate(text)
        ]
        return len(text) > 1 and index not in self._added_ids and self._entries.issuperset(parts)

    def missing_inside(self, characters: str) -> tuple[str, ...]:
        """The entries by which a WordPiece tokenizer would spell characters inside a word, as far as it lacks them."""
        return tuple(
            entry for entry in dict.fromkeys(map(self._prefix.__add__, characters)) if entry not in self._entries
        )

    def without_entries(self, ids: Collection[int]) -> TextTokenizer:
        """The same WordPiece tokenizer, which matches some entries no more: text is cut into shorter ones there.

        Their ids stay, under names that no text has, so that a model's embeddings keep their places.

        Args:
            ids: of entries that `can_be_cut`.
        """
        definition = self.definition
        entries = [f"[cut {entry}]" if index in ids else entry for index, entry in enumerate(self.token_strings)]
        definition["model"]["vocab"] = {
            entries[index]: index for index in sorted(definition["model"]["vocab"].values())
        }
        return self.changed(definition)

    def changed(self, definition: Definition, others: Mapping[str, Definition] | None = None) -> TextTokenizer:
        """The same tokenizer with another definition, in `vocab.txt` too, and other JSON files, by their names."""
        contents = {**(others or {}), "tokenizer.json": definition}
        changed = self.opened.files | {name: json_bytes(content) for name, content in contents.items()}
        if self.kind == "wordpiece" and "vocab.txt" in changed:
            changed["vocab.txt"] = vocab_txt(definition)
        return TextTokenizer(replace(self.opened, files=changed), self.where)

    def save(self, directory: str | Path) -> None:
        """Writes the tokenizer's files into a directory, which is made where it is missing.

        Raises:
            OutputError: the disk is full, or the place cannot be written.
        """
        directory = Path(directory)
        with as_output_error(directory):
            directory.mkdir(parents=True, exist_ok=True)
        for name, content in self.opened.files.items():
            with writing(directory / name) as file:
                file.write(content)


def assemble(template: TextTemplate, a: list[int], b: list[int] | None, max_length: int | None) -> EncodedInput:
    """Adds the special tokens to the ids of one text, or of two; see `TextTokenizer.encode_inputs`."""
    pieces = template.single if b is None else template.pair
    num_special = sum(len(piece.ids) for piece in pieces)
    length_a, length_b = len(a), len(b or [])
    if max_length is not None:
        if max_length < num_special:
            raise SettingsError(
                f"a maximal length of {max_length} tokens has no room for the {num_special} special tokens of an "
                f"input: give at least {num_special + 1}"
            )
        length_a, length_b = truncated_lengths(length_a, length_b, max_length - num_special)
    kept = {"A": a[:length_a], "B": (b or [])[:length_b]}
    input_ids: list[int] = []
    token_type_ids: list[int] = []
    for piece in pieces:
        ids = kept[piece.text] if piece.text else piece.ids
        input_ids.extend(ids)
        token_type_ids.extend([piece.segment] * len(ids))
    return EncodedInput(input_ids, token_type_ids, len(a) + len(b or []) - length_a - length_b)


def truncated_lengths(length_a: int, length_b: int, capacity: int) -> tuple[int, int]:
    """How much of two texts to keep, "longest first": the longer loses tokens until both are equally long.

    Where both lose, they share the capacity; an odd token goes to the longer, to B if they are equally long.
    """
    if length_a + length_b <= capacity:
        return length_a, length_b
    shorter = min(length_a, length_b, capacity // 2)
    return (capacity - shorter, shorter) if length_a > length_b else (shorter, capacity - shorter)


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """Opens a tokenizer of any kind but `word`, which `unmask.tokenization.opening.open_tokenizer` opens too.

    `tokenizer.json` is used as it is. A `vocab.txt`, or a vocabulary with its merges, gets the steps that its family
    was published with, as set in `tokenizer_config.json` if there is one: without `do_lower_case` it is uncased.

    Args:
        path: a directory, in a layout that `unmask.tokenization.directory` lists, that of the run that made a model, or
            a file of entries, one a line.

    Raises:
        ModelError: the path, or a file that is needed, is missing, unreadable, or not what its name says.
    """
    path = model_in(as_path(path, "the directory of a tokenizer"))
    return TextTokenizer(read_directory(path), path)
