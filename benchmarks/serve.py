"""Claim: a server that answers at least four times the requests a second of infinity-emb, with the same model on the
same cores, with a lower 99th percentile; HTTP, queue and tokenization take under 15 % of the model's own time; one
request takes at most 1.1 times ONNX Runtime's time, called directly, and HTTP; and nothing breaks it: not twice the
load that it can bear, not ten thousand open connections.

    python benchmarks/serve.py --peer-python PYTHON        PYTHON of an environment with infinity-emb[torch,server]
    python benchmarks/serve.py --soak MINUTES              nothing but the load that is too much
    python benchmarks/serve.py --connections 10000         nothing but the open connections

The model is a BERT of six layers of 384 with random weights; a request asks for the embedding of one sentence (MRPC's
where UNMASK_DATA is set, else SNLI's of samples/). 1, 8 and 32 clients each send a request when the last one is
answered, in alternating rounds. Then requests arrive independently at 70 % of the rate that 32 clients reached: the
99th percentile is under four times the median. Then 128 tokens by one client, beside the same call without a server.
Last a classifier of that size, exported to ONNX: one client, beside a bare session of ONNX Runtime and `GET /health`.

The soak asks that classifier at twice its capacity: no answer is 5xx, the memory, as a mean of each tenth, grows by
less than 5 % after the first, a thousand answers are those of `predict`, and `/metrics` agrees with the count of what
was sent. Of the open connections each has sent half of a request's headers; eight clients ask beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from load import Load, closed_loop, figure, free_port, get, load_of, open_loop, post, serving
from measure import REPOSITORY, SAMPLE_TEXT, Row, machine, num_cores, parser, report

CLIENTS = (1, 8, 32)
AT_LEAST = 4.0
MOST_OVERHEAD = 0.15
LENGTH = 128
BUSY, MOST_TAIL = 0.7, 4.0
MOST_OF_ONNX = 1.1
MOST_GROWTH = 0.05
CHECKS, TOLERANCE = 1000, 2e-5
READINGS = 60
"""Of the memory, in each tenth of the soak: freed memory goes back every ten seconds, and comes and goes meanwhile."""
CLASSIFY = "/v1/models/model/classify"


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


def serve_command(model: Path, port: int, precision: str) -> list[str]:
    return [sys.executable, "-m", "unmask", "serve", f"model={model}", "--port", str(port), "--precision", precision]


def unmask(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "unmask", *map(str, words)], check=True, capture_output=True)


def version_of(package: str, python: Path) -> str:
    """Of a package in another environment."""
    words = [python, "-c", f"import importlib.metadata as found; print(found.version({package!r}))"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def make_classifier(directory: Path) -> Path:
    """Fine-tunes the model for one step, on labels that mean nothing."""
    rows = [f"{text}\t{number % 2}" for number, text in enumerate(sentences()[:64]) if "\t" not in text]
    (directory / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    data = [f"data.{part}={directory / 'rows.tsv'}" for part in ("train", "dev")]
    where = [f"init_from={make_model(directory)}", *data, "train.epochs=1", "train.batch_size=64"]
    unmask("finetune", "finetune/sst2", *where, "--out", directory / "run")
    return directory / "run"


def alone(model: Path, text: str, seconds: float, precision: str) -> float:
    """Milliseconds of the same embedding without a server, its tokens being there already."""
    from unmask.inference.opening import open_model
    from unmask.serving.engine.answerers import VectorAnswerer
    from unmask.serving.engine.asks import Reading

    answerer = VectorAnswerer(open_model(model, precision=precision))
    work = answerer.read([text], Reading(normalise=True))
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        answerer.compute(Reading(normalise=True), [work.payload])
        times.append(time.perf_counter() - began)
    return 1000 * median(times)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--peer-python", type=Path, help="where infinity-emb is installed; left out: it is not measured")
    words.add_argument("--seconds", type=float, default=15, help="of a measurement")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--precision", default="fp32", choices=["fp32", "bf16"], help="ours; the peer's is fp32")
    words.add_argument("--soak", type=float, metavar="MINUTES", help="ask for twice what can be answered, for so long")
    words.add_argument("--connections", type=int, metavar="N", help="ask beside so many open connections")
    given = words.parse_args()
    with TemporaryDirectory() as place:
        if given.soak is not None:
            rows, notes = soak(Path(place), given)
        elif given.connections is not None:
            rows, notes = crowd(Path(place), given)
        else:
            rows, notes = speed(Path(place), given)
    report("serving", rows, machine(num_cores()), notes, given.json)


def speed(place: Path, given: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """The closed loops, the open one, what a request costs beside the model, and ONNX Runtime."""
    rows = []
    model = make_model(place)
    bodies = [json.dumps({"model": "model", "input": [text]}).encode() for text in sentences()]
    ports = {"unmask": free_port(), "infinity": free_port()}
    commands = {"unmask": serve_command(model, ports["unmask"], given.precision)}
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
            requests, port = [post(paths[name], body) for body in bodies], ports[name]
            with serving(commands[name], port):
                asyncio.run(closed_loop(port, requests, 8, 3))  # warm
                for clients in CLIENTS:
                    load = asyncio.run(closed_loop(port, requests, clients, given.seconds))
                    loads.setdefault((name, clients), []).append(load)
                    print(f"round {number + 1}, {name}, {clients} clients: {load}", file=sys.stderr)
    peer = "" if given.peer_python is None else f"infinity-emb {version_of('infinity-emb', given.peer_python)}"
    for clients in CLIENTS:
        ours, theirs = (loads.get((name, clients), []) for name in ("unmask", "infinity"))
        rows += _rows(clients, ours, theirs, given.precision, peer)
    capacity = median(load.per_second for load in loads["unmask", CLIENTS[-1]])
    requests = [post(paths["unmask"], body) for body in bodies]
    rows.append(_steady(commands["unmask"], ports["unmask"], requests, capacity, given.seconds))
    text = " ".join(sentences())[:4000]
    rows.append(_overhead(model, text, commands["unmask"], ports["unmask"], given.seconds, given.precision))
    (place / "classifier").mkdir()
    rows.append(_beside_onnx(place / "classifier", given.seconds))
    return rows, []


def _rows(clients: int, ours: Sequence[Load], theirs: Sequence[Load], precision: str, peer: str) -> list[Row]:
    rates, slowest = [median(load.per_second for load in ours)], [median(load.p99 for load in ours)]
    what = f"{clients} client{'s' * (clients > 1)}{', bf16' * (precision == 'bf16')}"
    if not theirs:
        return [Row(f"{what}: requests", rates[0], unit="/s"), Row(f"{what}: 99th percentile", slowest[0], unit="ms")]
    ratios = [its.per_second / other.per_second for its, other in zip(ours, theirs, strict=True)]
    tails = [other.p99 / its.p99 for its, other in zip(ours, theirs, strict=True)]
    rates.append(median(load.per_second for load in theirs))
    slowest.append(median(load.p99 for load in theirs))
    ratio, tail = rates[0] / rates[1], slowest[1] / slowest[0]
    return [
        Row(f"{what}: requests", rates[0], peer, rates[1], "/s", ratio, (min(ratios), max(ratios)),
            f"at least {AT_LEAST:.2f}x", ratio >= AT_LEAST),
        Row(f"{what}: 99th percentile", slowest[0], peer, slowest[1], "ms", tail, (min(tails), max(tails)),
            "over 1.00x", tail > 1),
    ]  # fmt: skip


def _steady(command: Sequence[str], port: int, requests: Sequence[bytes], capacity: float, seconds: float) -> Row:
    """Arrivals at a rate that leaves the server idle for a third of the time."""
    rate = BUSY * capacity
    with serving(command, port):
        asyncio.run(closed_loop(port, requests, 8, 3))
        found = asyncio.run(open_loop(port, requests, rate, 2 * seconds))
    load = load_of(found.times, 2 * seconds)
    what = f"{rate:.0f} arrivals/s, {BUSY:.0%} of what 32 clients got: 99th percentile over the median"
    is_whole = set(found.statuses) == {200} and not found.lost
    print(f"{what}: {load}, {dict(found.statuses)}", file=sys.stderr)
    return Row(what, load.p99, "its own median", load.p50, "ms", None, None, "under 4x",
        is_whole and load.p99 < MOST_TAIL * load.p50)  # fmt: skip


def _overhead(model: Path, text: str, command: Sequence[str], port: int, seconds: float, precision: str) -> Row:
    """One client and 128 tokens: what comes on top of the model's time."""
    from unmask import load_tokenizer

    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode_batch([text])[0][: LENGTH - 2]
    text = tokenizer.decode(ids)
    bare = alone(model, text, seconds, precision)
    with serving(command, port):
        body = json.dumps({"model": "model", "input": [text]}).encode()
        asyncio.run(closed_loop(port, [post("/v1/embeddings", body)], 1, 2))
        served = asyncio.run(closed_loop(port, [post("/v1/embeddings", body)], 1, seconds))
    overhead = served.p50 / bare - 1
    what = f"one request of {len(ids) + 2} tokens, {overhead:.0%} over the model alone"
    return Row(what, served.p50, "the model alone", bare, "ms", None, None, "under 15 %", overhead < MOST_OVERHEAD)


