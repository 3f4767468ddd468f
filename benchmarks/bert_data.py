"""Claim: `unmask prepare` turns text into what a run trains from at 15 times the rate or more, in unique tokens per
second on one core, of the logic of BERT's `create_pretraining_data.py` at one copy, and 60 times at its default ten.

The peer, `peers/create_pretraining_data.py`, is that script's algorithm rewritten. It is given one sentence per line,
split by our rules; neither that nor its start is timed. Ours begins at a `.jsonl.zst` file and ends with a store every
byte of which has been read again and verified. Both have one core and the same vocabulary; every sentence of the peer's
text gets the same ids from both, or the exit code is 1. The peer is slow, and is given only the first part of the text.

The two do different work before training: the peer's files hold pairs and masks, while ours are drawn when a batch is
made. So our rate including the batches of one epoch, and of ten, is shown beside the claim. The peer at one copy shows
the same masks in every epoch; ten epochs of ours are all different.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from measure import Row, compare, in_own_process, interleave, machine, parser, report, use_cores
from peers.create_pretraining_data import (
    LENGTH,
    MASKED_PROB,
    SEED,
    SHORT_PROB,
    Crc32c,
    create_pretraining_data,
    example_messages,
    read_vocab,
    tokenize,
)
from prepare import source, write_part

if TYPE_CHECKING:
    from unmask import TokenStore

AT_LEAST = {1: 15.0, 10: 60.0}
"""Copies that the peer makes -> by what factor we claim to be faster."""
BATCH_SIZE = 32


@dataclass(frozen=True)
class Done:
    """What our side did.

    Attributes:
        store_seconds: from the compressed file to a verified store.
        epoch_seconds: for all batches of each epoch after that.
        tokens: in the store.
        bytes_out: the size of the store's files.
    """

    store_seconds: float
    epoch_seconds: list[float]
    tokens: int
    bytes_out: int


def build_ours(corpus: Path, tokenizer: Path, out: Path) -> Callable[[int], Done]:
    """Our side: a function that prepares the corpus, verifies the store, and makes the batches of some epochs."""
    use_cores(1)
    import torch

    from unmask import TokenStore, prepare

    torch.set_num_threads(1)

    def run(epochs: int) -> Done:
        began = time.perf_counter()
        prepare([corpus], tokenizer, out, workers=1)
        store = TokenStore(out)
        store.verify()
        ends = [time.perf_counter()]
        for epoch in range(epochs):
            make_batches(store, epoch)
            ends.append(time.perf_counter())
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        done = Done(ends[0] - began, [end - start for start, end in pairwise(ends)], store.num_tokens, size)
        shutil.rmtree(out)
        return done

    return run


def build_peer(text: Path, vocab_file: Path, out: Path) -> Callable[[int], tuple[float, int, int]]:
    """The peer's side: a function that makes some copies, and returns seconds, unique tokens, and bytes written."""
    use_cores(1)
    vocab, messages, checksum = read_vocab(vocab_file), example_messages(), Crc32c(longest=4096)

    def run(copies: int) -> tuple[float, int, int]:
        began = time.perf_counter()
        tokens = create_pretraining_data(text, vocab, out, copies, messages, checksum)
        return time.perf_counter() - began, tokens, out.stat().st_size

    return run


def make_batches(store: TokenStore, epoch: int) -> None:
    """Makes the masked segment pairs of one epoch by the peer's settings, as `unmask pretrain` does."""
    from unmask import load_tokenizer
    from unmask.objectives.masked_lm import MaskedLM
    from unmask.objectives.settings import MaskedLMSettings
    from unmask.packing.formats import open_planner
    from unmask.packing.loader import Position, SequenceLoader
    from unmask.packing.settings import PackingSettings
    from unmask.packing.split import Split
    from unmask.packing.templates import SequenceTemplate

    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = MaskedLM(MaskedLMSettings(target_prob=MASKED_PROB), tokenizer.vocabulary)
    packing = PackingSettings(max_length=LENGTH, short_sequence_prob=SHORT_PROB)
    split, template = Split(store, held_out=0, is_held_out=False), SequenceTemplate(tokenizer.template)
    planner = open_planner(split, packing, "nsp", template, SEED)
    loader = SequenceLoader(planner, template, BATCH_SIZE, BATCH_SIZE, label_column="next_sentence_label")
    for step in loader.steps(Position(epoch)):
        for batch in step.batches:
            objective.prepare(batch)
        if step.epochs >= epoch + 1:
            return


def make_vocabulary(corpus: Path, directory: Path) -> None:
    """Trains a tokenizer and keeps only its vocabulary: a bare `vocab.txt` gets Google's normaliser, as the peer's."""
    from unmask import train_tokenizer

    trained = directory.with_name("trained")
    train_tokenizer([corpus], trained)
    directory.mkdir()
    shutil.copy(trained / "vocab.txt", directory)


