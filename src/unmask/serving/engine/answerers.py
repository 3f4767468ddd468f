"""What a model can be asked over HTTP.

Each answerer reads the inputs of a request, in any thread, and computes those of many requests together, in the thread
that owns the models; what comes out is what the command line writes for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.inference.coverage import Coverage
from unmask.inference.example_sets import ExampleSet
from unmask.inference.features.batches import FeatureModel, InputSet, input_sets, pooled_vectors
from unmask.inference.features.extraction import feature_model
from unmask.inference.features.rows import FeatureInput, InputTokens, read_feature_input, tokenize
from unmask.inference.features.similarity import compare_neighbours, unit_length
from unmask.inference.left_to_right.generation import Sampling, begin_with, continue_prompt
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model
from unmask.inference.mask_filling import MaskedText, MaskFiller
from unmask.inference.opening import Opened
from unmask.inference.pairs import scorer_of
from unmask.inference.predictor import Predictor
from unmask.io.rows import Row
from unmask.reports.samples import show_tokens
from unmask.serving.engine.asks import Reading, Refused, Reply, too_much
from unmask.serving.engine.batching import Work, stop_if_abandoned
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import concatenate
from unmask.tasks.minimal_pairs.scorers import MaskedScorer, Sentence, SentenceScorer, score_sentences

Fields = Mapping[str, Any]

_MOST_ANSWERS, _MOST_BYTES = 10_000, 8_000_000
"""For the masks of one request; each answer repeats its text, and so many bytes of JSON are these texts together."""

_NO_TOKEN = {"score": None, "token": None, "sequence": None}
"""The answer for a word that is no token."""


class TaskAnswerer:
    """Predictions of a fine-tuned model: `unmask predict`."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._coverage = Coverage(self.predictor.tokenizer, "inputs")  # of all requests, so that it warns once

    def read(self, inputs: Sequence[Fields]) -> Work:
        """Tokenizes inputs, each by itself, so that it is known of each how much is left out.

        Raises:
            InputError: an input lacks its text, or is too long for a model that does not cut.
        """
        predictor, task = self.predictor, self.predictor.task
        rows = [Row(fields, f"input {number}") for number, fields in enumerate(inputs, start=1)]
        examples = list(task.read_all(rows))
        left_out, parts = [], []
        for example in examples:
            counts = ExampleCounts()
            parts.append(predictor.encode([example], counts))
            left_out.append(counts.num_cut)
        encoded = concatenate(parts)
        ids = [part.input_ids for part in parts]
        self._coverage.add_texts(ids, [text for example in examples for text in example.texts])
        units = sum(len(example.units) for example in examples) if task.kind == "tagging" else 0  # some have no token
        num_tokens = len(encoded.input_ids)
        cost, unknown = max(num_tokens, units), self._coverage.of_each(ids)
        return Work(self, None, ExampleSet(examples, encoded), cost, num_tokens, left_out, unknown=unknown)

    def compute(self, options: None, payloads: Sequence[ExampleSet]) -> list[list[dict[str, Any]]]:
        examples = list(chain.from_iterable(each.examples for each in payloads))
        answers = iter(self.predictor.answer(ExampleSet(examples, concatenate([each.encoded for each in payloads]))))
        return [list(islice(answers, len(each.examples))) for each in payloads]


