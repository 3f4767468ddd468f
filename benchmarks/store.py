"""Claim: a token store of any size opens in under 50 ms, and a batch of 32 masked segment pairs of 128 tokens is made
(planned, packed and masked) in under 5 ms on one core.

Opening reads the manifest and compares every file's size; checksums are compared when a file is first used, which does
not count here. The stores have real manifests and sparse files: 1, 100 and 2,000 shards, the last of 58 billion tokens.
The peer is numpy's `memmap` on each of the same files, as training scripts with tokens in flat files do when they
start; it checks nothing. Files are in the system's cache.

A batch is made by the loader and the objective of `unmask pretrain`. A block of up to 4,096 documents is planned before
its first batch, so the mean of an epoch, which includes planning, is shown beside the median and the 95th percentile.
The peer is `transformers`' DataCollatorForLanguageModeling on the same sequences. It pads and masks lists of ids, and
is told which are special; it reads no store and plans no pairs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from measure import Row, in_own_process, machine, parser, report, use_cores
from prepare import source, write_part

if TYPE_CHECKING:
    from unmask import TokenStore
    from unmask.batch import Batch

MOST_OPENING_MS = 50.0
MOST_BATCH_MS = 5.0
NUM_SHARDS = (1, 100, 2000)
SHARD = {"documents": 8_000, "sentences": 1_000_000, "tokens": 29_000_000}
"""Roughly what 128 MiB of English Wikipedia give."""
LENGTH, BATCH_SIZE, SEED = 128, 32, 0
Times = dict[str, list[float]]
"""Milliseconds, by what took them."""


def make_sparse_store(template: Path, directory: Path, num_shards: int) -> int:
    """Makes a store of `num_shards` shards, as opening sees it, from the manifest of a real one; returns its tokens.

    Its files have the right size and hold zeros, which take no disk space.
    """
    from unmask.store.manifest import DOCUMENT, SENTENCE, part_name, token_dtype

    manifest = json.loads((template / "manifest.json").read_text("utf-8"))
    widths = {"documents": DOCUMENT, "sentences": SENTENCE, "tokens": token_dtype(manifest["vocab_size"])}
    sizes = {part: SHARD[part] * np.dtype(width).itemsize for part, width in widths.items()}
    checksum = manifest["files"][part_name("tokens", 0)]["sha256"]
    files = {
        part_name(part, number): {"bytes": size, "sha256": checksum}
        for number in range(num_shards)
        for part, size in sizes.items()
    }
    directory.mkdir()
    for name, described in files.items():
        with open(directory / name, "wb") as file:
            file.truncate(described["bytes"])
    shard = manifest["shards"][0] | SHARD
    totals = {name: count * num_shards for name, count in SHARD.items()}
    (directory / "manifest.json").write_text(
        json.dumps({**manifest, **totals, "shards": [shard] * num_shards, "files": files}, indent=2), "utf-8"
    )
    return totals["tokens"]


def build_opening(directories: Sequence[Path]) -> Callable[[int], list[Times]]:
    """A function that opens each store a number of times, and maps its files with numpy."""
    use_cores(1)
    from unmask import TokenStore

    def by_numpy(directory: Path) -> list[Any]:
        return [np.memmap(path, dtype=np.uint8, mode="r") for path in sorted(directory.glob("*.bin"))]

    def run(times: int) -> list[Times]:
        ways: dict[str, Callable[[Path], object]] = {"ours": TokenStore, "numpy": by_numpy}
        taken: list[Times] = [{way: [] for way in ways} for _ in directories]
        for _ in range(times):
            for directory, its in zip(directories, taken, strict=True):
                for way, open_store in ways.items():
                    began = time.perf_counter()
                    opened = open_store(directory)
                    its[way].append((time.perf_counter() - began) * 1e3)
                    del opened
        return taken

    return run


def build_batches(directory: Path) -> Callable[[int], Times]:
    """A function that makes our batches of one epoch, and a given number of them with the peer."""
    use_cores(1)
    import torch

    from unmask import TokenStore

    torch.set_num_threads(1)
    store = TokenStore(directory)
    store.token_counts()  # verifies and touches all files, as the start of a run does
    collate = load_peer(store)

    def run(num_peer_batches: int) -> Times:
        objective, loader = make_loader(store)
        taken: Times = {"ours": [], "peer": []}
        steps = loader.steps()
        while True:
            began = time.perf_counter()
            step = next(steps)
            prepared = [objective.prepare(batch) for batch in step.batches]
            taken["ours"].append((time.perf_counter() - began) * 1e3)
            if len(taken["peer"]) < num_peer_batches:
                sequences = as_lists(step.batches[0])
                began = time.perf_counter()
                collate(sequences)
                taken["peer"].append((time.perf_counter() - began) * 1e3)
            del prepared
            if step.epochs >= 1:
                return taken

    return run


def make_loader(store: TokenStore) -> tuple[Any, Any]:
    """The objective and the loader of a pre-training run with the default settings."""
    from unmask import load_tokenizer
    from unmask.objectives.masked_lm import MaskedLM
    from unmask.objectives.settings import MaskedLMSettings
    from unmask.packing.formats import open_planner
    from unmask.packing.loader import SequenceLoader
    from unmask.packing.settings import PackingSettings
    from unmask.packing.split import Split
    from unmask.packing.templates import SequenceTemplate

    tokenizer = load_tokenizer(store.tokenizer_directory)
    split, packing = Split(store, held_out=0.01, is_held_out=False), PackingSettings(max_length=LENGTH)
    template = SequenceTemplate(tokenizer.template)
    planner = open_planner(split, packing, "nsp", template, SEED)
    loader = SequenceLoader(planner, template, BATCH_SIZE, BATCH_SIZE, label_column="next_sentence_label")
    return MaskedLM(MaskedLMSettings(), tokenizer.vocabulary), loader


def load_peer(store: TokenStore) -> Callable[[list[dict[str, list[int]]]], Any]:
    """The peer's collator."""
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    tokenizer = AutoTokenizer.from_pretrained(store.tokenizer_directory)
    collate: Callable[[list[dict[str, list[int]]]], Any] = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=0.15
    )
    return collate


