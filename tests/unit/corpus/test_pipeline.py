"""Reading and cleaning together: what is handed on, in which order, and an account that adds up at every moment."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unmask.corpus.cleaning.duplicates as duplicates
from support.corpora import SKIP
from support.files import write, write_rows
from support.imports import loaded_with
from unmask.corpus.documents import Amount, CorpusCounts, Document
from unmask.corpus.pipeline import find_corpora, read_documents
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import InputError, OutputError, SettingsError

LONG = "A paragraph that is long enough to be compared with others."
OTHER = "Another one, which says something else, and is as long."


def write_texts(path: Path, texts: list[str]) -> Path:
    return write_rows(path, *({"text": text} for text in texts))


def assert_adds_up(counts: CorpusCounts) -> None:
    dropped, removed = counts.dropped.values(), counts.removed.values()
    assert counts.documents_read == counts.documents + sum(amount.count for amount in dropped)
    assert counts.bytes_read == counts.utf8_bytes + sum(amount.utf8_bytes for amount in [*dropped, *removed])


def watched(documents: Iterator[Document], counts: CorpusCounts) -> list[Document]:
    """All documents, the account having been checked before the first, at each one and after the last."""
    taken: list[Document] = []
    assert_adds_up(counts)
    for document in documents:
        taken.append(document)
        assert_adds_up(counts)
        assert counts.documents == len(taken)
    assert_adds_up(counts)
    assert counts.utf8_bytes == sum(len(document.text.encode()) for document in taken)
    assert counts.characters == sum(len(document.text) for document in taken)
    return taken


def test_documents_come_cleaned_and_in_order_with_a_full_account(tmp_path: Path) -> None:
    first = write_texts(tmp_path / "1.jsonl", ["one\x00", "", " \u200b", f"{LONG}\r\n{OTHER}", "one"])
    second = write(tmp_path / "2.txt", f"두\ufeff번째\n\n{LONG}\n12\n\nok\n\n12\n")
    files = [first, second, write(tmp_path / "3.txt")]
    counts = CorpusCounts()
    cleaning = CleaningSettings(duplicates="paragraphs", min_characters=3, boilerplate_lines=True)
    documents = watched(read_documents(files, counts, cleaning=cleaning, work_directory=tmp_path), counts)
    assert documents == [
        Document("one", f"{first}:1"),
        Document(f"{LONG}\n{OTHER}", f"{first}:4"),
        Document("두번째", f"{second}:1"),
    ]
    assert counts == CorpusCounts(
        files=3,
        empty_files=1,
        file_bytes=sum(path.stat().st_size for path in files),
        documents_read=9,
        bytes_read=4 + 0 + 4 + (len(LONG) + 2 + len(OTHER)) + 3 + 12 + (len(LONG) + 3) + 2 + 2,
        removed={
            "control characters": Amount(1, 1),
            "line breaks made newlines": Amount(1, 1),
            "zero-width characters": Amount(1, 3),
        },
        dropped={
            "empty": Amount(2, 4),
            "duplicate": Amount(1, 3),
            "nothing left": Amount(2, len(LONG) + 3 + 2),  # a repeated paragraph and a page number; a page number
            "too short": Amount(1, 2),
        },
        documents=3,
        characters=3 + len(LONG) + 1 + len(OTHER) + 3,
        utf8_bytes=3 + len(LONG) + 1 + len(OTHER) + 9,
    )
    assert sorted(tmp_path.iterdir()) == sorted(files)


LINES = st.sampled_from([LONG, OTHER, "12", "구독하기", "한국어 문장.", "e\u0301\u200b", "\x00", "\r", ""])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.lists(LINES, max_size=6).map("\n".join)
CLEANING = st.builds(
    CleaningSettings,
    nfc=st.booleans(),
    control_characters=st.booleans(),
    zero_width_characters=st.booleans(),
    boilerplate_lines=st.booleans(),
    min_characters=st.sampled_from([1, 5, 50]),
    duplicates=st.sampled_from(["keep", "documents", "paragraphs"]),
    near_duplicates=st.sampled_from([None, 0.3, 0.8]),
    min_script_share=st.sampled_from([{}, {"Latin": 0.5}, {"Hangul": 0.3, "Han": 0.3}]),
)


@settings(max_examples=50)
@given(texts=st.lists(TEXTS, max_size=25), cleaning=CLEANING, files=st.integers(1, 3), batch=st.integers(1, 4))
def test_the_account_adds_up_at_every_moment(
    texts: list[str], cleaning: CleaningSettings, files: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp()
    paths = [write_texts(directory / f"{number}.jsonl", texts[number::files]) for number in range(files)]
    counts = CorpusCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_BATCH_DOCUMENTS", batch)
        documents = watched(read_documents(paths, counts, cleaning=cleaning), counts)
    assert counts.documents_read == len(texts)
    assert counts.bytes_read == sum(len(text.encode()) for text in texts)
    sources = [f"{path}:{line}" for path in paths for line in range(1, len(texts) + 1)]
    places = [sources.index(document.source) for document in documents]
    assert places == sorted(places)
    assert all(len(document.text.strip()) >= cleaning.min_characters for document in documents)


def test_defaults_keep_every_document_that_has_text(tmp_path: Path) -> None:
    texts = ["one", "one", "12", "한국어", LONG, LONG]
    counts = CorpusCounts()
    documents = watched(read_documents([write_texts(tmp_path / "a.jsonl", texts)], counts), counts)
    assert [document.text for document in documents] == texts


GUTENBERG = """The Project Gutenberg eBook of Nothing

