"""How likely a model finds a sentence: its natural-log probability, or what replaces it.

- A masked language model gives none; the pseudo-log-likelihood does instead (Salazar et al. 2020): each token is masked
  in turn, and the log-probabilities of what was there are summed. With `word-left-to-right` the rest of its word to the
  right is masked with it (Kauf and Ivanova 2023), so that a word of many pieces is not given away by its own end.
- A left-to-right model gives the log-likelihood. One that reads bare text, as GPT-1, has nothing before the first
  token, which is left out.
- ELMo gives the sum over both directions, each up to the mark at its end.
- ELECTRA's discriminator gives the sum of the log-probabilities that each token is the original one.

Nothing is divided by the length. Other special tokens are read, but do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.batch import Batch
from unmask.errors import InputError, ModelError
from unmask.io.progress import Advance, not_shown
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.encoder import Encoder, TokenEncoder
from unmask.models.family import Part
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead
from unmask.models.hub.uses import NOT_FINITE
from unmask.models.kernels.decoder_loss import Decoder, score_decoder
from unmask.objectives.causal_lm import next_token_decoder, next_token_log_probabilities
from unmask.tasks.encoded import BATCH_TOKENS, EncodedExamples
from unmask.tasks.minimal_pairs.threads import side_by_side
from unmask.tokenization.kinds.word_characters import WordTokenizer
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.training.device import Compute

PllMode = Literal["original", "word-left-to-right"]
"""What is masked beside the token that is scored: nothing, or the rest of its word to the right."""

_LONGEST = 512
"""Tokens of what is called a sentence; a masked model reads it once for each of its tokens."""

Scores = NDArray[np.float64]
Ids = NDArray[np.int64]
Value = TypeVar("Value")


@dataclass(frozen=True)
class TokenScores:
    """The tokens of a sentence that count, (tokens,) each: ids, and natural logarithms of how likely each is."""

    ids: Ids
    scores: Scores


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the ids that a model reads of it, (tokens,) int64."""

    text: str
    ids: Ids


