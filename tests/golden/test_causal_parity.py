"""Left-to-right models against `transformers`: losses and gradients, L3, and GPT-1's published directory fine-tuned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.finetuning.run import finetune
from unmask.inference.left_to_right.generation import generate
from unmask.inference.predictor import load_predictor
from unmask.io.rows import Row
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import open_source
from unmask.models.hub.uses import CAUSAL, FINE_TUNED
from unmask.models.hub.weight_names import hub_names, split
from unmask.models.settings import EncoderSettings
from unmask.objectives.causal_lm import CausalLM, CausalLMModule
from unmask.objectives.settings import CausalLMSettings
from unmask.tasks.choice.task import ChoiceModule
from unmask.tasks.sequence_module import label_loss
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Relative to the largest gradient, or of a loss of order 4: some 50 roundings of fp32; measured are at most 2e-6."""

SIZES = sizes_of(vocab=61, width=24, layers=2, heads=3, inner=96, positions=20, std=0.2, dropout=0.0)
SEQUENCES = [[5, 6, 7, 8, 9], [3, 11, 60, 2, 2, 9, 4], [30, 31]]


def new_theirs(class_name: str, settings: EncoderSettings, **config: Any) -> PreTrainedModel:
    """Random weights, biases and norms included."""
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    theirs: PreTrainedModel = model_class(model_class.config_class(**config_of(settings), **config))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return theirs


def padded(sequences: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, sequences))
    rows = [ids + [0] * (longest - len(ids)) for ids in sequences]
    masks = [[1] * len(ids) + [0] * (longest - len(ids)) for ids in sequences]
    labels = [ids + [-100] * (longest - len(ids)) for ids in sequences]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks), "labels": torch.tensor(labels)}


def gradients(module: Any, head: Any = None) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for parameter, place in hub_names(module.encoder, {"masked_lm_head": head} if head else None).items():
        assert parameter.grad is not None
        found |= split(place, parameter.grad)
    return found


def assert_alike(found: dict[str, Tensor], theirs: PreTrainedModel) -> None:
    expected = {name: weight.grad for name, weight in theirs.named_parameters() if weight.grad is not None}
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())
    assert found.keys() <= expected.keys()
    for name, gradient in found.items():
        scale = max(float(expected[name].abs().max()), floor)
        assert float((gradient - expected[name]).abs().max()) < TOLERANCE * scale, name


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [
        ("OpenAIGPTLMHeadModel", EncoderSettings(architecture="gpt1", **SIZES)),
        ("BertLMHeadModel", EncoderSettings(causal=True, **SIZES)),
        ("ModernBertDecoderForCausalLM", EncoderSettings(architecture="modernbert_decoder", **SIZES)),
    ],
)
def test_loss_and_gradients_of_language_modelling(tmp_path: Path, class_name: str, settings: EncoderSettings) -> None:
    theirs = new_theirs(class_name, settings)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = theirs(**padded(SEQUENCES)).loss  # the mean over all tokens that follow another
    expected.backward()

    objective = CausalLM(CausalLMSettings(), None)  # type: ignore[arg-type]  # it asks nothing of the vocabulary
    module: CausalLMModule = objective.build(load_model(tmp_path / "theirs", CAUSAL).encoder)
    objective.restore_heads(module, open_source(tmp_path / "theirs"))
    batch = objective.prepare(pack(SEQUENCES))
    [term] = module(batch)
    loss = term.total / objective.counts(batch)["lm"]
    loss.backward()
    assert float((loss - expected).detach().abs()) < TOLERANCE
    assert_alike(gradients(module, module.masked_lm_head), theirs)
    auto = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert type(auto).__name__ == class_name


def test_l3_of_multiple_choice_is_that_of_double_heads(tmp_path: Path) -> None:
    """L3 = L2 + .5 L1: their two losses, at sequences of one length. Theirs is the mean over all tokens, ours the mean
    over each sequence first, so that at other lengths short sequences count for more here."""
    settings = EncoderSettings(architecture="gpt1", **SIZES)
    choices = [[5, 6, 7, 8, 9], [5, 6, 7, 12, 9], [5, 3, 3, 8, 9], [5, 3, 3, 4, 9]]  # two questions of two
    theirs = new_theirs("OpenAIGPTDoubleHeadsModel", settings, num_labels=1, summary_first_dropout=0.0)
    ids = torch.tensor(choices).view(2, 2, 5)
    outputs = theirs(ids, mc_token_ids=torch.full((2, 2), 4), labels=ids, mc_labels=torch.tensor([1, 0]))
    expected = outputs.mc_loss + 0.5 * outputs.loss
    expected.backward()

    theirs.transformer.save_pretrained(tmp_path)
    encoder = load_model(tmp_path).encoder
    head = torch.nn.Linear(24, 1, bias=False)
    summary = theirs.multiple_choice_head.summary
    with torch.no_grad():
        head.weight.copy_(summary.weight)  # its bias is the same for every choice, and changes nothing
    module = ChoiceModule(encoder, head, label_loss, 0.5)
    columns = {"labels": torch.tensor([1, 0]), "unit_bounds": torch.tensor([0, 2, 4])}
    batch: Batch = pack(choices).with_columns(**columns)
    terms, counts = module(batch), module.counts(batch)
    loss = torch.stack([term.coefficient * term.total / counts[term.name] for term in terms]).sum()
    loss.backward()
    assert float((loss - expected).detach().abs()) < TOLERANCE
    assert_alike(gradients(module), theirs)
    assert head.weight.grad is not None
    torch.testing.assert_close(head.weight.grad, summary.weight.grad, rtol=1e-4, atol=1e-6)


