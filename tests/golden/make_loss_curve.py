"""Makes `loss_curve.json`: the losses of twenty steps of every system at a tiny size, from raw English and Korean text
onwards.

    python tests/golden/make_loss_curve.py [SYSTEM ...]

`test_loss_curve.py` takes the same steps and compares. A curve is made anew only when a change of its losses is
intended, and the change is explained where it is made; with names, those alone are.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

from unmask import pretrain
from unmask.training.run.log import read_metrics

GOLDEN = Path(__file__).with_name("loss_curve.json")
SAMPLES = Path(__file__).parents[2] / "samples" / "text"

RECIPE = """
seed: 1
device: cpu
precision: fp32
tokenizer: {vocab_size: 1000}
held_out: 0
model: {preset: tiny, hidden_size: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
packing: {max_length: 64}
optimizer: {learning_rate: 2e-3}
schedule: {warmup_steps: 5}
train: {steps: 20, batch_size: 16, micro_batch_size: 6, log_every: 1}
"""
"""Dropout is off: which numbers its generator gives depends on the processor."""

ELMO = """
seed: 1
device: cpu
precision: fp32
tokenizer: {kind: word, vocab_size: 1000}
held_out: 0
model:
  architecture: elmo
  preset: tiny
  filters: [[1, 8], [2, 16]]
  projection_size: 16
  cell_size: 32
  hidden_dropout_prob: 0
objective: {name: bilm, num_negatives: 200}
packing: {format: stream, max_length: 10}
optimizer: {name: adagrad, learning_rate: 0.2, initial_accumulator: 0.0025, weight_decay: 0}
schedule: {name: constant}
train: {steps: 20, batch_size: 8, micro_batch_size: 3, max_grad_norm: 0.5, log_every: 1}
"""
"""Most of what another recipe says means nothing to ELMo."""

SMALL = ["model.hidden_size=32", "packing.max_length=32", "train.batch_size=8", "train.micro_batch_size=3"]
"""All but whole words are smaller: together they take some seconds."""

ALONE = ["objective.sentence_objective=none"]
RTD = [
    *("objective={name: replaced_token}", "model.architecture=electra", "model.embedding_size=16"),
    "packing.format=single_segment",
]
LEFT_TO_RIGHT = ["objective={name: causal_lm}", "packing.format=single_segment"]

SYSTEMS: dict[str, list[str]] = {
    "bert, whole words": ["objective.masking=whole_word"],
    "bert": [*SMALL],
    "bert without NSP, static masks": [*SMALL, *ALONE, "objective.masking_mode=static"],
    "bert with sentence order": [*SMALL, "objective.sentence_objective=sop"],
    "spanbert": [
        *(*SMALL, "objective={masking: span, sentence_objective: none, span_boundary: true}"),
        "packing.format=single_segment",
    ],
    "roberta": [
        *(*SMALL, *ALONE, "model.architecture=roberta", "tokenizer.kind=byte_bpe", "packing.format=full_sentences"),
        *("optimizer.betas=[.9, .98]",),
    ],
    "bert, pairs of single sentences": [*SMALL, "tokenizer.kind=byte_bpe", "packing.format=sentence_pair"],
    "electra": [*SMALL, *RTD],
    "electra, untied, 85/15": [*SMALL, *RTD, "objective.tie_embeddings=none", "objective.mask_token_prob=.85"],
    "electra in two stages": [*SMALL, *RTD, "objective.schedule=two_stage", "objective.generator_size=1"],
    "gpt1": [*SMALL, *LEFT_TO_RIGHT, "model.architecture=gpt1", "tokenizer.kind=bpe"],
    "left-to-right bert": [*SMALL, "objective={name: causal_lm}", "model.causal=true"],
    "lstm": [*SMALL, *LEFT_TO_RIGHT, "model.architecture=lstm", "tokenizer.kind=bpe"],
    "bert in phases": [*SMALL, "phases=[{until: .5, max_length: 16, batch_size: 12, micro_batch_size: 5}, {until: 1}]"],
    "bert with lamb": [*SMALL, "optimizer.name=lamb", "optimizer.bias_correction=false"],
    "bert with muon": [*SMALL, "optimizer.name=muon"],
    "bert masking entities": [*SMALL, *ALONE, "objective.masking=entity"],
    "bert masking noun phrases": [*SMALL, *ALONE, "objective.masking=noun_phrase"],
    "elmo": [],
}
"""What each says on the command line, beside `RECIPE`, or ELMo beside its own."""

ANNOTATIONS = {
    "entity": re.compile(r"[A-Z]\w+(?: [A-Z]\w+)*"),
    "noun_phrase": re.compile(r"\b(?:an?|the|his|her|my) \w+"),
}
"""What the text of what masks by them is annotated with; roughly, and the Korean one not at all."""


def annotated(line: str) -> str:
    """A document with its annotations; both JSON."""
    document = json.loads(line)
    spans = [[*match.span(), kind] for kind, form in ANNOTATIONS.items() for match in form.finditer(document["text"])]
    return json.dumps(document | {"spans": spans}) + "\n"


def loss_curve(system: str, directory: Path, changes: Sequence[str] = ()) -> list[dict[str, float]]:
    """Takes the steps and returns the figures of each: the loss, its terms, the gradient's norm.

    Args:
        system: a key of `SYSTEMS`.
        directory: an empty one to work in.
        changes: further `key.path=value` words.
    """
    corpus, recipe = directory / "corpus.jsonl", directory / "recipe.yaml"
    lines = []
    for name in ("en-books.jsonl", "ko-wiki.jsonl"):
        with (SAMPLES / name).open(encoding="utf-8") as file:
            lines += list(islice(file, 12))
    is_annotated = any(word.removeprefix("objective.masking=") in ANNOTATIONS for word in SYSTEMS[system])
    corpus.write_text("".join(map(annotated, lines) if is_annotated else lines), encoding="utf-8")
    recipe.write_text(ELMO if system == "elmo" else RECIPE, encoding="utf-8")
    pretrain(str(recipe), [f"corpus={corpus}", *SYSTEMS[system], *changes], out=directory / "run")
    rows = read_metrics(directory / "run" / "metrics.jsonl")
    return [
        {name: row[name] for name in row if name == "gradient_norm" or name.split("/")[0] == "loss"} for row in rows
    ]


def main() -> None:
    curves = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    made_with = {"torch": torch.__version__, "python": sys.version.split()[0]}
    for system in sys.argv[1:] or SYSTEMS:
        with tempfile.TemporaryDirectory() as directory:
            steps = loss_curve(system, Path(directory))
        curves[system] = {"made_with": made_with, "steps": steps}
        print(f"{system}: {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f} in {len(steps)} steps")
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
