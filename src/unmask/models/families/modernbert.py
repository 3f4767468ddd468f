"""ModernBERT (Warner et al. 2024): base and large are the paper's; the rest have its proportions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from unmask.models.family import Family, HeadKind, HeadStyle, ModelClass, Part, WeightNames

_ROPE_KEYS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Kinds of layers in `rope_parameters`, and the key for the theta of each in the released models."""

_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)

_RENAMED = {
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "mlp_dropout",
    "embedding_dropout_prob": "embedding_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
}
"""Fields of `EncoderSettings` that its `config.json` has under other names."""


def flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` with the keys of the released models, from those of any version of `transformers`.

    Since version 5 it has the kind of each layer and a dictionary of rotary settings in place of
    `global_attn_every_n_layers`, `global_rope_theta` and `local_rope_theta`. `position_embedding_type` says nothing:
    ModernBERT has "absolute", Ettin and mmBERT have "sans_pos", and all have rotary positions.

    Raises:
        ValueError: the layers are not global every n-th time, or the rotary positions are scaled.
    """
    flat = dict(config)
    flat.pop("position_embedding_type", None)
    kinds = flat.pop("layer_types", None)
    if kinds is not None:
        flat["global_attn_every_n_layers"] = _every_n(kinds, flat.get("num_hidden_layers"))
    _refuse_scaling("rope_scaling", flat.pop("rope_scaling", None) or {})
    ropes = flat.pop("rope_parameters", None) or {}
    if not isinstance(ropes, dict) or not ropes.keys() <= _ROPE_KEYS.keys():
        raise ValueError(f"rope_parameters is {ropes!r}; expected a dictionary of {' and '.join(_ROPE_KEYS)}")
    for kind, rope in ropes.items():
        _refuse_scaling(f"rope_parameters of {kind}", rope or {})
        if rope and "rope_theta" in rope:
            flat[_ROPE_KEYS[kind]] = rope["rope_theta"]
    if flat.get("local_rope_theta", 0) is None:  # version 4.48 then has one theta for all layers
        del flat["local_rope_theta"]
        if "global_rope_theta" in flat:
            flat["local_rope_theta"] = flat["global_rope_theta"]
    return flat


def _every_n(kinds: Any, num_layers: Any) -> int:
    """The n of `global_attn_every_n_layers`, from `layer_types`."""
    if not isinstance(kinds, list) or not kinds or len(kinds) != (num_layers or len(kinds)):
        raise ValueError(
            f"layer_types is {kinds!r}; expected a list with the kind of attention of each of {num_layers} layers"
        )
    every = next((number for number, kind in enumerate(kinds) if number and kind == "full_attention"), len(kinds))
    for number, kind in enumerate(kinds):
        expected = "sliding_attention" if number % every else "full_attention"
        if kind != expected:
            raise ValueError(
                f"layer_types has {kind!r} for layer {number}; expected {expected!r}: full_attention at the first "
                "layer and every n-th after it, and sliding_attention elsewhere"
            )
    return every


def _refuse_scaling(key: str, rope: Any) -> None:
    if not isinstance(rope, dict):
        raise ValueError(f"{key} is {rope!r}; expected a dictionary, such as {{'rope_type': 'default'}}")
    named = rope.get("rope_type", rope.get("type", "default"))
    if named != "default":
        raise ValueError(f"{key} has rope_type {named!r}; expected 'default': scaled positions do not load here")


def _class(*parts: Part) -> ModelClass:
    return ModelClass(frozenset(parts), dropout_key=("classifier_dropout", 0.0))


MODERNBERT = Family(
    name="modernbert",
    title="ModernBERT",
    encoder="unmask.models.modernbert:ModernBertEncoder",
    model_type="modernbert",
    classes={
        "ModernBertModel": _class(),
        "ModernBertForMaskedLM": _class("masked_lm_head"),
        "ModernBertForSequenceClassification": _class("sequence_classification"),
        "ModernBertForTokenClassification": _class("token_classification"),
        "ModernBertForQuestionAnswering": _class("question_answering"),
        "ModernBertForMultipleChoice": _class("multiple_choice"),
    },
    weights=WeightNames(
        prefix="model.",
        embeddings={
            "embeddings.word": ("embeddings.tok_embeddings",),
            "embeddings.norm": ("embeddings.norm",),
            "final_norm": ("final_norm",),
        },
        layer="layers.",
        block={
            "attention_norm": ("attn_norm",),
            "attention.query_key_value": ("attn.Wqkv",),
            "attention.output": ("attn.Wo",),
            "feed_forward_norm": ("mlp_norm",),
            "feed_forward.up": ("mlp.Wi",),
            "feed_forward.down": ("mlp.Wo",),
        },
        parts={
            "masked_lm_head": {"dense": ("head.dense",), "norm": ("head.norm",), "": ("decoder",)},
            **{kind: {"dense": ("head.dense",), "norm": ("head.norm",), "output": ("classifier",)} for kind in _KINDS},
        },
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    ),
    tokenizer="wordpiece",  # byte_bpe in the paper; programs open one of any kind, and this suits Korean as well
    presets={
        "tiny": {"num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 2},
        "mini": {"num_hidden_layers": 6, "hidden_size": 256, "num_attention_heads": 4},
        "small": {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8},
        "medium": {"num_hidden_layers": 12, "hidden_size": 512, "num_attention_heads": 8},
        "base": {"num_hidden_layers": 22, "hidden_size": 768, "num_attention_heads": 12},
        "large": {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2624},
    },
    defaults={
        "vocab_size": 50368,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    keys={
        key: _RENAMED.get(key, key)
        for key in (
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
            *("hidden_act", "hidden_dropout_prob", "embedding_dropout_prob", "attention_probs_dropout_prob"),
            *("max_position_embeddings", "initializer_range", "layer_norm_eps", "pad_token_id"),
            *("global_attn_every_n_layers", "local_attention", "global_rope_theta", "local_rope_theta"),
            *("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "classifier_activation"),
            *("classifier_pooling", "decoder_bias", "tie_word_embeddings"),
        )
    },
    fixed_keys=dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),  # the tokenizer's
    flatten_config=flatten_config,
    heads=dict.fromkeys(_KINDS, HeadStyle("sizes")),
    feed_forward_factor=1.5,
    may_read_left_to_right=True,
    is_gated=True,
    deepen="unmask.models.hub.conversion:deepened",
)
