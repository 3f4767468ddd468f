"""ELMo's language models: the loss against the formulas, the memory of each lane, evaluation and saving."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from support.sizes import small_elmo
from support.tensors import assert_equal
from unmask.batch import Batch
from unmask.chance import key
from unmask.errors import ModelError
from unmask.models.elmo.encoder import BACKWARD, FORWARD, ElmoEncoder
from unmask.models.elmo.projected_lstm import LstmState
from unmask.models.hub.directory import load_model, save_model
from unmask.models.hub.source import open_source
from unmask.objectives.bilm import BiLM, BiLMModule
from unmask.objectives.floors import by_figure
from unmask.objectives.settings import BiLMSettings
from unmask.tokenization.vocabulary import Vocabulary

SIZE, WINDOW, LANES = 12, 4, 5
SETTINGS = small_elmo(vocab_size=SIZE, max_characters=6, hidden_dropout_prob=0.0)
VOCABULARY = Vocabulary(SIZE, None, (0, 1, 2), np.zeros(SIZE, dtype=np.bool_))


def new_objective(num_negatives: int = 4, empty_memory_prob: float = 0.0) -> BiLM:
    return BiLM(BiLMSettings(num_negatives=num_negatives, empty_memory_prob=empty_memory_prob), VOCABULARY)


def new_module(objective: BiLM | None = None, **changes: object) -> BiLMModule:
    torch.manual_seed(0)
    module = (objective or new_objective()).build(ElmoEncoder(SETTINGS.model_copy(update=changes)))  # type: ignore[arg-type]
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def new_batch(window: int, lanes: list[int]) -> Batch:
    """A window of some lanes; what a lane holds depends on nothing else."""

    def of_lane(lane: int, name: int, high: int, columns: tuple[int, ...] = ()) -> torch.Tensor:
        generator = torch.Generator().manual_seed(key(0, window, lane, name) & 0xFFFF)
        return torch.randint(0, high, (WINDOW, *columns), generator=generator)

    def of_all(name: int, high: int, columns: tuple[int, ...] = ()) -> torch.Tensor:
        return torch.cat([of_lane(lane, name, high, columns) for lane in lanes])

    total = len(lanes) * WINDOW
    return Batch(
        input_ids=of_all(0, SIZE),
        token_type_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.arange(WINDOW).repeat(len(lanes)),
        bounds=torch.arange(0, total + 1, WINDOW, dtype=torch.int32),
        lengths=(WINDOW,) * len(lanes),
        keys=torch.full((len(lanes),), key(0, window)),
        columns={
            "characters": of_all(1, 261, (6,)),
            "labels": of_all(2, SIZE),
            "backward_characters": of_all(3, 261, (6,)),
            "backward_labels": of_all(4, SIZE),
            "lane": torch.tensor(lanes),
            "window": torch.full((len(lanes),), window),
        },
    )


@torch.no_grad()
def slow_losses(module: BiLMModule, windows: int, num_lanes: int) -> list[float]:
    """The full softmax' loss of each direction, lane by lane and word by word over some windows."""
    settings = module.encoder.settings
    totals = [0.0, 0.0]
    for direction, prefix in ((FORWARD, ""), (BACKWARD, "backward_")):
        for lane in range(num_lanes):
            memories = [
                LstmState(torch.zeros(1, settings.projection_size), torch.zeros(1, settings.cell_size))
                for _ in range(settings.num_hidden_layers)
            ]
            for window in range(windows):
                columns = new_batch(window, [lane]).columns
                words = zip(columns[f"{prefix}characters"], columns[f"{prefix}labels"], strict=True)
                for characters, label in words:
                    value = module.encoder.embeddings(characters[None])
                    for number, lstm in enumerate(module.encoder.blocks[direction].layers):
                        output, memories[number] = lstm(value, [1], memories[number])
                        value = output + value if number else output
                    logits = module.softmax.weight @ value[0] + module.softmax.bias
                    totals[direction] -= float(torch.log_softmax(logits, 0)[label])
    return totals


@torch.no_grad()
def test_evaluation_is_the_full_softmax_of_both_directions() -> None:
    module = new_module().eval()
    expected = slow_losses(module, windows=3, num_lanes=LANES)
    for _ in range(2):  # every evaluation begins with nothing remembered
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for window in range(3):
            module(new_batch(7 + window, [0, 1]))  # what training remembers is another thing
            for name, (total, count) in module.scores(new_batch(window, list(range(LANES)))).items():
                totals[name] = totals.get(name, 0) + float(total)
                counts[name] = counts.get(name, 0) + count
        assert totals["lm_forward_loss"] == pytest.approx(expected[0], rel=1e-5)
        assert totals["lm_backward_loss"] == pytest.approx(expected[1], rel=1e-5)
        assert totals["lm_loss"] == pytest.approx(sum(expected), rel=1e-5)
        assert counts == {
            "lm_loss": 2 * 3 * LANES * WINDOW,
            "lm_accuracy": 2 * 3 * LANES * WINDOW,
            "lm_forward_loss": 3 * LANES * WINDOW,
            "lm_backward_loss": 3 * LANES * WINDOW,
        }
        assert 0 <= totals["lm_accuracy"] <= counts["lm_accuracy"]


