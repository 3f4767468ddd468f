"""The documents hang together: links lead somewhere, guides have contents, decisions the parts of their template."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from unmask.serving import endpoints, inspecting
from unmask.tasks.settings import KINDS

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
WRITTEN = {
    *DOCUMENTS,
    *REPOSITORY.glob("src/**/*.py"),
    *REPOSITORY.glob("src/**/*.html"),
    *REPOSITORY.glob("recipes/**/*.yaml"),
}
OTHER_MEANINGS = {
    "src/unmask/io/reading.py": "frame",  # of zstd
    "src/unmask/corpus/reading.py": "frame",
    "src/unmask/corpus/cleaning/boilerplate.py": "account",  # in a menu
    "src/unmask/tokenization/encoding/longest_match.py": "told",  # in an example
    "src/unmask/io/npy.py": "tell",  # a method of files
}
"""Files in which a word that the glossary replaces, with its forms, has another meaning."""


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


def test_what_the_architecture_names_in_a_file_is_there() -> None:
    """Its files, and each `name` of `folder/file.py`; paths are those of the repository or of the package."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = r"(?:((?:`\w+`(?:,\s+|\s+and\s+|\s+or\s+)?)+)\s+(?:of|in)\s+)?`([\w/]+/\w+\.(?:py|js))`"
    missing = []
    for names, file in re.findall(named, text):
        paths = [root / file for root in (REPOSITORY, REPOSITORY / "src" / "unmask") if (root / file).is_file()]
        content = "".join(path.read_text("utf-8") for path in paths)
        missing += [] if paths else [file]
        missing += [
            f"{name} of {file}" for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", content)
        ]
    assert not missing, f"docs/architecture.md names what is not there: {missing}"


@pytest.mark.parametrize("path", sorted(DOCUMENTS), ids=name_of)
def test_prose_is_wrapped(path: Path) -> None:
    """Tables, pictures and fenced blocks may be wider."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!"))]


PYTHON = [
    (name_of(path), code)
    for path in sorted(DOCUMENTS)
    for code in re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]


def faults_of(code: str) -> list[str]:
    """What a piece of Python imports from the project that is not there, or calls with arguments that it has not."""
    known: dict[str, Any] = {"unmask": importlib.import_module("unmask")}
    faults = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "unmask":
            module = importlib.import_module(node.module or "")
            faults += [f"{node.module} has no {its.name}" for its in node.names if not hasattr(module, its.name)]
            known |= {its.asname or its.name: getattr(module, its.name, None) for its in node.names}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and (called := _called(node.func, known)) is not None:
            try:
                inspect.signature(called).bind(*node.args, **{each.arg: each for each in node.keywords if each.arg})
            except TypeError as error:
                faults.append(f"{ast.unparse(node.func)}: {error}")
    return faults


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[f"{name}-{number}" for number, (name, _) in enumerate(PYTHON)])
def test_python_in_the_docs_calls_what_is_there(name: str, code: str) -> None:
    assert faults_of(code) == [], name


def test_python_that_calls_what_is_not_there_is_noticed() -> None:
    code = "import unmask\nfrom unmask.tasks.text.glue import glue_averages, gone\nglue_averages({}, 1)\n"
    code += "unmask.predict(modle='runs/a')\n"
    gone, averages, predict = faults_of(code)
    assert gone == "unmask.tasks.text.glue has no gone"
    assert averages == "glue_averages: too many positional arguments"
    assert predict.startswith("unmask.predict: ")


def _called(function: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "unmask":
        return getattr(known["unmask"], function.attr)
    return known.get(function.id) if isinstance(function, ast.Name) else None


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


def test_every_data_set_has_its_row_and_its_recipe() -> None:
    rows = "".join(re.findall(r"^\| (.*?) \|", (DOCS / "data.md").read_text("utf-8"), re.M))
    recipes = REPOSITORY / "recipes" / "finetune"
    lacking = [
        *(f"a row of {name} in docs/data.md" for name in KINDS if f"`{name}`" not in rows),
        *(f"recipes/finetune/{name}.yaml" for name in KINDS if not (recipes / f"{name}.yaml").is_file()),
    ]
    lacking.remove("recipes/finetune/ax.yaml")  # it has nothing to train on
    assert not lacking, f"add {', '.join(lacking)} (docs/architecture.md, A data set)"


def test_every_endpoint_of_a_model_is_in_the_guide() -> None:
    routes: list[Any] = [*endpoints.router.routes, *inspecting.router.routes]
    names = {route.path.rpartition("/")[2] for route in routes if "POST" in route.methods}
    guide = (DOCS / "guides" / "serving.md").read_text("utf-8")
    assert len(names) > 12
    assert names <= set(re.findall(r"`([a-z-]+)`", guide)), "docs/architecture.md, an endpoint"


def test_the_programs_that_know_single_kinds_of_task_are_listed() -> None:
    """In step 6 of "A kind of task": all that its greps find outside `tasks/` and `models/`."""
    [step] = re.findall(r"^6\. the programs.*?(?=^7\. )", (DOCS / "architecture.md").read_text("utf-8"), re.M | re.S)
    pattern = "|".join(patterns := re.findall(r"`grep -rnE '(.*?)' src`", step))
    assert len(patterns) == 3
    source = REPOSITORY / "src" / "unmask"
    found = [path.relative_to(source) for path in source.rglob("*.py") if re.search(pattern, path.read_text("utf-8"))]
    programs = [path for path in found if path.parts[0] not in ("tasks", "models")]
    left_out = [
        str(path) for path in programs if not any(f"`{name}`" in step for name in (path.with_suffix(""), path.parent))
    ]
    assert not left_out, "docs/architecture.md does not list them"


def replaced_words() -> dict[str, str]:
    """The words of the glossary's table that are nowhere, each with what we write; a reader decides on brackets."""
    _, _, table = (DOCS / "glossary.md").read_text("utf-8").partition("| we write | not |\n|---|---|\n")
    rows = re.findall(r"^\| (.+) \| ([^(|]+) \|$", table, flags=re.MULTILINE)
    return {word: ours for ours, words in rows for word in words.split(", ")}


def uses_of(word: str, text: str) -> list[str]:
    """The lines that begin a use of a word, in names too; a phrase may run on into the next line, or comment."""
    pattern = r"(?<![a-z-])" + r"(?:_|-|\s+(?:# )?)".join(word.split()) + r"(?![a-z-])"
    found = re.finditer(pattern, text, flags=re.IGNORECASE)
    return [text[text.rfind("\n", 0, use.start()) + 1 :].partition("\n")[0].strip() for use in found]


@pytest.mark.parametrize("word", replaced_words())
def test_words_that_the_glossary_replaces_are_nowhere(word: str) -> None:
    found = []
    for path in sorted(WRITTEN):
        text = path.read_text("utf-8").partition("\n| we write | not |\n")[0]
        if not word.startswith(OTHER_MEANINGS.get(name_of(path), " ")):
            found += [f"{name_of(path)}: {line}" for line in uses_of(word, text)]
    assert not found, f"we write `{replaced_words()[word]}`, not `{word}`:\n" + "\n".join(found)


def test_uses_of_a_word_are_noticed() -> None:
    assert uses_of("go on", "then go\n# on\nmay_go_on()\nGo on.") == ["then go", "may_go_on()", "Go on."]
    assert uses_of("frame", "x-frame-options, frameless, reframe") == []
    assert {"stretch", "told", "go on"} <= replaced_words().keys()
