"""The comparison of tokenizers, against figures worked out by hand and against encoding the text as a whole."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from support.files import Terminal
from support.trained import trained as train
from unmask.corpus import segmenters
from unmask.corpus.documents import CorpusCounts
from unmask.corpus.pipeline import read_documents
from unmask.errors import InputError, ModelError, SettingsError
from unmask.reports.tokenizer_page import write_page
from unmask.tokenization.comparison.report import CutWord, TokenizerFigures, TokenizersReport, report_tokenizers
from unmask.tokenization.comparison.tables import WIDTH, WORDS, format_report, readable, share
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENTRIES = ["the", "man", "went", "dog", "##s", ".", ","]

TEXT = "The dogs went.\n\nПривет the man, zebra"
"""As pieces: the | dog ##s | went . | [UNK] | the | man , | [UNK]."""

REFERENCE_WORDS = ["lower", "lowest", "newer", "widest", "안녕하세요", "세계의", "Привет", "naïve"]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizers") / "by-hand"
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join([*SPECIALS, "[unused0]", "[unused1]", *ENTRIES]), "utf-8")
    return directory


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "byte_bpe"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer of each kind."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(" ".join(REFERENCE_WORDS * 5), "utf-8")
    settings = TokenizerSettings(kind=request.param, vocab_size=330)
    train_tokenizer([folder / "text.txt"], folder / request.param, settings)
    return folder / str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text")


def compare(folder: Path, text: str, *tokenizers: Path, **options: int) -> TokenizersReport:
    path = folder / "text.txt"
    path.write_text(text, "utf-8")
    return report_tokenizers(tokenizers, [path], **options)


def figures_of(folder: Path, text: str, tokenizer: Path) -> TokenizerFigures:
    (figures,) = compare(folder, text, tokenizer).tokenizers
    return figures


# ---- By hand


def test_the_text_is_counted(tmp_path: Path, by_hand: Path) -> None:
    text = compare(tmp_path, TEXT, by_hand).text
    assert (text.num_words, text.num_distinct_words) == (7, 7)  # "The" and "the" are two words
    assert text.num_characters == 30 + 7  # seven pre-tokens, a space before each
    assert text.num_utf8_bytes == text.num_characters + 6  # Cyrillic letters have two bytes
    assert text.letters == {"Latin": 22, "Cyrillic": 6}


def test_figures_worked_out_by_hand(tmp_path: Path, by_hand: Path) -> None:
    its = figures_of(tmp_path, TEXT, by_hand)
    assert (its.num_tokens, its.num_unknown_tokens, its.num_word_tokens) == (10, 2, 8)
    assert its.tokens_per_word == 8 / 7
    assert its.words_by_pieces == (4, 1, 0, 0, 0)
    assert its.whole_word_share == 4 / 7
    assert (its.num_unknown_words, its.unknown_word_share, its.unknown_token_share) == (2, 2 / 7, 0.2)
    assert (its.tokens_per_character, its.bytes_per_token) == (10 / 37, 4.3)
    assert its.lost_letters == {"Latin": 5, "Cyrillic": 6}
    assert its.lost_letter_shares == {"Latin": 5 / 22, "Cyrillic": 1.0}


def test_a_text_three_times_has_every_count_three_times(tmp_path: Path, by_hand: Path) -> None:
    once, thrice = (figures_of(tmp_path, "\n\n".join([TEXT] * times), by_hand).__dict__ for times in (1, 3))
    counts = ("num_tokens", "num_unknown_tokens", "num_word_tokens", "num_unknown_words")
    assert [thrice[name] for name in counts] == [3 * once[name] for name in counts]
    assert thrice["words_by_pieces"] == tuple(3 * count for count in once["words_by_pieces"])
    assert thrice["lost_letters"] == {script: 3 * count for script, count in once["lost_letters"].items()}
    ends = ("_share", "_shares", "_per_word", "_per_token", "_per_character")
    shares = [name for name in once if name.endswith(ends)]
    assert [thrice[name] for name in shares] == [once[name] for name in shares]


def test_facts_of_the_vocabulary(tmp_path: Path, by_hand: Path) -> None:
    its = figures_of(tmp_path, TEXT, by_hand)
    assert (its.name, its.kind, its.segmenter) == ("by-hand", "wordpiece", "none")
    assert its.vocab_size == len(SPECIALS) + 2 + len(ENTRIES)
    assert its.num_entries_used == len(ENTRIES) + 1  # all of them, and [UNK]
    assert its.num_unused_slots == 2
    assert set(its.special_tokens) == set(SPECIALS)


