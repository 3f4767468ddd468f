"""Pre-training: from a store (or raw text) and a recipe to a model directory. The whole run, from top to bottom.

What is shown to the model, and when, is a pure function of the recipe; an interrupted run that is resumed ends with the
same weights, bit for bit, as one that never stopped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.config import Overrides
from unmask.errors import SettingsError
from unmask.io.progress import human_count
from unmask.io.signals import Interruption
from unmask.io.writing import alone_in, write_json
from unmask.models.attention import describe_attention
from unmask.models.hub.config import told_length
from unmask.models.hub.directory import save_model
from unmask.models.settings import LEFT_TO_RIGHT, EncoderSettings
from unmask.objectives.base import Objective, ObjectiveModule, StagedModule
from unmask.objectives.floors import by_figure
from unmask.pretraining.inputs import Inputs, open_inputs
from unmask.pretraining.steps import count_targets
from unmask.recipe.tree import PretrainRecipe, load_pretrain_recipe
from unmask.reports.run_page import write_report
from unmask.reports.samples import samples_of
from unmask.tokenization.kinds.gpt1_framing import unframed
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.saved_config import fit_to_model
from unmask.training.device import Compute, choose_compute
from unmask.training.loop import TrainState
from unmask.training.optimizers.optimizer import Schedule
from unmask.training.run.directory import beginning_run
from unmask.training.run.log import RunLog
from unmask.training.session import run_session
from unmask.training.settings import TrainSettings

logger = logging.getLogger("unmask")

_STEPS_CHECKED = 10
"""Steps at a run's beginning of which one must have a target."""


