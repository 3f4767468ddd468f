"""What all optimizers share."""

from __future__ import annotations

import inspect

import torch


class Optimizer(torch.optim.Optimizer):
    """PyTorch's, less the import of its compiler, which any of these methods begins with: two seconds of every command
    that trains. `inspect.unwrap` gives what they are without it."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
