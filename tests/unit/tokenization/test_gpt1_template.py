"""Tokens around inputs, for GPT-1 vocabularies without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.trained import trained
from unmask.tokenization.gpt1_template import load_tokenizer_with_template, without_template
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["a man and a dog"] * 5


def released(directory: Path, *entries: str) -> Path:
    """As GPT-1's release has it: a vocabulary and its merges."""
    vocab = ["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>", *entries]
    directory.mkdir()
    (directory / "encoder_bpe_40000.json").write_text(json.dumps({entry: index for index, entry in enumerate(vocab)}))
    (directory / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n")
    return directory


def test_three_tokens_are_appended_and_frame_inputs(tmp_path: Path) -> None:
    tokenizer, new = load_tokenizer_with_template(released(tmp_path / "gpt1"))
    assert new == ("_start_", "_delimiter_", "_classify_")
    assert tokenizer.token_strings[6:] == new
    assert (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id) == (6, 7, 8)
    single, pair = tokenizer.encode_inputs([("ab", None), ("ab", "b")])
    assert (single.input_ids, pair.input_ids) == ([6, 5, 8], [6, 5, 7, 4, 8])
    assert tokenizer.special_ids == (0, 6, 7, 8)
    tokenizer.save(tmp_path)
    again, more = load_tokenizer_with_template(tmp_path)
    assert more == ()
    assert again.fingerprint() == tokenizer.fingerprint() == load_tokenizer(tmp_path).fingerprint()


def test_those_that_are_there_get_their_role(tmp_path: Path) -> None:
    tokenizer, new = load_tokenizer_with_template(released(tmp_path / "gpt1", "_start_", "_classify_"))
    assert new == ("_delimiter_",)
    [row] = tokenizer.encode_inputs([("ab", "b")])
    assert tokenizer.tokens(row.input_ids) == ["_start_", "ab</w>", "_delimiter_", "b</w>", "_classify_"]


def test_ids_that_are_not_used_stay_unused(tmp_path: Path) -> None:
    directory = released(tmp_path / "gpt1")
    vocabulary = directory / "encoder_bpe_40000.json"
    vocabulary.write_text(json.dumps({**json.loads(vocabulary.read_text()), "b": 9, "ab</w>": 12}))
    before = load_tokenizer(directory)
    tokenizer, new = load_tokenizer_with_template(directory)
    assert tokenizer.token_strings == (*before.token_strings, *new)
    assert (tokenizer.bos_id, tokenizer.sep_id, tokenizer.cls_id) == (13, 14, 15)


def test_a_frame_is_taken_off_and_given_back(tmp_path: Path) -> None:
    tokenizer = trained(TEXTS, kind="bpe", vocab_size=300, extra_special_tokens=["[other]"])
    bare = without_template(tokenizer)
    (ids,) = tokenizer.encode_batch(["a man"])
    assert [row.input_ids for row in bare.encode_inputs([("a man", None), ("a man", "a man")])] == [ids, [*ids, *ids]]
    assert (bare.token_strings, bare.special_ids) == (tokenizer.token_strings, tokenizer.special_ids)
    assert without_template(bare).fingerprint() == bare.fingerprint() != tokenizer.fingerprint()
    bare.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint() == bare.fingerprint()
    framed, new = load_tokenizer_with_template(tmp_path)
    assert new == ()
    assert framed.fingerprint() == tokenizer.fingerprint()
    assert framed.find_role("pad_token") == tokenizer.pad_id


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_other_kinds_keep_their_template(kind: str) -> None:
    tokenizer = trained(TEXTS, kind=kind, vocab_size=300)
    assert without_template(tokenizer) is tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "bpe"])
def test_what_frames_inputs_already_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    tokenizer = trained(TEXTS, kind=kind, vocab_size=300)
    tokenizer.save(tmp_path)
    opened, new = load_tokenizer_with_template(tmp_path)
    assert new == ()
    assert opened.fingerprint() == tokenizer.fingerprint()


def test_the_released_vocabulary(data_dir: Path) -> None:
    tokenizer, new = load_tokenizer_with_template(data_dir / "reference" / "gpt1")
    assert len(new) == 3
    assert tokenizer.vocab_size == 40478 + 3