@pytest.mark.parametrize("num_negatives", [SIZE, SIZE // 2 + 1])
def test_training_with_most_of_the_words_is_the_full_softmax(num_negatives: int) -> None:
    objective = new_objective(num_negatives)
    module = new_module(objective)
    expected = slow_losses(module, windows=2, num_lanes=LANES)
    total = 0.0
    for window in range(2):
        batch = objective.prepare(new_batch(window, list(range(LANES))))
        assert "negatives" not in batch.columns
        [term] = module(batch)
        assert (term.name, term.coefficient) == ("lm", 1.0)
        assert objective.counts(batch) == {"lm": 2 * LANES * WINDOW}
        total += float(term.total.detach())
    assert total == pytest.approx(sum(expected), rel=1e-5)


def test_candidates_are_those_of_the_window() -> None:
    def negatives(window: int, lanes: list[int]) -> torch.Tensor:
        return new_objective().prepare(new_batch(window, lanes)).columns["negatives"]

    first = negatives(3, [0, 1])
    assert len(first) == 4
    assert torch.equal(first, negatives(3, [4]))
    assert any(not torch.equal(first, negatives(window, [0])) for window in range(4, 9))


@torch.no_grad()
def test_a_lane_that_forgets_reads_as_if_it_began() -> None:
    objective = new_objective(empty_memory_prob=0.5)
    forgetful, remembering = new_module(objective), new_module(objective)
    for module in (forgetful, remembering):
        module(new_batch(0, list(range(LANES))))
    cases = set()
    for lane in range(LANES):
        batch = objective.prepare(new_batch(1, [lane]))
        expected = new_module(objective) if batch.columns["forgets"] else remembering
        cases.add(bool(batch.columns["forgets"]))
        without = Batch(**vars(batch) | {"columns": {n: c for n, c in batch.columns.items() if n != "forgets"}})
        torch.testing.assert_close(forgetful(batch)[0].total, expected(without)[0].total)
        for one, other in zip(forgetful.buffers(), expected.buffers(), strict=True):
            torch.testing.assert_close(one[:, :, lane], other[:, :, lane])
    assert cases == {True, False}


def test_lanes_forget_as_often_as_is_said() -> None:
    assert "forgets" not in new_objective().prepare(new_batch(0, [0])).columns
    objective = new_objective(empty_memory_prob=0.3)
    windows, lanes = 400, list(range(LANES))
    forgets = torch.stack([objective.prepare(new_batch(number, lanes)).columns["forgets"] for number in range(windows)])
    of_some = [objective.prepare(new_batch(number, lanes[2:])).columns["forgets"] for number in range(windows)]
    assert torch.equal(forgets[:, 2:], torch.stack(of_some))  # whatever the micro-batch
    deviation = math.sqrt(0.3 * 0.7 / windows)
    assert all(abs(share - 0.3) < 4 * deviation for share in forgets.float().mean(0).tolist())  # of each lane
    both = (forgets[:, 0] & forgets[:, 1]).float().mean().item()
    assert abs(both - 0.09) < 4 * math.sqrt(0.09 * 0.91 / windows)  # each by itself


def test_dropout_is_for_training_alone() -> None:
    module = new_module(hidden_dropout_prob=0.5)
    batch = new_batch(0, [0, 1])
    with torch.no_grad():
        first, second = (copy.deepcopy(module)(batch)[0].total for _ in range(2))
        assert not torch.equal(first, second)
        module.eval()
        first, second = (copy.deepcopy(module)(batch)[0].total for _ in range(2))
        assert torch.equal(first, second)


def test_floors_are_of_one_direction() -> None:
    counts = np.array([10, 10, 5, 30, 20] + [0] * 7)
    shares = np.array([10, 5, 30, 20]) / 65
    expected = -(shares * np.log(shares)).sum()
    assert by_figure(new_objective().floors(counts))["loss/lm"]["unigram entropy"] == pytest.approx(expected)
    assert counts[0] == 10


def test_floors_of_a_text_are_those_of_its_batches() -> None:
    """The mark that is predicted at the end is another one from right to left."""
    begin, end = 0, 1
    labels, backward = torch.tensor([5, 6, end, 6, 6, 5, end, 7]), torch.tensor([begin, 5, 6, begin, 6, 6, 5, 7])
    batch = new_batch(0, [0, 1]).with_columns(labels=labels, backward_labels=backward)
    counts = np.bincount(torch.cat([labels, torch.tensor([begin, begin])]).numpy(), minlength=SIZE)
    expected = by_figure(new_objective().floors(counts))["loss/lm"]
    assert by_figure(new_objective().floors(counts, [batch]))["loss/lm"] == pytest.approx(expected)


def test_saved_models_give_their_softmax_to_new_runs(tmp_path: Path) -> None:
    module = new_module()
    saved = module.saved()[""]
    save_model(tmp_path / "model", saved.encoder, saved.heads)
    other = BiLM(BiLMSettings(), VOCABULARY).build(load_model(tmp_path / "model").encoder)  # type: ignore[arg-type]
    assert not torch.equal(other.softmax.weight, module.softmax.weight)
    new_objective().restore_heads(other, open_source(tmp_path / "model"))  # type: ignore[arg-type]
    assert_equal(list(module.parameters()), list(other.parameters()))
    smaller = new_objective().build(ElmoEncoder(SETTINGS.model_copy(update={"vocab_size": 7})))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="its softmax has the shape"):
        new_objective().restore_heads(smaller, open_source(tmp_path / "model"))  # type: ignore[arg-type]
    save_model(tmp_path / "bare", module.encoder)
    kept = copy.deepcopy(other.softmax.weight)
    new_objective().restore_heads(other, open_source(tmp_path / "bare"))  # type: ignore[arg-type]
    assert torch.equal(other.softmax.weight, kept)
