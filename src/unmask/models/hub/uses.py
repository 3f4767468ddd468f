"""What a model is for, by the parts of the class that its `config.json` names. Torch is not imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from unmask.errors import ModelError, SettingsError
from unmask.io.paths import GENERATOR, is_onnx
from unmask.models.family import HeadKind, ModelClass, Part
from unmask.models.hub.config import HEAD_KIND, class_in, head_kind_in
from unmask.models.sizes import Sizes

logger = logging.getLogger("unmask")

CAUSAL = "a left-to-right language model"
MASKED = "a masked language model"
FINE_TUNED = "a fine-tuned model"


@dataclass(frozen=True)
class Use:
    """What models are, and the commands that take them."""

    kind: str
    commands: tuple[str, ...]


_ANY = ("finetune", "features", "similarity", "serve")
_PAIRS, _ALONE = "evaluate --pairs", " --discriminator"
_FINE_TUNED = Use(FINE_TUNED, ("predict", "evaluate", *_ANY))

_OF_PARTS: dict[Part, Use] = {
    **dict.fromkeys(get_args(HeadKind), _FINE_TUNED),
    "causal_lm": Use(CAUSAL, ("generate", "score", _PAIRS, *_ANY)),
    "masked_lm_head": Use(MASKED, ("fill-mask", _PAIRS, *_ANY)),
    "discriminator_head": Use("a discriminator of replaced tokens", (_PAIRS + _ALONE, *_ANY)),
    "softmax": Use("a pair of language models, forward and backward", (_PAIRS, *_ANY)),
}
"""The first part that a class has says what its models are: the head of one from left to right may be a masked LM's."""
_WITHOUT_HEAD = Use("an encoder without a head", _ANY)

NOT_FINITE = "what the model computes is not finite: its weights are damaged, or its training diverged"

_SOURCES = {
    CAUSAL: "as `unmask pretrain` with objective.name=causal_lm makes one",
    MASKED: "as `unmask pretrain` with objective.name=masked_lm makes one",
    FINE_TUNED: "as `unmask finetune` makes one",
}
"""Where a model of a kind comes from."""


def use_of(config: Mapping[str, Any]) -> Use | None:
    """What the model of a `config.json` is for; None where its class does not load here."""
    found = class_in(config)
    return None if found is None else use_of_class(found[1], config)


def use_of_class(its: ModelClass, config: Mapping[str, Any]) -> Use:
    """What the models of a class are for; one whose head is in a file of its own, as `config.json` says, is
    fine-tuned."""
    if HEAD_KIND in config:
        return _FINE_TUNED
    return next((use for part, use in _OF_PARTS.items() if part in its.parts), _WITHOUT_HEAD)


def pipeline_of(config: Mapping[str, Any], use: Use | None) -> str | None:
    """The Hub's name for what a model does that has no record of a task; None where there is none, or ours answers
    otherwise."""
    if use is not None and use.kind == MASKED:
        return "fill-mask"
    found = class_in(config)
    kind = None if found is None else head_kind_in(found[1].parts)
    names = {"sequence_classification": "text-classification", "token_classification": "token-classification"}
    return None if kind is None else names.get(kind)


def commands_for(directory: Path, use: Use | None) -> tuple[str, ...]:
    """The commands that take the model of a directory: a generator beside it answers for a discriminator, and an ONNX
    file is for fewer."""
    commands = () if use is None else use.commands
    if is_onnx(directory):
        taken = ("predict", "evaluate") if "predict" in commands else ("fill-mask", "features", "similarity")
        return tuple(command for command in (*taken, "serve") if command in commands)
    has_generator = (directory / GENERATOR).is_dir()
    return tuple(command.removesuffix(_ALONE) for command in commands) if has_generator else commands


def check_entries(num_entries: int, pad_id: int | None, sizes: Sizes, where: object) -> None:
    """Raises ModelError if a tokenizer has more entries than the model beside it; warns if its padding token, `pad_id`,
    is not that after which the model counts positions."""
    if num_entries > sizes.vocab_size:
        raise ModelError(
            f"{where}: the tokenizer has {num_entries:,} entries and the model {sizes.vocab_size:,}: put the tokenizer "
            "that the model was trained with beside it, without tokens that were added since"
        )
    if sizes.family.positions_after_padding and pad_id not in (None, sizes.pad_token_id):
        logger.warning(
            "%s: pad_token_id is %s in config.json and %s in the tokenizer; transformers gives the token %s no "
            "position of its own, and answers otherwise where a text has it: make both the same",
            where,
            sizes.pad_token_id,
            pad_id,
            sizes.pad_token_id,
        )


def check_segments(sizes: Sizes, where: object) -> None:
    """Warns if a model that somebody else fine-tuned with segments answers otherwise here."""
    if sizes.family.name == "gpt1":
        logger.warning(
            "%s: the tokenizer gives token_type_ids, for which a GPT-1 adds the embeddings of the words 0 and 1 in "
            "transformers, and nothing here; if it was fine-tuned with them, fine-tune it again here; else state "
            '"model_input_names": ["input_ids", "attention_mask"] in tokenizer_config.json',
            where,
        )


def check_kind(directory: Path, class_name: str, use: Use, wanted: str) -> None:
    """Refuses a model of another kind by a `ModelError`, which names the commands that take it.

    Args:
        wanted: `CAUSAL`, `MASKED` or `FINE_TUNED`.

    Raises:
        SettingsError: `wanted` is none of them.
    """
    if wanted not in _SOURCES:
        raise SettingsError(f"kind={wanted!r}: expected {', '.join(map(repr, _SOURCES))}")
    if use.kind == wanted:
        return
    commands = ", ".join(f"`unmask {command}`" for command in commands_for(directory, use))
    generator = directory / GENERATOR
    hint = f"; its generator fills masks: give {generator}" if wanted == MASKED and generator.is_dir() else ""
    raise ModelError(
        f"{directory} ({class_name}) is {use.kind}: expected {wanted}, {_SOURCES[wanted]}; this one is for "
        f"{commands}{hint}"
    )
