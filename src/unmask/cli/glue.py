"""Commands on GLUE: its submission, and its averages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Json, Overwrite

app = typer.Typer()
glue_app = typer.Typer(
    help="Make and check a submission to GLUE; average its figures.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(glue_app, name="glue")


@glue_app.command("submit")
def glue_submit_command(
    runs: Annotated[list[Path], typer.Argument(help="one fine-tuned run a task; AX is answered by MNLI's")],
    out: Annotated[Path, typer.Option("--out", help="the .zip")],
    data: Annotated[
        Path | None, typer.Option("--data", help="GLUE's folders; left out: beside each run's training file")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="leave out tasks without a run or a test file")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Answer GLUE's test files: eleven tables in one .zip, checked."""
    from unmask.inference.glue.submission import submit

    print(submit(runs, out, data=data, allow_missing=allow_missing, overwrite=overwrite).describe())


@glue_app.command("check")
def glue_check_command(file: Annotated[Path, typer.Argument(help="a .zip for GLUE")]) -> None:
    """Refuse a submission that the server would, naming file and line."""
    from unmask.inference.glue.submission import validate

    print(validate(file).describe())


@glue_app.command("average")
def glue_average_command(
    runs: Annotated[list[Path], typer.Argument(help="one fine-tuned run, or search, a task")], as_json: Json = False
) -> None:
    """Average the figures on dev as BERT, GPT-1, ELECTRA and the leaderboard do."""
    from unmask.inference.glue.average import average_runs

    averages = average_runs(runs)
    print(json.dumps(averages.as_dict(), ensure_ascii=False) if as_json else averages.describe())
