"""What left-to-right models are fine-tuned with: pairs in both orders, L3, and a BiLSTM on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from support.sizes import small
from support.tasks import new_task
from unmask.batch import Batch, pack
from unmask.errors import InputError, SettingsError
from unmask.finetuning.run import save_finetuned
from unmask.models.buckets import Shapes, pad_batch
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.heads.bilstm import BiLstmHead
from unmask.models.heads.heads import TwoOrderClassifier, needs_pooler
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import FINE_TUNED
from unmask.models.settings import EncoderSettings
from unmask.tasks.base import ExampleCounts, Task
from unmask.tasks.choice.layouts import ChoiceExample
from unmask.tasks.settings import TaskSettings
from unmask.tasks.table import recall_task
from unmask.tasks.text.examples import TextExample
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.training.stepping.eager import weigh

TEXTS = ["a man and a dog", "two women play with a ball", "a child eats in the street"]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    """GPT-1's kind: start, text, extract; start, text, delimiter, text, extract."""
    return learn_tokenizer(iter(TEXTS * 3), TokenizerSettings(kind="bpe", vocab_size=120), seed=0)[0]


def sizes(architecture: str, tokenizer: TextTokenizer, **changes: Any) -> EncoderSettings:
    heads = 1 if architecture == "lstm" else 2
    given = {"width": 16, "layers": 2, "heads": heads, "inner": 64, "positions": 32, "std": 0.3, "dropout": 0.0}
    return small(architecture=architecture, vocab=tokenizer.vocab_size, **given, **changes)


def new(settings: EncoderSettings) -> Encoder:
    torch.manual_seed(0)
    return new_encoder(settings, needs_pooler(settings, "sequence_classification")).eval()


def opened(name: str, **settings: Any) -> Any:
    return new_task(name, max_length=32, **settings)


def pair(text_a: str, text_b: str | None, label: str | float) -> TextExample[Any]:
    return TextExample(text_a, text_b, label, {}, "x:1")


def ids_of(tokenizer: TextTokenizer, *words: str) -> list[int]:
    """Special tokens by their role, texts by the tokenizer."""
    roles = {"<start>": tokenizer.bos_id, "<delimiter>": tokenizer.sep_id, "<extract>": tokenizer.cls_id}
    parts = [[roles[word]] if word in roles else tokenizer.encode_batch([word])[0] for word in words]
    return [token for part in parts for token in part]


# ---- Formats


def test_every_format_of_the_paper(tokenizer: TextTokenizer) -> None:
    """Radford et al. 2018, figure 1."""
    a, b = TEXTS[:2]
    single = ids_of(tokenizer, "<start>", a, "<extract>")
    forward = ids_of(tokenizer, "<start>", a, "<delimiter>", b, "<extract>")
    backward = ids_of(tokenizer, "<start>", b, "<delimiter>", a, "<extract>")

    def rows(task: Any, *examples: Any, num_segments: int = 0) -> list[list[list[int]]]:
        """Of each unit."""
        coded = task.encode(examples, tokenizer, ExampleCounts(), num_segments)
        batches = [coded.batch([unit]) for unit in range(len(coded))]
        return [[ids.tolist() for ids in batch.input_ids.split(batch.lengths)] for batch in batches]

    assert rows(opened("sst2"), pair(a, None, "1")) == [[single]]
    assert rows(opened("rte"), pair(a, b, "entailment")) == [[forward]]
    assert rows(opened("mrpc"), pair(a, b, "1"), pair(b, a, "0")) == [[forward, backward], [backward, forward]]
    assert rows(opened("stsb"), pair(a, b, 3.0)) == [[forward, backward]]
    assert rows(opened("stsb", two_orders=False), pair(a, b, 3.0)) == [[forward]]
    assert rows(opened("mrpc"), pair(a, b, "1"), num_segments=2) == [[forward]]  # BERT's has segments
    assert rows(opened("classification", two_orders=True, labels=["x", "y"]), pair(a, b, "x")) == [[forward, backward]]
    question = ChoiceExample(a, "", (b, "a man"), 0, None, {}, "x:1")
    answers = [forward, ids_of(tokenizer, "<start>", a, "<delimiter>", "a man", "<extract>")]
    assert rows(opened("choice"), question) == [answers]


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_pairs_are_read_in_both_orders_where_no_token_sees_both_texts(family: str) -> None:
    """Or where there are segments, as in BERT: the published left-to-right BERT reads one order. (ModernBERT's decoder
    has a segment, and reads one order too.)"""
    settings = EncoderSettings(architecture=family) if family != "elmo" else ElmoSettings
    both = TaskSettings(name="mrpc").reads_both_orders(settings.type_vocab_size)
    assert both == (family in ("gpt1", "lstm"))


