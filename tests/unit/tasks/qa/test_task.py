"""Question answering as a task: what it reads and refuses, its loss, that it learns, and what it remembers."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import write_rows
from support.questions import HOUSE, KITE, RED, TOKENIZER, a_question, qa_task
from support.sizes import sizes_of, tiny
from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.models.bert import BertEncoder
from unmask.models.hub.source import LoadedModel
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.metrics import QaScore
from unmask.tasks.qa.module import QaModule
from unmask.tasks.qa.task import QaTask, open_task
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import recall_task


def new_encoder(seed: int = 0) -> BertEncoder:
    torch.manual_seed(seed)
    return BertEncoder(tiny(TOKENIZER.vocab_size, **sizes_of(dropout=0, std=0.2)), pooler=False)


def examples_of(task: QaTask, path: Path) -> tuple[list[QaExample], EncodedExamples]:
    counts = ExampleCounts()
    examples = list(task.load(path, counts))
    return examples, task.encode(examples, TOKENIZER, counts)


SEVERAL = [
    a_question("a red kite", id="a", question="what did Mina see"),
    a_question("blue", id="b", question="what flew by"),
    a_question("오래된 집이", id="c", question="정원에는 무엇", context=HOUSE),
    a_question("할머니가", id="d", question="누가 산다", context=HOUSE),
]
NONE = [
    a_question(is_impossible=True, id="e", question="who flew"),
    a_question([], id="f", question="어디 Mina", context=HOUSE),
]


@pytest.fixture
def several(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "several.jsonl", *SEVERAL)


def test_the_loss_is_that_of_transformers(several: Path) -> None:
    from transformers import BertConfig, BertForQuestionAnswering

    task = qa_task(doc_stride=8)
    _, encoded = examples_of(task, several)
    module = task.module(new_encoder()).eval()
    lengths = encoded.lengths.tolist()
    assert len(set(lengths)) > 1
    sizes = sizes_of(vocab=TOKENIZER.vocab_size, width=32, layers=2, heads=2, inner=64, positions=64)
    theirs = BertForQuestionAnswering(BertConfig(**sizes)).eval()
    copy_weights(module, theirs)
    batch = encoded.batch(range(len(encoded)))
    outputs = module.outputs(batch).detach()
    expected = 0.0
    for number in range(len(lengths)):  # one by one: with padding, the softmax of transformers goes over that too
        tokens = encoded.tokens_of(number)
        with torch.no_grad():
            output = theirs(
                input_ids=batch.input_ids[None, tokens],
                token_type_ids=batch.token_type_ids[None, tokens],
                **{name: column[number : number + 1] for name, column in batch.columns.items()},
            )
        expected += float(output.loss)
        # fp32 through two layers, sums in another order.
        torch.testing.assert_close(outputs[tokens, 0], output.start_logits[0], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(outputs[tokens, 1], output.end_logits[0], atol=2e-5, rtol=1e-4)
    [term] = module(batch)
    assert (term.name, term.coefficient) == ("task", 1.0)
    assert module.counts(batch) == {"task": len(lengths)}
    assert float(term.total.detach()) == pytest.approx(expected, rel=1e-5)


def copy_weights(module: QaModule, theirs: Any) -> None:
    """Into transformers' model, by the names that both have in common."""
    from safetensors.torch import load_file

    from unmask.models.hub.directory import TunedHead, save_model

    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory), module.encoder, tuned=TunedHead(module.head, "question_answering"))
        weights = load_file(Path(directory) / "model.safetensors")
    theirs.load_state_dict(weights)


def test_units_without_targets_count_for_nothing(several: Path) -> None:
    task = qa_task()
    examples, encoded = examples_of(task, several)
    unknown = [replace(one, answers=None) for one in examples]
    module = task.module(new_encoder())
    hidden = task.encode(unknown, TOKENIZER, ExampleCounts()).batch(range(4))
    assert module.counts(hidden) == {"task": 0}
    assert float(module(hidden)[0].total.detach()) == 0.0
    half = task.encode([*examples[:2], *unknown[2:]], TOKENIZER, ExampleCounts()).batch(range(4))
    [term], [alone] = module(half), module(encoded.batch([0, 1]))
    assert module.counts(half) == {"task": 2}
    torch.testing.assert_close(term.total, alone.total, rtol=1e-5, atol=1e-5)  # products of other shapes
    term.total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("settings", [{}, {"max_length": 20, "doc_stride": 4}])
