"""The commands that measure: a model on labelled examples or on minimal pairs, predictions, or two models at once."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.options import (
    ColumnsOption,
    DeviceOption,
    Encoding,
    Header,
    Json,
    Overwrite,
    PrecisionOption,
    Quoted,
    Separator,
    TaskSettingsArgument,
    check_page,
    given_files,
    refuse_unused,
    table_settings,
)
from unmask.io.progress import counted

if TYPE_CHECKING:
    from unmask.io.input_files import InputFiles

app = typer.Typer()


_READ_BY_EVALUATE = {
    "--pairs": ("pll", "discriminator", "checkpoints", "out", "overwrite", "device", "precision"),
    "--predictions": ("predictions", "data", "task", "columns", "settings", "na_probs", "na_threshold"),
    "": ("data", "task", "columns", "settings", "device", "precision"),
}
_READ_BY_COMPARE = {"--data": ("columns", "encoding", "separator", "header", "quoted", "device", "precision"), "": ()}


@app.command("evaluate")
def evaluate_command(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="a fine-tuned model, its run or an ensemble; left out with --predictions")
    ] = None,
    settings: TaskSettingsArgument = None,
    data: Annotated[
        str | None, typer.Option("--data", help="labelled examples: a file, a glob or a folder of shards")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option("--pairs", help="minimal pairs: a file, or a folder of them such as BLiMP's")
    ] = None,
    pll: Annotated[
        str, typer.Option("--pll", help="with --pairs, of masked models: original or word-left-to-right")
    ] = "original",
    discriminator: Annotated[
        bool, typer.Option("--discriminator", help="with --pairs: ELECTRA's discriminator answers, not its generator")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="with --pairs: every checkpoint of a pre-training run, not its model")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="with --pairs: a page, .html, or each pair with its scores, .jsonl")
    ] = None,
    overwrite: Overwrite = False,
    task: Annotated[str | None, typer.Option("--task", help="the model's own where left out")] = None,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", help="score this file of predictions; .json is {id: answer}")
    ] = None,
    columns: ColumnsOption = None,
    na_probs: Annotated[
        Path | None, typer.Option("--na-probs", help="{id: probability of no answer}, beside {id: answer}")
    ] = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    na_threshold: Annotated[
        float, typer.Option("--na-threshold", help="no answer where that probability is over this")
    ] = 1.0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model, or a file of predictions, on labelled examples; or any model on minimal pairs."""
    from unmask.errors import SettingsError
    from unmask.inference.evaluation import evaluate
    from unmask.inference.prediction_scoring import evaluate_predictions
    from unmask.inference.task_options import read_task_settings
    from unmask.io.input_files import InputFiles
    from unmask.recipe.loading import read_columns

    mode = "--pairs" if pairs is not None else "--predictions" if predictions is not None else ""
    words = settings or []
    if mode == "--predictions" and model is not None and model.startswith("task."):  # no model but the first setting
        words = [model, *words]
        model = None
    refuse_unused(context, mode, _READ_BY_EVALUATE)
    written = (encoding, separator, header, quoted)
    if pairs is not None:
        if model is None:
            raise SettingsError("--pairs measures a MODEL: give one")
        asked = {"pll": pll, "discriminator": discriminator, "device": device, "precision": precision}
        files = InputFiles((pairs,), table_settings(*written))
        _evaluate_pairs(model, files, asked, checkpoints, out, overwrite, as_json)
        return
    if data is None:
        raise SettingsError("give --data FILE with labelled examples, or --pairs with minimal pairs")
    files = given_files(data, *written)
    about: Any = {"task": task, "columns": read_columns(columns or []), "settings": read_task_settings(words)}
    if model is not None and predictions is None:
        result = evaluate(model, files, **about, device=device, precision=precision)
    elif model is None and predictions is not None:
        if na_threshold != 1 and na_probs is None:
            raise SettingsError("--na-threshold is for --na-probs: leave it out, or give both")
        result = evaluate_predictions(predictions, files, **about, na_probs=na_probs, na_threshold=na_threshold)
    else:
        raise SettingsError("give a MODEL to measure, or --predictions FILE to score without one: one of the two")
    _print_figures(result, as_json)


