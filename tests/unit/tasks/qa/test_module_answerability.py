"""Answerability that is classified: its loss in plain PyTorch, what decides, what it is refused for, what is saved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.files import write_rows
from support.questions import TOKENIZER, a_question, qa_task
from support.sizes import sizes_of, tiny
from unmask.batch import Batch
from unmask.errors import InputError, SettingsError
from unmask.exporting.graph import NO_ANSWER, PaddedModel, padded_model
from unmask.finetuning.run import save_finetuned
from unmask.inference.inspection import chances_of_spans
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_model, save_model
from unmask.models.settings import EncoderSettings
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.task import QaTask
from unmask.tasks.settings import TaskSettings

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "left-to-right bert": {"architecture": "bert", "causal": True},
    "gpt1": {"intermediate_size": 128},
    "modernbert": {"classifier_pooling": "mean"},
}
LAST = ("left-to-right bert", "gpt1")
"""Those whose last token alone sees the whole of a row."""

ROWS = [
    a_question("red", id="a", question="what did Mina see"),
    a_question("blue", id="b", question="what flew by"),
    a_question(is_impossible=True, id="c", question="who flew"),
]


def new_task(**settings: Any) -> QaTask:
    """Windows of a few tokens of the passage."""
    return qa_task(max_length=16, doc_stride=3, unanswerable=True, answerability=True, **settings)


def new_module(task: QaTask, family: str = "bert") -> Any:
    torch.manual_seed(0)
    given = {"architecture": family, **sizes_of(dropout=0, std=0.3), **FAMILIES[family]}
    settings = EncoderSettings.model_validate({**tiny(TOKENIZER.vocab_size).model_dump(exclude_unset=True), **given})
    return task.module(new_encoder(settings, pooler=False)).eval()


def read(task: QaTask, path: Path) -> tuple[list[QaExample], EncodedExamples]:
    counts = ExampleCounts()
    examples = list(task.load(write_rows(path, *ROWS), counts))
    return examples, task.encode(examples, TOKENIZER, counts)


def classified_alone(module: Any, hidden: Tensor, family: str) -> Tensor:
    """() the logit of one row (tokens, hidden), by the head's own weights."""
    head, state = module.head.classifier, hidden[-1 if family in LAST else 0]
    if isinstance(getattr(head, "norm", None), nn.Module):  # ModernBERT's head on a token has a layer before
        state = functional.layer_norm(
            functional.gelu(head.dense.weight @ state), state.shape, head.norm.weight, eps=head.norm.eps
        )
        return (head.output.weight @ state + head.output.bias).squeeze()
    return (head.dense.weight @ state + head.dense.bias).squeeze()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_by_hand(tmp_path: Path, family: str) -> None:
    """Row by row: half of the two cross-entropies, and the logarithm of what the classifier gives the label."""
    task = new_task()
    module = new_module(task, family)
    _, encoded = read(task, tmp_path / "a.jsonl")
    batch = encoded.batch(range(len(encoded)))
    starts, ends = (batch.columns[f"{side}_positions"].tolist() for side in ("start", "end"))
    expected, labels = torch.zeros(()), []
    hidden = module.encoder(batch)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        row = hidden[encoded.tokens_of(number)]
        scores = module.head.spans(row).log_softmax(0)
        holds_none = start == end == 0  # [CLS] is the first token of this tokenizer's rows
        logit = classified_alone(module, row, family)
        probability = 1 / (1 + torch.exp(-logit))
        expected = expected - (scores[start, 0] + scores[end, 1]) / 2
        expected = expected - torch.log(probability if holds_none else 1 - probability)
        labels.append(holds_none)
    of_answered = encoded.examples < 2
    assert set(np.array(labels)[of_answered]) == {True, False}, "a question with an answer has windows without it"
    assert all(np.array(labels)[~of_answered])
    [term] = module(batch)
    assert (term.name, term.coefficient) == ("task", 1.0)
    torch.testing.assert_close(term.total, expected, rtol=1e-5, atol=1e-5)  # fp32, sums in another order


