"""The LSTM that replaces the Transformer in GPT-1's ablation (Radford et al. 2018, section 5).

Base has the paper's 2,048 units, the other presets about as many for their width. `transformers` has no such model:
names and classes are our own.
"""

from __future__ import annotations

from unmask.models.families.gpt1 import GPT1
from unmask.models.family import Family, ModelClass, WeightNames

LSTM = Family(
    name="lstm",
    title="LSTM",
    encoder="unmask.models.lstm:LstmEncoder",
    model_type="unmask-lstm",
    classes={"LstmModel": ModelClass(), "LstmForCausalLM": ModelClass(frozenset({"causal_lm"}))},
    weights=WeightNames(
        prefix="encoder.",
        embeddings={"embeddings.word": ("embeddings.word",)},
        layer="layers.",
        block={"lstm": ("lstm",), "projection": ("projection",)},
    ),
    tokenizer="bpe",
    presets={
        "tiny": {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 320},
        "mini": {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 640},
        "base": {"num_hidden_layers": 1, "hidden_size": 768, "intermediate_size": 2048},
    },
    defaults={
        "vocab_size": 40478,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 2048,
        "hidden_act": "tanh",
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": 0,
        "pad_token_id": None,
    },
    keys={
        key: key
        for key in (
            *("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "hidden_dropout_prob"),
            *("max_position_embeddings", "initializer_range", "pad_token_id"),
        )
    },
    heads=GPT1.heads,
    left_to_right=True,
    reads_bare_text=True,
    is_recurrent=True,
    in_transformers=False,
)
