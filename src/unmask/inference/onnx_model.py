"""Fine-tuned models in ONNX files, computed by ONNX Runtime: `predict`, `evaluate` and `serve` take their directories.

A directory has `model.onnx` in place of weights, with the inputs and outputs that Optimum gives such files; the rest is
as in any model directory.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.errors import ModelError, SettingsError
from unmask.models.hub.directory import blank_model
from unmask.models.hub.source import LoadedModel
from unmask.training.device import Compute

ONNX = "model.onnx"


def is_onnx(directory: Path) -> bool:
    """Whether a model directory holds an ONNX file in place of weights."""
    return (directory / ONNX).is_file() and not any(directory.glob("*.safetensors"))


def blank_finetuned(directory: Path) -> LoadedModel:
    """What a directory says of a fine-tuned model, without weights; a `ModelError` if it has no head."""
    loaded = blank_model(directory)
    if loaded.head_kind is None:
        raise ModelError(
            f"{directory}: an ONNX file of a model that is not fine-tuned ({loaded.architecture}): it is for other "
            "programs; give the directory that it was exported from"
        )
    return loaded


def new_session(path: Path) -> Any:
    """An ONNX Runtime session on the CPU, with PyTorch's number of threads.

    Raises:
        SettingsError: ONNX Runtime is not installed.
        ModelError: the file cannot be read.
    """
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise SettingsError(f"{path} needs ONNX Runtime: pip install 'unmask[onnx]'") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own
        raise ModelError(f"{path}: not an ONNX file that can be run ({str(error)[:200]}): export it again") from error


class OnnxModule(nn.Module):
    """Answers as a task's module does; it does not learn.

    Args:
        module: the task's, without weights: it knows how rows become units.

    Attributes:
        encoder, head: without weights: their settings alone are of use.

    Raises:
        SettingsError: bf16 is wanted, or ONNX Runtime is not installed.
        ModelError: the file cannot be read.
    """

    encoder: Any
    head: Any
    _module: Any

    def __init__(self, module: Any, directory: Path, compute: Compute) -> None:
        super().__init__()
        if compute.dtype != torch.float32:
            raise SettingsError(f"{directory / ONNX} computes as it was exported: leave --precision out")
        self.session = new_session(directory / ONNX)
        # Not as parts of this module: they have no weights to be counted or moved.
        for name, part in (("_module", module), ("encoder", module.encoder), ("head", module.head)):
            object.__setattr__(self, name, part)
        self._inputs = {each.name for each in self.session.get_inputs()}

    def forward(self, batch: Batch) -> list[LossTerm]:
        return self.loss(self.outputs(batch), batch)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        terms: list[LossTerm] = self._module.eval().loss(outputs, batch)
        return terms

    def counts(self, batch: Batch) -> dict[str, int]:
        counts: dict[str, int] = self._module.counts(batch)
        return counts

    def outputs(self, batch: Batch) -> Tensor:
        """(units, ...), or (tokens, ...) of heads on tokens; float32."""
        ids, mask, segments = padded_rows(batch)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        found = self.session.run(None, {name: rows for name, rows in given.items() if name in self._inputs})
        logits = torch.from_numpy(np.stack(found, -1) if len(found) > 1 else found[0])
        if logits.dim() == 3:
            return logits[torch.from_numpy(mask.astype(bool))]
        units: Tensor = self._module.of_units(logits, batch)
        return units


def padded_rows(batch: Batch) -> tuple[Any, Any, Any]:
    """`input_ids`, `attention_mask` and `token_type_ids`, (sequences, longest) int64 each."""
    shape = (batch.num_sequences, batch.max_length)
    lengths = np.array(batch.lengths)
    mask = np.arange(shape[1]) < lengths[:, None]
    ids, segments = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    ids[mask], segments[mask] = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    return ids, mask.astype(np.int64), segments