def pretrain(
    recipe: str,
    overrides: Overrides = (),
    *,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    workers: int = 1,
) -> Path:
    """Pre-trains a model.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with `unmask`: `pretrain/bert_tiny`.
        overrides: `key.path=value` words, such as `corpus=my.txt` and `train.steps=1000`, or a dictionary of them.
        out: the run directory; the model is in its `model/`.
        resume: True continues from the newest intact checkpoint, or from the beginning if there is none.
        overwrite: True replaces a run at `out`.
        workers: processes that prepare a corpus; see `unmask.prepare`.

    Returns:
        The model's directory.

    Raises:
        UserError: anything wrong with the recipe, text, store or output, or nothing to learn from them. If it is found
            before the first step, nothing has been written, and a run that was to be overwritten is unchanged.
        AnotherProcess: a run is under way at `out`.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    settings = load_pretrain_recipe(recipe, overrides)
    directory = Path(out)
    compute = choose_compute(settings.device, settings.precision, training=True)
    with beginning_run(
        directory,
        settings,
        name=recipe,
        seed=settings.seed,
        device=compute.describe(),
        resume=resume,
        overwrite=overwrite,
        keeps=("store",),
    ):
        run = open_inputs(settings, directory, workers)
        check_targets(settings, run)
        assert isinstance(run.module, nn.Module)
        compute.place(run.module)
        if resume and run.checkpoint is None:
            logger.info("nothing to resume in %s: starts from the beginning", directory)
    with alone_in(directory), RunLog(directory, echo=True) as log:
        _train(settings, run, directory, compute, log)
    write_report(directory)
    return directory / "model"


def check_targets(settings: PretrainRecipe, run: Inputs) -> None:
    """Refuses a run that would train on nothing, or be measured on nothing; tells of a further term without targets.

    Raises:
        SettingsError: the objective's main loss has no target in the run's first steps, or in all that is held out.
    """
    objective, term = run.objective, settings.objective.main_term

    def has_target(batch: Batch) -> bool:
        return objective.counts(batch)[term] > 0

    told = f"has a target of loss/{term}; {settings.objective.why_no_targets}"
    if run.held_out and not any(map(has_target, run.held_out)):
        number = sum(batch.num_sequences for batch in run.held_out)
        raise SettingsError(
            f"nothing would be measured: not one of the {number:,} held-out sequences {told}; if the training text has "
            "targets, change held_out"
        )
    if run.checkpoint is not None:
        return
    most = min(_STEPS_CHECKED, settings.train.steps or _STEPS_CHECKED)
    missing: set[str] | None = None
    for batch in (batch for step in run.steps.first_steps(most) for batch in step.batches):
        without = {name for name, count in objective.counts(objective.prepare(batch)).items() if not count}
        missing = without if missing is None else missing & without
        if not missing:
            return
    if missing is None or term in missing:
        raise SettingsError(f"nothing would be learnt: not one sequence of the first {most} steps {told}")
    for name in sorted(missing):
        logger.warning(
            "loss/%s: not one sequence of the first %s steps has a target of it, so that nothing is learnt from it "
            "there, and it is in no figures; give text with longer documents, or leave it out of the recipe",
            name,
            most,
        )


def _train(settings: PretrainRecipe, run: Inputs, directory: Path, compute: Compute, log: RunLog) -> None:
    module = run.module
    encoder = module.encoder.settings
    assert isinstance(module, nn.Module)
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    logger.info(
        "%s parameters; %s documents, %s tokens; %s held-out sequences",
        human_count(num_parameters),
        f"{run.store.num_documents:,}",
        human_count(run.store.num_tokens),
        sum(batch.num_sequences for batch in run.held_out),
    )
    lengths = [phase.packing(settings.packing).max_length for phase in settings.phases]
    if len(set(lengths)) > 1 and run.held_out:
        logger.info(
            "held-out sequences are as long as those of the last phase (packing.max_length=%s) from the first "
            "evaluation on, so that all figures are on one scale",
            lengths[-1],
        )
    logger.info(compute.describe())
    if isinstance(encoder, EncoderSettings) and encoder.architecture != "lstm":
        logger.info(
            describe_attention(compute.device, compute.dtype, encoder.attention_probs_dropout_prob, encoder.head_size)
        )

    with Interruption() as interruption:
        last_evaluation = run_session(
            "pre-training",
            directory,
            module=module,
            steps=run.steps,
            before_step=stage_changer(module, settings.train),
            prepare=run.objective.prepare,
            counts=run.objective.counts,
            settings=settings.train,
            optimizer=settings.optimizer,
            schedule=settings.schedule,
            checkpoint=run.checkpoint,
            evaluate=evaluator(run.objective, module, run.held_out, compute) if run.held_out else None,
            compute=compute,
            log=log,
            interruption=interruption,
            longest=settings.longest[1],
            compiles=True,
            in_parts=bool(settings.phases) or len(settings.objective.stages) > 1,
        )
        save_pretrained(module, run.tokenizer, directory / "model", run.trained_length)
        evaluation = {f"eval/{name}": value for name, value in last_evaluation.items()}
        floors = by_figure(run.objective.floors(count_targets(run.store, run.tokenizer), evaluation=evaluation))
        write_json(
            directory / "results.json",
            {**last_evaluation, "num_parameters": num_parameters, "floors": floors},
        )
        if run.held_out:
            samples = samples_of(module, run.held_out[0].to(compute.device), run.tokenizer)
            write_json(directory / "samples.json", samples)


def stage_changer(module: nn.Module, budget: TrainSettings) -> Callable[[TrainState, Schedule], bool] | None:
    """A function that begins each stage of a run, with its own schedule, when the one before ends; None for one stage.

    It returns whether a stage has begun: the steps before it then get a metrics row of their own.
    """
    if not isinstance(module, StagedModule) or len(module.stages) == 1:
        return None
    ends = module.stages

    def change(state: TrainState, schedule: Schedule) -> bool:
        if schedule.stage is None:
            schedule.begin_stage(state.done, until_share=ends[0])
        begins = module.stage + 1 < len(ends) and state.progress(budget) >= ends[module.stage]
        if begins:
            module.begin_stage(module.stage + 1)
            logger.info("step %s: stage %s of %s begins", f"{state.step + 1:,}", module.stage + 1, len(ends))
            schedule.begin_stage(state.done, until_share=ends[module.stage])
            state.recent_losses.clear()
        return begins

    return change


def evaluator(
    objective: Objective, module: ObjectiveModule, batches: Sequence[Batch], compute: Compute
) -> Callable[[], dict[str, float]]:
    """A function that measures the module on prepared batches: the means of its scores, and perplexities. What no
    target of them counts for has no mean, and is left out.

    The batches are the same at every evaluation of a run. In a run with phases they are as long as those of the last
    phase from the beginning, so that the whole curve is on one scale.
    """

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for batch in batches:
            with compute.autocast():
                scores = module.scores(batch.to(compute.device))
            for name, (total, count) in scores.items():
                totals[name] = totals.get(name, 0.0) + float(total)
                counts[name] = counts.get(name, 0) + count
        metrics = {name: totals[name] / counts[name] for name in totals if counts[name]}
        for name in objective.perplexities:
            if name not in metrics:
                continue
            metrics[f"{name.removesuffix('_loss')}_perplexity"] = math.exp(min(metrics[name], 700.0))  # e^710 overflows
        return metrics

    return evaluate


def save_pretrained(module: ObjectiveModule, tokenizer: Tokenizer, directory: Path, trained: int | None) -> None:
    """Writes the model directory: encoder, heads and tokenizer, in the layout that `transformers` opens, and whatever
    belongs beside them (ELECTRA's generator in `generator/`).

    The tokenizer of a model that reads bare text adds no special tokens: see `unmask.tokenization.kinds.gpt1_framing`.

    Args:
        trained: the longest sequence that the model has seen; see `unmask.pretraining.start.trained_length`.
    """
    for folder, kept in module.saved().items():
        sizes = kept.encoder.settings
        parts: dict[str, Any] = dict(kept.parts)
        parts["extra_config"] = {**parts.get("extra_config", {}), **told_length(sizes, trained)}
        save_model(directory / folder, kept.encoder, **parts)
        reads_bare_text = sizes.architecture in LEFT_TO_RIGHT
        (unframed(tokenizer) if reads_bare_text else tokenizer).save(directory / folder)
        fit_to_model(directory / folder, sizes.num_positions, has_segments=sizes.type_vocab_size > 1)
