"""Model directories in the Hugging Face layout: `config.json` and `model.safetensors`, written and strictly read.

A directory written here opens in `transformers` with nothing missing or left over, and the other way round, for every
class in `unmask.models.hub_config.CLASSES`. A head that `transformers` has no class for stands in `head.safetensors`
beside its encoder, which opens there alone. Google's own checkpoints are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.files import write_json, writing
from unmask.models.bert import Pooler, new_masked_lm_head, new_next_sentence_head
from unmask.models.electra import new_discriminator_head, new_generator_head
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.heads import (
    Classifier,
    DeepClassifier,
    DiscriminatorHead,
    HeadKind,
    MaskedLMHead,
    NextSentenceHead,
    needs_pooler,
    new_head,
)
from unmask.models.hub_config import (
    DROPOUT_KEYS,
    HEAD_CLASS,
    HEAD_KIND,
    MODEL_TYPES,
    ProblemType,
    class_with,
    classes_with,
    config_of,
    dropout_of,
    has_class,
    head_kind_apart,
    head_kind_in,
    label_config,
    labels_of,
    left_prefixes,
    problem_type_of,
)
from unmask.models.hub_files import CONFIG, HEAD_WEIGHTS, WEIGHTS, read_head_weights
from unmask.models.hub_source import Source, fill, read_source, untie
from unmask.models.settings import Architecture, EncoderSettings
from unmask.models.weight_names import FAMILIES, Part, Place, hub_names, split

LABELLED: tuple[HeadKind, ...] = ("sequence_classification", "token_classification")
"""Kinds of heads whose logits have names."""

NUM_LABELS: dict[HeadKind, int] = {"question_answering": 2, "multiple_choice": 1}
"""Logits of the others: start and end; one for each choice."""


@dataclass(frozen=True)
class LoadedModel:
    """What was in a model directory; parts that its class does not have are None.

    Attributes:
        architecture: `architectures[0]` of its `config.json`.
        head: what it was fine-tuned with, as `new_head` builds it.
        head_kind: of the head, or of `head_weights`.
        head_weights: of a head that `new_head` does not build, by our names: the task that saved it does.
        labels: in the order of the head's logits, from `id2label`; None where it has none.
        problem_type: of a sequence classifier, where the directory says it.
        config: all of `config.json`.
        unused: names of weights in the directory that were not asked for.
        fresh: names of weights that the directory does not have and that were newly initialised.
    """

    architecture: str
    encoder: Encoder
    masked_lm_head: MaskedLMHead | None = None
    next_sentence_head: NextSentenceHead | None = None
    discriminator_head: DiscriminatorHead | None = None
    head: Classifier | DeepClassifier | None = None
    head_kind: HeadKind | None = None
    head_weights: Mapping[str, Tensor] | None = None
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType | None = None
    config: Mapping[str, Any] | None = None
    unused: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


def weights_of(
    encoder: Encoder,
    masked_lm_head: nn.Module | None = None,
    next_sentence_head: nn.Module | None = None,
    discriminator_head: nn.Module | None = None,
    head: nn.Module | None = None,
    head_kind: HeadKind | None = None,
    prefixed: bool | None = None,
) -> dict[str, Tensor]:
    """The weights under their names in the layout, the tied decoder left out; detached, on their device, not copied.

    Args:
        prefixed: whether the encoder's names have the prefix; None: where there is a head.
    """
    heads = (masked_lm_head, next_sentence_head, discriminator_head, head)
    if prefixed is None:
        prefixed = any(module is not None for module in heads)
    named: dict[str, Tensor] = {}
    for parameter, place in hub_names(encoder, *heads, head_kind).items():
        named |= split(place, parameter.detach())
    prefix = "" if prefixed else FAMILIES[encoder.settings.architecture].prefix
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


def save_model(
    directory: Path,
    encoder: Encoder,
    *,
    masked_lm_head: MaskedLMHead | None = None,
    next_sentence_head: NextSentenceHead | None = None,
    discriminator_head: DiscriminatorHead | None = None,
    causal_lm: bool = False,
    head: nn.Module | None = None,
    head_kind: HeadKind | None = None,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | str | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> None:
    """Writes `config.json` and the weights, each file whole or not at all; `model.safetensors` comes last.

    Args:
        directory: made where it is missing.
        causal_lm: True: GPT-1 as a language model, its decoder tied to the word embeddings.
        head: of fine-tuning, by `new_head` or any other. One that `transformers` has no class for goes to
            `head.safetensors`, and the encoder is saved alone.
        head_kind: of `head`.
        labels: of a classifier of sequences or tokens, in the order of its logits; left out they are `LABEL_0` ...
        problem_type: how a sequence classifier's logits are meant.
        extra_config: further keys for `config.json`.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    assert (head is None) == (head_kind is None), "a head and its kind belong together"
    settings = encoder.settings
    is_apart = head_kind is not None and not (
        isinstance(head, Classifier | DeepClassifier) and has_class(settings.architecture, head_kind)
    )
    present: dict[Part, bool] = {
        "pooler": encoder.pooler is not None,
        "masked_lm_head": masked_lm_head is not None,
        "next_sentence_head": next_sentence_head is not None,
        "discriminator_head": discriminator_head is not None,
        "causal_lm": causal_lm,
    }
    if head_kind is not None and not is_apart:
        present[head_kind] = True
    class_name = class_with(settings.architecture, frozenset(part for part, there in present.items() if there))
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": MODEL_TYPES[settings.architecture],
        **config_of(settings),
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    if head is not None:
        config |= _head_config(head, head_kind, class_name, labels, problem_type)
    if is_apart:
        config |= {HEAD_KIND: head_kind, HEAD_CLASS: type(head).__name__}
    inside = None if is_apart else head
    weights = weights_of(
        encoder,
        masked_lm_head,
        next_sentence_head,
        discriminator_head,
        inside,
        head_kind,
        prefixed=any(there for part, there in present.items() if part != "pooler"),
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config | dict(extra_config or {}))
    if is_apart and head is not None:
        _write_weights(directory / HEAD_WEIGHTS, {name: weight.detach() for name, weight in head.state_dict().items()})
    else:
        (directory / HEAD_WEIGHTS).unlink(missing_ok=True)
    _write_weights(directory / WEIGHTS, weights)