def as_lists(batch: Batch) -> list[dict[str, list[int]]]:
    """The sequences of a batch as the peer takes them."""
    columns = {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "special_tokens_mask": batch.columns["special_tokens_mask"].long(),
    }
    return [
        {name: column[start:end].tolist() for name, column in columns.items()}
        for start, end in pairwise(batch.bounds.tolist())
    ]


def time_row(what: str, ours: Sequence[float], peer: str, theirs: Sequence[float], most: float | None) -> Row:
    """The row of two lists of milliseconds: medians, with a spread from our 95th and 5th percentiles."""
    ratios = np.percentile(theirs, 50) / np.percentile(ours, [95, 50, 5])
    return Row(
        what,
        ours=float(np.median(ours)),
        peer=peer,
        peer_figure=float(np.median(theirs)),
        unit="ms",
        ratio=float(ratios[1]),
        spread=(float(ratios[0]), float(ratios[2])),
        target="" if most is None else f"under {most:g} ms",
        met=None if most is None else bool(np.median(ours) < most),
    )


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--megabytes", type=float, default=20, help="of text in the store that batches are made from")
    words.add_argument("--openings", type=int, default=30, help="of each store")
    words.add_argument("--peer-batches", type=int, default=300)
    given = words.parse_args()
    on = machine(threads=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "store"
        make_store(folder, given.megabytes, store)
        sparse = [folder / f"shards-{number}" for number in NUM_SHARDS]
        num_tokens = [make_sparse_store(store, path, number) for path, number in zip(sparse, NUM_SHARDS, strict=True)]
        with in_own_process(build_opening, sparse) as open_stores:
            openings = open_stores(given.openings)
        with in_own_process(build_batches, store) as make_batches:
            batches = make_batches(given.peer_batches)
    numpy, collator = f"numpy {np.__version__} memmap", f"transformers {version('transformers')} collator"
    rows = [
        time_row(f"opening, {shards:,} shards, {tokens:,} tokens", its["ours"], numpy, its["numpy"], MOST_OPENING_MS)
        for shards, tokens, its in zip(NUM_SHARDS, num_tokens, openings, strict=True)
    ]
    ours = batches["ours"]
    rows.append(time_row("batch, median", ours, collator, batches["peer"], MOST_BATCH_MS))
    for what, figure in (("95th percentile", np.percentile(ours, 95)), ("mean, with planning", np.mean(ours))):
        rows.append(
            Row(
                f"batch, {what}",
                float(figure),
                unit="ms",
                target=f"under {MOST_BATCH_MS:g} ms",
                met=bool(figure < MOST_BATCH_MS),
            )
        )
    notes = [
        f"spread: the peer's median over our 95th and 5th percentile; {given.openings} openings of each store",
        f"{len(ours):,} batches, one epoch of {given.megabytes:g} MB of {source('English').name}; the first, before "
        f"which its block is planned, took {ours[0]:.0f} ms",
    ]
    report("Opening a store and making batches, on one core", rows, on, notes, given.json)
    return 0


def make_store(folder: Path, megabytes: float, store: Path) -> None:
    """Makes a real store of the first documents of the text."""
    from unmask import prepare, train_tokenizer

    corpus = folder / "text.jsonl.zst"
    write_part(corpus, "English", megabytes)
    train_tokenizer([corpus], folder / "tokenizer")
    prepare([corpus], folder / "tokenizer", store)


if __name__ == "__main__":
    sys.exit(main())
