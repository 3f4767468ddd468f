"""Settings of the loop: optimizer, schedule, budget, logging and saving; and how steps are cut into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from unmask.config import Settings

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """How the gradient becomes an update. Biases, LayerNorm and scalars do not decay, as in BERT's released code."""

    name: Literal["adamw", "lamb", "muon", "adagrad"] = "adamw"
    """`lamb`: for batches of thousands of sequences (You et al. 2020). `muon`: for the matrices of the layers except an
    LSTM's gates, with AdamW for the rest (Jordan 2024). `adagrad`: ELMo's."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """The peak, after warm-up."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay, per step, of the means of the gradient and of its square."""
    epsilon: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    bias_correction: bool = True
    """False: the moments are used as they are, as in the released code of BERT and of LAMB."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Each layer's rate is that of the layer above times this (ELECTRA, appendix B: .8, Large .9); 1: none. The last
    layer's is the head's times its square, as in the released code."""
    muon_learning_rate: float | None = Field(default=None, gt=0)
    """The peak rate of the matrices under `muon`, whose updates are scaled to the size of AdamW's; null:
    `learning_rate`."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Nesterov momentum of the matrices under `muon`."""
    initial_accumulator: float = Field(default=1.0, ge=0)
    """Where the sum of squares of `adagrad` begins: 1 in ELMo's released code."""

    @model_validator(mode="after")
    def _keys_belong_to_the_name(self) -> OptimizerSettings:
        _refuse_keys_of_others(self, ONLY_OF_OPTIMIZERS)
        if self.name == "adagrad" and self.weight_decay != 0:
            raise ValueError(f"adagrad has no weight decay, and weight_decay is {self.weight_decay}: set it to 0")
        return self


@dataclass(frozen=True)
class OptimizerKind:
    """What follows from an optimizer's name.

    Attributes:
        moments: numbers that it keeps for each parameter, at most.
        keys: those of `optimizer` that it reads beside `learning_rate`, `weight_decay` and `layer_decay`.
        is_divisible: whether processes may divide its state (`train.shard`): it updates each number by itself.
        usual_rates: the largest hidden size -> the lowest and highest usual peak rate of pre-training up to there; None
            if none are known.
        largest_batch: the most tokens of a step that a paper had, and whose; None if that is not known.
    """

    moments: int
    keys: tuple[str, ...]
    is_divisible: bool = False
    usual_rates: Mapping[int, tuple[float, float]] | None = None
    largest_batch: tuple[float, str] | None = None


_OF_ADAM = ("betas", "epsilon", "bias_correction")
_RATES_OF_ADAM = {192: (1e-4, 5e-3), 384: (1e-4, 2.5e-3), 640: (1e-4, 1e-3), 896: (5e-5, 7e-4), 10**9: (2e-5, 5e-4)}
"""BERT-Base and Large 1e-4, RoBERTa 6e-4 and 4e-4, ELECTRA-Small (256 wide) 5e-4, and the rates of our own small
recipes. Muon's updates are as large."""
_RATES_OF_LAMB = {10**9: (5e-4, 6e-3)}
"""You et al. 2020, table 4: 6.25e-4 for batches of 512 to 5e-3 for those of 32,768."""
_BATCH_OF_ADAM = (8e6, "RoBERTa's largest batches (8,192 x 512)")  # Liu et al. 2019, section 4.3
_BATCH_OF_LAMB = (2e7, "LAMB's largest batches (32,768 x 512)")  # You et al. 2020, section 4.1
OPTIMIZERS = {
    "adamw": OptimizerKind(2, _OF_ADAM, True, _RATES_OF_ADAM, _BATCH_OF_ADAM),
    "lamb": OptimizerKind(2, _OF_ADAM, False, _RATES_OF_LAMB, _BATCH_OF_LAMB),
    "muon": OptimizerKind(2, (*_OF_ADAM, "muon_learning_rate", "muon_momentum"), False, _RATES_OF_ADAM, _BATCH_OF_ADAM),
    "adagrad": OptimizerKind(1, ("epsilon", "initial_accumulator")),
}
ONLY_OF_OPTIMIZERS: dict[str, tuple[str, ...]] = {
    key: names
    for kind in OPTIMIZERS.values()
    for key in kind.keys
    if len(names := tuple(name for name, other in OPTIMIZERS.items() if key in other.keys)) < len(OPTIMIZERS)
}
"""Keys of `optimizer` that mean something only under some names."""


