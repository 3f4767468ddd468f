"""From planned sequences to a packed batch: tokens from the store, special tokens around them, and where each is.

An example: two documents, and two sequences of one segment with `[CLS]` (2) before and `[SEP]` (3) after it. The first
runs from one document into the next, with a separator between them.

>>> from types import SimpleNamespace
>>> from unmask.packing.planning import Span
>>> from unmask.tokenization.definition import TextTemplate, Piece
>>> texts = {0: [10, 11, 12, 13], 1: [20, 21, 22]}
>>> store = SimpleNamespace(tokens=lambda document, start, end: texts[document][start:end])
>>> single = (Piece(text="", ids=(2,), segment=0), Piece("A", (), 0), Piece("", (3,), 0))
>>> template = SequenceTemplate(TextTemplate(single, pair=()), document_separator_id=3)
>>> first = PlannedSequence(((Span(0, 2, 4), Span(1, 0, 3)),))
>>> second = PlannedSequence(((Span(1, 1, 2),),))
>>> batch = pack_sequences([(first, 7), (second, 8)], store, template)
>>> batch.input_ids.tolist()
[2, 12, 13, 3, 20, 21, 22, 3, 2, 21, 3]
>>> batch.bounds.tolist(), batch.position_ids.tolist()
([0, 8, 11], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2])
>>> batch.columns["special_tokens_mask"].int().tolist()
[1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1]

The comments in `pack_sequences` are the arrays of this example.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from unmask.batch import Batch
from unmask.packing.annotation_columns import annotation_column
from unmask.packing.planning import PlannedSequence
from unmask.packing.templates import SequenceTemplate
from unmask.store.store import TokenStore


def pack_sequences(
    planned: Sequence[tuple[PlannedSequence, int]],
    store: TokenStore,
    template: SequenceTemplate,
    label_column: str | None = None,
    annotations: str | None = None,
) -> Batch:
    """Packs sequences with their special tokens.

    Args:
        planned: sequences, each with its key; all of one segment, or all of two.
        label_column: the column that gets each sequence's `label`; None: none.
        annotations: the kind whose column is added, by its name; None: none.

    Returns:
        A batch with the columns `special_tokens_mask` (tokens,) bool (True also for separators between documents),
        `label_column` (sequences,) int64, and `annotations` (tokens,) int64.
    """
    segments = [segment for sequence, _ in planned for segment in sequence.segments]
    spans = [span for segment in segments for span in segment]
    span_sizes = np.array([span.end - span.start for span in spans])  # [2, 3, 1]
    num_spans = np.array([len(segment) for segment in segments])  # [2, 1]
    first_spans = np.cumsum(num_spans) - num_spans  # [0, 2]
    # Counted with a separator after each span, even the last of a segment:
    span_ends = np.cumsum(span_sizes + 1)  # [3, 7, 9]
    span_starts = span_ends - span_sizes - 1  # [0, 3, 7]
    segment_starts = span_starts[first_spans]  # [0, 7]

    pieces = template.pieces(len(planned[0][0].segments))
    are_texts = np.array([bool(piece.text) for piece in pieces])  # [False, True, False]
    lengths = np.empty((len(planned), len(pieces)), dtype=np.int64)
    lengths[:] = [len(piece.ids) for piece in pieces]
    lengths[:, are_texts] = (span_ends[first_spans + num_spans - 1] - segment_starts - 1).reshape(len(planned), -1)
    # lengths is now [[1, 6, 1], [1, 1, 1]]: the pieces [CLS], text, [SEP] of each sequence.
    ends = np.cumsum(lengths).reshape(lengths.shape)  # [[1, 7, 8], [9, 10, 11]]
    starts = ends - lengths  # [[0, 1, 7], [8, 9, 10]]
    total = int(ends[-1, -1])  # 11
    sizes = ends[:, -1] - starts[:, 0]  # [8, 3]

    input_ids = np.empty(total, dtype=np.int64)
    special = np.zeros(total, dtype=bool)
    places = span_starts + np.repeat(starts[:, are_texts].ravel() - segment_starts, num_spans)  # [1, 4, 9]
    place_list = places.tolist()
    for span, first, after in zip(spans, place_list, (places + span_sizes).tolist(), strict=True):
        input_ids[first:after] = store.tokens(span.document, span.start, span.end)
    for number, piece in enumerate(pieces):
        for place, token in enumerate(piece.ids):
            at = starts[:, number] + place
            input_ids[at] = token
            special[at] = True
    if len(spans) > len(segments):
        separators = np.delete(places, first_spans) - 1  # [3]
        assert template.document_separator_id is not None, "a segment of several documents"
        input_ids[separators] = template.document_separator_id
        special[separators] = True

    columns = {"special_tokens_mask": torch.from_numpy(special)}
    if label_column is not None:
        columns[label_column] = torch.tensor([sequence.label for sequence, _ in planned])
    if annotations is not None:
        columns[annotations] = torch.from_numpy(annotation_column(annotations, store, spans, place_list, total))
    token_types = np.tile([piece.segment for piece in pieces], len(planned))
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(np.repeat(token_types, lengths.ravel())),
        position_ids=torch.from_numpy(np.arange(total) - np.repeat(starts[:, 0], sizes)),
        bounds=torch.from_numpy(np.concatenate([[0], ends[:, -1]]).astype(np.int32)),
        lengths=tuple(sizes.tolist()),
        keys=torch.tensor([chance_key for _, chance_key in planned], dtype=torch.int64),
        columns=columns,
    )
