"""Steps that are recorded once for each shape of batch and then replayed: on a GPU as CUDA graphs.

A step of a small model, or of few tokens, is hundreds of kernels of some microseconds, which Python cannot launch as
fast as the device computes them. Batches get shapes that return (`unmask.filling`), parameters and gradients stand in
one tensor each (`unmask.training.flat_parameters`), and what follows from loss and gradient norm is decided on the
device: a step that is not finite, or a spike, and all steps after it, change nothing until the loop has looked.

The weights are rounded once a step, not once a use; their gradients are rounded as under autocast, and summed over
micro-batches in float32. Elsewhere than on a GPU the same is computed without recording, for tests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.filling import Fillings, Shape, Shapes, fill, only_padding
from unmask.training.adamw import AdamW
from unmask.training.device import Compute
from unmask.training.flat_parameters import FlatParameters
from unmask.training.optimizer import clipping_divisor
from unmask.training.recent_losses import RecentLosses
from unmask.training.recording import Recorder
from unmask.training.restoring import random_state, restoring, set_random_state
from unmask.training.stepper import Judge, StepFigures, weigh

_MOST_LAUNCHED = 512
"""Steps whose figures there is room for."""


@dataclass
class _Recording:
    """A forward and backward pass over batches of one shape.

    Attributes:
        batch: whose tensors each batch is copied into.
        replay: computes it.
    """

    batch: Batch
    replay: Callable[[], None]


class RecordedStepper:
    """Replays steps; see `unmask.training.stepper.Stepper`.

    Args:
        module: takes a filled batch, returns its `LossTerm`s.
        optimizer: over its parameters, whose groups have the rates of the step.
        max_grad_norm: gradients are scaled down to it; None: they are not.
        spike_factor: as in `TrainSettings`.
        compute: where, and in which precision.
        fillings: of the columns that the module reads.
        longest: tokens that no sequence of the run has more of.
        compiles: whether the encoder's blocks are compiled before they are recorded.
    """

    runs_ahead = True

    def __init__(
        self,
        module: nn.Module,
        optimizer: AdamW,
        max_grad_norm: float | None,
        spike_factor: float | None,
        compute: Compute,
        fillings: Fillings,
        longest: int,
        compiles: bool,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._spike_factor = spike_factor
        self._compute = compute
        self._fillings = fillings
        self._shapes = Shapes(fillings, longest)
        self._is_cuda = compute.device.type == "cuda"
        self._recorder = Recorder(module, compute.device, compiles)
        self._recordings: dict[Shape, _Recording] = {}
        self._update: Callable[[], None] | None = None
        self._updated: list[int] = []
        self._flat: FlatParameters | None = None
        self._num_launched = 0
        self._recent = RecentLosses(compute.device)
        # What recordings read and write stands in these tensors for good.
        self._halted = torch.zeros((), device=compute.device)
        self._rates = [torch.zeros((), device=compute.device) for _ in optimizer.param_groups]
        self._row = torch.zeros(1, dtype=torch.int64, device=compute.device)
        self._grad_scale = torch.ones((), device=compute.device)
        self._coefficients: dict[str, float] = {}
        self._counts: dict[str, Tensor] = {}
        self._totals = torch.zeros(0)
        self._records = torch.zeros(0)

    @property
    def num_recordings(self) -> int:
        """Shapes that there have been so far."""
        return len(self._recordings)

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int]) -> None:
        """See `Stepper`."""
        assert self._num_launched < _MOST_LAUNCHED, "read comes earlier"
        random = random_state(self._compute.device)
        if not self._begin(batches, counts, is_last_try=False):
            gc.collect()  # the error has held on to what the step has allocated
            set_random_state(random, self._compute.device)
            self._begin(batches, counts, is_last_try=True)
        assert self._update is not None
        self._update()
        self._num_launched += 1

    def _begin(self, batches: Sequence[Batch], counts: Mapping[str, int], *, is_last_try: bool) -> bool:
        """Launches all of a step but the update, which is recorded.

        Returns:
            False: the memory did not suffice beside that of the recordings there were, which lies in pieces of the
            sizes of their batches. They are forgotten, and the step may fit.

        Raises:
            torch.OutOfMemoryError: it did not suffice without any, or at the last try.
        """
        try:
            if self._flat is None:
                self._flat = self._start(batches[0])
            for name, count in self._counts.items():
                count.fill_(max(1, counts[name]))
            for batch in batches:
                shape = self._shapes.choose(batch)
                filled = fill(batch, shape, self._fillings)
                recording = self._recordings.get(shape)
                if recording is None:
                    recording = self._recordings[shape] = self._record_batch(filled)
                _copy(filled, recording.batch, pins=self._is_cuda)
                recording.replay()
            for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
                rate.fill_(group["lr"])
            if self._update is None:
                self._update = self._record_update(self._flat)
        except torch.OutOfMemoryError:
            were_there = bool(self._recordings)
            self._forget()
            if is_last_try or not were_there:
                raise
            return False
        return True

    def leave(self) -> None:
        """Leaves module and optimizer to another stepper, as they were before a first step that could not be taken."""
        self._forget()
        self._flat = None
        for parameter in self._module.parameters():
            parameter.grad = None
        optimizer = self._optimizer
        optimizer.found_inf = optimizer.grad_scale = optimizer.rates = None

    def _forget(self) -> None:
        """Forgets all recordings, whose memory is free then, and what there is of a step that was broken off."""
        if self._is_cuda:
            torch.cuda.synchronize(self._compute.device)  # steps launched before are still replayed
        self._recordings.clear()
        self._update = None
        self._recorder.forget()
        if self._flat is not None:
            self._flat.zero()
        self._totals.zero_()

    def read(self, may_take: Judge) -> list[StepFigures]:
        """See `Stepper`; what the device has decided, `may_take` decides by the same numbers."""
        rows = self._records[: self._num_launched].tolist()  # waits for the device
        self._row.zero_()
        self._num_launched = 0
        figures = []
        for place, (*sums, norm, is_bad) in enumerate(rows):
            step = StepFigures(dict(zip(self._coefficients, sums, strict=True)), norm, self._coefficients)
            figures.append(step)
            assert may_take(place, step) != bool(is_bad), f"the device and the loop differ on {step}"
            if is_bad:
                break
        return figures

    def restart(self, recent_losses: Sequence[float]) -> None:
        """See `Stepper`."""
        self._recent.restart(recent_losses)
        self._halted.zero_()
        if self._updated != self._state_places():  # the optimizer has been given its state in other tensors
            self._update = None
        if self._flat is not None:
            self._flat.refresh()

    def release(self) -> None:
        """See `Stepper`: recordings hold memory that nothing else can use. They are made again."""
        self._forget()

    def _start(self, batch: Batch) -> FlatParameters:
        """Finds out by one pass which terms there are, and which parameters get a gradient; moves those together."""
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
        """A forward and backward pass: totals and gradients are added to."""
        assert self._flat is not None
        with self._flat.lent():
            terms: list[LossTerm] = self._module(batch)
        weigh(terms, self._counts).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._totals += torch.stack([term.total.detach().double() for term in terms])
        self._flat.gather()

    @torch.no_grad()
    def _take_step(self, flat: FlatParameters) -> None:
        """Clipping, the look at what came out, the update; all on the device."""
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

    def _record_batch(self, filled: Batch) -> _Recording:
        assert self._flat is not None
        batch = filled.to(self._compute.device)
        if not self._is_cuda:  # where `to` has made no copy
            batch = _apart(batch)
        kept = [self._flat.gradients, self._totals]
        # Where a pass breaks off, rounded gradients are left as well, which nobody keeps.
        return _Recording(batch, self._recorder.record(lambda: self._accumulate(batch), kept, self._flat.zero))

    def _record_update(self, flat: FlatParameters) -> Callable[[], None]:
        """Records the update; the passes before it are told that the run is halted, and change no weight."""
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            optimizer.start(group)
        optimizer.found_inf, optimizer.grad_scale, optimizer.rates = self._halted, self._grad_scale, self._rates
        self._updated = self._state_places()
        if not self._is_cuda:
            return lambda: self._take_step(flat)
        kept = [flat.gradients, self._totals, self._halted, self._records, self._row, *self._recent.tensors]
        kept += [state["step"] for state in optimizer.state.values() if "step" in state]
        with restoring([self._halted], self._compute.device):
            self._halted.fill_(1)
            return self._recorder.record(lambda: self._take_step(flat), kept, flat.zero)

    def _state_places(self) -> list[int]:
        """Where in memory the optimizer's state is."""
        return [value.data_ptr() for state in self._optimizer.state.values() for value in state.values()]


def _copy(source: Batch, target: Batch, pins: bool) -> None:
    """Copies a batch from the CPU into the tensors of another of the same shape."""
    pairs = [
        (source.input_ids, target.input_ids),
        (source.token_type_ids, target.token_type_ids),
        (source.position_ids, target.position_ids),
        (source.bounds, target.bounds),
        *((column, target.columns[name]) for name, column in source.columns.items()),
    ]
    for tensor, place in pairs:
        place.copy_(tensor.pin_memory() if pins else tensor, non_blocking=True)


def _apart(batch: Batch) -> Batch:
    """A batch of the same shape whose tensors are its own."""
    return replace(
        batch,
        input_ids=batch.input_ids.clone(),
        token_type_ids=batch.token_type_ids.clone(),
        position_ids=batch.position_ids.clone(),
        bounds=batch.bounds.clone(),
        columns={name: column.clone() for name, column in batch.columns.items()},
    )
