"""The tree of errors in the docstring of `unmask.errors` is that of the classes."""

from __future__ import annotations

import pickle
from inspect import getmembers, isclass

import pytest

from unmask import errors

CLASSES = dict(getmembers(errors, isclass))


def test_the_docstring_names_every_error_under_its_base() -> None:
    above: list[str] = []
    bases = {}
    for line in (errors.__doc__ or "").splitlines():
        branch, mark, rest = line.partition("── ")
        if line.strip() in ("UnmaskError", "KeyboardInterrupt"):
            above = [line.strip()]
        elif mark:
            name = rest.split()[0]
            above = [*above[: len(branch) // 4], name]
            bases[name] = above[-2]
    classes = {name: error.__bases__[0].__name__ for name, error in CLASSES.items()}
    assert bases == {name: base for name, base in classes.items() if name != "UnmaskError"}


@pytest.mark.parametrize("name", CLASSES)
def test_each_can_be_sent_to_another_process(name: str) -> None:
    """A pool in which one could not be read ends, and all that it has under way."""
    with_number = name in ("AnotherRank", "Interrupted")
    error = CLASSES[name]("a.csv:2: what was wrong", 15) if with_number else CLASSES[name]("a.csv:2: what was wrong")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