def test_a_single_text_has_one_order(tokenizer: TextTokenizer) -> None:
    task = opened("classification", two_orders=True, labels=["x", "y"])
    with pytest.raises(InputError, match=r"x:1: one text, and task\.two_orders reads pairs"):
        task.encode([pair("a man", None, "x")], tokenizer, ExampleCounts(), 0)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_representations_of_both_orders_are_added(tokenizer: TextTokenizer, weight: float) -> None:
    """And L3 = L2 + .5 L1, where L1 goes over every sequence that is read; by hand from the formulas."""
    task = opened("mrpc", auxiliary_lm_weight=weight)
    module = task.module(new(sizes("gpt1", tokenizer))).eval()
    assert isinstance(module.head, TwoOrderClassifier)
    examples = [pair(TEXTS[0], TEXTS[1], "1"), pair(TEXTS[2], "a man", "0")]
    batch = task.encode(examples, tokenizer, ExampleCounts(), 0).batch([0, 1])
    assert batch.num_sequences == 4
    hidden = [module.encoder(pack([ids.tolist()])) for ids in batch.input_ids.split(batch.lengths)]
    added = torch.stack([hidden[0][-1] + hidden[1][-1], hidden[2][-1] + hidden[3][-1]])
    logits = added @ module.head.dense.weight.T
    torch.testing.assert_close(module.outputs(batch), logits)
    expected = functional.cross_entropy(logits, torch.tensor([1, 0]))
    if weight:
        words = module.encoder.word_embeddings
        means = [
            functional.cross_entropy(states[:-1] @ words.T, ids[1:])
            for states, ids in zip(hidden, batch.input_ids.split(batch.lengths), strict=True)
        ]
        expected = expected + 0.5 * torch.stack(means).mean()
    counts = module.counts(batch)
    loss = sum(term.coefficient * term.total / counts[term.name] for term in module(batch))
    torch.testing.assert_close(loss, expected)
    parameters = list(module.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(each, parameters) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # fp32 sums in another order


def test_both_orders_are_for_causal_encoders(tokenizer: TextTokenizer) -> None:
    with pytest.raises(SettingsError, match=r"task\.two_orders is true, and init_from's encoder \(bert\)"):
        opened("mrpc", two_orders=True).module(new(sizes("bert", tokenizer)))
    task = opened("mrpc", two_orders=True)
    assert isinstance(task.module(new(sizes("bert", tokenizer, causal=True))).head, TwoOrderClassifier)


@pytest.mark.parametrize("architecture", ["gpt1", "lstm"])
def test_a_model_of_both_orders_comes_back(tmp_path: Path, tokenizer: TextTokenizer, architecture: str) -> None:
    task = opened("mrpc")
    module = task.module(new(sizes(architecture, tokenizer))).eval()
    batch = task.encode([pair("a man", "a dog", "1")], tokenizer, ExampleCounts(), 0).batch([0])
    again = reloaded(tmp_path, task, module, tokenizer)
    assert isinstance(again.head, TwoOrderClassifier)
    torch.testing.assert_close(again.outputs(batch), module.outputs(batch))
    assert (tmp_path / "head.safetensors").exists()  # `transformers` adds nothing up


@pytest.mark.parametrize(("trained", "measured_on"), [("mrpc", "wnli"), ("wnli", "mrpc")])
def test_a_head_reads_as_many_orders_under_another_name(
    tmp_path: Path, tokenizer: TextTokenizer, trained: str, measured_on: str
) -> None:
    task = opened(trained)
    module = task.module(new(sizes("gpt1", tokenizer)))
    save_finetuned(module, task, tokenizer, tmp_path)
    loaded = load_model(tmp_path, FINE_TUNED)
    again: Any = recall_task(loaded, measured_on).module(loaded.encoder, loaded.head)
    assert type(again.head) is type(module.head)


def reloaded(directory: Path, task: Task[Any], module: Any, tokenizer: TextTokenizer) -> Any:
    """As `finetune` saves it and `predict` loads it."""
    save_finetuned(module, task, tokenizer, directory)
    loaded = load_model(directory, FINE_TUNED)
    recalled = recall_task(loaded)
    again: Any = recalled.module(loaded.encoder, loaded.head)
    assert loaded.head_weights is not None
    again.head.load_state_dict(loaded.head_weights)
    return again.eval()


def test_the_auxiliary_objective_needs_a_decoder(tokenizer: TextTokenizer) -> None:
    with pytest.raises(SettingsError, match=r"init_from's left-to-right \(bert\) has no decoder left for it"):
        opened("sst2", auxiliary_lm_weight=0.5).module(new(sizes("bert", tokenizer, causal=True)))


# ---- The BiLSTM on top

CAUSAL = {"gpt1": {}, "lstm": {}, "bert": {"causal": True}}
LABELS = {"tagging": ["O", "B-X", "I-X"], "classification": ["no", "yes"]}


def top_task(name: str) -> Any:
    labels = {"labels": LABELS[name]} if name in LABELS else {}
    return opened(name, encoder_top="bilstm", bilstm_size=5, **labels)


def unrolled(head: BiLstmHead, hidden: Tensor, batch: Batch) -> Tensor:
    """Each direction of each sequence by PyTorch's cell, step by step."""
    lstm = head.bilstm.layers[0]
    assert isinstance(lstm, torch.nn.LSTM)
    rows = []
    for values in hidden.split(batch.lengths):
        sides = []
        for suffix, order in (("", range(len(values))), ("_reverse", reversed(range(len(values))))):
            cell = torch.nn.LSTMCell(lstm.input_size, lstm.hidden_size)
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            cell.load_state_dict({name: getattr(lstm, f"{name}_l0{suffix}").detach() for name in names})
            state = (torch.zeros(lstm.hidden_size), torch.zeros(lstm.hidden_size))
            states = torch.empty(len(values), lstm.hidden_size)
            for place in order:
                state = cell(values[place], state)
                states[place] = state[0]
            sides.append(states)
        forward, backward = sides
        rows.append(
            torch.cat([forward, backward], 1)
            if head.of_tokens
            else torch.cat([forward[-1:], backward[:1]], 1)  # where each direction ends
        )
    return head.dense(torch.cat(rows))


@pytest.mark.parametrize("architecture", CAUSAL)
@pytest.mark.parametrize("name", ["classification", "regression", "tagging", "qa"])
def test_a_bilstm_reads_the_encoder_and_is_trained_with_it(
    tmp_path: Path, tokenizer: TextTokenizer, name: str, architecture: str
) -> None:
    task = top_task(name)
    module = task.module(new(sizes(architecture, tokenizer, **CAUSAL[architecture]))).eval()
    assert isinstance(module.head, BiLstmHead)
    batch = pack([[20, 21, 22, 23], [30], [25, 20]])
    found = module.outputs(batch)
    hidden = module.encoder(batch).detach()
    torch.testing.assert_close(found, unrolled(module.head, hidden, batch), rtol=1e-4, atol=1e-5)  # fp32, other order
    labels = {
        "classification": {"labels": torch.tensor([0, 1, 1])},
        "regression": {"labels": torch.tensor([0.0, 1.0, 2.0])},
        "tagging": {"labels": torch.tensor([0, -100, 1, 2, 0, -100, 1])},
        "qa": {"start_positions": torch.tensor([1, 0, 0]), "end_positions": torch.tensor([2, 0, 1])},
    }
    [term] = module.train()(batch.with_columns(**labels[name]))
    term.total.backward()
    assert all(parameter.grad is not None for parameter in module.head.parameters())
    assert module.encoder.word_embeddings.grad is not None
    again = reloaded(tmp_path, task, module.eval(), tokenizer)
    torch.testing.assert_close(again.outputs(batch), found)
    assert (tmp_path / "head.safetensors").exists()


def test_a_pooler_is_dropped_since_nothing_reads_it(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    task = top_task("classification")
    module = task.module(new(sizes("bert", tokenizer)))
    assert module.encoder.pooler is None
    batch = pack([[20, 21], [22]])
    module.eval()
    torch.testing.assert_close(reloaded(tmp_path, task, module, tokenizer).outputs(batch), module.outputs(batch))


def test_a_bilstm_is_as_large_as_the_settings_say(tokenizer: TextTokenizer) -> None:
    settings = sizes("gpt1", tokenizer)
    head = BiLstmHead("sequence_classification", settings, 3)
    assert (head.dense.in_features, head.num_labels, head.of_tokens, head.dropout_prob) == (1536, 3, False, 0.0)
    tagger = BiLstmHead("token_classification", settings, 3, dropout_prob=0.3, num_units=4)
    assert (tagger.dense.in_features, tagger.of_tokens, tagger.dropout_prob) == (8, True, 0.3)
    assert BiLstmHead("question_answering", settings, 2, dropout_prob=0.3).dropout_prob == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"name": "choice", "encoder_top": "bilstm"}, "encoder_top is for classification, regression, qa and tagging"),
        ({"name": "qa", "two_orders": True}, "two_orders is for classification and regression"),
        ({"name": "mrpc", "two_orders": True, "encoder_top": "bilstm"}, "encoder_top bilstm and two_orders do not"),
        ({"name": "tagging", "tagging_head": "bilstm", "encoder_top": "bilstm"}, "keep one of them"),
        ({"name": "sst2", "bilstm_size": 5}, "set tagging_head or encoder_top to bilstm"),
    ],
)
def test_settings_that_do_not_go_together_are_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TaskSettings.model_validate(settings)


def test_a_filled_batch_has_the_loss_of_its_texts(tokenizer: TextTokenizer) -> None:
    """L3 = L2 + .5 L1 and its gradient, with padding of sequences of its own behind the texts; fp32."""
    module = opened("sst2", auxiliary_lm_weight=0.5).module(new(sizes("gpt1", tokenizer))).eval()
    examples = [pair(text, None, str(number % 2)) for number, text in enumerate(TEXTS)]
    batch = opened("sst2").encode(examples, tokenizer, ExampleCounts(), 0).batch([0, 1, 2])
    assert module.paddings is not None
    padded = pad_batch(batch, Shapes(module.paddings, longest=9).choose(batch), module.paddings)
    assert padded.num_tokens > batch.num_tokens
    counts = module.counts(batch)
    losses = [weigh(module(each), counts) for each in (batch, padded)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    parameters = list(module.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-6)
