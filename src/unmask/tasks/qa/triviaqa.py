"""TriviaQA's files: questions, their answer with its aliases, and evidence documents in separate files.

Joshi et al. 2017, read as for BERT's "TriviaQA, then SQuAD" (Devlin et al. 2019, section 4.2): the first 400 tokens of
each document, in which the answer is found by its text. Departures from the authors' script: tokens are separated by
white space, so that offsets are those of the document; an answer is found only as whole words (not "art" in "party");
and the answer itself is looked for before its aliases. Measuring leaves documents whose first words do not hold the
answer out of the denominator, which the authors' scorer does not: figures here are higher. The answer and all of its
aliases, each normalised, count as right; for that scorer NormalizedAliases as given, and HumanAnswers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.io.input_files import DataPath, as_files
from unmask.io.json_files import load_list, shown
from unmask.io.rows import Row

NUM_WORDS = 400
"""Words read of each document."""

FOLDERS = {"EntityPages": "wikipedia", "SearchResults": "web"}
"""The folder in `evidence` for the documents of each list."""

_WORD = re.compile(r"\S+")


def read_triviaqa(path: DataPath) -> Iterator[Row]:
    """Streams a row for each document of each question.

    Args:
        path: such as `qa/wikipedia-train.json`, with the folder `evidence` beside `qa`.

    Yields:
        `id` (`<question>--<document>`, as in the authors' scorer), `question`, `context`, `aliases`, and `answers`,
        empty if the first words of the document hold none; no `answers` if the file has none.

    Raises:
        InputError: the file or a document cannot be read, or is not laid out like this; the place is named.
    """
    evidence = _evidence_folder(as_files(path).path)
    empty = True
    for number, datum in enumerate(load_list(as_files(path), "Data"), start=1):
        if not isinstance(datum, dict) or not all(isinstance(datum.get(k), str) for k in ("Question", "QuestionId")):
            raise InputError(f"{path}: question {number}: expected an object with Question and QuestionId as texts")
        place = f"{path}: {datum['QuestionId']}"
        answers = _answers(datum.get("Answer"), place)
        for file in _documents(datum, place):
            empty = False
            context = _first_words(evidence / file, place)
            fields: dict[str, Any] = {
                "id": f"{datum['QuestionId']}--{file.name}",
                "question": datum["Question"],
                "context": context,
            }
            if answers:
                fields |= {"answers": _find(context, answers), "aliases": answers}
            yield Row(fields, f"{place}, {file}")
    if empty:
        raise InputError(f"{path}: not a single question with a document: expected EntityPages or SearchResults")


def _evidence_folder(path: Path) -> Path:
    folders = [path.absolute().parent.parent / "evidence", path.absolute().parent / "evidence"]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise InputError(f"{path}: no folder {folders[0]} with the documents: unpack TriviaQA's archive as it is")


def _documents(datum: dict[str, Any], place: str) -> Iterator[Path]:
    """Paths inside `evidence`."""
    for name, folder in FOLDERS.items():
        pages = datum.get(name) or []
        for page in pages if isinstance(pages, list) else [None]:
            filename = page.get("Filename") if isinstance(page, dict) else None
            if not isinstance(filename, str) or not filename:
                raise InputError(f"{place}: {name} is {shown(pages)}: expected pages with a Filename")
            if Path(filename).is_absolute() or ".." in Path(filename).parts:
                raise InputError(f"{place}: the document {filename!r} is outside the folder of evidence: take it out")
            yield Path(folder, filename)


def _answers(answer: Any, place: str) -> list[str]:
    """The answer, then its aliases as written, then those in lower case and without punctuation."""
    if answer is None:
        return []
    texts: list[Any] = []
    if isinstance(answer, dict):
        texts = [answer.get("Value"), *(answer.get("Aliases") or []), *(answer.get("NormalizedAliases") or [])]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{place}: Answer is {shown(answer)}: expected Value, Aliases and NormalizedAliases")
    return list(dict.fromkeys(text for text in texts if text.strip()))


def _first_words(document: Path, place: str) -> str:
    try:
        text = document.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise InputError(
            f"{place}: its document {document} cannot be read ({why}): unpack TriviaQA's archive as it is"
        ) from error
    end = 0
    for count, word in enumerate(_WORD.finditer(text), start=1):
        end = word.end()
        if count == NUM_WORDS:
            break
    return text[:end]


def _find(context: str, answers: Sequence[str]) -> dict[str, list[Any]]:
    """The first of `answers` that the passage holds as whole words, ignoring case."""
    lowered = context.lower()
    for text in answers:
        if text.lower() not in lowered:
            continue  # looking here first is many times faster
        found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context, re.IGNORECASE)
        if found is not None:
            return {"text": [found.group()], "answer_start": [found.start()]}
    return {"text": [], "answer_start": []}
