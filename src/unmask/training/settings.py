"""Settings of the loop: optimizer, schedule, budget, logging and saving."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.config import Settings


class OptimizerSettings(Settings):
    """AdamW with BERT's parameter groups: no decay on biases and LayerNorm."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float = Field(1e-4, gt=0)
    """The peak, after warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    bias_correction: bool = True
    """False: Adam's moments are used as they are, as in BERT's released code."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Each layer's rate is that of the layer above times this (ELECTRA, appendix B: .8, Large .9); 1: none. The last
    layer's is the head's times its square, as in the released code."""


class ScheduleSettings(Settings):
    """Learning rate over the run: linear warm-up, then decay to zero at the end of the budget."""

    name: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of warm-up."""
    warmup_ratio: float | None = Field(None, ge=0, lt=1)
    """Share of the budget spent on warm-up, in place of `warmup_steps`."""

    @model_validator(mode="after")
    def _one_warmup(self) -> ScheduleSettings:
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("warmup_steps and warmup_ratio say the same thing twice: keep one")
        return self


class TrainSettings(Settings):
    """Budget (one of `steps`, `tokens`, `epochs`, `minutes`), batch, clipping, logging and saving."""

    steps: int | None = Field(None, ge=1)
    """Optimizer updates."""
    tokens: int | None = Field(None, ge=1)
    """Tokens shown to the model, special ones included."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the data."""
    minutes: float | None = Field(None, gt=0)
    """Time spent training; a run resumed under this budget is not repeatable bit for bit."""

    batch_size: int = Field(256, ge=1)
    """Sequences per step, over all micro-batches."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Sequences per forward and backward pass; null is the whole batch. Changes memory, not the gradient."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Gradients are scaled down to this norm; null switches clipping off."""

    log_every: int = Field(50, ge=1)
    """Steps between rows of `metrics.jsonl`."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations; null evaluates at the end only."""
    eval_sequences: int = Field(2000, ge=1)
    """Held-out sequences in an evaluation of pre-training, at most; fine-tuning measures all of its dev file."""
    save_every: int | None = Field(1000, ge=1)
    """Steps between checkpoints; null saves at the end only."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept."""
    patience: int | None = Field(None, ge=1)
    """Evaluations without a better figure after which the run stops and its best weights become the model; null: never.
    Fine-tuning only."""
    metric: str | None = None
    """The figure on dev by which runs and evaluations are compared; null: the task's first. Fine-tuning only."""

    @model_validator(mode="after")
    def _one_budget(self) -> TrainSettings:
        budgets = {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}
        if len(budgets) != 1:
            given = " and ".join(f"{name}={value}" for name, value in budgets.items()) or "none of them is given"
            raise ValueError(f"exactly one of {', '.join(BUDGETS)} sets the length of the run; {given}")
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(f"micro_batch_size {self.micro_batch_size} is over batch_size {self.batch_size}")
        if self.patience is not None and self.eval_every is None:
            raise ValueError(f"patience={self.patience} counts evaluations during training: give eval_every as well")
        return self


class SearchSettings(Settings):
    """Several fine-tuning runs in place of one: every combination of what is listed, each `restarts` times."""

    learning_rates: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """In place of optimizer.learning_rate; empty: that one."""
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """In place of train.batch_size."""
    epochs: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """In place of train.epochs."""
    transfer_layers: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """In place of transfer_layers: the layer-transfer curve of Radford et al. 2018, figure 2."""
    checkpoints: list[str] = Field(default_factory=list)
    """Models to start from, in place of init_from."""
    restarts: int = Field(1, ge=1)
    """Runs of each combination: the same checkpoint, new shuffling and head (Devlin et al. 2019, section 4.1), seeds
    counted up from `seed`."""
    ensemble: bool = False
    """True: the runs of the best combination of learning rate, batch size, epochs and layers, from every checkpoint,
    answer together as well."""

    @model_validator(mode="after")
    def _nothing_twice(self) -> SearchSettings:
        for name in ("learning_rates", "batch_sizes", "epochs", "transfer_layers", "checkpoints"):
            listed = getattr(self, name)
            if twice := [value for place, value in enumerate(listed) if value in listed[:place]]:
                raise ValueError(f"{name} holds {twice[0]} twice: keep one")
        if self.ensemble and self.restarts * max(1, len(self.checkpoints)) == 1:
            raise ValueError("ensemble needs several runs of one combination: set restarts, or list checkpoints")
        return self

    @property
    def is_wanted(self) -> bool:
        """True where there is more than one run to make."""
        return self != SearchSettings()


BUDGETS = ("steps", "tokens", "epochs", "minutes")
