"""Optimizers of `unmask.training.optimizers.base`: a command that trains need not import PyTorch's compiler."""

from __future__ import annotations

import subprocess
import sys

USED = """
import sys
import torch
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings

for name in ("adamw", "lamb", "muon"):
    module = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([torch.nn.Linear(3, 3)])})
    optimizer = build_optimizer(module, OptimizerSettings(name=name))
    module["blocks"][0](torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch.optim" in sys.modules, "torch._dynamo" in sys.modules)
"""


def test_no_compiler_is_imported() -> None:
    finished = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True)
    assert (finished.stderr, finished.stdout) == ("", "True False\n")
