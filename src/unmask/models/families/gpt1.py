"""GPT-1 (Radford et al. 2018): base is the paper's one model."""

from __future__ import annotations

import re

from unmask.models.family import PRESETS, Family, HeadStyle, ModelClass, WeightNames

GPT1 = Family(
    name="gpt1",
    title="GPT-1",
    encoder="unmask.models.gpt1:Gpt1Encoder",
    model_type="openai-gpt",
    classes={
        "OpenAIGPTModel": ModelClass(),
        "OpenAIGPTLMHeadModel": ModelClass(frozenset({"causal_lm"})),
        "OpenAIGPTForSequenceClassification": ModelClass(frozenset({"sequence_classification"})),
    },
    weights=WeightNames(
        prefix="transformer.",
        embeddings={"embeddings.word": ("tokens_embed",), "embeddings.position": ("positions_embed",)},
        layer="h.",
        block={
            "attention.query_key_value": ("attn.c_attn",),
            "attention.output": ("attn.c_proj",),
            "attention_norm": ("ln_1",),
            "feed_forward.up": ("mlp.c_fc",),
            "feed_forward.down": ("mlp.c_proj",),
            "feed_forward_norm": ("ln_2",),
        },
        parts={"sequence_classification": {"dense": ("score",)}},
        tied={"lm_head.weight": "transformer.tokens_embed.weight"},
        constants=re.compile(r"h\.\d+\.attn\.bias|position_ids"),
        transposed=("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"),
    ),
    tokenizer="bpe",
    presets={preset: PRESETS[preset] for preset in ("tiny", "mini", "base")},
    defaults={
        "vocab_size": 40478,
        "hidden_act": "gelu_new",
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "pad_token_id": None,
    },
    keys={
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
    activations={"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "swish"},  # its GELU is the one by tanh
    heads={
        "sequence_classification": HeadStyle(bias=False),
        "token_classification": HeadStyle(),
        "question_answering": HeadStyle(drops=False),
        "multiple_choice": HeadStyle(bias=False),
    },
    left_to_right=True,
    reads_bare_text=True,
)
