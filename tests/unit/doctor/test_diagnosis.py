"""How a diagnosis is shown, on a terminal and as a page, and what the doctor refuses to look at."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rich.cells import cell_len

from support.run_pages import Page
from support.trained import trained
from unmask.doctor.diagnosis import diagnose
from unmask.doctor.findings import Diagnosis, FigureTable, Finding, Histogram, Sample, SampleToken, sorted_findings
from unmask.doctor.page import write_diagnosis
from unmask.doctor.samples import read_entry
from unmask.doctor.terminal import print_diagnosis
from unmask.errors import InputError, SettingsError, StoreError

NASTY = '<script>alert("1")</script> & [bold]'

LENGTHS = (("sentence", "12.5", "1,024"), ("document", "3", "9"))
TOKENS = (
    *(SampleToken("[CLS]", 0, True), SampleToken("man", 0, False), SampleToken("[MASK]", 0, False, "דג")),
    *(SampleToken("[SEP]", 0, True), SampleToken("한국어", 1, False), SampleToken("dog", 1, False, "dog")),
    SampleToken("[SEP]", 1, True),
)
DIAGNOSIS = Diagnosis(
    "store",
    f"runs/{NASTY}",
    (
        Finding("repeated-corpus", "fault", f"seen {NASTY} " + "word " * 60, "give each file once"),
        Finding("checksums", "good", "all 7 files"),
    ),
    headline=(("Documents", "1,234"), ("Unknown tokens", "1.04%")) * 4,
    tables=(
        FigureTable("Facts", (("documents", "12"), ("text", "말뭉치 " * 30))),
        FigureTable("Lengths", LENGTHS, ("", "mean", "longest"), "a note"),
        FigureTable("Entries", (("כלב  2.00%", "كلب  1.00%"),), ("", "")),
    ),
    histograms=(Histogram("Sentence lengths", "tokens", "sentences", (1, 8, 15), (10, 0, 1)),),
    samples=(Sample(TOKENS, "NotNext (label 1)"),),
    listings=(("Account", "came in   3\nwent out  2"),),
    figures={"documents": 1234},
)


def terminal_of(diagnosis: Diagnosis) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream):
        print_diagnosis(diagnosis)
    return stream.getvalue()


def test_the_terminal_says_everything_without_colours() -> None:
    shown = terminal_of(DIAGNOSIS)
    assert "\x1b" not in shown
    assert all(cell_len(line) <= 100 for line in shown.splitlines()[1:])  # the first is the person's own path
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert f"runs/{NASTY}: a store" in shown
    assert "fault  repeated-corpus: seen" in shown
    assert "→ give each file once" in shown
    assert "A [CLS] man ‹[MASK]=דג› [SEP]" in shown
    assert "B 한국어 ‹dog=dog› [SEP]" in shown
    assert "7 tokens, 2 targets, NotNext (label 1)" in shown
    assert "  came in   3\n  went out  2\n" in shown
    assert re.search(r"^ +1–7 +█{50} +10 +90\.9%$", shown, flags=re.MULTILINE)
    assert re.search(r"^ +15\+ +█{5} +1 +9\.1%$", shown, flags=re.MULTILINE)


def page_of(diagnosis: Diagnosis, directory: Path) -> str:
    write_diagnosis(directory / "page.html", diagnosis, overwrite=True)
    return (directory / "page.html").read_text(encoding="utf-8")


def test_the_page_is_whole_escaped_and_needs_no_network(tmp_path: Path) -> None:
    page = page_of(DIAGNOSIS, tmp_path)
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert parsed.outside == []
    assert not re.search(r"https?:|//|url\(|@import|@font-face", page)
    assert page.count("&lt;script&gt;") == 3  # title, heading, finding
    *sections, last = re.findall("<h2>(.*?)</h2>", page)
    assert sections == ["Findings", "Facts", "Lengths", "Entries", "Account", "Lengths"]
    assert last == "Sequences as the model sees them"
    assert '<span class="level fault">fault</span>' in page
    assert '<span class="token a control"><bdi>[CLS]</bdi></span>' in page
    assert '<ruby class="token a target"><bdi>[MASK]</bdi><rt><bdi>דג</bdi></rt></ruby>' in page
    assert '<span class="token b"><bdi>한국어</bdi></span>' in page
    assert "<td><bdi>כלב</bdi> <bdi>2.00%</bdi></td>" in page
    assert 'style="width:100.00%"' in page


def of_samples(*tokens: SampleToken, predicts_next: bool = False) -> Diagnosis:
    return Diagnosis("store", "stores/a", (), samples=(Sample(tokens, "one", predicts_next),))


def test_segments_are_named_only_where_there_are_two(tmp_path: Path) -> None:
    tokens = SampleToken("[CLS]", 0, True), SampleToken("[MASK]", 0, False, "dog"), SampleToken("ran", 0, False)
    one = of_samples(*tokens)
    shown = terminal_of(one)
    assert "A and B" not in shown
    assert "  targets are ‹what is shown=what is to be predicted›" in shown
    assert "\n    [CLS] ‹[MASK]=dog› ran\n" in shown
    page = page_of(one, tmp_path)
    assert 'class="token a' not in page
    assert 'targets: <ruby class="token target">' in page
    assert '<span class="token control"><bdi>[CLS]</bdi></span>' in page
    assert '<span class="token"><bdi>ran</bdi></span>' in page
    assert 'class="token a">A</span> and' in page_of(DIAGNOSIS, tmp_path)
    assert "A and B are the segments; targets are" in terminal_of(DIAGNOSIS)


def test_plain_text_to_go_on_with_needs_no_legend(tmp_path: Path) -> None:
    plain = of_samples(SampleToken("the", 0, False), SampleToken("dog", 0, False), predicts_next=True)
    shown = "Sequences as the model sees them\n  sequence 1: 2 tokens, 1 target, one\n    the dog\n"
    assert terminal_of(plain).endswith(shown)
    assert '<h2>Sequences as the model sees them</h2><article class="sequence">' in page_of(plain, tmp_path)


@pytest.mark.parametrize(
    ("kind", "mark", "expected"),
    [
        ("bpe", "</w>", {"the", "dog", "t-"}),
        ("wordpiece", "##", {"the", "dog", "##h"}),
        ("byte_bpe", "Ġ", {"the", "␣dog"}),
    ],
)
def test_entries_are_shown_for_people(kind: str, mark: str, expected: set[str]) -> None:
    tokenizer = trained(["the dog the dog"] * 20, kind=kind, vocab_size=300)
    shown = [read_entry(tokenizer, index) for index in range(tokenizer.vocab_size)]
    assert expected <= set(shown)
    assert len(set(shown)) == len(shown)
    if kind != "wordpiece":
        assert not any(mark in entry for entry in shown)
    for index in tokenizer.special_ids:
        assert shown[index] == tokenizer.token_strings[index]


def test_a_diagnosis_without_pictures_has_no_empty_sections(tmp_path: Path) -> None:
    bare = Diagnosis("run", "runs/a", (Finding("loss", "good", "below its floor"),))
    assert re.findall("<h2>(.*?)</h2>", page_of(bare, tmp_path)) == ["Findings"]
    assert terminal_of(bare) == "runs/a: a run\n\ngood  loss: below its floor\n"


def test_faults_come_first() -> None:
    found = [Finding(level, level, "") for level in ("good", "note", "fault", "warning", "fault")]  # type: ignore[arg-type]
    assert [finding.level for finding in sorted_findings(found)] == ["fault", "fault", "warning", "note", "good"]


def test_what_is_none_of_the_three_is_told(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InputError, match=r"no such file or directory, and no recipe of that name: expected a store"):
        diagnose("pretrain/bert_tinny")
    with pytest.raises(InputError, match=r"its name; did you mean pretrain/bert_tiny or .*\?$") as refused:
        diagnose("pretrain/bert_tinny")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=r"^runs/nowhere: no such file or directory, .*or its name$"):
        diagnose("runs/nowhere")
    with pytest.raises(InputError, match=r"is nothing that `unmask doctor` can examine: expected a store"):
        diagnose(tmp_path)
    with pytest.raises(InputError, match=r"model is a model: expected a store .*, a run .* or a recipe"):
        diagnose(tiny_model)
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(InputError, match=r"notes\.txt is nothing that"):
        diagnose(tmp_path / "notes.txt")
    (tmp_path / "tokens-00000.bin").write_bytes(b"")
    with pytest.raises(StoreError, match="an unfinished store"):
        diagnose(tmp_path)


def test_a_recipe_with_mistakes_is_told(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("modle: {preset: tiny}\ntrain: {steps: 5}\n")
    with pytest.raises(SettingsError, match=r"unknown key modle; did you mean model\?"):
        diagnose(recipe)
    recipe.write_text("corpus: [a.txt]\nstore: b\ntrain: {steps: 5}\n")
    with pytest.raises(SettingsError, match="both are given"):
        diagnose(recipe)
    recipe.write_text("train: {steps: 5}\npacking: {max_length: 1024}\n")
    with pytest.raises(SettingsError, match=r"packing\.max_length 1024 is over the 512 positions of the model: sh"):
        diagnose(recipe)
    with pytest.raises(SettingsError, match=r"--recipe says how a store's samples are made, and .* is a recipe"):
        diagnose("pretrain/bert_tiny", recipe="pretrain/bert_mini")
