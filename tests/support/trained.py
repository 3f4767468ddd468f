"""Texts to train tokenizers on, and tokenizers trained on little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer

ENGLISH = [
    "The quick brown foxes jumped over the lazy dogs, and the dogs slept on.",
    "Walking, talking, jumping and sleeping: the dogs walked, the foxes talked.",
    "A café is a place for coffee; two cafés are two places. Naïve visitors don't visit them. 😀😀😀",
] * 4
KOREAN = [
    "대한민국의 주권은 국민에게 있고, 모든 권력은 국민으로부터 나온다.",
    "모든 국민은 법 앞에 평등하다. 국민의 자유와 권리는 존중된다.",
    "漢字와 한글을 함께 쓰는 글도 있다.",
] * 4


def trained(texts: Iterable[str], **settings: Any) -> TextTokenizer:
    return learn_tokenizer(texts, TokenizerSettings.model_validate(settings))[0]
