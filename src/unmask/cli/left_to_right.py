"""Commands that use left-to-right language models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, cast

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
    given_files,
    print_json_lines,
    refuse_overwrite_alone,
    refuse_unused,
)

app = typer.Typer()

_TEXTS = "--method acceptability alone"
_READ_BY_SCORE = {_TEXTS: (), "labels": ("task", "template", "words", "as_json")}


@app.command("generate")
def generate_command(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="a text to continue, or - for all of standard input")],
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="how many to add")] = 50,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", help="1: as the model says; below 1: favours likely tokens; 0: always the likeliest"
        ),
    ] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="draw among so many of the likeliest; 0: among all")] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="draw among the likeliest that together have this probability")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="the same gives the same text")] = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
) -> None:
    """Continue a text with a left-to-right model: prints the prompt as it was given, and the new text after it."""
    from unmask.inference.left_to_right.generation import generate
    from unmask.io.encodings import read_utf8_lines

    if prompt == "-":
        lines = read_utf8_lines(sys.stdin.buffer, "standard input")
        prompt = "".join(line for _, line in lines).removesuffix("\n").removesuffix("\r")
    new_text = generate(
        model,
        prompt,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        device=device,
        precision=precision,
    )
    print(f"{prompt}{new_text}")


@app.command("score")
def score_command(
    context: typer.Context,
    model: Model,
    data: Annotated[
        str, typer.Argument(help="examples: a table, JSON lines, a data set's files, a glob, a folder of shards, -")
    ],
    task: Annotated[
        str, typer.Option("--task", help="classification, choice, or a data set of such a kind")
    ] = "classification",
    method: Annotated[
        str | None,
        typer.Option("--method", help="labels or acceptability; completion or referent; the task's where left out"),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", help="of labels: '{text} It was {label}'; {text_a} and {text_b} of pairs"),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Option("--words", metavar="LABEL=WORDS", help="what a label is called; may be repeated")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="of acceptability: the mean log-probability of a good text")
    ] = None,
    dev: Annotated[str | None, typer.Option("--dev", help="labelled examples to choose the threshold on")] = None,
    columns: ColumnsOption = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    out: Annotated[Path | None, typer.Option("--out", help="a .jsonl for the predictions")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
) -> None:
    """Answer a task without fine-tuning, by what a left-to-right model finds likelier: one JSON object a line. With
    --json the figures on labelled examples instead, as `evaluate --json`. With --method acceptability and neither
    --threshold nor --dev: the log-probability of each text, which needs no labels."""
    from unmask.inference.answer_lines import write_json_lines
    from unmask.inference.left_to_right.text_scores import score_texts
    from unmask.inference.left_to_right.zero_shot import Method, evaluate_zero_shot, open_zero_shot, predict_zero_shot
    from unmask.io.writing import refuse_inputs_inside
    from unmask.recipe.loading import read_columns

    _check_out(out, overwrite, as_json)
    named, written = read_columns(columns or []), (encoding, separator, header, quoted)
    files = given_files(data, *written)
    dev_files = None if dev is None else given_files(dev, *written)
    if out is not None:
        refuse_inputs_inside(out, [*files.paths, *files.path.glob("*"), *(dev_files.paths if dev_files else [])])
    if method == "acceptability" and threshold is None and dev is None:
        refuse_unused(context, _TEXTS, _READ_BY_SCORE)
        lines = score_texts(model, files, columns=named, device=device, precision=precision)
    else:
        opened = open_zero_shot(
            model,
            files,
            task,
            method=cast(Method | None, method),
            template=template,
            words=None if words is None else read_words(words),
            threshold=threshold,
            dev=dev_files,
            columns=named,
            device=device,
            precision=precision,
        )
        if as_json:
            print(json.dumps(evaluate_zero_shot(opened, files), ensure_ascii=False))
            return
        lines = predict_zero_shot(opened, files)
    if out is None:
        print_json_lines(lines)
    else:
        write_json_lines(out, lines, overwrite)
        print(out)


def _check_out(out: Path | None, overwrite: bool, as_json: bool) -> None:
    from unmask.errors import SettingsError
    from unmask.io.paths import check_writable

    refuse_overwrite_alone(out, overwrite)
    if out is None:
        return
    if as_json:
        raise SettingsError("--out is for predictions, and --json prints the figures: leave one of them out")
    if out.suffix != ".jsonl":
        raise SettingsError(f"--out {out}: expected a name that ends in .jsonl: one JSON object a line is written")
    check_writable(out, overwrite)


def read_words(given: list[str]) -> dict[str, str]:
    """What each label is called, from `LABEL=WORDS`.

    Raises:
        SettingsError: one is not of this form, or a label is named twice.
    """
    from unmask.errors import SettingsError

    words: dict[str, str] = {}
    for one in given:
        label, equals, called = one.partition("=")
        if not (label and equals and called):
            raise SettingsError(f"--words {one!r}: expected LABEL=WORDS, as in --words 1=positive")
        if label in words:
            raise SettingsError(f"--words names the label {label!r} twice: once is expected")
        words[label] = called
    return words
