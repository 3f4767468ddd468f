"""Captures and measurements of memory collect garbage, which must not mean all that a session has."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_stays() -> None:
    """To look through what other tests have left takes up to half a second each time."""
    gc.collect()
    gc.freeze()
