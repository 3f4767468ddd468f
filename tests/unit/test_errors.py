"""The tree of errors in the docstring of `unmask.errors` is that of the classes."""

from __future__ import annotations

from inspect import getmembers, isclass

from unmask import errors


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
    classes = {name: error.__bases__[0].__name__ for name, error in getmembers(errors, isclass)}
    assert bases == {name: base for name, base in classes.items() if name != "UnmaskError"}
