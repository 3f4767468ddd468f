"""Activations, initialisation, dropout and matrix products."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.bert import BertEncoder
from unmask.models.dropout import dropout
from unmask.models.family import Activation
from unmask.models.kernels import products
from unmask.models.kernels.decoder_loss import Decoder, summed_decoder_loss
from unmask.models.kernels.products import Linear, pack_weights, packed_weights
from unmask.models.layers import ACTIVATIONS, FeedForward, initialise
from unmask.models.settings import EncoderSettings


def test_every_activation_of_the_settings_exists() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))


def test_fresh_weights() -> None:
    torch.manual_seed(0)
    encoder = BertEncoder(EncoderSettings(vocab_size=500, num_hidden_layers=1, initializer_range=0.05))
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.abs().max() <= 2 * 0.05, name
            # a normal distribution cut at two deviations has .8796 of its deviation; the smallest has 1,536 entries
            assert float(parameter.detach().std()) == pytest.approx(0.8796 * 0.05, rel=0.08), name


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.003, 0.999])
def test_dropout_has_its_probability_and_keeps_the_mean(prob: float) -> None:
    torch.manual_seed(0)
    size = 2_000_003  # no multiple of the four elements that share a random number
    dropped = dropout(torch.ones(size), prob, training=True)
    share = float((dropped == 0).double().mean())
    error = (prob * (1 - prob) / size) ** 0.5
    assert abs(share - prob) < 5 * error + 2**-17  # five standard errors, and the rounding to multiples of 2^-16
    kept = dropped[dropped != 0]
    assert kept.min() == kept.max()
    assert float(kept[0]) == pytest.approx(1 / (1 - prob), rel=2**-17 / (1 - prob) + 1e-6)


def test_a_probability_that_rounds_to_1_leaves_something() -> None:
    """The settings allow what is below 1; the scale stays finite."""
    torch.manual_seed(0)
    values = torch.ones(2_000_000, requires_grad=True)
    dropped = dropout(values, 1 - 1e-7, training=True)
    (gradient,) = torch.autograd.grad(dropped.sum(), values)
    assert set(dropped.tolist()) == set(gradient.tolist()) == {0.0, 2.0**16}


def test_neighbours_are_dropped_independently() -> None:
    """Each of the four lanes of a random number, and each two of them: 5 standard errors of a share of 400,000."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000, 4), 0.5, training=True) != 0).double()
    assert (kept.mean(0) - 0.5).abs().max() < 5 * 0.5 / 400_000**0.5
    together = (kept.t() @ kept / 400_000)[~torch.eye(4, dtype=torch.bool)]
    assert (together - 0.25).abs().max() < 5 * (0.25 * 0.75 / 400_000) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_goes_where_the_values_went(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = (1 + torch.rand(37, 11)).to(dtype).requires_grad_()  # none is zero before
    dropped = dropout(values, 0.3, training=True)
    dropped.backward(torch.ones_like(dropped))
    assert dropped.dtype == values.grad.dtype == dtype
    scale = torch.tensor(2**16 / (2**16 - round(0.3 * 2**16)), dtype=dtype)
    assert torch.equal(values.grad, torch.where(dropped != 0, scale, 0))


def test_dropout_follows_the_generator_of_the_device() -> None:
    values = torch.randn(100, 3)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = dropout(values, 0.5, True), dropout(values, 0.5, True)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(values, 0.5, True), first)


def test_no_dropout_outside_training_nor_with_probability_zero() -> None:
    values = torch.randn(5, 3)
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0, training=True) is values