class MaskAnswerer:
    """The likeliest tokens for each mask: `unmask fill-mask`."""

    def __init__(self, opened: Opened) -> None:
        self.filler = MaskFiller(opened)
        self._coverage = Coverage(self.filler.tokenizer, "inputs")

    @property
    def mask_token(self) -> str:
        tokenizer = self.filler.tokenizer
        return tokenizer.token_strings[tokenizer.mask_id]

    def read(self, texts: Sequence[str], top_k: int, targets: Sequence[str] = ()) -> Work:
        """Of the `targets`, if there are any, in place of the `top_k` likeliest tokens; one that is no token of the
        model gets an answer whose `score`, `token` and `sequence` are None.

        Raises:
            InputError: a text has no mask, or is too long, or there are too many answers, or too long ones.
        """
        among = tuple(self.filler.find_tokens(targets)) if targets else None
        absent = tuple(word for word in dict.fromkeys(targets) if not self.filler.find_tokens([word]))
        most = top_k if among is None else len(among) + len(absent)
        read = [self.filler.encode(text, f"input {number}") for number, text in enumerate(texts, start=1)]
        if (answers := most * sum(len(text.places) for text in read)) > _MOST_ANSWERS:
            raise InputError(
                f"{answers:,} answers, {most:,} for each mask: a request has at most {_MOST_ANSWERS:,}: lower top_k, "
                "or send fewer masks or targets"
            )
        if (size := most * sum(len(text.places) * _json_bytes(text.text) for text in read)) > _MOST_BYTES:
            raise InputError(
                f"{answers:,} answers that repeat their texts have {size:,} bytes: a request has at most "
                f"{_MOST_BYTES:,}: lower top_k, or send shorter texts, or fewer masks or targets"
            )
        num_tokens = sum(len(text.ids) for text in read)
        cost = max(answers, num_tokens)  # many answers take long, and much memory
        ids = [text.ids for text in read]
        self._coverage.add_texts(ids, texts)
        options, unknown = (top_k, among, absent), self._coverage.of_each(ids)
        return Work(self, options, read, cost, num_tokens, [0] * len(read), unknown=unknown)

    def compute(
        self, options: tuple[int, tuple[int, ...] | None, tuple[str, ...]], payloads: Sequence[list[MaskedText]]
    ) -> list[list[list[dict[str, Any]]]]:
        top_k, among, absent = options
        read = list(chain.from_iterable(payloads))
        found = self.filler.answer(read, top_k, among)
        for text, its in zip(read, found, strict=True):
            numbers = [{"mask": number} for number in range(len(text.places))] if len(text.places) > 1 else [{}]
            its += [{**mask, **_NO_TOKEN, "token_str": word} for mask in numbers for word in absent]
        answers = iter(found)
        return [list(islice(answers, len(texts))) for texts in payloads]


def _json_bytes(text: str) -> int:
    """What a text takes in an answer, where a control character has six."""
    return len(json.dumps(text, ensure_ascii=False).encode())


