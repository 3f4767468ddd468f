"""The sizes of any encoder, and `model.*` of any recipe."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from unmask.models.elmo.settings import ElmoModelSettings, ElmoSettings
from unmask.models.settings import EncoderSettings, ModelSettings


def _kind_of(given: Any) -> str:
    """The member of the union that values belong to; its tag is in brackets, which keeps it out of dotted keys."""
    name = given.get("architecture") if isinstance(given, dict) else getattr(given, "architecture", None)
    return "<elmo>" if name == "elmo" else "<other>"


AnyModelSettings = Annotated[
    Annotated[ModelSettings, Tag("<other>")] | Annotated[ElmoModelSettings, Tag("<elmo>")], Discriminator(_kind_of)
]
"""`model.*` of a recipe, distinguished by `architecture`."""

Sizes = EncoderSettings | ElmoSettings
"""The sizes of any encoder."""
