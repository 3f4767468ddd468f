"""Google's released checkpoints of BERT and ELECTRA in the layout that `transformers` writes; TensorFlow is not needed.

A release is `bert_config.json`, `vocab.txt` and `bert_model.ckpt.*` (Devlin et al. 2019, google-research/bert).
ELECTRA's (Clark et al. 2020, google-research/electra) come without `bert_config.json`: with one added by hand,
ELECTRA's sizes under BERT's names, the discriminator is read.

Google's code has had two forms of `gelu`, exact and by tanh; `transformers` reads the releases as exact, and so do we.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import ModelError
from unmask.io.json_files import read_object
from unmask.io.progress import listed
from unmask.models.google.tensor_bundle import TensorBundle, open_bundle
from unmask.models.hub.config import label_config

CONFIG = "bert_config.json"
INDEX = "*.index"
LATEST = "checkpoint"
"""Where TensorFlow keeps the name of the newest of several checkpoints, in a line `model_checkpoint_path: "NAME"`."""

NOT_OF_THE_MODEL = re.compile(
    r".*/(adam_m|adam_v|Adam|Adam_1)|global_step|beta[12]_power|(generator|generator_predictions)/.*"
)
"""What optimizers keep beside the weights, and ELECTRA's generator."""

BEGINNINGS = (
    *("bert/", "cls/predictions/", "cls/seq_relationship/", "cls/squad/", "output_weights", "output_bias"),
    *("electra/", "discriminator_predictions/"),
)
"""Prefixes of the variables that are BERT's or ELECTRA's."""

RENAMED_MODULES: tuple[tuple[str, str], ...] = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"^cls/squad/", "qa_outputs/"),
    (r"^output_(?=weights|bias)", "classifier/output_"),
    (r"^discriminator_predictions/dense_1/", "discriminator_predictions/dense_prediction/"),
)
"""Patterns in variables whose module has another name in `transformers`, and that name; the rest is the same."""

ENDINGS = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "word_embeddings": "word_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "output_weights": "weight",
    "output_bias": "bias",
}
"""The last part of a variable's name, and of a weight's."""

TRANSPOSED = "kernel"
"""Variables with this ending are (inputs, outputs), where a weight is (outputs, inputs)."""

ARCHITECTURES: tuple[tuple[str, str], ...] = (
    ("classifier.", "BertForSequenceClassification"),
    ("qa_outputs.", "BertForQuestionAnswering"),
    ("cls.seq_relationship.", "BertForPreTraining"),
    ("cls.predictions.", "BertForMaskedLM"),
    ("discriminator_predictions.", "ElectraForPreTraining"),
    ("electra.", "ElectraModel"),
    ("bert.", "BertModel"),
)
"""The first prefix that some weight has decides the architecture."""

TRANSFORMERS_DEFAULTS = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
"""What `transformers` says in every `config.json`, and Google's code has hard-coded."""


def is_google_checkpoint(directory: Path) -> bool:
    """Whether a directory has `bert_config.json` and the index of a TensorFlow checkpoint."""
    return (directory / CONFIG).is_file() and any(directory.glob(INDEX))


def read_google_checkpoint(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a directory in the Hugging Face layout would hold.

    Args:
        directory: one for which `is_google_checkpoint` is True. If it has several checkpoints, the one that the file
            `checkpoint` names is read.

    Returns:
        `config.json`, and the weights by name, views of the mapped files (see `TensorBundle.read`), kernels transposed.
        Optimizer slots, `global_step` and ELECTRA's generator are left out.

    Raises:
        ModelError: a file is missing, cut short or damaged, it is unclear which checkpoint is meant, or the checkpoint
            has variables that neither BERT nor ELECTRA has.
    """
    given = read_object(directory / CONFIG, ModelError)
    bundle = open_bundle(find_index(directory))
    weights = {}
    for name in _variables_of(bundle):
        tensor = bundle.read(name)
        weights[_weight_name(name)] = tensor.T if name.endswith(TRANSPOSED) and tensor.ndim == 2 else tensor
    return _config(given, weights), weights


def architecture_in(directory: Path) -> str:
    """The class of a directory's checkpoint, by its index alone. Raises ModelError as `read_google_checkpoint`."""
    return _architecture_of([_weight_name(name) for name in _variables_of(open_bundle(find_index(directory)))])


def _variables_of(bundle: TensorBundle) -> list[str]:
    """Those of the model. Raises ModelError if there are others, or none."""
    names = [name for name in bundle.entries if not NOT_OF_THE_MODEL.fullmatch(name)]
    foreign = [name for name in names if not name.startswith(BEGINNINGS) or name.split("/")[-1] not in ENDINGS]
    if foreign or not names:
        raise ModelError(
            f"{bundle.index}: expected the variables of Google's BERT or ELECTRA, such as bert/pooler/dense/kernel, "
            f"and found {listed(foreign, 3) or 'none'}: convert the model with the code that made it, or name another "
            "directory"
        )
    return names


def _weight_name(variable: str) -> str:
    for pattern, replacement in RENAMED_MODULES:
        variable = re.sub(pattern, replacement, variable)
    *modules, ending = variable.split("/")
    return ".".join([*modules, ENDINGS[ending]])


def _architecture_of(weights: Collection[str]) -> str:
    return next(found for start, found in ARCHITECTURES if any(name.startswith(start) for name in weights))


def _config(given: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """`config.json`, from `bert_config.json` and, for what that does not say, from the weights."""
    architecture = _architecture_of(weights)
    config = {
        **TRANSFORMERS_DEFAULTS,
        **given,
        "architectures": [architecture],
        "model_type": "electra" if architecture.startswith("Electra") else "bert",
    }
    word_embeddings = weights.get("electra.embeddings.word_embeddings.weight")
    if word_embeddings is not None:
        config.setdefault("embedding_size", word_embeddings.shape[-1])
    if architecture == "BertForSequenceClassification":
        num_labels = weights["classifier.bias"].numel() if "classifier.bias" in weights else 0
        config |= label_config([f"LABEL_{number}" for number in range(num_labels)])
    return config


def find_index(directory: Path) -> Path:
    """The one index of a directory, or the one that its file `checkpoint` names."""
    indexes = sorted(directory.glob(INDEX))
    if len(indexes) == 1:
        return indexes[0]
    if not indexes:
        raise ModelError(
            f"{directory}: no model here (neither config.json nor {INDEX}): put it back, or name another directory"
        )
    latest = directory / LATEST
    text = latest.read_text("utf-8", errors="replace") if latest.is_file() else ""
    named = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
    index = directory / f"{Path(named[1]).name}.index" if named else None
    if index in indexes:
        return index
    raise ModelError(
        f"{directory} has {len(indexes)} checkpoints ({', '.join(path.name for path in indexes[:3])} ...) and no file "
        f"{LATEST!r} that names one of them: move the others away"
    )
