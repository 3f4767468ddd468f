"""What `import unmask` offers: every name in `dir`, and models by text or path, or by the run that made them."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

import unmask
from unmask.errors import InputError, Interrupted, ModelError

TEXT = "a fine film " * 40


def test_every_public_name_is_listed() -> None:
    listed = dir(unmask)
    assert {"finetune", "load_model", "TextClassifier"} <= set(listed)
    assert all(getattr(unmask, name) is not None for name in listed)


def types_in(hint: Any) -> set[Any]:
    return set().union(*map(types_in, get_args(hint))) if get_args(hint) else {hint}


def test_every_function_is_in_the_help_and_every_type_that_one_returns_is_public() -> None:
    public = {name: getattr(unmask, name) for name in dir(unmask)}
    for name, its in public.items():
        if inspect.isfunction(its):
            assert f"`{name}`" in (unmask.__doc__ or "")
            types = types_in(get_type_hints(its)["return"])
            ours = [each for each in types if getattr(each, "__module__", "").startswith("unmask.")]
            assert set(ours) <= set(public.values()), name
    assert unmask.Interrupted is Interrupted


def test_what_is_returned_is_shown_in_a_line(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("a man\n\na dog\n")
    store = unmask.prepare(text, tiny_model, tmp_path / "store")
    assert repr(store) == f"TokenStore({str(tmp_path / 'store')!r}, documents=2, tokens={store.num_tokens})"
    assert repr(unmask.load_tokenizer(tiny_model)) == "TextTokenizer(kind='wordpiece', vocab_size=400)"
    tokenizer, _ = unmask.train_tokenizer(text, tmp_path / "words", {"kind": "word", "vocab_size": 8})
    assert repr(tokenizer) == f"WordTokenizer(vocab_size={tokenizer.vocab_size})"
    shown = repr(unmask.load_model(tiny_model))
    assert shown.startswith("LoadedModel(architecture='BertForPreTraining'")
    assert len(shown) < 200
    assert len(repr(unmask.load_embedder(tiny_model))) < 400


def test_a_model_and_its_tokenizer_are_named_by_the_run_too(tiny_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_model, run / "model")
    (run / "recipe.yaml").write_text("seed: 1\n")
    expected = unmask.load_model(tiny_model).encoder.state_dict()
    for place in (str(tiny_model), run, str(run)):
        found = unmask.load_model(place).encoder.state_dict()
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())
        assert unmask.load_tokenizer(place).vocab_size == unmask.load_tokenizer(tiny_model).vocab_size
    with pytest.raises(ModelError, match="models/x: no such directory"):
        unmask.load_model("models/x")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("predict", [[{"text": "a"}]]),
        ("evaluate", ["dev.csv"]),
        ("embed", [["a"]]),
        ("similarities", [[("a", "b")]]),
        ("fill_mask", ["a [MASK]"]),
        ("generate", ["a"]),
    ],
)
def test_what_is_no_place_of_a_model_is_refused(tiny_model: Path, name: str, more: list[Any]) -> None:
    for given in (unmask.load_model(tiny_model), None):
        with pytest.raises(InputError, match=f"^found a {type(given).__name__}: expected the directory of a model, or"):
            getattr(unmask, name)(given, *more)
    with pytest.raises(
        InputError, match=rf"^'{TEXT[:60]}'\.\.\. is too long for a path: expected the directory of a m"
    ):
        getattr(unmask, name)(TEXT, *more)


def test_what_is_no_place_of_anything_else_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer: Any = unmask.load_tokenizer(tiny_model)
    with pytest.raises(InputError, match=r"^found a TextTokenizer: expected a tokenizer's directory"):
        unmask.prepare([], tokenizer, tmp_path / "store")
    with pytest.raises(InputError, match=r"^found a TextTokenizer: expected the path of a store, a model, a run"):
        unmask.describe(tokenizer)
    with pytest.raises(InputError, match=r"^found a TextTokenizer: expected files of text"):
        unmask.prepare(tokenizer, tiny_model, tmp_path / "store")
    with pytest.raises(InputError, match=r"^found a TextTokenizer: expected the directory of a tokenizer"):
        unmask.load_tokenizer(tokenizer)
    with pytest.raises(InputError, match=r"^found a TextTokenizer: expected the directory of a store"):
        unmask.TokenStore(tokenizer)
    for refuse in (
        lambda: unmask.TokenStore(TEXT),
        lambda: unmask.load_tokenizer(TEXT),
        lambda: unmask.describe(TEXT),
        lambda: unmask.evaluate_pairs(tiny_model, TEXT),
        lambda: unmask.finetune(TEXT, out=tmp_path / "run"),
        lambda: unmask.finetune(
            "finetune/sst2", {"init_from": str(tiny_model), "data.train": TEXT}, out=tmp_path / "run"
        ),
    ):
        with pytest.raises(InputError, match=r"^'a fine .*'\.\.\. is too long for a path: expected "):
            refuse()
    assert not (tmp_path / "run").exists()
    with pytest.raises(ModelError, match="no such directory"):
        unmask.load_model("a\0b")


def test_the_type_of_a_model_is_enough(tiny_model: Path, tmp_path: Path) -> None:
    """As in the smaller BERTs that Google released, whose `config.json` names no class."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_model, directory)
    config = json.loads((directory / "config.json").read_text())
    named = config.pop("architectures")
    (directory / "config.json").write_text(json.dumps(config))
    assert unmask.load_model(directory).architecture == named[0]
    assert unmask.fill_mask(directory, "a [MASK] .") == unmask.fill_mask(tiny_model, "a [MASK] .")
    assert unmask.describe(directory)


def test_a_pointer_of_git_lfs_is_called_one(tiny_model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_model, directory)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 17\n"
    (directory / "model.safetensors").write_text(pointer)
    with pytest.raises(ModelError, match="is a pointer of Git LFS, not the weights: fetch them with `git lfs pull`"):
        unmask.load_model(directory)
    (directory / "tokenizer.json").write_text(pointer)
    with pytest.raises(ModelError, match=r"tokenizer\.json is a pointer of Git LFS, not the file: fetch it with"):
        unmask.load_tokenizer(directory)
