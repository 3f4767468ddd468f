"""What happens in a server, in Prometheus' text format: the names are those of text-embeddings-inference, the values
of their labels ours. Here are the requests; `unmask.serving.engine.metrics` has what computes them."""

from __future__ import annotations

from unmask.serving.engine.metrics import SECONDS, Figures


class RequestMetrics(Figures):
    """How many requests came, how they were answered, and how long each took."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = self.counter("te_request_count", "method", "model")
        self._succeeded = self.counter("te_request_success", "method", "model")
        self._failed = self.counter("te_request_failure", "method", "model", "err")
        self._duration = self.histogram(
            "te_request_duration", "seconds from a request's arrival to its answer", SECONDS
        )

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
