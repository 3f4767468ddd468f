"""Claim: `unmask prepare`, from compressed file to verified store, runs on one core at 3 times the rate of the
`tokenizers` library's own `encode_batch_fast` on one thread, with equal ids; on two cores at 1.8 times its rate on one;
in under 1.5 GiB of memory that does not grow with the corpus, and 2 bytes a token.

Ours is timed end to end: reading, cleaning, sentences, encoding, writing, checksums, reading the store again to verify
it, and starting the workers. It remembers nothing from one round to the next. The library is timed on encoding alone:
its documents are in memory, read and cleaned, and their ids are counted and thrown away. Each side has as many cores
and threads as we have workers.

The text is part of the English and of the Korean Wikipedia in UNMASK_DATA; without that folder, the sample text,
repeated.
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
from contextlib import ExitStack
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median

from measure import SAMPLE_TEXT, Row, compare, in_own_process, interleave, machine, num_cores, parser, report, use_cores

AT_LEAST = 3.0
TWO_WORKERS_AT_LEAST = 1.8
MOST_MEMORY_GIB = 1.5
BYTES_PER_TOKEN = 2.0
LANGUAGES = {
    "English": (Path("corpora", "enwiki-2015-core.jsonl.zst"), SAMPLE_TEXT),
    "Korean": (Path("corpora", "kowiki-2022.jsonl.zst"), SAMPLE_TEXT.with_name("ko-wiki.jsonl")),
}
BATCH = 256
"""How many documents the library is given at once: its encodings take many times the memory of the text."""
SAMPLING_S = 0.05


def source(language: str) -> Path:
    """Where the text of a language comes from."""
    wikipedia, sample = LANGUAGES[language]
    named = os.environ.get("UNMASK_DATA")
    return Path(named, wikipedia) if named and Path(named, wikipedia).is_file() else sample


def write_part(path: Path, language: str, megabytes: float) -> float:
    """Writes the first documents of a language, repeated if there are too few; returns the megabytes of text."""
    import zstandard

    from unmask.io.reading import open_input

    def lines() -> Iterator[bytes]:
        for file in cycle([source(language)]):
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


def build_ours(corpus: Path, tokenizer: Path, workers: int) -> Callable[[str], tuple[float, int]]:
    """Our side: a function that prepares the corpus at a path, and returns seconds and tokens."""
    use_cores(workers)
    from unmask import prepare

    def run(out: str) -> tuple[float, int]:
        began = time.perf_counter()
        store = prepare([corpus], tokenizer, out, workers=workers)
        store.verify()
        seconds = time.perf_counter() - began
        shutil.rmtree(out)
        return seconds, store.num_tokens

    return run


def build_theirs(corpus: Path, tokenizer: Path, threads: int) -> Callable[[str], tuple[float, int]]:
    """The library's side: a function that encodes the documents with the named method."""
    use_cores(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    from tokenizers import Tokenizer

    from unmask.corpus.documents import CorpusCounts
    from unmask.corpus.pipeline import read_documents

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


def count_differences(corpus: Path, tokenizer: Path, out: Path) -> tuple[int, int]:
    """How many documents of our store have ids other than the library's for their sentences; and of how many."""
    from tokenizers import Tokenizer

    from unmask import prepare
    from unmask.corpus.documents import CorpusCounts
    from unmask.corpus.pipeline import read_documents
    from unmask.corpus.sentences.rules import split_sentences

    store = prepare([corpus], tokenizer, out)
    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    backend.encode_special_tokens = True
    different = number = 0
    for document in read_documents([corpus], CorpusCounts()):
        sentences = [document.text[start:end] for start, end in split_sentences(document.text)]
        encoded = backend.encode_batch_fast(sentences, add_special_tokens=False)
        ids = [index for each in encoded for index in each.ids]
        if ids:
            different += store.document(number).tokens.tolist() != ids
            number += 1
    shutil.rmtree(out)
    return different + abs(number - store.num_documents), number


def measure_speed(language: str, corpus: Path, megabytes: float, tokenizer: Path, out: Path, rounds: int) -> list[Row]:
    """The rows of one language: one worker beside the library, and two workers beside one."""
    method = "encode_batch_fast"
    with ExitStack() as stack:
        one = stack.enter_context(in_own_process(build_ours, corpus, tokenizer, 1))
        library = stack.enter_context(in_own_process(build_theirs, corpus, tokenizer, 1))
        measures = {"one": lambda: one(str(out))[0], "library": lambda: library(method)[0]}
        if num_cores() > 1:
            two = stack.enter_context(in_own_process(build_ours, corpus, tokenizer, 2))
            measures["two"] = lambda: two(str(out))[0]
        seconds = interleave(measures, rounds)
        tokens = one(str(out))[1]
    name = f"tokenizers {version('tokenizers')} {method}"
    rows = [
        compare(
            f"{language}, 1 worker: {tokens / median(seconds['one']) / 1e6:.2f} M tokens/s",
            seconds["one"],
            name,
            seconds["library"],
            at_least=AT_LEAST,
            megabytes=megabytes,
        )
    ]
    if "two" not in seconds:
        return [*rows, Row(f"{language}, 2 workers: there is one core", ours=None)]
    row = compare(
        f"{language}, 2 workers",
        seconds["two"],
        "the same with 1 worker",
        seconds["one"],
        at_least=TWO_WORKERS_AT_LEAST,
        megabytes=megabytes,
    )
    return [*rows, row]


def peak_memory_gib(corpus: Path, tokenizer: Path, out: Path, workers: int) -> float:
    """The most memory that `unmask prepare` and its workers hold at once; shared pages count for each process."""
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
            f"peak memory, {what}", peak, unit="GiB", target=f"under {MOST_MEMORY_GIB} GiB", met=peak < MOST_MEMORY_GIB
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
    words.add_argument("--megabytes", type=float, default=100, help="of text that is timed, of each language")
    words.add_argument("--languages", nargs="*", choices=LANGUAGES, default=list(LANGUAGES))
    words.add_argument(
        "--memory-megabytes",
        type=float,
        nargs="*",
        default=[29, 289],
        help="of the English corpora whose memory is measured",
    )
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--tokenizer", type=Path, help="a tokenizer's directory; trained on the text where left out")
    given = words.parse_args()
    on = machine(num_cores())
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "store")
        corpus = Path(folder, "timed.jsonl.zst")
        for language in given.languages:
            megabytes = write_part(corpus, language, given.megabytes)
            tokenizer = given.tokenizer or train(corpus, Path(folder, language))
            different, number = count_differences(corpus, tokenizer, out)
            notes.append(
                f"{language}: {megabytes:.0f} MB of {source(language).name}; the library's ids for our sentences are "
                f"the store's in {number - different:,} of {number:,} documents"
            )
            rows.extend(measure_speed(language, corpus, megabytes, tokenizer, out, given.rounds))
        for size in given.memory_megabytes:
            path = Path(folder, "remembered.jsonl.zst")
            megabytes = write_part(path, "English", size)
            rows.extend(measure_memory(path, megabytes, tokenizer, out, min(2, num_cores())))
    report("Preparing text", rows, on, notes, given.json)
    return 0


def train(corpus: Path, out: Path) -> Path:
    """A WordPiece tokenizer of BERT's size for a corpus."""
    from unmask import train_tokenizer

    train_tokenizer([corpus], out)
    return out


if __name__ == "__main__":
    sys.exit(main())