@pytest.mark.parametrize("lowercase", [True, False])
def test_case_is_told(tmp_path: Path, lowercase: bool) -> None:
    (tmp_path / "cased").mkdir()
    (tmp_path / "cased" / "vocab.txt").write_text("\n".join([*SPECIALS, *"abcABC", *ENTRIES]), "utf-8")
    (tmp_path / "cased" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}), "utf-8")
    assert figures_of(tmp_path, TEXT, tmp_path / "cased").lowercase is lowercase


def test_lists_of_words(tmp_path: Path, by_hand: Path) -> None:
    its = figures_of(tmp_path, "dogs dogs mans zebra zebra Ж the thes dogss", by_hand)
    longest = its.longest_words[0]
    assert (longest.word, longest.pieces) == ("dogss", ("dog", "##s", "##s"))
    assert [(word.word, word.count) for word in its.costliest_words] == [("dogs", 2)]
    assert [(word.word, word.count) for word in its.unknown_words] == [("zebra", 2), ("Ж", 1)]


def test_words_are_letters_marks_and_digits(tmp_path: Path, by_hand: Path) -> None:
    # A vowel sign of Devanagari is a mark, and no reason to cut the word.
    assert compare(tmp_path, "don't snake_case 3.14 हिन्दी", by_hand).text.num_words == 7
    assert compare(tmp_path, "km² ②dogs½the", by_hand).text.num_words == 3  # km, dogs, the


def test_unknown_characters_of_bpe_are_lost_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "learned.txt").write_text("lower lowest newer " * 5, "utf-8")
    train_tokenizer([tmp_path / "learned.txt"], tmp_path / "bpe", TokenizerSettings(kind="bpe", vocab_size=60))
    its = figures_of(tmp_path, "lowЖr", tmp_path / "bpe")
    assert its.lost_letters == {"Cyrillic": 1}
    assert its.num_unknown_words == 1
    told = format_report(compare(tmp_path, "lowЖr lowЖr ЖЖЖ ЖЖЖ", tmp_path / "bpe"))
    assert "ЖЖЖ ×2" in told, "its pieces, <unk> three times, would say nothing"
    assert "say nothing" not in told, "an unknown word is as long as it has characters"


# ---- Every kind


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_wordpiece_tokens_are_those_of_whole_documents(text: str, by_hand: Path, folder: Path) -> None:
    its = figures_of(folder, f"the {text}", by_hand)
    documents = [document.text for document in read_documents([folder / "text.txt"], CorpusCounts())]
    assert its.num_tokens == sum(map(len, load_tokenizer(by_hand).encode_batch(documents)))


def test_words_in_running_text(tmp_path: Path, trained: Path) -> None:
    text = " ".join(REFERENCE_WORDS)
    its = figures_of(tmp_path, text, trained)
    (ids,) = load_tokenizer(trained).encode_batch([f" {text}"])
    assert its.num_tokens == its.num_word_tokens == len(ids)
    assert its.num_entries_used == len(set(ids))
    assert sum(its.words_by_pieces) == len(REFERENCE_WORDS)


def test_byte_level_loses_nothing(tmp_path: Path, trained: Path) -> None:
    its = figures_of(tmp_path, "zebra 漢字 \U00010000 Ωmega", trained)
    knows_all = trained.name == "byte_bpe"
    assert (its.num_unknown_words == 0) is knows_all
    assert (its.lost_letters == {}) is knows_all
    assert (its.unknown_token_share == 0) is knows_all


# ---- Samples


def test_a_sample_keeps_to_its_budget_and_its_seed(tmp_path: Path, by_hand: Path) -> None:
    text = "\n\n".join(f"the dogs went {number} " + "the man " * 400 for number in range(60))
    whole = compare(tmp_path, text, by_hand)
    assert whole.text.num_bytes == whole.text.num_bytes_read
    sampled = [compare(tmp_path, text, by_hand, max_bytes=60_000, seed=seed) for seed in (0, 0, 1)]
    assert all(30_000 - 2_500 <= report.text.num_bytes <= 60_000 for report in sampled)
    assert sampled[0] == sampled[1]
    assert sampled[0].text != sampled[2].text


def test_one_long_line_is_sampled_too(tmp_path: Path, by_hand: Path) -> None:
    report = compare(tmp_path, "the man " * 50_000 + "x" * 50_000, by_hand, max_bytes=50_000)
    assert 20_000 <= report.text.num_bytes <= 50_000


def test_names_tell_tokenizers_apart(tmp_path: Path, by_hand: Path) -> None:
    copies = [shutil.copytree(by_hand, tmp_path / place / "tokenizer") for place in ("a", "b")]
    report = compare(tmp_path, TEXT, *copies)
    assert [its.name for its in report.tokenizers] == ["a/tokenizer", "b/tokenizer"]
    again = compare(tmp_path, TEXT, by_hand, by_hand)
    assert [its.name for its in again.tokenizers] == [str(by_hand)] * 2


