"""The head of a fine-tuned model, kept for another task with the same labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.io.paths import HEAD_WEIGHTS
from unmask.io.progress import counted, named
from unmask.models.encoder import Encoder
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import TwoOrderClassifier, WindowClassifier
from unmask.models.heads.layer_mixture import ELMOS
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import LoadedModel, ModelSource
from unmask.models.hub.uses import FINE_TUNED
from unmask.models.hub.weight_names import fill_weights, own_names
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.base import Task, TaskModule
from unmask.tasks.recorded import recorded_task


def module_on_kept_head(settings: FinetuneRecipe, task: Task[Any], encoder: Encoder, source: ModelSource) -> TaskModule:
    """The module with the head of `init_from`, for another task with the same labels. The head keeps its dropout unless
    task.classifier_dropout is set.

    Raises:
        ModelError: the model has no such head, or its weights do not fit.
    """
    loaded = load_model(source, FINE_TUNED)
    _check_kept_head(settings, task, loaded, source.directory)
    _check_kept_features(settings, loaded, source.directory)
    if loaded.head is not None and settings.task.classifier_dropout is None:
        return task.module(encoder, loaded.head)
    module = task.module(encoder)
    head = module.head
    if loaded.head is not None and isinstance(head, WindowClassifier):  # one that learns to weigh windows from now on
        head = head.classifier
    if loaded.head is not None:
        head.load_state_dict(loaded.head.state_dict())
    else:
        assert loaded.head_weights is not None
        fill_weights([head], own_names(head), loaded.head_weights, source.directory / HEAD_WEIGHTS, ())
    return module


def _check_kept_head(settings: FinetuneRecipe, task: Task[Any], loaded: LoadedModel, source: Path) -> None:
    """Raises ModelError for a head that predicts something other than the task."""
    if loaded.head_kind != task.head_kind:
        raise ModelError(
            f"{source} has a head for {loaded.head_kind}, and {settings.task.name} needs one for {task.head_kind}: "
            "leave out keep_head, or start from a model of the same kind"
        )
    if task.head_kind == "sequence_classification":
        number, wanted = len(loaded.labels or ()), len(task.labels) or 1
        if _problem_type(loaded) != task.problem_type or (not task.labels and number != wanted):
            raise ModelError(
                f"{source} has a head for {_problem_type(loaded)} with {counted(number, 'output')}, and "
                f"{settings.task.name} needs one for {task.problem_type} with {counted(wanted, 'output')}: leave "
                "out keep_head, or start from a model of the same kind"
            )
    if task.labels and loaded.labels != task.labels:
        raise ModelError(
            f"{source} has the labels {named(loaded.labels or ())}, and {settings.data.files('train')} has "
            f"{named(task.labels)}: to keep the head give task.labels in the model's order, or leave out keep_head"
        )


def _check_kept_features(settings: FinetuneRecipe, loaded: LoadedModel, source: Path) -> None:
    """Raises ModelError for a head that was made for other features than the recipe gives it."""
    remembered, task = recorded_task(loaded.config), settings.task
    top, tagger = remembered.get("encoder_top", "none"), remembered.get("tagging_head", "linear")
    both_orders = task.reads_both_orders(loaded.encoder.settings.type_vocab_size)
    made_of: dict[str, tuple[Any, Any]] = {  # setting -> what the head was made with, what the recipe has
        "encoder_top": (top, task.encoder_top),
        "two_orders": (loaded.head_class == TwoOrderClassifier.__name__, both_orders),
        "tagging_head": (tagger, task.tagging_head),
    }
    if loaded.head_class == WindowClassifier.__name__:
        made_of |= {"long_text": ("windows", task.long_text), "window_pooling": ("learnt", task.window_pooling)}
    if isinstance(loaded.head, AnswerabilityHead):
        made_of["answerability"] = (True, task.answerability)
    if "bilstm" in (top, tagger):
        made_of["bilstm_size"] = (remembered.get("bilstm_size") or 768, task.bilstm_size)
    if loaded.head_kind == "token_classification" or loaded.encoder.reads_words:
        usual = "last" if loaded.head_kind == "token_classification" else ELMOS
        made_of["feature_layers"] = (remembered.get("feature_layers") or usual, task.feature_layers or usual)
    if others := {key: pair for key, pair in made_of.items() if pair[0] != pair[1]}:
        there, here = (
            " ".join(f"task.{key}={str(pair[side]).lower()}" for key, pair in others.items()) for side in (0, 1)
        )
        raise ModelError(
            f"the head of {source} was made with {there}, and the recipe has {here}: set it as there, or leave out "
            "keep_head"
        )


def _problem_type(loaded: LoadedModel) -> str:
    """How to read the logits of a sequence classifier; where the model does not say, as `transformers` does."""
    alone = "regression" if len(loaded.labels or ()) == 1 else "single_label_classification"
    return loaded.problem_type or alone
