"""The tagging task: labels, schemes, the loss, what is decoded, and that it learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import InputError, ModelError, SettingsError
from unmask.models.encoder import new_encoder
from unmask.models.hub import load_encoder
from unmask.models.settings import EncoderSettings
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import Row
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.tagging import Tagging, open_task
from unmask.tasks.tagging_module import TaggingModule
from unmask.tasks.tagging_rows import TaggingExample
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

SETTINGS: dict[str, Any] = {"name": "tagging", "labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "max_length": 24}


def task_of(**settings: Any) -> Tagging:
    return open_task(TaskSettings.model_validate({**SETTINGS, **settings}), ColumnSettings())


TASK = task_of(doc_stride=8)
POS = task_of(labels=["NOUN", "VERB", "X"])
KLUE = task_of(name="klue-ner", labels=None, max_length=64)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TextTokenizer:
    return load_tokenizer(tiny_model)


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def load(task: Tagging, path: Path, **options: bool) -> tuple[list[TaggingExample], dict[str, int]]:
    counts = ExampleCounts()
    return list(task.load(path, counts, **options)), counts.notes


def sentence(words: str, tags: str | None = None, task: Tagging = TASK) -> TaggingExample:
    example = task.read(Row({"tokens": words.split(" ")}, "x:1"))
    return replace(example, tags=None if tags is None else tuple(tags.split()))


def logits_for(encoded: EncodedExamples, task: Tagging, said: Sequence[str]) -> torch.Tensor:
    """Outputs that say these tags at the answering tokens, one after another, each with probability .9."""
    outputs = torch.zeros(len(encoded.input_ids), len(task.labels))
    answering = np.flatnonzero(encoded.alignment["num_units"])
    odds = 9 * (len(task.labels) - 1)  # to each other label 1
    for token, tag in zip(answering, said, strict=True):
        outputs[token, task.labels.index(tag)] = float(np.log(odds))
    return outputs


# Reading.


def test_labels_come_from_the_training_file_and_are_complete(tmp_path: Path) -> None:
    unlabelled = task_of(labels=None)
    path = write(tmp_path / "a.conll", "a\tO\nb\tI-b\nc\tB-b\n\nd\tI-a\n")  # IOB1
    task = unlabelled.fit_to(path)
    assert task.labels == ("O", "B-a", "I-a", "B-b", "I-b")
    assert task.fit_to(write(tmp_path / "b.conll", "a O\n")) is task
    examples, notes = load(task, path)
    assert [one.tags for one in examples] == [("O", "B-b", "B-b"), ("B-a",)]
    assert not notes
    path = write(tmp_path / "c.morph", "나는\t나/NP+는/JX\n간다\t가/VV+ㄴ다/EF\n")
    assert unlabelled.fit_to(path).labels == ("NP+JX", "VV+EF")
    path = write(tmp_path / "d.jsonl", '{"text": "in Oslo", "entities": [[3, 7, "LOC"]]}\n')
    assert unlabelled.fit_to(path).labels == ("O", "B-LOC", "I-LOC")
    many = "".join(f"w\tT{number}\n" for number in range(10_001))
    with pytest.raises(InputError, match=r"e\.conll: 10,001 different tags, over 10,000: check that they are tags"):
        unlabelled.fit_to(write(tmp_path / "e.conll", many))


def test_published_data_sets_know_their_labels() -> None:
    assert KLUE.labels[:3] == ("O", "B-DT", "I-DT")
    assert len(KLUE.labels) == 13
    assert len(task_of(name="wnut17", labels=None).labels) == 13


def test_wnut17_has_a_second_published_figure() -> None:
    task = task_of(name="wnut17", labels=None)
    assert "surface_f1" in task.score().metrics()
    assert "surface_f1" not in KLUE.score().metrics()


def test_broken_tags_are_mended_and_counted_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a\tB-X\nb\tI-X\n\nc\tO\nd\tI-Y\ne\tI-X\n")
    examples, notes = load(TASK, path)
    assert examples[1].tags == ("O", "B-Y", "B-X")
    assert notes == {"tags that broke their scheme and were mended": 2}
    with pytest.raises(InputError, match=r"a\.conll:5: the tag 'I-Y' breaks the scheme BIO: .* read as 'B-Y'"):
        load(task_of(repair_tags=False), path)
    path = write(tmp_path / "b.jsonl", '{"tokens": "a b", "tags": "B-X O"}\n{"tokens": "a b", "tags": "O I-X"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl:2, word 2: the tag 'I-X' breaks the scheme BIO"):
        load(task_of(repair_tags=False), path)


def test_iobes_and_iob1_become_bio_without_a_word(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "a S-X\nb B-Y\nc I-Y\nd E-Y\ne O\n")
    examples, notes = load(task_of(repair_tags=False), path)
    assert examples[0].tags == ("B-X", "B-Y", "I-Y", "I-Y", "O")
    assert not notes
    path = write(tmp_path / "b.conll", "a I-PER\nb I-PER\nc I-LOC\n")
    examples, notes = load(task_of(name="wikigold", labels=None, repair_tags=False), path)
    assert examples[0].tags == ("B-PER", "I-PER", "B-LOC")
    assert not notes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\tO\n\nb\tB-Z\n", r"a\.conll:3: the tag 'B-Z' is none of the known ones \(O, B-X, I-X"),
        ("a\tO\nb\tB-X\nc\tX\n", r"a\.conll:3: 'X' among tags of entities: expected O, or B- or I- and a type"),
        ("\n\n", r"a\.conll: not a single sentence"),
        ("a\n", r"a\.conll:1: 'a' has 1 columns"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load(TASK, write(tmp_path / "a.conll", text))


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
    task = task_of(document_context=True)
    assert [(one.left, one.right) for one in load(task, path)[0]] == [((), ("b",)), (("a",), ()), ((), ())]
    assert load(TASK, path)[0][0].right == ()
    with pytest.raises(InputError, match=r"c\.conll:1: .* nothing says which sentences belong together"):
        load(task, write(tmp_path / "c.conll", "a O\n\nb O\n"))
    with pytest.raises(InputError, match="nothing says which sentences belong together"):
        load(replace(task, data_set=task_of(name="wnut17").data_set), write(tmp_path / "b.conll", "a O\n"))


def test_inputs_of_predict() -> None:
    assert TASK.read(Row({"text": "Ada, hi"}, "x:1")).words == ["Ada", ",", "hi"]
    assert POS.read(Row({"text": "Ada, hi"}, "x:1")).words == ["Ada,", "hi"]
    assert KLUE.read(Row({"text": "가 나"}, "x:1")).words == ["가", " ", "나"]
    assert TASK.read(Row({"tokens": ["Ada", ","], "tags": "nonsense"}, "x:1")).tags is None
    with pytest.raises(InputError, match="x:1: no column 'tokens'"):
        TASK.read(Row({"sentence": "a"}, "x:1"))


def test_inputs_of_predict_have_the_context_of_their_document(caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        Row({"tokens": [word], "document": document}, f"x:{word}")
        for word, document in zip("abcd", "1122", strict=True)
    ]
    read = list(task_of(document_context=True).read_all(rows))
    assert [(one.left, one.right) for one in read] == [((), ("b",)), (("a",), ()), ((), ("d",)), (("c",), ())]
    assert [one.right for one in TASK.read_all(rows)] == [()] * 4
    assert not caplog.text
    bare = [Row({"tokens": [word]}, f"x:{word}") for word in "abc"]
    assert [one.right for one in task_of(document_context=True).read_all([*bare, *rows])][:4] == [(), (), (), ("b",)]
    assert caplog.text.count("no input names its document") == 1


def test_rows_of_published_files_are_inputs_of_predict(tmp_path: Path) -> None:
    (row,) = KLUE.load_rows(write(tmp_path / "dev.tsv", "## made-1\t<가:PS> 나\n가\tB-PS\n \tO\n나\tO\n"))
    assert KLUE.read(row).text == "가 나"
    assert row.fields["id"] == "made-1"


def test_columns_of_the_user_and_the_usual_ones() -> None:
    columns = ColumnSettings(tokens="words", tags="ner")
    strict = open_task(TaskSettings(name="tagging"), columns)
    lenient = open_task(TaskSettings(name="tagging"), columns, lenient=True)
    row = Row({"tokens": ["a"], "text": "b c"}, "x:1")
    assert (strict.columns.tokens, lenient.columns.tokens) == (("words",), ("words", "tokens"))
    assert lenient.read(row).words == ["a"]
    assert strict.remembered()["columns"] == {"tokens": "words", "tags": "ner"}
    with pytest.raises(SettingsError, match=r"data\.columns\.question is not for tagging"):
        open_task(TaskSettings(name="tagging"), ColumnSettings(question="q"))


def test_what_a_model_remembers_opens_the_same_task() -> None:
    task = task_of(doc_stride=9, document_context=True, repair_tags=False)
    remembered = task.remembered()
    columns = ColumnSettings.model_validate(remembered.pop("columns"))
    again = open_task(TaskSettings.model_validate({**remembered, "labels": list(task.labels)}), columns)
    assert again == task


# Encoding and answering.


def test_counts_tell_what_has_no_token(tokenizer: TextTokenizer) -> None:
    counts = ExampleCounts()
    TASK.encode([sentence("a \u200b"), TASK.read(Row({"tokens": []}, "x:2"))], tokenizer, counts)
    assert counts.summary() == "2 examples, 1 without any text, 1 words that encode to nothing"
    counts = ExampleCounts()
    KLUE.encode([KLUE.read(Row({"text": "a \u200bb"}, "x:1"))], tokenizer, counts)
    assert counts.notes == {"characters that encode to nothing": 1}  # the blank is none


def test_decoded_with_places_and_probabilities(tokenizer: TextTokenizer) -> None:
    examples = [sentence("Ada Lovelace saw London"), sentence("rain")]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    decoded = TASK.decode(examples, encoded, logits_for(encoded, TASK, ["B-X", "I-X", "O", "B-Y", "I-X"]))
    assert [one["tags"] for one in decoded] == [["B-X", "I-X", "O", "B-Y"], ["I-X"]]  # as said
    assert decoded[0]["tokens"] == ["Ada", "Lovelace", "saw", "London"]
    near = pytest.approx(0.9, abs=1e-6)  # of float32's softmax
    assert decoded[0]["entities"] == [
        {"label": "X", "start": 0, "end": 12, "text": "Ada Lovelace", "score": near},
        {"label": "Y", "start": 17, "end": 23, "text": "London", "score": near},
    ]
    assert decoded[1]["entities"] == [{"label": "X", "start": 0, "end": 4, "text": "rain", "score": near}]
    json.dumps(decoded)


def test_words_without_token_are_in_the_entity_around_them_or_o(tokenizer: TextTokenizer) -> None:
    example = sentence("\u200b Ada \u200b \u200d Lovelace \u200b saw \u200b")
    encoded = TASK.encode([example], tokenizer, ExampleCounts())
    for said, tags in (
        (["B-X", "I-X", "O"], "O B-X I-X I-X I-X O O O"),
        (["B-X", "B-X", "I-X"], "O B-X O O B-X I-X I-X O"),
        (["B-X", "I-Y", "O"], "O B-X O O I-Y O O O"),
    ):
        (decoded,) = TASK.decode([example], encoded, logits_for(encoded, TASK, said))
        assert decoded["tags"] == tags.split()
    (decoded,) = TASK.decode([example], encoded, logits_for(encoded, TASK, ["B-X", "I-X", "O"]))
    assert [one["text"] for one in decoded["entities"]] == ["Ada \u200b \u200d Lovelace"]
    example = sentence("\u200b a \u200b", task=POS)
    encoded = POS.encode([example], tokenizer, ExampleCounts())
    assert POS.decode([example], encoded, logits_for(encoded, POS, ["VERB"]))[0] == {
        "tokens": ["\u200b", "a", "\u200b"],
        "tags": ["VERB", "VERB", "VERB"],
        "entities": [],
    }
    nothing = sentence("\u200b", task=POS)
    encoded = POS.encode([nothing], tokenizer, ExampleCounts())
    assert POS.decode([nothing], encoded, logits_for(encoded, POS, []))[0]["tags"] == ["NOUN"]


def test_tokens_spread_their_tag_over_their_characters(tokenizer: TextTokenizer) -> None:
    (man, unknown) = tokenizer.tokens([*tokenizer.encode_batch(["man"])[0], *tokenizer.encode_batch(["가나"])[0]])
    assert (man, unknown) == ("man", "[UNK]")
    example = KLUE.read(Row({"text": "man 가나 man"}, "x:1"))
    encoded = KLUE.encode([example], tokenizer, ExampleCounts())
    (decoded,) = KLUE.decode([example], encoded, logits_for(encoded, KLUE, ["B-PS", "I-PS", "O"]))
    assert decoded["tags"] == ["B-PS", *["I-PS"] * 5, *["O"] * 4]
    assert decoded["entities"] == [
        {"label": "PS", "start": 0, "end": 6, "text": "man 가나", "score": pytest.approx(0.9, abs=1e-6)}
    ]


words = st.lists(st.sampled_from(["a", "man", "walking", "zzz", "\u200b", "가나다", "X.", "a\u00a0b"]), max_size=40)


@settings(max_examples=40, deadline=None)
@given(st.lists(words, min_size=1, max_size=3), st.integers(3, 20), st.integers(1, 24), st.data())
def test_every_unit_gets_exactly_one_tag_and_gold_comes_back(
    tokenizer: TextTokenizer, sentences: list[list[str]], max_length: int, stride: int, data: st.DataObject
) -> None:
    task = replace(TASK, max_length=max_length, doc_stride=stride)
    tag = st.sampled_from(task.labels)
    examples = []
    for its_words in sentences:
        tags = data.draw(st.lists(tag, min_size=len(its_words), max_size=len(its_words)))
        examples.append(replace(task.read(Row({"tokens": its_words}, "x:1")), tags=tuple(tags)))
    encoded = task.encode(examples, tokenizer, ExampleCounts())
    labels = encoded.token_columns["labels"]
    outputs = torch.nn.functional.one_hot(torch.from_numpy(np.maximum(labels, 0)), len(task.labels)).float()
    for example, decoded in zip(examples, task.decode(examples, encoded, outputs), strict=True):
        assert len(decoded["tags"]) == len(example.units)
        for word, true, said in zip(example.words, example.tags or (), decoded["tags"], strict=True):
            assert said in task.labels
            assert said == true or word == "\u200b"


def test_ensembles_average_probabilities() -> None:
    first, second = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([[3.0, 1.0], [2.0, 5.0]])
    combined = TASK.combine([first, second])
    expected = (first.softmax(-1) + second.softmax(-1)) / 2
    assert torch.allclose(combined.softmax(-1), expected, atol=1e-6)  # float32


def test_floors_are_what_saying_o_comes_to(tokenizer: TextTokenizer) -> None:
    examples = [sentence("a man walking", "O B-X O"), sentence("zzz", "O")]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    floors = TASK.floors(encoded, encoded)
    assert floors == {"overall_accuracy": {"all O": 0.75}, "overall_f1": {"all O": 0.0}}
    score = TASK.score()
    score.add(examples, TASK.decode(examples, encoded, logits_for(encoded, TASK, ["O"] * 4)))
    assert {name: score.metrics()[name] for name in floors} == {"overall_accuracy": 0.75, "overall_f1": 0.0}
    assert score.degenerate() == "all 4 words are tagged O"
    assert TASK.floors(encoded, encoded.without_alignment()) == floors
    characters = KLUE.read(Row({"text": "가나 man"}, "x:1"))
    characters = replace(characters, tags=("B-PS", "I-PS", "O", "O", "O", "O"))
    encoded = KLUE.encode([characters], tokenizer, ExampleCounts())
    assert KLUE.floors(encoded, encoded)["overall_accuracy"] == {"all O": 0.6}  # without the blank
    tagged = [sentence("a man walking zzz", "NOUN NOUN VERB NOUN", POS)]
    encoded = POS.encode(tagged, tokenizer, ExampleCounts())
    score = POS.score()
    score.add(tagged, POS.decode(tagged, encoded, logits_for(encoded, POS, ["NOUN"] * 4)))
    assert POS.floors(encoded, encoded) == {
        name: {"all NOUN": pytest.approx(value)} for name, value in score.metrics().items()
    }


def test_one_tag_alone_teaches_nothing(tokenizer: TextTokenizer) -> None:
    one = TASK.encode([sentence("a man", "O O")], tokenizer, ExampleCounts())
    with pytest.raises(InputError, match=r"a\.conll: every word is tagged O: nothing can be learned"):
        TASK.check(one, Path("a.conll"))
    none = TASK.encode([sentence("\u200b", "O")], tokenizer, ExampleCounts())
    with pytest.raises(InputError, match=r"a\.conll: no word has a token"):
        TASK.check(none, Path("a.conll"))
    TASK.check(TASK.encode([sentence("a", "O"), sentence("a", "B-X")], tokenizer, ExampleCounts()), Path("a"))


def test_samples_for_the_report(tokenizer: TextTokenizer) -> None:
    example = sentence("Ada saw London", "B-X O B-Y")
    encoded = TASK.encode([example], tokenizer, ExampleCounts())
    (prediction,) = TASK.decode([example], encoded, logits_for(encoded, TASK, ["B-X", "O", "O"]))
    assert TASK.sample(example, prediction) == {
        "input": {"text": "Ada saw London"},
        "label": "Ada [X], London [Y]",
        "prediction": "Ada [X]",
        "probability": pytest.approx(0.9, abs=1e-6),
    }
    example = sentence("a b", "NOUN X", POS)
    prediction = {"tokens": ["a", "b"], "tags": ["X", "X"], "entities": []}
    assert POS.sample(example, prediction) == {
        "input": {"text": "a b"},
        "label": "NOUN X",
        "prediction": "X X",
        "probability": None,
    }


# Learning.


def new_module(tiny_model: Path, task: Tagging = TASK) -> TaggingModule:
    torch.manual_seed(1)
    module = task.module(load_encoder(tiny_model).encoder)
    assert isinstance(module, TaggingModule)
    return module


def test_the_loss_counts_labels_and_reads_no_other_token(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    examples = [sentence("a man walking", "O B-X O"), sentence("\u200b", "O"), sentence("a dog", None)]
    encoded = TASK.encode(examples, tokenizer, ExampleCounts())
    module = new_module(tiny_model).eval()
    batch = encoded.batch([0, 1, 2])
    (direct,), (through_outputs,) = module(batch), module.loss(module.outputs(batch), batch)
    assert direct.count == through_outputs.count == module.counts(batch)["task"] == 3
    # The same products in another order: float32 rounding of a loss of about 5.
    assert torch.allclose(direct.total, through_outputs.total, atol=1e-4)
    (empty,) = module(encoded.batch([1, 2]))
    assert (empty.count, float(empty.total.detach())) == (0, 0.0)
    empty.total.backward()
    assert [name for name, _ in module.named_children()] == ["encoder", "head"]


def test_a_given_head_is_kept(tiny_model: Path) -> None:
    head = new_module(tiny_model).head
    assert TASK.module(load_encoder(tiny_model).encoder, head).head is head


def test_the_bilstm_reads_frozen_features(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    task = task_of(tagging_head="bilstm", feature_layers="embeddings")
    module = task.module(load_encoder(tiny_model).encoder)
    batch = task.encode([sentence("a man", "O B-X")], tokenizer, ExampleCounts()).batch([0])
    assert module.outputs(batch).shape == (batch.num_tokens, 5)
    assert module.counts(batch) == {"task": 2}
    assert not any(weight.requires_grad for weight in module.encoder.parameters())


def learned(
    task: Tagging, examples: list[TaggingExample], tiny_model: Path, tokenizer: TextTokenizer
) -> dict[str, float]:
    """Metrics on the examples after a few steps on all of them."""
    encoded = task.encode(examples, tokenizer, ExampleCounts())
    batch = encoded.batch(range(len(encoded)))
    module = new_module(tiny_model, task).eval()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        (term,) = module(batch)
        (term.total / term.count).backward()
        optimizer.step()
    score = task.score()
    with torch.no_grad():
        score.add(examples, task.decode(examples, encoded, module.outputs(batch)))
    return score.metrics()


def test_a_few_sentences_are_learned_by_heart(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    examples = [
        sentence("a man is outside", "O B-X O O"),
        sentence("two women talk to a dog", "B-X I-X O O B-Y I-Y"),
        sentence("people wait", "B-Y O"),
        sentence(" ".join(["a", "man", "walks", "the", "dog"] * 8), " ".join(["O", "B-X", "O", "B-Y", "I-Y"] * 8)),
    ]
    metrics = learned(TASK, examples, tiny_model, tokenizer)
    assert (metrics["overall_f1"], metrics["overall_accuracy"]) == (1.0, 1.0)


def test_two_predicates_of_one_sentence_are_told_apart(tiny_model: Path, tokenizer: TextTokenizer) -> None:
    first = replace(sentence("a man said a dog said", "B-X I-X O O O O"), predicate=2)
    second = replace(sentence("a man said a dog said", "O O O B-Y I-Y O"), predicate=5)
    assert learned(TASK, [first, second], tiny_model, tokenizer)["overall_f1"] == 1.0


def test_roles_are_nothing_for_a_causal_encoder(tiny_model: Path, tmp_path: Path) -> None:
    """No token of the sentence would see the predicate behind it; a BiLSTM over the features does."""
    sizes = EncoderSettings(
        architecture="gpt1", vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=24, hidden_act="gelu_new", type_vocab_size=0,
    )  # fmt: skip
    roles = write(tmp_path / "a.jsonl", '{"tokens": "a b", "tags": "O B-X", "predicate": 1}\n')
    words = write(tmp_path / "b.jsonl", '{"tokens": "a b", "tags": "O B-X"}\n')
    for task in (TASK, task_of(labels=None)):
        with pytest.raises(ModelError, match=r"causal encoder \(gpt1\): each predicate is named behind"):
            task.fit_to(roles).module(new_encoder(sizes))
        assert task.fit_to(roles).module(load_encoder(tiny_model).encoder)
        assert task.fit_to(words).module(new_encoder(sizes))
    assert task_of(tagging_head="bilstm").fit_to(roles).module(new_encoder(sizes))


def test_published_files_are_read_whole(data_dir: Path) -> None:
    for name, file, num_examples, num_entities in (
        ("wnut17", "wnut17/train.conll", 3_394, 1_975),
        ("wikigold", "wikigold/wikigold.conll.txt", 1_696, 3_558),
        ("klue-ner", "klue-ner/klue-ner-v1.1_dev.tsv", 5_000, 14_257),
    ):
        examples, notes = load(task_of(name=name, labels=None, repair_tags=False), data_dir / "tasks" / file)
        begun = sum(tag.startswith("B-") for one in examples for tag in one.tags or ())
        assert (len(examples), begun, notes) == (num_examples, num_entities, {}), file
