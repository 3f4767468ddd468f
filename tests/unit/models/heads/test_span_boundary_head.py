"""The boundary head's file beside a saved model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.tensors import assert_equal
from unmask.errors import ModelError
from unmask.io.paths import SPAN_BOUNDARY
from unmask.models.heads.span_boundary_head import (
    POSITION_SIZE,
    SpanBoundaryHead,
    restore_span_boundary,
    write_span_boundary,
)
from unmask.models.settings import EncoderSettings


def fresh(seed: int, vocab_size: int = 30, max_targets: int = 5, hidden_size: int = 8) -> SpanBoundaryHead:
    """A head whose every weight is random."""
    torch.manual_seed(seed)
    settings = EncoderSettings(vocab_size=vocab_size, hidden_size=hidden_size, num_attention_heads=2)
    head = SpanBoundaryHead(settings, max_targets)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head


def test_positions_are_200_wide_and_the_decoder_is_as_wide_as_the_embeddings() -> None:
    head = SpanBoundaryHead(EncoderSettings(architecture="electra"), 20)
    assert tuple(head.position.weight.shape) == (20, POSITION_SIZE) == (20, 200)
    assert head.dense1.in_features == 2 * 256 + 200
    assert (head.dense1.out_features, head.dense2.out_features) == (256, 128)


def test_what_is_written_is_restored(tmp_path: Path) -> None:
    head, other = fresh(0), fresh(1)
    write_span_boundary(tmp_path, head)
    restore_span_boundary(tmp_path, other)
    assert_equal(other.state_dict(), head.state_dict())


def test_new_entries_and_places_stay_fresh(tmp_path: Path) -> None:
    head, larger = fresh(0), fresh(1, vocab_size=32, max_targets=7)
    was = {name: weight.clone() for name, weight in larger.state_dict().items()}
    write_span_boundary(tmp_path, head)
    restore_span_boundary(tmp_path, larger)
    assert torch.equal(larger.bias, torch.cat([head.bias, was["bias"][30:]]))
    assert torch.equal(larger.position.weight, torch.cat([head.position.weight, was["position.weight"][5:]]))
    smaller = fresh(2, max_targets=3)
    restore_span_boundary(tmp_path, smaller)
    assert torch.equal(smaller.position.weight, head.position.weight[:3])


def test_a_model_without_the_head_has_no_file(tmp_path: Path) -> None:
    head = fresh(0)
    before = head.bias.clone()
    restore_span_boundary(tmp_path, head)
    assert torch.equal(head.bias, before)
    write_span_boundary(tmp_path, head)
    write_span_boundary(tmp_path, None)
    assert not (tmp_path / SPAN_BOUNDARY).exists()


def test_a_damaged_file_or_one_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SPAN_BOUNDARY
    write_span_boundary(tmp_path, fresh(0, hidden_size=10))
    with pytest.raises(ModelError, match=r"dense1.bias is \(10,\) .*expected \(8,\) floats.*another model"):
        restore_span_boundary(tmp_path, fresh(0))
    write_span_boundary(tmp_path, fresh(0))
    weights = load_file(path)
    save_file({name: weight for name, weight in weights.items() if name != "dense2.bias"}, path)
    with pytest.raises(ModelError, match=r"dense2\.bias are missing or left over"):
        restore_span_boundary(tmp_path, fresh(0))
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ModelError, match="cut short or damaged"):
        restore_span_boundary(tmp_path, fresh(0))
