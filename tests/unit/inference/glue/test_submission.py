"""Submissions to GLUE, made from runs by a stub in the models' place."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.files import write
from support.glue_runs import answer_in_turn, write_all_finetuned, write_finetuned, write_test_files
from support.untrained import save_task_model
from unmask.errors import InputError, ModelError, OutputError, SettingsError
from unmask.inference.glue import submission
from unmask.inference.glue.submission import TABLES, submit, validate

TASKS = ("cola", "sst2", "mrpc", "qqp", "wnli", "qnli", "rte", "mnli", "stsb")


def read_tables(path: Path) -> dict[str, list[list[str]]]:
    with zipfile.ZipFile(path) as archive:
        return {
            name: [line.split("\t") for line in archive.read(name).decode("utf-8").splitlines()]
            for name in archive.namelist()
        }


def test_all_eleven_with_all_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "predict_file", answer_in_turn)
    data = write_test_files(tmp_path, {name: table.rows for name, table in TABLES.items()})
    out = tmp_path / "made" / "glue.zip"
    summary = submit(write_all_finetuned(tmp_path), out, data=data)
    tables = read_tables(out)
    assert {name: len(rows) - 1 for name, rows in tables.items()} == {
        "CoLA.tsv": 1063, "SST-2.tsv": 1821, "MRPC.tsv": 1725, "STS-B.tsv": 1379, "QQP.tsv": 390965, "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847, "QNLI.tsv": 5463, "RTE.tsv": 3000, "WNLI.tsv": 146, "AX.tsv": 1104,
    }  # fmt: skip
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
    data, runs = write_test_files(tmp_path, small), write_all_finetuned(tmp_path)
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    submit(runs, first, data=data)
    submit(runs[::-1], second, data=data)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("names", [{"SST-2": "sst2", "STS-B": "stsb", "AX": "glue-diagnostic"}, {"AX": "diagnostic"}])
def test_folders_as_others_name_them(tmp_path: Path, small: dict[str, int], names: dict[str, str]) -> None:
    data = write_test_files(tmp_path, small)
    (data / "AX" / "AX.tsv").rename(data / "AX" / "diagnostic.tsv")
    for folder in [path.name for path in data.iterdir()]:
        (data / folder).rename(data / f"{folder}-aside")
        (data / f"{folder}-aside").rename(data / names.get(folder, folder.lower()))
    submit(write_all_finetuned(tmp_path), tmp_path / "glue.zip", data=data)
    validate(tmp_path / "glue.zip")
    assert len(read_tables(tmp_path / "glue.zip")) == 11


def test_test_files_are_looked_for_beside_the_training_files(
    tmp_path: Path, small: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_test_files(tmp_path, small)
    asked: list[Path] = []

    def noting(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        asked.append(path)
        return answer_in_turn(run, path)

    monkeypatch.setattr(submission, "predict_file", noting)
    submit(write_all_finetuned(tmp_path, data), tmp_path / "glue.zip")
    assert asked[-1] == data / "AX" / "AX.tsv"
    assert asked[5:7] == [data / "MNLI" / "test_matched.tsv", data / "MNLI" / "test_mismatched.tsv"]
    models = [tmp_path / f"run-{task}" / "model" for task in TASKS]  # a run's model will do as well
    monkeypatch.setattr(submission, "predict_file", lambda model, path: answer_in_turn(model.parent, path))
    submit(models, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "glue.zip").read_bytes()


def test_an_ensemble_answers_as_a_run_does(tmp_path: Path, small: dict[str, int]) -> None:
    data = write_test_files(tmp_path, small)
    member = write_finetuned(tmp_path / "members", "rte", data)
    ensemble = tmp_path / "run-rte"
    ensemble.mkdir()
    (ensemble / "ensemble.json").write_text('{"members": ["../members/run-rte/model"]}', "utf-8")
    summary = submit([ensemble], tmp_path / "glue.zip", allow_missing=True)
    assert list(summary.predictions) == ["RTE.tsv"]
    with pytest.raises(SettingsError, match="run-rte are both for rte: name one of them"):
        submit([member, ensemble], tmp_path / "other.zip", data=data, allow_missing=True)


def test_a_missing_run_is_refused_or_left_out(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    data = write_test_files(tmp_path, small)
    runs = [run for run in write_all_finetuned(tmp_path) if run.name not in ("run-mnli", "run-wnli")]
    out = tmp_path / "glue.zip"
    message = r"no run for mnli, wnli: .* all eleven files, and MNLI-m.tsv, MNLI-mm.tsv, WNLI.tsv, AX.tsv would be"
    with pytest.raises(SettingsError, match=message):
        submit(runs, out, data=data)
    assert not out.exists()
    with caplog.at_level(logging.WARNING, "unmask"):
        summary = submit(runs, out, data=data, allow_missing=True)
    assert summary.missing == ("MNLI-m.tsv", "MNLI-mm.tsv", "WNLI.tsv", "AX.tsv")
    assert "MNLI-m.tsv, MNLI-mm.tsv, WNLI.tsv, AX.tsv left out: GLUE's server takes" in caplog.text
    assert "7 files, without MNLI-m.tsv" in summary.describe()
    with pytest.raises(InputError, match=r"WNLI.tsv: missing; the server wants all eleven"):
        validate(out)


def test_wnli_without_a_run_gets_the_majority(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """As BERT's authors submitted it: models learn no more, and the server wants the file."""
    runs = [run for run in write_all_finetuned(tmp_path) if run.name != "run-wnli"]
    data = write_test_files(tmp_path, small)
    summary = submit(runs, tmp_path / "glue.zip", data=data, allow_missing=True)
    told = (
        f"no run for wnli: WNLI.tsv says 0 (not_entailment) in all {small['WNLI.tsv']} rows, the more frequent label "
        "of its training file, as in BERT's submission (Devlin et al. 2019, appendix B.1)"
    )
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [told]
    assert summary.missing == ()
    assert list(read_tables(tmp_path / "glue.zip")) == list(TABLES)
    assert read_tables(tmp_path / "glue.zip")["WNLI.tsv"][1:] == [
        [str(index), "0"] for index in range(small["WNLI.tsv"])
    ]
    caplog.clear()
    assert validate(tmp_path / "glue.zip").predictions == summary.predictions
    assert not caplog.messages


