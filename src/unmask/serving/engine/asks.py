"""What passes between the process that speaks HTTP and the one that computes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Ask:
    """What a model is asked.

    Attributes:
        model: its name.
        reader: a key of `unmask.serving.engine.readers.READERS`.
        arguments: what the reader takes beside the model.
    """

    model: str
    reader: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Reply:
    """What was computed.

    Attributes:
        result: what the endpoint makes its answer of.
        tokens: how many the inputs have.
        left_out: for each input, how many of its tokens were not.
        unknown: for each input, how many of its tokens are unknown to the vocabulary; None where it has no such token.
    """

    result: Any
    tokens: int
    left_out: list[int]
    unknown: list[int] | None = None


@dataclass(frozen=True)
class Reading:
    """How texts become vectors: a choice of layers, and how their tokens are pooled, None as the model usually does; as
    for `unmask similarity`."""

    layers: str = "last"
    pool: str | None = None
    normalise: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model without asking it.

    Attributes:
        name: in addresses.
        endpoints: what it can be asked, the main one first.
        columns: of a model that labels texts, the names of the texts of an input: one way of writing it, or several.
        description: for `/v1/models`.
    """

    name: str
    endpoints: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    description: dict[str, Any]


class Refused(Exception):  # noqa: N818  an answer to a client, not a fault
    """A request that is not answered, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, code, param, headers)  # all of them: it is sent from process to process
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers

    def __str__(self) -> str:
        return self.message


class Fault(Exception):  # noqa: N818
    """An error of ours in the process that computes; its text is the traceback there."""


def end(future: Future[Any], outcome: Any) -> None:
    """Ends a future with a result, or with an exception; does nothing where nobody waits for it any more."""
    with suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def too_much(tokens: int, most: int) -> Refused:
    """Of one request that has more tokens than may wait in all."""
    message = f"{tokens:,} tokens to compute: a request has at most {most:,}: send fewer, or shorter inputs"
    return Refused(413, message, "too_large")


class Answers(Protocol):
    """What answers what is asked: `unmask.serving.engine.engine.Engine`, or one in another process."""

    @property
    def models(self) -> Mapping[str, ModelFacts]:
        """Those that can be asked, by name."""

    @property
    def takes_work(self) -> bool:
        """Whether it answers: the process of it runs."""

    def ask(self, ask: Ask) -> Future[Reply]:
        """The future ends with `Refused`, `Fault` or an error of the user's; to cancel it ends the work."""

    def figures(self) -> Future[bytes]:
        """Its metrics, in Prometheus' text format."""
