"""Which tokens become targets, and what replaces them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from support.masks import (
    CLS,
    CONTINUATION,
    MASK,
    ORDINARY,
    SEP,
    SIGNIFICANCE,
    SIZE,
    SPECIAL,
    TABLE_8,
    draw_rows,
    new_masked_lm,
    words_of,
)
from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.chance import Stream, uniform
from unmask.objectives.masks import masking
from unmask.objectives.masks.drawing import token_table
from unmask.objectives.masks.table import MASKINGS
from unmask.tokenization.vocabulary import Vocabulary

KINDS = list(MASKINGS)


def draw_batch(lengths: Sequence[int], seed: int = 0) -> Batch:
    """`[CLS] A [SEP] B [SEP]` of these lengths (5 at least), random tokens and keys."""
    chance = random.Random(seed + 1)
    keys = [chance.randrange(-(2**63), 2**63) for _ in lengths]
    return with_specials(pack(draw_rows(lengths, seed), keys=keys))


def with_specials(batch: Batch) -> Batch:
    """With the columns that packing formats give; every entry whose number ends in 7 is annotated, with those after
    it up to the next special token or the next entry that ends in 1."""
    special = torch.isin(batch.input_ids, torch.tensor(SPECIAL))
    annotation, number, is_open = [], 0, False
    columns = (column.tolist() for column in (batch.input_ids, special, batch.position_ids))
    for token, is_special, position in zip(*columns, strict=True):
        is_open = is_open and not is_special and token % 10 != 1 and position > 0
        if token % 10 == 7 and not is_special:
            number, is_open = number + 1, True
        annotation.append(number if is_open else 0)
    column = torch.tensor(annotation)
    return batch.with_columns(special_tokens_mask=special, entity=column, noun_phrase=column)


def parts_of(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """The batch cut into micro-batches of these numbers of sequences."""
    rows = [row.tolist() for row in batch.input_ids.split(batch.lengths)]
    assert batch.keys is not None
    keys = batch.keys.tolist()
    parts, first = [], 0
    for size in sizes:
        parts.append(with_specials(pack(rows[first : first + size], keys=keys[first : first + size])))
        first += size
    return parts


def num_targets(batch: Batch) -> list[int]:
    return [int((labels != IGNORE_INDEX).sum()) for labels in batch.columns["labels"].split(batch.lengths)]


def test_fifteen_percent_of_every_length_rounded_and_at_least_one() -> None:
    lengths = [*range(5, 129), 256, 510, 511, 512]
    found = num_targets(new_masked_lm().prepare(draw_batch(lengths)))
    exact = [Decimal("0.15") * length for length in lengths]
    assert found == [max(1, int(share.quantize(Decimal(1), ROUND_HALF_UP))) for share in exact]


LENGTHS = st.lists(st.integers(5, 40), min_size=1, max_size=6)


@given(LENGTHS, st.floats(0.01, 1), st.integers(0, 1000))
def test_never_more_targets_than_tokens_that_may_be_chosen(lengths: list[int], target_prob: float, seed: int) -> None:
    batch = draw_batch(lengths, seed)
    found = num_targets(new_masked_lm(target_prob=target_prob).prepare(batch))
    ordinary = [int((~mask).sum()) for mask in batch.columns["special_tokens_mask"].split(batch.lengths)]
    for length, number, limit in zip(lengths, found, ordinary, strict=True):
        assert number == min(limit, max(1, int(length * target_prob + 0.5)))


def observed_fates(mask_prob: float, random_prob: float) -> tuple[list[int], int]:
    """How many targets became `[MASK]`, another entry, or stayed; and how many there were."""
    batch = draw_batch([128] * 1500, seed=1)
    prepared = new_masked_lm(mask_token_prob=mask_prob, random_token_prob=random_prob).prepare(batch)
    targets = prepared.columns["target_positions"]
    before, after = batch.input_ids[targets], prepared.input_ids[targets]
    masked, kept = int((after == MASK).sum()), int((after == before).sum())
    return [masked, len(targets) - masked - kept, kept], len(targets)


def expected_shares(mask_prob: float, random_prob: float) -> list[float]:
    """One random entry in as many as there are is the original."""
    same = random_prob / len(ORDINARY)
    return [mask_prob, random_prob - same, 1 - mask_prob - random_prob + same]


@pytest.mark.parametrize(("mask_prob", "random_prob"), TABLE_8)
def test_fates_have_the_shares_that_are_set(mask_prob: float, random_prob: float) -> None:
    found, total = observed_fates(mask_prob, random_prob)
    shares = expected_shares(mask_prob, random_prob)
    possible = [place for place, share in enumerate(shares) if share > 1e-12]
    assert sum(found[place] for place in possible) == total  # what has no share never happens
    if len(possible) > 1:
        result = chisquare([found[place] for place in possible], [shares[place] * total for place in possible])
        assert result.pvalue > SIGNIFICANCE


def test_the_test_of_shares_can_fail() -> None:
    found, total = observed_fates(0.8, 0.1)
    wrong = expected_shares(0.79, 0.11)
    assert chisquare(found, [share * total for share in wrong]).pvalue < SIGNIFICANCE


def test_every_place_and_every_replacement_is_as_likely() -> None:
    rows = [[CLS, *range(5, 36), SEP]] * 4000
    batch = with_specials(pack(rows, keys=list(range(4000))))
    prepared = new_masked_lm(mask_token_prob=0, random_token_prob=1).prepare(batch)
    targets = prepared.columns["target_positions"]
    places = torch.bincount(batch.position_ids[targets], minlength=33)
    assert places[0] == places[32] == 0
    # Exactly five targets in each row: drawn without replacement, which spreads less than chi-square asks for.
    assert chisquare(places[1:32].numpy()).pvalue > SIGNIFICANCE
    entries = torch.bincount(prepared.input_ids[targets], minlength=SIZE)
    assert not entries[: len(SPECIAL)].any()
    assert chisquare(entries[len(SPECIAL) :].numpy()).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("kind", KINDS)
def test_specials_are_never_chosen_nor_drawn_and_labels_are_the_originals(kind: str) -> None:
    batch = draw_batch([5, 6, 128, 60, 17] * 40, seed=2)
    prepared = new_masked_lm(masking=kind, target_prob=0.5, mask_token_prob=0.3, random_token_prob=0.6).prepare(batch)
    labels, targets = prepared.columns["labels"], prepared.columns["target_positions"]
    is_target = labels != IGNORE_INDEX
    assert not (is_target & batch.columns["special_tokens_mask"]).any()
    assert torch.equal(is_target.nonzero().squeeze(1), targets)
    assert torch.equal(labels[is_target], batch.input_ids[is_target])
    assert torch.equal(prepared.input_ids[~is_target], batch.input_ids[~is_target])
    assert torch.isin(prepared.input_ids[is_target], torch.tensor([MASK, *ORDINARY])).all()


def choose_words_slowly(row: Sequence[int], key: int, target_prob: float) -> set[int]:
    """Google's whole-word masking: shuffle the words, take each that still fits, stop when the number is reached."""
    number = max(1, int(len(row) * target_prob + 0.5))

    def drawn(word: list[int]) -> float:
        return float(uniform(torch.tensor([key]), torch.tensor([word[0]]), Stream.CHOICE))

    chosen: set[int] = set()
    for word in sorted(filter(None, words_of(row)), key=drawn):
        if len(chosen) >= number:
            break
        if len(chosen) + len(word) > number:
            continue
        chosen.update(word)
    return chosen


