"""A tokenizer with a segmenter: texts go through it in training and in use, and the directory remembers it."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from support.trained import trained
from unmask.corpus.segmenters import SEGMENTERS
from unmask.tokenization.offsets import align
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["나는 학교에 갔습니다. 학교는 크다.", "국민은 법 앞에 평등하다. 국민의 자유와 권리는 존중된다."] * 4
SEGMENTED = trained(TEXTS, vocab_size=150, segmenter="kiwi")
PLAIN = trained(TEXTS, vocab_size=150)


def test_texts_are_learned_and_encoded_segmented() -> None:
    segment = SEGMENTERS["kiwi"]()
    by_hand = trained(map(segment, TEXTS), vocab_size=150)
    assert SEGMENTED.token_strings == by_hand.token_strings != PLAIN.token_strings
    text = "국민은 학교에 갔습니다."
    assert SEGMENTED.segment(text) == "국민 은 학교 에 갔 습니다."
    assert SEGMENTED.encode_batch([text]) == by_hand.encode_batch([segment(text)])
    (encoded,) = SEGMENTED.encode_inputs([(text, text)])
    assert encoded == by_hand.encode_inputs([(segment(text), segment(text))])[0]
    assert PLAIN.segment(text) == text


def test_tokens_have_their_places_in_the_text_as_it_was_given() -> None:
    text = "국민은  학교에\n갔습니다."
    (aligned,) = align(SEGMENTED, [text])
    pieces = [text[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)]
    assert pieces == ["국민", "은", "학교", "에", "갔", "습니다", "."]
    assert SEGMENTED.decode(aligned.ids) == "국민 은 학교 에 갔 습니다."


def test_a_decomposed_text_is_segmented_as_the_composed_one() -> None:
    composed = "국민은 학교에  Café 갔습니다. 법 [MASK]"
    text = unicodedata.normalize("NFD", composed)
    assert SEGMENTED.segment(text) == SEGMENTED.segment(composed)
    assert SEGMENTED.encode_batch([text]) == SEGMENTED.encode_batch([composed])
    ours, expected = align(SEGMENTED, [text, composed])
    assert ours.ids == expected.ids
    pieces = [text[start:end] for start, end in zip(ours.starts, ours.ends, strict=True)]
    assert [unicodedata.normalize("NFC", piece) for piece in pieces] == [
        composed[start:end] for start, end in zip(expected.starts, expected.ends, strict=True)
    ]
    decomposed = [unicodedata.normalize("NFD", text) for text in TEXTS]
    assert trained(decomposed, vocab_size=150, segmenter="kiwi").fingerprint() == SEGMENTED.fingerprint()


@given(
    text=st.text(
        st.sampled_from("나는학교에갔다했어요할게 ㅋ0aZ.,!“\n\t\u2000\u3000각ᄒᆞᆫ😀e\u0301\u0340\u1100\u1161\u11ab"),
        max_size=40,
    )
)
@example(text=" 국민은 [MASK]에\u3000 갔습니다.[SEP] ")
@example(text="나는\u2000학교 a\u2001b")  # blanks that compose to others
def test_places_are_those_of_what_each_token_stands_for(text: str) -> None:
    (aligned,) = align(SEGMENTED, [text])
    assert [aligned.ids] == SEGMENTED.encode_batch([text], specials_in_text=True)
    assert aligned.starts == sorted(aligned.starts)
    assert aligned.ends == sorted(aligned.ends)
    for index, start, end in zip(aligned.ids, aligned.starts, aligned.ends, strict=True):
        piece = text[start:end]
        assert piece == piece.strip()
        if piece.isascii() and index != SEGMENTED.unk_id:
            assert SEGMENTED.token_strings[index].removeprefix("##") in (piece, piece.lower())


def test_special_tokens_stay_whole() -> None:
    assert SEGMENTED.segment("국민은 [MASK]에 갔습니다.[SEP]") == "국민 은 [MASK] 에 갔 습니다. [SEP]"
    (ids,) = SEGMENTED.encode_batch(["국민은 [MASK]에"], specials_in_text=True)
    assert SEGMENTED.mask_id in ids


def test_the_directory_remembers_the_segmenter(tmp_path: Path) -> None:
    SEGMENTED.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_bytes())
    assert config["unmask_segmenter"] == "kiwi"
    opened = load_tokenizer(tmp_path)
    assert opened.segmenter == "kiwi"
    assert opened.fingerprint() == SEGMENTED.fingerprint()
    assert opened.encode_batch(TEXTS) == SEGMENTED.encode_batch(TEXTS)
    del config["unmask_segmenter"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    other = load_tokenizer(tmp_path)
    assert other.segmenter == "none"
    assert other.fingerprint() != SEGMENTED.fingerprint()
