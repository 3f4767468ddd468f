"""Texts as rows for extracting an encoder's hidden states: every token gets its vector from exactly one row.

A text longer than the encoder reads at once is read in windows, each overlapping the next by half. A token takes its
vector from the window where the smaller of its left and right contexts is largest (as in BERT's question answering).
The special tokens around a row belong to no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError, SettingsError
from unmask.io.json_files import shown
from unmask.io.rows import Row, find_field
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import checked_text, choose_layout
from unmask.tasks.settings import ColumnSettings
from unmask.tasks.tagging.windows import SentenceWindow, cut_windows
from unmask.tokenization.definition import Piece
from unmask.tokenization.offsets import AlignedText, align
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import truncated_lengths

PLACE = "place"
"""The column of `alignment`, int64: the index of each token among its input's tokens; -1 for special tokens, and for
tokens that take their vector from another row."""


USUAL_LAYOUTS = (
    ColumnSettings(tokens="tokens"),
    ColumnSettings(text="text"),
    ColumnSettings(text_a="text_a", text_b="text_b"),
)
"""The columns looked for in a row by default, in this order."""

_MEANT = {"text", "text_a", "text_b", "tokens", "id"}
"""The fields of `ColumnSettings` that apply here."""


@dataclass(frozen=True)
class FeatureInput:
    """A text, or a pair of texts, whose features are wanted.

    Attributes:
        text_a: the one text, or the first of a pair; if words were given, these joined by blanks.
        text_b: the second of a pair.
        words: as given; None if a text was given.
        id: as in the row; None if it has none.
        source: where it is, as `path:line`.
    """

    text_a: str
    text_b: str | None
    words: tuple[str, ...] | None
    id: Any
    source: str


def num_characters(given: FeatureInput) -> int:
    """Of a text, or of both of a pair."""
    return len(given.text_a) + len(given.text_b or "")


@dataclass(frozen=True)
class InputTokens:
    """The tokens of one input, without special tokens.

    Attributes:
        ids: of both texts, one after the other, as far as they are read.
        num_first: how many belong to the first text.
        offsets: start and end of each token's characters in its text.
    """

    ids: list[int]
    num_first: int
    offsets: list[tuple[int, int]]


def feature_layouts(columns: ColumnSettings, remembered: ColumnSettings) -> tuple[ColumnSettings, ...]:
    """The sets of columns to look for in a row, of which the first that it has is used.

    Args:
        columns: the user's; if they name texts or words, only those are accepted.
        remembered: a fine-tuned model's; they take precedence over the usual ones.

    Raises:
        SettingsError: the user names a column that does not apply here, or both texts and words.
    """
    if foreign := sorted(columns.model_fields_set - _MEANT):
        raise SettingsError(
            f"--column {foreign[0]} means nothing to features: expected text, or text_a and text_b, or tokens; id"
        )
    if columns.tokens is not None and columns.texts:
        raise SettingsError(
            f"--column tokens={columns.tokens} and {columns.texts[0]}: features are of words or of a text: name one"
        )
    name = {"id": columns.id or remembered.id}
    if columns.tokens is not None or columns.texts:
        return (columns.model_copy(update=name),)
    own = [ColumnSettings(tokens=remembered.tokens)] if remembered.tokens is not None else []
    own += [remembered] if remembered.texts else []
    layouts = (layout.model_copy(update=name) for layout in (*own, *USUAL_LAYOUTS))
    return tuple(dict.fromkeys(layouts))


def read_feature_input(row: Row, layouts: Sequence[ColumnSettings] = USUAL_LAYOUTS) -> FeatureInput:
    """Reads words (a list, or a text with blanks between them), a text, or two.

    Args:
        layouts: from `feature_layouts`.

    Raises:
        InputError: the row has none of them, or a value is not text.
    """
    columns = choose_layout(
        layouts, row, layout_names, "--column text=NAME, or --column text_a=NAME and --column text_b=NAME"
    )
    identity = find_field(row.fields, columns.id or "id")
    if columns.tokens is None:
        texts = [checked_text(row[name], name, row.source) for name in columns.texts]
        return FeatureInput(texts[0], texts[1] if len(texts) == 2 else None, None, identity, row.source)
    given = row[columns.tokens]
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        raise InputError(f"{row.source}: {columns.tokens} is {shown(given)}: expected a list of words")
    checked = tuple(checked_text(word, columns.tokens, row.source) for word in words)
    return FeatureInput(" ".join(checked), None, checked, identity, row.source)


def layout_names(columns: ColumnSettings) -> tuple[str, ...]:
    """The columns of words or texts."""
    return columns.texts if columns.tokens is None else (columns.tokens,)


def tokenize(inputs: Sequence[FeatureInput], tokenizer: Tokenizer) -> list[InputTokens]:
    """All tokens of each input; special tokens spelt out in a text are recognised."""
    texts = [text for given in inputs for text in (given.text_a, given.text_b) if text is not None]
    aligned = align(tokenizer, texts)
    tokens, number = [], 0
    for given in inputs:
        numbers = range(number, number + (1 if given.text_b is None else 2))
        number = numbers.stop
        tokens.append(
            InputTokens(
                [token for text in numbers for token in aligned[text].ids],
                len(aligned[numbers[0]]),
                [place for text in numbers for place in _places(texts[text], aligned[text])],
            )
        )
    return tokens


def _places(text: str, aligned: AlignedText) -> list[tuple[int, int]]:
    """The place of each token; that of a token of white space, which `align` leaves empty, is what it was made of."""
    places = []
    before = newest = 0  # ends of tokens; those that share a character have one
    for start, end in zip(aligned.starts, aligned.ends, strict=True):
        if end > newest:
            before, newest = newest, end
        places.append((before if start == end and text[before:start].isspace() else start, end))
    return places


def describe_tokens(given: FeatureInput, its: InputTokens, tokenizer: Tokenizer) -> dict[str, Any]:
    """The index entry for an input's tokens: `tokens`, `offsets`, and where there are any `words` and `num_tokens_a`.

    `words` is the number, from 0, of the word that each token begins in, if words were given.
    """
    described: dict[str, Any] = {"tokens": tokenizer.tokens(its.ids), "offsets": its.offsets}
    if given.words is not None:
        begins = np.cumsum([0, *(len(word) + 1 for word in given.words[:-1])])
        starts = np.array([start for start, _ in its.offsets], np.int64)
        described["words"] = (np.searchsorted(begins, starts, side="right") - 1).tolist()
    if given.text_b is not None:
        described["num_tokens_a"] = its.num_first
    return described


@dataclass(frozen=True)
class RowMaker:
    """Makes rows of tokens.

    Args:
        tokenizer: of the model.
        max_length: most tokens of a row, special tokens included.
        num_segments: `type_vocab_size` of the model; below 2 every token is segment 0.
        first_window_only: True reads only the first row of a long text, and counts the texts that are cut.
    """

    tokenizer: Tokenizer
    max_length: int
    num_segments: int
    first_window_only: bool = False

    def capacity(self, is_pair: bool) -> int:
        """How many tokens of a row are left for text."""
        return self.max_length - sum(len(piece.ids) for piece in self._pieces(is_pair))

    def _pieces(self, is_pair: bool) -> tuple[Piece, ...]:
        return self.tokenizer.template.pair if is_pair else self.tokenizer.template.single

    def rows(
        self, inputs: Sequence[FeatureInput], tokens: Sequence[InputTokens], counts: ExampleCounts
    ) -> tuple[list[InputTokens], EncodedExamples]:
        """Rows of some inputs.

        A pair that is too long is cut, the longer text first, and counted: it is undefined which windows of two texts
        belong together.

        Args:
            tokens: of these inputs, from `tokenize`.
            counts: updated.

        Returns:
            The tokens that are read, and a unit for each row: its example is the number of the input, and the column
            `PLACE` of its alignment says which of these tokens are in it. An input that gives no token at all, not
            even a special one, has no unit.
        """
        ids: list[list[int]] = []
        second_starts: list[int] = []
        examples: list[int] = []
        places: list[NDArray[np.int64]] = []
        kept: list[InputTokens] = []
        for number, (given, its) in enumerate(zip(inputs, tokens, strict=True)):
            capacity = self.capacity(given.text_b is not None)
            is_long = len(its.ids) > capacity
            if is_long and (given.text_b is not None or self.first_window_only):
                counts.num_cut += len(its.ids) - capacity
                its = _cut(its, capacity, given.text_b is not None)
                counts.note(f"longer than {self.max_length} tokens and cut")
            elif is_long:
                counts.note(f"longer than {self.max_length} tokens and read in windows")
            kept.append(its)
            for window in cut_windows(len(its.ids), capacity, max(1, capacity // 2)):  # one, but for a long single text
                row, second_start, place = self._row(its, given.text_b is not None, window)
                if row:
                    ids.append(row)
                    second_starts.append(second_start)
                    examples.append(number)
                    places.append(place)
        counts.examples += len(inputs)
        counts.empty += sum(not its.ids for its in kept)
        alignment = {PLACE: np.concatenate([np.empty(0, np.int64), *places])}
        return kept, EncodedExamples.from_lists(ids, second_starts, examples=examples, alignment=alignment)

    def _row(self, its: InputTokens, is_pair: bool, window: SentenceWindow) -> tuple[list[int], int, NDArray[np.int64]]:
        """A row's ids, where its segment B begins, and the place of each of its tokens."""

        def numbers(part: slice) -> NDArray[np.int64]:
            there = np.arange(*part.indices(len(its.ids)))
            return np.where((there >= window.answers.start) & (there < window.answers.stop), there, -1)

        texts = {"A": slice(window.first, its.num_first if is_pair else window.end), "B": slice(its.num_first, None)}
        row: list[int] = []
        places: list[NDArray[np.int64]] = []
        in_first = 0
        for piece in self._pieces(is_pair):
            ids = its.ids[texts[piece.text]] if piece.text else list(piece.ids)
            row += ids
            places.append(numbers(texts[piece.text]) if piece.text else np.full(len(ids), -1))
            in_first += len(ids) if piece.segment == 0 else 0
        return row, in_first if self.num_segments > 1 else len(row), np.concatenate(places)


def _cut(its: InputTokens, capacity: int, is_pair: bool) -> InputTokens:
    num_second = len(its.ids) - its.num_first
    first, second = truncated_lengths(its.num_first, num_second, capacity) if is_pair else (capacity, 0)
    kept = [*range(first), *range(its.num_first, its.num_first + second)]
    return InputTokens([its.ids[token] for token in kept], first, [its.offsets[token] for token in kept])
