"""What every pre-training objective promises, for each entry of OBJECTIVES in each of its variants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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
from unmask.data.stream import StreamLoader
from unmask.filling import Shapes, fill
from unmask.models.elmo import ElmoEncoder
from unmask.models.encoder import new_encoder
from unmask.models.hub import load_encoder
from unmask.models.lstm import LstmEncoder
from unmask.models.settings import Architecture, EncoderSettings
from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLMModule
from unmask.objectives.replaced_token import ReplacedTokenModule
from unmask.objectives.settings import ObjectiveSettings
from unmask.objectives.table import OBJECTIVES
from unmask.preparation import prepare
from unmask.pretraining import save_pretrained
from unmask.pretraining_batches import build_loader
from unmask.recipe import PretrainRecipe
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.tokenizer_training import train_tokenizer
from unmask.training.adamw import AdamW
from unmask.training.checkpoint import open_checkpoint, restore, save_checkpoint
from unmask.training.device import Compute
from unmask.training.loop import TrainState
from unmask.training.optimizer import Schedule, build_optimizer
from unmask.training.recorded_stepper import RecordedStepper
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.stepper import EagerStepper, StepFigures, Stepper
from unmask.training.steppers import why_not_filled

VOCAB_SIZE = 200
"""Word pieces or words."""

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
        "entities": {"objective": {"masking": "entity", **ALONE}},
        "noun phrases on single segments, static": {
            "objective": {"masking": "noun_phrase", "masking_mode": "static", **ALONE},
            "packing": {"format": "single_segment"},
        },
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
    "bilm": {
        "sampled softmax": {"objective": {"num_negatives": 50}},
        "full softmax": {"objective": {"num_negatives": 500}},
    },
}
"""What differs from the recipe in `case`; every entry must stand here (`test_every_entry_is_tested`)."""

SIZES: dict[str, Any] = {
    "preset": "tiny",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
}
SIZES_OF_ELMO: dict[str, Any] = {
    "architecture": "elmo",
    "preset": "tiny",
    "filters": [[1, 4], [2, 8]],
    "projection_size": 16,
    "cell_size": 32,
    "hidden_dropout_prob": 0,
}

KINDS = {"entity": re.compile(r"[A-Z]\w+(?: [A-Z]\w+)*"), "noun_phrase": re.compile(r"\b(?:an?|the|his|her|my) \w+")}
"""What the text is annotated with, roughly."""


@dataclass(frozen=True)
class Case:
    objective: Objective
    recipe: PretrainRecipe
    loader: SequenceLoader | StreamLoader
    tokenizer: Tokenizer
    stage: int | None

    def module(self) -> Any:
        torch.manual_seed(0)
        sizes = self.recipe.model.resolve(self.tokenizer.vocab_size, self.tokenizer.pad_id)
        return self.in_stage(self.objective.build(new_encoder(sizes, pooler=self.objective.needs_pooler)))

    def in_stage(self, module: Any) -> Any:
        if self.stage is not None:
            assert isinstance(module, ReplacedTokenModule)
            module.set_extra_state(self.stage)
        return module

    @property
    def is_static(self) -> bool:
        return getattr(self.recipe.objective, "masking_mode", "dynamic") == "static"

    @property
    def draws(self) -> bool:
        """Whether preparing a batch is a matter of chance."""
        return self.masks or self.samples_words

    @property
    def masks(self) -> bool:
        """Whether targets are masked, not what comes next."""
        return self.recipe.objective.name not in ("causal_lm", "bilm")

    @property
    def samples_words(self) -> bool:
        """Whether the loss is that of a sampled softmax."""
        return getattr(self.recipe.objective, "num_negatives", VOCAB_SIZE) < VOCAB_SIZE

    @property
    def reads_on(self) -> bool:
        """Whether the module remembers what it has read, so that its sequences are lanes of a stream."""
        return self.recipe.objective.name == "bilm"

    def steps(self, epoch: int = 0, micro_batch_size: int = 8) -> Iterator[list[Batch]]:
        """The batches of each step from the beginning of an epoch on, prepared."""
        for step in replace(self.loader, micro_batch_size=micro_batch_size).steps(Position(epoch)):
            yield [self.objective.prepare(batch) for batch in step.batches]

    def batches(self, epoch: int = 0, micro_batch_size: int = 8) -> list[Batch]:
        """The first step of an epoch, prepared."""
        return next(self.steps(epoch, micro_batch_size))

    def batch(self, epoch: int = 0) -> Batch:
        [batch] = self.batches(epoch)
        return batch


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> dict[str, TokenStore]:
    """Of the same annotated text, by the kind of tokenizer."""
    directory = tmp_path_factory.mktemp("objectives")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        documents = [annotated(json.loads(line)["text"][:1500]) for line in islice(books, 12)]
    text = directory / "text.jsonl"
    text.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    made: dict[str, TokenStore] = {}
    for kind in ("wordpiece", "word"):
        settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": VOCAB_SIZE})
        train_tokenizer([text], directory / kind, settings)
        made[kind] = prepare([text], directory / kind, directory / f"{kind}-store")
    return made


def annotated(text: str) -> dict[str, Any]:
    spans = [[*match.span(), kind] for kind, form in KINDS.items() for match in form.finditer(text)]
    return {"text": text, "spans": spans}


@pytest.fixture(scope="module")
def store(stores: dict[str, TokenStore]) -> TokenStore:
    return stores["wordpiece"]


@pytest.fixture(
    scope="module",
    params=[pytest.param((name, variant), id=f"{name}: {variant}") for name in VARIANTS for variant in VARIANTS[name]],
)
def case(request: pytest.FixtureRequest, stores: dict[str, TokenStore]) -> Case:
    name, variant = request.param
    changes = VARIANTS[name][variant]
    store = stores["word" if name == "bilm" else "wordpiece"]
    packing = {"format": "stream", "max_length": 8} if name == "bilm" else {"max_length": 32}
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(store.directory),
            "objective": {"name": name, **changes.get("objective", {})},
            "packing": {**packing, **changes.get("packing", {})},
            "model": {**(SIZES_OF_ELMO if name == "bilm" else SIZES), **changes.get("model", {})},
            "train": {"steps": 1, "batch_size": 8},
        }
    )
    tokenizer = open_tokenizer(store.tokenizer_directory)
    objective = OBJECTIVES[name](recipe.objective, tokenizer.vocabulary)
    loader = build_loader(recipe, store, tokenizer, held_out=False)
    return Case(objective, recipe, loader, tokenizer, changes.get("stage"))


def test_every_entry_is_tested() -> None:
    assert VARIANTS.keys() == OBJECTIVES.keys()
    assert all(VARIANTS.values())


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
    labels = [column for name, column in batch.columns.items() if name in ("labels", "backward_labels")]
    targets = sum(int((each != IGNORE_INDEX).sum()) for each in labels)
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
    terms = {term.name: term.count for term in module(batch)}
    assert terms == {name: counts[name] for name in terms}
    assert case.stage is not None or terms.keys() == counts.keys()


def test_masks_return_after_ten_epochs_where_they_are_static_and_never_where_not(case: Case) -> None:
    third, fourth, thirteenth = case.batch(3), case.batch(4), case.batch(13)
    assert not same(third, fourth)
    assert same(third, thirteenth) == case.is_static


def test_ten_copies_of_the_plan_have_other_masks_where_masking_is_dynamic(case: Case) -> None:
    """`packing.copies: 10` beside dynamic masking is the control for static masking: the masks alone differ."""
    if isinstance(case.loader, StreamLoader):
        pytest.skip("a stream has no copies: `packing.copies` is refused beside it")
    loader = replace(case.loader, plan_copies=10)
    [third], [thirteenth] = (next(loader.steps(Position(epoch))).batches for epoch in (3, 13))
    assert torch.equal(third.input_ids, thirteenth.input_ids)
    assert same(*map(case.objective.prepare, (third, thirteenth))) == (case.is_static or not case.draws)


def gradients(case: Case, *steps: Sequence[Batch]) -> dict[str, Tensor]:
    """Of the last one of these steps, as the loop takes it, by a module that has read those before it."""
    module = case.module()
    for step in steps:
        module.zero_grad()
        counts: dict[str, int] = {}
        for batch in step:
            for name, count in case.objective.counts(batch).items():
                counts[name] = counts.get(name, 0) + count
        for batch in step:
            terms = module(batch)
            torch.stack([term.coefficient * term.total / max(1, counts[term.name]) for term in terms]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """As a share of the largest gradient."""
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    return max(float((gradient - other[name]).abs().max()) for name, gradient in one.items()) / largest


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_the_gradient_does_not_depend_on_the_micro_batches(case: Case, micro_batch_size: int) -> None:
    """Nor do the generator's samples: one is another only where rounding moves the cumulative softmax over its number,
    a chance of some 1e-7 for each of a hundred samples, and the numbers of this seed are none of those.

    The gradient is that of a second step: a stream is cut between its lanes, each of which goes on from what its own
    micro-batch has read in the first.
    """
    whole = gradients(case, *islice(case.steps(), 2))
    cut = gradients(case, *islice(case.steps(micro_batch_size=micro_batch_size), 2))
    # fp32: sums of a few hundred products in another order, some ten roundings of 6e-8 of the largest
    assert largest_difference(whole, cut) < 1e-6


def test_the_gradient_of_a_stream_is_of_what_its_lanes_remember(case: Case) -> None:
    first, second = islice(case.steps(), 2)
    difference = largest_difference(gradients(case, first, second), gradients(case, second))
    assert difference > 1e-3 if case.reads_on else difference == 0


def test_the_gradient_of_a_mean_of_means_would_be_seen(case: Case) -> None:
    whole = gradients(case, case.batches())
    parts = [gradients(case, [batch]) for batch in case.batches(micro_batch_size=3)]
    means = {name: torch.stack([part[name] for part in parts]).mean(0) for name in whole}
    assert largest_difference(whole, means) > 1e-3


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


@dataclass(frozen=True)
class Near:
    """How near recorded steps come to those computed as they come, relatively; of weights, also absolutely."""

    sums: float
    norm: float
    weights: float
    weights_by: float


NEAR = {torch.float32: Near(1e-5, 1e-4, 1e-4, 1e-5), torch.bfloat16: Near(3e-2, 1e-1, 1e-1, 1e-2)}
"""fp32: the same sums in another order, some ten roundings of 6e-8; the samples of a generator, see above. AdamW
divides by the root of a mean square, whose own rounding counts where a gradient is close to 0. bf16: 8 bits, and hidden
states, embeddings and LayerNorms are rounded where autocast keeps some of them."""


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_filled_batches_and_recorded_steps_change_nothing(case: Case, dtype: torch.dtype) -> None:
    """Three steps in two micro-batches each, as they come and in filled batches of one shape; dropout is off."""
    compute, near = Compute(torch.device("cpu"), dtype, "test"), NEAR[dtype]
    eager, recorded = case.module(), case.module()
    if (why_not := why_not_filled(eager)) is not None:
        pytest.skip(why_not)
    settings = OptimizerSettings(learning_rate=1e-3, epsilon=1e-4)
    optimizers = [build_optimizer(module.train(), settings) for module in (eager, recorded)]
    assert isinstance(optimizers[1], AdamW)
    steppers: list[Stepper] = [
        EagerStepper(eager, optimizers[0], 0.5, compute.device, compute.autocast),
        RecordedStepper(recorded, optimizers[1], 0.5, 1e9, compute, recorded.fillings, longest=32, compiles=False),
    ]
    found: list[list[StepFigures]] = [[], []]
    for stepper, figures in zip(steppers, found, strict=True):
        stepper.restart([2.0] * 30)
        for batches in islice(case.steps(micro_batch_size=4), 3):
            counts = [case.objective.counts(batch) for batch in batches]
            stepper.launch(batches, {name: sum(count[name] for count in counts) for name in counts[0]})
            if isinstance(stepper, EagerStepper):
                figures += stepper.read(lambda *_: True)
        if not isinstance(stepper, EagerStepper):
            figures += stepper.read(lambda *_: True)
    assert len(found[0]) == len(found[1]) == 3
    for one, other in zip(*found, strict=True):
        assert one.coefficients == other.coefficients
        assert one.sums == pytest.approx(other.sums, rel=near.sums)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=near.norm)
    for weight, other_weight in zip(eager.parameters(), recorded.parameters(), strict=True):
        torch.testing.assert_close(weight, other_weight, rtol=near.weights, atol=near.weights_by)


def take_steps(case: Case, module: Any, optimizer: torch.optim.Optimizer, start: Position, number: int) -> Position:
    """Takes steps from a position on, in ragged micro-batches, and tells the next one."""
    for step in islice(replace(case.loader, micro_batch_size=3).steps(start), number):
        for batch in map(case.objective.prepare, step.batches):
            terms = module(batch)
            torch.stack([term.coefficient * term.total / max(1, term.count) for term in terms]).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        start = step.after
    return start


def test_what_goes_on_from_a_checkpoint_is_what_never_stopped(case: Case, tmp_path: Path) -> None:
    """Bit for bit: all that an objective remembers is in the module's state, and masks are told by the position."""
    settings, schedule = OptimizerSettings(learning_rate=1e-2), Schedule(ScheduleSettings())
    module = case.module()
    optimizer = build_optimizer(module, settings)
    position = take_steps(case, module, optimizer, Position(), 2)
    save_checkpoint(tmp_path, module, optimizer, schedule, TrainState(step=2), asdict(position), keep_last=1)
    take_steps(case, module, optimizer, position, 2)
    resumed = case.module()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.zero_()
    its = build_optimizer(resumed, settings)
    state = restore(open_checkpoint(tmp_path, 2), resumed, its, schedule)
    take_steps(case, resumed, its, Position(**state.position), 2)
    weights = resumed.state_dict()
    assert weights.keys() == module.state_dict().keys()
    for name, weight in module.state_dict().items():
        assert torch.equal(weight, weights[name]), name


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