@pytest.mark.parametrize(
    ("task", "changes", "error", "message"),
    [
        ("mnli", {"id2label": {n: f"LABEL_{n}" for n in "012"}}, ModelError, "its labels are LABEL_0, "),
        ("rte", {"id2label": {"0": "0", "1": "1"}}, ModelError, "expected entailment, not_entailment for RTE.tsv"),
        ("cola", {"id2label": {"0": "0", "1": "1", "2": "2"}}, ModelError, "its labels are 0, 1, 2"),
        ("stsb", {"id2label": {"0": "0", "1": "1"}}, ModelError, "chooses among 2 labels; expected one number"),
        ("snli", {}, SettingsError, "fine-tuned for 'snli' .*; expected a run of cola, sst2, "),
        ("ax", {}, SettingsError, "fine-tuned for 'ax'"),
        ("rte", {"unmask_task": {}}, SettingsError, "its config.json names no task"),
        ("rte", {"unmask_task": None}, ModelError, "config.json: unmask_task, or columns in it, is no object"),
    ],
)
def test_runs_that_cannot_answer(
    tmp_path: Path,
    small: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    data = write_test_files(tmp_path, small)

    def never(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        pytest.fail("a model was asked, and only then refused")

    run = write_finetuned(tmp_path, task, **changes)
    monkeypatch.setattr(submission, "predict_file", never)
    with pytest.raises(error, match=message):
        submit([run], tmp_path / "glue.zip", data=data, allow_missing=True)
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
    tmp_path: Path,
    small: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    answer: dict[str, Any],
    message: str,
) -> None:
    """A model without `id2label` is found out by its first answer, and nothing is left behind."""
    data = write_test_files(tmp_path, small)
    run = write_finetuned(tmp_path, task, id2label=None)
    monkeypatch.setattr(submission, "predict_file", lambda *_: iter([answer]))
    before = set(tmp_path.iterdir())
    with pytest.raises(ModelError, match=message):
        submit([run], tmp_path / "glue.zip", data=data, allow_missing=True)
    assert set(tmp_path.iterdir()) == before


def test_fewer_answers_than_rows_are_told(
    tmp_path: Path, small: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = write_test_files(tmp_path, small), write_finetuned(tmp_path, "rte")
    monkeypatch.setattr(submission, "predict_file", lambda *_: iter([{"label": "entailment"}]))
    with pytest.raises(InputError, match=r"test.tsv: 1 predictions for 12 rows: some of its lines are read as one"):
        submit([run], tmp_path / "glue.zip", data=data, allow_missing=True)


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
    data, run = write_test_files(tmp_path, small), write_finetuned(tmp_path, "rte")
    (data / "RTE" / "test.tsv").write_text(content, "utf-8")
    with pytest.raises(InputError, match=message):
        submit([run], tmp_path / "glue.zip", data=data, allow_missing=True)


def test_a_byte_order_mark_and_empty_lines_are_no_rows(
    tmp_path: Path, small: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MRPC's test file begins with one."""
    data = write_test_files(tmp_path, small)
    path = data / "RTE" / "test.tsv"
    path.write_text("\ufeff" + path.read_text("utf-8").replace("\n", "\r\n") + "\r\n", "utf-8")
    answers = [{"label": "entailment"}] * small["RTE.tsv"]
    monkeypatch.setattr(submission, "predict_file", lambda *_: iter(answers))
    submit([write_finetuned(tmp_path, "rte")], tmp_path / "glue.zip", data=data, allow_missing=True)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert len(archive.read("RTE.tsv").splitlines()) == 1 + small["RTE.tsv"]


def test_missing_test_files_are_named(tmp_path: Path, small: dict[str, int]) -> None:
    run = write_finetuned(tmp_path, "mnli", tmp_path)
    out = tmp_path / "glue.zip"
    with pytest.raises(InputError, match=r"no mnli/test_matched.tsv in it: expected GLUE's folders"):
        submit([run], out, data=tmp_path / "elsewhere", allow_missing=True)
    with pytest.raises(InputError, match=r"has no test_matched.tsv, nor have .* name the folder .* with --data"):
        submit([run], out, allow_missing=True)
    (run / "recipe.yaml").unlink()
    told = r"no recipe.yaml that says where its data are: .* with --data, for MNLI-m.tsv"
    with pytest.raises(InputError, match=told):
        submit([run], out, allow_missing=True)


def test_tables_without_a_test_file_are_left_out(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    data = write_test_files(tmp_path, small)
    (data / "MNLI").rename(tmp_path / "aside")
    run, out = write_finetuned(tmp_path, "mnli"), tmp_path / "glue.zip"
    summary = submit([run], out, data=data, allow_missing=True)
    assert list(summary.predictions) == list(read_tables(out)) == ["AX.tsv"]
    assert {"MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"} < set(summary.missing)
    assert "no mnli/test_matched.tsv in it" in caplog.text
    assert "MNLI-m.tsv, MNLI-mm.tsv, QNLI.tsv, RTE.tsv, WNLI.tsv left out" in caplog.text
    (tmp_path / "all").mkdir()
    with pytest.raises(InputError, match=r"no mnli/test_matched.tsv in it"):
        submit(write_all_finetuned(tmp_path / "all"), tmp_path / "all.zip", data=data)


def test_what_is_there_is_not_overwritten_unasked(
    tmp_path: Path, small: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_test_files(tmp_path, small)
    run, out = write_finetuned(tmp_path, "rte"), tmp_path / "glue.zip"
    out.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists already"):
        submit([run], out, data=data, allow_missing=True)
    assert out.read_bytes() == b"mine"
    submit([run], out, data=data, allow_missing=True, overwrite=True)
    assert zipfile.is_zipfile(out)
    with pytest.raises(OutputError, match=r"test\.tsv is needed and would be overwritten"):
        submit([run], data / "RTE" / "test.tsv", data=data, allow_missing=True, overwrite=True)
    out.unlink()

    def answer_while_another_file_appears(run: Path, file: Path) -> Any:
        out.write_bytes(b"mine")
        return answer_in_turn(run, file)

    monkeypatch.setattr(submission, "predict_file", answer_while_another_file_appears)
    with pytest.raises(OutputError, match=r"glue\.zip has appeared .*: what was made is .*glue-2\.zip"):
        submit([run], out, data=data, allow_missing=True)
    assert (out.read_bytes(), zipfile.is_zipfile(tmp_path / "glue-2.zip")) == (b"mine", True)


def test_tasks_whose_answers_are_all_the_same_are_named(
    tmp_path: Path, small: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def constant(run: Path, path: Path) -> Iterator[dict[str, Any]]:
        for number, answer in enumerate(answer_in_turn(run, path)):
            if run.name == "run-rte":
                answer["label"] = "entailment"
            elif run.name == "run-stsb":
                answer["value"] = 3.0 + (number == 1) / 100  # one class when rounded, and none the less no constant
            yield answer

    told = (
        f"RTE.tsv: the answer is entailment in all {small['RTE.tsv']} rows: the model of rte has learned nothing; try "
        "another seed, a lower learning rate or more epochs"
    )
    monkeypatch.setattr(submission, "predict_file", constant)
    summary = submit(write_all_finetuned(tmp_path), tmp_path / "a.zip", data=write_test_files(tmp_path, small))
    assert caplog.messages == [told]
    assert f"STS-B.tsv    {small['STS-B.tsv']:>9}   3: 100%" in summary.describe()
    caplog.clear()
    validate(tmp_path / "a.zip")
    assert caplog.messages == [told]


def test_real_models_answer_real_layouts(tmp_path: Path, tiny_model: Path) -> None:
    """No stub: a classifier and a regression with random heads, on sentences of our own."""
    runs = [tmp_path / "run-wnli", tmp_path / "run-stsb"]
    for run in runs:
        save_task_model(run / "model", tiny_model, name=run.name.removeprefix("run-"), max_length=32)
    columns = {"WNLI.tsv": ["sentence1", "sentence2"], "STS-B.tsv": ["genre", "sentence1", "sentence2"]}
    for name, texts in columns.items():
        lines = ["\t".join(["index", *texts])]
        lines += ["\t".join([str(n), *(f"a dog runs {n}" for _ in texts)]) for n in range(TABLES[name].rows)]
        write(tmp_path / name.removesuffix(".tsv") / "test.tsv", "\n".join(lines) + "\n")
    summary = submit(runs, tmp_path / "glue.zip", data=tmp_path, allow_missing=True)
    assert sum(summary.predictions["WNLI.tsv"].values()) == 146
    assert sum(summary.predictions["STS-B.tsv"].values()) == 1379
    assert all(0 <= float(row[1]) <= 5 for row in read_tables(tmp_path / "glue.zip")["STS-B.tsv"][1:])


def test_the_published_test_files_are_taken(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is there of GLUE's own files has the rows and the numbering that are expected."""
    runs = [write_finetuned(tmp_path, task) for task in TASKS if task not in ("qqp", "mnli")]
    monkeypatch.setattr(submission, "predict_file", answer_in_turn)
    tasks = data_dir / "tasks"
    summary = submit(runs, tmp_path / "glue.zip", data=tasks, allow_missing=True)
    assert len(summary.predictions) == len(runs)
