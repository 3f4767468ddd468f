"""Replaced-token detection in two stages, and what its directories hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from support.electra import DISCRIMINATOR, SIZE, new_module, new_objective, random_batch
from unmask.batch import Batch
from unmask.errors import ModelError, SettingsError
from unmask.models.electra import ElectraEncoder
from unmask.models.hub.directory import load_encoder, save_model
from unmask.models.hub.source import open_source
from unmask.objectives.directions import is_read_left_to_right
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule
from unmask.objectives.settings import ReplacedTokenSettings
from unmask.pretraining.steps import with_rates
from unmask.training.steps import set_training_mode

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# Two stages

TWO_STAGE = {"schedule": "two_stage", "generator_size": 1}


def train_a_step(module: ReplacedTokenModule, its: ReplacedToken, batch: Batch) -> set[str]:
    """Names of what the step has changed."""
    before = copy.deepcopy(dict(module.named_parameters()))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    counts = its.counts(batch)
    terms = module(batch)
    loss = torch.stack([term.coefficient * term.total / counts[term.name] for term in terms]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}


def parts(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_two_stages_train_the_generator_then_a_discriminator_that_starts_from_it() -> None:
    its, module = new_objective(**TWO_STAGE), new_module(**TWO_STAGE)
    batch = its.prepare(random_batch())
    assert parts(train_a_step(module, its, batch)) == {"generator", "generator_head"}
    assert set(module.scores(batch)) == {"generator_loss", "generator_accuracy"}

    module.begin_stage(1)
    assert torch.equal(module.encoder(batch), module.generator(batch))
    [term] = module(batch)
    assert (term.name, term.coefficient) == ("discriminator", 1.0)
    assert parts(train_a_step(module, its, batch)) == {"encoder", "discriminator_head"}
    trained = module.encoder(batch)
    assert not torch.equal(trained, module.generator(batch))
    module.begin_stage(1)  # which it is in
    assert torch.equal(module.encoder(batch), trained)
    assert {"generator_loss", "discriminator_loss"} <= module.scores(batch).keys()


def test_a_discriminator_may_begin_late_beside_its_generator() -> None:
    settings = {"discriminator_after": 0.25}
    its, module = new_objective(**settings), new_module(**settings)
    assert module.stages == (0.25, 1.0)
    batch = its.prepare(random_batch())
    shared = {"encoder.word_embeddings", "encoder.position_embeddings", "encoder.token_type_embeddings"}
    changed = train_a_step(module, its, batch)
    assert parts(changed) == {"generator", "generator_head", "encoder"}
    assert all("embedding" in name for name in changed if name.startswith("encoder")), changed - shared
    assert set(module.scores(batch)) == {"generator_loss", "generator_accuracy"}

    before = copy.deepcopy(module.encoder.blocks.state_dict())
    module.begin_stage(1)
    assert all(torch.equal(weight, before[name]) for name, weight in module.encoder.blocks.state_dict().items())
    assert [(term.name, term.coefficient) for term in module(batch)] == [("generator", 1.0), ("discriminator", 50.0)]
    assert parts(train_a_step(module, its, batch)) >= {"generator", "generator_head", "encoder", "discriminator_head"}
    assert module.train().generator.training


def test_a_late_discriminator_of_its_generators_size_starts_from_its_weights() -> None:
    settings = {"discriminator_after": 0.25, "generator_size": 1.0}
    its, module = new_objective(**settings), new_module(**settings)
    batch = its.prepare(random_batch())
    train_a_step(module, its, batch)
    assert not torch.equal(module.encoder(batch), module.generator(batch))
    module.begin_stage(1)
    assert torch.equal(module.encoder(batch), module.generator(batch))
    train_a_step(module, its, batch)
    assert not torch.equal(module.encoder(batch), module.generator(batch)), "they share their embeddings alone"


def test_a_generator_that_learns_alone_may_read_some_sequences_from_left_to_right() -> None:
    settings = {"discriminator_after": 0.5, "causal_share": 0.5}
    its, module = new_objective(**settings), new_module(**settings)
    [rates, later] = [ReplacedTokenSettings(**settings).rates(progress, None) for progress in (0.4, 0.5)]
    assert later == {}
    batch = its.prepare(with_rates(random_batch(), rates))
    assert any(batch.left_to_right)
    assert not batch.columns["labels"][is_read_left_to_right(batch)].ge(0).any()  # nothing is masked there
    assert {term.name for term in module(batch)} == {"generator", "lm"}
    assert parts(train_a_step(module, its, batch)) == {"generator", "generator_head", "encoder"}


def test_a_frozen_generator_stays_in_eval_mode() -> None:
    module = new_module(**TWO_STAGE).train()
    assert module.generator.training
    module.begin_stage(1)
    assert not module.generator.training
    assert not module.generator_head.training
    assert module.encoder.training
    module.eval()
    set_training_mode(module)
    assert not module.generator.training
    assert module.encoder.training


def test_a_restored_module_is_in_the_stage_that_it_was_saved_in() -> None:
    module = new_module(**TWO_STAGE)
    first = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.begin_stage(1)
    with torch.no_grad():
        module.encoder.word_embeddings.add_(1.0)
    resumed = new_module(**TWO_STAGE)
    resumed.load_state_dict(module.state_dict())
    assert resumed.stage == 1
    resumed.begin_stage(1)
    assert torch.equal(resumed.encoder.word_embeddings, module.encoder.word_embeddings)
    resumed.load_state_dict(first)  # as a run that goes back does
    assert resumed.stage == 0
    assert resumed.generator.training


def test_two_stages_share_nothing_and_start_from_the_given_encoder() -> None:
    module = new_module(**TWO_STAGE)
    generator, others = set(module.generator.parameters()), set(module.encoder.parameters())
    assert not generator & others
    assert torch.equal(module.generator.word_embeddings, module.encoder.word_embeddings)
    assert module.generator.settings == module.encoder.settings


# Directories


def test_what_is_saved_opens_in_transformers_and_starts_another_run(tmp_path: Path) -> None:
    its, module = new_objective(), new_module().eval()
    for folder, saved in module.saved().items():
        save_model(tmp_path / folder, saved.encoder, saved.heads)
    discriminator, report = ElectraForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    generator, report = ElectraForMaskedLM.from_pretrained(tmp_path / "generator", output_loading_info=True)
    assert not any(report.values()), report
    shared = discriminator.electra.embeddings.word_embeddings.weight
    assert torch.equal(generator.electra.embeddings.word_embeddings.weight, shared)

    again = its.build(load_encoder(tmp_path).encoder)
    its.restore_heads(again, open_source(tmp_path))
    batch = its.prepare(random_batch())
    for first, second in zip(module(batch), again.eval()(batch), strict=True):
        assert torch.equal(first.total, second.total)
    assert again.generator.word_embeddings is again.encoder.word_embeddings


def test_without_a_generator_s_folder_the_generator_is_fresh(tmp_path: Path) -> None:
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    its, module = new_objective(), new_module()
    before = module.state_dict()
    its.restore_heads(module, open_source(tmp_path))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "wider": ({"generator_size": 2 / 3}, {}, r"hidden_size 16, expected 8.*generator_size=0\.4.*tie_embeddings=all"),
    "as wide as the discriminator": ({"generator_size": 1}, {}, r"hidden_size 24, expected 8"),
    "another vocabulary": ({}, {"vocab_size": SIZE + 1}, rf"vocab_size {SIZE + 1}, expected {SIZE}"),
    "its own embeddings": ({"tie_embeddings": "none"}, {}, r"embedding_size 8, expected 10.*tie_embeddings=all"),
    "deeper": ({}, {"num_hidden_layers": 3}, r"num_hidden_layers 3, expected 2"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_generator_of_other_sizes_is_refused_with_the_settings_named(tmp_path: Path, misfit: str) -> None:
    settings, changes, message = MISFITS[misfit]
    sizes = DISCRIMINATOR.model_copy(update=changes)
    other = new_objective(**{"generator_size": 0.4} | settings).build(ElectraEncoder(sizes))
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    save_model(tmp_path / "generator", other.generator, {"masked_lm_head": other.generator_head})
    with pytest.raises(SettingsError, match=message):
        new_objective(generator_size=0.4).restore_heads(new_module(generator_size=0.4), open_source(tmp_path))


def test_other_dropout_is_no_misfit(tmp_path: Path) -> None:
    other = new_objective().build(ElectraEncoder(DISCRIMINATOR.model_copy(update={"hidden_dropout_prob": 0.1})))
    for folder, saved in other.saved().items():
        save_model(tmp_path / folder, saved.encoder, saved.heads)
    module = new_module()
    new_objective().restore_heads(module, open_source(tmp_path))
    assert module.generator.settings.hidden_dropout_prob == DISCRIMINATOR.hidden_dropout_prob
    assert torch.equal(module.generator_head.bias, other.generator_head.bias)
    assert torch.equal(module.generator_head.dense.weight, other.generator_head.dense.weight)


def test_a_folder_called_generator_with_another_model_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, ElectraEncoder(DISCRIMINATOR))
    save_model(tmp_path / "generator", ElectraEncoder(DISCRIMINATOR))
    with pytest.raises(ModelError, match="is a ElectraModel; expected a generator, an ElectraForMaskedLM"):
        new_objective().restore_heads(new_module(), open_source(tmp_path))
