"""HTML pages: Jinja2 templates on one layout, with one style sheet inside every page, so that it needs no other file.

A template shows values that a program has computed; everything that it shows is escaped, but for figures (`Markup`).
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unmask.io.writing import write_text


def write_page(path: Path, template: str, overwrite: bool, **values: object) -> None:
    """Renders a template into a file, as `unmask.io.writing.writing` does.

    Raises:
        OutputError: the place cannot be written, or `overwrite` is False and something is there.
    """
    write_text(path, render(template, **values), overwrite)


def render(template: str, **values: object) -> str:
    """A template of `templates/` with its values, as HTML."""
    page = _environment().get_template(template).render(values)
    return page.encode("utf-8", errors="replace").decode()  # JSON can hold lone surrogates


@cache
def style_sheet() -> str:
    """The one style sheet, as it stands inside every page."""
    return files("unmask.reports").joinpath("style.css").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("unmask.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup(style_sheet())
    environment.filters["cell"] = _cell
    return environment


def _cell(value: object) -> str:
    """What a table shows of a value: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
