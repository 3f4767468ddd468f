"""What `config.json` says of a model: its class and family, its sizes, its labels; read and written.

The classes are those of `transformers` whose directories are read and written here, and our own for what it has no
class for: LSTMs and ELMo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import ValidationError

from unmask.errors import ModelError
from unmask.io.paths import HEAD_WEIGHTS
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family, HeadKind, ModelClass, Part
from unmask.models.settings import EncoderSettings, reasons
from unmask.models.sizes import Sizes

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

HEAD_KIND = "unmask_head"
"""The key for the kind of a head that is saved in a file of its own."""
HEAD_CLASS = "unmask_head_class"
"""The key for the name of such a head's class here."""
TRAINED_LENGTH = "unmask_trained_length"
"""The key for the longest sequence of pre-training, in tokens, where the model has more positions than that."""
MADE_BY = "unmask_made_by"
"""The key for how a model was made of others, or of a run, by something else than training: `command`, `of`, `step`."""

_MOST_LABELS = 2**20
"""Of those that `num_labels` alone stands for."""

REFUSED: dict[str, tuple[Any, str]] = {
    "is_decoder": (False, "an encoder"),
    "add_cross_attention": (False, "an encoder"),
    "position_embedding_type": ("absolute", "learned absolute positions"),
    "tie_word_embeddings": (True, "a decoder that is tied to the word embeddings"),
}
"""Keys with the one value that is supported, which is also meant if they are left out, and its meaning."""


