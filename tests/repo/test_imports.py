"""Who may import whom: a folder imports only from folders before it, and no module imports itself in a circle.

Imports inside functions and under `if TYPE_CHECKING` count too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FOLDERS = (
    *("io", "corpus", "tokenization", "store", "packing", "models", "objectives", "training", "tasks"),
    *(
        "recipe",
        "reports",
        "pretraining",
        "inference",
        "exporting",
        "finetuning",
        "doctor",
        "experiments",
        "serving",
        "cli",
    ),
)
"""The folders of `src/unmask` in the order of the data: each imports only from those before it."""

FIRST = ("errors", "batch", "chance", "yaml_text", "config")
"""Modules at the top that every folder may import; they import no folder."""

PROGRAMS = ("info", "card")
"""Modules at the top that import from the folders before `inference`, and each from those before it; `inference` and
later folders import them."""

NEVER = {
    "tokenization": {"torch"},
    "training": {f"unmask.{folder}" for folder in ("corpus", "store", "packing", "objectives")},
    "objectives": {"unmask.corpus", "unmask.store"},
    "tasks": {"unmask.corpus", "unmask.store"},
    "models": {"unmask.corpus", "unmask.tokenization", "unmask.store"},
}
"""Beyond the order: what the modules of a folder do not import themselves."""

MOST_MODULES, MOST_MODULES_AT_THE_TOP = 16, 8
UNPICKLERS = {
    *("pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"),
    *("torch.load", "torch.save", "torch.jit.load", "torch.package", "numpy.load", "pandas.read_pickle"),
    *("yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader", "yaml.full_load", "yaml.unsafe_load"),
}
"""What reads or writes pickles, or makes any object of a text; none of it has a place in the package."""
ENVIRONMENT = ("os.environ", "os.getenv", "sys.argv")
LAST_NAMES = {name.rpartition(".")[2] for name in (*UNPICKLERS, *ENVIRONMENT)}
"""Of attributes that are looked at: to write every one as text takes seconds."""
SOURCE = Path(__file__).parents[2] / "src"


@lru_cache(maxsize=1)
def nodes_of(source: str) -> list[ast.AST]:
    """What a module's source consists of; one is looked through three times."""
    return list(ast.walk(ast.parse(source)))


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """The line and the full dotted name of everything imported; relative imports start from `package`."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def names_of_modules(source: str) -> dict[str, str]:
    """The modules that are imported under another name, by that name."""
    imports = (node for node in nodes_of(source) if isinstance(node, ast.Import))
    return {alias.asname: alias.name for node in imports for alias in node.names if alias.asname is not None}


def rank(name: str) -> float:
    """The place of a folder, or of a module at the top, in the order."""
    if name in FIRST:
        return -1
    if name in PROGRAMS:
        return FOLDERS.index("inference") - 0.5 + 0.1 * PROGRAMS.index(name)
    return FOLDERS.index(name) if name in FOLDERS else len(FOLDERS)


def complaint(importer: str, imported: str) -> str | None:
    """Why a module of `importer`, a folder or a module at the top, may not import the dotted name `imported`."""
    outer = imported.split(".")[0]
    if outer == "transformers":
        return "transformers is for tests and benchmarks"
    if imported in UNPICKLERS or outer in UNPICKLERS:
        return "nothing is ever unpickled"
    if any(imported == banned or imported.startswith(f"{banned}.") for banned in NEVER.get(importer, ())):
        return f"{importer} never imports {imported}"
    parts = imported.split(".")
    if outer != "unmask" or len(parts) < 2 or parts[1] == importer or parts[1] == "__version__":
        return None
    if parts[1] not in (*FOLDERS, *FIRST, *PROGRAMS):
        return f"{parts[1]} has no place in the order: import from the module that defines it"
    if rank(parts[1]) >= rank(importer) >= 0:
        return f"{importer} imports {parts[1]}, which comes after it"
    if rank(parts[1]) > -1 and rank(importer) == -1:
        return f"{importer} is imported by every folder and imports {parts[1]}"
    if importer == "recipe" and rank(parts[1]) >= 0 and parts[1] != "io" and not _is_light(parts[2:]):
        return "recipe composes settings: it imports nothing else of a folder"
    return None


def _is_light(names: list[str]) -> bool:
    return any(name in ("settings", "settings_base", "sizes", "table") for name in names)


def complaints(source: str, module: Path) -> list[str]:
    """What is wrong with one module; `module` is its path under `src`, such as `unmask/packing/loader.py`."""
    importer = module.parts[1].removesuffix(".py")
    found = [
        f"{module}:{line}: {why}"
        for line, name in imports_of(source, ".".join(module.parts[:-1]))
        if (why := complaint(importer, name)) is not None
    ]
    if importer not in (*FOLDERS, *FIRST, *PROGRAMS, "__init__", "__main__"):
        found.append(f"{module}: {importer} has no place in the order: add it to FOLDERS")
    full_names = names_of_modules(source)
    for node in nodes_of(source):
        if isinstance(node, ast.Attribute) and node.attr in LAST_NAMES:
            written = ast.unparse(node)
            first, _, rest = written.partition(".")
            if f"{full_names.get(first, first)}.{rest}" in UNPICKLERS:
                found.append(f"{module}:{node.lineno}: {written}: nothing is ever unpickled")
            if written in ENVIRONMENT and rank(importer) < FOLDERS.index("reports"):
                found.append(f"{module}:{node.lineno}: {written}: only programs look there")
    return found


def module_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Every module with the modules that it imports, from their dotted names and sources."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        imported = [target for _, target in imports_of(source, name.rpartition(".")[0])]
        graph[name] = {*imported, *(target.rpartition(".")[0] for target in imported)} & sources.keys()
    return graph


def _sources() -> dict[str, str]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


def test_a_folder_imports_only_from_those_before_it() -> None:
    sources = _sources()
    assert len(sources) > 10, "the package was not found"
    found = [line for name, text in sources.items() for line in complaints(text, Path(*name.split(".")))]
    assert not found, "\n".join(found)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = module_graph(_sources())
    assert set(TopologicalSorter(graph).static_order()) >= graph.keys()  # a circle raises CycleError


def test_a_circle_is_noticed() -> None:
    graph = module_graph(
        {
            "unmask.models.a": "from unmask.models import b",
            "unmask.models.b": "def f():\n    from unmask.models.c import g",
            "unmask.models.c": "from .a import h",
        }
    )
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def test_folders_are_small() -> None:
    package = SOURCE / "unmask"
    counts = {
        folder.relative_to(package).as_posix(): sum(not path.stem.startswith("__") for path in folder.glob("*.py"))
        for folder in [package, *package.rglob("*")]
        if folder.is_dir()
    }
    limits = {name: MOST_MODULES_AT_THE_TOP if name == "." else MOST_MODULES for name in counts}
    assert not {name: count for name, count in counts.items() if count > limits[name]}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unmask/config.py", "from unmask.models import layers"),
        ("unmask/packing/loader.py", "def load():\n    from unmask.training.loop import train"),
        ("unmask/packing/loader.py", "from ..objectives import masked_lm"),
        ("unmask/packing/loader.py", "from unmask import recipe"),
        ("unmask/packing/loader.py", "import unmask.recipe.tree as settings"),
        ("unmask/store/store.py", "from unmask.packing.loader import epoch"),
        ("unmask/models/hub/directory.py", "from unmask.tokenization.kinds import wordpiece"),
        ("unmask/models/hub/directory.py", "import torch\nweights = torch.load('weights.bin')"),
        ("unmask/models/hub/directory.py", "from torch import load"),
        ("unmask/models/hub/directory.py", "import numpy as xp\nrows = xp.load('rows.npy', allow_pickle=True)"),
        ("unmask/models/hub/directory.py", "def f():\n    import pickle"),
        ("unmask/config.py", "import yaml\nvalues = yaml.load(text, Loader=yaml.Loader)"),
        ("unmask/models/hub/directory.py", "from transformers.models import bert"),
        ("unmask/training/loop.py", "import os\nrank = os.environ['RANK']"),
        ("unmask/training/run/directory.py", "import sys\ncommand = sys.argv"),
        ("unmask/training/loop.py", "from unmask.packing.loader import Window"),
        ("unmask/training/loop.py", "from unmask.objectives.base import Objective"),
        ("unmask/tasks/rows.py", "from unmask.store.store import TokenStore"),
        ("unmask/tokenization/kinds/wordpiece.py", "from torch import Tensor"),
        ("unmask/recipe/tree.py", "from unmask.models.bert import Bert"),
        ("unmask/doctor/page.py", "from unmask.cli import text"),
        ("unmask/utils.py", ""),
    ],
)
def test_the_rule_notices(module: str, source: str) -> None:
    assert complaints(source, Path(module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unmask/packing/loader.py", "from unmask.batch import Batch\nfrom . import planning"),
        ("unmask/packing/loader.py", "from unmask.store.store import TokenStore"),
        ("unmask/recipe/tree.py", "from unmask.models.settings import BertSettings\nfrom unmask.config import load"),
        ("unmask/finetuning/run.py", "import torch\nfrom unmask.reports import run_page"),
        ("unmask/cli/main.py", "import os\nrank = os.environ.get('RANK')\nfrom unmask.errors import UnmaskError"),
        ("unmask/doctor/diagnosis.py", "from unmask.info import describe"),
    ],
)
def test_the_rule_allows(module: str, source: str) -> None:
    assert complaints(source, Path(module)) == []


def test_tokenizers_and_settings_load_without_torch() -> None:
    package = SOURCE / "unmask"
    light = [*package.glob("tokenization/**/*.py"), *package.glob("**/settings.py"), *package.glob("recipe/*.py")]
    names = (".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in light)
    modules = sorted(name.removesuffix(".__init__") for name in names)
    look = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""
    finished = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
