"""Pieces are cut where spans begin and end, and what cannot be found all the same is counted."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.trained import trained
from unmask.tasks.cutting import SpannedText, cut_pieces, warn_of_hidden
from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.directory import OpenedDirectory, new_files
from unmask.tokenization.kinds import wordpiece
from unmask.tokenization.offsets import align
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer


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


def wordpiece_of(entries: list[str], *, lowercase: bool = False) -> TextTokenizer:
    vocab = {entry: index for index, entry in enumerate(entries)}
    roles = wordpiece.SPECIAL_TOKENS
    definition = wordpiece.define(vocab, None, roles, (), bert_normalizer(lowercase, compose=False))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
    return TextTokenizer(OpenedDirectory(new_files(definition, roles, config, has_segments=True), roles))


_CHARACTERS = "서울은에크다좋산"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["서울", "서울은", "서울에", "##울은", "크다", "좋다", "산다"]
KOREAN = wordpiece_of([*SPECIAL, *_CHARACTERS, *(f"##{one}" for one in _CHARACTERS), *WORDS])


def spanned(text: str, *spans: tuple[int, int]) -> SpannedText:
    return SpannedText(text, spans, "x:1")


def test_a_piece_is_cut_where_a_span_ends(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    texts = [spanned("서울은 크다", (0, 2)), spanned("산다 서울에", (3, 5))]
    [before] = KOREAN.encode_batch(["서울은 크다"])
    assert KOREAN.tokens(before) == ["서울은", "크다"]
    tokenizer = cut_pieces(KOREAN, texts)
    assert isinstance(tokenizer, TextTokenizer)
    assert tokenizer.tokens(tokenizer.encode_batch(["서울은 크다"])[0]) == ["서울", "##은", "크다"]
    kept = {entry: index for index, entry in enumerate(tokenizer.token_strings) if not entry.startswith("[cut ")}
    assert kept == {entry: index for index, entry in enumerate(KOREAN.token_strings) if entry in kept}  # ids stay
    assert tokenizer.vocab_size == KOREAN.vocab_size == len(kept) + 2
    with catching() as told:
        warn_of_hidden(tokenizer, texts, "places", "t.jsonl", is_cut=True)
    assert told == []
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    opened = load_tokenizer(tmp_path)
    for text in ("서울은 크다", "서울에", "좋다 산다", "[cut 서울은]"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == opened.encode_batch([text])[0]
        assert opened.encode_batch([text]) == tokenizer.encode_batch([text])
    assert (tmp_path / "vocab.txt").read_text("utf-8").split("\n")[:-1] == list(tokenizer.token_strings)


def test_shorter_entries_are_cut_as_well() -> None:
    """Without `서울은` the rest is `##울은` where `서울` is cut too."""
    tokenizer = cut_pieces(KOREAN, [spanned("서울은 서울", (0, 1), (4, 5))])
    assert isinstance(tokenizer, TextTokenizer)
    assert tokenizer.tokens(tokenizer.encode_batch(["서울은 서울"])[0]) == ["서", "##울은", "서", "##울"]


def test_an_entry_that_shows_as_many_spans_as_it_hides_stays() -> None:
    """One that ends inside it may be a mistake."""
    hidden, shown = spanned("서울은 크다", (0, 2)), spanned("크다 서울은", (3, 6))
    assert cut_pieces(KOREAN, [hidden, shown]) is KOREAN
    assert cut_pieces(KOREAN, [hidden, shown, hidden]) is not KOREAN


def test_an_entry_that_characters_cannot_spell_stays() -> None:
    entries = [*SPECIAL, "서울은", "서울", "서", "##은"]  # `##울` is missing
    tokenizer = wordpiece_of(entries)
    assert cut_pieces(tokenizer, [spanned("서울은", (1, 2))]) is tokenizer
    assert cut_pieces(wordpiece_of([*entries, "##울"]), [spanned("서울은", (1, 2))]) is not tokenizer


def test_entries_of_one_character_stay() -> None:
    """Where accents are stripped, a token's place has its letter and the mark behind it; a span may end between."""
    entries = [*SPECIAL, "c", "##a", "##f", "##e", "cafe", "##fe"]
    tokenizer = wordpiece_of(entries, lowercase=True)
    cut = cut_pieces(tokenizer, [spanned("cafe\u0301", (0, 4))] * 3)
    assert cut.tokens(cut.encode_batch(["cafe"])[0]) == ["c", "##a", "##f", "##e"]


