"""RoBERTa (Liu et al. 2019): base and large are those of its paper, the other presets have BERT's sizes."""

from __future__ import annotations

from unmask.models.families.bert import BLOCK, EMBEDDINGS
from unmask.models.family import PRESETS, Family, HeadStyle, ModelClass, WeightNames

ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    encoder="unmask.models.bert:BertEncoder",
    model_type="roberta",
    classes={
        "RobertaModel": ModelClass(frozenset({"pooler"})),
        "RobertaForMaskedLM": ModelClass(frozenset({"masked_lm_head"}), ("pooler",)),
        "RobertaForSequenceClassification": ModelClass(frozenset({"sequence_classification"}), ("pooler",)),
        "RobertaForTokenClassification": ModelClass(frozenset({"token_classification"}), ("pooler",)),
        "RobertaForQuestionAnswering": ModelClass(frozenset({"question_answering"}), ("pooler",)),
        "RobertaForMultipleChoice": ModelClass(frozenset({"pooler", "multiple_choice"})),
    },
    weights=WeightNames(
        prefix="roberta.",
        embeddings=EMBEDDINGS,
        layer="encoder.layer.",
        block=BLOCK,
        parts={
            "pooler": {"pooler.dense": ("pooler.dense",)},
            "masked_lm_head": {"dense": ("lm_head.dense",), "norm": ("lm_head.layer_norm",), "": ("lm_head",)},
            "sequence_classification": {"dense": ("classifier.dense",), "output": ("classifier.out_proj",)},
            "token_classification": {"dense": ("classifier",)},
            "question_answering": {"dense": ("qa_outputs",)},
            "multiple_choice": {"dense": ("classifier",)},
        },
        tied={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    ),
    tokenizer="byte_bpe",
    presets={preset: {**sizes, "type_vocab_size": 1, "layer_norm_eps": 1e-5} for preset, sizes in PRESETS.items()},
    defaults={"vocab_size": 50265, "pad_token_id": 1},
    heads={
        "sequence_classification": HeadStyle("tanh", drops_inputs=True),
        "token_classification": HeadStyle(),
        "question_answering": HeadStyle(drops=False),
        "multiple_choice": HeadStyle(),
    },
    pooled=frozenset({"multiple_choice"}),
    masked_lm_activation="gelu",
    may_read_left_to_right=True,
    positions_after_padding=True,
)
