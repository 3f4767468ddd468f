"""The head of a fine-tuned model, kept for another task with the same labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.io.progress import counted, named
from unmask.models.encoder import Encoder
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import TwoOrderClassifier, WindowClassifier
from unmask.models.heads.layer_mixture import ELMOS
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import LoadedModel, ModelSource
from unmask.models.hub.uses import FINE_TUNED
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.base import Task, TaskModule


def module_on_kept_head(settings: FinetuneRecipe, task: Task[Any], encoder: Encoder, source: ModelSource) -> TaskModule:
    """The module with the head of `init_from`, for another task with the same labels. The head keeps its dropout unless
    task.classifier_dropout is set.

    Raises:
        ModelError: the model has no such head.
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
    head.load_state_dict(loaded.head.state_dict() if loaded.head is not None else loaded.head_weights or {})
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
    remembered = loaded.config.get("unmask_task", {})
    if (top := remembered.get("encoder_top", "none")) != settings.task.encoder_top:
        raise ModelError(
            f"{source} was fine-tuned with task.encoder_top {top}, and it is {settings.task.encoder_top} here: set "
            f"task.encoder_top={top}, or leave out keep_head"
        )
    orders = loaded.head_class == TwoOrderClassifier.__name__
    if orders != settings.task.reads_both_orders(loaded.encoder.settings.type_vocab_size):
        raise ModelError(
            f"{source} has a head that reads pairs in {'both orders' if orders else 'one order'}, and the task reads "
            f"{'one' if orders else 'both'} here: set task.two_orders={str(orders).lower()}, or leave out keep_head"
        )
    head = remembered.get("tagging_head", "linear")
    if head != settings.task.tagging_head:
        raise ModelError(
            f"{source} has a {'BiLSTM' if head == 'bilstm' else head} head, and task.tagging_head is "
            f"{settings.task.tagging_head}: set task.tagging_head={head}, or leave out keep_head"
        )
    if loaded.head_class == WindowClassifier.__name__ and settings.task.window_pooling != "learnt":
        raise ModelError(
            f"{source} has a head that weighs windows, and task.window_pooling is {settings.task.window_pooling}: set "
            "task.long_text=windows and task.window_pooling=learnt, or leave out keep_head"
        )
    if isinstance(loaded.head, AnswerabilityHead) and not settings.task.answerability:
        raise ModelError(
            f"{source} has a head that classifies answerability, and task.answerability is false: set it to true, or "
            "leave out keep_head"
        )
    made_of: dict[str, Any] = {"bilstm_size": 768} if "bilstm" in (head, top) else {}
    if loaded.head_kind == "token_classification" or loaded.encoder.reads_words:
        made_of["feature_layers"] = "last" if loaded.head_kind == "token_classification" else ELMOS
    for key, usual in made_of.items():
        wanted, found = (each or usual for each in (getattr(settings.task, key), remembered.get(key)))
        if wanted != found:
            raise ModelError(
                f"task.{key} is {wanted}, and the head of {source} was made with {found}: set task.{key}={found}, or "
                "leave out keep_head"
            )


def _problem_type(loaded: LoadedModel) -> str:
    """How to read the logits of a sequence classifier; where the model does not say, as `transformers` does."""
    alone = "regression" if len(loaded.labels or ()) == 1 else "single_label_classification"
    return loaded.problem_type or alone
