"""A corpus as programs see it: reads files, cleans documents, leaves out repeated ones, and keeps the statistics; and
the corpora that command-line arguments name, as files or as a mixture of several."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from unmask.corpus.cleaning.cleaning import check_scripts, clean, drop_short
from unmask.corpus.cleaning.draft import Draft
from unmask.corpus.cleaning.duplicates import drop_duplicates
from unmask.corpus.cleaning.near_duplicates import drop_near_duplicates
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.files import find_files
from unmask.corpus.mixture import SUFFIXES, read_mixture, take, times_taken
from unmask.corpus.reading import CORPUS_READERS, format_read, read_files
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.corpus.source import names_of, utf8_size
from unmask.errors import InputError
from unmask.io.input_files import STANDARD_INPUT
from unmask.io.paths import as_path
from unmask.io.progress import Progress, counted, listed

MOST_NAMES = 5
"""How many of the files that are left out are named."""

logger = logging.getLogger("unmask")


def read_documents(
    files: Iterable[Path],
    counts: CorpusCounts,
    reading: ReadingSettings = ReadingSettings(),  # noqa: B008  frozen
    cleaning: CleaningSettings = CleaningSettings(),  # noqa: B008  frozen
    work_directory: Path | None = None,
) -> Iterator[Document]:
    """Streams the cleaned documents of files, in order; what is left out is counted by its reason.

    Args:
        counts: updated while reading; it adds up whenever a document is yielded.
        work_directory: where hashes are sorted, in a folder that is removed afterwards; None is the system's place for
            temporary files.

    Raises:
        InputError: a file, or a record in it, cannot be read; see `read_files`.
        SettingsError: `cleaning` names a script that does not exist, or a package is missing for it.
        OutputError: the disk is too full for the hashes.
    """
    check_scripts(cleaning)
    drafts = _drafts(files, counts, reading, cleaning)
    if cleaning.duplicates != "keep":
        drafts = drop_duplicates(drafts, cleaning.duplicates == "paragraphs", work_directory)
        drafts = _without_short(drafts, cleaning.min_characters)  # paragraphs may have been removed
    if cleaning.near_duplicates is not None:
        drafts = drop_near_duplicates(drafts, cleaning.near_duplicates)
    for draft in drafts:
        draft.book(counts)
        if draft.dropped is None:
            yield Document(draft.text, draft.source, draft.annotations)


def _drafts(
    files: Iterable[Path], counts: CorpusCounts, reading: ReadingSettings, cleaning: CleaningSettings
) -> Iterator[Draft]:
    """Cleaned documents, not in the statistics: whether some stay is only decided after later ones were read."""
    for document in read_files(files, counts, reading):
        size = utf8_size(document.text)
        draft = Draft(document.text, document.source, size, size, document.annotations)
        clean(draft, cleaning)
        yield draft


def _without_short(drafts: Iterable[Draft], min_characters: int) -> Iterator[Draft]:
    for draft in drafts:
        if draft.dropped is None:
            drop_short(draft, min_characters)
        yield draft


@dataclass(frozen=True)
class Corpus:
    """Files whose documents are taken equally often."""

    name: str  # in its mixture; empty if there is no mixture
    files: list[Path]  # from `find_files`
    times: float = 1.0  # how often each document is taken, on average
    seed: int = 0  # decides which documents are taken once more
    size: int = 0  # bytes of its text, cleaned; measured in a mixture only


def find_corpora(
    text: str | Path | Iterable[str | Path],
    reading: ReadingSettings,
    cleaning: CleaningSettings,
    sizes: Mapping[str, int] = {},
) -> list[Corpus]:
    """The corpora that paths name; those of a mixture are read once to learn their sizes. Files in folders that are not
    read are named in a warning.

    Args:
        text: one or more files, folders and globs, as `find_files` takes them; or one mixture, a YAML file.
        cleaning: how documents are cleaned, since shares are of cleaned text.
        sizes: those that are known, by the names of a mixture's corpora; none is measured where all are.

    Raises:
        InputError: nothing is found, a column is named where no file has any, a mixture is given along with other
            paths, or a file of one cannot be read.
        SettingsError: a mixture is invalid.
    """
    text = list(text) if isinstance(text, Iterable) and not isinstance(text, str) else [as_path(text, "files of text")]
    left_out: list[Path] = []
    if not any(Path(path).suffix in SUFFIXES for path in text):
        found = [Corpus("", find_files(text, reading.format, left_out))]
        _warn_of_left_out(left_out, found[0].files)
        _refuse_column_of_text(found[0].files, reading)
        return found
    if len(text) > 1:
        raise InputError(f"{', '.join(map(str, text))}: expected either one mixture (a YAML file) or corpus files")
    mixture = read_mixture(Path(text[0]))
    files = {name: find_files(corpus.text, reading.format, left_out) for name, corpus in mixture.corpora.items()}
    _warn_of_left_out(left_out, list(chain.from_iterable(files.values())))
    _refuse_column_of_text(list(chain.from_iterable(files.values())), reading)
    for path in (path for some in files.values() for path in some):
        if not path.is_file():
            name = "standard input (-)" if path == STANDARD_INPUT else path
            raise InputError(f"{text[0]}: a mixture is read twice, which {name} cannot be: name files")
    if sizes.keys() != files.keys():
        sizes = _measure(files, reading, cleaning)
    times = times_taken(mixture, sizes)
    return [Corpus(name, some, times[name], mixture.seed, sizes[name]) for name, some in files.items()]


def _warn_of_left_out(files: Sequence[Path], read: Sequence[Path]) -> None:
    are_read = {path.resolve() for path in read}
    names = sorted({str(path) for path in files if path.resolve() not in are_read})
    if names:
        logger.warning("%s of other kinds left out: %s", counted(len(names), "file"), listed(names, MOST_NAMES))


def _refuse_column_of_text(files: Sequence[Path], reading: ReadingSettings) -> None:
    """Refuses a column that is named where no file has columns."""
    if reading.column != ReadingSettings().column and not any(
        CORPUS_READERS[format_read(path, reading)].has_columns for path in files
    ):
        raise InputError(
            f"{names_of(files)}: no columns, so {reading.option('column', reading.column)} means nothing: if this is a "
            f"table, give {reading.option('separator', 'tab')}; if not, leave the column out"
        )


def _measure(
    files: Mapping[str, Sequence[Path]], reading: ReadingSettings, cleaning: CleaningSettings
) -> dict[str, int]:
    sizes = {}
    total = max(1, sum(path.stat().st_size for some in files.values() for path in some))
    counts = CorpusCounts()
    with Progress("measuring the corpora", unit="bytes") as progress:
        for name, some in files.items():
            size_before = counts.utf8_bytes
            for _ in read_documents(some, counts, reading, cleaning):
                progress.update(counts.file_bytes / total, counts.utf8_bytes)
            sizes[name] = counts.utf8_bytes - size_before
    return sizes


def read_corpora(
    corpora: Sequence[Corpus],
    counts: CorpusCounts,
    reading: ReadingSettings,
    cleaning: CleaningSettings,
    work_directory: Path | None = None,
) -> Iterator[Document]:
    """The documents of all corpora, one corpus after another, each document as often as it is taken.

    Args:
        corpora: from `find_corpora`. Duplicates are looked for within each.
        counts: updated while reading; a document counts once however often it is taken.

    Raises:
        InputError: see `read_documents`.
    """
    for corpus in corpora:
        documents = read_documents(corpus.files, counts, reading, cleaning, work_directory)
        yield from documents if corpus.times == 1 else take(documents, corpus.name, corpus.times, corpus.seed)
