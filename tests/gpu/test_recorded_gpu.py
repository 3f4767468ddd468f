"""Recorded steps of real models in bfloat16, on a GPU as CUDA graphs: `pytest -m gpu` takes some two minutes.

What does not ask for a GPU runs on the CPU as well, where nothing is recorded and the same is computed.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm, pack
from unmask.data.loader import Position
from unmask.data.store import TokenStore
from unmask.filling import Fillings
from unmask.models.encoder import new_encoder
from unmask.models.heads import HeadKind, new_head
from unmask.models.settings import EncoderSettings
from unmask.objectives.table import OBJECTIVES
from unmask.preparation import prepare
from unmask.pretraining_batches import build_loader
from unmask.recipe import PretrainRecipe
from unmask.tasks.qa import QaModule
from unmask.tasks.sequence_module import SequenceModule
from unmask.tasks.tagging_module import TaggingModule
from unmask.tokenization.opening import open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenizer_training import train_tokenizer
from unmask.training.adamw import AdamW
from unmask.training.device import Compute
from unmask.training.optimizer import build_optimizer
from unmask.training.recorded_stepper import RecordedStepper
from unmask.training.settings import OptimizerSettings, TrainSettings
from unmask.training.stepper import EagerStepper, StepFigures, Stepper
from unmask.training.steppers import CautiousStepper, choose_stepper, why_not_recorded

LONGEST = 32
VOCAB_SIZE = 200
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": LONGEST,
}

needs_gpu = pytest.mark.gpu
ON_BOTH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
COMPILED_ON_BOTH = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)


@dataclass(frozen=True)
class Work:
    """A module to train, and its steps, each of one or two batches."""

    build: Callable[[float], nn.Module]
    steps: list[list[Batch]]
    counts: Callable[[Batch], dict[str, int]]

    def module(self, dropout_prob: float = 0.0) -> Any:
        torch.manual_seed(0)
        return self.build(dropout_prob).train()


OBJECTIVE_VARIANTS: dict[str, dict[str, Any]] = {
    "masked LM and NSP": {"objective": {"name": "masked_lm"}},
    "replaced tokens": {
        "objective": {"name": "replaced_token"},
        "model": {"architecture": "electra", "embedding_size": 32},
    },
    "spans and boundaries": {
        "objective": {
            "name": "masked_lm",
            "masking": "span",
            "span_boundary": True,
            "sentence_objective": "none",
            "masking_mode": "static",
        },
        "packing": {"format": "single_segment"},
    },
    "left to right": {
        "objective": {"name": "causal_lm"},
        "model": {"architecture": "gpt1", "intermediate_size": 256},
        "packing": {"format": "single_segment"},
    },
}
TASKS = ("classification", "tagging", "answers")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """A token store, its tokenizer beside it."""
    directory = tmp_path_factory.mktemp("gpu")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        texts = [json.loads(line)["text"][:6000] for line in islice(books, 12)]
    text = directory / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts), encoding="utf-8")
    settings = TokenizerSettings.model_validate({"vocab_size": VOCAB_SIZE})
    train_tokenizer([text], directory / "tokenizer", settings)
    prepare([text], directory / "tokenizer", directory / "store")
    return directory


def objective_work(name: str, directory: Path, batch_size: int = 24) -> Work:
    changes = OBJECTIVE_VARIANTS[name]
    tokenizer = open_tokenizer(directory / "tokenizer")
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(directory / "store"),
            "objective": changes["objective"],
            "packing": {"max_length": LONGEST, **changes.get("packing", {})},
            "model": {**SIZES, **changes.get("model", {})},
            "train": {"steps": 1, "batch_size": batch_size, "micro_batch_size": 16},
        }
    )
    objective = OBJECTIVES[recipe.objective.name](recipe.objective, tokenizer.vocabulary)
    loader = build_loader(recipe, TokenStore(directory / "store"), tokenizer, held_out=False)

    def build(dropout_prob: float) -> nn.Module:
        sizes = recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        probs = {"hidden_dropout_prob": dropout_prob, "attention_probs_dropout_prob": dropout_prob}
        module = objective.build(new_encoder(sizes.model_copy(update=probs), pooler=objective.needs_pooler))
        assert isinstance(module, nn.Module)
        return module

    loaded = islice(loader.steps(Position()), 12)
    steps = [[objective.prepare(batch) for batch in step.batches] for step in loaded]
    return Work(build, steps, objective.counts)


def summed_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")


def task_work(name: str) -> Work:
    """Random words and labels; every fifth one is missing."""

    def build(dropout_prob: float) -> nn.Module:
        sizes = EncoderSettings(
            vocab_size=VOCAB_SIZE,
            hidden_dropout_prob=dropout_prob,
            attention_probs_dropout_prob=dropout_prob,
            **SIZES,
        )
        if name == "classification":
            return SequenceModule(new_encoder(sizes), new_head("sequence_classification", sizes, 3), summed_loss)
        kind: HeadKind = "token_classification" if name == "tagging" else "question_answering"
        encoder = new_encoder(sizes, pooler=False)
        head = new_head(kind, sizes, 3 if name == "tagging" else 2)
        return TaggingModule(encoder, head) if name == "tagging" else QaModule(encoder, head)

    draw = torch.Generator().manual_seed(3)

    def drawn(*sizes: int, below: int) -> Tensor:
        return torch.randint(below, sizes, generator=draw)

    def batch() -> Batch:
        lengths = (1 + drawn(int(drawn(1, below=20)) + 4, below=LONGEST)).tolist()
        packed = pack([drawn(length, below=VOCAB_SIZE).tolist() for length in lengths])
        if name == "answers":
            ends = torch.tensor(lengths) - 1
            ends[::5] = IGNORE_INDEX
            return packed.with_columns(start_positions=ends.clamp(max=0), end_positions=ends)
        labels = drawn(len(lengths) if name == "classification" else packed.num_tokens, below=3)
        labels[::5] = IGNORE_INDEX
        return packed.with_columns(labels=labels)

    def counts(batch: Batch) -> dict[str, int]:
        column = batch.columns["end_positions" if name == "answers" else "labels"]
        return {"task": int((column != IGNORE_INDEX).sum())}

    return Work(build, [[batch(), batch()] for _ in range(12)], counts)


@pytest.fixture(scope="module", params=[*OBJECTIVE_VARIANTS, *TASKS])
def work(request: pytest.FixtureRequest, store: Path) -> Work:
    return task_work(request.param) if request.param in TASKS else objective_work(request.param, store)


@pytest.fixture(scope="module")
def masked_lm(store: Path) -> Work:
    return objective_work("masked LM and NSP", store)


def compute_on(device: str, dtype: torch.dtype = torch.bfloat16) -> Compute:
    return Compute(torch.device(device), dtype, "a test")


@dataclass
class Trained:
    module: Any
    optimizer: AdamW
    stepper: Stepper

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()]).cpu()


def begin(
    work: Work, compute: Compute, kind: str, *, dropout_prob: float = 0.0, compiles: bool = False, seed: int = 5
) -> Trained:
    module = work.module(dropout_prob).to(compute.device)
    optimizer = build_optimizer(module, OptimizerSettings(learning_rate=1e-3, epsilon=1e-6))
    assert isinstance(optimizer, AdamW)
    eager = EagerStepper(module, optimizer, 1.0, compute.device, compute.autocast)
    fillings: Fillings = module.fillings
    recorded = RecordedStepper(module, optimizer, 1.0, None, compute, fillings, LONGEST, compiles)
    steppers: dict[str, Stepper] = {
        "eager": eager,
        "recorded": recorded,
        "cautious": CautiousStepper(recorded, eager),
    }
    stepper = steppers[kind]
    stepper.restart([])
    torch.manual_seed(seed)
    return Trained(module, optimizer, stepper)


def take(work: Work, trained: Trained, numbers: Iterator[int] | range) -> list[StepFigures]:
    """Steps by number, over and over the same twelve; they are looked at in the end where they may be."""
    figures: list[StepFigures] = []
    for number in numbers:
        batches = work.steps[number % len(work.steps)]
        trained.stepper.launch(batches, counts_of(work, batches))
        if not trained.stepper.runs_ahead:
            figures += trained.stepper.read(always)
    return figures if figures else trained.stepper.read(always)


def counts_of(work: Work, batches: list[Batch]) -> dict[str, int]:
    counts = [work.counts(batch) for batch in batches]
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def losses(work: Work, figures: list[StepFigures]) -> list[float]:
    return [each.loss(counts_of(work, work.steps[number % len(work.steps)])) for number, each in enumerate(figures)]


def always(place: int, figures: StepFigures) -> bool:
    return True


# The same as ever


@ON_BOTH
def test_steps_are_those_computed_as_they_come(work: Work, device: str) -> None:
    """Six steps in bf16, dropout off, beside autocast: 1e-2 of each loss, some roundings of 2^-8 through two layers.

    Terms alone are within 2e-2, and the norm of the gradient, each part of which is rounded by itself, within 5e-2.
    """
    compute = compute_on(device)
    eager, recorded = begin(work, compute, "eager"), begin(work, compute, "recorded")
    one, other = take(work, eager, range(6)), take(work, recorded, range(6))
    assert losses(work, one) == pytest.approx(losses(work, other), rel=1e-2)
    for first, second in zip(one, other, strict=True):
        assert first.coefficients == second.coefficients
        assert first.sums == pytest.approx(second.sums, rel=2e-2)
        assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=5e-2)
    assert {parameter.dtype for parameter in recorded.module.parameters()} == {torch.float32}
    # a step is 1e-3 at most, whatever the gradient: after six of them, those that are rounded to the other side of 0
    torch.testing.assert_close(eager.weights(), recorded.weights(), rtol=0, atol=1.3e-2)


@ON_BOTH
def test_a_curve_of_200_steps_ends_where_that_of_fp32_does(store: Path, device: str) -> None:
    """The mean of the last fifty losses is within half a per cent of fp32's, and of autocast's."""
    small = objective_work("masked LM and NSP", store, batch_size=4)
    bf16, fp32 = compute_on(device), compute_on(device, torch.float32)
    ends = []
    for compute, kind in ((fp32, "eager"), (bf16, "eager"), (bf16, "recorded")):
        curve = losses(small, take(small, begin(small, compute, kind), range(200)))
        assert sum(curve[-50:]) < 0.9 * sum(curve[:50])  # it learns
        ends.append(sum(curve[-50:]) / 50)
    assert ends == pytest.approx([ends[0]] * 3, rel=5e-3)


# Chance


@ON_BOTH
def test_every_step_draws_new_dropout_and_the_same_after_the_generator_is_put_back(
    masked_lm: Work, device: str
) -> None:
    def state() -> Tensor:
        return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()

    def put_back(random: Tensor) -> None:
        torch.cuda.set_rng_state(random) if device == "cuda" else torch.set_rng_state(random)

    trained = begin(masked_lm, compute_on(device), "recorded", dropout_prob=0.3)
    for group in trained.optimizer.param_groups:
        group["lr"] = 0.0  # so that dropout is all that differs
    begins = state()
    first, second = take(masked_lm, trained, iter([0, 0]))
    assert first.sums != second.sums
    put_back(begins)
    assert take(masked_lm, trained, iter([0, 0])) == [first, second]
    take(masked_lm, trained, range(3))  # other shapes have been recorded since
    put_back(begins)
    assert take(masked_lm, trained, iter([0, 0])) == [first, second]


@ON_BOTH
def test_a_run_that_goes_on_is_bit_for_bit_one_that_never_stopped(masked_lm: Work, device: str) -> None:
    """With dropout; the one that goes on has seen none of the shapes before."""
    compute = compute_on(device)
    whole = begin(masked_lm, compute, "recorded", dropout_prob=0.1)
    take(masked_lm, whole, range(5))
    weights = {name: value.clone() for name, value in whole.module.state_dict().items()}
    kept = whole.optimizer.state_dict()
    states = {number: {name: v.cpu().clone() for name, v in state.items()} for number, state in kept["state"].items()}
    random = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    figures = take(masked_lm, whole, range(5, 15))
    second = begin(masked_lm, compute, "recorded", dropout_prob=0.1, seed=77)
    second.module.load_state_dict(weights)
    second.optimizer.load_state_dict({"state": states, "param_groups": second.optimizer.state_dict()["param_groups"]})
    torch.cuda.set_rng_state(random) if device == "cuda" else torch.set_rng_state(random)
    second.stepper.restart([])
    assert take(masked_lm, second, range(5, 15)) == figures
    assert torch.equal(whole.weights(), second.weights())


# Compiled


@COMPILED_ON_BOTH
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler about itself
def test_compiled_blocks_compute_the_same_and_are_compiled_once(masked_lm: Work, device: str) -> None:
    """On the CPU in fp32: 1e-4 of each loss; on a GPU in bf16. Numbers of tokens, sequences and targets that have not
    been there before compile nothing once two shapes have been seen."""
    from torch._dynamo.utils import counters

    compute = compute_on(device, torch.bfloat16 if device == "cuda" else torch.float32)
    plain = begin(masked_lm, compute, "recorded")
    compiled = begin(masked_lm, compute, "recorded", compiles=True)
    expected, found = (losses(masked_lm, take(masked_lm, each, range(3))) for each in (plain, compiled))
    assert found == pytest.approx(expected, rel=1e-2 if device == "cuda" else 1e-4)
    programs = counters["stats"]["unique_graphs"]
    assert programs > 0
    long = [batch for step in masked_lm.steps for batch in step]
    others = [[batch] for batch in long[:4]] + [[merged(long[:number])] for number in (3, 5)]
    assert isinstance(compiled.stepper, RecordedStepper)
    before = compiled.stepper.num_recordings
    for batches in others:
        compiled.stepper.launch(batches, counts_of(masked_lm, batches))
        plain.stepper.launch(batches, counts_of(masked_lm, batches))
    found, expected = ([figures.gradient_norm for figures in each.stepper.read(always)] for each in (compiled, plain))
    assert found == pytest.approx(expected, rel=5e-2 if device == "cuda" else 1e-3)
    assert compiled.stepper.num_recordings > before
    assert counters["stats"]["unique_graphs"] == programs


def merged(batches: list[Batch]) -> Batch:
    """One batch of the sequences of several."""
    starts = [0]
    for batch in batches:
        starts.append(starts[-1] + batch.num_tokens)
    columns = {name: torch.cat([batch.columns[name] for batch in batches]) for name in batches[0].columns}
    columns["target_positions"] = torch.cat(
        [batch.columns["target_positions"] + start for batch, start in zip(batches, starts, strict=False)]
    )
    return Batch(
        torch.cat([batch.input_ids for batch in batches]),
        torch.cat([batch.token_type_ids for batch in batches]),
        torch.cat([batch.position_ids for batch in batches]),
        torch.cat(
            [torch.zeros(1, dtype=torch.int32)]
            + [batch.bounds[1:] + start for batch, start in zip(batches, starts, strict=False)]
        ).int(),
        tuple(length for batch in batches for length in batch.lengths),
        None,
        columns,
    )


# On a GPU alone


CUDA = torch.device("cuda")


@needs_gpu
def test_on_a_gpu_steps_are_recorded_but_not_in_fp32(masked_lm: Work) -> None:
    trained = begin(masked_lm, compute_on("cuda"), "recorded")
    settings = TrainSettings(steps=1)
    stepper, told = choose_stepper(trained.module, trained.optimizer, settings, compute_on("cuda"), LONGEST)
    assert isinstance(stepper, CautiousStepper)
    assert told.startswith("steps: recorded once a shape and replayed (CUDA graphs), ")
    why_not = why_not_recorded(trained.module, trained.optimizer, settings, compute_on("cuda", torch.float32))
    assert why_not == "the variable-length kernel is for fp16 and bf16, not torch.float32"


@needs_gpu
def test_a_step_that_is_launched_does_not_wait_for_the_device(masked_lm: Work) -> None:
    trained = begin(masked_lm, compute_on("cuda"), "recorded", dropout_prob=0.1)
    take(masked_lm, trained, range(12))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batches in masked_lm.steps:
            trained.stepper.launch(batches, counts_of(masked_lm, batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(trained.stepper.read(always)) == 12


@needs_gpu
def test_recordings_share_their_memory(masked_lm: Work) -> None:
    """That of the largest batch holds all others: ten more shapes ask for little more than their batches."""
    trained = begin(masked_lm, compute_on("cuda"), "recorded")
    batches = [batch for step in masked_lm.steps for batch in step]
    counts = counts_of(masked_lm, batches)
    trained.stepper.launch([merged(batches * 20)], counts)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    assert isinstance(trained.stepper, RecordedStepper)
    for number in range(1, 20, 2):
        trained.stepper.launch([merged(batches * number)], counts)
    assert trained.stepper.num_recordings > 8
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 1.2 * before + 2**26
    assert len(trained.stepper.read(always)) == 11


@needs_gpu
def test_a_batch_that_does_not_fit_leaves_nothing(masked_lm: Work) -> None:
    """Steps launched before it are taken, and the run goes on with smaller ones."""
    huge = merged([batch for step in masked_lm.steps for batch in step] * 40)
    trained, plain = (begin(masked_lm, compute_on("cuda"), "recorded") for _ in range(2))
    expected = take(masked_lm, plain, range(4))
    first, second = masked_lm.steps[:2]
    for batches in (first, second):
        trained.stepper.launch(batches, counts_of(masked_lm, batches))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
    allocated = torch.cuda.memory_allocated()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            trained.stepper.launch([huge], counts_of(masked_lm, [huge]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()  # the error has held on to what was allocated
    assert torch.cuda.memory_allocated() <= allocated + 2**20
    found = take(masked_lm, trained, range(2, 4))
    assert [each.sums for each in found] == [each.sums for each in expected]
    assert torch.equal(trained.weights(), plain.weights())


class Waiting(nn.Module):
    """Asks the device for a number in each pass, which cannot be recorded."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.fillings = module.fillings

    def forward(self, batch: Batch) -> list[LossTerm]:
        terms: list[LossTerm] = self.module(batch)
        assert terms[0].total.item() > 0
        return terms


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # of PyTorch's about the capture that breaks
def test_steps_that_cannot_be_recorded_are_computed_as_they_come(
    masked_lm: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """A capture that breaks leaves the stream, the generator and the weights as they were, and memory can be freed."""
    waiting = replace(masked_lm, build=lambda dropout_prob: Waiting(masked_lm.build(dropout_prob)))
    compute = compute_on("cuda")
    tried, plain = (begin(waiting, compute, kind, dropout_prob=0.1) for kind in ("cautious", "eager"))
    stream = torch.cuda.current_stream()
    with caplog.at_level(logging.WARNING, "unmask"):
        torch.manual_seed(5)
        found = take(waiting, tried, range(6))
        torch.manual_seed(5)
        expected = take(waiting, plain, range(6))
    assert torch.cuda.current_stream() == stream
    assert not tried.stepper.runs_ahead
    assert [message for message in caplog.messages if message.startswith("steps cannot be recorded here")]
    assert losses(waiting, found) == pytest.approx(losses(waiting, expected), rel=1e-3)  # sums in any order
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    good = begin(masked_lm, compute, "recorded", dropout_prob=0.1)  # another run of this process is recorded
    assert len(take(masked_lm, good, range(6))) == 6
