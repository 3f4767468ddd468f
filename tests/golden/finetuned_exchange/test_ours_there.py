"""What `finetune` and `pretrain` save opens in `transformers`' classes and computes the same, for each kind of task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.files import write_rows
from support.finetuned_exchange import KINDS, assert_equal, load_whole
from support.sizes import small
from support.tasks import new_task
from unmask.finetuning.run import finetune, save_finetuned
from unmask.inference.left_to_right.generation import generate
from unmask.inference.predictor import load_predictor
from unmask.models.encoder import new_encoder
from unmask.pretraining.run import pretrain
from unmask.tokenization.tokenizer import load_tokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

CUT_AND_PADDED_AT_THE_LEFT = {
    "truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "[PAD]"},
}  # fmt: skip


@pytest.mark.usefixtures("without_reports")
def test_what_we_save_opens_there(bases: dict[str, Path], tmp_path: Path, family: str, name: str) -> None:
    kind, data = KINDS[name], write_rows(tmp_path / "train.jsonl", *KINDS[name].rows)
    words = [f"init_from={bases[family]}", f"data.train={data}", *kind.settings, "train.steps=2", "train.batch_size=6",
             "optimizer.learning_rate=1e-3", "schedule.warmup_ratio=0", "device=cpu", "precision=fp32"]  # fmt: skip
    words.append("seed=1")  # with that of the recipes the regression's answers are all about the same
    directory = finetune(f"finetune/{kind.recipe}", words, out=tmp_path / "run")
    model = load_whole(kind, directory)
    assert type(model).__name__ == json.loads((directory / "config.json").read_text())["architectures"][0]
    if kind.config is not None and "id2label" in kind.config:
        labels = list(kind.config["id2label"].values())
        assert sorted(model.config.id2label.values()) == sorted(labels)
        if name != "tagging":
            assert list(model.config.id2label.values()) == labels
        assert {model.config.label2id[label] for label in labels} == set(range(len(labels)))
    assert_equal(name, directory, model)


@pytest.mark.usefixtures("without_reports")
def test_a_tokenizer_of_theirs_gives_the_segments_that_were_learnt(bases: dict[str, Path], tmp_path: Path) -> None:
    base = Path(shutil.copytree(bases["bert"], tmp_path / "base"))
    config = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    config = {**config, "truncation_side": "left", "padding_side": "left"}
    del config["model_input_names"]
    (base / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    definition = json.loads((base / "tokenizer.json").read_text("utf-8")) | CUT_AND_PADDED_AT_THE_LEFT
    (base / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    kind, data = KINDS["pairs"], write_rows(tmp_path / "train.jsonl", *KINDS["pairs"].rows)
    words = [f"init_from={base}", f"data.train={data}", *kind.settings, "train.steps=2", "device=cpu"]
    directory = finetune(f"finetune/{kind.recipe}", words, out=tmp_path / "run")
    assert_equal("pairs", directory, load_whole(kind, directory))
    theirs = AutoTokenizer.from_pretrained(directory)
    assert (theirs.truncation_side, theirs.padding_side) == ("right", "right"), "as `unmask predict` cuts"


@pytest.mark.parametrize(
    ("family", "of"), [("gpt1", "bert"), ("roberta", "bert"), ("modernbert", "bert"), ("bert", "roberta")]
)
def test_a_tokenizer_that_names_no_class_is_that_of_its_file(
    bases: dict[str, Path], tmp_path: Path, family: str, of: str
) -> None:
    """Published ones of 2019 name none; `transformers` then takes that of the model, which splits otherwise."""
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}')
    shutil.copy(bases[of] / "tokenizer.json", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    sizes = small(architecture=family, vocab=tokenizer.vocab_size, width=16, layers=1, heads=2, inner=64, positions=40)
    task = new_task(labels=["a", "b"], max_length=40)
    module = task.module(new_encoder(sizes, pooler=family == "bert"))
    save_finetuned(module, task, tokenizer, tmp_path / "model")
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = [(text, pair) for text in ("A warm paper", "Émilie [MASK] <mask>") for pair in (None, "a dull paper")]
    for text, encoded in zip(inputs, tokenizer.encode_inputs(inputs), strict=True):
        found = theirs(*text)
        assert found["input_ids"] == encoded.input_ids
        assert found.get("token_type_ids") == (encoded.token_type_ids if sizes.type_vocab_size > 1 else None)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)


def test_a_roberta_tokenizer_without_a_class_has_the_ends_of_a_text(bases: dict[str, Path], tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(bases["roberta"] / name, tmp_path)
    before: Any = AutoTokenizer.from_pretrained(tmp_path)
    load_tokenizer(tmp_path).save(tmp_path / "saved")
    after: Any = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (after.bos_token, after.eos_token) == (before.bos_token, before.eos_token) == ("<s>", "</s>")


def test_a_padding_token_that_only_the_definition_names_is_kept(bases: dict[str, Path], tmp_path: Path) -> None:
    definition = json.loads((bases["bert"] / "tokenizer.json").read_text("utf-8")) | CUT_AND_PADDED_AT_THE_LEFT
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    load_tokenizer(tmp_path).save(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").pad_token == "[PAD]"


@pytest.fixture(scope="module")
def gpt1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-1 that `pretrain` saved."""
    directory = tmp_path_factory.mktemp("gpt1")
    texts = [row["text"] for row in KINDS["classification"].rows]
    corpus = write_rows(directory / "corpus.jsonl", *({"text": ". ".join(texts[n:] * 4)} for n in range(4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.pretraining.run.write_report", lambda *_, **__: None)
        return pretrain(
            "pretrain/gpt1_tiny",
            [f"corpus={corpus}", "tokenizer.vocab_size=120", "packing.max_length=40",
             "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
             "model.max_position_embeddings=40", "model.initializer_range=0.2",
             "train.steps=2", "train.batch_size=4", "held_out=0", "device=cpu", "precision=fp32"],
            out=directory / "run",
        )  # fmt: skip


def test_a_pretrained_gpt1_is_not_asked_to_go_on_from_an_extract_token(gpt1: Path) -> None:
    """Pre-training never shows it: what `transformers` makes of a prompt is what `generate` does."""
    tokenizer: Any = AutoTokenizer.from_pretrained(gpt1)
    model: Any = AutoModelForCausalLM.from_pretrained(gpt1)
    assert type(model).__name__ == "OpenAIGPTLMHeadModel"
    prompt = tokenizer("Ada Lovelace wrote", return_tensors="pt")
    ids = prompt["input_ids"]
    assert ids.tolist()[0] == tokenizer.convert_tokens_to_ids(tokenizer.tokenize("Ada Lovelace wrote"))
    assert not {"_start_", "_delimiter_", "_classify_"} & {*tokenizer.convert_ids_to_tokens(ids[0])}
    assert "_classify_" in tokenizer.get_vocab()
    banned = [[number] for number in tokenizer.all_special_ids]
    said = model.eval().generate(**prompt, max_new_tokens=8, do_sample=False, bad_words_ids=banned,
                          pad_token_id=tokenizer.pad_token_id)[0]  # fmt: skip
    ours = generate(gpt1, "Ada Lovelace wrote", 8, temperature=0, device="cpu")
    assert tokenizer.decode(ids[0]) + ours == tokenizer.decode(said)


@pytest.mark.usefixtures("without_reports")
@pytest.mark.parametrize("name", ["classification", "pairs", "multi-label", "regression"])
@pytest.mark.parametrize("is_framed", [False, True], ids=["no template there", "a template there"])
def test_a_finetuned_gpt1_frames_its_inputs(gpt1: Path, tmp_path: Path, name: str, is_framed: bool) -> None:
    """Whether the template stood beside the pre-trained model, as in the store it was trained on, or not."""
    source, kind = gpt1, KINDS[name]
    if is_framed:
        source = Path(shutil.copytree(gpt1, tmp_path / "framed"))
        load_tokenizer(gpt1.parent / "store" / "tokenizer").save(source)
    data = write_rows(tmp_path / "train.jsonl", *kind.rows)
    words = [f"init_from={source}", f"data.train={data}", *kind.settings, "train.steps=2", "train.batch_size=6",
             "schedule.warmup_ratio=0", "device=cpu", "precision=fp32"]  # fmt: skip
    directory = finetune(f"finetune/{kind.recipe}", words, out=tmp_path / "run")
    (framed,) = load_predictor(directory, device="cpu").tokenizer.encode_inputs([("a", "b")])
    theirs: Any = AutoTokenizer.from_pretrained(directory)
    tokens = theirs.convert_ids_to_tokens(framed.input_ids)
    assert (tokens[0], tokens[-1], "_delimiter_" in tokens) == ("_start_", "_classify_", True)
    assert_equal(name, directory, load_whole(kind, directory))
