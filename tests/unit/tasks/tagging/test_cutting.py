"""Pieces are cut where entities begin or end, and what cannot be found all the same is counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from support.trained import trained
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.settings import TaskSettings
from unmask.tasks.tagging.cutting import cut_at_entities, warn_of_cut_entities
from unmask.tasks.tagging.decoding import decode_sentences
from unmask.tasks.tagging.rows import TaggingExample
from unmask.tasks.tagging.schemes import find_entities, to_bio
from unmask.tasks.tagging.windows import encode_sentences
from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.directory import new_files
from unmask.tokenization.kinds import wordpiece
from unmask.tokenization.offsets import align
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

LABELS = ("O", "B-X", "I-X")


def example(text: str, tags: str) -> TaggingExample:
    """Tagged by its characters."""
    units = tuple((place, place + 1) for place, character in enumerate(text) if character != " ")
    return TaggingExample(text, units, tuple(tags.split()), None, None, {}, "x:1")


def encode(
    examples: Sequence[TaggingExample], tokenizer: Tokenizer, max_length: int = 32, stride: int = 16
) -> EncodedExamples:
    settings = TaskSettings(name="tagging", max_length=max_length, doc_stride=stride)
    return encode_sentences(examples, LABELS, tokenizer, settings, ExampleCounts(), 2, "characters")


def cut(tokenizer: Tokenizer, examples: list[TaggingExample]) -> tuple[Tokenizer, EncodedExamples]:
    new, [(_, rows)] = cut_at_entities(
        tokenizer, [(examples, encode(examples, tokenizer))], lambda new: [(examples, encode(examples, new))]
    )
    return new, rows


@contextmanager
def catching() -> Iterator[list[str]]:
    """The messages that are logged in a block, also where Hypothesis runs it many times."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("unmask").addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger("unmask").removeHandler(handler)


def wordpiece_of(entries: list[str]) -> TextTokenizer:
    vocab = {entry: index for index, entry in enumerate(entries)}
    roles = wordpiece.SPECIAL_TOKENS
    definition = wordpiece.define(vocab, None, roles, (), bert_normalizer(False, compose=False))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    return TextTokenizer(new_files(definition, roles, config, has_segments=True), roles)


_CHARACTERS = "서울은에크다좋산"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["서울", "서울은", "서울에", "##울은", "크다", "좋다", "산다"]
KOREAN = wordpiece_of([*SPECIAL, *_CHARACTERS, *(f"##{one}" for one in _CHARACTERS), *WORDS])


def seoul(first: str, rest: int) -> TaggingExample:
    """The city with a particle, then `크다`."""
    return example(f"{first} 크다", f"B-X I-X{' O' * rest}")


