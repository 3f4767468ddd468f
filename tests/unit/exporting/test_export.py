"""Writing a graph: a signal stops it, though `torch.onnx` catches every exception; a full disk is called one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.files import disk_of
from support.untrained import save_bert
from unmask.cli.main import _stop
from unmask.errors import Interrupted, OutputError
from unmask.exporting.export import _quantize, write_graph
from unmask.exporting.graph import PaddedModel, padded_model
from unmask.models.hub.directory import load_model

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
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


@pytest.mark.parametrize("free", [0, 16])
def test_a_disk_that_is_full_of_a_graph_is_told(tmp_path: Path, free: int) -> None:
    """It has 32 KiB of weights; onnx writes them again, and a full disk is no error to it."""
    float32, helper = onnx.TensorProto.FLOAT, onnx.helper
    values = [helper.make_tensor_value_info(name, float32, ["n", 64]) for name in ("x", "y")]
    weight = helper.make_tensor("w", float32, [64, 128], bytes(4 * 64 * 128), raw=True)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with disk_of(tmp_path, 128) as disk:
        (disk / "model.onnx").write_bytes(model.SerializeToString())
        (disk / "filler").write_bytes(bytes((128 - 36 - free) << 10))
        message = (
            r"^the disk is full while writing out: quantizing takes 64\.\d KiB: free some space, or write elsewhere$"
        )
        with pytest.raises(OutputError, match=message):
            _quantize(disk / "model.onnx", Path("out"))
