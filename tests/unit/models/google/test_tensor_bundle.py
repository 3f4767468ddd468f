"""TensorFlow's checkpoints, as TensorFlow wrote them, whole and damaged in every way."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.tensorflow_files import checksum_field, field, table_of
from support.tensors import assert_equal
from unmask.errors import ModelError
from unmask.models.google.tensor_bundle import DTYPES, TensorBundle, masked_crc32c, open_bundle


@pytest.fixture
def kinds(repository: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint of every kind of tensor; `tests/golden/make_tensorflow_checkpoint.py` made it."""
    shutil.copytree(repository / "tests" / "golden" / "tensorflow_checkpoint" / "kinds", tmp_path / "kinds")
    return tmp_path / "kinds"


def expected_of(directory: Path) -> dict[str, torch.Tensor]:
    described = json.loads((directory / "expected.json").read_text("utf-8"))
    return {
        name: torch.tensor(one["values"], dtype=getattr(torch, one["dtype"])).reshape(one["shape"])
        for name, one in described.items()
    }


def read_all(bundle: TensorBundle) -> dict[str, torch.Tensor]:
    return {name: bundle.read(name) for name in sorted(bundle.entries) if name not in NOT_READ}


NOT_READ = ("a_flag", "a_text", "partitioned")


def test_every_dtype_and_shape(kinds: Path) -> None:
    expected = expected_of(kinds)
    assert {tensor.dtype for tensor in expected.values()} == set(DTYPES.values())
    bundle = open_bundle(kinds / "kinds.ckpt.index")
    assert set(bundle.entries) == set(expected) | set(NOT_READ)
    assert all(bundle.entries[name][4][0] % 4 for name in ("float32", "float64", "int32"))  # none of them aligned
    assert_equal(read_all(bundle), expected)


def test_what_is_read_may_be_written_to_and_the_file_stays(kinds: Path) -> None:
    data = kinds / "kinds.ckpt.data-00000-of-00001"
    before = data.read_bytes()
    bundle = open_bundle(kinds / "kinds.ckpt.index")
    for tensor in read_all(bundle).values():
        tensor.zero_()
    assert data.read_bytes() == before


def test_two_shards_hold_what_one_does(repository: Path) -> None:
    directory = repository / "tests" / "golden" / "tensorflow_checkpoint"
    one = open_bundle(directory / "bert_model.ckpt.index")
    two = open_bundle(directory / "sharded" / "model.ckpt-1000.index")
    assert len(two.shards) == 2
    assert {entry.get(3, [0])[0] for entry in two.entries.values()} == {0, 1}
    left_out = {name for name in one.entries if "adam" in name} | {"global_step"}
    assert set(one.entries) - left_out == set(two.entries)
    assert_equal({name: two.read(name) for name in two.entries}, {name: one.read(name) for name in two.entries})
    assert int(one.read("global_step")) == 1000


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_not_read_is_refused_by_name(kinds: Path, name: str) -> None:
    message = "partitioned, kept in slices" if name == "partitioned" else r"dtype number \d+; expected float32, "
    with pytest.raises(ModelError, match=f"kinds.ckpt.index: {name} is .*{message}"):
        open_bundle(kinds / "kinds.ckpt.index").read(name)


def unnoticed_changes(kinds: Path, path: Path, message: str) -> list[int]:
    """The bytes of a file that may be changed without an error: what is read then stays the same."""
    file, expected = path.read_bytes(), expected_of(kinds)
    unnoticed = []
    for place in range(len(file)):
        changed = bytearray(file)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert_equal(read_all(open_bundle(kinds / "kinds.ckpt.index")), expected)
            unnoticed.append(place)
        except ModelError as error:
            assert message in str(error)  # noqa: PT017
    return unnoticed


def test_a_changed_byte_of_the_index_is_noticed_or_changes_nothing(kinds: Path) -> None:
    unnoticed = unnoticed_changes(kinds, kinds / "kinds.ckpt.index", "kinds.ckpt.index is cut short or damaged")
    assert len(unnoticed) < 60  # the metaindex, which is empty and not read, its handle, and padding


def test_no_byte_of_a_tensor_can_be_changed(kinds: Path) -> None:
    """Not covered are 17 bytes: the first nine, of two variables that are not read, and a slice of a third."""
    data = kinds / "kinds.ckpt.data-00000-of-00001"
    size = data.stat().st_size
    unnoticed = unnoticed_changes(kinds, data, "do not match their checksum")
    read = sum(tensor.numel() * tensor.element_size() for tensor in expected_of(kinds).values())
    assert len(unnoticed) == size - read == 17
    assert unnoticed[:9] == list(range(9))


def test_cut_short_anywhere(kinds: Path) -> None:
    index, data = kinds / "kinds.ckpt.index", kinds / "kinds.ckpt.data-00000-of-00001"
    for path in (index, data):
        file = path.read_bytes()
        for size in range(len(file) - 8 if path is data else len(file)):  # the last 8 are the slice's
            path.write_bytes(file[:size])
            with pytest.raises(ModelError, match=f"{path.name} is cut short or damaged"):
                read_all(open_bundle(index))
        path.write_bytes(file)


