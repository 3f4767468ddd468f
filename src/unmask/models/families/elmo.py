"""ELMo (Peters et al. 2018). Its sizes are of other kinds: `unmask.models.elmo.settings` has them, and its presets.

`transformers` has no such model: its weights have the names of our modules (`unmask.models.elmo.directory`).
"""

from __future__ import annotations

from unmask.models.family import Family, ModelClass, WeightNames

ELMO = Family(
    name="elmo",
    title="ELMo",
    encoder="unmask.models.elmo.encoder:ElmoEncoder",
    model_type="elmo",
    classes={"ElmoModel": ModelClass(), "ElmoForPreTraining": ModelClass(frozenset({"softmax"}))},
    weights=WeightNames(prefix="", embeddings={}, layer="blocks.", block={}),
    tokenizer="word",
    presets={},
    heads={"sequence_classification": "layers", "token_classification": "linear"},
    reads_words=True,
    is_recurrent=True,
)
