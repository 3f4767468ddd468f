"""Tokens that a directory names beside its vocabulary are those of `transformers`: ids of odd texts, and flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from unmask.tokenization.kinds import wordpiece
from unmask.tokenization.kinds.byte_bpe import BYTES
from unmask.tokenization.tokenizer import load_tokenizer

SPECIAL = wordpiece.SPECIAL_TOKENS
LETTERS = "abcdehtx<>[]/.12"
ENTRIES = [*SPECIAL.values(), "[unused1]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
BYTE_ENTRIES = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "ab", "<mask>"]
GPT1_ENTRIES = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "ab</w>"]
AFTER = len(ENTRIES)
TEXTS = [
    "a<e1>b <e1> c [E2]d [SEP] e </s> <mask> [MASK] x",
    "a  <E1> b x[e2] [E2]x [E2]",
    "  <e1>  <e1><e1>[MASK] b",
    "É[E2]é <e1> [unused1] <pad> _start_",
]


def token(content: str, **flags: bool) -> dict[str, Any]:
    usual = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {"content": content, **usual, **flags}


BY_ID = {
    str(AFTER): token("<e1>", lstrip=True, special=False),
    str(AFTER + 1): token("[E2]", rstrip=True, normalized=True, single_word=True, special=False),
}
IN_FILE = {"<e1>": AFTER, "[E2]": AFTER + 1}
GPT1_ROLES = {"pad_token": "<pad>", "bos_token": "_start_", "sep_token": "_delimiter_", "cls_token": "_classify_"}
MASK = {"__type": "AddedToken", **token("[MASK]", lstrip=True)}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "a file": ({}, IN_FILE),
    "a file of special tokens": ({"additional_special_tokens": ["<e1>", "[E2]"]}, IN_FILE),
    "by id": ({"added_tokens_decoder": BY_ID}, {}),
    "in the vocabulary and after it": ({"additional_special_tokens": ["[unused1]", "<e1>"]}, {}),
    "as version 5 writes it": ({"extra_special_tokens": ["<e1>"]}, {}),
    "by name": ({"extra_special_tokens": {"marker": "<e1>"}}, {}),
    "with flags": ({"additional_special_tokens": [{**MASK, "content": "<e1>", "rstrip": True}]}, {}),
    "a role with flags": ({"mask_token": MASK}, {}),
}


def read_otherwise(directory: Path) -> list[tuple[str, str | None]]:
    """The texts and pairs of which ours and theirs give other ids."""
    ours, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    assert ours.vocab_size == len(theirs)
    inputs = [(text, pair) for text in TEXTS for pair in (None, "b <e1>")]
    found = zip(inputs, ours.encode_inputs(inputs), strict=True)
    return [each for each, encoded in found if encoded.input_ids != theirs(*each)["input_ids"]]


def read_otherwise_here_or_saved(directory: Path, model_type: str, files: dict[str, Any]) -> list[Any]:
    """Of these files, and of what is saved of them here."""
    (directory / "saved").mkdir(parents=True)
    for name, content in {"config.json": {"model_type": model_type}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")
    load_tokenizer(directory).save(directory / "saved")
    (directory / "saved" / "config.json").write_bytes((directory / "config.json").read_bytes())
    return read_otherwise(directory) + read_otherwise(directory / "saved")


@pytest.mark.parametrize("name", CONFIGS)
def test_wordpiece(tmp_path: Path, name: str) -> None:
    config, added = CONFIGS[name]
    files: dict[str, Any] = {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer", **SPECIAL, **config}}
    if added:
        files["added_tokens.json"] = added
    files["vocab.txt"] = "".join(f"{entry}\n" for entry in ENTRIES)
    assert read_otherwise_here_or_saved(tmp_path, "bert", files) == []


def test_byte_bpe(tmp_path: Path) -> None:
    vocab = {entry: index for index, entry in enumerate(BYTE_ENTRIES)}
    config = {"tokenizer_class": "RobertaTokenizer", "mask_token": {**MASK, "content": "<mask>"}}
    added = {"<e1>": len(vocab), "[E2]": len(vocab) + 1}
    files = {"vocab.json": vocab, "merges.txt": "#version: 0.2\na b\n", "added_tokens.json": added}
    assert read_otherwise_here_or_saved(tmp_path, "roberta", {**files, "tokenizer_config.json": config}) == []


def test_gpt1_with_special_tokens_after_its_vocabulary(tmp_path: Path) -> None:
    vocab = {entry: index for index, entry in enumerate(GPT1_ENTRIES)}
    added = {entry: len(vocab) + place for place, entry in enumerate([*GPT1_ROLES.values(), "<e1>"])}
    files: dict[str, Any] = {"vocab.json": vocab, "merges.txt": "#version: 0.2\na b</w>\n", "added_tokens.json": added}
    files["special_tokens_map.json"] = {"unk_token": "<unk>", **GPT1_ROLES}
    assert read_otherwise_here_or_saved(tmp_path, "openai-gpt", files) == []
