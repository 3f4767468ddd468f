"""Claim: whatever is masked (tokens, whole words, spans, entities, noun phrases), the masks of 64 sequences of 512
tokens are drawn, and labels and boundaries made, in under 10 ms on one core.

What is timed is the objective's `prepare` on a packed batch, in processor time: over a few milliseconds, wall time says
more about what else runs on the machine. The peer is what `transformers` has: the masking of its
DataCollatorForLanguageModeling, of tokens, or of whole words for everything made of words, since it has no spans; on
the same sequences as padded tensors, so its padding is not timed. It draws each token by itself, and of whole words it
makes only `[MASK]`; ours keeps to a budget per sequence, and draws the same masks whatever batch a sequence is in.
Both processes keep the memory that they free, as `unmask pretrain` does on the CPU: without, up to a third of the time
is the system's, clearing pages, more or less of it by what else happens to lie on the heap.

The sequences are text of `samples/text`, all full, by a WordPiece tokenizer of 30,522 entries trained on it. No
entities are marked in it: instead every run of two words after ten others is an annotation.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from measure import SAMPLE_TEXT, Row, compare, in_own_process, interleave, machine, parser, report, use_cores

VOCAB_SIZE, NUM_SEQUENCES, LENGTH = 30522, 64, 512
MOST_MS = 10.0
SCHEMES: dict[str, dict[str, Any]] = {
    "token": {"masking": "token"},
    "whole word": {"masking": "whole_word"},
    "span": {"masking": "span"},
    "span with boundaries": {"masking": "span", "span_boundary": True},
    "entity": {"masking": "entity"},
    "noun phrase": {"masking": "noun_phrase"},
}
"""The settings of each objective that is measured, by name."""

Rows = list[list[tuple[int, int, int]]]
"""For every token of every sequence its id, and its start and end in the text, by which the peer recognises words."""


def settle() -> None:
    """Makes this process use one core, one thread, and keep the memory that it frees."""
    import torch

    from unmask.training.device import keep_freed_memory

    use_cores(1)
    torch.set_num_threads(1)
    keep_freed_memory()


def make_sequences(folder: Path) -> Rows:
    """Trains the tokenizer, and cuts the text's tokens into full sequences."""
    import json

    from transformers import AutoTokenizer

    from unmask import TokenizerSettings, train_tokenizer

    train_tokenizer([SAMPLE_TEXT], folder / "tokenizer", TokenizerSettings(vocab_size=VOCAB_SIZE))
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    documents = [json.loads(line)["text"] for line in SAMPLE_TEXT.read_text("utf-8").splitlines()]

    def encode(text: str) -> list[tuple[int, int, int]]:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(token, *span) for token, span in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)]

    tokens = cycle(chain.from_iterable(encode(text) for text in documents))
    first, last = [(tokenizer.cls_token_id, 0, 0)], [(tokenizer.sep_token_id, 0, 0)]
    return [first + list(islice(tokens, LENGTH - 2)) + last for _ in range(NUM_SEQUENCES)]


def build_ours(folder: Path, sequences: Rows) -> Callable[[tuple[str, int]], float]:
    """Our side: a function that masks by a scheme a number of times, and returns the median milliseconds."""
    settle()
    import torch

    from unmask import load_tokenizer
    from unmask.batch import pack
    from unmask.objectives.masked_lm import MaskedLM
    from unmask.objectives.settings import MaskedLMSettings

    vocabulary = load_tokenizer(folder / "tokenizer").vocabulary
    batch = pack([[token for token, *_ in row] for row in sequences], keys=list(range(NUM_SEQUENCES)))
    special = torch.isin(batch.input_ids, torch.tensor(vocabulary.special_ids))
    words = torch.cumsum(~torch.from_numpy(vocabulary.continuation)[batch.input_ids], 0)
    annotation = torch.where((words % 12 < 2) & ~special, words // 12 + 1, 0)
    batch = batch.with_columns(special_tokens_mask=special, entity=annotation, noun_phrase=annotation)
    objectives = {
        name: MaskedLM(MaskedLMSettings(sentence_objective="none", **settings), vocabulary)
        for name, settings in SCHEMES.items()
    }

    def run(asked: tuple[str, int]) -> float:
        name, times = asked
        return time_median(partial(objectives[name].prepare, batch), times)

    return run


def build_theirs(folder: Path, sequences: Rows) -> Callable[[tuple[str, int]], float]:
    """The same by the peer, which knows only the schemes `token` and `whole word`."""
    settle()
    import warnings

    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    ids, starts, ends = torch.tensor(sequences).unbind(-1)  # (sequences, tokens) each
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids)).long()
    offsets = torch.stack([starts, ends], -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about whole words, which all become [MASK]
        collators = {
            "token": DataCollatorForLanguageModeling(tokenizer),
            "whole word": DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True),
        }

    def run(asked: tuple[str, int]) -> float:
        name, times = asked

        def mask() -> object:
            return collators[name].torch_mask_tokens(
                ids.clone(), special_tokens_mask=special, offset_mapping=offsets if name == "whole word" else None
            )

        return time_median(mask, times)

    return run


def time_median(work: Callable[[], object], times: int) -> float:
    """The median milliseconds of processor time that `work` takes."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e3)
    return median(taken)


def measure(folder: Path, rounds: int, times: int) -> list[Row]:
    """A row per scheme; a round takes the median of some batches."""
    sequences = make_sequences(folder)
    with (
        in_own_process(build_ours, folder, sequences) as ours,
        in_own_process(build_theirs, folder, sequences) as theirs,
    ):
        sides = {name: partial(ours, (name, times)) for name in SCHEMES}
        sides |= {f"peer's {name}": partial(theirs, (name, times)) for name in ("token", "whole word")}
        for side in sides.values():
            side()  # the first calls allocate
        taken = interleave(sides, rounds, "ms")
    rows = []
    for name in SCHEMES:
        known = "token" if name == "token" else "whole word"
        peer = f"transformers {version('transformers')}, {known}s"
        row = compare(name, taken[name], peer, taken[f"peer's {known}"])
        rows.append(replace(row, unit="ms", target=f"under {MOST_MS:g} ms", met=median(taken[name]) < MOST_MS))
    return rows


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=15)
    words.add_argument("--batches", type=int, default=20, help="in a round, of which the median counts")
    given = words.parse_args()
    on = machine(threads=1)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), given.rounds, given.batches)
    notes = [f"{NUM_SEQUENCES} x {LENGTH} tokens; {given.rounds} rounds of {given.batches} batches"]
    report("Masks of a batch, on one core", rows, on, notes, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
