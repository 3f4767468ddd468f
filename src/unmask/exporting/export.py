"""`unmask export`: a model as an ONNX file, written with a certificate of what it answers, or not at all."""

from __future__ import annotations

import logging
import math
import shutil
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from unmask.card import Exported, card_of, stated_in
from unmask.errors import OutputError, SettingsError
from unmask.exporting.certificate import certify_task, compare_texts, read_examples, read_texts
from unmask.exporting.graph import PaddedModel, padded_model
from unmask.inference.features.extraction import load_feature_model
from unmask.inference.features.sentence_transformers import find_sentence_model
from unmask.inference.onnx_model import onnx_runtime
from unmask.inference.predictor import load_predictor
from unmask.inference.task_options import NOTHING_SAID, Columns
from unmask.io.input_files import DataPath, as_files
from unmask.io.paths import CERTIFICATE, CONFIGS, ONNX, check_writable, free_space, model_directory, refuse_link_out_of
from unmask.io.progress import counted, human_bytes
from unmask.io.signals import Interruption
from unmask.io.writing import refuse_foreign, write_json, write_text, writing_directory
from unmask.models.google.checkpoint import find_index
from unmask.models.hub.directory import load_model
from unmask.models.hub.files import CONFIG
from unmask.models.hub.source import LoadedModel
from unmask.tokenization.directory import KEPT_FILES
from unmask.training.run.model_place import CARD

logger = logging.getLogger("unmask")

Format = Literal["onnx", "onnx-int8"]

_OPSET = 18
_COPIED = (".json", ".txt", ".model")
"""Suffixes of a model's configuration and tokenizer."""
_ROUNDING = 1e-3
"""Of the root mean square of an output: what fp32 in another order of operations changes is a hundredth of it."""
_SMALLEST = 1e-4
"""A difference that is rounding, however small the outputs are."""
_LIBRARIES = ("onnx", "onnxruntime", "onnxscript", "torch", "unmask")


