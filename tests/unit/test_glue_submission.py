"""Submissions to GLUE: made from runs by a stub in the models' place, and checked line by line."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.errors import InputError, ModelError, OutputError, SettingsError
from unmask.glue_submission import TABLES, submit, validate

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


@pytest.fixture(scope="module")
def full_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's test files, with all their rows, and nothing in them."""
    return write_data(tmp_path_factory.mktemp("glue"), {name: table.rows for name, table in TABLES.items()})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """GLUE as it would be with few rows, so that many submissions can be made; the rows of each file."""
    rows = {name: 4 + number for number, name in enumerate(TABLES)}
    for name, count in rows.items():
        monkeypatch.setitem(TABLES, name, replace(TABLES[name], rows=count))
    return rows


def write_data(parent: Path, rows: Mapping[str, int]) -> Path:
    for name, count in rows.items():
        table = TABLES[name]
        folder = next(folder for folder in FOLDERS if folder.lower() in table.folders)
        (parent / folder).mkdir(exist_ok=True)
        with open(parent / folder / table.test_files[0], "w", encoding="utf-8") as file:
            file.write(HEADERS.get(name, "index\tsentence1\tsentence2") + "\n")
            file.writelines(f"{index}\ta\tb\n" for index in range(count))
    return parent


def write_run(parent: Path, task: str, data: Path | None = None, **changes: object) -> Path:
    """What `unmask finetune` leaves, without the weights."""
    run = parent / f"run-{task}"
    (run / "model").mkdir(parents=True)
    config = {"unmask_task": {"name": task}, "id2label": dict(enumerate(LABELS.get(task, ("a", "b")))), **changes}
    (run / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    if data is not None:
        train = data / next(folder for folder in FOLDERS if folder.lower().replace("-", "") == task) / "train.tsv"
        (run / "recipe.yaml").write_text(f"task:\n  name: {task}\ndata:\n  train: {train}\n", "utf-8")
    return run


def write_runs(parent: Path, data: Path | None = None) -> list[Path]:
    return [write_run(parent, task, data) for task in LABELS]


def stub(run: Path, path: Path) -> Iterator[dict[str, Any]]:
    """Answers the rows of a file with each label (or value) in turn."""
    task = run.name.removeprefix("run-")
    rows = len(path.read_bytes().splitlines()) - 1
    for index in range(rows):
        if task == "stsb":
            yield {"input": {}, "value": VALUES[index % len(VALUES)]}
        else:
            yield {"input": {}, "label": LABELS[task][index % len(LABELS[task])], "score": 0.9}


def read_tables(path: Path) -> dict[str, list[list[str]]]:
    with zipfile.ZipFile(path) as archive:
        return {
            name: [line.split("\t") for line in archive.read(name).decode("utf-8").splitlines()]
            for name in archive.namelist()
        }


def test_all_eleven_with_all_their_rows(tmp_path: Path, full_data: Path) -> None:
    out = tmp_path / "made" / "glue.zip"
    summary = submit(write_runs(tmp_path), out, data=full_data, predict=stub)
    tables = read_tables(out)
    assert {name: len(rows) - 1 for name, rows in tables.items()} == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }
    for name, rows in tables.items():
        assert rows[0] == ["index", "prediction"]
        assert [row[0] for row in rows[1:]] == [str(index) for index in range(TABLES[name].rows)]
    assert [row[1] for row in tables["RTE.tsv"][1:4]] == ["entailment", "not_entailment", "entailment"]
    assert [row[1] for row in tables["AX.tsv"][1:4]] == ["contradiction", "entailment", "neutral"]
    assert [float(row[1]) for row in tables["STS-B.tsv"][1:7]] == [0, 0, 2.5, 4.999999, 5, 5]
    assert [row[1] for row in tables["QQP.tsv"][1:4]] == ["0", "1", "0"]
    assert validate(out).predictions == summary.predictions
    assert summary.predictions["QQP.tsv"] == {"0": 195483, "1": 195482}
    assert "QQP.tsv        390,965   0: 50%, 1: 50%" in summary.describe()


