"""The fine-tuning and inference parts of `run.py`: their material, and `unmask`'s own commands, timed from outside.

An epoch is timed from one evaluation's log line to the next, so it includes steps, metrics and whatever else the
command does; the first one includes compilation too. Tokenization is timed alone, by the function that the command
calls.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any

from gpu.cases import VOCAB_SIZE, NotReachedError
from gpu.lengths import Example, Words, make_examples, read_lengths, read_texts, write_examples
from measure import SAMPLE_TEXT

EPOCHS = 8
"""The most epochs of a timed fine-tuning: the first, and those whose median counts."""
RECIPE_EPOCHS = 3
"""The recipes' epochs, over which tokenization is spread."""
KINDS: dict[str, Any] = {
    "mrpc": "sequence_classification",
    "sst2": "sequence_classification",
    "squad": "question_answering",
}
RECIPES = {"mrpc": "finetune/mrpc", "sst2": "finetune/sst2", "squad": "finetune/squad1"}
DEV_SHARE = 10
"""There is one dev example for this many of train."""
FEW = 16
"""One text in this many is read beforehand, to measure the time of loading."""
SEED = 0


@dataclass(frozen=True)
class Tuning:
    """A fine-tuning.

    Attributes:
        folder: the folder of the task's files.
        task: `mrpc`, `sst2` or `squad`.
        model: a directory with random weights, a head and a tokenizer.
        device: `cpu` or `cuda`.
        max_length: the recipe's, in tokens.
        num_examples: of train.
        batch_size: of both sides.
        seconds: after this time the peer begins no epoch beyond its second.
    """

    folder: Path
    task: str
    model: Path
    device: str
    max_length: int
    num_examples: int
    batch_size: int = 32
    seconds: float = 15.0

    @property
    def longest(self) -> list[int]:
        """The lengths of the examples, without those over `max_length` (which only occur at toy size)."""
        return [length for length in read_lengths(self.task) if length <= self.max_length][: self.num_examples]

    def file(self, name: str) -> Path:
        return self.folder / f"{self.task}-{name}{'.json' if self.task == 'squad' else '.tsv'}"


@dataclass(frozen=True)
class Tuned:
    """What was measured of a fine-tuning.

    Attributes:
        num_examples: of train.
        tokenization_s: of train and dev.
        epochs_s: of each epoch, metrics on dev included; the first includes compilation.
        steps_per_s: of the steps alone, after the first epoch.
        losses: of the first batch before training, dropout off, by precision.
        token_lengths: of the examples as this side's tokenizer cuts them.
        notes: its messages about how it computes.
    """

    num_examples: int
    tokenization_s: float
    epochs_s: tuple[float, ...]
    steps_per_s: float
    losses: dict[str, float]
    token_lengths: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def steady(self) -> float:
        """Examples per second once compiled, including metrics, and tokenization spread over the recipe's epochs."""
        return self.num_examples / (median(self.epochs_s[1:]) + self.tokenization_s / RECIPE_EPOCHS)

    @property
    def waited(self) -> float:
        """Examples per second of the recipe's epochs as a user waits for them, compilation included."""
        seconds = self.tokenization_s + self.epochs_s[0] + (RECIPE_EPOCHS - 1) * median(self.epochs_s[1:])
        return RECIPE_EPOCHS * self.num_examples / seconds


@dataclass(frozen=True)
class Texts:
    """Texts to be read by a model.

    Attributes:
        file: one text per line.
        encoder, classifier: directories of one encoder, the second with a head.
        device: `cpu` or `cuda`.
        max_length: in tokens.
    """

    file: Path
    encoder: Path
    classifier: Path
    device: str
    max_length: int


@dataclass(frozen=True)
class Encoded:
    """What was measured when a model read texts.

    Attributes:
        rates: texts per second, one entry per round.
        vectors: the first values of the first token's vectors, for the first texts.
        note: how it was done.
    """

    rates: list[float]
    vectors: list[list[float]]
    note: str = ""


