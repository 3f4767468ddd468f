"""Models of `transformers` and ours with the same weights, on the same tokens: padded there, packed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from unmask.batch import Batch, pack
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import TunedHead, load_model, save_model
from unmask.models.hub.source import LoadedModel
from unmask.models.hub.weight_names import hub_names, split
from unmask.models.settings import Architecture, EncoderSettings
from unmask.objectives.causal_lm import next_token_decoder

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Activations are of order 1 to 3, so this is some 50 roundings of fp32 (6e-8 each); measured are at most 2e-6. A
weight that is off by a thousandth of its scale is over it (`test_the_tolerance_can_fail`)."""

PAD = 1
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "max_position_embeddings": 20,
    "initializer_range": 0.2,
    "pad_token_id": PAD,
}
FAMILY_SIZES: dict[Architecture, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "electra": {**SIZES, "embedding_size": 10},
    "gpt1": SIZES,
    "modernbert": {**SIZES, "num_hidden_layers": 3, "hidden_size": 30, "local_attention": 6},
    "modernbert_decoder": {**SIZES, "num_hidden_layers": 3, "hidden_size": 30, "local_attention": 6},
}
LENGTHS = (9, 16, 1, 3, 16)


def settings_of(family: Architecture, **changes: Any) -> EncoderSettings:
    return EncoderSettings(architecture=family, **FAMILY_SIZES[family] | changes)


def draw(settings: EncoderSettings, lengths: tuple[int, ...]) -> Batch:
    """Random tokens, none of them the padding token, which RoBERTa's positions leave out in `transformers`."""
    generator = torch.Generator().manual_seed(len(lengths))

    def numbers(low: int, high: int) -> list[list[int]]:
        return [torch.randint(low, high, (length,), generator=generator).tolist() for length in lengths]

    return pack(numbers(6, settings.vocab_size), numbers(0, max(1, settings.type_vocab_size)))


def padded_inputs(batch: Batch, settings: EncoderSettings) -> dict[str, Tensor]:
    def pad(packed: Tensor, value: int) -> Tensor:
        rows = list(packed.split(batch.lengths))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    inputs = {
        "input_ids": pad(batch.input_ids, settings.pad_token_id or 0),
        "attention_mask": pad(torch.ones_like(batch.input_ids), 0),
    }
    if settings.type_vocab_size:
        inputs["token_type_ids"] = pad(batch.token_type_ids, 0)
    return inputs


def unpad(padded: Tensor, batch: Batch) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(padded, batch.lengths, strict=True)])


