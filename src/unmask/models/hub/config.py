"""What `config.json` says of a model: its class and family, its sizes, its labels; read and written.

The classes are those of `transformers` whose directories are read and written here, and our own for what it does not
know: LSTMs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import ValidationError

from unmask.errors import ModelError
from unmask.models.electra import embedding_size
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.heads.heads import HeadKind
from unmask.models.hub.weight_names import FAMILIES, Part
from unmask.models.settings import Architecture, EncoderSettings, reasons

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

HEAD_KIND = "unmask_head"
"""The key for the kind of a head that is saved in a file of its own."""
HEAD_CLASS = "unmask_head_class"
"""The key for the name of such a head's class here."""
TRAINED_LENGTH = "unmask_trained_length"
"""The key for the longest sequence of pre-training, in tokens, where the model has more positions than that."""

MODEL_TYPES: dict[Architecture, str] = {
    "bert": "bert",
    "roberta": "roberta",
    "electra": "electra",
    "gpt1": "openai-gpt",
    "lstm": "unmask-lstm",
}
"""`model_type` of each family."""


@dataclass(frozen=True)
class ModelClass:
    """A class of `transformers`, or of our own.

    Attributes:
        parts: what it has beside embeddings and blocks. A bare encoder may lack its pooler, and always does if it is
            causal.
        may_be_left: parts whose weights may be there as well: released models call themselves masked LMs, and hold
            more.
    """

    family: Architecture
    parts: frozenset[Part] = frozenset()
    may_be_left: tuple[Part, ...] = ()


CLASSES: dict[str, ModelClass] = {
    "BertModel": ModelClass("bert", frozenset({"pooler"})),
    "BertForPreTraining": ModelClass("bert", frozenset({"pooler", "masked_lm_head", "next_sentence_head"})),
    "BertForMaskedLM": ModelClass("bert", frozenset({"masked_lm_head"}), ("pooler", "next_sentence_head")),
    "BertLMHeadModel": ModelClass("bert", frozenset({"masked_lm_head", "causal_lm"}), ("pooler", "next_sentence_head")),
    "BertForSequenceClassification": ModelClass("bert", frozenset({"pooler", "sequence_classification"})),
    "BertForTokenClassification": ModelClass("bert", frozenset({"token_classification"}), ("pooler",)),
    "BertForQuestionAnswering": ModelClass("bert", frozenset({"question_answering"}), ("pooler",)),
    "BertForMultipleChoice": ModelClass("bert", frozenset({"pooler", "multiple_choice"})),
    "RobertaModel": ModelClass("roberta", frozenset({"pooler"})),
    "RobertaForMaskedLM": ModelClass("roberta", frozenset({"masked_lm_head"}), ("pooler",)),
    "RobertaForSequenceClassification": ModelClass("roberta", frozenset({"sequence_classification"}), ("pooler",)),
    "RobertaForTokenClassification": ModelClass("roberta", frozenset({"token_classification"}), ("pooler",)),
    "RobertaForQuestionAnswering": ModelClass("roberta", frozenset({"question_answering"}), ("pooler",)),
    "RobertaForMultipleChoice": ModelClass("roberta", frozenset({"pooler", "multiple_choice"})),
    "ElectraModel": ModelClass("electra"),
    "ElectraForPreTraining": ModelClass("electra", frozenset({"discriminator_head"})),
    "ElectraForMaskedLM": ModelClass("electra", frozenset({"masked_lm_head"})),
    "ElectraForSequenceClassification": ModelClass("electra", frozenset({"sequence_classification"})),
    "ElectraForTokenClassification": ModelClass("electra", frozenset({"token_classification"})),
    "ElectraForQuestionAnswering": ModelClass("electra", frozenset({"question_answering"})),
    "ElectraForMultipleChoice": ModelClass("electra", frozenset({"multiple_choice"})),
    "OpenAIGPTModel": ModelClass("gpt1"),
    "OpenAIGPTLMHeadModel": ModelClass("gpt1", frozenset({"causal_lm"})),
    "OpenAIGPTForSequenceClassification": ModelClass("gpt1", frozenset({"sequence_classification"})),
    "LstmModel": ModelClass("lstm"),
    "LstmForCausalLM": ModelClass("lstm", frozenset({"causal_lm"})),
}

