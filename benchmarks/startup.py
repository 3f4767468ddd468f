"""Claim: `unmask --help` answers in under 0.3 s, and `unmask fill-mask` gives its first answer, from the start of the
process on, in at most half the time of `transformers` on the same directory.

The directory holds a model of BERT-Base's size with random weights, made by this script. `transformers` answers in two
ways: by AutoTokenizer and AutoModelForMaskedLM, the quicker one, which the claim is about, and by its pipeline. Every
figure is the wall time of a whole process; files are in the system's cache, since a first round is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from measure import SAMPLE_TEXT, Row, compare, interleave, machine, num_cores, parser, report

HELP_S = 0.3
AT_LEAST = 2.0
TEXT = "the man went to the [MASK] ."

BY_MODEL = """
import sys
from transformers import AutoModelForMaskedLM, AutoTokenizer
import torch
directory, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(directory)
model = AutoModelForMaskedLM.from_pretrained(directory)
inputs = tokenizer(text, return_tensors="pt")
with torch.inference_mode():
    logits = model(**inputs).logits
place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
scores, ids = logits[0, place].softmax(-1).topk(5)
for token, score in zip(ids.tolist(), scores.tolist()):
    print(token, score, tokenizer.convert_ids_to_tokens(token))
"""

BY_PIPELINE = """
import sys
from transformers import pipeline
directory, text = sys.argv[1:]
for answer in pipeline("fill-mask", model=directory)(text):
    print(answer["token"], answer["score"], answer["token_str"])
"""


def make_model(directory: Path) -> int:
    """Saves a model of BERT-Base's size with random weights; returns the number of its parameters."""
    import torch

    from unmask import TokenizerSettings, load_tokenizer, save_model, train_tokenizer
    from unmask.models.bert import BertEncoder
    from unmask.models.heads.heads import MaskedLMHead
    from unmask.models.settings import ModelSettings

    texts = sorted(SAMPLE_TEXT.parent.glob("*.jsonl"))
    train_tokenizer(texts, directory / "tokenizer", TokenizerSettings(vocab_size=30522))
    tokenizer = load_tokenizer(directory / "tokenizer")
    torch.manual_seed(0)
    sizes = ModelSettings(preset="base").resolve(tokenizer.vocab_size)
    encoder = BertEncoder(sizes, pooler=False)
    head = MaskedLMHead(sizes)
    save_model(directory / "model", encoder, {"masked_lm_head": head})
    tokenizer.save(directory / "model")
    return sum(parameter.numel() for part in (encoder, head) for parameter in part.parameters())


def run(command: list[str]) -> tuple[float, str]:
    """Wall time in seconds of a whole process, and what it printed."""
    began = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr}")
    return seconds, finished.stdout


def measures_of(commands: dict[str, list[str]]) -> dict[str, Callable[[], float]]:
    def seconds(command: list[str]) -> float:
        return run(command)[0]

    return {name: partial(seconds, command) for name, command in commands.items()}


def unmask_command() -> list[str]:
    """The installed script, as a user calls it, or the module if there is none."""
    script = Path(sys.executable).with_name("unmask")
    return [str(script)] if script.exists() else [sys.executable, "-m", "unmask"]


def measure_help(rounds: int) -> Row:
    """`--help`, and the least that it would cost if it imported torch."""
    commands = {"ours": [*unmask_command(), "--help"], "peer": [sys.executable, "-c", "import torch"]}
    measures = measures_of(commands)
    interleave(measures, 1)
    seconds = interleave(measures, rounds)
    row = compare("unmask --help", seconds["ours"], f"import torch {version('torch')}", seconds["peer"])
    return replace(row, target=f"under {HELP_S} s", met=median(seconds["ours"]) < HELP_S)


def measure_first_answer(model: Path, rounds: int) -> list[Row]:
    """The first answer to one text, beside both ways of `transformers`."""
    commands = {
        "ours": [*unmask_command(), "fill-mask", str(model), TEXT],
        "AutoModelForMaskedLM": [sys.executable, "-c", BY_MODEL, str(model), TEXT],
        "pipeline": [sys.executable, "-c", BY_PIPELINE, str(model), TEXT],
    }
    answers = {name: run(command)[1].splitlines()[0] for name, command in commands.items()}
    best = {name: answer.split()[0] for name, answer in answers.items() if name != "ours"}
    best["ours"] = str(json.loads(answers["ours"])["token"])
    if len(set(best.values())) != 1:
        raise RuntimeError(f"the first answers differ: {answers}")
    seconds = interleave(measures_of(commands), rounds)
    peer = f"transformers {version('transformers')}"
    return [
        compare("first answer of fill-mask", seconds["ours"], f"{peer}, {way}", seconds[way], at_least)
        for way, at_least in (("AutoModelForMaskedLM", AT_LEAST), ("pipeline", None))
    ]


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=9)
    given = words.parse_args()
    on = machine(num_cores())
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        num_parameters = make_model(directory)
        rows = [measure_help(given.rounds), *measure_first_answer(directory / "model", given.rounds)]
    notes = [f"a random model of {num_parameters:,} parameters; all sides give the same first answer"]
    report("From the start of the process", rows, on, notes, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