def config_of(settings: Sizes) -> dict[str, Any]:
    """The sizes of an encoder under the keys of its family."""
    if isinstance(settings, ElmoSettings):
        return settings.model_dump(mode="json", exclude={"architecture"})
    family = settings.family
    values = settings.model_dump()
    values["embedding_size"] = settings.embedding_width
    if settings.embedding_dropout_prob is None:
        values["embedding_dropout_prob"] = settings.hidden_dropout_prob
    if family.activations:
        values["hidden_act"] = next(name for name, ours in family.activations.items() if ours == settings.hidden_act)
    config = {their_key: values[our_key] for our_key, their_key in family.keys.items()}
    return {**config, **family.fixed_keys, **({"is_decoder": True} if settings.causal else {})}


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """`id2label` and `label2id`."""
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def class_in(config: Mapping[str, Any]) -> tuple[Family, ModelClass] | None:
    """The family and the class of `architectures[0]`; None where that is no class that is known here."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    return next(
        ((family, its) for family in ARCHITECTURES.values() for known, its in family.classes.items() if known == name),
        None,
    )


def family_in(config: Mapping[str, Any]) -> Family | None:
    """The family of `architectures[0]`; None where that is no class that is known here."""
    found = class_in(config)
    return None if found is None else found[0]


def read_class(
    path: Path, config: Mapping[str, Any], weights: Callable[[], Collection[str]]
) -> tuple[str, Family, ModelClass, Sizes]:
    """`architectures[0]`, which must be one of `Family.classes`, and of the family that `model_type` names; and the
    sizes of the encoder. Where it is left out, it is the family's class with the heads of pre-training that the weights
    have. Raises ModelError if it is not, there is none with these heads, or the family or a size is not known."""
    named: Any = config.get("architectures")
    model_type = config.get("model_type")
    known = next((each for each in ARCHITECTURES.values() if each.model_type == model_type), None)
    if not named and known is not None:
        named = [_class_of_weights(path, known, weights())]
    found = class_in({"architectures": named})
    if found is None:
        found_key = f"architectures is {named!r}" if named else f"model_type is {model_type!r}"
        if known is None:
            types = ", ".join(each.model_type for each in ARCHITECTURES.values())
            raise ModelError(
                f"{path}: {found_key}: models of this family do not load here; expected a model_type of {types}"
            )
        raise ModelError(f"{path}: {found_key}; expected one of {', '.join(known.classes)}")
    family, its = found
    name = named[0]
    if model_type != family.model_type:
        raise ModelError(f"{path}: model_type is {model_type!r}; expected {family.model_type!r}, as {name} is")
    sizes = elmo_settings_of(path, config) if family.reads_words else settings_of(path, config, name, family, its)
    return name, family, its, sizes


def _class_of_weights(path: Path, family: Family, weights: Collection[str]) -> str:
    names = family.weights
    bare = {name.removeprefix(names.prefix) for name in weights}

    def are_there(part: Part) -> bool:
        modules = [module for each in names.parts.get(part, {}).values() for module in each]
        return bool(modules) and all(any(name.startswith(f"{module}.") for name in bare) for module in modules)

    pretrained: tuple[Part, ...] = ("masked_lm_head", "next_sentence_head", "discriminator_head")
    heads = frozenset(part for part in pretrained if are_there(part))
    for name, its in family.classes.items():
        if its.parts - {"pooler", "causal_lm"} == heads:
            return name
    raise ModelError(
        f"{path}: architectures is left out, and no class of {family.title} has just the heads that the weights have "
        f"({', '.join(sorted(heads))}): name one of {', '.join(family.classes)} in architectures"
    )


def settings_of(path: Path, config: Mapping[str, Any], name: str, family: Family, its: ModelClass) -> EncoderSettings:
    """The sizes of the encoder. Raises ModelError if a key has a value that is not supported."""
    if family.flatten_config is not None:
        try:
            config = family.flatten_config(config)
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from error
    causal = its.may_be_causal and config.get("is_decoder") is True
    if its.may_be_causal and "causal_lm" in its.parts and not causal:
        raise ModelError(
            f"{path}: is_decoder is {config.get('is_decoder')!r}; expected true: a {name} without it sees the tokens "
            "that it predicts"
        )
    if not family.left_to_right and config.get("is_causal") not in (None, causal):  # `transformers` masks by it
        seen = "before it alone" if causal else "on both sides"
        raise ModelError(
            f"{path}: is_causal is {config['is_causal']!r}; expected {causal} or no such key: a token of a {name} "
            f"sees those {seen}"
        )
    for key, (supported, meaning) in {**REFUSED, **its.refused}.items():
        is_said_by_class = key == "is_decoder" and (causal or family.left_to_right)
        has_no_effect = key == "tie_word_embeddings" and not {"masked_lm_head", "causal_lm"} & its.parts
        if is_said_by_class or has_no_effect or key in family.keys.values():
            continue
        if config.get(key, supported) != supported:
            raise ModelError(f"{path}: {key} is {config[key]!r}; expected {supported!r}: only {meaning} loads here")
    values = {ours: config[theirs] for ours, theirs in family.keys.items() if theirs in config}
    if family.activations and "hidden_act" in values:
        named = values["hidden_act"]
        if not isinstance(named, str) or named not in family.activations:
            key, known = family.keys["hidden_act"], ", ".join(family.activations)
            raise ModelError(f"{path}: {key} is {named!r}; expected one of {known}")
        values["hidden_act"] = family.activations[named]
    usual = family.defaults.get("hidden_dropout_prob", 0.1)
    if "embedding_dropout_prob" in family.keys:
        values.setdefault("embedding_dropout_prob", usual)
    if values.get("embedding_dropout_prob", usual) == values.get("hidden_dropout_prob", usual):
        values.pop("embedding_dropout_prob", None)
    try:
        return EncoderSettings(architecture=family.name, causal=causal, **values)
    except ValidationError as error:
        raise ModelError(f"{path}: {reasons(error, family.keys)}") from error


def elmo_settings_of(path: Path, config: Mapping[str, Any]) -> ElmoSettings:
    """The sizes of an ELMo, whose keys are their names. Raises ModelError if a key is missing, or its value not
    possible."""
    fields = set(ElmoSettings.model_fields) - {"architecture"}
    missing = sorted(fields - config.keys())
    if missing:
        raise ModelError(f"{path} lacks {', '.join(missing)}: expected every size of an ELMo, as they are saved")
    try:
        return ElmoSettings(**{name: config[name] for name in fields})
    except ValidationError as error:
        raise ModelError(f"{path}: {reasons(error)}: fix it, or get the directory again") from error


def labels_of(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in the order of the logits; if there are none, `num_labels` unnamed ones, or two, as in
    `transformers`. Raises ModelError if `id2label` does not name a label of its own for each of 0, 1 ..., or
    `num_labels` is not possible."""
    named = config.get("id2label")
    if named is None:
        number = config.get("num_labels")
        number = 2 if number is None else number
        if type(number) is not int or not 0 < number <= _MOST_LABELS:
            raise ModelError(f"{path}: num_labels is {number!r}; expected an integer from 1 to {_MOST_LABELS:,}")
        return tuple(f"LABEL_{place}" for place in range(number))
    if not isinstance(named, dict) or sorted(named) != sorted(str(place) for place in range(len(named))):
        raise ModelError(f'{path}: id2label is {named!r}; expected a label for each of "0", "1" ...')
    labels = tuple(str(named[str(place)]) for place in range(len(named)))
    twice = next((label for label, times in Counter(labels).items() if times > 1), None)
    if twice is not None:
        raise ModelError(f"{path}: id2label names {twice!r} twice; expected a name of its own for each label")
    return labels


