"""`benchmarks/gpu/run.py`: its work, its texts, its deadline and its table; and both sides of a step at toy size."""

from __future__ import annotations

import importlib
import json
import operator
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from unmask import TokenizerSettings, train_tokenizer
from unmask.batch import pack
from unmask.models.settings import ModelSettings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def benchmarks_are_found() -> Iterator[None]:
    folder = str(REPOSITORY / "benchmarks")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


def scripts(name: str) -> Any:
    """A module of `benchmarks/`."""
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    corpus = REPOSITORY / "samples" / "text" / "en-books.jsonl"
    train_tokenizer([corpus], directory / "it", TokenizerSettings(vocab_size=3000))
    return Tokenizer.from_file(str(directory / "it" / "tokenizer.json"))


LENGTHS = {"mrpc": (2048, 53.5, 103), "sst2": (4096, 13.3, 57), "squad": (2048, 146.8, 384)}
"""How many there are, their mean, and the largest."""


@pytest.mark.parametrize("task", LENGTHS)
def test_the_lengths_are_those_listed(task: str) -> None:
    its = scripts("gpu.lengths").read_lengths(task)
    assert (len(its), round(mean(its), 1), max(its)) == LENGTHS[task]


@pytest.mark.parametrize("task", LENGTHS)
def test_each_example_has_its_length_and_comes_back_from_its_file(tokenizer: Any, tmp_path: Path, task: str) -> None:
    lengths, tuning = scripts("gpu.lengths"), scripts("gpu.tuning")
    wanted = lengths.read_lengths(task, 300)
    words = lengths.Words(lengths.read_texts(REPOSITORY / "samples" / "text" / "en-books.jsonl"), tokenizer)
    examples = lengths.make_examples(task, wanted, words)
    texts = [its.text if its.second is None else (its.text, its.second) for its in examples]
    assert [len(its.ids) for its in tokenizer.encode_batch(texts)] == wanted
    assert all((its.second is None) == (task == "sst2") for its in examples)
    case = tuning.Tuning(tmp_path, task, tmp_path, "cpu", 384, 300)
    lengths.write_examples(task, examples, case.file("train"))
    assert tuning.read_examples(case, "train") == examples
    if task == "squad":
        assert all(its.second[its.label :].startswith(its.answer) for its in examples)


def test_necessary_work_is_that_of_the_formula_and_of_published_shares() -> None:
    """BERT-Base at 128 with 15 % targets needs 545 million operations a token: 378,000 tokens/s of it are .26 of
    785 TFLOP/s; at 512, 355,000 are .27."""
    work = scripts("gpu.work")
    base = ModelSettings(preset="base").resolve(30522)
    for length, tokens_per_s, share in ((128, 378_000, 0.26), (512, 355_000, 0.27)):
        forward = work.encoder_flops(base, [length]) + work.vocabulary_flops(base, 1) * 0.15 * length
        assert 3 * forward / length * tokens_per_s / 785e12 == pytest.approx(share, abs=0.005)
    tiny = ModelSettings(preset="tiny", num_hidden_layers=1, hidden_size=8, num_attention_heads=1).resolve(10)
    # Of 3 and 1 tokens: 4 x 2 (4 x 64 + 2 x 8 x 32), and 4 x 8 for each of 9 + 1 pairs.
    assert work.encoder_flops(tiny, [3, 1]) == 4 * 2 * (4 * 64 + 2 * 8 * 32) + 4 * 8 * 10
    causal = ModelSettings(preset="tiny", causal=True, num_hidden_layers=1, hidden_size=8, num_attention_heads=1)
    assert work.encoder_flops(tiny, [3]) - work.encoder_flops(causal.resolve(10), [3]) == 4 * 8 * 3
    assert work.vocabulary_flops(tiny, 5) == 2 * 5 * (64 + 80)


def test_heads_count_at_targets_alone_and_the_backward_pass_twice() -> None:
    import torch

    work = scripts("gpu.work")
    sizes = ModelSettings(preset="tiny").resolve(100)
    batch = pack([[1] * 7, [2] * 5]).with_columns(target_positions=torch.tensor([1, 8]))
    plain = work.encoder_flops(sizes, [7, 5]) + work.vocabulary_flops(sizes, 2)
    assert work.step_flops("mlm", sizes, None, batch) == 3 * plain
    assert work.step_flops("mlm+nsp", sizes, None, batch) == 3 * (plain + 2 * 2 * (128 * 128 + 2 * 128))
    of_pairs = plain + work.encoder_flops(sizes, [7, 5]) + 2 * 12 * (128 * 128 + 128)
    assert work.step_flops("rtd", sizes, sizes, batch) == 3 * of_pairs
    causal = ModelSettings(preset="tiny", architecture="gpt1").resolve(100)
    assert work.step_flops("causal", causal, None, batch) < 3 * plain


