"""The doctor's look at a recipe: what it will take on this machine, measured if that is quick, and what is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from unmask.doctor.findings import Diagnosis, FigureTable, Finding, Sample
from unmask.doctor.recipe.checks import (
    check_disk,
    check_memory,
    check_settings,
    differences_table,
    fitting_sequences,
    make_plan,
    memory_table,
    plan_table,
)
from unmask.doctor.recipe.estimates import kept_checkpoints
from unmask.doctor.recipe.material import Material, largest_phase, load_recipe, open_text
from unmask.doctor.recipe.needs import Needs
from unmask.doctor.recipe.speed_probe import MEMORY_FOR_PROBE, SpeedProbe, measure_speed
from unmask.doctor.samples import decode_samples, describe_step
from unmask.doctor.store.floors import floors_table
from unmask.io.progress import human_bytes, human_count, human_duration
from unmask.models.heads.heads import MaskedLMHead
from unmask.objectives.floors import by_figure
from unmask.pretraining.start import open_start
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute, choose_compute

NOT_EXAMINED = Finding(
    "not-examined",
    "note",
    "of an objective that reads streams of a store of words, parameters, memory, operations, speed and samples are not "
    "examined",
    "`unmask pretrain` with train.steps=20 reports the speed",
)


def examine_recipe(name: str, overrides: Sequence[str], *, probe_s: float) -> Diagnosis:
    """Diagnoses a pre-training recipe.

    Raises:
        UserError: the recipe is wrong, or what it names cannot be used.
    """
    settings, names_text = load_recipe(name, overrides)
    if settings.objective.reads == "words":
        return Diagnosis("recipe", name, (NOT_EXAMINED,), tables=(differences_table(settings),))
    start = open_start(settings)
    findings = _check_phases(settings)
    start = replace(start, recipe=largest_phase(settings))
    compute = choose_compute(settings.device, settings.precision)
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        text = open_text(start, names_text, stack)
        if isinstance(text, Finding):
            findings.append(text)
        material = Material.of(start, None if isinstance(text, Finding) else text)
        return _examine(name, material, findings, compute, probe_s)


def _examine(name: str, material: Material, findings: list[Finding], compute: Compute, probe_s: float) -> Diagnosis:
    settings, tokens_per_step = material.settings, material.tokens_per_step
    needs = Needs(material, compute)
    micro_batch = settings.train.micro_batch_of(settings.train.batch_size)
    available = available_memory(compute)
    memory, probe = needs.fixed, None
    if memory.fixed <= available:
        kept = needs.measure_kept(material.usual_batch)
        memory = needs.memory(micro_batch, kept)
        if settings.train.micro_batch_size == "auto" and compute.device.type == "cuda" and memory.total > available:
            micro_batch = max(1, fitting_sequences(memory, available, micro_batch))
            memory = needs.memory(micro_batch, kept)
        fitting = int((MEMORY_FOR_PROBE * available - memory.fixed) * micro_batch / memory.per_batch)
        if probe_s > 0 and fitting > 0:
            probe = measure_speed(material, compute, probe_s, most_sequences=min(micro_batch, fitting))
    plan = make_plan(needs, None if probe is None else probe.seconds_for(tokens_per_step))
    flops, disk = needs.flops, needs.disk(plan.steps)
    findings = [
        *findings,
        check_memory(memory, available, micro_batch),
        *check_settings(settings, plan),
        check_disk(disk, shutil.disk_usage(".").free),
    ]
    tables = [parameters_table(needs), plan_table(plan, settings, flops)]
    if probe is not None:
        findings.append(_check_probe(probe))
        tables.append(probe_table(probe, tokens_per_step, flops, compute))
    tables += [memory_table(memory, micro_batch), disk_table(needs, plan.steps)]
    operations = None if plan.tokens is None else flops * plan.tokens
    figures: dict[str, object] = {
        "parameters": {**needs.parameters, "total": needs.num_parameters},
        "memory_bytes": {**vars(memory), "total": memory.total, "available": available},
        "flops_per_token": flops,
        "flops": operations,
        "disk_bytes": disk,
        "tokens_per_step": tokens_per_step,
        "steps": plan.steps,
        "tokens": plan.tokens,
        "epochs": plan.epochs,
        "seconds": plan.seconds,
        "probe": None if probe is None else probe_figures(probe, tokens_per_step),
    }
    samples: tuple[Sample, ...] = ()
    if material.text is not None:
        store = material.text.store
        floors = material.objective.floors(store.token_counts())
        tables += [floors_table(floors), describe_step(material.text, settings)]
        samples = decode_samples(material.text)
        figures |= {"floors": by_figure(floors), "store": store.figures()}
    tables.append(differences_table(settings))
    headline = (
        ("Parameters", human_count(needs.num_parameters)),
        ("Tokens", "unknown" if plan.tokens is None else human_count(plan.tokens)),
        ("Time on this machine", "unknown" if plan.seconds is None else human_duration(plan.seconds)),
        ("Memory", human_bytes(memory.total)),
        ("Operations", "unknown" if operations is None else f"{operations:.2g} FLOP"),
        ("Disk", human_bytes(disk)),
    )
    return Diagnosis("recipe", name, tuple(findings), headline, tuple(tables), samples=samples, figures=figures)


def _check_phases(settings: PretrainRecipe) -> list[Finding]:
    """Which phase is examined, if there are several."""
    if not settings.phases:
        return []
    largest = largest_phase(settings)
    message = (
        f"of {len(settings.phases)} phases the one that takes most memory is examined, with packing.max_length "
        f"{largest.packing.max_length} and train.batch_size {largest.train.batch_size}"
    )
    return [
        Finding("phases", "note", message, "time, tokens and operations are given as if the whole run were like it")
    ]


def _check_probe(probe: SpeedProbe) -> Finding:
    if len(probe.steps_s) < 3 or probe.spread > 0.5:
        advice = "other work slows this machine down now and then: the time is rough, measure again when idle"
        return Finding("unsteady-speed", "note", probe.steadiness, advice)
    return Finding("speed", "good", probe.steadiness)


def available_memory(compute: Compute) -> int:
    """Bytes of memory that are free for training, on the GPU or in this process's control group."""
    if compute.device.type == "cuda":
        return torch.cuda.mem_get_info(compute.device)[0]
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        statistics = dict(line.split() for line in used.with_name("memory.stat").read_text().splitlines())
        # A control group is charged for cached files, which the system takes back when memory is needed.
        free.append(int(most) - int(used.read_text()) + int(statistics.get("inactive_file", 0)))
    return min(free)