MAY_BE_CAUSAL = ("BertModel", "BertLMHeadModel")
"""Classes whose `is_decoder` may be true: BERT's left-to-right model. No other class loads it, since their heads read
the first token, or see what they should predict."""

REFUSED: dict[str, tuple[Any, str]] = {
    "is_decoder": (False, "an encoder"),
    "add_cross_attention": (False, "an encoder"),
    "position_embedding_type": ("absolute", "learned absolute positions"),
    "tie_word_embeddings": (True, "a decoder that is tied to the word embeddings"),
}
"""Keys with the one value that is supported, which is also meant if they are left out, and what it stands for."""

REFUSED_BY_CLASS: dict[str, dict[str, tuple[Any, str]]] = {
    "ElectraForMultipleChoice": {
        "summary_type": ("first", "a summary of the first token"),
        "summary_use_proj": (True, "a projected summary"),
        "summary_activation": ("gelu", "a summary by GELU"),
    },
}
"""The same for one class."""

DROPOUT_KEYS: dict[str, tuple[str, float | None]] = {"ElectraForMultipleChoice": ("summary_last_dropout", 0.1)}
"""For classes that have their head's dropout under another key than `classifier_dropout`: the key, and what is meant if
it is left out."""

_BERT_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)

KEYS: dict[Architecture, dict[str, str]] = {
    "bert": {key: key for key in _BERT_KEYS},
    "roberta": {key: key for key in _BERT_KEYS},
    "electra": {key: key for key in ("embedding_size", *_BERT_KEYS)},
    "gpt1": {
        "vocab_size": "vocab_size",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_act": "afn",
        "hidden_dropout_prob": "resid_pdrop",
        "embedding_dropout_prob": "embd_pdrop",
        "attention_probs_dropout_prob": "attn_pdrop",
        "max_position_embeddings": "n_positions",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_epsilon",
        "pad_token_id": "pad_token_id",
    },
    "lstm": {
        key: key
        for key in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "intermediate_size",
            "hidden_dropout_prob",
            "max_position_embeddings",
            "initializer_range",
            "pad_token_id",
        )
    },
}
"""Fields of `EncoderSettings` and their keys."""

GPT1_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"}
"""What `afn` says, and what it means: GPT-1's GELU is the one by tanh."""


def config_of(settings: EncoderSettings) -> dict[str, Any]:
    """The sizes of an encoder under the keys of its family."""
    values = settings.model_dump()
    family = settings.architecture
    if family == "electra":
        values["embedding_size"] = embedding_size(settings)
    if family == "gpt1":
        values["hidden_act"] = next(name for name, ours in GPT1_ACTIVATIONS.items() if ours == settings.hidden_act)
        if settings.embedding_dropout_prob is None:
            values["embedding_dropout_prob"] = settings.hidden_dropout_prob
    config = {their_key: values[our_key] for our_key, their_key in KEYS[family].items()}
    return config | {"is_decoder": True} if settings.causal else config


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """`id2label` and `label2id`."""
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def class_with(family: Architecture, parts: frozenset[Part]) -> str:
    """The name of the class that has exactly these parts; a bare encoder may be without its pooler."""
    for name, model_class in CLASSES.items():
        if model_class.family == family and (
            parts == model_class.parts or (not parts and model_class.parts == frozenset({"pooler"}))
        ):
            return name
    raise AssertionError(f"no {family} has exactly {sorted(parts)}")


