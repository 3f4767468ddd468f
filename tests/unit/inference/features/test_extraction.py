"""Features of texts: those of `transformers`, in the order of the inputs, in files that other programs open."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.commands import type_in
from support.files import write, write_rows
from support.model_files import edit_config
from support.sizes import small
from unmask.batch import pack
from unmask.errors import InputError, ModelError, OutputError, SettingsError
from unmask.inference.features import batches as feature_batches
from unmask.inference.features.extraction import extract_features
from unmask.models.bert import BertEncoder
from unmask.models.encoder import new_encoder
from unmask.models.heads.layer_mixture import CHOICES
from unmask.models.hub.directory import save_model
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = ["a man", "a dog and two women are outside, and a child plays with a ball", "people wait .", "a b c d e f g"]
LONG = "a man and a dog are outside " * 20

# Matrix products of other shapes add in another order; hidden states are of the order of 1.
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers, random weights."""
    directory, tokenizer = tmp_path_factory.mktemp("deep") / "model", load_tokenizer(tiny_model)
    torch.manual_seed(0)
    sizes = {"vocab": tokenizer.vocab_size, "width": 16, "layers": 5, "heads": 2, "inner": 32, "positions": 32}
    save_model(directory, BertEncoder(small(**sizes, std=0.3)))
    tokenizer.save(directory)
    return directory


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.txt", "".join(f"{text}\n" for text in TEXTS))


def read_index(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "index.jsonl").read_text("utf-8").splitlines()]


def expected_states(model: Path, text: str, layers: str) -> NDArray[np.float32]:
    """What `transformers` gives for the tokens of a framed text, (tokens, width) or (tokens, layers, hidden)."""
    from transformers import AutoModel, AutoTokenizer

    encoder = AutoModel.from_pretrained(model).eval()
    inputs = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
    with torch.no_grad():
        states = [state[0].numpy() for state in encoder(**inputs, output_hidden_states=True).hidden_states]
    chosen: dict[str, Any] = {
        "embeddings": lambda: states[0],
        "second-to-last": lambda: states[4],
        "last": lambda: states[5],
        "weighted-last-4": lambda: np.stack(states[2:], 1),
        "concat-last-4": lambda: np.concatenate(states[2:], 1),
        "weighted-all": lambda: np.stack(states[1:], 1),
        "weighted-all-and-embeddings": lambda: np.stack(states, 1),
    }
    result: NDArray[np.float32] = chosen[layers]()
    return result


@pytest.mark.parametrize("layers", CHOICES)
def test_tokens_are_those_of_transformers(layers: str, model: Path, texts: Path, tmp_path: Path) -> None:
    out = extract_features(model, texts, tmp_path / "out", layers=layers)
    values = np.load(out / "features.npy", mmap_mode="r")
    assert isinstance(values, np.memmap)
    assert values.dtype == np.float32
    index = read_index(out)
    assert [line["id"] for line in index] == [0, 1, 2, 3]
    for text, line in zip(TEXTS, index, strict=True):
        rows = values[line["row"] : line["row"] + line["num_tokens"]]
        np.testing.assert_allclose(rows, expected_states(model, text, layers)[1:-1], **CLOSE)
        covered = [text[start:end] for start, end in line["offsets"]]
        assert covered == [token.removeprefix("##") for token in line["tokens"]]
    assert len(values) == sum(line["num_tokens"] for line in index)


