"""The special-token template of a sequence: the tokens around and between its segments, or none."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import SettingsError
from unmask.tokenization.definition import Piece, TextTemplate


@dataclass(frozen=True)
class SequenceTemplate:
    """The special tokens around and between segments, such as `[CLS] A [SEP] B [SEP]`.

    Attributes:
        template: the pieces of a sequence of one segment, and of a pair, as in `TextTokenizer.template`.
        document_separator_id: the token between documents in one segment (`[SEP]`, `</s>`); None if there is none.
    """

    template: TextTemplate
    document_separator_id: int | None = None

    def pieces(self, num_segments: int) -> tuple[Piece, ...]:
        """The pieces of a sequence of one or two segments, in their order."""
        return self.template.single if num_segments == 1 else self.template.pair

    def capacity(self, max_length: int, num_segments: int) -> int:
        """How many tokens of text fit into a sequence of `max_length` tokens, the special ones included. Raises
        SettingsError if not even one token of each segment fits."""
        num_special = sum(len(piece.ids) for piece in self.pieces(num_segments))
        if max_length < num_special + num_segments:
            raise SettingsError(
                f"packing.max_length {max_length} has no room for the {num_special} special tokens of a sequence and a "
                f"token of each segment: set packing.max_length to at least {num_special + num_segments}"
            )
        return max_length - num_special
