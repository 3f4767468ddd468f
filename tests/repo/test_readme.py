"""What the documents say is true: the README's tree exists, every `unmask` command parses, every `make` target exists.

The tree is the fenced block of the README with a line that starts with `src/unmask/`. Its lines are indented by depth;
a line begins with a path, and may go on with more: beside it, or within it where it is a folder. What follows the paths
is a remark.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unmask.corpus.files import FORMAT_OF_SUFFIX
from unmask.errors import SettingsError
from unmask.io.reading import COMPRESSIONS

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "samples" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
DEMO = REPOSITORY / "samples" / "demo.sh"
PATH = re.compile(r"\.[\w./-]+|[\w./*-]+\.\w+|[\w./*-]+/|Makefile|LICENSE|NOTICE")


def code_blocks(markdown: str) -> list[str]:
    """The contents of the fenced blocks."""
    return [match[1] for match in re.finditer(r"^```\w*\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)]


def paths_in_tree(block: str) -> Iterator[str]:
    """The paths that a tree names, from its root on."""
    folders: list[tuple[int, str]] = []  # the open folders with their indentation, the innermost last
    for line in re.sub(r"[│├└─]", " ", block).splitlines():
        words = line.split()
        if not words:
            continue
        indentation = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= indentation:
            folders.pop()
        above = folders[-1][1] if folders else ""
        yield above + words[0]
        if words[0].endswith("/"):
            above += words[0]
            folders.append((indentation, above))
        for word in words[1:]:
            if word == "*":
                continue
            if not PATH.fullmatch(word):
                break
            yield above + word


def commands(text: str) -> Iterator[list[str]]:
    """The words after `unmask` in every command of a shell block: lines joined, comments and pipes cut off."""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if not re.search(r"(^|\| *|-m )unmask ", line):
            continue
        words = shlex.split(line, comments=True)
        while "unmask" in words:
            words = words[words.index("unmask") + 1 :]
            ends = (place for place, word in enumerate(words) if re.fullmatch(r"[|<>&;]+|\d?>\S*", word))
            end = next(ends, len(words))
            yield words[:end]
            words = words[end:]


def all_commands() -> list[Any]:
    """Every command in the documents, the demo and the recipes' headers, as test parameters."""
    texts = [(path, block) for path in DOCUMENTS if path.exists() for block in code_blocks(path.read_text("utf-8"))]
    steps = re.findall(r"^ +'(.*)'$", DEMO.read_text("utf-8").replace("'\\''", "'"), flags=re.MULTILINE)
    texts.append((DEMO, "\n".join(steps)))
    for path in sorted((REPOSITORY / "recipes").rglob("*.yaml")):
        texts.append((path, "\n".join(re.findall(r"^# command: *(.*)$", path.read_text("utf-8"), flags=re.MULTILINE))))
    found = [(path.name, words) for path, text in texts for words in commands(text)]
    return [pytest.param(words, id=f"{name}: {' '.join(words)}") for name, words in found]


def assert_it_is_a_command(words: list[str]) -> None:
    """Fails where a subcommand, an option or a recipe's key is not there: walks down the subcommands, looks at every
    option, and loads the recipe with its overrides.

    Brackets, as in `[--resume]`, are no part of a command; words in capitals stand for something.
    """
    from unmask.cli import main
    from unmask.recipe import loading as recipe

    command: Any = main.command
    words = [word.strip("[]") if word.startswith("[") or "=" not in word else word for word in words]
    name = []
    while hasattr(command, "commands"):
        if not words or words[0] == "--help":
            return
        assert words[0] in command.commands, f"`unmask {' '.join([*name, words[0]])}` is not a command"
        command = command.commands[words[0]]
        name.append(words.pop(0))
    options = {spelling for option in command.params for spelling in [*option.opts, *option.secondary_opts, "--help"]}
    used = {word.split("=")[0] for joined in words for word in joined.split("|") if re.match(r"--?[a-zA-Z]", word)}
    assert used <= options, f"`unmask {' '.join(name)}` has no option {', '.join(sorted(used - options))}"
    loaders: dict[str, Any] = {"pretrain": recipe.load_pretrain_recipe, "finetune": recipe.load_finetune_recipe}
    if name[0] in loaders and words and not words[0].isupper():
        overrides = [word for word in words[1:] if re.match(r"[a-z_.]+=", word) and word != "key=value"]
        loaders[name[0]](words[0], overrides)


