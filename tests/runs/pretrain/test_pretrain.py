"""Pre-training from end to end: what a run leaves behind, and that `transformers` opens it and has the same losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForPreTraining, AutoTokenizer, PreTrainedModel

from support.tensors import same_batch
from unmask.batch import Batch
from unmask.config import changed_keys
from unmask.inference.features.extraction import load_feature_model
from unmask.objectives.table import new_objective
from unmask.pretraining.checkpoint_model import save_checkpoint_model
from unmask.pretraining.inputs import prepare_held_out
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.run.log import read_metrics

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING_ROW = ["step", "tokens", "examples_hash", "loss", "loss/mlm", "loss/nsp"]
TRAINING_ROW += ["learning_rate", "gradient_norm", "tokens_per_s"]
METRICS = ["mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "mlm_perplexity"]


def test_the_run_directory_has_all_that_others_rely_on(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        *("recipe.yaml", "environment.json", "metrics.jsonl", "log.txt", "report.html", "tensorboard"),
        *("checkpoints", "data.json", "model", "results.json", "samples.json"),
    }
    assert {path.name for path in (whole / "checkpoints").iterdir()} == {"step-00000008", "step-00000012"}
    for directory in (whole / "checkpoints").iterdir():
        assert {path.suffix for path in directory.iterdir()} == {".safetensors", ".json"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (whole / "model").iterdir()
    }
    assert not list(whole.rglob(".unfinished-*"))
    assert "step 5: mlm_loss" in (whole / "log.txt").read_text()


def test_the_resolved_recipe_is_a_valid_one_and_the_same(whole: Path, words: tuple[str, list[str]]) -> None:
    written, given = load_pretrain_recipe(str(whole / "recipe.yaml")), load_pretrain_recipe(*words)
    assert written == given.model_copy(update={"tokenizer": written.tokenizer})  # that of its store
    assert not changed_keys(written, given)


def test_rows_have_the_keys_that_reports_rely_on(whole: Path) -> None:
    rows = read_metrics(whole / "metrics.jsonl")
    training = [row for row in rows if "loss" in row]
    evaluations = [row for row in rows if "loss" not in row]
    assert [row["step"] for row in training] == [3, 6, 9, 12]
    assert [row["step"] for row in evaluations] == [5, 10, 12]
    assert all(list(row) == TRAINING_ROW for row in training)
    assert all(list(row) == ["step", *(f"eval/{name}" for name in METRICS)] for row in evaluations)
    for row in training:
        assert row["loss"] == pytest.approx(row["loss/mlm"] + row["loss/nsp"], rel=1e-12)  # one rounding of doubles
    assert [row["learning_rate"] for row in training][:2] == pytest.approx([1e-3 * 2 / 3, 1e-3 * 7 / 9])


def held_out_batches(recipe: PretrainRecipe, store: Path) -> list[Batch]:
    opened = TokenStore(store)
    tokenizer = load_tokenizer(opened.tokenizer_directory)
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    return prepare_held_out(open_start(recipe), opened, tokenizer, objective)


def test_runs_of_other_seeds_are_measured_on_the_same_masked_sequences(
    words: tuple[str, list[str]], tiny_store: Path
) -> None:
    recipe, given = words
    first, other = (
        held_out_batches(load_pretrain_recipe(recipe, [*given, "train.eval_sequences=9", f"seed={seed}"]), tiny_store)
        for seed in (0, 7)
    )
    assert sum(batch.num_sequences for batch in first) == 9
    assert all(map(same_batch, first, other))


@torch.no_grad()
def their_losses(model: PreTrainedModel, batches: list[Batch]) -> tuple[float, float]:
    """The mean losses of masked tokens and of pairs, by `transformers`."""
    totals, counts = [0.0, 0.0], [0, 0]
    for batch in batches:

        def pad(packed: torch.Tensor, value: int, batch: Batch = batch) -> torch.Tensor:
            rows = list(packed.split(batch.lengths))
            return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

        output = model(
            input_ids=pad(batch.input_ids, 0),
            token_type_ids=pad(batch.token_type_ids, 0),
            attention_mask=pad(torch.ones_like(batch.input_ids), 0),
        )
        labels, pairs = pad(batch.columns["labels"], -100).flatten(), batch.columns["next_sentence_label"]
        totals[0] += float(cross_entropy(output.prediction_logits.flatten(0, 1), labels, reduction="sum"))
        totals[1] += float(cross_entropy(output.seq_relationship_logits, pairs, reduction="sum"))
        counts[0] += int((labels >= 0).sum())
        counts[1] += batch.num_sequences
    return totals[0] / counts[0], totals[1] / counts[1]


def test_transformers_opens_the_model_and_has_the_same_losses(
    whole: Path, words: tuple[str, list[str]], tiny_store: Path
) -> None:
    model, report = AutoModelForPreTraining.from_pretrained(whole / "model", output_loading_info=True)
    assert type(model).__name__ == "BertForPreTraining"
    assert not any(report.values()), report
    found = their_losses(model.eval(), held_out_batches(load_pretrain_recipe(*words), tiny_store))
    results = json.loads((whole / "results.json").read_text())
    # fp32 logits of order 1, and means of some hundred losses: measured differences are below 1e-6
    assert found == pytest.approx((results["mlm_loss"], results["nsp_loss"]), abs=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    assert tokenizer("the old man")["input_ids"][0] == tokenizer.cls_token_id


def test_a_model_says_how_long_its_sequences_were(words: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, given = words
    short = [*given, "packing.max_length=16", "train.steps=2", "schedule.warmup_steps=0"]
    model = pretrain(recipe, short, out=tmp_path / "short")
    assert json.loads((model / "config.json").read_text())["unmask_trained_length"] == 16
    assert AutoTokenizer.from_pretrained(model).model_max_length == 32
    assert load_feature_model(model).max_length == 16
    assert load_feature_model(model, max_length=32).max_length == 32
    phases = "phases=[{until: 0.5, max_length: 16}, {until: 1, max_length: 32}]"
    kept = ["train.steps=4", "train.save_every=1", "train.keep_last=9"]
    pretrain(recipe, [*given, phases, *kept], out=tmp_path / "phases")
    for step, told in ((1, 16), (4, None)):
        early = save_checkpoint_model(tmp_path / "phases", tmp_path / f"step-{step}", step)
        assert json.loads((early / "config.json").read_text()).get("unmask_trained_length") == told
    on = [f"init_from={model}", *(word.replace("=16", "=32") for word in short)]
    longer = pretrain(recipe, on, out=tmp_path / "longer")
    assert "unmask_trained_length" not in json.loads((longer / "config.json").read_text())


def test_the_state_of_torch_is_not_that_of_the_caller_and_stays(words: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, given = words
    before = torch.get_rng_state()
    with torch.inference_mode():
        pretrain(recipe, [*given, "train.steps=2", "schedule.warmup_steps=0"], out=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_without_next_sentence_prediction_the_model_is_a_masked_lm(
    words: tuple[str, list[str]], tmp_path: Path, without_report: None
) -> None:
    recipe, overrides = words
    changes = ["objective.sentence_objective=none", "train.steps=2", "held_out=0"]
    pretrain(recipe, [*overrides, *changes], out=tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [list(row) for row in rows] == [[key for key in TRAINING_ROW if key != "loss/nsp"]]
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert not (tmp_path / "run" / "samples.json").exists()
