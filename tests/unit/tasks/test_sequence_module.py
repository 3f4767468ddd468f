"""Values of any scale: the head learns them with mean 0 and deviation 1, and answers on their scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.sizes import small
from unmask.batch import pack
from unmask.models.encoder import new_encoder
from unmask.tasks.sequence_module import SequenceModule, new_sequence_module
from unmask.tasks.settings import TaskSettings
from unmask.tasks.text.regression import summed_squared_error

VALUES = np.array([200_000.0, 260_000.0, np.nan, 320_000.0])


def new_module(architecture: str) -> SequenceModule:
    torch.manual_seed(0)
    settings = small(architecture=architecture, vocab=30, width=16, layers=1, heads=2, positions=20)
    encoder = new_encoder(settings, pooler=architecture == "bert")
    return new_sequence_module(encoder, None, 1, summed_squared_error, TaskSettings(name="regression")).eval()


@pytest.mark.parametrize("architecture", ["bert", "gpt1"])
def test_the_loss_is_the_same_on_both_scales(architecture: str) -> None:
    """GPT-1's head has no bias, so that its values keep their mean."""
    module = new_module(architecture)
    batch = pack([[1, 2], [3, 4, 5], [6], [7, 8]]).with_columns(labels=torch.from_numpy(VALUES).float())
    raw = module.outputs(batch).detach()
    module.standardise(VALUES)
    [inside] = module(batch)
    with module.rescaled():
        outputs = module.outputs(batch)
        [outside] = module(batch)
    known = VALUES[~np.isnan(VALUES)]
    mean = known.mean() if architecture == "bert" else 0.0
    deviation = np.sqrt(np.square(known - mean).mean())
    torch.testing.assert_close(outputs.double(), raw.double() * deviation + mean, rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(outside.total / deviation**2, inside.total, rtol=1e-4, atol=0.0)
    assert torch.equal(module.outputs(batch), raw), "the context leaves the head as it was"
    module.rescale()
    assert torch.equal(module.outputs(batch), outputs)


def test_a_head_that_answers_on_the_scale_keeps_its_answers() -> None:
    module = new_module("bert")
    batch = pack([[1, 2], [3, 4, 5]])
    module.standardise(VALUES)
    module.rescale()
    before = module.outputs(batch)
    module.standardise(VALUES, is_kept=True)
    with module.rescaled():
        torch.testing.assert_close(module.outputs(batch), before, rtol=1e-5, atol=1e-2)
