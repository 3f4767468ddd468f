"""Claim: the built-in rules split English and Korean into sentences at 20x the speed of `pysbd` and of `kiwipiepy`, or
more, and find the boundaries of hand-marked lines with an F1 of at least 0.95 in English and 0.93 in Korean, never more
than 0.01 under those libraries'.

All sides work on one core, line by line, on text in memory. Ours gets more of it, since the libraries are slow: they
get every n-th line of what we get. A boundary is the position in a marked line where its next sentence starts; the
lines' own ends are not counted. The marked lines are those of `tests/unit/corpus/sentences/marked`: their heads say
where they come from and what counts as a sentence. Nothing is claimed about `korean_reviews`, further lines, all of
film reviews, whose writers leave out most of what a rule relies on. The table also has the rate at which
`kiwipiepy` cuts Korean into morphemes for us.

The timed text is from the Wikipedias in UNMASK_DATA; without that folder, the sample texts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from measure import (
    REPOSITORY,
    SAMPLE_TEXT,
    Row,
    compare,
    in_own_process,
    interleave,
    machine,
    parser,
    report,
    use_cores,
)

AT_LEAST = 20.0
MOST_UNDER = 0.01
MARKED = REPOSITORY / "tests" / "unit" / "corpus" / "sentences" / "marked"
MARK = "␞"

Splitter = Callable[[str], list[int]]
"""From a line to where its sentences start, without the first one's start."""


def load_rules() -> Splitter:
    from unmask.corpus.sentences.rules import split_sentences

    return lambda line: [start for start, _ in split_sentences(line)[1:]]


def load_pysbd() -> Splitter:
    from pysbd import Segmenter

    segmenter = Segmenter(language="en", clean=False, char_span=True)
    return lambda line: [span.start for span in segmenter.segment(line)[1:]]


def load_kiwi() -> Splitter:
    from kiwipiepy import Kiwi

    kiwi = Kiwi(num_workers=1)
    kiwi.split_into_sents("")  # builds its tables, at the first call
    return lambda line: [sentence.start for sentence in kiwi.split_into_sents(line, return_sub_sents=False)[1:]]


@dataclass(frozen=True)
class Language:
    """A language to measure in.

    Attributes:
        name: also of its marked lines.
        peer: the library that we are compared with.
        load_peer: loads its splitter.
        corpus: large text, below UNMASK_DATA.
        sample: small text, if that is missing.
        least_f1: what is claimed for ours.
        further: the file of further marked lines, for which nothing is claimed; empty if there are none.
    """

    name: str
    peer: str
    load_peer: Callable[[], Splitter]
    corpus: Path
    sample: Path
    least_f1: float
    further: str = ""

    @property
    def peer_version(self) -> str:
        return f"{self.peer} {version(self.peer)}"


LANGUAGES = [
    Language("English", "pysbd", load_pysbd, Path("corpora", "enwiki-2015-core.jsonl.zst"), SAMPLE_TEXT, 0.95),
    Language(
        "Korean",
        "kiwipiepy",
        load_kiwi,
        Path("corpora", "kowiki-2022.jsonl.zst"),
        SAMPLE_TEXT.with_name("ko-wiki.jsonl"),
        0.93,
        "korean_reviews",
    ),
]


def read_lines(language: Language, megabytes: float) -> tuple[list[str], str]:
    """The first lines of a language's text, at most `megabytes` MB, and the file's name."""
    import json

    from unmask.io.reading import open_input

    named = os.environ.get("UNMASK_DATA")
    corpus = Path(named) / language.corpus if named else None
    path = corpus if corpus and corpus.is_file() else language.sample
    lines: list[str] = []
    size = 0
    with open_input(path) as stream:
        for record in stream:
            if size >= megabytes * 1e6:
                break
            lines += [line for line in json.loads(record)["text"].splitlines() if line.strip()]
            size += len(record)
    return lines, path.name


