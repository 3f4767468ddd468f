"""ELMo (Peters et al. 2018). Its sizes are of other kinds: `unmask.models.elmo.settings` has them, and its presets.

`transformers` has no such model, so the layout is ours: the encoder's weights have the names of our modules,
and those of the softmax of its language models begin with `softmax.`.
"""

from __future__ import annotations

from unmask.models.family import Family, HeadStyle, ModelClass, WeightNames

ELMO = Family(
    name="elmo",
    title="ELMo",
    encoder="unmask.models.elmo.encoder:ElmoEncoder",
    model_type="elmo",
    classes={"ElmoModel": ModelClass(), "ElmoForPreTraining": ModelClass(frozenset({"softmax"}))},
    weights=WeightNames(prefix="", embeddings={}, layer="blocks.", block={}, parts={"softmax": {"": ("softmax",)}}),
    tokenizer="word",
    presets={},
    heads={"sequence_classification": None, "token_classification": HeadStyle()},
    reads_words=True,
    is_recurrent=True,
    in_transformers=False,
)
