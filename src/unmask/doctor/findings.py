"""What `unmask doctor` reports: findings with figures and advice, and the tables and pictures that support them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from unmask.io.progress import counted

Level = Literal["good", "note", "warning", "fault"]
LEVELS: tuple[Level, ...] = ("fault", "warning", "note", "good")  # in the order in which a page lists them


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    name: str  # a stable identifier, for scripts and tests: `other-vocabulary`
    level: Level  # `good` passed, `note` is worth knowing, `warning` probably not what was meant, `fault` is broken
    message: str  # what was seen, with figures
    advice: str = ""  # what to do; empty where there is nothing to do


@dataclass(frozen=True)
class FigureTable:
    """A table of text: every row has one cell per column; without columns, rows are (name, value)."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] = ()
    note: str = ""


def are_numbers(cells: Iterable[str]) -> bool:
    """Whether all cells of a table that are not empty are numbers or percentages."""
    return all(cell.replace(",", "").replace(".", "").replace("%", "").strip().isdigit() for cell in cells if cell)


@dataclass(frozen=True)
class Histogram:
    """Counts of whole numbers: bin i holds `starts[i]` to `starts[i + 1] - 1`, the last all from its start on."""

    title: str
    unit: str  # what the numbers count: "tokens"
    counted: str  # what has such a number: "sentences"
    starts: tuple[int, ...]  # ascending, one per bin
    counts: tuple[int, ...]  # one per bin

    def label(self, place: int) -> str:
        """A bin's range as it is written: `8`, `8–15`, `128+`."""
        first = self.starts[place]
        if place + 1 == len(self.starts):
            return f"{first:,}+"
        last = self.starts[place + 1] - 1
        return f"{first:,}" if first == last else f"{first:,}–{last:,}"


@dataclass(frozen=True)
class SampleToken:
    """A token as the model receives it."""

    shown: str  # the vocabulary entry at this position
    segment: int  # 0 or 1
    special: bool  # True for `[CLS]`, `[SEP]` and their like
    label: str | None = None  # the entry to be predicted here, or None if nothing is


@dataclass(frozen=True)
class Sample:
    """One decoded sequence."""

    tokens: tuple[SampleToken, ...]
    sequence_label: str = ""  # a line about the sequence as a whole (`IsNext`)
    predicts_next: bool = False  # True where each token is predicted from those before it; tokens then have no labels

    @property
    def num_targets(self) -> int:
        return len(self.tokens) - 1 if self.predicts_next else sum(token.label is not None for token in self.tokens)

    def facts(self) -> str:
        """What is said of the sequence as a whole."""
        counts = {"token": len(self.tokens), "target": self.num_targets}
        said = [counted(count, name) for name, count in counts.items()]
        return ", ".join([*said, *filter(None, [self.sequence_label])])


@dataclass(frozen=True)
class Diagnosis:
    """All that the doctor has to say about a target."""

    kind: Literal["store", "recipe", "run", "search"]
    target: str  # as the user named it
    findings: tuple[Finding, ...]
    headline: tuple[tuple[str, str], ...] = ()  # the few figures that matter most, as (name, value)
    tables: tuple[FigureTable, ...] = ()
    histograms: tuple[Histogram, ...] = ()
    samples: tuple[Sample, ...] = ()
    listings: tuple[tuple[str, str], ...] = ()  # preformatted texts, as (title, text)
    # plain numbers and texts for scripts, the `figures` of `--json`
    figures: dict[str, object] = field(default_factory=dict)

    @cached_property
    def legend(self) -> list[str]:
        """What the samples have that needs to be explained."""
        tokens = [token for sample in self.samples for token in sample.tokens]
        has = {
            "segments": any(token.segment for token in tokens),
            "special": any(token.special for token in tokens),
            "targets": any(token.label is not None for token in tokens),
        }
        return [kind for kind, is_there in has.items() if is_there]

    @property
    def has_fault(self) -> bool:
        return any(finding.level == "fault" for finding in self.findings)


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Faults first, what passed last, otherwise in the order found."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
