"""Model directories in the Hugging Face layout: `config.json` and `model.safetensors`, written and strictly read.

A directory written here opens in `transformers` with nothing missing or left over, and the other way round, for
`BertModel`, `BertForPreTraining`, `BertForMaskedLM` and `BertForSequenceClassification`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.files import write_json, writing
from unmask.models.bert import BertEncoder, Pooler, new_classifier, new_masked_lm_head, new_next_sentence_head
from unmask.models.heads import MaskedLMHead, NextSentenceHead, SequenceClassifier
from unmask.models.hub_files import CONFIG, WEIGHTS, read_config, read_weights
from unmask.models.settings import EncoderSettings, reasons
from unmask.models.weight_names import PREFIX, TIED, hub_names, modernise, split

Architecture = Literal["BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"]
Part = Literal["pooler", "masked_lm_head", "next_sentence_head", "classifier"]

ARCHITECTURES: dict[Architecture, frozenset[Part]] = {
    "BertModel": frozenset({"pooler"}),
    "BertForPreTraining": frozenset({"pooler", "masked_lm_head", "next_sentence_head"}),
    "BertForMaskedLM": frozenset({"masked_lm_head"}),
    "BertForSequenceClassification": frozenset({"pooler", "classifier"}),
}
"""What each has beside embeddings and blocks."""

POOLER_PREFIX = f"{PREFIX}pooler."

MAY_BE_LEFT: dict[Architecture, tuple[str, ...]] = {"BertForMaskedLM": (POOLER_PREFIX, "cls.seq_relationship.")}
"""Weights that may be there beside those of an architecture: Google's released models say that they are masked LMs."""

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

REFUSED: dict[str, tuple[Any, str]] = {
    "is_decoder": (False, "an encoder"),
    "add_cross_attention": (False, "an encoder"),
    "position_embedding_type": ("absolute", "learned absolute positions"),
    "tie_word_embeddings": (True, "a decoder that is tied to the word embeddings"),
}
"""Keys of `config.json` with the one value that is supported, which is also meant where they are left out, and why."""


@dataclass(frozen=True)
class LoadedModel:
    """What was in a model directory; parts that its architecture does not have are None.

    Attributes:
        architecture: `architectures[0]` of its `config.json`.
        labels: the classifier's labels in the order of its logits, from `id2label`; None without a classifier.
        problem_type: of the classifier, where the directory says it.
        config: all of `config.json`.
        unused: names of weights in the directory that were not asked for.
        fresh: names of weights that the directory does not have and that were newly initialised.
    """

    architecture: Architecture
    encoder: BertEncoder
    masked_lm_head: MaskedLMHead | None = None
    next_sentence_head: NextSentenceHead | None = None
    classifier: SequenceClassifier | None = None
    labels: tuple[str, ...] | None = None
    problem_type: ProblemType | None = None
    config: Mapping[str, Any] | None = None
    unused: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()


def weights_of(
    encoder: BertEncoder,
    masked_lm_head: MaskedLMHead | None = None,
    next_sentence_head: NextSentenceHead | None = None,
    classifier: SequenceClassifier | None = None,
) -> dict[str, Tensor]:
    """The weights under their names in the layout, the tied decoder left out; detached, on their device, not copied."""
    names = hub_names(encoder, masked_lm_head, next_sentence_head, classifier)
    named: dict[str, Tensor] = {}
    for parameter, parts in names.items():
        named |= split(parts, parameter.detach())
    if masked_lm_head is None and next_sentence_head is None and classifier is None:
        return {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}
    return named


