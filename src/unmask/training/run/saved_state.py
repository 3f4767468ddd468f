"""What the `state.json` of a checkpoint has to hold, as far as a run computes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unmask.training.optimizers.optimizer import Stage
from unmask.training.state import StepResult

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _File(_Strict):
    bytes: Count
    sha256: str


class _Best(_Strict):
    step: Count
    evaluation: dict[str, float]
    evaluations_since: Count
    evaluations: Count


class _State(_Strict):
    """Only `best` may be missing: before the first evaluation, and where a run cannot end early."""

    step: Count
    tokens: Count
    epochs: Amount
    seconds: Amount
    position: dict[str, Count]
    files: dict[str, _File]
    warmup_end: dict[str, Amount] | None
    stage: Stage | None
    newest: StepResult | None
    examples_hash: Count
    totals: dict[str, float]
    counts: dict[str, Count]
    logged_tokens: Count
    logged_seconds: float
    recent_losses: dict[str, list[float]]
    roll_backs: Count
    micro_batch_tokens: Annotated[int, Field(ge=1)] | None
    evaluation: dict[str, float]
    evaluated_step: Count | None
    best: _Best | None = None
    metrics_sha256: str
    recipe: dict[str, Any]


def field_at_fault(state: Mapping[str, Any]) -> str | None:
    """The dotted name of a field that is missing, or holds what no run has saved there; None if all are sound."""
    try:
        _State.model_validate_json(json.dumps(state))
    except ValidationError as error:
        return ".".join(map(str, error.errors()[0]["loc"])) or "sound text"
    return None