def has_class(family: Architecture, kind: HeadKind) -> bool:
    """Whether some class of the family has this kind of head."""
    return any(kind in model_class.parts for model_class in CLASSES.values() if model_class.family == family)


def class_named(path: Path, config: Mapping[str, Any], weights: Collection[str] = ()) -> str:
    """`architectures[0]`, which must be in `CLASSES`, and of the family that `model_type` says. Where it is left out,
    the family's class with the heads of pre-training that the weights have.

    Args:
        weights: the names of the weights; none makes it the class without a head.

    Raises:
        ModelError: it is not, or the family is not known.
    """
    named, model_type = config.get("architectures"), config.get("model_type")
    families = {theirs: family for family, theirs in MODEL_TYPES.items()}
    family = families.get(model_type) if isinstance(model_type, str) else None
    if not named and family is not None:
        return _class_of_weights(family, weights)
    name = named[0] if isinstance(named, list) and named else None
    if not isinstance(name, str) or name not in CLASSES:
        told = f"architectures is {named!r}" if named else f"model_type is {model_type!r}"
        if family is None:
            raise ModelError(
                f"{path}: {told}: models of this family do not load here; expected a model_type of "
                f"{', '.join(families)}"
            )
        theirs = ", ".join(each for each, its in CLASSES.items() if its.family == family)
        raise ModelError(f"{path}: {told}; expected one of {theirs}")
    expected = MODEL_TYPES[CLASSES[name].family]
    if model_type != expected:
        raise ModelError(f"{path}: model_type is {model_type!r}; expected {expected!r}, as {name} is")
    return name


def _class_of_weights(family: Architecture, weights: Collection[str]) -> str:
    names = FAMILIES[family]
    bare = {name.removeprefix(names.prefix) for name in weights}

    def are_there(part: Part) -> bool:
        modules = [module for each in names.parts.get(part, {}).values() for module in each]
        return bool(modules) and all(any(name.startswith(f"{module}.") for name in bare) for module in modules)

    pretrained: tuple[Part, ...] = ("masked_lm_head", "next_sentence_head", "discriminator_head")
    heads = frozenset(part for part in pretrained if are_there(part))
    return next(
        name
        for name, its in CLASSES.items()
        if its.family == family and (its.parts - {"pooler"} == heads or (not heads and its.parts <= {"pooler"}))
    )


def settings_of(path: Path, config: Mapping[str, Any], class_name: str) -> EncoderSettings:
    """The sizes of the encoder.

    Raises:
        ModelError: a key has a value that is not supported.
    """
    causal = class_name in MAY_BE_CAUSAL and config.get("is_decoder") is True
    if class_name == "BertLMHeadModel" and not causal:
        raise ModelError(
            f"{path}: is_decoder is {config.get('is_decoder')!r}; expected true: a BertLMHeadModel without it sees the "
            "tokens that it predicts"
        )
    for key, (supported, meaning) in (REFUSED | REFUSED_BY_CLASS.get(class_name, {})).items():
        if causal and key == "is_decoder":
            continue
        if config.get(key, supported) != supported:
            raise ModelError(f"{path}: {key} is {config[key]!r}; expected {supported!r}: only {meaning} loads here")
    family = CLASSES[class_name].family
    keys = KEYS[family]
    values = {ours: config[theirs] for ours, theirs in keys.items() if theirs in config}
    if family == "gpt1":
        named = values.get("hidden_act", "gelu")
        if not isinstance(named, str) or named not in GPT1_ACTIVATIONS:
            raise ModelError(f"{path}: afn is {named!r}; expected one of {', '.join(GPT1_ACTIVATIONS)}")
        values["hidden_act"] = GPT1_ACTIVATIONS[named]
        if values.get("embedding_dropout_prob", 0.1) == values.get("hidden_dropout_prob", 0.1):
            values.pop("embedding_dropout_prob", None)
    try:
        return EncoderSettings(architecture=family, causal=causal, **values)
    except ValidationError as error:
        raise ModelError(f"{path}: {reasons(error, keys)}") from error


