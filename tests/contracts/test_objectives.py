"""What every pre-training objective promises, for each entry of OBJECTIVES in each of its variants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.data.loader import Position, SequenceLoader
from unmask.data.store import TokenStore
from unmask.models.encoder import new_encoder
from unmask.models.hub import load_encoder
from unmask.models.settings import Architecture, EncoderSettings
from unmask.objectives.base import Objective
from unmask.objectives.replaced_token import ReplacedToken, ReplacedTokenModule
from unmask.objectives.settings import ObjectiveSettings
from unmask.objectives.table import OBJECTIVES
from unmask.preparation import prepare
from unmask.pretraining import save_pretrained
from unmask.pretraining_inputs import sequence_loader
from unmask.recipe import PretrainRecipe
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenizer_training import train_tokenizer

ALONE = {"sentence_objective": "none"}
ELECTRA = {"architecture": "electra", "embedding_size": 16}

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "masked_lm": {
        "tokens, NSP on segment pairs": {},
        "static masks": {"objective": {"masking_mode": "static"}},
        "whole words, NSP on sentence pairs": {
            "objective": {"masking": "whole_word"},
            "packing": {"format": "sentence_pair"},
        },
        "sentence order": {"objective": {"sentence_objective": "sop"}},
        "spans": {"objective": {"masking": "span", **ALONE}},
        "spans and boundaries on single segments, static": {
            "objective": {"masking": "span", "span_boundary": True, "masking_mode": "static", **ALONE},
            "packing": {"format": "single_segment"},
        },
        "RoBERTa on full sentences": {
            "objective": ALONE,
            "packing": {"format": "full_sentences"},
            "model": {"architecture": "roberta", "max_position_embeddings": None},
        },
        "ELECTRA on doc sentences": {
            "objective": ALONE,
            "packing": {"format": "doc_sentences"},
            "model": ELECTRA,
        },
    },
    "causal_lm": {
        "GPT-1": {"model": {"architecture": "gpt1"}, "packing": {"format": "single_segment"}},
        "BERT": {"model": {"causal": True}},
        "LSTM": {
            "model": {"architecture": "lstm", "num_attention_heads": None, "attention_probs_dropout_prob": None},
            "packing": {"format": "single_segment"},
        },
    },
    "replaced_token": {
        "tied": {"model": ELECTRA, "packing": {"format": "single_segment"}},
        "untied, static masks, 15 % kept": {
            "objective": {"tie_embeddings": "none", "masking_mode": "static", "mask_token_prob": 0.85},
            "model": ELECTRA,
        },
        "the first of two stages": {
            "objective": {"schedule": "two_stage", "generator_size": 1},
            "model": ELECTRA,
            "stage": 0,
        },
        "the second of two stages": {
            "objective": {"schedule": "two_stage", "generator_size": 1},
            "model": ELECTRA,
            "stage": 1,
        },
    },
    "bilm": {},
}
"""What differs from the recipe in `case`; every entry must stand here (`test_every_entry_is_tested`).