# ---- Bad input


def test_no_tokenizer(tmp_path: Path, by_hand: Path) -> None:
    with pytest.raises(SettingsError, match="no tokenizer was named"):
        compare(tmp_path, TEXT)
    with pytest.raises(ModelError, match=r"nowhere"):
        compare(tmp_path, TEXT, by_hand, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty"):
        compare(tmp_path, TEXT, tmp_path / "empty")


@pytest.mark.parametrize("text", ["", " \n\n ", "!? ... --"])
def test_no_word(tmp_path: Path, by_hand: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"text\.txt: no word in it"):
        compare(tmp_path, text, by_hand)


def test_no_bytes_to_count(tmp_path: Path, by_hand: Path) -> None:
    with pytest.raises(SettingsError, match="max_bytes=0"):
        compare(tmp_path, TEXT, by_hand, max_bytes=0)


# ---- For people


def test_the_terminal_is_not_too_narrow(tmp_path: Path, by_hand: Path) -> None:
    long_name = shutil.copytree(by_hand, tmp_path / ("a-tokenizer-with-a-name-that-no-column-has-room-for-" * 2))
    shown = format_report(compare(tmp_path, TEXT + " 안녕하세요 " + "dogs" * 50, by_hand, long_name))
    assert max(cell_len(line) for line in shown.splitlines()) <= WIDTH
    for figure in ("1.1", "per word", "per token", "Cyrillic", "special", "zebra ×1", "dogs 2"):
        assert figure in shown, figure


@pytest.mark.parametrize("columns", [60, 89, 90, 200])
def test_the_terminal_is_as_narrow_as_it_is(
    columns: int, tmp_path: Path, by_hand: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    copies = [shutil.copytree(by_hand, tmp_path / name) for name in ("wordpiece-cased", "wordpiece-uncased")]
    report = compare(tmp_path, TEXT, *copies)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", Terminal())
        shown = format_report(report)
    assert max(cell_len(line) for line in shown.splitlines()) <= min(columns, WIDTH)
    assert "…" not in shown
    for figure in ("bytes", "1.143", "57.14 %", "special", "Cyrillic", "uncased"):
        assert figure in shown, figure
    assert ("tokens per word" in shown) == (columns < 90), "a row for each figure"


def test_lengths_of_unknown_words_are_warned_of(tmp_path: Path, by_hand: Path) -> None:
    assert "so the lengths of by-hand say nothing" in format_report(compare(tmp_path, TEXT, by_hand))
    assert "say nothing" not in format_report(compare(tmp_path, "the dogs went", by_hand))


def test_the_page_escapes(tmp_path: Path, by_hand: Path) -> None:
    report = compare(tmp_path, TEXT, by_hand, shutil.copytree(by_hand, tmp_path / "<b>&"))
    page = tmp_path / "page.html"
    write_page(report, page, overwrite=False)
    html = page.read_text("utf-8")
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&<" not in html
    assert "http" not in html  # nothing is fetched
    assert html.count('class="bar"') == 2 + 4 * 2
    head = "<thead><tr><th>word</th><th>pieces</th><th>times</th></tr></thead>"
    assert html.count(head) == html.count('<div class="words">') * len(WORDS) > 0


def test_json(tmp_path: Path, by_hand: Path) -> None:
    report = compare(tmp_path, TEXT, by_hand)
    said = json.loads(json.dumps(report.as_dict()))
    assert said["text"]["letters"] == {"Latin": 22, "Cyrillic": 6}
    assert said["tokenizers"][0]["tokens_per_word"] == 8 / 7


def test_a_share_that_rounds_to_nothing_is_told_from_none() -> None:
    assert [share(0), share(0.00001), share(0.0001), share(1)] == ["0.00 %", "<0.01 %", "0.01 %", "100.00 %"]


def test_a_missing_segmenter_is_named_before_the_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(["나는 학교에 간다"] * 6, vocab_size=60, segmenter="kiwi").save(tmp_path)
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    monkeypatch.setitem(segmenters.SEGMENTERS, "kiwi", segmenters._load_kiwi_segmenter.__wrapped__)
    with pytest.raises(SettingsError, match="kiwi needs the library kiwipiepy"):
        report_tokenizers([tmp_path], [tmp_path / "no-text.txt"])


def test_a_word_in_parts_of_characters_is_shown_whole_with_their_number() -> None:
    assert readable(CutWord("는", 3, ("\ufffd", "\ufffd"))) == "는 (2)"
    assert readable(CutWord("bears", 3, ("bear", "##s"))) == "bear·##s"
