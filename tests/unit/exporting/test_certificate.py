"""A certificate notices what the exported model does otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support.files import write_rows
from support.questions import KITE, a_question
from support.untrained import save_bert, save_masked_lm, save_task_model
from unmask.errors import InputError
from unmask.exporting.certificate import certify_task, compare_texts, read_examples, read_texts
from unmask.inference.features.extraction import load_feature_model
from unmask.inference.onnx_model import HIDDEN
from unmask.inference.predictor import load_predictor
from unmask.io.input_files import as_files
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import MASKED
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["She opened the door and went out .", "The children play in the garden , and the dog sleeps ."] * 20


class Stands:
    """Where an exported model stands: the model's own outputs, changed."""

    def __init__(self, model: Any, head: Any, changed: dict[str, Any]) -> None:
        self.model, self.head, self.changed = model, head, changed
        self.seen: list[list[int]] = []

    def of_tokens(self, batch: Any) -> dict[str, Any]:
        self.seen += [row.tolist() for row in batch.input_ids.split(batch.lengths)]
        hidden = self.model.encoder(batch)
        outputs = {HIDDEN: hidden}
        if self.head is not None:
            outputs["logits"] = self.head(hidden, self.model.encoder.word_embeddings)
        return {name: self.changed.get(name, lambda it: it)(it) for name, it in outputs.items()}


@pytest.fixture
def texts(tmp_path: Path) -> Any:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), "utf-8")
    return as_files(tmp_path / "texts.txt")


def told_of(directory: Path, texts: Any, head: Any = None, **changed: Any) -> tuple[dict[str, Any], Stands]:
    model = load_feature_model(directory, device="cpu")
    stands = Stands(model, head, changed)
    exported: Any = replace(model, encoder=stands)  # type: ignore[arg-type]
    return compare_texts(model, head, exported, read_texts(model, texts)), stands


def test_what_masked_logits_differ_by_is_counted(tmp_path: Path, texts: Any) -> None:
    directory = save_masked_lm(tmp_path / "model", "bert", TEXTS)
    head: Any = load_model(directory, MASKED).masked_lm_head
    [she] = load_tokenizer(directory).encode_batch(["she"])
    with torch.no_grad():
        head.bias.zero_()[she] = 100.0  # it says so of every mask, and is right in every second text ...
    told, _ = told_of(directory, texts, head.eval(), logits=lambda it: -it)  # ... but never when turned over
    assert told["largest_difference"]["logits"] > 199
    assert told["largest_difference"][HIDDEN] == 0
    assert told["metrics"]["after"]["masked_accuracy"] == 0
    assert told["loss"] == told["metrics"]["before"]["masked_accuracy"] > 0