def build(load: Callable[[], Callable[[str], object]], lines: list[str]) -> Callable[[int], float]:
    """One side, on one core: a function that splits the lines a given number of times; returns seconds per megabyte."""
    use_cores(1)
    split = load()
    megabytes = sum(len(line.encode()) for line in lines) / 1e6

    def run(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            for line in lines:
                split(line)
        return (time.perf_counter() - began) / megabytes / times

    return run


def load_segmenter() -> Callable[[str], object]:
    from unmask.corpus.segmenters import SEGMENTERS

    return SEGMENTERS["kiwi"]()


def measure_speed(language: Language, megabytes: float, peer_megabytes: float, rounds: int) -> tuple[list[Row], str]:
    """The rows of a language's speed, and the text that they were measured on."""
    lines, source = read_lines(language, megabytes)
    step = max(1, round(megabytes / peer_megabytes))
    part = lines[::step]
    sides = {"ours": (load_rules, lines), language.peer: (language.load_peer, part)}
    with in_own_process(build, *sides["ours"]) as ours, in_own_process(build, *sides[language.peer]) as theirs:
        seconds = interleave({"ours": partial(ours, 1), language.peer: partial(theirs, 1)}, rounds)
    what = f"sentences, {language.name}"
    rows = [compare(what, seconds["ours"], language.peer_version, seconds[language.peer], AT_LEAST, megabytes=1)]
    if language.name == "Korean":
        with in_own_process(build, load_segmenter, part) as segment:
            taken = interleave({"segment": partial(segment, 1)}, 1)["segment"]
        rows.append(Row("morphemes set apart, Korean", 1 / taken[0], unit="MB/s"))
    size, its_size = (sum(len(line.encode()) for line in each) / 1e6 for each in (lines, part))
    return (
        rows,
        f"{language.name}: {source}, {size:.1f} MB for us, every {step}th line, {its_size:.2f} MB, for the library",
    )


def read_marked(path: Path) -> list[tuple[str, set[int]]]:
    """The lines of a marked file without their marks, and where their sentences after the first start."""
    marked = []
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            *others, _ = sentences = line.split(MARK)
            ends = [sum(map(len, sentences[: number + 1])) for number in range(len(others))]
            marked.append(("".join(sentences), set(ends)))
    return marked


def count_errors(split: Splitter, marked: list[tuple[str, set[int]]]) -> tuple[int, int, int]:
    """How many boundaries a splitter finds, invents and misses."""
    found = invented = missed = 0
    for line, boundaries in marked:
        starts = {len(line) - len(line[start:].lstrip()) for start in split(line)}  # a start may be before its space
        found += len(starts & boundaries)
        invented += len(starts - boundaries)
        missed += len(boundaries - starts)
    return found, invented, missed


def measure_f1(language: Language, name: str, is_claimed: bool) -> tuple[Row, list[str]]:
    """The row of some marked lines, and what was found, invented and missed.

    Args:
        language: the one whose splitters are measured.
        name: the file's name.
        is_claimed: True if the language's least F1 is claimed on these lines.
    """
    marked = read_marked(MARKED / f"{name}.txt")
    counts = {"ours": count_errors(load_rules(), marked), language.peer: count_errors(language.load_peer(), marked)}
    scores = {who: 2 * found / (2 * found + wrong + missed) for who, (found, wrong, missed) in counts.items()}
    row = Row(
        f"boundary F1, {name}, {len(marked)} lines",
        scores["ours"],
        language.peer_version,
        scores[language.peer],
        target=f"at least {language.least_f1}, at most {MOST_UNDER} under" if is_claimed else "",
        met=scores["ours"] >= max(language.least_f1, scores[language.peer] - MOST_UNDER) if is_claimed else None,
    )
    notes = [
        f"{name}, {who}: {found} boundaries found, {invented} invented, {missed} missed"
        for who, (found, invented, missed) in counts.items()
    ]
    return row, notes


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--megabytes", type=float, default=20, help="of text that we are timed on")
    words.add_argument("--peer-megabytes", type=float, default=0.5, help="of text that a library is timed on")
    words.add_argument("--rounds", type=int, default=5)
    given = words.parse_args()
    rows: list[Row] = []
    notes: list[str] = []
    for language in LANGUAGES:
        its_rows, text = measure_speed(language, given.megabytes, given.peer_megabytes, given.rounds)
        notes.append(text)
        for name in filter(None, (language.name.lower(), language.further)):
            row, counts = measure_f1(language, name, is_claimed=name != language.further)
            rows.append(row)
            notes += counts
        rows += its_rows
    report("Splitting into sentences on one core", rows, machine(1), notes, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