*** START OF THE PROJECT GUTENBERG EBOOK NOTHING ***

{text}

*** END OF THE PROJECT GUTENBERG EBOOK NOTHING ***
The licence.
"""


@pytest.mark.parametrize("kind", ["keep", "documents", "paragraphs"])
def test_what_a_reader_removes_itself_is_booked_also_where_the_document_is_dropped(tmp_path: Path, kind: str) -> None:
    texts = enumerate([LONG, LONG, OTHER, "."])
    paths = [write(tmp_path / f"{number}.txt", GUTENBERG.format(text=text)) for number, text in texts]
    counts = CorpusCounts()
    cleaning = CleaningSettings(duplicates=kind, min_characters=5)
    documents = watched(read_documents(paths, counts, cleaning=cleaning), counts)
    assert [document.text for document in documents] == ([LONG, LONG, OTHER] if kind == "keep" else [LONG, OTHER])
    assert counts.bytes_read == sum(path.stat().st_size for path in paths)
    assert counts.dropped["too short"] == Amount(1, 1)


def test_an_account_goes_on_from_one_corpus_to_the_next(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl", ["one", ""])
    counts = CorpusCounts()
    for _ in range(2):
        assert [document.text for document in read_documents([path], counts)] == ["one"]
        assert_adds_up(counts)
    assert (counts.files, counts.documents_read, counts.documents) == (2, 4, 2)
    assert counts.file_bytes == 2 * path.stat().st_size


def test_a_lone_path_is_a_list_of_one(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", "text\n")
    mixture = write(tmp_path / "all.yaml", "corpora: {one: {text: [a.txt]}}")
    for path in (text, mixture):
        for lone in (path, str(path)):
            assert [corpus.files for corpus in find_corpora(lone, ReadingSettings(), CleaningSettings())] == [[text]]


def test_paths_may_be_computed_one_by_one(tmp_path: Path) -> None:
    files = [write(tmp_path / name, "text\n") for name in ("a.txt", "b.txt")]
    [corpus] = find_corpora(map(str, files), ReadingSettings(), CleaningSettings())
    assert corpus.files == files


def test_corpora_of_a_mixture_have_its_seed_and_sizes_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "A dog.")
    write(tmp_path / "b.txt", "A cat runs.")
    mixture = write(tmp_path / "all.yaml", "seed: 7\ncorpora: {a: {text: [a.txt]}, b: {text: [b.txt]}}")
    found = find_corpora(mixture, ReadingSettings(), CleaningSettings())
    assert [(corpus.seed, corpus.size) for corpus in found] == [(7, 6), (7, 11)]


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text, page = write(tmp_path / "a.txt", "A man.\n"), write(tmp_path / "sub" / "page.html")
    write(tmp_path / ".hidden.html")
    broken = tmp_path / "link.txt"
    broken.symlink_to(tmp_path / "absent.txt")
    [corpus] = find_corpora([tmp_path, text, tmp_path], ReadingSettings(), CleaningSettings())
    assert corpus.files == [text]
    assert caplog.messages == [f"2 files of other kinds left out: {broken}, {page}"]
    caplog.clear()
    find_corpora([tmp_path, page], ReadingSettings(format="txt"), CleaningSettings())
    assert caplog.messages == [f"1 file of other kinds left out: {broken}"], "the page is read"
    caplog.clear()
    for name in "bcdefg":
        write(tmp_path / f"{name}.html")
    mixture = write(tmp_path / "mixture.yaml", f"corpora: {{en: {{text: [{tmp_path}]}}}}")
    find_corpora([mixture], ReadingSettings(), CleaningSettings())
    names = ", ".join(str(tmp_path / f"{name}.html") for name in "bcdef")
    assert caplog.messages == [f"9 files of other kinds left out: {names} and 4 more"]
    caplog.clear()
    find_corpora([text], ReadingSettings(), CleaningSettings())
    assert not caplog.messages


def test_records_passed_over_are_listed_and_stand_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\nnot JSON\n{"text": "one"}\n')
    listed: list[str] = []
    counts = CorpusCounts(on_skip=lambda place, _: listed.append(place))
    cleaning = CleaningSettings(duplicates="documents")
    documents = watched(read_documents([path], counts, SKIP, cleaning), counts)
    assert [document.text for document in documents] == ["one"]
    assert (listed, sum(counts.skipped.values()), counts.documents_read) == ([f"{path}:2"], 1, 2)


def test_the_account_holds_and_nothing_is_left_where_reading_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": "two"}\nnot JSON\n')
    counts = CorpusCounts()
    cleaning = CleaningSettings(duplicates="documents")
    with pytest.raises(InputError, match=r"a\.jsonl:3"):
        list(read_documents([path], counts, cleaning=cleaning, work_directory=tmp_path))
    assert_adds_up(counts)
    assert (counts.files, counts.file_bytes) == (1, path.stat().st_size)
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_settings_and_places_are_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(SettingsError, match="no script 'Korean'"):
        next(read_documents([path], CorpusCounts(), cleaning=CleaningSettings(min_script_share={"Korean": 0.5})))
    cleaning = CleaningSettings(duplicates="documents")
    with pytest.raises(OutputError, match="cannot write"):
        next(read_documents([path], CorpusCounts(), cleaning=cleaning, work_directory=path))


@pytest.mark.parametrize("kind", ["keep", "paragraphs"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    line = json.dumps({"text": "the same words again " * 40}).encode() + b"\n"
    path = write(tmp_path / "a.jsonl", (line + b'{"text": "another"}\n') * 20_000)  # 18 MB
    counts = CorpusCounts()
    tracemalloc.start()
    for number, _ in enumerate(read_documents([path], counts, cleaning=CleaningSettings(duplicates=kind))):
        if number == 100:  # enough to show that the file is not held; tracing all of it would take long
            break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The 8,192 documents that wait to be decided have 3.4 MB of text.
    assert peak < 15e6


def test_reading_a_corpus_needs_no_torch() -> None:
    assert "torch" not in loaded_with("unmask.corpus.pipeline", "unmask.corpus.sentences.rules")


def test_pages_that_are_no_articles_are_in_the_account_too() -> None:
    dump = Path(__file__).parent / "formats" / "fixtures" / "wiki-pages-articles.xml"
    counts = CorpusCounts()
    num_documents = sum(1 for _ in watched(read_documents([dump], counts), counts))
    assert counts.documents == num_documents > 0
    assert counts.documents_read == num_documents + sum(amount.count for amount in counts.dropped.values())
    assert counts.dropped["redirect page"].count > 0
