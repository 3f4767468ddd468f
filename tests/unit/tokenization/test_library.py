"""What is asked of the `tokenizers` library."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.errors import ModelError
from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.directory import OpenedDirectory, new_files
from unmask.tokenization.kinds import byte_bpe, wordpiece
from unmask.tokenization.kinds.byte_bpe import BYTES
from unmask.tokenization.library import open_definition
from unmask.tokenization.tokenizer import TextTokenizer

ENTRIES = [*wordpiece.SPECIAL_TOKENS.values(), "the", "dog", "##s", "국", "##민", "[", "]", "mask"]
VOCAB = {entry: index for index, entry in enumerate(ENTRIES)}
WORDPIECE = wordpiece.define(VOCAB, None, wordpiece.SPECIAL_TOKENS, (), bert_normalizer(True, compose=True))


def test_a_tokenizer_encodes_and_decodes() -> None:
    files = new_files(WORDPIECE, wordpiece.SPECIAL_TOKENS, {}, has_segments=True)
    tokenizer = TextTokenizer(OpenedDirectory(files, wordpiece.SPECIAL_TOKENS))
    texts = ["The dogs\u200b [MASK] \u1100\u116e\u11a8민", "", "☃"]
    plain = [["the", "dog", "##s", "[", "mask", "]", "국", "##민"], [], ["[UNK]"]]
    special = [["the", "dog", "##s", "[MASK]", "국", "##민"], [], ["[UNK]"]]
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode_batch(texts)] == plain
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode_batch(texts, specials_in_text=True)] == special
    assert tokenizer.decode([5, 6, 7]) == "the dogs"
    (pair,) = tokenizer.encode_inputs([("the", "dogs")])
    assert tokenizer.tokens(pair.input_ids) == ["[CLS]", "the", "[SEP]", "dog", "##s", "[SEP]"]
    assert tokenizer.continuation.tolist() == np.char.startswith(ENTRIES, "##").tolist()
    assert tokenizer.backend.get_vocab(with_added_tokens=True) == VOCAB
    assert {token.content for token in tokenizer.backend.get_added_tokens_decoder().values()} == set(ENTRIES[:5])


def test_what_the_library_does_not_take_is_named() -> None:
    with pytest.raises(ModelError, match="here is not a tokenizer that this version can open"):
        open_definition({"model": {"type": "WordPiece", "vocab": {}}}, "here")
    definition = byte_bpe.define({character: index for index, character in enumerate(BYTES)}, [], {}, (), None)
    assert open_definition(definition | {"padding": {"wrong": 1}}).encode_batch_fast(["é"])[0].ids == [127, 102]
