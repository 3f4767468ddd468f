"""Our BERT against `transformers`': hidden states, logits, losses and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForPreTraining

from unmask.batch import Batch, pack
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import LoadedModel
from unmask.models.hub.weight_names import hub_names, split
from unmask.models.settings import EncoderSettings

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Activations are of order 1 after each LayerNorm, so this is some 100 roundings of fp32 (6e-8 each): measured are 1e-6
at toy size and 5e-6 after the 12 layers of Base. A mistake does not stay under it (`test_the_tolerance_can_fail`)."""

SMALL = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}

ODD_KINDS: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "plain, equal lengths": ({}, (16, 16, 16)),
    "ragged": ({}, (5, 16, 1, 9, 16, 2)),
    "all of length one": ({}, (1, 1, 1)),
    "a single sequence": ({}, (7,)),
    "lengths in several groups": ({"max_position_embeddings": 128}, (128, 3, 90, 60, 61, 1, 127, 33)),
    "one layer": ({"num_hidden_layers": 1}, (9, 4)),
    "five heads of size 7": ({"hidden_size": 35, "num_attention_heads": 5}, (8, 3, 8)),
    "one head": ({"num_attention_heads": 1}, (8, 3)),
    "heads of size 1": ({"hidden_size": 6, "num_attention_heads": 6}, (8, 3)),
    "one segment": ({"type_vocab_size": 1}, (10, 2)),
    "four segments": ({"type_vocab_size": 4}, (10, 6)),
    "relu": ({"hidden_act": "relu"}, (10, 2)),
    "gelu_new": ({"hidden_act": "gelu_new"}, (10, 2)),
    "gelu_pytorch_tanh": ({"hidden_act": "gelu_pytorch_tanh"}, (10, 2)),
    "silu": ({"hidden_act": "silu"}, (10, 2)),
    "swish": ({"hidden_act": "swish"}, (10, 2)),
    "mish": ({"hidden_act": "mish"}, (10, 2)),
    "tanh": ({"hidden_act": "tanh"}, (10, 2)),
    "large epsilon": ({"layer_norm_eps": 1e-2}, (10, 2)),
    "odd feed-forward": ({"intermediate_size": 17}, (10, 2)),
    "no padding token": ({"pad_token_id": None}, (10, 2)),
    "padding token in the middle": ({"pad_token_id": 30}, (10, 16)),
    "wide initialisation": ({"initializer_range": 0.2}, (10, 16, 3)),
}
"""What differs from `SMALL`, and the lengths of the batch."""


@dataclass
class Outcome:
    hidden_states: list[Tensor]
    masked_lm_logits: Tensor
    next_sentence_logits: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]


@dataclass
class Example:
    """The same data for both, packed for us and padded for `transformers`."""

    batch: Batch
    labels: Tensor
    next_sentence_labels: Tensor

    @classmethod
    def draw(cls, settings: EncoderSettings, lengths: tuple[int, ...]) -> Example:
        generator = torch.Generator().manual_seed(len(lengths))

        def draw(high: int) -> list[list[int]]:
            return [torch.randint(high, (length,), generator=generator).tolist() for length in lengths]

        batch = pack(draw(settings.vocab_size), draw(settings.type_vocab_size))
        chosen = torch.rand(batch.num_tokens, generator=generator) < 0.3
        chosen[0] = True  # at least one target
        targets = torch.randint(settings.vocab_size, (batch.num_tokens,), generator=generator)
        next_sentence_labels = torch.randint(2, (len(lengths),), generator=generator)
        return cls(batch, torch.where(chosen, targets, -100), next_sentence_labels)

    def pad(self, packed: Tensor, value: int) -> Tensor:
        rows = packed.split(self.batch.lengths)
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)

    def unpad(self, padded: Tensor) -> Tensor:
        return torch.cat([row[:length] for row, length in zip(padded, self.batch.lengths, strict=True)])

    def inputs(self) -> dict[str, Tensor]:
        return {
            "input_ids": self.pad(self.batch.input_ids, 0),
            "token_type_ids": self.pad(self.batch.token_type_ids, 0),
            "attention_mask": self.pad(torch.ones_like(self.batch.input_ids), 0),
        }


def run_theirs(model: BertForPreTraining, example: Example) -> Outcome:
    model.zero_grad()
    output = model(
        **example.inputs(),
        labels=example.pad(example.labels, -100),
        next_sentence_label=example.next_sentence_labels,
        output_hidden_states=True,
    )
    output.loss.backward()
    return Outcome(
        [example.unpad(state.detach()) for state in output.hidden_states],
        example.unpad(output.prediction_logits.detach())[example.labels != -100],
        output.seq_relationship_logits.detach(),
        output.loss.detach(),
        {name: parameter.grad.clone() for name, parameter in model.named_parameters()},
    )


