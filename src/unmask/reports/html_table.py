"""Tables for the HTML pages about runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already and is not escaped again."""


def table(head: Sequence[str], lines: Sequence[Sequence[Any]], name: str = "") -> str:
    """A table as HTML; cells that are not text are written as JSON.

    Args:
        head: the columns' headings; empty for none.
        lines: rows of as many cells each.
        name: its class in the style sheet.
    """
    kind = f' class="{name}"' if name else ""
    top = "<thead><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr></thead>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table{kind}>{top}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, Html):
        return value
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
