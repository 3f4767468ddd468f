"""ONNX Runtime sends nothing, and of ONNX files from elsewhere nothing is read that lies outside of their directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from onnx import TensorProto, helper

from unmask.errors import ModelError
from unmask.inference.onnx_model import new_session, onnx_runtime


def test_it_is_imported_without_its_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That begins with the import, and leaves an id of the machine in the home."""

    def import_elsewhere(name: str) -> ModuleType:
        environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", "import onnxruntime"], env=environment, check=True)
        return ModuleType(name)

    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setattr("unmask.inference.onnx_model.import_module", import_elsewhere)
    assert onnx_runtime(".quantization").__name__ == "onnxruntime.quantization"
    assert not list(tmp_path.iterdir())


def weight_in(location: str) -> TensorProto:
    """16 bytes of another file."""
    weight = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    return weight


@pytest.mark.parametrize("kind", ["beside", "above", "absolute", "a link"])
def test_weights_are_read_from_its_directory_alone(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (tmp_path / "secret").write_bytes(bytes(range(16)))
    (directory / "weights").write_bytes(bytes(range(16)))
    (directory / "link").symlink_to("../secret")
    place = {"beside": "weights", "above": "../secret", "absolute": str(tmp_path / "secret"), "a link": "link"}[kind]
    output = helper.make_tensor_value_info("o", TensorProto.FLOAT, [16])
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["o"], to=TensorProto.FLOAT)], "g", [], [output], [weight_in(place)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    if kind == "beside":
        assert new_session(directory / "model.onnx").run(None, {})[0].tolist() == list(range(16))
    else:
        with pytest.raises(ModelError, match="not an ONNX file that can be run"):
            new_session(directory / "model.onnx")
