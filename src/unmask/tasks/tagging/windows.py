"""Sentences as rows of tokens: windows over long ones, document context around short ones, the predicate after them.

Devlin et al. 2019, section 5.3: a unit's label is at its first sub-token; the context is that of the document. A
longer sentence is read in overlapping windows, and each label counts in the one where it has the most context. A
predicate is repeated after its sentence, `[CLS] sentence [SEP] predicate [SEP]` (Shi and Lin 2019); for the n-th of
equal words it is there n times, since otherwise two predicates would give the same input.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples, WindowRow, collect_windows, window_bounds
from unmask.tasks.settings import TaskSettings
from unmask.tasks.tagging.examples import Span, TaggingExample
from unmask.tasks.tagging.schemes import OUTSIDE
from unmask.tokenization.offsets import AlignedText, align
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import assemble


@dataclass(frozen=True)
class Lead:
    """A token that represents units: the one whose first token it is, and any following ones that it also covers.

    Attributes:
        token: its number in the sentence.
        unit: the first of its units.
        num_units: how many there are.
    """

    token: int
    unit: int
    num_units: int


def find_leads(aligned: AlignedText, units: Sequence[Span]) -> list[Lead]:
    """Which token represents which units, in order; units that no token covers have none.

    Args:
        units: ascending, without overlap.
    """
    leads = []
    unit = 0
    for token, (start, end) in enumerate(zip(aligned.starts, aligned.ends, strict=True)):
        while unit < len(units) and units[unit][1] <= start:
            unit += 1
        after = unit
        while after < len(units) and max(start, units[after][0]) < min(end, units[after][1]):
            after += 1
        if after > unit:
            leads.append(Lead(token, unit, after - unit))
            unit = after
    return leads


@dataclass(frozen=True)
class SentenceWindow:
    """Tokens of a sentence that are in one row.

    Attributes:
        first, end: the range of tokens.
        answers: the tokens whose labels count in this window.
    """

    first: int
    end: int
    answers: range


def cut_windows(length: int, capacity: int, stride: int) -> Iterator[SentenceWindow]:
    """Windows over a sentence; the label of every token counts in exactly one.

    Args:
        length: tokens of the sentence; 0 gives one empty window.
        capacity: most tokens of a window, at least 1.
        stride: tokens from the beginning of one window to that of the next; if it exceeds `capacity`, so that windows
            would leave tokens out, half of `capacity` is used.
    """
    bounds = window_bounds(length, capacity, stride if stride <= capacity else max(1, capacity // 2))
    begin = 0
    for place, (start, end) in enumerate(bounds, start=1):
        # In the overlap of two windows, the left one gives a token more context up to the middle.
        until = end if place == len(bounds) else (bounds[place][0] + end + 1) // 2
        yield SentenceWindow(start, end, range(begin, until))
        begin = until


def predicate_ids(aligned: AlignedText, units: Sequence[Span], predicate: int) -> list[int]:
    """The tokens that name the predicate after its sentence: its own, n times if it is the n-th of equal words."""
    starts = [start for start, _ in units]
    pieces: list[list[int]] = [[] for _ in units]
    for token, start, end in zip(aligned.ids, aligned.starts, aligned.ends, strict=True):
        unit = bisect_right(starts, start) - 1
        if unit >= 0 and start < min(end, units[unit][1]):
            pieces[unit].append(token)
    return pieces[predicate] * pieces[: predicate + 1].count(pieces[predicate])


def take_context(
    left: Sequence[Sequence[int]], right: Sequence[Sequence[int]], capacity: int
) -> tuple[list[int], list[int]]:
    """The tokens next to a sentence: half of the capacity on each side, more if the other side has fewer.

    Args:
        left, right: tokens of the sentences before and after it, in the order of the text.
    """
    before = [token for sentence in left for token in sentence]
    behind = [token for sentence in right for token in sentence]
    num_before = min(len(before), max(capacity // 2, capacity - len(behind)))
    num_behind = min(len(behind), capacity - num_before)
    return before[len(before) - num_before :], behind[:num_behind]


def encode_sentences(
    examples: Sequence[TaggingExample],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    settings: TaskSettings,
    counts: ExampleCounts,
    num_segments: int,
    kind: str = "words",
) -> EncodedExamples:
    """Encodes sentences; see the module for what a row is.

    A unit is a row, an example has one or several. Token column: `labels`, -100 unless the token represents a unit.
    Alignment: `units`, the first unit that a token represents; `num_units`, how many, 0 for other tokens; and
    `num_outside`, how many of these units are tagged O.

    Args:
        examples: at least one; those without tags get no labels.
        labels: in the order of their ids.
        settings: `max_length` and `doc_stride`.
        counts: updated.
        num_segments: below 2 a predicate is segment A too.
        kind: `words` or `characters`, for the note of what no token covers.

    Raises:
        InputError: no token of a sentence fits beside its predicate.
    """
    texts = list(dict.fromkeys(text for one in examples for text in (*one.left, one.text, *one.right)))
    aligned_texts = dict(zip(texts, align(tokenizer, texts), strict=True))
    ids_of_labels = {label: number for number, label in enumerate(labels)}
    rows = []
    num_uncovered = 0
    for number, example in enumerate(examples):
        aligned = aligned_texts[example.text]
        template = tokenizer.template.single if example.predicate is None else tokenizer.template.pair
        num_special = sum(len(piece.ids) for piece in template)
        num_before = sum(len(piece.ids) for piece in takewhile(lambda piece: piece.text != "A", template))
        leads = find_leads(aligned, example.units)
        places = [lead.token for lead in leads]
        counts.empty += not len(aligned)
        if sum(lead.num_units for lead in leads) < len(example.units):
            covered = {unit for lead in leads for unit in range(lead.unit, lead.unit + lead.num_units)}
            uncovered = (word for unit, word in enumerate(example.words) if unit not in covered)
            num_uncovered += sum(not word.isspace() for word in uncovered)
        named = [] if example.predicate is None else predicate_ids(aligned, example.units, example.predicate)
        capacity = settings.max_length - num_special - len(named)
        if capacity < 1:
            raise InputError(
                f"{example.source}: its predicate and the special tokens are {num_special + len(named)} tokens, "
                f"and task.max_length {settings.max_length} leaves none for the sentence: raise it"
            )
        left, right = take_context(
            [aligned_texts[text].ids for text in example.left],
            [aligned_texts[text].ids for text in example.right],
            max(0, capacity - len(aligned)),
        )
        for window in cut_windows(len(aligned), capacity, settings.doc_stride):
            sentence = [*left, *aligned.ids[window.first : window.end], *right]
            row = assemble(tokenizer.template, sentence, None if example.predicate is None else named, None)
            targets = np.full(len(row.input_ids), IGNORE_INDEX, dtype=np.int64)
            units, num_units, num_outside = np.zeros((3, len(row.input_ids)), dtype=np.int32)
            for lead in leads[bisect_left(places, window.answers.start) : bisect_left(places, window.answers.stop)]:
                place = num_before + len(left) + lead.token - window.first
                units[place], num_units[place] = lead.unit, lead.num_units
                if example.tags is not None:
                    tags = example.tags[lead.unit : lead.unit + lead.num_units]
                    targets[place], num_outside[place] = ids_of_labels[tags[0]], tags.count(OUTSIDE)
            second_start = row.token_type_ids.count(0) if num_segments > 1 else len(row.input_ids)
            alignment = {"units": units, "num_units": num_units, "num_outside": num_outside}
            rows.append(WindowRow(row.input_ids, second_start, number, {}, {"labels": targets}, alignment))
    counts.examples += len(examples)
    counts.note(f"{kind} that encode to nothing", num_uncovered)
    return collect_windows(rows)
