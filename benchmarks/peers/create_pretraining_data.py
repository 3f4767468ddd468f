"""The logic of BERT's `create_pretraining_data.py`, written anew without TensorFlow, to be measured against.

Devlin et al. (2019), appendix A.2, and the behaviour of the code released with it: text cleaned, split and cut into
word pieces character by character; documents, all in memory, to segment pairs; masks; seven padded features a sequence
as `tf.train.Example` messages in a TFRecord file. Messages are encoded by the C code of `protobuf`, and checksums
computed by numpy, since TensorFlow does both in C++.

Departures: a word of more than 100 characters is unknown (in the script 200), as everywhere else since; whole-word
masking, which is off there unless asked for, is left out; one file is written.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, SHORT_PROB, MASKED_PROB, MOST_MASKED, SEED = 128, 0.1, 0.15, 20, 12345
"""The script's defaults, as its flags are set."""


# ---- Tokenization


def is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def is_space(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_punctuation(char: str) -> bool:
    """Every ASCII sign that is no letter, digit or space counts as punctuation, `$` and `^` too."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


HAN = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


def is_han(char: str) -> bool:
    code = ord(char)
    return any(first <= code <= last for first, last in HAN)


def split_words(text: str) -> Iterator[str]:
    """Lowercased words and single punctuation signs, accents stripped."""
    cleaned = []
    for char in text:
        if ord(char) in (0, 0xFFFD) or is_control(char):
            continue
        if is_han(char):
            cleaned += [" ", char, " "]
        else:
            cleaned.append(" " if is_space(char) else char)
    for pre_token in "".join(cleaned).split():
        decomposed = unicodedata.normalize("NFD", pre_token.lower())
        word: list[str] = []
        for char in decomposed:
            if unicodedata.category(char) == "Mn":
                continue
            if is_punctuation(char):
                if word:
                    yield "".join(word)
                yield char
                word = []
            else:
                word.append(char)
        if word:
            yield "".join(word)


def cut_word(word: str, vocab: dict[str, int]) -> list[str]:
    """The longest entry that begins the word, then the longest that continues it, and so on; else one `[UNK]`."""
    if len(word) > 100:  # the script has 200; 100, `transformers`' number, is ours too
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(word):
        end = len(word)
        while start < end:
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in vocab:
                break
            end -= 1
        if start == end:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def tokenize(line: str, vocab: dict[str, int]) -> list[str]:
    return [piece for word in split_words(line) for piece in cut_word(word, vocab)]


# ---- Sequences


@dataclass
class Instance:
    """A sequence with its masks, in strings."""

    tokens: list[str]
    segment_ids: list[int]
    is_random_next: bool
    masked_positions: list[int]
    masked_labels: list[str]


def read_sentences(path: Path, vocab: dict[str, int]) -> list[list[list[str]]]:
    """All documents, each a list of sentences, each a list of pieces; a blank line ends a document."""
    documents: list[list[list[str]]] = [[]]
    with open(path, "rb") as file:
        for line in file:
            text = line.decode("utf-8").strip()
            if not text:
                documents.append([])
            elif pieces := tokenize(text, vocab):
                documents[-1].append(pieces)
    return [document for document in documents if document]


def make_instances(
    documents: Sequence[Sequence[list[str]]], number: int, words: Sequence[str], rng: random.Random
) -> Iterator[Instance]:
    """The segment pairs of one document."""
    document = documents[number]
    longest = LENGTH - 3
    target = rng.randint(2, longest) if rng.random() < SHORT_PROB else longest
    chunk: list[list[str]] = []
    length = place = 0
    while place < len(document):
        chunk.append(document[place])
        length += len(document[place])
        if place == len(document) - 1 or length >= target:
            end_of_a = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first = [piece for sentence in chunk[:end_of_a] for piece in sentence]
            second: list[str] = []
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != number:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    second.extend(sentence)
                    if len(second) >= target - len(first):
                        break
                place -= len(chunk) - end_of_a  # what was not used begins the next pair
            else:
                second = [piece for sentence in chunk[end_of_a:] for piece in sentence]
            truncate(first, second, longest, rng)
            tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
            segment_ids = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            yield mask(tokens, segment_ids, is_random_next, words, rng)
            chunk, length = [], 0
        place += 1


def truncate(first: list[str], second: list[str], longest: int, rng: random.Random) -> None:
    """Takes pieces from the longer side, at its front or its back, one by one."""
    while len(first) + len(second) > longest:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def mask(
    tokens: list[str], segment_ids: list[int], is_random_next: bool, words: Sequence[str], rng: random.Random
) -> Instance:
    """15 % of the pieces: 80 % of those `[MASK]`, 10 % kept, 10 % any entry."""
    candidates = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    number = min(MOST_MASKED, max(1, round(len(tokens) * MASKED_PROB)))
    masked = list(tokens)
    chosen = []
    for place in candidates[:number]:
        if rng.random() < 0.8:
            masked[place] = "[MASK]"
        elif rng.random() >= 0.5:
            masked[place] = words[rng.randint(0, len(words) - 1)]
        chosen.append((place, tokens[place]))
    chosen.sort()
    return Instance(masked, segment_ids, is_random_next, [place for place, _ in chosen], [label for _, label in chosen])


# ---- Files

EXAMPLE = """
name: "example.proto" package: "peer" syntax: "proto3"
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type_name: ".peer.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type_name: ".peer.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".peer.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".peer.Feature" } } }
message_type { name: "Example" field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: ".peer.Features" } }
"""
"""`tf.train.Example`, by its published field numbers."""


def example_messages() -> dict[str, Any]:
    """The classes of `tf.train.Example`'s messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(EXAMPLE, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"peer.{name}")) for name in names}


