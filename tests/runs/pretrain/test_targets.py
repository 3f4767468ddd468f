"""A run has to have something to predict: refused where there is nothing, and no figure of what was not measured."""

from __future__ import annotations

import json
import math
import random
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from support.commands import write_documents
from support.corpora import names
from unmask.batch import Batch, pack
from unmask.doctor.run.checks import check_run
from unmask.errors import SettingsError
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.packing.sharing import Share
from unmask.pretraining.measuring import measure
from unmask.pretraining.run import open_and_check, pretrain
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import PretrainingSteps
from unmask.recipe.loading import load_pretrain_recipe
from unmask.reports.run_page import write_report
from unmask.store.store import TokenStore
from unmask.tokenization.opening import open_tokenizer
from unmask.training.device import Compute
from unmask.training.distributed import Ranks
from unmask.training.run.log import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


SYSTEMS = {
    "electra": ["objective={name: replaced_token}", "model.architecture=electra", "packing.format=single_segment"]
}
CAUSAL = [
    *("objective.name=causal_lm", "model.architecture=gpt1", "packing.format=single_segment", "tokenizer.kind=bpe"),
    "tokenizer.vocab_size=60",
]
LETTERS = [letter for letter in "abcdefghijklmnopqrstuvwxyz" for _ in range(4)]
"""Documents of one token."""


HIRAGANA = [chr(code) for code in range(0x3042, 0x3070)]
UNSPACED = ["".join(random.Random(number).choices(HIRAGANA, k=70)) for number in range(40)]
"""Documents of one sentence without a space, and with no piece so frequent that it becomes a long entry."""

WHOLE_WORDS = ["objective.masking=whole_word", "packing.short_sequence_prob=0", "objective.target_prob=0.03"]
"""The budget is one token: what truncation leaves of a word is longer too."""


@pytest.mark.parametrize("pairs", [True, False])
def test_whole_words_of_text_without_spaces_are_refused(tiny_recipe: Path, tmp_path: Path, pairs: bool) -> None:
    """Also where each pair of segments has a target of its own."""
    text = write_documents(tmp_path / "text.jsonl", UNSPACED)
    alone = [] if pairs else ["objective.sentence_objective=none", "packing.format=single_segment"]
    unmeasured = r"nothing would be measured: not one of the \d+ held-out sequences"
    with pytest.raises(SettingsError, match=unmeasured) as told:
        pretrain(str(tiny_recipe), [f"corpus={text}", *WHOLE_WORDS, *alone], out=tmp_path / "run")
    for word in ("loss/mlm", "objective.masking=whole_word", "the tokenizer", "take objective.masking=token"):
        assert word in str(told.value)
    with pytest.raises(SettingsError, match="nothing would be learnt: not one sequence of the first 10 steps has"):
        pretrain(str(tiny_recipe), [f"corpus={text}", *WHOLE_WORDS, *alone, "held_out=0"], out=tmp_path / "other")
    assert names(tmp_path / "other") == ["store"]
    tokens = [f"corpus={text}", *alone, "held_out=0", "train.steps=1"]
    pretrain(str(tiny_recipe), tokens, out=tmp_path / "other", resume=True)  # from the store that is there


def test_documents_of_one_token_are_refused(tiny_recipe: Path, tmp_path: Path) -> None:
    words = [f"corpus={write_documents(tmp_path / 'text.jsonl', LETTERS)}", *CAUSAL]
    with pytest.raises(SettingsError, match=r"held-out sequences has a target of loss/lm; .*longer documents; if the"):
        pretrain(str(tiny_recipe), words, out=tmp_path / "one")
    with pytest.raises(SettingsError, match=r"the first 4 steps has a target of loss/lm; .*longer documents$"):
        pretrain(str(tiny_recipe), [*words, "held_out=0", "train.steps=4"], out=tmp_path / "other")


def test_steps_without_targets_have_rows_without_losses(tiny_recipe: Path, tmp_path: Path) -> None:
    """Every third document has targets, and a step is one document."""
    documents = [text if place % 3 else f"{text} {text} b" for place, text in enumerate(LETTERS)]
    words = [f"corpus={write_documents(tmp_path / 'text.jsonl', documents)}", *CAUSAL, "train.log_every=1"]
    words += ["train.batch_size=1", "train.micro_batch_size=1", "train.spike_factor=100", "train.steps=30"]
    run = tmp_path / "run"
    pretrain(str(tiny_recipe), words, out=run)
    training = [row for row in read_metrics(run / "metrics.jsonl") if "tokens" in row]
    assert [row["step"] for row in training] == list(range(1, 31))
    assert {("loss" in row, "loss/lm" in row) for row in training} == {(True, True), (False, False)}
    assert all(row["loss"] > 0 for row in training if "loss" in row)
    write_report(run)
    assert "learning-rate-too-high" not in {finding.name for finding in check_run(run)}


