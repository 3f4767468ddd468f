"""Settings of packing: how documents become sequences, and how that changes over a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from unmask.config import Settings

PAIRED: dict[str, str] = {"segment_pair": "segment pairs", "sentence_pair": "sentence pairs"}
"""The formats of two segments, by `packing.format`, with what their sequences are called in messages."""

JOINED = frozenset({"full_sentences"})
"""The formats that put several documents into one segment, with a separator token between them."""

SentenceQuestion = Literal["nsp", "sop"]
"""Next-sentence prediction: does segment B follow segment A? Sentence-order prediction: are the two in their order?"""

SentenceObjective = Literal["none", SentenceQuestion]
"""`objective.sentence_objective`: what pairs of segments are for."""

LABEL_COLUMNS: dict[SentenceQuestion, str] = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
"""The column of a batch that holds the answers, (sequences,) int64."""


class PackingSettings(Settings):
    """How documents become sequences (BERT, appendix A.2)."""

    format: Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "single_segment", "stream"] = (
        "segment_pair"
    )
    """`segment_pair`: two runs of sentences (BERT). `sentence_pair`: two single sentences. `full_sentences`: whole
    sentences up to max_length, from one document into the next, with a separator between them. `doc_sentences`: the
    same, but ending with the document (all four: RoBERTa, section 4.2). `single_segment`: max_length consecutive tokens
    of one document, even if that cuts sentences (SpanBERT; GPT-1). `stream`: documents one after another in as many
    lanes as a batch has sequences (ELMo)."""

    max_length: int = Field(default=128, ge=8)
    """Most tokens of a sequence, special tokens included."""

    short_sequence_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of sequences whose target length is drawn uniformly between 2 and the longest. Only for `segment_pair`; the
    papers of the other formats have no such sequences, and their default is 0."""

    copies: int | None = Field(default=None, ge=1)
    """Epoch e repeats the sequences of epoch e modulo `copies`; null draws new ones in every epoch."""

    @model_validator(mode="before")
    @classmethod
    def _only_segment_pairs_are_short_by_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("format", "segment_pair") != "segment_pair":
            return {"short_sequence_prob": 0.0, **values}
        return values

    @model_validator(mode="after")
    def _only_segment_pairs_are_short(self) -> PackingSettings:
        return _refuse_short_sequences(self)


def _refuse_short_sequences(packing: PackingSettings) -> PackingSettings:
    if packing.format != "segment_pair" and packing.short_sequence_prob > 0:
        raise ValueError(
            f"short_sequence_prob {packing.short_sequence_prob} is for packing.format=segment_pair, and the format is "
            f"{packing.format}, which has no target length to shorten: set short_sequence_prob=0"
        )
    return packing


class PhaseSettings(Settings):
    """A part of a run with its own sequences or batches; settings left out are those of `packing` and `train`."""

    until: float = Field(gt=0, le=1)
    """The share of the run's budget that is done when the phase ends; 1 for the last phase."""

    max_length: int | None = Field(default=None, ge=8)
    """`packing.max_length` of the phase."""

    short_sequence_prob: float | None = Field(default=None, ge=0, le=1)
    """`packing.short_sequence_prob` of the phase."""

    batch_size: int | None = Field(default=None, ge=1, le=2**20)
    """`train.batch_size` of the phase."""

    micro_batch_size: int | None = Field(default=None, ge=1, le=2**20)
    """`train.micro_batch_size` of the phase."""

    causal_share: float | None = Field(default=None, ge=0, le=1)
    """`objective.causal_share` of the phase."""

    def packing(self, base: PackingSettings) -> PackingSettings:
        """The packing settings of the phase: `base`, overridden by those of the phase. Raises ValueError if the two
        contradict each other."""
        own = {"max_length": self.max_length, "short_sequence_prob": self.short_sequence_prob}
        said = {name: value for name, value in own.items() if value is not None}
        return _refuse_short_sequences(base.model_copy(update=said))


def _ends_ascend(phases: Sequence[PhaseSettings]) -> Sequence[PhaseSettings]:
    untils = [phase.until for phase in phases]
    if untils != sorted(set(untils)):
        raise ValueError(f"phases end at {untils}: expected `until` to grow from one phase to the next")
    if untils and untils[-1] != 1:
        raise ValueError(f"the last phase ends at {untils[-1]}: expected until: 1, the end of the run")
    return phases


Phases = Annotated[tuple[PhaseSettings, ...], AfterValidator(_ends_ascend)]
"""A run's phases in order, such as BERT's: nine tenths of the steps at 128 tokens, one at 512; empty for a run without
phases."""