def serialise(instance: Instance, vocab: dict[str, int], messages: dict[str, Any]) -> bytes:
    """Seven features, padded to full length."""
    no_token, no_mask = LENGTH - len(instance.tokens), MOST_MASKED - len(instance.masked_labels)
    integers = {
        "input_ids": [vocab[token] for token in instance.tokens] + [0] * no_token,
        "input_mask": [1] * len(instance.tokens) + [0] * no_token,
        "segment_ids": instance.segment_ids + [0] * no_token,
        "masked_lm_positions": instance.masked_positions + [0] * no_mask,
        "masked_lm_ids": [vocab[label] for label in instance.masked_labels] + [0] * no_mask,
        "next_sentence_labels": [int(instance.is_random_next)],
    }
    weights = [1.0] * len(instance.masked_labels) + [0.0] * no_mask
    feature = messages["Feature"]
    features = {name: feature(int64_list=messages["Int64List"](value=value)) for name, value in integers.items()}
    features["masked_lm_weights"] = feature(float_list=messages["FloatList"](value=weights))
    example: bytes = messages["Example"](features=messages["Features"](feature=features)).SerializeToString()
    return example


class Crc32c:
    """CRC-32C of messages of up to `longest` bytes: what each byte adds by its distance from the end, all in one go."""

    def __init__(self, longest: int) -> None:
        table = np.arange(256, dtype=np.uint32)
        for _ in range(8):
            table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
        self._added = np.empty((longest, 256), dtype=np.uint32)
        self._added[0] = table
        starts = [0xFFFFFFFF]
        for distance in range(1, longest):
            before = self._added[distance - 1]
            self._added[distance] = (before >> 8) ^ table[before & 255]
        for _ in range(longest):
            starts.append((starts[-1] >> 8) ^ int(table[starts[-1] & 255]))
        self._starts = starts
        assert self.masked(b"123456789") == 0xC78AB0E5, "the check value of CRC-32C, 0xE3069283, masked"

    def masked(self, message: bytes) -> int:
        """The checksum rotated and moved, as TFRecord stores it."""
        places = np.arange(len(message) - 1, -1, -1)
        added = self._added[places, np.frombuffer(message, np.uint8)]
        crc = int(np.bitwise_xor.reduce(added)) ^ self._starts[len(message)] ^ 0xFFFFFFFF
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_vocab(path: Path) -> dict[str, int]:
    return {entry: number for number, entry in enumerate(path.read_text("utf-8").splitlines())}


def create_pretraining_data(
    text: Path, vocab: dict[str, int], out: Path, copies: int, messages: dict[str, Any], checksum: Crc32c
) -> int:
    """Makes the file of a text; returns the number of unique tokens.

    Args:
        text: one sentence a line, a blank line after each document.
        vocab: entry -> id.
        out: where the records go.
        copies: how often each document is gone through (`dupe_factor`, by default 10).
        messages: see `example_messages`.
        checksum: of records.
    """
    rng = random.Random(SEED)
    words = list(vocab)
    documents = read_sentences(text, vocab)
    rng.shuffle(documents)
    instances: list[Instance] = []
    for _ in range(copies):
        for number in range(len(documents)):
            instances.extend(make_instances(documents, number, words, rng))
    rng.shuffle(instances)
    with open(out, "wb") as file:
        for instance in instances:
            record = serialise(instance, vocab, messages)
            size = len(record).to_bytes(8, "little")
            file.write(size + checksum.masked(size).to_bytes(4, "little"))
            file.write(record + checksum.masked(record).to_bytes(4, "little"))
    return sum(len(sentence) for document in documents for sentence in document)
