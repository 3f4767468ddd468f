"""Tasks without fine-tuning: what a left-to-right language model finds likelier (Radford et al. 2018, section 5).

Four methods, GPT-1's heuristics made general:

- `labels`: each label is put in words after the text, and the likeliest words win (the sum of the log-probabilities of
  their tokens and of those after them, given the text before). For SST-2 as in the paper: "very" is appended, and
  `positive` is compared with `negative`.
- `acceptability`: the mean log-probability of the text's tokens against a threshold that is chosen on a dev file for
  the highest Matthews correlation (CoLA).
- `completion`: the choice whose tokens have the highest mean log-probability, given the context (RACE, Story Cloze).
- `referent`: each choice replaces `_` in the context, and the one after which the rest is likeliest wins (Winograd
  schemas): by the mean over the tokens after it, since a tokenizer may cut them in two ways.

The released code did none of this: the details of tokens and words are ours.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InputError, SettingsError
from unmask.inference.answer_lines import beside_input
from unmask.inference.coverage import Coverage
from unmask.inference.evaluation import named_figures, warn_if_degenerate
from unmask.inference.example_sets import in_sets
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model
from unmask.inference.task_options import NOTHING_SAID, Columns, as_columns
from unmask.io.input_files import DataPath, as_files
from unmask.io.progress import named
from unmask.tasks.base import ExampleCounts, Prediction
from unmask.tasks.choice.layouts import ChoiceExample
from unmask.tasks.choice.task import Choice, answer
from unmask.tasks.settings import TaskSettings
from unmask.tasks.table import check_name, open_task
from unmask.tasks.text.classification import Classification
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.labels import sorted_labels

logger = logging.getLogger("unmask")

Method = Literal["labels", "acceptability", "completion", "referent"]

BLANK = "_"
"""The place where a referent is put."""
_MOST_EXAMPLES = 256
"""How many examples are read and scored at once."""


@dataclass(frozen=True)
class Heuristic:
    """How a task is answered.

    Attributes:
        method: see above.
        template: for `labels`, with `{text}` (or `{text_a}` and `{text_b}`) and `{label}`; anything after the label is
            scored with it.
        words: for `labels`: the words for each label; one that is not listed is its own word.
        threshold: for `acceptability`: texts whose mean log-probability is over it have the second label; None
            chooses it on a dev file.
    """

    method: Method
    template: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    threshold: float | None = None


HEURISTICS: dict[str, Heuristic] = {
    "cola": Heuristic("acceptability"),
    "sst2": Heuristic("labels", "{text} very {label}", {"0": "negative", "1": "positive"}),
}
"""The heuristics of data sets that differ from those of their kind of task, which are its first method."""
_METHODS_OF_KINDS: dict[str, tuple[Method, ...]] = {
    "classification": ("labels", "acceptability"),
    "choice": ("completion", "referent"),
}


@dataclass(frozen=True)
class ZeroShot:
    """A language model that answers a task.

    Attributes:
        model: what gives texts their probabilities.
        task: how files are read and answers are scored.
        heuristic: with a threshold if its method has one.
    """

    model: LanguageModel
    task: Classification | Choice
    heuristic: Heuristic

    def predict(self, path: str | DataPath, *, unlabelled: bool = True) -> Iterator[tuple[Any, Prediction]]:
        """Streams a file's examples with their predictions; `unlabelled` reads no labels."""
        counts = ExampleCounts()
        for part in self.read(as_files(path), counts, unlabelled=unlabelled):
            yield from zip(part, self._answer(part, counts), strict=True)

    def read(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[list[Any]]:
        """Streams a file's examples, some at a time; a warning at the end says what was left out, cut or unknown."""
        coverage = Coverage(self.model.tokenizer, str(path), counts)
        for part in in_sets(self._examples(path, counts, unlabelled), _MOST_EXAMPLES):
            encoded = [self.model.tokenizer.encode_batch(_texts(example)) for example in part]
            coverage.add_texts([*chain.from_iterable(encoded)], [text for one in part for text in _texts(one)])
            counts.examples += len(part)
            counts.empty += sum(not any(texts) for texts in encoded)
            yield part
        coverage.log()

    def _examples(self, path: DataPath, counts: ExampleCounts, unlabelled: bool) -> Iterator[Any]:
        if not unlabelled:
            return self.task.load(path, counts)
        if isinstance(self.task, Choice):
            return self.task.read_all(self.task.load_rows(path))
        return self.task.files.load(path, counts, lambda row, name: None, unlabelled=True)

    def _answer(self, examples: Sequence[Any], counts: ExampleCounts) -> list[Prediction]:
        method = self.heuristic.method
        if method == "acceptability":
            assert self.heuristic.threshold is not None, "it is chosen before"
            return [self._judged(mean) for mean in self.mean_log_probabilities(examples, counts)]
        if method == "labels":
            return self._labelled(examples, counts)
        return self._chosen(examples, counts)

    def mean_log_probabilities(self, examples: Sequence[TextExample[str]], counts: ExampleCounts) -> list[float]:
        """The means over the tokens of each text (of both texts of a pair). Texts that are cut, or have no token to
        predict, are added to `counts`."""
        texts = [[("", " ".join(_texts(example)))] for example in examples]
        return [float(values.mean()) for values in self._continued(texts, counts)]

    def _judged(self, mean: float) -> Prediction:
        """What a threshold says; probabilities are the logistic function of the mean's distance from it."""
        assert isinstance(self.task, Classification)
        threshold = cast(float, self.heuristic.threshold)
        over = float(torch.sigmoid(torch.tensor(mean - threshold)))
        probabilities = dict(zip(self.task.labels, (1 - over, over), strict=True))
        label = self.task.labels[int(mean > threshold)]
        return {
            "label": label,
            "score": probabilities[label],
            "probabilities": probabilities,
            "mean_log_probability": mean,
        }

    def _labelled(self, examples: Sequence[TextExample[str]], counts: ExampleCounts) -> list[Prediction]:
        assert isinstance(self.task, Classification)
        labels = self.task.labels
        texts = [[self._verbalised(example, label) for label in labels] for example in examples]
        totals = torch.tensor([float(values.sum()) for values in self._continued(texts, counts)])
        return self.task.decode(examples, None, totals.view(len(examples), len(labels)))  # type: ignore[arg-type]

    def _verbalised(self, example: TextExample[str], label: str) -> tuple[str, str]:
        """The text before a label's words, and the text from these words on."""
        template = self.heuristic.template
        if not template:
            template = "{text} {label}" if example.text_b is None else "{text_a} {text_b} {label}"
        texts = {"text": example.text_a, "text_a": example.text_a, "text_b": example.text_b or ""}
        before, _, after = template.partition("{label}")
        context = before.format(**texts).rstrip()
        words = self.heuristic.words.get(label, label)
        return context, f"{' ' if context else ''}{words}{after.format(**texts)}"

    def _chosen(self, examples: Sequence[ChoiceExample], counts: ExampleCounts) -> list[Prediction]:
        texts = [[self._completed(example, choice) for choice in example.choices] for example in examples]
        means = iter([float(values.mean()) for values in self._continued(texts, counts)])
        return [answer(example, torch.tensor([next(means) for _ in example.choices])) for example in examples]

    def _completed(self, example: ChoiceExample, choice: str) -> tuple[str, str]:
        """The text that is given, and the text that is scored."""
        if self.heuristic.method == "completion":
            context = _texts(example)[0]
            return context, f" {choice}" if context else choice
        before, blank, after = example.context.partition(BLANK)
        if not blank or BLANK in after or not after.strip():
            raise InputError(
                f"{example.source}: the context {example.context[:60]!r}: expected one {BLANK} where a choice is put, "
                "and something behind it, as in 'The trophy does not fit because _ is too big.'"
            )
        return before + choice, after

    def _continued(self, texts: Sequence[Sequence[tuple[str, str]]], counts: ExampleCounts) -> list[Tensor]:
        """The log-probabilities of the tokens of each example's continuations, given their contexts. What is too long
        for the model loses its beginning, and its example is counted. A continuation none of whose tokens can be scored
        gets that of one token drawn uniformly from the vocabulary, and is counted: it must not win because nothing
        speaks against it."""
        model, limit = self.model, self.model.window
        encoded = iter(model.tokenizer.encode_batch([text for pairs in texts for pair in pairs for text in pair]))
        sequences, sizes, num_cut = [], [], 0
        for pairs in texts:
            is_cut = False
            for _ in pairs:
                context, continuation = next(encoded), next(encoded)
                ids = [*model.prefix, *context, *continuation]
                sequences.append(ids[-limit:] if ids else [0])
                sizes.append(len(continuation))
                is_cut |= len(ids) > limit
            num_cut += is_cut
        counts.note(f"longer than the model's {limit} tokens, read without their beginning", num_cut)
        scored = [
            values[max(0, len(values) - size) :] if size else values[:0]
            for values, size in zip(model.log_probabilities(sequences), sizes, strict=True)
        ]
        num_empty = sum(len(values) == 0 for values in scored)
        counts.note("texts of which no token follows another, taken to be as likely as a random entry", num_empty)
        chance = torch.tensor([-math.log(model.encoder.settings.vocab_size)])
        return [values if len(values) else chance for values in scored]


def _texts(example: TextExample[Any] | ChoiceExample) -> list[str]:
    """The text or the pair; or the context of a choice, with its question, and the choices."""
    if isinstance(example, ChoiceExample):
        return [" ".join(filter(None, (example.context, example.question))), *example.choices]
    return [example.text_a] if example.text_b is None else [example.text_a, example.text_b]


def open_zero_shot(
    model: str | Path | LanguageModel,
    data: str | DataPath,
    task: str = "classification",
    *,
    method: Method | None = None,
    template: str | None = None,
    words: Mapping[str, str] | None = None,
    threshold: float | None = None,
    dev: str | DataPath | None = None,
    columns: Columns = NOTHING_SAID,
    device: str | None = None,
    precision: str | None = None,
) -> ZeroShot:
    """A language model ready to answer the examples of a file.

    Args:
        model: a model's directory, that of the run that made it, or a loaded `LanguageModel`.
        data: in a data set's published layout, or with the given columns.
        task: `classification`, `choice`, or the id of a data set of such a kind.
        method: None takes the data set's, or `labels` for classification and `completion` for choices.
        template, words, threshold: see `unmask.inference.left_to_right.zero_shot.Heuristic`; None takes the data set's.
        dev: labelled examples on which the threshold of `acceptability` is chosen if none is given; the task's labels
            are theirs, unless it has its own.
        columns: of the file, such as `{"label": "gold"}`; see `unmask.tasks.settings.ColumnSettings`.
        device, precision: see `load_language_model`.

    Raises:
        SettingsError: the task or method is of another kind, a template has no place for the label, words are given for
            a label that does not exist, or a threshold or dev file is missing or is given where it does not apply.
        UserError: the model does not load, a file cannot be read, or fewer than two labels are known.
    """
    check_name(task)
    of_words = {"labels": list(sorted_labels(words))} if task == "classification" and words and len(words) > 1 else {}
    opened = open_task(TaskSettings.model_validate({"name": task, **of_words}), as_columns(columns))
    if not isinstance(opened, Classification | Choice):
        raise SettingsError(
            f"{task} is {opened.kind}: what a language model finds likelier answers classification and choice"
        )
    has_labels = bool(opened.labels)
    if isinstance(opened, Classification) and dev is not None:  # the dev file has labels, which `data` may lack
        opened = replace(opened, labels=opened.fit_to(as_files(dev)).labels)
    fitted = opened.fit_to(as_files(data))
    heuristic = _heuristic(fitted, method, template, words, threshold)
    if heuristic.method == "labels" and len(fitted.labels) < 2:
        raise InputError(
            f"{data}: the only label is {fitted.labels[0]!r}, and one that is compared with no other is always the "
            "likeliest: name them all with their words, --words LABEL=WORDS for each"
        )
    if heuristic.method != "acceptability" and (dev is not None or threshold is not None):
        raise SettingsError(
            f"a dev file and a threshold are for the method acceptability, not {heuristic.method}: leave them out"
        )
    if has_labels and threshold is not None and dev is not None:
        raise SettingsError(f"the threshold is given, and {task} has its labels: leave it or the dev file out")
    if threshold is not None and not math.isfinite(threshold):
        raise SettingsError(f"threshold {threshold}: expected a number, the mean log-probability of a good text")
    loaded = load_language_model(model, device=device, precision=precision)
    zero_shot = ZeroShot(loaded, fitted, heuristic)
    if heuristic.method != "acceptability" or heuristic.threshold is not None:
        return zero_shot
    if dev is None:
        raise SettingsError("acceptability needs a threshold: give a dev file to choose it on, or the threshold")
    chosen = _threshold_on(zero_shot, as_files(dev))
    logger.warning("%s: a text has the label %s over a mean log-probability of %.4g", dev, fitted.labels[1], chosen)
    return ZeroShot(loaded, fitted, Heuristic("acceptability", threshold=chosen))


def _heuristic(
    task: Classification | Choice,
    method: Method | None,
    template: str | None,
    words: Mapping[str, str] | None,
    threshold: float | None,
) -> Heuristic:
    known = _METHODS_OF_KINDS[task.kind]
    usual = HEURISTICS.get(task.settings.name, Heuristic(known[0]))
    if method is not None and method not in known:
        raise SettingsError(f"method {method!r} is not for {task.kind}: expected {' or '.join(known)}")
    if method is not None and method != usual.method:
        usual = Heuristic(method)
    if (template is not None or words is not None) and usual.method != "labels":
        raise SettingsError(f"template and words are for the method labels, and this is {usual.method}: leave them out")
    if template is not None:
        _check_template(template, task)
    if foreign := sorted(set(words or ()).difference(task.labels)):
        raise SettingsError(f"words for {foreign[0]!r}: there is no such label; there are {named(task.labels)}")
    if usual.method == "acceptability" and len(task.labels) != 2:
        raise SettingsError(f"acceptability has two labels, and there are {len(task.labels)}: take labels")
    return Heuristic(
        usual.method,
        usual.template if template is None else template,
        usual.words if words is None else words,
        usual.threshold if threshold is None else threshold,
    )


def _check_template(template: str, task: Classification | Choice) -> None:
    names = ("{text_a}", "{text_b}") if isinstance(task, Classification) and task.files.is_pair else ("{text}",)
    rest = template.replace("{label}", "", 1)
    for name in names:
        rest = rest.replace(name, "")
    if "{label}" not in template or "{" in rest or "}" in rest or not any(name in template for name in names):
        raise SettingsError(f"template {template!r}: expected {' and '.join(names)}, and {{label}} once")


def _threshold_on(zero_shot: ZeroShot, dev: DataPath) -> float:
    """The mean log-probability above which texts get the second label, for the highest Matthews correlation."""
    task = zero_shot.task
    assert isinstance(task, Classification)
    means: list[float] = []
    labels: list[bool] = []
    counts = ExampleCounts()
    for part in zero_shot.read(dev, counts):
        means += zero_shot.mean_log_probabilities(part, counts)
        labels += [example.label == task.labels[1] for example in part]
    return best_threshold(np.array(means), np.array(labels))


def best_threshold(values: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Where to cut so that `value > threshold` agrees best with `positive`, by the Matthews correlation.

    Args:
        values: (examples,), at least one.
        positive: (examples,).

    Returns:
        The middle between two neighbouring values; below all of them if no cut is better than none.
    """
    order = np.argsort(-values, kind="stable")
    ranked, right = values[order], positive[order]
    num_over = np.arange(1, len(values) + 1)  # how many examples a cut after each leaves above it
    hits, num_positive, total = np.cumsum(right), int(positive.sum()), len(values)
    covariance = total * hits - num_over * num_positive
    spread = np.sqrt(1.0 * num_over * (total - num_over) * num_positive * (total - num_positive))
    correlations = np.divide(covariance, spread, out=np.zeros(total), where=spread > 0)
    is_cut = np.append(ranked[:-1] > ranked[1:], True)  # equal values fall on one side
    best = int(np.where(is_cut, correlations, -np.inf).argmax())
    if best == total - 1 or correlations[best] <= 0:
        return float(ranked[-1] - 1.0)
    return float((ranked[best] + ranked[best + 1]) / 2)


def predict_zero_shot(zero_shot: ZeroShot, data: str | DataPath) -> Iterator[dict[str, Any]]:
    """Predictions for the examples of a file, labelled or not, in their order, as `predict` writes them.

    Raises:
        InputError: the file cannot be read, or an example does not fit the method.
    """
    for example, prediction in zero_shot.predict(data):
        yield beside_input(example.fields, zero_shot.task.id_column, prediction)


def evaluate_zero_shot(zero_shot: ZeroShot, data: str | DataPath) -> dict[str, Any]:
    """Measures a language model on labelled examples.

    Returns:
        `{"task": name, "n": examples, "metrics": {name: value}}`, as `evaluate`.

    Raises:
        InputError: the file cannot be read, an example has no label, or does not fit the method.
    """
    score: Any = zero_shot.task.score()
    for example, prediction in zero_shot.predict(data, unlabelled=False):
        score.add([example], [prediction])
    warn_if_degenerate(score, str(data))
    return named_figures(zero_shot.task, score)
