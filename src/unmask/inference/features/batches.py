"""What a frozen encoder makes of some inputs: the vectors of their tokens, or one vector of each input.

Tokens are pooled on the device that computes them: one vector per text is copied back, not one per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.batch import Batch
from unmask.config import nearest
from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference.coverage import Coverage
from unmask.inference.example_sets import MOST_EXAMPLES, in_sets, map_ahead
from unmask.inference.features.rows import PLACE, FeatureInput, InputTokens, RowMaker, tokenize
from unmask.inference.onnx_model import OnnxEncoder
from unmask.models.encoder import Encoder
from unmask.models.heads.layer_mixture import LayerChoice, find_choice
from unmask.models.hub.uses import NOT_FINITE
from unmask.tasks.encoded import BATCH_TOKENS, EncodedExamples
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.opening import Tokenizer
from unmask.training.device import Compute

Pool = Literal["none", "cls", "mean", "max", "mean-with-special"]
"""How tokens become one vector; `mean-with-special`: the mean of a row's tokens, special ones too, as
sentence-transformers takes it."""

ONE_ROW: frozenset[Pool] = frozenset({"cls", "mean-with-special"})
"""Pools of one row: longer texts are cut."""


def check_pool(name: str) -> Pool:
    """The pool of that name; raises SettingsError if there is none."""
    if name not in get_args(Pool):
        raise SettingsError(f"no pool {name!r}: {nearest(str(name), get_args(Pool)).removeprefix('; ')}")
    return cast(Pool, name)


@dataclass(frozen=True)
class FeatureModel:
    """An encoder, in eval mode on its device, and the choice of layers to read.

    Attributes:
        max_length: most tokens of a row, special tokens included.
        layouts: the columns that may hold its texts in a table; the first layout that a row has is taken.
        usual_pool: what makes the vector of a text where nobody says.
    """

    encoder: Encoder = field(repr=False)
    tokenizer: Tokenizer
    compute: Compute
    choice: LayerChoice
    max_length: int
    layouts: tuple[ColumnSettings, ...] = field(repr=False)
    usual_pool: Pool = "mean"

    def with_layers(self, name: str, mixes: bool = False) -> FeatureModel:
        """The same model with another choice of layers.

        Args:
            name, mixes: see `unmask.models.heads.layer_mixture.find_choice`.

        Raises:
            SettingsError: there is no such choice, or it does not fit.
        """
        if isinstance(self.encoder, OnnxEncoder) and name != "last":
            raise SettingsError(
                f"layers={name}: an ONNX file gives the last layer alone: choose last, or give the directory that it "
                "was exported from"
            )
        return replace(self, choice=find_choice(name, self.encoder.settings.num_hidden_layers, mixes))

    def pool_named(self, name: str | None) -> Pool:
        """The pool of that name, which is to give a text one vector; None: the model's usual one.

        Raises:
            SettingsError: there is none of that name, or it is `none`.
        """
        if name == "none":
            raise SettingsError(
                "pool=none gives a vector for each token, and a text needs one: choose mean, max, cls or "
                "mean-with-special"
            )
        return self.usual_pool if name is None else check_pool(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one vector: (width,), or (layers, hidden) where layers are to be mixed."""
        return self.choice.shape(self.encoder.settings.num_hidden_layers, self.encoder.settings.hidden_size)

    def row_maker(self, pool: Pool) -> RowMaker:
        """What turns texts into rows for a pool."""
        num_segments = self.encoder.settings.type_vocab_size
        return RowMaker(self.tokenizer, self.max_length, num_segments, first_window_only=pool in ONE_ROW)


