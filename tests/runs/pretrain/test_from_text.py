"""Pre-training straight from raw text, and from another model's weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from support.files import write
from support.forked import Forked
from support.runs import assert_same_weights, losses_of
from unmask.errors import CheckpointError, Interrupted, SettingsError, StoreError
from unmask.objectives.table import new_objective
from unmask.pretraining import own_store
from unmask.pretraining.checkpoint_model import save_pretrained
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store import preparation
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture
def from_text(tiny_recipe: Path, tiny_text: Path) -> tuple[str, list[str]]:
    return str(tiny_recipe), [f"corpus={tiny_text}", "train.steps=4"]


@pytest.fixture
def from_store(tiny_recipe: Path, tiny_store: Path) -> tuple[str, list[str]]:
    return str(tiny_recipe), [f"store={tiny_store}", "train.steps=4"]


def test_tokenizer_and_store_come_first_and_the_run_is_that_of_a_store(
    from_text: tuple[str, list[str]], from_store: tuple[str, list[str]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    pretrain(*from_text, out=run)
    store = TokenStore(run / "store")
    store.verify()
    assert store.num_documents == 12
    assert load_tokenizer(run / "tokenizer").fingerprint() == load_tokenizer(run / "model").fingerprint()
    assert "tokenizer: 200 entries" in (run / "log.txt").read_text()
    pretrain(*from_store, out=tmp_path / "other")
    assert losses_of(run) == losses_of(tmp_path / "other")


def test_a_tokenizer_that_is_there_is_used(from_text: tuple[str, list[str]], tiny_store: Path, tmp_path: Path) -> None:
    recipe, overrides = from_text
    run = tmp_path / "run"
    pretrain(recipe, [*overrides, f"tokenizer={tiny_store / 'tokenizer'}"], out=run)
    assert not (run / "tokenizer").exists()
    assert (run / "store" / "manifest.json").exists()


@pytest.mark.parametrize("stopped", ["train_tokenizer", "prepare"])
def test_stopped_before_the_first_step_it_goes_on_where_it_was(
    from_text: tuple[str, list[str]], tmp_path: Path, stopped: str
) -> None:
    run = tmp_path / "run"

    def ctrl_c(*arguments: Any, **named: Any) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_store, stopped, ctrl_c)
        with pytest.raises(Interrupted, match="stopped before the first step; the same command with --resume") as told:
            pretrain(*from_text, out=run)
    assert told.value.exit_code == 130
    made = (run / "tokenizer" / "tokenizer.json").stat() if stopped == "prepare" else None
    pretrain(*from_text, out=run, resume=True)
    if made is not None:
        assert (run / "tokenizer" / "tokenizer.json").stat() == made  # the one that was trained before
    pretrain(*from_text, out=tmp_path / "whole")
    assert losses_of(run) == losses_of(tmp_path / "whole")


def kill_in_prepare() -> None:
    preparation.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]


def test_killed_in_the_middle_of_preparing_it_goes_on(from_text: tuple[str, list[str]], tmp_path: Path) -> None:
    """After the shards, before the manifest that makes a store of them."""
    run, (recipe, overrides) = tmp_path / "run", from_text
    words = ["pretrain", recipe, *overrides, "--out", str(run), "--workers", "1", "--resume"]
    killed = Forked(words, before=kill_in_prepare)
    killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    assert (run / "store").is_dir()
    assert not (run / "store" / "manifest.json").exists()
    pretrain(recipe, overrides, out=run, resume=True)
    TokenStore(run / "store").verify()
    pretrain(recipe, overrides, out=tmp_path / "whole")
    assert losses_of(run) == losses_of(tmp_path / "whole")


def test_another_text_under_the_same_name_is_refused_at_a_resume(
    tiny_recipe: Path, tiny_text: Path, tmp_path: Path
) -> None:
    text, run = write(tmp_path / "text.jsonl", tiny_text.read_bytes()), tmp_path / "run"
    words = str(tiny_recipe), [f"corpus={text}", "train.steps=2"]
    pretrain(*words, out=run)
    text.write_bytes(tiny_text.read_bytes() + json.dumps({"text": "One more document."}).encode() + b"\n")
    with pytest.raises(StoreError, match="made from another text"):
        pretrain(*words, out=run, resume=True)
    assert (run / "model" / "model.safetensors").exists()


def test_a_run_that_has_its_store_goes_on_without_the_corpus(
    from_text: tuple[str, list[str]], tiny_text: Path, tmp_path: Path
) -> None:
    recipe, corpus = from_text[0], write(tmp_path / "text.jsonl", tiny_text.read_bytes())
    words = [f"corpus={corpus}"]
    pretrain(recipe, [*words, "train.steps=4"], out=tmp_path / "run")
    corpus.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    pretrain(recipe, [*words, "train.steps=8"], out=tmp_path / "moved", resume=True)
    assert (tmp_path / "moved" / "checkpoints" / "step-00000008").is_dir()


def test_standard_input_is_no_corpus_of_a_run(from_text: tuple[str, list[str]], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"corpus=-: standard input cannot be read again.* `unmask prepare -`"):
        pretrain(from_text[0], ["corpus=-", "train.steps=4"], out=tmp_path / "run")


def test_a_run_goes_on_with_a_copy_of_its_store_but_not_with_another(
    from_store: tuple[str, list[str]], tiny_store: Path, tiny_text: Path, tmp_path: Path
) -> None:
    recipe, words = from_store[0], [f"store={tmp_path / 'store'}"]
    shutil.copytree(tiny_store, tmp_path / "store")
    pretrain(recipe, [*words, "train.steps=4"], out=tmp_path / "run")
    text = write(tmp_path / "other.jsonl", "".join(reversed(tiny_text.read_text().splitlines(keepends=True))))
    prepare([text], tiny_store / "tokenizer", tmp_path / "store", overwrite=True)
    with pytest.raises(CheckpointError, match=r"store=.*store holds something else than when this run was begun"):
        pretrain(recipe, [*words, "train.steps=8"], out=tmp_path / "run", resume=True)
    before = (tmp_path / "run" / "recipe.yaml").read_bytes()
    other, moved = tmp_path / "another", tmp_path / "moved"
    (tmp_path / "store").rename(other)
    with pytest.raises(CheckpointError, match=r"store=.*another holds something else than when this run was begun"):
        pretrain(recipe, [f"store={other}", "train.steps=8"], out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "recipe.yaml").read_bytes() == before
    shutil.copytree(tiny_store, moved)
    pretrain(recipe, [f"store={moved}", "train.steps=8"], out=tmp_path / "run", resume=True)
    assert (
        f"resumed with store={moved}, where it was {tmp_path / 'store'}" in (tmp_path / "run" / "log.txt").read_text()
    )
    assert f"store: {moved}" in (tmp_path / "run" / "recipe.yaml").read_text()


# From another model's weights


def test_the_weights_of_another_model_are_the_start(from_store: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, overrides = from_store
    first, second = tmp_path / "first", tmp_path / "second"
    pretrain(recipe, overrides, out=first)
    settings = load_pretrain_recipe(recipe, [*overrides, f"init_from={first}"])
    tokenizer = load_tokenizer(first / "model")
    torch.manual_seed(99)
    module = build_module(open_start(settings), new_objective(settings.objective, tokenizer.vocabulary), tokenizer)
    save_pretrained(module, tokenizer, second, None)
    assert_same_weights(first / "model", second)  # heads as well
    pretrain(recipe, [*overrides, f"init_from={first}"], out=tmp_path / "third")
    assert losses_of(tmp_path / "third")[0] < losses_of(first)[0]
