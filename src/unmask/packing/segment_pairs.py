"""Sequences of two segments: the formats that make them, what can be asked of the two, and where the answers are.

Data, objectives and recipes have to agree on these.
"""

from __future__ import annotations

from typing import Literal

PAIRED: dict[str, str] = {"segment_pair": "segment pairs", "sentence_pair": "sentence pairs"}
"""The formats of two segments, by `packing.format`, with what their sequences are called in messages."""

SentenceQuestion = Literal["nsp", "sop"]
"""Next-sentence prediction: does segment B follow segment A? Sentence-order prediction: are the two in their order?"""

SentenceObjective = Literal["none", SentenceQuestion]
"""`objective.sentence_objective`: what pairs of segments are for."""

LABEL_COLUMNS: dict[SentenceQuestion, str] = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
"""The column of a batch that holds the answers, (sequences,) int64."""