def test_the_same_predictions_make_the_same_bytes(tmp_path: Path, small: dict[str, int]) -> None:
    data, runs = write_data(tmp_path, small), write_runs(tmp_path)
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    submit(runs, first, data=data, predict=stub)
    submit(runs[::-1], second, data=data, predict=stub)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("names", [{"SST-2": "sst2", "STS-B": "stsb", "AX": "glue-diagnostic"}, {"AX": "diagnostic"}])
def test_folders_as_others_name_them(tmp_path: Path, small: dict[str, int], names: dict[str, str]) -> None:
    data = write_data(tmp_path, small)
    (data / "AX" / "AX.tsv").rename(data / "AX" / "diagnostic.tsv")
    for folder in FOLDERS:
        (data / folder).rename(data / f"{folder}-aside")
        (data / f"{folder}-aside").rename(data / names.get(folder, folder.lower()))
    submit(write_runs(tmp_path), tmp_path / "glue.zip", data=data, predict=stub)
    validate(tmp_path / "glue.zip")


def test_test_files_are_looked_for_beside_the_training_files(tmp_path: Path, small: dict[str, int]) -> None:
    data = write_data(tmp_path, small)
    asked: list[Path] = []

    def noting(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        asked.append(path)
        return stub(run, path)

    submit(write_runs(tmp_path, data), tmp_path / "glue.zip", predict=noting)
    assert asked[-1] == data / "AX" / "AX.tsv"
    assert asked[5:7] == [data / "MNLI" / "test_matched.tsv", data / "MNLI" / "test_mismatched.tsv"]
    models = [tmp_path / f"run-{task}" / "model" for task in LABELS]  # a run's model will do as well
    submit(models, tmp_path / "again.zip", predict=lambda model, path: stub(model.parent, path))
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "glue.zip").read_bytes()


def test_an_ensemble_answers_as_a_run_does(tmp_path: Path, small: dict[str, int]) -> None:
    data = write_data(tmp_path, small)
    member = write_run(tmp_path / "members", "rte", data)
    ensemble = tmp_path / "run-rte"
    ensemble.mkdir()
    (ensemble / "ensemble.json").write_text('{"members": ["../members/run-rte/model"]}', "utf-8")
    summary = submit([ensemble], tmp_path / "glue.zip", allow_missing=True, predict=stub)
    assert list(summary.predictions) == ["RTE.tsv"]
    with pytest.raises(SettingsError, match="run-rte are both for rte: name one of them, or make an ensemble"):
        submit([member, ensemble], tmp_path / "other.zip", data=data, allow_missing=True, predict=stub)