@given(LENGTHS, st.sampled_from([0.05, 0.15, 0.4, 1.0]), st.integers(0, 1000))
def test_whole_words_are_those_of_a_slow_reference(lengths: list[int], target_prob: float, seed: int) -> None:
    batch = draw_batch(lengths, seed)
    prepared = new_masked_lm(masking="whole_word", target_prob=target_prob).prepare(batch)
    assert batch.keys is not None
    rows, labels_of_rows = (tokens.split(batch.lengths) for tokens in (batch.input_ids, prepared.columns["labels"]))
    for row, key, labels in zip(rows, batch.keys.tolist(), labels_of_rows, strict=True):
        chosen = set((labels != IGNORE_INDEX).nonzero().squeeze(1).tolist())
        assert chosen == choose_words_slowly(row.tolist(), key, target_prob)
        for word in words_of(row.tolist()):
            assert len(chosen.intersection(word)) in (0, len(word))


def test_the_rest_of_a_word_whose_beginning_was_truncated_is_a_word() -> None:
    piece, word = 70, 10  # `##piece` first in A and in B: their words begin before the segments do
    rows = [[CLS, piece, piece, word, SEP, piece, word, SEP]] * 400
    batch = with_specials(pack(rows, keys=list(range(400))))
    chosen = masking.choose_words(batch, 0.25, torch.from_numpy(CONTINUATION)).view(400, 8)
    assert chosen.sum(1).eq(2).all()
    assert torch.equal(chosen[:, 1], chosen[:, 2])
    assert {tuple(row.nonzero().squeeze(1).tolist()) for row in chosen} == {(1, 2), (3, 5), (3, 6), (5, 6)}


