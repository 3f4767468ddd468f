"""The processes that train one model together, as `torchrun` starts them: what they send each other.

Each has the whole model and computes its part of every step (`unmask.packing.sharing`). Gradients are summed before the
update, which all then make alike. Only the first process writes; the others keep what they would write in a directory
of their own, which goes when they end, and read its checkpoints where they are, or copy them there.

On the CPU, where their number is a power of two up to eight, sums are taken in a fixed order: neighbours first, then
pairs of neighbours, as `unmask.training.stepping.eager` sums micro-batches. So with the same micro-batches one process,
two and four end with the same weights, bit for bit. Nothing is pickled: what is not a tensor travels as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.errors import (
    AnotherRank,
    Interrupted,
    OutputError,
    RankLost,
    SettingsError,
    UnmaskError,
    UserError,
    first_line,
)
from unmask.io.signals import ended_by_signals
from unmask.io.writing import as_output_error, temporary_directory

_START_TIMEOUT = timedelta(days=1)
"""The first process may make a store of a large corpus while the others wait."""
_MEETING_TIMEOUT = timedelta(minutes=10)
"""In which all processes have to be there."""
_MESSAGE_BYTES = 4096
"""Of a message that all send at once; a longer one takes a second round."""
_PIECE_BYTES = 1 << 26
"""Files are sent in pieces of this size."""
_MOST_IN_TREE = 8
"""Processes that sum in a fixed order, which takes log2 of their number exchanges of all gradients."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class JoinedGradients:
    """The gradients of a process, to be summed over all of them.

    Attributes:
        flat: one after another, those that the process lacks as zeros; then for each, 1 if it has it.
        received: as large, for what another process sends; None where PyTorch sums, in an order of its own.
    """

    parameters: Sequence[nn.Parameter]
    flat: Tensor
    received: Tensor | None


