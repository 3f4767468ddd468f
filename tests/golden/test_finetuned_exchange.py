"""What `finetune` saves opens in `transformers`' classes for each kind of task, and what they save answers here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    ElectraConfig,
    RobertaConfig,
    pipeline,
)

from unmask.evaluation import evaluate
from unmask.finetuning import finetune
from unmask.inference import run_module
from unmask.prediction import Predictor, load_predictor, predict
from unmask.pretraining import pretrain
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import Row
from unmask.text_generation import generate
from unmask.tokenization.settings import PRESETS
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.tokenization.train import train_tokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Logits are of order 1, so this is some 100 roundings of fp32 (6e-8 each); measured are at most 8e-7. A weight that is
off by a thousandth of its scale is over it (`test_family_parity`)."""

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 50,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    # configuration, what differs from the sizes, preset of the tokenizer
    "bert": (BertConfig, {}, "bert"),
    "roberta": (RobertaConfig, {"type_vocab_size": 1, "layer_norm_eps": 1e-5}, "roberta"),
    "electra": (ElectraConfig, {"embedding_size": 20}, "bert"),
}

PEOPLE, PLACES = ("Ada Lovelace", "Grace Hopper", "Émilie du Châtelet"), ("London", "New York", "서울", "Bath")
TEXTS = [f"{PEOPLE[n % 3]} wrote {'a dull' if n % 2 else 'a warm'} paper in {PLACES[n % 4]}" for n in range(12)]
WINDOW, STRIDE = 24, 6
"""Tokens of a question with a window of its passage, and from one window's beginning to the next one's."""
QUESTION = "Where did they write it?"
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def tags_of(text: str) -> list[str]:
    tags, inside = [], ""
    for word in text.split():
        kind = next(
            (kind for kind, names in (("PER", PEOPLE), ("LOC", PLACES)) for n in names if word in n.split()), ""
        )
        tags.append(f"{'I' if kind == inside else 'B'}-{kind}" if kind else "O")
        inside = kind
    return tags