def forget(module: nn.Module) -> None:
    """Lets a module that has read a stream begin it anew, as its evaluation does."""
    if isinstance(module, BiLMModule):
        module.remembered_outputs.zero_()
        module.remembered_cells.zero_()


def test_it_learns_a_small_batch_by_heart(case: Case) -> None:
    """Left to right only one sequence can be: what follows the first token of several is not told by it. A generator
    that has learnt its batch replaces nothing any more, which the discriminator then says. Words that are in no sample
    of the softmax are never told from the right ones, so that one is judged by its own loss."""
    module, batch = case.module(), case.batches(micro_batch_size=4 if case.masks else 1)[0]
    trained = {term.name for term in module(batch)}

    def learnt(loss: float) -> bool:
        return loss < 0.1 if case.samples_words else is_learnt(scores_of(module, batch, trained))

    assert not learnt(float("inf"))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(20):
        for _ in range(20):
            forget(module)
            terms = module(batch)
            loss = torch.stack([term.coefficient * term.total / term.count for term in terms]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if learnt(float(loss.detach())):
            break
    assert learnt(float(loss.detach())), (float(loss.detach()), scores_of(module, batch, trained))


# On a device


def test_a_batch_as_it_comes_is_computed_on_the_device_alone(case: Case, counting: torch.device) -> None:
    """No value of it is waited for, but how many targets there are."""
    if isinstance(case.module().encoder, ElmoEncoder | LstmEncoder):
        pytest.skip("PyTorch's LSTM has no meta kernel, and ELMo's waits for the number of lanes")
    assert_gradients(case.module().to(counting), case.batch().to(counting))


def test_a_filled_batch_waits_for_no_value_of_the_device(case: Case, valueless: torch.device) -> None:
    module = case.module().to(valueless)
    if (why_not := why_not_filled(module)) is not None:
        pytest.skip(why_not)
    batch = case.batch()
    filled = fill(batch, Shapes(module.fillings, longest=32).choose(batch), module.fillings)
    assert_gradients(module, filled.to(valueless))


def assert_gradients(module: Any, batch: Batch) -> None:
    """Computes a batch and its gradient: whatever learns gets one, where the batch is."""
    torch.stack([term.total for term in module(batch)]).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients
    assert {gradient.device for gradient in gradients} == {batch.input_ids.device}
