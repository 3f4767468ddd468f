"""GLUE's test files and runs on its tasks, with little in them, and a stub in the place of their models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unmask.inference.glue.submission import TABLES

FOLDERS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX")
"""As in GLUE's download."""

LABELS = {
    **dict.fromkeys(("cola", "sst2", "mrpc", "qqp", "wnli"), ("0", "1")),
    **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")),
    "mnli": ("contradiction", "entailment", "neutral"),
    "stsb": ("LABEL_0",),
}
HEADERS = {"QQP.tsv": "id\tquestion1\tquestion2", "CoLA.tsv": "index\tsentence"}
VALUES = (-1.0, -0.0, 2.5, 4.999999, 5.0, 7.25)


def write_test_files(parent: Path, rows: Mapping[str, int]) -> Path:
    for name, count in rows.items():
        table = TABLES[name]
        folder = next(folder for folder in FOLDERS if folder.lower() in table.folders)
        (parent / folder).mkdir(exist_ok=True)
        with open(parent / folder / table.test_files[0], "w", encoding="utf-8") as file:
            file.write(HEADERS.get(name, "index\tsentence1\tsentence2") + "\n")
            file.writelines(f"{index}\ta\tb\n" for index in range(count))
    return parent


def write_finetuned(parent: Path, task: str, data: Path | None = None, **changes: object) -> Path:
    """What `unmask finetune` leaves, without the weights."""
    run = parent / f"run-{task}"
    (run / "model").mkdir(parents=True)
    config = {"unmask_task": {"name": task}, "id2label": dict(enumerate(LABELS.get(task, ("a", "b")))), **changes}
    (run / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    if data is not None:
        train = data / next(folder for folder in FOLDERS if folder.lower().replace("-", "") == task) / "train.tsv"
        (run / "recipe.yaml").write_text(f"task:\n  name: {task}\ndata:\n  train: {train}\n", "utf-8")
    return run


def write_all_finetuned(parent: Path, data: Path | None = None) -> list[Path]:
    return [write_finetuned(parent, task, data) for task in LABELS]


def answer_in_turn(run: Path, path: Path) -> Iterator[dict[str, Any]]:
    """Answers the rows of a file with each label (or value) in turn."""
    task = run.name.removeprefix("run-")
    rows = len(path.read_bytes().splitlines()) - 1
    for index in range(rows):
        if task == "stsb":
            yield {"input": {}, "value": VALUES[index % len(VALUES)]}
        else:
            yield {"input": {}, "label": LABELS[task][index % len(LABELS[task])], "score": 0.9}