def labels_of(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in the order of the logits; two unnamed ones if there are none, as in `transformers`.

    Raises:
        ModelError: `id2label` does not name a label for each of 0, 1 ...
    """
    named = config.get("id2label", {str(number): f"LABEL_{number}" for number in range(2)})
    if not isinstance(named, dict) or sorted(named) != sorted(str(number) for number in range(len(named))):
        raise ModelError(f'{path}: id2label is {named!r}; expected a label for each of "0", "1" ...')
    return tuple(str(named[str(number)]) for number in range(len(named)))


def problem_type_of(path: Path, config: Mapping[str, Any]) -> ProblemType | None:
    """How the logits of a sequence classifier are to be read; None if that is not said.

    Raises:
        ModelError: it is none of `ProblemType`.
    """
    named = config.get("problem_type")
    for problem_type in get_args(ProblemType):
        if named == problem_type:
            return cast(ProblemType, problem_type)
    if named is None:
        return None
    raise ModelError(f"{path}: problem_type is {named!r}; expected one of {', '.join(get_args(ProblemType))}")


def dropout_of(path: Path, config: Mapping[str, Any], class_name: str) -> float | None:
    """The dropout of a fine-tuned head; None takes the encoder's.

    Raises:
        ModelError: it is not a probability.
    """
    key, left_out = DROPOUT_KEYS.get(class_name, ("classifier_dropout", None))
    value = config.get(key, left_out)
    if value is None or (isinstance(value, float | int) and 0 <= value < 1):
        return value
    raise ModelError(f"{path}: {key} is {value!r}; expected null or a number from 0 to 1")


def told_length(sizes: EncoderSettings | ElmoSettings, trained: int | None) -> dict[str, int]:
    """What `config.json` says of the longest sequence that a model has seen; nothing where that is unknown, or as many
    tokens as it has positions, or where it has none (ELMo, LSTMs)."""
    has_positions = sizes.architecture not in ("elmo", "lstm")
    return {TRAINED_LENGTH: trained} if trained is not None and has_positions and trained < sizes.num_positions else {}


def usual_length(sizes: EncoderSettings | ElmoSettings, config: Mapping[str, Any]) -> int:
    """The longest sequence to read where the user does not say: as in pre-training, or all positions."""
    trained = config.get(TRAINED_LENGTH)
    if type(trained) is not int or trained < 3:  # no room for a token between `[CLS]` and `[SEP]`
        return sizes.num_positions
    return min(trained, sizes.num_positions)


def head_kind_in(parts: Collection[Part]) -> HeadKind | None:
    """The kind of the head of fine-tuning among some parts; None where there is none."""
    kinds: tuple[HeadKind, ...] = get_args(HeadKind)
    return next((kind for kind in kinds if kind in parts), None)


def head_kind_apart(path: Path, config: Mapping[str, Any]) -> HeadKind:
    """The kind of the head that stands in a file of its own, as `unmask_head` says.

    Raises:
        ModelError: it is not a kind of head.
    """
    named = config[HEAD_KIND]
    kind = head_kind_in([named])
    if kind is None:
        raise ModelError(f"{path}: {HEAD_KIND} is {named!r}; expected one of {', '.join(get_args(HeadKind))}")
    return kind


def classes_with(part: Part, without: Part | None = None) -> str:
    """The names of the classes that have one part and lack another, for a message."""
    return ", ".join(
        name for name, model_class in CLASSES.items() if part in model_class.parts and without not in model_class.parts
    )


def left_prefixes(model_class: ModelClass) -> tuple[str, ...]:
    """Name prefixes of the weights that may be there beside those of a class."""
    family = FAMILIES[model_class.family]
    return tuple(
        f"{family.prefix if part == 'pooler' else ''}{name}."
        for part in model_class.may_be_left
        for names in family.parts[part].values()
        for name in names
    )
