"""How the repository is kept: short files, telling names, nothing from one machine alone, every dependency pinned."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

LONGEST_FILE = 400
DEEPEST_FOLDER = 2
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "tools", "stuff"}

# Absolute paths of somebody's machine, and package indexes that are not public; spelt so that this file holds none.
MACHINE_PATH = re.compile(r"(?<![\w.:/*-])/(?:work|root|tmp|opt|home|Users)/[\w.]|file:/{2}")
PRIVATE_INDEX = re.compile(r"https?://(?!pypi\.org/|download\.pytorch\.org/|test\.pypi\.org/)\S+/(?:simple|whl)\b")


@pytest.fixture(scope="module")
def tracked(repository: Path) -> list[Path]:
    """The files that git keeps or would keep."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := repository / name).is_file()]


def test_files_are_short_and_folders_shallow(repository: Path) -> None:
    source = repository / "src" / "unmask"
    modules = sorted(source.rglob("*.py"))
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in modules}
    long = [f"{path.name}: {lines} lines" for path, lines in lengths.items() if lines > LONGEST_FILE]
    deep = [path.name for path in modules if len(path.relative_to(source).parts) - 1 > DEEPEST_FOLDER]
    assert not long, f"at most {LONGEST_FILE} lines a file: move what stands for itself to a file of its own: {long}"
    assert not deep, f"at most {DEEPEST_FOLDER} folders below src/unmask: {deep}"


def test_a_default_is_seen_by_every_type_checker(repository: Path) -> None:
    """One that is not named is a default to pydantic's plugin alone: users without it must give every value."""
    positional = re.compile(r"\bField\((?!\s*\w+=)")
    modules = (repository / "src" / "unmask").rglob("*.py")
    assert not [path.name for path in modules if positional.search(path.read_text("utf-8"))]


def test_temporary_directories_are_those_that_a_killed_process_does_not_leave(repository: Path) -> None:
    """`unmask.io.writing.temporary_directory` makes them."""
    modules = (repository / "src" / "unmask").rglob("*.py")
    made = re.compile(r"TemporaryDirectory|mkdtemp")
    assert [path.name for path in modules if made.search(path.read_text("utf-8"))] == ["writing.py"]


def test_names_say_something(repository: Path) -> None:
    files = [path for folder in ("src", "tests", "benchmarks") for path in (repository / folder).rglob("*.py")]
    named = {path: {path.stem, path.stem.removeprefix("test_"), path.parent.name} for path in files}
    assert not [path for path, names in named.items() if names & NAMES_THAT_SAY_NOTHING]


def test_a_unit_test_is_named_after_its_module(repository: Path) -> None:
    """`tests/unit/F/test_M.py`, or `test_M_ASPECT.py`, for a module M of the folder F."""
    unit, source = repository / "tests" / "unit", repository / "src" / "unmask"
    strays = []
    for path in sorted(unit.rglob("test_*.py")):
        folder, name = path.parent.relative_to(unit), path.stem.removeprefix("test_")
        modules = (module.stem.strip("_") for module in (source / folder).glob("*.py"))
        if not any(f"{name}_".startswith(f"{module}_") for module in modules):
            strays.append(f"{path.relative_to(repository)}: src/unmask/{(folder / name).as_posix()}.py is not there")
    assert not strays, "\n".join(strays)


def test_nothing_belongs_to_one_machine(tracked: list[Path]) -> None:
    found = []
    for path in tracked:
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:  # a picture, a model: not text
            continue
        found += [
            f"{path.name}:{number}: {match[0]}"
            for number, line in enumerate(lines, start=1)
            for match in [MACHINE_PATH.search(line) or PRIVATE_INDEX.search(line)]
            if match
        ]
    assert not found, "\n".join(found)


def test_the_patterns_notice() -> None:
    folder, page, index = "main", "page", "torch"  # put together here, so that this file holds no such path itself
    assert MACHINE_PATH.search(f"cd /work/{folder}")
    assert MACHINE_PATH.search(f"file:/{'/'}wheels")
    assert not MACHINE_PATH.search(f"https://example.org/work/{page} and tests/work/{page}")
    assert PRIVATE_INDEX.search(f"https://example.org/mirror/{'simple'}/{index}")
    assert not PRIVATE_INDEX.search("https://download.pytorch.org/whl/cpu")


def test_every_dependency_has_a_pin(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    stated = project["dependencies"] + [name for name in extras if not name.startswith("unmask[")]
    lines = (repository / "constraints.txt").read_text("utf-8").splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(pins), "a line of constraints.txt is not `name==version`, without build, path or index"
    pinned = {_normal(pin[1]) for pin in pins if pin}
    assert not {_normal(re.split(r"[<>=!~\[; ]", name)[0]) for name in stated} - pinned


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_samples_are_what_their_readme_says(samples_dir: Path) -> None:
    readme = (samples_dir / "README.md").read_text("utf-8")
    stated = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, flags=re.MULTILINE)}
    files = [path for folder in ("text", "tasks") for path in (samples_dir / folder).rglob("*") if path.is_file()]
    found = {path.relative_to(samples_dir).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert stated == found
    table = [line for line in readme.splitlines() if line.startswith("| `")]
    for name in found:
        assert any(f"`{name}`" in line for line in table), f"{name} has no licence in samples/README.md"