@dataclass(frozen=True)
class InputSet:
    """Some inputs, and their rows for an encoder.

    Attributes:
        tokens: the tokens of each input, as far as they are read.
        rows: as `RowMaker.rows` makes them.
        left_out: for each input, how many of its tokens are not read.
    """

    inputs: Sequence[FeatureInput]
    tokens: list[InputTokens]
    rows: EncodedExamples
    left_out: list[int]

    def batches(self, compute: Compute) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Every row once, the longest first; see `EncodedExamples.batches_by_length`."""
        return self.rows.batches_by_length(BATCH_TOKENS[compute.device.type])


def input_sets(
    model: FeatureModel,
    inputs: Iterable[FeatureInput],
    pool: Pool,
    coverage: Coverage,
    length: Callable[[FeatureInput], int] = lambda _: 0,
) -> Iterator[InputSet]:
    """Cuts a stream of inputs into sets and encodes them; with a GPU, the next one while one is computed.

    Args:
        coverage: updated with what is read.
        length: what an input adds to its set, which ends at `MOST_CHARACTERS`; left out, sets end by number alone.

    Raises:
        InputError: see `checked_tokens`; only where every token is to get a vector.
    """
    maker = model.row_maker(pool)

    def encode(part: list[FeatureInput]) -> InputSet:
        tokens = checked_tokens(model, part) if pool == "none" else tokenize(part, model.tokenizer)
        kept, rows = maker.rows(part, tokens, coverage.counts)
        texts = [text for given in part for text in (given.text_a, given.text_b) if text]
        coverage.add(rows.input_ids, rows.bounds, texts)
        left_out = [len(whole.ids) - len(its.ids) for whole, its in zip(tokens, kept, strict=True)]
        return InputSet(part, kept, rows, left_out)

    return map_ahead(encode, in_sets(inputs, length=length), model.compute.device)


def checked_tokens(model: FeatureModel, inputs: Sequence[FeatureInput]) -> list[InputTokens]:
    """The tokens of inputs, each of which is to get a vector.

    Raises:
        InputError: a pair is too long.
    """
    tokens = tokenize(inputs, model.tokenizer)
    capacity = model.row_maker("none").capacity(is_pair=True)
    for given, its in zip(inputs, tokens, strict=True):
        if given.text_b is not None and len(its.ids) > capacity:
            raise InputError(
                f"{given.source}: {len(its.ids)} tokens in two texts, and a pair has at most {capacity} here: a vector "
                "each of them cannot be had; shorten the texts, give them one by one, or choose another pool"
            )
    return tokens


def token_vectors(
    model: FeatureModel, encoded: InputSet
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
    """The vectors of all tokens, row by row.

    Yields:
        The number of a row's input; (tokens,) which of the input's tokens the row holds, special tokens left out; and
        their vectors, (tokens, *model.shape) float32.
    """
    places: NDArray[Any] = encoded.rows.alignment[PLACE]
    for units, batch in encoded.batches(model.compute):
        states = _states(model, batch).cpu().numpy()
        if not np.isfinite(states).all():
            raise ModelError(NOT_FINITE)
        by_row = np.split(states, np.cumsum(batch.lengths)[:-1])
        for unit, its in zip(units.tolist(), by_row, strict=True):
            place = places[encoded.rows.tokens_of(unit)]
            yield int(encoded.rows.examples[unit]), place[place >= 0], its[place >= 0]


def pooled_vectors(model: FeatureModel, encoded: InputSet, pool: Pool) -> NDArray[np.float32]:
    """One vector for each input.

    Args:
        pool: not `none`; the pool that the inputs were encoded for.

    Returns:
        (inputs, *model.shape): zeros for an input of which no token was read.
    """
    rows, is_causal = encoded.rows, model.encoder.settings.is_causal
    places: NDArray[Any] = rows.alignment[PLACE]
    nothing = float("-inf") if pool == "max" else 0.0
    pooled = torch.full((len(encoded.inputs), *model.shape), nothing, dtype=torch.float32)
    parts: list[tuple[Tensor, Tensor]] = []

    def take() -> None:
        for numbers, values in parts:  # a long input has several rows
            if pool == "max":
                pooled.scatter_reduce_(
                    0, numbers.view(-1, *[1] * (values.dim() - 1)).expand_as(values), values.cpu(), "amax"
                )
            else:
                pooled.index_add_(0, numbers, values.cpu())
        parts.clear()

    for units, batch in encoded.batches(model.compute):
        is_own = torch.from_numpy(places[rows.token_numbers(units)] >= 0)
        numbers = torch.from_numpy(rows.examples[units].astype(np.int64))
        parts.append((numbers, _pool_rows(_states(model, batch), batch, is_own, pool, is_causal)))
        if sum(len(its) for its, _ in parts) >= MOST_EXAMPLES:
            take()  # it looks at values, which waits for the device: seldom, but not never
    take()
    if pool == "max":
        pooled.masked_fill_(pooled.isneginf(), 0)  # of an input without a token
    if not pooled.isfinite().all():
        raise ModelError(NOT_FINITE)
    if pool == "mean":
        sizes = torch.tensor([max(1, len(its.ids)) for its in encoded.tokens])
        pooled /= sizes.view(-1, *[1] * len(model.shape))
    return pooled.numpy()


@torch.inference_mode()
def _states(model: FeatureModel, batch: Batch) -> Tensor:
    """(tokens, *model.shape) float32, on the device."""
    with model.compute.autocast():
        return model.choice.select(model.encoder.hidden_states(batch.to(model.compute.device))).float()


@torch.inference_mode()
def _pool_rows(states: Tensor, batch: Batch, is_own: Tensor, pool: Pool, is_causal: bool) -> Tensor:
    """(rows, *model.shape): for each row its first token's state (the last one's for a causal encoder), the mean of all
    its tokens, or the sum or maximum over its own; the maximum over none is minus infinity.

    Args:
        batch: on the CPU.
        is_own: (tokens,) bool, on the CPU: False for special tokens, and for tokens that count in another row.
    """
    if pool == "cls":
        return states[(batch.last_tokens if is_causal else batch.first_tokens).to(states.device)]
    nothing = float("-inf") if pool == "max" else 0.0
    if pool != "mean-with-special":
        is_other = ~is_own.to(states.device).view(-1, *[1] * (states.dim() - 1))
        states = states.masked_fill(is_other, nothing)
    return torch.segment_reduce(
        states,
        {"mean": "sum", "max": "max", "mean-with-special": "mean"}[pool],
        lengths=batch.bounds.long().diff().to(states.device),
        axis=0,
        unsafe=True,  # no check of the lengths, which would wait for the device
        initial=nothing,
    )
