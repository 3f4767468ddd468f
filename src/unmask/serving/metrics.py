"""What happens in a server, in Prometheus' text format: the names are those of text-embeddings-inference, so that
dashboards made for it read ours."""

from __future__ import annotations

import re
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_TOTAL = re.compile(rb"^((?:# (?:HELP|TYPE) )?te_\w+)_total\b", re.MULTILINE)
"""What the library writes at the end of a counter's name, and text-embeddings-inference does not."""


class Metrics:
    """Counts and times of one server."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they are no figures of text-embeddings-inference, and nobody draws them
        self.registry = CollectorRegistry()
        self.queue_size: Callable[[], int] = lambda: 0

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, what, buckets=buckets, registry=self.registry)

        def counter(name: str, *labels: str) -> Counter:
            return Counter(name, name.removeprefix("te_").replace("_", " "), labels, registry=self.registry)

        self._arrived = counter("te_request_count", "method", "model")
        self._succeeded = counter("te_request_success", "method", "model")
        self._failed = counter("te_request_failure", "method", "model", "err")
        self._duration = histogram("te_request_duration", "seconds from a request's arrival to its answer", _SECONDS)
        self._reading = histogram("te_request_tokenization_duration", "seconds of reading a request", _SECONDS)
        self._queue = histogram("te_request_queue_duration", "seconds that a request waited", _SECONDS)
        self._inference = histogram("te_request_inference_duration", "seconds of computing a batch", _SECONDS)
        self._size = histogram("te_batch_next_size", "requests in a batch", _SIZES)
        self._tokens = histogram("te_batch_next_tokens", "tokens in a batch", _TOKENS)
        Gauge("te_queue_size", "requests that wait", registry=self.registry).set_function(lambda: self.queue_size())

    def arrived(self, endpoint: str, model: str) -> None:
        """A request was read; `model` is that of its address, "" if it names none."""
        self._arrived.labels(endpoint, model).inc()

    def answered(self, endpoint: str, status: int, took_s: float, model: str) -> None:
        """A request was answered; `status` is 0 where nobody waited for the answer, which counts as 499."""
        status = status or 499
        if status < 400:
            self._succeeded.labels(endpoint, model).inc()
        else:
            self._failed.labels(endpoint, model, str(status)).inc()
        self._duration.observe(took_s)

    def read(self, took_s: float) -> None:
        """The inputs of a request were tokenized."""
        self._reading.observe(took_s)

    def queued(self, took_s: float) -> None:
        """A request was taken from the queue."""
        self._queue.observe(took_s)

    def computed(self, size: int, tokens: int, took_s: float) -> None:
        """A batch was computed."""
        self._size.observe(size)
        self._tokens.observe(tokens)
        self._inference.observe(took_s)

    def text(self) -> bytes:
        """The present figures."""
        return _TOTAL.sub(rb"\1", generate_latest(self.registry))
