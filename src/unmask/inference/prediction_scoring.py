"""Scoring a file of predictions, without a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import InputError, SettingsError
from unmask.inference.evaluation import named_figures, warn_of_figures
from unmask.inference.task_options import (
    NOTHING_SAID,
    Columns,
    as_columns,
    build_task_settings,
    check_label_columns,
    check_task_settings,
)
from unmask.io.input_files import DataPath, as_files
from unmask.io.json_files import shown
from unmask.io.progress import counted, listed
from unmask.io.reading import open_input, split_suffixes
from unmask.io.rows import Row, find_field
from unmask.io.tables import read_jsonl
from unmask.tasks.base import Example, ExampleCounts, Task
from unmask.tasks.kinds import FACTS
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.metrics import WITHHELD, QaScore
from unmask.tasks.qa.task import QaTask
from unmask.tasks.settings import kind_of
from unmask.tasks.table import check_name, open_task
from unmask.tasks.tagging.schemes import Scheme, detect_scheme
from unmask.tasks.tagging.task import Tagging
from unmask.tasks.text.labels import sorted_labels

logger = logging.getLogger("unmask")

RowT = TypeVar("RowT", Example, Row)


def evaluate_predictions(
    predictions: str | Path,
    data: str | DataPath,
    task: str | None = None,
    columns: Columns = NOTHING_SAID,
    *,
    settings: Mapping[str, Any] | None = None,
    na_probs: str | Path | None = None,
    na_threshold: float = 1.0,
) -> dict[str, Any]:
    """Scores a file of predictions without a model.

    Args:
        predictions: JSON lines, as `predict` writes them, paired with the examples by id where both have one, else in
            the order of the examples; or, for question answering, `{id: answer}` in `.json`, as the official scorers
            read it.
        data: the labelled examples; those without an agreed label, or without a field for it, are left out, and so are
            their predictions; a warning says how many.
        task: the kind of task or the id of the data set; None is `classification`.
        columns: of the examples, where they are not those of the data set.
        settings: of the task by name, such as `{"repair_tags": False}`, as far as they affect labels and scores. In
            classification, `labels` are those that the predictions name, in their order: F1 is of the second of two.
            If it is not given, they have the order of the data set, or else sorted, as in training.
        na_probs: `{id: probability of no answer}` in `.json`, beside official predictions.
        na_threshold: a question counts as unanswered if its probability of no answer is over this.

    Returns:
        What `evaluate` returns. Where predictions may abstain, `n` and the metrics are of those that answer, and the
        metric `answered` is their share, in 0..1.

    Raises:
        InputError: a file cannot be read, every prediction abstains, a label is empty, or the two are not of the same
            examples; file and line are named.
        SettingsError: a task, column or setting is unknown, or does not apply here.
    """
    name, data = task or "classification", as_files(data)
    check_name(name)
    columns = as_columns(columns)
    given = {"name": name, **({} if columns.labels is None else {"multi_label": True}), **(settings or {})}
    orders_labels = kind_of(name) == "classification"  # type: ignore[arg-type]  # no model decides it here
    check_task_settings({key: given[key] for key in settings or {} if key != "labels" or not orders_labels}, "score")
    opened = open_task(build_task_settings(given), columns)
    suffix = split_suffixes(Path(predictions))[0]
    if suffix in (".csv", ".tsv"):
        raise InputError(
            f"{predictions}: predictions are read from .jsonl: write them with `unmask predict MODEL FILE --out "
            f"{Path(predictions).stem}.jsonl`"
        )
    if suffix == ".json":
        if not isinstance(opened, QaTask):
            raise InputError(
                f"{predictions}: {{id: answer}} is how answers to questions are scored, and the task is {name}: "
                "expected JSON lines, as `unmask predict` writes them; or name the task with --task"
            )
        official = opened.score()
        probabilities = None if na_probs is None else Path(na_probs)
        score_official(official, opened.load_golds(data), data, Path(predictions), probabilities, na_threshold)
        return {"task": name, "n": official.num_examples, "metrics": official.metrics()}
    if na_probs is not None:
        raise SettingsError("--na-probs is for predictions in .json ({id: answer}): leave it out")
    found = _settings_from(predictions, opened, are_stated=given.get("labels") is not None)
    fitted = _fitted(open_task(build_task_settings({**given, **found}), columns), predictions, data)
    check_label_columns(columns, fitted.labels)
    return _score(fitted, predictions, data)


def _fitted(task: Task[Any], predictions: str | Path, data: DataPath) -> Task[Any]:
    """The task with the labels of the data, and of tags also those that are predicted."""
    are_from_data = not task.labels
    fitted = task.fit_to(data)
    if isinstance(fitted, Tagging):
        tags = {tag for sentence in _predicted_tags(predictions) for tag in sentence} if are_from_data else set()
        fitted = fitted.with_predicted(tags, _predicted_scheme(predictions))
    return fitted


def _score(task: Task[Any], predictions: str | Path, data: DataPath) -> dict[str, Any]:
    """The figures of predictions in JSON lines; those that abstain count in `answered` alone."""
    score = task.score()
    counts, num_read, num_abstained, may_abstain = ExampleCounts(), 0, 0, False
    examples = task.load(data, counts, unlabelled=True)
    for example, prediction in _paired(examples, task.id_column, predictions, data):
        _check_match(example, prediction)
        num_read += 1
        if FACTS[task.kind].may_abstain and "abstained" in prediction.fields:
            may_abstain = True
            if prediction.fields["abstained"]:
                num_abstained += example.label is not None
                continue
        try:
            score.add([example], [prediction.fields])
        except InputError as error:
            raise InputError(f"{prediction.source}: {error}") from error
    num_labelled = score.num_examples + num_abstained
    if not num_labelled:
        raise InputError(f"{data}: not a single example has a label: nothing to compare the predictions with")
    if not score.num_examples:
        raise InputError(f"{predictions}: every prediction abstains: expected an answer; lower --abstain-below")
    counts.examples, counts.unlabelled = num_labelled, num_read - num_labelled
    counts.log(data)
    warn_of_figures(score, data)
    figures = named_figures(task, score)
    if may_abstain:
        figures["metrics"]["answered"] = score.num_examples / num_labelled
    return figures


def _settings_from(predictions: str | Path, task: Task[Any], are_stated: bool) -> dict[str, Any]:
    """What the first prediction shows of the task: which labels there are, and if a text has many. Their order in the
    file says nothing: whoever wrote it may have put the most probable first.

    Args:
        task: its labels come first, in their order.
        are_stated: True if these were given by the user, and have to be those of the predictions.
    """
    first = next(_read_predictions(predictions), None)
    if first is None:
        raise InputError(f"{predictions}: there is nothing in it: expected one prediction a line")
    if isinstance(task, QaTask) and _are_answers_by_id(first.fields):
        raise InputError(f"{predictions}: one JSON object, {{id: answer}}, which is read from .json: name it so")
    found: dict[str, Any] = {}
    if isinstance(task, Tagging) and task.settings.units is None and not task.tags_characters:
        found |= {"units": "characters"} if _are_of_characters(predictions) else {}
    probabilities = first.fields.get("probabilities")
    if task.kind == "classification" and isinstance(probabilities, Mapping):
        if are_stated and set(task.labels) != set(probabilities):
            raise SettingsError(
                f"task.labels is {listed(task.labels)}: expected those of the predictions, "
                f"{listed(sorted_labels(probabilities))}, in any order"
            )
        known = [label for label in task.labels if label in probabilities]
        found["labels"] = [*known, *sorted_labels(set(probabilities).difference(known))]
        found["multi_label"] = "labels" in first.fields
    return found


def _are_answers_by_id(fields: Mapping[str, Any]) -> bool:
    """Whether an object is a whole file of answers, as the official scorers read it, and not one prediction."""
    return not {"id", "answer"} & fields.keys() and all(isinstance(value, str) for value in fields.values())


def _predicted_tags(predictions: str | Path) -> Iterator[list[str]]:
    """The tags of each prediction; anything that is not a tag is reported when it is scored."""
    for row in _read_predictions(predictions):
        tags = row.fields.get("tags")
        yield [tag for tag in (tags if isinstance(tags, list) else ()) if isinstance(tag, str)]


def _are_of_characters(predictions: str | Path) -> bool:
    """Whether all `tokens` of predictions are characters, and blanks are among them."""
    has_blank = False
    for row in _read_predictions(predictions):
        tokens = row.fields.get("tokens")
        for token in tokens if isinstance(tokens, list) else ():
            if not isinstance(token, str) or len(token) != 1:
                return False
            has_blank = has_blank or token == " "
    return has_blank


def _predicted_scheme(predictions: str | Path) -> Scheme:
    """The scheme of predicted tags. `predict` writes BIO, with `entities`: an I- that begins one there is a mistake."""
    scheme = detect_scheme(_predicted_tags(predictions))
    is_ours = scheme == "IOB1" and all("entities" in row.fields for row in _read_predictions(predictions))
    return "BIO" if is_ours else scheme


def _read_predictions(path: str | Path) -> Iterator[Row]:
    yield from read_jsonl(as_files(path).lines(), str(path))


def _paired(
    examples: Iterator[Any], id_column: str, predictions: str | Path, data: str | DataPath
) -> Iterator[tuple[Any, Row]]:
    """Each example with its prediction: by id where both have one, else line by line.

    Only what has not found its partner is kept, so that files in one order take constant memory.
    """
    unanswered: dict[str, Example] = {}
    unasked: dict[str, Row] = {}
    for example, prediction in zip_longest(examples, _read_predictions(predictions)):
        asked = None if example is None else _id_in(example.fields, id_column)
        answered = None if prediction is None else _id_in(prediction.fields, "id", f"input.{id_column}")
        lacks_id = (example is not None and asked is None) or (prediction is not None and answered is None)
        if example is not None and prediction is not None and (lacks_id or asked == answered):
            yield example, prediction
            continue
        if lacks_id:
            more, fewer = (data, predictions) if prediction is None else (predictions, data)
            raise InputError(
                f"{more} has more rows than {fewer}: expected one prediction for each example, in their order"
            )
        if prediction is not None and answered is not None:
            _note_once(unasked, answered, prediction)
        if example is not None and asked is not None:
            _note_once(unanswered, asked, example)
        for identity in (asked, answered):
            if identity in unanswered and identity in unasked:
                yield unanswered.pop(identity), unasked.pop(identity)
    if unanswered or unasked:
        rows: Mapping[str, Example | Row] = unanswered or unasked
        identity, row = next(iter(rows.items()))
        lacking, number = (predictions, len(unanswered)) if unanswered else (data, len(unasked))
        raise InputError(
            f"{row.source}: the id {identity!r} is not in {lacking} ({number:,} such in all): expected one prediction "
            "for each example, with its id"
        )


def _id_in(fields: Mapping[str, Any], *names: str) -> str | None:
    """The id of a row, as text: a table has texts where JSON has numbers."""
    found = (find_field(fields, name) for name in names)
    return next((str(value) for value in found if value not in (None, "")), None)


def _note_once(rows: dict[str, RowT], identity: str, row: RowT) -> None:
    if identity in rows:
        raise InputError(
            f"{rows[identity].source} and {row.source} have the same id, {identity!r}, and the two files are not in "
            "one order: give each row its own"
        )
    rows[identity] = row


def _check_match(example: Example, prediction: Row) -> None:
    """Refuses a prediction that was made for another example, as far as it repeats its input."""
    shown = prediction.fields.get("input")
    if not isinstance(shown, Mapping):
        return
    for name, value in example.fields.items():
        if not _same(shown.get(name, value), value):
            raise InputError(
                f"{prediction.source}: {name} is {str(shown[name])[:40]!r}, "
                f"and at {example.source} it is {str(value)[:40]!r}: "
                "expected the predictions of these examples, in their order"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; NaN counts as equal to itself."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other) or (one != one and other != other)


def score_official(
    score: QaScore,
    examples: Iterable[QaExample],
    data: DataPath,
    predictions: Path,
    na_probs: Path | None,
    na_threshold: float,
) -> None:
    """Scores a file of answers as the official scorers do.

    A question without a prediction scores 0 as in SQuAD 1.1's scorer, or, if questions may have no answer, is left out
    as in SQuAD 2.0's. Both are reported, as are predictions that match no question.

    Args:
        score: of the data set; the answers are added to it.
        examples: the labelled questions with their right answers, whether or not these are in the passage.
        data: their file, for messages.
        predictions: `{id: answer}`.
        na_probs: `{id: probability of no answer}`.
        na_threshold: a question counts as unanswered if that probability is higher than this.

    Raises:
        InputError: a file cannot be read or is of another form; no question has a prediction; two have the same id.
    """
    answers = _read_mapping(predictions, str, "answer")
    probabilities = None if na_probs is None else _read_mapping(na_probs, (int, float), "probability of no answer")
    seen: set[str] = set()
    missing: list[str] = []
    for example in examples:
        identity = _check_id(example, seen)
        if identity in answers:
            given = _official_prediction(identity, answers[identity], probabilities, na_threshold, na_probs)
            score.add([example], [given])
            continue
        missing.append(identity)
        if score.unanswerable is False:
            score.add([example], [{"answer": ""}])
    if len(missing) == len(seen):
        raise InputError(f"{predictions}: no prediction for any question of {data}: they are not of the same questions")
    if missing:
        wrong = score.unanswerable is False
        done = "they count as wrong" if wrong else "they are left out, as the official scorer does"
        logger.warning("%s: no prediction for %s: %s", predictions, _some(missing), done)
    if foreign := [identity for identity in answers if identity not in seen]:
        logger.warning("%s: predictions for %s, which %s does not have", predictions, _some(foreign), data)


def _check_id(example: QaExample, seen: set[str]) -> str:
    if example.id is None:
        raise InputError(f"{example.source}: no id: expected one, by which its prediction is found")
    if example.id in seen:
        raise InputError(f"{example.source}: a second question with the id {example.id}: expected each once")
    seen.add(example.id)
    return example.id


def _official_prediction(
    identity: str, answer: str, probabilities: Mapping[str, float] | None, threshold: float, path: Path | None
) -> dict[str, Any]:
    if probabilities is None:
        return {"answer": answer}
    if identity not in probabilities:
        raise InputError(f"{path}: no probability for {identity}: expected one for every predicted question")
    probability = probabilities[identity]
    return {
        "answer": "" if probability > threshold else answer,
        WITHHELD: probability > threshold,
        "n_best": [{"answer": answer}],
        "no_answer_probability": probability,
    }


def _read_mapping(path: Path, kind: type | tuple[type, ...], what: str) -> dict[str, Any]:
    with open_input(path) as file:
        try:
            values = json.loads(file.read())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not JSON ({error}): expected {{id: {what}}}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected one JSON object, {{id: {what}}}")
    for identity, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            expected = "a text" if kind is str else "a number"
            raise InputError(f"{path}: the {what} of {identity} is {shown(value)}: expected {expected}")
    return values


def _some(identities: Sequence[str]) -> str:
    return f"{counted(len(identities), 'question')} ({listed(identities, 3)})"
