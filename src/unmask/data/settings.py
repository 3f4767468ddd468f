"""Settings of reading, cleaning and packing: how files become documents, and documents sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from unmask.config import Settings


class ReadingSettings(Settings):
    """How files become documents."""

    format: Literal["auto", "txt", "md", "jsonl", "csv", "tsv", "parquet", "wikipedia", "gutenberg"] = "auto"
    """`auto`: by the file's suffix, `.xml` being a Wikipedia dump, and a `.txt` with Project Gutenberg's licence a
    Gutenberg book; standard input is read as `txt`."""

    column: str = "text"
    """The field of a JSON object, or the column of a table, that holds the text."""

    txt_documents: Literal["blank_line", "file"] = "blank_line"
    """`blank_line`: documents of a `.txt` file are separated by one or more blank lines. `file`: each `.txt` file is
    one document, its blank lines kept."""

    on_error: Literal["stop", "skip"] = "stop"
    """What a record that cannot be read does: `stop` with its place, or `skip` it, count it and list it."""


class CleaningSettings(Settings):
    """What is mended in documents and which are left out; each step is counted and can be switched off."""

    nfc: bool = True
    """True composes characters (Unicode NFC)."""

    control_characters: bool = True
    """True removes control characters, tab and line breaks aside, and makes every line break a newline."""

    zero_width_characters: bool = True
    """True removes characters that take no room and mean nothing where they stand."""

    boilerplate_lines: bool = False
    """True removes lines that are furniture of web pages rather than text."""

    min_characters: int = Field(1, ge=1)
    """Documents of fewer characters, white space at their ends aside, are dropped."""

    duplicates: Literal["keep", "documents", "paragraphs"] = "keep"
    """`documents`: of equal documents only the first stays; `paragraphs`: of equal paragraphs (lines) likewise, and of
    equal documents with them. Compared by 128-bit hashes that are sorted on disk: memory does not grow."""

    near_duplicates: float | None = Field(None, gt=0, lt=1)
    """Documents whose sets of word 5-grams have at least this Jaccard similarity with an earlier one, by MinHash, are
    dropped; needs the extra `near-duplicates`, and memory that grows with the documents. Null keeps them."""

    min_script_share: dict[str, float] = Field(default_factory=dict)
    """Unicode script ("Hangul", "Latin", ...) -> least share (0..1) of a document's letters in it. A document passes if
    it has enough of any one of them; empty lets all pass."""


class PackingSettings(Settings):
    """How documents become sequences (BERT, appendix A.2)."""

    format: Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "single_segment", "stream"] = (
        "segment_pair"
    )
    """`segment_pair`: two runs of sentences (BERT). `sentence_pair`: two single sentences. `full_sentences`: whole
    sentences up to max_length, from one document into the next, with a separator between them. `doc_sentences`: the
    same, but ending with the document (all four: RoBERTa, section 4.2). `single_segment`: max_length tokens in a row of
    one document, sentences cut wherever that is (SpanBERT; GPT-1). `stream`: documents one after another in as many
    lanes as a batch has sequences (ELMo)."""

    max_length: int = Field(128, ge=8)
    """Tokens in a sequence, special ones included."""

    short_sequence_prob: float = Field(0.1, ge=0, le=1)
    """Share of sequences whose target length is drawn evenly between 2 and the longest: of `segment_pair` alone, the
    other formats being those of papers that leave such sequences out, and 0 for them by default."""

    copies: int | None = Field(None, ge=1)
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
    """A part of a run with sequences or batches of its own; what it leaves out is as in `packing` and `train`."""

    until: float = Field(gt=0, le=1)
    """The share of the run's budget that is done when the phase ends; 1 for the last one."""

    max_length: int | None = Field(None, ge=8)
    """`packing.max_length` of the phase."""

    short_sequence_prob: float | None = Field(None, ge=0, le=1)
    """`packing.short_sequence_prob` of the phase."""

    batch_size: int | None = Field(None, ge=1)
    """`train.batch_size` of the phase."""

    micro_batch_size: int | None = Field(None, ge=1)
    """`train.micro_batch_size` of the phase."""

    def packing(self, base: PackingSettings) -> PackingSettings:
        """How the phase packs: `base`, but for what the phase says itself.

        Raises:
            ValueError: the two contradict each other.
        """
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
"""A run's phases in their order, such as BERT's: nine tenths of the steps at 128 tokens, one at 512; none for one."""