def sample_vectors(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    """The part of some vectors that is compared."""
    return [list(vector[:64]) for vector in vectors]


def make_tuning_files(tuning: Tuning) -> None:
    """Writes train and dev, and the model that both sides start from, unless they exist."""
    import shutil

    import torch
    from tokenizers import Tokenizer

    from unmask import save_model
    from unmask.models.encoder import new_encoder
    from unmask.models.heads.heads import new_head
    from unmask.models.hub.directory import TunedHead, load_encoder

    source = tuning.model.parent / tuning.model.name.rpartition("-")[0]
    if not (tuning.model / "model.safetensors").exists():
        torch.manual_seed(SEED)
        encoder = load_encoder(source).encoder
        head = new_head(KINDS[tuning.task], encoder.settings, 2)
        labels = None if tuning.task == "squad" else ("0", "1")
        assert encoder.settings.vocab_size == VOCAB_SIZE
        fresh = new_encoder(encoder.settings, pooler=tuning.task != "squad")
        fresh.load_state_dict(encoder.state_dict(), strict=False)
        shutil.copytree(source, tuning.model, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
        save_model(tuning.model, fresh, tuned=TunedHead(head, KINDS[tuning.task], labels=labels))
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    words = Words(read_texts(SAMPLE_TEXT), tokenizer)
    lengths = tuning.longest
    tuning.folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, some) in enumerate({"train": lengths, "dev": lengths[::DEV_SHARE]}.items()):
        examples = make_examples(tuning.task, some, words, seed)
        write_examples(tuning.task, examples, tuning.file(name))


def read_examples(tuning: Tuning, name: str) -> list[Example]:
    """The examples of a file, as the peer's user would read them."""
    import json

    text = tuning.file(name).read_text("utf-8")
    if tuning.task == "squad":
        return [
            Example(qa["question"], paragraph["context"], its["answer_start"], its["text"])
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
            for its in qa["answers"]
        ]
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    if tuning.task == "mrpc":
        return [Example(row[3], row[4], int(row[0])) for row in rows]
    return [Example(row[0], None, int(row[1])) for row in rows]


def inspect_ours(tuning: Tuning) -> tuple[float, tuple[int, ...], dict[str, float]]:
    """Our seconds of tokenization, our lengths, and our losses on the first batch in eval mode, by precision."""
    import torch

    from unmask.finetuning.inputs import read_examples
    from unmask.inference.predictor import load_predictor
    from unmask.tasks.encoded import concatenate

    losses = {}
    name = "squad1" if tuning.task == "squad" else tuning.task
    settings = {"max_length": tuning.max_length}
    for precision in ("fp32", "bf16"):
        predictor = load_predictor(tuning.model, name, device=tuning.device, precision=precision)
        predictor = predictor.with_options(settings=settings, use="evaluate")
        began = time.perf_counter()
        train, _ = (
            concatenate(
                [
                    window.encoded.without_alignment()
                    for window in read_examples(predictor.task, part, str(tuning.file(part))).encode(
                        predictor.task, predictor.tokenizer, predictor.module
                    )
                ]
            )
            for part in ("train", "dev")
        )
        tokenization_s = time.perf_counter() - began
        batch = train.batch(range(tuning.batch_size))
        counts = predictor.module.counts(batch)
        batch = batch.to(predictor.compute.device)
        with torch.inference_mode(), predictor.compute.autocast() if precision == "bf16" else nullcontext():
            terms = predictor.module(batch)
        losses[precision] = sum(term.coefficient * float(term.total) / counts[term.name] for term in terms)
    return tokenization_s, tuple(train.lengths.tolist()), losses


def run_command(words: Sequence[str], deadline: float) -> tuple[list[tuple[float, str]], float]:
    """Runs `unmask WORDS`; returns when each line of its log came and when it ended, in seconds from its start.

    Raises:
        NotReachedError: the deadline came first.
        RuntimeError: it failed; holds the end of its log.
    """
    began = time.monotonic()
    if began >= deadline:
        raise NotReachedError
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    timer = Timer(deadline - began, process.kill)
    timer.start()
    assert process.stderr is not None
    lines = [(time.monotonic() - began, line.rstrip()) for line in process.stderr]
    code = process.wait()
    timer.cancel()
    if time.monotonic() >= deadline:
        raise NotReachedError
    if code:
        raise RuntimeError("\n".join(line for _, line in lines[-15:]) or f"exit code {code}")
    return lines, time.monotonic() - began


def finetune_words(tuning: Tuning, out: Path, *more: str) -> list[str]:
    """The words of `unmask finetune` for a task."""
    return [
        "finetune",
        RECIPES[tuning.task],
        f"init_from={tuning.model}",
        f"data.train={tuning.file('train')}",
        f"data.dev={tuning.file('dev')}",
        f"task.max_length={tuning.max_length}",
        f"train.batch_size={tuning.batch_size}",
        f"device={tuning.device}",
        "precision=bf16",
        "train.save_every=null",
        *more,
        "--out",
        str(out),
        "--overwrite",
    ]


def tune_ours(
    tuning: Tuning, inspected: tuple[float, tuple[int, ...], dict[str, float]], out: Path, deadline: float
) -> Tuned:
    """Runs the command, and reads the figures of `Tuned` from its log.

    Args:
        inspected: what `inspect_ours` returned.
    """
    from unmask.training.run.log import read_metrics

    tokenization_s, lengths, losses = inspected
    steps = len(lengths) // tuning.batch_size
    every = [f"train.epochs={EPOCHS}", f"train.eval_every={steps}"]
    if tuning.device == "cuda":  # the judged epochs follow compilation, as the peer's do
        every.append("train.compile_blocks=true")
    lines, _ = run_command(finetune_words(tuning, out, *every), deadline)
    rows = read_metrics(out / "metrics.jsonl")
    rates = [row["tokens_per_s"] for row in rows if row.get("tokens_per_s") and row["step"] > steps]
    return Tuned(
        num_examples=len(lengths),
        tokenization_s=tokenization_s,
        epochs_s=epoch_seconds(lines),
        steps_per_s=median(rates) / (sum(lengths) / len(lengths) * tuning.batch_size),
        losses=losses,
        token_lengths=lengths,
        notes=tuple(line for _, line in lines if line.startswith(("attention", "step"))),
    )


def epoch_seconds(lines: Sequence[tuple[float, str]]) -> tuple[float, ...]:
    """The seconds of each epoch, from the log of a run that evaluates at the end of each one.

    Raises:
        RuntimeError: the log lacks lines that it should have.
    """
    starts = [at for at, line in lines if re.search(r" parameters, from ", line)]
    ends = [at for at, line in lines if re.match(r"step [\d,]+: ", line)]
    if not starts or len(ends) < 2:
        told = "\n".join(line for _, line in lines)
        raise RuntimeError(f"the log of the run does not tell when it began and evaluated:\n{told}")
    edges = [starts[0], *ends]
    return tuple(after - before for before, after in pairwise(edges))


def make_texts(texts: Texts, lengths: Sequence[int]) -> None:
    """Writes texts of these lengths, one per line."""
    from tokenizers import Tokenizer

    words = Words(read_texts(SAMPLE_TEXT), Tokenizer.from_file(str(texts.encoder / "tokenizer.json")))
    examples = make_examples("sst2", lengths, words)
    texts.file.write_text("".join(f"{its.text}\n" for its in examples), "utf-8")


def encode_ours(texts: Texts, program: str, rounds: int) -> Encoded:
    """`predict` or `features` (mean pooling) from file to file, as with a loaded and warm model.

    The time of a run over few texts is subtracted from that of a run over all, so that loading counts on neither side.
    """
    from unmask.inference.features.extraction import extract_features
    from unmask.inference.predictor import load_predictor, write_predictions
    from unmask.io.npy import map_features

    few = texts.file.with_name("few.txt")
    lines = texts.file.read_text("utf-8").splitlines()
    some = lines[::FEW]
    few.write_text("".join(f"{line}\n" for line in some), "utf-8")
    out = texts.file.with_name(f"out-{program}")
    predictor = load_predictor(texts.classifier, device=texts.device, precision="bf16")

    def run(file: Path) -> float:
        began = time.perf_counter()
        if program == "predict":
            write_predictions(predictor, file, out.with_suffix(".jsonl"), overwrite=True)
        else:
            extract_features(
                texts.encoder, file, out, pool="mean", device=texts.device, precision="bf16", overwrite=True
            )
        return time.perf_counter() - began

    run(few)
    rates = []
    for _ in range(rounds):
        seconds = run(texts.file) - run(few)
        if seconds <= 0:
            raise RuntimeError(f"{len(lines)} texts took no longer than {len(some)}: too few to time")
        rates.append((len(lines) - len(some)) / seconds)
    first = texts.file.with_name("first.txt")
    first.write_text("".join(f"{line}\n" for line in lines[:8]), "utf-8")
    sample = texts.file.with_name("sample")
    extract_features(texts.encoder, first, sample, pool="cls", device=texts.device, precision="bf16", overwrite=True)
    return Encoded(rates, sample_vectors(map_features(sample / "features.npy").tolist()))