def test_a_process_answers_fails_or_is_ended_in_time() -> None:
    cases = scripts("gpu.cases")
    later = time.monotonic() + 60
    assert cases.in_time(later, operator.add, 1, 2) == 3
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        cases.in_time(later, operator.truediv, 1, 0)
    with pytest.raises(cases.NotReachedError):
        cases.in_time(time.monotonic() + 0.1, signal.pause)
    with pytest.raises(cases.NotReachedError):
        cases.in_time(time.monotonic() - 1, operator.add, 1, 2)


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = Namespace(part="base", device="cuda", toy=True, minutes=1.0, json=None)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            patch.setenv(name, "")  # which it sets, and are to be as before
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert scripts("gpu.run").measure_part(words, tmp_path, time.monotonic() + 60) == 1
    assert capsys.readouterr().err == "PyTorch sees no CUDA device; --toy --device cpu shows that everything runs\n"
    assert not list(tmp_path.iterdir())


def test_tables_of_several_runs_are_merged(tmp_path: Path) -> None:
    gpu, row = scripts("gpu.run"), scripts("measure").Row
    file = tmp_path / "table.json"
    on = {"gpu": "none"}
    rows = [row("a: share", 0.5), row("b: share, not reached", None), row("c, not reached", None)]
    gpu.merge(file, "base", rows, on, [])
    gpu.merge(file, "large", [row("d", 2.0, "peer", 1.0, "s", 2.0, target="at least 3.00x", met=False)], on, ["note"])
    gpu.merge(file, "base", [row("a: share, not reached", None), row("b: share", 0.25), row("c: steps", 1.0)], on, [])
    parts = json.loads(file.read_text("utf-8"))["parts"]
    merged = [(its["what"], its["ours"]) for its in parts["base"]["rows"]]
    assert merged == [("a: share", 0.5), ("b: share", 0.25), ("c: steps", 1.0)]
    text = file.with_suffix(".md").read_text("utf-8")
    assert "| d | 2 s | peer | 1 s | 2.00x | at least 3.00x | **no** |" in text
    assert "not reached" not in text


def test_epochs_are_read_off_the_log() -> None:
    tuning = scripts("gpu.tuning")
    first = (1.0, "4.4 M parameters, from x; labels 0, 1")
    lines = [first, (2.0, "note"), (5.0, "step 64: loss 1"), (6.5, "step 1,128: y")]
    assert tuning.epoch_seconds(lines) == (4.0, 1.5)
    with pytest.raises(RuntimeError, match="does not tell"):
        tuning.epoch_seconds(lines[1:])
    tuned = tuning.Tuned(100, 0.3, (4.0, 1.5, 1.7, 1.9), 1.0, {}, ())
    assert tuned.steady == pytest.approx(100 / (1.7 + 0.1))
    assert tuned.waited == pytest.approx(300 / (0.3 + 4.0 + 2 * 1.7))


def test_what_was_not_reached_or_failed_is_told_and_never_judged(tmp_path: Path) -> None:
    rows, cases = scripts("gpu.rows"), scripts("gpu.cases")
    run = rows.Run(tmp_path, "cpu", False, time.monotonic() - 1, 1e12)
    missing = run.attempt("it", operator.add, 1, 2)
    assert missing == rows.Missing("not reached")
    case = run.case("base", 128)
    taken = cases.Taken([0.5, 0.25, 0.5], tokens=1000)
    (row,) = rows.speed(run, case, taken, missing, rows.EAGER, 2.0)
    assert (row.ours, row.peer_figure, row.ratio, row.met) == (2000, None, None, None)
    assert row.what.endswith(", not reached")
    (row,) = rows.speed(run, case, taken, cases.Taken([1.0, 1.0, 1.0], tokens=1000), rows.EAGER, 2.5)
    assert (row.ratio, row.spread, row.met) == (2.0, (2.0, 4.0), False)
    toy = rows.Run(tmp_path, "cpu", True, time.monotonic() - 1, 1e12)
    (row,) = rows.speed(toy, case, taken, taken, rows.EAGER, 2.5)
    assert (row.ratio, row.target, row.met) == (1.0, "", None)


@pytest.mark.slow  # bf16 on a processor without it
def test_both_sides_take_the_same_step(tmp_path: Path) -> None:
    cases, rows = scripts("gpu.cases"), scripts("gpu.rows")
    cases.make_store(tmp_path)
    case = cases.Case(tmp_path, "tiny", 32, 256, dropout_prob=0.0, device="cpu", seconds=0.0, rounds=1)
    cases.make_weights(case)
    ours = scripts("gpu.ours").train_ours(case)
    theirs = scripts("gpu.peers").train_theirs(case, False)
    assert ours.tokens == theirs.tokens == 256
    assert ours.recompilations == 0
    verdicts = list(rows.agreement(case, ours, theirs))
    assert [row.met for row in verdicts] == [True, True], verdicts
    # bf16 keeps eight bits of every gradient
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=0.02)


@pytest.mark.parametrize("rows", ["pairs", "glue"])
def test_batches_of_real_lengths_have_about_the_tokens_asked_for(tmp_path: Path, rows: str) -> None:
    cases = scripts("gpu.cases")
    cases.make_store(tmp_path)
    case = cases.Case(tmp_path, "tiny", 64, 4096, rows=rows, device="cpu")
    batches = [cases.make_objective(case).prepare(batch) for batch in cases.make_batches(case)]
    assert len(batches) == cases.NUM_BATCHES
    for batch in batches:
        assert batch.num_tokens == pytest.approx(4096, rel=0.1)
        assert len(set(batch.lengths)) > 1
        assert len(batch.columns["next_sentence_label"]) == batch.num_sequences