def test_a_few_questions_are_learned_by_heart(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = write_rows(tmp_path / "train.jsonl", *SEVERAL, *NONE)
    task = qa_task(**settings).fit_to(path)
    examples, encoded = examples_of(task, path)
    module = task.module(new_encoder())
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    batch = encoded.batch(range(len(encoded)))
    for _ in range(60):
        optimizer.zero_grad()
        [term] = module(batch)
        (term.total / module.counts(batch)["task"]).backward()
        optimizer.step()
    score = task.score()
    with torch.inference_mode():
        predictions = task.decode(examples, encoded, module.outputs(batch))
    score.add(examples, predictions)
    assert score.metrics()["exact"] == score.metrics()["HasAns_f1"] == score.metrics()["best_f1"] == 100.0
    assert score.degenerate() is None
    tuned = task.tuned(score)
    assert tuned.settings.null_threshold is not None
    again = tuned.score()
    again.add(examples, tuned.decode(examples, encoded, module.outputs(batch).detach()))
    assert again.metrics()["exact"] == 100.0


def test_thresholds_that_are_set_stay() -> None:
    score = QaScore(unanswerable=True)
    assert qa_task(unanswerable=True).tuned(score).settings.null_threshold == 0.0
    assert qa_task(unanswerable=True, null_threshold=1.5).tuned(score).settings.null_threshold == 1.5
    assert qa_task(unanswerable=False).tuned(score).settings.null_threshold is None


def test_training_needs_answers(tmp_path: Path, several: Path) -> None:
    task = qa_task(unanswerable=True)
    path = write_rows(tmp_path / "none.jsonl", *NONE)
    with pytest.raises(InputError, match=r"none\.jsonl: not a single window of a passage holds an answer"):
        task.check(examples_of(task, path)[1], path)
    task.check(examples_of(task, several)[1], several)


def test_floors(tmp_path: Path, several: Path) -> None:
    path = write_rows(tmp_path / "train.jsonl", *SEVERAL, *NONE)
    task = qa_task(max_length=20, doc_stride=4).fit_to(path)
    encoded = examples_of(task, path)[1].without_alignment()
    never = {"never answering": pytest.approx(100 / 3)}
    assert task.floors(encoded, encoded) == {"best_f1": never, "exact": never, "f1": never}
    task = qa_task(max_answer_length=2).fit_to(several)
    encoded = examples_of(task, several)[1]
    spans = 2 * encoded.lengths - 1  # of one and of two tokens
    assert task.floors(encoded, encoded) == {"exact_match": {"a random span": pytest.approx(100 * (1 / spans).mean())}}


def test_what_a_report_shows() -> None:
    task = qa_task(unanswerable=True)
    one = QaExample("1", "What?", KITE, (RED,), ("a red kite",), {}, "x:1")
    answered = {"answer": "kite", "no_answer_probability": 0.25, "n_best": [{"answer": "kite", "probability": 0.5}]}
    shown = {"input": {"question": "What?", "context": KITE}, "label": "a red kite", "prediction": "kite"}
    assert task.sample(one, answered) == {**shown, "probability": 0.5, "correct": False}
    other = task.sample(replace(one, gold_texts=("a red kite", "The kite.")), answered)
    assert (other["label"], other["correct"]) == ("The kite.", True), "any right answer, compared as the metric does"
    none, nothing = replace(one, answers=(), gold_texts=()), "(no answer)"
    silent = task.sample(none, {**answered, "answer": ""})
    assert silent == {**shown, "label": nothing, "prediction": nothing, "probability": 0.25, "correct": True}
    unknown = task.sample(replace(one, gold_texts=None), answered)
    assert (unknown["label"], unknown["correct"]) == (None, None)
    long = replace(one, context="a " * 99 + "a red kite" + " b" * 99)
    around = f"…{'a ' * 50}a red kite{' b' * 50}…"
    assert task.sample(long, answered)["input"]["context"] == around, "a hundred characters on each side of the answer"


def test_what_a_model_remembers() -> None:
    columns = ColumnSettings(question="q")
    settings = {"doc_stride": 7, "n_best": 3, "drop_unfound_answers": True}
    task = qa_task(columns, **settings, unanswerable=True, null_threshold=-0.5)
    kept = json.loads(json.dumps(task.remembered()))
    columns = ColumnSettings.model_validate(kept.pop("columns"))
    recalled = open_task(TaskSettings.model_validate(kept), columns, lenient=True)
    assert replace(recalled, layouts=task.layouts) == task
    assert [layout.question for layout in recalled.layouts] == ["q", "question"]


@pytest.mark.parametrize(
    ("trained", "name", "expected"),
    [
        ("squad1", "squad2", (True, None)),
        ("squad2", "squad1", (False, None)),
        ("squad2", "squad2", (True, -0.5)),
        ("squad2", "qa", (True, -0.5)),  # anybody's file may hold questions without an answer
        ("squad1", "qa", (None, None)),
        ("korquad1", "squad1", (False, None)),
    ],
)
def test_a_model_measured_on_another_data_set(
    trained: str, name: str, expected: tuple[bool | None, float | None]
) -> None:
    task = qa_task(name=trained)
    task = qa_task(name=trained, null_threshold=-0.5 if task.settings.unanswerable else None)
    config = {"unmask_task": task.remembered()}
    loaded = LoadedModel("BertForQuestionAnswering", new_encoder(), head_kind="question_answering", config=config)
    recalled = recall_task(loaded, name)
    assert isinstance(recalled, QaTask)
    assert (recalled.settings.unanswerable, recalled.settings.null_threshold) == expected


def test_inputs_to_be_answered() -> None:
    task = qa_task()
    one = task.read(Row({"question": "", "context": "", "answers": "?"}, "x:1"))
    assert (one.id, one.answers, one.gold_texts) == (None, None, None)
    counts = ExampleCounts()
    encoded = task.encode([one], TOKENIZER, counts)
    assert encoded.unit_columns["start_positions"].tolist() == [IGNORE_INDEX]
    assert counts.empty == 1
    with pytest.raises(InputError, match=r"x:1: no column 'context': expected question and context; there"):
        task.read(Row({"question": "?"}, "x:1"))


def test_answers_that_are_learnt_have_their_own_places(tmp_path: Path) -> None:
    """Questions without an answer have none; questions of one passage are told apart."""
    path = write_rows(tmp_path / "all.jsonl", *SEVERAL, *NONE)
    task = qa_task(unanswerable=True)
    found = list(task.spans(examples_of(task, path)[0]))
    assert [(one.text[slice(*one.spans[0])], one.source) for one in found] == [
        ("a red kite", f"{path}:1"),
        ("blue", f"{path}:2"),
        ("오래된 집이", f"{path}:3"),
        ("할머니가", f"{path}:4"),
    ]
