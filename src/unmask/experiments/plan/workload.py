"""What a recipe amounts to on any device: its phases, their necessary operations, and the memory of a device.

All of it is the doctor's (`unmask.doctor.recipe`), for every phase in place of the largest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import nn

from unmask.batch import Batch
from unmask.doctor.findings import Finding
from unmask.doctor.recipe.checks import steps_of
from unmask.doctor.recipe.estimates import FLOAT32, MEASURED_TOKENS
from unmask.doctor.recipe.material import Material, each_phase, load_recipe, open_text
from unmask.doctor.recipe.needs import Kept, Needs
from unmask.doctor.recipe.synthetic_batches import random_batches
from unmask.doctor.samples import FirstStep, first_step
from unmask.errors import InputError, SettingsError
from unmask.experiments.plan.costs import EqualMatrices, Phase, Workload
from unmask.pretraining.start import Start, open_start
from unmask.pretraining.steps import with_rates
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute
from unmask.training.optimizers.muon import ITERATIONS, split_groups
from unmask.training.optimizers.optimizer import parameter_groups
from unmask.training.settings import OptimizerSettings

_SHORT = 16
"""Tokens of the sequences on which a GPU's memory is measured. Its attention keeps nothing that grows with the square
of the length (Dao et al. 2022), and at this length the processor's, which does, keeps next to nothing."""

_RECOMPUTED = 4 / 3
"""Operations with `train.recompute`, by those without: a second forward pass, which is a third of both passes."""

_NO_TEXT = "sequences are taken to be of long documents, and the store's size is not counted: give store=DIR"


@dataclass(frozen=True)
class Opened:
    """A recipe, opened to be planned.

    Attributes:
        materials: of each phase.
        notes: what could not be known, and why.
    """

    workload: Workload
    materials: tuple[Material, ...]
    notes: tuple[str, ...]


def open_recipe(name: str, overrides: Sequence[str]) -> tuple[PretrainRecipe, bool]:
    """Reads a recipe, and refuses one that cannot be planned; returns as `load_recipe`."""
    settings, names_text = load_recipe(name, overrides)
    if settings.objective.reads == "words":
        raise SettingsError(
            f"{name} reads a stream of words, of which operations and memory are not worked out: plan another recipe; "
            "`unmask pretrain` with train.steps=20 reports this one's speed"
        )
    return settings, names_text


def open_workload(name: str, settings: PretrainRecipe, names_text: bool, compute: Compute) -> Opened:
    """Works out what a recipe amounts to.

    Args:
        names_text: see `load_recipe`.
        compute: the device planned for, with its precision; a GPU need not be there.
    """
    whole = open_start(settings)
    starts = [replace(whole, recipe=recipe) for recipe in each_phase(settings)]
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        text = open_text(starts[0], names_text, stack)
        if isinstance(text, Finding) and text.level == "fault":
            raise InputError(text.message)
        notes = (f"{text.message.split(':')[0]}: {_NO_TEXT}",) if isinstance(text, Finding) else ()
        materials = tuple(Material.of(start, _text_of(start, text)) for start in starts)
        disk = 0 if isinstance(text, Finding) else text.store.size_bytes
        phases = settings.all_phases
        begins = (0.0, *(phase.until for phase in phases))
        shares = [phase.until - begin for phase, begin in zip(phases, begins, strict=False)]
        is_cpu = compute.device.type == "cpu"
        kept: dict[tuple[str, int], Kept] = {}  # a GPU keeps as much of a token whatever the length: measured once
        opened = []
        for material, share in zip(materials, shares, strict=True):
            about = material.settings
            kind = repr(about.objective), about.packing.max_length if is_cpu else _SHORT
            if kind not in kept:
                kept[kind] = _measure_kept(material, compute, is_cpu)
            opened.append(_open_phase(Needs(material, compute), share, kept[kind]))
    needs = Needs(materials[0], compute)
    steps = [steps_of(settings.train, phase.tokens, phase.epochs, None) for phase in opened]
    known = [each * phase.share for each, phase in zip(steps, opened, strict=True) if each is not None]
    workload = Workload(
        name=name,
        precision="fp32" if compute.dtype == torch.float32 else "bf16",
        train=settings.train,
        num_parameters=needs.num_parameters,
        embeddings=needs.parameters["embeddings"],
        # The norm reads the gradients; the update reads them, and reads and writes weights and moments.
        update_bytes=FLOAT32 * (4 * needs.num_parameters + 2 * needs.num_moments),
        matrices=muon_matrices(needs.module, settings.optimizer, FLOAT32 if compute.dtype == torch.float32 else 2),
        disk_bytes=disk + needs.disk(sum(known)),
        phases=tuple(opened),
    )
    return Opened(workload, materials, notes)


def _text_of(start: Start, text: FirstStep | Finding) -> FirstStep | None:
    return None if isinstance(text, Finding) else first_step(start, text.store, text.tokenizer)


def _measure_kept(material: Material, compute: Compute, is_cpu: bool) -> Kept:
    processor = Compute(torch.device("cpu"), compute.dtype, "measures what is kept")
    # oneDNN's products keep copies, which those of a GPU do not.
    with torch.backends.mkldnn.flags(enabled=is_cpu, allow_tf32=None, fp32_precision=None):
        return Needs(material, processor).measure_kept(material.usual_batch if is_cpu else _short_batch(material))


def _open_phase(needs: Needs, share: float, kept: Kept) -> Phase:
    material, train = needs.material, needs.material.settings.train
    is_auto = train.micro_batch_size == "auto" and needs.compute.device.type != "cpu"
    return Phase(
        share,
        max_length=material.settings.packing.max_length,
        batch_size=train.batch_size,
        micro_batch_size=None if is_auto else train.micro_batch_of(train.batch_size),
        length=material.length,
        operations=needs.flops * (_RECOMPUTED if train.recompute else 1),
        epochs=material.epochs_per_step,
        memory=lambda sequences: needs.memory(sequences, kept),
    )


def _short_batch(material: Material) -> Batch:
    packing = material.settings.packing.model_copy(update={"max_length": _SHORT, "short_sequence_prob": 0.0})
    settings = material.settings.model_copy(update={"packing": packing})
    batch = next(random_batches(settings, material.sizes.vocab_size, MEASURED_TOKENS // _SHORT))
    return material.objective.prepare(with_rates(batch, material.rates))


def muon_matrices(module: nn.Module, settings: OptimizerSettings, item: int) -> tuple[EqualMatrices, ...]:
    """The matrices that Muon updates, by group and shape; none with another optimizer.

    Every iteration multiplies an (m, n) matrix, m the smaller, by its transpose, the (m, m) product by itself, and the
    result by the matrix: 4 m^2 n + 2 m^3 FLOP.

    Args:
        item: bytes of a number in its products.
    """
    if settings.name != "muon":
        return ()
    _, groups = split_groups(module, parameter_groups(module, 0.0, 1.0), 1.0)
    shapes = [Counter(parameter.shape for parameter in group["params"]) for group in groups]
    found = [(count, *sorted(shape)) for counts in shapes for shape, count in counts.items()]
    return tuple(
        EqualMatrices(count, operations=float(ITERATIONS * (4 * m * m * n + 2 * m**3)), size=item * m * n)
        for count, m, n in found
    )
