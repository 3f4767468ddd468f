"""A run in phases: each at its time, nothing shown twice, and the same from wherever one resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.stores import numbered_store
from support.tensors import same_step
from unmask.batch import StepBatches
from unmask.packing import planning as packing
from unmask.packing.formats import open_planner
from unmask.packing.loader import Position, SequenceLoader
from unmask.packing.phases import phased_steps
from unmask.packing.settings import PackingSettings
from unmask.packing.split import Split
from unmask.packing.templates import SequenceTemplate
from unmask.tokenization.definition import BARE

UNTILS = (0.4, 0.7, 1.0)
LENGTHS = (8, 20, 12)
BATCH_SIZES = (3, 2, 7)
BEGINNING = Position()
Loaders = list[SequenceLoader]


@pytest.fixture(scope="module")
def loaders() -> Iterator[Loaders]:
    """Three phases over 30 documents in blocks of 4, each with lengths, batches and a format of its own."""
    store = numbered_store([[3 + number % 5] * (1 + number % 7) for number in range(30)])
    split, frame = Split(store, 0, False), SequenceTemplate(BARE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", 4)
        yield [
            SequenceLoader(
                open_planner(split, PackingSettings(max_length=length), "nsp", frame, seed=4),
                frame,
                size,
                2,
                label_column="next_sentence_label",
            )
            for length, size in zip(LENGTHS, BATCH_SIZES, strict=True)
        ]


def run(
    loaders: Sequence[SequenceLoader],
    num_steps: int,
    untils: Sequence[float] = UNTILS,
    done: int = 0,
    start: Position = BEGINNING,
) -> tuple[list[StepBatches[Position]], list[tuple[int, int]]]:
    """The steps of a run from one of them on, and after how many steps which phase begins."""
    taken = done
    begun: list[tuple[int, int]] = []
    steps: list[StepBatches[Position]] = []
    phased = phased_steps(loaders, untils, start, lambda: taken / num_steps, lambda phase: begun.append((taken, phase)))
    while taken < num_steps:
        steps.append(next(phased))
        taken += 1
    return steps, begun


@pytest.mark.parametrize(("num_steps", "changes"), [(10, [4, 7]), (20, [8, 14]), (50, [20, 35]), (33, [14, 24])])
def test_each_phase_has_its_share_of_the_steps(loaders: Loaders, num_steps: int, changes: list[int]) -> None:
    steps, begun = run(loaders, num_steps)
    assert begun == [(changes[0], 1), (changes[1], 2)]
    for number, step in enumerate(steps):
        phase = sum(number >= change for change in changes)
        assert step.after.phase == phase
        assert sum(batch.num_sequences for batch in step.batches) == BATCH_SIZES[phase]
        assert max(length for batch in step.batches for length in batch.lengths) <= LENGTHS[phase]


def test_nothing_is_shown_twice_in_an_epoch(loaders: Loaders) -> None:
    """No block is in two phases, and all keys differ, which are those of (epoch, block, sequence)."""
    steps, _ = run(loaders, 40)
    keys = [key for step in steps for batch in step.batches if batch.keys is not None for key in batch.keys.tolist()]
    assert len(set(keys)) == len(keys)
    seen = [{(step.after.epoch, step.after.block) for step in steps if step.after.phase == phase} for phase in range(3)]
    assert all(seen)
    assert not (seen[0] & seen[1] | seen[1] & seen[2])
    assert max(seen[0]) < min(seen[1]) <= max(seen[1]) < min(seen[2])


def test_a_new_phase_continues_with_the_next_block(loaders: Loaders) -> None:
    steps, _ = run(loaders, 40)
    before, after = steps[15], steps[16]
    assert (before.after.phase, after.after.phase) == (0, 1)
    expected = replace(loaders[0].after_block(before.after), phase=1)
    assert same_step(after, next(loaders[1].steps(expected)))


@given(num_steps=st.integers(1, 60), share=st.floats(0, 1))
def test_resuming_anywhere_gives_the_same_stream(loaders: Loaders, num_steps: int, share: float) -> None:
    straight, begun = run(loaders, num_steps)
    done = min(int(share * num_steps), num_steps - 1)
    start = Position(**asdict(straight[done - 1].after)) if done else BEGINNING
    resumed, begun_again = run(loaders, num_steps, done=done, start=start)
    assert all(same_step(*pair) for pair in zip(straight[done:], resumed, strict=True))
    assert begun_again == [(step, phase) for step, phase in begun if step >= done]


def test_progress_is_read_when_a_step_is_taken(loaders: Loaders) -> None:
    """Not one step ahead, so a caller may take the first step early and set it before the others."""
    straight, _ = run(loaders, 20)
    read_at: list[int] = []
    taken = 0

    def progress() -> float:
        read_at.append(taken)
        return taken / 20

    phased = phased_steps(loaders, UNTILS, BEGINNING, progress, lambda phase: None)
    assert read_at == []
    first = next(phased)
    assert read_at == [0]
    found = []
    for step in chain([first], phased):
        found.append(step)
        taken += 1
        if taken == 20:
            break
    assert read_at == list(range(20))
    assert all(same_step(*pair) for pair in zip(straight, found, strict=True))


def test_a_phase_that_is_over_before_its_first_step_is_left_out(loaders: Loaders) -> None:
    steps, begun = run(loaders, 2)
    assert begun == [(1, 1)]
    steps, begun = run(loaders, 4, untils=(0.2, 0.25, 1.0))
    assert begun == [(1, 2)]
    assert [step.after.phase for step in steps] == [0, 2, 2, 2]


def test_gone_back_the_steps_are_of_the_earlier_phase_with_the_text_that_is_next(loaders: Loaders) -> None:
    """A run that rolls back has done less, but continues in the text: with the block after the one it was in."""
    start = Position(0, 2, 1, phase=1)
    steps, begun = run(loaders, 10, done=2, start=start)
    assert [step.after.phase for step in steps] == [0, 0, 1, 1, 1, 2, 2, 2]
    assert begun == [(2, 0), (4, 1), (7, 2)]
    assert same_step(steps[0], next(loaders[0].steps(replace(loaders[1].after_block(start), phase=0))))
    assert min((step.after.epoch, step.after.block) for step in steps) >= (0, 3)


@pytest.mark.parametrize("taken_first", [5, 6, 9])
def test_gone_back_in_the_middle_the_steps_are_those_of_a_run_resumed_there(loaders: Loaders, taken_first: int) -> None:
    taken = 0
    phased = phased_steps(loaders, UNTILS, BEGINNING, lambda: taken / 10, lambda phase: None)
    before, after = [], []
    for taken in range(taken_first):  # noqa: B007  read by `progress`
        before.append(next(phased))
    last = before[-1]
    assert last.after.phase > 0
    for taken in range(3, 10):  # noqa: B007
        after.append(next(phased))
    resumed, _ = run(loaders, 10, done=3, start=last.after)
    assert after[0].after.phase == 0
    assert all(same_step(*pair) for pair in zip(after, resumed, strict=True))


def test_epochs_count_documents_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """All documents in one block: the last tenth of ten epochs is another whole epoch, whatever was passed over."""
    monkeypatch.setattr(packing, "BLOCK_DOCUMENTS", 40)
    store = numbered_store([[5] * 12] * 40)
    packings = [PackingSettings(format="single_segment", max_length=length) for length in (8, 20)]
    split, frame = Split(store, 0, False), SequenceTemplate(BARE)  # seven sequences a step do not end with an epoch
    planners = [open_planner(split, packing, "none", frame, seed=0) for packing in packings]
    loaders = [SequenceLoader(planner, frame, 7, 7) for planner in planners]
    epochs = [0.0]
    tokens = [0, 0]
    for step in phased_steps(loaders, (0.9, 1.0), BEGINNING, lambda: epochs[-1] / 10, lambda phase: None):
        assert step.epochs > epochs[-1]
        epochs.append(step.epochs)
        tokens[step.after.phase] += sum(batch.num_tokens for batch in step.batches)
        if step.epochs >= 10:
            break
    assert tokens[0] / 2400 == pytest.approx(9, abs=0.1)  # 40 documents of 60 tokens; a step is up to 140 of them
    assert tokens[1] / 2400 == pytest.approx(1, abs=0.1)


def test_a_position_of_a_run_without_phases_still_loads() -> None:
    saved = {"epoch": 3, "block": 1, "sequence": 7}
    assert Position(**saved) == Position(3, 1, 7, phase=0, passed_over=0)


def test_one_phase_is_the_plain_stream(loaders: Loaders) -> None:
    steps, begun = run(loaders[:1], 12, untils=(1.0,))
    assert begun == []
    assert all(same_step(*pair) for pair in zip(steps, islice(loaders[0].steps(), 12), strict=True))
