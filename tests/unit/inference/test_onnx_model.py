"""ONNX files from elsewhere: what they name outside of their directory is not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from unmask.errors import ModelError
from unmask.inference.onnx_model import new_session


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