def test_a_piece_is_cut_where_an_entity_ends(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    examples = [seoul("서울은", 3), seoul("서울에", 3)]
    before = KOREAN.encode_batch(["서울은 크다"])[0]
    assert KOREAN.tokens(before)[0] == "서울은"
    tokenizer, rows = cut(KOREAN, examples)
    assert isinstance(tokenizer, TextTokenizer)
    assert tokenizer.tokens(tokenizer.encode_batch(["서울은 크다"])[0]) == ["서울", "##은", *KOREAN.tokens(before[1:])]
    kept = [entry for entry in tokenizer.token_strings if not entry.startswith("[cut ")]
    assert [entry for entry in KOREAN.token_strings if entry in kept] == kept  # ids stay
    assert tokenizer.vocab_size == KOREAN.vocab_size
    with catching() as told:
        warn_of_cut_entities([(examples, rows)], "t.jsonl")
    assert told == []
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    opened = load_tokenizer(tmp_path)
    for text in ("서울은 크다", "서울에", "좋다 산다", "[cut 서울은]"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == opened.encode_batch([text])[0]
        assert opened.encode_batch([text]) == tokenizer.encode_batch([text])
    assert (tmp_path / "vocab.txt").read_text("utf-8").split("\n")[:-1] == list(tokenizer.token_strings)


def test_an_entry_that_seldom_hides_an_entity_stays() -> None:
    """Once in eleven times it may be a mistake; once in nine it is cut."""
    for others, is_cut in ((10, False), (8, True)):
        examples = [seoul("서울은", 3), *[example("서울은", "B-X I-X I-X")] * others]
        tokenizer, _ = cut(KOREAN, examples)
        assert (tokenizer is not KOREAN) == is_cut


def test_an_entry_that_characters_cannot_spell_stays() -> None:
    vocab = [*SPECIAL, "서울은", "서울", "서", "##은"]  # `##울` is missing
    tokenizer = wordpiece_of(vocab)
    assert cut(tokenizer, [example("서울은", "B-X I-X O")])[0] is tokenizer
    assert cut(wordpiece_of([*vocab, "##울"]), [example("서울은", "B-X I-X O")])[0].vocab_size == len(vocab) + 1


def test_other_kinds_of_tokenizers_are_left_as_they_are() -> None:
    tokenizer = trained(["lovely walking"] * 9, kind="byte_bpe", vocab_size=300)
    examples = [example("walking", "O B-X I-X I-X I-X O O")]
    assert cut(tokenizer, examples)[0] is tokenizer


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("서울은에 크다"), st.sampled_from(LABELS)), min_size=1), min_size=1))
def test_no_entry_that_can_be_cut_hides_an_entity_often(drawn: list[list[tuple[str, str]]]) -> None:
    examples = []
    for one in drawn:
        text = "".join(character for character, _ in one)
        tags, _ = to_bio([tag for character, tag in one if character != " "], "BIO")
        examples.append(example(text, " ".join(tags)))
    tokenizer, _ = cut(KOREAN, examples)
    seen, hiding = Counter[int](), Counter[int]()
    texts = align(tokenizer, [one.text for one in examples])
    for one, aligned in zip(examples, texts, strict=True):
        found = find_entities(one.tags or ())
        bounds = {place for entity in found for place in (one.units[entity.first][0], one.units[entity.end - 1][1])}
        for entry, start, end in zip(aligned.ids, aligned.starts, aligned.ends, strict=True):
            seen[entry] += 1
            hiding[entry] += any(start < place < end for place in bounds)
    known = set(KOREAN.token_strings)
    for entry, number in hiding.items():
        if known.issuperset(KOREAN.in_characters(entry)) and entry not in KOREAN.special_ids:
            assert number <= 0.1 * seen[entry]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("man wlkig"), st.sampled_from(LABELS)), min_size=1, max_size=30))
def test_entities_that_no_output_can_find_are_counted(tokenizer: TextTokenizer, drawn: list[tuple[str, str]]) -> None:
    """Against what is found where the model is right at every token."""
    text = "".join(character for character, _ in drawn)
    tags, _ = to_bio(["O" if character == " " else tag for character, tag in drawn], "BIO")
    units = tuple((place, place + 1) for place in range(len(text)))  # blanks too
    one = replace(example(text, ""), units=units, tags=tuple(tags))
    rows = encode([one], tokenizer)
    right = functional.one_hot(torch.from_numpy(rows.token_columns["labels"]).clamp(min=0), len(LABELS)).float()
    [prediction] = decode_sentences([one], rows, right, LABELS)
    true = find_entities(tags)
    lost = len(set(true) - set(find_entities(prediction["tags"])))
    with catching() as told:
        warn_of_cut_entities([([one], rows)], "t.jsonl")
    beginning = f"t.jsonl: {lost} of {len(true)} entities begin or end inside a piece"
    assert [message.startswith(beginning) for message in told] == [True] * bool(lost)


def test_what_is_cut_is_shown_and_counted_in_all_windows(tokenizer: TextTokenizer) -> None:
    """`walking` is a piece; a long sentence is read in windows, of which one answers for it."""
    tags = ["B-X", *["O"] * 9, "B-X", *["I-X"] * 3, *["O"] * 3]
    long = example("a man a man a walking a", " ".join(tags))
    short = example("a man", "B-X O O O")
    rows = encode([short, long], tokenizer, 6, 2)
    with catching() as told:
        warn_of_cut_entities([([short, long], rows)], "t.jsonl")
    [message] = told
    assert message.startswith("t.jsonl: 1 of 3 entities")
    assert "('alki' at x:1, and the piece 'walking')" in message
