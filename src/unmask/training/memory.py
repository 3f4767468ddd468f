"""Cuts steps into micro-batches that fit into a device's memory: finds the largest that fits, on request, and halves
them when a step does not fit.

Neither changes which sequences a step has, their masks, or (rounding and dropout aside) the gradient. The decision is
kept in the run's state, in tokens: so it holds for sequences of any length, and a resumed run has the micro-batches,
and with them the dropout, of one that never stopped, wherever it resumes and however much memory is free there.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from unmask.batch import Batch, StepBatches
from unmask.errors import UserError
from unmask.io.progress import human_bytes, human_count
from unmask.training.device import Compute, look_at_gpu
from unmask.training.distributed import ALONE, Ranks
from unmask.training.settings import MOST_TOKENS_AT_ONCE, OPTIMIZERS, Cut
from unmask.training.state import TrainState
from unmask.training.stepping.eager import weigh
from unmask.training.steps import Learner, PreparedStep, StepSource, set_training_mode

logger = logging.getLogger("unmask")

_PROBED_TOKENS = 8192
"""Tokens of the smaller of the two batches that are measured, every sequence counted as long as the longest."""
_USED_SHARE = 0.9
"""Share of the free memory to use: freed blocks leave gaps that not everything fits into."""
_MOMENTS_BYTES = 4 * max(kind.moments for kind in OPTIMIZERS.values())
"""Any optimizer's state for each trained parameter, at most: float32 numbers, allocated at the first update."""
_ROUNDED_BYTES = 4
"""More for each trained parameter where matrix products are in bfloat16 and steps are captured: the rounded weight and
gradient."""


class GpuMemory:
    """A GPU's memory, as `torch.cuda` reports it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def free(self) -> int:
        """Bytes that this process can allocate."""
        return look_at_gpu(self._device).free

    def peak_of(self, work: Callable[[], None]) -> int:
        """The peak of the bytes allocated while `work` runs, beyond those allocated before."""
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        work()
        return torch.cuda.max_memory_allocated(self._device) - before

    def release(self) -> None:
        """Gives back what PyTorch keeps in reserve, which may be fragmented."""
        torch.cuda.empty_cache()


def memory_of(device: torch.device) -> GpuMemory | None:
    """A device's memory, if it can be queried; None for the CPU."""
    return GpuMemory(device) if device.type == "cuda" else None


