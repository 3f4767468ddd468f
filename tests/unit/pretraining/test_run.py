import pytest
import torch

from unmask.pretraining.run import processes_tip
from unmask.recipe.loading import load_pretrain_recipe
from unmask.training.device import Compute
from unmask.training.distributed import ALONE, Ranks

CPU = Compute(torch.device("cpu"), torch.float32, "as the recipe says")
GPU = Compute(torch.device("cuda"), torch.float32, "as the recipe says")


@pytest.mark.parametrize(
    ("threads", "hidden_size", "compute", "ranks", "is_said"),
    [
        (2, 256, CPU, ALONE, True),
        (1, 256, CPU, ALONE, False),
        (2, 768, CPU, ALONE, False),
        (2, 256, GPU, ALONE, False),
        (2, 256, CPU, Ranks(size=2), False),
        (64, 256, CPU, ALONE, False),  # more processes than a step has sequences are refused
    ],
)
def test_processes_in_place_of_threads_are_advised_where_they_are_faster_and_possible(
    threads: int, hidden_size: int, compute: Compute, ranks: Ranks, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    settings = load_pretrain_recipe("pretrain/bert_mini", ["corpus=a.txt"])
    tip = processes_tip(settings, hidden_size, compute, ranks)
    assert ("--nproc-per-node=2 " in tip) == is_said