class SentenceScorer(Protocol):
    """A model that scores how likely sentences are."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        """What the model reads of each text.

        Raises:
            InputError: a text is longer than the model reads, has too few tokens to be scored, or its words cannot be
                distinguished; see `PllMode`.
        """
        ...

    def token_scores(self, sentences: Sequence[Sentence], advance: Advance = not_shown) -> list[TokenScores]:
        """Of each sentence the natural logarithm of each token that counts.

        Args:
            advance: called after each batch, with its number of sentences, in fractions.
        """
        ...


def score_sentences(scorer: SentenceScorer, sentences: Sequence[Sentence], advance: Advance = not_shown) -> Scores:
    """(sentences,) natural logarithms, higher for what is likelier; comparable between sentences of one model.

    Raises:
        ModelError: what the model computes is not finite.
    """
    scores = np.array([each.scores.sum() for each in scorer.token_scores(sentences, advance)])
    if not np.isfinite(scores).all():
        raise ModelError(NOT_FINITE)
    return scores


@dataclass(frozen=True)
class MaskedScorer:
    """Pseudo-log-likelihoods by a masked language model in eval mode on its device."""

    encoder: TokenEncoder
    head: MaskedLMHead
    tokenizer: TextTokenizer
    compute: Compute
    max_length: int
    mode: PllMode = "original"

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        sentences = _encode(self.tokenizer, texts, min(_LONGEST, self.max_length))
        for sentence in sentences:
            self._words(sentence)
        return sentences

    def _words(self, sentence: Sentence) -> Ids:
        """The number of the word, or where words do not matter of the token, that each token of the text belongs to."""
        start, stop = _text_span(self.tokenizer, sentence.ids)
        if self.mode != "word-left-to-right":
            return np.arange(stop - start)
        words = _words_of(self.tokenizer, sentence.text)
        if len(words) != stop - start:
            raise InputError(
                f"{sentence.text[:60]!r} holds a special token of this model as text, and its words cannot be "
                "distinguished: leave the pair out, or take pll=original"
            )
        return words

    @torch.no_grad()
    def token_scores(self, sentences: Sequence[Sentence], advance: Advance = not_shown) -> list[TokenScores]:
        rows = _rows([each.ids for each in sentences])
        found = [np.zeros(len(each.ids)) for each in sentences]
        spans = [slice(*_text_span(self.tokenizer, each.ids)) for each in sentences]
        num_tokens = sum(len(each) * (span.stop - span.start) for each, span in zip(found, spans, strict=True))
        batches = self._masked_batches(sentences)
        for copies in side_by_side(lambda copies: self._score(rows, copies, found), batches, self.compute.device):
            advance(len(sentences) * sum(len(found[copy.sentence]) for copy in copies) / max(1, num_tokens))
        three = zip(sentences, found, spans, strict=True)
        return [TokenScores(sentence.ids[span], each[span]) for sentence, each, span in three]

    def _masked_batches(self, sentences: Sequence[Sentence]) -> Iterator[list[_Copy]]:
        """The masked copies of all sentences, by length, as many tokens in each batch as `BATCH_TOKENS`."""
        batch: list[_Copy] = []
        left = BATCH_TOKENS[self.compute.device.type]
        for number in sorted(range(len(sentences)), key=lambda number: len(sentences[number].ids)):
            length = len(sentences[number].ids)
            for copy in self._masked(number, sentences[number]):
                if length > left and batch:
                    yield batch
                    batch, left = [], BATCH_TOKENS[self.compute.device.type]
                batch.append(copy)
                left -= length
        if batch:
            yield batch

    def _masked(self, number: int, sentence: Sentence) -> list[_Copy]:
        """A copy of a sentence for each token that counts."""
        words = self._words(sentence)
        start = _text_span(self.tokenizer, sentence.ids)[0]
        return [
            _Copy(number, start + place, start + place + np.flatnonzero(words[place:] == words[place]))
            for place in range(len(words))
        ]

    @torch.no_grad()
    def _score(self, rows: EncodedExamples, copies: Sequence[_Copy], found: Sequence[Scores]) -> None:
        """Writes the log-probabilities of the masked tokens at their places in their sentences."""
        batch = rows.batch([copy.sentence for copy in copies])
        starts = batch.bounds.tolist()
        places = torch.tensor([start + copy.place for start, copy in zip(starts, copies, strict=False)])
        masked = np.concatenate([start + copy.masked for start, copy in zip(starts, copies, strict=False)])
        labels = batch.input_ids[places]
        batch.input_ids[torch.from_numpy(masked)] = self.tokenizer.mask_id
        device = self.compute.device
        with self.compute.autocast():
            hidden = self.encoder(batch.to(device), places.to(device))
            losses = score_decoder(next_token_decoder(self.encoder, self.head, hidden), labels.to(device)).losses
        for copy, loss in zip(copies, losses.tolist(), strict=True):
            found[copy.sentence][copy.place] = -loss


@dataclass(frozen=True)
class _Copy:
    """A sentence with a token masked: the sentence's number, the token's place, and all places that are masked."""

    sentence: int
    place: int
    masked: Ids


@dataclass(frozen=True)
class LeftToRightScorer:
    """Log-likelihoods by a left-to-right language model in eval mode on its device.

    Attributes:
        masked_lm_head: for BERT's family; None where the word embeddings decode alone.
        window: most tokens read at once: as many as the model was pre-trained on, or has positions for.
    """

    encoder: TokenEncoder = field(repr=False)
    masked_lm_head: MaskedLMHead | None = field(repr=False)
    tokenizer: TextTokenizer
    compute: Compute
    window: int

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids before every text, as in pre-training: `[CLS]` for BERT's family; none for those that read bare text."""
        return () if self.encoder.settings.family.reads_bare_text else self.tokenizer.template.single[0].ids

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        encoded = [np.array([*self.prefix, *ids]) for ids in self.tokenizer.encode_batch(list(texts))]
        return _sentences(texts, encoded, self.window, least=2)

    def log_probabilities(self, sequences: Sequence[Sequence[int]], advance: Advance = not_shown) -> list[Tensor]:
        """Log-probabilities of each sequence's tokens but the first, given those before: (tokens - 1,) float32, CPU.

        Args:
            sequences: ids, at least one each; no longer than `window`.
        """

        def scores(batch: Batch, _: Sequence[Ids]) -> list[Tensor]:
            with self.compute.autocast():
                return next_token_log_probabilities(self.encoder, self.masked_lm_head, batch)

        return _in_batches([np.array(ids) for ids in sequences], self.compute.device, scores, advance)

    def token_scores(self, sentences: Sequence[Sentence], advance: Advance = not_shown) -> list[TokenScores]:
        found = self.log_probabilities([each.ids.tolist() for each in sentences], advance)
        return [TokenScores(each.ids[1:], its.double().numpy()) for each, its in zip(sentences, found, strict=True)]


