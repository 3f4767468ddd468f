"""Our tokenizers in `transformers`, and its tokenizers here: every returned array equal on real lines of two languages.

The lines come from the data folder named by UNMASK_DATA where there is one, else from the list below.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import ExitStack
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard
from transformers import AutoTokenizer, BertTokenizer

from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenization.wordpiece import train_wordpiece

DATA = Path(os.environ["UNMASK_DATA"]) if "UNMASK_DATA" in os.environ else None
needs_data = pytest.mark.skipif(DATA is None, reason="UNMASK_DATA names no data folder: no released vocabulary")

BUILT_IN = [
    "It was the best of times, it was the worst of times; it was the age of wisdom.",
    "Naïve cafés in Zürich don't charge €3.50 (or $4) for a crème brûlée — do they?",
    "대한민국은 민주공화국이다. 대한민국의 주권은 국민에게 있고, 모든 권력은 국민으로부터 나온다.",
    "모든 국민은 인간으로서의 존엄과 가치를 가지며, 행복을 추구할 권리를 가진다 (憲法 제10조).",
    "훈민정음(訓民正音)은 ‘백성을 가르치는 바른 소리’라는 뜻이다 — 1443년, King Sejong.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af decomposed and cafe\u0301 decomposed",
    "zero\u200bwidth, a tab\there, no-break\u00a0space, \x07 a bell, an emoji 👩‍🚀 and 漢字 in English",
    "[CLS] the man went to the [MASK] . [SEP]",
    "",
    " ",
    "x" * 150,
]


def lines_of(path: Path, count: int) -> list[str]:
    """The first `count` lines of text of a `.jsonl` or `.jsonl.zst` corpus, empty ones left out."""
    with ExitStack() as opened:
        data: Any = opened.enter_context(open(path, "rb"))
        if path.suffix == ".zst":
            data = opened.enter_context(zstandard.ZstdDecompressor().stream_reader(data))
        rows = opened.enter_context(io.TextIOWrapper(data, encoding="utf-8"))
        lines = (line for row in rows for line in json.loads(row)["text"].split("\n") if line)
        return list(islice(lines, count))


@cache
def some_lines() -> list[str]:
    if DATA is None:
        return BUILT_IN
    return BUILT_IN + lines_of(DATA / "sample/en-books.jsonl", 1000) + lines_of(DATA / "sample/ko-wiki.jsonl", 1000)


def pairs_of(lines: list[str]) -> list[tuple[str, str]]:
    """Every line with another one that is not its neighbour; none empty, which `transformers` takes for no text."""
    others = lines[len(lines) // 2 :] + lines[: len(lines) // 2]
    return [(a, b) for a, b in zip(lines, others, strict=True) if a and b]


@cache
def trained(lowercase: bool) -> TextTokenizer:
    settings = TokenizerSettings(vocab_size=8000, lowercase=lowercase)
    return train_wordpiece(some_lines() + BUILT_IN * 3, settings)[0]


def assert_same_arrays(ours: TextTokenizer, theirs: Any, texts: list[Any]) -> None:
    returned = theirs(texts, return_special_tokens_mask=True, return_offsets_mapping=True)
    encodings = ours.backend.encode_batch(texts)
    assert set(returned) == {
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "special_tokens_mask",
        "offset_mapping",
    }
    assert returned["input_ids"] == [encoding.ids for encoding in encodings]
    assert returned["token_type_ids"] == [encoding.type_ids for encoding in encodings]
    assert returned["attention_mask"] == [encoding.attention_mask for encoding in encodings]
    assert returned["special_tokens_mask"] == [encoding.special_tokens_mask for encoding in encodings]
    assert returned["offset_mapping"] == [encoding.offsets for encoding in encodings]


def assert_same_inputs(ours: TextTokenizer, theirs: Any, pairs: list[tuple[str, str]], max_length: int) -> None:
    encoded = ours.encode_inputs(pairs, max_length)
    returned = theirs(pairs, truncation=True, max_length=max_length)
    assert [item.input_ids for item in encoded] == returned["input_ids"]
    assert [item.token_type_ids for item in encoded] == returned["token_type_ids"]
    whole = theirs(pairs)["input_ids"]
    assert [item.truncated for item in encoded] == [len(ids) > max_length for ids in whole]


@pytest.mark.parametrize("lowercase", [True, False])
def test_ours_opens_in_transformers_and_encodes_the_same(lowercase: bool, tmp_path: Path) -> None:
    trained(lowercase).save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    lines = some_lines()
    assert_same_arrays(ours, theirs, lines)
    assert_same_arrays(ours, theirs, pairs_of(lines))
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert [getattr(theirs, role) for role in roles] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (theirs.model_max_length, len(theirs)) == (512, ours.vocab_size)
    # Syllables whole, decomposed or not: this is what `transformers` breaks under the class BertTokenizer.
    text = "\u1112\u1161\u11ab 대한민국"
    assert "".join(theirs.tokenize(text)).replace("##", "") == "한대한민국"
    (ids,) = ours.encode_batch([text])
    assert ours.decode(ids) == theirs.decode(ids) == "한 대한민국"


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("max_length", [3, 8, 33])
def test_inputs_are_cut_as_transformers_cuts_them(lowercase: bool, max_length: int, tmp_path: Path) -> None:
    trained(lowercase).save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    lines = some_lines()[:100] + some_lines()[-100:]
    assert_same_inputs(trained(lowercase), theirs, pairs_of(lines), max_length)
    singles = trained(lowercase).encode_inputs([(line, None) for line in lines], max_length)
    assert [item.input_ids for item in singles] == theirs(lines, truncation=True, max_length=max_length)["input_ids"]


def test_what_transformers_saved_again_is_the_same_here(tmp_path: Path) -> None:
    ours = trained(True)
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    opened = load_tokenizer(tmp_path / "theirs")
    assert opened.fingerprint() == ours.fingerprint()
    assert opened.encode_batch(some_lines()) == ours.encode_batch(some_lines())


def released(name: str, lowercase: bool) -> tuple[TextTokenizer, Any]:
    """A released vocabulary, opened here and by `transformers`."""
    assert DATA is not None
    path = DATA / "reference" / "vocab" / name
    entries = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    theirs = BertTokenizer(vocab={entry: index for index, entry in enumerate(entries)}, do_lower_case=lowercase)
    return load_tokenizer(path, lowercase), theirs


RELEASED = [("bert-base-uncased-vocab.txt", True), ("koelectra-v3-vocab.txt", False)]


@needs_data
@pytest.mark.parametrize(("name", "lowercase"), RELEASED)
def test_a_released_vocabulary_encodes_as_bert_tokenizer(name: str, lowercase: bool, tmp_path: Path) -> None:
    ours, theirs = released(name, lowercase)
    assert_same_arrays(ours, theirs, some_lines())
    assert_same_arrays(ours, theirs, pairs_of(some_lines()))
    assert ours.encode_batch(some_lines(), specials_in_text=True) == [
        ids[1:-1] for ids in theirs(some_lines())["input_ids"]
    ]

    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    reopened = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(reopened).__name__ == "BertTokenizer"
    assert_same_arrays(ours, reopened, some_lines())

    theirs.save_pretrained(tmp_path / "theirs")
    opened = load_tokenizer(tmp_path / "theirs")
    assert_same_arrays(opened, theirs, some_lines())
    (tmp_path / "kept").mkdir()
    opened.save(tmp_path / "kept")
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "kept" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("name", "lowercase"), RELEASED)
def test_a_released_vocabulary_encodes_as_bert_tokenizer_on_100_000_lines(name: str, lowercase: bool) -> None:
    assert DATA is not None
    ours, theirs = released(name, lowercase)
    corpora = (DATA / "corpora/enwiki-2015-core.jsonl.zst", DATA / "corpora/kowiki-2022.jsonl.zst")
    lines = [line for path in corpora for line in lines_of(path, 50_000)]
    assert len(lines) == 100_000
    for start in range(0, len(lines), 5000):
        batch = lines[start : start + 5000]
        expected = theirs(batch, add_special_tokens=False)["input_ids"]
        assert ours.encode_batch(batch, specials_in_text=True) == expected
        plain = [
            index for index, line in enumerate(batch) if not any(token in line for token in theirs.all_special_tokens)
        ]
        assert ours.encode_batch([batch[index] for index in plain]) == [expected[index] for index in plain]
