"""What is read out of a `tokenizer.json` of any origin: its kind, its template, its entries."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import ModelError
from unmask.tokenization.definition import bert_normalizer, read_facts, template
from unmask.tokenization.kinds import bpe, byte_bpe, wordpiece

WORDPIECE_VOCAB = {entry: index for index, entry in enumerate([*wordpiece.SPECIAL_TOKENS.values(), "a", "##b"])}
WORDPIECE = wordpiece.define(WORDPIECE_VOCAB, None, wordpiece.SPECIAL_TOKENS, (), bert_normalizer(True, compose=True))


def framed(post_processor: dict[str, Any] | None) -> tuple[list[Any], list[Any]]:
    """Special ids as they are, texts as their letters, each with its segment."""
    read = read_facts(WORDPIECE | {"post_processor": post_processor}, "here").template
    single, pair = ([(piece.text or piece.ids, piece.segment) for piece in each] for each in (read.single, read.pair))
    return single, pair


def test_templates_are_read() -> None:
    single, pair = framed(template({"<s>": 7, "</s>": 9}, "<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 $B:1 </s>:1"))
    assert single == [((7,), 0), ("A", 0), ((9,), 0)]
    assert pair == [((7,), 0), ("A", 0), ((9,), 0), ("B", 1), ((9,), 1)]
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    assert framed(bert) == ([((2,), 0), ("A", 0), ((3,), 0)], [((2,), 0), ("A", 0), ((3,), 0), ("B", 1), ((3,), 1)])
    roberta = bert | {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
    assert framed(roberta)[1] == [((2,), 0), ("A", 0), ((3,), 0), ((3,), 0), ("B", 0), ((3,), 0)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    assert framed(byte_level) == framed(None) == ([("A", 0)], [("A", 0), ("B", 1)])
    assert framed({"type": "Sequence", "processors": [byte_level, bert]}) == framed(bert)


def test_templates_that_are_not_known_are_refused() -> None:
    with pytest.raises(ModelError, match="here: the post-processor 'Tabulate' is not known"):
        framed({"type": "Tabulate"})
    with pytest.raises(ModelError, match="here: its template has the texts 'AA' and 'AB'"):
        framed(template({}, "$A:0 $A:0", "$A:0 $B:0"))


def test_kinds_are_told_apart() -> None:
    byte_vocab = {character: index for index, character in enumerate(byte_bpe.BYTES)}
    byte_level = byte_bpe.define(byte_vocab, [], {}, (), None)
    of_gpt1 = bpe.define({"<unk>": 0, "a": 1, "a</w>": 2}, [], {"unk_token": "<unk>"}, (), None)
    kinds = [read_facts(each, "here").kind for each in (WORDPIECE, of_gpt1, byte_level)]
    assert kinds == ["wordpiece", "bpe", "byte_bpe"]
    sequence = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, byte_level["pre_tokenizer"]]}
    inside = byte_level | {"pre_tokenizer": sequence}
    assert read_facts(inside, "here").kind == "byte_bpe"
    of_characters = byte_level | {"pre_tokenizer": {"type": "Metaspace"}}
    with pytest.raises(ModelError, match="the model's type is 'BPE'; expected WordPiece"):
        read_facts(of_characters, "here")
    untyped = {key: value for key, value in WORDPIECE["model"].items() if key != "type"}
    assert read_facts(WORDPIECE | {"model": untyped}, "here").kind == "wordpiece"


def test_entries_and_facts() -> None:
    facts = read_facts(WORDPIECE, "here")
    assert facts.entries == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b")
    assert (facts.special_ids, facts.unknown, facts.prefix) == (frozenset(range(5)), "[UNK]", "##")
    token = WORDPIECE["added_tokens"][0] | {"id": 9, "content": "[NEW]"}
    more = read_facts(WORDPIECE | {"added_tokens": [*WORDPIECE["added_tokens"], token]}, "here")
    assert more.entries[7:] == ("", "", "[NEW]")


def test_an_unknown_token_that_is_no_entry_is_refused_where_a_word_may_be_unknown() -> None:
    def naming(definition: dict[str, Any]) -> dict[str, Any]:
        return definition | {"model": definition["model"] | {"unk_token": "[OOV]"}}

    token = WORDPIECE["added_tokens"][0] | {"id": 9, "content": "[OOV]"}  # which the model does not see
    of_gpt1 = bpe.define({"<unk>": 0, "a": 1}, [], {"unk_token": "<unk>"}, (), None)
    for definition in (WORDPIECE, WORDPIECE | {"added_tokens": [token]}, of_gpt1):
        with pytest.raises(ModelError, match=r"here: model.unk_token is '\[OOV\]', which is not in model.vocab"):
            read_facts(naming(definition), "here")
    byte_vocab = {character: index for index, character in enumerate(byte_bpe.BYTES)}
    assert read_facts(naming(byte_bpe.define(byte_vocab, [], {}, (), None)), "here").unknown == "[OOV]"
