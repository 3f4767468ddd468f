"""Both generations of the `tokenizers` library: the newer one, which may not be installed, is played by the older."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from unmask.errors import ModelError, SettingsError
from unmask.tokenization import library
from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.directory import new_files
from unmask.tokenization.kinds import bpe, byte_bpe, wordpiece
from unmask.tokenization.kinds.byte_bpe import BYTES
from unmask.tokenization.library import open_definition, word_splitter
from unmask.tokenization.tokenizer import TextTokenizer

ENTRIES = [*wordpiece.SPECIAL_TOKENS.values(), "the", "dog", "##s", "국", "##민", "[", "]", "mask"]
VOCAB = {entry: index for index, entry in enumerate(ENTRIES)}
WORDPIECE = wordpiece.define(VOCAB, None, wordpiece.SPECIAL_TOKENS, (), bert_normalizer(True, compose=True))


class NewTokenizer:
    """What 1.0.0rc3 offers of `Tokenizer`, done by the older generation."""

    lost_mark = ""

    def __init__(self, path: str) -> None:
        self._old = tokenizers.Tokenizer.from_file(path)

    @classmethod
    def from_file(cls, path: str) -> NewTokenizer:
        return cls(path)

    def encode_batch(
        self, inputs: list[Any], *, add_special_tokens: bool = True, encode_special_tokens: bool = False
    ) -> list[Any]:
        self._old.encode_special_tokens = encode_special_tokens
        if self.lost_mark:
            said = json.dumps(json.loads(self._old.to_str()) | {"pre_tokenizer": {"type": "BertPreTokenizer"}})
            marked = '"end_of_word_suffix": "</w>"'
            self._old = tokenizers.Tokenizer.from_str(said.replace(marked, '"end_of_word_suffix": ""'))
        return self._old.encode_batch(inputs, add_special_tokens=add_special_tokens)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self._old.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library.CAN_TRAIN:
        return
    monkeypatch.setattr(library, "CAN_TRAIN", False)
    monkeypatch.setattr(library, "Tokenizer", NewTokenizer)
    monkeypatch.setattr(NewTokenizer, "lost_mark", "")


def opened() -> TextTokenizer:
    files = new_files(WORDPIECE, wordpiece.SPECIAL_TOKENS, {}, has_segments=True)
    return TextTokenizer(files, wordpiece.SPECIAL_TOKENS)


def check(tokenizer: TextTokenizer) -> None:
    texts = ["The dogs\u200b [MASK] \u1100\u116e\u11a8민", "", "☃"]
    plain = [["the", "dog", "##s", "[", "mask", "]", "국", "##민"], [], ["[UNK]"]]
    special = [["the", "dog", "##s", "[MASK]", "국", "##민"], [], ["[UNK]"]]
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode_batch(texts)] == plain
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode_batch(texts, specials_in_text=True)] == special
    assert tokenizer.decode([2, 5, 6, 7, 3], skip_specials=True) == "the dogs"
    (pair,) = tokenizer.encode_inputs([("the", "dogs")])
    assert tokenizer.tokens(pair.input_ids) == ["[CLS]", "the", "[SEP]", "dog", "##s", "[SEP]"]
    assert tokenizer.continuation.tolist() == np.char.startswith(ENTRIES, "##").tolist()
    assert tokenizer.backend.get_vocab(with_added_tokens=True) == VOCAB
    assert {token.content for token in tokenizer.backend.get_added_tokens_decoder().values()} == set(ENTRIES[:5])


def test_the_library_installed() -> None:
    check(opened())


@pytest.mark.usefixtures("newer")
def test_the_newer_generation() -> None:
    check(opened())


@pytest.mark.usefixtures("newer")
def test_the_newer_generation_cannot_train() -> None:
    with pytest.raises(SettingsError, match=r"cannot train: install an older one .*pip install 'tokenizers<1'"):
        word_splitter(None, byte_bpe.BYTE_BPE.pre_tokenizer)


@pytest.mark.skipif(not library.CAN_TRAIN, reason="plays the newer generation")
@pytest.mark.usefixtures("newer")
def test_a_library_that_loses_the_mark_of_a_word_of_one_letter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = {entry: index for index, entry in enumerate(["<unk>", "a", "b", "a</w>", "b</w>"])}
    definition = bpe.define(vocab, [], {"unk_token": "<unk>"}, (), None)
    assert open_definition(definition).encode_batch_fast(["a"])[0].ids == [3]
    monkeypatch.setattr(NewTokenizer, "lost_mark", "</w>")
    with pytest.raises(ModelError, match=r"here: tokenizers .* encodes words of one letter without their end-of-word"):
        open_definition(definition, "here")


def test_what_the_library_does_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="here is not a tokenizer that this version can open"):
        open_definition({"model": {"type": "WordPiece", "vocab": {}}}, "here")
    definition = byte_bpe.define({character: index for index, character in enumerate(BYTES)}, [], {}, (), None)
    assert open_definition(definition | {"padding": {"wrong": 1}}).encode_batch_fast(["é"])[0].ids == [127, 102]
