"""The files of a tokenizer's directory: those we write, and those that others have published or saved.

It reads `tokenizer.json` (ours, and what `transformers` saves), `vocab.txt` (Google's BERT, ELECTRA), and a vocabulary
with its merges: `vocab.json` and `merges.txt` (`transformers`), `encoder.json` and `vocab.bpe` (GPT-2, on which RoBERTa
builds), `encoder_bpe_40000.json` and `vocab_40000.bpe` (GPT-1).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.io.json_files import check_size, read_object
from unmask.io.paths import refuse_link_out_of, where_samples_are
from unmask.tokenization.added_tokens import as_texts, tokens_beside
from unmask.tokenization.class_settings import CLASS_DEFAULTS, as_configured, class_in, class_of
from unmask.tokenization.definition import Definition, Facts, bert_normalizer, in_order, json_bytes, read_facts
from unmask.tokenization.kinds import bpe, byte_bpe, wordpiece

SEGMENTER_KEY = "unmask_segmenter"
"""The key in `tokenizer_config.json` of the segmenter that is applied to texts first; `transformers` ignores it."""

INPUT_NAMES, SEGMENTS = "model_input_names", "token_type_ids"
"""The key in `tokenizer_config.json` of what `transformers` gives a model, and the name of segments there."""

VOCABULARY_AND_MERGES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)

WORDS_FILE, WORD_SETTINGS = "words.txt", "word_tokenizer.json"
"""What a tokenizer of words is saved in; `unmask.tokenization.opening.open_tokenizer` opens one."""

logger = logging.getLogger("unmask")

CONFIG = "tokenizer_config.json"
KEPT_FILES = (
    "tokenizer.json",
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_GENERIC_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}
_BERT_CLASSES = _GENERIC_CLASSES | {
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
}
_BPE_CLASSES = _GENERIC_CLASSES | {
    "BartTokenizer",
    "GPT2Tokenizer",
    "LEDTokenizer",
    "LongformerTokenizer",
    "OpenAIGPTTokenizer",
    "RobertaTokenizer",
}
"""Tokenizers of `transformers`, without `Fast`, that read a vocabulary alone as is done here."""
WITHOUT_SEGMENTS = {"TokenizersBackend", "DistilBertTokenizer", "OpenAIGPTTokenizer", "RobertaTokenizer"}
"""Those that give a model no segments."""
_ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token")
_USUAL_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>", "<bos>"),
    "sep_token": ("[SEP]", "</s>", "<eos>"),
    "mask_token": ("[MASK]", "<mask>"),
}
"""Special tokens of ModernBERT, RoBERTa and mmBERT in their roles."""
_GPT2_SPECIAL_TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


@dataclass(frozen=True)
class OpenedDirectory:
    """The content of a directory."""

    files: dict[str, bytes]  # those to write when saving, by name; `tokenizer.json` is among them
    special_tokens: dict[str, str]  # role -> entry
    segmenter: str = "none"  # a key of `unmask.corpus.segmenters.SEGMENTERS`, or "none"


def new_files(
    definition: Definition,
    special_tokens: Mapping[str, str],
    config: Mapping[str, object],
    has_segments: bool,
    segmenter: str = "none",
) -> dict[str, bytes]:
    """The files of a new directory, by name.

    Args:
        config: entries of `tokenizer_config.json` besides the special tokens: `tokenizer_class` ...
        has_segments: True if the model takes `token_type_ids`.
    """
    inputs = _input_names(has_segments)
    full_config = {INPUT_NAMES: inputs, "clean_up_tokenization_spaces": False, **special_tokens, **config}
    if segmenter != "none":
        full_config[SEGMENTER_KEY] = segmenter
    files = {
        "tokenizer.json": json_bytes(definition),
        CONFIG: json_bytes(full_config),
        "special_tokens_map.json": json_bytes(special_tokens),
    }
    if definition["model"]["type"] == "WordPiece":
        files["vocab.txt"] = vocab_txt(definition)
    return files


def vocab_txt(definition: Definition) -> bytes:
    """The entries of a vocabulary, one a line."""
    return "".join(f"{entry}\n" for entry in in_order(definition["model"]["vocab"])).encode()


def _input_names(has_segments: bool) -> list[str]:
    return ["input_ids", *[SEGMENTS] * has_segments, "attention_mask"]


def read_directory(path: Path) -> OpenedDirectory:
    """Reads a tokenizer in any of the layouts.

    Args:
        path: a directory, or a file of entries, one a line.

    Raises:
        ModelError: as in `load_tokenizer`.
    """
    if not path.exists():
        hint = where_samples_are(path)
        raise ModelError(f"{path} does not exist: expected a directory with tokenizer.json or vocab.txt{hint}")
    if path.is_file() and path.suffix == ".json":
        raise ModelError(f"{path}: one file of a tokenizer: give its directory, {path.parent}")
    if path.is_file():
        return _read_vocab_txt(path, None)
    config = _read_json(path / "special_tokens_map.json") | _read_json(path / CONFIG)
    if (path / "tokenizer.json").is_file():
        return _read_tokenizer_json(path, config)
    if (path / "vocab.txt").is_file():
        _check_class(path, "vocab.txt", "BERT's WordPiece", config, _BERT_CLASSES)
        return _read_vocab_txt(path / "vocab.txt", config)
    for vocabulary, merges in VOCABULARY_AND_MERGES:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            _check_class(path, vocabulary, "the BPE of GPT-2, RoBERTa or GPT-1", config, _BPE_CLASSES)
            return _read_merges(path / vocabulary, path / merges, config)
    if (path / WORD_SETTINGS).is_file():
        raise ModelError(f"{path} holds a tokenizer of words: open it by unmask.tokenization.opening.open_tokenizer")
    layouts = " or ".join(" with ".join(names) for names in VOCABULARY_AND_MERGES)
    raise ModelError(f"{path} holds no tokenizer: expected tokenizer.json or vocab.txt in it, or {layouts}")


def _check_class(directory: Path, name: str, kind: str, config: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ModelError if a vocabulary is for a tokenizer of another class than those known, which would split a text
    otherwise."""
    for where, named in ((CONFIG, config), ("config.json", _read_json(directory / "config.json"))):
        if class_in(named) in known:
            return
        if class_in(named):
            raise ModelError(
                f"{directory / where}: tokenizer_class is {named['tokenizer_class']!r}, and {name} is read as {kind} "
                "alone; expected a tokenizer.json beside it, which transformers writes for such a class if it can: "
                f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
            )


