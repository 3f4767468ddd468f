"""Claim: a server that answers at least four times the requests a second of infinity-emb, with the same model on the
same cores, with a lower 99th percentile; and HTTP, queue and tokenization take under 15 % of the model's own time.

    python benchmarks/serve.py --peer-python PYTHON        PYTHON of an environment with infinity-emb[torch,server]

The model is a BERT of six layers of 384 with random weights; a request asks for the embedding of one sentence (MRPC's
where UNMASK_DATA is set, else SNLI's of samples/). 1, 8 and 32 clients each send a request when the last one is
answered, in alternating rounds. Last, 128 tokens by one client, beside the same call without a server.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from urllib.error import URLError

from measure import REPOSITORY, SAMPLE_TEXT, Row, machine, num_cores, parser, report

CLIENTS = (1, 8, 32)
AT_LEAST = 4.0
MOST_OVERHEAD = 0.15
LENGTH = 128


def make_model(directory: Path) -> Path:
    """Saves the model with a tokenizer of the sample books."""
    import torch

    from unmask import TokenizerSettings, load_tokenizer, save_model, train_tokenizer
    from unmask.models.bert import BertEncoder
    from unmask.models.settings import ModelSettings

    train_tokenizer([SAMPLE_TEXT], directory / "tokenizer", TokenizerSettings(vocab_size=8192))
    tokenizer = load_tokenizer(directory / "tokenizer")
    torch.manual_seed(0)
    sizes = ModelSettings(preset="mini", hidden_size=384, num_hidden_layers=6, num_attention_heads=6)
    save_model(directory / "model", BertEncoder(sizes.resolve(tokenizer.vocab_size), pooler=True))
    tokenizer.save(directory / "model")
    return directory / "model"


def sentences() -> list[str]:
    """The first of each pair."""
    if data := os.environ.get("UNMASK_DATA"):
        with (Path(data) / "tasks" / "mrpc" / "dev.tsv").open(encoding="utf-8-sig") as file:
            return [row["#1 String"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    with (REPOSITORY / "samples" / "tasks" / "snli" / "dev.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["premise"] for line in file]


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[int]:
    """A server in a process of its own, from when it answers."""
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        try:
            for _ in range(600):
                if process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} ended: {log.read()[-2000:]}")
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                    break
                except (URLError, OSError):
                    time.sleep(0.2)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Load:
    """What a server did under a load: requests a second, and milliseconds of a request."""

    per_second: float
    p50: float
    p99: float


class Connection:
    """The least of HTTP that a load needs: one request after another on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader, self._writer, self._path = reader, writer, path

    async def post(self, body: bytes) -> bytes:
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        told = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(told.split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if not told.startswith(b"http/1.1 200"):
            raise RuntimeError(answer.decode())
        return answer


async def closed_loop(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Clients that each send a request when the last is answered."""
    waiting, times = cycle(bodies), list[float]()
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        connection = Connection(reader, writer, path)
        while time.perf_counter() < end:
            began = time.perf_counter()
            await connection.post(next(waiting))
            times.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - began
    times.sort()
    return Load(len(times) / took, 1000 * median(times), 1000 * times[int(0.99 * (len(times) - 1))])


def alone(model: Path, text: str, seconds: float) -> float:
    """Milliseconds of the same embedding without a server, its tokens being there already."""
    from unmask.serving.uses import Reading, VectorUse

    use = VectorUse(model, "fp32")
    work = use.read([text], Reading(normalise=True))
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        use.compute(Reading(normalise=True), [work.payload])
        times.append(time.perf_counter() - began)
    return 1000 * median(times)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--peer-python", type=Path, help="where infinity-emb is installed; left out: it is not measured")
    words.add_argument("--seconds", type=float, default=15, help="of a measurement")
    words.add_argument("--rounds", type=int, default=3)
    given = words.parse_args()
    rows, notes = [], []
    with TemporaryDirectory() as place:
        model = make_model(Path(place))
        bodies = [json.dumps({"model": "model", "input": [text]}).encode() for text in sentences()]
        ports = {"unmask": free_port(), "infinity": free_port()}
        commands = {
            "unmask": [sys.executable, "-m", "unmask", "serve", f"model={model}", "--port", str(ports["unmask"])]
        }
        paths = {"unmask": "/v1/embeddings", "infinity": "/embeddings"}
        if given.peer_python is not None:
            commands["infinity"] = [
                *(str(given.peer_python.parent / "infinity_emb"), "v2", "--model-id", str(model)),
                *("--served-model-name", "model", "--port", str(ports["infinity"]), "--engine", "torch"),
                *("--device", "cpu", "--dtype", "float32", "--no-bettertransformer"),
            ]
        loads: dict[tuple[str, int], list[Load]] = {}
        for number in range(given.rounds):
            for name in list(commands)[:: 1 if number % 2 == 0 else -1]:
                with serving(commands[name], ports[name]) as port:
                    asyncio.run(closed_loop(port, paths[name], bodies, 8, 3))  # warm
                    for clients in CLIENTS:
                        load = asyncio.run(closed_loop(port, paths[name], bodies, clients, given.seconds))
                        loads.setdefault((name, clients), []).append(load)
                        print(f"round {number + 1}, {name}, {clients} clients: {load}", file=sys.stderr)
        for clients in CLIENTS:
            ours, theirs = loads["unmask", clients], loads.get(("infinity", clients), [])
            rows += _rows(clients, ours, theirs)
        text = " ".join(sentences())[:4000]
        rows.append(_overhead(model, text, commands["unmask"], ports["unmask"], given.seconds))
    report("serving", rows, machine(num_cores()), notes, given.json)


def _rows(clients: int, ours: Sequence[Load], theirs: Sequence[Load]) -> list[Row]:
    rates, slowest = [median(load.per_second for load in ours)], [median(load.p99 for load in ours)]
    what = f"{clients} client{'s' * (clients > 1)}"
    if not theirs:
        return [Row(f"{what}: requests", rates[0], unit="/s"), Row(f"{what}: 99th percentile", slowest[0], unit="ms")]
    ratios = [its.per_second / other.per_second for its, other in zip(ours, theirs, strict=True)]
    tails = [other.p99 / its.p99 for its, other in zip(ours, theirs, strict=True)]
    rates.append(median(load.per_second for load in theirs))
    slowest.append(median(load.p99 for load in theirs))
    ratio, tail = rates[0] / rates[1], slowest[1] / slowest[0]
    peer = "infinity-emb 0.0.78"
    return [
        Row(f"{what}: requests", rates[0], peer, rates[1], "/s", ratio, (min(ratios), max(ratios)),
            f"at least {AT_LEAST:.2f}x", ratio >= AT_LEAST),
        Row(f"{what}: 99th percentile", slowest[0], peer, slowest[1], "ms", tail, (min(tails), max(tails)),
            "over 1.00x", tail > 1),
    ]  # fmt: skip


def _overhead(model: Path, text: str, command: Sequence[str], port: int, seconds: float) -> Row:
    """One client and 128 tokens: what comes on top of the model's time."""
    from unmask import load_tokenizer

    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode_batch([text])[0][: LENGTH - 2]
    text = tokenizer.decode(ids)
    bare = alone(model, text, seconds)
    with serving(command, port):
        body = json.dumps({"model": "model", "input": [text]}).encode()
        asyncio.run(closed_loop(port, "/v1/embeddings", [body], 1, 2))
        served = asyncio.run(closed_loop(port, "/v1/embeddings", [body], 1, seconds))
    overhead = served.p50 / bare - 1
    what = f"one request of {len(ids) + 2} tokens, {overhead:.0%} over the model alone"
    return Row(what, served.p50, "the model alone", bare, "ms", None, None, "under 15 %", overhead < MOST_OVERHEAD)


if __name__ == "__main__":
    main()
