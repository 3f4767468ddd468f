"""Sequences that are read from left to right beside masked ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.sizes import small
from unmask.batch import Batch, pack
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.settings import EncoderSettings
from unmask.objectives.directions import NEXT_LABELS, NEXT_POSITIONS, add_next_tokens, draw_directions
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.settings import CAUSAL_SHARE, TARGET_PROB, MaskedLMSettings
from unmask.objectives.table import families_of
from unmask.tokenization.vocabulary import Vocabulary

VOCABULARY = Vocabulary(40, 4, (0, 1, 2, 3, 4), np.zeros(40, dtype=np.bool_))
LENGTHS = (9, 30, 30, 7, 12, 16, 30, 3)


def batch_of(share: float | None, **columns: float) -> Batch:
    generator = torch.Generator().manual_seed(0)
    sequences = [[2, *torch.randint(5, 40, (length - 2,), generator=generator).tolist(), 3] for length in LENGTHS]
    batch = pack(sequences, keys=[11 * number for number in range(len(LENGTHS))])
    rates = columns if share is None else {CAUSAL_SHARE: share, **columns}
    special = torch.isin(batch.input_ids, torch.tensor([2, 3]))
    tensors = {name: torch.tensor(rate, dtype=torch.float64) for name, rate in rates.items()}
    return batch.with_columns(special_tokens_mask=special, **tensors)


def objective(**settings: object) -> MaskedLM:
    return MaskedLM(MaskedLMSettings(sentence_objective="none", **settings), VOCABULARY)  # type: ignore[arg-type]


def encoder_settings(architecture: str) -> EncoderSettings:
    return small(architecture=architecture, vocab=40, width=16, layers=2, heads=2, dropout=0, std=0.3)


def test_the_share_is_drawn_by_sequence_whatever_else_is_in_the_batch() -> None:
    many = replace(batch_of(0.3), keys=None)
    keys = torch.arange(4000)
    large = Batch(keys, keys, keys, torch.arange(4001, dtype=torch.int32), (1,) * 4000, keys, many.columns)
    drawn = draw_directions(large).left_to_right
    assert 0.27 < sum(drawn) / 4000 < 0.33
    one = replace(large, keys=keys[7:8], lengths=(1,))
    assert draw_directions(one).left_to_right == drawn[7:8]
    assert draw_directions(batch_of(None)).left_to_right == ()
    assert not any(draw_directions(batch_of(0.0)).left_to_right)
    assert all(draw_directions(batch_of(1.0)).left_to_right)


def test_each_sequence_is_masked_or_predicts_its_next_tokens() -> None:
    batch = batch_of(0.5)
    prepared = objective(causal_share=0.5).prepare(batch)
    assert 0 < sum(prepared.left_to_right) < len(LENGTHS)
    sequences = batch.sequence_of_token()
    reads_on = torch.tensor(prepared.left_to_right)[sequences]
    assert not reads_on[prepared.columns["target_positions"]].any()
    assert torch.equal(prepared.input_ids[reads_on], batch.input_ids[reads_on])
    positions = prepared.columns[NEXT_POSITIONS]
    followed = reads_on[:-1] & (sequences[:-1] == sequences[1:])
    assert set(positions.tolist()) == set(followed.nonzero().squeeze(1).tolist())
    assert torch.equal(prepared.columns[NEXT_LABELS], batch.input_ids[positions + 1])
    counts = objective(causal_share=0.5).counts(prepared)
    assert counts == {"mlm": len(prepared.columns["target_positions"]), "lm": len(positions)}


def test_denominators_are_in_the_losses_of_training_alone() -> None:
    batch = objective().prepare(batch_of(0.5))
    torch.manual_seed(0)
    encoder = new_encoder(encoder_settings("bert"), pooler=False)
    plain = objective(causal_share=0.5).build(encoder)
    weighed = objective(causal_share=0.5, z_loss=0.2).build(encoder)
    weighed.load_state_dict(plain.state_dict())
    [(mlm, lm), (more_mlm, more_lm)] = [[term.total for term in module(batch)] for module in (plain, weighed)]
    assert more_mlm > mlm + 1
    assert more_lm > lm + 1
    assert weighed.scores(batch)["mlm_loss"][0] == plain.scores(batch)["mlm_loss"][0]


def test_held_out_text_is_masked_at_the_last_rate() -> None:
    settings = MaskedLMSettings(sentence_objective="none", target_prob=0.4, target_prob_end=0.1)
    assert settings.rates(0.5, None) == {TARGET_PROB: pytest.approx(0.25)}
    falling = MaskedLM(settings, VOCABULARY)
    num_targets = {
        rate: len(falling.prepare(batch_of(None, **given)).columns["target_positions"])
        for rate, given in ((0.1, {}), (0.25, {TARGET_PROB: 0.25}))
    }
    assert num_targets[0.1] == sum(max(1, int(length * 0.1 + 0.5)) for length in LENGTHS)
    assert num_targets[0.25] == sum(max(1, int(length * 0.25 + 0.5)) for length in LENGTHS if length > 3) + 1


@pytest.mark.parametrize(
    "architecture", [name for name in families_of(MaskedLMSettings) if ARCHITECTURES[name].may_read_left_to_right]
)
def test_what_is_read_left_to_right_does_not_see_what_follows(architecture: str) -> None:
    """One pass gives what two encoders give: the hidden states of a masked sequence are those of a batch of its own;
    those of the others do not change with any later token."""
    torch.manual_seed(0)
    encoder = new_encoder(encoder_settings(architecture), pooler=False).eval()
    mixed = objective(causal_share=0.5).prepare(batch_of(0.5))
    hidden = torch.split(encoder(mixed), list(LENGTHS))
    other = mixed.input_ids.clone()
    other[mixed.last_tokens] = 39
    changed = torch.split(encoder(mixed.with_input_ids(other)), list(LENGTHS))
    for number, ids in enumerate(torch.split(mixed.input_ids, list(LENGTHS))):
        alone = encoder(pack([ids.tolist()]))
        if mixed.left_to_right[number]:
            torch.testing.assert_close(changed[number][:-1], hidden[number][:-1])
            assert not torch.allclose(alone[0], hidden[number][0], atol=1e-3)
        else:
            torch.testing.assert_close(alone, hidden[number], rtol=1e-4, atol=1e-5)
            assert not torch.allclose(changed[number][0], hidden[number][0], atol=1e-4)


def test_the_loss_is_that_of_both_halves_however_they_are_cut() -> None:
    torch.manual_seed(0)
    chosen = objective(causal_share=0.5)
    module = chosen.build(new_encoder(encoder_settings("modernbert"), pooler=False))
    prepared = chosen.prepare(batch_of(0.5))
    terms = {term.name: term for term in module(prepared)}
    assert terms.keys() == {"mlm", "lm"}
    assert chosen.counts(prepared).keys() == terms.keys()
    to_the_right = chosen.prepare(batch_of(1.0))
    all_left_to_right = {term.name: term for term in module(to_the_right)}
    assert float(all_left_to_right["mlm"].total.detach()) == 0
    assert chosen.counts(to_the_right)["lm"] == sum(LENGTHS) - len(LENGTHS)
    masked_alone = objective().build(new_encoder(encoder_settings("bert"), pooler=False))
    assert module.paddings.keys() - masked_alone.paddings.keys() == {NEXT_POSITIONS, NEXT_LABELS}


def test_next_tokens_are_those_before_masking() -> None:
    batch = replace(batch_of(None), left_to_right=(True,) * len(LENGTHS))
    masked = batch.with_input_ids(torch.full_like(batch.input_ids, 4))
    assert torch.equal(add_next_tokens(masked, batch.input_ids).columns[NEXT_LABELS][:8], batch.input_ids[1:9])


ALONE = {"sentence_objective": "none"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"causal_share": 0.5}, "causal_share 0.5 and sentence_objective nsp do not go together"),
        ({**ALONE, "causal_share": 0.5, "masking": "span", "span_boundary": True}, "span_boundary true"),
        ({**ALONE, "sentence_weight": 0.5}, "has no effect with sentence_objective none"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedLMSettings(**settings)  # type: ignore[arg-type]


def test_the_weights_of_second_objectives_are_their_coefficients() -> None:
    settings = MaskedLMSettings(masking="span", span_boundary=True, boundary_weight=0.25, sentence_weight=0.5)
    chosen = MaskedLM(settings, VOCABULARY)
    module = chosen.build(new_encoder(encoder_settings("bert")))
    labels = torch.zeros(len(LENGTHS), dtype=torch.int64)
    batch = chosen.prepare(batch_of(None).with_columns(next_sentence_label=labels))
    assert {term.name: term.coefficient for term in module(batch)} == {"mlm": 1.0, "nsp": 0.5, "sbo": 0.25}
