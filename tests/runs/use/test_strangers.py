"""Files from strangers: nothing in them is run, leads out of its folder, or takes memory that it does not name."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.commands import Command, check_refused
from support.corpora import COMPRESS, STOP
from support.files import write
from support.model_files import edit_config
from unmask.corpus.documents import CorpusCounts
from unmask.corpus.reading import read_files
from unmask.io import encodings
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.settings import EncoderSettings

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

RAN = "a pickle was run"


class Planted:
    """Leaves a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a planted pickle makes; nothing may so much as try to open one."""

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError(RAN)

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")):
        monkeypatch.setattr(module, name, refuse)
    return tmp_path / "mark"


def plant(directory: Path, mark: Path) -> None:
    """Pickles under every name that other programs read them from, and code under the names that they import."""
    planted = pickle.dumps(Planted(mark))
    array = io.BytesIO()
    np.save(array, np.array([Planted(mark)], dtype=object))
    names = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", ".metadata")
    for name in (*names, "model.ckpt", "model.pkl", "tokenizer.pkl", "model.joblib"):
        write(directory / name, planted)
    write(directory / "tokens.npy", array.getvalue())
    for name in ("modeling_planted.py", "tokenization_planted.py", "conftest.py", "__init__.py", "sitecustomize.py"):
        write(directory / name, f"import os\nos.mkdir({str(mark)!r})\n")
    for name in ("config.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            said = json.loads((directory / name).read_text())
            maps = {"AutoModel": "modeling_planted.M", "AutoTokenizer": ["tokenization_planted.T", None]}
            write(directory / name, json.dumps(said | {"auto_map": maps, "trust_remote_code": True}))


@pytest.fixture
def model(task_models: Any, place: Path) -> Path:
    return Path(shutil.copytree(task_models.runs / "classification" / "model", place / "m"))


def test_what_is_planted_beside_a_model_is_not_opened(unmask: Command, model: Path, mark: Path) -> None:
    plant(model, mark)
    write(Path("d.tsv"), "text\tlabel\na film\ty\na plot\tn\n")
    for words in ("predict m d.tsv", "evaluate m --data d.tsv", "info m", "features m d.tsv --out f"):
        finished = unmask(*words.split())
        assert finished.code == 0, finished.errors
    assert not mark.exists()


def test_nor_beside_a_store_a_run_or_its_checkpoints(
    unmask: Command, words: tuple[str, list[str]], tiny_store: Path, place: Path, mark: Path
) -> None:
    store, (recipe, _) = Path(shutil.copytree(tiny_store, place / "store")), words
    command = ("pretrain", recipe, f"store={store}", "--out", "run", "--workers=1")
    assert unmask(*command, "train.steps=4").code == 0
    for directory in (store, store / "tokenizer", Path("run"), *Path("run/checkpoints").iterdir(), Path("run/model")):
        plant(directory, mark)
    for more in (("verify", store), ("info", "run"), (*command, "train.steps=6", "--resume"), ("doctor", "run")):
        finished = unmask(*more)
        # the tokenizer's own configuration has another checksum now
        is_of_store = "tokenizer_config.json: " in finished.errors
        assert finished.code == 0 or is_of_store or more[0] == "doctor", finished.errors
        assert RAN not in finished.errors
    assert not mark.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pickle_in_the_place_of_a_file_is_refused(unmask: Command, model: Path, mark: Path, name: str) -> None:
    write(model / name, pickle.dumps(Planted(mark)))
    write(Path("d.tsv"), "text\na film\n")
    check_refused(unmask("predict", "m", "d.tsv"), f"m/{name}")
    assert not mark.exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir [mark]", "!!python/name:os.system", "!!python/tuple [1]"]
)
def test_tags_of_yaml_make_no_objects(
    unmask: Command, words: tuple[str, list[str]], place: Path, samples_dir: Path, tag: str
) -> None:
    recipe, overrides = words
    write(Path("r.yaml"), Path(recipe).read_text() + f"\nmodel: {tag}\n")
    finished = unmask("pretrain", "r.yaml", *overrides, "--out", "run")
    assert finished.code == 2
    assert finished.errors.startswith("error: r.yaml, line "), finished.errors
    write(Path("mixture.yaml"), f"corpora: {tag}\n")
    tokenizer = samples_dir / "models" / "en"
    check_refused(unmask("prepare", "mixture.yaml", "--tokenizer", tokenizer, "--out", "s"), "mixture.yaml, line 1")
    assert sorted(path.name for path in place.iterdir()) == ["mixture.yaml", "r.yaml"]


@pytest.mark.usefixtures("place")
def test_aliases_of_yaml_are_not_written_out(unmask: Command, words: tuple[str, list[str]]) -> None:
    """Ten to the tenth numbers, in a kilobyte."""
    recipe, overrides = words
    lists = (f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 10)}]" for number in range(1, 10))
    write(Path("run/environment.json"), "{}")
    write(Path("run/recipe.yaml"), "\n".join(["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", *lists]))
    finished = unmask("pretrain", recipe, *overrides, "--out", "run", "--resume")
    check_refused(finished, "run/recipe.yaml, line 2, ")
    assert "aliases (*name) are not read" in finished.errors


# ------------------------------------------------------------------------------------------------------ out of a folder


@pytest.mark.parametrize("name", ["../out.safetensors", "/out.safetensors", "a/b.safetensors", "..", "\0.safetensors"])
def test_an_index_of_shards_does_not_lead_out(unmask: Command, model: Path, name: str) -> None:
    (model / "model.safetensors").rename("out.safetensors")
    write(model / "model.safetensors.index.json", json.dumps({"weight_map": {"a": name}}))
    write(Path("d.tsv"), "text\na film\n")
    check_refused(unmask("predict", "m", "d.tsv"), "m/")


def test_a_shard_that_is_no_file_is_not_waited_for(unmask: Command, model: Path) -> None:
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "a.safetensors")
    write(model / "model.safetensors.index.json", json.dumps({"weight_map": {"a": "a.safetensors"}}))
    write(Path("d.tsv"), "text\na film\n")
    check_refused(unmask("predict", "m", "d.tsv"), "m/a.safetensors is missing")


def test_a_manifest_does_not_lead_out_of_its_store(unmask: Command, tiny_store: Path, place: Path) -> None:
    from unmask.store.manifest import manifest_checksum

    store = Path(shutil.copytree(tiny_store, place / "store"))
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["files"]["../secret"] = {"bytes": 6, "sha256": "0"}
    write(Path("secret"), "secret")
    write(store / "manifest.json", json.dumps(manifest | {"sha256": manifest_checksum(manifest)}))
    check_refused(unmask("verify", "store"), "store/manifest.json: '../secret' is not the name of a file of a store")


# ---------------------------------------------------------------------------------------------------------- how much


def weights(header: bytes, size: int | None = None) -> bytes:
    return (len(header) if size is None else size).to_bytes(8, "little") + header


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
LARGE: dict[str, tuple[str, bytes]] = {
    # the file, what is in it
    "a header of 2^60 bytes": ("model.safetensors", weights(b"{}", 2**60)),
    "a nested header": ("model.safetensors", weights(DEEP)),
    "a tensor of 2^60 bytes": (
        "model.safetensors",
        weights(json.dumps({"a": {"dtype": "F32", "shape": [2**58], "data_offsets": [0, 2**60]}}).encode()),
    ),
    "a nested config": ("config.json", DEEP),
    "a nested tokenizer": ("tokenizer.json", DEEP),
}


@pytest.mark.parametrize(("name", "content"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("command", ["predict m d.tsv", "info m"])
def test_what_a_header_claims_is_not_taken(
    unmask: Command, model: Path, name: str, content: bytes, command: str
) -> None:
    write(model / name, content)
    write(Path("d.tsv"), "text\na film\n")
    done = unmask(*command.split())
    if (command, name) == ("info m", "tokenizer.json"):  # what the model is can be said all the same
        assert (done.code, "does_not_load" in done.output) == (0, True)
        assert f"m/{name}" in done.output
    else:
        check_refused(done, f"m/{name}")


def test_a_config_of_200_megabytes_is_not_read(unmask: Command, model: Path) -> None:
    os.truncate(model / "config.json", 200_000_000)
    write(Path("d.tsv"), "text\na film\n")
    told = "m/config.json: 200,000,000 bytes; expected at most 100,000,000: read whole, it would take several times"
    for words in ("predict m d.tsv", "info m", "fill-mask m a"):
        check_refused(unmask(*words.split()), told)


LARGE_OF_RUNS = {
    # the file, which command reads it
    "store/manifest.json": "verify store",
    "run/environment.json": "info run",
    "run/results.json": "info run",
    "run/recipe.yaml": "info run",
    "run/data.json": "pretrain run/recipe.yaml --out run --resume",
    "search/summary.json": "doctor search",
    "members/ensemble.json": "predict members d.tsv",
}


@pytest.mark.parametrize("name", LARGE_OF_RUNS)
def test_nor_are_200_megabytes_beside_stores_runs_and_searches(
    unmask: Command, words: tuple[str, list[str]], tiny_store: Path, place: Path, name: str
) -> None:
    recipe, _ = words
    shutil.copytree(tiny_store, place / "store")
    for folder in ("search", "members"):
        write(Path(folder) / "recipe.yaml", "seed: 1\n")
    write(Path("d.tsv"), "text\na film\n")
    assert unmask("pretrain", recipe, "store=store", "train.steps=1", "--out", "run", "--workers=1").code == 0
    write(Path(name), b"{}")
    os.truncate(name, 200_000_000)
    finished = unmask(*LARGE_OF_RUNS[name].split())
    check_refused(finished, name)
    assert "200,000,000 bytes; expected" in finished.errors


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"hidden_size": 10**9},
            "these sizes come to 8,000,000,411,000,000,000 parameters, 32,000,001,644 GB of memory",
        ),
        ({"vocab_size": 10**12}, "128,000 GB of memory in float32"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: Input should be less than or equal to 1000"),
        ({"max_position_embeddings": 10**15}, "GB of memory in float32; expected at most 100,000,000,000"),
    ],
)
def test_sizes_beyond_every_memory_are_refused_by_what_they_would_take(
    unmask: Command, model: Path, changes: dict[str, int], told: str
) -> None:
    edit_config(model, **changes)
    write(Path("d.tsv"), "text\na film\n")
    finished = unmask("predict", "m", "d.tsv")
    check_refused(finished, "m/config.json: ")
    assert told in finished.errors


def test_large_models_are_not_refused() -> None:
    sizes = {"hidden_size": 8192, "num_hidden_layers": 96, "num_attention_heads": 64, "intermediate_size": 32768}
    assert EncoderSettings.model_validate(sizes).hidden_size == 8192
    assert ElmoSettings().filters


def test_ids_beyond_every_vocabulary_are_refused(unmask: Command, model: Path) -> None:
    said = json.loads((model / "tokenizer.json").read_text())
    said["added_tokens"].append(said["added_tokens"][0] | {"id": 10**12, "content": "[FAR]"})
    write(model / "tokenizer.json", json.dumps(said))
    write(Path("d.tsv"), "text\na film\n")
    finished = unmask("predict", "m", "d.tsv")
    check_refused(finished, "m/tokenizer.json")
    assert "1,000,000,000,000" in finished.errors


def test_lines_without_an_end_are_refused_when_they_are_too_long(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "MOST_LINE_BYTES", 1 << 20)
    write(Path("a.txt.gz"), gzip.compress(b"The dog barks.\n" + b"a" * (4 << 20), 1))
    finished = unmask("prepare", "a.txt.gz", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    assert finished.code == 2
    assert "a.txt.gz:2: a line of over 1,048,576 bytes: expected text, with line ends" in finished.errors


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_corpus_that_unpacks_to_much_takes_the_memory_of_its_lines(place: Path, suffix: str) -> None:
    frame = COMPRESS[suffix]((b"a" * 99_998 + b"\n\n") * 1_000)
    assert len(frame) < 200_000
    path = write(Path(f"a.txt{suffix}"), frame * 4)
    tracemalloc.start()
    num_documents = sum(1 for _ in read_files([path], CorpusCounts(), STOP))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_documents == 4_000
    assert peak < 150 * 2**20  # what 4 KiB of zstd can become is 128 MiB; everything here is 400 MB
