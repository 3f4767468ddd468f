"""Parameters, operations, memory and disk worked out beforehand, against the real thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from support.checkpoints import save_checkpoint
from support.sizes import small, small_elmo
from unmask.batch import Batch, pack
from unmask.doctor.recipe.estimates import (
    MemoryEstimate,
    any_vocabulary,
    bare_module,
    count_moments,
    count_parameters,
    kept_checkpoints,
    measure_saved_bytes,
)
from unmask.doctor.recipe.examination import parameters_table
from unmask.doctor.recipe.material import Material
from unmask.doctor.recipe.needs import Needs
from unmask.doctor.recipe.synthetic_batches import expected_length, random_batches
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.encoder import new_encoder
from unmask.models.kernels import products
from unmask.models.settings import EncoderSettings
from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLM
from unmask.objectives.directions import NEXT_POSITIONS
from unmask.objectives.settings import BiLMSettings, CausalLMSettings, MaskedLMSettings, ReplacedTokenSettings
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.objectives.table import new_objective
from unmask.pretraining.start import open_start
from unmask.recipe.tree import PretrainRecipe
from unmask.training.averaging import WeightAverage
from unmask.training.device import Compute, choose_compute
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.run.checkpoint import OPTIMIZER, WEIGHTS
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import TrainState

CPU = choose_compute("cpu", "fp32")

RECIPES: dict[str, dict[str, Any]] = {
    "bert": {"packing": {"format": "segment_pair"}},
    "masked words alone": {"objective": {"sentence_objective": "none"}},
    "gpt1": {"objective": {"name": "causal_lm"}, "model": {"architecture": "gpt1"}},
    "lstm": {"objective": {"name": "causal_lm"}, "model": {"architecture": "lstm"}},
    "left-to-right bert": {"objective": {"name": "causal_lm"}, "model": {"causal": True}},
    "electra": {"objective": {"name": "replaced_token"}, "model": {"architecture": "electra"}},
    "two stages": {
        "objective": {"name": "replaced_token", "schedule": "two_stage", "generator_size": 1},
        "model": {"architecture": "electra"},
    },
    "spans": {"objective": {"sentence_objective": "none", "masking": "span", "span_boundary": True}},
    "sentence order": {"objective": {"sentence_objective": "sop"}, "packing": {"format": "segment_pair"}},
    "entities": {"objective": {"sentence_objective": "none", "masking": "entity"}},
    "half read left to right": {"objective": {"sentence_objective": "none", "causal_share": 0.5}},
}


def recipe_of(name: str, short_sequence_prob: float = 0.0) -> PretrainRecipe:
    sizes = {"max_length": 24, "short_sequence_prob": short_sequence_prob}
    packing = {"format": "single_segment", **RECIPES[name].get("packing", {}), **sizes}
    return PretrainRecipe.model_validate({**RECIPES[name], "corpus": ["a"], "packing": packing, "train": {"steps": 1}})


def sizes_of(name: str, **changed: Any) -> EncoderSettings:
    model = recipe_of(name).model
    own = {"electra": {"embedding_size": 8}, "lstm": {"heads": 1}, "gpt1": {"inner": 64}}.get(model.architecture, {})
    given: dict[str, Any] = {"vocab": 120, "width": 16, "layers": 4, "heads": 2, "inner": 48, "positions": 40}
    return small(architecture=model.architecture, causal=model.causal, **given | own | changed)


def made(name: str, sequences: int, short_sequence_prob: float = 0.0) -> tuple[Objective, Batch]:
    settings = recipe_of(name, short_sequence_prob)
    objective = new_objective(settings.objective, any_vocabulary(120))
    batch = next(random_batches(settings, 120, sequences))
    rates = {name: torch.tensor(rate) for name, rate in settings.objective.rates(0.0, None).items()}
    return objective, objective.prepare(batch.with_columns(**rates))


def module_of(name: str, **changed: Any) -> Any:
    objective, _ = made(name, 1)
    return objective.build(new_encoder(sizes_of(name, **changed), pooler=objective.needs_pooler))


def needs_of(recipe: PretrainRecipe, sizes: EncoderSettings, compute: Compute = CPU) -> Needs:
    objective = new_objective(recipe.objective, any_vocabulary(sizes.vocab_size))
    return Needs(Material(open_start(recipe), objective, sizes, None), compute)


def test_bert_base_has_as_many_as_the_published_one() -> None:
    assert (
        sum(count_parameters(bare_module(recipe_of("bert"), EncoderSettings())).values()) == 110_106_428
    )  # BertForPreTraining


def operations_of(
    settings: ObjectiveSettings, sizes: EncoderSettings, batch: Batch, length: float, share: float | None = None
) -> float:
    """Those of training per token, for the batch's own shares of targets, or `share`; of sequences read from left to
    right every token that predicts the next one is a target."""
    left_to_right = len(batch.columns.get(NEXT_POSITIONS, ()))
    share = len(batch.columns["target_positions"]) / (batch.num_tokens - left_to_right) if share is None else share
    own = {"target_prob": share, "causal_share": left_to_right / batch.num_tokens}
    exact = settings.model_copy(update={name: value for name, value in own.items() if hasattr(settings, name)})
    return new_objective(exact, any_vocabulary(sizes.vocab_size)).operations(sizes, batch, length)


def test_what_is_kept_grows_with_the_width_of_the_feed_forward() -> None:
    objective, batch = made("bert", 16)
    widths = (sizes_of("bert", inner=n) for n in (48, 96))
    wide, wider = (measure_saved_bytes(sizes, 2, batch, objective, CPU) for sizes in widths)
    # Before and after the activation, of all tokens in the first block and of those that are read in the last.
    read = len(batch.columns["target_positions"]) + batch.num_sequences
    assert wider - wide >= 2 * 4 * 48 * (batch.num_tokens + read)


def test_fixed_memory_by_hand() -> None:
    recipe = recipe_of("bert")
    needs = needs_of(recipe, sizes_of("bert"))
    weights, heavy = 4 * needs.num_parameters, recipe.optimizer.model_copy(update={"name": "adagrad"})
    assert needs.fixed == MemoryEstimate(weights, weights, 2 * weights, 0, activations=0, logits=0)
    assert needs.fixed.fixed == 4 * weights
    adagrad = recipe.model_copy(update={"optimizer": heavy})
    assert needs_of(adagrad, sizes_of("bert")).fixed.optimizer == weights
    assert needs_of(recipe, sizes_of("bert"), choose_compute("cpu", "bf16")).fixed.casts == weights / 2


def test_a_checkpoint_is_as_large_as_told(tmp_path: Path) -> None:
    _, batch = made("bert", 2)
    module = module_of("bert")
    optimizer = build_optimizer(module, OptimizerSettings())
    sum((term.total for term in module(batch)), torch.zeros(())).backward()
    optimizer.step()
    schedule = Schedule(ScheduleSettings())
    saved = save_checkpoint(tmp_path, module, optimizer, schedule, TrainState(step=1), {}, keep_last=1)
    size = sum((saved / name).stat().st_size for name in (WEIGHTS, OPTIMIZER))
    needs = needs_of(recipe_of("bert"), sizes_of("bert"))
    told = needs.checkpoint_bytes
    headers = 200 * 3 * len(list(module.parameters()))  # names, shapes and places: under 200 bytes a tensor
    assert told < size < told + headers
    assert needs.disk(None) == 3 * told + 4 * needs.num_parameters  # two kept, one being written, and the model


def test_random_sequences_have_the_shape_of_real_ones() -> None:
    objective, batch = made("bert", 400, short_sequence_prob=0.5)
    special = batch.columns["special_tokens_mask"]
    for number in range(400):
        start, end = int(batch.bounds[number]), int(batch.bounds[number + 1])
        assert special[start:end].sum() == 3
        assert special[start]
        assert special[end - 1]
        segments = batch.token_type_ids[start:end].tolist()
        middle = int(torch.nonzero(special[start:end])[1])
        assert segments == [0] * (middle + 1) + [1] * (end - start - middle - 1)
        assert sum(segments) >= 2
    assert max(batch.lengths) == 24
    # 400 lengths with a standard deviation below 8 have a mean within 3 x 8 / 20 of the expected one.
    assert batch.num_tokens / 400 == pytest.approx(expected_length(recipe_of("bert", 0.5)), abs=1.2)
    assert (batch.input_ids < 120).all()
    assert objective.counts(batch)["nsp"] == 400


@pytest.mark.parametrize("name", RECIPES)
def test_parameters_of_every_objective(name: str) -> None:
    counts = count_parameters(bare_module(recipe_of(name), sizes_of(name)))
    assert sum(counts.values()) == sum(parameter.numel() for parameter in module_of(name).parameters())
    assert ("generator" in counts) == (recipe_of(name).objective.name == "replaced_token")


@pytest.mark.parametrize(
    ("name", "model", "is_tied"),
    [
        ("bert", {}, True),
        ("masked words alone", {"architecture": "modernbert"}, True),
        ("masked words alone", {"architecture": "modernbert", "tie_word_embeddings": False}, False),
        ("electra", {"architecture": "electra"}, False),  # the decoder is the generator's
    ],
)
def test_a_decoder_is_named_where_a_head_of_the_model_has_the_word_embeddings_as_one(
    name: str, model: dict[str, Any], is_tied: bool
) -> None:
    recipe = recipe_of(name)
    recipe = PretrainRecipe.model_validate({**recipe.model_dump(exclude_unset=True), "model": model})
    sizes = recipe.model.resolve(100)
    assert isinstance(sizes, EncoderSettings)
    table = parameters_table(needs_of(recipe, sizes))
    [heads] = [row for row in table.rows if row[0] == "heads"]
    assert ("the decoder is the word embeddings" in heads[-1]) == is_tied


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("lstm", "two stages")])
def test_operations_of_every_objective(name: str) -> None:
    """Beyond the necessary, the last block works out queries and attention of tokens that no head reads, and causal
    attention all scores, of which half are hidden."""
    settings, sizes = recipe_of(name), sizes_of(name)
    _, batch = made(name, 2)
    module = module_of(name).train()  # with dropout attention is plain products
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(batch)
    tokens, hidden = batch.num_tokens, sizes.hidden_size
    boundaries = len(batch.columns.get("boundary_positions", ()))
    num_targets = len(batch.columns["target_positions"]) + len(batch.columns.get(NEXT_POSITIONS, ()))
    necessary = operations_of(settings.objective, sizes, batch, 24) * tokens / 3

    def unread(read: int, width: int) -> int:
        return (tokens - read) * (2 * width**2 + 4 * 24 * width)

    if sizes.is_causal:
        hidden_scores = 2 * 24 * hidden * tokens  # half of them, in each block
        beyond = 3 * hidden_scores + unread(num_targets, hidden) + num_targets * 2 * 24 * hidden
    elif settings.objective.name == "replaced_token":
        beyond = unread(num_targets, 4)  # of the generator, a quarter as wide
    else:
        summed_up = (settings.objective.pair_objective != "none") * batch.num_sequences
        beyond = unread(num_targets + boundaries + summed_up, hidden)
    assert counter.get_total_flops() == pytest.approx(necessary + beyond, rel=1e-9)


def test_operations_of_an_lstm_by_hand() -> None:
    # Of 16 inputs and 48 units: four gates of 64 x 48, a projection of 48 x 16; four of these; 19 of 20 are decoded.
    forward = 4 * 2 * (4 * 64 * 48 + 48 * 16) + 0.95 * 2 * 16 * 120
    assert operations_of(CausalLMSettings(), sizes_of("lstm"), made("lstm", 1)[1], 20) == pytest.approx(3 * forward)


def test_operations_of_two_stages_are_the_mean_of_both() -> None:
    """Joint are 3 (G + D) of forward passes G and D; in stages 3 G, then G + 3 D."""
    sizes, (_, batch) = sizes_of("two stages"), made("two stages", 1)
    generator = operations_of(MaskedLMSettings(sentence_objective="none"), sizes, batch, 24, share=0.15) / 3
    together = operations_of(ReplacedTokenSettings(generator_size=1), sizes, batch, 24, share=0.15)
    staged = operations_of(recipe_of("two stages").objective, sizes, batch, 24, share=0.15)
    assert staged == pytest.approx((together + generator) / 2)


def test_operations_of_a_generator_that_reads_from_left_to_right_while_it_learns_alone() -> None:
    """That is 1/4 of the run, in which it does what a masked LM of its size does, and then what it does anyway."""
    sizes, (_, batch) = sizes_of("two stages"), made("two stages", 1)

    def operations(settings: ObjectiveSettings) -> float:
        return new_objective(settings, any_vocabulary(120)).operations(sizes, batch, 24)

    masked, mixed = (operations(MaskedLMSettings(sentence_objective="none", causal_share=share)) for share in (0, 0.5))
    late, read = (
        operations(ReplacedTokenSettings(generator_size=1, discriminator_after=0.25, causal_share=share))
        for share in (0, 0.5)
    )
    assert read - late == pytest.approx((mixed - masked) / 4)


@pytest.mark.parametrize(
    ("optimizer", "name", "decay"),
    [
        ({}, "gpt1", None),
        ({}, "electra", 0.9),
        ({"name": "lamb"}, "spans", None),
        ({"name": "muon"}, "gpt1", None),
        ({"name": "muon"}, "electra", None),
        ({"name": "muon"}, "electra", 0.9),
        ({"name": "adagrad", "weight_decay": 0}, "lstm", None),
    ],
)
def test_the_optimizer_keeps_as_many_numbers_as_told(optimizer: dict[str, Any], name: str, decay: float | None) -> None:
    settings = OptimizerSettings.model_validate(optimizer)
    module = module_of(name)
    told = count_moments(module, settings, TrainSettings(steps=1, weight_averaging=decay))
    built = build_optimizer(module, settings)
    if decay is not None:
        WeightAverage(built, decay)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    built.step()
    kept = [value for state in built.state.values() for value in state.values() if value.dim()]  # but numbers of steps
    assert told == sum(value.numel() for value in kept)


def estimate_memory(name: str, batch: Batch, tokens: float, recompute: bool = False, **changed: Any) -> MemoryEstimate:
    recipe = recipe_of(name)
    train = recipe.train.model_copy(update={"recompute": recompute})
    needs = needs_of(recipe.model_copy(update={"train": train}), sizes_of(name, **changed))
    return needs.memory(tokens / 24, needs.measure_kept(batch))


def test_memory_is_linear_in_tokens() -> None:
    objective, batch = made("bert", 16)
    _, more = made("bert", 64)
    scaled = estimate_memory("bert", batch, more.num_tokens)
    # Weights' copies in the kernels' own layout are counted with 16 sequences as with 64, hence not exactly linear.
    direct = measure_saved_bytes(sizes_of("bert"), 4, more, objective, CPU)
    assert scaled.activations == pytest.approx(direct, rel=0.1)


@pytest.mark.parametrize("name", RECIPES)
def test_memory_of_every_objective(name: str) -> None:
    objective, batch = made(name, 16)
    direct = measure_saved_bytes(sizes_of(name), 4, batch, objective, CPU)
    estimate = estimate_memory(name, batch, batch.num_tokens)
    assert estimate.activations == direct  # each block keeps the same, to the byte
    columns = ("target_positions", "boundary_targets")
    at_once = sum(len(batch.columns.get(column, ())) for column in columns)
    in_slices, own_gradient = len(batch.columns.get(NEXT_POSITIONS, ())), 0
    if in_slices or recipe_of(name).objective.name == "causal_lm":
        own_gradient = 120 * 16 * 4
    assert estimate.logits == max(at_once, in_slices) * 120 * 4 + own_gradient


def test_blocks_that_are_computed_again_keep_their_input() -> None:
    """A block of 16 numbers a token keeps these, in float32; one at a time is there as a whole."""
    _, batch = made("bert", 16)

    def kept(num_blocks: int, recompute: bool = True) -> int:
        return estimate_memory("bert", batch, batch.num_tokens, recompute, layers=num_blocks).activations

    assert kept(8) - kept(4) == 4 * batch.num_tokens * 16 * 4
    assert kept(8) < 0.5 * kept(8, recompute=False)


def test_a_decoder_never_holds_all_logits() -> None:
    _, batch = made("gpt1", 4)
    assert estimate_memory("gpt1", batch, 10**9).logits == 4 * 2**23 + 120 * 16 * 4


def test_beside_masked_words_a_decoder_never_holds_all_logits() -> None:
    _, batch = made("half read left to right", 16)
    assert len(batch.columns[NEXT_POSITIONS]) > 4 * len(batch.columns["target_positions"]) > 0
    estimate = estimate_memory("half read left to right", batch, 10**9)
    masked = len(batch.columns["target_positions"]) * 10**9 / batch.num_tokens
    assert estimate.logits == round(masked * 120 * 4) + 120 * 16 * 4


@pytest.mark.parametrize(("name", "num_specials"), [("gpt1", 0), ("electra", 2), ("bert", 3)])
def test_random_sequences_of_other_formats(name: str, num_specials: int) -> None:
    _, batch = made(name, 5)
    special = batch.columns["special_tokens_mask"]
    assert int(special.sum()) == 5 * num_specials
    assert batch.lengths == (24,) * 5
    assert int(batch.token_type_ids.max()) == (num_specials == 3)


def test_operations_of_elmo_are_those_that_pytorch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For distinct words as long as words may be, and the full softmax as a sample of all other words. What one product
    of all filters computes for nothing is not necessary: narrow filters as if wide, wide ones past the end."""
    monkeypatch.setattr(products, "_onednn_beats_mkl", lambda: False)  # PyTorch does not count oneDNN's products
    sizes = small_elmo(vocab_size=30, max_characters=9, filters=((1, 4), (3, 5)), projection_size=6, cell_size=7)
    objective = BiLM(BiLMSettings(num_negatives=30), any_vocabulary(30))
    module = objective.build(ElmoEncoder(sizes)).train()
    characters = torch.arange(8 * 9).reshape(8, 9) % 200
    words = torch.arange(8)
    batch = pack([words[:4], words[4:]]).with_columns(
        characters=characters, labels=words, backward_characters=characters, backward_labels=words,
        lane=torch.arange(2), window=torch.zeros(2, dtype=torch.int64),
    )  # fmt: skip
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(batch)
    needless = 2 * 3 * (9 * 3 * (4 + 5) - 9 * 1 * 4 - 7 * 3 * 5)  # places, widths, filters
    assert counter.get_total_flops() == pytest.approx((objective.operations(sizes, batch, 4) / 3 + needless) * 8)


def test_how_many_checkpoints_are_kept() -> None:
    train = TrainSettings(steps=10_000, keep_every=2000)
    assert [kept_checkpoints(train, steps) for steps in (None, 1999, 10_000)] == [2, 2, 7]
    assert kept_checkpoints(TrainSettings(steps=10_000), 10_000) == 2