def test_the_null_span_of_rows_that_end_with_it_is_unanswerable() -> None:
    """As GPT-1's template has them: a row of three tokens, and one of five that holds an answer."""
    from unmask.tasks.qa.module import _answerability_loss

    columns = {"start_positions": torch.tensor([2, 1]), "end_positions": torch.tensor([2, 2])}
    bounds = torch.tensor([0, 3, 8], dtype=torch.int32)
    tokens = torch.zeros(8, dtype=torch.int64)
    batch = Batch(tokens, tokens, tokens, bounds, lengths=(3, 5), columns=columns)
    found = float(_answerability_loss(torch.tensor([2.0, -1.0]), batch))
    assert found == pytest.approx(math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1)))


def test_a_window_whose_answer_is_unknown_counts_for_nothing(tmp_path: Path) -> None:
    task = new_task()
    examples, encoded = read(task, tmp_path / "a.jsonl")
    module = new_module(task)
    unknown = task.encode([replace(one, answers=None) for one in examples], TOKENIZER, ExampleCounts())
    batch = unknown.batch(range(len(unknown)))
    assert (module.counts(batch), float(module(batch)[0].total.detach())) == ({"task": 0}, 0.0)
    assert module.counts(encoded.batch(range(len(encoded)))) == {"task": len(encoded)}


def test_the_classifier_alone_decides(tmp_path: Path) -> None:
    """By its lowest logit over the windows, whatever scores spans have."""
    task = new_task()
    examples, encoded = read(task, tmp_path / "a.jsonl")
    logits = torch.full((len(encoded.input_ids), 3), -4.0)
    lowest, places = (0.7, -0.2, 0.1), [one.answers[0][0] if one.answers else 0 for one in examples]
    for number, place in enumerate(places):
        first, *others = np.flatnonzero(encoded.examples == number)
        assert others
        logits[encoded.tokens_of(first), 2] = lowest[number]
        for unit in others:
            logits[encoded.tokens_of(unit), 2] = lowest[number] + 9
        tokens = np.arange(encoded.tokens_of(first).start, encoded.tokens_of(others[-1]).stop)
        its = {name: column[tokens] for name, column in encoded.alignment.items()}
        [best] = tokens[its["max_context"] & (its["starts"] == place)]
        logits[best, :2] = 30.0 * number  # spans of any score
    for threshold, answered in ((None, [False, True, False]), (-0.5, [False, True, True]), (-1.0, [True] * 3)):
        its = task.with_settings(null_threshold=threshold)
        predictions = its.decode(examples, encoded, logits)
        assert [bool(one["answer"]) for one in predictions] == answered
    for number, one in enumerate(predictions):
        assert one["n_best"][0]["start"] == places[number]
        assert one["score"] == 60.0 * number
        assert one["null_score"] == pytest.approx(60.0 * number + lowest[number])
        assert one["no_answer_probability"] == pytest.approx(1 / (1 + math.exp(-lowest[number])))
    score = task.score()
    score.add(examples, predictions)
    # By their leads .2, -.1 and -.7 come b, which is right, c, which has no answer, and a.
    assert task.tuned(score).settings.null_threshold == pytest.approx(0.05)
    together = task.combine([logits, logits])
    [first, *_] = task.decode(examples, encoded, together)
    assert first["no_answer_probability"] == pytest.approx(1 / (1 + math.exp(-1.4))), "logits of members add up"


def test_a_passage_without_a_token(tmp_path: Path) -> None:
    task = new_task()
    empty = QaExample("x", "who?", " ", None, None, {}, "x:1")
    encoded = task.encode([empty], TOKENIZER, ExampleCounts())
    [found] = task.decode([empty], encoded, torch.full((len(encoded.input_ids), 3), -7.0))
    assert (found["answer"], found["null_score"], found["no_answer_probability"]) == ("", -7.0, 1.0)


