"""ELMo's tokenizer: text to words, and each word to its UTF-8 bytes (Peters et al. 2018, section 3.4).

A word is a run of letters, digits, underscores and combining marks of any script, or any other character that is not
white space, with the marks that follow it. So a Korean eojeol is one word, `don't` is three, and a run of Han without
spaces is one, however long. (The released model expects text split by the Penn Treebank's rules, which are for
English.) Each word is composed (NFC), and lowercased if requested.

A language model predicts the most frequent words, the output vocabulary. Its input is not limited to them: other words
are still read by their bytes. Where words must have integer ids, as in every task, a word outside the vocabulary gets
the next free id when it first occurs, and its characters are added to `WordTokenizer.table`; the encoder that was given
that table (`ElmoEncoder.set_words`) finds them there. Such ids live as long as the object, but in a server, which reads
new words without end; they are not saved, and differ between processes. A store holds `<UNK>` in their place, beside
the bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unmask.errors import ModelError
from unmask.io.encodings import normalized
from unmask.io.writing import as_output_error, write_json, write_text
from unmask.tokenization.definition import Piece, TextTemplate
from unmask.tokenization.directory import WORD_SETTINGS, WORDS_FILE
from unmask.tokenization.tokenizer import EncodedInput, assemble
from unmask.tokenization.vocabulary import Vocabulary

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
"""Beginning and end of a sentence, and the word for all others in the output, named as in the released code."""
SPECIAL_WORDS = (BEGIN, END, UNKNOWN)

_MEETING = threading.Lock()
"""Held while a new word gets its id: a server reads texts in several threads."""

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
"""Characters besides the 256 bytes, numbered as in the released training code. The released inference code adds one to
every id, since 0 is the padding of sequences, which does not exist here."""
MAX_CHARACTERS = 50

_FIRST_ROWS = 1024
_MANY = 100_000
"""Words outside the vocabulary, before any is forgotten."""


class CharacterTable:
    """The characters of words by id, (words, characters)."""

    def __init__(self, max_characters: int) -> None:
        self._rows = np.full((_FIRST_ROWS, max_characters), PADDING, dtype=np.uint16)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __deepcopy__(self, memo: object) -> CharacterTable:
        """Itself: a copy of an encoder keeps reading the words that its tokenizer meets."""
        return self

    def __getitem__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
        """(ids, characters) uint16."""
        assert ids.size == 0 or int(ids.max()) < self._length, "a word that the tokenizer has not met"
        return self._rows[ids]

    def put(self, index: int, characters: Sequence[int]) -> None:
        """Adds a word under the next id, or puts it in the place of another; its characters include the marks of its
        beginning and end."""
        if index == len(self._rows):
            self._rows = np.concatenate([self._rows, np.full_like(self._rows, PADDING)])
        self._rows[index] = PADDING
        self._rows[index, : len(characters)] = characters
        self._length = max(self._length, index + 1)


class WordTokenizer:
    """Text to words, and the facts about the output vocabulary; offers what `TextTokenizer` does, and more.

    Attributes:
        reads_words: True: an id is of a whole word, which is read by its characters.
        vocab_size: words of the output vocabulary; higher ids are those of other words met so far.
        special_ids: of `<S>`, `</S>` and `<UNK>`, ascending.
        token_strings: the output vocabulary.
        continuation: (vocab_size,) bool, all False.
        template: `<S> A </S>`, and `<S> A </S> <S> B </S>`, where B is marked as segment 1 though ELMo has no segments.
        max_characters: of a word, including the marks of its beginning and end; longer words are cut.
        lowercase: whether words are lowercased.
        table: ids to characters.
        forgets_after_s: after how long at least the id of a word outside the vocabulary may be given to another, if it
            has not been asked for since; None: never.
    """

    forgets_after_s: float | None = None
    reads_words: Literal[True] = True
    kind = "word"
    segmenter = "none"
    marks_words = True
    pad_id: int | None = None  # there is no padding

    def __init__(
        self,
        words: Sequence[str],
        max_characters: int = MAX_CHARACTERS,
        lowercase: bool = False,
        where: object = "the tokenizer",
    ) -> None:
        """Takes an output vocabulary; `load_word_tokenizer` and `train_word_tokenizer` are the usual ways to get one.

        Args:
            words: by descending frequency, as sampling from them assumes; including the special words.
            where: what the words are from, for messages.

        Raises:
            ModelError: a special word is missing, or a word occurs twice, is empty or holds white space.
        """
        self._ids: dict[str, int] = {}
        for number, word in enumerate(words, start=1):
            if not word or any(character.isspace() for character in word):
                raise ModelError(f"{where}, line {number}: {word!r} is no word: expected one a line, no white space")
            if word in self._ids:
                raise ModelError(f"{where}, line {number}: {word!r} stands on line {self._ids[word] + 1} already")
            self._ids[word] = number - 1
        missing = [word for word in SPECIAL_WORDS if word not in self._ids]
        if missing:
            raise ModelError(f"{where} lacks {', '.join(missing)}: expected every special word in the vocabulary")
        self.max_characters, self.lowercase = max_characters, lowercase
        self.token_strings = list(words)
        self.vocab_size = len(words)
        self.bos_id, self.eos_id = self._ids[BEGIN], self._ids[END]
        self.unk_id = self._ids[UNKNOWN]
        self.cls_id, self.sep_id = self.bos_id, self.eos_id
        self.special_ids = tuple(sorted(self._ids[word] for word in SPECIAL_WORDS))
        self.continuation = np.zeros(self.vocab_size, dtype=np.bool_)
        first, last = Piece("", (self.bos_id,), 0), Piece("", (self.eos_id,), 0)
        first_of_b, last_of_b = Piece("", (self.bos_id,), 1), Piece("", (self.eos_id,), 1)
        single = (first, Piece("A", (), 0), last)
        self.template = TextTemplate(single, (*single, first_of_b, Piece("B", (), 1), last_of_b))
        self._met = list(words)
        self.table = CharacterTable(max_characters)
        for index, word in enumerate(words):
            self.table.put(index, self._characters(word))
        self._fading: dict[str, int] = {}  # words outside the vocabulary that have not been asked for of late
        self._free: list[int] = []
        self._looked_through = time.monotonic()

    def __repr__(self) -> str:
        return f"WordTokenizer(vocab_size={self.vocab_size})"

    def _characters(self, word: str) -> list[int]:
        if word in (BEGIN, END):
            return [BEGIN_WORD, BEGIN_SENTENCE if word == BEGIN else END_SENTENCE, END_WORD]
        return [BEGIN_WORD, *word.encode("utf-8", "ignore")[: self.max_characters - 2], END_WORD]

    @property
    def mask_id(self) -> int:
        """There is none.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            "a word tokenizer has no mask token: ELMo is trained by objective.name=bilm; for others choose another kind"
        )

    def find_role(self, role: str) -> int | None:
        """The id of the word in a role such as `eos_token`; None if there is none."""
        roles = {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": self.unk_id}
        return {**roles, "cls_token": self.cls_id, "sep_token": self.sep_id}.get(role)

    @property
    def vocabulary(self) -> Vocabulary:
        """The facts that objectives need."""
        return Vocabulary(self.vocab_size, None, self.special_ids, self.continuation, self.marks_words)

    def load_segmenter(self) -> None:
        """There is none."""

    def segment(self, text: str) -> str:
        """The text itself."""
        return text

    def words(self, text: str) -> list[str]:
        """The words of a text: composed, and lowercased if requested."""
        found: list[str] = _word_pattern().findall(text)
        return [self._known_as(word) for word in found] if self.lowercase or not text.isascii() else found

    def _known_as(self, word: str) -> str:
        return normalized("NFC", word.lower() if self.lowercase else word)

    def vocabulary_ids(self, words: Iterable[str]) -> list[int]:
        """The ids of words in the output vocabulary; that of `<UNK>` for words not in it."""
        unknown = self.unk_id
        found = [self._ids.get(word, unknown) for word in words]
        return [index if index < self.vocab_size else unknown for index in found]

    def _id(self, word: str) -> int:
        index = self._ids.get(word)
        if index is None:
            with _MEETING:
                index = self._ids.get(word)
                if index is None:
                    self._forget()
                    index = self._fading.pop(word, None)
                    self._ids[word] = index = self._new_id(word) if index is None else index
        return index

    def _new_id(self, word: str) -> int:
        if self._free:
            index = self._free.pop()
            self._met[index] = word
        else:
            index = len(self._met)
            self._met.append(word)
        self.table.put(index, self._characters(word))
        return index

    def _forget(self) -> None:
        """Where there are many words, frees the ids of those that were not asked for since the time before the last."""
        now, num_met = time.monotonic(), len(self._ids) - self.vocab_size
        if self.forgets_after_s is None or num_met < _MANY or now - self._looked_through < self.forgets_after_s:
            return
        self._free += self._fading.values()
        self._fading = {word: index for word, index in self._ids.items() if index >= self.vocab_size}
        self._ids = {word: index for word, index in self._ids.items() if index < self.vocab_size}
        self._looked_through = now

    def encode_batch(self, texts: Sequence[str], *, specials_in_text: bool = False) -> list[list[int]]:
        """Encodes texts, without adding special words; new words get new ids.

        Args:
            specials_in_text: ignored: `<S>` in a text is always three words.
        """
        return [[self._id(word) for word in self.words(text)] for text in texts]

    def encode_with_places(self, text: str) -> tuple[list[int], list[int], list[int]]:
        """The ids of a text's words, and the characters of the text where each begins and ends."""
        found = list(_word_pattern().finditer(text))
        ids = [self._id(self._known_as(match[0])) for match in found]
        return ids, [match.start() for match in found], [match.end() for match in found]

    def encode_inputs(
        self, pairs: Sequence[tuple[str, str | None]], max_length: int | None = None, *, specials_in_text: bool = True
    ) -> list[EncodedInput]:
        """Encodes texts and pairs of texts with their special words, as `TextTokenizer.encode_inputs` does.

        Raises:
            SettingsError: `max_length` leaves no room for the special words.
        """
        encoded = [(self.encode_batch([a])[0], None if b is None else self.encode_batch([b])[0]) for a, b in pairs]
        return [assemble(self.template, a, b, max_length) for a, b in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Words with spaces between them."""
        return " ".join(self._met[index] for index in ids)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The word of each id."""
        return [self._met[index] for index in ids]

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of `ids` are of words outside the output vocabulary."""
        return sum(index == self.unk_id or index >= self.vocab_size for index in ids)

    def fingerprint(self) -> str:
        """The SHA-256, in hexadecimal, of settings and vocabulary."""
        definition = json.dumps([self._settings(), self.token_strings], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(definition.encode()).hexdigest()

    def _settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "max_characters": self.max_characters, "lowercase": self.lowercase}

    def save(self, directory: str | Path) -> None:
        """Writes `word_tokenizer.json` and `words.txt`, one word a line, into a directory, which is made where it is
        missing.

        Raises:
            OutputError: the disk is full, or the place cannot be written.
        """
        directory = Path(directory)
        with as_output_error(directory):
            directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / WORDS_FILE, "".join(f"{word}\n" for word in self.token_strings))
        write_json(directory / WORD_SETTINGS, self._settings())


def is_word_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer of this kind."""
    return (directory / WORD_SETTINGS).is_file()


def load_word_tokenizer(directory: str | Path) -> WordTokenizer:
    """Opens what `WordTokenizer.save` wrote.

    Raises:
        ModelError: a file is missing, unreadable, or not what its name says.
    """
    path = Path(directory) / WORD_SETTINGS
    try:
        definition = json.loads(path.read_text(encoding="utf-8"))
        text = (path.with_name(WORDS_FILE)).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"{error.filename}: {error.strerror}: expected {WORD_SETTINGS} and {WORDS_FILE}, as training wrote them"
        ) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ModelError(f"{path.parent}: {WORD_SETTINGS} or {WORDS_FILE} is damaged ({error})") from error
    keys = {"kind", "max_characters", "lowercase"}
    if not isinstance(definition, dict) or definition.keys() != keys or definition["kind"] != "word":
        raise ModelError(f'{path}: expected the keys "kind" (which is "word"), "max_characters" and "lowercase"')
    longest, lowercase = definition["max_characters"], definition["lowercase"]
    if type(longest) is not int or longest < 3 or type(lowercase) is not bool:
        raise ModelError(
            f"{path}: max_characters is {longest!r} and lowercase {lowercase!r}: expected an integer from 3 on, and "
            "true or false"
        )
    words = text.split("\n")
    return WordTokenizer(words[:-1] if words[-1] == "" else words, longest, lowercase, path.with_name(WORDS_FILE))


@cache
def _word_pattern() -> re.Pattern[str]:
    """Python's `\\w` lacks combining marks, without which words of many scripts break apart; joiners count as marks.

    Searching the set of marks is slow, so only characters from the first mark on are compared with it.
    """
    points = (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0))
    marks = "".join(chr(point) for point in points if unicodedata.category(chr(point))[0] == "M") + "\u200c\u200d"
    some_marks = rf"(?=[\u0300-\U000e01ef])[{marks}]+"
    return re.compile(rf"(?:\w|{some_marks})(?:\w+|{some_marks})*|[^\w\s](?:{some_marks})?")
