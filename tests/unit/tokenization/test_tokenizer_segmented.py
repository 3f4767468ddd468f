"""A tokenizer with a segmenter: texts go through it in training and in use, and the directory remembers it."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from support.trained import trained
from unmask.corpus.segmenters import SEGMENTERS
from unmask.tokenization.offsets import align
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

TEXTS = ["나는 학교에 갔습니다. 학교는 크다.", "국민은 법 앞에 평등하다. 국민의 자유와 권리는 존중된다."] * 4


@cache
def segmented() -> TextTokenizer:
    return trained(TEXTS, vocab_size=150, segmenter="kiwi")


def test_texts_are_learned_and_encoded_segmented() -> None:
    segment, plain = SEGMENTERS["kiwi"](), trained(TEXTS, vocab_size=150)
    by_hand = trained(map(segment, TEXTS), vocab_size=150)
    assert segmented().token_strings == by_hand.token_strings != plain.token_strings
    text = "국민은 학교에 갔습니다."
    assert segmented().segment(text) == "국민 은 학교 에 갔 습니다."
    assert segmented().encode_batch([text]) == by_hand.encode_batch([segment(text)])
    (encoded,) = segmented().encode_inputs([(text, text)])
    assert encoded == by_hand.encode_inputs([(segment(text), segment(text))])[0]
    assert plain.segment(text) == text


def test_tokens_have_their_places_in_the_text_as_it_was_given() -> None:
    text = "국민은  학교에\n갔습니다."
    (aligned,) = align(segmented(), [text])
    pieces = [text[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)]
    assert pieces == ["국민", "은", "학교", "에", "갔", "습니다", "."]
    assert segmented().decode(aligned.ids) == "국민 은 학교 에 갔 습니다."


def test_a_decomposed_text_is_segmented_as_the_composed_one() -> None:
    composed = "국민은 학교에  Café 갔습니다. 법 [MASK]"
    text = unicodedata.normalize("NFD", composed)
    assert segmented().segment(text) == segmented().segment(composed)
    assert segmented().encode_batch([text]) == segmented().encode_batch([composed])
    ours, expected = align(segmented(), [text, composed])
    assert ours.ids == expected.ids
    pieces = [text[start:end] for start, end in zip(ours.starts, ours.ends, strict=True)]
    assert [unicodedata.normalize("NFC", piece) for piece in pieces] == [
        composed[start:end] for start, end in zip(expected.starts, expected.ends, strict=True)
    ]
    decomposed = [unicodedata.normalize("NFD", text) for text in TEXTS]
    assert trained(decomposed, vocab_size=150, segmenter="kiwi").fingerprint() == segmented().fingerprint()


@given(
    text=st.text(
        st.sampled_from("나는학교에갔다했어요할게 ㅋ0aZ.,!“\n\t\u2000\u3000각ᄒᆞᆫ😀e\u0301\u0340\u1100\u1161\u11ab"),
        max_size=40,
    )
)
@example(text=" 국민은 [MASK]에\u3000 갔습니다.[SEP] ")
@example(text="나는\u2000학교 a\u2001b")  # blanks that compose to others
def test_places_are_those_of_what_each_token_stands_for(text: str) -> None:
    (aligned,) = align(segmented(), [text])
    assert [aligned.ids] == segmented().encode_batch([text], specials_in_text=True)
    assert aligned.starts == sorted(aligned.starts)
    assert aligned.ends == sorted(aligned.ends)
    for index, start, end in zip(aligned.ids, aligned.starts, aligned.ends, strict=True):
        piece = text[start:end]
        assert piece == piece.strip()
        if piece.isascii() and index != segmented().unk_id:
            assert segmented().token_strings[index].removeprefix("##") in (piece, piece.lower())


def test_special_tokens_stay_whole() -> None:
    assert segmented().segment("국민은 [MASK]에 갔습니다.[SEP]") == "국민 은 [MASK] 에 갔 습니다. [SEP]"
    (ids,) = segmented().encode_batch(["국민은 [MASK]에"], specials_in_text=True)
    assert segmented().mask_id in ids


def test_the_directory_remembers_the_segmenter(tmp_path: Path) -> None:
    segmented().save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    assert config["unmask_segmenter"] == "kiwi"
    opened = load_tokenizer(tmp_path)
    assert opened.segmenter == "kiwi"
    assert opened.fingerprint() == segmented().fingerprint()
    assert opened.encode_batch(TEXTS) == segmented().encode_batch(TEXTS)
    del config["unmask_segmenter"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    other = load_tokenizer(tmp_path)
    assert other.segmenter == "none"
    assert other.fingerprint() != segmented().fingerprint()
