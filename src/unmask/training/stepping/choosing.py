"""Which stepper takes the steps of a run, and why: the one place that decides."""

from __future__ import annotations

from torch import nn

from unmask.models.kernels.attention_backends import choose_backend
from unmask.models.trained import TrainedModule
from unmask.models.transformer import Block, SelfAttention
from unmask.training.captured.cautious import CautiousStepper
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.muon import MuonWithAdamW
from unmask.training.settings import TrainSettings
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import Stepper


def choose_stepper(
    eager: EagerStepper, settings: TrainSettings, longest: int | None, *, compiles: bool
) -> tuple[Stepper, str]:
    """Chooses captured steps on a GPU, unless something rules them out.

    Args:
        eager: takes the steps where they are not captured.
        longest: as in `StepSource`.
        compiles: what `train.compile_blocks` means if the recipe leaves it open.

    Returns:
        The stepper, and a line for the log.
    """
    if (why_not := why_not_captured(eager, settings, longest)) is not None:
        unused = "; train.compile_blocks=true is for captured steps" if settings.compile_blocks else ""
        return eager, f"steps: computed as they come ({why_not}){unused}"
    module, optimizer, paddings = eager.module, eager.optimizer, eager.module.paddings
    assert longest is not None
    assert paddings is not None
    assert isinstance(optimizer, AdamW | MuonWithAdamW), "others are computed as they come"
    compiles = compiles if settings.compile_blocks is None else settings.compile_blocks
    why_not_compiled = None if not compiles else _why_not_compiled()
    captured = CapturedStepper(
        module,
        optimizer,
        settings.max_grad_norm,
        settings.spike_factor,
        eager.compute,
        paddings,
        longest,
        compiles and why_not_compiled is None,
    )
    has_compiled = any(isinstance(part, Block) for part in module.modules())  # those of ModernBERT are not
    how = why_not_compiled or ("blocks compiled" if compiles and has_compiled else "blocks not compiled")
    return CautiousStepper(captured, eager), f"steps: captured once a shape and replayed (CUDA graphs), {how}"


def why_not_captured(eager: EagerStepper, settings: TrainSettings, longest: int | None) -> str | None:
    """Why the steps of a run are not captured, in words; None if they are. Arguments as in `choose_stepper`."""
    module, optimizer, compute = eager.module, eager.optimizer, eager.compute
    if eager.ranks.size > 1:
        return f"{eager.ranks.size} processes sum their gradients in between"
    if not settings.capture_steps:
        return "train.capture_steps is false"
    if settings.recompute:
        return "train.recompute is true"
    if compute.device.type != "cuda":
        return "CUDA graphs are for GPUs"
    if longest is None:
        return "some sequences of a batch are read from left to right, others are not"
    if (why_not := why_not_padded(module)) is not None:
        return why_not
    if not isinstance(optimizer, AdamW | MuonWithAdamW):
        return f"{type(optimizer).__name__} is not captured, AdamW and Muon are"
    for attention in _attentions(module):
        head_size = attention.output.in_features // attention.num_heads
        backend, why = choose_backend(compute.device, compute.dtype, attention.dropout_prob, head_size)
        if backend != "varlen":
            return str(why)
    return None


def why_not_padded(module: TrainedModule) -> str | None:
    """Why a module's batches cannot be padded to recurring shapes, in words; None if they can."""
    if not _attentions(module):
        return "captured steps are for Transformers"
    if module.paddings is None:
        return "the shapes of this model's batches follow from their lengths"
    if len(module.stages) > 1:
        return "what is trained changes in the run"
    return None


def _attentions(module: nn.Module) -> list[SelfAttention]:
    return [part for part in module.modules() if isinstance(part, SelfAttention)]


def _why_not_compiled() -> str | None:
    from torch.utils._triton import has_triton  # slow to import

    return None if bool(has_triton()) else "blocks not compiled: there is no Triton for this GPU"
