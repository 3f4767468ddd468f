"""What the settings of every objective answer, without PyTorch, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

from unmask.config import Settings
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.packing.settings import SentenceObjective

AnnotationKind = Literal["entity", "noun_phrase"]


class Remark(NamedTuple):
    """A remark on settings or on figures, of which an `unmask.doctor.findings.Finding` is made."""

    name: str
    level: Literal["note", "warning", "fault"]
    message: str
    advice: str


class ObjectiveSettings(Settings):
    """The settings of any objective, and what the program needs to know of it, with the answers that are usual.

    Attributes:
        why_these: why it trains no other families of encoders, for people.
        becomes: the family that a model of another one is turned into when pre-training is continued.
        direction: how its encoder must read: `both` ways, `left_to_right`, or either.
        reads: the kind of store: tokens of `text`, or `words` in streams.
        needs_mask: whether the tokenizer must have a mask token.
        beside: the settings beside it that suit a plain run, as in a recipe.
        folders: of further models in its model directory, which have the same vocabulary.
        most_epochs: over a text, and who made them.
        main_term: the loss term without whose targets nothing is learnt of words.
    """

    why_these: ClassVar[str]
    becomes: ClassVar[Mapping[str, str]] = {}
    direction: ClassVar[Literal["both", "left_to_right", None]] = None
    reads: ClassVar[Literal["text", "words"]] = "text"
    needs_mask: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    folders: ClassVar[tuple[str, ...]] = ()
    most_epochs: ClassVar[tuple[int, str]] = (40, "BERT")
    main_term: ClassVar[str] = "lm"

    name: str

    output_bias: Literal["zero", "log_frequency"] = "zero"
    """Where the biases of output layers over the vocabulary begin: at 0, as in the papers' code, or at the logarithm of
    how often each entry occurs (Meister et al. 2022)."""

    @classmethod
    def trains(cls, family: Family) -> bool:
        """Whether it trains encoders of a family, by what that has."""
        raise NotImplementedError

    @property
    def annotations(self) -> AnnotationKind | None:
        """The kind of annotations of the text that targets are chosen by; None where they are not."""
        return None

    @property
    def is_static(self) -> bool:
        """Whether masks are drawn once, for ten copies of the text."""
        return False

    @property
    def pair_objective(self) -> SentenceObjective:
        """The objective of a sequence's two segments."""
        return "none"

    @property
    def no_pair_objective(self) -> str:
        """The key by which pairs have no objective, for messages."""
        return f"objective.name={self.name}"

    @property
    def if_default_pairs(self) -> str:
        """The end of a message about `pair_objective`: that it is the default, where nobody has chosen it."""
        return ""

    @property
    def stages(self) -> tuple[float, ...]:
        """The shares of the budget at which the stages of a run end; see `unmask.models.trained.TrainedModule`."""
        return (1.0,)

    def rates(self, progress: float, causal_share: float | None) -> dict[str, float]:
        """What changes over a run, as columns of the training batches; see `unmask.objectives.directions`.

        Args:
            progress: the share of the budget that is done, from 0 to 1.
            causal_share: of the phase; None: the objective's own.
        """
        return {}

    @property
    def why_no_targets(self) -> str:
        """Why no sequence of a text has a target of the main term, and what to do, for people."""
        return "none has a token of text: give text with longer documents"

    @property
    def why_large_gradients(self) -> str:
        """Why gradients may always be over the clipping norm, as the end of a sentence."""
        return ""

    def why_not_trained(self, family: Family, init_from: str | None) -> str | None:
        """What is wrong with an encoder of a family that it trains; None where nothing is."""
        return None

    def unusual(self) -> Iterator[Remark]:
        """What is far from usual in these settings."""
        yield from ()

    def remarks_on(self, evaluation: Mapping[str, float]) -> Iterator[Remark]:
        """What the figures of an evaluation, by their names in `metrics.jsonl`, say beside the floors."""
        yield from ()


def called(family: Family, init_from: str | None, is_causal: bool = False) -> str:
    """An encoder, by its family and what names it: the recipe, or the directory that pre-training continues from."""
    direction = ("left-to-right " if is_causal else "bidirectional ") if family.may_be_causal else ""
    return f"the {direction}{family.name} of {'model.architecture' if init_from is None else f'init_from={init_from}'}"


def a_model_of(families: tuple[str, ...], init_from: str | None) -> str:
    """What to take instead, for messages."""
    names = " or ".join(families)
    return f"model.architecture={names}" if init_from is None else f"a model of the family {names} in init_from"


def why_not_left_to_right(
    objective: ObjectiveSettings, causal_share: float, family: Family, init_from: str | None
) -> str | None:
    """What is wrong with reading a share of the sequences from left to right, where a family cannot; else None."""
    if not causal_share or family.may_read_left_to_right:
        return None
    able = tuple(name for name, e in ARCHITECTURES.items() if e.may_read_left_to_right and objective.trains(e))
    return (
        f"objective.causal_share={causal_share:g} is not for {called(family, init_from)}: its tokens would see those "
        f"that they are to predict; leave out objective.causal_share, or take {a_model_of(able, init_from)}"
    )


def refuse_without_effect(settings: Settings, needed: Mapping[str, tuple[str, object]]) -> None:
    """Refuses keys that differ from their defaults but have no effect beside the others.

    Args:
        needed: for each such key, the other key and the value that it must have.
    """
    for key, (other, value) in needed.items():
        given, found = getattr(settings, key), getattr(settings, other)
        if found != value and given != type(settings).model_fields[key].default:
            raise ValueError(
                f"objective.{key}={given} only has an effect with objective.{other}={_written(value)}, and "
                f"objective.{other} is {_written(found)}: leave it out, or set objective.{other}={_written(value)}"
            )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def unusual_share(target_prob: float) -> Iterator[Remark]:
    """A share of tokens to mask that is far from usual."""
    if not 0.05 <= target_prob <= 0.5:
        message = f"objective.target_prob {target_prob:g} is far from the usual 0.15 to 0.4"
        yield Remark("unusual-mask-rate", "warning", message, "few targets waste work, many leave no context")
