"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Callable

from unmask.doctor.findings import FigureTable
from unmask.experiments.plan.costs import RunCost
from unmask.experiments.plan.program import Plan
from unmask.io.progress import human_bytes, human_count, human_duration

_UNKNOWN = "not known"


def plan_tables(plan: Plan) -> list[FigureTable]:
    """The run, its cost by number of devices, where the figures come from, and what was measured."""
    tables = [_run_table(plan), _cost_table(plan)]
    tables.append(FigureTable("Where the figures come from", tuple(plan.figures.items())))
    if plan.notes:
        tables.append(FigureTable("Notes", tuple(("-", note) for note in plan.notes)))
    if plan.measured is not None:
        tables.append(
            FigureTable(
                "A step on this machine, one process",
                (
                    ("planned", _seconds(plan.measured.planned_s)),
                    ("measured", f"{_seconds(plan.measured.step_s)}; {plan.measured.steadiness}"),
                    (
                        "the plan is",
                        f"{abs(plan.measured.off):.0%} {'longer' if plan.measured.off >= 0 else 'shorter'}",
                    ),
                ),
            )
        )
    return tables


def _run_table(plan: Plan) -> FigureTable:
    columns = ("sequences of", "share", "a step", "tokens", "operations")
    rows = tuple(
        (
            f"{phase.max_length:,} tokens",
            f"{phase.share:.0%}",
            f"{phase.batch_size:,} sequences",
            f"{phase.tokens:,.0f}",
            f"{phase.tokens * phase.operations:.3g} FLOP",
        )
        for phase in plan.workload.phases
    )
    title = (
        f"{plan.workload.name}: {human_count(plan.workload.num_parameters)} parameters, {plan.workload.precision}, on "
        f"{plan.device.title}"
    )
    return FigureTable(title, rows, columns)


_ROWS: dict[str, Callable[[RunCost], str]] = {
    "time": lambda cost: _UNKNOWN if cost.seconds is None else human_duration(cost.seconds),
    "steps": lambda cost: _UNKNOWN if cost.steps is None else f"{cost.steps:,.0f}",
    "tokens": lambda cost: _UNKNOWN if cost.tokens is None else human_count(cost.tokens),
    "a step, the mean": lambda cost: _seconds(cost.step.total),
    "  computing": lambda cost: _seconds(cost.step.computing),
    "  adding up gradients": lambda cost: _seconds(cost.step.reducing),
    "  updating weights": lambda cost: _seconds(cost.step.updating),
    "sent by a device, a step": lambda cost: human_bytes(cost.sent_bytes),
    "efficiency": lambda cost: f"{cost.efficiency:.1%}",
    "  with overlap": lambda cost: f"{cost.efficiency_hidden:.1%}",
    "memory of a device": lambda cost: human_bytes(cost.memory_bytes),
    "  sequences at once": lambda cost: f"{cost.sequences_at_once:,}",
    "energy": lambda cost: _UNKNOWN if cost.energy_kwh is None else f"{cost.energy_kwh:,.1f} kWh",
}


def _cost_table(plan: Plan) -> FigureTable:
    rows = [(name, *(_over(plan, cost, name) + show(cost) for cost in plan.costs)) for name, show in _ROWS.items()]
    rows.append(("disk", *(human_bytes(plan.workload.disk_bytes) for _ in plan.costs)))
    note = "Evaluating, saving and starting are not in it. Energy is of the boards at their limit, without their hosts."
    return FigureTable("On so many devices", tuple(rows), ("", *(f"{cost.devices:,}" for cost in plan.costs)), note)


def _over(plan: Plan, cost: RunCost, name: str) -> str:
    is_more = cost.devices in plan.longer_on and cost.seconds is not None
    return "over " if is_more and name in ("time", "energy") else ""


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else "0" if seconds == 0 else f"{seconds:.3g} s"
