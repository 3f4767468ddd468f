"""A stand-in for a GPU where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from unmask.models import attention


@pytest.fixture
def valueless(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """PyTorch's meta device, with the attention of a GPU: tensors on it have sizes and no values.

    A computation that waits for a value of the device, or mixes tensors of the CPU with the device's, fails there.
    """
    asked = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and asked(kind))
    monkeypatch.setattr(attention, "choose_backend", lambda *_: ("varlen", "a test"))
    return torch.device("meta")


@pytest.fixture
def counting(valueless: torch.device) -> Iterator[torch.device]:
    """The same, but how many elements a mask has may be waited for: all of them."""
    from torch.fx.experimental import _config

    with _config.patch(meta_nonzero_assume_all_nonzero=True):
        yield valueless
