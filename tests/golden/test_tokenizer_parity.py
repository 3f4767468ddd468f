"""Our tokenizers in `transformers`, and its tokenizers here: every returned array equal on real lines of two languages.

The lines come from the data folder named by UNMASK_DATA where there is one, else from `samples/` and the list below.
`OpenAIGPTTokenizer` splits with BERT's rules, and so does ours; the code released with GPT-1 cleaned with ftfy and
split with spaCy instead, which neither reproduces.
"""

from __future__ import annotations

import io
import json
import os
import re
import unicodedata
from contextlib import ExitStack
from functools import cache
from itertools import islice
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, OpenAIGPTTokenizer, RobertaTokenizer

from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.learning.train import TOKENIZERS, learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

SAMPLES = Path(__file__).parents[2] / "samples" / "text"
DATA = Path(os.environ["UNMASK_DATA"]) if "UNMASK_DATA" in os.environ else None
needs_data = pytest.mark.skipif(DATA is None, reason="UNMASK_DATA names no data folder: no released vocabulary")

BUILT_IN = [
    "It was the best of times, it was the worst of times; it was the age of wisdom.",
    "Naïve cafés in Zürich don't charge €3.50 (or $4) for a crème brûlée — do they?",
    "대한민국은 민주공화국이다. 대한민국의 주권은 국민에게 있고, 모든 권력은 국민으로부터 나온다.",
    "모든 국민은 인간으로서의 존엄과 가치를 가지며, 행복을 추구할 권리를 가진다 (憲法 제10조).",
    "훈민정음(訓民正音)은 ‘백성을 가르치는 바른 소리’라는 뜻이다 — 1443년, King Sejong.",
    "\u1112\u1161\u11ab\u1100\u1173\u11af decomposed and cafe\u0301 decomposed",
    "यह हिन्दी है, น้ำ นำ, Tiếng Việt, Ёлка и йод, です; ǎ m\u0308 x\u0308",
    "zero\u200bwidth, a tab\there, no-break\u00a0space, \x07 a bell, an emoji 👩‍🚀 and 漢字 in English",
    "  two  spaces, a line\n\nand another\r\n\ttab ",
    "[CLS] the man went to the [MASK] . [SEP] or <s> the <mask> </s> or _start_ one _classify_",
    "",
    " ",
    "x" * 150,
]
FAMILIES = {
    "wordpiece": TokenizerSettings(vocab_size=8000),
    "wordpiece, cased": TokenizerSettings(
        vocab_size=8000, lowercase=False, unused_slots=120, extra_special_tokens=("[ENT]",)
    ),
    "wordpiece, marks kept": TokenizerSettings(vocab_size=8000, strip_accents=False),
    "bpe": TokenizerSettings(kind="bpe", num_merges=3000, unused_slots=2, extra_special_tokens=("[ENT]",)),
    "byte_bpe": TokenizerSettings(kind="byte_bpe", vocab_size=4000, unused_slots=2, extra_special_tokens=("[ENT]",)),
}


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
    folder, korean = (SAMPLES, "ko-constitution.jsonl") if DATA is None else (DATA / "sample", "ko-wiki.jsonl")
    return BUILT_IN + lines_of(folder / "en-books.jsonl", 40) + lines_of(folder / korean, 40)


