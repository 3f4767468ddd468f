"""Where a model may be written, and what becomes of the card beside it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from support.corpora import contents, names
from support.files import write
from unmask.errors import OutputError
from unmask.io.writing import writing
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
    """Two models in a run, one inside the other, without weights."""
    for folder in (model := tmp_path / "run" / "model", model / "generator"):
        write(folder / "config.json", "{}")
    return model


def test_a_discriminator_is_replaced_with_its_generator_and_with_nothing_else(model: Path) -> None:
    check_place(model, overwrite=True)
    (model / "generator" / "notes.md").write_text("by hand")
    with pytest.raises(OutputError, match=r"generator holds notes\.md, which is no part of a model"):
        check_place(model, overwrite=True)


def test_what_has_no_configuration_is_no_model(tmp_path: Path) -> None:
    write(tmp_path / "model" / "vocab.txt", "[PAD]")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"is not a model \(config\.json is missing\)"):
            check_place(tmp_path / "model", overwrite)


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
    def train_on(more: bytes = b"1") -> None:
        before = (model / "model.safetensors").read_bytes()
        with replacing_model(model.parent) as new:
            write(new / "model.safetensors", before + more)

    card = model / CARD
    card.write_text(marked("# A model\n"), "utf-8")
    (model / "model.safetensors").write_bytes(b"0")
    train_on(b"")
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


def test_a_card_does_not_outlive_the_generator(model: Path) -> None:
    for folder in (model, model / "generator"):
        write(folder / "model.safetensors", "0")
    card = write(model / CARD, marked("# A model\n"))
    for weights, stays in (("0", True), ("1", False)):
        with replacing_model(model.parent) as new:
            write(new / "model.safetensors", "0")
            write(new / "generator" / "model.safetensors", weights)
        assert card.exists() == stays


@pytest.mark.parametrize("has_links", [True, False])
def test_links_beside_a_model_stay_links(model: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    """Whether or not the disk has hard links."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links")

    theirs = write(model.parent.parent / "data" / "text.txt", "theirs")
    targets = {"file": theirs, "folder": theirs.parent, "nothing": theirs.with_name("gone")}
    for name, target in targets.items():
        (model / name).symlink_to(target)
    write(model / "notes.md", "mine")
    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    with replacing_model(model.parent) as new:
        write(new / "config.json", "new")
    assert {name: (model / name).readlink() for name in targets} == targets
    assert (model / "notes.md").read_text() == "mine"
    assert names(theirs.parent) == ["text.txt"]


def test_a_model_is_replaced_as_a_whole_and_what_is_beside_it_stays(model: Path) -> None:
    """Figures of the model that is replaced do not stay for the new one, whenever the process is killed."""
    results = write(model.parent / "results.json", "{}")
    write(model / "head.safetensors", "of the old one")
    theirs = {".git/HEAD": "main", "notes.md": "mine", "generator/README.md": "by hand", "README.md": "by hand too"}
    for name, content in theirs.items():
        write(model / name, content)
    (model / "data").symlink_to("gone")
    before = contents(model)
    with pytest.raises(OutputError, match=r"/run/model/model\.safetensors: free"), replacing_model(model.parent) as new:  # noqa: PT012
        write(new / "config.json", "new")
        with writing(new / "model.safetensors"):
            raise OSError(errno.ENOSPC, "full")
    assert contents(model) == before
    assert results.exists()
    with replacing_model(model.parent) as new:
        write(new / "config.json", "new")
        write(new / "generator" / "config.json", "new")
        assert contents(model) == before
    assert {name: (model / name).read_text() for name in theirs} == theirs
    assert names(model) == [".git", "README.md", "config.json", "data", "generator", "notes.md"]
    assert (model / "config.json").read_text() == "new"
    assert names(model.parent) == ["model"]


def test_the_figures_stay_with_a_model_that_cannot_be_replaced(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = write(model.parent / "results.json", "{}")
    write(results.with_name(".unfinished-.replaced-results.json"), "of a process that was killed")

    def rename(source: Path, target: Path) -> None:
        if Path(source) == model:  # it is a mount point
            raise OSError(errno.EBUSY, "busy")
        Path(source).rename(target)

    monkeypatch.setattr("os.replace", rename)
    with pytest.raises(OutputError, match="/run/model: "), replacing_model(model.parent) as new:
        write(new / "config.json", "new")
    assert results.read_text() == (model / "config.json").read_text() == "{}"
    assert names(model.parent) == ["model", "results.json"]
