"""Files as people bring them, through the real commands: encodings, separators, several files, other columns."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from support.commands import Command, write_files

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


KOREAN = '문장;평가\r\n"moth; ran";좋다\r\nAda;나쁘다\r\nthe moth;좋다\r\n'
EXCEL = ("--encoding", "cp949")


def test_a_korean_table_of_excel_from_training_to_a_table_of_answers(
    unmask: Command, place: Path, task_models: Any
) -> None:
    write_files({"t.csv": KOREAN.encode("cp949")})
    words = [*task_models.words("classification", "t.csv"), "data.columns.text=문장", "data.columns.label=평가"]
    refused = unmask("finetune", "finetune/classification", *words, "--out", "run")
    assert refused.code == 2
    assert "t.csv:1: not UTF-8 at byte 0" in refused.errors
    assert "or give its encoding, data.encoding=NAME. It reads as '문장;평가' in cp949" in refused.errors
    named = ["data.encoding=cp949", "data.dev=t.csv"]
    done = unmask("finetune", "finetune/classification", *words, *named, "--out", "run")
    assert done.code == 0, done.errors
    told = unmask("evaluate", "run", "--data", "t.csv")
    assert "give its encoding, --encoding NAME" in told.errors
    measured = unmask("evaluate", "run", "--data", "t.csv", *EXCEL, "--json")
    assert json.loads(measured.output)["n"] == 3
    assert unmask("predict", "run", "t.csv", *EXCEL, "--out", "x.csv").code == 0
    with open(place / "x.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["문장"] for row in rows] == ["moth; ran", "Ada", "the moth"]
    assert {row["label"] for row in rows} <= {"좋다", "나쁘다"}
    split = unmask("split", "t.csv", "--task", "classification", "--group", "문장", *EXCEL, "--out", "parts")
    assert split.code == 0, split.errors
    assert (place / "parts" / "train.csv").read_text("utf-8").startswith("\ufeff문장;평가\n")


def test_shards_several_files_and_other_columns_of_dev(unmask: Command, place: Path, task_models: Any) -> None:
    (place / "shards").mkdir()
    for number in range(2):
        table = pyarrow.table({"text": [f"moth {number}", "Ada"], "label": ["y", "n"]})
        parquet.write_table(table, place / "shards" / f"train-{number}.parquet")
    write_files({"a.csv": "text,label\nmoth,y\n", "b.tsv": "text\tlabel\nAda\tn\n"})
    write_files({"dev.tsv": "review\tstars\nmoth\ty\n"})
    dev = ["data.dev=dev.tsv", "data.dev_columns.text=review", "data.dev_columns.label=stars"]
    for train, count in (("shards", 4), ("shards/*.parquet", 4), ("[a.csv, b.tsv]", 2)):
        words = task_models.words("classification", train, *dev)
        done = unmask("finetune", "finetune/classification", *words, "--out", "run", "--overwrite")
        assert done.code == 0, done.errors
        assert re.search(rf"train \(.*\): {count} examples", done.errors)
        assert "dev (dev.tsv): 1 example" in done.errors
    repeated = unmask("finetune", "run/recipe.yaml", "--out", "again")
    assert repeated.code == 0, repeated.errors
    measured = unmask("evaluate", "run", "--data", "shards", "--json")
    assert json.loads(measured.output)["n"] == 4
    assert len(unmask("predict", "run", "shards/*.parquet").output.splitlines()) == 4


def test_a_table_without_a_header(unmask: Command, place: Path, task_models: Any) -> None:
    write_files({"t.dat": "y:moth\nn:Ada\n"})
    words = task_models.words("classification", "t.dat", "data.separator=:", "data.header=none")
    named = ["data.columns.text=2", "data.columns.label=1"]
    done = unmask("finetune", "finetune/classification", *words, *named, "--out", "run")
    assert done.code == 0, done.errors
    options = ["--separator", ":", "--header", "none"]
    assert json.loads(unmask("evaluate", "run", "--data", "t.dat", *options, "--json").output)["n"] == 2
    answers = unmask("predict", "run", "t.dat", *options).output.splitlines()
    assert [json.loads(line)["input"]["2"] for line in answers] == ["moth", "Ada"]


def test_a_quoted_tsv_is_told(unmask: Command, place: Path, task_models: Any, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f'"the moth {number}"\t{label}\n' for number, label in enumerate("ynyn"))
    write_files({"t.tsv": f"text\tlabel\n{rows}"})
    words = task_models.words("classification", "t.tsv")
    told = unmask("finetune", "finetune/classification", *words, "--out", "run").errors
    assert told.count(": 4 of 4 cells of the column 'text' are in quotation marks") == 1
    assert told.count("are in quotation marks, which belong to the text in a .tsv: give data.quoted=true") == 1
    told = unmask("finetune", "finetune/classification", *words, "data.quoted=true", "--out", "run2").errors
    assert "quotation marks" not in told
    assert unmask("predict", "run", "t.tsv").code == 0
    assert "give --quoted" in caplog.text
    first, *_ = unmask("predict", "run2", "t.tsv", "--quoted").output.splitlines()
    assert json.loads(first)["input"]["text"] == "the moth 0"


def test_a_corpus_in_another_encoding(unmask: Command, place: Path) -> None:
    rows = [f'"나는 오늘 {number}번째 영화를 보았다; 좋았다.";{number}\r\n' for number in range(50)]
    text = "본문;번호\r\n" + "".join(rows)
    write_files({"t.csv": text.encode("cp949"), "t.txt": "나는 오늘 영화를 보았다.\r\n".encode("utf-16")})
    words = ["tokenizer", "train", "t.csv", "--column", "본문", "--vocab-size", 60, "--out", "made"]
    refused = unmask(*words)
    assert refused.code == 2
    assert "give its encoding, --encoding NAME (in a recipe reading.encoding=NAME)" in refused.errors
    done = unmask(*words, "--encoding", "cp949")
    assert done.code == 0, done.errors
    options = ["--tokenizer", "made", "--encoding", "utf-16", "--out", "store", "--workers", 1]
    prepared = unmask("prepare", "t.txt", *options)
    assert prepared.code == 0, prepared.errors
    assert json.loads((place / "store" / "manifest.json").read_text())["text"]["documents"] == 1
