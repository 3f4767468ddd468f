"""Steps captured once for each shape of batch and then replayed, on a GPU as CUDA graphs.

A step of a small model, or of few tokens, is hundreds of kernels of a few microseconds, which Python cannot launch as
fast as the device computes them. Batches are padded to shapes that recur (`unmask.models.buckets`), parameters and
gradients are kept in one tensor each (`FlatParameters`), and the device decides by loss and gradient norm whether a
step is taken: one that is not finite, or a spike, and all steps after it change nothing until the loop has read the
figures.

Weights are rounded once per step, not once per use; their gradients are rounded as under autocast, and summed over
micro-batches in float32. On other devices the same is computed without capturing, for tests.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.models.buckets import Paddings, Shape, Shapes, only_padding, pad_batch
from unmask.training.captured.capture import Capturer, random_state, restoring, set_random_state
from unmask.training.captured.flat_parameters import FlatParameters
from unmask.training.device import Compute
from unmask.training.divergence import RecentLosses, terms_with_targets
from unmask.training.optimizers.adamw import AdamW, OnDevice
from unmask.training.optimizers.muon import MuonWithAdamW
from unmask.training.optimizers.optimizer import clipping_divisor
from unmask.training.stepping.eager import weigh
from unmask.training.stepping.protocol import Accept, StepFigures

logger = logging.getLogger("unmask")

_MOST_LAUNCHED = 256
"""Steps that may be launched before their figures are read."""

_STEPS_BETWEEN_RETRIES = 100
"""Graphs that do not fit into the memory together would otherwise push each other out at every step."""


@dataclass
class _CapturedPass:
    """A forward and backward pass over batches of one shape.

    Attributes:
        batch: its tensors take in each batch before it is computed.
        replay: computes what `batch` holds.
    """

    batch: Batch
    replay: Callable[[], None]


class CapturedStepper:
    """Replays steps; see `unmask.training.stepping.protocol.Stepper`.

    Args:
        module: takes a padded batch, returns its `LossTerm`s.
        optimizer: over the module's parameters; its groups hold the learning rates of the step.
        max_grad_norm: gradients are scaled down to this norm; None: they are not.
        spike_factor: as in `TrainSettings`.
        paddings: how the columns that the module reads are padded.
        longest: upper bound on the tokens of any sequence of the run.
        compiles: whether the encoder's blocks are compiled before they are captured.
    """

    prepares_ahead = True

    def __init__(
        self,
        module: nn.Module,
        optimizer: AdamW | MuonWithAdamW,
        max_grad_norm: float | None,
        spike_factor: float | None,
        compute: Compute,
        paddings: Paddings,
        longest: int,
        compiles: bool,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._spike_factor = spike_factor
        self._compute = compute
        self._paddings = paddings
        self._shapes = Shapes(paddings, longest)
        self._is_cuda = compute.device.type == "cuda"
        self._capturer = Capturer(module, compute.device, compiles)
        self._graphs: dict[Shape, _CapturedPass] = {}
        self._update: Callable[[], None] | None = None
        self._updated: list[int] = []
        self._flat: FlatParameters | None = None
        self._num_launched = 0
        self._num_since_retry = _STEPS_BETWEEN_RETRIES
        self._recent = RecentLosses(compute.device)
        # Graphs read and write these tensors, so they keep their place in memory.
        self._halted = torch.zeros((), device=compute.device)
        self._rates = [torch.zeros((), device=compute.device) for _ in optimizer.param_groups]
        self._row = torch.zeros(1, dtype=torch.int64, device=compute.device)
        self._grad_scale = torch.ones((), device=compute.device)
        self._coefficients: dict[str, float] = {}
        self._counts: dict[str, Tensor] = {}
        self._totals = torch.zeros(0)
        self._records = torch.zeros(0)

    @property
    def runs_ahead(self) -> bool:
        return self._num_launched < _MOST_LAUNCHED

    @property
    def num_graphs(self) -> int:
        """How many shapes are captured."""
        return len(self._graphs)

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int], number: int = 0) -> None:
        assert self._num_launched < _MOST_LAUNCHED, "read comes earlier"
        device, random = self._compute.device, random_state(self._compute.device)
        try:
            if not self._begin(batches, counts, is_last_try=self._num_since_retry < _STEPS_BETWEEN_RETRIES):
                logger.info("memory ran out beside the CUDA graphs of other shapes of batch: they are captured again")
                self._num_since_retry = 0
                gc.collect()  # the error's traceback kept what the step had allocated
                set_random_state(random, device)
                self._begin(batches, counts, is_last_try=True)
        except torch.OutOfMemoryError:
            set_random_state(random, device)
            raise
        assert self._update is not None
        self._update()
        self._num_launched += 1
        self._num_since_retry += 1

    def _begin(self, batches: Sequence[Batch], counts: Mapping[str, int], *, is_last_try: bool) -> bool:
        """Launches all of a step but the update, which is only captured.

        Returns:
            False: memory ran out while earlier graphs held some of it, fragmented by the sizes of their batches.
            They are discarded, and the step may now fit.

        Raises:
            torch.OutOfMemoryError: memory ran out without any graphs, or at the last try.
        """
        try:
            if self._flat is None:
                self._flat = self._start(batches[0])
            self._recent.turn_to(terms_with_targets(counts))
            for name, count in self._counts.items():
                count.fill_(max(1, counts[name]))
            for batch in batches:
                shape = self._shapes.choose(batch)
                padded = pad_batch(batch, shape, self._paddings)
                captured = self._graphs.get(shape)
                if captured is None:
                    captured = self._graphs[shape] = self._capture_batch(padded)
                _copy(padded, captured.batch, pins=self._is_cuda)
                captured.replay()
            for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
                rate.fill_(group["lr"])
            if self._update is None:
                self._update = self._capture_update(self._flat)
        except torch.OutOfMemoryError:
            were_there = bool(self._graphs)
            self.release()
            if is_last_try or not were_there:
                raise
            return False
        return True

    def leave(self) -> None:
        """Hands module and optimizer to another stepper, as they were before a first step that could not be taken."""
        self.release()
        self._flat = None
        for parameter in self._module.parameters():
            parameter.grad = None
        self._optimizer.on_device = None

    def release(self) -> None:
        """Discards all graphs, which frees their memory, and the sums of a step that was broken off; graphs are
        captured again as needed."""
        if self._is_cuda:
            torch.cuda.synchronize(self._compute.device)  # replays of earlier steps may still be running
        self._graphs.clear()
        self._update = None
        self._capturer.forget()
        if self._flat is not None:
            self._flat.zero()
        self._totals.zero_()

    def read(self, accept: Accept) -> list[StepFigures]:
        """See `Stepper`; `accept` repeats the device's decision, by the same numbers."""
        rows = self._records[: self._num_launched].tolist()  # waits for the device
        self._row.zero_()
        self._num_launched = 0
        figures = []
        for place, (*sums, norm, is_bad) in enumerate(rows):
            step = StepFigures(dict(zip(self._coefficients, sums, strict=True)), norm, self._coefficients)
            figures.append(step)
            is_taken = accept(place, step)
            assert is_taken != bool(is_bad), f"the device and the loop differ on {step}"
            if is_bad:
                break
        return figures

    def restart(self, recent_losses: Mapping[str, Sequence[float]]) -> None:
        self._recent.restart(recent_losses)
        self._halted.zero_()
        if self._updated != self._state_places():  # the optimizer's state is now in other tensors
            self._update = None
        if self._flat is not None:
            self._flat.refresh()

    def _start(self, batch: Batch) -> FlatParameters:
        """Finds by one pass the loss terms and the parameters that get a gradient, which it moves into one tensor."""
        padding = only_padding(batch, self._shapes).to(self._compute.device)
        parameters = dict(self._module.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        try:
            with restoring([], self._compute.device):
                with self._compute.autocast():
                    terms: list[LossTerm] = self._module(padding)
                sum(term.total for term in terms).backward()  # type: ignore[union-attr]
            trained = [name for name, parameter in parameters.items() if parameter.grad is not None]
        finally:
            for parameter in parameters.values():
                parameter.grad = None
        self._coefficients = {term.name: term.coefficient for term in terms}
        device = self._compute.device
        self._counts = {term.name: torch.ones((), dtype=torch.float64, device=device) for term in terms}
        self._totals = torch.zeros(len(terms), dtype=torch.float64, device=device)
        self._records = torch.zeros(_MOST_LAUNCHED, len(terms) + 2, dtype=torch.float64, device=device)
        return FlatParameters(self._module, trained, self._compute.dtype)

    def _accumulate(self, batch: Batch) -> None:
        """A forward and backward pass: adds to the totals and the gradients."""
        assert self._flat is not None
        with self._flat.lent():
            terms: list[LossTerm] = self._module(batch)
        weigh(terms, self._counts).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._totals += torch.stack([term.total.detach().double() for term in terms])
        self._flat.gather()

    @torch.no_grad()
    def _take_step(self, flat: FlatParameters) -> None:
        """Clips, checks loss and gradient norm, and updates the weights, all on the device."""
        norm = torch.linalg.vector_norm(flat.gradients)
        loss = torch.zeros((), dtype=torch.float64, device=norm.device)
        for number, (name, coefficient) in enumerate(self._coefficients.items()):
            loss = loss + coefficient * (self._totals[number] / self._counts[name])
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        if self._spike_factor is not None:
            is_bad = is_bad | self._recent.is_spike(loss, self._spike_factor)
        torch.maximum(self._halted, is_bad.float(), out=self._halted)
        self._recent.add(loss, self._halted)
        if (divisor := clipping_divisor(norm, self._max_grad_norm)) is not None:
            self._grad_scale.copy_(divisor)
        self._optimizer.step()
        figures = torch.cat([self._totals, norm.double()[None], is_bad.double()[None]])
        self._records.index_copy_(0, self._row, figures[None])
        self._row += 1
        flat.refresh()
        flat.zero()
        self._totals.zero_()

    def _capture_batch(self, padded: Batch) -> _CapturedPass:
        assert self._flat is not None
        batch = padded.map(lambda tensor: tensor.to(self._compute.device, copy=True))
        kept = [self._flat.gradients, self._totals]
        # A pass that breaks off leaves rounded gradients too: they are not in `kept`, and `zero` clears them.
        return _CapturedPass(batch, self._capturer.capture(lambda: self._accumulate(batch), kept, self._flat.zero))

    def _capture_update(self, flat: FlatParameters) -> Callable[[], None]:
        """Captures the update; its warm-up runs see that the run is halted, and change no weight."""
        optimizer = self._optimizer
        optimizer.start_all()
        optimizer.on_device = OnDevice(self._halted, self._grad_scale, self._rates)
        self._updated = self._state_places()
        if not self._is_cuda:
            return lambda: self._take_step(flat)
        kept = [flat.gradients, self._totals, self._halted, self._records, self._row, *self._recent.tensors]
        kept += [state["step"] for state in optimizer.state.values() if "step" in state]
        with restoring([self._halted], self._compute.device):
            self._halted.fill_(1)
            return self._capturer.capture(lambda: self._take_step(flat), kept, flat.zero)

    def _state_places(self) -> list[int]:
        """The memory addresses of the optimizer's state."""
        return [value.data_ptr() for state in self._optimizer.state.values() for value in state.values()]


def _copy(source: Batch, target: Batch, pins: bool) -> None:
    """Copies a batch from the CPU into the tensors of another of the same shape."""
    for tensor, place in zip(source.tensors().values(), target.tensors().values(), strict=True):
        place.copy_(tensor.pin_memory() if pins else tensor, non_blocking=True)
