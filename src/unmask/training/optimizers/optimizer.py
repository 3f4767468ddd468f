"""The optimizers over BERT's parameter groups, rates that differ by layer, and the learning rate over the run.

Layer-wise rates are those of ELECTRA's released code (Clark et al. 2020, appendix B): see `layered_groups`. The
schedule is that of `transformers`: the factor is 0 at the first step of a warm-up, 1 at its end, and the linear one
goes down from there to 0 at the end of the budget. Departure: in BERT's released code it is 1 - t / T at step t of T,
whatever the warm-up, so that it jumps from 1 to 1 - w / T where a warm-up of w steps ends. The budget may be in steps,
tokens, epochs or minutes, so decay is a function of the share of it that is done. A stage of a run may have a schedule
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.training.device import choose_compute
from unmask.training.distributed import ALONE, Ranks
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.lamb import Lamb, fused_matrices
from unmask.training.optimizers.muon import Muon, MuonWithAdamW, split_groups
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.sharding import whole


def parameter_groups(module: nn.Module, weight_decay: float, learning_rate: float) -> list[dict[str, Any]]:
    """Two groups: weights, which decay, and biases and norms, which do not (BERT's released `optimization.py`).

    Norms are PyTorch's modules. Scalars do not decay either: one such as ELMo's gamma scales all features, and at 0
    would leave nothing of them. Frozen parameters are left out.

    Returns:
        `params`, `lr`, `weight_decay` and `is_weight` of each.
    """
    norms = {
        id(p) for part in module.modules() if isinstance(part, nn.LayerNorm | nn.RMSNorm) for p in part.parameters()
    }
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    plain = [p for name, p in trained if _is_bias(name) or id(p) in norms or p.ndim == 0]
    plain_ids = {id(p) for p in plain}
    decayed = [p for _, p in trained if id(p) not in plain_ids]
    return [
        {"params": decayed, "lr": learning_rate, "weight_decay": weight_decay, "is_weight": True},
        {"params": plain, "lr": learning_rate, "weight_decay": 0.0, "is_weight": False},
    ]


def _is_bias(name: str) -> bool:
    """Whether a parameter is a bias: `dense.bias`, or as in an LSTM `bias_ih_l0`."""
    last = name.rpartition(".")[2]
    return last.endswith("bias") or last.startswith("bias")


def layered_groups(
    module: nn.Module, weight_decay: float, learning_rate: float, layer_decay: float
) -> list[dict[str, Any]]:
    """The groups of `parameter_groups` cut by depth, the head's first, each with its rate.

    A parameter at depth d of an encoder with L layers learns at learning_rate x layer_decay ^ (L + 2 - d), as in
    ELECTRA's released `optimization.py`. No depth is L + 1 there, so the last layer learns at the head's rate times the
    decay squared; by appendix B of the paper, it would be the decay once.

    Raises:
        SettingsError: the module's encoder has no layers.
    """
    encoder = getattr(module, "encoder", None)
    if not isinstance(encoder, nn.Module) or not hasattr(encoder, "blocks"):
        raise SettingsError(f"optimizer.layer_decay={layer_decay}: this model has no layers: leave it out")
    num_layers = max(depth(name, 0) for name, _ in encoder.named_parameters() if name.startswith("blocks."))
    depths = {id(p): depth(name, num_layers) for name, p in encoder.named_parameters()}
    top = num_layers + 2
    groups = []
    for of_group in parameter_groups(module, weight_decay, learning_rate):
        for height in range(top, -1, -1):
            chosen = [p for p in of_group["params"] if depths.get(id(p), top) == height]
            if chosen:
                groups.append(of_group | {"params": chosen, "lr": learning_rate * layer_decay ** (top - height)})
    return groups


def depth(name: str, num_layers: int) -> int:
    """The depth of an encoder's parameter, as ELECTRA's code counts it.

    Args:
        name: in the encoder: `blocks.3.attention.output.weight`; of ELMo's backward direction `blocks.1.layers.3.bias`.

    Returns:
        0 for the embeddings and what projects them, i + 1 for layer i, num_layers + 2 for the pooler, as for the head.
        The norm behind ModernBERT's last layer belongs to that layer.
    """
    part, _, rest = name.partition(".")
    if part == "blocks":
        block, _, inner = rest.partition(".")
        return int(inner.split(".")[1] if inner.startswith("layers.") else block) + 1
    return {"pooler": num_layers + 2, "final_norm": num_layers}.get(part, 0)


def build_optimizer(module: nn.Module, settings: OptimizerSettings, ranks: Ranks = ALONE) -> torch.optim.Optimizer:
    """The optimizer that the settings name, over `parameter_groups`, or `layered_groups` where the rates decay; `ranks`
    are the processes that update the same module, each its own copy."""
    if settings.layer_decay == 1:
        groups = parameter_groups(module, settings.weight_decay, settings.learning_rate)
    else:
        groups = layered_groups(module, settings.weight_decay, settings.learning_rate, settings.layer_decay)
    rate, betas, epsilon = settings.learning_rate, settings.betas, settings.epsilon
    match settings.name:
        case "adamw":
            return AdamW(groups, rate, betas, epsilon, settings.bias_correction)
        case "lamb":
            return Lamb(groups, rate, betas, epsilon, settings.bias_correction, fused_matrices(module))
        case "muon":
            others, matrices = split_groups(module, groups, (settings.muon_learning_rate or rate) / rate)
            device = next(module.parameters()).device.type
            # rows that the processes join are of one type, and the slowest of them sets the pace
            computes_bf16 = all(ranks.gather(choose_compute(device, "auto").dtype == torch.bfloat16))
            adamw = AdamW(others, rate, betas, epsilon, settings.bias_correction)
            return MuonWithAdamW(adamw, Muon(matrices, settings.muon_momentum, computes_bf16, ranks))
        case "adagrad":
            start = settings.initial_accumulator
            return torch.optim.Adagrad(groups, initial_accumulator_value=start, eps=epsilon, fused=True)


def clip_gradients(module: nn.Module, max_norm: float | None) -> Tensor:
    """Scales the gradients down to `max_norm` if their norm is over it.

    Returns:
        () float32, the norm before clipping.
    """
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients, foreach=True))
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(
            [p for p in module.parameters() if p.grad is not None], max_norm, norm, foreach=True
        )
    return norm


def clipping_divisor(norm: Tensor, max_norm: float | None) -> Tensor | None:
    """What gradients of this norm are divided by to bring it down to `max_norm`, as PyTorch clips; None: nothing."""
    return None if max_norm is None else ((norm + 1e-6) / max_norm).clamp(min=1.0)


@dataclass(frozen=True)
class Stage:
    """A part of a run with a schedule of its own.

    Attributes:
        start: what was done when it began, as in `TrainSettings.share_done`.
        until: the share of the budget that is done when it ends.
    """

    start: dict[str, float]
    until: float


@dataclass
class Schedule:
    """The learning rate's factor, from 0 to 1, as a function of what is done of the budget.

    Attributes:
        warmup_end: what was done when the warm-up steps ended, as in `TrainSettings.share_done`; None until then. Saved
            in checkpoints, since with a budget in tokens or epochs it is not known beforehand what share of it some
            steps are; saved as amounts, not as a share, since a resumed run may have another budget.
        stage: the part of the run that the shape covers; None is all of it. Saved in checkpoints too.
    """

    settings: ScheduleSettings
    warmup_end: dict[str, float] | None = None
    stage: Stage | None = None

    def begin_stage(self, done: Mapping[str, float], until_share: float = 1.0) -> None:
        """Starts the schedule again, warm-up included; it now ends with the stage.

        Args:
            done: how much is done when the stage begins, as in `TrainSettings.share_done`.
            until_share: of the whole budget, done when the stage ends.
        """
        self.stage = Stage(dict(done), until_share)
        self.warmup_end = None

    def factor(self, done: Mapping[str, float], train: TrainSettings) -> float:
        """The factor of the step about to be taken. Notes in `warmup_end` when the warm-up is over.

        Args:
            done: how much is done before it, as in `TrainSettings.share_done`.
        """
        progress = self._progress(done, train)
        warmup_steps, warmup_ratio = self.settings.warmup_steps or 0, self.settings.warmup_ratio
        steps = done["steps"] - (0 if self.stage is None else self.stage.start["steps"])
        if warmup_ratio is not None and progress < warmup_ratio:
            return progress / warmup_ratio
        if steps < warmup_steps:
            return steps / warmup_steps
        if self.warmup_end is None:
            self.warmup_end = dict(done)
        end = self._progress(self.warmup_end, train) if warmup_ratio is None else warmup_ratio
        rest = min(1.0, (progress - end) / max(1e-12, 1 - end))  # the share done of what follows the warm-up
        match self.settings.name:
            case "linear":
                return 1 - rest
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * rest))
            case "constant":
                return 1.0
            case "inverse_sqrt":
                return math.sqrt(end / progress)
            case "wsd":
                return min(1.0, (1 - progress) / self.settings.decay_ratio)

    def _progress(self, done: Mapping[str, float], train: TrainSettings) -> float:
        """The share done of the run, or of its stage."""
        share = train.share_done(done)
        if self.stage is None:
            return share
        begin = train.share_done(self.stage.start)
        return min(1.0, (share - begin) / max(1e-12, self.stage.until - begin))


@dataclass(frozen=True)
class ScheduledOptimizer:
    """An optimizer, whose groups have their peak rates at first, with the schedule that sets their rates."""

    optimizer: torch.optim.Optimizer
    schedule: Schedule

    def set_rate(self, done: Mapping[str, float], settings: TrainSettings) -> float:
        """Sets the learning rates of the step about to be taken, and returns that of the first group."""
        factor = self.schedule.factor(done, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate
