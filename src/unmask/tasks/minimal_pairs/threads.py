"""Batches that are scored side by side, each by a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

T = TypeVar("T")

_AHEAD = 16
"""Batches for each thread that are made before any of them is scored."""


def side_by_side(score: Callable[[T], None], parts: Iterator[T], device: torch.device) -> Iterator[T]:
    """Scores each part, and yields it then: on the CPU as many at once as PyTorch has threads, each on one of them.

    Sentences make small products, of which two threads that share each finish fewer than two that have one each.
    """
    num_threads = torch.get_num_threads() if device.type == "cpu" else 1
    while group := list(islice(parts, _AHEAD * num_threads if num_threads > 1 else 1)):
        if len(group) == 1:
            score(group[0])
            yield group[0]
            continue
        try:
            with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as threads:
                for part, _ in zip(group, threads.map(score, group), strict=True):  # raises what one of them raised
                    yield part
        finally:
            torch.set_num_threads(num_threads)  # or threads that are begun later would have one
