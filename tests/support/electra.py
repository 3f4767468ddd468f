"""A small ELECTRA, its objective, and batches of random tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from support.sizes import small
from unmask.batch import Batch, pack
from unmask.models.electra import ElectraEncoder
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule
from unmask.objectives.settings import ReplacedTokenSettings
from unmask.tokenization.vocabulary import Vocabulary

SIZE, CLS, SEP, MASK = 61, 2, 3, 4
VOCABULARY = Vocabulary(SIZE, MASK, (0, 1, 2, 3, 4), np.arange(SIZE) >= 40)
LENGTHS = (16, 9, 12, 5, 16, 7)

DISCRIMINATOR = small(
    architecture="electra",
    vocab=SIZE,
    embedding_size=10,
    width=24,
    layers=2,
    heads=3,
    inner=40,
    positions=16,
    std=0.3,
    dropout=0.0,
)


def random_rows(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(5, SIZE, (length,), generator=generator).tolist() for length in lengths]
    return [[CLS, *row[1:-1], SEP] for row in drawn]


def pack_with_specials(sequences: list[list[int]]) -> Batch:
    batch = pack(sequences, keys=list(range(len(sequences))))
    return batch.with_columns(special_tokens_mask=batch.input_ids < 5)


def random_batch(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    return pack_with_specials(random_rows(lengths))


def new_objective(**settings: Any) -> ReplacedToken:
    return ReplacedToken(ReplacedTokenSettings(**{"target_prob": 0.3} | settings), VOCABULARY)


def new_module(**settings: Any) -> ReplacedTokenModule:
    torch.manual_seed(0)
    return new_objective(**settings).build(ElectraEncoder(DISCRIMINATOR))