def test_greedy_text_is_theirs(tmp_path: Path) -> None:
    settings = EncoderSettings(architecture="gpt1", **SIZES)
    tokenizer, _ = learn_tokenizer(iter(["a man and a dog"] * 9), TokenizerSettings(kind="bpe", vocab_size=40), seed=0)
    settings = settings.model_copy(update={"vocab_size": tokenizer.vocab_size})
    theirs = new_theirs("OpenAIGPTLMHeadModel", settings).eval()
    theirs.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    [ids] = tokenizer.encode_batch(["a man"])
    banned = [[index] for index in tokenizer.special_ids]
    found = theirs.generate(
        torch.tensor([ids]), max_new_tokens=8, do_sample=False, bad_words_ids=banned, pad_token_id=0
    )[0].tolist()
    text = generate(tmp_path, "a man", 8, temperature=0, device="cpu")
    assert tokenizer.decode(ids) + text == tokenizer.decode(found)


def published_gpt1(directory: Path) -> Path:
    """A directory as the hub has GPT-1: a language model, and a tokenizer without tokens around inputs."""
    texts = [line for line in ("a man and a dog", "two women play with a ball", "a child eats") for _ in range(5)]
    trained, _ = learn_tokenizer(iter(texts), TokenizerSettings(kind="bpe", vocab_size=100), seed=0)
    directory.mkdir()
    trained.save(directory)
    definition = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    vocab = definition["model"]["vocab"]
    ours = {trained.token_strings[index] for index in trained.special_ids} - {"<unk>"}
    kept = [entry for entry in sorted(vocab, key=vocab.__getitem__) if entry not in ours]
    vocab = {entry: number for number, entry in enumerate(kept)}
    for path in directory.iterdir():
        path.unlink()
    (directory / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    merges = "".join(f"{' '.join(pair)}\n" for pair in definition["model"]["merges"])
    (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}", "utf-8")
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(directory)
    theirs.save_pretrained(directory)
    (directory / "vocab.json").unlink()
    (directory / "merges.txt").unlink()
    sizes = {**SIZES, "vocab_size": len(vocab), "max_position_embeddings": 32}
    new_theirs("OpenAIGPTLMHeadModel", EncoderSettings(architecture="gpt1", **sizes)).save_pretrained(directory)
    return directory


RECIPE = """
train: {steps: 3, batch_size: 4}
schedule: {warmup_steps: 0}
"""


@pytest.mark.parametrize(
    ("name", "class_name"), [("rte", "OpenAIGPTForSequenceClassification"), ("mrpc", "OpenAIGPTModel")]
)
def test_the_published_directory_gets_the_tokens_that_frame_inputs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, class_name: str
) -> None:
    source = published_gpt1(tmp_path / "published")
    before = load_model(source, CAUSAL).encoder
    plain = load_tokenizer(source)
    labels = {"rte": ("entailment", "not_entailment"), "mrpc": ("0", "1")}[name]
    rows = [{"sentence1": "a man", "sentence2": "a dog", "label": labels[number % 2]} for number in range(8)]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"init_from: {source}\ntask: {{name: {name}, max_length: 20, auxiliary_lm_weight: 0.5}}\n"
        f"data: {{train: {train}, dev: {train}}}\ndevice: cpu\n{RECIPE}"
    )
    with caplog.at_level("INFO", "unmask"):
        model = finetune(str(recipe), out=tmp_path / "run")
    assert "the vocabulary gets _start_, _delimiter_, _classify_, with fresh embeddings" in caplog.text

    loaded = load_model(model, FINE_TUNED)
    assert loaded.encoder.settings.vocab_size == before.settings.vocab_size + 3
    ours, theirs = load_tokenizer(model), AutoTokenizer.from_pretrained(model)
    assert ours.token_strings[:-3] == plain.token_strings
    for pair in (("a man and a dog", None), ("two women", "a ball")):
        [encoded] = ours.encode_inputs([pair])
        assert theirs(*[text for text in pair if text is not None])["input_ids"] == encoded.input_ids
    [framed] = ours.encode_inputs([("two women", "a ball")])
    a, b = plain.encode_batch(["two women", "a ball"])
    start, delimiter, extract = range(plain.vocab_size, plain.vocab_size + 3)
    assert framed.input_ids == [start, *a, delimiter, *b, extract]

    opened, report = getattr(transformers, class_name).from_pretrained(model, output_loading_info=True)
    assert not any(report.values()), report
    states = opened.eval()(torch.tensor([framed.input_ids]), output_hidden_states=True).hidden_states[-1][0]
    encoder = loaded.encoder.eval()
    assert float((encoder(pack([framed.input_ids])) - states).detach().abs().max()) < TOLERANCE
    predictor = load_predictor(model, device="cpu")
    [prediction] = predictor.predict_rows([Row({"sentence1": "a man", "sentence2": "a dog"}, "x:1")])
    assert prediction["label"] in labels
