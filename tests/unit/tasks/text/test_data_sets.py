"""Published files of every data set, real ones where they are at hand and else small ones of the same layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from support.files import json_lines, write, write_rows
from support.tasks import new_task
from unmask.errors import InputError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import KINDS
from unmask.tasks.text.data_sets import DATA_SETS


def labels_of(name: str, path: Path, unlabelled: bool = False) -> list[Any]:
    task = new_task(name).fit_to(path)
    return [example.label for example in task.load(path, ExampleCounts(), unlabelled=unlabelled)]


def test_the_settings_name_every_data_set() -> None:
    assert DATA_SETS.keys() == {name for name, kind in KINDS.items() if kind in ("classification", "regression")}


def test_every_data_set_has_a_published_layout() -> None:
    left_out = DATA_SETS.keys() - {name for name, *_ in PUBLISHED}
    assert not left_out, f"add a small file of {', '.join(left_out)} to PUBLISHED in this file"


@pytest.mark.parametrize("name", DATA_SETS)
def test_the_primary_metric_is_one_of_the_task(name: str) -> None:
    assert next(iter(new_task(name).score().metrics())) == DATA_SETS[name].primary_metric


# ---- Real files

REAL_FILES = [
    ("cola", "cola/train.tsv", 8_551, {"0", "1"}),
    ("cola", "cola/dev.tsv", 1_043, {"0", "1"}),
    ("cola", "cola/test.tsv", 1_063, None),
    ("sst2", "sst2/train.tsv", 67_349, {"0", "1"}),
    ("sst2", "sst2/dev.tsv", 872, {"0", "1"}),
    ("sst2", "sst2/test.tsv", 1_821, None),
    ("mrpc", "mrpc/train.tsv", 3_668, {"0", "1"}),
    ("mrpc", "mrpc/dev.tsv", 408, {"0", "1"}),
    ("mrpc", "mrpc/test.tsv", 1_725, None),
    ("stsb", "stsb/train.tsv", 5_749, (0.0, 5.0)),
    ("stsb", "stsb/dev.tsv", 1_500, (0.0, 5.0)),
    ("stsb", "stsb/test.tsv", 1_379, None),
    ("mnli", "mnli/dev_matched.jsonl", 9_815, {"entailment", "neutral", "contradiction"}),
    ("qnli", "qnli/dev.tsv", 5_463, {"entailment", "not_entailment"}),
    ("qnli", "qnli/test.tsv", 5_463, None),
    ("rte", "rte/train.tsv", 2_490, {"entailment", "not_entailment"}),
    ("rte", "rte/dev.tsv", 277, {"entailment", "not_entailment"}),
    ("rte", "rte/test.tsv", 3_000, None),
    ("wnli", "wnli/train.tsv", 635, {"0", "1"}),
    ("wnli", "wnli/dev.tsv", 71, {"0", "1"}),
    ("wnli", "wnli/test.tsv", 146, None),
    ("ax", "glue-diagnostic/diagnostic.tsv", 1_104, None),
    ("snli", "snli/dev.jsonl", 9_842, {"entailment", "neutral", "contradiction"}),
    ("kornli", "kornli/xnli.dev.ko.tsv", 2_490, {"entailment", "neutral", "contradiction"}),
    ("kornli", "kornli/xnli.test.ko.tsv", 5_010, {"entailment", "neutral", "contradiction"}),
    ("korsts", "korsts/sts-train.tsv", 5_749, (0.0, 5.0)),
    ("korsts", "korsts/sts-dev.tsv", 1_500, (0.0, 5.0)),
    ("korsts", "korsts/sts-test.tsv", 1_379, (0.0, 5.0)),
    ("klue-nli", "klue-nli/klue-nli-v1.1_dev.json", 3_000, {"entailment", "neutral", "contradiction"}),
    ("klue-sts", "klue-sts/klue-sts-v1.1_dev.json", 519, (0.0, 5.0)),
    ("klue-sts", "klue-sts/klue-sts_train.jsonl", 11_668, (0.0, 5.0)),
    ("klue-ynat", "klue-ynat/klue-ynat_dev.jsonl", 9_107, set(DATA_SETS["klue-ynat"].labels)),
    pytest.param("nsmc", "nsmc/ratings_train.txt.zst", 150_000, {"0", "1"}, marks=pytest.mark.slow),
    ("nsmc", "nsmc/ratings_test.txt", 50_000, {"0", "1"}),
]


@pytest.mark.parametrize(("name", "file", "count", "labels"), REAL_FILES)
def test_published_files_are_read_whole(data_dir: Path, name: str, file: str, count: int, labels: Any) -> None:
    """`labels`: all that occur, the smallest and largest value, or None where the file has none."""
    found = labels_of(name, data_dir / "tasks" / file, unlabelled=labels is None)
    assert len(found) == count
    if labels is None:
        assert set(found) == {None}
    elif isinstance(labels, tuple):
        assert (min(found), max(found)) == labels
    else:
        assert set(found) == labels


def test_klue_sts_counts_as_true_what_its_authors_do(data_dir: Path) -> None:
    path = data_dir / "tasks" / "klue-sts" / "klue-sts-v1.1_dev.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [value >= 3.0 for value in labels_of("klue-sts", path)] == [bool(r["labels"]["binary-label"]) for r in rows]


# ---- Published layouts, with sentences made up for them

PARSES = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
MNLI_TRAIN = ("index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2", "label1", "gold_label")
MNLI_DEV = (*MNLI_TRAIN[:-1], "label2", "label3", "label4", "label5", "gold_label")
SNLI_TXT = ("gold_label", *PARSES, "sentence1", "sentence2", "captionID", "pairID", *(f"label{n}" for n in range(1, 6)))
QQP_TRAIN = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
MRPC_TXT = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
SNLI_JSON = {
    "annotator_labels": ["neutral"],
    "captionID": "1.jpg#1",
    "gold_label": "neutral",
    "pairID": "1.jpg#1n",
    "sentence1": "A cook peels onions.",
    "sentence1_binary_parse": "( A cook ( peels onions ) . )",
    "sentence1_parse": "(ROOT (S (NP (DT A) (NN cook)) (VP (VBZ peels) (NP (NNS onions))) (. .)))",
    "sentence2": "A cook makes soup.",
    "sentence2_binary_parse": "( A cook ( makes soup ) . )",
    "sentence2_parse": "(ROOT (S (NP (DT A) (NN cook)) (VP (VBZ makes) (NP (NN soup))) (. .)))",
}


def tsv(columns: Sequence[str], *rows: dict[str, str], header: bool = True) -> str:
    """A table of these columns; `rows` say what is not empty."""
    lines = ["\t".join(columns)] if header else []
    return "".join(line + "\n" for line in [*lines, *("\t".join(row.get(c, "") for c in columns) for row in rows)])


def pair(a: str, b: str, **more: str) -> dict[str, str]:
    return {a: 'The "old" kettle sings .', b: "A kettle makes a noise .", **more}


SENTENCES, QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
PREMISE = ("premise", "hypothesis")

KORSTS = ("genre", "filename", "year", "id", "score", "sentence1", "sentence2")

PUBLISHED: list[tuple[str, str, str, list[Any]]] = [
    # As GLUE publishes them
    ("sst2", "train.tsv", tsv(("sentence", "label"), {"sentence": "a kettle that sings ", "label": "1"}), ["1"]),
    ("sst2", "test.tsv", tsv(("index", "sentence"), {"index": "0", "sentence": "a kettle that is mute ."}), [None]),
    (
        "qqp",
        "train.tsv",
        tsv(QQP_TRAIN, pair(*QUESTIONS, is_duplicate="1"), pair(*QUESTIONS, is_duplicate="0")),
        ["1", "0"],
    ),
    ("qqp", "test.tsv", tsv(("id", *QUESTIONS), pair(*QUESTIONS, id="0")), [None]),
    ("mnli", "train.tsv", tsv(MNLI_TRAIN, pair(*SENTENCES, label1="neutral", gold_label="neutral")), ["neutral"]),
    (
        "mnli",
        "dev_mismatched.tsv",
        tsv(MNLI_DEV, pair(*SENTENCES, label1="neutral", label5="neutral", gold_label="contradiction")),
        ["contradiction"],
    ),
    ("mnli", "test_matched.tsv", tsv(MNLI_TRAIN[:-2], pair(*SENTENCES)), [None]),
    (
        "qnli",
        "train.tsv",
        tsv(("index", "question", "sentence", "label"), pair("question", "sentence", label="entailment")),
        ["entailment"],
    ),
    (
        "ax",
        "diagnostic-full.tsv",
        tsv(("Logic", "Premise", "Hypothesis", "Label"), pair("Premise", "Hypothesis", Label="neutral")),
        ["neutral"],
    ),
    # As their authors do
    (
        "mrpc",
        "msr_paraphrase_train.txt",
        "\ufeff" + tsv(MRPC_TXT, pair("#1 String", "#2 String", Quality="1")).replace("\n", "\r\n"),
        ["1"],
    ),
    (
        "mnli",
        "multinli_1.0_dev_matched.jsonl",
        json_lines({**SNLI_JSON, "gold_label": "-"}, SNLI_JSON),
        [None, "neutral"],
    ),
    ("snli", "snli_1.0_dev.jsonl", json_lines({**SNLI_JSON, "gold_label": "-"}, SNLI_JSON), [None, "neutral"]),
    (
        "snli",
        "snli_1.0_dev.txt",
        tsv(SNLI_TXT, pair(*SENTENCES, gold_label="entailment"), pair(*SENTENCES, gold_label="-")),
        ["entailment", None],
    ),
    (
        "scitail",
        "scitail_1.0_dev.tsv",
        tsv((*PREMISE, "label"), pair(*PREMISE, label="entails"), pair(*PREMISE, label="neutral"), header=False),
        ["entailment", "neutral"],
    ),
    (
        "scitail",
        "scitail_1.0_dev.txt",
        json_lines({**SNLI_JSON, "gold_label": "entailment"}, SNLI_JSON),
        ["entailment", "neutral"],
    ),
    (
        "kornli",
        "snli_1.0_train.ko.tsv",
        tsv((*SENTENCES, "gold_label"), pair(*SENTENCES, gold_label="neutral")),
        ["neutral"],
    ),
    (
        "klue-ynat",
        "ynat-v1.1_train.json",
        json.dumps([{"guid": "0", "title": "새 기차역이 열렸다", "label": "사회", "annotations": {}}], indent=4),
        ["사회"],
    ),
    ("klue-sts", "klue-sts-v1.1_test.json", json.dumps([{"guid": "0", **pair(*SENTENCES)}]), [None]),
    # As the Hugging Face hub exports them
    ("cola", "train.jsonl", json_lines({"sentence": "The tea was drunk.", "label": 1, "idx": 0}), ["1"]),
    ("mrpc", "test.jsonl", json_lines({**pair(*SENTENCES), "label": -1, "idx": 0}), [None]),
    (
        "stsb",
        "train.jsonl",
        json_lines({**pair(*SENTENCES), "label": 3.8, "idx": 0}, {**pair(*SENTENCES), "label": -1.0}),
        [3.8, None],
    ),
    ("qqp", "train.jsonl", json_lines({**pair(*QUESTIONS), "label": 0, "idx": 0}), ["0"]),
    (
        "mnli",
        "train.jsonl",
        json_lines(*({**pair(*PREMISE), "label": n} for n in (0, 1, 2, -1))),
        ["entailment", "neutral", "contradiction", None],
    ),
    ("qnli", "train.jsonl", json_lines({**pair("question", "sentence"), "label": 0}), ["entailment"]),
    ("rte", "train.jsonl", json_lines({**pair(*SENTENCES), "label": 1}), ["not_entailment"]),
    ("wnli", "train.jsonl", json_lines({**pair(*SENTENCES), "label": 1}), ["1"]),
    ("snli", "train.jsonl", json_lines({**pair(*PREMISE), "label": 2}), ["contradiction"]),
    ("korsts", "sts-dev.tsv", tsv(KORSTS, pair(*SENTENCES, id="1", score="2.400")), [2.4]),
    ("nsmc", "ratings_test.txt", "id\tdocument\tlabel\n1\t주전자가 노래한다\t1\n", ["1"]),
    ("kornli", "train.jsonl", json_lines({**pair(*PREMISE), "label": 1}), ["neutral"]),
    ("klue-nli", "train.jsonl", json_lines({**pair(*PREMISE), "label": 0}), ["entailment"]),
    ("klue-ynat", "train.jsonl", json_lines({"title": "새 기차역이 열렸다", "label": 2}), ["사회"]),
]


@pytest.mark.parametrize(("name", "file", "content", "labels"), PUBLISHED, ids=[f"{p[0]}-{p[1]}" for p in PUBLISHED])
def test_published_layouts(tmp_path: Path, name: str, file: str, content: str, labels: list[Any]) -> None:
    path = write(tmp_path / file, content)
    task = new_task(name)
    for fitted in (task, task.fit_to(path)):
        examples = list(fitted.load(path, ExampleCounts(), unlabelled=True))
        assert [example.label for example in examples] == labels
        assert all(example.text_a and example.text_b != "" for example in examples)
        assert {example.text_b is None for example in examples} == {not fitted.fit_to(path).files.is_pair}
    if None in labels and set(labels) != {None}:
        counts = ExampleCounts()
        assert [e.label for e in task.load(path, counts)] == [label for label in labels if label is not None]
        assert counts.unlabelled == labels.count(None)


def test_broken_rows_of_qqp_are_counted_and_other_ragged_rows_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    whole = tsv(QQP_TRAIN, pair(*QUESTIONS, is_duplicate="1"))
    path.write_text(whole + "7\t8\t9\tWhy is\nthis here?\tWhat is this?\t0\n")
    counts = ExampleCounts()
    assert [example.label for example in new_task("qqp").load(path, counts)] == ["1"]
    assert counts.notes == {f"rows of too few fields left out, as the published file has them ({path}:3, {path}:4)": 2}
    path.write_text(whole + "7\t8\t9\ta\tb\t0\textra\n")
    with pytest.raises(InputError, match=r"train\.tsv:3: 7 fields where the header has 6"):
        list(new_task("qqp").load(path, ExampleCounts()))
    path.write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tentailment\n")
    with pytest.raises(InputError, match=r"train\.tsv:2: 3 fields where the header has 4"):
        list(new_task("rte").load(path, ExampleCounts()))


def test_parquet_of_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001.parquet"
    labels = {"label": 3.7, "real-label": 3.714285714, "binary-label": 1}
    parquet.write_table(pyarrow.Table.from_pylist([{**pair(*SENTENCES), "labels": labels}]), path)
    assert labels_of("klue-sts", path) == [3.714285714]


def test_files_of_a_data_set_may_have_different_layouts(tmp_path: Path) -> None:
    """Trained on GLUE's file, measured on the hub's."""
    train = write(tmp_path / "train.tsv", tsv(MNLI_TRAIN, pair(*SENTENCES, gold_label="neutral")))
    dev = write_rows(tmp_path / "dev.jsonl", {**pair(*PREMISE), "label": 2})
    task = new_task("mnli").fit_to(train)
    assert task.files.columns.texts == SENTENCES
    assert [example.label for example in task.load(dev, ExampleCounts())] == ["contradiction"]


@pytest.mark.parametrize(("suffix", "is_noted"), [(".tsv", True), (".jsonl", False)])
def test_numbers_in_a_table_are_noted_where_labels_are_names(tmp_path: Path, suffix: str, is_noted: bool) -> None:
    """In WNLI's own file 1 is entailment, in RTE's names and the hub's numbers 0 is."""
    row = {**pair(*SENTENCES), "label": 1}
    lines = ["\t".join(map(str, cells)) for cells in (row, row.values())]
    path = write(tmp_path / f"dev{suffix}", "\n".join(lines) if suffix == ".tsv" else json_lines(row))
    counts, task = ExampleCounts(), new_task("rte")
    assert [example.label for example in task.load(path, counts)] == ["not_entailment"]
    noted = "labels that are numbers, taken for ids (0 entailment, 1 not_entailment)"
    assert counts.notes == ({noted: 1} if is_noted else {})


def test_a_label_that_is_no_number_of_one_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", {**pair(*PREMISE), "label": 3})
    with pytest.raises(InputError, match=r"a\.jsonl:1: the label '3' is none of the known ones \(entailment, neutral"):
        labels_of("mnli", path)