@pytest.mark.parametrize("layers", ["last", "weighted-all"])
@pytest.mark.parametrize(
    ("pool", "compute"),
    [
        ("cls", lambda states: states[0]),
        ("mean", lambda states: states[1:-1].mean(0)),
        ("max", lambda states: states[1:-1].max(0)),
    ],
)
def test_pools(pool: str, compute: Any, layers: str, model: Path, texts: Path, tmp_path: Path) -> None:
    out = extract_features(model, texts, tmp_path / "out", layers=layers, pool=pool)
    values = np.load(out / "features.npy")
    assert [line["row"] for line in read_index(out)] == [0, 1, 2, 3]
    for row, text in zip(values, TEXTS, strict=True):
        np.testing.assert_allclose(row, compute(expected_states(model, text, layers)), **CLOSE)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_long_text_loses_nothing(pool: str, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_rows(tmp_path / "texts.jsonl", {"id": "long", "text": LONG}, {"text": "a man"})
    tokens = np.load(extract_features(model, path, tmp_path / "tokens") / "features.npy")
    line, second = read_index(tmp_path / "tokens")
    assert (line["id"], line["row"]) == ("long", 0)
    assert line["num_tokens"] == second["row"] == len(LONG.split())
    assert "1 longer than 32 tokens and read in windows" in caplog.text
    assert np.abs(tokens).sum(1).all()
    # The first window, of 30 tokens, is read like a text of its own; its first half is surely its own.
    beginning = " ".join(LONG.split()[:30])
    np.testing.assert_allclose(tokens[:15], expected_states(model, beginning, "last")[1:16], **CLOSE)
    pooled = np.load(extract_features(model, path, tmp_path / "pooled", pool=pool) / "features.npy")
    plain = tokens[: line["num_tokens"]].mean(0) if pool == "mean" else tokens[: line["num_tokens"]].max(0)
    np.testing.assert_allclose(pooled[0], plain, **CLOSE)


def test_the_first_token_of_a_long_text_is_that_of_its_beginning(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "texts.txt", LONG + "\n")
    values = np.load(extract_features(model, path, tmp_path / "out", pool="cls") / "features.npy")
    beginning = " ".join(LONG.split()[:30])
    np.testing.assert_allclose(values[0], expected_states(model, beginning, "last")[0], **CLOSE)
    assert "1 longer than 32 tokens and cut" in caplog.text


@pytest.mark.parametrize("pool", ["cls", "mean", "max"])
def test_pools_are_taken_on_the_device_without_waiting(pool: Any) -> None:
    """The meta device has no values that could be waited for."""
    batch = pack([[1, 2], [3], [4, 5, 6]])
    states, is_own = torch.randn(6, 2, 4), torch.tensor([True, True, False, False, True, True])
    there = feature_batches._pool_rows(states.to("meta"), batch, is_own, pool, is_causal=False)
    here = feature_batches._pool_rows(states, batch, is_own, pool, is_causal=False)
    assert (there.device.type, there.shape) == ("meta", here.shape)
    expected = {
        "cls": [states[0], states[2], states[3]],
        "mean": [states[0] + states[1], torch.zeros(2, 4), states[4] + states[5]],  # the sum: an input has several rows
        "max": [states[:2].amax(0), torch.full((2, 4), -torch.inf), states[4:].amax(0)],
    }
    torch.testing.assert_close(here, torch.stack(expected[pool]))


def test_gpt1s_text_stands_in_its_last_token(model: Path, texts: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model)
    sizes = {"vocab": tokenizer.vocab_size, "width": 16, "layers": 2, "heads": 2, "inner": 64, "positions": 32}
    settings = small(architecture="gpt1", type_vocab_size=0, layer_norm_eps=1e-5, **sizes, std=0.3)
    torch.manual_seed(0)
    encoder, directory = new_encoder(settings).eval(), tmp_path / "gpt1"
    save_model(directory, encoder)
    tokenizer.save(directory)
    values = np.load(extract_features(directory, texts, tmp_path / "out", pool="cls") / "features.npy")
    for row, text in zip(values, TEXTS, strict=True):
        with torch.no_grad():
            states = encoder(pack([tokenizer.encode_inputs([(text, None)])[0].input_ids]))
        np.testing.assert_allclose(row, states[-1].numpy(), **CLOSE)


def test_max_length_makes_shorter_windows(model: Path, texts: Path, tmp_path: Path) -> None:
    whole = np.load(extract_features(model, texts, tmp_path / "a") / "features.npy")
    short = np.load(extract_features(model, texts, tmp_path / "b", max_length=8) / "features.npy")
    assert whole.shape == short.shape
    assert np.allclose(whole[:2], short[:2], **CLOSE)  # "a man" fits
    assert not np.allclose(whole[2:], short[2:], **CLOSE)


def test_pairs_words_and_ids(model: Path, tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "inputs.jsonl",
        {"id": "one", "text_a": "a man", "text_b": "two dogs"},
        {"id": "\ud83d", "tokens": ["outside", "people"]},
        {"text": "a", "label": 3},
    )
    out = extract_features(model, path, tmp_path / "out")
    one, two, three = read_index(out)
    assert (one["id"], two["id"], three["id"]) == ("one", "\ud83d", 2)
    assert one["num_tokens_a"] == 2
    assert one["tokens"][:2] == ["a", "man"]
    assert sorted(set(two["words"])) == [0, 1]
    assert len(np.load(out / "features.npy")) == sum(line["num_tokens"] for line in (one, two, three))


def test_a_fine_tuned_model_remembers_its_columns(model: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(model, tuned)
    columns = {"text": "review", "label": "stars", "id": "key"}
    edit_config(tuned, unmask_task={"name": "classification", "columns": columns})
    reviews = write_rows(tmp_path / "reviews.jsonl", {"review": "a man", "text": "two dogs", "key": "x"})
    usual = write_rows(tmp_path / "usual.jsonl", {"text": "a man", "key": "x"})
    body = write_rows(tmp_path / "body.jsonl", {"body": "a man", "review": "two dogs", "key": "x"})
    found = extract_features(tuned, reviews, tmp_path / "a"), extract_features(tuned, usual, tmp_path / "b")
    named = extract_features(tuned, body, tmp_path / "c", columns=ColumnSettings(text="body"))
    plain = extract_features(model, usual, tmp_path / "d", columns=ColumnSettings(id="key"))
    for out in (*found, named, plain):
        assert read_index(out) == read_index(plain)
        assert (out / "features.npy").read_bytes() == (plain / "features.npy").read_bytes()
    edit_config(tuned, unmask_task={"name": "classification", "columns": {"txt": "review"}})
    with pytest.raises(ModelError, match=r"config\.json: unmask_task\.columns: unknown key txt; did you mean text"):
        extract_features(tuned, reviews, tmp_path / "e")


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_texts_that_the_vocabulary_does_not_cover_are_told(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, pool: str
) -> None:
    caplog.set_level(logging.INFO, "unmask")
    path = write(tmp_path / "texts.txt", "a man\n국민 국민 국민\n")
    extract_features(model, path, tmp_path / "out", pool=pool)
    assert "inputs: 60 % of the tokens (3 of 5) are [UNK]" in caplog.text
    assert "inputs: 2 examples, 3 of 5 tokens not in the vocabulary ([UNK])" in caplog.text


def test_texts_without_tokens(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_rows(tmp_path / "texts.jsonl", *({"text": text} for text in ("", "a man", "​ ")))
    tokens = extract_features(model, path, tmp_path / "tokens")
    assert [(line["row"], line["num_tokens"]) for line in read_index(tokens)] == [(0, 0), (0, 2), (2, 0)]
    assert "2 without any text" in caplog.text
    for pool in ("mean", "max"):
        values = np.load(extract_features(model, path, tmp_path / pool, pool=pool) / "features.npy")
        assert values.any(1).tolist() == [False, True, False]
    assert np.load(extract_features(model, path, tmp_path / "cls", pool="cls") / "features.npy").any(1).all()


@pytest.mark.parametrize(("layers", "pool"), [("last", "none"), ("weighted-last-4", "mean")])
def test_parquet_reads_back_equal(
    layers: str, pool: str, model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import parquet

    monkeypatch.setattr("unmask.inference.features.parquet._GROUP_BYTES", 200)  # several row groups
    plain = extract_features(model, texts, tmp_path / "plain", layers=layers, pool=pool)
    out = extract_features(model, texts, tmp_path / "out", layers=layers, pool=pool, format="parquet")
    assert sorted(path.name for path in out.iterdir()) == ["features.parquet", "index.jsonl"]
    assert read_index(out) == read_index(plain)
    table = parquet.read_table(out / "features.parquet")
    assert parquet.ParquetFile(out / "features.parquet").num_row_groups > 1
    np.testing.assert_array_equal(np.array(table["features"].to_pylist(), np.float32), np.load(plain / "features.npy"))
    ids = [line["id"] for line in read_index(out) for _ in range(line["num_tokens"] if pool == "none" else 1)]
    assert table["id"].to_pylist() == ids
    assert str(table.schema.field("features").type).startswith("fixed_size_list")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7, 3, -1], [7, 3, -1]),
        (["a", "b", "c"], ["a", "b", "c"]),
        ([7, "b", None], ["7", "b", "2"]),
        ([1, True, 2], ["1", "True", "2"]),
        ([1, 2**63, 2], ["1", str(2**63), "2"]),
    ],
)
def test_ids_in_parquet_are_integers_where_all_are(
    ids: list[object], expected: list[object], model: Path, tmp_path: Path
) -> None:
    from pyarrow import parquet

    path = write_rows(tmp_path / "a.jsonl", *({"id": its, "text": "a man"} for its in ids))
    out = extract_features(model, path, tmp_path / "out", pool="mean", format="parquet")
    assert parquet.read_table(out / "features.parquet")["id"].to_pylist() == expected


