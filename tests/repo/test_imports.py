"""Who may import whom: only downward. Imports inside functions and under `if TYPE_CHECKING` count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    {
        "errors",
        "batch",
        "filling",
        "entropy",
        "files",
        "input_files",
        "paths",
        "recipe_names",
        "chance",
        "progress",
        "interruption",
        "scripts",
        "segment_pairs",
    },
    {"config"},
    {"tokenization", "models"},
    {"data", "objectives", "tasks", "training"},
    {"recipe", "pairings"},
    {
        *(
            "tokenizer_training",
            "preparation",
            "pretraining",
            "pretraining_inputs",
            "pretraining_batches",
            "pretraining_start",
            "finetuning",
            "finetuning_inputs",
            "evaluation",
            "prediction",
            "prediction_inputs",
            "task_options",
        ),
        *(
            "mask_filling",
            "info",
            "doctor",
            "tokenizer_report",
            "feature_batches",
            "features",
            "similarity",
            "glue_submission",
            "glue_average",
            "checkpoint_model",
            "language_model",
            "model_uses",
            "tokenizer_extension",
            "text_generation",
            "zero_shot",
            "html_table",
            "report_samples",
            "text_encoder",
            "splitting",
        ),
        *(
            "inference",
            "inference_precision",
            "transfer",
            "trials",
            "parallel_trials",
            "trials_display",
            "trials_page",
            "trials_summary",
            "ensemble",
            "estimators",
            "estimator_inputs",
        ),
        *("tokenizer_tables", "tokenizer_page", "corpus_account"),
        *("report", "figure", "samples", "run_inputs"),  # what programs share when they tell of a run
    },
    {"cli", "commands", "__init__", "__main__", "__version__"},
)
SIBLINGS = (2, 3)  # layers whose members do not import each other
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

UNPICKLERS = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.load", "numpy.load", "np.load"}


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """The line and the full dotted name of everything imported; relative imports start from `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def part(dotted: str) -> str:
    """The member of a layer that a name inside `unmask` belongs to: `data` for `unmask.data.packing.pack`."""
    return dotted.split(".")[1] if "." in dotted else "__init__"


def complaint(importer: str, imported: str) -> str | None:
    """Why a module of the part `importer` may not import `imported`, a dotted name; None where it may."""
    if imported.split(".")[0] == "transformers":
        return "transformers is for tests and benchmarks"
    if imported in UNPICKLERS or imported.split(".")[0] in UNPICKLERS:
        return "nothing is ever unpickled"
    if importer == "tokenization" and imported.split(".")[0] == "torch":
        return "tokenization never imports torch"
    if imported.split(".")[0] != "unmask" or part(imported) == importer:
        return None
    lower = part(imported)
    if lower not in LAYER:
        return f"{lower} stands in no layer: add it to LAYERS, or import from the module that defines it"
    if LAYER[lower] > LAYER[importer]:
        return f"{importer} (layer {LAYER[importer]}) imports {lower} (layer {LAYER[lower]})"
    if LAYER[lower] == LAYER[importer] and LAYER[lower] in SIBLINGS:
        return f"{importer} imports its sibling {lower}"
    if importer == "recipe" and LAYER[lower] in (2, 3) and not "".join(imported.split(".")[2:3]).endswith("settings"):
        return "recipe composes settings: it imports nothing else of a package"
    return None


def complaints(source: str, module: Path) -> list[str]:
    """What is wrong with one module; `module` is its path under `src`, such as `unmask/data/packing.py`."""
    importer = module.parts[1].removesuffix(".py")
    if importer not in LAYER:
        return [f"{module}: {importer} stands in no layer: add it to LAYERS"]
    package = ".".join(module.parts[:-1])
    found = [
        f"{module}:{line}: {why}"
        for line, name in imports_of(source, package)
        if (why := complaint(importer, name)) is not None
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            if written in UNPICKLERS:
                found.append(f"{module}:{node.lineno}: {written}: nothing is ever unpickled")
            if written in ("os.environ", "os.getenv") and LAYER[importer] < 5:
                found.append(f"{module}:{node.lineno}: {written}: only programs look at the environment")
    return found


def test_imports_point_downward(repository: Path) -> None:
    source = repository / "src"
    modules = sorted(source.rglob("*.py"))
    assert len(modules) > 10, "the package was not found"
    found = [line for path in modules for line in complaints(path.read_text("utf-8"), path.relative_to(source))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("unmask/config.py", "from unmask.models import layers"),
        ("unmask/data/loader.py", "def load():\n    from unmask.training.loop import train"),
        ("unmask/data/loader.py", "from ..objectives import masked_lm"),
        ("unmask/data/loader.py", "from unmask import recipe"),
        ("unmask/data/loader.py", "import unmask.recipe as settings"),
        ("unmask/data/loader.py", "import unmask"),
        ("unmask/models/hub.py", "from unmask.tokenization import wordpiece"),
        ("unmask/models/hub.py", "import torch\nweights = torch.load('weights.bin')"),
        ("unmask/models/hub.py", "from torch import load"),
        ("unmask/models/hub.py", "from transformers.models import bert"),
        ("unmask/training/loop.py", "import os\nrank = os.environ['RANK']"),
        ("unmask/tokenization/wordpiece.py", "from torch import Tensor"),
        ("unmask/recipe.py", "from unmask.models.bert import Bert"),
        ("unmask/utils.py", ""),
    ],
)
def test_the_rule_notices(module: str, source: str) -> None:
    assert complaints(source, Path(module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "unmask/data/loader.py",
            "from unmask.batch import Batch\nfrom unmask.data.settings import PackingSettings\nfrom . import packing",
        ),
        ("unmask/recipe.py", "from unmask.models.settings import BertSettings\nfrom unmask.config import load"),
        ("unmask/finetuning.py", "import torch\nfrom unmask import report"),
        ("unmask/cli.py", "import os\nrank = os.environ.get('RANK')\nfrom unmask.errors import UnmaskError"),
    ],
)
def test_the_rule_allows(module: str, source: str) -> None:
    assert complaints(source, Path(module)) == []


def test_tokenizers_and_settings_load_without_torch(repository: Path) -> None:
    source = repository / "src"
    light = [
        *source.glob("unmask/tokenization/*.py"),
        *source.glob("unmask/*/settings.py"),
        source / "unmask/recipe.py",
    ]
    modules = sorted(
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for path in light
    )
    look = f"""
import importlib, sys
for name in {modules}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""
    finished = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
