"""What the tagging task reads: labels, schemes, documents, inputs of `predict`, and published files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import pytest

from support.files import json_lines, write, write_rows
from support.tagging import KLUE, POS, TASK, tagging_task
from unmask.errors import InputError, SettingsError
from unmask.io.input_files import DataPath, InputFiles
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.tagging.examples import TaggingExample
from unmask.tasks.tagging.schemes import find_entities
from unmask.tasks.tagging.task import Tagging, open_task


def load(task: Tagging, path: DataPath, **options: bool) -> tuple[list[TaggingExample], dict[str, int]]:
    counts = ExampleCounts()
    return list(task.load(path, counts, **options)), counts.notes


def test_labels_come_from_the_training_file_and_are_complete(tmp_path: Path) -> None:
    unlabelled = tagging_task(labels=None)
    path = write(tmp_path / "a.conll", "a\tO\nb\tI-b\nc\tB-b\n\nd\tI-a\n")  # IOB1
    task = unlabelled.fit_to(path)
    assert task.labels == ("O", "B-a", "I-a", "B-b", "I-b")
    assert task.fit_to(write(tmp_path / "b.conll", "a O\n")) == task
    examples, notes = load(task, path)
    assert [one.tags for one in examples] == [("O", "B-b", "B-b"), ("B-a",)]
    assert not notes
    path = write(tmp_path / "c.morph", "나는\t나/NP+는/JX\n간다\t가/VV+ㄴ다/EF\n")
    assert unlabelled.fit_to(path).labels == ("NP+JX", "VV+EF")
    tags = write(tmp_path / "p.conll", "the\tDT\nx\tB-x\n")  # with another tag and no O: no entities
    assert len(load(unlabelled.fit_to(tags), tags)[0]) == 1
    path = write(tmp_path / "d.jsonl", '{"text": "in Oslo", "entities": [[3, 7, "LOC"]]}\n')
    assert unlabelled.fit_to(path).labels == ("O", "B-LOC", "I-LOC")
    many = "".join(f"w\tT{number}\n" for number in range(10_001))
    with pytest.raises(InputError, match=r"e\.conll: 10,001 different tags, over 10,000: check that they are tags"):
        unlabelled.fit_to(write(tmp_path / "e.conll", many))


def test_a_json_list_is_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '[{"tokens": ["in", "Oslo"], "tags": ["O", "B-LOC"]}]')
    task = tagging_task(labels=None).fit_to(path)
    assert [one.tags for one in load(task, path)[0]] == [("O", "B-LOC")]


def test_types_without_a_prefix_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.conll", "in\tO\nOslo\tLOC\nAda\tPER\n")
    task = tagging_task(labels=None).fit_to(path)
    load(task, path)
    assert task.labels == ("LOC", "O", "PER")
    [told] = caplog.messages
    assert "a.conll: no tag begins with B- or I-" in told
    assert told.endswith("no entities will be found: if LOC is an entity's type, write I-LOC")
    caplog.clear()
    tagging_task(labels=None).fit_to(write(tmp_path / "b.conll", "in\tADP\nOslo\tPROPN\n"))
    assert not caplog.messages


def test_characters_are_tagged_where_entities_end_inside_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "김철수는 서울에서 이영희를 만났다."
    row = {"text": text, "entities": [[0, 3, "PS"], [5, 7, "LC"], [10, 13, "PS"]]}
    path = write_rows(tmp_path / "a.jsonl", row)
    with caplog.at_level("INFO", "unmask"):
        task = tagging_task(labels=None).fit_to(path)
    assert "the entity '김철수' (PS) ends inside the word '김철수는': so characters are tagged" in caplog.text
    assert (task.settings.units, task.remembered()["units"]) == ("characters", "characters")
    ((one,), notes) = load(task, path)
    names = [one.between(entity.first, entity.end) for entity in find_entities(one.tags or ())]
    assert names == ["김철수", "서울", "이영희"]
    assert not notes
    assert task.read(Row({"text": "가 나"}, "x:1")).words == ["가", " ", "나"]
    with pytest.raises(InputError, match=r"a\.jsonl:1: .* and words are tagged: train with task\.units=characters"):
        load(tagging_task(labels=None, units="words"), path)
    words = write(tmp_path / "b.jsonl", '{"text": "in Oslo.", "entities": [[3, 7, "LOC"]]}\n')
    assert tagging_task(labels=None).fit_to(words).settings.units is None
    with pytest.raises(SettingsError, match="klue-ner tags characters"):
        tagging_task(name="klue-ner", labels=None, units="words")


def test_a_few_entities_that_end_inside_words_are_asked_about(tmp_path: Path) -> None:
    right, wrong = (json_lines({"text": "in Oslo", "entities": [[3, end, "LOC"]]}) for end in (7, 6))
    path = write(tmp_path / "a.jsonl", right * 20 + wrong)
    told = (
        r"a\.jsonl:21: the entity 'Osl' \(LOC\) ends inside the word 'Oslo', as in 1 of 21 sentences: correct such "
        r"places, or tag characters in place of words with task\.units=characters"
    )
    with pytest.raises(InputError, match=told):
        tagging_task(labels=None).fit_to(path)
    tokens = json_lines({"tokens": ["in", "Oslo"], "entities": [[3, 6, "LOC"]]})  # which no unit changes
    with pytest.raises(InputError, match=told):
        tagging_task(labels=None).fit_to(write(tmp_path / "a.jsonl", right * 20 + tokens))
    write(path, right * 20 + wrong)
    asked = tagging_task(labels=None, units="characters").fit_to(path)
    assert asked.labels == ("O", "B-LOC", "I-LOC")
    many = write(tmp_path / "b.jsonl", right * 19 + wrong)
    assert tagging_task(labels=None).fit_to(many).settings.units == "characters"


def test_a_table_of_one_word_a_row_is_refused(tmp_path: Path) -> None:
    header, rows = "Sentence #,Word,POS,Tag\n", "Sentence: 1,London,NNP,B-geo\n,is,VBZ,O\n,[,LRB,O\n"
    task = open_task(TaskSettings(name="tagging"), ColumnSettings(tokens="Word", tags="Tag"))
    told = (
        r"a\.csv: each of its 12 rows has at most one word in the column 'Word', such as 'London': expected a "
        r"sentence a row, .* Join the rows of each sentence, or write .* \.conll .*; a sentence of one word "
        r".* \[\"London\"\]"
    )
    with pytest.raises(InputError, match=told):
        task.fit_to(write(tmp_path / "a.csv", header + rows * 4))
    lists = write(tmp_path / "b.csv", header + rows * 4 + 'x,"[""Oslo""]",NNP,"[""B-geo""]"\n')
    for path in (write(tmp_path / "few.csv", header + rows * 3), lists):  # few, or said to be sentences of one word
        assert task.fit_to(path).labels == ("O", "B-geo", "I-geo")


def test_a_possessive_leaves_the_units_of_a_file_at_words(tmp_path: Path) -> None:
    rows = [{"text": "in Oslo.", "entities": [[3, 7, "LOC"]]}, {"text": "Ada's cat", "entities": [[0, 3, "PER"]]}]
    path = write_rows(tmp_path / "a.jsonl", *rows)
    for task in (tagging_task(labels=None).fit_to(path), tagging_task(labels=None, units="words").fit_to(path)):
        assert not task.tags_characters
        (_, example), _ = load(task, path)
        assert (example.words, example.tags) == (["Ada", "'s", "cat"], ("B-PER", "O", "O"))
    assert tagging_task().read(Row({"text": "Ada’s cat"}, "x:1")).words == ["Ada", "’s", "cat"]


def test_published_data_sets_know_their_labels_and_figures() -> None:
    wnut17 = tagging_task(name="wnut17", labels=None)
    assert KLUE.labels[:3] == ("O", "B-DT", "I-DT")
    assert (len(KLUE.labels), len(wnut17.labels)) == (13, 13)
    assert "surface_f1" in wnut17.score().metrics(), "its second published one"
    assert "surface_f1" not in KLUE.score().metrics()


def test_broken_tags_are_repaired_and_counted_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a\tB-X\nb\tI-X\n\nc\tO\nd\tI-Y\ne\tI-X\n")
    examples, notes = load(TASK, path)
    assert examples[1].tags == ("O", "B-Y", "B-X")
    assert notes == {"tags that broke their scheme and were repaired": 2}
    with pytest.raises(InputError, match=r"a\.conll:5: the tag 'I-Y' breaks the scheme BIO: .* read as 'B-Y'"):
        load(tagging_task(repair_tags=False), path)
    path = write(tmp_path / "b.jsonl", '{"tokens": "a b", "tags": "B-X O"}\n{"tokens": "a b", "tags": "O I-X"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl:2, word 2: the tag 'I-X' breaks the scheme BIO"):
        load(tagging_task(repair_tags=False), path)


def test_iobes_and_iob1_become_bio_without_a_word(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a S-X\nb B-Y\nc I-Y\nd E-Y\ne O\n")
    examples, notes = load(tagging_task(repair_tags=False), path)
    assert examples[0].tags == ("B-X", "B-Y", "I-Y", "I-Y", "O")
    assert not notes
    path = write(tmp_path / "b.conll", "a I-PER\nb I-PER\nc I-LOC\n")
    examples, notes = load(tagging_task(name="wikigold", labels=None, repair_tags=False), path)
    assert examples[0].tags == ("B-PER", "I-PER", "B-LOC")
    assert not notes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\tO\n\nb\tB-Z\n", r"a\.conll:3: the tag 'B-Z' is none of the known ones \(O, B-X, I-X"),
        ("a\tO\nb\tB-X\nc\tX\n", r"a\.conll:3: 'X' among tags of entities: expected O, or B- or I- and a type"),
        ("\n\n", r"a\.conll: not a single sentence"),
        ("a\n", r"a\.conll:1: no column 'tags' for the tags"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load(TASK, write(tmp_path / "a.conll", text))


def test_words_alone_are_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "# text = #He was\n#He\nwas\n\nborn\n")
    for task in (TASK, tagging_task(name="wnut17", labels=None)):
        assert [row.fields for row in task.load_rows(path)] == [{"tokens": ["#He", "was"]}, {"tokens": ["born"]}]


def test_unknown_tags_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.conll:1: the tag 'ADJ' is none of the known ones \(NOUN, VERB, X\)"):
        load(POS, write(tmp_path / "a.conll", "a ADJ\n"))


def test_rows_without_tags_are_read_where_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"tokens": "a b"}\n{"tokens": "a b", "tags": "O B-X"}\n')
    examples, _ = load(TASK, path, unlabelled=True)
    assert [one.tags for one in examples] == [None, ("O", "B-X")]
    with pytest.raises(InputError, match=r"a\.jsonl:1: no column 'tags' for the tags"):
        load(TASK, path)


def test_documents_give_context(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a O\n\nb O\n\n-DOCSTART- O\n\nc O\n")
    task = tagging_task(document_context=True)
    assert [(one.left, one.right) for one in load(task, path)[0]] == [((), ("b",)), (("a",), ()), ((), ())]
    assert load(TASK, path)[0][0].right == ()
    two = InputFiles(tuple(write(tmp_path / f"{name}.conll", f"-DOCSTART- O\n\n{name} O\n") for name in "yz"))
    assert [(one.left, one.right) for one in load(task, two)[0]] == [((), ()), ((), ())]
    with pytest.raises(InputError, match=r"c\.conll:1: .* nothing says which sentences belong together"):
        load(task, write(tmp_path / "c.conll", "a O\n\nb O\n"))
    with pytest.raises(InputError, match="nothing says which sentences belong together"):
        load(replace(task, data_set=tagging_task(name="wnut17").data_set), write(tmp_path / "b.conll", "a O\n"))


def test_inputs_of_predict() -> None:
    assert TASK.read(Row({"text": "Ada, hi"}, "x:1")).words == ["Ada", ",", "hi"]
    assert POS.read(Row({"text": "Ada, hi"}, "x:1")).words == ["Ada,", "hi"]
    assert KLUE.read(Row({"text": "가 나"}, "x:1")).words == ["가", " ", "나"]
    assert TASK.read(Row({"tokens": ["Ada", ","], "tags": "nonsense"}, "x:1")).tags is None
    with pytest.raises(InputError, match="x:1: no column 'tokens'"):
        TASK.read(Row({"sentence": "a"}, "x:1"))


def test_inputs_of_predict_have_the_context_of_their_document(caplog: pytest.LogCaptureFixture) -> None:
    documents = {"a": "1", "b": "1", "c": "2", "d": "2"}
    rows = [Row({"tokens": [word], "document": number}, f"x:{word}") for word, number in documents.items()]
    read = list(tagging_task(document_context=True).read_all(rows))
    assert [(one.left, one.right) for one in read] == [((), ("b",)), (("a",), ()), ((), ("d",)), (("c",), ())]
    assert [one.right for one in TASK.read_all(rows)] == [()] * 4
    assert not caplog.text
    bare = [Row({"tokens": [word]}, f"x:{word}") for word in "abc"]
    task = tagging_task(document_context=True)
    for _ in range(2):  # two requests to a server
        assert [one.right for one in task.read_all([*bare, *rows])][:4] == [(), (), (), ("b",)]
    assert caplog.text.count("x:a: it does not name its document") == len(caplog.records) == 1


def test_words_where_characters_are_tagged_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"tokens": ["이순신은", "나", "조선의", "왔다"], "tags": ["B-PS", "O", "B-LC", "O"]}
    rows = [Row(fields, f"x:{number}") for number in (1, 2)]
    path, characters = write_rows(tmp_path / "a.jsonl", fields), {"tokens": [*"나 왔다"], "tags": ["O"] * 4}
    decomposed = [normalize("NFD", character) for character in "나 왔다"]
    for task in (TASK, KLUE):
        list(task.read_all([Row(characters, "x:0"), Row({"text": "나는 왔다"}, "x:0")]))
        assert task.read(Row({"tokens": decomposed}, "x:0")).words == decomposed
    list(tagging_task(labels=None).load(path, ExampleCounts()))
    assert not caplog.text
    task = tagging_task(name="klue-ner", labels=None)
    for _ in range(2):  # two requests to a server
        read = list(task.read_all(rows))
    assert read[0].words == [*"이순신은 나 조선의 왔다"], "as the text that they make"
    assert task.read(Row({"tokens": ["나", "는", "서울에서", "산", "다"]}, "x:3")).words == [*"나는서울에서산다"]
    assert (
        caplog.text.count("x:1: words, such as '이순신은', and characters are tagged here") == len(caplog.records) == 1
    )
    caplog.clear()
    list(tagging_task(name="klue-ner", labels=None).load(path, ExampleCounts()))
    assert f"{path}:1: words, such as '이순신은'" in caplog.text


def test_rows_of_published_files_are_inputs_of_predict(tmp_path: Path) -> None:
    (row,) = KLUE.load_rows(write(tmp_path / "dev.tsv", "## made-1\t<가:PS> 나\n가\tB-PS\n \tO\n나\tO\n"))
    assert KLUE.read(row).text == "가 나"
    assert row.fields["id"] == "made-1"


def test_columns_of_the_user_and_the_usual_ones() -> None:
    columns = ColumnSettings(tokens="words", tags="ner")
    strict = open_task(TaskSettings(name="tagging"), columns)
    lenient = open_task(TaskSettings(name="tagging"), columns, lenient=True)
    row = Row({"tokens": ["a"], "text": "b c"}, "x:1")
    assert (strict.layout.tokens, lenient.layout.tokens) == (("words",), ("words", "tokens"))
    assert lenient.read(row).words == ["a"]
    assert strict.remembered()["columns"] == {"tokens": "words", "tags": "ner"}


def test_what_a_model_remembers_opens_the_same_task() -> None:
    task = tagging_task(doc_stride=9, document_context=True, repair_tags=False)
    remembered = task.remembered()
    columns = ColumnSettings.model_validate(remembered.pop("columns"))
    again = open_task(TaskSettings.model_validate({**remembered, "labels": list(task.labels)}), columns)
    assert again == task


def test_published_files_are_read_whole(data_dir: Path) -> None:
    for name, file, num_examples, num_entities in (
        ("wnut17", "wnut17/train.conll", 3_394, 1_975),
        ("wikigold", "wikigold/wikigold.conll.txt", 1_696, 3_558),
        ("klue-ner", "klue-ner/klue-ner-v1.1_dev.tsv", 5_000, 14_257),
    ):
        examples, notes = load(tagging_task(name=name, labels=None, repair_tags=False), data_dir / "tasks" / file)
        begun = sum(tag.startswith("B-") for one in examples for tag in one.tags or ())
        assert (len(examples), begun, notes) == (num_examples, num_entities, {}), file
