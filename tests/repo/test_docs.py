"""The documents hang together: links lead somewhere, guides have contents, decisions the parts of their template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
TEMPLATE = DOCS / "decisions" / "0000-template.md"
NOTES = sorted(set((DOCS / "decisions").glob("[0-9]*.md")) - {TEMPLATE})
DOCUMENTS = [
    *REPOSITORY.glob("*.md"),
    *DOCS.rglob("*.md"),
    *(REPOSITORY / folder / "README.md" for folder in ("benchmarks", "recipes", "samples")),
]


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def prose_of(path: Path) -> str:
    """A document without its fenced blocks and code spans, in which neither headings nor links stand."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`(?!\])", lambda code: code[0].replace("](", ""), text)


def headings_of(path: Path) -> list[tuple[int, str, str]]:
    """Level, text and anchor of each heading; anchors as GitHub makes them."""
    found = re.findall(r"^(#+) (.*)$", prose_of(path), flags=re.MULTILINE)
    return [(len(marks), text, re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")) for marks, text in found]


def contents_of(path: Path) -> str:
    """The table of contents that belongs to a document: its headings below the title."""
    below = [heading for heading in headings_of(path) if heading[0] > 1]
    return "\n".join(f"{'  ' * (level - 2)}- [{text}](#{anchor})" for level, text, anchor in below)


@pytest.mark.parametrize("path", sorted(DOCUMENTS), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
        file, _, anchor = target.partition("#")
        other = path.parent / file if file else path
        if "://" in target:
            continue
        if not other.exists() or (anchor and anchor not in {its for _, _, its in headings_of(other)}):
            broken.append(target)
    assert not broken, f"{name_of(path)} links to what is not there: {broken}"


@pytest.mark.parametrize("path", GUIDES, ids=name_of)
def test_a_guide_opens_with_its_contents(path: Path) -> None:
    opening = path.read_text("utf-8").partition("\n## ")[0]
    assert contents_of(path) in opening, f"before its first section {name_of(path)} should have\n\n{contents_of(path)}"


@pytest.mark.parametrize("path", NOTES, ids=name_of)
def test_a_note_has_the_parts_of_the_template_and_a_row_in_the_index(path: Path) -> None:
    (_, title, _), *parts = headings_of(path)
    assert [text for level, text, _ in parts if level == 2] == [text for _, text, _ in headings_of(TEMPLATE)[1:]]
    number = path.name[:4]
    assert title.startswith(f"{number}: ")
    row = f"| [{number}]({path.name}) | {title.removeprefix(f'{number}: ')} |"
    assert row in path.with_name("README.md").read_text("utf-8"), f"docs/decisions/README.md has no row `{row} ... |`"
    tests = set(re.findall(r"\btest_\w+\.py\b", path.read_text("utf-8")))
    assert tests <= {test.name for test in (REPOSITORY / "tests").rglob("test_*.py")}, "a test that is named has gone"
    sections = re.split(r"^## .*\n", path.read_text("utf-8"), flags=re.MULTILINE)
    assert all(section.strip() for section in sections), "a section is empty"
