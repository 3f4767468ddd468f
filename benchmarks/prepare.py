"""Claim: `unmask prepare`, from compressed file to checksummed store, runs at 80 % or more of the rate of the
`tokenizers` library's own `encode_batch` on the same text and cores; it stays under 1.5 GiB of memory whatever the size
of the corpus, and a token takes 2 bytes.

Ours is timed end to end: reading, cleaning, sentences, encoding, writing, checksums, and starting the workers. The
library is timed on encoding alone: its documents are in memory, read and cleaned, and their ids are counted and thrown
away. It runs with its own parallelism, on as many threads and cores as we have workers. `encode_batch_fast`, which
leaves out offsets, stands beside it.

The text is a part of the English Wikipedia of UNMASK_DATA; without that folder, the sample text again and again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

from measure import SAMPLE_TEXT, Row, compare, in_own_process, interleave, machine, num_cores, parser, report

AT_LEAST = 0.8
MOST_MEMORY_GIB = 1.5
BYTES_PER_TOKEN = 2.0
WIKIPEDIA = Path("corpora", "enwiki-2015-core.jsonl.zst")
BATCH = 256
"""Documents that the library is given at once: its encodings take many times the memory of the text."""
SAMPLING_S = 0.05


def source() -> Path:
    """Where the text comes from."""
    named = os.environ.get("UNMASK_DATA")
    wikipedia = Path(named) / WIKIPEDIA if named else None
    return wikipedia if wikipedia and wikipedia.is_file() else SAMPLE_TEXT


def write_part(path: Path, megabytes: float) -> float:
    """Writes the first documents of the source, again from its start after its end; returns the megabytes of text."""
    import zstandard

    from unmask.input_files import open_input

    def lines() -> Iterator[bytes]:
        for file in cycle([source()]):
            with open_input(file) as stream:
                yield from stream

    size = 0
    with open(path, "wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as packed:
        for line in lines():
            packed.write(line)
            size += len(json.loads(line)["text"].encode())
            if size >= megabytes * 1e6:
                return size / 1e6
    raise AssertionError("the lines never end")


def use_cores(number: int) -> None:
    """Keeps this process and those it starts on some of the cores, and the library on as many threads."""
    os.environ["RAYON_NUM_THREADS"] = str(number)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])


def build_ours(corpus: Path, tokenizer: Path, workers: int) -> Callable[[str], tuple[float, int]]:
    """Our side: a function that prepares the corpus at a path, and returns seconds and tokens."""
    use_cores(workers)
    from unmask import prepare

    def run(out: str) -> tuple[float, int]:
        began = time.perf_counter()
        store = prepare([corpus], tokenizer, out, workers=workers)
        seconds = time.perf_counter() - began
        shutil.rmtree(out)
        return seconds, store.num_tokens

    return run


def build_theirs(corpus: Path, tokenizer: Path, threads: int) -> Callable[[str], tuple[float, int]]:
    """The library's side: a function that encodes the documents by the method named."""
    use_cores(threads)
    from tokenizers import Tokenizer

    from unmask.data.corpus import read_documents
    from unmask.data.documents import CorpusCounts

    texts = [document.text for document in read_documents([corpus], CorpusCounts())]
    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def run(method: str) -> tuple[float, int]:
        encode = getattr(backend, method)
        tokens = 0
        began = time.perf_counter()
        for start in range(0, len(texts), BATCH):
            tokens += sum(len(each.ids) for each in encode(texts[start : start + BATCH], add_special_tokens=False))
        return time.perf_counter() - began, tokens

    return run


