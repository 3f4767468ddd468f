"""A tokenizer opened, saved and used; every file that is not what it should be is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trained import trained
from unmask.errors import ModelError, OutputError, SettingsError
from unmask.tokenization.directory import OpenedDirectory
from unmask.tokenization.kinds.wordpiece import SPECIAL_TOKENS
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer, truncated_lengths

TEXTS = ["The quick brown foxes jumped over the lazy dogs.", "대한민국의 주권은 국민에게 있고, “국민”은 모두다."] * 4
UNCASED = trained(TEXTS, vocab_size=400)
CASED = trained(TEXTS, vocab_size=400, lowercase=False)
GOOGLE = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] cafe ##s caf ##é Cafe , ᄒ ##ᅡ ##ᆫ"


def write_vocab(path: Path, entries: list[str]) -> Path:
    path.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    return path


def saved(tokenizer: TextTokenizer, directory: Path) -> Path:
    directory.mkdir()
    tokenizer.save(directory)
    return directory


def test_the_facts_of_the_vocabulary() -> None:
    tokenizer = UNCASED
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert special == tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert len(tokenizer.token_strings) == tokenizer.vocab_size
    expected = [entry.startswith("##") for entry in tokenizer.token_strings]
    assert tokenizer.continuation.dtype == np.bool_
    assert tokenizer.continuation.tolist() == expected
    vocabulary = tokenizer.vocabulary
    assert (vocabulary.size, vocabulary.mask_id, vocabulary.special_ids) == (tokenizer.vocab_size, 4, (0, 1, 2, 3, 4))
    assert vocabulary.continuation is tokenizer.continuation


def test_a_kind_whose_entries_show_nothing_does_not_mark_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.tokenization.definition._read_kind", lambda *_: "new")
    files = {"tokenizer.json": UNCASED.backend.to_str().encode()}
    assert not TextTokenizer(OpenedDirectory(files, SPECIAL_TOKENS)).vocabulary.marks_words


def test_the_fingerprint_is_of_the_content_not_the_layout(tmp_path: Path) -> None:
    directory = saved(UNCASED, tmp_path / "t")
    path = directory / "tokenizer.json"
    content = json.loads(path.read_bytes())
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    content["padding"] = {**padding, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    opened = load_tokenizer(directory)
    assert opened.fingerprint() == UNCASED.fingerprint() != CASED.fingerprint()
    assert opened.encode_batch(TEXTS) == UNCASED.encode_batch(TEXTS)  # neither cut nor padded


def test_words_survive_a_round_trip() -> None:
    words = "the quick brown foxes 대한민국의 주권은"
    (ids,) = UNCASED.encode_batch([words])
    assert UNCASED.decode(ids) == words
    assert UNCASED.tokens(ids)[0] == "the"
    assert UNCASED.decode([UNCASED.cls_id, *ids]) == f"[CLS] {words}"


def test_unknown_characters_are_counted() -> None:
    (ids,) = UNCASED.encode_batch(["the ☃ dogs ☃☃"])
    assert UNCASED.count_unknown(ids) == 2
    assert UNCASED.tokens(ids).count("[UNK]") == 2


def test_special_tokens_in_a_text_are_characters_or_tokens_as_asked() -> None:
    tokenizer = trained(["the [MASK] mask"] * 4)
    (plain,) = tokenizer.encode_batch(["the [MASK]"])
    assert tokenizer.tokens(plain) == ["the", "[", "mask", "]"]
    (special,) = tokenizer.encode_batch(["the [MASK]"], specials_in_text=True)
    assert tokenizer.tokens(special) == ["the", "[MASK]"]
    (encoded,) = tokenizer.encode_inputs([("the [MASK]", None)])
    assert encoded.input_ids == [tokenizer.cls_id, special[0], tokenizer.mask_id, tokenizer.sep_id]
    (encoded,) = tokenizer.encode_inputs([("the [MASK]", None)], specials_in_text=False)
    assert encoded.input_ids == [tokenizer.cls_id, *plain, tokenizer.sep_id]


TRICKY = "aZ é\u0301\u0308가힣\u1100\u1161\u11a8‘”–【】漢ſİß\u200b\t\n\x00\x0c\x1c\x85\xa0\u2028\u3000[]#☃"
TRICKY_TEXTS = [" ".join(TRICKY), TRICKY, TRICKY[::-1]] * 3
TRICKY_TOKENIZERS = [trained(TRICKY_TEXTS, lowercase=lowercase) for lowercase in (False, True)]


@given(st.lists(st.text(st.sampled_from(TRICKY) | st.characters(codec="utf-8"), max_size=30), max_size=6))
def test_skipping_the_normaliser_changes_nothing(texts: list[str]) -> None:
    for tokenizer in TRICKY_TOKENIZERS:
        # No text of so many random characters holds a special token, so both ways are to agree.
        assert tokenizer.encode_batch(texts) == tokenizer.encode_batch(texts, specials_in_text=True)


def test_pairs_are_framed_and_typed() -> None:
    tokenizer = UNCASED
    (a,), (b,) = tokenizer.encode_batch(["the dogs"]), tokenizer.encode_batch(["lazy"])
    pair, single, empty = tokenizer.encode_inputs([("the dogs", "lazy"), ("lazy", None), ("", "")])
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert pair.input_ids == [cls, *a, sep, *b, sep]
    assert pair.token_type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert single.input_ids == [cls, *b, sep]
    assert single.token_type_ids == [0] * (len(b) + 2)
    assert (empty.input_ids, empty.token_type_ids) == ([cls, sep, sep], [0, 0, 1])
    assert not any(encoded.truncated for encoded in (pair, single, empty))


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [
        ((3, 4), 7, (3, 4)),
        ((10, 2), 6, (4, 2)),
        ((2, 10), 6, (2, 4)),
        ((9, 8), 6, (3, 3)),
        ((9, 8), 7, (4, 3)),
        ((8, 9), 7, (3, 4)),
        ((8, 8), 7, (3, 4)),
        ((9, 0), 7, (7, 0)),
        ((1, 1), 0, (0, 0)),
    ],
)
def test_the_longest_is_cut_first(lengths: tuple[int, int], room: int, kept: tuple[int, int]) -> None:
    assert truncated_lengths(*lengths, room) == kept


def test_inputs_are_cut_to_the_length_and_say_so() -> None:
    cut, whole = UNCASED.encode_inputs([("the quick brown foxes", "lazy dogs lazy dogs"), ("the", "the")], max_length=8)
    assert (len(cut.input_ids), cut.truncated) == (8, True)
    assert (len(whole.input_ids), whole.truncated) == (5, False)
    with pytest.raises(SettingsError, match="no room for the 3 special tokens"):
        UNCASED.encode_inputs([("a", "b")], max_length=2)


def test_a_bare_vocabulary_gets_googles_normaliser(tmp_path: Path) -> None:
    path = write_vocab(tmp_path / "vocab.txt", GOOGLE.split())
    for where in (path, tmp_path):
        tokenizer = load_tokenizer(where)
        assert (tokenizer.vocab_size, tokenizer.special_ids) == (15, (0, 2, 3, 4, 5))
        assert tokenizer.tokens(tokenizer.encode_batch(["CAFÉS,"])[0]) == ["cafe", "##s", ","]
        # Without NFC, as released: a syllable falls into its jamo.
        assert tokenizer.tokens(tokenizer.encode_batch(["한"])[0]) == ["ᄒ", "##ᅡ", "##ᆫ"]


def test_the_case_of_a_bare_vocabulary_is_configured(tmp_path: Path) -> None:
    write_vocab(tmp_path / "vocab.txt", GOOGLE.split())
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    cased = load_tokenizer(tmp_path)
    assert cased.tokens(cased.encode_batch(["Cafe café"])[0]) == ["Cafe", "caf", "##é"]
    uncased = load_tokenizer(tmp_path / "vocab.txt")
    assert uncased.tokens(uncased.encode_batch(["Cafe café"])[0]) == ["cafe", "cafe"]
    opened = load_tokenizer(saved(cased, tmp_path / "saved"))
    assert opened.encode_batch(["Cafe café"]) == cased.encode_batch(["Cafe café"])
    config = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_bytes())
    assert (config["tokenizer_class"], config["do_lower_case"]) == ("BertTokenizer", False)


def test_special_tokens_may_be_named_otherwise(tmp_path: Path) -> None:
    write_vocab(tmp_path / "vocab.txt", ["<pad>", "[UNK]", "[CLS]", "[SEP]", "<mask>", "a"])
    config = {"pad_token": {"content": "<pad>", "lstrip": False}, "mask_token": "<mask>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.pad_id, tokenizer.mask_id) == (0, 4)


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"holds no tokenizer: expected tokenizer.json or vocab.txt"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"lacks \[MASK\] \(mask_token\)"):
        load_tokenizer(write_vocab(tmp_path / "few.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    with pytest.raises(ModelError, match=r"line 7: 'a' stands on line 6 already"):
        load_tokenizer(write_vocab(tmp_path / "twice.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "a"]))
    (tmp_path / "latin.txt").write_bytes(b"[PAD]\n\xe9\n")
    with pytest.raises(ModelError, match=r"latin.txt is not UTF-8 text: byte 6"):
        load_tokenizer(tmp_path / "latin.txt")
    path = tmp_path / "tokenizer.json"
    five = {entry: index for index, entry in enumerate(SPECIAL_TOKENS.values())}
    for content, message in [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, found a list"),
        ('{"model": null}', "type is None; expected WordPiece"),
        ('{"model": [1]}', "not laid out as a tokenizer.json"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 0}}, "post_processor": []}', "not laid out"),
        ('{"model": {"type": "BPE"}}', "type is 'BPE'; expected WordPiece as of the BERT family"),
        ('{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}', "type is 'Unigram'; expected WordPiece"),
        ('{"model": {"type": "WordPiece"}}', "not laid out as a tokenizer.json"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "lacks .* expected every special token"),
        (json.dumps({"model": {"type": "WordPiece", "vocab": five}}), "not a tokenizer that this version can open"),
    ]:
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ModelError, match=message):
            load_tokenizer(tmp_path)


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    UNCASED.save(str(directory))
    assert load_tokenizer(directory).fingerprint() == UNCASED.fingerprint()


def test_a_file_is_no_place_to_save_into(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        UNCASED.save(tmp_path / "file")
