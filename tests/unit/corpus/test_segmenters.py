"""Segmenters compose a text, put spaces between morphemes and change nothing else."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from unmask.corpus.segmenters import SEGMENTERS, load_kiwi
from unmask.errors import SettingsError
from unmask.tokenization.tokenizer import load_tokenizer

LETTERS = "나는학교에갔다했어요할게이걸로 ㅋㅠ0aZ.,!?()“”·%℃\n\t\u2028\u3000각ᆨᄒᆞᆫ😀é"
KOREAN = st.text(st.sampled_from(LETTERS), max_size=60)


@cache
def kiwi() -> Any:
    return SEGMENTERS["kiwi"]()


def segment(text: str) -> str:
    segmented: str = kiwi()(text)
    return segmented


@pytest.mark.parametrize(
    ("text", "segmented"),
    [
        ("나는 학교에 갔습니다.", "나 는 학교 에 갔 습니다."),
        ("했다", "했 다"),  # 하 + 었 + 다, the first two in one syllable
        ("학교에 간다.", "학교 에 간다."),  # 가 + ㄴ다, the second beginning within a syllable
        ("iPhone은 12월에 나왔다", "iPhone 은 12 월 에 나왔 다"),
        ("서울(한국)에서는", "서울(한국)에서 는"),  # next to punctuation no space is needed
        ("윈도우 탐색기", "윈도우 탐색 기"),  # a name of two words, cut like any other
        ("나는\n간다\n", "나 는\n간다\n"),
        (unicodedata.normalize("NFD", "학교에 간다."), "학교 에 간다."),
    ],
)
def test_spaces_stand_between_morphemes(text: str, segmented: str) -> None:
    assert segment(text) == segmented


@pytest.mark.parametrize(
    "text", ["", " ", "Hello, wonderful world. It's fine.\r\n", "中文 日本語です", "12345 + α = ñ"]
)
def test_text_without_hangul_is_left_alone(text: str) -> None:
    assert segment(text) == text


@given(text=KOREAN | st.text())
@example(text="\x00가\x1c나다.\x85다음")
def test_only_spaces_are_added(text: str) -> None:
    segmented = segment(text)
    text = unicodedata.normalize("NFC", text)
    rest = iter(segmented)
    for character in text:  # what was there is there still, in order, white space included
        skipped = next(rest)
        while skipped != character:
            assert skipped == " "
            skipped = next(rest)
    assert list(rest) == []
    assert "".join(segmented.split()) == "".join(text.split())
    assert segmented.count("  ") == text.count("  ")


@given(texts=st.lists(KOREAN, min_size=1, max_size=4))
def test_a_line_is_cut_the_same_whatever_stands_around_it(texts: list[str]) -> None:
    lines = [line for text in texts for line in text.splitlines()]
    assert segment("\n".join(lines)) == "\n".join(map(segment, lines))


@pytest.mark.parametrize("line", ["나는 학교에 갔습니다. ", "가나다라"])
def test_a_very_long_line_is_cut_in_pieces_of_bounded_cost(line: str) -> None:
    text = line * (12_000 // len(line))
    segmented = segment(text)
    assert segmented.replace(" ", "") == text.replace(" ", "")
    if " " in line:
        assert segmented == segment(line) * (12_000 // len(line))


def test_segmented_text_encodes_as_in_transformers(tmp_path: Path) -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "나", "는", "학교", "에", "갔", "습니다", "##니다", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    ours = load_tokenizer(tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    ours.save(saved)
    segmented = segment("나는 학교에 갔습니다.")
    ids = ours.encode_batch([segmented])[0]
    assert ours.tokens(ids) == ["나", "는", "학교", "에", "갔", "습니다", "."]
    assert AutoTokenizer.from_pretrained(saved)(segmented, add_special_tokens=False)["input_ids"] == ids


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    with pytest.raises(SettingsError, match=r"kiwipiepy.*pip install 'unmask\[ko\]'"):
        load_kiwi()


def test_a_process_loads_it_once() -> None:
    assert SEGMENTERS["kiwi"]() is SEGMENTERS["kiwi"]()
