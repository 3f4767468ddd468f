"""What the command line does before any command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.files import write
from unmask.cli.main import _set_defaults_of_libraries
from unmask.io import cores

DEFAULTS = {
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "1000",
    "OMP_NUM_THREADS": None,
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512",
    "LRU_CACHE_CAPACITY": "16",
}


def test_defaults_of_libraries_are_set_before_any_command() -> None:
    program = "import os, sys\nfrom unmask.cli.main import main\nsys.argv = ['unmask', '--version']\n"
    program += "try:\n    main()\nfinally:\n    print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name not in DEFAULTS}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["unmask", "0.1.0", "passive"]


@pytest.mark.parametrize(
    ("words", "quota", "given", "changes"),
    [
        ("predict runs/test", "max 100000", {}, {}),
        ("predict runs/test", "50000 100000", {}, {"OMP_NUM_THREADS": "1"}),
        ("predict runs/test", "50000 100000", {"OMP_NUM_THREADS": "3"}, {}),
        ("predict runs/test", "max 100000", {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": None}),
        *(
            (f"serve {more}", "max 100000", {}, {"GOMP_SPINCOUNT": "5000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": kept})
            for more, kept in (
                ("runs/bf16-test", "16"),
                ("runs/test --precision fp32", "16"),
                ("runs/test --precision bf16", "512"),
                ("runs/test --precision=bf16", "512"),
            )
        ),
    ],
)
def test_defaults_are_those_of_the_command_and_of_the_container_and_what_is_set_stays(
    words: str,
    quota: str,
    given: dict[str, str],
    changes: dict[str, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads sleep while they wait, and are as many as a container may run; in fp32 a server keeps few shapes."""
    monkeypatch.setattr(cores, "QUOTA", write(tmp_path / "cpu.max", f"{quota}\n"))
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(sys, "argv", ["unmask", *words.split()])
    _set_defaults_of_libraries()
    expected = DEFAULTS | given | changes
    assert os.environ == {name: value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize(
    ("closed", "command", "code"),
    [((0,), "tokenizer train - --out MADE", 2), *((those, "--version", 0) for those in ((1,), (2,), (1, 2)))],
)
def test_streams_that_are_closed_are_no_fault(tmp_path: Path, closed: tuple[int, ...], command: str, code: int) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    words = [sys.executable, "-m", "unmask", *command.replace("MADE", str(tmp_path / "made")).split()]
    finished = subprocess.run(words, preexec_fn=close, capture_output=True, text=True)
    assert finished.returncode == code, finished.stderr  # 2: nothing is in a standard input that is closed
    assert "fault" not in finished.stdout + finished.stderr


def test_no_file_takes_the_place_of_a_stream_that_is_closed() -> None:
    """Else messages would be written into it."""
    program = "import os, sys\nfrom unmask.cli.main import _open_streams\n_open_streams()\n"
    program += "with open(os.devnull) as file:\n    sys.exit(file.fileno())"
    finished = subprocess.run([sys.executable, "-c", program], preexec_fn=lambda: os.closerange(0, 3))
    assert finished.returncode == 3


@pytest.mark.parametrize("place", ["a pipe that nobody reads", "/dev/full"])
def test_messages_that_cannot_be_written_stop_no_work(tmp_path: Path, place: str) -> None:
    (tmp_path / "a.txt").write_text("words and other words\n")
    words = ["tokenizer", "train", tmp_path / "a.txt", "--vocab-size", "60", "--out", tmp_path / "made"]
    if place == "/dev/full":
        messages = os.open(place, os.O_WRONLY)
    else:
        reading, messages = os.pipe()
        os.close(reading)
    finished = subprocess.run([sys.executable, "-m", "unmask", *words], stdout=subprocess.PIPE, stderr=messages)
    os.close(messages)
    assert finished.returncode == 0
    assert (tmp_path / "made" / "tokenizer.json").is_file()


def test_a_folder_that_has_been_removed_is_said(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    words = [sys.executable, "-c", f"import os; os.rmdir({str(here)!r}); from unmask.cli.main import main; main()"]
    finished = subprocess.run([*words, "info", "a"], cwd=here, capture_output=True, text=True)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.startswith("error: the folder that this was started in has been removed")


OUT_OF_MEMORY = """
import sys
from unmask.cli import main

def fail(**_):
    raise RuntimeError(sys.argv[1])

main.command = fail
main.main()
"""


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_memory_that_runs_out_is_no_fault_of_ours(message: str) -> None:
    finished = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, message], capture_output=True, text=True)
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: not enough memory: close other programs")


AT_THE_END = """
import atexit, signal
from unmask.cli import main

atexit.register(lambda: [signal.raise_signal(number) for number in (signal.SIGINT, signal.SIGTERM)])
main.main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["info", "gone"], 2)])
def test_a_signal_when_all_is_done_changes_nothing(words: list[str], code: int) -> None:
    finished = subprocess.run([sys.executable, "-c", AT_THE_END, *words], capture_output=True, text=True)
    assert finished.returncode == code
    assert "Traceback" not in finished.stderr


def test_help_names_out_only_where_a_command_has_it() -> None:
    from unmask.cli.main import command

    commands = [*command.commands.values()]
    commands += [inner for one in commands for inner in getattr(one, "commands", {}).values()]
    for one in commands:
        options = {option for each in one.params for option in each.opts}
        about = [each.help for each in one.params if "--overwrite" in each.opts]
        assert "--out" in options or not any("--out" in each for each in about), one.name


def test_what_is_printed_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    (tmp_path / "text.txt").write_text("a word and another word\n" * 3)
    words = [sys.executable, "-m", "unmask", "tokenizer", "train", "text.txt", "--out", "없음"]
    trained = subprocess.run(words, env=environment, capture_output=True, check=True, cwd=tmp_path)
    assert trained.stdout.decode("utf-8").startswith("없음: ")
    refused = subprocess.run([*words[:3], "info", "없음"], env=environment, capture_output=True)
    assert refused.returncode == 2
    assert refused.stderr.decode("utf-8").startswith("error: 없음: ")
