"""A word with a mask in place of one of its pieces has the ids that training gives it: the piece's alone are others."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.tokenization.encoding.behind_masks import continuing_ids
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.offsets import align
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

TEXTS = {
    "ko": "그는 1994년에 서울대학교를 졸업하였다. 나는 라디오에서 들었다(뉴스)! 대한민국의 수도는 서울이다.",
    "en": "He was unaffectedly hurrying, and isn't the blue-eyed man's shadows' king; 1994s naïvely undone.",
}


def ids_of(tokenizer: TextTokenizer, text: str) -> list[int]:
    [aligned] = align(tokenizer, [text])
    return continuing_ids(tokenizer, text, aligned)


@pytest.mark.parametrize("name", ["en", "ko", "uncased"])
def test_a_masked_piece_leaves_the_others_as_they_are(name: str, samples_dir: Path) -> None:
    text = TEXTS.get(name, TEXTS["en"])
    if name == "uncased":
        tokenizer, _ = learn_tokenizer(iter([text] * 9), TokenizerSettings(vocab_size=80), seed=0)
    else:
        tokenizer = load_tokenizer(samples_dir / "models" / name)
    [aligned] = align(tokenizer, [text])
    continued = 0
    for index, (start, end) in enumerate(zip(aligned.starts, aligned.ends, strict=True)):
        if text[start:end].isalnum() and text[start:end].isascii() == (name != "ko"):
            masked = f"{text[:start]}[MASK]{text[end:]}"
            expected = [*aligned.ids[:index], tokenizer.mask_id, *aligned.ids[index + 1 :]]
            assert ids_of(tokenizer, masked) == expected, masked
            continued += bool(tokenizer.continuation[aligned.ids[index + 1]])
    assert continued > 4


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("[MASK]를[MASK]에서 왔다", ["[MASK]", "##를", "[MASK]", "##에서", "왔다"]),
        ("[MASK]에서\u3000서울", ["[MASK]", "##에서", "서울"]),
        ("[MASK]\u110b\u1166\u1109\u1165 서울", ["[MASK]", "##에서", "서울"]),  # decomposed
        ("[MASK]. [MASK],를 [MASK]大 서울", ["[MASK]", ".", "[MASK]", ",", "를", "[MASK]", "大", "서울"]),
        ("大[MASK]를 ([MASK]를", ["大", "[MASK]", "를", "(", "[MASK]", "##를"]),  # an ideograph is a word by itself
        ("[MASK] 에서 [MASK]", ["[MASK]", "에서", "[MASK]"]),
        ("[MASK]뷁를", ["[MASK]", "[UNK]"]),  # no entry continues a word with its first letter
        ("[MASK]" + "를" * 101, ["[MASK]", "[UNK]"]),  # longer than a word may be
        ("서울에서", ["서울", "##에서"]),
    ],
)
def test_up_to_the_end_of_its_word(text: str, entries: list[str], samples_dir: Path) -> None:
    tokenizer = load_tokenizer(samples_dir / "models" / "ko")
    assert tokenizer.tokens(ids_of(tokenizer, text)) == entries


def test_byte_level_entries_show_that_no_blank_is_there() -> None:
    settings = TokenizerSettings(kind="byte_bpe", vocab_size=300)
    tokenizer, _ = learn_tokenizer(iter(["a man walking, a man talks"] * 9), settings, seed=0)
    text = "a <mask>ing man"
    [aligned] = align(tokenizer, [text])
    assert continuing_ids(tokenizer, text, aligned) == aligned.ids
    assert tokenizer.continuation[aligned.ids[aligned.ids.index(tokenizer.mask_id) + 1]]
