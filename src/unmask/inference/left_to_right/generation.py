"""Text that continues a prompt, sampled from a left-to-right language model: GPT-1, an LSTM, a left-to-right BERT,
ModernBERT's decoder.

The model reads the last `LanguageModel.window` tokens: if the text is longer, the window slides on and everything
before it is forgotten. Every step reads the window anew; nothing is kept between steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference.left_to_right.language_model import LanguageModel, load_language_model
from unmask.io.encodings import is_text, normalized
from unmask.models.hub.uses import NOT_FINITE

_REPLACEMENT = "\ufffd"
"""What bytes that do not form a character are decoded to."""
_FIRST_CONSONANTS = "".join(map(chr, range(0x1100, 0x1160)))


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the likeliest; 1 draws from the model's distribution; below 1 likely ones gain.
        top_k: draws among this many of the likeliest; 0 among all.
        top_p: draws among the likeliest that together have this probability.

    Raises:
        SettingsError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            if not isinstance(value := getattr(self, name), Real):
                raise SettingsError(f"{name} {value!r}: expected a number")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SettingsError(f"temperature {self.temperature}: expected 0 (the likeliest token) or more")
        if not isinstance(self.top_k, Integral) or self.top_k < 0:
            raise SettingsError(f"top_k {self.top_k}: expected a whole number of tokens, or 0 for all")
        if not 0 < self.top_p <= 1:
            raise SettingsError(f"top_p {self.top_p}: expected a probability over 0, up to 1")

    def choose(self, logits: Tensor, generator: torch.Generator) -> int:
        """A token's id.

        Args:
            logits: (vocab,) float32 on the CPU, minus infinity for tokens that may not come.
        """
        if self.temperature == 0:
            return int(logits.argmax())
        # the likeliest is 0, so nothing overflows upwards; in doubles, since float32 has no temperature under 1e-45
        scaled = (logits.double() - logits.max()) / self.temperature
        scores, tokens = scaled.float().sort(descending=True, stable=True)
        probabilities = torch.softmax(scores, -1)
        before = probabilities.cumsum(-1) - probabilities  # the sum over all likelier tokens
        kept = probabilities.masked_fill(before >= self.top_p, 0.0)
        kept[0] = probabilities[0]  # float32 has no probability under 1e-45
        if self.top_k:
            kept[self.top_k :] = 0
        return int(tokens[torch.multinomial(kept, 1, generator=generator)])


def generate(
    model: str | Path | LanguageModel,
    prompt: str,
    num_tokens: int = 50,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    device: str | None = None,
    precision: str | None = None,
) -> str:
    """Continues a prompt.

    Args:
        model: a model's directory, that of the run that made it, or one from `unmask.load_language_model`.
        prompt: may be empty for a BERT or ModernBERT's decoder, whose texts begin with `[CLS]`.
        num_tokens: how many to add; special tokens are never among them.
        temperature, top_k, top_p: see `unmask.inference.left_to_right.generation.Sampling`.
        seed: of the draws, from 0 to 2**63 - 1: the same seed gives the same text.
        device, precision: see `unmask.load_language_model`.

    Returns:
        The new text without the prompt. An incomplete last character is left out.

    Raises:
        InputError: there is nothing to continue, or the prompt is not text.
        ModelError: a logit is not finite, or as in `unmask.load_language_model`.
        SettingsError: a value is out of its range.
    """
    if not isinstance(prompt, str):
        raise InputError(f"the prompt is {str(prompt)[:60]!r}: expected one text")
    if not isinstance(num_tokens, Integral) or num_tokens < 0:
        raise SettingsError(f"num_tokens {num_tokens}: expected a whole number, 0 or more")
    if not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed {seed}: expected a whole number from 0 to 2**63 - 1")
    sampling = Sampling(temperature, top_k, top_p)
    loaded = load_language_model(model, device=device, precision=precision)
    if not is_text(prompt):
        raise InputError("the prompt holds half of a surrogate pair: expected text in UTF-8")
    [text] = loaded.tokenizer.encode_batch([prompt])
    return continue_prompt(loaded, prompt, text, num_tokens, sampling, int(seed))


def begin_with(model: LanguageModel, prompt: str, text: Sequence[int], source: str = "") -> list[int]:
    """The ids that a prompt's new tokens follow; `source` says where the prompt is, for messages.

    Args:
        text: the ids of `prompt`, special ones left out.

    Raises:
        InputError: there are none.
    """
    if ids := [*model.prefix, *text]:
        return ids
    where = f"{source}: " if source else ""
    raise InputError(
        f"{where}the prompt {prompt[:60]!r} holds no token, and the model needs one to continue from: give a word"
    )


def continue_prompt(
    model: LanguageModel, prompt: str, text: Sequence[int], num_tokens: int, sampling: Sampling, seed: int
) -> str:
    """What `generate` returns, of a prompt whose ids are there.

    Args:
        text: the ids of `prompt`, special ones left out.

    Raises:
        InputError: there is nothing to continue.
        ModelError: a logit is not finite.
    """
    ids = begin_with(model, prompt, text)
    generator = torch.Generator().manual_seed(seed)
    specials = list(model.tokenizer.special_ids)
    begin = len(ids)
    for _ in range(num_tokens):
        logits = model.next_logits(ids)
        if not logits.isfinite().all():
            raise ModelError(NOT_FINITE)
        logits[specials] = -torch.inf
        ids.append(sampling.choose(logits, generator))
    if model.tokenizer.kind == "bpe" and text and text[-1] == model.tokenizer.unk_id:
        added = readable(model.tokenizer.decode(ids[begin:]))  # `[UNK]` has no end of a word, after which a space is
        return added if prompt[-1:].isspace() else f" {added}"
    before = readable(model.tokenizer.decode(text))
    whole = readable(model.tokenizer.decode([*text, *ids[begin:]]))
    return whole[len(before) :] if whole.startswith(before) else readable(model.tokenizer.decode(ids[begin:]))


def readable(text: str) -> str:
    """A decoded text, composed (NFC), without an incomplete character at its end: bytes of UTF-8 that lack others, or
    the first consonant of a Korean syllable if the tokenizer takes syllables apart."""
    text = text.rstrip(_REPLACEMENT).rstrip(_FIRST_CONSONANTS)
    return normalized("NFC", text)