@dataclass(frozen=True)
class ElmoScorer:
    """The sum of the log-likelihoods of both directions."""

    encoder: ElmoEncoder
    softmax: WordSoftmax
    tokenizer: WordTokenizer
    compute: Compute

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        inputs = self.tokenizer.encode_inputs([(text, None) for text in texts])
        return [Sentence(text, np.array(each.input_ids, np.int64)) for text, each in zip(texts, inputs, strict=True)]

    @torch.no_grad()
    def token_scores(self, sentences: Sequence[Sentence], advance: Advance = not_shown) -> list[TokenScores]:
        def scores(batch: Batch, of_batch: Sequence[Ids]) -> Iterator[TokenScores]:
            words = [self.tokenizer.vocabulary_ids(self.tokenizer.tokens(ids)) for ids in of_batch]
            labels = torch.tensor([word for ids in words for word in ids], device=batch.bounds.device)
            with self.compute.autocast():
                forward, backward = self.encoder(batch).chunk(2, 1)
                sequences = batch.sequence_of_token()
                follows = sequences[1:] == sequences[:-1]  # the two are of one sentence
                losses = torch.zeros(batch.num_tokens, device=labels.device)
                weight, bias = self.softmax.weight, self.softmax.bias
                losses[1:][follows] += score_decoder(
                    Decoder(forward[:-1][follows], weight, bias), labels[1:][follows]
                ).losses
                losses[:-1][follows] += score_decoder(
                    Decoder(backward[1:][follows], weight, bias), labels[:-1][follows]
                ).losses
            for ids, part in zip(of_batch, torch.split(losses.double().cpu(), list(batch.lengths)), strict=True):
                yield TokenScores(ids, -part.numpy())

        return _in_batches([each.ids for each in sentences], self.compute.device, scores, advance)


@dataclass(frozen=True)
class DiscriminatorScorer:
    """The log-probability, by ELECTRA's discriminator, that every token is the original one, each by itself."""

    encoder: TokenEncoder
    head: DiscriminatorHead
    tokenizer: TextTokenizer
    compute: Compute
    max_length: int

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        return _encode(self.tokenizer, texts, self.max_length)

    @torch.no_grad()
    def token_scores(self, sentences: Sequence[Sentence], advance: Advance = not_shown) -> list[TokenScores]:
        def scores(batch: Batch, of_batch: Sequence[Ids]) -> Iterator[TokenScores]:
            with self.compute.autocast():
                logits = self.head(self.encoder(batch)).float()  # that a token was replaced
            parts = torch.split(functional.logsigmoid(-logits).double().cpu(), list(batch.lengths))
            for ids, part in zip(of_batch, parts, strict=True):
                span = slice(*_text_span(self.tokenizer, ids))
                yield TokenScores(ids[span], part[span].numpy())

        return _in_batches([each.ids for each in sentences], self.compute.device, scores, advance)