def test_a_missing_run_is_refused_or_left_out(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    data = write_data(tmp_path, small)
    runs = [run for run in write_runs(tmp_path) if run.name not in ("run-mnli", "run-wnli")]
    out = tmp_path / "glue.zip"
    message = r"no run for mnli, wnli: .* all eleven files, and MNLI-m.tsv, MNLI-mm.tsv, WNLI.tsv, AX.tsv would be"
    with pytest.raises(SettingsError, match=message):
        submit(runs, out, data=data, predict=stub)
    assert not out.exists()
    with caplog.at_level(logging.WARNING, "unmask"):
        summary = submit(runs, out, data=data, allow_missing=True, predict=stub)
    assert summary.missing == ("MNLI-m.tsv", "MNLI-mm.tsv", "WNLI.tsv", "AX.tsv")
    assert "MNLI-m.tsv, MNLI-mm.tsv, WNLI.tsv, AX.tsv left out: GLUE's server takes" in caplog.text
    assert "7 files, without MNLI-m.tsv" in summary.describe()
    with pytest.raises(InputError, match=r"WNLI.tsv: missing; the server wants all eleven"):
        validate(out)


@pytest.mark.parametrize(
    ("task", "changes", "error", "message"),
    [
        (
            "mnli",
            {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}},
            ModelError,
            "its labels are LABEL_0, ",
        ),
        ("rte", {"id2label": {"0": "0", "1": "1"}}, ModelError, "expected entailment, not_entailment for RTE.tsv"),
        ("cola", {"id2label": {"0": "0", "1": "1", "2": "2"}}, ModelError, "its labels are 0, 1, 2"),
        ("stsb", {"id2label": {"0": "0", "1": "1"}}, ModelError, "chooses among 2 labels; expected one number"),
        ("snli", {}, SettingsError, "fine-tuned for 'snli' .*; expected a run of cola, sst2, "),
        ("ax", {}, SettingsError, "fine-tuned for 'ax'"),
        ("rte", {"unmask_task": None}, SettingsError, "its config.json names no task"),
    ],
)
def test_runs_that_cannot_answer(
    tmp_path: Path, small: dict[str, int], task: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    data = write_data(tmp_path, small)

    def never(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        pytest.fail("a model was asked, and only then refused")

    with pytest.raises(error, match=message):
        submit(
            [write_run(tmp_path, task, **changes)], tmp_path / "glue.zip", data=data, allow_missing=True, predict=never
        )
    assert not (tmp_path / "glue.zip").exists()


@pytest.mark.parametrize(
    ("task", "answer", "message"),
    [
        ("rte", {"label": "LABEL_1"}, "it answers 'LABEL_1'; expected entailment or not_entailment for RTE.tsv"),
        ("rte", {"value": 1.0}, "it answers None; expected entailment or"),
        ("stsb", {"label": "1"}, "it answers None; expected a number from 0 to 5 for STS-B.tsv"),
        ("stsb", {"value": float("nan")}, "it answers nan; expected a number"),
    ],
)
def test_answers_that_glue_does_not_take(
    tmp_path: Path, small: dict[str, int], task: str, answer: dict[str, Any], message: str
) -> None:
    """A model without `id2label` is found out by its first answer, and nothing is left behind."""
    data = write_data(tmp_path, small)
    run = write_run(tmp_path, task, id2label=None)
    before = set(tmp_path.iterdir())
    with pytest.raises(ModelError, match=message):
        submit([run], tmp_path / "glue.zip", data=data, allow_missing=True, predict=lambda *_: iter([answer]))
    assert set(tmp_path.iterdir()) == before


def test_fewer_answers_than_rows_are_told(tmp_path: Path, small: dict[str, int]) -> None:
    data = write_data(tmp_path, small)
    with pytest.raises(InputError, match=r"test.tsv: 1 predictions for 12 rows: some of its lines are read as one"):
        submit(
            [write_run(tmp_path, "rte")],
            tmp_path / "glue.zip",
            data=data,
            allow_missing=True,
            predict=lambda *_: iter([{"label": "entailment"}]),
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tsentence1\tsentence2\n0\ta\tb\n", "test.tsv: 1 rows; expected the 12 of GLUE's test file for RTE.tsv"),
        ("index\tsentence1\tsentence2\n0\ta\tb\n2\ta\tb\n", "test.tsv:3: the index is '2'; expected 1"),
        ("index\tsentence1\tsentence2\n1\ta\tb\n", "test.tsv:2: the index is '1'; expected 0"),
        ("", "test.tsv: 0 rows"),
    ],
)
def test_other_test_files_are_refused_before_a_model_is_asked(
    tmp_path: Path, small: dict[str, int], content: str, message: str
) -> None:
    data = write_data(tmp_path, small)
    (data / "RTE" / "test.tsv").write_text(content, "utf-8")
    with pytest.raises(InputError, match=message):
        submit([write_run(tmp_path, "rte")], tmp_path / "glue.zip", data=data, allow_missing=True, predict=stub)


def test_a_byte_order_mark_and_empty_lines_are_no_rows(tmp_path: Path, small: dict[str, int]) -> None:
    """MRPC's test file begins with one."""
    data = write_data(tmp_path, small)
    path = data / "RTE" / "test.tsv"
    path.write_text("\ufeff" + path.read_text("utf-8").replace("\n", "\r\n") + "\r\n", "utf-8")

    def answer(run: Path, _: Path) -> Iterator[dict[str, Any]]:
        return iter([{"label": "entailment"}] * small["RTE.tsv"])

    submit([write_run(tmp_path, "rte")], tmp_path / "glue.zip", data=data, allow_missing=True, predict=answer)


def test_missing_test_files_are_named(tmp_path: Path, small: dict[str, int]) -> None:
    run = write_run(tmp_path, "mnli", tmp_path)
    out = tmp_path / "glue.zip"
    with pytest.raises(InputError, match=r"no mnli/test_matched.tsv in it: expected GLUE's folders"):
        submit([run], out, data=tmp_path / "elsewhere", allow_missing=True, predict=stub)
    with pytest.raises(InputError, match=r"has no test_matched.tsv, nor have .* name the folder .* with --data"):
        submit([run], out, allow_missing=True, predict=stub)
    (run / "recipe.yaml").unlink()
    with pytest.raises(
        InputError, match=r"no recipe.yaml that says where its data are: .* with --data, for MNLI-m.tsv"
    ):
        submit([run], out, allow_missing=True, predict=stub)


def test_what_is_there_is_not_overwritten_unasked(tmp_path: Path, small: dict[str, int]) -> None:
    data = write_data(tmp_path, small)
    run, out = write_run(tmp_path, "rte"), tmp_path / "glue.zip"
    out.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists already"):
        submit([run], out, data=data, allow_missing=True, predict=stub)
    assert out.read_bytes() == b"mine"
    submit([run], out, data=data, allow_missing=True, overwrite=True, predict=stub)
    assert zipfile.is_zipfile(out)


@pytest.fixture
def sound(tmp_path: Path, small: dict[str, int]) -> Path:
    out = tmp_path / "glue.zip"
    submit(write_runs(tmp_path), out, data=write_data(tmp_path, small), predict=stub)
    return out


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


FAULTS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "header": ("CoLA.tsv", lambda file: file.replace(b"index\tprediction", b"id\tlabel"), "CoLA.tsv:1: the header is"),
    "no header": ("CoLA.tsv", lambda file: b"".join(lines_of(file)[1:]), "CoLA.tsv:1: the header is '0"),
    "empty": ("CoLA.tsv", lambda file: b"", "CoLA.tsv:1: empty; expected the header"),
    "a row less": ("CoLA.tsv", lambda file: b"".join(lines_of(file)[:-1]), "CoLA.tsv:5: the file ends after 3 rows; "),
    "a row more": ("CoLA.tsv", lambda file: file + b"4\t0\n", "CoLA.tsv:6: a row more than the 4 of the test file"),
    "an empty line": ("CoLA.tsv", lambda file: file + b"\n", "CoLA.tsv:6: a row more"),
    "rows swapped": (
        "RTE.tsv",
        lambda file: b"".join(lines_of(file)[place] for place in (0, 1, 3, 2, *range(4, 13))),
        "RTE.tsv:3: the index is '2'; expected 1: each row once, in the order",
    ),
    "a row doubled": ("RTE.tsv", lambda file: b"".join([*lines_of(file)[:3], *lines_of(file)[2:-1]]), "RTE.tsv:4: the"),
    "index from one": ("WNLI.tsv", lambda file: file.replace(b"\n0\t", b"\n1\t"), "WNLI.tsv:2: the index is '1'; "),
    "padded index": ("WNLI.tsv", lambda file: file.replace(b"\n0\t", b"\n00\t"), "WNLI.tsv:2: the index is '00'"),
    "label": (
        "RTE.tsv",
        lambda file: file.replace(b"not_entailment", b"contradiction"),
        "RTE.tsv:3: 'contradiction'; ",
    ),
    "number for a label": ("MNLI-m.tsv", lambda file: file.replace(b"entailment", b"1"), "MNLI-m.tsv:3: '1'; expected"),
    "label for a number": ("QQP.tsv", lambda file: file.replace(b"\t1", b"\tduplicate"), "QQP.tsv:3: 'duplicate'; "),
    "float for a label": (
        "CoLA.tsv",
        lambda file: file.replace(b"\t1", b"\t1.0"),
        "CoLA.tsv:3: '1.0'; expected 0 or 1",
    ),
    "over 5": ("STS-B.tsv", lambda file: file.replace(b"2.500000", b"5.000001"), "STS-B.tsv:4: '5.000001'; expected a"),
    "below 0": ("STS-B.tsv", lambda file: file.replace(b"2.500000", b"-0.1"), "STS-B.tsv:4: '-0.1'; expected a number"),
    "nan": ("STS-B.tsv", lambda file: file.replace(b"2.500000", b"nan"), "STS-B.tsv:4: 'nan'; expected a number"),
    "huge": ("STS-B.tsv", lambda file: file.replace(b"2.500000", b"1e999"), "STS-B.tsv:4: '1e999'; expected a number"),
    "Arabic digits": ("STS-B.tsv", lambda file: file.replace(b"2.500000", "٣".encode()), "STS-B.tsv:4: '٣'; expected"),
    "blanks": ("QNLI.tsv", lambda file: file.replace(b"\tentail", b"\t entail"), "QNLI.tsv:2: ' entailment'; expected"),
    "commas": ("QNLI.tsv", lambda file: file.replace(b"0\t", b"0,"), "QNLI.tsv:2: 1 fields; expected an index, a tab"),
    "a third field": ("QNLI.tsv", lambda file: file.replace(b"ment\n", b"ment\t0.9\n"), "QNLI.tsv:2: 3 fields"),
    "CRLF": ("AX.tsv", lambda file: file.replace(b"\n", b"\r\n"), "AX.tsv:1: a carriage return; expected lines"),
    "one CRLF": ("AX.tsv", lambda file: file.replace(b"entailment\n", b"entailment\r\n", 1), "AX.tsv:3: a carriage"),
    "not UTF-8": ("AX.tsv", lambda file: file.replace(b"neutral", b"neutr\xe4l"), "AX.tsv:4: not UTF-8 at byte 7"),
    "byte order mark": ("AX.tsv", lambda file: b"\xef\xbb\xbf" + file, "AX.tsv:1: the header is"),
    "one endless line": ("AX.tsv", lambda file: b"0" * 5_000_000, "AX.tsv:1: the header is '000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_file_and_line(sound: Path, fault: str) -> None:
    name, damage, message = FAULTS[fault]
    rewrite(sound, lambda files: files.update({name: damage(files[name])}))
    with pytest.raises(InputError) as refused:
        validate(sound)
    first, *faults = str(refused.value).splitlines()
    assert first == f"{sound}: GLUE's server would refuse it:"
    assert len(faults) == 1
    assert faults[0].startswith(f"  {message}")


def test_a_last_line_without_its_end_is_none_the_less_a_row(sound: Path) -> None:
    rewrite(sound, lambda files: files.update({"AX.tsv": files["AX.tsv"][:-1]}))
    assert len(validate(sound).predictions) == 11


def test_what_must_and_must_not_be_in_the_archive(sound: Path) -> None:
    def change(files: dict[str, bytes]) -> None:
        files["glue/RTE.tsv"] = files.pop("RTE.tsv")
        files["__MACOSX/"] = b""
        files["notes.txt"] = b""
        files["WNLI.tsv"] = b""

    with pytest.raises(InputError) as refused:
        validate(rewrite(sound, change))
    faults = [line.partition(";")[0].strip() for line in str(refused.value).splitlines()[1:]]
    assert faults == [
        "glue/RTE.tsv: in a folder",
        "__MACOSX/: in a folder",
        "notes.txt: none of the eleven",
        "RTE.tsv: missing",
        "WNLI.tsv:1: empty",
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice_in_the_archive(sound: Path) -> None:
    with zipfile.ZipFile(sound, "a") as archive:
        archive.writestr("RTE.tsv", archive.read("RTE.tsv"))
    with pytest.raises(InputError, match=r"RTE.tsv: 2 times in the archive; expected once"):
        validate(sound)


def test_archives_that_cannot_be_read(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        validate(tmp_path / "missing.zip")
    whole = sound.read_bytes()
    middle = whole.index(b"QQP.tsv") + 12
    damaged = whole[:middle] + bytes(byte ^ 0x55 for byte in whole[middle : middle + 20]) + whole[middle + 20 :]
    for content in (b"", b"no archive", whole[:-30], damaged):
        sound.write_bytes(content)
        with pytest.raises(InputError, match=r"glue.zip: not a .zip that can be read"):
            validate(sound)
    buffer = io.BytesIO(whole)
    encrypted = bytearray(buffer.getvalue())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(magic) + flags] |= 1
    sound.write_bytes(encrypted)
    with pytest.raises(InputError, match=r"not a .zip that can be read \(.*encrypted"):
        validate(sound)


def test_tasks_whose_answers_are_all_the_same_are_named(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    def constant(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        for number, answer in enumerate(stub(run, path)):
            if run.name == "run-rte":
                answer["label"] = "entailment"
            elif run.name == "run-stsb":
                answer["value"] = 3.0 + (number == 1) / 100  # one class when rounded, and none the less no constant
            yield answer

    told = (
        f"RTE.tsv: the answer is entailment in all {small['RTE.tsv']} rows: the model of rte tells nothing apart; try "
        "another seed, a lower learning rate or more epochs"
    )
    summary = submit(write_runs(tmp_path), tmp_path / "a.zip", data=write_data(tmp_path, small), predict=constant)
    assert caplog.messages == [told]
    assert f"STS-B.tsv    {small['STS-B.tsv']:>9}   3: 100%" in summary.describe()
    caplog.clear()
    validate(tmp_path / "a.zip")
    assert caplog.messages == [told]


def test_real_models_answer_real_layouts(tmp_path: Path, tiny_model: Path) -> None:
    """No stub: a classifier and a regression with random heads, on sentences of our own."""
    from unmask.models.heads import new_head
    from unmask.models.hub import load_encoder, save_model
    from unmask.tokenization.tokenizer import load_tokenizer

    torch.manual_seed(0)
    runs = []
    for task, labels in (("wnli", ("0", "1")), ("stsb", ("LABEL_0",))):
        run = tmp_path / f"run-{task}"
        encoder = load_encoder(tiny_model).encoder
        head = new_head("sequence_classification", encoder.settings, len(labels))
        remembered = {"unmask_task": {"name": task, "max_length": 32}}
        kind = "regression" if task == "stsb" else "single_label_classification"
        save_model(
            run / "model",
            encoder,
            head=head,
            head_kind="sequence_classification",
            labels=labels,
            problem_type=kind,
            extra_config=remembered,
        )
        load_tokenizer(tiny_model).save(run / "model")
        runs.append(run)
    columns = {"WNLI.tsv": ["sentence1", "sentence2"], "STS-B.tsv": ["genre", "sentence1", "sentence2"]}
    for name, texts in columns.items():
        folder = tmp_path / name.removesuffix(".tsv")
        folder.mkdir()
        lines = ["\t".join(["index", *texts])]
        lines += ["\t".join([str(n), *(f"a dog runs {n}" for _ in texts)]) for n in range(TABLES[name].rows)]
        (folder / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    summary = submit(runs, tmp_path / "glue.zip", data=tmp_path, allow_missing=True)
    assert sum(summary.predictions["WNLI.tsv"].values()) == 146
    assert sum(summary.predictions["STS-B.tsv"].values()) == 1379
    assert all(0 <= float(row[1]) <= 5 for row in read_tables(tmp_path / "glue.zip")["STS-B.tsv"][1:])


def test_the_published_test_files_are_taken(tmp_path: Path, data_dir: Path) -> None:
    """All that is there of GLUE's own files has the rows and the numbering that are expected."""
    tasks = [task for task in LABELS if task not in ("qqp", "mnli")]
    summary = submit(
        [write_run(tmp_path, task) for task in tasks],
        tmp_path / "glue.zip",
        data=data_dir / "tasks",
        allow_missing=True,
        predict=stub,
    )
    assert len(summary.predictions) == len(tasks)
