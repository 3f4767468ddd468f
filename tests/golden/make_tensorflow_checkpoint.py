"""Makes `tensorflow_checkpoint/`: a tiny BERT as Google released its models, and the same weights as safetensors.

    pip install tensorflow-cpu safetensors
    python tests/golden/make_tensorflow_checkpoint.py [--out DIR] [--many]

TensorFlow is needed here and nowhere else. `test_tensorflow_checkpoint.py` reads what was made, and where TensorFlow
can be imported it makes everything anew and reads that. In the directory:

- `bert_config.json`, `vocab.txt`, `bert_model.ckpt.*`: by TensorFlow 1's `Saver`, with slots of the optimizer;
- `transformers/`: the same weights as `transformers` writes them, from which the variables above were named;
- `sharded/`: the same in two data files;
- `kinds/`: every dtype, scalars, empty and partitioned tensors; `expected.json` tells what is in it;
- `object_based/`: what `tf.train.Checkpoint` of TensorFlow 2 writes;
- `many/` (with `--many`, not kept): so many variables that the index takes more than one block of 256 KiB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found]
from safetensors.numpy import save_file

HERE = Path(__file__).parent / "tensorflow_checkpoint"

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("mirba", "tolk", "sanu", "veddin", "oru", "kesh", "plimo", "ratta", "urz", "fen", "halk", "yumi", "quell"),
    *("##ba", "##do", "##lin", "##tak", "##u", ".", ",", "?", "!", "-", "brisk"),
)

SIZES = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 12,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": len(WORDS),
}
"""As Google's `bert_config.json` names them."""


