"""What a recipe amounts to, against published figures and counted operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.doctor.recipe.estimates import MemoryEstimate, bare_module
from unmask.doctor.recipe.material import each_phase
from unmask.experiments.plan.workload import muon_matrices, open_recipe, open_workload
from unmask.models.settings import EncoderSettings
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute
from unmask.training.optimizers.muon import orthogonalise
from unmask.training.settings import OptimizerSettings

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 100}


def recipe(**changes: Any) -> PretrainRecipe:
    values = {"corpus": ["a"], "model": SIZES, "train": {"steps": 100, "batch_size": 8}, **changes}
    return PretrainRecipe.model_validate(values)


def on_gpu(dtype: torch.dtype) -> Compute:
    return Compute(torch.device("cuda"), dtype, "in a test")


def test_phases_have_settings_of_their_own() -> None:
    settings = recipe(
        objective={"sentence_objective": "none", "causal_share": 0.5},
        packing={"format": "full_sentences"},
        phases=[
            {"until": 0.75, "max_length": 16, "batch_size": 32},
            {"until": 1, "max_length": 64, "micro_batch_size": 2, "causal_share": 0},
        ],
    )
    shares = [phase.objective.causal_share for phase in each_phase(settings)]  # type: ignore[union-attr]
    assert shares == [0.5, 0]
    first, second = open_workload("a", settings, False, on_gpu(torch.bfloat16)).workload.phases
    assert (first.share, first.batch_size, first.micro_batch_size, first.max_length) == (0.75, 32, 32, 16)
    assert (second.share, second.batch_size, second.micro_batch_size, second.max_length) == (0.25, 8, 2, 64)
    assert first.tokens == 32 * 16
    assert second.operations < first.operations, "fewer targets weigh more than longer sequences"


@pytest.mark.parametrize(("dtype", "per_width"), [(torch.bfloat16, 34), (torch.float32, 66)])
def test_a_gpu_keeps_what_the_formula_says(dtype: torch.dtype, per_width: int) -> None:
    """A block keeps 34 h bytes a token in two bytes each (Korthikanti et al. 2022, equation 1, without what grows with
    the square of the length, which flash attention does not keep); 66 in four, since masks of dropout have one."""
    widths = {"hidden_size": 256, "num_attention_heads": 1}

    def kept(layers: int) -> float:
        settings = recipe(
            model=SIZES | widths | {"num_hidden_layers": layers}, packing={"max_length": 512, "short_sequence_prob": 0}
        )
        (phase,) = open_workload("a", settings, False, on_gpu(dtype)).workload.phases
        return phase.memory(1).activations / 512

    assert (kept(4) - kept(2)) / 2 == pytest.approx(per_width * 256, rel=0.02)


def test_what_a_generator_reads_while_it_learns_alone_is_not_in_the_memory_of_the_last_stage() -> None:
    def memory(causal_share: float) -> MemoryEstimate:
        settings = recipe(
            objective={"name": "replaced_token", "discriminator_after": 0.5, "causal_share": causal_share},
            model=SIZES | {"architecture": "electra"},
            packing={"format": "single_segment"},
        )
        (phase,) = open_workload("a", settings, False, on_gpu(torch.float32)).workload.phases
        return phase.memory(8)

    assert memory(0.5) == memory(0)


def test_what_is_computed_again() -> None:
    plain, again = (
        open_workload(
            "a",
            recipe(model=SIZES | {"num_hidden_layers": 8}, train={"steps": 1, "batch_size": 8, "recompute": recompute}),
            False,
            on_gpu(torch.bfloat16),
        ).workload.phases[0]
        for recompute in (False, True)
    )
    assert again.operations == pytest.approx(4 / 3 * plain.operations)
    assert again.memory(8).activations < 0.5 * plain.memory(8).activations


def test_what_the_update_multiplies() -> None:
    """As PyTorch counts Muon's iteration on the same matrices; AdamW multiplies none."""
    settings = recipe(optimizer={"name": "muon"})
    sizes = EncoderSettings(**SIZES)  # type: ignore[arg-type]
    module = bare_module(settings, sizes)
    matrices = [p for name, p in module.named_parameters() if ".blocks." in name and p.ndim == 2]
    with FlopCounterMode(display=False) as counter:
        for matrix in matrices:
            orthogonalise(torch.ones(1, *matrix.shape), torch.float32)
    found = muon_matrices(module, settings.optimizer, item=4)
    assert sum(each.count * each.operations for each in found) == counter.get_total_flops() > 0
    assert sum(each.count * each.size for each in found) == 4 * sum(matrix.numel() for matrix in matrices)
    assert muon_matrices(module, OptimizerSettings(), item=4) == ()


def test_electra_base_takes_as_many_operations_as_its_paper_says() -> None:
    """6.4e19 (Clark et al. 2020, Table 1), which counts a little differently."""
    settings, names_text = open_recipe("pretrain/electra_base", ["model.num_hidden_layers=12"])
    (phase,) = open_workload("electra", settings, names_text, on_gpu(torch.float32)).workload.phases
    assert phase.tokens * phase.operations * 766_000 == pytest.approx(6.4e19, rel=0.06)
