"""Checkpoints: everything that a run needs to continue as if it had never stopped, in safetensors and JSON.

    checkpoints/step-00001000/
        weights.safetensors     the module's parameters and buffers, under its own names; one that several parts share
                                is there once, under the first of its names
        optimizer.safetensors   the optimizer's tensors: `<parameter number>.<name>`
        random.safetensors      the states of the generators that dropout draws from
        best.safetensors        the weights of the best evaluation so far, where the run may end early
        state.json              step, tokens, position, schedule, the newest step and the sums since the last logged
                                row, recent losses, how large micro-batches may be, the newest evaluation, the recipe, a
                                checksum of the rows so far, sizes and checksums of the other files and a checksum of
                                itself

A checkpoint is written under another name and then renamed, and is used only if every checksum is right. It is written
beside the steps that follow: they wait only until everything has been copied.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.errors import CheckpointError
from unmask.io.json_files import read_object
from unmask.io.writing import remove, sha256
from unmask.training.distributed import Ranks
from unmask.training.optimizers.optimizer import Schedule, Stage
from unmask.training.run.best import Best
from unmask.training.sharding import divided_like, whole
from unmask.training.state import StepResult, TrainState

WEIGHTS, OPTIMIZER, RANDOM, STATE = "weights.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"
BEST = "best.safetensors"

_KINDS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), dict: (dict,), type(None): (object,)}
_EXPECTED = {
    **{name: _KINDS[type(value)] for name, value in vars(TrainState()).items() if name != "best"},
    "files": (dict,),
    "position": (dict,),
    "recipe": (dict,),
    **dict.fromkeys(("metrics_sha256", "warmup_end", "stage"), (object,)),
}
"""What a `state.json` has, and of what kind; `best` only where the run may end early."""

Place = TypeVar("Place")


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint, its checksums verified.

    Attributes:
        state: the contents of its `state.json`.
        damaged: those that were tried before it, each with what is wrong with it.
    """

    directory: Path
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return int(self.state["step"])

    def position(self, kind: type[Place]) -> Place:
        """Where its run continues among the data. Raises CheckpointError if the run was of another kind."""
        try:
            return kind(**self.state["position"])
        except TypeError as error:
            raise CheckpointError(f"{self.directory / STATE}: its position is not one of this run: {error}") from error

    @property
    def done(self) -> dict[str, float]:
        """How much of the run it holds, by the names of the budgets."""
        return TrainState(**{name: self.state[name] for name in ("step", "tokens", "epochs", "seconds")}).done


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds, copied: training may continue while it is written.

    Attributes:
        files: the tensors of each file, on the CPU.
        state: the contents of `state.json`, but for what it says of the files.
    """

    files: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def take_snapshot(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    state: TrainState,
    metrics_sha256: str,
    recipe: Mapping[str, Any],
) -> Snapshot:
    """Copies what a checkpoint of the step just done holds.

    Args:
        metrics_sha256: of the rows so far, see `unmask.training.run.log.RunLog.digest`.
        recipe: of the run, as values of JSON.
    """
    files = {
        WEIGHTS: _copied(_once(module.state_dict(keep_vars=True))),
        OPTIMIZER: _copied(_optimizer_tensors(optimizer)),
        RANDOM: dict(_generators()),
    }
    best: dict[str, Any] = {}
    if state.best is not None:
        files[BEST] = _once(state.best.weights)  # a copy already
        best["best"] = {name: value for name, value in vars(state.best).items() if name != "weights"}
    saved = {
        **{name: value for name, value in vars(state).items() if name != "best"},
        "position": state.position if isinstance(state.position, dict) else asdict(state.position),
        "metrics_sha256": metrics_sha256,
        "recipe": recipe,
        "newest": None if state.newest is None else asdict(state.newest),
        "warmup_end": schedule.warmup_end,
        "stage": None if schedule.stage is None else asdict(schedule.stage),
        **best,
    }
    return Snapshot(files, copy.deepcopy(saved))


def give_parts(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Gives the first process, which takes a snapshot of a divided model, what this one has of it."""
    for tensors in (_once(module.state_dict(keep_vars=True)), _optimizer_tensors(optimizer)):
        for tensor in tensors.values():
            whole(tensor.detach())


