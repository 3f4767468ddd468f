"""The doctor's look at a recipe: what it will take on this machine, measured where that is quick, and what is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from unmask.doctor.decoded_samples import decode_samples, describe_step
from unmask.doctor.findings import Diagnosis, Finding, Sample, Table
from unmask.doctor.recipe_checks import (
    check_disk,
    check_memory,
    check_settings,
    differences_table,
    make_plan,
    memory_table,
    plan_table,
)
from unmask.doctor.recipe_estimates import (
    MEASURED_TOKENS,
    SequenceShape,
    checkpoint_bytes,
    count_parameters,
    estimate_memory,
    fixed_memory,
    flops_per_token,
    run_bytes,
)
from unmask.doctor.recipe_material import Material, Text, load_recipe, open_text
from unmask.doctor.speed_probe import SpeedProbe, probe_speed
from unmask.doctor.store_checks import Floors, floors_table, store_facts
from unmask.models.settings import EncoderSettings
from unmask.pretraining import check_model
from unmask.progress import Progress, human_bytes, human_count, human_duration
from unmask.training.device import Compute, choose_compute

_MEMORY_FOR_PROBE = 0.6
"""Share of the free memory that the probe may take."""


def examine_recipe(name: str, overrides: Sequence[str], *, probe_s: float, num_samples: int) -> Diagnosis:
    """Diagnoses a pre-training recipe.

    Args:
        name: a file, or the name of a recipe that comes with `unmask`.
        probe_s: about how long the measured probe may take; 0 measures no speed.
        num_samples: decoded sequences to show.

    Raises:
        UserError: the recipe is wrong, or what it names cannot be used.
    """
    settings, names_text = load_recipe(name, overrides)
    check_model(settings)
    compute = choose_compute(settings.device, settings.precision)
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        text = open_text(settings, names_text, stack)
        findings = [text] if isinstance(text, Finding) else []
        material = Material.of(settings, text if isinstance(text, Text) else None)
        return _examine(name, material, findings, compute, probe_s, num_samples)


def _examine(
    name: str, material: Material, findings: list[Finding], compute: Compute, probe_s: float, num_samples: int
) -> Diagnosis:
    settings, sizes, tokens_per_step = material.settings, material.sizes, material.tokens_per_step
    parameters = count_parameters(settings, sizes)
    num_parameters = sum(parameters.values())
    length = tokens_per_step / settings.train.batch_size
    pairs = settings.objective.sentence_objective == "nsp"
    flops = flops_per_token(sizes, SequenceShape(length, settings.objective.target_prob, pairs))

    micro_batch = settings.train.micro_batch_size or settings.train.batch_size
    available = available_memory(compute)
    memory = fixed_memory(num_parameters, compute)
    fits = memory.fixed <= available
    probe = None
    if fits:
        batch = material.prepared(max(1, int(MEASURED_TOKENS / length)))
        memory = estimate_memory(num_parameters, sizes, batch, material.objective, micro_batch * length, compute)
        room = int((_MEMORY_FOR_PROBE * available - memory.fixed) * micro_batch / memory.per_batch)
        if probe_s > 0 and room > 0:
            probe = _probe(material, compute, probe_s, most_sequences=min(micro_batch, room))
    step_s = None if probe is None else probe.seconds_for(tokens_per_step)
    plan = make_plan(settings, sizes, num_parameters, tokens_per_step, material.epochs_per_step, step_s)
    needed = run_bytes(num_parameters, settings.train.keep_last)
    findings = [
        *findings,
        check_memory(memory, available, micro_batch),
        *check_settings(settings, plan),
        check_disk(needed, shutil.disk_usage(".").free),
        *([] if probe is None else [_check_probe(probe)]),
    ]
    tables = [parameters_table(parameters, sizes), plan_table(plan, settings, flops)]
    if probe is not None:
        tables.append(probe_table(probe, tokens_per_step, flops, compute))
    tables += [memory_table(memory, micro_batch), disk_table(num_parameters, settings.train.keep_last, material.text)]
    figures: dict[str, object] = {
        "parameters": {**parameters, "total": num_parameters},
        "memory_bytes": {**vars(memory), "total": memory.total, "available": available},
        "flops_per_token": flops,
        "flops": None if plan.tokens is None else flops * plan.tokens,
        "disk_bytes": needed,
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
        floors = Floors.of(store.token_counts())
        tables += [
            floors_table(floors, store.vocab_size, pairs=pairs),
            describe_step(material.text.step, settings.packing.max_length),
        ]
        samples = decode_samples(material.text.step, num_samples)
        figures |= {"floors": floors.figures(pairs=pairs), "store": store_facts(store)}
    tables.append(differences_table(settings))
    headline = [
        ("Parameters", human_count(num_parameters)),
        ("Tokens", "unknown" if plan.tokens is None else human_count(plan.tokens)),
        ("Time on this machine", "unknown" if plan.seconds is None else human_duration(plan.seconds)),
        ("Memory", human_bytes(memory.total)),
        ("Operations", "unknown" if plan.tokens is None else f"{flops * plan.tokens:.2g} FLOP"),
        ("Disk", human_bytes(needed)),
    ]
    return Diagnosis("recipe", name, tuple(findings), tuple(headline), tuple(tables), samples=samples, figures=figures)


def _probe(material: Material, compute: Compute, limit_s: float, most_sequences: int) -> SpeedProbe:
    with Progress("measuring speed", unit="steps") as progress:
        return probe_speed(
            material.settings,
            material.module().to(compute.device),
            material.objective,
            material.batches,
            compute,
            limit_s=limit_s,
            most_sequences=most_sequences,
            advance=progress.advance,
        )


def _check_probe(probe: SpeedProbe) -> Finding:
    told = _steadiness(probe)
    if len(probe.steps_s) < 3 or probe.spread > 0.5:
        advice = (
            "other work on this machine slows it down now and then: the time told is rough, measure again when idle"
        )
        return Finding("unsteady-speed", "note", told, advice)
    return Finding("speed", "good", told)


def _steadiness(probe: SpeedProbe) -> str:
    if len(probe.steps_s) == 1:
        return "one step could be measured, so nothing is known of the spread"
    return f"{len(probe.steps_s)} measured steps lie within {probe.spread:.0%} of the median"


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
        free.append(int(most) - int(used.read_text()))
    return min(free)


# ---- Tables


def parameters_table(parameters: dict[str, int], sizes: EncoderSettings) -> Table:
    total = sum(parameters.values())
    width, heads, inner = f"{sizes.hidden_size:,}", sizes.num_attention_heads, f"{sizes.intermediate_size:,}"
    about = {
        "embeddings": f"{sizes.vocab_size:,} entries and {sizes.max_position_embeddings:,} positions of {width}",
        "blocks": f"{sizes.num_hidden_layers} of {width}, {heads} heads, feed-forward {inner}",
        "heads": "used in pre-training; the decoder is the word embeddings",
    }
    rows = [(part, f"{count:,}", f"{count / total:.1%}", about[part]) for part, count in parameters.items()]
    return Table(
        "Parameters",
        (*rows, ("in all", f"{total:,}", human_count(total), "")),
        ("part", "parameters", "", "what it is"),
    )


def disk_table(num_parameters: int, keep_last: int, text: Text | None) -> Table:
    """What takes disk: the store that is there, checkpoints, the model."""
    rows = []
    if text is not None:
        size = sum(file["bytes"] for file in text.store.manifest["files"].values())
        rows.append(("store", f"{human_bytes(size)}: {text.store.num_tokens:,} tokens of 2 bytes, and offsets"))
    one = human_bytes(checkpoint_bytes(num_parameters))
    rows += [
        ("checkpoints", f"{keep_last} kept and one being written, {one} each"),
        ("run in all", human_bytes(run_bytes(num_parameters, keep_last))),
    ]
    note = (
        ""
        if text is not None
        else "A store takes 2 bytes a token (4 from 65,537 entries on), 4 a sentence, 8 a document."
    )
    return Table("Disk", tuple(rows), note=note)


def probe_table(probe: SpeedProbe, tokens_per_step: float, flops: float, compute: Compute) -> Table:
    """What was measured, and what a whole step is taken to need."""
    rate = tokens_per_step / probe.seconds_for(tokens_per_step)
    rows = [
        ("machine", compute.describe()),
        ("measured", f"{len(probe.steps_s)} step(s) of {probe.sequences:,} sequences, {probe.tokens:,.0f} tokens"),
        ("a step of these", f"{human_duration(probe.step_s)}, the median; {_steadiness(probe)}"),
        ("optimizer in it", human_duration(probe.optimizer_s)),
        ("a step of the recipe", human_duration(probe.seconds_for(tokens_per_step))),
        ("speed", f"{human_count(rate)} tokens/s, {human_count(rate * flops)} FLOP/s"),
    ]
    note = "Evaluations and saving are not in it."
    if probe.tokens < tokens_per_step / 2:
        note += " Fewer sequences than those of a step were measured: with all of them it may go faster."
    return Table("Measured speed", tuple(rows), note=note)


def probe_figures(probe: SpeedProbe, tokens_per_step: float) -> dict[str, float]:
    step_s = probe.seconds_for(tokens_per_step)
    return {
        "sequences": probe.sequences,
        "steps": len(probe.steps_s),
        "spread": probe.spread,
        "step_s": step_s,
        "tokens_per_s": tokens_per_step / step_s,
    }
