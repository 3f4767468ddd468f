"""A tokenizer from files: what a call takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.files import write
from unmask.errors import OutputError, SettingsError
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings


def test_a_lone_path_and_a_dictionary_of_settings_are_taken(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", "the man and the dog\n" * 9)
    found, _ = train_tokenizer(str(text), tmp_path / "one", {"vocab_size": 30})
    expected, _ = train_tokenizer([text], tmp_path / "other", TokenizerSettings(vocab_size=30))
    assert found.fingerprint() == expected.fingerprint()
    with pytest.raises(SettingsError, match="settings: unknown key vocabsize; did you mean vocab_size"):
        train_tokenizer(text, tmp_path / "third", {"vocabsize": 30})
    with pytest.raises(SettingsError, match="settings: 30 is no TokenizerSettings: expected one, or a dictionary"):
        train_tokenizer(text, tmp_path / "third", 30)  # type: ignore[arg-type]


def test_its_text_is_never_written_over(tmp_path: Path) -> None:
    text = write(tmp_path / "vocab.txt", "the man and the dog\n" * 9)
    with pytest.raises(OutputError, match=r"vocab\.txt is needed and lies in"):
        train_tokenizer(text, tmp_path, {"vocab_size": 30}, overwrite=True)


def test_reading_ends_and_learning_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    text = write(tmp_path / "a.txt", "the man and the dog\n" * 9)
    train_tokenizer(text, tmp_path / "one", {"vocab_size": 200})
    first, *_, end, learning = capsys.readouterr().err.splitlines()
    assert first.startswith("reading text: 100 % · 179 B · ")
    assert end.startswith("reading text: done · 179 B · ")
    assert learning == "learning 200 entries from 4 distinct words"
