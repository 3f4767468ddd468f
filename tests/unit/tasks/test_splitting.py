"""Files split by article, row and document: nothing is lost, and what belongs together stays together."""

from __future__ import annotations

import codecs
import gzip
import json
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from support.files import write, write_rows
from unmask.errors import InputError, OutputError, SettingsError
from unmask.io.input_files import InputFiles
from unmask.io.settings import TableSettings
from unmask.io.tables import read_rows
from unmask.tasks.settings import ColumnSettings
from unmask.tasks.splits import SPLITS, split_of_groups
from unmask.tasks.splitting import split_file


def texts_of(out: Path, suffix: str) -> dict[str, str]:
    assert sorted(path.name for path in out.iterdir()) == [f"{name}{suffix}" for name in ("dev", "test", "train")]
    return {name: (out / f"{name}{suffix}").read_text("utf-8") for name in ("train", "dev", "test")}


def test_squad_by_article(tmp_path: Path) -> None:
    articles: list[dict[str, Any]] = [{"title": title, "paragraphs": [{"context": title * 2}]} for title in "abcde"]
    articles += [{"title": "b", "paragraphs": []}, {"paragraphs": [{"context": "값"}]}]
    path = write(tmp_path / "dev.json", json.dumps({"data": articles, "version": "1.1"}))
    counts = split_file(path, "squad1", tmp_path / "out")
    split = split_of_groups([*"abcde", json.dumps([{"context": "값"}], ensure_ascii=False)])
    for name, text in texts_of(tmp_path / "out", ".json").items():
        value = json.loads(text)
        assert value["version"] == "1.1"
        names = [article.get("title") or '[{"context": "값"}]' for article in value["data"]]
        assert all(split[title] == name for title in names)
        assert counts[tmp_path / "out" / f"{name}.json"] == len(names)
    assert sum(counts.values()) == len(articles)


def test_a_data_sets_own_txt_is_the_table_that_it_is(tmp_path: Path) -> None:
    lines = ["id\tdocument\tlabel", *(f'{number}\t"영화 {number % 6}\t{number % 2}' for number in range(12))]
    path = write(tmp_path / "ratings.txt", "\n".join(lines) + "\n")
    counts = split_file(path, "nsmc", tmp_path / "out")
    assert sum(counts.values()) == 12
    texts = texts_of(tmp_path / "out", ".txt")
    assert all(text.startswith("id\tdocument\tlabel\n") for text in texts.values())
    assert sorted(line for text in texts.values() for line in text.splitlines()[1:]) == sorted(lines[1:])
    with pytest.raises(
        InputError, match=r"\.txt has texts without labels, .* is read as a table with data\.separator=tab"
    ):
        split_file(path, "classification", tmp_path / "other")


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_rows_by_their_premise(tmp_path: Path, suffix: str) -> None:
    rows = [(f"premise {number % 7}", f"hypothesis {number}", str(number % 3)) for number in range(30)]
    if suffix == ".jsonl":
        lines = [json.dumps(dict(zip(("premise", "hypothesis", "label"), row, strict=True))) for row in rows]
    else:
        separator = "\t" if suffix == ".tsv" else ","
        lines = [separator.join(row) for row in (("premise", "hypothesis", "label"), *rows)]
    path = write(tmp_path / f"a{suffix}", "\n".join(lines))  # no line end behind the last
    counts = split_file(path, "snli", tmp_path / "out")
    split = split_of_groups(f"premise {number}" for number in range(7))
    header = [] if suffix == ".jsonl" else lines[:1]
    rows_there = lines[len(header) :]
    for name, text in texts_of(tmp_path / "out", suffix).items():
        expected = [line for line, row in zip(rows_there, rows, strict=True) if split[row[0]] == name]
        assert text.splitlines() == header + expected
        assert counts[tmp_path / "out" / f"{name}{suffix}"] == len(expected)


def test_a_data_set_without_a_header_has_every_row_in_one_part(tmp_path: Path) -> None:
    rows = [f"gj04\t1\t\tsentence {number}\n" for number in range(10)]
    (tmp_path / "train.tsv").write_text("".join(rows))
    counts = split_file(tmp_path / "train.tsv", "cola", tmp_path / "out")
    assert sorted("".join(texts_of(tmp_path / "out", ".tsv").values()).splitlines(True)) == sorted(rows)
    assert sum(counts.values()) == 10
    with pytest.raises(InputError, match="there is source, label, mark, sentence"):
        split_file(tmp_path / "train.tsv", "cola", tmp_path / "other", group="gj04")