def _beside_onnx(place: Path, seconds: float) -> Row:
    """One client of a classifier in ONNX, beside the session that the server has, called for one sentence at a time."""
    import numpy as np
    from onnxruntime import InferenceSession, SessionOptions, __version__

    from unmask import load_tokenizer

    run, exported = make_classifier(place), place / "onnx"
    unmask("export", run, "--check", place / "rows.tsv", "--out", exported, "--max-loss", 1)
    texts, times = sentences()[:200], []
    options = SessionOptions()
    options.intra_op_num_threads = num_cores()
    session = InferenceSession(exported / "model.onnx", options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    encoded = load_tokenizer(exported).encode_inputs([(text, None) for text in texts])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        ids = np.array([encoded[len(times) % len(texts)].input_ids], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        began = time.perf_counter()
        session.run(None, {name: inputs[name] for name in names})
        times.append(time.perf_counter() - began)
    requests = [post(CLASSIFY, json.dumps({"inputs": [text]}).encode()) for text in texts]
    port = free_port()
    with serving(serve_command(exported, port, "fp32"), port):
        asyncio.run(closed_loop(port, requests, 1, 2))
        served = asyncio.run(closed_loop(port, requests, 1, seconds))
        http = asyncio.run(closed_loop(port, [get("/health")], 1, min(seconds, 3)))
    bare = 1000 * median(times)
    ratio = (served.p50 - http.p50) / bare
    what = f"one sentence, {http.p50:.2f} ms of HTTP included; without it {ratio:.2f}x the session alone"
    return Row(what, served.p50, f"onnxruntime {__version__}", bare, "ms", None, None, f"at most {MOST_OF_ONNX}x",
        ratio <= MOST_OF_ONNX)  # fmt: skip


def soak(place: Path, given: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Twice the capacity, for some minutes."""
    import psutil

    from unmask.inference.predictor import predict

    open_many_files()  # each request that waits has a connection
    run, texts = make_classifier(place), sentences()
    requests = [post(CLASSIFY, json.dumps({"inputs": [text]}).encode()) for text in texts]
    answers: list[tuple[int, bytes]] = []
    memory: list[int] = []
    port = free_port()
    with serving(serve_command(run, port, given.precision), port) as process:
        capacity = asyncio.run(closed_loop(port, requests, CLIENTS[-1], min(given.seconds, 10 * given.soak))).per_second
        sent = figure(port, "te_request_count")
        seconds = 60 * given.soak
        every = max(1, int(capacity * seconds / (2 * CHECKS)))

        def look(number: int, answer: bytes) -> None:
            if number % every == 0 and len(answers) < CHECKS:
                answers.append((number, answer))

        async def load() -> Any:
            async def watch() -> None:
                server = psutil.Process(process)
                its = [server, *server.children()]
                for _ in range(10):
                    read = []
                    for _ in range(READINGS):
                        await asyncio.sleep(seconds / 10 / READINGS)
                        read.append(sum(each.memory_info().rss for each in its))
                    memory.append(round(mean(read)))

            return (await asyncio.gather(open_loop(port, requests, 2 * capacity, seconds, look), watch()))[0]

        found = asyncio.run(load())
        names = ("te_request_count", "te_request_duration_count", "te_request_success", "te_request_failure")
        figures = {name: figure(port, name) for name in (*names, "te_queue_size")}
    num, answered = sum(found.statuses.values()), found.statuses[200]
    told = (figures["te_request_count"] - sent, figures["te_request_duration_count"] - sent,
        figures["te_request_success"] - sent, figures["te_request_failure"], figures["te_queue_size"])  # fmt: skip
    faults = sum(count for status, count in found.statuses.items() if status >= 500) + found.lost
    growth = max(memory) / memory[0] - 1
    expected = list(
        predict(run, [{"text": texts[number % len(texts)]} for number, _ in answers], precision=given.precision)
    )
    largest = max(_difference(json.loads(answer)["predictions"][0], its)
        for (_, answer), its in zip(answers, expected, strict=True))  # fmt: skip
    is_exact = given.precision == "fp32"
    what = f"{num:,} requests at {2 * capacity:.0f}/s, twice the capacity"
    print(f"{what}: {dict(found.statuses)}, {found.lost} lost", file=sys.stderr)
    return [
        Row(f"{what}: answers of 5xx, and lost", faults, target="0", met=faults == 0),
        Row(f"answered with 200, beside the capacity for {given.soak:g} min", answered,
            "32 clients that wait", capacity * seconds, "requests"),
        Row("memory, the largest mean of a tenth over the first", 100 * growth, unit="% more",
            target="under 5 %", met=growth < MOST_GROWTH),
        Row(f"largest difference of a probability, of {len(answers):,}", largest, "predict", 0.0, "", None, None,
            f"at most {TOLERANCE:g}, of {CHECKS:,}" if is_exact else "",
            largest <= TOLERANCE and len(answers) == CHECKS if is_exact else None),
        Row("requests that /metrics counts", told[0], "the load's own count", num, "", None, None, "equal",
            told == (num, num, answered, num - answered, 0)),
    ], [f"seconds of an answer: {load_of(found.times, seconds)}; /metrics: {figures}, before: {sent:.0f}",
        f"MiB, the mean of each tenth: {[each >> 20 for each in memory]}"]  # fmt: skip


def _difference(served: dict[str, Any], predicted: dict[str, Any]) -> float:
    """Of the probabilities of a label at most; infinite for another input."""
    if served["input"] != predicted["input"]:
        return float("inf")
    return max(abs(served["probabilities"][label] - chance) for label, chance in predicted["probabilities"].items())


def open_many_files() -> int:
    """Lets this process open as many files as the system allows it; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def crowd(place: Path, given: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Eight clients beside open connections, and without them."""
    import psutil

    hard = open_many_files()
    if hard < given.connections + 100:
        raise SystemExit(f"{hard:,} files may be open here (ulimit -n): ask for fewer --connections")
    model, port = make_model(place), free_port()
    requests = [
        post("/v1/embeddings", json.dumps({"model": "model", "input": [text]}).encode()) for text in sentences()
    ]
    opened: list[socket.socket] = []
    with serving(serve_command(model, port, given.precision), port) as process:
        asyncio.run(closed_loop(port, requests, 8, 3))
        before = asyncio.run(closed_loop(port, requests, 8, given.seconds))
        memory = psutil.Process(process).memory_info().rss
        for _ in range(given.connections):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=60))
            opened[-1].sendall(b"GET /health HTTP/1.1\r\n")
        beside = asyncio.run(closed_loop(port, requests, 8, min(given.seconds, 15)))  # they are closed after 30 s
        held = psutil.Process(process).num_fds()
        grown = (psutil.Process(process).memory_info().rss - memory) / 2**20
        for each in opened:
            each.close()
    what = f"8 clients beside {given.connections:,} open connections: requests"
    return [
        Row(what, beside.per_second, "without them", before.per_second, "/s", beside.per_second / before.per_second),
        Row("99th percentile", beside.p99, "without them", before.p99, "ms", before.p99 / beside.p99),
        Row("connections that the server holds", held, target=f"at least {given.connections:,}",
            met=held >= given.connections),
    ], [f"they take {grown:.0f} MiB of the server"]  # fmt: skip


if __name__ == "__main__":
    main()