def save_model(
    directory: Path,
    encoder: BertEncoder,
    *,
    masked_lm_head: MaskedLMHead | None = None,
    next_sentence_head: NextSentenceHead | None = None,
    classifier: SequenceClassifier | None = None,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
    extra_config: Mapping[str, Any] | None = None,
) -> None:
    """Writes `config.json` and `model.safetensors`, each of them whole or not at all; the weights come last.

    Args:
        directory: made where it is missing.
        labels: the classifier's, in the order of its logits; left out they are `LABEL_0`, `LABEL_1` ...
        problem_type: how the classifier's logits are meant.
        extra_config: further keys for `config.json`.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    present: dict[Part, nn.Module | None] = {
        "pooler": encoder.pooler,
        "masked_lm_head": masked_lm_head,
        "next_sentence_head": next_sentence_head,
        "classifier": classifier,
    }
    architecture = _architecture_with(frozenset(part for part, module in present.items() if module is not None))
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        **encoder.settings.model_dump(),
        "dtype": "float32",
        "tie_word_embeddings": True,
    }
    if classifier is not None:
        names = list(labels) if labels is not None else [f"LABEL_{number}" for number in range(classifier.num_labels)]
        assert len(names) == classifier.num_labels, "one name a logit"
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
        config["classifier_dropout"] = classifier.dropout_prob
        if problem_type is not None:
            config["problem_type"] = problem_type
    weights = {
        name: tensor.to("cpu", torch.float32).contiguous()
        for name, tensor in weights_of(encoder, masked_lm_head, next_sentence_head, classifier).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config | dict(extra_config or {}))
    with writing(directory / WEIGHTS) as file:
        file.write(save(weights, metadata={"format": "pt"}))


def _architecture_with(parts: frozenset[Part]) -> Architecture:
    for architecture, its_parts in ARCHITECTURES.items():
        if parts == its_parts or (architecture == "BertModel" and not parts):
            return architecture
    raise AssertionError(f"no architecture has exactly {sorted(parts)}")


def load_model(directory: Path) -> LoadedModel:
    """Everything in a directory, by `architectures[0]`. A bare `BertModel` may be without a pooler.

    Raises:
        ModelError: a file is missing or damaged, the architecture or one of its settings is not supported, or a weight
            is missing, left over or of another shape; the message names it.
    """
    config = read_config(directory)
    architecture = _architecture_of(directory, config)
    weights = modernise(read_weights(directory))
    parts = ARCHITECTURES[architecture]
    if architecture == "BertModel" and not _has_pooler(weights):
        parts = frozenset()
    return _assemble(directory, config, weights, parts, MAY_BE_LEFT.get(architecture, ()))


def load_encoder(directory: Path, pooler: bool = True) -> LoadedModel:
    """The encoder of a directory of any architecture, for fine-tuning; its heads are left, and named in `unused`.

    Args:
        pooler: whether the encoder shall have one. Where the directory has none it is freshly initialised from
            PyTorch's default generator, and named in `fresh`.

    Raises:
        ModelError: as in `load_model`.
    """
    config = read_config(directory)
    weights = modernise(read_weights(directory))
    loads_pooler = pooler and _has_pooler(weights)
    parts: frozenset[Part] = frozenset({"pooler"}) if loads_pooler else frozenset()
    loaded = _assemble(directory, config, weights, parts, ("cls.", "classifier.", POOLER_PREFIX))
    if not pooler or loads_pooler:
        return loaded
    encoder = loaded.encoder
    encoder.pooler = Pooler(encoder.settings.hidden_size, encoder.settings.initializer_range)
    names = hub_names(encoder)
    return replace(loaded, fresh=tuple(name for weight in encoder.pooler.parameters() for name in names[weight]))


def load_masked_lm(directory: Path) -> LoadedModel:
    """`load_model` for a directory that must have a masked-LM head.

    Raises:
        ModelError: as in `load_model`, or the directory has no such head.
    """
    _expect_part(directory, "masked_lm_head", "a masked-LM head, as `unmask pretrain` saves it")
    return load_model(directory)


def load_classifier(directory: Path) -> LoadedModel:
    """`load_model` for a directory that must have a classifier.

    Raises:
        ModelError: as in `load_model`, or the directory has no classifier.
    """
    _expect_part(directory, "classifier", "a classifier, as `unmask finetune` saves it")
    return load_model(directory)


def _expect_part(directory: Path, part: Part, wanted: str) -> None:
    architecture = _architecture_of(directory, read_config(directory))
    if part not in ARCHITECTURES[architecture]:
        fitting = " or ".join(name for name, parts in ARCHITECTURES.items() if part in parts)
        raise ModelError(f"{directory} is a {architecture}; expected {wanted} ({fitting})")


def _architecture_of(directory: Path, config: Mapping[str, Any]) -> Architecture:
    named = config.get("architectures")
    for architecture in ARCHITECTURES:
        if isinstance(named, list) and named[:1] == [architecture]:
            return architecture
    raise ModelError(f"{directory / CONFIG}: architectures is {named!r}; expected one of {', '.join(ARCHITECTURES)}")


def _settings_of(directory: Path, config: Mapping[str, Any]) -> EncoderSettings:
    path = directory / CONFIG
    for key, (supported, meaning) in REFUSED.items():
        if config.get(key, supported) != supported:
            raise ModelError(f"{path}: {key} is {config[key]!r}; expected {supported!r}: only {meaning} loads here")
    if config.get("model_type") != "bert":
        raise ModelError(f"{path}: model_type is {config.get('model_type')!r}; expected 'bert'")
    try:
        return EncoderSettings(**{key: value for key, value in config.items() if key in EncoderSettings.model_fields})
    except ValidationError as error:
        raise ModelError(f"{path}: {reasons(error)}") from error


def _labels_of(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in the order of the logits; two unnamed ones where nothing is said, as in `transformers`."""
    named = config.get("id2label", {str(number): f"LABEL_{number}" for number in range(2)})
    if not isinstance(named, dict) or sorted(named) != sorted(str(number) for number in range(len(named))):
        raise ModelError(f'{directory / CONFIG}: id2label is {named!r}; expected a label for each of "0", "1" ...')
    return tuple(str(named[str(number)]) for number in range(len(named)))


