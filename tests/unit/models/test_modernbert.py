"""ModernBERT's own parts: where norms and dropout are, how it begins, its memory, and its config.json."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.model_files import edit_config
from support.sizes import sizes_of
from unmask.batch import pack
from unmask.errors import ModelError
from unmask.models import attention
from unmask.models.attention import attend
from unmask.models.bert import BertEncoder
from unmask.models.family import HeadKind
from unmask.models.heads.heads import MaskedLMHead, new_head
from unmask.models.hub.directory import load_model, save_model
from unmask.models.kernels.attention_backends import Backend
from unmask.models.kernels.row_layout import Layout, layout_for
from unmask.models.layers import ACTIVATIONS
from unmask.models.modernbert import ModernBertBlock, ModernBertEncoder
from unmask.models.settings import EncoderSettings, ModelSettings
from unmask.training.optimizers.optimizer import parameter_groups


def sizes(**changes: Any) -> EncoderSettings:
    given = sizes_of(vocab=40, width=16, layers=4, heads=2, inner=24, positions=4096, local_attention=16)
    return EncoderSettings(architecture="modernbert", **given | changes)


def test_base_and_large_have_the_papers_sizes() -> None:
    """Warner et al. 2024, table 4, with the released vocabulary of 50,368; 149 and 395 million parameters."""
    for preset, millions in (("base", 149), ("large", 395)):
        settings = ModelSettings(architecture="modernbert", preset=preset).resolve(50368)  # type: ignore[arg-type]
        with torch.device("meta"):
            modules = [ModernBertEncoder(settings), MaskedLMHead(settings)]
        assert sum(p.numel() for module in modules for p in module.parameters()) // 1_000_000 == millions


def test_the_first_layer_has_no_norm_before_attention_and_every_third_is_global() -> None:
    blocks = list(ModernBertEncoder(sizes()).blocks)
    assert [isinstance(block.attention_norm, nn.Identity) for block in blocks] == [True, False, False, False]
    assert [block.attention.window for block in blocks] == [None, 8, 8, None]
    assert [block.attention.theta for block in blocks] == [160_000.0, 10_000.0, 10_000.0, 160_000.0]


def test_the_activation_is_a_function_as_in_other_blocks() -> None:
    small = {"hidden_act": "silu", "vocab_size": 40, "num_hidden_layers": 1}
    for encoder in (ModernBertEncoder(sizes(hidden_act="silu")), BertEncoder(EncoderSettings(**small))):
        assert encoder.blocks[0].feed_forward.activation is ACTIVATIONS["silu"]


def test_norms_do_not_decay_though_they_have_no_bias() -> None:
    settings = sizes()
    module = nn.ModuleList([ModernBertEncoder(settings), MaskedLMHead(settings)])
    decayed, plain = parameter_groups(module, 0.1, 1e-3)
    assert all(weight.ndim == 2 for weight in decayed["params"])
    assert all(weight.ndim == 1 for weight in plain["params"])
    assert len(decayed["params"]) == 1 + 4 * 4 + 1
    # embeddings, attention, feed-forward, final; the head's and its bias
    assert len(plain["params"]) == 1 + 3 + 4 + 1 + 2


def test_fresh_weights_are_those_of_the_paper() -> None:
    """Section 2.2, after Megatron: what is added to the hidden states is divided by sqrt(2 x layers). A head's last
    layer begins at 1 / sqrt(hidden), as in the released code. Tolerance: 6,000 draws or more, cut at two deviations,
    whose deviation is .8796 of the uncut."""
    torch.manual_seed(0)
    settings = sizes(hidden_size=128, intermediate_size=192, vocab_size=100)
    encoder = ModernBertEncoder(settings)
    cut = 0.8796
    for name, weight in encoder.named_parameters():
        if weight.ndim == 2:
            is_added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
            expected = 0.02 / math.sqrt(8) if is_added else 0.02
            assert float(weight.detach().std()) == pytest.approx(cut * expected, rel=0.04), name
        else:
            assert torch.equal(weight, torch.ones_like(weight))
    for kind in get_args(HeadKind):
        head = new_head(kind, settings, 200)
        assert float(head.output.weight.detach().std()) == pytest.approx(cut * 128**-0.5, rel=0.04)
        assert float(head.dense.weight.detach().std()) == pytest.approx(cut * 0.02, rel=0.04)


DROPOUT = {
    "hidden_dropout_prob": "in the feed-forward, between activation and output",
    "embedding_dropout_prob": "of the embeddings",
    "attention_probs_dropout_prob": "of the probabilities, and of attention's output",
}


@pytest.mark.parametrize("key", DROPOUT)
def test_dropout_is_where_the_released_code_has_it(key: str) -> None:
    """With a probability so high that every element goes, what stays shows where it was dropped."""
    none = dict.fromkeys(DROPOUT, 0.0)
    almost_all = 1 - 2**-16
    settings = sizes(**none | {key: almost_all}, mlp_bias=True, attention_bias=True, num_hidden_layers=1)
    torch.manual_seed(1)
    encoder = ModernBertEncoder(settings).train()
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            nn.init.ones_(parameter)
    batch = pack([[5, 6, 7]])
    embedded = encoder.embeddings(batch)
    layout = layout_for(batch, embedded)
    block = encoder.blocks[0]
    assert isinstance(block, ModernBertBlock)
    hidden = layout.enter(torch.randn(3, 16))
    if key == "embedding_dropout_prob":
        assert not embedded.any()
    elif key == "hidden_dropout_prob":
        assert embedded.any()  # given a probability of its own
        torch.testing.assert_close(block.feed_forward(hidden), torch.ones(3, 16))  # the bias alone is left
    else:
        block.feed_forward = nn.Identity()  # type: ignore[assignment]
        block.feed_forward_norm = nn.Identity()  # type: ignore[assignment]
        torch.testing.assert_close(block(hidden, layout), 2 * hidden)  # of attention not even its bias


def test_the_mean_of_a_long_text_is_taken_in_full_precision() -> None:
    """In bf16 a sum of some thousand numbers stops growing. Tolerance: one rounding of the mean."""
    torch.manual_seed(0)
    encoder = ModernBertEncoder(sizes(classifier_pooling="mean", num_hidden_layers=1)).eval().bfloat16()
    batch = pack([[5, 6, 7, 8] * 1000, [9, 9]])
    hidden = encoder(batch)
    assert hidden.dtype == torch.bfloat16
    expected = torch.stack([rows.float().mean(0) for rows in hidden.split(batch.lengths)])
    found = encoder.summary(batch)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=2**-8)


class LargestTensor(TorchDispatchMode):
    """Notes how many elements the largest tensor had that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def largest_tensor(monkeypatch: pytest.MonkeyPatch, backend: Backend, length: int, window: int | None) -> int:
    """Of attention forward and backward over a long and a short sequence, with dropout where the backend has it."""
    monkeypatch.setattr(attention, "choose_backend", lambda *_: (backend, ""))
    lengths = (length, length // 2)
    bounds = torch.tensor((0, *lengths)).cumsum(0).int()
    rows = torch.randn(sum(lengths), 3, 2, 4, requires_grad=True)
    prob = 0.1 if backend == "matmul" else 0.0
    with LargestTensor() as largest:
        attend(rows, Layout(bounds, lengths, length), prob, training=True, causal=False, window=window).sum().backward()
    assert rows.grad is not None
    return largest.elements


@pytest.mark.parametrize("backend", ["matmul", "sdpa"])
def test_local_attention_takes_memory_in_proportion_to_the_tokens(
    monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """No tensor over the 3 windows that a block of queries sees, and twice the tokens take twice the memory."""
    window = 8
    largest = {length: largest_tensor(monkeypatch, backend, length, window) for length in (512, 1024, 2048)}
    assert largest[2048] <= 2 * 2048 * 3 * window
    assert largest[1024] == 2 * largest[512]
    assert largest[2048] == 2 * largest[1024]


def test_a_full_matrix_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_tensor(monkeypatch, "matmul", 512, None) == 2 * 512 * 512


FULL, LOCAL = "full_attention", "sliding_attention"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown kind of attention": (
        {"layer_types": [FULL, "chunked_attention", FULL, LOCAL]},
        "layer_types has 'chunked_attention' for layer 1; expected 'sliding_attention'",
    ),
    "a pattern of its own": (
        {"layer_types": [FULL, FULL, LOCAL, FULL]},
        "layer_types has 'sliding_attention' for layer 2; expected 'full_attention': full_attention at the first layer",
    ),
    "local first": ({"layer_types": [LOCAL] * 4}, "for layer 0; expected 'full_attention'"),
    "too few layers": ({"layer_types": [FULL]}, "the kind of attention of each of 4 layers"),
    "no list": ({"layer_types": "full"}, "layer_types is 'full'; expected a list"),
    "scaled positions": (
        {"rope_parameters": {FULL: {"rope_type": "yarn", "factor": 4.0}}},
        "rope_parameters of full_attention has rope_type 'yarn'; expected 'default'",
    ),
    "scaled positions, as they were written": ({"rope_scaling": {"type": "linear"}}, "rope_scaling has rope_type"),
    "one theta for all": (
        {"rope_parameters": {"rope_theta": 1e4}},
        "expected a dictionary of full_attention and sliding",
    ),
    "read from left to right": (
        {"is_causal": True},
        "is_causal is True; expected False or no such key: a token of a ModernBertModel sees those on both sides",
    ),
    "no dictionary": ({"rope_parameters": {FULL: 1e4}}, "rope_parameters of full_attention is 10000.0"),
    "no window": ({"local_attention": 0}, "local_attention is 0: Input should be greater than or equal to 2"),
    "heads of an odd size": (
        {"num_attention_heads": 16},
        "hidden_size 16 and num_attention_heads 16 make heads of 1: ModernBERT's rotary positions turn pairs",
    ),
    "another pooling": ({"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
    "another activation": ({"hidden_activation": "quick_gelu"}, "hidden_activation is 'quick_gelu'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_is_not_supported_is_one_clear_message(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    save_model(tmp_path, ModernBertEncoder(sizes()))
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        load_model(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_theta_of_their_own_local_layers_have_the_global_one(tmp_path: Path) -> None:
    """So `transformers` 4.48 reads null."""
    save_model(tmp_path, ModernBertEncoder(sizes()))
    edit_config(tmp_path, local_rope_theta=None, global_rope_theta=80_000)
    loaded = load_model(tmp_path).encoder
    assert isinstance(loaded, ModernBertEncoder)
    assert (loaded.settings.global_rope_theta, loaded.settings.local_rope_theta) == (80_000, 80_000)
