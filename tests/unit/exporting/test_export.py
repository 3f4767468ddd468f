"""Writing a graph: a signal stops it, though `torch.onnx` catches every exception."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.untrained import save_bert
from unmask.cli.main import _stop
from unmask.errors import Interrupted
from unmask.exporting.export import write_graph
from unmask.exporting.graph import PaddedModel, padded_model
from unmask.models.hub.directory import load_model

pytest.importorskip("onnxscript", reason="needs the extra onnx")


@pytest.fixture
def stopping() -> Iterator[None]:
    """The handler of commands."""
    former = signal.signal(signal.SIGTERM, _stop)
    yield
    signal.signal(signal.SIGTERM, former)


@pytest.mark.usefixtures("stopping")
def test_a_signal_is_no_fault_of_the_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = padded_model(load_model(save_bert(tmp_path, ["the sky is blue"] * 9, masked_lm=True)))
    monkeypatch.setattr(PaddedModel, "forward", lambda model, ids, mask, kinds: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM$"):
        write_graph(model, tmp_path / "model.onnx")