@pytest.mark.parametrize("where", ["in the vocabulary", "behind it"])
def test_added_tokens_stay(where: str, tmp_path: Path) -> None:
    """They are looked for before the entries, so that they would be matched again."""
    KOREAN.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    definition = json.loads(path.read_text("utf-8"))
    index = KOREAN.token_strings.index("서울은")
    if where == "behind it":
        definition["model"]["vocab"] = {
            entry: number for entry, number in definition["model"]["vocab"].items() if entry != "서울은"
        } | {"[left out]": index}
        index = KOREAN.vocab_size
    added = {"id": index, "content": "서울은", "single_word": False, "lstrip": False, "rstrip": False}
    definition["added_tokens"].append({**added, "normalized": False, "special": False})
    path.write_text(json.dumps(definition), "utf-8")
    (tmp_path / "vocab.txt").unlink()
    tokenizer = load_tokenizer(tmp_path)
    texts = [spanned("서울은 크다", (0, 2))]
    assert cut_pieces(tokenizer, texts) is tokenizer
    with catching() as told:
        warn_of_hidden(tokenizer, texts, "places", "t.jsonl", is_cut=True)
    assert "1 of 1 places" in told[0]


def test_other_kinds_of_tokenizers_are_left_as_they_are_and_the_spans_counted() -> None:
    tokenizer = trained(["lovely walking"] * 9, kind="byte_bpe", vocab_size=300)
    texts = [spanned("a walking", (3, 7)), spanned("walking", (0, 7))]
    assert cut_pieces(tokenizer, texts) is tokenizer
    with catching() as told:
        warn_of_hidden(tokenizer, texts, "places", "t.jsonl", is_cut=True)
    [message] = told
    assert message.startswith("t.jsonl: 1 of 2 places begin or end inside a piece")
    assert "('alki' at x:1, and the piece 'walking')" in message


WRITTEN = st.text(st.sampled_from("서울은에 크다"), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WRITTEN, st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12))))))
def test_no_entry_that_can_be_cut_hides_more_spans_than_it_shows(
    drawn: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    """Counted character by character."""
    texts = [spanned(text, *(span for span in spans if span[0] < span[1] <= len(text))) for text, spans in drawn]
    tokenizer = cut_pieces(KOREAN, texts)
    hidden, shown, num_lost = Counter[int](), Counter[int](), 0
    for one, aligned in zip(texts, align(tokenizer, [each.text for each in texts]), strict=True):
        token_of = {
            place: token
            for token, bounds in enumerate(zip(aligned.starts, aligned.ends, strict=True))
            for place in range(*bounds)
        }
        for start, end in one.spans:
            touched = {token_of[place] for place in (start, end - 1) if place in token_of}
            inside = {token_of[start]} if start in token_of and token_of.get(start - 1) == token_of[start] else set()
            if end - 1 in token_of and token_of.get(end) == token_of[end - 1]:
                inside.add(token_of[end])
            hidden.update(aligned.ids[token] for token in inside)
            shown.update(aligned.ids[token] for token in touched - inside)
            num_lost += bool(inside)
    for entry, number in hidden.items():
        if KOREAN.can_be_cut(entry):
            assert number <= shown[entry]
    with catching() as told:
        warn_of_hidden(tokenizer, texts, "places", "t.jsonl", is_cut=True)
    assert [message.startswith(f"t.jsonl: {num_lost} of ") for message in told] == [True] * bool(num_lost)
