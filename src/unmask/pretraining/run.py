"""Pre-training: from a store (or raw text) and a recipe to a model directory. The whole run, from top to bottom.

What is shown to the model, and when, is a pure function of the recipe and the store; an interrupted run that is resumed
on the same machine ends with the same weights, bit for bit, as one that never stopped (unless its budget is in
minutes).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.config import Overrides
from unmask.io.paths import RESULTS, SAMPLES
from unmask.io.progress import human_count, human_number
from unmask.io.signals import Interruption
from unmask.io.writing import alone_in, write_json
from unmask.objectives.floors import by_figure
from unmask.packing.sharing import Share
from unmask.pretraining.checkpoint_model import save_pretrained
from unmask.pretraining.inputs import PretrainingInputs, joined_again, open_inputs, with_store
from unmask.pretraining.measuring import check_targets, evaluator
from unmask.pretraining.ranks import check_ranks
from unmask.pretraining.stages import stage_changer
from unmask.recipe.loading import load_pretrain_recipe
from unmask.recipe.tree import PretrainRecipe
from unmask.reports.run_page import write_report
from unmask.reports.samples import samples_of
from unmask.training.device import Compute, choose_compute, log_compute, processes_tip
from unmask.training.distributed import ALONE, Ranks
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.run.directory import alone_in_process, beginning_run
from unmask.training.run.log import METRICS, RunLog, is_of_training, read_metrics
from unmask.training.run.model_place import replacing_model, writing_what_is_missing
from unmask.training.run.together import open_everywhere
from unmask.training.session import RunContext, run_session
from unmask.training.steps import Learner

logger = logging.getLogger("unmask")


@alone_in_process()
def pretrain(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    workers: int = 1,
    ranks: Ranks = ALONE,
) -> Path:
    """Pre-trains a model.

    PyTorch's generator, which threads share, is seeded, and its state restored at the end: a process makes one run at a
    time. Messages are those of the logger `unmask`, at INFO and above unless it has a level of its own.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with `unmask`: `pretrain/bert_tiny`.
        overrides: `key.path=value` words, such as `corpus=my.txt` and `train.steps=1000`, or a dictionary of them.
        out: the run directory; the model is in its `model/`.
        resume: True continues from the newest intact checkpoint, or from the beginning if there is none.
        overwrite: True replaces a run at `out`.
        workers: processes that prepare a corpus; see `unmask.prepare`.
        ranks: the processes that train it together, each of which calls this function; see
            `unmask.training.distributed.joined_ranks`.

    Returns:
        The model's directory.

    Raises:
        UserError: anything wrong with the recipe, text, store or output, or nothing to learn from them. If it is found
            before the first step, only a corpus's store is left, for `resume`; a run to be overwritten is unchanged.
        AnotherProcess: a run is under way at `out`.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    recipe = str(recipe)
    with ranks.agreeing():
        settings = load_pretrain_recipe(recipe, overrides)
        compute = choose_compute(settings.device, settings.precision)
    check_ranks(settings, compute, ranks)
    with ranks.own_directory(Path(out)) as directory, compute.keeping_torch_state():
        opening = beginning_run(
            directory,
            settings,
            name=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=compute.describe(),
            resume=resume,
            overwrite=overwrite,
            keeps=("store",),  # a directory with nothing but a store may become a run
        )
        # The first process makes tokenizer and store where the recipe names none, then the others read its store.
        own_store = ranks.from_first(str(directory / "store"))
        here = settings if ranks.is_first else with_store(settings, settings.store or own_store)
        inputs, evaluate = open_everywhere(
            opening,
            lambda checkpoint: open_and_check(here, directory, compute, workers, checkpoint, ranks),
            lambda opened: (str(opened[0].store.directory), opened[0].store.manifest["files"]),
            directory,
            ranks,
        )
        with alone_in(directory), RunLog(directory, echo=ranks.is_first) as log, Interruption() as interruption:
            if resume and inputs.checkpoint is None:
                logger.info("nothing to resume in %s: starts from the beginning", directory)
            in_steps = ranks.during_steps(settings.train.rank_timeout_s)
            context = RunContext(
                "pre-training",
                directory,
                compute,
                log,
                interruption,
                inputs.checkpoint,
                in_steps,
                draw_report=partial(write_report, directory, has_ended=False),
            )
            last_evaluation = _train(settings, inputs, evaluate, context)
            with ranks.agreeing(), writing_what_is_missing():  # the others wait: what fails here fails everywhere
                if ranks.is_first:
                    if settings.init_from is not None:
                        _log_before_and_after(settings.init_from, last_evaluation, directory)
                    whole = joined_again(inputs, settings, directory) if settings.train.shard else inputs
                    _write_results(whole, last_evaluation, inputs.target_counts, context)
        with ranks.agreeing(), writing_what_is_missing():
            if ranks.is_first:
                write_report(directory)
    return Path(out) / "model"


