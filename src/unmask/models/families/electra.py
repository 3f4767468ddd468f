"""ELECTRA (Clark et al. 2020): small, base and large are those of its table 6.

Mini and tiny are BERT's sizes with embeddings half as wide as the hidden states, as in small.
"""

from __future__ import annotations

from unmask.models.families.bert import BLOCK
from unmask.models.family import BERT_KEYS, PRESETS, Family, HeadStyle, ModelClass, WeightNames

ELECTRA = Family(
    name="electra",
    title="ELECTRA",
    encoder="unmask.models.electra:ElectraEncoder",
    model_type="electra",
    classes={
        "ElectraModel": ModelClass(),
        "ElectraForPreTraining": ModelClass(frozenset({"discriminator_head"})),
        "ElectraForMaskedLM": ModelClass(frozenset({"masked_lm_head"})),
        "ElectraForSequenceClassification": ModelClass(frozenset({"sequence_classification"})),
        "ElectraForTokenClassification": ModelClass(frozenset({"token_classification"})),
        "ElectraForQuestionAnswering": ModelClass(frozenset({"question_answering"})),
        "ElectraForMultipleChoice": ModelClass(
            frozenset({"multiple_choice"}),
            refused={
                "summary_type": ("first", "a summary of the first token"),
                "summary_use_proj": (True, "a projected summary"),
                "summary_activation": ("gelu", "a summary by GELU"),
            },
            dropout_key=("summary_last_dropout", 0.1),
        ),
    },
    weights=WeightNames(
        prefix="electra.",
        embeddings={
            "embeddings.narrow.word": ("embeddings.word_embeddings",),
            "embeddings.narrow.position": ("embeddings.position_embeddings",),
            "embeddings.narrow.token_type": ("embeddings.token_type_embeddings",),
            "embeddings.narrow.norm": ("embeddings.LayerNorm",),
            "embeddings.projection": ("embeddings_project",),
        },
        layer="encoder.layer.",
        block=BLOCK,
        parts={
            "masked_lm_head": {
                "dense": ("generator_predictions.dense",),
                "norm": ("generator_predictions.LayerNorm",),
                "": ("generator_lm_head",),
            },
            "discriminator_head": {
                "dense": ("discriminator_predictions.dense",),
                "output": ("discriminator_predictions.dense_prediction",),
            },
            "sequence_classification": {"dense": ("classifier.dense",), "output": ("classifier.out_proj",)},
            "token_classification": {"dense": ("classifier",)},
            "question_answering": {"dense": ("qa_outputs",)},
            "multiple_choice": {"dense": ("sequence_summary.summary",), "output": ("classifier",)},
        },
        tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    ),
    tokenizer="wordpiece",
    presets={
        "tiny": {**PRESETS["tiny"], "embedding_size": 64},
        "mini": {**PRESETS["mini"], "embedding_size": 128},
        "small": {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 4, "embedding_size": 128},
        "base": {**PRESETS["base"], "embedding_size": 768},
        "large": {**PRESETS["large"], "embedding_size": 1024},
    },
    defaults={"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    keys={key: key for key in ("embedding_size", *BERT_KEYS)},
    heads={
        "sequence_classification": HeadStyle("gelu", drops_inputs=True),
        "token_classification": HeadStyle(),
        "question_answering": HeadStyle(drops=False),
        "multiple_choice": HeadStyle("gelu"),
    },
    masked_lm_activation="gelu",
    may_read_left_to_right=True,
)
