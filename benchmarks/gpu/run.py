"""Claim: on one Hopper GPU training, fine-tuning and inference use what the chip has: a step of BERT-Base at least 55 %
of the matrix products it could do, twice `transformers`' eager and 1.45 times its compiled rate.

base: BERT-Base, masked LM and next sentence, 65,536 real tokens a step at 128 and 512, AdamW, clipping; with dropout .1
(also in attention, on both sides) and without; memory, real lengths, the loader, the first step.
large, small: BERT-Large and L4 H512. objectives: replaced tokens, spans, left to right, beside plain masked LM.
finetune: the real command at batch 32 on the lengths of MRPC, SST-2 and SQuAD, tokenization and metrics included.
inference: `predict` and `features` from file to file beside `sentence-transformers`.

Weights are random, the text is made from `samples/`. Each side has the device to itself, in a process of its own, in
the same run. A share is necessary work (`work.py`) over the rate of a matrix product, 8192 x 8192 in bf16 on random
data, in the same run. Losses of both sides on one batch and the lengths of examples are compared too: the exit code is
1 if they differ, or if a side fails. A part ends by itself when its time is up, and lists what is left as not reached.
`--json FILE` adds a part's table to those in FILE, and writes all of them as Markdown beside it; with the `--work` of
an earlier run nothing is compiled or made anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # `benchmarks/`, where `measure` and this folder are found

from gpu.cases import NotReachedError, in_time, make_store
from gpu.parts import PARTS
from gpu.rows import FAILED, Run
from gpu.work import MATRIX_SIZE, matrix_rate
from measure import Row, machine, num_cores, parser, report

TITLE = "One GPU"
TOY_MATRIX = 256
CHECKED = ("nats", "examples")
"""Units of the rows that must hold at any speed: losses that agree, examples of the listed lengths."""
NOTES = (
    "share: necessary work of matrix products (heads at targets, blocks in full, backward twice the forward) over the "
    "matrix product's rate; losses: fp32 by the plain modules, bf16 by the first step that each side takes",
)


def look_at_device(device: str, size: int) -> tuple[float, dict[str, Any]]:
    """The rate of the matrix product, and a description of the machine; see `measure.machine`."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device; --toy --device cpu shows that everything runs")
    rate = matrix_rate(torch.device(device), size)
    told = machine(num_cores())
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        told |= {"gpu": f"{about.name}, {about.total_memory / 2**30:.0f} GiB", "cuda": torch.version.cuda}
    packages = {name: _version(name) for name in ("triton", "transformers", "sentence-transformers")}
    return rate, told | packages | {"matrix product": f"{rate / 1e12:.4g} TFLOP/s in bf16"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def merge(file: Path, part: str, rows: Sequence[Row], on: dict[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """Puts a part's rows into a file of tables, writes them as Markdown beside it, and returns all of them.

    A row takes the place of an earlier one of the same name and peer, unless that one has more figures.
    """
    from unmask.io.writing import write_json

    tables: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {"title": TITLE, "parts": {}}
    new = {_identity(row): row for row in map(asdict, rows)}
    old = {_identity(row): row for row in tables["parts"].get(part, {}).get("rows", [])}
    merged = {
        identity: row
        for identity, row in old.items()
        if _num_figures(row) or not any(name.startswith(identity[0]) for name, _ in new)
    }
    for identity, row in new.items():
        if _num_figures(row) >= _num_figures(merged.get(identity, row)):
            merged[identity] = row
    tables["parts"][part] = {"machine": on, "notes": list(notes), "rows": list(merged.values())}
    write_json(file, tables)
    file.with_suffix(".md").write_text(markdown(tables), "utf-8")
    return tables


def _identity(row: dict[str, Any]) -> tuple[str, str]:
    """What a row measures, without the reason why it failed, and its peer."""
    name = row["what"]
    for ending in (", not reached", ", not measured", f", {FAILED}"):
        name = name.partition(ending)[0]
    return name, row["peer"]


def _num_figures(row: dict[str, Any]) -> int:
    return (row["ours"] is not None) + (row["peer_figure"] is not None)


def markdown(tables: dict[str, Any]) -> str:
    """All tables as Markdown."""
    sections = [f"# {tables['title']}"]
    for part, table in tables["parts"].items():
        lines = ["| what | ours | peer | peer's | ratio | target | met |", "|---|---|---|---|---|---|---|"]
        for row in (Row(**entry) for entry in table["rows"]):
            cells = [
                row.what,
                _figure(row.ours, row.unit),
                row.peer,
                _figure(row.peer_figure, row.unit) if row.peer else "",
                "" if row.ratio is None else f"{row.ratio:.2f}x",
                row.target,
                "" if row.met is None else "yes" if row.met else "**no**",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        about = "; ".join(f"{name}: {value}" for name, value in table["machine"].items() if name != "instructions")
        sections += [f"## {part}", "\n".join(lines), "\n".join([about, *table["notes"]])]
    return "\n\n".join(sections) + "\n"


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:.4g} {unit}".strip()


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--part", choices=list(PARTS), required=True)
    words.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    words.add_argument("--toy", action="store_true", help="small models, for moments: shows that everything runs")
    words.add_argument("--minutes", type=float, default=8.5, help="after which nothing more is begun or waited for")
    words.add_argument("--work", type=Path, help="folder of weights, text and compiled code; a temporary one else")
    given = words.parse_args()
    deadline = time.monotonic() + 60 * given.minutes
    with ExitStack() as stack:
        folder = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        return measure_part(given, folder.resolve(), deadline)


def measure_part(given: argparse.Namespace, folder: Path, deadline: float) -> int:
    """Measures a part, and prints and writes its table."""
    for name, cache in (("TORCHINDUCTOR_CACHE_DIR", "compiled"), ("TRITON_CACHE_DIR", "triton")):
        os.environ[name] = str(folder / cache)
    size = TOY_MATRIX if given.toy else MATRIX_SIZE
    try:
        rate, on = in_time(deadline, look_at_device, given.device, size)
    except NotReachedError:
        print(f"{given.minutes} minutes are not enough to begin: give more as --minutes", file=sys.stderr)
        return 1
    except RuntimeError as error:  # with a traceback, whose last line names the error
        print(str(error).strip().splitlines()[-1].removeprefix("RuntimeError: "), file=sys.stderr)
        return 1
    make_store(folder)
    rows: list[Row] = []
    run = Run(folder, given.device, given.toy, deadline, rate)
    for row in PARTS[given.part](run):
        print(f"  {row.what}: {_figure(row.ours, row.unit)}", file=sys.stderr, flush=True)
        rows.append(row)
        if given.json is not None:  # at once: if this run is ended early, its figures are kept
            merge(given.json, given.part, rows, on, [*NOTES, *run.notes])
    report(f"{TITLE}: {given.part}", rows, on, [*NOTES, *run.notes], None)
    has_failed = any(FAILED in row.what or (row.unit in CHECKED and row.met is False) for row in rows)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
