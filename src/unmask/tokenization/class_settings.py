"""What the classes of `transformers` do with a `tokenizer.json`: some build steps of it anew, from keys of
`tokenizer_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.tokenization.definition import Definition

_BERT_NORMALIZER = (
    "normalizer",
    "BertNormalizer",
    {"do_lower_case": "lowercase", "strip_accents": "strip_accents", "tokenize_chinese_chars": "handle_chinese_chars"},
)
_BUILT_ANEW: dict[str, tuple[str, str, dict[str, str]]] = {
    "BertTokenizer": _BERT_NORMALIZER,
    "ElectraTokenizer": _BERT_NORMALIZER,
    "RobertaTokenizer": ("pre_tokenizer", "ByteLevel", {"add_prefix_space": "add_prefix_space"}),
}
"""By class of `transformers`: the step that it builds anew from `tokenizer_config.json`, its type in `tokenizer.json`,
and what each key is called there."""
_CLASSES_OF_MODELS = {
    "modernbert": "TokenizersBackend",
    "modernbert-decoder": "TokenizersBackend",
    "openai-gpt": "OpenAIGPTTokenizer",
    "roberta": "RobertaTokenizer",
}
"""By `model_type`, where it is not BERT's."""
CLASS_DEFAULTS = {
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "add_prefix_space": False,
}
"""What such a class takes for a key that `tokenizer_config.json` leaves out."""


def class_in(config: Mapping[str, Any]) -> str:
    """The name of the tokenizer's class in `transformers`, without `Fast`; empty where none is named."""
    return str(config.get("tokenizer_class") or "").removesuffix("Fast")


def class_of(model: Mapping[str, Any]) -> str:
    """The class that is taken where `tokenizer_config.json` names none, by the model's `config.json`."""
    return class_in(model) or _CLASSES_OF_MODELS.get(str(model.get("model_type")), "BertTokenizer")


def as_configured(
    definition: Definition, config: Mapping[str, Any], class_name: str
) -> tuple[Definition, dict[str, Any]]:
    """What `tokenizer.json` says as a class of `transformers` reads it, keys in `tokenizer_config.json` first; and the
    keys left out there for which that class takes another value than `tokenizer.json` has."""
    step, kind, names = _BUILT_ANEW.get(class_name, ("", "", {}))
    saved = definition.get(step) or {}
    if saved.get("type") != kind:
        return definition, {}
    stated = {name: config[key] for key, name in names.items() if isinstance(config.get(key), bool)}
    left_out = {key: saved[name] for key, name in names.items() if key not in config and name in saved}
    unstated = {key: value for key, value in left_out.items() if value != CLASS_DEFAULTS[key]}
    return {**definition, step: {**saved, **stated}}, unstated
