"""What a server accepts, and how much of it at once."""

from __future__ import annotations

from dataclasses import dataclass

MOST_INPUTS = 512
"""Of a request; its schema refuses more."""


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and how much work waits.

    Attributes:
        body_bytes: the largest body.
        bodies_bytes: the most of all bodies that are held at once, and of all answers that clients have not taken; a
            request over that is turned away (429).
        batch_tokens: the most tokens that are computed at once, but for a single request that has more.
        queue_tokens: the most tokens that wait; over that a request is turned away (429), as where those that wait
            and those that are computed would take half of `timeout_s`.
        timeout_s: seconds from the arrival of a request's headers until it is given up: its body has to come (408) and
            its answer to be computed (503) within them. A client has as many for the headers, and to take the answer.
        new_tokens: the most tokens that a left-to-right model adds in a request.
    """

    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 2**28
    batch_tokens: int = 8192
    queue_tokens: int = 2**18
    timeout_s: float = 30.0
    new_tokens: int = 256
