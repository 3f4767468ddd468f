"""Parameters in one tensor: views that stay what they are for optimizers and checkpoints, and their rounded copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unmask.training.captured.flat_parameters import FlatParameters


class Tied(nn.Module):
    """Embeddings that decode as well, a frozen layer, a scalar, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Linear(5, 3)
        self.decoder = nn.Linear(5, 11, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder(self.frozen(self.embedding(ids)) * self.scale).logsumexp(-1).sum()  # type: ignore[no-any-return]


TRAINED = ["embedding.weight", "scale"]
IDS = torch.tensor([1, 4, 4, 10])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_stay_what_they_are(dtype: torch.dtype) -> None:
    module, before = Tied(), Tied()
    objects = dict(module.named_parameters())
    flat = FlatParameters(module, TRAINED, dtype)
    assert all(parameter is objects[name] for name, parameter in module.named_parameters())
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before.get_parameter(name))
        assert parameter.requires_grad == before.get_parameter(name).requires_grad
        assert (parameter.grad is not None) == (name in TRAINED)
    assert module.decoder.weight is module.embedding.weight
    assert torch.equal(module(IDS), before(IDS))
    assert float(flat.weights.sum()) == pytest.approx(float(before.embedding.weight.detach().sum()) + 1.5, rel=1e-5)


def test_each_parameter_begins_where_wide_loads_may() -> None:
    module = Tied()
    FlatParameters(module, TRAINED, torch.float32)
    for name in TRAINED:
        parameter = module.get_parameter(name)
        assert parameter.storage_offset() % 64 == 0
        assert parameter.is_contiguous()
        assert parameter.grad.storage_offset() == parameter.storage_offset()


def test_a_backward_pass_adds_to_the_gradients_in_one_tensor() -> None:
    module, plain = Tied(), Tied()
    flat = FlatParameters(module, TRAINED, torch.float32)
    for _ in range(2):
        module(IDS).backward()
        flat.gather()
        plain(IDS).backward()
    for name in TRAINED:
        grad, expected = module.get_parameter(name).grad, plain.get_parameter(name).grad
        assert expected is not None
        assert torch.equal(grad, expected)
        assert grad.untyped_storage().data_ptr() == flat.gradients.untyped_storage().data_ptr()
    norm = torch.linalg.vector_norm(flat.gradients)
    plain_norm = nn.utils.get_total_norm([plain.get_parameter(name).grad for name in TRAINED])  # type: ignore[misc]
    assert float(norm) == pytest.approx(float(plain_norm), rel=1e-6)  # fp32, in another order
    flat.zero()
    assert not flat.gradients.any()
    assert not module.embedding.weight.grad.any()


def test_rounded_weights_are_read_and_their_gradients_summed_in_float32() -> None:
    module, plain = Tied(), Tied()
    flat = FlatParameters(module, TRAINED, torch.bfloat16)
    assert flat.working.keys() == {
        *("embedding.weight", "scale", "unused.weight", "unused.bias", "frozen.weight", "frozen.bias")
    }
    for name, weight in flat.working.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, plain.get_parameter(name).to(torch.bfloat16))
        assert weight.requires_grad == (name in TRAINED)
    with flat.lent():
        module(IDS).backward()
    plain.bfloat16()(IDS).backward()
    flat.gather()
    rounded = plain.embedding.weight.grad
    assert torch.equal(module.embedding.weight.grad, rounded.float())
    assert not flat.working["embedding.weight"].grad.any()  # ready for the next micro-batch
    # 1,000 additions of 1e-3 to 1 would stay at 1 in bfloat16
    flat.gradients.fill_(1)
    for _ in range(1000):
        flat.working["embedding.weight"].grad.fill_(1e-3)
        flat.gather()
    assert float(module.embedding.weight.grad.mean()) == pytest.approx(2, rel=2e-3)  # 1e-3 itself is rounded


def test_a_part_with_two_names_has_its_own_weights_again_after_each_pass() -> None:
    """As ELECTRA's generator and discriminator share their embeddings; and where the pass fails."""
    one = Tied()
    module = nn.ModuleDict({"one": one, "other": nn.Linear(1, 1), "two": one})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    objects = dict(module.named_parameters(remove_duplicate=False))
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    flat = FlatParameters(module, trained, torch.bfloat16)
    with flat.lent():
        assert all(value.dtype == torch.bfloat16 for value in module.parameters())
        assert one.decoder.weight is one.embedding.weight
        (one(IDS) + module["two"](IDS)).backward()
    with pytest.raises(ZeroDivisionError), flat.lent():
        raise ZeroDivisionError
    assert all(value is objects[name] for name, value in module.named_parameters(remove_duplicate=False))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert len(list(module.parameters())) == len(trained) + 2  # what is frozen


def test_what_is_read_follows_the_weights() -> None:
    module = Tied()
    flat = FlatParameters(module, TRAINED, torch.bfloat16)
    with torch.no_grad():
        module.scale.fill_(3)
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()})
    flat.refresh()
    assert flat.working["scale"].item() == 6
    assert torch.equal(flat.working["embedding.weight"], module.embedding.weight.to(torch.bfloat16))
