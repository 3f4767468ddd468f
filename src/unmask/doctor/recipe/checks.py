"""What `unmask doctor` says about a recipe's settings: what is far from usual, and what cannot work."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unmask.config import changed_keys
from unmask.doctor.findings import FigureTable, Finding, Level
from unmask.doctor.recipe.estimates import MemoryEstimate
from unmask.doctor.recipe.needs import Needs
from unmask.io.progress import human_bytes, human_count, human_duration
from unmask.models.settings import EncoderSettings
from unmask.pretraining.steps import STATIC_COPIES
from unmask.recipe.tree import PretrainRecipe
from unmask.training.settings import BUDGETS, OPTIMIZERS, OptimizerSettings, TrainSettings, warmup_shortfall


@dataclass(frozen=True)
class PretrainingPlan:
    """The work that a recipe amounts to; None for what cannot be known."""

    sizes: EncoderSettings
    num_parameters: int
    tokens_per_step: float  # the mean number of tokens shown in an optimizer step
    steps: float | None  # in all, as tokens and epochs are
    tokens: float | None
    epochs: float | None
    seconds: float | None  # of training, according to the measured probe


def steps_of(
    train: TrainSettings, tokens_per_step: float, epochs_per_step: float | None, step_s: float | None
) -> float | None:
    """The steps that a budget amounts to; None where that takes a figure that is None.

    Args:
        epochs_per_step: the share of an epoch that a step shows; None without a text.
        step_s: how long a step takes; None if it was not measured.
    """
    minutes = None if step_s is None else step_s / 60
    step = {"steps": 1, "tokens": tokens_per_step, "epochs": epochs_per_step, "minutes": minutes}
    name, amount = train.budget
    of_step = step[name]
    return None if of_step is None else amount / of_step


def make_plan(needs: Needs, step_s: float | None) -> PretrainingPlan:
    """Works out the whole budget from the one that the recipe gives; see `steps_of`."""
    material, train = needs.material, needs.material.settings.train
    tokens_per_step, epochs_per_step = material.tokens_per_step, material.epochs_per_step
    steps = steps_of(train, tokens_per_step, epochs_per_step, step_s)
    return PretrainingPlan(
        material.sizes,
        needs.num_parameters,
        tokens_per_step,
        steps,
        tokens=None if steps is None else steps * tokens_per_step,
        epochs=train.epochs if steps is None or epochs_per_step is None else steps * epochs_per_step,
        seconds=None if steps is None or step_s is None else steps * step_s,
    )


def check_settings(settings: PretrainRecipe, plan: PretrainingPlan) -> Iterator[Finding]:
    """Examines the settings, one after another; says nothing about what is usual."""
    yield from _check_learning_rate(settings.optimizer, plan.sizes.hidden_size)
    yield from _check_warmup(settings, plan.steps)
    yield from (Finding(*remark) for remark in settings.objective.unusual())
    most, whose = settings.objective.most_epochs
    if plan.epochs is not None and plan.epochs > most:
        message = f"the run shows the text {plan.epochs:,.0f} times; {whose} saw its own about {most} times"
        yield Finding("many-epochs", "warning", message, "give more text, or a smaller budget")
    elif plan.epochs is not None and plan.epochs < 1:
        message = f"the run shows {plan.epochs:.1%} of an epoch: not all of the text is seen"
        yield Finding("part-of-an-epoch", "note", message)
    if settings.objective.is_static and plan.epochs is not None and plan.epochs <= STATIC_COPIES:
        message = (
            f"objective.masking_mode=static changes nothing in {plan.epochs:,.2f} epochs: the first {STATIC_COPIES}"
        )
        yield Finding("static-without-effect", "warning", f"{message} have masks of their own", "train for longer")
    if plan.tokens is not None and (ratio := plan.tokens / plan.num_parameters) < 10:
        sizes = f"{human_count(plan.tokens)} tokens for {human_count(plan.num_parameters)} parameters"
        advice = "train longer, or take a smaller model (model.preset): BERT-Base saw over 1,000 a parameter"
        level: Level = "warning" if ratio < 1 else "note"
        yield Finding("few-tokens-per-parameter", level, f"{sizes} are {ratio:.2g} each", advice)
    yield from _check_batch(plan.tokens_per_step, settings.optimizer)
    if settings.held_out == 0:
        yield Finding("nothing-held-out", "warning", "held_out is 0: nothing is evaluated", "set held_out=0.01")
    elif settings.held_out > 0.3:
        message = f"held_out keeps {settings.held_out:.0%} of the documents from training"
        yield Finding("much-held-out", "note", message)
    steps, every = plan.steps, settings.train.save_every
    if steps is not None and steps >= 2000 and (every is None or every > steps / 2):
        when = "only at the end" if every is None else f"every {every:,} of {steps:,.0f} steps"
        yield Finding("rarely-saved", "note", f"the run is saved {when}", "lower train.save_every")


def _check_learning_rate(optimizer: OptimizerSettings, hidden_size: int) -> Iterator[Finding]:
    usual = OPTIMIZERS[optimizer.name].usual_rates
    if usual is None:
        message = f"no usual rates of optimizer.name={optimizer.name} are known: optimizer.learning_rate is not judged"
        yield Finding("learning-rate-not-judged", "note", message)
        return
    yield from check_rate(
        optimizer.learning_rate,
        usual,
        hidden_size,
        f"usual for {hidden_size} wide are",
        too_high="lower it, or the loss stays at its floor or diverges",
        too_low="raise it, or most of the budget is wasted",
        fault_from=10,
    )


def check_rate(
    rate: float,
    usual: Mapping[int, tuple[float, float]],
    width: int,
    whose: str,
    too_high: str,
    too_low: str,
    fault_from: float = math.inf,
    key: str = "optimizer.learning_rate",
) -> Iterator[Finding]:
    """A finding if a learning rate is out of the usual range.

    Args:
        usual: the largest width -> the lowest and highest rate up to there.
        whose: the beginning of the message's end, before that range.
        too_high, too_low: advice.
        fault_from: how many times the highest is a fault.
        key: where the rate is given.
    """
    low, high = next(rates for widest, rates in usual.items() if width <= widest)
    end = f"{whose} {low:g} to {high:g}"
    if rate > high:
        message = f"{key} {rate:g} is {rate / high:.1f} times the highest usual: {end}"
        yield Finding("learning-rate-high", "fault" if rate > fault_from * high else "warning", message, too_high)
    elif rate < low:
        message = f"{key} {rate:g} is {low / rate:.1f} times below the lowest usual: {end}"
        yield Finding("learning-rate-low", "warning", message, too_low)


def _check_warmup(settings: PretrainRecipe, steps: float | None) -> Iterator[Finding]:
    schedule = settings.schedule
    if not schedule.warmup_steps and not schedule.warmup_ratio and settings.optimizer.name != "adagrad":
        message = "there is no warm-up: the first steps take the full learning rate"
        yield Finding("no-warmup", "warning", message, "set schedule.warmup_ratio=0.05, or schedule.warmup_steps")
    elif schedule.warmup_steps is not None and steps is not None:
        advice = "shorten it, or give schedule.warmup_ratio in its place"
        if (shortfall := warmup_shortfall(schedule, steps)) is not None:
            yield Finding("warmup-longer-than-run", "fault", shortfall, advice)
        elif (share := schedule.warmup_steps / steps) > 0.3:
            message = f"schedule.warmup_steps {schedule.warmup_steps:,} of {steps:,.0f} steps"
            yield Finding("long-warmup", "warning", f"{message}: {share:.0%} of the run is warm-up", advice)


def _check_batch(tokens_per_step: float, optimizer: OptimizerSettings) -> Iterator[Finding]:
    message = f"a step shows {human_count(tokens_per_step)} tokens"
    largest = OPTIMIZERS[optimizer.name].largest_batch
    if tokens_per_step < 1024:
        advice = "raise train.batch_size; train.micro_batch_size keeps memory as it is"
        yield Finding("small-batch", "warning", f"{message}: the gradient is noisy", advice)
    elif largest is not None and tokens_per_step > largest[0]:
        advice = "lower train.batch_size, and take more steps"
        yield Finding("large-batch", "warning", f"{message}, more than {largest[1]}", advice)


def check_memory(memory: MemoryEstimate, available: int, micro_batch_size: int) -> Finding:
    """Whether training fits into the memory that is free, before it is tried."""
    message = f"training takes about {human_bytes(memory.total)}, and {human_bytes(available)} are free"
    if memory.fixed > available:
        message += f": weights, gradients and optimizer alone take {human_bytes(memory.fixed)}"
        return Finding("too-large-for-memory", "fault", message, "take a smaller model, or a machine with more memory")
    if memory.total > available:
        fitting = fitting_sequences(memory, available, micro_batch_size)
        advice = f"set train.micro_batch_size={fitting}: it changes memory, not the size of the batch"
        return Finding("too-large-for-memory", "fault", message, advice if fitting else "shorten packing.max_length")
    if memory.total > 0.7 * available:
        return Finding("memory", "warning", f"{message}: that is close", "set a smaller train.micro_batch_size")
    return Finding("memory", "good", message)


def fitting_sequences(memory: MemoryEstimate, available: int, micro_batch_size: int) -> int:
    """How many sequences a micro-batch may have, with a margin, judging by one of `micro_batch_size`."""
    return int(0.8 * (available - memory.fixed) / max(1.0, memory.per_batch / micro_batch_size))


def check_disk(needed: int, free: int) -> Finding:
    """Whether checkpoints and model fit on the disk."""
    message = f"checkpoints and model take {human_bytes(needed)}, and {human_bytes(free)} are free here"
    if needed > free:
        advice = "free some space, put --out elsewhere, or lower train.keep_last, or raise train.keep_every"
        return Finding("disk-too-small", "fault", message, advice)
    return Finding("disk", "good", message)


def differences_table(settings: PretrainRecipe) -> FigureTable:
    """The settings that differ from the defaults of this objective and family, with both values."""
    objective, model = type(settings.objective)(name=settings.objective.name), type(settings.model)()
    usual = PretrainRecipe(corpus=[""], train=TrainSettings(steps=1))
    defaults = usual.model_copy(update={"objective": objective, "model": model, "store": settings.store})
    rows = [
        (key, _shown(here), "" if key.removeprefix("train.") in BUDGETS else _shown(default))
        for key, (default, here) in changed_keys(defaults, settings).items()
        if key not in ("corpus", "store") and (here is not None or key != "train.steps")
    ]
    if settings.objective.name != usual.objective.name:
        rows.insert(0, ("objective.name", settings.objective.name, usual.objective.name))
    return FigureTable("Settings that differ from the defaults", tuple(rows), ("setting", "here", "default"))


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def plan_table(plan: PretrainingPlan, settings: PretrainRecipe, flops: float) -> FigureTable:
    """Total steps, tokens, work and time."""
    unknown = "not known before there is a text" if settings.train.epochs is not None else "not known without the probe"
    rows = [
        ("a step", f"{settings.train.batch_size:,} sequences, {plan.tokens_per_step:,.0f} tokens"),
        ("steps", unknown if plan.steps is None else f"{plan.steps:,.0f}"),
        ("tokens", unknown if plan.tokens is None else human_count(plan.tokens)),
    ]
    if plan.epochs is not None:
        rows.append(("epochs", f"{plan.epochs:,.2f}"))
    if plan.tokens is not None:
        rows.append(("tokens a parameter", f"{plan.tokens / plan.num_parameters:,.1f}"))
    rows.append(("operations a token", f"{human_count(flops)} FLOP"))
    if plan.tokens is not None:
        rows.append(("operations in all", f"{flops * plan.tokens:.3g} FLOP"))
    if plan.seconds is not None:
        rows.append(("time on this machine", human_duration(plan.seconds)))
    return FigureTable(
        "The run", tuple(rows), note="Work is the necessary one, backward pass included; heads at targets only."
    )


def memory_table(memory: MemoryEstimate, micro_batch_size: int) -> FigureTable:
    """What takes memory."""
    rows = [
        ("weights", human_bytes(memory.weights)),
        ("gradients", human_bytes(memory.gradients)),
        ("optimizer", human_bytes(memory.optimizer)),
    ]
    if memory.casts:
        rows.append(("bfloat16 copies of the weights", human_bytes(memory.casts)))
    if memory.per_batch:
        rows.append((f"activations of {micro_batch_size:,} sequences", human_bytes(memory.activations)))
    if memory.logits:
        rows.append(("gradient of the logits", human_bytes(memory.logits)))
    rows.append(("in all", human_bytes(memory.total)))
    return FigureTable("Memory", tuple(rows), note="The program itself takes about 0.3 GiB more.")