def _refuse_keys_of_others(settings: OptimizerSettings | ScheduleSettings, table: dict[str, tuple[str, ...]]) -> None:
    for key, names in table.items():
        value = getattr(settings, key)
        if value != type(settings).model_fields[key].default and settings.name not in names:
            raise ValueError(f"{key}={value} is for {' and '.join(names)}, and name is {settings.name}: leave one out")


_LEAST_FOR_LAMB = 512
"""The smallest batch of You et al. 2020, in sequences."""


def batch_too_small(optimizer: OptimizerSettings, batch_size: int) -> str | None:
    """A warning about LAMB with batches that it is not made for; None otherwise.

    Args:
        batch_size: the largest of the run, in sequences.
    """
    if optimizer.name != "lamb" or batch_size >= _LEAST_FOR_LAMB:
        return None
    return (
        f"optimizer.name=lamb is for batches of thousands of sequences, and the largest here is of {batch_size}; its "
        "rate is not AdamW's either: it is a share of each matrix's norm, 1e-3 to 6e-3 for large batches, and "
        f"optimizer.learning_rate is {optimizer.learning_rate:g}; for small batches take optimizer.name=adamw"
    )


class ScheduleSettings(Settings):
    """Learning rate over the run: linear warm-up, then what the name says, to the end of the budget."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    """`linear`, `cosine`: down to zero. `inverse_sqrt`: the peak times the square root of warm-up over what is done
    (Vaswani et al. 2017, section 5.3). `wsd`: the peak, then linearly to zero at the end (Hu et al. 2024)."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of warm-up."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Share of the budget spent on warm-up, in place of `warmup_steps`."""
    decay_ratio: float = Field(default=0.1, gt=0, le=1)
    """Share of the budget over which `wsd` goes down, at its end."""

    @model_validator(mode="after")
    def _parts_fit(self) -> ScheduleSettings:
        if self.warmup_steps is not None and self.warmup_ratio is not None:
            raise ValueError("warmup_steps and warmup_ratio say the same thing twice: keep one")
        if self.name == "inverse_sqrt" and not self.warmup_steps and not self.warmup_ratio:
            raise ValueError("inverse_sqrt is counted from the end of the warm-up: give warmup_steps or warmup_ratio")
        _refuse_keys_of_others(self, ONLY_OF_SCHEDULES)
        if self.decays_at_its_end and (self.warmup_ratio or 0) + self.decay_ratio > 1:
            raise ValueError(
                f"warmup_ratio {self.warmup_ratio} + decay_ratio {self.decay_ratio} is over 1: lower one of them"
            )
        return self

    @property
    def decays_at_its_end(self) -> bool:
        """Whether `decay_ratio` is the share of the budget over which the rate goes down."""
        return self.name in ONLY_OF_SCHEDULES["decay_ratio"]


ONLY_OF_SCHEDULES: dict[str, tuple[str, ...]] = {"decay_ratio": ("wsd",)}
"""Keys of `schedule` that mean something only under some names."""


def warmup_shortfall(schedule: ScheduleSettings, steps: float) -> str | None:
    """What is wrong with a warm-up in steps that is too long for a run of `steps`; None where it fits."""
    warmup = schedule.warmup_steps or 0
    too_long = f"schedule.warmup_steps={warmup:,} of the {steps:,.0f} steps of the run"
    if warmup >= steps:
        return f"{too_long}: the run ends before its learning rate is reached"
    if schedule.decays_at_its_end and warmup > (1 - schedule.decay_ratio + 1e-9) * steps:
        return (
            f"{too_long}, whose last {schedule.decay_ratio:.0%} go down by schedule.decay_ratio="
            f"{schedule.decay_ratio:g}: the learning rate falls before it is reached"
        )
    return None


class TrainSettings(Settings):
    """Budget (one of `steps`, `tokens`, `epochs`, `minutes`), batch, clipping, logging and saving."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer updates."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens shown to the model, special ones included."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the data."""
    minutes: float | None = Field(default=None, gt=0)
    """Time spent training, stops and evaluations not counted. Every step then has its row in `metrics.jsonl`, with its
    rate, and no such run is repeatable bit for bit, resumed or not."""

    batch_size: int = Field(default=256, ge=1, le=2**20)
    """Sequences per step, over all micro-batches. Those of a question's choices, of a pair's two orders and of a
    classified text's windows count as one."""
    micro_batch_size: Annotated[int, Field(ge=1, le=2**20)] | Literal["auto"] | None = None
    """Sequences per forward and backward pass, at most, counted likewise; null, or more than the batch has, is the
    whole batch. `auto`: on a GPU the most that fit into its free memory, found by measuring before the first step;
    elsewhere the whole batch. Changes memory use and which elements dropout zeroes, nothing else in the gradient; so it
    is halved when a GPU runs out of memory, and the run continues."""
    shard: bool = False
    """Whether the processes of a run (`torchrun`) divide parameters, gradients and optimizer state among them, for
    models that do not fit into one device; each has a copy of all otherwise. See `unmask.training.sharding`."""
    recompute: bool = False
    """Whether blocks compute their activations again in the backward pass, which takes less memory and about a third
    more time; the gradient is the same. See `unmask.training.recompute`."""
    capture_steps: bool = True
    """Whether a GPU replays captured steps where it can; false computes every batch as it comes. The gradient is the
    same but for rounding and which elements dropout zeroes."""
    compile_blocks: bool | None = None
    """Whether the blocks of captured steps are compiled, which takes a while before the first step; null: in
    pre-training they are, in fine-tuning not."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm; null switches clipping off."""
    weight_averaging: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of a running mean of the weights, which is evaluated and becomes the model; checkpoints hold it
    beside the newest weights. Null: there is none. See `unmask.training.averaging`."""
    on_divergence: Literal["stop", "roll_back"] = "stop"
    """What happens at a step whose loss or gradient is not finite, or whose loss is a spike. Its update is never taken,
    and its batches (of several processes, those of the first) are kept in the run's `divergence/`. `roll_back`: the run
    continues from its newest checkpoint with the text after that step."""
    spike_factor: float | None = Field(default=None, gt=1)
    """A loss over this times the median of the last 100 steps that had targets of the same loss terms is a spike, from
    the 21st such step on; null: none is."""
    max_roll_backs: int = Field(default=3, ge=1)
    """Times that a run rolls back before it stops after all."""

    log_every: int = Field(default=50, ge=1)
    """Steps between rows of `metrics.jsonl`; the last row of a run, a stage or a stop may cover fewer. With `minutes`
    every step has one."""
    eval_every: Annotated[int, Field(ge=1)] | Literal["epoch"] | None = None
    """Steps between evaluations; null evaluates at the end only. `epoch`: after each pass over the examples, in
    fine-tuning only."""
    eval_sequences: int = Field(default=2000, ge=1)
    """Held-out sequences in an evaluation of pre-training, at most; fine-tuning measures all of its dev file."""
    save_every: int | None = Field(default=1000, ge=1)
    """Steps between checkpoints; null saves at the end only."""
    keep_last: int = Field(default=2, ge=1)
    """Checkpoints kept; the newest at a multiple of `save_every` always is."""
    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints at multiples of this many steps are kept as well, however many follow; null: none are."""
    rank_timeout_s: float = Field(default=600, gt=0)
    """Seconds that a process may keep the others of its run waiting before it counts as lost, and the run ends."""
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a better figure after which the run stops and its best weights become the model; null: never.
    Fine-tuning only."""
    metric: str | None = None
    """The figure on dev by which runs and evaluations are compared; null: the task's first. Fine-tuning only."""

    @property
    def budget(self) -> tuple[str, float]:
        """Which of `BUDGETS` is given, and how much of it."""
        return next((name, amount) for name in BUDGETS if (amount := getattr(self, name)) is not None)

    def share_done(self, done: Mapping[str, float]) -> float:
        """The share of the budget that is done, from 0 to 1.

        Args:
            done: how much is done, by the names in `BUDGETS`: steps, tokens, epochs, minutes.
        """
        name, amount = self.budget
        return min(1.0, done[name] / amount)

    def evaluates_at(self, step: int, epochs: float) -> bool:
        """Whether `eval_every` is due after a step with which so many passes over the data are done."""
        if self.eval_every == "epoch":
            return epochs.is_integer()
        return self.eval_every is not None and step % self.eval_every == 0

    def micro_batch_of(self, batch_size: int) -> int:
        """Sequences per pass of a step of `batch_size`, before anything is known of the memory."""
        return min(self.micro_batch_size, batch_size) if isinstance(self.micro_batch_size, int) else batch_size

    @model_validator(mode="after")
    def _one_budget(self) -> TrainSettings:
        budgets = {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}
        if len(budgets) != 1:
            given = " and ".join(f"{name}={value}" for name, value in budgets.items()) or "none of them is given"
            raise ValueError(f"exactly one of {', '.join(BUDGETS)} sets the length of the run; {given}")
        if self.on_divergence == "roll_back" and self.save_every is None:
            raise ValueError("on_divergence=roll_back goes back to a checkpoint: give save_every as well, or take stop")
        if self.keep_every is not None and (self.save_every is None or self.keep_every % self.save_every):
            raise ValueError(
                f"keep_every={self.keep_every} has to be a multiple of save_every={self.save_every}: only what is "
                "saved can be kept"
            )
        if self.patience is not None and self.eval_every is None:
            raise ValueError(f"patience={self.patience} counts evaluations during training: give eval_every as well")
        return self


