"""Tokenizers in the layouts of ModernBERT, Ettin and mmBERT, with small vocabularies of their own: opened here and in
`transformers`, every returned array equal, and used by a model that fills in masks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from unmask.inference.mask_filling import fill_mask
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import save_model
from unmask.models.modernbert import ModernBertEncoder
from unmask.models.settings import ModelSettings
from unmask.store.preparation import prepare
from unmask.tokenization.offsets import align
from unmask.tokenization.tokenizer import load_tokenizer

TEXTS = [
    "It was the best of times, it was the worst of times.",
    "Naïve cafés don't charge €3.50 for a crème brûlée.",
    "모든 국민은 인간으로서의 존엄과 가치를 가지며, 행복을 추구할 권리를 가진다.",
    "  two  spaces,    four\n\nand a line\ttab ",
    "an emoji 👩‍🚀 and 漢字 that the vocabulary has not",
    "the man went to the [MASK] . [SEP] or <bos> the <mask> <eos>",
    "",
]
LEARNED = TEXTS[:4] * 3


def modernbert_tokenizer() -> tuple[Tokenizer, dict[str, str]]:
    """NFC, byte-level BPE, runs of spaces and masked addresses as ordinary added tokens, `[MASK]` that takes the space
    before it; special tokens and unused slots at the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        LEARNED,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tokenizer.add_tokens(["|||IP_ADDRESS|||", *(" " * number for number in (4, 3, 2))])
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([f"[unused{number}]" for number in range(3)])
    frame(tokenizer, "[CLS]", "[SEP]")
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    return tokenizer, roles


def mmbert_tokenizer() -> tuple[Tokenizer, dict[str, str]]:
    """Gemma's: SentencePiece's BPE over the whole text, `▁` for a space, bytes for what is no entry."""
    byte_entries = [f"<0x{number:02X}>" for number in range(256)]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *byte_entries], show_progress=False)
    learning = Tokenizer(models.BPE(unk_token="<unk>"))
    learning.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learning.train_from_iterator(LEARNED, trainer)
    learned = json.loads(learning.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(learned["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    frame(tokenizer, "<bos>", "<eos>")
    roles = {"cls_token": "<bos>", "sep_token": "<eos>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return tokenizer, roles | {f"{role}_token": f"<{role}>" for role in ("unk", "pad", "mask")}


def frame(tokenizer: Tokenizer, cls: str, sep: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(entry, tokenizer.token_to_id(entry)) for entry in (cls, sep)],
    )


MADE = {"modernbert": modernbert_tokenizer, "mmbert": mmbert_tokenizer}
KINDS = {"modernbert": "byte_bpe", "mmbert": "sentencepiece"}


def save(directory: Path, name: str, alone: bool = False) -> dict[str, str]:
    tokenizer, roles = MADE[name]()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    if not alone:
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 8192,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **roles,
        }
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return roles


@pytest.mark.parametrize("name", MADE)
def test_every_array_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    save(tmp_path, name)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.kind == KINDS[name]
    assert ours.vocab_size == len(theirs)
    for role in ("cls", "sep", "pad", "mask"):
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id")
    pairs: list[tuple[str, str | None]] = [(text, None) for text in TEXTS]
    pairs += [(text, other) for text, other in zip(TEXTS, reversed(TEXTS), strict=True) if other]
    for pair, encoded in zip(pairs, ours.encode_inputs(pairs, 40), strict=True):
        expected = theirs(*[text for text in pair if text is not None], truncation=True, max_length=40)
        assert encoded.input_ids == expected["input_ids"]
    for text, ids in zip(TEXTS, ours.encode_batch(TEXTS, specials_in_text=True), strict=True):
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids)
    (tmp_path / "again").mkdir()
    ours.save(tmp_path / "again")
    assert ours.fingerprint() == load_tokenizer(tmp_path / "again").fingerprint()


@pytest.mark.parametrize("name", MADE)
def test_a_tokenizer_json_alone_is_enough(tmp_path: Path, name: str) -> None:
    roles = save(tmp_path, name, alone=True)
    ours = load_tokenizer(tmp_path)
    for role in ("pad", "cls", "sep", "mask"):
        assert ours.token_strings[getattr(ours, f"{role}_id")] == roles[f"{role}_token"]


@pytest.mark.parametrize("name", MADE)
def test_words_begin_with_a_space(tmp_path: Path, name: str) -> None:
    save(tmp_path, name)
    tokenizer = load_tokenizer(tmp_path)
    [ids] = tokenizer.encode_batch(["best worst zebra times"])
    words = "".join(" " * (not tokenizer.continuation[index]) + tokenizer.token_strings[index] for index in ids)
    assert len(words.split()) == 4
    assert not tokenizer.continuation[list(tokenizer.special_ids)].any()


@pytest.mark.parametrize("name", MADE)
def test_tokens_know_their_places(tmp_path: Path, name: str) -> None:
    """Also where a character is no entry, and several tokens are its bytes."""
    save(tmp_path, name)
    tokenizer = load_tokenizer(tmp_path)
    text = "the best 漢 of"
    [aligned] = align(tokenizer, [text])
    covered = {text[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)}
    assert "漢" in covered
    assert "".join(sorted(set("".join(covered)))) == "".join(sorted(set(text) - {" "}))


@pytest.mark.parametrize("name", MADE)
def test_a_model_over_it_prepares_text_and_fills_in_masks(tmp_path: Path, name: str) -> None:
    save(tmp_path / "model", name)
    tokenizer = load_tokenizer(tmp_path / "model")
    settings = ModelSettings(architecture="modernbert", preset="tiny").resolve(tokenizer.vocab_size, tokenizer.pad_id)
    torch.manual_seed(0)
    save_model(tmp_path / "model", ModernBertEncoder(settings), {"masked_lm_head": MaskedLMHead(settings)})
    mask = tokenizer.token_strings[tokenizer.mask_id]
    filled = fill_mask(tmp_path / "model", f"It was the {mask} of times.", top_k=3)
    assert len(filled) == 3

    text = tmp_path / "text.txt"
    documents = TEXTS[:3]
    text.write_text("\n\n".join(documents), encoding="utf-8")
    store = prepare([text], tmp_path / "model", tmp_path / "store")
    assert store.num_documents == len(documents)
    assert store.num_tokens == sum(map(len, tokenizer.encode_batch(documents)))