def test_a_model_measured_where_every_question_has_an_answer(tmp_path: Path) -> None:
    task = new_task().with_settings(name="squad1", unanswerable=False)
    examples, encoded = read(new_task(), tmp_path / "a.jsonl")
    for one in task.decode(examples, encoded, torch.full((len(encoded.input_ids), 3), 9.0)):
        assert one["answer"]
        assert one["no_answer_probability"] == 0.0


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", *ROWS[:2])
    for unanswerable in (None, True):
        with pytest.raises(InputError, match=r"a\.jsonl: every question has an answer, and task\.answerability learns"):
            qa_task(answerability=True, unanswerable=unanswerable).fit_to(path)
    for settings in ({"name": "squad1"}, {"unanswerable": False}):
        with pytest.raises(SettingsError, match=r"task\.answerability learns which questions have no answer, and task"):
            qa_task(answerability=True, **settings).fit_to(path)
    fitted = qa_task(answerability=True).fit_to(write_rows(path, *ROWS))
    assert (fitted.settings.unanswerable, fitted.remembered()["answerability"]) == (True, True)
    assert "answerability" not in qa_task().remembered()
    with pytest.raises(ValueError, match="answerability is for qa, not for choice: leave it out"):
        TaskSettings(name="choice", answerability=True)
    with pytest.raises(ValueError, match="encoder_top bilstm and answerability do not go together"):
        TaskSettings(name="qa", answerability=True, encoder_top="bilstm")


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_loaded_and_as_a_graph(tmp_path: Path, family: str) -> None:
    """The spans where `transformers` looks for them, if it has a class; as a graph over padded rows the same logits."""
    task = new_task()
    module = new_module(task, family)
    nn.init.normal_(next(module.head.classifier.parameters()), std=0.5)
    save_finetuned(module, task, TOKENIZER, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_equal(module.head.state_dict(), loaded.head.state_dict())  # type: ignore[union-attr]
    save_model(tmp_path / "again", loaded)
    for name in ("model.safetensors", "head.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    if family not in LAST:
        assert_opens_there(tmp_path / "model", module)

    _, encoded = read(task, tmp_path / "a.jsonl")
    batch = encoded.batch(range(len(encoded)))
    graph: PaddedModel = padded_model(loaded)
    assert graph.outputs == ("start_logits", "end_logits", NO_ANSWER)
    ids, mask, segments = (nn.utils.rnn.pad_sequence(each, batch_first=True) for each in padded(batch))
    with torch.no_grad():
        found = torch.stack(torch.broadcast_tensors(*graph(ids, mask, segments if graph.reads_segments else None)), -1)
        expected = module.outputs(batch)
    torch.testing.assert_close(found[mask.bool()], expected, rtol=1e-4, atol=1e-5)  # fp32, other shapes
    assert expected[batch.first_tokens, 2].std() > 1e-3, "all the same would prove nothing"
    alone = task.encode(list(task.load(write_rows(tmp_path / "one.jsonl", ROWS[0]), ExampleCounts())), TOKENIZER,
                        ExampleCounts())  # fmt: skip
    three = module.outputs(alone.batch(range(len(alone)))).detach()
    assert chances_of_spans(alone, three) == chances_of_spans(alone, three[:, :2])


def padded(batch: Batch) -> tuple[list[Tensor], ...]:
    rows = (batch.input_ids, torch.ones_like(batch.input_ids), batch.token_type_ids)
    return tuple(list(each.split(batch.lengths)) for each in rows)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def assert_opens_there(directory: Path, module: Any) -> None:
    from transformers import AutoModelForQuestionAnswering

    theirs, report = AutoModelForQuestionAnswering.from_pretrained(directory, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    output = theirs.qa_outputs if hasattr(theirs, "qa_outputs") else theirs.classifier
    ours = module.head.spans.output if hasattr(module.head.spans, "output") else module.head.spans.dense
    assert torch.equal(output.weight, ours.weight)


def test_a_head_that_is_kept(tmp_path: Path) -> None:
    """Of a model without the classifier the spans are kept, and the classifier is new."""
    plain = qa_task()
    kept: Any = new_module(plain).head
    task = new_task()
    module = task.module(new_module(task).encoder, kept)
    assert module.head.spans is kept
    again = task.module(module.encoder, module.head)
    assert again.head is module.head, "not one in another"
