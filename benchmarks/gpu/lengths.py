"""Made-up examples with the lengths of published ones: those of MRPC, SST-2 and SQuAD 1.1, in BERT's tokens.

`lengths.json` holds only lengths, special tokens included: of the first 2,048 to 4,096 training examples. The text is
running words of `samples/`, chosen so that each example tokenizes to exactly its length. Labels are random: nothing can
be learnt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LENGTHS = Path(__file__).with_name("lengths.json")
QUESTION_TOKENS = 11
"""Tokens of a SQuAD question, roughly; the rest of an example is its passage."""
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
SST2_HEADER = "sentence\tlabel"


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        text: the first text, or the question.
        second: the second text, or the passage; None if there is only one text.
        label: the number of a class; for a question, the character of the passage where its answer begins.
        answer: of a question; "" for other tasks.
    """

    text: str
    second: str | None
    label: int
    answer: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.second is None else (self.text, self.second)


def read_lengths(task: str, most: int | None = None) -> list[int]:
    """The lengths of the examples of a task (`mrpc`, `sst2` or `squad`), of the first `most` if given."""
    lengths: list[int] = json.loads(LENGTHS.read_bytes())[task][:most]
    return lengths


class Words:
    """The words of some texts in order, over and over, with the number of tokens of each one.

    Args:
        texts: English; only runs of the letters a to z are taken, so that each word is tokenized by itself.
        tokenizer: WordPiece, uncased.
    """

    def __init__(self, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        words = [word for text in texts for word in re.findall("[a-z]+", text.lower())]
        distinct = sorted(set(words))
        encoded = tokenizer.encode_batch(distinct, add_special_tokens=False)
        unknown = tokenizer.token_to_id("[UNK]")
        sizes = {word: len(its.ids) for word, its in zip(distinct, encoded, strict=True) if unknown not in its.ids}
        self._words = cycle([(word, sizes[word]) for word in words if word in sizes])
        self._single = cycle([word for word in words if sizes.get(word) == 1])

    def take(self, num_tokens: int) -> str:
        """The next words, `num_tokens` tokens in all; once the next one is too long, words of one token follow."""
        taken = []
        while num_tokens > 0:
            word, size = next(self._words)
            if size > num_tokens:
                word, size = next(self._single), 1
            taken.append(word)
            num_tokens -= size
        return " ".join(taken)


def read_texts(corpus: Path) -> list[str]:
    """The texts of a `.jsonl` corpus."""
    return [json.loads(line)["text"] for line in corpus.read_text("utf-8").splitlines()]


def make_examples(task: str, lengths: Sequence[int], words: Words, seed: int = 0) -> list[Example]:
    """Examples of exactly these lengths, [CLS] and [SEP] counted: pairs for `mrpc` and `squad`, texts for `sst2`."""
    draws = Random(f"{task} {seed}")
    return [_MAKERS[task](length, words, draws) for length in lengths]


def _pair(length: int, words: Words, draws: Random) -> Example:
    first = (length - 3) // 2
    return Example(words.take(first), words.take(length - 3 - first), draws.randrange(2))


def _single(length: int, words: Words, draws: Random) -> Example:
    return Example(words.take(length - 2), None, draws.randrange(2))


def _question(length: int, words: Words, draws: Random) -> Example:
    question = min(QUESTION_TOKENS, (length - 3) // 2)
    text, passage = words.take(question), words.take(length - 3 - question)
    answers = list(re.finditer("[a-z]+", passage))
    chosen = draws.choice(answers)
    return Example(text, passage, chosen.start(), chosen.group())


_MAKERS = {"mrpc": _pair, "sst2": _single, "squad": _question}


def write_examples(task: str, examples: Sequence[Example], path: Path) -> None:
    """Writes examples in their published layouts: GLUE's tables, SQuAD's JSON."""
    if task == "squad":
        path.write_text(json.dumps({"version": "1.1", "data": [_article(examples)]}), "utf-8")
        return
    if task == "mrpc":
        lines = [f"{its.label}\t{n}\t{n}\t{its.text}\t{its.second}" for n, its in enumerate(examples)]
    else:
        lines = [f"{its.text}\t{its.label}" for its in examples]
    header = MRPC_HEADER if task == "mrpc" else SST2_HEADER
    path.write_text("".join(f"{line}\n" for line in (header, *lines)), "utf-8")


def _article(examples: Sequence[Example]) -> dict[str, Any]:
    paragraphs = [
        {
            "context": its.second,
            "qas": [
                {"id": str(number), "question": its.text, "answers": [{"text": its.answer, "answer_start": its.label}]}
            ],
        }
        for number, its in enumerate(examples)
    ]
    return {"title": "words", "paragraphs": paragraphs}