@app.command("compare")
def compare_command(
    context: typer.Context,
    one: Annotated[str, typer.Argument(help="a fine-tuned model, its run or an ensemble; without --data a run")],
    other: Annotated[str, typer.Argument(help="another of the same task; without --data another run")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="with --data KEY=VALUE, settings of the task as in a recipe; without it further runs"),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            "--data", help="labelled examples: a file, a glob or a folder of shards; left out, runs are compared"
        ),
    ] = "",
    columns: ColumnsOption = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    as_json: Json = False,
) -> None:
    """Measure two fine-tuned models on the same labelled examples, and whether their difference is more than chance;
    or, without --data, put finished runs side by side: mean and spread over seeds, and whether recipes differ."""
    refuse_unused(context, "--data" if data else "", _READ_BY_COMPARE)
    if not data:
        _compare_runs([one, other, *(settings or [])], as_json)
        return
    from unmask.experiments.compare import compare
    from unmask.inference.task_options import read_task_settings
    from unmask.recipe.loading import read_columns

    named, given = read_columns(columns or []), read_task_settings(settings or [])
    files = given_files(data, encoding, separator, header, quoted)
    result = compare(one, other, files, named, settings=given, device=device, precision=precision)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    names = _names_of(result)
    differently = result["answered_differently"]
    print(f"{result['task']}: {result['n']:,} examples, {differently:,} answered differently")
    print(f"  {names['']} {'one':>10} {'other':>10} {'difference':>11}  (95 %)")
    for metric, values in result["metrics"].items():
        chance = "   within chance" if values["low"] <= 0 <= values["high"] else ""
        between = f"({values['low']:+.4f} to {values['high']:+.4f})"
        figures = f"{values['one']:>10.4f} {values['other']:>10.4f} {values['difference']:>+11.4f}"
        print(f"  {names[metric]} {figures}  {between}{chance}")
    for key, (first, second) in result["settings"].items():
        print(f"  {key}: {first} and {second}")
    print("difference: other less one. Chance is that of the examples; a seed changes a model too (search.restarts)")
    if differently < 10:
        print("the models answer too few examples differently for an interval: it is too narrow")


def _compare_runs(runs: list[str], as_json: bool) -> None:
    from rich.cells import cell_len, set_cell_size

    from unmask.errors import SettingsError
    from unmask.experiments.compare_runs import compare_runs

    if words := [word for word in runs if "=" in word and not Path(word).exists()]:
        raise SettingsError(f"{words[0]} is for two models on --data FILE: give that too, or leave {words[0]} out")
    found = compare_runs(runs)
    if as_json:
        print(json.dumps(asdict(found), ensure_ascii=False, default=str))
        return
    letters = [chr(ord("a") + number) if number < 26 else str(number) for number in range(len(found.arms))]
    for letter, arm in zip(letters, found.arms, strict=True):
        settings = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arm.settings.items())
        seeds = ", ".join(f"{run} (seed {seed})" for seed, run in arm.runs.items())
        print(f"{letter}: {settings + ': ' if settings else ''}{seeds}")
    width = max(map(cell_len, found.differences))
    print(f"  {'':<{width}} " + " ".join(f"{letter:>19}" for letter in letters))
    for name, differences in found.differences.items():
        means = [_mean_and_spread(arm.figures[name]) for arm in found.arms]
        print(f"  {set_cell_size(name, width)} " + " ".join(f"{mean:>19}" for mean in means))
        for letter, each in zip(letters[1:], differences, strict=True):
            if each is not None:
                pairs = f"{each.pairs} {'seeds' if each.pairs > 1 else 'seed'}"
                print(f"  {f'{letter} less a':>{width}} {each.mean:>+19.4f}  {_interval(each.low, each.high)}{pairs}")
    print("± is the standard deviation over seeds; differences are of the seeds that both have (95 %, Student's t)")
    for note in found.notes:
        print(note)