def measure_speed(
    corpus: Path, megabytes: float, tokenizer: Path, out: Path, workers: int, rounds: int
) -> tuple[list[Row], str]:
    """The rows of one number of workers, and how many tokens each side saw."""
    arguments = (corpus, tokenizer, workers)
    methods = ("encode_batch", "encode_batch_fast")
    tokens: dict[str, int] = {}
    with in_own_process(build_ours, *arguments) as ours, in_own_process(build_theirs, *arguments) as theirs:

        def seconds_of(name: str, run: Callable[[str], tuple[float, int]], request: str) -> float:
            seconds, tokens[name] = run(request)
            return seconds

        measures = {"ours": partial(seconds_of, "ours", ours, str(out))}
        measures |= {method: partial(seconds_of, method, theirs, method) for method in methods}
        seconds = interleave(measures, rounds)
    rows = [
        compare(
            f"prepare, {workers} worker{'s' if workers > 1 else ''}",
            seconds["ours"],
            f"tokenizers {version('tokenizers')} {method}",
            seconds[method],
            at_least=AT_LEAST if method == "encode_batch" else None,
            megabytes=megabytes,
        )
        for method in methods
    ]
    return rows, f"{workers} workers: {tokens['ours']:,} tokens; the library {tokens['encode_batch']:,}"


def peak_memory_gib(corpus: Path, tokenizer: Path, out: Path, workers: int) -> float:
    """The most memory that `unmask prepare` and its workers hold at once; pages that they share count for each."""
    import psutil

    command = [sys.executable, "-m", "unmask", "prepare", corpus, "--tokenizer", tokenizer, "--out", out]
    process = psutil.Popen([*map(str, command), "--workers", str(workers)], stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        resident = 0
        for member in (process, *process.children(recursive=True)):
            try:
                resident += member.memory_info().rss
            except psutil.NoSuchProcess:  # it has just ended
                continue
        peak = max(peak, resident)
        time.sleep(SAMPLING_S)
    if process.returncode != 0:
        raise RuntimeError(f"unmask prepare ended with exit code {process.returncode}")
    return peak / 2**30


def measure_memory(corpus: Path, megabytes: float, tokenizer: Path, out: Path, workers: int) -> list[Row]:
    """The rows of one corpus: memory, and bytes of the tokens' files."""
    from unmask import TokenStore

    peak = peak_memory_gib(corpus, tokenizer, out, workers)
    store = TokenStore(out)
    token_bytes = sum(path.stat().st_size for path in out.glob("tokens-*.bin")) / store.num_tokens
    all_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / store.num_tokens
    shutil.rmtree(out)
    what = f"{workers} workers, {megabytes:.0f} MB"
    return [
        Row(
            f"peak memory, {what}",
            peak,
            unit="GiB",
            target=f"under {MOST_MEMORY_GIB} GiB",
            met=peak < MOST_MEMORY_GIB,
        ),
        Row(
            f"bytes a token, {what} (with sentences, documents, tokenizer: {all_bytes:.3f})",
            token_bytes,
            target=f"{BYTES_PER_TOKEN:g}",
            met=token_bytes == BYTES_PER_TOKEN,
        ),
    ]


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--megabytes", type=float, default=60, help="of text that is timed")
    words.add_argument(
        "--memory-megabytes", type=float, nargs="*", default=[10, 240], help="of the corpora whose memory is measured"
    )
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--tokenizer", type=Path, help="a tokenizer's directory; trained on the text where left out")
    given = words.parse_args()
    on = machine(num_cores())
    rows: list[Row] = []
    notes = [f"text: {source().name}{', repeated' if source() == SAMPLE_TEXT else ''}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "store")
        corpus = Path(folder, "timed.jsonl.zst")
        megabytes = write_part(corpus, given.megabytes)
        tokenizer = given.tokenizer
        if tokenizer is None:
            from unmask import train_tokenizer

            tokenizer = Path(folder, "tokenizer")
            train_tokenizer([corpus], tokenizer)
        for workers in (2, 1):
            if workers > num_cores():
                rows.append(Row(f"prepare, {workers} workers: there is one core", ours=None))
                continue
            its_rows, note = measure_speed(corpus, megabytes, tokenizer, out, workers, given.rounds)
            rows.extend(its_rows)
            notes.append(note)
        for size in given.memory_megabytes:
            path = Path(folder, "remembered.jsonl.zst")
            rows.extend(measure_memory(path, write_part(path, size), tokenizer, out, min(2, num_cores())))
    report(f"Preparing {megabytes:.0f} MB of text", rows, on, notes, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
