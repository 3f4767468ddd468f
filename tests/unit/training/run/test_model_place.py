"""Where a model may be written, and what becomes of the card beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.errors import OutputError
from unmask.training.run.model_place import (
    CARD,
    check_files,
    check_place,
    marked,
    replacing_model,
    writing_what_is_missing,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two models, one inside the other, without weights."""
    for folder in (tmp_path, tmp_path / "generator"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
    return tmp_path


def test_a_discriminator_is_replaced_with_its_generator_and_with_nothing_else(model: Path) -> None:
    check_place(model, overwrite=True)
    (model / "generator" / "notes.md").write_text("by hand")
    with pytest.raises(OutputError, match=r"generator holds notes\.md, which is no part of a model"):
        check_place(model, overwrite=True)


@pytest.mark.parametrize("folder", [".", "generator"])
def test_a_card_is_replaced_with_its_model_until_somebody_edits_it(
    model: Path, caplog: pytest.LogCaptureFixture, folder: str
) -> None:
    card = model / folder / CARD
    card.write_text(marked("# A model\n"), "utf-8")
    with pytest.raises(OutputError, match="exists already"):
        check_place(model, overwrite=False)
    assert not caplog.messages
    check_place(model, overwrite=True)
    assert caplog.messages == [f"{card} goes with the model that is replaced: run `unmask card` again"]
    card.write_text(card.read_text("utf-8").replace("# A", "# My"), "utf-8")
    with pytest.raises(OutputError, match=r"holds README\.md, which is no part of a model"):
        check_place(model, overwrite=True)
    check_files(model, keeps_card=True)


def test_what_cannot_be_written_after_the_last_step_says_how_to_write_it() -> None:
    advice = r"^the disk is full; all steps are saved: the same command with --resume writes what is missing"
    with pytest.raises(OutputError, match=advice), writing_what_is_missing():
        raise OutputError("the disk is full")


def test_a_card_does_not_outlive_its_model_unseen(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train_on() -> None:
        with replacing_model(model):
            (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes() + b"1")

    card = model / CARD
    card.write_text(marked("# A model\n"), "utf-8")
    (model / "model.safetensors").write_bytes(b"0")
    with replacing_model(model):
        (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    assert card.exists(), "the model is the same"
    assert not caplog.messages
    train_on()
    assert not card.exists()
    assert caplog.messages == [f"{card} goes with the model that is replaced: run `unmask card` again"]
    caplog.clear()
    for edited in ("by hand", marked("# A model\n") + "and more\n"):
        card.write_text(edited, "utf-8")
        train_on()
        assert card.read_text("utf-8") == edited
    assert len(caplog.messages) == 2
    assert "has been edited, so it stays: it describes the model that is replaced" in caplog.messages[-1]
