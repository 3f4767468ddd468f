"""Commands that make models, and that say what is wrong with what makes them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import (
    Json,
    OverridesArgument,
    Overwrite,
    Resume,
    RunOut,
    Workers,
    check_page,
    is_one_of_several,
)

app = typer.Typer()


@app.command("pretrain")
def pretrain_command(
    recipe: Annotated[str, typer.Argument(help="a YAML file, or a name such as pretrain/bert_tiny")],
    out: RunOut,
    overrides: OverridesArgument = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    workers: Workers = None,
) -> None:
    """Pre-train a model from a store (store=DIR) or straight from text (corpus=FILE)."""
    from unmask.recipe.loading import load_pretrain_recipe

    if not is_one_of_several():
        # Refuses a wrong setting before the seconds that torch takes to import.
        load_pretrain_recipe(recipe, overrides or [])
    from unmask.io.cores import count_cores
    from unmask.pretraining.run import pretrain
    from unmask.training.distributed import joined_ranks

    with joined_ranks(os.environ) as ranks:
        many = workers or count_cores()
        model = pretrain(
            recipe, overrides or [], out=out, resume=resume, overwrite=overwrite, workers=many, ranks=ranks
        )
    print(f"{model}\n{out / 'report.html'}")


@app.command("checkpoint")
def checkpoint_command(
    run: Annotated[Path, typer.Argument(help="a pre-training run's directory")],
    out: Annotated[Path, typer.Option("--out", help="the model's directory")],
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="of the checkpoint; else the newest that is sound")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the model that a checkpoint of a pre-training run holds, to fine-tune or to look at."""
    from unmask.pretraining.checkpoint_model import save_checkpoint_model

    print(save_checkpoint_model(run, out, step, overwrite))


@app.command("average")
def average_command(
    models: Annotated[list[Path], typer.Argument(help="models that come from one, or their runs")],
    out: Annotated[Path, typer.Option("--out", help="the model's directory")],
    overwrite: Overwrite = False,
) -> None:
    """Write the mean of several models' weights as one model: an encoder and its continued pre-training, restarts."""
    from unmask.inference.averaging import average_models

    print(average_models(models, out, overwrite=overwrite))


@app.command("finetune")
def finetune_command(
    recipe: Annotated[str, typer.Argument(help="a YAML file, or a name such as finetune/sst2")],
    out: RunOut,
    overrides: OverridesArgument = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Fine-tune a model on labelled examples (init_from=MODEL data.train=FILE data.dev=FILE)."""
    from unmask.recipe.loading import load_finetune_recipe

    if not is_one_of_several():
        load_finetune_recipe(recipe, overrides or [])  # as above
    from unmask.finetuning.run import finetune
    from unmask.training.distributed import joined_ranks

    with joined_ranks(os.environ) as ranks:
        model = finetune(recipe, overrides or [], out=out, resume=resume, overwrite=overwrite, ranks=ranks)
    print(f"{model}\n{out / 'report.html'}")


@app.command("doctor")
def doctor_command(
    target: Annotated[str, typer.Argument(help="a store, a run, a search, a recipe's file or its name")],
    overrides: OverridesArgument = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="makes the samples of a store")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="write a page (.html) too")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a store, a recipe, a run or a search, and what a run will take. Exit code 2: a fault."""
    from dataclasses import asdict

    from unmask.doctor.diagnosis import diagnose
    from unmask.doctor.page import write_diagnosis
    from unmask.doctor.terminal import print_diagnosis

    check_page(out, overwrite)
    diagnosis = diagnose(target, overrides or [], recipe=recipe)
    if as_json:
        print(json.dumps(asdict(diagnosis), ensure_ascii=False))
    else:
        print_diagnosis(diagnosis)
    if out is not None:  # last, so that a full disk loses nothing of the diagnosis
        write_diagnosis(out, diagnosis, overwrite)
        print(f"wrote {out}", file=sys.stderr)
    if diagnosis.has_fault:
        raise typer.Exit(2)


@app.command("plan")
def plan_command(
    recipe: Annotated[str, typer.Argument(help="a pre-training recipe: a YAML file, or its name")],
    overrides: OverridesArgument = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", help="how many; left out: 1 and 8, with --link also 64 and 512")
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="h100, h200, a100, a6000, 4090, or cpu: this machine's")] = "h100",
    link: Annotated[str | None, typer.Option("--link", help="what joins nodes of 8: ib400, eth100; or nvlink")] = None,
    mfu: Annotated[float | None, typer.Option("--mfu", help="share of the GPU's rate that a step reaches; .4")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="FLOP/s of the cpu, in place of measuring it")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="time real steps on this machine's cpu beside it")] = False,
    as_json: Json = False,
) -> None:
    """Say what a pre-training run costs on N devices: time, memory, disk, energy, bytes sent, efficiency."""
    from unmask.doctor.terminal import print_tables
    from unmask.experiments.plan.program import Asked, plan
    from unmask.experiments.plan.terminal import plan_tables

    planned = plan(recipe, overrides or [], Asked(gpu, gpus, link, mfu, rate, measure))
    if as_json:
        print(json.dumps(planned.as_dict(), ensure_ascii=False))
    else:
        print_tables(plan_tables(planned))
