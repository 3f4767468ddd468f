"""Train, dev and test splits for data published without any.

What belongs together stays together: an article's questions, a premise's hypotheses, a document's sentences. Such
groups are ordered by the SHA-256 of their title or id, or else their text; the first 80 % are for training, the first
half of the rest is dev, and the other half test. So a split depends only on the data, and is the same for everybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from unmask.errors import InputError

SplitName = Literal["train", "dev", "test"]

SPLITS: tuple[SplitName, ...] = ("train", "dev", "test")


def split_of_groups(keys: Iterable[str]) -> dict[str, SplitName]:
    """The split of each group.

    Args:
        keys: the title, id or text that names each group; equal keys are one group. The order does not matter.

    Returns:
        Of n groups, the first 8 n / 10 (rounded down, at most n - 2) are for training, half of the others (rounded up)
        dev, the rest test.

    Raises:
        InputError: there are fewer than three groups.
    """
    ordered = sorted(set(keys), key=_order)
    if len(ordered) < 3:
        raise InputError(
            f"{len(ordered)} group{' that belongs' if len(ordered) == 1 else 's that belong'} together: expected at "
            "least three, for train, dev and test; split by something finer"
        )
    num_train = min(8 * len(ordered) // 10, len(ordered) - 2)
    num_dev = (len(ordered) - num_train + 1) // 2
    return {
        key: "train" if place < num_train else "dev" if place < num_train + num_dev else "test"
        for place, key in enumerate(ordered)
    }


def _order(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
