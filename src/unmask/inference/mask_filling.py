"""What could replace `[MASK]`? The masked-LM head's own answer, with the keys of Hugging Face's fill-mask pipeline.

Imports little, so that a process answers soon after it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.batch import pack
from unmask.errors import InputError, ModelError
from unmask.inference.onnx_model import OnnxEncoder
from unmask.inference.opening import Opened, open_model
from unmask.io.encodings import is_text, normalized, read_utf8_lines
from unmask.models.hub.uses import MASKED, NOT_FINITE
from unmask.tokenization.encoding.behind_masks import continuing_ids
from unmask.tokenization.offsets import align
from unmask.tokenization.tokenizer import TextTokenizer, assemble

_BATCH_TOKENS = 2048
"""Tokens of texts that are read at once: with a mask at each, their probabilities take some 250 MB."""


def fill_mask(model: str | Path, text: str, top_k: int = 5) -> list[dict[str, Any]]:
    """The likeliest tokens for every `[MASK]` of a text; for many texts, keep an `unmask.MaskFiller`.

    Args:
        model: a model's directory, or that of the run that made it.
        text: contains the tokenizer's mask token, once or more.
        top_k: answers for each mask, at least 1.

    Returns:
        The likeliest first, special tokens left out: `score` (the token's probability among all), `token` (its id),
        `token_str`, `sequence` (the text as it was given, with the token in place of the mask). With several masks, the
        answers for each in turn, with `mask`, its number from 0; each mask is filled while the others stay.

    Raises:
        InputError: this is not a text, there is no mask in it, it is too long for the model, or `top_k` is under 1.
        ModelError: there is no such model, it has no masked-LM head, or it does not load.
    """
    return MaskFiller(model, device="cpu").fill(text, top_k)  # for one text a GPU is not worth its start


def likeliest(probabilities: Tensor, tokenizer: TextTokenizer, top_k: int) -> tuple[Tensor, Tensor]:
    """(rows, up to `top_k`) probabilities and ids of the likeliest tokens; special ones stand for no text, and what a
    model has beyond the tokenizer's entries neither.

    Args:
        probabilities: (rows, vocabulary), which are changed.
    """
    special = torch.tensor(tokenizer.special_ids, device=probabilities.device)
    ordinary = probabilities[:, : tokenizer.vocab_size].index_fill_(1, special, -1)
    return ordinary.topk(min(top_k, ordinary.shape[1] - len(special)))


@dataclass(frozen=True)
class MaskedText:
    """A text in tokens, special ones included, and where its masks are among them, and in the text.

    Of WordPiece, what stands directly behind a mask continues its word (`unmask.tokenization.encoding.behind_masks`).
    """

    text: str
    ids: list[int]
    places: list[int]
    spans: list[tuple[int, int]]


class MaskFiller:
    """A masked-LM model and its tokenizer, loaded once.

    Args:
        model: a model's directory, or that of the run that made it; or what `open_model` has made of it.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Attributes:
        tokenizer, encoder, head: of the model, in eval mode; of an ONNX file an `OnnxEncoder`, and no head.

    Raises:
        ModelError: there is no such model, it has no masked-LM head, or it does not load.
        SettingsError: there is no such device or precision, or, of an ONNX file, no ONNX Runtime.
    """

    def __init__(self, model: str | Path | Opened, *, device: str = "auto", precision: str = "fp32") -> None:
        if not isinstance(model, Opened):
            model = open_model(model, MASKED, device=device, precision=precision)
        loaded, tokenizer = model.loaded, model.tokenizer
        assert loaded.masked_lm_head is not None
        assert not tokenizer.reads_words
        self.tokenizer: TextTokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()[tokenizer.mask_id]
        self._mask_takes_blanks = tokenizer.kind == "wordpiece" or added.lstrip
        self.encoder: Any = loaded.encoder
        self.head = None if isinstance(loaded.encoder, OnnxEncoder) else loaded.masked_lm_head
        self._max_length, self._compute = model.max_length, model.compute

    def fill(self, text: str, top_k: int = 5, source: str = "") -> list[dict[str, Any]]:
        """See `fill_mask`; `source` says where the text is, for messages."""
        return self.answer([self.encode(text, source)], top_k)[0]

    def encode(self, text: str, source: str = "") -> MaskedText:
        """Reads a text for `answer`; `source` says where it is, for messages.

        Raises:
            InputError: see `fill_mask`.
        """
        if not isinstance(text, str):
            raise InputError(f"the text is {str(text)[:60]!r}: expected one text; for many, keep a MaskFiller")
        where = f"{source}: " if source else ""
        if not is_text(text):
            raise InputError(f"{where}the text is not UTF-8: expected text in UTF-8")
        tokenizer = self.tokenizer
        [aligned] = align(tokenizer, [text])
        ids = assemble(tokenizer.template, continuing_ids(tokenizer, text, aligned), None, None).input_ids
        places = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
        if not places:
            mask = tokenizer.token_strings[tokenizer.mask_id]
            raise InputError(
                f"{where}no {mask} in {text[:80]!r}: put {mask} where a word is wanted, as in 'the sky is {mask} .'"
            )
        limit = self._max_length
        if len(ids) > limit:
            raise InputError(f"{where}the text has {len(ids)} tokens and the model takes {limit}: shorten it")
        tokens = zip(aligned.ids, aligned.starts, aligned.ends, strict=True)
        return MaskedText(
            text, ids, places, [(start, end) for token, start, end in tokens if token == tokenizer.mask_id]
        )

    def find_tokens(self, words: Iterable[str]) -> list[int]:
        """The ids of all tokens that read as one of some words, composed or not, blanks around them aside; a word may
        have none."""
        known = self.tokenizer.tokens_by_word
        forms = (form for word in words for form in (word, normalized("NFC", word)))
        return sorted({token for form in forms for token in known.get(form.strip() or form, ())})

    @torch.inference_mode()
    def answer(
        self, texts: Sequence[MaskedText], top_k: int = 5, among: Sequence[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """What `fill_mask` returns, for each of some texts, which are read together.

        Args:
            among: ids; all of these tokens are the answers, in place of the `top_k` likeliest.

        Raises:
            InputError: `top_k` is no number of answers.
            ModelError: what the model computes is not finite.
        """
        if not isinstance(top_k, Integral) or top_k < 1:
            raise InputError(f"top_k is {top_k}: expected a whole number, at least 1")
        answers: list[list[dict[str, Any]]] = []
        start = num_tokens = 0
        for end, text in enumerate(texts):
            if end > start and num_tokens + len(text.ids) > _BATCH_TOKENS:
                answers += self._answer(texts[start:end], top_k, among)
                start, num_tokens = end, 0
            num_tokens += len(text.ids)
        return answers + self._answer(texts[start:], top_k, among)

    def _answer(
        self, texts: Sequence[MaskedText], top_k: int, among: Sequence[int] | None
    ) -> list[list[dict[str, Any]]]:
        batch = pack([text.ids for text in texts])
        starts = batch.bounds.tolist()
        places = [start + place for start, text in zip(starts, texts, strict=False) for place in text.places]
        if self.head is None:
            logits = self.encoder.logits(batch)[places]
        else:
            device = self._compute.device
            with self._compute.autocast():
                hidden = self.encoder(batch.to(device), torch.tensor(places, device=device))
                logits = self.head(hidden, self.encoder.word_embeddings)
        probabilities = torch.softmax(logits.float(), -1)  # (masks, vocabulary)
        if not probabilities.isfinite().all():
            raise ModelError(NOT_FINITE)
        if among is None:
            scores, tokens = likeliest(probabilities, self.tokenizer, top_k)
        else:
            scores, order = probabilities[:, list(among)].sort(descending=True)
            tokens = torch.tensor(among, dtype=torch.int64)[order.cpu()]
        best = zip(scores.tolist(), tokens.tolist(), strict=True)
        return [self._describe(text, [next(best) for _ in text.places]) for text in texts]

    def _describe(self, text: MaskedText, best: Sequence[tuple[list[float], list[int]]]) -> list[dict[str, Any]]:
        """The answers for one text; `best` has scores and tokens for each of its masks."""
        is_single = len(text.places) == 1
        answers = []
        for number, (span, (scores, tokens)) in enumerate(zip(text.spans, best, strict=True)):
            for score, token in zip(scores, tokens, strict=True):
                token_text = self.tokenizer.decode([token])
                sequence = self._filled(text.text, span, token, token_text)
                answer = {"score": score, "token": token, "token_str": token_text, "sequence": sequence}
                answers.append(answer if is_single else {"mask": number, **answer})
        return answers

    def _filled(self, text: str, span: tuple[int, int], token: int, token_text: str) -> str:
        """The text with a token in place of a mask; one that continues a word stands close to it."""
        before, after = text[: span[0]], text[span[1] :]
        if self.tokenizer.continuation[token] and self._mask_takes_blanks:
            before = before.rstrip()
            token_text = self.tokenizer.decode([token, token]).removeprefix(token_text)  # without WordPiece's `##`
        elif not before or before[-1].isspace():
            token_text = token_text.lstrip()
        return before + token_text + after


def read_texts(stream: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """The lines of a stream, each with its place; blank ones are passed over.

    Raises:
        InputError: a line is not UTF-8, or all are blank.
    """
    is_empty = True
    for number, line in read_utf8_lines(stream, name):
        if not line.isspace():
            is_empty = False
            yield f"{name}:{number}", line.rstrip("\r\n")
    if is_empty:
        raise InputError(f"{name}: there is nothing in it: expected inputs")