@pytest.mark.parametrize("task", ["klue-ynat", "mrpc"])
def test_a_data_set_is_split_by_its_own_text(tmp_path: Path, task: str) -> None:
    name = {"klue-ynat": "title", "mrpc": "#1 String"}[task]
    rows = [{"id": number, name: f"text {number // 2}"} for number in range(20)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert split_file(tmp_path / "a.json", task, tmp_path / "out") == {
        tmp_path / "out" / f"{part}.json": size for part, size in (("train", 16), ("dev", 2), ("test", 2))
    }
    parts = [json.loads(text) for text in texts_of(tmp_path / "out", ".json").values()]
    assert all(len({row[name] for row in part}) * 2 == len(part) for part in parts)
    assert sorted((row for part in parts for row in part), key=lambda row: row["id"]) == rows


def test_a_data_sets_own_suffix_of_words_is_read(tmp_path: Path) -> None:
    (tmp_path / "test.annotated").write_text("".join(f"word{number}\tO\n\n" for number in range(10)))
    assert sum(split_file(tmp_path / "test.annotated", "wnut17", tmp_path / "out").values()) == 10


def test_quoted_rows_keep_their_line_breaks(tmp_path: Path) -> None:
    rows = [f'"a, ""{number}""\nb",x\r\n' for number in range(10)]
    path = write(tmp_path / "a.csv", "text,label\r\n" + "".join(rows))
    split_file(path, "classification", tmp_path / "out")
    parts = [(tmp_path / "out" / f"{name}.csv").read_bytes().decode() for name in ("train", "dev", "test")]
    assert all(part.startswith("text,label\r\n") for part in parts)
    assert sorted("".join(part.removeprefix("text,label\r\n") for part in parts)) == sorted("".join(rows))


@pytest.mark.parametrize(
    ("suffix", "task", "mark"),
    [
        (".txt", "wikigold", "-DOCSTART- O\n\n"),
        (".txt", "wikigold", ""),
        (".testa", "wikigold", " -DOCSTART- O\n\n"),
        (".conllu", "wikigold", ""),
        (".conllu", "tagging", "# sent_id = 1\n# newdoc id = a\n"),
    ],
)
def test_documents_and_sentences(tmp_path: Path, suffix: str, task: str, mark: str) -> None:
    second = "a second sentence\n\n" if mark else ""
    documents = [f"{mark}word{number} O\nhere B-LOC\n\n{second}" for number in range(10)]
    path = write(tmp_path / f"a{suffix}", "\n" + "".join(documents).rstrip("\n"))
    counts = split_file(path, task, tmp_path / "out")
    assert sorted(counts.values()) == [1, 1, 8]
    parts = texts_of(tmp_path / "out", suffix)
    assert sorted(document for document in documents if any(document in part for part in parts.values())) == documents
    assert sum(map(len, parts.values())) == 1 + sum(map(len, documents))


def test_the_column_may_be_named(tmp_path: Path) -> None:
    rows = [{"text": str(number), "author": "abc"[number % 3]} for number in range(9)]
    path = write_rows(tmp_path / "a.jsonl", *rows)
    counts = split_file(path, "classification", tmp_path / "out", group="author")
    assert list(counts.values()) == [3, 3, 3]


@pytest.mark.parametrize(
    ("name", "text", "task", "message"),
    [
        ("a.json", "{", "squad1", r"a\.json: not JSON"),
        ("a.json", '{"data": {}}', "squad1", r"a\.json: expected an object with articles under 'data'"),
        ("a.json", '{"data": [{"title": "a"}, {"title": "b"}]}', "squad1", r"a\.json: 2 groups that belong together"),
        ("a.tsv", "", "snli", r"a\.tsv: there is nothing in it"),
        ("a.csv", "\ufeff", "classification", r"a\.csv: there is nothing in it"),
        ("a.tsv", "x\ty\n1\t2\n", "snli", r"a\.tsv:1: no column 'premise' or .*: there is x, y; name one"),
        ("a.tsv", "text\ty\n1\t2\n3\n", "nsmc", r"a\.tsv:3: 1 fields where the header has 2"),
        ("a.csv", 'text\n"a\n', "nsmc", r"a\.csv:2: not CSV in the row that begins here"),
        ("a.jsonl", "[]\n", "nsmc", r"a\.jsonl:1: expected a JSON object, .*; found \[\]"),
        ("a.jsonl", "{]\n", "nsmc", r"a\.jsonl:1: not JSON"),
        ("a.conll", "a O\n", "snli", r"a\.conll: unknown kind of file for snli: expected \.json"),
    ],
)
def test_what_cannot_be_split(tmp_path: Path, name: str, text: str, task: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_file(write(tmp_path / name, text), task, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_tasks_and_places_that_are_taken(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", *({"text": str(number)} for number in range(9)))
    with pytest.raises(SettingsError, match=r"no task 'squad3'; did you mean"):
        split_file(path, "squad3", tmp_path / "out")
    split_file(path, "nsmc", tmp_path / "out")
    with pytest.raises(OutputError, match="exists already"):
        split_file(path, "nsmc", tmp_path / "out")
    split_file(path, "nsmc", tmp_path / "out", overwrite=True)
    with pytest.raises(OutputError, match=r"train\.jsonl is needed and lies in .*out, which would be overwritten"):
        split_file(tmp_path / "out" / "train.jsonl", "nsmc", tmp_path / "out", overwrite=True)
    write(tmp_path / "out" / "notes.md", "mine")
    with pytest.raises(OutputError, match=r"holds notes\.md"):
        split_file(path, "nsmc", tmp_path / "out", overwrite=True)


def test_published_files(tmp_path: Path, data_dir: Path) -> None:
    squad = split_file(data_dir / "tasks" / "squad1" / "dev-v1.1.json", "squad1", tmp_path / "squad1")
    assert list(squad.values()) == [38, 5, 5]
    wikigold = split_file(data_dir / "tasks" / "wikigold" / "wikigold.conll.txt", "wikigold", tmp_path / "wikigold")
    assert list(wikigold.values()) == [116, 15, 14]


# ---- What people bring


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_table_that_excel_opens_stays_one(tmp_path: Path, encoding: str, name: str) -> None:
    """Excel in Korean takes a table without a byte order mark for cp949."""
    lines = ["문장,평가", *(f"영화 {number},좋다" for number in range(6))]
    content = "\n".join(lines).encode(encoding)
    path = write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    settings = TableSettings(encoding="utf-16" if encoding == "utf-16" else "utf-8")
    split_file(InputFiles((path,), settings), "classification", tmp_path / "out", group="문장")
    texts = texts_of(tmp_path / "out", ".csv")
    assert [text.count("\ufeff") for text in texts.values()] == [int(encoding != "utf-8")] * 3
    assert all(text.removeprefix("\ufeff").startswith("문장,평가\n영화") for text in texts.values())
    rows = [dict(row.fields) for part in texts for row in read_rows(tmp_path / "out" / f"{part}.csv")]
    assert sorted(row["문장"] for row in rows) == [f"영화 {number}" for number in range(6)]


def test_other_encodings_and_separators_without_a_header(tmp_path: Path) -> None:
    rows = [f'"글 {number}; 하나";{number % 2}\r\n' for number in range(10)]
    path = write(tmp_path / "a.csv", "".join(rows).encode("cp949"))
    files = InputFiles((path,), TableSettings(encoding="cp949", separator=";", header="none"))
    counts = split_file(files, "classification", tmp_path / "out", group="1")
    assert list(counts.values()) == [8, 1, 1]
    parts = [(tmp_path / "out" / f"{name}.csv").read_bytes() for name in ("train", "dev", "test")]
    assert all(part.startswith(codecs.BOM_UTF8) for part in parts), "else Excel in Korean takes them for cp949"
    assert sorted("".join(part.decode("utf-8-sig") for part in parts)) == sorted("".join(rows))


def test_parquet_by_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {number % 7}" for number in range(20)], "label": range(20)})
    parquet.write_table(table, path)
    whole = tmp_path / "shards-1.parquet", tmp_path / "shards-2.parquet"
    parquet.write_table(table.slice(0, 9), whole[0])
    parquet.write_table(table.slice(9), whole[1])
    assert list(split_file(InputFiles(whole), "classification", tmp_path / "out2").values()) == [14, 3, 3]
    counts = split_file(path, "classification", tmp_path / "out")
    parts = [parquet.read_table(part) for part in counts]
    assert [part.num_rows for part in parts] == list(counts.values())
    assert sorted(label for part in parts for label in part["label"].to_pylist()) == list(range(20))
    assert not set(parts[0]["text"].to_pylist()) & set(parts[1]["text"].to_pylist())
    assert parts[0].schema == table.schema


def test_shards_of_other_columns_are_refused(tmp_path: Path) -> None:
    shards = tmp_path / "1.parquet", tmp_path / "2.parquet"
    parquet.write_table(pyarrow.table({"text": list("abcdef"), "label": range(6)}), shards[0])
    parquet.write_table(pyarrow.table({"text": list("ghi"), "label": ["x", "y", "z"]}), shards[1])
    with pytest.raises(InputError, match="its shards do not have the same columns"):
        split_file(InputFiles(shards), "classification", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet"])
def test_labels_that_no_row_of_train_has_are_warned_of(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    split = split_of_groups("abcdefghij")
    rows = [{"text": key, "label": 1 if split[key] == "train" else ord(key)} for key in split]
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".json":
        write(path, json.dumps(rows))
    elif suffix == ".jsonl":
        write_rows(path, *rows)
    else:
        write(path, "".join(f"{line}\n" for line in ["text,label", *(f"{r['text']},{r['label']}" for r in rows)]))
    split_file(path, "classification", tmp_path / "out")
    there = {
        name: {"1" if name == "train" else str(ord(key)) for key in split if split[key] == name} for name in SPLITS
    }
    unseen = {name: ", ".join(sorted(set().union(*there.values()) - there[name])) for name in SPLITS}
    assert caplog.messages == [
        f"{path}: nothing is learned of labels that no row of train has: {unseen['train']}; move a row of each "
        "into train, or list all labels in task.labels",
        f"{path}: dev says nothing of labels that no row of dev has: {unseen['dev']}",
        f"{path}: test says nothing of labels that no row of test has: {unseen['test']}",
    ]


def test_rows_without_a_group_are_each_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"text": str(number), "who": None if number % 2 else ("", "a", "b")[number % 3], "label": 1}
        for number in range(60)
    ]
    counts = split_file(write_rows(tmp_path / "a.jsonl", *rows), "classification", tmp_path / "out", group="who")
    assert sum(counts.values()) == 60
    assert all(count > 2 for count in counts.values())
    assert caplog.messages == [
        f"{tmp_path / 'a.jsonl'}: 40 of 60 rows have nothing in the column by which they are grouped: each is a group "
        "by itself"
    ]


@pytest.mark.parametrize(
    ("task", "label_of"),
    [
        ("classification", lambda number, name: ["a", "b"] if name == "train" else ["b"]),
        ("classification", lambda number, name: "a, b" if name == "train" else "b"),
        ("classification", lambda number, name: "a" + " " * 10**6 + "b"),  # takes linear time
        ("regression", lambda number, name: number),
        ("snli", lambda number, name: "neutral" if name == "train" else "-"),
        ("classification", lambda number, name: "x" if name == "train" else None),
    ],
)
def test_what_is_no_unseen_label_is_not_warned_of(
    tmp_path: Path, task: str, label_of: Callable[[int, str], object], caplog: pytest.LogCaptureFixture
) -> None:
    split = split_of_groups("abcdefghij")
    key = "premise" if task == "snli" else "text"
    rows = [{key: text, "label": label_of(number, split[text])} for number, text in enumerate(split)]
    split_file(write_rows(tmp_path / "a.jsonl", *rows), task, tmp_path / "out")
    assert not [message for message in caplog.messages if "no row of train" in message]


def test_lists_in_the_cells_of_a_table_are_several_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = split_of_groups("abcdefghij")
    labels = {"train": '["x", "y"]', "dev": '["y"]', "test": '["x"]'}
    write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"{text}\t{labels[split[text]]}\n" for text in split))
    split_file(tmp_path / "a.tsv", "classification", tmp_path / "out")
    assert not [message for message in caplog.messages if "no row of train" in message]


def test_a_file_of_a_utf16_mark_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF16_LE)
    with pytest.raises(InputError, match=r"a\.csv:1: not UTF-8 .* It reads as '' in utf-16"):
        split_file(tmp_path / "a.csv", "classification", tmp_path / "out")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_long_file_is_read_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    path = tmp_path / f"all{suffix}"
    if suffix == ".csv":
        write(path, "text\na\nb\nc\n")
    elif suffix == ".jsonl":
        write_rows(path, {"text": "a"}, {"text": "b"}, {"text": "c"})
    else:
        parquet.write_table(pyarrow.table({"text": [*"abc"]}), path)
    split_file(path, "classification", tmp_path / "out")
    shown = [" · ".join(line.split(" · ")[:2]) for line in capsys.readouterr().err.splitlines() if "done" in line]
    assert shown == ["reading: done · 3 rows", "grouping: done · 3 groups"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_long_file_takes_little_memory(tmp_path: Path, suffix: str) -> None:
    """Neither its rows nor its lines are all held beside the parts that they make."""
    rows = [{"text": f"A film, number {number}, of which much could be said", "label": "x"} for number in range(3000)]
    lines = ["text,label", *(f'"{row["text"]}",{row["label"]}' for row in rows)]
    path = write(tmp_path / "a.csv", "\n".join(lines)) if suffix == ".csv" else write_rows(tmp_path / "a.jsonl", *rows)
    split_file(path, "classification", tmp_path / "warm")  # what is imported and kept at the first call
    tracemalloc.start()
    split_file(path, "classification", tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * path.stat().st_size


def test_texts_that_differ_in_case_blanks_and_composition_alone_stay_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"A 영화, {number}", "label": "x"} for number in range(100)]
    copies = [{**row, "text": unicodedata.normalize("NFD", f"a  영화, {number} ")} for number, row in enumerate(rows)]
    path = write_rows(tmp_path / "a.jsonl", *rows, *copies)
    split_file(path, "classification", tmp_path / "out")
    assert not caplog.messages
    split_of = split_of_groups(row["text"] for row in rows)  # as without the copies
    for name, part in texts_of(tmp_path / "out", ".jsonl").items():
        numbers = [json.loads(line)["text"].split()[-1] for line in part.splitlines()]
        assert Counter(numbers) == {
            number: 2 for number in map(str, range(100)) if split_of[f"A 영화, {number}"] == name
        }


def test_groups_that_are_composed_otherwise_are_one(tmp_path: Path) -> None:
    books = [f"{letter} 책" for letter in "가나다라마바사아자차"]
    written = [*books, *(unicodedata.normalize("NFD", book) for book in books)]
    rows = [{"text": str(number), "label": "x", "book": book} for number, book in enumerate(written)]
    split_file(write_rows(tmp_path / "a.jsonl", *rows), "classification", tmp_path / "out", group="book")
    split_of = split_of_groups(books)
    for name, part in texts_of(tmp_path / "out", ".jsonl").items():
        there = [unicodedata.normalize("NFC", json.loads(line)["book"]) for line in part.splitlines()]
        assert Counter(there) == {book: 2 for book in books if split_of[book] == name}


def test_rows_that_are_not_split_as_their_groups_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    split_of = split_of_groups(map(str, range(10)))
    large = next(group for group, name in split_of.items() if name == "train")
    rows = [{"text": str(number), "who": group} for group in split_of for number in range(91 if group == large else 1)]
    split_file(write_rows(tmp_path / "a.jsonl", *rows), "regression", tmp_path / "out", group="who")
    assert "a.jsonl: of 100, train has 98 (98.0%), dev has 1 (1.0%), test has 1 (1.0%), where 80, 10" in caplog.text


def test_labels_that_were_not_looked_at_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": str(number), "book": "x"} for number in range(10)]
    split_file(write_rows(tmp_path / "a.jsonl", *rows), "classification", tmp_path / "out")
    assert "a.jsonl: no label in a column 'label': whether each part has all labels was not checked" in caplog.text


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_the_name_of_a_column_is_found_decomposed(tmp_path: Path, name: str) -> None:
    rows = [{"문장": f"글 {number}", "책": f"책 {number % 4}", "label": "x"} for number in range(8)]
    table = "".join(f"{','.join(row)}\n" for row in [rows[0], *(row.values() for row in rows)])
    path = write_rows(tmp_path / name, *rows) if name == "a.jsonl" else write(tmp_path / name, table)
    named = ColumnSettings(text=unicodedata.normalize("NFD", "문장"))
    assert sum(split_file(path, "classification", tmp_path / "by-text", named=named).values()) == 8
    counts = split_file(path, "classification", tmp_path / "out", group=unicodedata.normalize("NFD", "책"))
    assert list(counts.values()) == [4, 2, 2]


def test_columns_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    split_of = split_of_groups("ABCDEFGHIJ")
    path = write(tmp_path / "a.csv", "Text,Label\n" + "".join(f"{text},x\n{text.upper()},x\n" for text in "abcdefghij"))
    with pytest.raises(InputError, match=r"a\.csv:1: no column .* name one of them: --column text=COLUMN, or --group"):
        split_file(path, "classification", tmp_path / "out")
    split_file(path, "classification", tmp_path / "out", named=ColumnSettings(text="Text", label="Label"))
    for name, part in texts_of(tmp_path / "out", ".csv").items():
        assert {line[0].upper() for line in part.splitlines()[1:]} == {key for key in split_of if split_of[key] == name}
    assert not caplog.messages
    with pytest.raises(SettingsError, match=r"columns\.question is not for classification"):
        split_file(path, "classification", tmp_path / "out2", named=ColumnSettings(question="Text"))
