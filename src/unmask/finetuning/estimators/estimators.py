"""Fine-tuning with scikit-learn's interface: `fit` and `predict` on texts in memory.

The task, the loop and the optimizer are those of `unmask finetune`, with the same defaults; its recipe class checks the
settings. No run directory is written. Every estimator works in `Pipeline`, `cross_val_score` and `GridSearchCV`.

    classifier = TextClassifier("runs/bert", epochs=3)
    classifier.fit(["a fine film", "dull"], ["good", "bad"]).predict(["fine"])
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from unmask.config import build_settings
from unmask.errors import OutputError, UserError, ValuesError
from unmask.finetuning.estimators.inputs import (
    Texts,
    distinct,
    given_model,
    indicators_of,
    labels_of,
    numbers_of,
    rows_of,
    tags_of_texts,
)
from unmask.finetuning.fitting import epochs_advice, rate_for, warn_of_untrained_positions
from unmask.finetuning.inputs import build_module
from unmask.finetuning.run import save_finetuned
from unmask.inference.example_sets import encode_sets
from unmask.inference.opening import freeze
from unmask.inference.predictor import Predictor, load_predictor
from unmask.io.paths import model_directory
from unmask.io.rows import Row
from unmask.io.writing import temporary_directory, writing_directory
from unmask.models.hub.source import open_source
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import ExampleLoader, concatenate
from unmask.tasks.table import open_task
from unmask.tasks.text.multi_label import MultiLabelClassification
from unmask.tokenization.gpt1_template import load_tokenizer_with_template
from unmask.training.device import choose_compute
from unmask.training.divergence import BadStep
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.run.model_place import check_place
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner

logger = logging.getLogger("unmask")

WARNED_OF: set[str] = set()
"""What this process has warned of: every fold of a cross-validation fits anew."""


@dataclass(eq=False, repr=False)
class FinetuningEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """What `TextClassifier` and `TextRegressor` share: parameters, training, pickling.

    Args:
        model: directory of a pre-trained model, or of the run that made it.
        learning_rate: the peak, after warm-up; None takes the usual one for the model's size, 5e-5 to 5e-4.
        epochs: passes over the texts.
        batch_size: texts in a step.
        max_length: most tokens of a text or pair; longer ones are cut at the end.
        warmup_ratio: share of the steps over which the learning rate rises.
        weight_decay: of AdamW.
        layer_decay: each layer's rate is that of the layer above times this.
        freeze_layers: 0 freezes the embeddings, n the first n layers with them, "all" the whole encoder.
        classifier_dropout: before the head; None takes the encoder's.
        from_scratch: True takes only the sizes and the tokenizer of `model`; weights are random.
        seed: of the head, the order and dropout; the same texts and parameters give the same model, unless threads
            fit at once: PyTorch has one generator a process.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        precision: of training, "auto", "fp32" or "bf16"; predictions are in fp32.

    Attributes:
        predictor_: the fine-tuned model; see `unmask.inference.predictor`.
        loss_curve_: the mean loss of each whole epoch; empty under one.
    """

    model: str | Path | None = None
    _: KW_ONLY
    learning_rate: float | None = None
    epochs: float = 3
    batch_size: int = 32
    max_length: int = 128
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    layer_decay: float = 1.0
    freeze_layers: int | Literal["all"] | None = None
    classifier_dropout: float | None = None
    from_scratch: bool = False
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    def __init_subclass__(cls, **options: Any) -> None:
        """Lets `help` describe the parameters, which all share, for each."""
        super().__init_subclass__(**options)
        if FinetuningEstimator in cls.__bases__:  # and not somebody's own
            shared = (FinetuningEstimator.__doc__ or "").partition("\n\n")[2]
            cls.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n\n{shared}"

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Writes the fine-tuned model as `unmask finetune` does, for `unmask predict` and for `transformers`.

        Args:
            directory: may be missing or empty.
            overwrite: True replaces a model at `directory` when the new one is complete.

        Raises:
            NotFittedError: there is none yet.
            OutputError: there is something at `directory` (with `overwrite`: something other than a model), or the
                place cannot be written.
        """
        check_is_fitted(self)
        place, fitted = Path(directory), self.predictor_
        try:
            check_place(place, overwrite, "choose another name, or pass overwrite=True to replace a model")
            with writing_directory(place, overwrite) as unfinished:
                save_finetuned(fitted.module, fitted.task, fitted.tokenizer, unfinished, self._trained_length)
        except OSError as error:  # such as a folder that even the system's owner cannot make
            reason = error.strerror or error
            raise OutputError(f"cannot write {place}: {reason}; choose a place that can be written") from error

    def _settings(self, columns: Sequence[str], task: Mapping[str, Any]) -> FinetuneRecipe:
        name = type(self).__name__
        model, rate = given_model(self.model, name), self.learning_rate
        if rate is None:
            rate = rate_for(open_source(model_directory(model)).settings.hidden_size)
        return build_settings(
            FinetuneRecipe,
            {
                "seed": self.seed,
                "device": self.device,
                "precision": self.precision,
                "init_from": str(model),
                "from_scratch": self.from_scratch,
                "freeze_layers": self.freeze_layers,
                "task": {**task, "max_length": self.max_length, "classifier_dropout": self.classifier_dropout},
                "data": {"train": "X", "columns": {column: column for column in columns}},
                "optimizer": {
                    "learning_rate": rate,
                    "weight_decay": self.weight_decay,
                    "layer_decay": self.layer_decay,
                },
                "schedule": {"warmup_ratio": self.warmup_ratio},
                "train": {"epochs": self.epochs, "batch_size": self.batch_size},
            },
            name,
        )

    def _train(self, settings: FinetuneRecipe, rows: Sequence[Row], targets: Sequence[Any]) -> None:
        compute = choose_compute(settings.device, settings.precision)
        source = open_source(model_directory(settings.init_from))
        tokenizer, new_entries = load_tokenizer_with_template(source.directory)
        task = open_task(settings.task, settings.data.columns)
        examples = [replace(task.read(row), label=target) for row, target in zip(rows, targets, strict=True)]
        with compute.keeping_torch_state():
            torch.manual_seed(settings.seed)
            module: Any = build_module(settings, task, source, tokenizer, len(new_entries))
            segments = module.encoder.settings.type_vocab_size
            counts = ExampleCounts()
            sets = encode_sets(task, examples, tokenizer, counts, segments, "X")
            training = concatenate([part.encoded.without_alignment() for part in sets])
            task.fit_loss(module, training, is_kept=False)
            counts.log("X")
            trained = settings.task.max_length if settings.from_scratch else source.trained_length
            warn_of_untrained_positions(int(training.row_lengths.max()), trained, source.directory, "max_length")
            if (advice := epochs_advice(settings.train, len(training), "epochs")) and advice not in WARNED_OF:
                WARNED_OF.add(advice)
                logger.warning(advice)
            loader = ExampleLoader(training, settings.seed, settings.train.batch_size, settings.train.batch_size)
            optimizer = build_optimizer(module.to(compute.device), settings.optimizer)
            progress = _LossCurve()
            train(
                Learner(module, module.counts),
                loader.steps(loader.start()),
                ScheduledOptimizer(optimizer, Schedule(settings.schedule)),
                EagerStepper(module, optimizer, settings.train.max_grad_norm, compute),
                settings.train,
                TrainState(),
                Hooks(progress, on_bad_step=_stop),
            )
        module.rescale()
        self.predictor_ = Predictor(task, module.eval(), tokenizer, freeze(module, compute.for_figures()))
        self.loss_curve_, self._trained_length = progress.means, trained

    def _outputs(self, X: Texts) -> Tensor:  # noqa: N803  scikit-learn's name
        """(texts, outputs) float32, the head's outputs before they become predictions."""
        check_is_fitted(self)
        rows = rows_of(X)
        task: Any = self.predictor_.task  # classification or regression: both have `files`
        is_pair = task.files.is_pair
        if is_pair != ("text_b" in rows[0]):
            kinds = ("single texts", "pairs of texts")
            raise ValuesError(f"X holds {kinds[not is_pair]}, and the model was fitted on {kinds[is_pair]}")
        counts = ExampleCounts()
        parts = [self.predictor_.outputs(part) for part in self.predictor_.sets(map(task.read, rows), counts, "X")]
        counts.log("X")
        return torch.cat(parts)

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, and the fine-tuned model as the files that `save` writes: no module of PyTorch is pickled."""
        state = dict(super().__getstate__())
        if state.pop("predictor_", None) is not None:
            with temporary_directory("unmask-estimator") as folder:
                self.save(folder / "model")
                state["_files"] = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        files = rest.pop("_files", None)
        super().__setstate__(rest)
        if files is not None:
            with temporary_directory("unmask-estimator") as folder:
                for name, content in files.items():
                    (folder / name).write_bytes(content)
                self.predictor_ = load_predictor(folder, device=self.device)

    def __sklearn_tags__(self) -> Any:
        return tags_of_texts(super().__sklearn_tags__())


class TextClassifier(ClassifierMixin, FinetuningEstimator):  # type: ignore[misc]
    """Learns to label texts, or pairs of texts.

    Fitted, it also has `classes_`: (classes,) the labels of `y`, sorted; of a matrix `y`, the numbers of its columns.
    """

    def fit(self, X: Texts, y: Any) -> Self:  # noqa: N803
        """Fine-tunes the model.

        Args:
            X: a list, an array or a column of texts, or of pairs `(a, b)`.
            y: a label for each: strings, integers, or anything else that can be a dictionary's key. Or, for any number
                of labels each, a matrix (texts, labels) of 0 and 1, as `MultiLabelBinarizer` of scikit-learn makes it.

        Raises:
            UserError: the model does not load, a parameter is out of range, `X` is empty or holds something other than
                texts, `y` is of another length, a label is missing, there is only one, or two look alike.
        """
        rows = rows_of(X)
        y = list(y) if isinstance(y, Iterator) else y  # it is looked at twice
        if (indicators := indicators_of(y, len(rows))) is not None:
            return self._fit_many(rows, indicators)
        labels = labels_of(y, len(rows))
        classes = distinct(labels)
        names = [str(label) for label in classes.tolist()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValuesError(f"two different labels of y are both written {twice!r}: expected them to differ as texts")
        name_of = dict(zip(classes.tolist(), names, strict=True))
        settings = self._settings(list(rows[0].fields), {"name": "classification", "labels": names})
        self._train(settings, rows, [name_of[label] for label in labels])
        self.classes_ = classes  # only now: after a failure an earlier model keeps its own
        return self

    def _fit_many(self, rows: Sequence[Row], indicators: NDArray[np.int64]) -> Self:
        classes = np.arange(indicators.shape[1])
        names = [str(number) for number in classes]
        task = {"name": "classification", "multi_label": True, "labels": names}
        targets = [tuple(names[number] for number in row.nonzero()[0]) for row in indicators]
        self._train(self._settings(list(rows[0].fields), task), rows, targets)
        self.classes_ = classes
        return self

    @property
    def _has_many(self) -> bool:
        """Whether a text may have any number of labels."""
        return isinstance(self.predictor_.task, MultiLabelClassification)

    def predict(self, X: Texts) -> NDArray[Any]:  # noqa: N803
        """(texts,) the most probable label of each; if fitted on a matrix, (texts, labels), 1 for labels with a
        probability of one half or more, else 0.

        Raises:
            NotFittedError: `fit` has not been called.
            ValuesError: `X` is empty, or does not hold what the model was fitted on.
        """
        probabilities = self.predict_proba(X)
        chosen: NDArray[Any]
        chosen = (probabilities >= 0.5).astype(np.int64) if self._has_many else self.classes_[probabilities.argmax(1)]
        return chosen

    def predict_proba(self, X: Texts) -> NDArray[np.float64]:  # noqa: N803
        """(texts, classes), in the order of `classes_`; a row sums to 1 unless the model was fitted on a matrix. Raises
        as `predict`."""
        outputs = self._outputs(
            X
        ).double()  # in float32 the sum of a row differs from 1 by more than scikit-learn allows
        probabilities = torch.sigmoid(outputs) if self._has_many else torch.softmax(outputs, -1)
        return probabilities.numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class TextRegressor(RegressorMixin, FinetuningEstimator):  # type: ignore[misc]
    """Learns a number for each text, or pair of texts.

    It learns on targets with mean 0 and standard deviation 1, in which `loss_curve_` is; the head is then rescaled, so
    that the model, saved too, answers on the scale of `y`.
    """

    def fit(self, X: Texts, y: Any) -> Self:  # noqa: N803
        """Fine-tunes the model.

        Args:
            X: a list, an array or a column of texts, or of pairs `(a, b)`.
            y: a finite number for each.

        Raises:
            UserError: the model does not load, a parameter is out of range, `X` is empty or holds something other than
                texts, `y` is of another length, or one of its values is not a finite number.
        """
        rows = rows_of(X)
        values = numbers_of(y, len(rows))
        self._train(self._settings(list(rows[0].fields), {"name": "regression"}), rows, values)
        return self

    def predict(self, X: Texts) -> NDArray[np.float64]:  # noqa: N803
        """(texts,) one value each; raises as `TextClassifier.predict`."""
        return self._outputs(X).squeeze(-1).double().numpy()


def _stop(state: TrainState, bad: BadStep) -> NoReturn:
    raise UserError(f"{bad.fault}. Give a lower learning_rate or a higher warmup_ratio")


@dataclass
class _LossCurve:
    """The loop's hook: keeps the mean loss of each whole epoch."""

    means: list[float] = field(default_factory=list)

    def __call__(self, state: TrainState, result: StepResult) -> None:
        if state.epochs < len(self.means) + 1:
            return
        terms = state.take_means()
        self.means.append(sum(result.coefficients[name] * mean for name, mean in terms.items()))