def export(
    model: str | Path,
    out: str | Path,
    check: str | DataPath,
    columns: Columns = NOTHING_SAID,
    *,
    format: str = "onnx",
    max_loss: float = 0.01,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a model as ONNX, with its tokenizer, configuration, card and certificate.

    Args:
        model: the directory of a model, fine-tuned or not, or of its run.
        out: the directory to write.
        check: what the model is measured on before and after: labelled examples, as for `unmask evaluate`; texts, as
            for `unmask features`, of a model that is not fine-tuned.
        columns: of `check`, where they are not those that the model remembers.
        format: `onnx` in fp32, or `onnx-int8`: weights of products in 8 bits, inputs quantized as they come.
        max_loss: how much worse the metric that `certificate` names may be, as a share of its range: .01 is a point of
            accuracy, or of F1 in per cent; beyond it nothing is written.
        overwrite: True replaces an exported model at `out`, and nothing else.

    Returns:
        What the certificate says.

    Raises:
        SettingsError: there is no such format, a column does not apply here, the model is of a kind that cannot be
            exported, the graph in fp32 computes something else, or answers are too much worse.
        ModelError: there is no model.
        InputError: the examples cannot be read.
        OutputError: there is something at `out` that is not to be overwritten, or is no exported model.
    """
    if format not in get_args(Format):
        raise SettingsError(f"--format {format}: expected {' or '.join(get_args(Format))}")
    if not math.isfinite(max_loss):
        raise SettingsError(f"--max-loss {max_loss}: expected a number")
    _check_libraries()
    directory, out = model_directory(model), Path(out)
    loaded = load_model(directory)
    padded = padded_model(loaded)
    files = as_files(check)
    copied = _copied_files(directory)
    saved = find_sentence_model(directory)
    pooling = None if saved is None else saved.pooling
    for path in copied if pooling is None else [*copied, pooling]:
        refuse_link_out_of(directory, path)
    folders = [] if pooling is None else [pooling.parent.name]
    own = (ONNX, CERTIFICATE, CARD, CONFIG, *KEPT_FILES, *(path.name for path in copied), *folders)
    refuse_foreign(out, own, "an exported model", CERTIFICATE)
    check_writable(out, overwrite, is_folder=True)
    compared_with = _comparison(directory, loaded, columns, files)
    with writing_directory(out, overwrite) as place:
        for path in copied:
            shutil.copy(path, place / path.name)
        if pooling is not None:
            (place / pooling.parent.name).mkdir(exist_ok=True)
            shutil.copy(pooling, place / pooling.parent.name)
        # Google's have none, and in others the class may be left out that the weights show.
        write_json(place / CONFIG, {**loaded.config, "architectures": [loaded.architecture]})
        logger.info("writing the graph")
        write_graph(padded, place / ONNX)
        if format == "onnx-int8":
            logger.info("quantizing it")
            _quantize(place / ONNX, out)
        result = compared_with(place)
        if format == "onnx":
            _refuse_another_graph(result, directory)
        _refuse_worse_answers(result, check, max_loss)
        certificate = {
            "format": format,
            "opset": _opset_of(place / ONNX),
            "check": files.path.name,
            **result,
            "size_bytes": {"before": _size_of(directory, _weights_of(directory)), "after": _size_of(place, ONNX)},
            "calibration_data": "none (dynamic)"
            if format == "onnx-int8"
            else None,  # the range of every input of a product is taken from that input itself
            "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        }
        write_json(place / CERTIFICATE, certificate)
        exported = Exported(_sentence(certificate), files.path.name, result["metrics"]["after"])
        write_text(place / CARD, card_of(directory, stated_in(directory), exported))
    return certificate


def _check_libraries() -> None:
    try:
        onnx_runtime()
        for library in ("onnx", "onnxscript"):
            import_module(library)
    except ImportError as error:
        raise SettingsError(
            f"exporting needs onnx, onnxruntime and onnxscript ({error}): pip install 'unmask[onnx]'"
        ) from error


def _copied_files(directory: Path) -> list[Path]:
    """The tokenizer's files and what else goes with a model; its configuration is written anew."""
    return [
        path
        for path in directory.iterdir()
        if path.is_file()
        and path.suffix in _COPIED
        and path.name not in CONFIGS
        and not path.name.endswith(".index.json")
    ]


def _comparison(
    directory: Path, loaded: LoadedModel, columns: Columns, check: DataPath
) -> Callable[[Path], dict[str, Any]]:
    """Reads the examples, and gives what compares the model with the exported one of a directory."""
    if loaded.head_kind is not None:
        predictor = load_predictor(directory, device="cpu").with_options(columns, use="evaluate")
        examples = read_examples(predictor, check)
        return lambda place: certify_task(predictor, load_predictor(place, device="cpu"), examples)
    model = load_feature_model(directory, columns=columns, device="cpu")
    texts = read_texts(model, check)
    head = loaded.masked_lm_head or loaded.discriminator_head
    return lambda place: compare_texts(model, head and head.eval(), load_feature_model(place, device="cpu"), texts)


def _weights_of(directory: Path) -> str:
    """The pattern of a model's weights, in a directory of either layout."""
    if (directory / CONFIG).is_file():
        return "*.safetensors"
    return f"{find_index(directory).stem}.data-*"


def write_graph(model: PaddedModel, path: Path) -> None:
    """Writes a model's graph; numbers of sequences and tokens are free. Raises Interrupted."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if model.reads_segments else [])]
    ids = torch.ones(2, 5, dtype=torch.long)
    given = (ids, torch.ones_like(ids), *([torch.zeros_like(ids)] if model.reads_segments else []))
    free = {0: torch.export.Dim("sequences"), 1: torch.export.Dim("tokens", max=model.encoder.settings.num_positions)}
    with warnings.catch_warnings(), Interruption(at_once=True) as interruption:
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                model,
                given,
                str(path),
                dynamo=True,
                opset_version=_OPSET,
                input_names=names,
                output_names=list(model.outputs),
                dynamic_shapes=(free,) * len(given),
                external_data=False,
                verbose=False,
            )
        finally:
            interruption.check()


def _refuse_another_graph(result: dict[str, Any], directory: Path) -> None:
    """Raises SettingsError if a graph in fp32 differs from its model by more than rounding does."""
    for name, size in result["root_mean_square"].items():
        difference = result["largest_difference"][name]
        if not difference <= max(_ROUNDING * size, _SMALLEST):
            raise SettingsError(
                f"{directory} cannot be exported: {name} of its graph differ by up to {difference:.2g} from the "
                f"model's, whose root mean square is {size:.2g}; rounding changes less than a thousandth of that, so "
                "the graph computes something else; nothing is written: use the model itself, and report it; a new "
                "setting of an encoder has to be written into exporting/graph.py too"
            )


def _refuse_worse_answers(result: dict[str, Any], check: str | DataPath, max_loss: float) -> None:
    if not result["loss"] <= max_loss:
        metric = result["metric"]
        raise SettingsError(
            f"{metric} on {check} is {result['metrics']['after'][metric]:.4g} after exporting and "
            f"{result['metrics']['before'][metric]:.4g} before: worse by {result['loss']:.3g}, over --max-loss "
            f"{max_loss:g}; nothing is written: take another --format, or allow more"
        )


def _opset_of(path: Path) -> int:
    """The version of ONNX's own operators that a file asks for."""
    [opset] = [each.version for each in import_module("onnx").load(path).opset_import if each.domain in ("", "ai.onnx")]
    return int(opset)


def _quantize(path: Path, out: Path) -> None:
    """Replaces a graph by one whose products have weights in 8 bits. Raises OutputError, which names `out`, if the disk
    is full."""
    quantization = onnx_runtime(".quantization")
    whole = path.with_suffix(".fp32")
    inferred = whole.with_stem(f"{whole.stem}-inferred")  # written by ONNX Runtime meanwhile
    path.rename(whole)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it advises a step that graphs of fixed shapes need
    try:
        quantization.quantize_dynamic(whole, path, weight_type=quantization.QuantType.QInt8, per_channel=True)
    except Exception as error:
        size = whole.stat().st_size
        # onnx does not say that it could not write all of it; where it wrote nothing, the file is gone by now.
        if (inferred.stat().st_size if inferred.is_file() else free_space(path)) < size:
            raise OutputError(
                f"the disk is full while writing {out}: quantizing takes {human_bytes(2 * size)}: free some space, or "
                "write elsewhere"
            ) from error
        raise
    finally:
        root.setLevel(level)
        whole.unlink()


def _sentence(certificate: dict[str, Any]) -> str:
    metric = certificate["metric"]
    before, after = (certificate["metrics"][when][metric] for when in ("before", "after"))
    size, latency = certificate["size_bytes"], certificate["latency_ms"]
    return (
        f"ONNX, {certificate['format'].replace('onnx-int8', 'int8').replace('onnx', 'fp32')}, opset "
        f"{certificate['opset']}. On {certificate['examples']:,} examples of {certificate['check']}: {metric} "
        f"{before:.4g} before, {after:.4g} after; the largest difference is "
        f"{' and '.join(f'{value:.2g} of {name}' for name, value in certificate['largest_difference'].items())}. "
        f"{human_bytes(size['before'])} before, "
        f"{human_bytes(size['after'])} after; one example {latency['before']:,.4g} ms before, "
        f"{latency['after']:,.4g} ms after, "
        f"{counted(certificate['threads'], 'thread')}."
    )


def _size_of(directory: Path, pattern: str) -> int:
    """Bytes of the files of a directory that match."""
    return sum(path.stat().st_size for path in directory.glob(pattern))