def test_a_small_model_trains_alike_with_onednn_and_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance: sums of 64 products of order 1 in another order, fp32."""
    torch.manual_seed(0)
    module = Linear(64, 33)
    values = torch.randn(70, 64)
    outcomes = []
    for by_onednn in (False, True):
        monkeypatch.setattr(products, "_onednn_beats_mkl", lambda chosen=by_onednn: chosen)
        inputs = values.clone().requires_grad_()
        output = module(inputs)
        gradients = torch.autograd.grad(functional.gelu(output).sum(), [inputs, module.weight, module.bias])
        outcomes.append((output, *gradients))
        with torch.inference_mode():
            assert torch.equal(module(values), output)
        assert module(values[:0]).shape == (0, 33)
    mkl, onednn = outcomes
    torch.testing.assert_close(onednn, mkl, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_compute_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerance: sums of 64 and 48 products in another order; bf16 keeps 8 bits, and GELU's input is not rounded."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bf16 on this processor")
    monkeypatch.setattr(products, "_packs", lambda _: True)
    torch.manual_seed(0)
    module = FeedForward(64, 48, "gelu").to(dtype).eval()
    for num_rows in (0, 1, 70):
        values = torch.randn(num_rows, 64, dtype=dtype)
        expected = module(values)
        pack_weights(module)
        with torch.inference_mode():
            assert module.up.takes_packed(values)
            bound = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(module(values), expected, rtol=bound, atol=bound)


def test_packed_weights_are_for_reading_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_packs", lambda _: True)
    module, values = Linear(16, 8).eval(), torch.randn(3, 16)
    pack_weights(module)
    assert not module.takes_packed(values)  # there are gradients
    module(values).sum().backward()
    assert module.weight.grad is not None
    with torch.inference_mode():
        assert module.takes_packed(values)
        assert not module.takes_packed(values.bfloat16())
        copied = copy.deepcopy(module)
        assert not copied.takes_packed(values)
        assert torch.equal(copied.weight, module.weight)
        module.train()
        assert not module.takes_packed(values)  # the weight is about to change
        pack_weights(module.eval())
        module.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in module.state_dict().items()})
        assert not module(values).any()
        with packed_weights(module):
            assert module.takes_packed(values)
        assert not module.takes_packed(values)


def test_weights_are_packed_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    for packs in (False, True):
        monkeypatch.setattr(products, "_onednn_beats_mkl", lambda chosen=packs: chosen)
        module = Linear(16, 8).eval()
        pack_weights(module)
        assert (module.packed is not None) == packs


def test_fresh_weights_do_not_depend_on_the_version_of_pytorch() -> None:
    torch.manual_seed(3)
    module = nn.Linear(300, 700)
    torch.manual_seed(3)
    initialise(module, 0.02)
    weight = module.weight.detach()
    assert weight[0, :3].tolist() == pytest.approx([-0.00153289, 0.00719763, -0.01564034], rel=1e-5)
    assert weight[-1, -2:].tolist() == pytest.approx([-0.01470213, 0.00955044], rel=1e-5)
    assert float(weight.abs().max()) <= 0.04
    # of a normal distribution cut off at two standard deviations: .8796 of the whole one's
    assert float(weight.std()) == pytest.approx(0.8796 * 0.02, rel=0.01)


@pytest.mark.parametrize("num_rows", [0, 1, 37, 613, 640])
def test_in_bfloat16_any_number_of_rows_comes_to_the_same(num_rows: int) -> None:
    torch.manual_seed(0)
    layer, values, weights = Linear(24, 40), torch.randn(num_rows, 24), torch.randn(num_rows, 40)
    results = []
    for product in (functional.linear, products.linear_of_any_rows):
        its_values = values.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = product(its_values, layer.weight, layer.bias)
        gradients = torch.autograd.grad((outputs.float() * weights).sum(), [its_values, layer.weight, layer.bias])
        results.append([outputs.float(), *gradients])
    expected, ours = results
    torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-2)


def test_numbers_of_rows_return_in_bfloat16_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of heads over targets and of the next-token loss, whose rows are as many as the batch happens to have."""
    seen: set[int] = set()
    product = functional.linear

    def record(values: Tensor, *others: Tensor | None) -> Tensor:
        seen.add(len(values))
        return product(values, *others)

    monkeypatch.setattr(products, "_onednn_beats_mkl", lambda: False)
    monkeypatch.setattr(functional, "linear", record)
    numbers, layer = range(590, 640, 7), Linear(8, 12)
    for bf16 in (False, True):
        seen.clear()
        for number in numbers:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                layer(torch.randn(number, 8))
        assert seen == ({640} if bf16 else set(numbers))
    seen.clear()
    for number in numbers:
        decoder = Decoder(torch.randn(number, 8, requires_grad=True), layer.weight)
        with torch.autocast("cpu", torch.bfloat16):
            summed_decoder_loss(decoder, torch.zeros(number, dtype=torch.int64)).backward()
    assert seen == {640, 12}  # the gradient of the weight has a row for each of the 12 entries
