"""`unmask plan` as a command: what it prints, what it refuses, and real steps beside planned ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import Command, check_refused
from unmask.experiments.plan import program, rates

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_table_for_each_number_of_devices(unmask: Command, tiny_recipe: Path) -> None:
    finished = unmask("plan", str(tiny_recipe), "train.batch_size=64", "precision=bf16", "--link", "ib400")
    assert finished.code == 0, finished.errors
    header = next(line.split() for line in finished.output.splitlines() if line.split()[:1] == ["1"])
    assert header == ["1", "8", "64"], "64 stands for 512 too"
    for name in ("time", "energy"):
        row = next(line.split() for line in finished.output.splitlines() if line.split()[:1] == [name])
        assert row.count("over") == 3, "products of so narrow a model are far from a GPU's usual rate"
    assert "took 14 times as long" in " ".join(finished.output.split())
    assert "measuring the memory of a step" in finished.errors
    for fact in ("efficiency", "energy", "memory of a device", "disk", "sent by a device", "assumed", "989T FLOP/s"):
        assert fact in finished.output
    assert "512 does not divide a batch of 64 sequences: 64 replaces it" in " ".join(finished.output.split())


def test_a_share_of_ones_own_or_a_budget_in_minutes_is_taken_as_it_is(unmask: Command, tiny_recipe: Path) -> None:
    for words in (
        ["train.batch_size=1024", "train.micro_batch_size=1024", "--mfu", "0.05"],
        ["train.steps=null", "train.minutes=3"],
    ):
        output = unmask("plan", str(tiny_recipe), *words, "--gpus", "1").output
        assert not any(line.split()[:2] == ["time", "over"] for line in output.splitlines())


def test_json(unmask: Command, tiny_recipe: Path) -> None:
    words = ("plan", str(tiny_recipe), "train.batch_size=64", "--gpus", "8", "--gpu", "a100", "--mfu", "0.2", "--json")
    plan = json.loads(unmask(*words).output)
    (cost,) = plan["costs"]
    assert plan["precision"] == "fp32", "as the recipe says"
    assert plan["speeds"]["operations"] == pytest.approx(0.2 * 19.5e12)
    assert cost["devices"] == 8
    assert cost["steps"] == 12
    assert cost["step"]["computing"] == pytest.approx(plan["phases"][0]["operations"] / 8 / (0.2 * 19.5e12))
    assert cost["sent_bytes"] == pytest.approx(2 * 7 / 8 * 4 * plan["parameters"])
    assert cost["seconds"] == pytest.approx(12 * cost["step"]["total"])
    assert plan["measured"] is None


def test_more_devices_than_a_node_has_wait_for_a_link(unmask: Command, tiny_recipe: Path) -> None:
    finished = unmask("plan", str(tiny_recipe), "train.batch_size=64", "--json")
    plan = json.loads(finished.output)
    assert [cost["devices"] for cost in plan["costs"]] == [1, 8]
    assert "more devices than a node of 8 are left out: say what joins nodes with --link ib400" in " ".join(
        plan["notes"]
    )


def test_devices_stay_within_a_node_whatever_divides_the_batch(unmask: Command, tiny_recipe: Path) -> None:
    plan = json.loads(unmask("plan", str(tiny_recipe), "train.batch_size=20", "--json").output)
    assert [cost["devices"] for cost in plan["costs"]] == [1, 5], "10 is nearer to 8, and more than a node has"
    assert "8 does not divide a batch of 20 sequences: 5 replaces it" in plan["notes"]
    assert "more devices than a node of 8 are left out" in " ".join(plan["notes"])


def test_what_does_not_fit_is_said(unmask: Command, tiny_recipe: Path) -> None:
    words = ("model.num_hidden_layers=160", "model.hidden_size=1024", "model.num_attention_heads=8")
    finished = unmask("plan", str(tiny_recipe), *words, "--gpus", "1", "--gpu", "4090")
    assert "lower train.micro_batch_size, or that of a phase, which is 5 here" in " ".join(finished.output.split())


def test_a_text_makes_epochs_known(unmask: Command, words: tuple[str, list[str]]) -> None:
    recipe, overrides = words
    finished = unmask("plan", recipe, *overrides, "train.steps=null", "train.epochs=2", "--gpus", "1", "--json")
    plan = json.loads(finished.output)
    assert plan["costs"][0]["steps"] > 1
    without = unmask("plan", recipe, "train.steps=null", "train.epochs=2", "--gpus", "1")
    assert without.output.count("not known") == 4, "time, steps, tokens, energy"


def test_real_steps_beside_planned_ones(unmask: Command, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "PROBE_S", 0.2)
    monkeypatch.setattr(program, "MEASURED_S", 0.2)
    finished = unmask("plan", str(tiny_recipe), "--gpu", "cpu", "--gpus", "1", "--measure", "--json")
    plan = json.loads(finished.output)
    measured = plan["measured"]
    assert measured["step_s"] > 0
    assert measured["planned_s"] == pytest.approx(plan["costs"][0]["step"]["total"])
    assert measured["off"] == pytest.approx(measured["planned_s"] / measured["step_s"] - 1)
    assert "of the recipe's operations" in plan["figures"]["measured"]


def test_a_stated_rate_is_not_measured(unmask: Command, tiny_recipe: Path) -> None:
    finished = unmask("plan", str(tiny_recipe), "--gpu", "cpu", "--gpus", "1", "--rate", "2e9", "--json")
    plan = json.loads(finished.output)
    assert plan["speeds"]["operations"] == 2e9
    assert "--rate" in plan["figures"]["stated"]
    assert "operations" not in plan["figures"]["measured"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "b9"], "--gpu b9: expected h100, h200, a100, a6000, 4090 or cpu"),
        (["--link", "wire"], "--link wire: expected nvlink, ib400 or eth100"),
        (["--gpu", "4090", "--link", "nvlink"], "--link nvlink: 4090 has none"),
        (["--mfu", "0"], "--mfu 0: expected the share"),
        (["--mfu", "40"], "--mfu 40: expected the share"),
        (["--gpu", "cpu", "--mfu", ".5"], "--mfu is a share of a GPU's stated rate"),
        (["--rate", "1e12"], "--rate is for --gpu cpu"),
        (["--gpu", "cpu", "--rate", "0"], "--rate 0: expected operations a second"),
        (["--gpu", "cpu", "--rate", "nan"], "--rate nan: expected operations a second"),
        (["--measure"], "--measure times steps on this machine's processor, and the plan is for h100"),
        (["--gpus", "0"], "--gpus 0: expected 1 or more"),
        (["--gpus", "3"], "--gpus 3 does not divide a batch of 8 sequences into equal shares: the nearest"),
        (["train.batch_size=64", "--gpus", "16"], "--gpus 16 are more than a node of 8: say what joins nodes with"),
        (["train.batch_size=64", "--gpus", "16", "--link", "nvlink"], "--gpus 16 are more than a node of 8"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, unmask: Command, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "open_workload", lambda *_: pytest.fail("measured before it was refused"))
    check_refused(unmask("plan", str(tiny_recipe), *words), message)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("finetune/sst2", "finetune/sst2 is a recipe for `unmask finetune`"),
        ("pretrain/elmo_tiny", "pretrain/elmo_tiny reads a stream of words"),
        ("pretrain/bert_tinny", "no recipe 'pretrain/bert_tinny'"),
    ],
)
def test_recipes_that_cannot_be_planned(recipe: str, message: str, unmask: Command) -> None:
    check_refused(unmask("plan", recipe), message)
