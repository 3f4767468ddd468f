"""Commands that use models."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.options import (
    ColumnsOption,
    DeviceOption,
    Encoding,
    Header,
    Json,
    Model,
    Overwrite,
    PrecisionOption,
    Quoted,
    Separator,
    TaskSettingsArgument,
    given_files,
    goes_to_file,
    print_json_lines,
    refuse_overwrite_alone,
)

app = typer.Typer()

MaxLength = Annotated[int | None, typer.Option("--max-length", help="tokens of an input; all the model takes")]
Layers = Annotated[
    str,
    typer.Option(
        "--layers",
        help="embeddings, layer-1 and so on, second-to-last, last, weighted-last-4, concat-last-4, weighted-all "
        "or weighted-all-and-embeddings",
    ),
]
OneVectorLayers = Annotated[
    str, typer.Option("--layers", help="embeddings, layer-1 and so on, second-to-last, last or concat-last-4")
]
_INPUT_FORMAT_HELP = "of -, and of files whose names do not say it: jsonl, csv, tsv, txt or conll"
Pool = Annotated[str, typer.Option("--pool", help="none (one vector a token), cls, mean, max or mean-with-special")]
OneVectorPool = Annotated[
    str | None, typer.Option("--pool", help="cls, mean, max or mean-with-special; the model's, or mean")
]


@app.command("predict")
def predict_command(
    model: Model,
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help=".jsonl, .tsv, .csv, .parquet, a data set's files, .txt (one text a line), or -"
        ),
    ],
    settings: TaskSettingsArgument = None,
    columns: ColumnsOption = None,
    format: Annotated[str | None, typer.Option("--format", help=_INPUT_FORMAT_HELP)] = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="a file: .jsonl, .csv, or for questions .json, the {id: answer} of SQuAD"),
    ] = None,
    abstain_below: Annotated[
        float | None,
        typer.Option(
            "--abstain-below",
            help="give no answer where the model is less sure than this (of several labels: of the least sure one)",
        ),
    ] = None,
    most_uncertain: Annotated[
        int | None, typer.Option("--most-uncertain", help="only so many inputs, the least certain first: to label next")
    ] = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    overwrite: Overwrite = False,
) -> None:
    """Predict: one JSON object a line, in the order of the inputs."""
    from unmask.inference.abstaining import Abstaining
    from unmask.inference.answer_lines import Answered
    from unmask.inference.predictor import load_predictor, predict_file, write_predictions
    from unmask.inference.task_options import read_task_settings
    from unmask.io.progress import Progress, not_shown
    from unmask.io.signals import saying_when_stopped
    from unmask.recipe.loading import read_columns

    refuse_overwrite_alone(out, overwrite)
    named, given = read_columns(columns or []), read_task_settings(settings or [])
    files = given_files(inputs, encoding, separator, header, quoted)
    abstaining = Abstaining(abstain_below, most_uncertain)
    options: Any = {"columns": named, "settings": given, "abstaining": abstaining, "format": format}
    computing: Any = {"device": device, "precision": precision}
    if out is not None:
        lost = f"nothing is kept: {out} appears once everything is answered; `> FILE` in place of --out keeps each line"
        with saying_when_stopped(lambda: lost):
            print(write_predictions(model, files, out, overwrite=overwrite, **options, **computing))
        return
    answered = Answered()
    with saying_when_stopped(lambda: str(answered)):
        predictor = load_predictor(model, **computing)
        with Progress("predicting", unit="inputs") if goes_to_file(sys.stdout) else nullcontext() as progress:
            advance = not_shown if progress is None else progress.advance
            print_json_lines(predict_file(predictor, files, **options, advance=advance, answered=answered))


@app.command("ensemble")
def ensemble_command(
    models: Annotated[list[Path], typer.Argument(help="fine-tuned models or their runs")],
    out: Annotated[Path, typer.Option("--out", help="the ensemble's directory")],
    overwrite: Overwrite = False,
) -> None:
    """Let several fine-tuned models answer together; evaluate and predict take the directory as a model.

    Thresholds are not chosen anew: those of labels are the means of the members', that of no answer is their sum.
    """
    from unmask.inference.ensemble import write_ensemble

    print(write_ensemble(models, out, overwrite=overwrite))


@app.command("features")
def features_command(
    model: Model,
    inputs: Annotated[str, typer.Argument(metavar="FILE|-", help="as for predict")],
    out: Annotated[Path, typer.Option("--out", help="a directory for features and index")],
    layers: Layers = "last",
    pool: Pool = "none",
    columns: ColumnsOption = None,
    format: Annotated[str, typer.Option("--format", help="npy or parquet")] = "npy",
    input_format: Annotated[str | None, typer.Option("--input-format", help=_INPUT_FORMAT_HELP)] = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    max_length: MaxLength = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    overwrite: Overwrite = False,
) -> None:
    """Write what an encoder makes of texts, once, as vectors for other models."""
    from unmask.inference.features.extraction import extract_features
    from unmask.recipe.loading import read_columns

    extract_features(
        model,
        given_files(inputs, encoding, separator, header, quoted),
        out,
        layers=layers,
        pool=pool,
        columns=read_columns(columns or []),
        input_format=input_format,
        format=format,
        max_length=max_length,
        device=device,
        precision=precision,
        overwrite=overwrite,
    )
    print(out)


@app.command("similarity")
def similarity_command(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="two texts, or a file of pairs, or -")] = None,
    query: Annotated[Path | None, typer.Option("--query", help="texts to look for, one a line")] = None,
    corpus: Annotated[Path | None, typer.Option("--corpus", help="texts to look among, one a line")] = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="of the corpus, for each query")] = 5,
    layers: OneVectorLayers = "last",
    pool: OneVectorPool = None,
    columns: ColumnsOption = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
) -> None:
    """Say how alike texts are: the cosine of their embeddings, one JSON object a line."""
    from unmask.inference.features.similarity import answer_similarity
    from unmask.recipe.loading import read_columns

    named, written = read_columns(columns or []), (encoding, separator, header, quoted)
    given: list[Any] = list(texts or [])
    if len(given) == 1 and (given[0] == "-" or Path(given[0]).exists()):
        given = [given_files(given[0], *written)]
    asked, among = (None if path is None else given_files(path, *written) for path in (query, corpus))
    options: Any = {"layers": layers, "pool": pool, "device": device, "precision": precision}
    print_json_lines(answer_similarity(model, given, asked, among, columns=named, top_k=top_k, **options))


@app.command("split")
def split_command(
    file: Annotated[Path, typer.Argument(help="labelled examples without published splits")],
    task: Annotated[str, typer.Option("--task", help="a kind of task or a data set's id")],
    out: Annotated[Path, typer.Option("--out", help="a directory for train, dev and test")],
    group: Annotated[
        str | None, typer.Option("--group", metavar="COLUMN", help="rows with equal values stay together")
    ] = None,
    columns: ColumnsOption = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    overwrite: Overwrite = False,
) -> None:
    """Split examples by article, document or premise: 80 % train, 10 % dev, 10 % test, the same every time."""
    from unmask.recipe.loading import read_columns
    from unmask.tasks.splitting import split_file

    named, files = read_columns(columns or []), given_files(file, encoding, separator, header, quoted)
    counts = split_file(files, task, out, group=group, named=named, overwrite=overwrite)
    for path, count in counts.items():
        print(f"{path}: {count:,}")


@app.command("fill-mask")
def fill_mask_command(
    model: Model,
    text: Annotated[str, typer.Argument(help="a text with [MASK] in it, or - for one text a line")],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="candidates for each [MASK]")] = 5,
) -> None:
    """Fill [MASK]: one JSON object a line, the likeliest token first."""
    from unmask.inference.mask_filling import MaskFiller, read_texts

    filler = MaskFiller(model, device="cpu")
    lines = read_texts(sys.stdin.buffer, "standard input") if text == "-" else [("", text)]
    print_json_lines(answer for source, line in lines for answer in filler.fill(line, top_k, source))


@app.command("info")
def info_command(
    path: Annotated[Path, typer.Argument(help="a store, model, run, tokenizer or recipe")], as_json: Json = False
) -> None:
    """Say what something is: sizes, settings, progress, provenance."""
    from unmask.info import describe, format_description

    description = describe(path)
    print(json.dumps(description, ensure_ascii=False) if as_json else format_description(description))


@app.command("card")
def card_command(
    model: Model,
    license: Annotated[str | None, typer.Option("--license", help="an id of the Hub's, such as apache-2.0")] = None,
    languages: Annotated[list[str] | None, typer.Option("--language", help="an ISO 639 code, such as en")] = None,
    datasets: Annotated[list[str] | None, typer.Option("--dataset", help="an id of the Hub's")] = None,
    name: Annotated[str | None, typer.Option("--name", help="the model's; else that of its directory")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace the card that is there")] = False,
) -> None:
    """Write a model card (README.md) beside a model, filled from its run, as the Hugging Face Hub reads it."""
    from unmask.card import Stated, write_card

    stated = Stated(license, tuple(languages or ()), tuple(datasets or ()), name)
    print(write_card(model, stated, overwrite=overwrite))
    if license is None:
        print("the card states no licence: --license, such as apache-2.0, does", file=sys.stderr)
