"""A model's directory, opened to be asked: in fp32 unless bf16 is requested, its weights cast and laid out once.

Imports little, so that a process answers soon after it starts.

In bf16 a Transformer's weights are cast once, and nothing is cast while it computes. LSTMs keep float32 weights; ELMo's
are rounded at every batch for products in bf16, the others compute in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from unmask.errors import ModelError, SettingsError
from unmask.inference.onnx_model import on_processor, open_encoder
from unmask.io.paths import is_onnx, model_directory
from unmask.models.encoder import Encoder
from unmask.models.hub.config import usual_length
from unmask.models.hub.directory import blank_model, load_encoder, load_model
from unmask.models.hub.source import LoadedModel
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, check_entries
from unmask.models.kernels.products import pack_weights
from unmask.models.modernbert import ModernBertBlock
from unmask.models.transformer import Block
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.training.device import Compute, choose_compute, keep_freed_memory

INFERENCE_PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Opened:
    """What a directory holds, ready to compute.

    Attributes:
        directory: where it is.
        loaded: encoder and heads, in eval mode, on the device. An ONNX file's encoder is an `OnnxEncoder`, and its
            heads, and all of a fine-tuned model in one, are without weights.
        tokenizer: the model's.
        compute: device and precision to run it with.
        max_length: tokens that it usually reads at once.
    """

    directory: Path
    loaded: LoadedModel
    tokenizer: Tokenizer
    compute: Compute
    max_length: int


def open_model(
    model: str | Path,
    kind: str | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    heads: bool = True,
    tokenizer: Tokenizer | None = None,
) -> Opened:
    """Opens a model to be asked.

    Args:
        model: its directory, or that of the run that made it.
        kind: what it must be; see `unmask.models.hub.directory.load_model`.
        device, precision: see `inference_compute`.
        heads: False loads the encoder alone.
        tokenizer: the model's, if it is open already.

    Raises:
        ModelError: there is no such model, it is of another kind, it or its tokenizer does not load, or they do not
            belong together.
        SettingsError: no such device or precision; or, of an ONNX file, no ONNX Runtime.
    """
    directory, compute = model_directory(model), inference_compute(device, precision)
    in_onnx = is_onnx(directory) and kind != CAUSAL  # for which an ONNX file is refused as a directory without weights
    if in_onnx:
        compute = on_processor(directory, compute)
        loaded = blank_model(directory, kind) if kind == FINE_TUNED else open_encoder(directory, kind)
    else:
        loaded = load_model(directory, kind) if heads else load_encoder(directory)
    if tokenizer is None:
        tokenizer = open_tokenizer(directory)
    attach_tokenizer(loaded.encoder, tokenizer, directory)
    module = nn.ModuleList([loaded.encoder, *loaded.heads.values()]).eval()
    if not in_onnx:
        module.to(compute.device)
    compute = freeze(module, compute)
    return Opened(directory, loaded, tokenizer, compute, usual_length(loaded.encoder.settings, loaded.config))


def attach_tokenizer(encoder: Encoder, tokenizer: Tokenizer, where: object) -> None:
    """Gives an encoder that reads the characters of words (ELMo) those of its tokenizer's words.

    Args:
        where: where both come from, for the message.

    Raises:
        ModelError: they do not belong together.
    """
    if encoder.reads_words != tokenizer.reads_words:
        what = (
            "words and the tokenizer is not one of words"
            if encoder.reads_words
            else "pieces of words, the tokenizer whole ones"
        )
        raise ModelError(f"{where}: the model reads {what}: they do not belong together; get the directory again")
    check_entries(tokenizer.vocab_size, tokenizer.pad_id, encoder.settings, where)
    if encoder.reads_words and tokenizer.reads_words:
        encoder.set_words(tokenizer.table)


def refuse_options(loaded: object, **given: object) -> None:
    """Raises SettingsError for what is given beside a loaded model, which has it already; None is not given."""
    for name, value in given.items():
        if value is not None:
            kind = type(loaded).__name__
            raise SettingsError(f"{name}={value}: a loaded {kind} has its {name}: load its directory with this one")


def inference_compute(device: str | None, precision: str | None) -> Compute:
    """The device and precision to answer with: what was requested, so that answers are the same on every machine.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`; None: `auto`.
        precision: `fp32` or `bf16`; None: `fp32`.

    Raises:
        SettingsError: an unknown name, or `cuda` without a GPU that can be used.
    """
    device, precision = "auto" if device is None else device, "fp32" if precision is None else precision
    if precision not in INFERENCE_PRECISIONS:
        raise SettingsError(f"precision {precision!r}: expected {' or '.join(INFERENCE_PRECISIONS)}")
    return choose_compute(device, precision)


def freeze(module: nn.Module, compute: Compute) -> Compute:
    """Prepares a module for inference, in place.

    Args:
        module: in eval mode, on the device, with float32 weights; it is not to be trained any more.
        compute: the device and precision.

    Returns:
        The device and precision to run it with. In fp32 it then answers as a module in training does, up to rounding.
    """
    parts = list(module.modules())
    has_blocks = any(isinstance(part, Block | ModernBertBlock) for part in parts)
    has_lstm = any(isinstance(part, nn.LSTM) for part in parts)
    if compute.dtype != torch.float32 and has_blocks and not has_lstm:
        module.to(compute.dtype)
        compute = replace(compute, autocasts=False)
    pack_weights(module)
    if compute.device.type == "cpu":
        keep_freed_memory()
    return compute
