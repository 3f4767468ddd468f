"""Models in ONNX files, computed by ONNX Runtime: `predict` and `evaluate`, `fill-mask`, `features` and `similarity`,
and `serve` take their directories.

A directory has `model.onnx` in place of weights, with the inputs and outputs that Optimum gives such files; the rest is
as in any model directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from unmask.batch import Batch, LossTerm, in_parts
from unmask.errors import ModelError, SettingsError
from unmask.io.paths import ONNX
from unmask.models.hub.directory import blank_model
from unmask.models.hub.source import LoadedModel
from unmask.tasks.base import TaskModule
from unmask.training.device import Compute

HIDDEN = "last_hidden_state"
"""The output that models which are not fine-tuned have."""
_QUANTIZER = "onnx.quantize"
"""What ONNX Runtime says of itself in the graphs that it puts into 8 bits."""


def onnx_runtime(part: str = "") -> Any:
    """ONNX Runtime, or a module of it (`.quantization`). Raises ImportError if it is not installed."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # once imported without, it sends what is done to Microsoft
    return import_module(f"onnxruntime{part}")


def new_session(path: Path) -> Any:
    """An ONNX Runtime session on the CPU, with PyTorch's number of threads.

    Raises:
        SettingsError: ONNX Runtime is not installed.
        ModelError: the file cannot be read.
    """
    try:
        runtime = onnx_runtime()
    except ImportError as error:
        raise SettingsError(f"{path} needs ONNX Runtime: pip install 'unmask[onnx]'") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own
        raise ModelError(f"{path}: not an ONNX file that can be run ({str(error)[:200]}): export it again") from error


def on_processor(directory: Path, compute: Compute) -> Compute:
    """Where a directory's ONNX file is computed; a `SettingsError` if bf16 is wanted."""
    if compute.dtype != torch.float32:
        raise SettingsError(f"{directory / ONNX} computes as it was exported: leave --precision out")
    return Compute(torch.device("cpu"), compute.dtype, "ONNX Runtime's build for processors computes")


class OnnxGraph(nn.Module):
    """A directory's ONNX file, ready to run; a module, so that PyTorch's hooks see its runs too.

    Attributes:
        outputs: their names.

    Raises:
        SettingsError: ONNX Runtime is not installed.
        ModelError: the file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._session = new_session(directory / ONNX)
        self._inputs = {each.name for each in self._session.get_inputs()}
        self.outputs: tuple[str, ...] = tuple(each.name for each in self._session.get_outputs())
        self._options = onnx_runtime().RunOptions()
        self._options.only_execute_path_to_fetches = True  # hidden states without the logits of a vocabulary
        # In 8 bits the values of a batch share one range: a row's answer would depend on the rows beside it.
        self._is_by_row = self._session.get_modelmeta().producer_name == _QUANTIZER

    def forward(self, batch: Batch, outputs: Sequence[str]) -> tuple[list[Tensor], Tensor]:
        """Some outputs for padded rows, and where these have tokens: (sequences, longest) bool."""
        ids, mask, segments = padded_rows(batch)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        given = {name: rows for name, rows in given.items() if name in self._inputs}
        has_token = mask.astype(bool)
        if not self._is_by_row:
            found = self._session.run(list(outputs), given, self._options)
            return [torch.from_numpy(each) for each in found], torch.from_numpy(has_token)
        rows = [
            self._session.run(
                list(outputs), {name: each[[row], :length] for name, each in given.items()}, self._options
            )
            for row, length in enumerate(batch.lengths)
        ]
        # Values of tokens are as many as a row has, and are padded; all others have one shape.
        padded = [
            pad_sequence([torch.from_numpy(row[0]) for row in its], batch_first=True) for its in zip(*rows, strict=True)
        ]
        return padded, torch.from_numpy(has_token)


class OnnxEncoder(nn.Module):
    """What a model that is not fine-tuned makes of tokens; it stands where its encoder would.

    Raises:
        ModelError: the file cannot be read, or is of a fine-tuned model.
        SettingsError: ONNX Runtime is not installed.
    """

    reads_words: Literal[False] = False

    def __init__(self, directory: Path, settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self._graph = OnnxGraph(directory)
        if HIDDEN not in self._graph.outputs:
            raise ModelError(
                f"{directory}: an ONNX file of a fine-tuned model gives its answers alone: give the directory that it "
                "was exported from"
            )

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The last ones alone, (tokens, hidden) float32."""
        return [self.of_tokens(batch, HIDDEN)[HIDDEN]]

    def logits(self, batch: Batch) -> Tensor:
        """Of a masked language model: (tokens, vocab) float32."""
        return self.of_tokens(batch, "logits")["logits"]

    def of_tokens(self, batch: Batch, *outputs: str) -> dict[str, Tensor]:
        """Outputs by name, all where none is named; (tokens, ...) float32."""
        names = outputs or self._graph.outputs
        found, mask = self._graph(batch, names)
        return {name: each[mask] for name, each in zip(names, found, strict=True)}


def open_encoder(directory: Path, kind: str | None = None) -> LoadedModel:
    """What a directory says of a model that is not fine-tuned, of one kind (see `load_model`) or any, with an
    `OnnxEncoder`; raises as that."""
    blank = blank_model(directory, kind)
    encoder: Any = OnnxEncoder(directory, blank.encoder.settings)
    return replace(blank, encoder=encoder)


class OnnxModule(TaskModule):
    """Answers as a task's module does; it does not learn.

    Args:
        module: the task's, without weights: it knows how rows become units.

    Attributes:
        encoder, head: without weights: their settings alone are of use.

    Raises:
        SettingsError: ONNX Runtime is not installed.
        ModelError: the file cannot be read.
    """

    encoder: Any
    head: Any
    _module: Any

    def __init__(self, module: Any, directory: Path) -> None:
        nn.Module.__init__(self)
        self._graph = OnnxGraph(directory)
        # Not as parts of this module: they have no weights to be counted or moved.
        for name, part in (("_module", module), ("encoder", module.encoder), ("head", module.head)):
            object.__setattr__(self, name, part)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        terms: list[LossTerm] = self._module.eval().loss(outputs, batch)
        return terms

    def num_targets(self, batch: Batch) -> int:
        num_targets: int = self._module.num_targets(batch)
        return num_targets

    def outputs(self, batch: Batch) -> Tensor:
        """(units, ...), or (tokens, ...) of heads on tokens; float32."""
        rows: list[Tensor] = []
        is_of_tokens = False
        for part in in_parts(batch):
            found, mask = self._graph(part, self._graph.outputs)
            logits = torch.stack([each.expand_as(found[0]) for each in found], -1) if len(found) > 1 else found[0]
            is_of_tokens = logits.dim() == 3
            rows.append(logits[mask] if is_of_tokens else logits)
        outputs: Tensor = torch.cat(rows)
        return outputs if is_of_tokens else self._module.of_units(outputs, batch)


def padded_rows(batch: Batch) -> tuple[Any, Any, Any]:
    """`input_ids`, `attention_mask` and `token_type_ids`, (sequences, longest) int64 each."""
    shape = (batch.num_sequences, batch.max_length)
    lengths = np.array(batch.lengths)
    mask = np.arange(shape[1]) < lengths[:, None]
    ids, segments = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    ids[mask], segments[mask] = batch.input_ids.numpy(), batch.token_type_ids.numpy()
    return ids, mask.astype(np.int64), segments