def problem_type_of(path: Path, config: Mapping[str, Any]) -> ProblemType | None:
    """How the logits of a sequence classifier are to be read; None if that is not said. Raises ModelError if it is none
    of `ProblemType`."""
    named = config.get("problem_type")
    if named is None or named in get_args(ProblemType):
        return cast(ProblemType | None, named)
    raise ModelError(f"{path}: problem_type is {named!r}; expected one of {', '.join(get_args(ProblemType))}")


def dropout_of(path: Path, config: Mapping[str, Any], its: ModelClass) -> float | None:
    """The dropout of a fine-tuned head; None takes the encoder's. Raises ModelError if it is not a probability."""
    key, left_out = its.dropout_key
    value = config.get(key, left_out)
    if value is None or (isinstance(value, float | int) and 0 <= value < 1):
        return value
    raise ModelError(f"{path}: {key} is {value!r}; expected null or a number from 0 to 1")


def length_config(sizes: Sizes, trained: int | None) -> dict[str, int]:
    """What `config.json` says of the longest sequence that a model has seen; nothing where that is unknown, or as many
    tokens as it has positions, or where it has none (ELMo, LSTMs)."""
    if trained is None or sizes.family.is_recurrent or trained >= sizes.num_positions:
        return {}
    return {TRAINED_LENGTH: trained}


def trained_length(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that a model has seen, in tokens; None: as long as it has positions."""
    trained = config.get(TRAINED_LENGTH)
    return trained if type(trained) is int else None


def usual_length(sizes: Sizes, config: Mapping[str, Any]) -> int:
    """The longest sequence to read where the user does not say: as in pre-training, or all positions."""
    trained = trained_length(config)
    if trained is None or trained < 3:  # no space for a token between `[CLS]` and `[SEP]`
        return sizes.num_positions
    return min(trained, sizes.num_positions)


def head_kind_in(parts: Collection[Part]) -> HeadKind | None:
    """The kind of the head of fine-tuning among some parts; None where there is none."""
    kinds: tuple[HeadKind, ...] = get_args(HeadKind)
    return next((kind for kind in kinds if kind in parts), None)


def head_kind_apart(path: Path, config: Mapping[str, Any]) -> HeadKind:
    """The kind of the head that is in a file of its own, as `unmask_head` says. Raises ModelError if it is not a kind
    of head."""
    named = config[HEAD_KIND]
    kind = head_kind_in([named])
    if kind is None:
        raise ModelError(f"{path}: {HEAD_KIND} is {named!r}; expected one of {', '.join(get_args(HeadKind))}")
    return kind


def without_lost_head(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`config.json` without what it says of a head in a file of its own, and of its task, where `transformers`, which
    keeps these keys and not that file, has saved the model. The file is there where it saved the model in its own
    directory, and its class then has a head; so has that of our models with an `AnswerabilityHead` alone."""
    if HEAD_KIND not in config or "transformers_version" not in config:
        return config
    found = class_in(config)
    has_another = found is not None and head_kind_in(found[1].parts) is not None
    is_replaced = has_another and config.get(HEAD_CLASS) != "AnswerabilityHead"
    if (directory / HEAD_WEIGHTS).exists() and not is_replaced:
        return config
    return {key: value for key, value in config.items() if key not in (HEAD_KIND, HEAD_CLASS, "unmask_task")}


def left_prefixes(family: Family, its: ModelClass) -> tuple[str, ...]:
    """Name prefixes of the weights that may be there beside those of a class."""
    return tuple(
        f"{family.weights.prefix if part == 'pooler' else ''}{name}."
        for part in its.may_be_left
        for names in family.weights.parts[part].values()
        for name in names
    )
