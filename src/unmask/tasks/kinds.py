"""The kinds of fine-tuning task, and the facts of each."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

TaskKind = Literal["classification", "regression", "qa", "choice", "tagging"]


class KindFacts(NamedTuple):
    """What the programs know of a kind of task, without a task at hand.

    Attributes:
        endpoint: of the server.
        summary: what the endpoint answers.
        example: an input of a request.
        hub_task: the Hub's `pipeline_tag`.
        group_columns: those of a table by which rows belong together when it is split; the first that exists is used.
        needed_columns: those that are read where a plain text is not enough.
        may_abstain: whether predictions have the probabilities of labels or choices, by which a model may abstain.
    """

    endpoint: str
    summary: str
    example: str | dict[str, Any]
    hub_task: str
    group_columns: tuple[str, ...]
    needed_columns: tuple[str, ...] = ()
    may_abstain: bool = False


FACTS: dict[TaskKind, KindFacts] = {
    "classification": KindFacts(
        endpoint="classify",
        summary="Labels of texts, or of pairs",
        example="a gripping , beautifully acted film",
        hub_task="text-classification",
        group_columns=("premise", "sentence1", "text_a", "sentence", "document", "text"),
        may_abstain=True,
    ),
    "regression": KindFacts(
        endpoint="regress",
        summary="A number for a text, or a pair",
        example={"text_a": "A man plays a guitar.", "text_b": "A man plays."},
        hub_task="text-classification",
        group_columns=("sentence1", "text_a", "sentence", "text"),
    ),
    "qa": KindFacts(
        endpoint="answer",
        summary="Answers to questions in passages",
        example={"question": "Who wrote it?", "context": "The book was written by Ada in London."},
        hub_task="question-answering",
        group_columns=("title", "context"),
        needed_columns=("question", "context"),
    ),
    "choice": KindFacts(
        endpoint="choose",
        summary="The best of some choices",
        example={"context": "She opened the door and", "choices": ["left.", "seven."]},
        hub_task="multiple-choice",
        group_columns=("article", "context"),
        needed_columns=("context", "choices"),
        may_abstain=True,
    ),
    "tagging": KindFacts(
        endpoint="tag",
        summary="Entities, with their characters in the text",
        example={"text": "Anna works in Berlin."},
        hub_task="token-classification",
        group_columns=("document", "tokens", "text"),
    ),
}
