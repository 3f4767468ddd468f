"""The model directory of a pre-training run: at its end, or from a checkpoint, for measuring how scores grow with the
number of updates (Devlin et al. 2019, appendix C.1; Radford et al. 2018, figure 2).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unmask.config import read_settings_file
from unmask.errors import InputError
from unmask.io.paths import CHECKPOINTS, RECIPE, model_directory
from unmask.io.writing import refuse_inputs_inside, writing_directory
from unmask.models.hub.config import MADE_BY, length_config
from unmask.models.hub.directory import save_model
from unmask.objectives.base import ObjectiveModule
from unmask.objectives.table import new_objective
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe, program_of
from unmask.tokenization.gpt1_template import without_template
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.saved_config import fit_to_model
from unmask.training.averaging import WeightAverage
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.run.checkpoint import (
    find_checkpoint,
    list_steps,
    load_optimizer,
    load_weights,
    open_checkpoint,
    refusing_another_model,
)
from unmask.training.run.model_place import check_place

logger = logging.getLogger("unmask")


def save_checkpoint_model(run: str | Path, out: str | Path, step: int | None = None, overwrite: bool = False) -> Path:
    """Writes the model that a checkpoint holds, as the run would have written it had it ended there.

    Args:
        run: the directory of a pre-training run, finished or not; its store has to be where its recipe says.
        out: the model's directory.
        step: the checkpoint's step; None takes the newest that is sound, and warns of those passed over.
            `train.keep_last` and `train.keep_every` decide which a run keeps.
        overwrite: True replaces a model at `out`, and nothing else.

    Returns:
        `out`.

    Raises:
        InputError: `run` is not a pre-training run, or has no such checkpoint; the message lists those that it has.
        CheckpointError: the checkpoint is damaged, or without `step` all are.
        OutputError: there is something at `out` that is no model or not to be overwritten, or it cannot be written.
    """
    run, out = Path(run), Path(out)
    if not (run / RECIPE).is_file():
        raise InputError(f"{run}: no recipe.yaml: expected the directory of a pre-training run")
    if program_of(read_settings_file(run / RECIPE)) == "finetune":
        raise InputError(f"{run}: it is a fine-tuning run: its model is {model_directory(run)}")
    settings = load_pretrain_recipe(str(run / RECIPE))
    steps = list_steps(run / CHECKPOINTS)
    if not steps or step not in (None, *steps):
        which = "no checkpoints" if not steps else f"no checkpoint of step {step:,}"
        there = f"; there are {', '.join(f'{number:,}' for number in steps)}" if steps else ""
        raise InputError(f"{run}: {which}{there}: train.keep_last and train.keep_every say which a run keeps")
    check_place(out, overwrite)
    refuse_inputs_inside(out, [run, *([model_directory(settings.init_from)] if settings.init_from else [])])
    checkpoint = find_checkpoint(run / CHECKPOINTS) if step is None else open_checkpoint(run / CHECKPOINTS, step)
    assert checkpoint is not None, "there are some"
    for damage in checkpoint.damaged:
        logger.warning("a checkpoint is passed over: %s", damage)
    tokenizer = open_tokenizer((Path(settings.store) if settings.store else run / "store") / "tokenizer")
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    start = open_start(settings)
    with torch.random.fork_rng():
        module = build_module(start, objective, tokenizer)
    with refusing_another_model(checkpoint):
        load_weights(checkpoint, module)
        if (decay := settings.train.weight_averaging) is not None:
            optimizer = build_optimizer(module, settings.optimizer)
            average = WeightAverage(optimizer, decay)
            load_optimizer(checkpoint, optimizer)
            average.use()
    phase = checkpoint.state["position"].get("phase", 0)
    with writing_directory(out, overwrite=overwrite) as directory:
        made_by = {"command": "checkpoint", "of": [str(run)], "step": checkpoint.step}
        save_pretrained(module, tokenizer, directory, start.trained_length(phase), {MADE_BY: made_by})
    return out


def save_pretrained(
    module: ObjectiveModule,
    tokenizer: Tokenizer,
    directory: Path,
    trained: int | None,
    extra_config: Mapping[str, Any] = {},
) -> None:
    """Writes the model directory: encoder, heads and tokenizer, in the layout that `transformers` opens, and whatever
    belongs beside them (ELECTRA's generator in `generator/`).

    The tokenizer of a model that reads bare text adds no special tokens: see `unmask.tokenization.gpt1_template`.

    Args:
        trained: the longest sequence that the model has seen; see `unmask.pretraining.start.Start`.
        extra_config: further keys of `config.json`.
    """
    for folder, kept in module.saved().items():
        sizes = kept.encoder.settings
        save_model(
            directory / folder,
            kept.encoder,
            kept.heads,
            causal_lm=kept.causal_lm,
            span_boundary_head=kept.span_boundary_head,
            extra_config={**kept.extra_config, **length_config(sizes, trained), **extra_config},
        )
        reads_bare_text = sizes.family.reads_bare_text
        (without_template(tokenizer) if reads_bare_text else tokenizer).save(directory / folder)
        fit_to_model(directory / folder, sizes.num_positions, has_segments=sizes.type_vocab_size > 1)
