"""All randomness but dropout's, as pure functions of a key.

A key is a 64-bit integer made from (seed, copy, block, sequence, purpose); a draw is a hash of (key, stream, counter).
Nothing keeps a state, so the same sequences get the same masks in one micro-batch or eight, and a resumed run draws
what it would have drawn, in one process or several. The mixing function is the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
"""

from __future__ import annotations

from enum import IntEnum

from torch import Tensor


class Purpose(IntEnum):
    """A part of a key: what is drawn from it."""

    DOCUMENTS = 1  # their order
    PLAN = 2  # of a block
    SHUFFLE = 3  # of the block's sequences
    OBJECTIVE = 4  # whatever an objective draws for a sequence
    LANES = 5  # the order of the documents in lanes
    WINDOW = 6  # whatever an objective draws for a window of lanes
    EXAMPLES = 7  # which of them train, in fine-tuning


class Stream(IntEnum):
    """Numbers that keep different draws from one key at one place independent; 0 where only one thing is drawn.
    DIRECTION and SAMPLE share a number because they are never drawn at the same place."""

    CHOICE = 1  # which tokens become targets
    ACTION = 2  # whether each is masked, replaced or kept
    REPLACEMENT = 3  # by which entry
    LENGTH = 4  # how long a span is
    ANNOTATION = 5  # which annotation comes next
    KIND = 6  # whether the next is an annotation or a word
    DIRECTION = 7  # whether a sequence is read from left to right; for place 0 alone
    SAMPLE = 7  # of the generator's softmax; for targets, and at place 0 is `[CLS]`, which is none


class WindowStream(IntEnum):
    """As `Stream`, of what is drawn from a key of `Purpose.WINDOW`."""

    CANDIDATES = 1  # of a sampled softmax
    FORGETTING = 2  # which lanes lose their memory


_UINT64_MAX = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def mix(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers that looks random."""
    value = (value + _GOLDEN) & _UINT64_MAX
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _UINT64_MAX
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _UINT64_MAX
    return value ^ (value >> 31)


def key(*parts: int) -> int:
    """One key from any number of integers, whose order matters; in the range of int64, so that a tensor holds it."""
    mixed = 0
    for part in parts:
        mixed = mix(mixed ^ mix(part & _UINT64_MAX))
    return _signed(mixed)


class Draws:
    """A sequence of draws from one key, for code that draws one number after another (planning a block).

    The n-th draw is a hash of (key, n).
    """

    def __init__(self, *parts: int) -> None:
        self._state = key(*parts) & _UINT64_MAX

    def uniform(self) -> float:
        """A number in [0, 1), with 53 random bits."""
        self._state = (self._state + _GOLDEN) & _UINT64_MAX
        value = self._state  # `mix` written out: a call would take a seventh longer
        value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _UINT64_MAX
        value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _UINT64_MAX
        return ((value ^ (value >> 31)) >> 11) * 2.0**-53

    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self.uniform() * (high - low + 1))


def uniform(keys: Tensor, counters: Tensor, stream: int) -> Tensor:
    """One number in [0, 1) for each key and counter.

    Args:
        keys: (n,) int64.
        counters: (n,) int64, the place within what the key belongs to, such as a token's position.
        stream: keeps independent draws for the same place apart; see `Stream` and `WindowStream`.

    Returns:
        (n,) float64 with 53 random bits each.
    """
    value = _mix_tensor(keys ^ _mix_tensor(counters + _signed(mix(stream))))
    return _shift_right(value, 11).double() * 2.0**-53


class Permutation:
    """A keyed bijection of range(size) that needs no array in memory.

    A Feistel network of four rounds on the smallest even number of bits that holds `size`, repeated until the result is
    in range (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002): at most four steps on average.

    Args:
        size: how many things are permuted, at least 1.
        parts: what the key is made of.
    """

    ROUNDS = 4

    def __init__(self, size: int, *parts: int) -> None:
        assert size > 0, "a permutation of nothing"
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        self._round_keys = [key(*parts, number) & _UINT64_MAX for number in range(self.ROUNDS)]

    def __getitem__(self, index: int) -> int:
        """Where `index` goes, 0 <= index < size."""
        assert 0 <= index < self.size, "outside the permutation"
        value = index
        while True:
            value = self._encrypt(value)
            if value < self.size:
                return value

    def _encrypt(self, value: int) -> int:
        left, right = value >> self._half_bits, value & self._half_mask
        for round_key in self._round_keys:
            left, right = right, left ^ (mix(right ^ round_key) & self._half_mask)
        return (left << self._half_bits) | right


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """A logical shift: int64 has only the arithmetic one."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix_tensor(value: Tensor) -> Tensor:
    """`mix` on int64 tensors, whose products wrap around as 64-bit integers do."""
    value = value + _signed(_GOLDEN)
    value = (value ^ _shift_right(value, 30)) * _signed(_MULTIPLIER_1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MULTIPLIER_2)
    return value ^ _shift_right(value, 31)
