"""Questions about two short passages, files of them, and a tokenizer of their words."""

from __future__ import annotations

from typing import Any

from unmask.tasks.qa.task import QaTask, open_task
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings

KITE = "Mina saw a red kite. Later a blue kite flew by."
HOUSE = "정원에는 오래된 집이 있고, 그 집에는 할머니가 산다."
TOKENIZER = learn_tokenizer(iter([f"{KITE} {HOUSE} who what 누가 어디"] * 9), TokenizerSettings(vocab_size=400), 0)[0]
RED = (9, 19)

WORDS = "zero one two three four five six seven eight nine"
TOKENIZERS = {
    kind: learn_tokenizer(iter([f"{WORDS} 대한민국의 대한민국 각각 값을 café 漢字 who is it?"] * 9), settings, 0)[0]
    for kind, settings in {
        "wordpiece": TokenizerSettings(vocab_size=700),
        "byte_bpe": TokenizerSettings(kind="byte_bpe", vocab_size=700),
        "bpe": TokenizerSettings(kind="bpe", vocab_size=700),
    }.items()
}
"""Each of the words is one token."""


def qa_task(columns: ColumnSettings = ColumnSettings(), **settings: Any) -> QaTask:  # noqa: B008  immutable
    return open_task(TaskSettings.model_validate({"name": "qa", "max_length": 32, **settings}), columns)


def a_question(answers: Any = None, **fields: Any) -> dict[str, Any]:
    given = {} if answers is None else {"answers": answers}
    return {"id": "1", "question": "What?", "context": KITE, **given, **fields}