def _problem_type_of(directory: Path, config: Mapping[str, Any]) -> ProblemType | None:
    named = config.get("problem_type")
    for problem_type in get_args(ProblemType):
        if named == problem_type:
            return cast(ProblemType, problem_type)
    if named is None:
        return None
    expected = ", ".join(get_args(ProblemType))
    raise ModelError(f"{directory / CONFIG}: problem_type is {named!r}; expected one of {expected}")


def _has_pooler(weights: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(POOLER_PREFIX) for name in weights)


def _assemble(
    directory: Path,
    config: Mapping[str, Any],
    weights: dict[str, Tensor],
    parts: frozenset[Part],
    may_be_left: tuple[str, ...],
) -> LoadedModel:
    """Builds the encoder and `parts` without initialising them, and gives them the weights.

    Args:
        may_be_left: beginnings of the names of weights that need not find a place.
    """
    settings = _settings_of(directory, config)
    labels = _labels_of(directory, config) if "classifier" in parts else None
    classifier_dropout = config.get("classifier_dropout")
    if not (
        classifier_dropout is None or (isinstance(classifier_dropout, float | int) and 0 <= classifier_dropout < 1)
    ):
        raise ModelError(
            f"{directory / CONFIG}: classifier_dropout is {classifier_dropout!r}; expected null or a number from 0 to 1"
        )
    with torch.device("meta"):
        model = LoadedModel(
            encoder=BertEncoder(settings, pooler="pooler" in parts),
            architecture=_architecture_of(directory, config),
            masked_lm_head=new_masked_lm_head(settings) if "masked_lm_head" in parts else None,
            next_sentence_head=new_next_sentence_head(settings) if "next_sentence_head" in parts else None,
            classifier=new_classifier(settings, len(labels), classifier_dropout) if labels else None,
            labels=labels,
            problem_type=_problem_type_of(directory, config),
            config=config,
        )
    names = hub_names(model.encoder, model.masked_lm_head, model.next_sentence_head, model.classifier)
    _untie(directory, weights)
    unused = _check_fit(directory, names, weights, may_be_left)
    values = {
        parameter: torch.cat([weights[name].to(torch.float32) for name in parts_of_it])  # a copy, free of the file
        for parameter, parts_of_it in names.items()
    }
    for module in (model.encoder, model.masked_lm_head, model.next_sentence_head, model.classifier):
        if module is not None:
            state = {name: values[parameter] for name, parameter in module.named_parameters()}
            module.load_state_dict(state, assign=True)
    return replace(model, unused=unused)


def _untie(directory: Path, weights: dict[str, Tensor]) -> None:
    """Takes out the second copies of tied weights, which must be equal to the first."""
    for copy, original in TIED.items():
        if copy not in weights:
            continue
        duplicate = weights.pop(copy)
        if not torch.equal(weights.setdefault(original, duplicate), duplicate):
            raise ModelError(f"{directory}: {copy} differs from {original}; expected the same weight: they are tied")


def _check_fit(
    directory: Path,
    names: Mapping[nn.Parameter, tuple[str, ...]],
    weights: Mapping[str, Tensor],
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Refuses weights that are missing, left over, of another shape or not floats; returns those that may be left."""
    expected = {name: tuple(part.shape) for weight, its in names.items() for name, part in split(its, weight).items()}
    faults = [f"{name} {shape} is missing" for name, shape in expected.items() if name not in weights]
    faults += [
        f"{name} has the shape {tuple(weights[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    faults += [
        f"{name} is of {weights[name].dtype}, expected floats"
        for name in expected
        if name in weights and not weights[name].is_floating_point()
    ]
    left = sorted(set(weights) - set(expected))
    faults += [f"{name} is left over" for name in left if not name.startswith(may_be_left)]
    if faults:
        raise ModelError(
            f"{directory}: the weights do not fit {CONFIG}: {'; '.join(faults)}; "
            "get the directory again, or the config.json that belongs to its weights"
        )
    return tuple(left)