def _mean_and_spread(values: list[float]) -> str:
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{fmean(values):.4f}{spread}"


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"({low:+.4f} to {high:+.4f}){'   within chance' if low <= 0 <= high else ''}, "


def _evaluate_pairs(
    model: str,
    pairs: InputFiles,
    asked: dict[str, Any],
    checkpoints: bool,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    from unmask.errors import SettingsError
    from unmask.inference.answer_lines import write_json_lines
    from unmask.inference.pairs import evaluate_checkpoints, open_scorer, score_paradigms
    from unmask.reports.pairs_page import write_pairs_page
    from unmask.tasks.minimal_pairs.reading import read_paradigms

    check_page(out, overwrite, or_lines=True, inputs=[pairs.path, *pairs.path.glob("*.jsonl")])
    if checkpoints and out is not None and out.suffix == ".jsonl":
        raise SettingsError(f"--out {out}: lines are of one model: leave out --checkpoints, or name a page (.html)")
    scored = None
    if checkpoints:
        every = evaluate_checkpoints(model, pairs, **asked)
    else:
        paradigms = read_paradigms(pairs)
        scored = score_paradigms(open_scorer(model, **asked), paradigms)
        every = [scored.figures()]
    if as_json:
        found = {"task": "pairs", "checkpoints": every} if checkpoints else every[-1]
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print_pairs(every, checkpoints)
    if out is not None:  # last, so that a full disk loses no figure
        if scored is not None and out.suffix == ".jsonl":
            write_json_lines(out, scored.rows(), overwrite)
        else:
            write_pairs_page(out, model, str(pairs), every, overwrite)
        print(f"wrote {out}", file=sys.stderr)


def _print_pairs(every: list[dict[str, Any]], checkpoints: bool) -> None:
    results = every[-1]
    if checkpoints:
        for each in every:
            print(f"step {each['step']:>9,}  {each['metrics']['accuracy']:5.1f}")
    mean, n, paradigms = results["metrics"], results["n"], results["paradigms"]
    print(f"{counted(n, 'pair')} in {counted(len(paradigms), 'paradigm')}; a coin gives 50.0")
    terms = {f"{name}, mean": figures for name, figures in results["terms"].items()}
    for name, figures in (*paradigms.items(), *terms.items(), ("mean of all paradigms", mean)):
        print(f"  {name:<56} {figures['accuracy']:5.1f}  ({figures['low']:.1f} to {figures['high']:.1f})")


def _print_figures(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print(f"{result['task']}: {counted(result['n'], 'example')}")
    names = _names_of(result)
    for metric, value in result["metrics"].items():
        interval = result.get(f"{metric}_interval")
        between = f"  ({interval['low']:.4f} to {interval['high']:.4f})" if interval else ""
        print(f"  {names[metric]} {value:,}" if isinstance(value, int) else f"  {names[metric]} {value:.4f}{between}")
    if "expected_calibration_error" in result:
        print(f"  {names['calibration error']} {result['expected_calibration_error']:.4f}")


def _names_of(result: dict[str, Any]) -> dict[str, str]:
    """The names of metrics as they are shown, all of one width on a terminal, where a Korean letter takes two places;
    and of nothing."""
    from rich.cells import cell_len, set_cell_size

    names = {metric: metric for metric in ("", "calibration error", *result["metrics"])}
    if "f1" in names and "positive_label" in result:
        names["f1"] = f"f1 of {result['positive_label']}"
    width = max(24, *map(cell_len, names.values()))
    return {metric: set_cell_size(name, width) for metric, name in names.items()}
