"""What every pre-training objective promises, for each entry of OBJECTIVES in each of its variants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch
from unmask.data.loader import PairLoader, Position
from unmask.data.store import TokenStore
from unmask.models.bert import BertEncoder
from unmask.models.hub import load_model, save_model
from unmask.models.settings import EncoderSettings
from unmask.objectives.masked_lm import MaskedLM, MaskedLMModule
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.table import OBJECTIVES
from unmask.preparation import prepare
from unmask.pretraining import build_loader
from unmask.recipe import PretrainRecipe
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenizer_training import train_tokenizer

VARIANTS = {
    name: [
        {"masking": masking, "sentence_objective": sentences, "masking_mode": mode}
        for masking, sentences, mode in product(("token", "whole_word"), ("nsp", "none"), ("dynamic", "static"))
    ]
    for name in OBJECTIVES
}
"""Every entry must stand here: an objective without variants is not tested (`test_every_entry_is_tested`)."""


@dataclass(frozen=True)
class Case:
    objective: MaskedLM
    recipe: PretrainRecipe
    loader: PairLoader
    tokenizer: TextTokenizer

    def encoder(self, pooler: bool) -> BertEncoder:
        torch.manual_seed(0)
        settings = EncoderSettings(
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
        )
        return BertEncoder(settings, pooler)

    def module(self) -> MaskedLMModule:
        return self.objective.build(self.encoder(self.recipe.objective.sentence_objective != "none"))

    def batches(self, epoch: int = 0, micro_batch_size: int = 8) -> list[Batch]:
        """The first step of an epoch, prepared."""
        steps = replace(self.loader, micro_batch_size=micro_batch_size).steps(Position(epoch))
        return [self.objective.prepare(batch) for batch in next(steps).batches]

    def batch(self, epoch: int = 0) -> Batch:
        [batch] = self.batches(epoch)
        return batch


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> TokenStore:
    directory = tmp_path_factory.mktemp("objectives")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        documents = [json.loads(line)["text"][:1500] for line in islice(books, 12)]
    text = directory / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
    train_tokenizer([text], directory / "tokenizer", TokenizerSettings(vocab_size=200))
    return prepare([text], directory / "tokenizer", directory / "store")


@pytest.fixture(params=[(name, variant) for name in VARIANTS for variant in VARIANTS[name]], ids=str)
def case(request: pytest.FixtureRequest, store: TokenStore) -> Case:
    name, variant = request.param
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(store.directory),
            "objective": {"name": name, **variant},
            "packing": {"max_length": 32},
            "train": {"steps": 1, "batch_size": 8},
        }
    )
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = OBJECTIVES[name](recipe.objective, tokenizer.vocabulary)
    return Case(objective, recipe, build_loader(recipe, store, tokenizer, held_out=False), tokenizer)


def test_every_entry_is_tested() -> None:
    assert VARIANTS.keys() == OBJECTIVES.keys()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_builds_from_defaults(name: str, store: TokenStore) -> None:
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = OBJECTIVES[name](MaskedLMSettings(), tokenizer.vocabulary)
    module = objective.build(BertEncoder(EncoderSettings(vocab_size=300, hidden_size=12, num_hidden_layers=1)))
    assert isinstance(module.encoder, BertEncoder)


def same(first: Batch, second: Batch) -> bool:
    return torch.equal(first.input_ids, second.input_ids) and all(
        torch.equal(column, second.columns[name]) for name, column in first.columns.items()
    )


def test_the_same_keys_give_the_same_batch(case: Case) -> None:
    first = case.batch()
    torch.manual_seed(5)  # which no mask depends on
    assert same(first, case.batch())


def test_the_columns_it_needs_are_there(case: Case) -> None:
    step = next(case.loader.steps())
    assert set(case.objective.columns) <= step.batches[0].columns.keys()


def test_counts_are_those_of_labels_and_terms(case: Case) -> None:
    batch = case.batch()
    counts = case.objective.counts(batch)
    assert counts["mlm"] == int((batch.columns["labels"] != IGNORE_INDEX).sum()) > 0
    assert counts == {term.name: term.count for term in case.module()(batch)}


def test_masks_return_after_ten_epochs_where_they_are_static_and_never_where_not(case: Case) -> None:
    third, fourth, thirteenth = case.batch(3), case.batch(4), case.batch(13)
    assert not same(third, fourth)
    assert same(third, thirteenth) == (case.recipe.objective.masking_mode == "static")


def test_ten_copies_of_the_plan_have_other_masks_where_masking_is_dynamic(case: Case) -> None:
    """`packing.copies: 10` beside dynamic masking is the control for static masking: the masks alone differ."""
    loader = replace(case.loader, plan_copies=10)
    [third], [thirteenth] = (next(loader.steps(Position(epoch))).batches for epoch in (3, 13))
    assert torch.equal(third.input_ids, thirteenth.input_ids)
    labels = [case.objective.prepare(batch).columns["labels"] for batch in (third, thirteenth)]
    assert torch.equal(*labels) == (case.recipe.objective.masking_mode == "static")


def gradients(case: Case, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Of a whole step, as the loop takes it."""
    module = case.module()
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in case.objective.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    for batch in batches:
        terms = module(batch)
        torch.stack([term.coefficient * term.total / counts[term.name] for term in terms]).sum().backward()
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_the_gradient_does_not_depend_on_the_micro_batches(case: Case, micro_batch_size: int) -> None:
    whole = gradients(case, case.batches())
    cut = gradients(case, case.batches(micro_batch_size=micro_batch_size))
    assert whole.keys() == cut.keys()
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    for name, gradient in whole.items():
        # fp32: sums of a few hundred products in another order, some ten roundings of 6e-8 of the largest
        assert float((gradient - cut[name]).abs().max()) < 1e-6 * largest, name


def test_the_gradient_of_a_mean_of_means_would_be_seen(case: Case) -> None:
    whole = gradients(case, case.batches())
    parts = [gradients(case, [batch]) for batch in case.batches(micro_batch_size=3)]
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    differences = [
        float((gradient - torch.stack([part[name] for part in parts]).mean(0)).abs().max()) / largest
        for name, gradient in whole.items()
    ]
    assert max(differences) > 1e-3


def test_what_is_saved_loads_equal(case: Case, tmp_path: Path) -> None:
    module = case.module().eval()
    save_model(
        tmp_path, module.encoder, masked_lm_head=module.masked_lm_head, next_sentence_head=module.next_sentence_head
    )
    loaded = load_model(tmp_path)
    again = case.module().eval()
    again.encoder, again.next_sentence_head = loaded.encoder.eval(), loaded.next_sentence_head
    assert loaded.masked_lm_head is not None
    again.masked_lm_head = loaded.masked_lm_head
    batch = case.batch()
    with torch.no_grad():
        for first, second in zip(module(batch), again(batch), strict=True):
            assert torch.equal(first.total, second.total)


def test_it_learns_a_small_batch_by_heart(case: Case) -> None:
    module, batch = case.module(), case.batch()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(60):
        terms = module(batch)
        loss = torch.stack([term.coefficient * term.total / term.count for term in terms]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        scores = {name: float(total) / count for name, (total, count) in module.scores(batch).items()}
    assert all(value == 1 for name, value in scores.items() if name.endswith("accuracy")), scores
    assert all(value < 0.1 for name, value in scores.items() if name.endswith("loss")), scores
