"""The training or the held-out documents of a store."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unmask.chance import Draws
from unmask.store.store import TokenStore


class Split:
    """The training or the held-out documents of a store, divided by the SHA-256 of their text.

    Args:
        held_out: share of documents that is held out.
        is_held_out: True for the held-out documents, False for the others.
    """

    def __init__(self, store: TokenStore, held_out: float, is_held_out: bool) -> None:
        self.store = store
        self.is_held_out = is_held_out
        self._threshold = int(held_out * 2**32)
        held_out_documents = int(np.count_nonzero(store.text_hashes() < self._threshold))
        self.num_documents = held_out_documents if is_held_out else store.num_documents - held_out_documents

    @property
    def name(self) -> str:
        """For messages."""
        return "held-out" if self.is_held_out else "training"

    def documents(self) -> NDArray[np.int64]:
        """(documents,) int64: the places in the store of all documents of the split, ascending."""
        return np.flatnonzero((self.store.text_hashes() < self._threshold) == self.is_held_out)

    def __contains__(self, document: int) -> bool:
        return (self.store.text_hash(document) < self._threshold) == self.is_held_out

    def draw_other(self, document: int, draws: Draws) -> int:
        """A document of this split other than `document`, drawn uniformly."""
        assert self.num_documents > 1, "there is no other document"
        while True:
            other = draws.integer(0, self.store.num_documents - 1)
            if other != document and other in self:
                return other
