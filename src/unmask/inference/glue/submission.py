"""A submission to GLUE: eleven tables of predictions in one .zip, made from fine-tuned runs, and checked.

Wang et al. 2019; names, header, number of rows and labels are those that the server at gluebenchmark.com accepts. AX,
the diagnostic set, is answered by MNLI's model. The server requires all eleven, even WNLI, which may have no model.
"""

from __future__ import annotations

import io
import logging
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from unmask.config import read_settings_file
from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference.glue.runs import first_model, runs_by_task
from unmask.inference.predictor import predict_file
from unmask.io.encodings import read_utf8_lines
from unmask.io.paths import RECIPE
from unmask.io.reading import open_input
from unmask.io.writing import as_output_error, refuse_existing, refuse_inputs_inside, writing
from unmask.models.hub.files import read_config
from unmask.tasks.text.data_sets import INFERENCE_LABELS

logger = logging.getLogger("unmask")

HEADER = "index\tprediction"


@dataclass(frozen=True)
class SubmissionTable:
    """One table of a submission.

    Attributes:
        task: the task of the model that answers it.
        rows: how many rows GLUE's test file has.
        folders: names of the folder with GLUE's test file, in lower case; published downloads differ.
        test_files: possible names of the test file; the first that exists is taken.
        labels: those that may be predicted; none where a number from 0 to 5 is.
    """

    task: str
    rows: int
    folders: tuple[str, ...]
    test_files: tuple[str, ...] = ("test.tsv",)
    labels: tuple[str, ...] = ("0", "1")


LOWEST, HIGHEST = 0.0, 5.0
"""The bounds of STS-B's values; predictions beyond them are clipped."""

_ENTAILMENT = ("entailment", "not_entailment")

TABLES: dict[str, SubmissionTable] = {
    "CoLA.tsv": SubmissionTable("cola", 1_063, ("cola",)),
    "SST-2.tsv": SubmissionTable("sst2", 1_821, ("sst-2", "sst2")),
    "MRPC.tsv": SubmissionTable("mrpc", 1_725, ("mrpc",)),
    "STS-B.tsv": SubmissionTable("stsb", 1_379, ("sts-b", "stsb"), labels=()),
    "QQP.tsv": SubmissionTable("qqp", 390_965, ("qqp",)),
    "MNLI-m.tsv": SubmissionTable("mnli", 9_796, ("mnli",), ("test_matched.tsv",), INFERENCE_LABELS),
    "MNLI-mm.tsv": SubmissionTable("mnli", 9_847, ("mnli",), ("test_mismatched.tsv",), INFERENCE_LABELS),
    "QNLI.tsv": SubmissionTable("qnli", 5_463, ("qnli",), labels=_ENTAILMENT),
    "RTE.tsv": SubmissionTable("rte", 3_000, ("rte",), labels=_ENTAILMENT),
    "WNLI.tsv": SubmissionTable("wnli", 146, ("wnli",)),
    "AX.tsv": SubmissionTable(
        "mnli", 1_104, ("ax", "diagnostic", "glue-diagnostic"), ("AX.tsv", "diagnostic.tsv"), INFERENCE_LABELS
    ),
}
"""The tables by file name, in the order in which they are written."""

_WNLI, _MAJORITY = "WNLI.tsv", "0"
"""The table that needs no model, and the more frequent label of its training file, above which models hardly come."""


@dataclass(frozen=True)
class SubmissionSummary:
    """What a submission contains.

    Attributes:
        path: the .zip.
        predictions: by file name: how often each label (for STS-B, each value) is predicted.
        missing: files that were left out.
    """

    path: Path
    predictions: Mapping[str, Mapping[str, int]]
    missing: tuple[str, ...] = ()

    def warn(self) -> None:
        """Warns of each task whose inputs all get the same answer, but WNLI's majority, which is the best there."""
        for name, counts in self.predictions.items():
            if len(counts) == 1 and (name, *counts) != (_WNLI, _MAJORITY):
                logger.warning(
                    "%s: the answer is %s in all %s rows: the model of %s has learned nothing; try another seed, a "
                    "lower learning rate or more epochs",
                    *(name, next(iter(counts)), f"{sum(counts.values()):,}", TABLES[name].task),
                )

    def describe(self) -> str:
        """A line for each file; the values of STS-B are rounded."""
        lines = []
        for name, counts in self.predictions.items():
            classes: Counter[str] = Counter()
            for answer, count in counts.items():
                classes[answer if TABLES[name].labels else f"{float(answer):.0f}"] += count
            shares = ", ".join(f"{label}: {count / classes.total():.0%}" for label, count in sorted(classes.items()))
            lines.append(f"{name:<12} {classes.total():>9,}   {shares}")
        left_out = f", without {', '.join(self.missing)}" if self.missing else ""
        return "\n".join([f"{self.path}: {len(self.predictions)} files{left_out}", *lines])


