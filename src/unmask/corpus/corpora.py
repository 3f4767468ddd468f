"""The corpora that command-line arguments name, as files or as a mixture of several, and their documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.files import STANDARD_INPUT, find_files
from unmask.corpus.mixture import SUFFIXES, read_mixture, take, times_taken
from unmask.corpus.pipeline import read_documents
from unmask.corpus.settings import CleaningSettings, ReadingSettings
from unmask.errors import InputError
from unmask.io.progress import Progress


@dataclass(frozen=True)
class Corpus:
    """Files whose documents are taken equally often.

    Attributes:
        name: in its mixture; empty if there is no mixture.
        files: from `find_files`.
        times: how often each document is taken, on average.
        seed: decides which documents are taken once more.
    """

    name: str
    files: list[Path]
    times: float = 1.0
    seed: int = 0


def find_corpora(text: Sequence[str | Path], reading: ReadingSettings, cleaning: CleaningSettings) -> list[Corpus]:
    """The corpora that paths name; those of a mixture are read once to learn their sizes.

    Args:
        text: files, folders and globs, as `find_files` takes them; or one mixture, a YAML file.
        reading: how files become documents.
        cleaning: how documents are cleaned, since shares are of cleaned text.

    Raises:
        InputError: nothing is found, a mixture is given along with other paths, or a file of one cannot be read.
        SettingsError: a mixture is invalid.
    """
    if not any(Path(path).suffix in SUFFIXES for path in text):
        return [Corpus("", find_files(text, reading.format))]
    if len(text) > 1:
        raise InputError(f"{', '.join(map(str, text))}: expected either one mixture (a YAML file) or corpus files")
    mixture = read_mixture(Path(text[0]))
    files = {name: find_files(corpus.text, reading.format) for name, corpus in mixture.corpora.items()}
    for path in (path for some in files.values() for path in some):
        if not path.is_file():
            name = "standard input (-)" if path == STANDARD_INPUT else path
            raise InputError(f"{text[0]}: a mixture is read twice, which {name} cannot be: name files")
    sizes = {}
    total = max(1, sum(path.stat().st_size for some in files.values() for path in some))
    counts = CorpusCounts()
    with Progress("measuring the corpora", unit="bytes") as progress:
        for name, some in files.items():
            size_before = counts.utf8_bytes
            for _ in read_documents(some, counts, reading, cleaning):
                progress.update(counts.file_bytes / total, counts.utf8_bytes)
            sizes[name] = counts.utf8_bytes - size_before
    times = times_taken(mixture, sizes)
    return [Corpus(name, some, times[name], mixture.seed) for name, some in files.items()]


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
        reading: how files become documents.
        cleaning: what is mended in documents, and which are left out.
        work_directory: where hashes are sorted.

    Raises:
        InputError: see `read_documents`.
    """
    for corpus in corpora:
        documents = read_documents(corpus.files, counts, reading, cleaning, work_directory)
        yield from documents if corpus.times == 1 else take(documents, corpus.name, corpus.times, corpus.seed)
