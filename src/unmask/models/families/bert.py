"""BERT (Devlin et al. 2019)."""

from __future__ import annotations

from unmask.models.family import PRESETS, Family, ModelClass, Names, WeightNames

EMBEDDINGS: Names = {
    "embeddings.word": ("embeddings.word_embeddings",),
    "embeddings.position": ("embeddings.position_embeddings",),
    "embeddings.token_type": ("embeddings.token_type_embeddings",),
    "embeddings.norm": ("embeddings.LayerNorm",),
}
"""Of RoBERTa, too."""

BLOCK: Names = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
"""Of RoBERTa and ELECTRA, too."""

BERT = Family(
    name="bert",
    title="BERT",
    encoder="unmask.models.bert:BertEncoder",
    model_type="bert",
    classes={
        "BertModel": ModelClass(frozenset({"pooler"}), may_be_causal=True),
        "BertForPreTraining": ModelClass(frozenset({"pooler", "masked_lm_head", "next_sentence_head"})),
        "BertForMaskedLM": ModelClass(frozenset({"masked_lm_head"}), ("pooler", "next_sentence_head")),
        "BertLMHeadModel": ModelClass(
            frozenset({"masked_lm_head", "causal_lm"}), ("pooler", "next_sentence_head"), may_be_causal=True
        ),
        "BertForSequenceClassification": ModelClass(frozenset({"pooler", "sequence_classification"})),
        "BertForTokenClassification": ModelClass(frozenset({"token_classification"}), ("pooler",)),
        "BertForQuestionAnswering": ModelClass(frozenset({"question_answering"}), ("pooler",)),
        "BertForMultipleChoice": ModelClass(frozenset({"pooler", "multiple_choice"})),
    },
    weights=WeightNames(
        prefix="bert.",
        embeddings=EMBEDDINGS,
        layer="encoder.layer.",
        block=BLOCK,
        parts={
            "pooler": {"pooler.dense": ("pooler.dense",)},
            "masked_lm_head": {
                "dense": ("cls.predictions.transform.dense",),
                "norm": ("cls.predictions.transform.LayerNorm",),
                "": ("cls.predictions",),  # the bias, which is no module's
            },
            "next_sentence_head": {"dense": ("cls.seq_relationship",)},
            "sequence_classification": {"dense": ("classifier",)},
            "token_classification": {"dense": ("classifier",)},
            "question_answering": {"dense": ("qa_outputs",)},
            "multiple_choice": {"dense": ("classifier",)},
        },
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
    tokenizer="wordpiece",
    presets=PRESETS,
    pooled=frozenset({"sequence_classification", "multiple_choice"}),
    may_be_causal=True,
    may_read_left_to_right=True,
)
