"""Preparing on a Ray cluster of two machines, here two processes: the same bytes, also when one is lost half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from support.corpora import contents
from support.ray_clusters import add_machine, lose, ray_cluster
from unmask.errors import InputError, OutputError, SettingsError
from unmask.io import ray_process
from unmask.store import preparation, ray_encoding
from unmask.store.preparation import prepare
from unmask.store.shard_writer import write_manifest
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings

SHARD_BYTES = 60_000

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own: of sockets, of its settings to come
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One machine; tests add others to it."""
    with ray_cluster(head_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def machines(cluster: Cluster) -> None:
    """Two machines of the cluster, each of which encodes one shard at a time."""
    add_machine(cluster)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """The folder that all machines share: text, a tokenizer, and the store that was made without a cluster."""
    folder = tmp_path_factory.mktemp("shared")
    text = samples_dir / "text" / "en-books.jsonl"
    (folder / "text.jsonl").write_bytes(text.read_bytes() * 2)
    train_tokenizer([text], folder / "tokenizer", TokenizerSettings(vocab_size=1000))
    prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "local", shard_bytes=SHARD_BYTES)
    return folder


def prepare_on(cluster: Cluster, folder: Path, name: str, **options: Any) -> TokenStore:
    options = {"shard_bytes": SHARD_BYTES, "ray_address": cluster.address, **options}
    return prepare([folder / "text.jsonl"], folder / "tokenizer", folder / name, **options)


def test_the_bytes_are_those_of_one_machine(cluster: Cluster, machines: None, folder: Path) -> None:
    prepare_on(cluster, folder, "whole").verify()
    assert contents(folder / "whole") == contents(folder / "local")


@pytest.mark.slow
def test_a_lost_machine_costs_its_unfinished_shards_alone(
    cluster: Cluster, machines: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: dict[Path, int] = {}
    third = add_machine(cluster)
    write_shards = ray_encoding.write_shards_on_ray

    def lose_a_machine(*arguments: Any) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(write_shards(*arguments)):
            if number == 3:
                finished.update((path, path.stat().st_ino) for path in (folder / "lost").glob("shard-*.json"))
                lose(cluster, third)
            yield record

    inodes: dict[Path, int] = {}

    def look_first(directory: Path, *arguments: Any) -> None:
        inodes.update((path, path.stat().st_ino) for path in directory.glob("shard-*.json"))
        write_manifest(directory, *arguments)

    monkeypatch.setattr(ray_encoding, "write_shards_on_ray", lose_a_machine)
    monkeypatch.setattr(preparation, "write_manifest", look_first)
    prepare_on(cluster, folder, "lost")
    assert contents(folder / "lost") == contents(folder / "local")
    assert len(finished) >= 4
    assert finished.items() <= inodes.items(), "a finished shard was made again"


@pytest.mark.slow
def test_without_any_machine_it_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_process, "NO_MACHINE_S", 0)
    with ray_cluster() as other:
        told = rf"--ray {other.address}: for 0 s the cluster has had no machine with 1 CPU: see `ray status`; start Ray"
        with pytest.raises(OutputError, match=told):
            prepare_on(other, folder, "idle")
        only = add_machine(other)
        lose_after_two(monkeypatch, lambda: lose(other, only))
        with pytest.raises(OutputError, match=rf"{told}(.*\n)*.*finished shard\(s\) are kept"):
            prepare_on(other, folder, "idle")


@pytest.mark.slow
def test_where_ray_dies_on_this_machine_it_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_cluster(head_cpus=1) as alone:
        (raylet,) = alone.head_node.all_processes["raylet"]
        lose_after_two(monkeypatch, raylet.process.kill)
        told = (
            r"the connection to the cluster is lost: Ray has ended on this machine.*\n\d+ finished shard\(s\) are kept"
        )
        with pytest.raises(OutputError, match=told):
            prepare_on(alone, folder, "alone")
    prepare_on(alone, folder, "alone", ray_address=None, resume=True)
    assert contents(folder / "alone") == contents(folder / "local")


def lose_after_two(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Something is lost when two shards are finished."""
    write_shards = ray_encoding.write_shards_on_ray

    def losing(*arguments: Any) -> Iterator[dict[str, Any]]:
        for done, record in enumerate(write_shards(*arguments), start=1):
            if done == 2:
                what()
            yield record

    monkeypatch.setattr(ray_encoding, "write_shards_on_ray", losing)


def test_stopped_on_a_cluster_and_resumed_without_one(
    cluster: Cluster, machines: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards = ray_encoding.write_shards_on_ray

    def stop(*arguments: Any) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(write_shards(*arguments)):
            if number == 3:
                raise InputError("stopped by the test")
            yield record

    with monkeypatch.context() as patch:
        patch.setattr(ray_encoding, "write_shards_on_ray", stop)
        with pytest.raises(InputError, match=r"stopped by the test\n\d+ finished shard\(s\) are kept"):
            prepare_on(cluster, folder, "stopped")
    kept = {path.name: path.stat().st_ino for path in (folder / "stopped").glob("tokens-*.bin")}
    assert len(kept) >= 3
    assert not list((folder / "stopped").glob(".unfinished*"))
    prepare_on(cluster, folder, "stopped", ray_address=None, resume=True)
    assert contents(folder / "stopped") == contents(folder / "local")
    assert all((folder / "stopped" / name).stat().st_ino == inode for name, inode in kept.items())


def test_what_goes_wrong_on_a_machine_is_told_here(
    cluster: Cluster, machines: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_elsewhere(address: str, job: Any, *arguments: Any) -> Iterator[dict[str, Any]]:
        return original(address, replace(job, out=Path("not-shared")), *arguments)

    original = ray_encoding.write_shards_on_ray
    monkeypatch.setattr(ray_encoding, "write_shards_on_ray", write_elsewhere)
    with pytest.raises(OutputError, match="not-shared: a machine of the cluster does not see this folder"):
        prepare_on(cluster, folder, "elsewhere")


def test_no_cluster_at_the_address(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"--ray 127.0.0.1:1: no Ray cluster answers there"):
        prepare([folder / "text.jsonl"], folder / "tokenizer", folder / "nowhere", ray_address="127.0.0.1:1")