def draw_weights() -> dict[str, Any]:
    """Under the names of `transformers`' BertForPreTraining; of a size at which mistakes show in the outputs."""
    hidden, intermediate = SIZES["hidden_size"], SIZES["intermediate_size"]
    vectors = {"embeddings.word_embeddings": "vocab_size", "embeddings.position_embeddings": "max_position_embeddings"}
    vectors["embeddings.token_type_embeddings"] = "type_vocab_size"
    dense = {"pooler.dense": (hidden, hidden)}
    norms = ["embeddings.LayerNorm"]
    for number in range(SIZES["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        dense |= {f"{layer}.attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        dense[f"{layer}.attention.output.dense"] = (hidden, hidden)
        dense[f"{layer}.intermediate.dense"] = (intermediate, hidden)
        dense[f"{layer}.output.dense"] = (hidden, intermediate)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    dense = {f"bert.{name}": shape for name, shape in dense.items()}
    dense |= {"cls.predictions.transform.dense": (hidden, hidden), "cls.seq_relationship": (2, hidden)}
    norms = [f"bert.{name}" for name in norms] + ["cls.predictions.transform.LayerNorm"]
    shapes = {f"bert.{name}.weight": (SIZES[size], hidden) for name, size in vectors.items()}
    for name, (outputs, inputs) in dense.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    shapes |= {f"{name}.{kind}": (hidden,) for name in norms for kind in ("weight", "bias")}
    shapes["cls.predictions.bias"] = (SIZES["vocab_size"],)
    random = np.random.default_rng(0)
    return {
        name: (random.normal(0, 0.3, shape) + ("LayerNorm.weight" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def as_variables(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights under the names that Google's graph gave them, kernels as (inputs, outputs)."""
    variables = {}
    for name, weight in weights.items():
        module, kind = name.rsplit(".", 1)
        path = re.sub(r"layer\.(\d+)", r"layer_\1", module).replace(".", "/")
        if module.endswith("embeddings"):
            variables[path] = weight
        elif module.endswith("LayerNorm"):
            variables[f"{path}/{'gamma' if kind == 'weight' else 'beta'}"] = weight
        elif module in ("cls.predictions", "cls.seq_relationship"):
            variables[f"{path}/{'output_weights' if kind == 'weight' else 'output_bias'}"] = weight
        elif kind == "weight":
            variables[f"{path}/kernel"] = np.ascontiguousarray(weight.T)
        else:
            variables[f"{path}/bias"] = weight
    return variables


def save_as_tensorflow_1(prefix: Path, variables: dict[str, Any]) -> None:
    """A graph's variables, saved by a session's Saver."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in variables.items():
            v1.get_variable(name, initializer=tf.constant(value), use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(prefix), write_meta_graph=False, write_state=False)


def save_part(prefix: Path, tensors: dict[str, Any], slices: dict[str, str] | None = None) -> None:
    """One data file and its index. `slices`: the shape and place of tensors that are parts of others, by name."""
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[(slices or {}).get(name, "") for name in names],
        tensors=[tf.constant(tensors[name]) for name in names],
    )


def save_sharded(prefix: Path, variables: dict[str, Any]) -> None:
    """Every second variable in the second of two data files."""
    names = list(variables)
    parts = [prefix.with_name(f"part-{number}") for number in range(2)]
    for number, part in enumerate(parts):
        save_part(part, {name: variables[name] for name in names[number::2]})
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(part) for part in parts], destination_prefix=str(prefix), delete_old_dirs=False
    )


def save_kinds(directory: Path) -> None:
    """One tensor of each kind, after nine bytes that are not read, so that none is aligned."""
    values = [[-1.5, 0.0, 2.25], [1024.0, -0.125, 3.0]]
    floats = ("float16", "bfloat16", "float32", "float64")
    readable = {name: tf.constant(values, dtype=name) for name in floats}
    readable |= {name: tf.constant([-7, 0, 2**31 - 1], dtype=name) for name in ("int32", "int64")}
    readable |= {"scalar": tf.constant(7, tf.int64), "empty": tf.zeros((0, 3))}
    others = {"a_flag": tf.constant(True), "a_text": tf.constant("oru")}
    parts = {"partitioned": tf.constant([[1.0, 2.0]])}
    save_part(directory / "kinds.ckpt", others | readable | parts, {"partitioned": "2 2 0,1:-"})
    expected = {
        name: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list(), "values": tensor.numpy().tolist()}
        for name, tensor in readable.items()
    }
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


def save_many(prefix: Path) -> None:
    """5,000 scalars with names that have little in common, each its own number."""
    names = {hashlib.sha256(str(number).encode()).hexdigest(): number for number in range(5000)}
    save_part(prefix, {name: np.int32(number) for name, number in names.items()})


def write_model_files(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bert_config.json").write_text(json.dumps(SIZES, indent=2) + "\n", "utf-8")
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--many", action="store_true")
    options = parser.parse_args()
    out: Path = options.out
    for name in ("transformers", "sharded", "kinds", "object_based", *(["many"] if options.many else [])):
        (out / name).mkdir(parents=True, exist_ok=True)
    weights = draw_weights()
    variables = as_variables(weights)
    random = np.random.default_rng(1)
    slots = {
        f"{name}/{slot}": random.normal(size=variables[name].shape).astype(np.float32)
        for name in ("bert/pooler/dense/kernel", "cls/predictions/output_bias")
        for slot in ("adam_m", "adam_v")
    }
    write_model_files(out)
    save_as_tensorflow_1(out / "bert_model.ckpt", variables | slots | {"global_step": np.int64(1000)})
    write_model_files(out / "sharded")
    save_sharded(out / "sharded" / "model.ckpt-1000", variables)
    config = {"architectures": ["BertForPreTraining"], "model_type": "bert", "dtype": "float32", **SIZES}
    config |= {"layer_norm_eps": 1e-12, "pad_token_id": 0, "tie_word_embeddings": True}
    (out / "transformers" / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    save_file(weights, out / "transformers" / "model.safetensors", metadata={"format": "pt"})
    save_kinds(out / "kinds")
    tf.train.Checkpoint(scale=tf.Variable([1.0, 2.0])).write(str(out / "object_based" / "bert.ckpt"))
    if options.many:
        save_many(out / "many" / "many.ckpt")


if __name__ == "__main__":
    main()