def _head_config(
    head: nn.Module,
    kind: HeadKind | None,
    class_name: str,
    labels: Sequence[str] | None,
    problem_type: str | None,
) -> dict[str, Any]:
    """What `config.json` says of a fine-tuned head. Question answering has neither labels nor dropout."""
    config: dict[str, Any] = {}
    num_labels = getattr(head, "num_labels", None)
    if kind in LABELLED:
        names = list(labels) if labels is not None else [f"LABEL_{number}" for number in range(num_labels or 2)]
        assert num_labels in (None, len(names)), "one name a logit"
        config |= label_config(names)
    if isinstance(head, Classifier | DeepClassifier) and kind != "question_answering":
        config["classifier_dropout"] = head.dropout_prob
        if class_name in DROPOUT_KEYS:
            config[DROPOUT_KEYS[class_name][0]] = head.dropout_prob
    if problem_type is not None:
        config["problem_type"] = problem_type
    return config


def _write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    on_cpu = {name: tensor.to("cpu", torch.float32).contiguous() for name, tensor in weights.items()}
    with writing(path) as file:
        file.write(save(on_cpu, metadata={"format": "pt"}))


def load_model(directory: Path) -> LoadedModel:
    """Everything in a directory, by `architectures[0]`. A bare encoder may be without a pooler.

    Raises:
        ModelError: a file is missing or damaged, the class or one of its settings is not supported, or a weight is
            missing, left over or of another shape; the message names it.
    """
    source = read_source(directory)
    parts = source.model_class.parts
    if parts == {"pooler"} and not source.has_pooler:
        parts = frozenset()
    loaded = _assemble(source, parts, left_prefixes(source.model_class))
    return _with_head_apart(source, loaded) if HEAD_KIND in source.config else loaded


def load_encoder(directory: Path, head: HeadKind | None = None, *, pooler: bool = True) -> LoadedModel:
    """The encoder of a directory of any class, for fine-tuning; its heads are left, and named in `unused`.

    Args:
        head: the kind of head that will stand on it: it decides whether the encoder has a pooler.
        pooler: whether it shall have one, where no `head` is given and its family knows poolers. Where the directory
            has none, it is freshly initialised from PyTorch's default generator, and named in `fresh`.

    Raises:
        ModelError: as in `load_model`.
    """
    source = read_source(directory)
    if head is not None:
        pooler = needs_pooler(source.settings(), head)
    pooler = pooler and "pooler" in source.family.parts
    parts: frozenset[Part] = frozenset({"pooler"}) if pooler and source.has_pooler else frozenset()
    loaded = _assemble(source, parts, (*source.family.head_prefixes, source.family.pooler_prefix))
    if HEAD_KIND in source.config:
        loaded = replace(loaded, unused=(*loaded.unused, HEAD_WEIGHTS))
    if not pooler or parts:
        return loaded
    encoder = loaded.encoder
    encoder.pooler = Pooler(encoder.settings.hidden_size, encoder.settings.initializer_range)
    places = hub_names(encoder)
    fresh = tuple(name for weight in encoder.pooler.parameters() for name in places[weight].names)
    return replace(loaded, fresh=fresh)