@dataclass(frozen=True)
class Ranks:
    """The processes, from the view of one of them. With the default, that one is alone and says nothing to anyone.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
        local_rank: among those of this machine, from 0.
        patience: of a step: how long the others may take before they count as lost. None: as at the start, a day.
        group: PyTorch's, of the steps; None: its default group.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    patience: timedelta | None = None
    group: Any = None

    @property
    def is_first(self) -> bool:
        """Whether it is the process that writes."""
        return self.rank == 0

    def during_steps(self, timeout_s: float) -> Ranks:
        """The same processes, with the patience of a step."""
        if self.size == 1:
            return self
        patience = timedelta(seconds=timeout_s)
        with self.answered():
            return replace(self, patience=patience, group=dist.new_group(timeout=patience))

    def take_device(self, device: torch.device) -> None:
        """Takes a GPU of its own, where GPUs compute. Raises UserError if there are fewer than processes here."""
        if device.type != "cuda" or self.size == 1:
            return
        number = torch.cuda.device_count()
        if self.local_rank >= number:
            raise UserError(
                f"torchrun has started more processes on this machine than its {number} GPU(s): give "
                f"--nproc-per-node={number}, or device=cpu"
            )
        torch.cuda.set_device(self.local_rank)

    def gather(self, value: Value) -> list[Value]:
        """What each process gives, in their order.

        Args:
            value: anything that JSON holds; floats arrive as they were.
        """
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        message = len(text).to_bytes(8, "big") + text
        received = self._gather_bytes(message, _MESSAGE_BYTES)
        longest = max(8 + int.from_bytes(each[:8], "big") for each in received)
        if longest > _MESSAGE_BYTES:
            received = self._gather_bytes(message, longest)
        return [json.loads(each[8 : 8 + int.from_bytes(each[:8], "big")]) for each in received]

    def _gather_bytes(self, message: bytes, size: int) -> list[bytes]:
        own = torch.frombuffer(bytearray(message[:size].ljust(size, b"\0")), dtype=torch.uint8)
        received = [torch.empty_like(own) for _ in range(self.size)]
        with self.answered():
            dist.all_gather(received, own, group=self.group)
        return [bytes(each.numpy()) for each in received]

    def from_first(self, value: Value) -> Value:
        """What the first process gives, everywhere."""
        return self.gather(value if self.is_first else None)[0]  # type: ignore[return-value]

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """A block that an error of ours ends everywhere, with the same exit code, wherever it was raised.

        Whatever the processes send each other in it comes before anything that may fail.

        Raises:
            UnmaskError, Interrupted: itself in the process that has it; in the first one, what another process says.
            AnotherRank: in all others; it has nothing to add.
        """
        if self.size == 1:
            yield
            return
        own: UnmaskError | Interrupted | None = None
        try:
            yield
        except RankLost:
            raise  # who is lost cannot agree
        except (UnmaskError, Interrupted) as error:
            own = error
        errors = self.gather(None if own is None else {"message": str(own), "exit_code": own.exit_code})
        failed = [(rank, each) for rank, each in enumerate(errors) if each is not None]
        if not failed:
            return
        rank, first = failed[0]
        message, code = str(first["message"]), int(str(first["exit_code"]))
        if self.is_first and own is not None:
            raise own
        if self.is_first and code == UserError.exit_code:
            raise UserError(f"rank {rank} of {self.size}: {message}")
        raise AnotherRank(message, code)

    @contextmanager
    def agreeing_on_memory(self) -> Iterator[None]:
        """A block in which memory that runs out in one process ends it everywhere, with the same error."""
        too_large = None
        try:
            yield
        except torch.OutOfMemoryError as error:
            if self.size == 1:
                raise
            too_large = str(error)  # the error itself is dropped: its traceback keeps what the step has allocated
        too_large = next(filter(None, self.gather(too_large)), None)
        if too_large is not None:
            raise torch.OutOfMemoryError(too_large)

    def join_gradients(self, parameters: Sequence[nn.Parameter]) -> JoinedGradients | None:
        """What `sum_gradients` takes. It allocates all that the sum needs, and says nothing to anyone: a process whose
        memory runs out does not leave the others waiting within the sum. None: there is nothing to sum."""
        if self.size == 1:
            return None
        has = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
        flat = torch.cat([*((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters), has])
        in_tree = not (flat.is_cuda or self.size & (self.size - 1) or self.size > _MOST_IN_TREE)
        return JoinedGradients(parameters, flat, torch.empty_like(flat) if in_tree else None)

    def sum_gradients(self, joined: JoinedGradients) -> None:
        """Gives every process the sums of the gradients; one that no process has stays None."""
        self._sum(joined.flat, joined.received)
        parameters = joined.parameters
        *sums, has = torch.split(joined.flat, [*(p.numel() for p in parameters), len(parameters)])
        for p, gradient, number in zip(parameters, sums, has.tolist(), strict=True):
            p.grad = gradient.view_as(p) if number else None

    def _sum(self, flat: Tensor, received: Tensor | None) -> None:
        with self.answered():
            if received is None:
                dist.all_reduce(flat, group=self.group)
                return
            distance = 1
            while distance < self.size:  # a + b and b + a are the same: both partners end with the same bits
                partner = self.rank ^ distance
                sent = dist.isend(flat, partner, group=self.group)
                dist.recv(received, partner, group=self.group)
                assert sent is not None, "this process is in the group"
                sent.wait()
                flat += received
                distance *= 2

    def join_rows(self, rows: Tensor, number: int) -> Tensor:
        """Joins the rows that each process has computed of `number`: process r has those at r, r + size, ...

        Args:
            rows: (own rows, ...).

        Returns:
            (number, ...), the same everywhere.
        """
        padded = rows.new_zeros(-(-number // self.size), *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in range(self.size)]
        with self.answered():
            dist.all_gather(received, padded, group=self.group)
        return torch.stack(received, dim=1).flatten(0, 1)[:number]

    def join_slices(self, own: Tensor) -> Tensor:
        """Joins the slices that each process holds along dimension 2: of n, process r those from r n / size on.

        Args:
            own: has this process's slices at their places, and may lack those after them.

        Returns:
            The whole, the same everywhere; in a process that is alone, `own`.
        """
        if self.size == 1:
            return own
        number = max(self.gather(own.shape[2]))
        bounds = [number * rank // self.size for rank in range(self.size + 1)]
        parts = []
        with self.answered():
            for rank, (begin, end) in enumerate(pairwise(bounds)):
                shape = [*own.shape[:2], end - begin, *own.shape[3:]]
                part = own[:, :, begin:end].contiguous() if rank == self.rank else own.new_empty(shape)
                dist.broadcast(part, rank, group=self.group)
                parts.append(part)
        return torch.cat(parts, 2)

    def copy_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Gives tensors the values that they have in the first process."""
        if self.size > 1:
            with self.answered(), torch.no_grad():
                for tensor in tensors:
                    dist.broadcast(tensor, 0, group=self.group)

    def copy_directory(self, directory: Path, *, is_here: bool) -> None:
        """Copies the files of a directory of the first process.

        Args:
            directory: where it is, or is to be; its name is the same everywhere.
            is_here: whether this process has it already.

        Raises:
            OutputError: in all processes, where it cannot be written in one.
        """
        has_it = self.is_first or is_here
        if all(self.gather(has_it)):
            return
        failed: OutputError | None = None
        files = sorted(directory.iterdir()) if self.is_first else []
        for name, size in self.from_first([(file.name, file.stat().st_size) for file in files]):
            source = open(directory / name, "rb") if self.is_first else None  # noqa: SIM115 (closed below)
            with source or nullcontext(), self.answered():
                for start in range(0, size, _PIECE_BYTES):
                    piece = np.zeros(min(_PIECE_BYTES, size - start), dtype=np.uint8)
                    if source is not None:
                        piece = np.fromfile(source, np.uint8, len(piece))
                    dist.broadcast(torch.from_numpy(piece), 0, group=self.group)
                    if not has_it and failed is None:  # else the others still wait for it
                        failed = _append(directory / name, piece)
        with self.agreeing():
            if failed is not None:
                raise failed

    @contextmanager
    def own_directory(self, directory: Path) -> Iterator[Path]:
        """Where this process writes: the directory itself, or for all but the first one that is removed again."""
        if self.is_first:
            yield directory
            return
        with temporary_directory("unmask-rank") as held:
            own = held / "run"  # which a run holds itself
            own.mkdir()
            yield own

    @contextmanager
    def answered(self, *, beside_computing: bool = False) -> Iterator[None]:
        """A block of communication, whose errors say that another process is lost.

        Args:
            beside_computing: the block computes too, and only errors that are known to be of communication count.
        """
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            is_known = isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))
            if beside_computing and not is_known:
                raise
            waited = "" if self.patience is None else f", or has not answered for {self.patience.total_seconds():g} s"
            reason = re.sub(r"^\[\S+:\d+\] |\. This is typically.*", "", first_line(error))  # gloo: where, and a guess
            raise RankLost(
                f"rank {self.rank} of {self.size}: another process has ended{waited} ({reason}); the run continues "
                "from its newest checkpoint with --resume, which `torchrun --max-restarts N` does by itself"
            ) from error