class SearchSettings(Settings):
    """Several fine-tuning runs in place of one: every configuration of what is listed, each `restarts` times."""

    learning_rates: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """In place of optimizer.learning_rate; empty: that one."""
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """In place of train.batch_size."""
    epochs: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    """In place of train.epochs."""
    train_examples: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """In place of data.train_examples: how the figures grow with the labels (Peters et al. 2018, figure 1)."""
    transfer_layers: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """In place of transfer_layers: the layer-transfer curve of Radford et al. 2018, figure 2."""
    checkpoints: list[str] = Field(default_factory=list)
    """Models to start from, in place of init_from."""
    restarts: int = Field(default=1, ge=1)
    """Runs of each configuration: the same checkpoint, new shuffling and head (Devlin et al. 2019, section 4.1), seeds
    counted up from `seed`."""
    ensemble: bool = False
    """True: the runs of the best configuration of learning rate, batch size, epochs and layers, from every checkpoint,
    answer together as well."""
    parallel: int = Field(default=1, ge=1)
    """Runs at a time, at most, each in a process of its own with its share of the processor's threads."""
    ray: str | None = None
    """A Ray cluster whose machines make the runs: `auto`, or HOST:PORT. `parallel` then says how many share a GPU; on
    the CPU each run has as many threads as it would have here beside the others, and takes as many CPUs."""

    @model_validator(mode="after")
    def _nothing_twice(self) -> SearchSettings:
        for name in ("learning_rates", "batch_sizes", "epochs", "train_examples", "transfer_layers", "checkpoints"):
            listed = getattr(self, name)
            if twice := [value for place, value in enumerate(listed) if value in listed[:place]]:
                raise ValueError(f"{name} holds {twice[0]} twice: keep one")
        if self.ensemble and self.restarts * max(1, len(self.checkpoints)) == 1:
            raise ValueError("ensemble needs several runs of one configuration: set restarts, or list checkpoints")
        for name, value in (("ray", self.ray), ("parallel", self.parallel)):
            if value not in (None, 1) and not self.is_wanted:
                raise ValueError(f"{name}={value} is for a search, and here is one run: set restarts, or leave it out")
        return self

    @property
    def is_wanted(self) -> bool:
        """True where anything of a search but `parallel` and `ray` is given, be it for one run."""
        return self.model_copy(update={"parallel": 1, "ray": None}) != SearchSettings()


