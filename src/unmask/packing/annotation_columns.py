"""Annotations as columns of a batch: entities and noun phrases, as targets of masking (SpanBERT, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.annotations import FIELD
from unmask.errors import SettingsError
from unmask.packing.planning import Span
from unmask.store.store import TokenStore


def annotation_column(
    kind: str, store: TokenStore, spans: Sequence[Span], places: Sequence[int], num_tokens: int
) -> NDArray[np.int64]:
    """(tokens,): 0 where there is no annotation of a kind, else its number within the batch, from 1.

    An annotation ends with its segment; if it continues in the next segment, that part counts as another one.

    Args:
        kind: a key of `unmask.corpus.annotations.KINDS`.
        spans: of the batch.
        places: where each one's first token is in it.
    """
    column = np.zeros(num_tokens, dtype=np.int64)
    number = 0
    for span, place in zip(spans, places, strict=True):
        for start, end in (store.spans(span.document, span.start, span.end, kind) + (place - span.start)).tolist():
            number += 1
            column[start:end] = number
    return column


def check_annotations(store: TokenStore, kind: str) -> None:
    """Refuses a store without annotations of a kind. Raises SettingsError if it has none."""
    if not store.num_spans(kind):
        raise without_annotations(
            kind, store.directory, ", and prepare the store anew, with a tokenizer that has no segmenter"
        )


def without_annotations(kind: str, where: object, and_then: str = "") -> SettingsError:
    """The error for text without annotations of a kind.

    Args:
        where: the text, for the message.
        and_then: what to do after the text has been annotated.
    """
    return SettingsError(
        f"objective.masking={kind} needs text in which such runs are marked, and {where} has none: give each "
        f'document of a .jsonl corpus `"{FIELD}": [[start, end, "{kind}"], ...]`, in characters of its text{and_then}; '
        "or take objective.masking=span, which needs no annotations"
    )
