"""Model directories in the Hugging Face layout: `config.json` and `model.safetensors`, written and strictly read.

A directory written here opens in `transformers` with nothing missing or left over, and the other way round, for every
class of a `Family` that it has too: not for ELMo and LSTMs. A head, or the part of one, that `transformers` has no
class for is saved in `head.safetensors`; `transformers` opens the rest. Google's own checkpoints are read too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import ModelError, SettingsError
from unmask.io.paths import HEAD_WEIGHTS, model_directory
from unmask.io.writing import write_json
from unmask.models.bert import Pooler
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.family import HeadKind, ModelClass, Part
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import Classifier, DeepClassifier, needs_pooler, new_head
from unmask.models.heads.span_boundary_head import SpanBoundaryHead, write_span_boundary
from unmask.models.hub.config import (
    HEAD_CLASS,
    HEAD_KIND,
    ProblemType,
    config_of,
    dropout_of,
    head_kind_apart,
    head_kind_in,
    label_config,
    labels_of,
    left_prefixes,
    problem_type_of,
)
from unmask.models.hub.files import CONFIG, read_head_weights, write_weights
from unmask.models.hub.headers import WEIGHTS
from unmask.models.hub.source import PRETRAINING_HEADS, LoadedModel, ModelSource, open_source
from unmask.models.hub.weight_names import fill_weights, hub_names, own_names, split
from unmask.models.sizes import Sizes

NUM_LABELS: dict[HeadKind, int] = {"question_answering": 2, "multiple_choice": 1}
"""Kinds of heads whose logits have no names, and how many they are: start and end; one for each choice."""


def weights_of(
    encoder: Encoder, heads: Mapping[Part, nn.Module] | None = None, *, prefixed: bool = False
) -> dict[str, Tensor]:
    """The weights under their names in the layout, the tied decoder left out; detached, on their device, not copied.

    Args:
        prefixed: whether the encoder's names have the prefix, as beside a head.
    """
    named: dict[str, Tensor] = {}
    for parameter, place in hub_names(encoder, heads).items():
        named |= split(place, parameter.detach())
    prefix = "" if prefixed else encoder.settings.family.weights.prefix
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


@dataclass(frozen=True)
class TunedHead:
    """A head of fine-tuning, to be saved.

    Attributes:
        module: by `new_head` or any other. One that `transformers` has no class for goes to `head.safetensors`, and the
            encoder is saved alone; of an `AnswerabilityHead` only the classifier, if there is a class for its spans.
        labels: of a classifier of sequences or tokens, in the order of its logits; None: `LABEL_0` ...
        problem_type: how a sequence classifier's logits are to be read.
    """

    module: nn.Module
    kind: HeadKind
    labels: Sequence[str] | None = None
    problem_type: ProblemType | str | None = None


def save_model(
    directory: str | Path,
    encoder: Encoder | LoadedModel,
    heads: Mapping[Part, nn.Module] = {},
    *,
    causal_lm: bool = False,
    span_boundary_head: SpanBoundaryHead | None = None,
    tuned: TunedHead | None = None,
    extra_config: Mapping[str, Any] = {},
) -> None:
    """Writes `config.json` and the weights, each file whole or not at all; `model.safetensors` comes last. A tokenizer
    has a `save` of its own.

    Args:
        encoder: or what `load_model` gave: then all of it is saved, and nothing else is given.
        heads: those of pre-training, by part: `masked_lm_head`, `next_sentence_head`, `discriminator_head`, `softmax`.
        causal_lm: True: a left-to-right language model, its decoder tied to the word embeddings; BERT's needs a
            `masked_lm_head` as well.
        span_boundary_head: SpanBERT's, which goes to a file of its own: `transformers` has no class for it.
        tuned: the head of a fine-tuned model, an `unmask.models.hub.directory.TunedHead`.
        extra_config: further keys of `config.json`.

    Raises:
        ModelError: a loaded model has a head that its task alone builds.
        SettingsError: something else is given beside a loaded model.
        OutputError: the disk is full, or the place cannot be written.
    """
    directory = Path(directory)
    if isinstance(encoder, LoadedModel):
        if heads or causal_lm or span_boundary_head is not None or tuned is not None or extra_config:
            raise SettingsError("a loaded model is saved as it is: give its encoder and heads to save them otherwise")
        _save_loaded(directory, encoder)
        return
    assert heads.keys() <= PRETRAINING_HEADS.keys(), "a head of fine-tuning is `tuned`"
    settings = encoder.settings
    inside, apart = dict(heads), None
    if tuned is not None:
        known, apart = _known_and_apart(tuned.module, tuned.kind, settings)
        inside |= {} if known is None else {tuned.kind: known}
    parts: set[Part] = {*inside, "causal_lm"} if causal_lm else set(inside)
    bare: frozenset[Part] = frozenset() if encoder.pooler is None else frozenset({"pooler"})
    class_name = settings.family.class_with(bare | parts)
    config = {
        "architectures": [class_name],
        "model_type": settings.family.model_type,
        "dtype": "float32",
        **({} if encoder.reads_words else {"tie_word_embeddings": True}),
        **config_of(settings),
    }
    if tuned is not None:
        config |= _head_config(tuned, settings.family.classes[class_name])
        if apart is not None:
            config |= {HEAD_KIND: tuned.kind, HEAD_CLASS: type(tuned.module).__name__}
    weights = weights_of(encoder, inside, prefixed=bool(parts))
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config | dict(extra_config))
    if apart is not None:
        write_weights(directory / HEAD_WEIGHTS, apart.state_dict())
    else:
        (directory / HEAD_WEIGHTS).unlink(missing_ok=True)
    write_span_boundary(directory, span_boundary_head)
    write_weights(directory / WEIGHTS, weights)


def _known_and_apart(
    head: nn.Module, kind: HeadKind, settings: Sizes
) -> tuple[Classifier | DeepClassifier | None, nn.Module | None]:
    """What of a head `transformers` has a class for, with its encoder, and what goes to `head.safetensors`."""
    known = head.spans if isinstance(head, AnswerabilityHead) else head
    if not isinstance(known, Classifier | DeepClassifier) or settings.causal or not settings.family.has(kind):
        return None, head
    return known, head.classifier if isinstance(head, AnswerabilityHead) else None


def _save_loaded(directory: Path, loaded: LoadedModel) -> None:
    if loaded.head_weights is not None:
        raise ModelError(
            f"the head of this {loaded.architecture} is one that its task builds, and is not saved by itself: copy its "
            "directory"
        )
    tuned = None
    if loaded.head is not None and loaded.head_kind is not None:
        tuned = TunedHead(loaded.head, loaded.head_kind, loaded.labels, loaded.problem_type)
    save_model(
        directory,
        loaded.encoder,
        {part: head for part, head in loaded.heads.items() if part in PRETRAINING_HEADS},
        causal_lm=loaded.is_causal_lm,
        tuned=tuned,
        # By `transformers_version`, `recorded_task` knows that the record may be of another head.
        extra_config={
            key: value
            for key, value in loaded.config.items()
            if key.startswith("unmask_") or key == "transformers_version"
        },
    )


def _head_config(tuned: TunedHead, its: ModelClass) -> dict[str, Any]:
    """What `config.json` says of a fine-tuned head. Question answering has no labels, and dropout in ModernBERT
    alone."""
    config: dict[str, Any] = {}
    head, labels = tuned.module, tuned.labels
    head = head.spans if isinstance(head, AnswerabilityHead) else head
    num_labels = getattr(head, "num_labels", None)
    if tuned.kind not in NUM_LABELS:
        names = list(labels) if labels is not None else [f"LABEL_{number}" for number in range(num_labels or 2)]
        assert num_labels in (None, len(names)), "one name a logit"
        config |= label_config(names)
    if isinstance(head, Classifier | DeepClassifier) and (tuned.kind != "question_answering" or head.dropout_prob):
        config["classifier_dropout"] = config[its.dropout_key[0]] = head.dropout_prob
    if tuned.problem_type is not None:
        config["problem_type"] = tuned.problem_type
    return config


def load_model(directory: str | Path | ModelSource, kind: str | None = None) -> LoadedModel:
    """Everything in a directory, by `architectures[0]`. A bare encoder may be without a pooler.

    Args:
        directory: a model's, or that of the run that made it, or what `unmask.models.hub.source.open_source` gave.
        kind: what it must be, one of three texts in `unmask.models.hub.uses`: `CAUSAL`, `MASKED`, or `FINE_TUNED`, with
            `head` or `head_weights`; None: anything.

    Returns:
        An `unmask.models.hub.source.LoadedModel`: encoder and heads in training mode, as PyTorch makes them, so that
        `eval()` comes before their use; float32, on the CPU.

    Raises:
        ModelError: a file is missing or damaged, the class or one of its settings is not supported, it is of another
            kind, or a weight is missing, left over or of another shape; the message names it.
        SettingsError: there is no such kind.
    """
    source = directory if isinstance(directory, ModelSource) else open_source(model_directory(directory))
    source.check_kind(kind)
    weights, parts = source.weights(), source.model_class.parts
    may_be_left = left_prefixes(source.family, source.model_class)
    # `transformers` gives a bare causal encoder a pooler too, which cannot learn.
    if parts == {"pooler"} and source.settings.causal:
        parts, may_be_left = frozenset(), (*may_be_left, source.family.weights.pooler_prefix)
    elif parts == {"pooler"} and not _has_pooler(source, weights):
        parts = frozenset()
    return _filled(source, _with_blank_head(source, _blank(source, parts)), weights, may_be_left)


def load_encoder(directory: Path | ModelSource, head: HeadKind | None = None, *, pooler: bool = True) -> LoadedModel:
    """The encoder of a directory of any class, for fine-tuning; its heads are not loaded, but named in `unused`.

    Args:
        head: the kind of head that it will get: it decides whether the encoder has a pooler.
        pooler: whether the encoder gets a pooler, if no `head` is given and its family has them. If the directory has
            none, it is freshly initialised from PyTorch's default generator, and named in `fresh`.

    Raises:
        ModelError: as in `load_model`.
    """
    source = directory if isinstance(directory, ModelSource) else open_source(directory)
    weights = source.weights()
    if head is not None:
        pooler = needs_pooler(source.settings, head)
    pooler = pooler and source.family.has("pooler") and not source.settings.causal
    parts: frozenset[Part] = frozenset({"pooler"}) if pooler and _has_pooler(source, weights) else frozenset()
    may_be_left = (*source.family.weights.head_prefixes, source.family.weights.pooler_prefix)
    loaded = _filled(source, _blank(source, parts), weights, may_be_left)
    if HEAD_KIND in source.config:
        loaded = replace(loaded, unused=(*loaded.unused, HEAD_WEIGHTS))
    if not pooler or parts:
        return loaded
    encoder = loaded.encoder
    assert not encoder.reads_words, "its directory is another"
    encoder.pooler = Pooler(encoder.settings.hidden_size, encoder.settings.initializer_range)
    places = hub_names(encoder)
    fresh = tuple(name for weight in encoder.pooler.parameters() for name in places[weight].names)
    return replace(loaded, fresh=fresh)


def _has_pooler(source: ModelSource, weights: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(source.family.weights.pooler_prefix) for name in weights)


def _filled(
    source: ModelSource, model: LoadedModel, weights: Mapping[str, Tensor], may_be_left: tuple[str, ...]
) -> LoadedModel:
    """Gives a model without weights those of its directory; `head.safetensors` has its head, or the classifier of an
    `AnswerabilityHead` whose spans are beside the encoder."""
    inside, kind_apart = model.heads, model.head_kind if HEAD_KIND in source.config else None
    apart = None if kind_apart is None else inside.pop(kind_apart, None)
    if kind_apart in source.model_class.parts and isinstance(apart, AnswerabilityHead):
        inside[kind_apart], apart = apart.spans, apart.classifier
    modules = [model.encoder, *inside.values()]
    unused = fill_weights(modules, hub_names(model.encoder, inside), weights, source.directory, may_be_left)
    model = replace(model, unused=unused)
    if kind_apart is None:
        return model
    head_weights = read_head_weights(source.directory)
    if apart is None:  # its task builds it
        return replace(model, head_weights=head_weights)
    fill_weights([apart], own_names(apart), head_weights, source.directory / HEAD_WEIGHTS, ())
    return model


def blank_model(directory: Path, kind: str | None) -> LoadedModel:
    """A model without weights, on PyTorch's meta device: what a directory says of it, for what computes elsewhere.

    Args:
        kind: as in `load_model`.

    Raises:
        ModelError: `config.json` is missing or damaged, its class or one of its settings is not supported, or it is of
            another kind.
    """
    source = open_source(directory)
    source.check_kind(kind)
    return _with_blank_head(source, _blank(source, source.model_class.parts))


def _blank(source: ModelSource, parts: frozenset[Part]) -> LoadedModel:
    """An encoder and heads of pre-training without weights."""
    with torch.device("meta"):
        encoder = new_encoder(source.settings, pooler="pooler" in parts)
        heads: dict[str, Any] = {part: new(source.settings) for part, new in PRETRAINING_HEADS.items() if part in parts}
    return LoadedModel(
        architecture=source.class_name,
        encoder=encoder,
        is_causal_lm="causal_lm" in source.model_class.parts,
        config=source.config,
        **heads,
    )


def _with_blank_head(source: ModelSource, model: LoadedModel) -> LoadedModel:
    """The model with what `config.json` says of its head of fine-tuning, if it has one, and that head without weights;
    without the head where the task builds it: on ELMo, and of a class that `new_head` does not make."""
    path, config = source.config_path, source.config
    is_apart = HEAD_KIND in config
    kind = head_kind_apart(path, config) if is_apart else head_kind_in(source.model_class.parts)
    if kind is None:
        return model
    labels = None if kind in NUM_LABELS else labels_of(path, config)
    problem_type = problem_type_of(path, config) if kind == "sequence_classification" else None
    model = replace(model, head_kind=kind, labels=labels, problem_type=problem_type)
    if source.family.reads_words:
        return model
    prob = dropout_of(path, config, source.model_class)
    with torch.device("meta"):
        head: Any = new_head(kind, source.settings, NUM_LABELS[kind] if labels is None else len(labels), prob)
        if is_apart and kind == "question_answering" and model.head_class == AnswerabilityHead.__name__:
            head = AnswerabilityHead(head, source.settings)
    is_built_here = not is_apart or model.head_class == type(head).__name__
    return replace(model, head=head) if is_built_here else model