@cache  # once a process: a run opens its tokenizer several times
def _warn_of_default(path: Path, key: str, value: Any) -> None:
    logger.warning(
        "%s has no %s: it is %s here, as tokenizer.json has it, and %s in transformers; state it there",
        *(path, key, json.dumps(value), json.dumps(CLASS_DEFAULTS[key])),
    )


def _read_tokenizer_json(directory: Path, config: dict[str, Any]) -> OpenedDirectory:
    path = directory / "tokenizer.json"
    class_name = class_in(config) or class_of(_read_json(directory / "config.json"))
    found = _read_json(path)
    padding = found.get("padding")
    if isinstance(padding, dict) and "pad_token" in padding:  # `transformers` takes it from there too
        config = {"pad_token": padding["pad_token"]} | config
    unfitted = found | {"truncation": None, "padding": None}  # both are of the use, not of the tokenizer
    definition, unstated = as_configured(unfitted, config, class_name)
    facts = read_facts(definition, path)
    entries = {entry: index for index, entry in enumerate(facts.entries)}
    usual = wordpiece.SPECIAL_TOKENS if facts.kind == "wordpiece" else _usual_roles(facts)
    special_tokens = _special_tokens(path, entries, config, usual)
    files = {name: _read_kept(directory, name) for name in KEPT_FILES if (directory / name).is_file()}
    if definition != json.loads(files["tokenizer.json"]):
        files["tokenizer.json"] = json_bytes(definition)
    for key, value in unstated.items():
        _warn_of_default(directory / CONFIG, key, value)
    if not class_in(config):
        # else `transformers` takes the class of whatever model is saved beside it
        names = config.get(INPUT_NAMES) or _input_names(class_name not in WITHOUT_SEGMENTS)
        ends = {"bos_token": "cls_token", "eos_token": "sep_token"} if class_name == "RobertaTokenizer" else {}
        roles = {role: special_tokens[other] for role, other in ends.items() if other in special_tokens}
        roles |= special_tokens
        unstated |= {**roles, "tokenizer_class": "PreTrainedTokenizerFast", INPUT_NAMES: names}
    elif isinstance(padding, dict) and "pad_token" in special_tokens:
        unstated |= {"pad_token": special_tokens["pad_token"]}
    if unstated:
        files[CONFIG] = json_bytes(_read_json(directory / CONFIG) | unstated)
    return OpenedDirectory(files, special_tokens, config.get(SEGMENTER_KEY, "none"))


def _read_kept(directory: Path, name: str) -> bytes:
    path = directory / name
    refuse_link_out_of(directory, path)
    check_size(path, ModelError)
    return path.read_bytes()


def _usual_roles(facts: Facts) -> dict[str, str]:
    """The special tokens of a `tokenizer.json` by role, from their names, where no other file says it."""
    if facts.kind not in ("byte_bpe", "sentencepiece"):
        return {}
    special = {facts.entries[index] for index in facts.special_ids}
    named = ((role, next((name for name in names if name in special), None)) for role, names in _USUAL_NAMES.items())
    return {role: name for role, name in named if name is not None}


