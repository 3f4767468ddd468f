"""What ELECTRA is compared with (section 3.4): against the formulas on `transformers`' models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import Tensor
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from support.electra import LENGTHS, new_module, new_objective, random_batch
from unmask.batch import Batch
from unmask.errors import SettingsError
from unmask.models.hub.directory import load_model, save_model
from unmask.models.hub.source import open_source
from unmask.objectives.base import original_ids
from unmask.objectives.corrupted_text import CorruptedText
from unmask.objectives.floors import by_figure
from unmask.objectives.replaced_token import ReplacedTokenModule
from unmask.objectives.settings import ReplacedTokenSettings

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
TERMS = {"electra_15": "discriminator", "replace_mlm": "mlm", "all_tokens_mlm": "all_tokens"}


def opened(variant: str, **settings: Any) -> tuple[Batch, ReplacedTokenModule, CorruptedText]:
    """A prepared batch, a module without dropout whose biases are not 0, and the text that its discriminator reads."""
    its, module = new_objective(variant=variant, **settings), new_module(variant=variant, **settings).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    batch = its.prepare(random_batch(LENGTHS * 8))
    with torch.no_grad():
        return batch, module, module.corrupt(batch, module.generator_logits(batch)[0])


def reference(directory: Path, module: ReplacedTokenModule, text: CorruptedText, variant: str) -> list[Tensor]:
    """The losses of the variant, by hand, from the logits that `transformers` computes one sequence at a time; and the
    word embeddings that they have a gradient for."""
    if variant == "electra_15":
        heads = {"discriminator_head": module.head}
    else:
        heads = {"masked_lm_head": module.head if variant == "replace_mlm" else module.head.masked_lm_head}
    save_model(directory, module.encoder, heads)
    theirs = (ElectraForPreTraining if variant == "electra_15" else ElectraForMaskedLM).from_pretrained(
        directory, attn_implementation="eager"
    )
    losses = []
    lengths, originals = text.batch.lengths, original_ids(text.batch)
    targets = torch.zeros(text.batch.num_tokens, dtype=torch.bool)
    targets[text.batch.columns["target_positions"]] = True
    parts = (each.split(lengths) for each in (text.batch.input_ids, originals, text.replaced, targets))
    for ids, wanted, replaced, is_target in zip(*parts, strict=True):
        output = theirs.eval()(input_ids=ids[None], output_hidden_states=True)
        logits = output.logits[0]
        if variant == "electra_15":
            chance = torch.sigmoid(logits)
            losses.append(-torch.where(replaced, chance, 1 - chance).log()[is_target])
            continue
        chances = torch.softmax(logits, -1)
        if variant == "all_tokens_mlm":
            copied = torch.sigmoid(module.head.copy_head(output.hidden_states[-1][0]))
            shown = torch.nn.functional.one_hot(ids, chances.shape[1])
            chances = copied[:, None] * shown + (1 - copied[:, None]) * chances
            is_target = torch.ones_like(is_target)
        losses.append(-chances.gather(1, wanted[:, None]).squeeze(1).log()[is_target])
    return [torch.cat(losses), theirs.electra.embeddings.word_embeddings.weight]


@pytest.mark.parametrize("variant", TERMS)
def test_losses_and_gradients_are_those_of_the_formulas(tmp_path: Path, variant: str) -> None:
    batch, module, text = opened(variant, tie_embeddings="none")
    losses, words = reference(tmp_path, module, text, variant)
    losses.mean().backward()
    [_, term] = module(batch)
    count = new_objective(variant=variant).counts(batch)[term.name]
    (term.total / count).backward()
    assert (term.name, count) == (TERMS[variant], len(losses))
    assert float((term.total / count).detach()) == pytest.approx(float(losses.mean().detach()), rel=TOLERANCE)
    assert words.grad is not None
    scale = float(words.grad.abs().max())
    assert float((module.encoder.word_embeddings.grad - words.grad).abs().max()) / scale < TOLERANCE
    assert all(p.grad is None for part in (module.generator, module.generator_head) for p in part.parameters())
    assert all(p.grad is not None for part in (module.encoder, module.head) for p in part.parameters())


@torch.no_grad()
@pytest.mark.parametrize("variant", TERMS)
def test_scores_are_those_of_the_tokens_that_are_asked_about(tmp_path: Path, variant: str) -> None:
    batch, module, text = opened(variant)
    losses, _ = reference(tmp_path, module, text, variant)
    scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    targets = batch.columns["target_positions"]
    asked = text.replaced if variant == "all_tokens_mlm" else text.replaced[targets]
    assert 0 < int(text.replaced.sum()) < len(targets), "some samples are right, some wrong"
    assert scores[f"{TERMS[variant]}_loss"] == pytest.approx(float(losses.mean()), rel=TOLERANCE)
    assert scores["replaced_share"] == pytest.approx(float(asked.float().mean()))
    assert ("discriminator_auc" in scores) == (variant == "electra_15")
    assert ("restored_share" in scores) == (variant != "electra_15")


@torch.no_grad()
def test_one_that_copies_restores_nothing_and_one_that_does_not_copies_nothing() -> None:
    batch, module, text = opened("all_tokens_mlm")
    shares = {}
    for copies in (True, False):
        module.head.copy_head.output.weight.zero_()
        module.head.copy_head.output.bias.fill_(40.0 if copies else -40.0)
        module.head.masked_lm_head.bias.zero_()
        module.head.masked_lm_head.bias[9] = 1e4  # it always says 9
        scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
        shares[copies] = scores["all_tokens_accuracy"], scores["restored_share"]
    is_nine = original_ids(batch) == 9
    assert shares[True] == (pytest.approx(float((~text.replaced).double().mean())), 0.0)
    assert shares[False] == (
        pytest.approx(float(is_nine.double().mean())),
        pytest.approx(float(is_nine[text.replaced].double().mean())),
    )


@torch.no_grad()
def test_the_report_shows_the_tokens_that_are_asked_about() -> None:
    kinds = {}
    for variant in ("electra", *TERMS):
        batch, module, _ = opened(variant)
        tokens = module.predictions(batch, 2, str).tokens
        targets = {place for place in batch.columns["target_positions"].tolist() if place < sum(LENGTHS[:2])}
        kinds[variant] = {token["kind"] for token in tokens.values()}, set(tokens) == targets
        shown = module.corrupt(batch, module.generator_logits(batch)[0]).batch.input_ids
        assert all(token["token"] == str(int(shown[place])) for place, token in tokens.items())
    assert kinds["electra"] == ({"checked"}, False)
    assert kinds["electra_15"] == ({"checked"}, True)
    assert kinds["replace_mlm"] == kinds["all_tokens_mlm"] == ({"masked"}, True)


def test_detecting_counts_by_its_weight_and_predicting_once() -> None:
    found = {}
    for variant in ("electra", *TERMS):
        terms = new_module(variant=variant)(new_objective(variant=variant).prepare(random_batch()))
        found[variant] = [term.coefficient for term in terms]
    assert found == {
        "electra": [1.0, 50.0],
        "electra_15": [1.0, 50.0],
        "replace_mlm": [1.0, 1.0],
        "all_tokens_mlm": [1.0, 1.0],
    }


def test_what_has_never_seen_a_mask_is_saved_as_an_encoder() -> None:
    heads = {variant: set(new_module(variant=variant).saved()[""].heads) for variant in ("electra", *TERMS)}
    assert heads == {
        "electra": {"discriminator_head"},
        "electra_15": {"discriminator_head"},
        "replace_mlm": set(),
        "all_tokens_mlm": set(),
    }


def test_floors_are_those_of_copying() -> None:
    counts, entropy, share = np.array([0, 0, 0, 0, 0, 2, 1, 1]), 1.5 * math.log(2), 0.1
    copying = -share * math.log(share) - (1 - share) * math.log(1 - share) + share * entropy
    for variant, term in (("replace_mlm", "mlm"), ("all_tokens_mlm", "all_tokens")):
        its = new_objective(variant=variant)
        floors = by_figure(its.floors(counts, evaluation={"eval/replaced_share": share}))
        assert floors[f"loss/{term}"] == {"copying": pytest.approx(copying)}
        assert floors[f"eval/{term}_accuracy"] == {"as shown": pytest.approx(1 - share)}
        assert by_figure(its.floors(counts)).keys() == {"loss/generator", "eval/generator_accuracy"}
        assert its.vocabulary_terms == ("generator", term)


def test_with_all_weights_tied_there_is_one_encoder_and_each_model_is_saved(tmp_path: Path) -> None:
    settings = {"tie_weights": True, "generator_size": 1.0}
    batch, module, _ = opened("electra", **settings)
    assert module.generator is module.encoder
    sum(term.total for term in module(batch)).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None for parameter in module.parameters())
    for folder, kept in module.saved().items():
        save_model(tmp_path / folder, kept.encoder, kept.heads)
    its = new_objective(**settings)
    again = its.build(load_model(tmp_path).encoder)
    its.restore_heads(again, open_source(tmp_path))
    assert again.generator is again.encoder
    for name, weight in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def test_a_generator_with_weights_of_its_own_is_not_made_one_with_its_discriminator(tmp_path: Path) -> None:
    for folder, kept in new_module(generator_size=1.0).saved().items():
        save_model(tmp_path / folder, kept.encoder, kept.heads)
    its = new_objective(tie_weights=True, generator_size=1.0)
    with pytest.raises(SettingsError, match=r"weights of its own.*tie_weights=false"):
        its.restore_heads(its.build(load_model(tmp_path).encoder), open_source(tmp_path))


def test_most_targets_may_be_replaced_and_the_floor_is_then_to_say_so() -> None:
    counts = np.array([0, 0, 0, 0, 0, 2, 1, 1])
    floors = by_figure(new_objective(variant="electra_15").floors(counts, evaluation={"eval/replaced_share": 0.75}))
    assert floors["eval/discriminator_accuracy"] == {"always replaced": pytest.approx(0.75)}


def test_weights_of_two_sizes_are_not_tied() -> None:
    for given, key in (
        ({"tie_weights": True}, "generator_size=1"),
        ({"tie_weights": True, "generator_size": 1, "tie_embeddings": "none"}, "tie_embeddings=all"),
        ({"tie_weights": True, "generator_size": 1, "schedule": "two_stage"}, "schedule=joint"),
        ({"variant": "electra_100"}, "electra_15"),
        ({"variant": "replace_mlm", "discriminator_weight": 2.0}, "no effect with variant replace_mlm"),
    ):
        with pytest.raises(ValidationError, match=key):
            ReplacedTokenSettings(**given)