BUDGETS = ("steps", "tokens", "epochs", "minutes")

MOST_TOKENS_AT_ONCE = 2**31 - 1024
"""The most tokens of a batch: its bounds are int32, and captured steps add some tokens to it."""


@dataclass(frozen=True)
class Cut:
    """How the steps of a run are cut at some point of it.

    Attributes:
        micro_batch_size: sequences of a micro-batch, at most.
        longest: upper bound on the tokens of a sequence.
        size_key, length_key: the settings of `micro_batch_size` and `longest`, for messages.
    """

    batch_size: int
    micro_batch_size: int
    longest: int
    size_key: str = "train.micro_batch_size"
    length_key: str = "packing.max_length"

    def __str__(self) -> str:
        return f"{self.micro_batch_size:,} of {self.batch_size:,} sequences"

    def at_most(self, tokens: int | None) -> Cut:
        """The same steps in micro-batches of at most so many tokens (every sequence counted as long as the longest) or
        of one sequence, all of about the same size."""
        tokens = MOST_TOKENS_AT_ONCE if tokens is None else tokens
        if self.micro_batch_size * self.longest <= tokens:
            return self
        fitting = max(1, tokens // self.longest)
        return replace(self, micro_batch_size=math.ceil(self.batch_size / math.ceil(self.batch_size / fitting)))