class MicroBatches:
    """Cuts the steps of one session of a run.

    Args:
        learner: its module, on the device; what the buffers carry from batch to batch is restored when a step is
            broken off.
        progress: returns the share of the budget that is done.
        ranks: the processes that take the steps together; their micro-batches are of one size.
    """

    def __init__(
        self,
        source: StepSource,
        learner: Learner,
        compute: Compute,
        progress: Callable[[], float],
        ranks: Ranks = ALONE,
    ) -> None:
        self._source = source
        self._learner = learner
        self._module = learner.module
        self._compute = compute
        self._progress = progress
        self._ranks = ranks
        self._memory = memory_of(compute.device)
        self._carried: _Buffers = []

    def steps(self, state: TrainState) -> Iterable[StepBatches[Any]]:
        """The steps from `state.position` on."""
        return self._source.steps(self._progress, state.position, state.micro_batch_tokens)

    def begin_step(self) -> None:
        """To be called before each step."""
        self._carried = _copy_buffers(self._module)

    def halve(self, state: TrainState, step: PreparedStep, reason: str) -> Iterable[StepBatches[Any]]:
        """The steps from `state.position` on, in half as large micro-batches; see `unmask.training.loop.train`. Raises
        UserError if a micro-batch is one sequence already."""
        state.seconds = self._ranks.from_first(state.seconds)
        with self._ranks.agreeing():
            _restore_buffers(self._carried)
            self._release()
            cut = self._source.cut(step.after, state.micro_batch_tokens)
            problem = f"step {state.step + 1:,} does not fit into the memory ({first_sentences(reason)})"
            if cut.micro_batch_size == 1:
                longest = max((batch.max_length for batch in step.batches), default=0)
                raise UserError(
                    f"{problem}, though a micro-batch is one sequence already, of {longest:,} tokens at most, in "
                    f"{self._describe_model()}: {self._advise(cut)}"
                )
            state.micro_batch_tokens = cut.micro_batch_size // 2 * cut.longest
            smaller = self._source.cut(step.after, state.micro_batch_tokens).micro_batch_size
            change = (
                f"its micro-batches were of {cut.micro_batch_size:,} sequences, and are of {smaller:,} from here on"
            )
            advice = f"Set {cut.size_key}={smaller} to start with that size"
            logger.warning("%s: %s; the gradient is the same. %s", problem, change, advice)
            return self.steps(state)

    def explain(self, state: TrainState, error: torch.OutOfMemoryError) -> UserError:
        """The error for memory that ran out in something other than a micro-batch: the update, an evaluation."""
        cut = self._source.cut(state.position, state.micro_batch_tokens)
        return UserError(
            f"not enough memory for the update or an evaluation after step {state.step:,} "
            f"({first_sentences(str(error))}), with {self._describe_model()} and micro-batches of "
            f"{cut.micro_batch_size:,} sequences: begin again with a smaller {cut.size_key}, which held-out batches go "
            f"by too, or {self._advise(cut)}"
        )

    def choose(self, state: TrainState) -> None:
        """Notes in a new run's state the size of the largest micro-batch that fits, estimated from two small ones; of
        several processes, the smallest of theirs.

        If less fits than estimated, the first step that does not fit halves it.
        """
        whole = self._source.cut(state.position, None)
        if self._memory is None:
            logger.info("train.micro_batch_size: %s, on the CPU", whole)
        else:
            free = self._memory.free
            state.micro_batch_tokens, measured = self._find_fitting(state.position, whole, free)
            cut = self._source.cut(state.position, state.micro_batch_tokens)
            logger.info("train.micro_batch_size: %s: %s free, %s", cut, human_bytes(free), measured)
        state.micro_batch_tokens = min(filter(None, self._ranks.gather(state.micro_batch_tokens)), default=None)

    def _find_fitting(self, position: Any, whole: Cut, free: int) -> tuple[int, str]:
        """Tokens of the largest micro-batch, and what was measured, in words."""
        assert self._memory is not None
        sequences = max(1, _PROBED_TOKENS // whole.longest)
        if 2 * sequences >= whole.batch_size:
            return MOST_TOKENS_AT_ONCE, "and few are requested"
        taken = []
        for number in (sequences, 2 * sequences):
            batch = self._longest_batch(position, number * whole.longest)
            if batch is None:  # the other processes have all of the step, and the smallest measurement decides
                return MOST_TOKENS_AT_ONCE, "and nothing of this step is for this process"
            peak = self._measure(batch, self._learner.counts(batch))
            if peak is None:
                return max(1, number // 2) * whole.longest, f"and {number:,} do not fit"
            taken.append((batch.num_tokens, peak))
        (few, peak_of_few), (more, peak_of_more) = taken
        per_token = max(1.0, (peak_of_more - peak_of_few) / max(1, more - few))
        without_tokens = max(0.0, peak_of_few - per_token * few)
        num_trained = sum(each.numel() for each in self._module.parameters() if each.requires_grad)
        is_rounded = self._compute.dtype != torch.float32
        to_come = num_trained * (_MOMENTS_BYTES + _ROUNDED_BYTES * is_rounded)
        fitting = int((_USED_SHARE * free - without_tokens - to_come) / per_token)
        measured = f"{human_bytes(round(per_token * whole.longest))} a sequence of {whole.longest:,} tokens"
        return min(max(fitting, whole.longest), MOST_TOKENS_AT_ONCE), measured

    def _longest_batch(self, position: Any, tokens: int) -> Batch | None:
        step = next(iter(self._source.steps(self._progress, position, tokens)))
        longest = max(step.batches, key=lambda batch: batch.num_tokens, default=None)
        return None if longest is None else self._learner.prepare(longest)

    def _measure(self, batch: Batch, counts: dict[str, int]) -> int | None:
        """Bytes that a forward and backward pass takes at its peak; None if memory runs out.

        The module, and the generator that dropout draws from, are restored afterwards.
        """
        assert self._memory is not None

        def compute() -> None:
            with self._compute.autocast():
                terms = self._module(batch.to(self._compute.device))
            weigh(terms, counts).backward()  # type: ignore[no-untyped-call]

        carried = _copy_buffers(self._module)
        set_training_mode(self._module)
        peak: int | None = None
        with self._compute.keeping_torch_state(), suppress(torch.OutOfMemoryError):
            peak = self._memory.peak_of(compute)
        self._module.zero_grad(set_to_none=True)
        _restore_buffers(carried)
        self._release()
        return peak

    def _release(self) -> None:
        if self._memory is not None:
            gc.collect()
            self._memory.release()

    def _describe_model(self) -> str:
        return f"a model of {human_count(self._module.num_parameters)} parameters"

    def _advise(self, cut: Cut) -> str:
        advice = f"take a shorter {cut.length_key} (it is {cut.longest:,}) or a smaller model"
        if self._compute.dtype == torch.float32:
            advice += ", or precision=bf16"
        return f"{advice}; see with nvidia-smi whether something else holds a part of the GPU"


_Buffers = list[tuple[nn.Module, str, Tensor]]


def _copy_buffers(module: nn.Module) -> _Buffers:
    """Copies of all buffers, each with the part of the module that holds it; most modules have none."""
    return [
        (part, name, buffer.clone()) for part in module.modules() for name, buffer in part.named_buffers(recurse=False)
    ]


def _restore_buffers(copies: _Buffers) -> None:
    for part, name, buffer in copies:
        setattr(part, name, buffer)  # its size may have changed


def first_sentences(reason: str) -> str:
    """The part of PyTorch's error message that matters; the rest is about its settings."""
    return ". ".join(reason.split(". ")[:2]).rstrip(".") or "out of memory"
