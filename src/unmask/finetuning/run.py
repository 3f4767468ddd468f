"""Fine-tuning: from a pre-trained model, labelled examples and a recipe to a model that predicts. The whole run.

The loop and the session are those of pre-training. The order of the examples is a pure function of the recipe; an
interrupted run that is resumed ends with the same weights, bit for bit, as one that never stopped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from unmask.config import Overrides, parse_overrides
from unmask.errors import SettingsError
from unmask.finetuning.files import look_at_bases
from unmask.finetuning.fitting import epochs_advice, fit_to_models
from unmask.finetuning.inputs import ExampleSteps, TaskInputs, add_features, check_run, open_run
from unmask.finetuning.measuring import Measurement
from unmask.finetuning.search.grid import bases_of
from unmask.finetuning.search.search import run_trials
from unmask.inference.evaluation import accuracy_interval
from unmask.inference.example_sets import ExampleSet, predict_set
from unmask.io.paths import RESULTS, SAMPLES
from unmask.io.progress import counted, figures_in_a_line, human_count, listed
from unmask.io.signals import Interruption
from unmask.io.writing import alone_in, write_json
from unmask.models.heads.layer_mixture import mixture_of
from unmask.models.hub.config import length_config
from unmask.models.hub.directory import TunedHead, save_model
from unmask.models.hub.source import ModelSource
from unmask.packing.sharing import Share
from unmask.recipe.loading import load_finetune_recipe
from unmask.recipe.tree import FinetuneRecipe
from unmask.reports.run_page import write_report
from unmask.tasks.base import ExampleCounts, Task, TaskModule, chosen_last, positive_label
from unmask.tasks.encoded import EncodedExamples, concatenate
from unmask.tasks.tagging.module import FEATURES
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.saved_config import fit_to_model
from unmask.training.device import Compute, choose_compute, log_compute
from unmask.training.distributed import ALONE, Ranks
from unmask.training.run.best import Ending
from unmask.training.run.checkpoint import load_weights, refusing_another_model
from unmask.training.run.directory import alone_in_process, beginning_run
from unmask.training.run.log import RunLog
from unmask.training.run.model_place import replacing_model, writing_what_is_missing
from unmask.training.run.together import check_batch_size, check_same_device, check_same_run, open_everywhere
from unmask.training.session import RunContext, run_session
from unmask.training.steps import Learner

logger = logging.getLogger("unmask")

_NUM_SAMPLES = 12


@alone_in_process()
def finetune(
    recipe: str | Path,
    overrides: Overrides = (),
    *,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    ranks: Ranks = ALONE,
) -> Path:
    """Fine-tunes a model, or several where the recipe has a `search`.

    PyTorch's generator, which threads share, is seeded, and its state restored at the end: a process makes one run at a
    time. Messages are those of the logger `unmask`, at INFO and above unless it has a level of its own.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with `unmask`: `finetune/sst2`, whose length and
            learning rate follow the model, see `unmask.finetuning.fitting`.
        overrides: `key.path=value` words, such as `init_from=runs/bert` and `data.train=train.tsv`, or a dictionary
            of them.
        out: the run directory; the model (of a search, the best on dev) is in its `model/`.
        resume: True continues from the newest intact checkpoint, or from the beginning if there is none.
        overwrite: True replaces a run at `out`.
        ranks: the processes that train it together, each of which calls this function (a search is for one); see
            `unmask.training.distributed.joined_ranks`.

    Returns:
        The model's directory.

    Raises:
        UserError: anything wrong with the recipe, model, examples or output. If it is found before the first step,
            nothing has been written, and a run that was to be overwritten is unchanged.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    recipe = str(recipe)
    with ranks.agreeing():
        given = parse_overrides(overrides)
        settings, sources = fit_to_models(load_finetune_recipe(recipe, given), recipe, given)
    with ranks.agreeing():
        check_same_run(settings, ranks)
        check_batch_size(settings.train.batch_size, ranks)
        if settings.search.is_wanted and ranks.size > 1:
            raise SettingsError(
                f"a search trains each of its runs in one process, and torchrun has started {ranks.size}: start it "
                "without torchrun, and give search.parallel"
            )
    if settings.search.is_wanted:
        return run_trials(
            settings,
            Path(out),
            recipe=recipe,
            resume=resume,
            overwrite=overwrite,
            run=finetune_settings,
            check=partial(check_run, directory=Path(out), bases=look_at_bases(bases_of(settings))),
        )
    return finetune_settings(
        settings, Path(out), recipe=recipe, resume=resume, overwrite=overwrite, ranks=ranks, source=sources[0]
    )