`bilm` has no variant: its loader gives lanes and characters of words from a store of another kind, its module remembers
what it has read. All that is asked here is asked of it in tests/unit/objectives/test_bilm.py and
tests/unit/data/test_stream.py.
"""


@dataclass(frozen=True)
class Case:
    objective: Objective
    recipe: PretrainRecipe
    loader: SequenceLoader
    tokenizer: TextTokenizer
    stage: int | None

    def module(self) -> Any:
        torch.manual_seed(0)
        sizes = self.recipe.model.resolve(self.tokenizer.vocab_size, self.tokenizer.pad_id)
        return self.in_stage(self.objective.build(new_encoder(sizes, pooler=self.objective.needs_pooler)))

    def in_stage(self, module: Any) -> Any:
        if self.stage is not None:
            assert isinstance(self.objective, ReplacedToken)
            assert isinstance(module, ReplacedTokenModule)
            module.set_extra_state(self.stage)
            self.objective.stage = self.stage
        return module

    @property
    def is_static(self) -> bool:
        return getattr(self.recipe.objective, "masking_mode", "dynamic") == "static"

    @property
    def draws(self) -> bool:
        """Whether preparing a batch is a matter of chance."""
        return self.recipe.objective.name != "causal_lm"

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


@pytest.fixture(
    scope="module",
    params=[pytest.param((name, variant), id=f"{name}: {variant}") for name in VARIANTS for variant in VARIANTS[name]],
)
def case(request: pytest.FixtureRequest, store: TokenStore) -> Case:
    name, variant = request.param
    changes = VARIANTS[name][variant]
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(store.directory),
            "objective": {"name": name, **changes.get("objective", {})},
            "packing": {"max_length": 32, **changes.get("packing", {})},
            "model": {
                "preset": "tiny",
                "hidden_size": 32,
                "num_attention_heads": 2,
                "max_position_embeddings": 32,
                "hidden_dropout_prob": 0,
                "attention_probs_dropout_prob": 0,
                **changes.get("model", {}),
            },
            "train": {"steps": 1, "batch_size": 8},
        }
    )
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = OBJECTIVES[name](recipe.objective, tokenizer.vocabulary)
    loader = sequence_loader(recipe, store, tokenizer, held_out=False)
    return Case(objective, recipe, loader, tokenizer, changes.get("stage"))


def test_every_entry_is_tested() -> None:
    assert VARIANTS.keys() == OBJECTIVES.keys()
    assert [name for name in VARIANTS if not VARIANTS[name]] == ["bilm"]


@pytest.mark.parametrize(
    ("name", "architecture"), [("masked_lm", "bert"), ("causal_lm", "gpt1"), ("replaced_token", "electra")]
)
def test_it_builds_from_defaults(name: str, architecture: Architecture, store: TokenStore) -> None:
    settings: ObjectiveSettings = TypeAdapter(ObjectiveSettings).validate_python({"name": name})
    objective = OBJECTIVES[name](settings, load_tokenizer(store.tokenizer_directory).vocabulary)
    encoder = new_encoder(
        EncoderSettings(architecture=architecture, vocab_size=300, hidden_size=12, num_hidden_layers=1), pooler=True
    )
    assert objective.build(encoder).encoder is encoder


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
    module, batch = case.module(), case.batch()
    counts = case.objective.counts(batch)
    targets = int((batch.columns["labels"] != IGNORE_INDEX).sum())
    counted = {
        "mlm": targets,
        "lm": targets,
        "generator": targets,
        "nsp": batch.num_sequences,
        "sop": batch.num_sequences,
        "sbo": len(batch.columns.get("boundary_targets", ())),
        "discriminator": batch.num_tokens,
    }
    assert counts == {name: counted[name] for name in counts}
    assert min(counts.values()) > 0
    assert counts == {term.name: term.count for term in module(batch)}


def test_masks_return_after_ten_epochs_where_they_are_static_and_never_where_not(case: Case) -> None:
    third, fourth, thirteenth = case.batch(3), case.batch(4), case.batch(13)
    assert not same(third, fourth)
    assert same(third, thirteenth) == case.is_static


def test_ten_copies_of_the_plan_have_other_masks_where_masking_is_dynamic(case: Case) -> None:
    """`packing.copies: 10` beside dynamic masking is the control for static masking: the masks alone differ."""
    loader = replace(case.loader, plan_copies=10)
    [third], [thirteenth] = (next(loader.steps(Position(epoch))).batches for epoch in (3, 13))
    assert torch.equal(third.input_ids, thirteenth.input_ids)
    assert same(*map(case.objective.prepare, (third, thirteenth))) == (case.is_static or not case.draws)


def gradients(case: Case, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Of a whole step, as the loop takes it."""
    module = case.module()
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in case.objective.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    for batch in batches:
        terms = module(batch)
        torch.stack([term.coefficient * term.total / max(1, counts[term.name]) for term in terms]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_the_gradient_does_not_depend_on_the_micro_batches(case: Case, micro_batch_size: int) -> None:
    """Nor do the generator's samples: one is another only where rounding moves the cumulative softmax over its number,
    a chance of some 1e-7 for each of a hundred samples, and the numbers of this seed are none of those."""
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


def test_only_what_is_frozen_gets_no_gradient(case: Case) -> None:
    """In each of two stages one of the two learns; elsewhere everything does."""
    module = case.module()
    learning = gradients(case, case.batches()).keys()
    frozen = {name for name, _ in module.named_parameters() if name not in learning}
    if case.stage is None:
        assert frozen == set()
    else:
        frozen_parts = (("encoder.", "discriminator_head."), ("generator.", "generator_head."))[case.stage]
        assert frozen == {name for name, _ in module.named_parameters() if name.startswith(frozen_parts)}


def test_what_is_saved_loads_equal(case: Case, tmp_path: Path) -> None:
    module: nn.Module = case.module().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)  # so that no weight is as fresh ones are
    save_pretrained(module, case.tokenizer, tmp_path)  # type: ignore[arg-type]
    torch.manual_seed(7)
    loaded = case.objective.build(load_encoder(tmp_path, pooler=case.objective.needs_pooler).encoder)
    case.objective.restore_heads(loaded, tmp_path)
    again = case.in_stage(loaded).eval()
    batch = case.batch()
    weights = again.state_dict()
    assert weights.keys() == module.state_dict().keys()
    for name, weight in module.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    with torch.no_grad():
        first, second = module(batch), again(batch)
    for term, same_term in zip(first, second, strict=True):
        assert isinstance(term, LossTerm)
        assert torch.equal(term.total, same_term.total)


@torch.no_grad()
def scores_of(module: Any, batch: Batch, terms: set[str]) -> dict[str, float]:
    """The loss and the accuracy of the terms that are trained."""
    scores = {name: float(total) / max(1, count) for name, (total, count) in module.scores(batch).items()}
    wanted = [f"{term}_{figure}" for term in terms for figure in ("loss", "accuracy")]
    return {name: scores[name] for name in wanted}


def is_learnt(scores: dict[str, float]) -> bool:
    return all(value == 1 if name.endswith("accuracy") else value < 0.1 for name, value in scores.items())


def test_it_learns_a_small_batch_by_heart(case: Case) -> None:
    """Left to right only one sequence can be: what follows the first token of several is not told by it. A generator
    that has learnt its batch replaces nothing any more, which the discriminator then says."""
    module, batch = case.module(), case.batches(micro_batch_size=4 if case.draws else 1)[0]
    trained = set(case.objective.counts(batch))
    assert not is_learnt(scores_of(module, batch, trained))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(20):
        for _ in range(20):
            terms = module(batch)
            loss = torch.stack([term.coefficient * term.total / term.count for term in terms]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if is_learnt(scores_of(module, batch, trained)):
            break
    assert is_learnt(scores_of(module, batch, trained)), scores_of(module, batch, trained)