def _read_vocab_txt(path: Path, config: dict[str, Any] | None) -> OpenedDirectory:
    """Without `config` it is the file alone, whatever lies beside it."""
    vocab = _read_entries(path)
    entries, added = (vocab, {}) if config is None else _with_added(path, config, vocab)
    config = config or {}
    special_tokens = _special_tokens(path, entries, config, wordpiece.SPECIAL_TOKENS)
    lowercase = bool(config.get("do_lower_case", True))
    normalizer = bert_normalizer(
        lowercase,
        compose=False,
        strip_accents=config.get("strip_accents"),
        split_han=config.get("tokenize_chinese_chars", True),
    )
    definition = _built(wordpiece.define(entries, None, special_tokens, (), normalizer), vocab, added)
    # With this class `transformers` builds the same normaliser from these keys.
    usual = {"tokenizer_class": "BertTokenizer", "model_max_length": 512}
    saved_config = {**usual, **config, **as_texts(config), "do_lower_case": lowercase}
    has_segments = class_in(config) not in WITHOUT_SEGMENTS
    return OpenedDirectory(new_files(definition, special_tokens, saved_config, has_segments), special_tokens)


def _read_merges(vocab_path: Path, merges_path: Path, config: dict[str, Any]) -> OpenedDirectory:
    """Reads a vocabulary with its merges, and adds the steps of its family as `transformers` builds them."""
    vocab = _read_json(vocab_path)
    merges = _read_pairs(merges_path, vocab)
    entries, added = _with_added(vocab_path, config, vocab)
    max_length = {"model_max_length": 512, **config}["model_max_length"]
    saved_config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    if any(entry.endswith(bpe.END_OF_WORD) for entry in vocab):
        special_tokens = _special_tokens(vocab_path, entries, config, {"unk_token": "<unk>"})
        normalizer = bert_normalizer(lowercase=True, compose=False)
        definition = bpe.define(entries, merges, special_tokens, (), normalizer)
        definition["post_processor"] = None  # `transformers` puts nothing around the texts of this layout
    else:
        missing = [character for character in byte_bpe.BYTES if character not in vocab]
        if missing:
            raise ModelError(
                f"{vocab_path}: neither a vocabulary with the end-of-word mark {bpe.END_OF_WORD} nor one of bytes, for "
                f"which it lacks {len(missing)} of 256: is it of another kind, or cut short?"
            )
        roberta = set(byte_bpe.SPECIAL_TOKENS.values()) <= set(entries)
        usual = byte_bpe.SPECIAL_TOKENS if roberta else _GPT2_SPECIAL_TOKENS
        special_tokens = _special_tokens(vocab_path, entries, config, usual)
        prefix_space = bool(config.get("add_prefix_space", False))
        definition = byte_bpe.define(entries, merges, special_tokens, (), None, prefix_space=prefix_space)
    definition = _built(definition, vocab, added)
    return OpenedDirectory(new_files(definition, special_tokens, saved_config, has_segments=False), special_tokens)


def _with_added(
    path: Path, config: Mapping[str, Any], vocab: dict[str, int]
) -> tuple[dict[str, int], dict[str, Definition]]:
    """All entries, those that are named beside the vocabulary too, and these."""
    added = tokens_beside(path, config, _ROLES, vocab)
    return vocab | {entry: token["id"] for entry, token in added.items()}, added


def _built(definition: Definition, vocab: dict[str, int], added: Mapping[str, Definition]) -> Definition:
    """A definition made from all entries, with the added ones beside the vocabulary."""
    tokens = {**{token["content"]: token for token in definition["added_tokens"]}, **added}
    model = {**definition["model"], "vocab": vocab}
    return {**definition, "model": model, "added_tokens": sorted(tokens.values(), key=lambda token: token["id"])}


def _special_tokens(
    path: Path, vocab: Mapping[str, int], config: dict[str, Any], usual: Mapping[str, str]
) -> dict[str, str]:
    """The entry of each role: from the configuration, as a string or under `content`, else the family's own."""
    named = {role: config.get(role) or usual.get(role) for role in (*usual, *_ROLES)}
    entries = {
        role: str(entry.get("content") if isinstance(entry, dict) else entry) for role, entry in named.items() if entry
    }
    missing = [f"{entry} ({role})" for role, entry in entries.items() if entry not in vocab]
    if missing:
        raise ModelError(f"{path} lacks {', '.join(missing)}: expected every special token in the vocabulary")
    return entries


def _read_entries(path: Path) -> dict[str, int]:
    entries = _read_text(path).split("\n")
    if entries[-1] == "":
        entries.pop()
    vocab: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry in vocab:
            raise ModelError(
                f"{path}, line {index + 1}: {entry!r} stands on line {vocab[entry] + 1} already; "
                "expected a vocabulary of one entry a line, each once"
            )
        vocab[entry] = index
    return vocab


def _read_pairs(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        first, space, second = line.partition(" ")
        if not space or not {first, second, first + second} <= vocab.keys():
            raise ModelError(
                f"{path}, line {number}: {line!r} is no merge of two entries into a third: expected two of them with a "
                "space between; do the vocabulary and the merges belong together?"
            )
        pairs.append((first, second))
    return pairs


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is no file."""
    return read_object(path, ModelError) if path.is_file() else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is not UTF-8 text: byte {error.start} cannot be decoded") from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