def test_a_missing_shard_is_named(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "tests" / "golden" / "tensorflow_checkpoint" / "sharded", tmp_path / "sharded")
    (tmp_path / "sharded" / "model.ckpt-1000.data-00001-of-00002").unlink()
    with pytest.raises(ModelError, match=r"data-00001-of-00002: cannot be read \(No such file.* with all its files"):
        open_bundle(tmp_path / "sharded" / "model.ckpt-1000.index")


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.index", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            open_bundle(path)


HEADER = field(1, 1)
SHAPE = field(2, field(2, field(1, 3)))
"""Three elements."""


def write_index(directory: Path, header: bytes = HEADER, entry: bytes | None = None, name: bytes = b"v") -> Path:
    """Writes the index of a checkpoint whose data file is the float32 1, 2, 3."""
    data = np.array([1, 2, 3], "<f4").tobytes()
    (directory / "hand.data-00000-of-00001").write_bytes(data)
    entry = field(1, 1) + SHAPE + field(5, 12) if entry is None else entry
    (directory / "hand.index").write_bytes(table_of({b"": header, name: entry + checksum_field(data)}))
    return directory / "hand.index"


def test_written_by_hand(tmp_path: Path) -> None:
    newer_fields = field(9, 1) + field(10, b"x") + bytes([11 << 3 | 1]) + bytes(8)
    for header in (HEADER, HEADER + newer_fields + field(3, field(1, 1) + field(2, 1))):
        assert open_bundle(write_index(tmp_path, header)).read("v").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("header", "message"),
    [(HEADER + field(2, 1), "on a big-endian machine"), (HEADER + b"\x1b", "cut short or damaged")],
)
def test_other_headers_are_refused(tmp_path: Path, header: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_bundle(write_index(tmp_path, header))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (field(1, 1) + SHAPE + field(5, 12) + field(3, 1), r"v has the shape \(3,\) and 12 bytes in shard 1"),
        (field(1, 1) + SHAPE + field(5, 12) + field(4, 1), "it has 12 bytes, and v ends at 13"),
        (field(1, 1) + SHAPE + field(5, 8), r"v has the shape \(3,\) and 8 bytes"),
        (field(1, 2) + SHAPE + field(5, 12), r"v has the shape \(3,\) and 12 bytes"),
        (field(1, 1) + field(2, field(2, b"\x08" + b"\xff" * 9 + b"\x01")) + field(5, 12), "v has the shape"),
    ],
)
def test_entries_that_do_not_fit_are_refused(tmp_path: Path, entry: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_bundle(write_index(tmp_path, entry=entry)).read("v")


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="damaged"):
        open_bundle(write_index(tmp_path, name=b"\xff"))


def test_a_table_that_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.index").write_bytes(table_of({b"key": b"value"}))
    with pytest.raises(ModelError, match="it has no header"):
        open_bundle(tmp_path / "other.index")


def test_an_empty_data_file_will_do_where_nothing_is_in_it(tmp_path: Path) -> None:
    empty = field(1, 1) + field(2, field(2, field(1, 0))) + checksum_field(b"")
    (tmp_path / "empty.index").write_bytes(table_of({b"": HEADER, b"v": empty}))
    (tmp_path / "empty.data-00000-of-00001").write_bytes(b"")
    assert open_bundle(tmp_path / "empty.index").read("v").shape == (0,)


@pytest.mark.parametrize(("entries_per_block", "restart_every"), [(1, 1), (7, 3), (1000, 16)])
def test_an_index_of_several_blocks(tmp_path: Path, entries_per_block: int, restart_every: int) -> None:
    items = {f"layer_{number // 7}/part_{number}".encode(): field(4, number) for number in range(60)}
    (tmp_path / "many.index").write_bytes(table_of({b"": HEADER, **items}, entries_per_block, restart_every))
    (tmp_path / "many.data-00000-of-00001").touch()
    entries = open_bundle(tmp_path / "many.index").entries
    assert {name.encode(): field(4, entry[4][0]) for name, entry in entries.items()} == items


def test_compressed_blocks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old.index").write_bytes(table_of({b"": HEADER}, compression=1))
    with pytest.raises(ModelError, match=r"compressed, as TensorFlow 1\.1 wrote them"):
        open_bundle(tmp_path / "old.index")


def test_the_checksum_is_that_of_the_standard() -> None:
    """RFC 3720, appendix B.4: the CRC-32C of 32 zero bytes is 0x8A9136AA; then LevelDB's rotation and constant."""
    rotated = (0x8A9136AA >> 15 | 0x8A9136AA << 17) & 0xFFFFFFFF
    assert masked_crc32c(bytes(32)) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_the_extra_is_named_where_it_is_missing(kinds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ModelError, match=r"needs google-crc32c: pip install 'unmask\[tensorflow\]'"):
        open_bundle(kinds / "kinds.ckpt.index")
