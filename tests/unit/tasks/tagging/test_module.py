"""Tagging with a frozen encoder: the features on the disk are those of the encoder, and only the head learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.sizes import small
from unmask.batch import IGNORE_INDEX, Batch
from unmask.errors import OutputError, SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.heads.bilstm import FeatureHead
from unmask.models.heads.layer_mixture import CHOICES
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.tagging.module import FeatureTaggingModule, with_features
from unmask.training.device import choose_compute

ROWS = [[2, 10, 11, 12, 3], [2, 20, 3], [2, 30, 31, 32, 33, 34, 3], [2, 40, 41, 3], [2, 50, 3]]
NUM_LABELS = 3
CPU = choose_compute("cpu", "fp32")


def new_encoder() -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(small(vocab=60, width=16, layers=5, heads=2, inner=32, positions=16, std=0.3)).eval()


def new_module(layers: str, dropout_prob: float | None = None) -> FeatureTaggingModule:
    encoder = new_encoder()
    return FeatureTaggingModule(encoder, FeatureHead(encoder.settings, NUM_LABELS, layers, dropout_prob), layers)


def new_examples() -> EncodedExamples:
    """Five rows, of which the third and fourth are one unit; special tokens have no label."""
    labels = [token % NUM_LABELS if token > 3 else IGNORE_INDEX for row in ROWS for token in row]
    return EncodedExamples.from_lists(
        ROWS, [len(row) for row in ROWS], rows_of_units=[1, 1, 2, 1], token_columns={"labels": np.array(labels)}
    )


def everything(examples: EncodedExamples) -> Batch:
    return examples.batch(range(len(examples)))


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("layers", CHOICES)
def test_the_column_stands_in_for_the_encoder(layers: str, tmp_path: Path) -> None:
    module = new_module(layers).eval()
    examples = new_examples()
    prepared = with_features(examples, module.encoder, layers, tmp_path / "deep" / "train.npy", CPU.device)
    direct, stored = everything(examples), everything(prepared)
    assert "features" not in examples.token_columns
    assert isinstance(prepared.token_columns["features"], np.ndarray)
    # The rows were computed in batches of another order: float32 to a few units in the last place.
    torch.testing.assert_close(stored.columns["features"], module.features(direct), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(module.outputs(stored), module.outputs(direct), atol=1e-5, rtol=1e-5)
    some = [3, 1]
    torch.testing.assert_close(
        prepared.batch(some).columns["features"], module.features(examples.batch(some)), atol=1e-5, rtol=1e-5
    )


def test_the_column_is_read_and_not_the_encoder(tmp_path: Path) -> None:
    module = new_module("last").eval()
    batch = everything(with_features(new_examples(), module.encoder, "last", tmp_path / "train.npy", CPU.device))
    before = module.outputs(batch)
    with torch.no_grad():
        module.encoder.embeddings.word.weight.zero_()
    assert torch.equal(module.outputs(batch), before)


@pytest.mark.parametrize("layers", ["last", "weighted-all"])
def test_only_the_head_learns(layers: str) -> None:
    module = new_module(layers)
    module.train()
    assert module.training
    assert module.head.training
    assert not any(part.training for part in module.encoder.modules())
    assert [name for name, _ in module.named_children()] == ["encoder", "head"]
    before = state(module.encoder)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    (term,) = module(everything(new_examples()))
    (term.total / 12).backward()
    optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in module.encoder.parameters())
    assert all(bool(parameter.grad.any()) for parameter in module.head.parameters())
    assert torch.equal(module.features(everything(new_examples())), module.features(everything(new_examples())))


def test_the_loss_is_that_of_labelled_tokens() -> None:
    module = new_module("last").eval()
    batch = everything(new_examples())
    (term,) = module(batch)
    labels = batch.columns["labels"]
    chosen = torch.log_softmax(module.outputs(batch), -1)[labels != IGNORE_INDEX]
    by_hand = -chosen.gather(1, labels[labels != IGNORE_INDEX, None]).sum()
    assert (term.name, module.counts(batch)) == ("task", {"task": 12})
    torch.testing.assert_close(term.total, by_hand)


def test_refused(tmp_path: Path) -> None:
    encoder = new_encoder()
    with pytest.raises(SettingsError, match=r"no feature layers 'concat-last': .*did you mean concat-last-4"):
        new_module("concat-last")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        with_features(new_examples(), encoder, "last", tmp_path / "file" / "train.npy", CPU.device)


def test_a_failure_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = new_module("last")
    path = tmp_path / "train.npy"
    with_features(new_examples(), module.encoder, "last", path, CPU.device)
    before = path.read_bytes()

    def stop(batch: Batch) -> list[torch.Tensor]:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.encoder, "hidden_states", stop)
    with pytest.raises(KeyboardInterrupt):
        with_features(new_examples(), module.encoder, "last", path, CPU.device)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
