"""A tokenizer with a segmenter: texts go through it in training and in use, and the directory remembers it."""

from __future__ import annotations

import json
from pathlib import Path

from unmask.corpus.segmenters import SEGMENTERS
from unmask.tokenization.learning.train import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["나는 학교에 갔습니다. 학교는 크다.", "국민은 법 앞에 평등하다. 국민의 자유와 권리는 존중된다."] * 4
SEGMENTED, _ = train_tokenizer(TEXTS, TokenizerSettings(vocab_size=150, segmenter="kiwi"))
PLAIN, _ = train_tokenizer(TEXTS, TokenizerSettings(vocab_size=150))


def test_texts_are_learned_and_encoded_segmented() -> None:
    segment = SEGMENTERS["kiwi"]()
    by_hand, _ = train_tokenizer(list(map(segment, TEXTS)), TokenizerSettings(vocab_size=150))
    assert SEGMENTED.token_strings == by_hand.token_strings != PLAIN.token_strings
    text = "국민은 학교에 갔습니다."
    assert SEGMENTED.segment(text) == "국민 은 학교 에 갔 습니다."
    assert SEGMENTED.encode_batch([text]) == by_hand.encode_batch([segment(text)])
    (encoded,) = SEGMENTED.encode_inputs([(text, text)])
    assert encoded == by_hand.encode_inputs([(segment(text), segment(text))])[0]
    assert PLAIN.segment(text) == text


def test_special_tokens_stay_whole() -> None:
    assert SEGMENTED.segment("국민은 [MASK]에 갔습니다.[SEP]") == "국민 은 [MASK] 에 갔 습니다. [SEP]"
    (ids,) = SEGMENTED.encode_batch(["국민은 [MASK]에"], specials_in_text=True)
    assert SEGMENTED.mask_id in ids


def test_the_directory_remembers_the_segmenter(tmp_path: Path) -> None:
    SEGMENTED.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_bytes())["unmask_segmenter"] == "kiwi"
    opened = load_tokenizer(tmp_path)
    assert opened.segmenter == "kiwi"
    assert opened.fingerprint() == SEGMENTED.fingerprint()
    assert opened.encode_batch(TEXTS) == SEGMENTED.encode_batch(TEXTS)
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    del config["unmask_segmenter"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    other = load_tokenizer(tmp_path)
    assert other.segmenter == "none"
    assert other.fingerprint() != SEGMENTED.fingerprint()