def open_and_check(
    settings: PretrainRecipe,
    directory: Path,
    compute: Compute,
    workers: int,
    checkpoint: Checkpoint | None,
    ranks: Ranks,
) -> tuple[PretrainingInputs, Callable[[], dict[str, float]] | None]:
    """What this process, which writes in `directory`, needs: its inputs, with the module where it trains, and what
    measures the module.

    Only the first process counts targets, for which it reads the whole store: it alone reports floors.

    Raises:
        UserError: an input is missing, damaged, or does not fit the others, or nothing can be learnt from it.
    """
    inputs = open_inputs(settings, directory, workers, checkpoint, Share(ranks.rank, ranks.size))
    if not settings.train.shard:  # else its parts go there, block by block
        compute.place(inputs.module)
    floors = inputs.objective.floors(inputs.target_counts, inputs.held_out) if ranks.is_first else []
    evaluate = evaluator(settings, inputs, floors, compute)
    if ranks.is_first:
        check_targets(settings, inputs)
    return inputs, evaluate


def _train(
    settings: PretrainRecipe,
    inputs: PretrainingInputs,
    evaluate: Callable[[], dict[str, float]] | None,
    context: RunContext,
) -> dict[str, float]:
    """Trains to the end of the budget, and returns the held-out figures of the weights that the module ends with."""
    module, compute = inputs.module, context.compute
    encoder = module.encoder.settings
    num_held_out = sum(batch.num_sequences for batch in inputs.held_out)
    text = f"{inputs.store.num_documents:,} documents, {human_count(inputs.store.num_tokens)} tokens"
    logger.info("%s parameters; %s; %s held-out sequences", human_count(module.num_parameters), text, num_held_out)
    lengths = [phase.packing(settings.packing).max_length for phase in settings.phases]
    if len(set(lengths)) > 1 and inputs.held_out:
        long = f"as long as those of the last phase (packing.max_length={lengths[-1]}) from the first evaluation on"
        logger.info("held-out sequences are %s, so that all figures are on one scale", long)
    log_compute(compute, encoder)
    if context.ranks.size == 1 and (tip := processes_tip(compute, encoder.hidden_size, settings.train.batch_size)):
        logger.info(tip)

    return run_session(
        Learner(module, inputs.objective.counts, inputs.objective.prepare),
        inputs.steps,
        settings,
        context,
        evaluate=evaluate,
        evaluates_start=settings.init_from is not None,
        change_stage=stage_changer(module, settings.train),
        compiles=True,
        in_parts=bool(settings.phases) or len(settings.objective.stages) > 1,
    ).figures


def _log_before_and_after(init_from: str | Path, last_evaluation: dict[str, float], directory: Path) -> None:
    """Logs the figures of the run's start, the evaluation of step 0, each beside that of its end."""
    rows = (row for row in read_metrics(directory / METRICS) if row["step"] == 0 and not is_of_training(row))
    before = next(rows, {})  # the file may have been moved away
    both = [(name, before.get(f"eval/{name}"), after) for name, after in last_evaluation.items()]
    pairs = [f"{name} {human_number(was)} -> {human_number(now)}" for name, was, now in both if was is not None]
    if pairs:
        logger.info("before -> after, from %s: %s", init_from, " · ".join(pairs))


def _write_results(
    inputs: PretrainingInputs, last_evaluation: dict[str, float], target_counts: NDArray[np.int64], context: RunContext
) -> None:
    """Writes the model, its figures with their floors, and samples of what it predicts."""
    module, directory = inputs.module, context.directory
    with replacing_model(directory) as model:
        save_pretrained(module, inputs.tokenizer, model, inputs.trained_length)
    evaluation = {f"eval/{name}": value for name, value in last_evaluation.items()}
    floors = by_figure(inputs.objective.floors(target_counts, inputs.held_out, evaluation))
    results = {**last_evaluation, "num_parameters": module.num_parameters, "floors": floors}
    if inputs.pairs:
        floors["eval/pairs_accuracy"] = {"a coin": 0.5}
        results["num_pairs"] = sum(len(paradigm.pairs) for paradigm in inputs.pairs)
    if inputs.held_out:
        write_json(
            directory / SAMPLES,
            samples_of(module, inputs.held_out[0].to(next(module.parameters()).device), inputs.tokenizer),
        )
    write_json(directory / RESULTS, results)