class VectorAnswerer:
    """One vector for each text: `unmask features`, `unmask similarity`."""

    def __init__(self, opened: Opened) -> None:
        self.model: FeatureModel = feature_model(opened)
        self._coverage = Coverage(self.model.tokenizer, "inputs")

    def read(self, texts: Sequence[str], reading: Reading) -> Work:
        """Raises SettingsError for layers or a pool that do not exist."""
        pool = self.model.pool_named(reading.pool)
        self.model.with_layers(reading.layers)
        inputs = [
            read_feature_input(Row({"text": text}, f"input {number}")) for number, text in enumerate(texts, start=1)
        ]
        [read] = input_sets(self.model, inputs, pool, self._coverage)
        num_tokens = len(read.rows.input_ids)
        unknown = self._coverage.of_each([its.ids for its in read.tokens])
        return Work(self, reading, read, num_tokens, num_tokens, read.left_out, unknown=unknown)

    def read_pairs(self, pairs: Sequence[tuple[str, str]], reading: Reading) -> Work:
        """The reply is what `unmask similarity` writes for them, and for each pair how much of it is left out."""
        work = self.read(list(chain.from_iterable(pairs)), replace(reading, normalise=True))
        texts = [FeatureInput(text, None, None, None, "") for pair in pairs for text in pair]
        left_out, unknown = _of_inputs(work.left_out, 2), None if work.unknown is None else _of_inputs(work.unknown, 2)
        return replace(
            work, left_out=left_out, unknown=unknown, answered=lambda vectors: list(compare_neighbours(texts, vectors))
        )

    def read_cut(self, texts: Sequence[str], num_dimensions: int | None, normalise: bool) -> Work:
        """The reply is vectors, of their first dimensions alone where a number is given; of length 1 if `normalise`.

        Raises:
            Refused: with the reply: they have fewer.
        """

        def cut(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
            if num_dimensions is None:
                return vectors
            if num_dimensions > vectors.shape[1]:
                message = f"dimensions is {num_dimensions}, and the model's vectors have {vectors.shape[1]}"
                raise Refused(422, message, param="dimensions")
            kept = vectors[:, :num_dimensions]
            return unit_length(kept) if normalise else kept

        return replace(self.read(texts, Reading(normalise=normalise)), answered=cut)

    def compute(self, options: Reading, payloads: Sequence[InputSet]) -> list[NDArray[np.float32]]:
        model = self.model.with_layers(options.layers)
        inputs = list(chain.from_iterable(each.inputs for each in payloads))
        tokens = list(chain.from_iterable(each.tokens for each in payloads))
        together = InputSet(inputs, tokens, _chained(payloads), [])
        vectors = pooled_vectors(model, together, model.pool_named(options.pool))
        if options.normalise:
            vectors = unit_length(vectors)
        return np.split(vectors, np.cumsum([len(each.inputs) for each in payloads])[:-1])


def _of_inputs(numbers: Sequence[int], texts_each: int) -> list[int]:
    """The sums for inputs of so many texts each."""
    return [sum(numbers[at : at + texts_each]) for at in range(0, len(numbers), texts_each)]


def _chained(payloads: Sequence[InputSet]) -> Any:
    """The rows of all requests; the example of each is the number of its input among all.

    An input without any token has no row, so the numbers cannot be taken from the rows.
    """
    rows = concatenate([each.rows for each in payloads])
    firsts = np.cumsum([0, *(len(each.inputs) for each in payloads)])
    numbers = [each.rows.examples + first for each, first in zip(payloads, firsts, strict=False)]
    return replace(rows, examples=np.concatenate(numbers))


class TokenAnswerer:
    """The tokens of texts, by a model's tokenizer alone."""

    def __init__(self, opened: Opened) -> None:
        self.tokenizer = opened.tokenizer

    def tokens(self, texts: Sequence[str], most: int) -> Reply:
        """The tokens of texts, special ones left out: `tokens` for people, `ids` and `offsets` (characters).

        Raises:
            Refused: there are over `most` tokens in all.
        """
        read = self._read(texts, most)
        found = [
            {"tokens": show_tokens(self.tokenizer, its.ids), "ids": its.ids, "offsets": its.offsets} for its in read
        ]
        unknown = Coverage(self.tokenizer, "inputs").of_each([its.ids for its in read])
        return Reply(found, 0, [0] * len(found), unknown)

    def _read(self, texts: Sequence[str], most: int) -> list[InputTokens]:
        inputs = [FeatureInput(text, None, None, None, f"input {number}") for number, text in enumerate(texts, start=1)]
        read = tokenize(inputs, self.tokenizer)
        if (total := sum(len(its.ids) for its in read)) > most:
            raise too_much(total, most)
        return read

    def template_tokens(self, texts: Sequence[str], add_special_tokens: bool, most: int) -> Reply:
        """The tokens of texts as text-embeddings-inference gives them: `id`, `text`, `special`, `start`, `stop`.

        `text` is the piece of the text itself.

        Raises:
            Refused: there are over `most` tokens in all, special ones left out.
        """
        rows = []
        for text, its in zip(texts, self._read(texts, most), strict=True):
            own = [
                {"id": index, "text": text[start:stop], "special": False, "start": start, "stop": stop}
                for index, (start, stop) in zip(its.ids, its.offsets, strict=True)
            ]
            row: list[dict[str, Any]] = []
            for piece in self.tokenizer.template.single:
                if piece.text:
                    row += own
                elif add_special_tokens:
                    names = self.tokenizer.tokens(piece.ids)
                    row += [
                        {"id": index, "text": name, "special": True, "start": None, "stop": None}
                        for index, name in zip(piece.ids, names, strict=True)
                    ]
            rows.append(row)
        return Reply(rows, 0, [0] * len(rows))


class LikelihoodAnswerer:
    """How likely texts are to a language model: for minimal pairs, as `unmask evaluate --pairs`."""

    def __init__(self, opened: Opened) -> None:
        self.scorer: SentenceScorer = scorer_of(opened)
        self._coverage = Coverage(self.scorer.tokenizer, "inputs")

    def read(self, texts: Sequence[str], texts_each: int = 1) -> Work:
        """Reads texts, so many of each input.

        Raises:
            InputError: a text is too long, or has no token to score.
        """
        try:
            sentences = self.scorer.encode(texts)
        except InputError:
            for number, text in enumerate(texts):
                try:
                    self.scorer.encode([text])
                except InputError as error:
                    raise InputError(f"input {number // texts_each + 1}: {error}") from None
            raise
        ids = [each.ids for each in sentences]
        self._coverage.add_texts(ids, texts)
        unknown = self._coverage.of_each(ids)
        unknown = None if unknown is None else _of_inputs(unknown, texts_each)
        lengths = [len(each.ids) for each in sentences]
        copies = lengths if isinstance(self.scorer, MaskedScorer) else [1] * len(lengths)  # one for each masked token
        tokens = sum(length * number for length, number in zip(lengths, copies, strict=True))
        left_out = [0] * (len(lengths) // texts_each)
        return Work(self, None, sentences, tokens, sum(lengths), left_out, unknown=unknown)

    def compute(self, options: None, payloads: Sequence[list[Sentence]]) -> list[list[float]]:
        # The model may be run in other threads, where the batcher does not look: this is called after each batch.
        found = score_sentences(self.scorer, list(chain.from_iterable(payloads)), stop_if_abandoned)
        scores = iter(found.tolist())
        return [list(islice(scores, len(texts))) for texts in payloads]


@dataclass(frozen=True)
class Continuing:
    """How a prompt is continued; see `unmask.inference.left_to_right.generation.generate`."""

    num_tokens: int
    sampling: Sampling
    seed: int


class GenerationAnswerer:
    """New text by a left-to-right model: `unmask generate`."""

    def __init__(self, opened: Opened) -> None:
        self._model: LanguageModel = load_language_model(opened)
        self._coverage = Coverage(self._model.tokenizer, "inputs")

    def read(self, prompts: Sequence[str], num_tokens: int, sampling: Mapping[str, Any], seed: int) -> Work:
        """Continues prompts, as `unmask.inference.left_to_right.generation.generate`. Raises InputError where there is
        nothing to continue.

        Args:
            sampling: the fields of `Sampling`.
        """
        encoded = self._model.tokenizer.encode_batch(list(prompts))
        for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True), start=1):
            begin_with(self._model, prompt, ids, f"input {number}")
        lengths = [len(ids) for ids in encoded]
        tokens = sum(num_tokens * min(length + 1, self._model.window) for length in lengths)
        left_out = [max(0, length + len(self._model.prefix) - self._model.window) for length in lengths]
        self._coverage.add_texts(encoded, prompts)
        payload, unknown = list(zip(prompts, encoded, strict=True)), self._coverage.of_each(encoded)
        continuing = Continuing(num_tokens, Sampling(**sampling), seed)
        return Work(self, continuing, payload, tokens, sum(lengths), left_out, unknown=unknown)

    def compute(self, options: Continuing, payloads: Sequence[list[tuple[str, list[int]]]]) -> list[list[str]]:
        number, sampling, seed = options.num_tokens, options.sampling, options.seed
        return [
            [continue_prompt(self._model, prompt, ids, number, sampling, seed) for prompt, ids in prompts]
            for prompts in payloads
        ]
