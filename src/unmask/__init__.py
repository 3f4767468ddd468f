"""Raw text to a pre-trained BERT-family encoder, to fine-tuned models, to measured results.

    import unmask

    unmask.train_tokenizer(["my-text/"], "runs/tokenizer")
    unmask.prepare(["my-text/"], "runs/tokenizer", "runs/store")
    unmask.pretrain("pretrain/bert_mini", ["store=runs/store", "train.tokens=20000000"], out="runs/bert")
    unmask.finetune("finetune/classification", ["init_from=runs/bert", "data.train=train.csv"], out="runs/classifier")
    unmask.evaluate("runs/classifier", "test.csv")["metrics"]
    for prediction in unmask.predict("runs/classifier", [{"text": "a fine film"}]):
        print(prediction["label"], prediction["score"])

    unmask.fill_mask("runs/bert", "the sky is [MASK] .")
    unmask.generate("runs/gpt1", "once upon a time", 40, top_k=20)  # a left-to-right model continues a text
    zero_shot = unmask.open_zero_shot("runs/gpt1", "test.tsv", "sst2")  # and answers without fine-tuning
    unmask.evaluate_zero_shot(zero_shot, "test.tsv")["metrics"]

`init_from` is any BERT, RoBERTa, ELECTRA, ModernBERT or GPT-1 directory; beside `finetune/classification` there are
recipes for regression, question answering, multiple choice and tagging. `TextClassifier`, `TextRegressor` and
`TextEncoder` offer the same to scikit-learn (`pip install 'unmask[sklearn]'`).

All functions, by use:

- training: `train_tokenizer`, `prepare`, `pretrain`, `finetune`, `average_models`
- a fine-tuned model: `load_predictor`, `predict`, `evaluate`, `compare`; runs of two recipes: `compare_runs`
- masked words: `fill_mask`, or for many texts a `MaskFiller`; minimal pairs: `evaluate_pairs`
- vectors of texts: `load_embedder`, `embed`, `similarities`, `extract_features`
- left to right: `load_language_model`, `generate`, `open_zero_shot`, `predict_zero_shot`, `evaluate_zero_shot`
- what lies on the disk: `describe`, `load_model`, `save_model`, `load_tokenizer`, `TokenStore`

They raise a `UserError` for what you can fix; the message says how.

The names are imported when first used, so that `import unmask` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.errors import Interrupted as Interrupted
    from unmask.errors import UserError as UserError
    from unmask.experiments.compare import compare as compare
    from unmask.experiments.compare_runs import Comparison as Comparison
    from unmask.experiments.compare_runs import compare_runs as compare_runs
    from unmask.finetuning.estimators.estimators import TextClassifier as TextClassifier
    from unmask.finetuning.estimators.estimators import TextRegressor as TextRegressor
    from unmask.finetuning.estimators.text_encoder import TextEncoder as TextEncoder
    from unmask.finetuning.run import finetune as finetune
    from unmask.inference.averaging import average_models as average_models
    from unmask.inference.evaluation import evaluate as evaluate
    from unmask.inference.features.batches import FeatureModel as FeatureModel
    from unmask.inference.features.extraction import extract_features as extract_features
    from unmask.inference.features.similarity import embed as embed
    from unmask.inference.features.similarity import load_embedder as load_embedder
    from unmask.inference.features.similarity import similarities as similarities
    from unmask.inference.left_to_right.generation import generate as generate
    from unmask.inference.left_to_right.language_model import LanguageModel as LanguageModel
    from unmask.inference.left_to_right.language_model import load_language_model as load_language_model
    from unmask.inference.left_to_right.zero_shot import ZeroShot as ZeroShot
    from unmask.inference.left_to_right.zero_shot import evaluate_zero_shot as evaluate_zero_shot
    from unmask.inference.left_to_right.zero_shot import open_zero_shot as open_zero_shot
    from unmask.inference.left_to_right.zero_shot import predict_zero_shot as predict_zero_shot
    from unmask.inference.mask_filling import MaskFiller as MaskFiller
    from unmask.inference.mask_filling import fill_mask as fill_mask
    from unmask.inference.pairs import evaluate_pairs as evaluate_pairs
    from unmask.inference.predictor import Predictor as Predictor
    from unmask.inference.predictor import load_predictor as load_predictor
    from unmask.inference.predictor import predict as predict
    from unmask.info import describe as describe
    from unmask.models.hub.directory import load_model as load_model
    from unmask.models.hub.directory import save_model as save_model
    from unmask.models.hub.source import LoadedModel as LoadedModel
    from unmask.pretraining.run import pretrain as pretrain
    from unmask.store.preparation import prepare as prepare
    from unmask.store.store import TokenStore as TokenStore
    from unmask.tokenization.kinds.word_characters import WordTokenizer as WordTokenizer
    from unmask.tokenization.learning.from_files import train_tokenizer as train_tokenizer
    from unmask.tokenization.learning.train import TrainingReport as TrainingReport
    from unmask.tokenization.settings import TokenizerSettings as TokenizerSettings
    from unmask.tokenization.tokenizer import TextTokenizer as TextTokenizer
    from unmask.tokenization.tokenizer import load_tokenizer as load_tokenizer

__version__ = "0.1.0"

_NAMES = {
    "errors": ("Interrupted", "UserError"),
    "experiments.compare": ("compare",),
    "experiments.compare_runs": ("Comparison", "compare_runs"),
    "finetuning.estimators.estimators": ("TextClassifier", "TextRegressor"),
    "finetuning.estimators.text_encoder": ("TextEncoder",),
    "finetuning.run": ("finetune",),
    "inference.averaging": ("average_models",),
    "inference.evaluation": ("evaluate",),
    "inference.features.batches": ("FeatureModel",),
    "inference.features.extraction": ("extract_features",),
    "inference.features.similarity": ("embed", "load_embedder", "similarities"),
    "inference.left_to_right.generation": ("generate",),
    "inference.left_to_right.language_model": ("LanguageModel", "load_language_model"),
    "inference.left_to_right.zero_shot": ("ZeroShot", "evaluate_zero_shot", "open_zero_shot", "predict_zero_shot"),
    "inference.mask_filling": ("MaskFiller", "fill_mask"),
    "inference.pairs": ("evaluate_pairs",),
    "inference.predictor": ("Predictor", "load_predictor", "predict"),
    "info": ("describe",),
    "models.hub.directory": ("load_model", "save_model"),
    "models.hub.source": ("LoadedModel",),
    "pretraining.run": ("pretrain",),
    "store.preparation": ("prepare",),
    "store.store": ("TokenStore",),
    "tokenization.kinds.word_characters": ("WordTokenizer",),
    "tokenization.learning.from_files": ("train_tokenizer",),
    "tokenization.learning.train": ("TrainingReport",),
    "tokenization.settings": ("TokenizerSettings",),
    "tokenization.tokenizer": ("TextTokenizer", "load_tokenizer"),
}
"""Of each module, by its path below `unmask`."""
_HOMES = {name: f"unmask.{home}" for home, names in _NAMES.items() for name in names}


def __dir__() -> list[str]:
    """Without scikit-learn, what needs it is not listed; asked for by name, it says what to install."""
    has_sklearn = find_spec("sklearn") is not None
    return ["__version__", *(name for name, home in _HOMES.items() if has_sklearn or ".estimators." not in home)]


if not TYPE_CHECKING:  # which would take any name for one of ours
    __all__ = __dir__()

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'unmask' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