def new_scorer(
    encoder: Encoder,
    heads: Mapping[Part, Any],
    causal_lm: bool,
    tokenizer: Tokenizer,
    compute: Compute,
    max_length: int,
    mode: PllMode = "original",
) -> SentenceScorer | None:
    """The scorer of a model in eval mode on its device; None if it cannot say how likely a sentence is.

    Args:
        heads, causal_lm: as for `unmask.models.hub.directory.save_model`.
        max_length: tokens of a sentence, special ones included; ELMo reads any number.
        mode: of a masked language model.
    """
    head = heads.get("masked_lm_head")
    if encoder.reads_words or tokenizer.reads_words:
        softmax = heads.get("softmax")
        if softmax is None or not encoder.reads_words or not tokenizer.reads_words:
            return None
        encoder.set_words(tokenizer.table)
        return ElmoScorer(encoder, softmax, tokenizer, compute)
    if causal_lm:
        return LeftToRightScorer(encoder, head, tokenizer, compute, max_length)
    if (discriminator := heads.get("discriminator_head")) is not None:
        return DiscriminatorScorer(encoder, discriminator, tokenizer, compute, max_length)
    return None if head is None else MaskedScorer(encoder, head, tokenizer, compute, max_length, mode)


def _encode(tokenizer: TextTokenizer, texts: Sequence[str], limit: int) -> list[Sentence]:
    """Sentences with their ids, special tokens around them."""
    inputs = tokenizer.encode_inputs([(text, None) for text in texts], specials_in_text=False)
    encoded = [np.array(each.input_ids, dtype=np.int64) for each in inputs]
    num_special = sum(len(piece.ids) for piece in tokenizer.template.single)
    return _sentences(texts, encoded, limit, least=num_special + 1)


def _sentences(texts: Sequence[str], encoded: Sequence[Ids], limit: int, least: int) -> list[Sentence]:
    """Raises InputError where one has over `limit` or under `least` tokens."""
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > limit:
            raise InputError(f"{text[:60]!r}: {len(ids)} tokens, and at most {limit} are read: expected a sentence")
        if len(ids) < least:
            raise InputError(f"{text[:60]!r}: too few tokens to score: expected a sentence")
    return [Sentence(*pair) for pair in zip(texts, encoded, strict=True)]


def _text_span(tokenizer: TextTokenizer, ids: Ids) -> tuple[int, int]:
    """Where the text begins and ends among the ids of a sentence, between the special tokens."""
    pieces = tokenizer.template.single
    text = next(number for number, piece in enumerate(pieces) if piece.text)
    before = sum(len(piece.ids) for piece in pieces[:text])
    return before, len(ids) - sum(len(piece.ids) for piece in pieces[text + 1 :])


def _words_of(tokenizer: TextTokenizer, sentence: str) -> Ids:
    """The number of the word that each token of a sentence belongs to."""
    encoding = tokenizer.backend.encode(tokenizer.segment(sentence), add_special_tokens=False)
    return np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)


def _rows(sequences: Sequence[Ids]) -> EncodedExamples:
    """A row for each sequence, of segment A."""
    return EncodedExamples.from_lists([ids.tolist() for ids in sequences], [len(ids) for ids in sequences])


def _in_batches(
    sequences: Sequence[Ids],
    device: torch.device,
    scores: Callable[[Batch, Sequence[Ids]], Iterable[Value]],
    advance: Advance,
) -> list[Value]:
    """Of each sequence of ids what `scores` gives for those of a batch, from the batch and their ids."""
    found: dict[int, Value] = {}
    for chosen, batch in _rows(sequences).batches_by_length(BATCH_TOKENS[device.type]):
        numbers = chosen.tolist()
        found |= zip(numbers, scores(batch.to(device), [sequences[number] for number in numbers]), strict=True)
        advance(len(numbers))
    return [found[number] for number in range(len(sequences))]
