"""The rule of a spike, as in `unmask.training.divergence`, applied on the device so that nothing waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.training.divergence import FEWEST, WINDOW


class RecentLosses:
    """The losses of the last `WINDOW` steps taken, on the device; spikes are judged against them, as in
    `find_fault`."""

    def __init__(self, device: torch.device) -> None:
        self._losses = torch.full((WINDOW,), torch.inf, dtype=torch.float64, device=device)
        self._num_taken = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of its state."""
        return self._losses, self._num_taken

    def restart(self, losses: Sequence[float]) -> None:
        """Replaces all losses by others, the newest last."""
        self._losses.fill_(torch.inf)
        self._losses[: len(losses)] = torch.tensor(losses, dtype=torch.float64)
        self._num_taken.fill_(len(losses))

    def is_spike(self, loss: Tensor, factor: float) -> Tensor:
        """() bool, whether a loss is over `factor` times their median, where there are enough of them."""
        number = self._num_taken.clamp(max=WINDOW)
        ascending = self._losses.sort().values  # unused places, which are infinite, come last
        median = (ascending[(number - 1).clamp(min=0) // 2] + ascending[(number // 2).clamp(max=WINDOW - 1)]) / 2
        return ((loss > factor * median) & (median != 0) & (number >= FEWEST)).squeeze()

    def add(self, loss: Tensor, halted: Tensor) -> None:
        """Takes in a loss in place of the oldest, unless the run is halted."""
        place = self._num_taken % WINDOW
        value = torch.where(halted > 0, self._losses[place], loss)
        self._losses.index_copy_(0, place, value)
        self._num_taken += (halted == 0).long()
