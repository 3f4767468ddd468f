"""Model cards: what the Hub reads of them, what they say, and what they leave out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from support.model_files import edit_config
from unmask.card import Exported, Stated, card_of, stated_in, write_card
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.info import describe_model
from unmask.store.manifest import manifest_checksum
from unmask.store.preparation import prepare
from unmask.training.run.model_place import check_place

STATED = Stated("apache-2.0", ("en", "ko"), ("me/reviews",), "reviews")


def a_run(place: Path, model: Path, **results: Any) -> Path:
    """The directory of a fine-tuning run, with a model that classifies."""
    shutil.copytree(model, place / "model")
    config = json.loads((model / "config.json").read_text("utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "a | b"}}
    config |= {"unmask_task": {"name": "classification", "max_length": 64, "columns": {}}}
    (place / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    (place / "recipe.yaml").write_text(
        "init_from: /srv/ada/models/bert\ndata: {train: [/srv/ada/a.csv, b.csv], dev: /srv/ada/dev.csv}\n"
        "task: {name: classification}\ntrain: {epochs: 3, batch_size: 16}\n"
    )
    (place / "metrics.jsonl").write_text('{"step": 30, "tokens": 12345, "loss": 1}\n')
    session = {
        "started": "2026",
        "device": "a CPU",
        "command": [
            *(
                "unmask",
                "finetune",
                "init_from=/srv/ada/m/bert",
                "data.train=[/srv/ada/a.csv,~/b.csv]",
                "x=../../up/c.csv",
            )
        ],
    }
    (place / "environment.json").write_text(json.dumps({"sessions": [session]}))
    if results:
        (place / "results.json").write_text(json.dumps(results))
    return place


def test_a_model_made_elsewhere(tmp_path: Path, tiny_model: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "theirs"))
    config = json.loads((model / "config.json").read_text("utf-8"))
    config = {key: value for key, value in config.items() if not key.startswith("unmask_")}
    config["architectures"] = ["BertForSequenceClassification"]
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    card = card_of(model)
    assert "Made by" not in card
    assert "unmask predict DIRECTORY FILE" in card
    assert 'pipeline("text-classification", model="DIRECTORY")' in card
    assert ModelCard(card).data.pipeline_tag == "text-classification"
    assert not ModelCard(card).data.tags
    (model / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": ["T5Model"]}), "utf-8")
    with pytest.raises(ModelError, match="models of this family do not load here"):
        card_of(model)


def test_a_model_that_transformers_gave_another_head(tmp_path: Path, tiny_model: Path) -> None:
    model = a_run(tmp_path / "run", tiny_model) / "model"
    edit_config(model, architectures=["BertForMaskedLM"], transformers_version="5.23.0")
    card = card_of(model)
    assert ModelCard(card).data.pipeline_tag == "fill-mask"
    assert "text-classification" not in card
    assert not {"task", "labels"} & describe_model(model).keys()


@pytest.mark.parametrize(("task", "message"), [("qa", "is no object"), ({"name": "juggling"}, "no task 'juggling'")])
def test_a_model_whose_task_cannot_be_read(tmp_path: Path, tiny_model: Path, task: Any, message: str) -> None:
    model = a_run(tmp_path / "run", tiny_model) / "model"
    edit_config(model, unmask_task=task)
    with pytest.raises(ModelError, match=rf"model/config\.json.*{message}"):
        card_of(model)
    assert message in describe_model(model)["does_not_load"]


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Path:
    return a_run(
        tmp_path / "run",
        tiny_model,
        dev={"loss": 0.5, "accuracy": 0.87654321, "f1": 0.9},
        positive_label="a | b",
        dev_examples={"n": 1872, "truncated": 3, "unlabelled": 2, "accuracy_interval": {"low": 0.86, "high": 0.89}},
        early_stopping={"step": 30, "evaluations": 5},
        floors={"dev.accuracy": {"most frequent label of train": 0.51}},
        degenerate=None,
        calibration={"expected_calibration_error": 0.031, "bins": []},
    )


def test_the_hub_reads_it(run: Path) -> None:
    card = ModelCard.load(write_card(run, STATED))
    data = card.data
    assert (data.license, data.language, data.datasets) == ("apache-2.0", ["en", "ko"], ["me/reviews"])
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("transformers", "text-classification", "reviews")
    [accuracy, f1] = data.eval_results
    assert (accuracy.task_type, accuracy.dataset_name, accuracy.dataset_split) == (
        "text-classification",
        "dev.csv",
        "validation",
    )
    assert (accuracy.metric_type, accuracy.metric_value) == ("accuracy", 0.8765)
    assert (f1.metric_type, f1.metric_value) == ("f1", 0.9)


def test_it_says_what_the_run_knows(run: Path) -> None:
    text = write_card(run, STATED).read_text("utf-8")
    for told in (
        "`bert`, fine-tuned",
        r"labels bad, a \| b",
        "| train | a.csv, b.csv |",
        "| dev | dev.csv: 1,872 examples, 3 of them truncated; 2 unlabelled |",
        "\n\nThe model is that of step 30, the best of 5 evaluations\non dev: its figures there are flattered by that;",
        "30 steps, 12,345 tokens",
        "| dev | accuracy | 0.8765 | most frequent label of train 0.51 |",
        r"| dev | f1 of a \| b | 0.9 | |",
        "calibration error on dev 0.031.",
        "up to 64 tokens",
        "| train.epochs | 3.0 |",
        "One run:",
    ):
        assert told in text, told
    assert "'data.train=[a.csv,b.csv]' x=c.csv" in text
    assert not {"/srv", "~/", "../"} & set(re.findall(r"/srv|~/|\.\./", text)), "where things were is nobody's business"


def test_the_only_evaluation_is_not_the_best_of_several(run: Path) -> None:
    results = json.loads((run / "results.json").read_text("utf-8"))
    (run / "results.json").write_text(json.dumps(results | {"early_stopping": {"step": 30, "evaluations": 1}}))
    assert "The model is that of step" not in write_card(run, STATED).read_text("utf-8")


def test_an_exported_model_states_its_own_scores(run: Path) -> None:
    measured = {"accuracy": 0.75, "f1": 0.7, "confusion": {}}
    card = ModelCard(card_of(run / "model", STATED, Exported("ONNX, int8.", "check|a.tsv", measured)))
    [accuracy, f1] = card.data.eval_results
    assert (accuracy.dataset_name, accuracy.dataset_split, accuracy.dataset_type) == (
        "check|a.tsv",
        None,
        "classification",
    )
    assert (accuracy.metric_value, f1.metric_value) == (0.75, 0.7)
    results = card.text.split("## Results")[1].split("## Limits")[0]
    own, of_the_original = results.split("\n\nOf the model that it was made from:\n\n")
    assert r"| check\|a.tsv | accuracy | 0.75 | |" in own
    assert "| dev | accuracy | 0.8765 |" in of_the_original
    assert "error on dev 0.031" in of_the_original


def test_it_has_every_command_that_made_the_model_as_it_is(run: Path) -> None:
    begin, longer = ["unmask", "pretrain", "a.yaml", "--out", "/srv/ada/r"], ["train.steps=400"]
    commands = [begin, [*begin, "--resume"], [*begin, *longer, "--resume"], [*begin, "--resume", *longer], begin]
    sessions = {"sessions": [{"command": command} for command in commands] + [{}]}
    (run / "environment.json").write_text(json.dumps(sessions))
    text = write_card(run).read_text("utf-8")
    first, then = "unmask pretrain a.yaml --out r", "unmask pretrain a.yaml --out r train.steps=400 --resume"
    assert f"```\n{first}\n{then}\n{first}\n```\n" in text


def test_a_part_of_the_training_examples_is_named(run: Path) -> None:
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("data: {train:", "data: {train_examples: 1200, train:"))
    assert "| train | a.csv, b.csv: 1,200 of its examples, drawn by seed 0 |" in write_card(run).read_text("utf-8")


def test_a_budget_that_was_changed_is_told(run: Path) -> None:
    change = {"step": 300, "was": "train.steps=300", "now": "train.steps=400"}
    (run / "environment.json").write_text(json.dumps({"sessions": [{}, {"budget_change": change}]}))
    told = "\n\nIts budget was changed at step 300, from train.steps=300 to train.steps=400: "
    assert told in write_card(run).read_text("utf-8")


@pytest.mark.parametrize(
    ("changed", "code", "library"),
    [
        ({}, 'pipeline("text-classification", model="DIRECTORY", truncation=True, max_length=', "transformers"),
        ({"architectures": ["BertModel"], "unmask_head": "sequence_classification"}, None, None),
        ({"architectures": ["LstmModel"], "unmask_head": "sequence_classification"}, None, None),
        ({"architectures": ["BertForQuestionAnswering"], "unmask_task": {"name": "qa"}}, None, "transformers"),
        ({"architectures": ["BertForMultipleChoice"], "unmask_task": {"name": "choice"}}, None, "transformers"),
        ({"architectures": ["BertForMaskedLM"], "unmask_task": {}}, 'pipeline("fill-mask"', "transformers"),
        ({"architectures": ["LstmForCausalLM"], "unmask_task": {}}, None, None),
        ({"architectures": ["OpenAIGPTLMHeadModel"], "unmask_task": {}}, "AutoModel.from_pretrained", "transformers"),
    ],
)
def test_transformers_is_named_only_where_it_answers_the_same(
    run: Path, changed: dict[str, Any], code: str | None, library: str | None
) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    card = ModelCard.load(write_card(run))
    assert card.data.library_name == library
    assert ("```python" in card.text) == (code is not None)
    assert (code or "unmask ") in card.text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"unmask_task": {"name": "classification", "long_text": "windows"}}, "reads a long text in windows"),
        ({"unmask_task": {"name": "regression", "long_text": "windows"}}, "reads a long text in windows"),
        ({"unmask_task": {"name": "classification", "multi_label": True, "thresholds": {"bad": 0.2}}}, "by thresholds"),
        ({"unmask_task": {"name": "classification", "multi_label": True}}, "by thresholds"),
        (
            {"architectures": ["BertForTokenClassification"], "unmask_task": {"name": "tagging"}},
            "and a pipeline tokens",
        ),
        ({"architectures": ["BertForQuestionAnswering"], "unmask_task": {"name": "qa"}}, "for question-answering"),
        ({"architectures": ["BertModel"], "unmask_head": "sequence_classification"}, "part of it, is in `head.safeten"),
        ({"architectures": ["LstmForCausalLM"], "unmask_task": {}}, "`transformers` has no such model"),
        ({}, None),
    ],
)
def test_limits_say_why_there_is_no_code(run: Path, changed: dict[str, Any], reason: str | None) -> None:
    path = run / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    text = write_card(run).read_text("utf-8")
    assert ("```python" in text) == (reason is None)
    assert ("There is no code for `transformers` here: " in text) == (reason is not None)
    if reason is not None:
        assert reason in text.split("## Limits")[1].split("## Recipe")[0]
    assert ("unmask predict DIRECTORY FILE" in text) == (changed.get("unmask_task") != {})


def test_a_segmenter_is_named(run: Path) -> None:
    path = run / "model" / "tokenizer_config.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | {"unmask_segmenter": "kiwi"}))
    text = write_card(run).read_text("utf-8")
    assert "Its tokenizer has a segmenter, kiwi: AutoTokenizer" in text
    assert "```python" not in text


def test_another_run_s_files_beside_a_model_are_not_its_own(run: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, run / "somebert")
    text = write_card(run / "somebert").read_text("utf-8")
    assert "accuracy" not in text
    assert text.count("Not recorded beside the model.") == 2
    shutil.copytree(tiny_model, run.parent / "other" / "model")
    (run.parent / "other" / "recipe.yaml").write_text((run / "recipe.yaml").read_text("utf-8"), "utf-8")
    assert "Not recorded beside the model." in write_card(run.parent / "other").read_text("utf-8"), (
        "it is fine-tuning's"
    )


def test_files_of_others_in_and_beside_a_model_are_not_read(run: Path, tiny_model: Path) -> None:
    model = run / "somebert"
    shutil.copytree(tiny_model, model)
    (run / "recipe.yaml").write_text("flour: 500 g\n")
    for name in ("metrics.jsonl", "summary.json"):
        (model / name).write_text("{}\n")
    text = write_card(model).read_text("utf-8")
    assert "BertForPreTraining" in text
    assert text.count("Not recorded beside the model.") == 2


@pytest.mark.parametrize(
    "given", [{"name": "a\n# b"}, {"license": "mit\nfoo"}, {"languages": ("",)}, {"name": "\udcff"}]
)
def test_what_is_stated_is_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="expected one line of text"):
        Stated(**given)


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ({}, "on dev 0.031, after its logits were divided by 2.5 (chosen on these examples)."),
        (
            {"test": {"expected_calibration_error": 0.042}},
            "on test 0.042, after its logits were divided by 2.5 (chosen on dev).",
        ),
    ],
)
def test_how_sure_it_may_be_is_said_of_other_examples(
    tmp_path: Path, tiny_model: Path, test: dict[str, Any], told: str
) -> None:
    calibration = {"expected_calibration_error": 0.031, "temperature": 2.5}
    run = a_run(tmp_path / "run", tiny_model, dev={"accuracy": 0.8}, calibration=calibration, **test)
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("dev.csv}", "dev.csv, test: test.csv}"))
    assert f"Expected calibration error {told}" in write_card(run).read_text("utf-8")


def test_a_search_gives_the_spread(tmp_path: Path, tiny_model: Path) -> None:
    run = a_run(tmp_path / "search", tiny_model)
    every = {"n": 3, "dev": {"loss": {"mean": 1.0, "sd": 0.1}, "accuracy": {"mean": 0.8, "sd": 0.012}}, "test": {}}
    best = {"trial": "lr1_seed2", "combination": "lr1", "all_runs_of_it": every}
    (run / "summary.json").write_text(json.dumps({"best_on_dev": best}))
    results = {
        "dev": {"accuracy": 0.82},
        "floors": {"dev.accuracy": {"most frequent label of train": 0.51}},
        "degenerate": "every label is bad",
        "calibration": {"expected_calibration_error": 0.031},
    }
    (run / "trials" / "lr1_seed2").mkdir(parents=True)
    (run / "trials" / "lr1_seed2" / "results.json").write_text(json.dumps(results))
    text = write_card(run).read_text("utf-8")
    assert "| on | figure | mean ± sd over seeds | to compare with |" in text
    assert "| dev | accuracy | 0.8 ± 0.012 (3 runs) | most frequent label of train 0.51 |" in text
    assert "every label is bad: **it gives every example the same answer**" in text
    assert "error on dev 0.031" in text
    assert (
        "the model is `lr1_seed2`, the best on dev; the figures are of all runs of its\nconfiguration, `lr1`." in text
    )
    assert "One run:" not in text


def test_a_card_names_the_text_that_was_read_and_what_was_left_out(tmp_path: Path, tiny_model: Path) -> None:
    files = {"books.txt": "A man.\n\nTwo dogs.\n", "copy.txt": "Two dogs.\n", "empty.txt": "", "rows.jsonl": "{}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = {"reading": ReadingSettings(on_error="skip"), "cleaning": CleaningSettings(duplicates="documents")}
    prepare([tmp_path / name for name in files], tiny_model, tmp_path / "store", **settings)
    shutil.copytree(tiny_model, tmp_path / "run" / "model")
    (tmp_path / "run" / "recipe.yaml").write_text(f"store: {tmp_path / 'store'}\ntrain: {{steps: 9}}\n")
    text = write_card(tmp_path / "run").read_text("utf-8")
    assert re.findall(r"\| text \| (.*) \|", text) == ["books.txt"]
    assert "| left out | 1 record passed over: no such field; 1 document dropped: duplicate |" in text
    path = tmp_path / "store" / "manifest.json"
    manifest = json.loads(path.read_text())
    for source in manifest["sources"]:
        del source["documents"]  # as earlier versions left it
    path.write_text(json.dumps({**manifest, "sha256": manifest_checksum(manifest)}))
    text = write_card(tmp_path / "run", overwrite=True).read_text("utf-8")
    assert re.findall(r"\| text \| (.*) \|", text) == [*files]


def test_a_pre_trained_model_names_its_text(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "books.txt").write_text("A man is outside. He plays.\n\nTwo dogs run.\n", encoding="utf-8")
    prepare([tmp_path / "books.txt"], tiny_model, tmp_path / "store")
    run = tmp_path / "run"
    shutil.copytree(tiny_model, run / "model")
    (run / "recipe.yaml").write_text(f"store: {tmp_path / 'store'}\ntrain: {{steps: 9}}\n")
    (run / "metrics.jsonl").write_text(
        '{"step": 9, "tokens": 80}\n{"step": 9, "eval/mlm_loss": 4.5, "eval/mlm_accuracy": 0.2}\n'
        '{"step": 9, "eval/pairs_accuracy": 0.7}\n'
    )
    floors = {"loss/mlm": {"no context": 4.2}, "eval/mlm_accuracy": {"no context": 0.1}}
    floors |= {"eval/pairs_accuracy": {"a coin": 0.5}}
    (run / "results.json").write_text(json.dumps({"num_pairs": 1060, "floors": floors}))
    text = write_card(run).read_text("utf-8")
    assert "| text | books.txt |" in text
    assert "2 documents" in text
    assert "| held-out text | mlm_loss | 4.5 | no context 4.2 |" in text
    assert "| held-out text | mlm_accuracy | 0.2 | no context 0.1 |" in text
    assert "| 1,060 minimal pairs | pairs_accuracy | 0.7 | a coin 0.5 |" in text
    assert "Not stated." in text
    assert str(tmp_path) not in text
    (run / "results.json").write_text("{}")  # as earlier versions left it, without the number
    assert "| minimal pairs | pairs_accuracy | 0.7 |" in write_card(run, overwrite=True).read_text("utf-8")


def test_a_model_without_its_run_says_so(tmp_path: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    text = write_card(tmp_path / "model").read_text("utf-8")
    assert text.count("Not recorded beside the model.") == 2
    assert "Not measured." in text


def test_a_sample_encoder_s_recipe_names_no_text(tmp_path: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "recipe.yaml").write_text("corpus: null\nstore: null\ntrain: {steps: 9}\n")
    text = write_card(tmp_path / "model").read_text("utf-8")
    assert text.count("Not recorded beside the model.") == 1
    assert "| train.steps | 9 |" in text


def test_weights_beside_an_onnx_file_have_a_card(run: Path) -> None:
    (run / "model" / "model.onnx").touch()
    assert "fine-tuned" in write_card(run).read_text("utf-8")
    (run / "model" / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match="was exported, with a card of its own"):
        write_card(run, overwrite=True)


def test_until_somebody_edits_it_a_card_is_replaced_with_its_model(run: Path) -> None:
    card = write_card(run)
    check_place(run / "model", overwrite=True)
    card.write_text(card.read_text("utf-8").replace("fine-tuned", "fine-tuned with care"), "utf-8")
    with pytest.raises(OutputError, match=r"holds README\.md"):
        check_place(run / "model", overwrite=True)


def test_a_card_that_is_there_stays(run: Path) -> None:
    (run / "model" / "README.md").write_text("by hand")
    with pytest.raises(OutputError, match=r"README\.md is there already: --overwrite replaces it"):
        write_card(run)
    write_card(run, overwrite=True)
    assert (run / "model" / "README.md").read_text("utf-8") != "by hand"
    with pytest.raises(ModelError, match="no such directory"):
        write_card(run / "nothing")


def test_a_card_that_is_a_link_to_nothing_stays(run: Path, tmp_path: Path) -> None:
    (run / "model" / "README.md").symlink_to(tmp_path / "not there")
    with pytest.raises(OutputError, match=r"README\.md is there already"):
        write_card(run)
    assert not (tmp_path / "not there").exists()


ALIASES = "".join(f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]\n" for number in range(1, 100))
"""Of 2^99 texts."""


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\nlanguage: ko\ndatasets:\n- a/b\n- c\n---\n# name\n", Stated("mit", ("ko",), ("a/b", "c"))),
        ("---\nlanguage:\n- en\n---\n---\n", Stated(languages=("en",))),
        ("---\nlicense: [\n---\n", Stated()),
        ("---\nlicense: [mit]\nlanguage: no\n---\n", Stated(languages=("no",))),
        (f"---\na: &a0 x\n{ALIASES}license: *a99\n---\n", Stated()),
        ("---\n- mit\n---\n", Stated()),
        ("# name\n", Stated()),
        (None, Stated()),
    ],
)
def test_what_a_card_states_is_read_again(card: str | None, expected: Stated, tmp_path: Path) -> None:
    if card is not None:
        (tmp_path / "README.md").write_text(card, "utf-8")
    assert stated_in(tmp_path) == expected


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_the_mask_is_that_of_the_model(tmp_path: Path, tiny_model: Path, mask: str) -> None:
    shutil.copytree(tiny_model, tmp_path / "bert")
    for path in (tmp_path / "bert").glob("*token*.json"):
        path.write_text(path.read_text("utf-8").replace("[MASK]", mask), "utf-8")
    assert f'unmask fill-mask DIRECTORY "a text with {mask} in it"' in write_card(tmp_path / "bert").read_text("utf-8")


def test_a_bert_of_google_fills_masks(tmp_path: Path) -> None:
    google = Path(__file__).parents[1] / "golden" / "tensorflow_checkpoint"
    shutil.copytree(google, tmp_path / "google")
    data = ModelCard.load(write_card(tmp_path / "google")).data
    assert (data.library_name, data.pipeline_tag) == (None, "fill-mask")
