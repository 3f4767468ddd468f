"""ModernBERT's body read from left to right, with its masked-LM head as the decoder: Ettin's decoders (Weller et al.
2025), and `ModernBertDecoder*` of `transformers`."""

from __future__ import annotations

from dataclasses import replace

from unmask.models.families.modernbert import MODERNBERT
from unmask.models.family import Family, HeadStyle, ModelClass

_DROPOUT = ("classifier_dropout", 0.0)

MODERNBERT_DECODER: Family = replace(
    MODERNBERT,
    name="modernbert_decoder",
    title="ModernBERT's decoder",
    model_type="modernbert-decoder",
    classes={
        "ModernBertDecoderModel": ModelClass(),
        "ModernBertDecoderForCausalLM": ModelClass(frozenset({"masked_lm_head", "causal_lm"})),
        "ModernBertDecoderForSequenceClassification": ModelClass(
            frozenset({"sequence_classification"}), dropout_key=_DROPOUT
        ),
    },
    weights=replace(
        MODERNBERT.weights,
        block={**MODERNBERT.weights.block, "attention.query_key_value": ("attn.q_proj", "attn.k_proj", "attn.v_proj")},
        parts={
            "masked_lm_head": {"dense": ("lm_head.dense",), "norm": ("lm_head.norm",), "": ("decoder",)},
            "sequence_classification": MODERNBERT.weights.parts["sequence_classification"],
        },
    ),
    keys={ours: theirs for ours, theirs in MODERNBERT.keys.items() if ours != "classifier_pooling"},
    # the tokenizer's; `transformers` does not let the last three be null, and warns of one outside the vocabulary
    fixed_keys={"eos_token_id": None, "bos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0},
    heads=dict.fromkeys(MODERNBERT.heads, HeadStyle("sizes", bias=False)),
    left_to_right=True,
)