def new_theirs(class_name: str, settings: EncoderSettings, **config: Any) -> PreTrainedModel:
    """Random weights, biases and norms included, in eval mode."""
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    theirs: PreTrainedModel = model_class(model_class.config_class(**config_of(settings), **config)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 1:  # fresh biases and norms are all 0 and 1, and hide mistakes
                parameter.add_(torch.randn_like(parameter) * settings.initializer_range)
            elif "embed" in name:
                parameter.normal_(0, settings.initializer_range)
    return theirs


def run_theirs(theirs: PreTrainedModel, batch: Batch, settings: EncoderSettings) -> dict[str, Tensor]:
    """Outputs over packed tokens, or over sequences; a batch's sequences are the choices of one question."""
    inputs = padded_inputs(batch, settings)
    is_choice = type(theirs).__name__.endswith("MultipleChoice")
    if is_choice:
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    outputs = {name: tensor for name, tensor in theirs(**inputs).items() if isinstance(tensor, Tensor)}
    if is_choice:
        return {name: tensor.reshape(-1, 1) for name, tensor in outputs.items()}
    by_token = inputs["input_ids"].shape
    return {name: unpad(tensor, batch) if tensor.shape[:2] == by_token else tensor for name, tensor in outputs.items()}


def run_ours(model: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    """The same outputs, under the names that they have in `transformers`."""
    encoder, head = model.encoder, model.head
    if model.head_kind in ("sequence_classification", "multiple_choice"):
        assert head is not None
        return {"logits": head(encoder.summary(batch))}
    hidden = encoder(batch)
    if model.head_kind == "token_classification":
        assert head is not None
        return {"logits": head(hidden)}
    if model.head_kind == "question_answering":
        assert head is not None
        start, end = head(hidden).unbind(-1)
        return {"start_logits": start, "end_logits": end}
    if model.discriminator_head is not None:
        return {"logits": model.discriminator_head(hidden)}
    if model.architecture == "OpenAIGPTLMHeadModel":
        return {"logits": functional.linear(*next_token_decoder(encoder, None, hidden))}
    if model.masked_lm_head is not None:
        logits = model.masked_lm_head(hidden, encoder.word_embeddings)
        if model.next_sentence_head is None:
            return {"logits": logits}
        return {
            "prediction_logits": logits,
            "seq_relationship_logits": model.next_sentence_head(encoder.summary(batch)),
        }
    return {"last_hidden_state": hidden} | ({"pooler_output": encoder.summary(batch)} if encoder.pooler else {})


def modules_of(model: LoadedModel) -> list[nn.Module]:
    modules = (model.encoder, model.masked_lm_head, model.next_sentence_head, model.discriminator_head, model.head)
    return [module for module in modules if module is not None]


def save_again(directory: Path, model: LoadedModel) -> None:
    """Saves what has been loaded."""
    if model.head is None or model.head_kind is None:
        save_model(directory, model.encoder, model.heads, causal_lm=model.is_causal_lm)
    else:
        save_model(directory, model.encoder, tuned=TunedHead(model.head, model.head_kind, model.labels))


def evaluated(model: LoadedModel) -> LoadedModel:
    for module in modules_of(model):
        module.eval()
    return model


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
    return max(float((ours[name] - tensor).detach().abs().max()) for name, tensor in theirs.items())


def gradient_difference(model: LoadedModel, theirs: PreTrainedModel, batch: Batch) -> float:
    """Of the summed squares of all outputs; relative to the largest of a parameter's gradient.

    Small ones are sums of large terms that cancel, down to the keys' biases, whose are zero but for rounding: they are
    compared with a hundredth of the largest of all. Measured are at most 2e-6.
    """
    for loss_of in (run_ours(model, batch), run_theirs(theirs, batch, model.encoder.settings)):
        torch.stack([tensor.square().sum() for tensor in loss_of.values()]).sum().backward()
    ours: dict[str, Tensor] = {}
    for parameter, place in hub_names(model.encoder, model.heads).items():
        assert parameter.grad is not None
        ours |= split(place, parameter.grad)
    prefix = model.encoder.settings.family.weights.prefix if theirs.base_model is theirs else ""
    expected = {prefix + name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert ours.keys() == expected.keys()
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())
    return max(
        float((ours[name] - gradient).abs().max()) / max(float(gradient.abs().max()), floor)
        for name, gradient in expected.items()
    )


def both(
    directory: Path, class_name: str, settings: EncoderSettings, lengths: tuple[int, ...]
) -> tuple[LoadedModel, PreTrainedModel, Batch]:
    """Ours, loaded from the directory of theirs; theirs; and a batch for both."""
    theirs = new_theirs(class_name, settings)
    theirs.save_pretrained(directory)
    ours = evaluated(load_model(directory))
    assert ours.encoder.settings == settings
    return ours, theirs, draw(settings, lengths)


def differences(ours: LoadedModel, theirs: PreTrainedModel, batch: Batch) -> dict[str, float]:
    """The largest of the hidden states of all layers, of the last one's at two places that are asked for alone, with
    their gradients, of the outputs and of the gradients."""
    inputs = padded_inputs(batch, ours.encoder.settings)
    if ours.head_kind == "multiple_choice":
        inputs = {name: values[None] for name, values in inputs.items()}
    states = ours.encoder.hidden_states(batch)
    expected = [unpad(state, batch) for state in theirs(**inputs, output_hidden_states=True).hidden_states]
    places = torch.tensor([0, batch.num_tokens - 1])
    wanted, of_all = ours.encoder(batch, places), states[-1][places]
    weights = [each for each in ours.encoder.parameters() if each.requires_grad]
    some, whole = (
        torch.autograd.grad(hidden.square().sum(), weights, retain_graph=True, allow_unused=True)
        for hidden in (wanted, of_all)
    )
    pairs = [(one, other) for one, other in zip(some, whole, strict=True) if one is not None or other is not None]
    largest = max(float(other.abs().max()) for _, other in pairs)
    outputs, their_outputs = run_ours(ours, batch), run_theirs(theirs, batch, ours.encoder.settings)
    return {
        "hidden states": max(
            float((state - its).detach().abs().max()) for state, its in zip(states, expected, strict=True)
        ),
        "chosen places": float((wanted - of_all).detach().abs().max()),
        "their gradients": max(float((one - other).abs().max()) for one, other in pairs) / largest,
        "outputs": largest_difference(outputs, their_outputs),
        "gradients": gradient_difference(ours, theirs, batch),
    }
