"""A tokenizer with more words: each becomes an entry of its own after the existing ones, which keep their ids.

A model whose tokenizer cuts the words of a new domain into many pieces can be pre-trained further with such a
tokenizer; the new entries start as the mean of their pieces (`unmask.pretraining.vocabulary`).

In WordPiece a new word is an entry like the others. Matching is longest first, so it is also taken at the beginning of
longer words: "lovelace" in "lovelaces". What follows there has to be spelt too, so characters of the new words that the
vocabulary does not have inside a word become entries as well: `##ㅋ` beside `ㅋㅋ`.

How BPE cuts a word is decided by merges, which are learnt from text. So a new word becomes an added token, as in
`transformers`: it is looked for before the merges, and only as a whole word; everything else is encoded as before. This
has three drawbacks, there and here: in byte-level BPE the space before it is a token of its own, GPT-1's decoder puts
no space after it, and the library's byte-level decoder garbles some accented letters in it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InputError, ModelError, SettingsError
from unmask.io.encodings import read_utf8_lines
from unmask.io.paths import model_directory
from unmask.io.progress import listed
from unmask.io.reading import open_input
from unmask.io.writing import refuse_existing, refuse_foreign, refuse_inputs_inside, writing_directory
from unmask.tokenization.added_tokens import ADDED_TOKENS, BY_ID
from unmask.tokenization.definition import Definition
from unmask.tokenization.directory import CONFIG
from unmask.tokenization.kinds.word_characters import is_word_tokenizer
from unmask.tokenization.library import words_of
from unmask.tokenization.opening import TOKENIZER_FILES, has_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

_WHOLE_WORD = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Extension:
    """The result for a list of words."""

    tokenizer: TextTokenizer  # with the new entries
    added: tuple[str, ...]  # the new words, in order
    continuing: tuple[str, ...]  # entries behind them: characters of these that could not continue a word (WordPiece)
    known: tuple[str, ...]  # words that were entries already
    num_repeated: int  # lines whose normalised word was on an earlier line
    unknown: tuple[str, ...]  # of `added`, those that the tokenizer could not encode before: they were `[UNK]`

    def summary(self) -> str:
        """What was done, for a terminal."""
        first = self.tokenizer.vocab_size - len(self.added) - len(self.continuing)
        lines = [f"{len(self.added):,} words added behind {first:,} entries, which keep their ids"]
        if self.continuing:
            lines.append(
                f"{len(self.continuing):,} of their characters added inside words too: {listed(self.continuing)}"
            )
        if self.known:
            lines.append(f"{len(self.known):,} already among the entries: {listed(self.known)}")
        if self.num_repeated:
            lines.append(f"{self.num_repeated:,} lines repeat a word of an earlier line")
        if self.unknown:
            lines.append(
                f"{len(self.unknown):,} of the added could not be spelt before: {listed(self.unknown)}; a model "
                "starts each of them as its unknown token"
            )
        return "\n".join(lines)


def extend_tokenizer(source: str | Path, words: str | Path, out: str | Path, *, overwrite: bool = False) -> Extension:
    """Adds whole words to a tokenizer, and saves it in the form that `transformers.AutoTokenizer` opens.

    Args:
        source: a tokenizer's directory, a model's, or that of the run that made it.
        words: a text file, one word per line, as it is written in texts; blank lines are passed over.
        out: the new tokenizer's directory.
        overwrite: True replaces a tokenizer at `out`.

    Raises:
        ModelError: `source` has no tokenizer.
        SettingsError: it is a tokenizer of words, which has no pieces.
        InputError: the file cannot be read, holds something that the tokenizer never sees as one word, or nothing new.
        OutputError: `out` exists, or holds other things than a tokenizer.
    """
    directory, words, out = _tokenizer_directory(Path(source)), Path(words), Path(out)
    refuse_foreign(out, TOKENIZER_FILES, "a tokenizer")
    refuse_existing(out, overwrite)
    refuse_inputs_inside(out, [directory, words])
    tokenizer = load_tokenizer(directory)
    if "" in tokenizer.token_strings:
        raise ModelError(f"{directory}: id {tokenizer.token_strings.index('')} has no entry: expected one for each id")
    found = _read_words(words, tokenizer)
    entries = frozenset(tokenizer.token_strings)
    known = {word: None for word in dict.fromkeys(found) if _is_known(word, entries, tokenizer)}
    new = dict.fromkeys(word for word in found if word not in known)
    if not new:
        raise InputError(f"{words}: none of its {len(found):,} words is new to the tokenizer: there is nothing to add")
    continuing: tuple[str, ...] = ()
    if tokenizer.kind == "wordpiece":
        continuing = tokenizer.missing_inside("".join(new))
        extended = _with_entries(tokenizer, (*new, *continuing))
    else:
        extended = _with_added_tokens(tokenizer, tuple(new))
    extended.where = out
    with writing_directory(out, overwrite) as unfinished:
        extended.save(unfinished)
    return Extension(
        tokenizer=extended,
        added=tuple(new),
        continuing=continuing,
        known=tuple(known),
        num_repeated=len(found) - len(new) - len(known),
        unknown=tuple(
            word for word, ids in zip(new, tokenizer.encode_batch(list(new)), strict=True) if tokenizer.unk_id in ids
        ),
    )


def _tokenizer_directory(source: Path) -> Path:
    is_itself = source.is_file() or has_tokenizer(source) or not source.is_dir()
    directory = source if is_itself else model_directory(source)
    if is_word_tokenizer(directory):
        raise SettingsError(f"{source} is a tokenizer of words and their characters: it takes any word as it is")
    return directory


def _read_words(path: Path, tokenizer: TextTokenizer) -> list[str]:
    """The words as the tokenizer normalises them, blank lines left out.

    Raises:
        InputError: the file cannot be read, or some of its lines cannot be entries; the first are named.
    """
    entries = frozenset(tokenizer.token_strings)
    specials = {tokenizer.token_strings[index] for index in tokenizer.special_ids}
    most = json.loads(tokenizer.backend.to_str())["model"].get("max_input_chars_per_word", math.inf)
    found, problems = [], []
    with open_input(path) as stream:
        for number, line in read_utf8_lines(stream, path):
            word = line.strip()
            pieces = _cut(tokenizer, word)
            if word in specials:
                problems.append(f"line {number}: {word!r} is a special token")
            elif len(pieces) > 1:
                cut = " and ".join(map(repr, pieces)) if len(pieces) < 4 else f"{len(pieces)} words"
                problems.append(f"line {number}: {word!r} is {cut} to the tokenizer")
            elif word and not pieces:
                problems.append(f"line {number}: {word!r} is nothing to the tokenizer")
            elif word and len(pieces[0]) > most:
                problems.append(f"line {number}: a word of {len(pieces[0])} characters, the tokenizer takes {most}")
            elif not entries.isdisjoint(pieces) and not _is_known(pieces[0], entries, tokenizer):
                problems.append(f"line {number}: {word!r} is an entry already that stands for part of a word")
            else:
                found += pieces
    if problems:
        more = [f"... and {len(problems) - _MOST_SHOWN:,} more"] if len(problems) > _MOST_SHOWN else []
        advice = (
            f"{path}: {len(problems):,} line(s) cannot be added: expected one word a line, without blanks inside and, "
            "for WordPiece, without punctuation, since texts are cut there before entries are looked up; give the "
            "parts, each on a line of its own, or take the line out"
        )
        raise InputError("\n".join([advice, *problems[:_MOST_SHOWN], *more]))
    return found


def _is_known(word: str, entries: frozenset[str], tokenizer: TextTokenizer) -> bool:
    """Whether a normalised word is already encoded as one entry, at the beginning of a text or further on."""
    if tokenizer.kind == "wordpiece":
        return word in entries
    ways = tokenizer.encode_batch([word, f" {word}"])
    return any(len(ids) == 1 and ids[0] != tokenizer.unk_id for ids in ways)


def _cut(tokenizer: TextTokenizer, text: str) -> list[str]:
    """The words that the tokenizer sees in a text before it looks up entries or added tokens, normalised."""
    backend = tokenizer.backend
    text = tokenizer.segment(text)
    if tokenizer.kind == "wordpiece":
        return words_of(backend, text)
    return (backend.normalizer.normalize_str(text) if backend.normalizer is not None else text).split()


def _with_entries(tokenizer: TextTokenizer, new: tuple[str, ...]) -> TextTokenizer:
    """The tokenizer with new entries in its vocabulary, which lists the added tokens too."""
    definition = tokenizer.definition
    entries = (*tokenizer.token_strings, *new)
    definition["model"]["vocab"] |= {entry: index for index, entry in enumerate(entries)}
    return tokenizer.changed(definition)


def _with_added_tokens(tokenizer: TextTokenizer, new: tuple[str, ...]) -> TextTokenizer:
    """The tokenizer with new added tokens, in all files that list these."""
    definition = tokenizer.definition
    ids = {word: index for index, word in enumerate(new, start=tokenizer.vocab_size)}
    definition["added_tokens"] = [
        *(definition.get("added_tokens") or []),
        *({"id": index, "content": word, **_WHOLE_WORD} for word, index in ids.items()),
    ]
    files: dict[str, Definition] = {}
    config, beside = (json.loads(tokenizer.opened.files.get(name, b"{}")) for name in (CONFIG, ADDED_TOKENS))
    if BY_ID in config:
        config[BY_ID] |= {str(index): {"content": word, **_WHOLE_WORD} for word, index in ids.items()}
        files[CONFIG] = config
    if beside:
        files[ADDED_TOKENS] = beside | ids
    return tokenizer.changed(definition, files)