@pytest.mark.parametrize("system", ["masked", "electra"])
def test_a_run_may_begin_left_to_right_and_end_masked(
    system: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    causal = ["objective.sentence_objective=none", "objective.causal_share=1", "packing.format=full_sentences"]
    words = {
        "masked": [*causal, "phases=[{until: 0.5}, {until: 1, causal_share: 0}]"],
        "electra": [*SYSTEMS["electra"], "objective.causal_share=1", "objective.discriminator_after=.5"],
    }[system]
    pretrain(str(tiny_recipe), [f"store={tiny_store}", *words, "train.log_every=1"], out=tmp_path / "run")
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "tokens" in row]
    main = "loss/mlm" if system == "masked" else "loss/generator"
    assert [("loss/lm" in row, main in row) for row in rows] == [(True, False)] * 6 + [(False, True)] * 6


def test_spans_at_edges_alone_have_no_boundary_loss(
    tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is sound, and says so: a figure that was not measured is left out, in the rows and in the results."""
    documents = [f"{one} {other}" for one, other in zip(LETTERS, reversed(LETTERS), strict=True)]
    span = ["objective.masking=span", "objective.span_boundary=true", "objective.sentence_objective=none"]
    words = [f"corpus={write_documents(tmp_path / 'text.jsonl', documents)}", *span, "packing.format=single_segment"]
    run = tmp_path / "run"
    pretrain(str(tiny_recipe), words, out=run)
    rows, results = read_metrics(run / "metrics.jsonl"), json.loads((run / "results.json").read_text())
    assert "loss/sbo: not one sequence of the first 10 steps has a target of it" in caplog.text
    assert not [name for row in rows for name in row if "sbo" in name]
    assert [name for name in results if "sbo" in name] == []
    assert results["mlm_loss"] > 0
    assert all(row["loss"] == row["loss/mlm"] > 0 for row in rows if "tokens" in row)
    write_report(run)
    faults = {finding.name for finding in check_run(run) if finding.level == "fault"}
    assert faults == {"repeated-corpus"}  # four documents for each letter


def test_what_nothing_counts_for_has_no_mean() -> None:
    class Module:
        def scores(self, batch: Batch) -> dict[str, tuple[torch.Tensor, int]]:
            return {"a_loss": (torch.tensor(3.0), 2), "b_loss": (torch.tensor(0.0), 0), "c": (torch.tensor(1.0), 4)}

    compute = Compute(torch.device("cpu"), torch.float32, "a test")
    for term, perplexity in (("a", {"a_perplexity": math.exp(1.5)}), ("b", {})):
        objective = cast(Objective, SimpleNamespace(vocabulary_terms=(term,)))
        figures = measure(objective, cast(ObjectiveModule, Module()), [pack([[1]]), pack([[2]])], compute)
        assert figures == {"a_loss": 1.5, "c": 0.25, **perplexity}


def test_steps_that_were_looked_at_come_all_the_same(tiny_recipe: Path, tiny_store: Path) -> None:
    settings = load_pretrain_recipe(str(tiny_recipe), [f"store={tiny_store}"])
    store = TokenStore(tiny_store)
    tokenizer = open_tokenizer(store.tokenizer_directory)

    def shown(steps: Any, number: int) -> list[list[int]]:
        return [batch.input_ids.tolist() for step in islice(steps, number) for batch in step.batches]

    plain = shown(PretrainingSteps(open_start(settings), store, tokenizer, None).steps(lambda: 0.0, None, None), 5)
    looked_at = PretrainingSteps(open_start(settings), store, tokenizer, None)
    assert shown(looked_at.first_steps(5), 9) == plain
    assert shown(looked_at.first_steps(1), 9) == plain[: len(plain) // 5]
    assert shown(looked_at.steps(lambda: 0.0, None, None), 5) == plain
    one = PretrainingSteps(open_start(settings), store, tokenizer, None, Share(0, 2))
    assert shown(one.first_steps(5), 9) == plain  # those of the other process too: its share may have the only target
    other = PretrainingSteps(open_start(settings), store, tokenizer, None, Share(1, 2))
    shares = [shown(each.steps(lambda: 0.0, None, None), 5) for each in (one, other)]
    assert sum(map(len, (row for share in shares for row in share))) == sum(map(len, plain))


def test_only_the_first_process_reads_the_whole_store(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_pretrain_recipe(str(tiny_recipe), [f"store={tiny_store}"])
    compute = Compute(torch.device("cpu"), torch.float32, "a test")
    counts = TokenStore(tiny_store).token_counts()
    read: list[Path] = []

    def token_counts(store: TokenStore) -> Any:
        read.append(store.directory)
        return counts

    monkeypatch.setattr(TokenStore, "token_counts", token_counts)
    open_and_check(settings, tmp_path, compute, 1, None, Ranks(1, 2))
    assert read == []
    inputs, _ = open_and_check(settings, tmp_path, compute, 1, None, Ranks(0, 2))
    assert inputs.target_counts is counts
    assert read == [tiny_store]
    by_frequency = load_pretrain_recipe(
        str(tiny_recipe), [f"store={tiny_store}", "objective.output_bias=log_frequency"]
    )
    open_and_check(by_frequency, tmp_path, compute, 1, None, Ranks(0, 2))
    assert read == [tiny_store] * 2