# ---- Tables


def parameters_table(needs: Needs) -> FigureTable:
    sizes, total = needs.material.sizes, needs.num_parameters
    head = needs.module.saved()[""].heads.get("masked_lm_head")
    is_tied = isinstance(head, MaskedLMHead) and head.weight is None
    width, heads, inner = f"{sizes.hidden_size:,}", sizes.num_attention_heads, f"{sizes.intermediate_size:,}"
    about = {
        "embeddings": f"{sizes.vocab_size:,} entries of {sizes.embedding_size or sizes.hidden_size:,}, and positions",
        "blocks": f"{sizes.num_hidden_layers} of {width}, {heads} heads, feed-forward {inner}",
        "heads": f"used in pre-training{'; the decoder is the word embeddings' if is_tied else ''}",
    }
    further = "its blocks and its head, and embeddings that are not shared"
    if sizes.family.is_recurrent:
        about["blocks"] = f"{sizes.num_hidden_layers} LSTM of {inner} units"
    rows = [
        (part, f"{count:,}", f"{count / total:.1%}", about.get(part, further))
        for part, count in needs.parameters.items()
    ]
    return FigureTable(
        "Parameters",
        (*rows, ("in all", f"{total:,}", "100.0%", human_count(total))),
        ("part", "parameters", "share", "what it is"),
    )


def disk_table(needs: Needs, steps: float | None) -> FigureTable:
    """What takes disk space: the existing store, checkpoints, the model."""
    kept, text = kept_checkpoints(needs.material.settings.train, steps), needs.material.text
    rows = [
        ("checkpoints", f"{kept:,} kept and one being written, {human_bytes(needs.checkpoint_bytes)} each"),
        ("run in all", human_bytes(needs.disk(steps))),
    ]
    if text is None:
        note = "A store takes 2 bytes a token (4 from 65,537 entries on), 4 a sentence, 8 a document."
        return FigureTable("Disk", tuple(rows), note=note)
    store = ("store", f"{human_bytes(text.store.size_bytes)}: {text.store.num_tokens:,} tokens of 2 bytes, and offsets")
    return FigureTable("Disk", (store, *rows))


def probe_table(probe: SpeedProbe, tokens_per_step: float, flops: float, compute: Compute) -> FigureTable:
    """What was measured, and what a whole step is estimated to need."""
    step_s = probe.seconds_for(tokens_per_step)
    rate = tokens_per_step / step_s
    measured = "1 step" if len(probe.steps_s) == 1 else f"{len(probe.steps_s)} steps"
    rows = (
        ("machine", compute.describe()),
        ("measured", f"{measured} of {probe.sequences:,} sequences, {probe.tokens:,.0f} tokens"),
        ("a step of these", f"{human_duration(probe.step_s)}, the median; {probe.steadiness}"),
        ("optimizer in it", human_duration(probe.optimizer_s)),
        ("a step of the recipe", human_duration(step_s)),
        ("speed", f"{human_count(rate)} tokens/s, {human_count(rate * flops)} FLOP/s"),
    )
    note = "Evaluations and saving are not in it."
    if probe.tokens < tokens_per_step / 2:
        note += " Fewer sequences than those of a step were measured: with all of them it may go faster."
    return FigureTable("Measured speed", rows, note=note)


def probe_figures(probe: SpeedProbe, tokens_per_step: float) -> dict[str, float]:
    step_s = probe.seconds_for(tokens_per_step)
    return {
        "sequences": probe.sequences,
        "steps": len(probe.steps_s),
        "spread": probe.spread,
        "step_s": step_s,
        "tokens_per_s": tokens_per_step / step_s,
    }