def test_a_piece_that_begins_a_sequence_does_not_belong_to_the_sequence_before() -> None:
    rows = [[10, 11], [70, 12], [71, 72]]  # without special tokens
    batch = with_specials(pack(rows, keys=[1, 2, 3]))
    chosen = masking.choose_words(batch, 0.5, torch.from_numpy(CONTINUATION))
    alone = [masking.choose_words(part, 0.5, torch.from_numpy(CONTINUATION)) for part in parts_of(batch, [1, 1, 1])]
    assert torch.equal(chosen, torch.cat(alone))


def test_a_sequence_of_words_that_do_not_fit_has_no_target() -> None:
    batch = with_specials(pack([[CLS, 10, 70, 71, SEP], [CLS, 10, 11, 12, SEP]], keys=[1, 2]))
    assert num_targets(new_masked_lm(masking="whole_word").prepare(batch)) == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_special_tokens_alone_has_no_target(kind: str) -> None:
    batch = with_specials(pack([[CLS, SEP], [CLS, SEP, SEP]], keys=[1, 2]))
    prepared = new_masked_lm(masking=kind, span_boundary=True).prepare(batch)
    assert num_targets(prepared) == [0, 0]
    assert torch.equal(prepared.input_ids, batch.input_ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[1] * 12, [3, 3, 3, 3], [5, 7], [11, 1]], ids=str)
def test_the_same_masks_in_whatever_micro_batches(kind: str, sizes: list[int]) -> None:
    """And so on however many machines, since each would prepare such parts by the keys of its sequences alone."""
    batch = draw_batch([20, 5, 128, 64, 9, 33, 128, 5, 77, 12, 50, 31], seed=3)
    whole = new_masked_lm(masking=kind).prepare(batch)
    parts = [new_masked_lm(masking=kind).prepare(part) for part in parts_of(batch, sizes)]
    assert torch.equal(whole.input_ids, torch.cat([part.input_ids for part in parts]))
    assert torch.equal(whole.columns["labels"], torch.cat([part.columns["labels"] for part in parts]))


def test_draws_that_differ_in_their_last_bit_keep_their_order_in_a_large_batch() -> None:
    """Where sequence and draw are added first, the thousandth sequence loses ten bits of the draw."""
    table = token_table(draw_batch([5] * 1000))
    draws = torch.tensor([0.5, 0.5 - 2**-53, 1 - 2**-53, 0.25, 0.0], dtype=torch.float64).repeat(1000)
    assert table.ranks(draws)[-5:].tolist() == [3, 2, 4, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_a_function_of_the_key_alone(kind: str) -> None:
    row = draw_batch([60], seed=4).input_ids.tolist()
    batch = with_specials(pack([row, row, row], keys=[11, 12, 11]))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = new_masked_lm(masking=kind).prepare(batch)
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn from PyTorch's generator
    torch.manual_seed(1)
    second = new_masked_lm(masking=kind).prepare(batch)
    assert torch.equal(first.input_ids, second.input_ids)
    assert torch.equal(first.columns["labels"], second.columns["labels"])
    one, other, again = first.columns["labels"].split(60)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# The paper's worked example: Devlin et al. 2019, appendix A.1.

ENTRIES = "[PAD] [UNK] [CLS] [SEP] [MASK] my dog is hairy apple the man went to store"
WORDS = ENTRIES.split()
WORD_VOCABULARY = Vocabulary(len(WORDS), MASK, SPECIAL, np.zeros(len(WORDS), dtype=np.bool_))


def test_my_dog_is_hairy() -> None:
    row = [CLS, *(WORDS.index(word) for word in ("my", "dog", "is", "hairy")), SEP]
    batch = with_specials(pack([row] * 20_000, keys=list(range(20_000))))
    prepared = new_masked_lm(WORD_VOCABULARY).prepare(batch)
    labels = prepared.columns["labels"].view(-1, 6)
    assert (labels != IGNORE_INDEX).sum(1).eq(1).all()  # 15 % of six tokens is one
    hairy = prepared.input_ids.view(-1, 6)[labels[:, 4] != IGNORE_INDEX]
    assert torch.equal(hairy[:, :4], torch.tensor(row[:4]).expand(len(hairy), 4))
    fates = torch.bincount(hairy[:, 4], minlength=len(WORDS))
    ordinary = len(WORDS) - len(SPECIAL)
    each = 0.1 / ordinary  # a random word, of which `apple` is one and `hairy` another
    expected = [0.8, 0.1 + each, *[each] * (ordinary - 1)]
    others = [index for index in range(len(SPECIAL), len(WORDS)) if WORDS[index] != "hairy"]
    found = fates[[MASK, WORDS.index("hairy"), *others]]
    assert fates[WORDS.index("apple")] > 0
    assert int(found.sum()) == len(hairy)
    assert chisquare(found.numpy(), np.array(expected) * len(hairy)).pvalue > SIGNIFICANCE
