"""The kinds of fine-tuning task, and the facts of each."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from unmask.models.family import HeadKind

TaskKind = Literal["classification", "regression", "qa", "choice", "tagging"]


class KindFacts(NamedTuple):
    """What the programs know of a kind of task, without a task at hand.

    Attributes:
        head: the kind of head that it has.
        endpoint: of the server.
        summary: what the endpoint answers.
        examples: inputs of a request; where texts are read a text, then a pair.
        hub_task: the Hub's `pipeline_tag`.
        group_columns: those of a table by which rows belong together when it is split; the first that exists is used.
        columns: the fields of `ColumnSettings` that apply.
        truth: the attribute of an example that says what is right.
        recorded: the settings that the `config.json` of a fine-tuned model has in any case, beside its name and
            max_length; see `TaskSettings.recorded`.
        decision: the keys of a prediction that say what was decided, of which each has at least one.
        may_abstain: whether it is decided by the probabilities of labels or choices; where a model abstains, the keys
            of `decision` are None.
        needed_columns: those that are read where a plain text is not enough.
        scores_labels: whether a prediction has the `probabilities` of a text's labels, by label.
        is_number: whether a prediction is a number.
        own_way: why the pipeline of `transformers` for `hub_task` does not answer as `unmask` does; empty if it does.
    """

    head: HeadKind
    endpoint: str
    summary: str
    examples: tuple[str | dict[str, Any], ...]
    hub_task: str
    group_columns: tuple[str, ...]
    columns: tuple[str, ...]
    truth: str
    recorded: tuple[str, ...]
    decision: tuple[str, ...]
    may_abstain: bool = False
    needed_columns: tuple[str, ...] = ()
    scores_labels: bool = False
    is_number: bool = False
    own_way: str = ""


FACTS: dict[TaskKind, KindFacts] = {
    "classification": KindFacts(
        head="sequence_classification",
        endpoint="classify",
        summary="Labels of texts, or of pairs",
        examples=("a gripping , beautifully acted film", {"text_a": "A man plays.", "text_b": "Nobody plays."}),
        hub_task="text-classification",
        group_columns=("premise", "sentence1", "text_a", "sentence", "document", "text"),
        columns=("text", "text_a", "text_b", "label", "labels", "id"),
        truth="label",
        recorded=("truncation",),
        decision=("label", "labels"),
        may_abstain=True,
        scores_labels=True,
    ),
    "regression": KindFacts(
        head="sequence_classification",
        endpoint="regress",
        summary="A number for a text, or a pair",
        examples=("a fine film", {"text_a": "A man plays a guitar.", "text_b": "A man plays."}),
        hub_task="text-classification",
        group_columns=("sentence1", "text_a", "sentence", "text"),
        columns=("text", "text_a", "text_b", "label", "id"),
        truth="label",
        recorded=("truncation",),
        decision=("value",),
        is_number=True,
    ),
    "qa": KindFacts(
        head="question_answering",
        endpoint="answer",
        summary="Answers to questions in passages",
        examples=({"question": "Who wrote it?", "context": "The book was written by Ada in London."},),
        hub_task="question-answering",
        group_columns=("title", "context"),
        columns=("question", "context", "answers", "id"),
        truth="gold_texts",
        recorded=(
            *("doc_stride", "max_question_length", "max_answer_length", "n_best"),
            *("unanswerable", "null_threshold", "drop_unfound_answers"),
        ),
        decision=("answer",),
        needed_columns=("question", "context"),
        own_way="`transformers` has no pipeline for question-answering",
    ),
    "choice": KindFacts(
        head="multiple_choice",
        endpoint="choose",
        summary="The best of some choices",
        examples=({"context": "She opened the door and", "choices": ["left.", "seven."]},),
        hub_task="multiple-choice",
        group_columns=("article", "context"),
        columns=("context", "question", "choices", "first_choice", "label", "id"),
        truth="label",
        recorded=("truncation",),
        decision=("choice",),
        may_abstain=True,
        needed_columns=("context", "choices"),
        own_way="`transformers` has no pipeline for multiple-choice",
    ),
    "tagging": KindFacts(
        head="token_classification",
        endpoint="tag",
        summary="Entities, with their characters in the text",
        examples=({"text": "Anna works in Berlin."},),
        hub_task="token-classification",
        group_columns=("document", "tokens", "text"),
        columns=("tokens", "text", "tags", "predicate", "id"),
        truth="tags",
        recorded=("doc_stride", "document_context", "repair_tags", "tagging_head", "bilstm_size"),
        decision=("tags",),
        own_way="`unmask` tags words or characters, and a pipeline tokens",
    ),
}


def labelling_endpoints() -> tuple[str, ...]:
    """Those of the kinds that score the labels of a text."""
    return tuple(facts.endpoint for facts in FACTS.values() if facts.scores_labels)
