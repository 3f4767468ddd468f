"""What reading makes of a request."""

from __future__ import annotations

from pathlib import Path

from unmask.serving.engine.uses import MaskUse


def test_an_answer_for_a_mask_counts_as_a_token(tiny_model: Path) -> None:
    """So that few requests of many answers are computed together."""
    use = MaskUse(tiny_model, "fp32")
    text = f"a man is {use.mask_token} on the grass"
    short, long = use.read([text], 5), use.read([text] * 2, 1000)
    assert short.tokens == len(short.payload[0].ids)
    assert long.tokens == 2000
