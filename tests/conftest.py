"""What all tests share: where data lies, which tests are skipped and why, and settings that make a run repeatable."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Set before torch is imported: models of test size are slower on several threads (far slower where those are busy), and
# sums taken in another order differ in the last bit. Subprocesses inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# transformers is a reference here: it must never look for anything on the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # where a test imports ONNX Runtime itself

# What tests write is small, much, and flushed to the disk as a user's would be: it goes where flushing costs nothing,
# if 8 GB are free there (a whole run holds some 2 GB at once).
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The same examples in every run, and no deadline: on a busy machine a slow example says nothing.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("slow", settings.get_profile("repeatable"), max_examples=200)
settings.load_profile("repeatable")

REPOSITORY = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--run-slow"):
        settings.load_profile("slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without_cuda = any(item.get_closest_marker("gpu") is not None for item in items) and not _cuda_is_available()
    for item in items:
        if item.get_closest_marker("slow") is not None and not config.getoption("--run-slow"):
            item.add_marker(pytest.mark.skip(reason="slow: takes minutes, run with --run-slow"))
        if item.get_closest_marker("gpu") is not None and without_cuda:
            item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


# The garbage collector rests while files are imported. What they import stays: it need not look through it again and
# again; and of what tests make, most is gone soon.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test printed, and how it failed, reaches the process that reports it, half of a surrogate pair and all."""
    report = yield
    report.sections = [(name, _plain(text)) for name, text in report.sections]
    failure = report.longreprtext
    if failure != _plain(failure):
        report.longrepr = _plain(failure)
    return report


@pytest.fixture(autouse=True)
def _nothing_is_warned_of_yet() -> None:
    """What a process is warned of once, each test is."""
    coverage = sys.modules.get("unmask.inference.coverage")
    if coverage is not None:
        coverage.WARNED_OF.clear()


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _cuda_is_available() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def samples_dir() -> Path:
    """The small openly licensed texts and labelled examples that come with the project."""
    return REPOSITORY / "samples"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of large public data that `docs/data.md` describes; the test is skipped where there is none."""
    named = os.environ.get("UNMASK_DATA")
    if not named:
        pytest.skip("needs large public data: set UNMASK_DATA to a folder laid out as docs/data.md says")
    path = Path(named)
    if not path.is_dir():
        pytest.fail(f"UNMASK_DATA names {named}, which is not a folder")
    return path
