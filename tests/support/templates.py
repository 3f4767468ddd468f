"""Special-token templates of tests: ids over a million, which no text has."""

from __future__ import annotations

from unmask.packing.templates import SequenceTemplate
from unmask.tokenization.definition import Piece, TextTemplate

CLS, SEP, START, END = range(1_000_001, 1_000_005)
A = Piece("A", (), 0)
BERT = SequenceTemplate(
    TextTemplate(
        single=(Piece("", (CLS,), 0), A, Piece("", (SEP,), 0)),
        pair=(Piece("", (CLS,), 0), A, Piece("", (SEP,), 0), Piece("B", (), 1), Piece("", (SEP,), 1)),
    ),
    document_separator_id=SEP,
)
ROBERTA = SequenceTemplate(
    TextTemplate(
        single=(Piece("", (START,), 0), A, Piece("", (END,), 0)),
        pair=(Piece("", (START,), 0), A, Piece("", (END, END), 0), Piece("B", (), 0), Piece("", (END,), 0)),
    ),
    document_separator_id=END,
)
