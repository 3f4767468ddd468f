"""MRQA 2019's files: after a header a context a line, with its questions and the places of their answers.

Fisch et al. 2019. What is learned is the first span in the context, as in SpanBERT's code, spelt as the context has it,
whatever `text` says, which may be normalised. All `answers` count as right, and nothing else, as in the shared task's
scorer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.json_files import shown
from unmask.io.rows import Row
from unmask.io.tables import read_rows
from unmask.tasks.rows import checked_text


def read_mrqa(path: DataPath) -> Iterator[Row]:
    """Streams the questions of a `.jsonl`, or the rows of any other table.

    Yields:
        `id`, `question`, `context`, and if the file has them `answers`, the spans in their order (or texts without an
        offset where there is no span), and `aliases`, the published `answers`.

    Raises:
        InputError: the file cannot be read, holds no question, or is not laid out like this; the place is named.
    """
    empty = True
    for row in without_header(read_rows(path)):
        empty &= row.fields.get("qas") == []
        if "qas" in row.fields:
            yield from _questions(row)
        else:
            yield row
    if empty:
        raise InputError(f"{path}: there is not a single question in it: expected lines with context and qas")


def without_header(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows but headers, also within files that were put together. A column may be called so: a header is an
    object."""
    return (row for row in rows if row.fields.keys() != {"header"} or not isinstance(row.fields["header"], dict))


def _questions(row: Row) -> Iterator[Row]:
    context = checked_text(row.fields.get("context"), "context", row.source)
    for number, question in enumerate(_objects(row.fields, "qas", "qid and question", row.source), start=1):
        identity = question.get("qid")
        source = f"{row.source}, question {f'number {number}' if identity is None else identity}"
        fields: dict[str, Any] = {"context": context}
        fields |= {name: question[key] for name, key in (("id", "qid"), ("question", "question")) if key in question}
        given = question.get("answers", [])
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise InputError(f"{source}: answers is {shown(given)}: expected a list of texts")
        right = [text for text in given if text.strip()]
        spans = sorted(_spans(question, context, source)) if "detected_answers" in question else []
        starts, texts = ([start for start, _ in spans], [text for _, text in spans]) if spans else (None, right)
        if "answers" in question or spans:
            fields |= {"answers": {"text": texts, "answer_start": starts}, "aliases": right}
        yield Row(fields, source)


def _spans(question: dict[str, Any], context: str, source: str) -> Iterator[tuple[int, str]]:
    """Where each answer begins, and its text: one that is not there is looked for, and refused, like anybody's."""
    for answer in _objects(question, "detected_answers", "text and char_spans", source):
        text, spans = answer.get("text"), answer.get("char_spans")
        for span in spans if isinstance(spans, list) and isinstance(text, str) else [None]:
            if not isinstance(span, list) or [type(place) for place in span] != [int, int]:
                raise InputError(
                    f"{source}: an answer is {shown(answer)}: expected a text, and char_spans as "
                    "[[number of its first character, of its last], ...]"
                )
            start, last = span
            yield start, context[start : last + 1] if 0 <= start <= last < len(context) else str(text)


def _objects(holder: Any, name: str, keys: str, source: str) -> list[dict[str, Any]]:
    value = holder[name]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"{source}: {name} is {shown(value)}: expected a list of objects with {keys}")
    return value