def find_checkpoint(checkpoints: Path, save_every: int = 1) -> Checkpoint | None:
    """The newest sound checkpoint, or None where there has never been one.

    Args:
        save_every: checkpoints at steps that are not multiples of this are used only if there is no other.

    Raises:
        CheckpointError: there are checkpoints, but none is sound; each is named with what is wrong. Or their folder is
            a link that leads nowhere.
    """
    if checkpoints.is_symlink() and not checkpoints.exists():
        place = checkpoints.readlink()
        raise CheckpointError(f"{checkpoints} is a link to {place}, which is not there: is its disk mounted?")
    faults: list[CheckpointError] = []
    for directory in sorted(newest_first(checkpoints), key=lambda each: step_of(each) % save_every != 0):
        try:
            return Checkpoint(directory, _read_sound_state(directory), tuple(map(str, faults)))
        except CheckpointError as error:
            faults.append(error)
    if faults:
        raise CheckpointError(
            "no checkpoint of this run can be used: restore one of them, continue with the version of unmask that made "
            "it, or train it again, with --overwrite; where it has a model, a new run may begin from that with "
            "init_from\n  " + "\n  ".join(map(str, faults))
        )
    return None


def list_steps(checkpoints: Path) -> list[int]:
    """The steps that there are checkpoints of, sound or not, ascending."""
    return sorted(map(step_of, newest_first(checkpoints)))


def find_shared_checkpoint(checkpoints: Path, ranks: Ranks, save_every: int = 1) -> Checkpoint | None:
    """`find_checkpoint` for several processes: what the first one finds. The others link to it from where they write,
    or copy it where they do not see it."""
    with ranks.agreeing():
        found = find_checkpoint(checkpoints, save_every) if ranks.is_first else None
    there = None if found is None else [str(found.directory.resolve()), state_digest(found.state)]
    there = ranks.from_first(there)
    if there is None:
        return None
    directory = checkpoints / Path(there[0]).name
    if not ranks.is_first:
        remove(directory)  # of an earlier time
        found = _link(directory, Path(there[0]), there[1])
    ranks.copy_directory(directory, is_here=found is not None)
    return found or open_checkpoint(checkpoints, step_of(directory))


def _link(directory: Path, first: Path, digest: str) -> Checkpoint | None:
    """Makes `directory` a link to the first process's checkpoint, where that is seen, sound and of this digest."""
    try:
        state = _read_sound_state(first)
        if state_digest(state) != digest:
            return None
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.symlink_to(first, target_is_directory=True)
    except (CheckpointError, OSError):
        return None
    return Checkpoint(directory, state)


def open_checkpoint(checkpoints: Path, step: int) -> Checkpoint:
    """The checkpoint of one step. Raises CheckpointError if it is missing or damaged."""
    directory = checkpoints / f"step-{step:08d}"
    return Checkpoint(directory, _read_sound_state(directory))


def load_weights(checkpoint: Checkpoint, module: nn.Module) -> None:
    """Gives a module the weights of a checkpoint; raises as `load_state_dict` where they do not fit."""
    own = module.state_dict(keep_vars=True)
    weights = _under_every_name(load_file(checkpoint.directory / WEIGHTS), module)
    module.load_state_dict({n: divided_like(weight, own[n]) if n in own else weight for n, weight in weights.items()})


def restore(
    checkpoint: Checkpoint, module: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule
) -> TrainState:
    """Puts weights, optimizer, schedule and generators back as they were, and returns the run's position.

    The state's `position` is the JSON that was saved.

    Raises:
        CheckpointError: the checkpoint is of another model.
    """
    saved = copy.deepcopy(checkpoint.state)
    with refusing_another_model(checkpoint):
        load_weights(checkpoint, module)
        load_optimizer(checkpoint, optimizer)
        _restore_random(load_file(checkpoint.directory / RANDOM))
        schedule.warmup_end = saved["warmup_end"]
        schedule.stage = None if saved["stage"] is None else Stage(**saved["stage"])
        state = TrainState(**{each.name: saved[each.name] for each in fields(TrainState) if each.name in saved})
        state.newest = None if saved["newest"] is None else StepResult(**saved["newest"])
        if "best" in saved:
            weights = _under_every_name(_load_copy(checkpoint.directory / BEST), module)
            state.best = Best(**saved["best"], weights=weights)
    return state