def submit(
    runs: Sequence[Path], out: Path, *, data: Path | None = None, allow_missing: bool = False, overwrite: bool = False
) -> SubmissionSummary:
    """Answers GLUE's test files with one fine-tuned run per task. Where WNLI alone has none, its table has the majority
    of its training file in every row, with a warning.

    Args:
        runs: their directories, those of their models, or of ensembles; each model's `config.json` names its task.
        out: the .zip; the same predictions make the same bytes.
        data: the folder with GLUE's folders (`CoLA/test.tsv`, `MNLI/test_matched.tsv`, `AX/AX.tsv` ...). None looks
            beside each run's training file, and in the sibling folders.
        allow_missing: True leaves out the files of tasks that have no run or no test file, with a warning.
        overwrite: True replaces an existing file.

    Raises:
        SettingsError: another task has no run, or one has two; or a run is not for a GLUE task.
        ModelError: a model does not load, or answers with other labels than GLUE's.
        InputError: a test file is missing, with `allow_missing` every one, or is not GLUE's.
        OutputError: the file exists already, or cannot be written.
    """
    refuse_existing(out, overwrite)
    by_task = runs_by_task(runs, dict.fromkeys(table.task for table in TABLES.values()))
    missing = tuple(name for name, table in TABLES.items() if table.task not in by_task)
    if by_majority := missing == (_WNLI,):
        missing = ()
    if missing and not allow_missing:
        tasks = dict.fromkeys(TABLES[name].task for name in missing)
        raise SettingsError(
            f"no run for {', '.join(tasks)}: GLUE's server wants all eleven files, and {', '.join(missing)} would be "
            "missing; fine-tune them, or leave them out with --allow-missing"
        )
    present = {name: table for name, table in TABLES.items() if table.task in by_task}
    if not present:
        raise SettingsError("no run for any task of GLUE: give at least one")
    for name, table in present.items():
        _check_labels(by_task[table.task], name, table)
    test_files: dict[str, Path] = {}
    absent: list[_AbsentError] = []
    for name, table in present.items():
        try:
            test_files[name] = _find_test_file(by_task[table.task], data, name, table)
        except _AbsentError as error:
            absent.append(error)
    if absent and not (allow_missing and test_files):
        raise absent[0]
    refuse_inputs_inside(out, test_files.values())
    for name, test_file in test_files.items():
        _check_test_file(test_file, name, TABLES[name])
    missing = tuple(name for name in TABLES if name not in test_files and not (by_majority and name == _WNLI))
    for reason in absent:
        logger.warning("%s", reason)
    if missing:
        logger.warning("%s left out: GLUE's server takes a submission with all eleven files only", ", ".join(missing))
    if by_majority:
        logger.warning(
            "no run for wnli: %s says %s (not_entailment) in all %s rows, the more frequent label of its training "
            "file, as in BERT's submission (Devlin et al. 2019, appendix B.1)",
            *(_WNLI, _MAJORITY, TABLES[_WNLI].rows),
        )
    with as_output_error(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    counts: dict[str, Counter[str]] = {}
    with writing(out, overwrite) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, table in TABLES.items():
            if by_majority and name == _WNLI:
                counts[name] = _write_table(archive, name, [_MAJORITY] * table.rows)
            if name not in test_files:
                continue
            test_file = test_files[name]
            run = by_task[table.task]
            logger.info("%s: %s rows of %s", name, f"{table.rows:,}", test_file)
            answers = _answers(run, name, table, predict_file(run, test_file))
            counts[name] = _write_table(archive, name, answers)
            if counts[name].total() != table.rows:
                raise InputError(
                    f"{test_file}: {counts[name].total():,} predictions for {table.rows:,} rows: some of its lines are "
                    "read as one; get the file again from where it came"
                )
    summary = SubmissionSummary(out, counts, missing)
    summary.warn()
    return summary


def _check_labels(run: Path, name: str, table: SubmissionTable) -> None:
    """Refuses a model that would answer with labels other than GLUE's."""
    labels = read_config(first_model(run)).get("id2label")
    if not isinstance(labels, dict):
        return  # the answers will show
    if not table.labels and len(labels) > 1:
        raise ModelError(
            f"{run}: a model that chooses among {len(labels)} labels; expected one number from 0 to 5 for {name}"
        )
    if table.labels and set(map(str, labels.values())) != set(table.labels):
        raise ModelError(
            f"{run}: its labels are {', '.join(map(str, labels.values()))}; expected {', '.join(table.labels)} for "
            f"{name}: fine-tune with these labels in the data, or fix id2label of its config.json where you know what "
            "its numbers mean"
        )


class _AbsentError(InputError):
    """A test file is nowhere."""


def _find_test_file(run: Path, data: Path | None, name: str, table: SubmissionTable) -> Path:
    """GLUE's test file for a table: under `data`, or near the run's training file."""
    if data is not None:
        folders = folders_of(data, table)
    else:
        beside = _training_folder(run, name)
        folders = [beside, *folders_of(beside.parent, table)]
    for folder in folders:
        for test_file in table.test_files:
            if (folder / test_file).is_file():
                return folder / test_file
    wanted = f"{table.folders[0]}/{table.test_files[0]}"
    if data is not None:
        raise _AbsentError(f"{data}: no {wanted} in it: expected GLUE's folders as they are published, for {name}")
    raise _AbsentError(
        f"{folders[0]}, where {run} has its training file, has no {' or '.join(table.test_files)}, nor have folders "
        f"beside it: name the folder that has {wanted} with --data"
    )


def folders_of(parent: Path, table: SubmissionTable) -> list[Path]:
    """The folders in `parent` that may hold a table's files, in the order of `table.folders`."""
    if not parent.is_dir():
        return []
    named = {folder.name.lower(): folder for folder in sorted(parent.iterdir()) if folder.is_dir()}
    return [named[name] for name in table.folders if name in named]


def _training_folder(run: Path, name: str) -> Path:
    """Where the training file of a run is, by its recipe."""
    for directory in (run, first_model(run).parent):
        if (directory / RECIPE).is_file():
            data = read_settings_file(directory / RECIPE).get("data")
            if isinstance(data, dict) and isinstance(data.get("train"), str):
                return Path(data["train"]).parent
    raise InputError(f"{run}: no recipe.yaml that says where its data are: name GLUE's folder with --data, for {name}")


def _check_test_file(path: Path, name: str, table: SubmissionTable) -> None:
    """Refuses a file that does not have GLUE's rows, numbered from 0 in order, before any model is run."""
    rows = 0
    is_numbered = False
    with open_input(path) as file:
        for number, line in read_utf8_lines(file, path):
            first = line.rstrip("\r\n").split("\t", 1)[0]
            if number == 1:
                is_numbered = first in ("index", "id")
            elif line.strip("\r\n"):
                if is_numbered and first != str(rows):
                    raise InputError(
                        f"{path}:{number}: the index is {first[:20]!r}; expected {rows}: GLUE's test files are "
                        "numbered from 0, and their order is kept; get the file again"
                    )
                rows += 1
    if rows != table.rows:
        raise InputError(
            f"{path}: {rows:,} rows; expected the {table.rows:,} of GLUE's test file for {name}: get the file again"
        )


def _answers(run: Path, name: str, table: SubmissionTable, predictions: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """The table's text for each prediction."""
    for prediction in predictions:
        if table.labels:
            label = prediction.get("label")
            if label not in table.labels:
                raise ModelError(f"{run}: it answers {label!r}; expected {' or '.join(table.labels)} for {name}")
            yield label
        else:
            value = prediction.get("value")
            if not isinstance(value, float | int) or not math.isfinite(value):
                raise ModelError(f"{run}: it answers {value!r}; expected a number from 0 to 5 for {name}")
            yield f"{min(max(LOWEST, value), HIGHEST):.6f}"


def _write_table(archive: zipfile.ZipFile, name: str, answers: Iterable[str]) -> Counter[str]:
    """Writes a table, and counts what is in it."""
    entry = zipfile.ZipInfo(name)  # dated 1980, so that the same predictions make the same bytes
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    counts: Counter[str] = Counter()
    with io.TextIOWrapper(archive.open(entry, "w"), encoding="utf-8", newline="\n") as file:
        file.write(f"{HEADER}\n")
        for index, answer in enumerate(answers):
            file.write(f"{index}\t{answer}\n")
            counts[answer] += 1
    return counts


def validate(path: Path) -> SubmissionSummary:
    """Reads a submission as GLUE's server would, whoever made it.

    Raises:
        InputError: it is not a .zip; a file is missing, doubled, in a folder, or not one of the eleven; or a file has a
            wrong encoding, line end, header, number or order of rows, label or value. The message has one line for each
            faulty file, with its first fault.
    """
    faults: list[str] = []
    counts: dict[str, Counter[str]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in dict.fromkeys(names):
                if name not in TABLES:
                    where = "in a folder" if "/" in name else "none of the eleven"
                    faults.append(f"{name}: {where}; expected {', '.join(TABLES)} and nothing else")
                elif names.count(name) > 1:
                    faults.append(f"{name}: {names.count(name)} times in the archive; expected once")
            faults += [f"{name}: missing; the server wants all eleven" for name in TABLES if name not in names]
            for name, table in TABLES.items():
                if names.count(name) == 1:
                    counts[name] = Counter()
                    with archive.open(name) as file:
                        faults += _first_fault(file, name, table, counts[name])
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): expected a submission to GLUE, a .zip") from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a .zip that can be read ({error}): make it again") from error
    if faults:
        raise InputError(f"{path}: GLUE's server would refuse it:\n" + "\n".join(f"  {fault}" for fault in faults))
    summary = SubmissionSummary(path, counts)
    summary.warn()
    return summary


LONGEST_LINE_BYTES = 1000
"""The most that is read as one line; a submission's lines have 30."""


def _first_fault(file: IO[bytes], name: str, table: SubmissionTable, counts: Counter[str]) -> list[str]:
    """The first thing that is wrong in a table, or nothing."""
    rows = -1  # the header is not a row
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), start=1):
        fault = _fault_of_line(line, rows, table)
        if fault:
            return [f"{name}:{number}: {fault}"]
        if rows >= 0:
            counts[line.decode().rstrip("\n").split("\t")[1]] += 1
        rows += 1
    if rows < 0:
        return [f"{name}:1: empty; expected the header {HEADER!r}"]
    if rows < table.rows:
        return [f"{name}:{rows + 2}: the file ends after {rows:,} rows; expected {table.rows:,}"]
    return []


def _fault_of_line(line: bytes, row: int, table: SubmissionTable) -> str | None:
    """What is wrong with a line; `row` counts from 0, and is -1 for the header."""
    text = line.decode("utf-8", "backslashreplace").removesuffix("\n")
    index, _, answer = text.partition("\t")
    if row >= table.rows:
        return f"a row more than the {table.rows:,} of the test file"
    if row < 0:
        is_right, expected = text == HEADER, f"the header {HEADER!r}"
    elif table.labels:
        is_right, expected = answer in table.labels, f"{row}, a tab, and {' or '.join(table.labels)}"
    else:
        is_number = re.fullmatch(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", answer)
        is_right = is_number is not None and LOWEST <= float(answer) <= HIGHEST
        expected = f"{row}, a tab, and a number from 0 to 5"
    if is_right and (row < 0 or index == str(row)):
        return None
    return f"found {text[:40]!r}; expected {expected}, ended by a line feed alone"
