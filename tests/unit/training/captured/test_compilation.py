"""Compiled parts: a block is one program for batches of any size, with a GPU's attention in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.models.kernels.row_layout import Layout
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import Block
from unmask.training.captured.compilation import compiled_parts

SIZES = EncoderSettings(vocab_size=9, hidden_size=64, num_attention_heads=2, intermediate_size=128)


def block() -> Block:
    torch.manual_seed(0)
    return Block(SIZES).train()


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler about itself
def test_a_block_on_a_gpu_is_one_program_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced here and not run, since the operator has no kernel for the CPU: no break, nothing traced twice, and the
    operator is called once, with the probability of dropout."""
    programs: list[torch.fx.GraphModule] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., tuple[Tensor]]:
        programs.append(program)
        return lambda *arguments: (torch.zeros(0),)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def choose_varlen(*arguments: Any) -> tuple[str, str]:
        return "varlen", "as on a GPU"

    monkeypatch.setattr("unmask.models.attention.choose_backend", choose_varlen)
    torch._dynamo.reset()
    forward = torch.compile(Block.forward, backend=note, fullgraph=True)
    blocks = [block().bfloat16() for _ in range(2)]
    for num_tokens, num_sequences in ((640, 32), (1312, 64), (64, 32)):
        for each in blocks:
            hidden = torch.randn(num_tokens, 64, dtype=torch.bfloat16, requires_grad=True)
            bounds = torch.zeros(num_sequences + 1, dtype=torch.int32)
            for tensor in (hidden, bounds):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            forward(each, hidden, Layout(bounds, (), 128))
    torch._dynamo.reset()
    [program] = programs
    operators = [node for node in program.graph.nodes if "flash_attention" in str(node.target)]
    assert [node.args[7] for node in operators] == [0.1]


def test_parts_are_compiled_in_the_context_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[type[nn.Module]] = []

    def compiled(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def forward(part: nn.Module, *arguments: Any) -> Tensor:
            calls.append(type(part))
            return plain(part, *arguments)

        return forward

    monkeypatch.setattr("unmask.training.captured.compilation._compiled", compiled)
    blocks = nn.ModuleList([block(), block()])
    hidden, layout = torch.randn(8, 64), Layout(torch.tensor([0, 3, 8], dtype=torch.int32), (3, 5), 5)
    with compiled_parts(blocks):
        for each in blocks:
            each(hidden, layout)
    assert calls == [Block, Block]
    with pytest.raises(ZeroDivisionError), compiled_parts(blocks):
        raise ZeroDivisionError
    blocks[0](hidden, layout)
    assert len(calls) == 2
    assert all("forward" not in vars(each) for each in blocks)