def finetune_settings(
    settings: FinetuneRecipe,
    directory: Path,
    *,
    recipe: str,
    resume: bool,
    overwrite: bool,
    ranks: Ranks = ALONE,
    source: ModelSource | None = None,
) -> Path:
    """One run of a recipe without `search`; see `finetune`.

    Args:
        recipe: the recipe's name, for the record.
        source: `init_from`, if it is open already.
    """
    with ranks.agreeing():
        compute = choose_compute(settings.device, settings.precision)
    check_same_device(compute, ranks)
    with ranks.own_directory(directory) as own, compute.keeping_torch_state():
        opening = beginning_run(
            own,
            settings,
            name=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=compute.describe(),
            resume=resume,
            overwrite=overwrite,
        )
        share = Share(ranks.rank, ranks.size)
        inputs = open_everywhere(
            opening,
            lambda checkpoint: open_run(settings, own, compute, checkpoint, share, source),
            TaskInputs.fingerprints,
            own,
            ranks,
        )
        with alone_in(own), RunLog(own, echo=ranks.is_first) as log:
            _train(settings, inputs, own, compute, log, ranks)
        with ranks.agreeing(), writing_what_is_missing():
            if ranks.is_first:
                write_report(own)
    return directory / "model"


def _train(
    settings: FinetuneRecipe, inputs: TaskInputs, directory: Path, compute: Compute, log: RunLog, ranks: Ranks
) -> None:
    task, module = inputs.task, inputs.module
    if settings.task.reads_features:
        if inputs.checkpoint is not None:  # whose encoder is this run's, whatever `init_from` holds by now
            with refusing_another_model(inputs.checkpoint):
                load_weights(inputs.checkpoint, module)
        inputs = add_features(settings.task.feature_layers or "last", inputs, directory / "features", compute.device)
    origin = f"the sizes of {settings.init_from}, random weights" if settings.from_scratch else settings.init_from
    labels = f"; labels {listed(task.labels, 20)}" if task.labels else ""
    labels += f" (f1 is that of {positive})" if (positive := positive_label(task)) is not None else ""
    logger.info("%s parameters, from %s%s", human_count(module.num_parameters), origin, labels)
    log_compute(compute, inputs.module.encoder.settings)
    if advice := epochs_advice(settings.train, len(inputs.loader.examples)):
        logger.info(advice)
    if settings.train.eval_every == "epoch" and inputs.dev is not None:
        steps = -(-len(inputs.loader.examples) // settings.train.batch_size)
        logger.info("evaluated after each epoch: every %s", counted(steps, "step"))
    plain = compute.for_figures()
    dev = None if inputs.dev is None else Measurement("dev", task, inputs.module, inputs.dev, plain, log)
    in_steps = ranks.during_steps(settings.train.rank_timeout_s)
    with Interruption() as interruption:
        ending = run_session(
            Learner(module, inputs.module.counts),
            ExampleSteps(inputs.loader, inputs.start),
            settings,
            RunContext(
                "fine-tuning",
                directory,
                compute,
                log,
                interruption,
                inputs.checkpoint,
                in_steps,
                draw_report=partial(write_report, directory, has_ended=False),
            ),
            evaluate=dev,
            lower_is_better=task.score().lower_is_better,
        )
        with ranks.agreeing(), writing_what_is_missing():  # the others wait: what fails here fails everywhere
            if ranks.is_first:
                _write_results(inputs, dev, ending, directory, plain, log)


def _write_results(
    inputs: TaskInputs, dev: Measurement | None, ending: Ending, directory: Path, compute: Compute, log: RunLog
) -> None:
    """Chooses what is chosen on dev, measures test, and writes the model with its figures."""
    task, module = inputs.task, inputs.module
    module.eval()
    module.rescale()
    results: dict[str, Any] = {"num_parameters": module.num_parameters, "step": ending.step, "floors": {}}
    results |= {} if (positive := positive_label(task)) is None else {"positive_label": positive}
    if dev is not None and inputs.dev is not None:
        task = dev.tune(ending.figures)
        assert dev.score is not None
        results |= {"dev": dev.figures, "dev_examples": _examples(dev, inputs), "degenerate": dev.score.degenerate()}
        results |= {"early_stopping": ending.early_stopping} if ending.early_stopping else {}
        results |= {} if task == inputs.task else {"thresholds_chosen_on": "dev"}
        if dev.score.reliability is not None:
            results["calibration"] = {**dev.calibration, **dev.score.reliability.figures()}
        results["floors"] |= _floors(task, inputs.loader.examples, inputs.dev, ("eval/", "dev."))
        write_json(directory / SAMPLES, _samples(task, inputs, compute))
    if (mixture := mixture_of(module.head)) is not None:
        weights, gamma = mixture.weights.tolist(), mixture.gamma.item()
        results["mixture"] = {"weights": weights, "gamma": gamma}
        shares = ", ".join(f"{weight:.3g}" for weight in weights)
        logger.info("weights of the mixed layers, the lowest first: %s; gamma %.3g", shares, gamma)
    if inputs.test is not None:
        test = Measurement("test", task, inputs.module, inputs.test, compute, log)
        results |= {"test": chosen_last(test()), "test_examples": _examples(test, inputs)}
        logger.info("test: %s", figures_in_a_line(results["test"]))
        if test.score is not None and test.score.reliability is not None:
            results["test"]["expected_calibration_error"] = test.score.reliability.error
        results["floors"] |= _floors(task, inputs.loader.examples, inputs.test, ("test.",))
    with replacing_model(directory) as model:
        save_finetuned(inputs.module, task, inputs.tokenizer, model, inputs.trained_length)
    write_json(directory / RESULTS, results)
    if (directory / "features").exists():
        rmtree(directory / "features", ignore_errors=True)  # a network file system keeps what is still open


def _examples(measured: Measurement, inputs: TaskInputs) -> dict[str, Any]:
    """How many examples figures are of, how many were cut or left out, and how sure an accuracy is."""
    assert measured.score is not None
    number, counts = measured.score.num_examples, inputs.counts[measured.name]
    its = {"n": number, "truncated": counts.truncated, "unlabelled": counts.unlabelled}
    return its | accuracy_interval(measured.task, measured.figures, number)


def _floors(
    task: Task[Any], training: EncodedExamples, measured: list[ExampleSet], prefixes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """What figures on dev or test are to be compared with, under their names in metrics.jsonl and in results.json:
    metrics after each of the prefixes.

    Only the targets are needed: frozen features, which may be larger than memory, stay on disk.
    """
    light = [
        replace(each, token_columns={name: column for name, column in each.token_columns.items() if name != FEATURES})
        for each in (training, *(part.encoded for part in measured))
    ]
    floors = task.floors(light[0], concatenate(light[1:]))
    return {f"{prefix}{metric}": floor for metric, floor in floors.items() for prefix in prefixes}


def _samples(task: Task[Any], inputs: TaskInputs, compute: Compute) -> list[dict[str, Any]]:
    """What the module, in eval mode, says about the first dev examples; see `unmask.reports.run_page` for the shape."""
    assert inputs.dev is not None
    examples = inputs.dev[0].examples[:_NUM_SAMPLES]
    encoded = task.encode(examples, inputs.tokenizer, ExampleCounts(), inputs.module.encoder.settings.type_vocab_size)
    predictions = predict_set(task, inputs.module, ExampleSet(examples, encoded), compute)
    return [
        {"title": f"dev example {number}", **task.sample(example, prediction)}
        for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True), start=1)
    ]


def save_finetuned(
    module: TaskModule, task: Task[Any], tokenizer: Tokenizer, directory: Path, trained: int | None = None
) -> None:
    """Writes the model directory: encoder, head, labels, tokenizer, and what `predict` needs to know.

    Args:
        trained: the longest sequence that the model has seen; None: as long as it has positions.
    """
    sizes = module.encoder.settings
    save_model(
        directory,
        module.encoder,
        tuned=TunedHead(module.head, task.head_kind, task.labels or None, task.problem_type),
        extra_config={"unmask_task": task.remembered(), **length_config(sizes, trained)},
    )
    tokenizer.save(directory)
    fit_to_model(directory, sizes.num_positions, has_segments=sizes.type_vocab_size > 1)