def test_parquet_without_pyarrow(model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pip install 'unmask\[parquet\]'"):
        extract_features(model, texts, tmp_path / "out", format="parquet")


def test_sets_of_inputs_do_not_show(model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = extract_features(model, texts, tmp_path / "whole")

    def two_at_a_time(items: Iterator[Any], **_: Any) -> Iterator[list[Any]]:
        while pair := [item for _, item in zip(range(2), items, strict=False)]:
            yield pair

    monkeypatch.setattr(feature_batches, "in_sets", two_at_a_time)
    cut = extract_features(model, texts, tmp_path / "cut")
    assert read_index(cut) == read_index(whole)
    np.testing.assert_allclose(np.load(cut / "features.npy"), np.load(whole / "features.npy"), **CLOSE)


def test_long_texts_make_small_sets(model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are tokenized whole, a set at a time."""
    tokenized: list[int] = []
    tokenize = feature_batches.tokenize

    def counted(inputs: Any, tokenizer: Any) -> Any:
        tokenized.append(len(inputs))
        return tokenize(inputs, tokenizer)

    monkeypatch.setattr(feature_batches, "tokenize", counted)
    monkeypatch.setattr("unmask.inference.example_sets.MOST_CHARACTERS", len(TEXTS[0]) + 1)
    extract_features(model, texts, tmp_path / "out", layers="last", pool="mean")
    assert tokenized == [2, 1, 1]


def test_standard_input(model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = extract_features(model, texts, tmp_path / "file", pool="mean")
    table = "text\n" + "".join(f'"{text}"\n' for text in TEXTS)
    for content, form in ((texts.read_bytes(), None), (table, "csv")):
        type_in(monkeypatch, content)
        out = extract_features(model, "-", tmp_path / f"piped {form}", pool="mean", input_format=form)
        assert (out / "features.npy").read_bytes() == (expected / "features.npy").read_bytes()
        assert (out / "index.jsonl").read_bytes() == (expected / "index.jsonl").read_bytes()


@pytest.mark.parametrize(("header", "separator"), [("id,text", "','"), ("text_a\ttext_b", "tab"), ("text", "','")])
def test_a_table_is_not_taken_for_texts(
    header: str, separator: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, f"{header}\n1,a man\n")
    told = f"standard input:1: read as a text, and it is the header of a table.*: give --separator {separator}; if it"
    with pytest.raises(InputError, match=told):
        extract_features(model, "-", tmp_path / "out")
    type_in(monkeypatch, f"{header}\n1,a man\n")
    assert len(read_index(extract_features(model, "-", tmp_path / "out", pool="mean", input_format="txt"))) == 2


def test_settings_are_refused_by_name(model: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for wrong, told in (
        ({"layers": "second-last"}, "no feature layers 'second-last': .*did you mean second-to-last"),
        ({"pool": "avg"}, "no pool 'avg': expected one of none, cls, mean, max"),
        ({"format": "npz"}, r"no format 'npz': .*did you mean npy"),
        ({"max_length": 33}, "max_length 33 is over the 32 positions"),
        ({"max_length": 4}, "max_length 4 has no room for a pair of texts: give at least 5"),
    ):
        with pytest.raises(SettingsError, match=told):
            extract_features(model, texts, out, **wrong)  # type: ignore[arg-type]
    assert not out.exists()


def test_inputs_are_refused_before_anything_is_computed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_batches, "_states", None)
    path = tmp_path / "inputs.jsonl"
    out = tmp_path / "out"
    for content, told in (
        ("", "not a single row"),
        ('{"text": "a"}\n{"sentence": "a"}\n', r"inputs\.jsonl:2: no column 'tokens'"),
        ('{"text": "a"}\n{"text": 3}\n', r"inputs\.jsonl:2: text is 3"),
        (json.dumps({"text_a": LONG, "text_b": "a"}), r"inputs\.jsonl:1: 141 tokens in two texts, .* at most 29"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=told):
            extract_features(model, path, out)
    with pytest.raises(InputError, match="absent"):
        extract_features(model, tmp_path / "absent.txt", out)
    assert not out.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["inputs.jsonl"]


def test_a_model_without_tokenizer(model: Path, texts: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((model / name).read_bytes())
    with pytest.raises(ModelError, match="bare"):
        extract_features(bare, texts, tmp_path / "out")


def test_outputs_are_kept_and_replaced(model: Path, texts: Path, tmp_path: Path) -> None:
    out = extract_features(model, texts, tmp_path / "out")
    with pytest.raises(OutputError, match="exists already"):
        extract_features(model, texts, out)
    extract_features(model, texts, out, pool="mean", overwrite=True)
    assert len(np.load(out / "features.npy")) == 4
    with pytest.raises(OutputError, match=r"index\.jsonl is needed and lies in"):
        extract_features(model, out / "index.jsonl", out, overwrite=True)
    (out / "thesis.doc").write_text("")
    with pytest.raises(OutputError, match=r"holds thesis\.doc"):
        extract_features(model, texts, out, overwrite=True)


def test_nothing_is_left_of_what_was_interrupted(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(feature_batches, "_states", stop)
    with pytest.raises(KeyboardInterrupt):
        extract_features(model, texts, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["texts.txt"]


def test_a_full_disk_is_told_beforehand(
    model: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(100, 90, 10))
    with pytest.raises(OutputError, match=r"the features will need 256 B, but only 10 B are free"):
        extract_features(model, texts, tmp_path / "out", pool="mean")