def test_the_tree_is_true() -> None:
    blocks = code_blocks((REPOSITORY / "README.md").read_text("utf-8"))
    trees = [block for block in blocks if re.search(r"^src/unmask/", block, flags=re.MULTILINE)]
    assert len(trees) == 1, "the README has one tree, in a fenced block with a line that starts with `src/unmask/`"
    named = list(paths_in_tree(trees[0]))
    missing = [path for path in named if not any(REPOSITORY.glob(path.rstrip("/")))]
    assert not missing, f"the README's tree names what does not exist: {missing}"
    folders = [f"src/unmask/{path.parent.name}/" for path in REPOSITORY.glob("src/unmask/*/__init__.py")]
    absent = [name for name in folders if name not in named]
    assert not absent, f"the README's tree does not name {absent}"


def test_a_tree_is_read() -> None:
    tree = """
README.md  .ci/run  Makefile   the things around it
docs/       glossary.md decisions/NNNN.md   notes
src/unmask/
├── errors.py *  batch.py    what goes wrong. And more.txt
└── data/
    └── store.py   one word/another
tests/
"""
    assert list(paths_in_tree(tree)) == [
        *["README.md", ".ci/run", "Makefile", "docs/", "docs/glossary.md", "docs/decisions/NNNN.md", "src/unmask/"],
        *["src/unmask/errors.py", "src/unmask/batch.py", "src/unmask/data/", "src/unmask/data/store.py", "tests/"],
    ]


def test_commands_are_found() -> None:
    text = """$ unmask info a  # a remark
echo '{"text": "x"}' | unmask predict m - > out.jsonl
torchrun -m unmask pretrain r \\
    --out b
import unmask
"""
    assert list(commands(text)) == [["info", "a"], ["predict", "m", "-"], ["pretrain", "r", "--out", "b"]]


def test_the_demo_is_among_them() -> None:
    names = {parameter.values[0][0] for parameter in all_commands() if str(parameter.id).startswith("demo.sh")}
    assert names >= {"tokenizer", "prepare", "pretrain", "fill-mask", "info", "finetune", "evaluate", "predict"}


@pytest.mark.parametrize("words", all_commands())
def test_command_exists(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert_it_is_a_command(words)


@pytest.mark.parametrize(
    "words",
    [
        ["pretend"],
        ["info", "x", "--jason"],
        ["pretrain", "pretrain/bert", "--out", "x"],
        ["pretrain", "pretrain/bert_tiny", "corpus=x", "train.step=9"],
    ],
)
def test_a_wrong_command_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, SettingsError)):
        assert_it_is_a_command(words)


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE)) - {"help"}
    told = set(re.findall(r"^#   make ([a-z]+)", makefile, flags=re.MULTILINE))
    assert targets == told, "`make help` tells all targets"
    text = "\n".join(path.read_text("utf-8") for path in [*DOCUMENTS, REPOSITORY / ".ci" / "run"])
    named = set(re.findall(r"(?:^|`|run )make ([a-z]+)", text, flags=re.MULTILINE))
    assert {"setup", "check", "test", "demo"} <= named <= targets


LISTS_OF_SUFFIXES = {
    "README.md": r"^Text is .*?;",
    "docs/architecture.md": r"corpus files<br/>.*?$",
    "docs/guides/your-own-corpus.md": r"^## 1\. What can be read$.*?^Give files",
    "src/unmask/cli/options.py": r"^TextArgument = .*?^\]",  # by hand, so that `--help` need not import what reads
}


@pytest.mark.parametrize("name", LISTS_OF_SUFFIXES)
def test_what_can_be_read_is_listed_wholly(name: str) -> None:
    text = (REPOSITORY / name).read_text("utf-8").replace("a Wikipedia dump", ".xml")
    listed = re.search(LISTS_OF_SUFFIXES[name], text, flags=re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert set(filter(None, (*FORMAT_OF_SUFFIX, *COMPRESSIONS))) <= set(re.findall(r"\.\w+\b", listed[0]))