def write_sentences(corpus: Path, megabytes: float, path: Path) -> float:
    """Writes the first documents of a corpus, one sentence per line; returns their megabytes of text."""
    from unmask.corpus.documents import CorpusCounts
    from unmask.corpus.pipeline import read_documents
    from unmask.corpus.sentences.rules import split_sentences

    size = 0
    with open(path, "w", encoding="utf-8") as file:
        for document in read_documents([corpus], CorpusCounts()):
            for start, end in split_sentences(document.text):
                file.write(" ".join(document.text[start:end].split()) + "\n")
            file.write("\n")
            size += len(document.text.encode())
            if size >= megabytes * 1e6:
                break
    return size / 1e6


def different_ids(sentences: Path, tokenizer: Path) -> tuple[int, list[str]]:
    """The number of sentences, and those to which the two tokenizers give different ids."""
    from unmask import load_tokenizer

    vocab = read_vocab(tokenizer / "vocab.txt")
    lines = [line for line in sentences.read_text("utf-8").split("\n") if line]
    pairs = zip(lines, load_tokenizer(tokenizer).encode_batch(lines), strict=True)
    return len(lines), [line for line, ids in pairs if [vocab[piece] for piece in tokenize(line, vocab)] != ids]


def rate_row(what: str, ours: Sequence[float], peer: str, theirs: Sequence[float], at_least: float | None) -> Row:
    """The row of two lists of microseconds per token, one entry per round."""
    return replace(compare(what, ours, peer, theirs, at_least, megabytes=1), unit="M tokens/s")


def measure(corpus: Path, sentences: Path, tokenizer: Path, rounds: int) -> tuple[list[Row], Done, dict[int, int]]:
    """The rows of rates, what our side did last, and the bytes that the peer wrote, by its number of copies."""
    peer = f"create_pretraining_data.py's logic, protobuf {version('protobuf')}"
    done: list[Done] = []
    bytes_out: dict[int, int] = {}
    with (
        in_own_process(build_ours, corpus, tokenizer, corpus.with_name("store")) as ours,
        in_own_process(build_peer, sentences, tokenizer / "vocab.txt", corpus.with_name("tfrecord")) as theirs,
    ):

        def time_ours() -> float:
            done.append(ours(max(AT_LEAST)))
            return done[-1].store_seconds / done[-1].tokens * 1e6

        def time_theirs(copies: int) -> float:
            seconds, tokens, bytes_out[copies] = theirs(copies)
            return float(seconds / tokens * 1e6)

        per_million = {f"a million tokens by the peer, copies {n}": partial(time_theirs, n) for n in AT_LEAST}
        to_store, *to_files = interleave({"a million tokens by us": time_ours, **per_million}, rounds).values()
    rows = []
    for (copies, at_least), its in zip(AT_LEAST.items(), to_files, strict=True):
        with_batches = [(each.store_seconds + sum(each.epoch_seconds[:copies])) / each.tokens * 1e6 for each in done]
        rows += [
            rate_row(f"text to disk; the peer's copies: {copies}", to_store, peer, its, at_least),
            rate_row(f"text to disk, then our batches of epochs: {copies}", with_batches, peer, its, None),
        ]
    return rows, done[-1], bytes_out


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--megabytes", type=float, default=60, help="of text for ours")
    words.add_argument("--peer-megabytes", type=float, default=3, help="for the peer: the first part of the same text")
    words.add_argument("--rounds", type=int, default=3)
    given = words.parse_args()
    on = machine(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        corpus, sentences = Path(folder, "text.jsonl.zst"), Path(folder, "sentences.txt")
        tokenizer = Path(folder, "tokenizer")
        megabytes = write_part(corpus, "English", given.megabytes)
        make_vocabulary(corpus, tokenizer)
        peer_megabytes = write_sentences(corpus, given.peer_megabytes, sentences)
        num_sentences, different = different_ids(sentences, tokenizer)
        rows, done, bytes_out = measure(corpus, sentences, tokenizer, given.rounds)
    rows += [
        Row(
            f"bytes written per byte of text; the peer's copies: {copies}",
            ours=done.bytes_out / megabytes / 1e6,
            peer=rows[0].peer,
            peer_figure=size / peer_megabytes / 1e6,
        )
        for copies, size in sorted(bytes_out.items())
    ]
    rows.append(
        Row(
            f"sentences with other ids than the peer's, of {num_sentences:,}",
            ours=len(different),
            target="0",
            met=not different,
        )
    )
    notes = [
        f"text: {source('English').name}; ours {megabytes:.1f} MB, {done.tokens:,} tokens; the peer its first "
        f"{peer_megabytes:.1f} MB, one sentence a line",
        f"one epoch of {BATCH_SIZE} x {LENGTH} batches takes us {median(done.epoch_seconds):.2f} s beside "
        f"{done.store_seconds:.2f} s to the verified store; during training it runs beside the steps",
        *(f"other ids: {line}" for line in different[:3]),
    ]
    report("BERT's training data on one core, in unique tokens", rows, on, notes, given.json)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