@contextmanager
def refusing_another_model(checkpoint: Checkpoint) -> Iterator[None]:
    """A block that reads a checkpoint into a model, and raises CheckpointError where it is another's."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, FileNotFoundError, SafetensorError) as error:
        raise CheckpointError(f"{checkpoint.directory}: does not fit this run's model: {error}") from error


def remove_later(checkpoints: Path, step: int) -> None:
    """Removes the checkpoints of later steps, which a run that has gone back will take anew."""
    for directory in newest_first(checkpoints):
        if step_of(directory) > step:
            remove(directory)


def newest_first(checkpoints: Path) -> list[Path]:
    named = [path for path in checkpoints.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(named, key=step_of, reverse=True)


def step_of(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


def _load_copy(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, which is not read later on: another machine may have removed it by then."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _once(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, each under the first of its names only: a file cannot hold a tensor twice."""
    seen: set[int] = set()
    once = {}
    for name, tensor in weights.items():
        if id(tensor) not in seen:
            once[name] = tensor.detach().contiguous()
            seen.add(id(tensor))
    return once


def _under_every_name(weights: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """The opposite of `_once`: weights that parts of the module share are under all of their names again."""
    named = dict(weights)
    first_names: dict[int, str] = {}
    own = module.state_dict(keep_vars=True)  # held here, so that no two of its tensors have the same id
    for name, tensor in own.items():
        first = first_names.setdefault(id(tensor), name)
        if first in weights:
            named[name] = weights[first]
    return named


def state_digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _read_sound_state(directory: Path) -> dict[str, Any]:
    """What the `state.json` of a checkpoint says whose files are all sound."""
    state = read_object(directory / STATE, CheckpointError)
    digest = state.pop("sha256", None)
    if state_digest(state) != digest:
        raise CheckpointError(f"{directory / STATE}: its checksum is not the one it was written with")
    odd = [name for name, kinds in _EXPECTED.items() if name not in state or not isinstance(state[name], kinds)]
    best = state.get("best", {})
    if "best" in state and (
        not isinstance(best, dict) or best.keys() != {each.name for each in fields(Best)} - {"weights"}
    ):
        odd.append("best")
    if odd:
        raise CheckpointError(
            f"{directory / STATE}: made by another version of unmask (no {odd[0]}, or not what this one has under it)"
        )
    for name, expected in state["files"].items():
        file = directory / name
        try:
            if Path(name).name != name or not file.is_file():
                raise CheckpointError(f"{file}: missing")
            if file.stat().st_size != expected["bytes"]:
                raise CheckpointError(f"{file}: {file.stat().st_size} bytes where {expected['bytes']} were written")
            if sha256(file) != expected["sha256"]:
                raise CheckpointError(f"{file}: its checksum is not the one it was written with")
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    return state


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor.detach()).to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{number}.{name}": value
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> None:
    """Gives an optimizer the state of a checkpoint; raises as `load_state_dict` where it does not fit."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _load_copy(checkpoint.directory / OPTIMIZER).items():
        number, _, name = key.partition(".")
        own = parameters[int(number)] if int(number) < len(parameters) else value
        state.setdefault(int(number), {})[name] = divided_like(value, own) if value.shape == own.shape else value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _num_drawing_gpus() -> int:
    """GPUs that this process uses: to ask an idle one for its generator would begin to use it."""
    return torch.cuda.device_count() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


def _generators() -> Iterator[tuple[str, Tensor]]:
    yield "cpu", torch.get_rng_state()
    for number in range(_num_drawing_gpus()):
        yield f"cuda:{number}", torch.cuda.get_rng_state(number)


def _restore_random(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    for number in range(_num_drawing_gpus()):
        if f"cuda:{number}" in states:
            torch.cuda.set_rng_state(states[f"cuda:{number}"], number)
