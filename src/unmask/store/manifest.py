"""The files of a token store, and its manifest: their types, sizes and checksums.

    manifest.json           sizes, checksums, counts, provenance; written last: a directory without it is unfinished
    tokens-00000.bin        token ids, uint16 (vocabulary up to 65,536) or uint32
    sentences-00000.bin     uint32, one per sentence: where it ends among the shard's tokens
    documents-00000.bin     one record per document: where it ends among the shard's sentences, and a hash of its text
    tokenizer/              the tokenizer that made the ids

Special tokens are not stored: packing adds them. All numbers are little-endian.

The store of a word tokenizer (ELMo) also keeps the bytes of each word, since its model reads characters. Its manifest
declares two side arrays with their types, under `side_arrays`:

    tokens-00000.bin        the UTF-8 of the words, one after another
    word_ends-00000.bin     uint32, one per word: where it ends among the shard's bytes
    word_ids-00000.bin      ids in the output vocabulary, uint16 or uint32: what `tokens` holds in other stores

In both kinds of store a token is an id, and sentence ends count ids: code that reads only ids works on either.

If documents came with annotations, a store of ids declares one more side array:

    spans-00000.bin         uint32, three per span: its first token in the shard, the token after its last, its kind (by
                            `unmask.corpus.annotations.KINDS`); in order; a shard without spans has no such file
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import InputError, StoreError
from unmask.io.json_files import read_object
from unmask.io.paths import MANIFEST, refuse_set_aside
from unmask.io.writing import sha256

FORMAT_VERSION = 1
DOCUMENT = np.dtype([("sentence_end", "<u4"), ("text_hash", "<u4")])
"""A document: its end among the shard's sentences, and the first 32 bits of the SHA-256 of its text."""
SENTENCE = np.dtype("<u4")
PARTS = ("tokens", "sentences", "documents")
WORD_END = np.dtype("<u4")
WORD_PARTS = ("word_ends", "word_ids")
"""The additional parts of a store of words."""
SPAN = np.dtype("<u4")
SPAN_ARRAYS = {"spans": SPAN.str}
"""`side_arrays` of the manifest of a store with annotations."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every id of a vocabulary: 2 bytes up to 65,536 entries, else 4."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def word_arrays(vocab_size: int) -> dict[str, str]:
    """`side_arrays` of the manifest of a store of words: name -> type."""
    return {"word_ends": WORD_END.str, "word_ids": token_dtype(vocab_size).str}


def part_name(part: str, shard: int) -> str:
    """The file of one part of a shard: `tokens-00003.bin`."""
    return f"{part}-{shard:05d}.bin"


def manifest_checksum(manifest: dict[str, Any]) -> str:
    """The SHA-256, in hexadecimal, of a manifest's content without its checksum; layout does not matter."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Reads and checks a store's manifest and the sizes of its files.

    Raises:
        StoreError: see `TokenStore`.
    """
    path = directory / MANIFEST
    refuse_set_aside(directory, StoreError)
    if not directory.is_dir():
        raise StoreError(
            f"{directory}: no such store: make one with `unmask prepare TEXT --tokenizer DIR --out {directory}`"
        )
    if not path.is_file():
        if any(directory.glob("tokens-*.bin")):
            raise StoreError(
                f"{directory}: an unfinished store (no manifest.json): `unmask prepare ... --resume` continues it"
            )
        has_one = (directory / "store" / MANIFEST).is_file()  # a run that made a store of its corpus
        expected = f"its store is {directory / 'store'}" if has_one else "expected the --out of `unmask prepare`"
        raise StoreError(f"{directory}: not a token store (no manifest.json): {expected}")
    try:
        manifest = read_object(path)
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            raise StoreError(
                f"{path}: store format {version}, this version reads {FORMAT_VERSION}: prepare the store again"
            )
        is_sound = manifest["sha256"] == manifest_checksum(manifest)
    except (InputError, KeyError) as error:
        raise StoreError(f"{path}: damaged ({type(error).__name__}: {error}): prepare the store again") from error
    if not is_sound:
        raise StoreError(
            f"{path}: its own checksum is not that of what it says, so at least one byte has changed: "
            "restore the file or prepare the store again"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(each, dict) and {"bytes", "sha256"} <= each.keys() for each in files.values()
    ):
        raise StoreError(f"{path}: no files with their sizes and checksums: prepare the store again")
    for name, expected in files.items():
        if name.removeprefix("tokenizer/") != os.path.basename(name):
            raise StoreError(f"{path}: {name!r} is not the name of a file of a store: prepare the store again")
        size = _file_size(f"{directory}{os.sep}{name}")  # no Path objects: a large store has thousands of files
        if size is None:
            raise StoreError(
                f"{directory / name}: missing: the store is damaged; restore the file or prepare the store again"
            )
        if size != expected["bytes"]:
            raise StoreError(
                f"{directory / name}: {size} bytes, the manifest says {expected['bytes']}: the store is damaged; "
                "restore the file or prepare the store again"
            )
    return manifest


def _file_size(path: str) -> int | None:
    """The size of a file in bytes; None if there is no such file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def verify_file(path: Path, expected: dict[str, Any]) -> None:
    """Compares a file's checksum with its manifest entry.

    Raises:
        StoreError: the file differs from what was written.
    """
    if sha256(path) != expected["sha256"]:
        raise StoreError(
            f"{path}: its checksum is not the manifest's, so at least one byte has changed: "
            "restore the file or prepare the store again"
        )
