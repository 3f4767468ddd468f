"""Commands on GLUE: a run for each task, its submission, and its averages."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import Json, OverridesArgument, Overwrite, Resume

app = typer.Typer()
glue_app = typer.Typer(
    help="Fine-tune on GLUE's tasks; make and check a submission; average figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(glue_app, name="glue")


@glue_app.command("run")
def glue_run_command(
    data: Annotated[Path, typer.Argument(help="GLUE's folders, as they are published")],
    out: Annotated[Path, typer.Option("--out", help="a folder for the runs, which are named after the tasks")],
    overrides: OverridesArgument = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help="some of them, as cola,rte; left out: all nine")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Fine-tune a model on each of GLUE's tasks by its recipe (init_from=MODEL), and average all figures in --out."""
    from unmask.finetuning.glue import TASKS, finished_beside, overrides_by_task
    from unmask.io.writing import refuse_existing

    words = overrides_by_task(data, overrides or [], TASKS if tasks is None else tasks.split(","))
    for task in words:
        refuse_existing(out / task, overwrite or resume, "choose another --out, or pass --resume or --overwrite")
    beside = finished_beside(out, words)
    from unmask.finetuning.run import finetune
    from unmask.inference.glue.average import average_runs
    from unmask.training.distributed import joined_ranks

    with joined_ranks(os.environ) as ranks:
        for number, (task, its) in enumerate(words.items(), start=1):
            if ranks.is_first:
                print(f"{task} ({number} of {len(words)})", file=sys.stderr)
            finetune(f"finetune/{task}", its, out=out / task, resume=resume, overwrite=overwrite, ranks=ranks)
        if ranks.is_first:
            print(average_runs([out / task for task in TASKS if task in words or out / task in beside]).describe())


@glue_app.command("submit")
def glue_submit_command(
    runs: Annotated[list[Path], typer.Argument(help="one fine-tuned run a task; AX is answered by MNLI's")],
    out: Annotated[Path, typer.Option("--out", help="the .zip")],
    data: Annotated[
        Path | None, typer.Option("--data", help="GLUE's folders; left out: beside each run's training file")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="leave out tasks without a run or a test file, but for a lone WNLI")
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
