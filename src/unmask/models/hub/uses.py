"""What a model is for, by the class that its `config.json` names. Torch is not imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import ModelError
from unmask.io.json_text import read_object
from unmask.io.paths import GENERATOR
from unmask.models.hub.config import HEAD_KIND, family_in
from unmask.models.settings import Sizes

logger = logging.getLogger("unmask")

CAUSAL = "a left-to-right language model"
MASKED = "a masked language model"


@dataclass(frozen=True)
class Use:
    """What the models of a class are, and the commands that take them."""

    kind: str
    commands: tuple[str, ...]


_ANY = ("finetune", "features", "similarity", "serve")
_PAIRS, _ALONE = "evaluate --pairs", " --discriminator"
_CAUSAL = Use(CAUSAL, ("generate", "score", _PAIRS, *_ANY))
_MASKED = Use(MASKED, ("fill-mask", _PAIRS, *_ANY))
_FINE_TUNED = Use("a fine-tuned model", ("predict", "evaluate", *_ANY))

_CLASSES = {
    "BertForPreTraining": _MASKED,
    "ElectraForPreTraining": Use("a discriminator of replaced tokens", (_PAIRS + _ALONE, *_ANY)),
    "ElmoForPreTraining": Use("a pair of language models, forward and backward", (_PAIRS, *_ANY)),
}
"""Classes whose use does not follow from the end of the name."""
_ENDINGS = {
    "LMHeadModel": _CAUSAL,
    "ForCausalLM": _CAUSAL,
    "ForMaskedLM": _MASKED,
    "ForSequenceClassification": _FINE_TUNED,
    "ForTokenClassification": _FINE_TUNED,
    "ForQuestionAnswering": _FINE_TUNED,
    "ForMultipleChoice": _FINE_TUNED,
    "Model": Use("an encoder without a head", _ANY),
}

NOT_FINITE = "what the model computes is not finite: its weights are damaged, or its training diverged"

HINTS = {
    CAUSAL: "as `unmask pretrain` with objective.name=causal_lm makes one",
    MASKED: "as `unmask pretrain` with objective.name=masked_lm makes one",
}
"""Where a model of a kind comes from."""


def use_of(config: Mapping[str, Any]) -> Use | None:
    """What the model of a `config.json` is for; None where its class does not load here."""
    if HEAD_KIND in config:
        return _FINE_TUNED
    if family_in(config) is None:
        return None
    name = config["architectures"][0]
    return _CLASSES.get(name) or next((use for ending, use in _ENDINGS.items() if name.endswith(ending)), None)


def commands_for(directory: Path, use: Use | None) -> tuple[str, ...]:
    """The commands that take the model of a directory: a generator beside it answers for a discriminator."""
    commands = () if use is None else use.commands
    has_generator = (directory / GENERATOR).is_dir()
    return tuple(command.removesuffix(_ALONE) for command in commands) if has_generator else commands


def check_entries(num_entries: int, pad_id: int | None, sizes: Sizes, where: object) -> None:
    """Raises ModelError if a tokenizer has more entries than the model beside it; warns if its padding token, `pad_id`,
    is not that after which the model counts positions."""
    if num_entries > sizes.vocab_size:
        raise ModelError(f"{where}: the tokenizer has more entries than the model: they do not belong together")
    if sizes.family.positions_after_padding and pad_id not in (None, sizes.pad_token_id):
        logger.warning(
            "%s: pad_token_id is %s in config.json and %s in the tokenizer; transformers gives the token %s no "
            "position of its own, and answers otherwise where a text has it: make both the same",
            where,
            sizes.pad_token_id,
            pad_id,
            sizes.pad_token_id,
        )


def check_kind(directory: Path, wanted: str) -> None:
    """Refuses a model of another kind by a `ModelError`, which names the commands that take it. An unknown or damaged
    model is left to the code that loads it."""
    try:
        config = read_object(directory / "config.json", ModelError)
    except ModelError:
        return
    use = use_of(config)
    if use is None or use.kind == wanted or not config.get("architectures"):
        return
    commands = ", ".join(f"`unmask {command}`" for command in commands_for(directory, use))
    raise ModelError(
        f"{directory} ({config['architectures'][0]}) is {use.kind}: expected {wanted}, {HINTS[wanted]}; "
        f"this one is for {commands}"
    )