def pairs_of(lines: list[str]) -> list[tuple[str, str]]:
    """Every line with another one that is not its neighbour; none empty, which `transformers` takes for no text."""
    others = lines[len(lines) // 2 :] + lines[: len(lines) // 2]
    return [(a, b) for a, b in zip(lines, others, strict=True) if a and b]


@cache
def trained(family: str) -> TextTokenizer:
    return learn_tokenizer(some_lines() + BUILT_IN * 3, FAMILIES[family])[0]


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    """Shows the first item that differs: a comparison of lists of this size is never done with explaining itself."""
    differing = [index for index, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert not differing, (differing[0], ours[differing[0]], theirs[differing[0]])


def assert_same_arrays(ours: TextTokenizer, theirs: Any, texts: list[Any]) -> None:
    returned = theirs(texts, return_special_tokens_mask=True, return_offsets_mapping=True, return_token_type_ids=True)
    encodings = ours.backend.encode_batch(texts)
    assert_equal([encoding.ids for encoding in encodings], returned["input_ids"])
    assert_equal([encoding.type_ids for encoding in encodings], returned["token_type_ids"])
    assert_equal([encoding.attention_mask for encoding in encodings], returned["attention_mask"])
    assert_equal([encoding.special_tokens_mask for encoding in encodings], returned["special_tokens_mask"])
    assert_equal([encoding.offsets for encoding in encodings], returned["offset_mapping"])


def assert_same_inputs(ours: TextTokenizer, theirs: Any, pairs: list[Any], *max_lengths: int | None) -> None:
    """`pairs` may hold single texts, too: then none but single ones."""
    given = [pair if isinstance(pair, tuple) else (pair, None) for pair in pairs]
    whole = theirs(pairs, return_token_type_ids=True)
    for max_length in max_lengths:
        encoded = ours.encode_inputs(given, max_length)
        returned = (
            whole
            if max_length is None
            else theirs(pairs, truncation=True, max_length=max_length, return_token_type_ids=True)
        )
        assert_equal([item.input_ids for item in encoded], returned["input_ids"])
        assert_equal([item.token_type_ids for item in encoded], returned["token_type_ids"])
        too_long = [len(ids) > (max_length or len(ids)) for ids in whole["input_ids"]]
        assert_equal([item.truncated for item in encoded], too_long)


def test_every_kind_is_compared() -> None:
    assert {settings.kind for settings in FAMILIES.values()} == set(TOKENIZERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_opens_in_transformers_and_encodes_the_same(family: str, tmp_path: Path) -> None:
    trained(family).save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    lines = some_lines()
    assert_same_arrays(ours, theirs, lines)
    assert_same_arrays(ours, theirs, pairs_of(lines))
    assert_same_inputs(ours, theirs, lines, None)
    assert_same_inputs(ours, theirs, pairs_of(lines), None)
    segments = ["token_type_ids"] if ours.kind == "wordpiece" else []
    assert list(theirs(lines[0])) == theirs.model_input_names == ["input_ids", *segments, "attention_mask"]
    assert (theirs.model_max_length, len(theirs)) == (512, ours.vocab_size)
    assert set(theirs.all_special_ids) == set(ours.special_ids)
    roles = TOKENIZERS[ours.kind].special_tokens
    assert {role: getattr(theirs, role) for role in roles} == roles
    # Syllables whole, decomposed or not: this is what `transformers` breaks under the class BertTokenizer.
    text = "\u1112\u1161\u11ab 대한민국"
    (ids,) = ours.encode_batch([text])
    assert ours.decode(ids) == theirs.decode(ids) == "한 대한민국"


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_are_cut_as_transformers_cuts_them(family: str, tmp_path: Path) -> None:
    trained(family).save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    lines = some_lines()[:30] + some_lines()[-30:]
    for texts in (pairs_of(lines), lines):
        assert_same_inputs(trained(family), theirs, texts, 4, 9, 33)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saved_again_is_the_same_here(family: str, tmp_path: Path) -> None:
    ours = trained(family)
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    opened = load_tokenizer(tmp_path / "theirs")
    assert opened.fingerprint() == ours.fingerprint()
    assert opened.special_ids == ours.special_ids
    assert_equal(opened.encode_batch(some_lines()), ours.encode_batch(some_lines()))


@pytest.mark.parametrize(("model_type", "said"), [
    ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    ("bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}),
    ("electra", {"tokenizer_class": "ElectraTokenizer", "do_lower_case": False}),
    ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False}),
    ("bert", {"do_lower_case": False}),
    ("bert", {"tokenizer_class": "BertTokenizer"}),
    ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}),
    ("modernbert", {"do_lower_case": False}),
    ("roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    ("roberta", {"add_prefix_space": True}),
])  # fmt: skip
def test_keys_beside_the_definition_count_as_in_transformers(
    model_type: str, said: dict[str, Any], tmp_path: Path
) -> None:
    trained("byte_bpe" if model_type == "roberta" else "wordpiece").save(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_bytes())
    if model_type != "roberta":  # as released: `transformers` breaks ours under its own classes
        definition["normalizer"] = bert_normalizer(lowercase=True, compose=False)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), "utf-8")
    ours, texts = load_tokenizer(tmp_path), ["Alice Café ran", " a Rabbit", "RAN"]
    (tmp_path / "again").mkdir()
    ours.save(tmp_path / "again")
    expected = AutoTokenizer.from_pretrained(tmp_path)(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(texts) == load_tokenizer(tmp_path / "again").encode_batch(texts) == expected


@pytest.mark.parametrize("strip_accents", [False, None])
def test_marks_are_kept_as_by_bert(strip_accents: bool | None) -> None:
    ours = trained("wordpiece" if strip_accents is None else "wordpiece, marks kept")
    vocab = {entry: index for index, entry in enumerate(ours.token_strings)}
    theirs = BertTokenizer(vocab=vocab, do_lower_case=True, strip_accents=strip_accents)
    lines = [unicodedata.normalize("NFC", line) for line in some_lines()]
    if strip_accents is None:  # Hangul apart, which `transformers` breaks where it strips
        lines = [line for line in lines if not re.search("[가-힣\u1100-\u11ff]", line)]
    assert_equal(ours.encode_batch(lines, specials_in_text=True), theirs(lines, add_special_tokens=False)["input_ids"])


def test_a_segmented_text_encodes_the_same_in_transformers(tmp_path: Path) -> None:
    lines = BUILT_IN + some_lines()[-60:]
    ours, _ = learn_tokenizer(lines * 3, TokenizerSettings(vocab_size=4000, segmenter="kiwi"))
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert_same_inputs(ours, Segmenting(theirs, ours), lines, 40)
    assert_same_inputs(ours, Segmenting(theirs, ours), pairs_of(lines), 40)
    assert theirs(lines)["input_ids"] != theirs([ours.segment(line) for line in lines])["input_ids"]
    theirs.save_pretrained(tmp_path / "theirs")
    assert load_tokenizer(tmp_path / "theirs").fingerprint() == ours.fingerprint()


class Segmenting:
    """A tokenizer of `transformers` that is given what our segmenter makes of a text."""

    def __init__(self, theirs: Any, ours: TextTokenizer) -> None:
        self._theirs, self._ours = theirs, ours

    def __call__(self, texts: list[Any], **options: Any) -> Any:
        segment = self._ours.segment
        given = [tuple(map(segment, text)) if isinstance(text, tuple) else segment(text) for text in texts]
        return self._theirs(given, **options)


def released_files(folder: str, vocabulary: str, merges: str) -> dict[str, Any]:
    """A released vocabulary and its merges, as the classes of `transformers` take them."""
    assert DATA is not None
    path = DATA / "reference" / folder
    lines = (path / merges).read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return {"vocab": json.loads((path / vocabulary).read_text(encoding="utf-8")), "merges": pairs}


def with_roberta_tokens(files: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's vocabulary in RoBERTa's order: its special tokens around it (the ids of the rest are another order)."""
    ordinary = [entry for entry in files["vocab"] if entry != "<|endoftext|>"]
    entries = ["<s>", "<pad>", "</s>", "<unk>", *ordinary, "<mask>"]
    return files | {"vocab": {entry: index for index, entry in enumerate(entries)}}


@cache
def released(name: str) -> tuple[TextTokenizer, Any]:
    """A released vocabulary, opened here from its bare files, and as `transformers` builds it."""
    assert DATA is not None
    reference = DATA / "reference"
    if name == "gpt1":
        files = released_files("gpt1", "encoder_bpe_40000.json", "vocab_40000.bpe")
        return load_tokenizer(reference / "gpt1"), OpenAIGPTTokenizer(**files)
    if name == "gpt2":
        files = released_files("gpt2-roberta", "encoder.json", "vocab.bpe")
        return load_tokenizer(reference / "gpt2-roberta"), GPT2Tokenizer(**files)
    path, lowercase = {
        "bert-base-uncased": (reference / "vocab/bert-base-uncased-vocab.txt", True),
        "koelectra": (reference / "vocab/koelectra-v3-vocab.txt", False),
    }[name]
    entries = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocab = {entry: index for index, entry in enumerate(entries)}
    with TemporaryDirectory() as folder:
        copyfile(path, Path(folder, "vocab.txt"))
        Path(folder, "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}), encoding="utf-8")
        ours = load_tokenizer(folder)
    # ElectraTokenizer is BertTokenizer under another name.
    return ours, BertTokenizer(vocab=vocab, do_lower_case=lowercase)


RELEASED = ["bert-base-uncased", "koelectra", "gpt1", "gpt2"]


@needs_data
@pytest.mark.parametrize("name", RELEASED)
def test_a_released_vocabulary_encodes_as_in_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = released(name)
    assert_same_arrays(ours, theirs, some_lines())
    assert_same_arrays(ours, theirs, pairs_of(some_lines()))
    assert_same_inputs(ours, theirs, pairs_of(some_lines()), 20)
    encoded = ours.encode_batch(some_lines(), specials_in_text=True)
    assert_equal(encoded, theirs(some_lines(), add_special_tokens=False)["input_ids"])
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    reopened = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert (type(reopened).__name__ == "BertTokenizer") == (ours.kind == "wordpiece")
    assert_same_arrays(ours, reopened, some_lines())


def test_a_roberta_of_samples_encodes_as_in_transformers(tmp_path: Path) -> None:
    said = json.loads(trained("byte_bpe").backend.to_str())["model"]
    merges: Any = [(first, second) for first, second in said["merges"]]
    assert_opens_as_saved(RobertaTokenizer(vocab=said["vocab"], merges=merges), tmp_path)


@needs_data
@pytest.mark.parametrize("name", [*RELEASED, "roberta"])
def test_what_transformers_saves_of_it_opens_here(name: str, tmp_path: Path) -> None:
    if name == "roberta":
        files = with_roberta_tokens(released_files("gpt2-roberta", "encoder.json", "vocab.bpe"))
        assert_opens_as_saved(RobertaTokenizer(**files), tmp_path)
    else:
        assert_opens_as_saved(released(name)[1], tmp_path)


def assert_opens_as_saved(theirs: Any, directory: Path) -> None:
    theirs.save_pretrained(directory / "theirs")
    opened = load_tokenizer(directory / "theirs")
    lines = some_lines()
    assert_same_arrays(opened, theirs, lines)
    assert_same_inputs(opened, theirs, lines, None)
    assert_same_inputs(opened, theirs, pairs_of(lines), 21)
    (directory / "kept").mkdir()
    opened.save(directory / "kept")
    for path in (directory / "theirs").iterdir():
        assert (directory / "kept" / path.name).read_bytes() == path.read_bytes()


SHARES_OF_CORPORA = {"enwiki-2015-core.jsonl.zst": 0.4, "en-classic-books.jsonl.zst": 0.2, "kowiki-2022.jsonl.zst": 0.4}
LONGEST_LINE = 200
"""Characters. Longer lines are left out here: they would take four times the time and are among `some_lines`."""


@cache
def many_lines(count: int) -> list[str]:
    """Whole lines without anything that is a special token to one of the vocabularies."""
    assert DATA is not None
    found: list[str] = []
    for name, share in SHARES_OF_CORPORA.items():
        most = round(share * count)
        lines = lines_of(DATA / "corpora" / name, 6 * most)
        found += [line for line in lines if len(line) <= LONGEST_LINE and "[" not in line and "<" not in line][:most]
    assert len(found) == count
    return found


@needs_data
@pytest.mark.parametrize(
    ("name", "num_lines"),
    [
        pytest.param("bert-base-uncased", 100_000, marks=pytest.mark.slow),
        *((name, 5_000) for name in ("bert-base-uncased", "gpt1", "gpt2", "koelectra", "roberta")),
    ],
)
def test_a_released_vocabulary_encodes_as_in_transformers_on_many_lines(name: str, num_lines: int) -> None:
    """For RoBERTa the ids of GPT-2's merges, moved by the special tokens before them."""
    if name == "roberta":
        files = released_files("gpt2-roberta", "encoder.json", "vocab.bpe")
        ours, theirs = released("gpt2")[0], RobertaTokenizer(**with_roberta_tokens(files))
        moved = 4
    else:
        ours, theirs = released(name)
        moved = 0
    lines = many_lines(num_lines)
    theirs.backend_tokenizer.no_truncation()  # as its last call may have left it
    for start in range(0, num_lines, 2000):
        batch = lines[start : start + 2000]
        expected = theirs.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        assert_equal(ours.encode_batch(batch), [[index - moved for index in encoding.ids] for encoding in expected])
