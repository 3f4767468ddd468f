"""What a model of a kind can be asked."""

from __future__ import annotations

from pathlib import Path

from unmask.serving.models import open_model

GOOGLE = Path(__file__).parents[2] / "golden" / "tensorflow_checkpoint"


def test_a_bert_of_google_is_looked_into_as_any_other() -> None:
    endpoints = open_model("google", GOOGLE, "fp32").endpoints
    assert endpoints[0] == "fill-mask"
    assert {"attention", "layers"} <= set(endpoints)
