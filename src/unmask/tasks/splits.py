"""Which of train, dev and test each group of examples belongs to, and what is said of the outcome."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

import numpy as np

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.progress import Progress, listed
from unmask.tasks.rows import alike

logger = logging.getLogger("unmask")

SplitName = Literal["train", "dev", "test"]

SPLITS: tuple[SplitName, ...] = ("train", "dev", "test")

_SHARES: dict[SplitName, float] = {"train": 0.8, "dev": 0.1, "test": 0.1}

_MOST_NAMED = 5
"""Labels in a warning."""


@dataclass(frozen=True, slots=True)
class Unsplittable:
    """What cannot be divided: an article, the lines of a row or of a document.

    Attributes:
        group: the name of the group that it belongs to; empty: it is one by itself.
        content: an article as it was parsed, or text exactly as in the file.
        labels: of a row.
    """

    group: str
    content: Any
    labels: tuple[str, ...] = ()


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
    ordered = sorted(set(keys), key=lambda key: hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest())
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


def one_spelling(keys: Sequence[str]) -> list[str]:
    """The keys, in which those that differ in case, blanks and composition alone are written as the first of them."""
    distinct = sorted(set(keys))
    with Progress("grouping", len(distinct), unit="groups") as progress:
        hashes = np.fromiter((hash(alike(key)) for key in progress.counting(distinct)), np.int64, len(distinct))
    several, counts = np.unique(hashes, return_counts=True)
    first: dict[str, str] = {}  # of those with a hash that others have, which are few
    written = {
        key: first.setdefault(alike(key), key) for key in compress(distinct, np.isin(hashes, several[counts > 1]))
    }
    return [written.get(key, key) for key in keys]


def warn_of_splits(
    path: DataPath, parts: Sequence[Unsplittable], splits: Sequence[SplitName], label_columns: Sequence[str]
) -> None:
    """Warns of parts that are far from 80, 10 and 10 %, and of labels that a part lacks or that were not found.

    Args:
        splits: of each of the parts.
        label_columns: where labels were looked for; empty where there are none to look for.
    """
    of = {name: [part for part, its in zip(parts, splits, strict=True) if its == name] for name in SPLITS}
    shares = {name: len(its) / len(parts) for name, its in of.items()}
    if any(not _SHARES[name] / 2 <= share <= _SHARES[name] * 2 for name, share in shares.items()):
        logger.warning(
            "%s: of %s, %s, where 80, 10 and 10 %% were meant: whole groups are split, and these are few or of unequal "
            "sizes; group by something finer",
            path,
            f"{len(parts):,}",
            ", ".join(f"{name} has {len(its):,} ({shares[name]:.1%})" for name, its in of.items()),
        )
    labels = {name: {label for part in its for label in part.labels} for name, its in of.items()}
    if label_columns and not any(labels.values()):
        columns = " or ".join(map(repr, label_columns))
        logger.warning("%s: no label in a column %s: whether each part has all labels was not checked", path, columns)
    for name, missing in zip(SPLITS, ("nothing is learned", "dev says nothing", "test says nothing"), strict=True):
        if unseen := set().union(*labels.values()) - labels[name]:
            named = listed(sorted(unseen), _MOST_NAMED)
            advice = "; move a row of each into train, or list all labels in task.labels" if name == "train" else ""
            logger.warning("%s: %s of labels that no row of %s has: %s%s", path, missing, name, named, advice)
