"""Figures of what computes, and how figures are written."""

from __future__ import annotations

import re
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_TOTAL = re.compile(rb"^((?:# (?:HELP|TYPE) )?te_\w+)_total\b", re.MULTILINE)
"""What the library writes at the end of a counter's name, and text-embeddings-inference does not."""


class Figures:
    """Counts and times that are written together."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they are no figures of text-embeddings-inference, and nobody draws them
        self.registry = CollectorRegistry()

    def histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, buckets=buckets, registry=self.registry)

    def counter(self, name: str, *labels: str) -> Counter:
        return Counter(name, name.removeprefix("te_").replace("_", " "), labels, registry=self.registry)

    def text(self) -> bytes:
        """The present figures."""
        return _TOTAL.sub(rb"\1", generate_latest(self.registry))


class BatchMetrics(Figures):
    """How requests were read, waited and were computed."""

    def __init__(self) -> None:
        super().__init__()
        self.queue_size: Callable[[], int] = lambda: 0
        self._reading = self.histogram("te_request_tokenization_duration", "seconds of reading a request", SECONDS)
        self._length = self.histogram("te_request_input_length", "tokens of a request, of all its inputs", _TOKENS)
        self._queue = self.histogram("te_request_queue_duration", "seconds that a request waited", SECONDS)
        self._inference = self.histogram("te_request_inference_duration", "seconds of computing a batch", SECONDS)
        self._size = self.histogram("te_batch_next_size", "requests in a batch", _SIZES)
        self._tokens = self.histogram("te_batch_next_tokens", "tokens in a batch", _TOKENS)
        Gauge("te_queue_size", "requests that wait", registry=self.registry).set_function(lambda: self.queue_size())

    def read(self, tokens: int, took_s: float) -> None:
        """The inputs of a request were tokenized."""
        self._reading.observe(took_s)
        self._length.observe(tokens)

    def queued(self, took_s: float) -> None:
        """A request was taken from the queue."""
        self._queue.observe(took_s)

    def computed(self, size: int, tokens: int, took_s: float) -> None:
        """A batch was computed."""
        self._size.observe(size)
        self._tokens.observe(tokens)
        self._inference.observe(took_s)