ALONE = Ranks()


def _append(path: Path, piece: NDArray[np.uint8]) -> OutputError | None:
    """Writes bytes at the end of a file in the temporary folder; what went wrong, in words."""
    try:
        with as_output_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(piece.data)
    except OutputError as error:
        return OutputError(
            f"{error}. A process that does not see the run's directory copies the checkpoint into the temporary "
            "folder: TMPDIR names another"
        )
    return None


def in_halves(values: Sequence[Value], add: Callable[[Value, Value], Value]) -> Value:
    """The sum of values, in the order in which processes take it: each half by itself, then both."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return add(in_halves(values[:half], add), in_halves(values[half:], add))


@contextmanager
def joined_ranks(environment: Mapping[str, str]) -> Iterator[Ranks]:
    """Joins the other processes of the run, where there are any.

    Args:
        environment: as `torchrun` sets it: RANK, WORLD_SIZE, LOCAL_RANK, TORCHELASTIC_RESTART_COUNT, and for PyTorch
            MASTER_ADDR and MASTER_PORT.

    Raises:
        UserError: the first process cannot be reached.
        SettingsError: a process that a script has started runs the script again.
    """
    if environment.get("WORLD_SIZE", "1") == "1" or "RANK" not in environment:
        yield ALONE
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as `multiprocessing` itself finds out
        raise SettingsError(
            "a process that this script has started runs it from the beginning: put what it does under "
            '`if __name__ == "__main__":`'
        )
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_rank = int(environment.get("LOCAL_RANK", rank))
    except ValueError as error:
        raise UserError(
            f"RANK, LOCAL_RANK and WORLD_SIZE: expected the numbers that torchrun sets ({error})"
        ) from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        with ended_by_signals():
            store, *_ = next(dist.rendezvous("env://", rank, size, timeout=_MEETING_TIMEOUT))  # type: ignore[attr-defined]
            # What an attempt that failed has left there would be taken for this one's.
            attempt = f"attempt-{environment.get('TORCHELASTIC_RESTART_COUNT', 0)}"
            store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_START_TIMEOUT)
    except (RuntimeError, ValueError, OSError) as error:
        advice = "start all of them with torchrun and the same --rdzv-endpoint, which every machine can reach"
        if "EADDRINUSE" in str(error):
            advice = "another program has this port: take another one (MASTER_PORT, or torchrun's --master-port)"
        place = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')} ({first_line(error)})"
        raise UserError(f"rank {rank} of {size} cannot join the others at {place}: {advice}") from error
    try:
        yield Ranks(rank, size, local_rank)
    finally:
        dist.destroy_process_group()
