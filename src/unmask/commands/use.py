"""Commands that use models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.commands.words import Json, Model, Overwrite, print_json_lines

app = typer.Typer()
glue_app = typer.Typer(help="Make and check a submission to GLUE.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(glue_app, name="glue")

MaxLength = Annotated[int | None, typer.Option("--max-length", help="tokens of an input; all the model takes")]
Layers = Annotated[
    str,
    typer.Option(
        "--layers",
        help="embeddings, second-to-last, last, weighted-last-4, concat-last-4 or weighted-all",
    ),
]
Pool = Annotated[str, typer.Option("--pool", help="none (one vector a token), cls, mean or max")]


@app.command("evaluate")
def evaluate_command(
    model: Annotated[
        Path | None, typer.Argument(help="a fine-tuned model, its run or an ensemble; left out with --predictions")
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="labelled examples")] = ...,  # type: ignore[assignment]
    task: Annotated[str | None, typer.Option("--task", help="the model's own where left out")] = None,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", help="score this file of predictions; .json is {id: answer}")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME=COLUMN", help="with --predictions: text_a=premise label=gold ..."),
    ] = None,
    na_probs: Annotated[
        Path | None, typer.Option("--na-probs", help="{id: probability of no answer}, beside {id: answer}")
    ] = None,
    na_threshold: Annotated[
        float, typer.Option("--na-threshold", help="no answer where that probability is over this")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model, or a file of predictions, on labelled examples."""
    from unmask.errors import SettingsError
    from unmask.evaluation import evaluate, evaluate_predictions
    from unmask.recipe import read_columns

    if (model is None) == (predictions is None):
        raise SettingsError("give a MODEL to measure, or --predictions FILE to score without one: one of the two")
    if predictions is not None:
        result = evaluate_predictions(
            predictions, data, task, read_columns(columns or []), na_probs=na_probs, na_threshold=na_threshold
        )
    else:
        assert model is not None
        if columns or na_probs:
            raise SettingsError("--column and --na-probs are for --predictions: a model knows its own columns")
        result = evaluate(model, data, task)
    _print_figures(result, as_json)


def _print_figures(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print(f"{result['task']}: {result['n']:,} examples")
    for name, value in result["metrics"].items():
        print(f"  {name:<24} {value:,}" if isinstance(value, int) else f"  {name:<24} {value:.4f}")


@app.command("predict")
def predict_command(
    model: Model,
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help=".jsonl, .tsv, .csv, .parquet, a data set's files, .txt (one text a line), or -"
        ),
    ],
) -> None:
    """Predict: one JSON object a line, in the order of the inputs."""
    from unmask.prediction import predict_file

    print_json_lines(predict_file(model, inputs))


@app.command("ensemble")
def ensemble_command(
    models: Annotated[list[Path], typer.Argument(help="fine-tuned models or their runs")],
    out: Annotated[Path, typer.Option("--out", help="the ensemble's directory")],
    overwrite: Overwrite = False,
) -> None:
    """Let several fine-tuned models answer together; evaluate and predict take the directory as a model."""
    from unmask.ensemble import write_ensemble

    print(write_ensemble(models, out, overwrite=overwrite))


@app.command("features")
def features_command(
    model: Model,
    inputs: Annotated[str, typer.Argument(metavar="FILE|-", help="as for predict")],
    out: Annotated[Path, typer.Option("--out", help="a directory for features and index")],
    layers: Layers = "last",
    pool: Pool = "none",
    format: Annotated[str, typer.Option("--format", help="npy or parquet")] = "npy",
    max_length: MaxLength = None,
    overwrite: Overwrite = False,
) -> None:
    """Write what an encoder makes of texts, once, as vectors for other models."""
    from unmask.features import extract_features

    extract_features(
        model, inputs, out, layers=layers, pool=pool, format=format, max_length=max_length, overwrite=overwrite
    )
    print(out)


@app.command("similarity")
def similarity_command(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="two texts, or a file of pairs")] = None,
    query: Annotated[Path | None, typer.Option("--query", help="texts to look for, one a line")] = None,
    corpus: Annotated[Path | None, typer.Option("--corpus", help="texts to look among, one a line")] = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="of the corpus, for each query")] = 5,
    layers: Layers = "last",
    pool: Pool = "mean",
) -> None:
    """Say how alike texts are: the cosine of their embeddings, one JSON object a line."""
    from unmask.similarity import compare

    print_json_lines(compare(model, texts or [], query, corpus, top_k=top_k, layers=layers, pool=pool))


@glue_app.command("submit")
def glue_submit_command(
    runs: Annotated[list[Path], typer.Argument(help="one fine-tuned run a task; AX is answered by MNLI's")],
    out: Annotated[Path, typer.Option("--out", help="the .zip")],
    data: Annotated[
        Path | None, typer.Option("--data", help="GLUE's folders; left out: beside each run's training file")
    ] = None,
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="leave out tasks that no run is for")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Answer GLUE's test files: eleven tables in one .zip, checked."""
    from unmask.glue_submission import submit

    print(submit(runs, out, data=data, allow_missing=allow_missing, overwrite=overwrite).describe())


@glue_app.command("check")
def glue_check_command(file: Annotated[Path, typer.Argument(help="a .zip for GLUE")]) -> None:
    """Refuse a submission that the server would, naming file and line."""
    from unmask.glue_submission import validate

    print(validate(file).describe())


@app.command("split")
def split_command(
    file: Annotated[Path, typer.Argument(help="labelled examples without published splits")],
    task: Annotated[str, typer.Option("--task", help="a kind of task or a data set's id")],
    out: Annotated[Path, typer.Option("--out", help="a directory for train, dev and test")],
    group: Annotated[
        str | None, typer.Option("--group", metavar="COLUMN", help="rows with equal values stay together")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Split examples by article, document or premise: 80 % train, 10 % dev, 10 % test, the same every time."""
    from unmask.splitting import split_file

    for path, count in split_file(file, task, out, group=group, overwrite=overwrite).items():
        print(f"{path}: {count:,}")


@app.command("fill-mask")
def fill_mask_command(
    model: Model,
    text: Annotated[str, typer.Argument(help="a text with [MASK] in it, or - for one text a line")],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="candidates for each [MASK]")] = 5,
) -> None:
    """Say what may stand at [MASK]: one JSON object a line, the likeliest first."""
    from unmask.mask_filling import MaskFiller, read_texts

    filler = MaskFiller(model)
    lines = read_texts(sys.stdin.buffer, "standard input") if text == "-" else [("", text)]
    print_json_lines(answer for source, line in lines for answer in filler.fill(line, top_k, source))


@app.command("info")
def info_command(
    path: Annotated[Path, typer.Argument(help="a store, model, run, tokenizer or recipe")],
    as_json: Json = False,
) -> None:
    """Say what something is: sizes, settings, progress, provenance."""
    from unmask.info import describe, format_description

    description = describe(path)
    print(json.dumps(description, ensure_ascii=False) if as_json else format_description(description))