def load_masked_lm(directory: Path) -> LoadedModel:
    """`load_model` for a directory that must have a masked-LM head.

    Raises:
        ModelError: as in `load_model`, or the directory has no such head.
    """
    loaded = load_model(directory)
    if loaded.masked_lm_head is None:
        raise ModelError(
            f"{directory} is a {loaded.architecture}; expected a masked-LM head, as `unmask pretrain` saves it "
            f"({classes_with('masked_lm_head')})"
        )
    return loaded


def load_finetuned(directory: Path) -> LoadedModel:
    """`load_model` for a directory that must have a head of fine-tuning, in `head` or `head_weights`.

    Raises:
        ModelError: as in `load_model`, or the directory has no such head.
    """
    loaded = load_model(directory)
    if loaded.head_kind is None:
        raise ModelError(
            f"{directory} is a {loaded.architecture}; expected a fine-tuned model, as `unmask finetune` saves it "
            f"(such as {classes_with('sequence_classification')})"
        )
    return loaded


MASKED_LM_HEADS: dict[Architecture, Callable[[EncoderSettings], MaskedLMHead]] = {
    "bert": new_masked_lm_head,
    "roberta": new_masked_lm_head,
    "electra": new_generator_head,
}
"""The families that have a masked-LM head."""


def _assemble(source: Source, parts: frozenset[Part], may_be_left: tuple[str, ...]) -> LoadedModel:
    """Builds the encoder and `parts` without initialising them, and gives them the weights.

    Args:
        may_be_left: beginnings of the names of weights that need not find a place.
    """
    settings = source.settings()
    kind = head_kind_in(parts)
    labels = labels_of(source.config_path, source.config) if kind in LABELLED else None
    with torch.device("meta"):
        model = LoadedModel(
            architecture=source.class_name,
            encoder=new_encoder(settings, pooler="pooler" in parts),
            masked_lm_head=MASKED_LM_HEADS[settings.architecture](settings) if "masked_lm_head" in parts else None,
            next_sentence_head=new_next_sentence_head(settings) if "next_sentence_head" in parts else None,
            discriminator_head=new_discriminator_head(settings) if "discriminator_head" in parts else None,
            head=None if kind is None else _blank_head(source, settings, kind, labels),
            head_kind=kind,
            labels=labels,
            problem_type=None if kind is None else problem_type_of(source.config_path, source.config),
            config=source.config,
        )
    heads = (model.masked_lm_head, model.next_sentence_head, model.discriminator_head, model.head)
    places = hub_names(model.encoder, *heads, model.head_kind)
    untie(source)
    modules = [module for module in (model.encoder, *heads) if module is not None]
    return replace(model, unused=fill(modules, places, source.weights, source.directory, may_be_left))


def _blank_head(
    source: Source, settings: EncoderSettings, kind: HeadKind, labels: tuple[str, ...] | None
) -> Classifier | DeepClassifier:
    prob = dropout_of(source.config_path, source.config, source.class_name)
    return new_head(kind, settings, NUM_LABELS[kind] if labels is None else len(labels), prob)


def _with_head_apart(source: Source, model: LoadedModel) -> LoadedModel:
    """The model with the head that stands in `head.safetensors`, or with its weights where `new_head` has none such."""
    path = source.directory / HEAD_WEIGHTS
    kind = head_kind_apart(source.config_path, source.config)
    weights = read_head_weights(source.directory)
    labels = labels_of(source.config_path, source.config) if kind in LABELLED else None
    with torch.device("meta"):
        head = _blank_head(source, model.encoder.settings, kind, labels)
    model = replace(
        model,
        head_kind=kind,
        labels=labels,
        problem_type=problem_type_of(source.config_path, source.config),
    )
    if source.config.get(HEAD_CLASS) != type(head).__name__:
        return replace(model, head_weights=weights)
    fill([head], {weight: Place((name,)) for name, weight in head.named_parameters()}, weights, path, ())
    return replace(model, head=head)
