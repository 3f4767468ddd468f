"""Weighted and smoothed losses, beside scikit-learn's weights and PyTorch's own losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from support.sizes import small
from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.errors import SettingsError
from unmask.models.encoder import new_encoder
from unmask.tasks.sequence_module import SequenceModule, label_loss, new_sequence_module
from unmask.tasks.settings import TaskSettings
from unmask.tasks.text.multi_label import multi_label_loss
from unmask.tasks.text.weighting import balanced_weights, weigh_labels


def module_of(num_labels: int, loss: object) -> SequenceModule:
    torch.manual_seed(0)
    encoder = new_encoder(small(architecture="bert", vocab=20, width=16, layers=1, heads=2, inner=32), pooler=True)
    return new_sequence_module(encoder, None, num_labels, loss, TaskSettings(classifier_dropout=0.0))  # type: ignore[arg-type]


def batch_of(labels: torch.Tensor) -> Batch:
    return pack([[1, 2 + number, 3] for number in range(len(labels))]).with_columns(labels=labels)


def test_the_weights_are_those_of_scikit_learn() -> None:
    ids = np.array([0, 0, 0, 1, 2, 2, IGNORE_INDEX])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=ids[:-1])
    np.testing.assert_allclose(balanced_weights(ids, 3), expected, rtol=1e-6)
    assert balanced_weights(np.array([0, 0, 1, 1]), 3).tolist() == [1, 1, 2], "one that has no example"


def test_in_training_rare_labels_count_more_and_figures_stay_plain() -> None:
    module, labels = module_of(3, label_loss), torch.tensor([0, 0, 0, 1, 2, IGNORE_INDEX])
    batch = batch_of(labels)
    settings = TaskSettings(class_weights="balanced", label_smoothing=0.1)
    weigh_labels(module, labels.numpy(), 3, settings)
    weights = balanced_weights(labels.numpy(), 3)
    [term] = module.train().loss(outputs := module.outputs(batch), batch)
    expected = functional.cross_entropy(
        outputs, labels, weights, reduction="sum", label_smoothing=0.1, ignore_index=IGNORE_INDEX
    )
    assert term.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert module.counts(batch) == {"task": 5}
    [plain] = module.eval().loss(outputs, batch)
    assert plain.total == label_loss(outputs, labels)
    assert not [name for name in module.state_dict() if "weights" in name], "nothing of it is saved"


def test_several_labels_are_weighed_each_by_itself() -> None:
    labels = torch.tensor([[1, 0], [0, 0], [0, 1], [0, 1], [IGNORE_INDEX] * 2], dtype=torch.int8)
    module, batch = module_of(2, multi_label_loss), batch_of(labels)
    weigh_labels(module, labels.numpy(), 2, TaskSettings(class_weights="balanced"))
    [term] = module.train().loss(outputs := module.outputs(batch), batch)
    weights = torch.tensor(
        [[4 / 6, 1.0], [2.0, 1.0]]
    )  # absent, present: of the first label 3 and 1, of the second 2 and 2
    known, given = outputs[:4], labels[:4].float()
    each = functional.binary_cross_entropy_with_logits(known, given, reduction="none")
    expected = (each * torch.where(given == 1, weights[1], weights[0])).sum()
    assert term.total.item() == pytest.approx(expected.item(), rel=1e-6)
    weigh_labels(module, labels.numpy(), 2, TaskSettings(label_smoothing=0.2))
    [smoothed] = module.loss(outputs, batch)
    expected = functional.binary_cross_entropy_with_logits(known, given * 0.8 + 0.1, reduction="sum")
    assert smoothed.total.item() == pytest.approx(expected.item(), rel=1e-6)


def test_nothing_asked_for_changes_nothing() -> None:
    module, labels = module_of(3, label_loss), torch.tensor([0, 1, 2])
    weigh_labels(module, labels.numpy(), 3, TaskSettings())
    [term] = module.train().loss(outputs := module.outputs(batch_of(labels)), batch_of(labels))
    assert term.total == label_loss(outputs, labels)


def test_other_tasks_have_no_such_labels() -> None:
    for given in ({"class_weights": "balanced"}, {"label_smoothing": 0.1}):
        with pytest.raises((ValueError, SettingsError), match="is for classification, not for regression"):
            TaskSettings(name="regression", **given)