def run_ours(model: LoadedModel, example: Example, only_needed: bool) -> Outcome:
    """`only_needed`: the last block computes targets and first tokens alone, as pre-training does."""
    encoder, masked_lm_head, next_sentence_head = model.encoder, model.masked_lm_head, model.next_sentence_head
    assert masked_lm_head
    assert next_sentence_head
    assert encoder.pooler
    names = hub_names(encoder, model.heads)
    for parameter in names:
        parameter.grad = None
    batch = example.batch
    targets = (example.labels != -100).nonzero().squeeze(1)
    if only_needed:
        hidden = encoder(batch, wanted=torch.cat([targets, batch.first_tokens]))
        at_targets, at_first = hidden.split([len(targets), batch.num_sequences])
    else:
        hidden = encoder(batch)
        at_targets, at_first = hidden[targets], hidden[batch.first_tokens]
    masked_lm_logits = masked_lm_head(at_targets, encoder.word_embeddings)
    next_sentence_logits = next_sentence_head(encoder.pooler(at_first))
    loss = functional.cross_entropy(masked_lm_logits, example.labels[targets])
    loss = loss + functional.cross_entropy(next_sentence_logits, example.next_sentence_labels)
    loss.backward()
    gradients: dict[str, Tensor] = {}
    for parameter, parts in names.items():
        assert parameter.grad is not None
        gradients |= split(parts, parameter.grad)
    with torch.no_grad():
        hidden_states = encoder.hidden_states(batch)
    return Outcome(hidden_states, masked_lm_logits.detach(), next_sentence_logits.detach(), loss.detach(), gradients)


def largest_differences(ours: Outcome, theirs: Outcome) -> dict[str, float]:
    """By kind; absolute for activations and the loss, relative for gradients.

    Gradients are of very different size from parameter to parameter: each is compared with its own largest entry. Some
    are zero but for rounding: those of the keys' biases, which softmax cannot see, are compared with those of the keys'
    weights; those of queries and keys where all sequences are of length one with 1e-3 of the largest of all.
    """
    assert ours.gradients.keys() == theirs.gradients.keys()
    scales = {name: float(gradient.abs().max()) for name, gradient in theirs.gradients.items()}
    for name in scales:
        if name.endswith("self.key.bias"):
            scales[name] = scales[name.replace("bias", "weight")]
    floor = 1e-3 * max(scales.values())
    return {
        "hidden": max(
            float((a - b).abs().max()) for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True)
        ),
        "masked_lm": float((ours.masked_lm_logits - theirs.masked_lm_logits).abs().max()),
        "next_sentence": float((ours.next_sentence_logits - theirs.next_sentence_logits).abs().max()),
        "loss": float((ours.loss - theirs.loss).abs()),
        "gradient": max(
            float((ours.gradients[name] - gradient).abs().max()) / max(scales[name], floor)
            for name, gradient in theirs.gradients.items()
        ),
    }


def both(
    directory: Path, settings: EncoderSettings, lengths: tuple[int, ...], attention: str
) -> tuple[BertForPreTraining, LoadedModel, Example]:
    """`transformers`' model with random weights, biases and norms included, and ours loaded from its directory."""
    torch.manual_seed(0)
    config = BertConfig(**config_of(settings), attn_implementation=attention)
    theirs = BertForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 1:  # fresh biases and norms are all 0 and 1, and hide mistakes
                parameter.add_(torch.randn_like(parameter) * settings.initializer_range)
            elif "embeddings" in name:
                parameter.normal_(0, settings.initializer_range)  # the padding token's too
    theirs.save_pretrained(directory)
    ours = load_model(directory)
    ours.encoder.eval()
    return theirs, ours, Example.draw(settings, lengths)


@pytest.mark.parametrize("kind", ODD_KINDS)
def test_everything_equal_on_odd_kinds(tmp_path: Path, kind: str) -> None:
    changes, lengths = ODD_KINDS[kind]
    settings = EncoderSettings(**{**SMALL, "max_position_embeddings": 16, **changes})  # type: ignore[arg-type]
    theirs, ours, example = both(tmp_path, settings, lengths, "eager")
    expected = run_theirs(theirs, example)
    for only_needed in (False, True):
        differences = largest_differences(run_ours(ours, example, only_needed), expected)
        assert max(differences.values()) < TOLERANCE, differences


@pytest.mark.slow
def test_everything_equal_at_base_size(tmp_path: Path) -> None:
    theirs, ours, example = both(tmp_path, EncoderSettings(), (24, 9, 17), "sdpa")
    differences = largest_differences(run_ours(ours, example, only_needed=True), run_theirs(theirs, example))
    assert max(differences.values()) < TOLERANCE, differences


@pytest.mark.parametrize(
    "name",
    [
        "embeddings.position.weight",
        "blocks.0.attention.query_key_value.weight",
        "blocks.1.feed_forward.down.bias",
        "blocks.1.attention_norm.weight",
    ],
)
def test_the_tolerance_can_fail(tmp_path: Path, name: str) -> None:
    """One number in one weight off by a thousandth of the weights' scale of 0.2 is seen."""
    settings = EncoderSettings(**SMALL, max_position_embeddings=16, initializer_range=0.2)  # type: ignore[arg-type]
    theirs, ours, example = both(tmp_path, settings, (10, 16, 3), "eager")
    with torch.no_grad():
        ours.encoder.get_parameter(name).flatten()[5] += 2e-4
    differences = largest_differences(run_ours(ours, example, only_needed=False), run_theirs(theirs, example))
    assert differences["hidden"] > TOLERANCE
    assert differences["gradient"] > TOLERANCE


def test_a_change_of_epsilon_is_seen(tmp_path: Path) -> None:
    settings = EncoderSettings(**SMALL, max_position_embeddings=16, layer_norm_eps=1e-2)  # type: ignore[arg-type]
    theirs, ours, example = both(tmp_path, settings, (10, 16, 3), "eager")
    for module in ours.encoder.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1.01e-2
    differences = largest_differences(run_ours(ours, example, only_needed=False), run_theirs(theirs, example))
    assert differences["hidden"] > TOLERANCE