def test_every_seventh_token_is_masked_and_counted(tmp_path: Path, texts: Any) -> None:
    directory = save_masked_lm(tmp_path / "model", "bert", TEXTS)
    head: Any = load_model(directory, MASKED).masked_lm_head
    model = load_feature_model(directory, device="cpu")
    mask = model.tokenizer.mask_id  # type: ignore[union-attr]
    originals = [each.input_ids for each in model.tokenizer.encode_inputs([(text, None) for text in TEXTS[:2]])]  # type: ignore[union-attr]
    expected = [[mask if at % 7 == 1 and at < len(ids) - 1 else its for at, its in enumerate(ids)] for ids in originals]

    def knows(logits: Any) -> Any:
        return torch.nn.functional.one_hot(torch.full((len(logits),), originals[0][1]), logits.shape[1]).float()

    told, stands = told_of(directory, texts, head.eval(), logits=knows)
    assert all(row in expected for row in stands.seen)
    hidden = [ids[1 + 7 * number] for ids in originals for number in range((len(ids) + 4) // 7)]
    assert told["metrics"]["after"]["masked_accuracy"] == pytest.approx(
        sum(each == originals[0][1] for each in hidden) / len(hidden)
    )


def test_hidden_states_are_compared_by_their_angle(tmp_path: Path, texts: Any) -> None:
    directory = save_bert(tmp_path / "model", TEXTS)
    told, _ = told_of(directory, texts, last_hidden_state=lambda it: -it)
    assert told["metrics"] == {"before": {"cosine": pytest.approx(1)}, "after": {"cosine": pytest.approx(-1)}}
    assert told["loss"] == pytest.approx(2)
    assert (told["examples"], told["metric"]) == (40, "cosine")


def test_the_largest_difference_is_that_of_all_batches(
    tmp_path: Path, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.exporting.certificate._BATCH_TOKENS", 64)
    by = iter([1.0])
    told, _ = told_of(save_bert(tmp_path / "model", TEXTS), texts, last_hidden_state=lambda it: it + next(by, 0.0))
    assert told["largest_difference"] == {HIDDEN: pytest.approx(1)}
    # Fresh layer norms, of weight 1, give a mean of 0 and a variance of 1 at every token, less their epsilon.
    assert told["root_mean_square"] == {HIDDEN: pytest.approx(1, abs=1e-4)}


def test_no_number_is_the_largest_difference(tmp_path: Path, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.exporting.certificate._BATCH_TOKENS", 64)
    by = iter([float("nan")])
    told, _ = told_of(save_bert(tmp_path / "model", TEXTS), texts, last_hidden_state=lambda it: it + next(by, 0.0))
    assert np.isnan(told["largest_difference"][HIDDEN])


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    directory = save_bert(tmp_path / "model", TEXTS)
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InputError, match=r"empty\.jsonl: no text with a token"):
        read_texts(load_feature_model(directory, device="cpu"), as_files(tmp_path / "empty.jsonl"))


def test_a_larger_error_is_worse_where_lower_is_better(tmp_path: Path) -> None:
    base = save_bert(tmp_path / "base", TEXTS)
    model = load_predictor(save_task_model(tmp_path / "task", base, name="regression", max_length=32), device="cpu")
    rows = [{"text": TEXTS[0], "label": label} for label in (1.0, 2.0)]
    files = [as_files(write_rows(tmp_path / f"{len(some)}.jsonl", *some)) for some in (rows, rows[:1])]
    by_error: Any = replace(model.task, data_set=replace(model.task.data_set, primary_metric="mse"))  # type: ignore[attr-defined]

    def of_two(value: float) -> Any:
        """It says this of two examples, and 1.5 of a lone one."""

        def outputs(batch: Any) -> Any:
            return torch.full((batch.num_sequences, 1), value if batch.num_sequences == 2 else 1.5)

        module: Any = SimpleNamespace(outputs=outputs, encoder=model.module.encoder)
        return replace(model, task=by_error, module=module)

    sets = [its for each in files for its in read_examples(model, each)]
    told = certify_task(of_two(1.5), of_two(2.5), sets)
    assert [each["mse"] for each in told["metrics"].values()] == [0.25, pytest.approx((2.25 + 0.25 + 0.25) / 3)]
    assert (told["metric"], told["loss"]) == ("mse", pytest.approx(2 / 3))
    assert told["largest_difference"] == {"logits": 1.0}  # of the first set


def test_a_question_that_is_no_longer_answered_is_worse(tmp_path: Path) -> None:
    """The best threshold of the exported model would hide that its own one no longer fits."""
    answers = [{"text": "red kite", "answer_start": KITE.index("red kite")}]
    data = write_rows(tmp_path / "check.jsonl", a_question(answers, id="1"), a_question([], id="2"))
    settings = {"name": "qa", "max_length": 32, "unanswerable": True, "null_threshold": 0.0}
    model = load_predictor(
        save_task_model(tmp_path / "qa", save_bert(tmp_path / "base", [f"{KITE} What?"] * 20), **settings), device="cpu"
    )

    def shifted(by: float) -> Any:
        def outputs(batch: Any) -> Any:
            scores = torch.zeros(batch.num_tokens, 2)
            for side, column in enumerate(("start_positions", "end_positions")):
                scores[batch.first_tokens + batch.columns[column], side] = 10.0
            scores[batch.first_tokens] += by
            return scores

        return replace(model, module=SimpleNamespace(outputs=outputs, encoder=model.module.encoder))  # type: ignore[arg-type]

    told = certify_task(shifted(0), shifted(-20), read_examples(model, as_files(data)))
    assert [each["best_f1"] for each in told["metrics"].values()] == [100, 100]
    assert [each["f1"] for each in told["metrics"].values()] == [100, 50]
    assert (told["metric"], told["loss"]) == ("f1", 0.5)
