"""Directories in every layout that others publish or save, made small: what each is taken for, and what it encodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import ModelError
from unmask.tokenization.directory import read_directory
from unmask.tokenization.kinds import byte_bpe, wordpiece
from unmask.tokenization.kinds.byte_bpe import BYTES
from unmask.tokenization.opening import has_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

GPT1_ENTRIES = ["<unk>", *"lowern", *(f"{letter}</w>" for letter in "lowern"), "lo", "low</w>", "er</w>"]
GPT1_MERGES = ["#version: 0.2", "l o", "lo w</w>", "e r</w>", ""]
MERGED = ["lo", "low", "Ġlow", "er"]
GPT2_ENTRIES = [*BYTES, *MERGED, "<|endoftext|>"]
GPT2_MERGES = ["#version: 0.2", "l o", "lo w", "Ġ low", "e r", ""]
ROBERTA_ENTRIES = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, *MERGED, "<mask>"]

SPECIAL_ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(directory: Path, entries: list[str], merges: list[str], names: tuple[str, str], **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    vocab = {entry: index for index, entry in enumerate(entries)}
    (directory / names[0]).write_text(json.dumps(vocab), encoding="utf-8")
    (directory / names[1]).write_text("\n".join(merges), encoding="utf-8")
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def tokens(tokenizer: TextTokenizer, text: str) -> list[str]:
    return tokenizer.tokens(tokenizer.encode_batch([text])[0])


def saved_again(tokenizer: TextTokenizer, directory: Path) -> TextTokenizer:
    directory.mkdir()
    tokenizer.save(directory)
    return load_tokenizer(directory)


@pytest.mark.parametrize("names", [("encoder_bpe_40000.json", "vocab_40000.bpe"), ("vocab.json", "merges.txt")])
def test_gpt1_as_published(names: tuple[str, str], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path / "t", GPT1_ENTRIES, GPT1_MERGES, names))
    assert (tokenizer.kind, tokenizer.unk_id, tokenizer.pad_id) == ("bpe", 0, None)
    for opened in (tokenizer, saved_again(tokenizer, tmp_path / "again")):
        assert tokens(opened, "Lower LOW ☃ e") == ["lo", "w", "er</w>", "low</w>", "<unk>", "e</w>"]
        single, pair = opened.encode_inputs([("low", None), ("low", "e")])
        assert (opened.tokens(single.input_ids), opened.tokens(pair.input_ids)) == (["low</w>"], ["low</w>", "e</w>"])
        assert opened.special_ids == (0,)


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2_as_published(names: tuple[str, str], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path / "t", GPT2_ENTRIES, GPT2_MERGES, names))
    assert (tokenizer.kind, tokenizer.unk_id, tokenizer.pad_id) == ("byte_bpe", None, None)
    for opened in (tokenizer, saved_again(tokenizer, tmp_path / "again")):
        assert tokens(opened, "lower low é") == ["low", "er", "Ġlow", "Ġ", "Ã", "©"]
        assert opened.decode(opened.encode_batch(["low é"])[0]) == "low é"
        assert opened.bos_id == opened.eos_id == opened.vocab_size - 1
        assert opened.vocabulary.mask_id is None
        with pytest.raises(ModelError, match=r"t has no mask_token|again has no mask_token"):
            _ = opened.mask_id


def test_roberta_as_transformers_once_saved_it(tmp_path: Path) -> None:
    written = write(tmp_path / "t", ROBERTA_ENTRIES, GPT2_MERGES, ("vocab.json", "merges.txt"), model_max_length=77)
    tokenizer = load_tokenizer(written)
    for opened in (tokenizer, saved_again(tokenizer, tmp_path / "again")):
        (pair,) = opened.encode_inputs([("low", "er <mask>")])
        assert opened.tokens(pair.input_ids) == ["<s>", "low", "</s>", "</s>", "er", "<mask>", "</s>"]
        assert pair.token_type_ids == [0] * 7
        assert opened.vocabulary.mask_id == opened.vocab_size - 1
        assert (opened.pad_id, opened.unk_id) == (1, None)
    config = json.loads((tmp_path / "again" / "tokenizer_config.json").read_bytes())
    assert config["model_max_length"] == 77
    assert config["model_input_names"] == ["input_ids", "attention_mask"]


def test_a_space_may_be_set_before_a_text(tmp_path: Path) -> None:
    names = ("vocab.json", "merges.txt")
    tokenizer = load_tokenizer(write(tmp_path / "t", GPT2_ENTRIES, GPT2_MERGES, names, add_prefix_space=True))
    assert tokens(tokenizer, "low low") == ["Ġlow", "Ġlow"]


def test_vocabularies_and_merges_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    names = ("vocab.json", "merges.txt")
    with pytest.raises(ModelError, match=r"merges.txt, line 3: 'lo x' is no merge of two entries into a third"):
        load_tokenizer(write(tmp_path, GPT2_ENTRIES, ["#version: 0.2", "l o", "lo x"], names))
    with pytest.raises(ModelError, match=r"merges.txt, line 1: 'lo' is no merge"):
        load_tokenizer(write(tmp_path, GPT2_ENTRIES, ["lo"], names))
    with pytest.raises(ModelError, match=r"vocab.json: neither .* </w> nor one of bytes, for which it lacks 2 of 256"):
        load_tokenizer(write(tmp_path, GPT2_ENTRIES[2:], [], names))
    with pytest.raises(ModelError, match=r"lacks <unk> \(unk_token\)"):
        load_tokenizer(write(tmp_path, GPT1_ENTRIES[1:], [], names))
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ModelError, match=r"holds no tokenizer: expected .* vocab.json with merges.txt or encoder.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize(
    ("class_name", "entries", "kind"),
    [
        ("MPNetTokenizer", SPECIAL_ENTRIES, "vocab.txt is read as BERT's WordPiece"),
        ("BertJapaneseTokenizer", SPECIAL_ENTRIES, "vocab.txt is read as BERT's WordPiece"),
        ("DebertaTokenizerFast", ROBERTA_ENTRIES, "vocab.json is read as the BPE of GPT-2, RoBERTa or GPT-1"),
    ],
)
def test_a_class_that_splits_otherwise_is_refused(
    tmp_path: Path, where: str, class_name: str, entries: list[str], kind: str
) -> None:
    if "vocab.txt" in kind:
        (tmp_path / "vocab.txt").write_text("\n".join(entries))
    else:
        write(tmp_path, entries, GPT2_MERGES, ("vocab.json", "merges.txt"))
    (tmp_path / where).write_text(json.dumps({"tokenizer_class": class_name}))
    with pytest.raises(ModelError, match=f"{where}: tokenizer_class is '{class_name}', and {kind} alone; expected a"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("class_name", "gives_segments"),
    [(None, True), ("BertTokenizer", True), ("ElectraTokenizerFast", True), ("DistilBertTokenizerFast", False)],
)
def test_classes_that_split_as_bert_are_read(tmp_path: Path, class_name: str | None, gives_segments: bool) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_ENTRIES, "a"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    tokenizer = load_tokenizer(tmp_path)
    for opened in (tokenizer, saved_again(tokenizer, tmp_path / "again")):
        assert tokens(opened, "A") == ["a"]
        assert opened.gives_segments is gives_segments


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "do_lower_case: it is false here, as tokenizer.json has it, and true in transformers"),
        ({"tokenizer_class": "ElectraTokenizer"}, "do_lower_case: it is false here"),
        ({"do_lower_case": False}, None),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, None),
    ],
)
def test_what_transformers_takes_from_its_class_is_stated(
    tmp_path: Path, config: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    vocab = {entry: index for index, entry in enumerate([*SPECIAL_ENTRIES, "A", "a"])}
    normalizer = wordpiece.bert_normalizer(lowercase=False, compose=False)
    definition = wordpiece.define(vocab, None, wordpiece.SPECIAL_TOKENS, (), normalizer)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokens(tokenizer, "A") == ["A"]
    assert (said or "") in caplog.text
    assert bool(caplog.text) == bool(said)
    caplog.clear()
    load_tokenizer(tmp_path)
    assert not caplog.text, "a run opens its tokenizer several times, and warns once"
    saved_again(tokenizer, tmp_path / "again")
    assert not caplog.text
    if said:
        assert json.loads((tmp_path / "again" / "tokenizer_config.json").read_bytes())["do_lower_case"] is False


def test_a_vocabulary_that_is_named_itself_is_read_alone(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_ENTRIES, "a"]))
    (tmp_path / "added_tokens.json").write_text('{"<e>": 6}')
    assert load_tokenizer(tmp_path).token_strings[-1] == "<e>"
    assert load_tokenizer(tmp_path / "vocab.txt").token_strings[-1] == "a"


def test_one_file_of_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ModelError, match=f"^{path}: one file of a tokenizer: give its directory, {tmp_path}$"):
        read_directory(path)


@pytest.mark.parametrize(
    ("place", "target", "is_kept"),
    [
        ("model", "../secret", False),
        ("model", "template", True),
        ("cache/snapshots/1f", "../../blobs/template", True),
        ("cache/snapshots/1f/sub", "../../../blobs/template", True),
        ("cache/snapshots/1f", "../../../secret", False),
    ],
)
def test_a_link_takes_no_file_from_elsewhere(tmp_path: Path, place: str, target: str, is_kept: bool) -> None:
    definition = byte_bpe.define({character: index for index, character in enumerate(BYTES)}, [], {}, (), None)
    model = tmp_path / place
    model.mkdir(parents=True)
    (model / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    link = model / "chat_template.jinja"
    link.symlink_to(target)
    (model / target).resolve().parent.mkdir(exist_ok=True)
    link.write_text("content")
    if is_kept:
        assert read_directory(model).files[link.name] == b"content"
    else:
        with pytest.raises(
            ModelError, match=f"^{link}: its link leads out of the directory, to {tmp_path / 'secret'}:"
        ):
            read_directory(model)


def test_an_unknown_segmenter_is_refused(tmp_path: Path) -> None:
    definition = byte_bpe.define({character: index for index, character in enumerate(BYTES)}, [], {}, (), None)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    assert load_tokenizer(tmp_path).segmenter == "none"
    (tmp_path / "tokenizer_config.json").write_text('{"unmask_segmenter": "scissors"}', encoding="utf-8")
    with pytest.raises(ModelError, match="the segmenter 'scissors' is not known; expected one of kiwi"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("names", "is_there"),
    [
        (["tokenizer.json"], True),
        (["vocab.txt"], True),
        (["vocab.json", "merges.txt"], True),
        (["encoder.json", "vocab.bpe"], True),
        (["vocab.json"], False),
        (["config.json"], False),
    ],
)
def test_what_makes_a_directory_hold_a_tokenizer(tmp_path: Path, names: list[str], is_there: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert has_tokenizer(tmp_path) is is_there