def question(text: str, number: int) -> dict[str, Any]:
    """About a passage of several windows."""
    place, context = PLACES[number % 4], f"{text}." + " It was read in many towns." * (number % 3)
    answers = {"text": [place], "answer_start": [context.index(place)]}
    return {"id": str(number), "question": QUESTION, "context": context, "answers": answers}


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
        recipe: of `finetune/`.
        model: the class of `transformers`.
        rows: examples.
        settings: of the task.
        config: what `transformers` is told to make such a model.
    """

    recipe: str
    model: Any
    rows: list[dict[str, Any]]
    settings: tuple[str, ...] = ("task.max_length=40",)
    config: dict[str, Any] | None = None


def labelled(*labels: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}


KINDS: dict[str, Kind] = {
    "classification": Kind(
        "classification",
        AutoModelForSequenceClassification,
        [{"text": text, "label": ("좋음", "bad")[n % 2]} for n, text in enumerate(TEXTS)],
        config=labelled("bad", "좋음"),
    ),
    "pairs": Kind(
        "classification",
        AutoModelForSequenceClassification,
        [{"text_a": text, "text_b": TEXTS[n * 5 % 12], "label": "xyz"[n % 3]} for n, text in enumerate(TEXTS)],
        config=labelled("x", "y", "z"),
    ),
    "multi-label": Kind(
        "multi_label",
        AutoModelForSequenceClassification,
        [{"text": text, "label": ["a", "b", "c"][: n % 4]} for n, text in enumerate(TEXTS)],
        config={**labelled("a", "b", "c"), "problem_type": "multi_label_classification"},
    ),
    "regression": Kind(
        "regression",
        AutoModelForSequenceClassification,
        [{"text_a": text, "text_b": TEXTS[n * 5 % 12], "label": n / 4} for n, text in enumerate(TEXTS)],
        config={"num_labels": 1, "problem_type": "regression"},
    ),
    "qa": Kind(
        "qa",
        AutoModelForQuestionAnswering,
        [question(text, number) for number, text in enumerate(TEXTS)],
        (f"task.max_length={WINDOW}", f"task.doc_stride={STRIDE}"),
    ),
    "choice": Kind(
        "choice",
        AutoModelForMultipleChoice,
        [{"context": text, "choices": [*PLACES], "label": n % 4} for n, text in enumerate(TEXTS)],
    ),
    "tagging": Kind(
        "tagging",
        AutoModelForTokenClassification,
        [{"tokens": text.split(), "tags": tags_of(text)} for text in TEXTS],
        config=labelled(*TAGS),
    ),
}

CASES = [(family, name) for family in FAMILIES for name in KINDS]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Encoders of random weights as `transformers` saves them."""
    directories = {}
    for family, (config, changes, preset) in FAMILIES.items():
        directory = tmp_path_factory.mktemp(family)
        tokenizer, _ = train_tokenizer(
            iter([*TEXTS, *[QUESTION, "It was read in many towns."] * 3]), PRESETS[preset], seed=0
        )
        tokenizer.save(directory)
        opened = AutoTokenizer.from_pretrained(directory)
        torch.manual_seed(0)
        sizes = SIZES | changes | {"vocab_size": len(opened), "pad_token_id": opened.pad_token_id}
        AutoModel.from_config(config(**sizes)).save_pretrained(directory)
        directories[family] = directory
    return directories


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def load_theirs(kind: Kind, directory: Path) -> Any:
    """The model, in eval mode; nothing of it is missing or left over."""
    opened, info = kind.model.from_pretrained(directory, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return opened.eval()


def their_batch(name: str, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """All rows, padded by the tokenizer; windows of questions begin where ours do."""
    padded = {"padding": True, "return_tensors": "pt"}
    if name == "tagging":
        batch = tokenizer([" ".join(row["tokens"]) for row in rows], **padded)
    elif name in ("pairs", "regression"):
        batch = tokenizer([row["text_a"] for row in rows], [row["text_b"] for row in rows], **padded)
    elif name == "choice":
        pairs = [(row["context"], choice) for row in rows for choice in row["choices"]]
        batch = tokenizer(*map(list, zip(*pairs, strict=True)), **padded)
    elif name == "qa":
        room = WINDOW - len(tokenizer.tokenize(QUESTION)) - tokenizer.num_special_tokens_to_add(pair=True)
        batch = tokenizer([row["question"] for row in rows], [row["context"] for row in rows], **padded,
                          truncation="only_second", max_length=WINDOW, stride=room - STRIDE,
                          return_overflowing_tokens=True)  # fmt: skip
        assert len(batch["input_ids"]) > len(rows) + 8
        batch.pop("overflow_to_sample_mapping")
    else:
        batch = tokenizer([row["text"] for row in rows], **padded)
    return dict(batch)


@torch.inference_mode()
def their_outputs(name: str, model: Any, batch: dict[str, Tensor]) -> Tensor:
    """In the shape of our modules' outputs."""
    if name == "choice":
        grouped = {key: value.view(-1, len(PLACES), value.shape[-1]) for key, value in batch.items()}
        logits: Tensor = model(**grouped).logits
        return logits
    outputs = model(**batch)
    mask = batch["attention_mask"].bool()
    if name == "qa":
        return torch.stack([outputs.start_logits[mask], outputs.end_logits[mask]], -1)
    return (
        outputs.logits[mask]
        if name == "tagging"
        else outputs.logits.squeeze(-1)
        if name == "regression"
        else outputs.logits
    )


@torch.inference_mode()
def our_outputs(predictor: Predictor, rows: list[dict[str, Any]]) -> tuple[EncodedExamples, Tensor]:
    task = predictor.task
    examples = [task.read(Row(row, f"row {number}")) for number, row in enumerate(rows)]
    encoded = task.encode(examples, predictor.tokenizer, ExampleCounts(), predictor.num_segments)
    return encoded, run_module(task, predictor.module, encoded, predictor.compute)


def check_equal(name: str, directory: Path, model: Any) -> None:
    """The same tokens, and the same logits for them."""
    kind, predictor = KINDS[name], load_predictor(directory, device="cpu")
    batch = their_batch(name, AutoTokenizer.from_pretrained(directory), kind.rows)
    encoded, ours = our_outputs(predictor, kind.rows)
    assert encoded.input_ids.tolist() == batch["input_ids"][batch["attention_mask"].bool()].tolist()
    theirs = their_outputs(name, model, batch)
    assert ours.squeeze(-1).shape == theirs.shape if name == "regression" else ours.shape == theirs.shape
    assert float(theirs.std()) > 0.05  # nothing that would be equal whatever the weights
    torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.usefixtures("without_reports")
@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_we_save_opens_there(bases: dict[str, Path], tmp_path: Path, family: str, name: str) -> None:
    kind, data = KINDS[name], write(KINDS[name].rows, tmp_path / "train.jsonl")
    words = [f"init_from={bases[family]}", f"data.train={data}", *kind.settings, "train.steps=2", "train.batch_size=6",
             "optimizer.learning_rate=1e-3", "schedule.warmup_ratio=0", "device=cpu", "precision=fp32"]  # fmt: skip
    directory = finetune(f"finetune/{kind.recipe}", words, out=tmp_path / "run")
    model = load_theirs(kind, directory)
    assert type(model).__name__ == json.loads((directory / "config.json").read_text())["architectures"][0]
    if kind.config is not None and "id2label" in kind.config:
        labels = list(kind.config["id2label"].values())
        assert sorted(model.config.id2label.values()) == sorted(labels)
        if name != "tagging":
            assert list(model.config.id2label.values()) == labels
        assert {model.config.label2id[label] for label in labels} == set(range(len(labels)))
    check_equal(name, directory, model)


@pytest.fixture(scope="module")
def gpt1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-1 that `pretrain` saved."""
    directory = tmp_path_factory.mktemp("gpt1")
    corpus = write([{"text": ". ".join(TEXTS[n:] * 4)} for n in range(4)], directory / "corpus.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.pretraining.write_report", lambda directory: None)
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
@pytest.mark.parametrize("is_framed", [False, True], ids=["no frame beside the model", "a frame beside the model"])
def test_a_finetuned_gpt1_frames_its_inputs(gpt1: Path, tmp_path: Path, name: str, is_framed: bool) -> None:
    """Whether the frame stood beside the pre-trained model, as in the store it was trained on, or not."""
    source, kind = gpt1, KINDS[name]
    if is_framed:
        source = Path(shutil.copytree(gpt1, tmp_path / "framed"))
        load_tokenizer(gpt1.parent / "store" / "tokenizer").save(source)
    data = write(kind.rows, tmp_path / "train.jsonl")
    words = [f"init_from={source}", f"data.train={data}", *kind.settings, "train.steps=2", "train.batch_size=6",
             "schedule.warmup_ratio=0", "device=cpu", "precision=fp32"]  # fmt: skip
    directory = finetune(f"finetune/{kind.recipe}", words, out=tmp_path / "run")
    (framed,) = load_predictor(directory, device="cpu").tokenizer.encode_inputs([("a", "b")])
    theirs: Any = AutoTokenizer.from_pretrained(directory)
    tokens = theirs.convert_ids_to_tokens(framed.input_ids)
    assert (tokens[0], tokens[-1], "_delimiter_" in tokens) == ("_start_", "_classify_", True)
    check_equal(name, directory, load_theirs(kind, directory))


@pytest.fixture
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr("unmask.finetuning.write_report", lambda directory: None)


def finetune_there(name: str, base: Path, directory: Path) -> Any:
    """A step of `transformers` on a fresh head, saved by it with its tokenizer."""
    kind = KINDS[name]
    torch.manual_seed(1)
    model = kind.model.from_pretrained(base, **(kind.config or {})).train()
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.no_grad():  # fresh biases are all 0, and hide mistakes
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") and parameter_name.startswith(("classifier", "qa_outputs")):
                parameter.normal_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = their_batch(name, tokenizer, kind.rows)
    if name == "choice":
        batch = {key: value.view(-1, len(PLACES), value.shape[-1]) for key, value in batch.items()}
    outputs = model(**batch)
    sum(tensor.square().sum() for tensor in outputs.values()).backward()
    optimizer.step()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model.eval()


@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_they_save_answers_here(bases: dict[str, Path], tmp_path: Path, family: str, name: str) -> None:
    directory, kind = tmp_path / "theirs", KINDS[name]
    model = finetune_there(name, bases[family], directory)
    if name == "qa":  # it does not say how long its windows are: each passage is one
        kind = Kind(kind.recipe, kind.model, [row for row in kind.rows if len(row["context"]) < 60])
    else:
        check_equal(name, directory, model)
    said = list(predict(directory, kind.rows, device="cpu"))
    labels, tokenizer = model.config.id2label, AutoTokenizer.from_pretrained(directory)
    right = []
    for row, answer in zip(kind.rows, said, strict=True):
        whole = tokenizer(QUESTION, row["context"], return_tensors="pt") if name == "qa" else None
        logits = their_outputs(name, model, their_batch(name, tokenizer, [row]) if whole is None else dict(whole))
        if name == "regression":
            assert answer["value"] == pytest.approx(float(logits), abs=TOLERANCE)
        elif name == "choice":
            assert answer["choice"] == int(logits.argmax())
            right.append(answer["choice"] == row["label"])
        elif name == "multi-label":
            assert sorted(answer["labels"]) == [labels[place] for place in range(3) if logits[0, place] > 0]
            right.append(sorted(answer["labels"]) == row["label"])
        elif name == "tagging":
            words = tokenizer(" ".join(row["tokens"])).word_ids()
            firsts = [words.index(word) for word in range(len(row["tokens"]))]
            assert answer["tags"] == [labels[int(logits[place].argmax())] for place in firsts]
        elif name == "qa":
            assert (answer["start"], answer["end"]) == best_span(tokenizer, row["context"], logits)
            right.append(answer["answer"] == row["answers"]["text"][0])
        else:
            assert answer["label"] == labels[int(logits.argmax())]
            right.append(answer["label"] == row["label"])
    measured = evaluate(directory, write(kind.rows, tmp_path / "dev.jsonl"), device="cpu")
    assert measured["task"] == ("classification" if name in ("pairs", "multi-label") else name)
    assert measured["n"] == len(kind.rows)
    if right:
        expected = 100 * sum(right) / len(right) if name == "qa" else sum(right) / len(right)
        assert measured["metrics"]["exact_match" if name == "qa" else "accuracy"] == pytest.approx(expected)


def best_span(tokenizer: Any, context: str, logits: Tensor) -> tuple[int, int]:
    """Of up to thirty of the passage's tokens, by the sum of the two logits: what `transformers`' question-answering
    pipeline, which version 5 no longer has, said where a passage is one window (it multiplied two softmaxes)."""
    read = tokenizer(QUESTION, context, return_offsets_mapping=True)
    places = [place for place, segment in enumerate(read.sequence_ids()) if segment == 1]
    spans = [(first, last) for first in places for last in places if first <= last < first + 30]
    first, last = max(spans, key=lambda span: float(logits[span[0], 0] + logits[span[1], 1]))
    return read["offset_mapping"][first][0], read["offset_mapping"][last][1]


def their_entities(directory: Path, text: str) -> Iterator[tuple[str, str, float]]:
    answer = pipeline("token-classification", str(directory), device="cpu", aggregation_strategy="first")
    for entity in answer(text):
        yield entity["entity_group"], text[entity["start"] : entity["end"]], entity["score"]


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")  # so it is with RoBERTa's
@pytest.mark.parametrize("family", FAMILIES)
def test_their_pipeline_finds_the_same_entities(bases: dict[str, Path], tmp_path: Path, family: str) -> None:
    """Where words stand between blanks and have no marks at their edges: there the pipeline makes units of their parts
    for BERT's tokenizer, and none for RoBERTa's, and here marks are units of their own."""
    finetune_there("tagging", bases[family], tmp_path)
    texts = [" ".join(row["tokens"]) for row in KINDS["tagging"].rows]
    found = 0
    for text, said in zip(texts, predict(tmp_path, [{"text": text} for text in texts], device="cpu"), strict=True):
        ours = [(entity["label"], entity["text"]) for entity in said["entities"]]
        theirs = list(their_entities(tmp_path, text))
        assert ours == [(label, words.strip()) for label, words, _ in theirs]
        scores = [entity["score"] for entity in said["entities"]]
        assert scores == pytest.approx([score for _, _, score in theirs], abs=TOLERANCE)
        found += len(ours)
    assert found > len(texts)


@pytest.mark.parametrize("name", ["classification", "multi-label", "regression"])
def test_their_pipeline_gives_the_same_scores(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Of one label and of many; a regression's value is what it calls a score."""
    finetune_there(name, bases["bert"], tmp_path)
    rows = KINDS[name].rows
    answer = pipeline("text-classification", str(tmp_path), device="cpu", top_k=None)
    for row, said in zip(rows, predict(tmp_path, rows, device="cpu"), strict=True):
        pair = {"text": row["text_a"], "text_pair": row["text_b"]} if name == "regression" else row["text"]
        (scores,) = answer([pair])
        theirs = {one["label"]: one["score"] for one in scores}
        if name == "regression":
            assert list(theirs.values()) == pytest.approx([said["value"]], abs=TOLERANCE)
        else:
            assert said["probabilities"] == pytest.approx(theirs, abs=TOLERANCE)
