"""The sizes of ELMo: a character CNN under two stacks of LSTMs (Peters et al. 2018, sections 3.1 and 3.4).

The defaults are those of the released model: 93.6M parameters without its softmax.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unmask.models.families.elmo import ELMO
from unmask.models.family import Family
from unmask.models.settings import (
    Count,
    NumLayers,
    Probability,
    Scale,
    check_num_parameters,
    check_vocab_size,
    sizes_error,
)

NUM_CHARACTERS = 261
"""The 256 bytes, the start and the end of a sentence, the start and the end of a word, padding."""

ElmoPreset = Literal["original", "small", "mini", "tiny"]


class ElmoSettings(BaseModel):
    """Every size of one ELMo.

    Attributes:
        vocab_size: words that the language models predict, `<S>`, `</S>` and `<UNK>` among them; the input has no
            vocabulary.
        max_characters: of a word, the marks of its start and end included.
        character_size: of a character's embedding.
        filters: width in characters and number of each kind of filter of the CNN, in this order.
        activation: of the filters.
        num_highway_layers: after the CNN (Srivastava et al. 2015).
        projection_size: of a word's vector, and of each LSTM's output.
        cell_size: of an LSTM's memory.
        num_hidden_layers: stacked LSTMs in each direction.
        cell_clip, projection_clip: bounds on the absolute value of each memory and each output; None sets none.
        residual: True adds the input of each layer but the first to its output.
        hidden_dropout_prob: on the input of each layer, and on what the softmax reads.
        initializer_range: the standard deviation of fresh weights of heads on the encoder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    family: ClassVar[Family] = ELMO
    causal: ClassVar[bool] = False
    """A token's hidden state covers what is before it and what is after it, side by side."""
    is_causal: ClassVar[bool] = False
    type_vocab_size: ClassVar[int] = 2
    """The two texts of a pair are distinguished, since each is read by itself."""
    pad_token_id: ClassVar[None] = None
    num_positions: ClassVar[int] = 1 << 20
    """The longest sequence: there are no positions to run out of, so this is just a large number."""

    architecture: Literal["elmo"] = "elmo"
    vocab_size: Annotated[int, Field(ge=4)] = 793_471
    max_characters: Annotated[int, Field(ge=3)] = 50
    character_size: Count = 16
    filters: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=100)] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    activation: Literal["relu", "tanh"] = "relu"
    num_highway_layers: Annotated[int, Field(ge=0, le=1000)] = 2
    projection_size: Count = 512
    cell_size: Count = 4096
    num_hidden_layers: NumLayers = 2
    cell_clip: Scale | None = 3.0
    projection_clip: Scale | None = 3.0
    residual: bool = True
    hidden_dropout_prob: Probability = 0.1
    initializer_range: Scale = 0.02

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.filters:
            raise ValueError("filters are empty: the characters of a word need at least one kind")
        widest = max(width for width, _ in self.filters)
        if widest > self.max_characters:
            raise ValueError(f"filters of width {widest} are wider than max_characters {self.max_characters}")
        check_num_parameters(
            self.vocab_size * self.projection_size
            + self.num_filters * (widest * self.character_size + 2 * self.num_highway_layers * self.num_filters)
            + self.num_hidden_layers * 2 * self.cell_size * 9 * self.projection_size
        )
        return self

    @property
    def num_filters(self) -> int:
        """Filters of all widths: the width of the highway layers."""
        return sum(number for _, number in self.filters)

    @property
    def hidden_size(self) -> int:
        """The width of a token's hidden state: both directions side by side."""
        return 2 * self.projection_size


ELMO_PRESETS: dict[ElmoPreset, ElmoSettings] = {
    "original": ElmoSettings(),
    "small": ElmoSettings(num_highway_layers=1, projection_size=128, cell_size=1024),
    "mini": ElmoSettings(
        vocab_size=50_000, filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)), projection_size=128, cell_size=768
    ),
    "tiny": ElmoSettings(
        vocab_size=8_000,
        filters=((1, 16), (2, 16), (3, 32), (4, 64)),
        num_highway_layers=1,
        projection_size=64,
        cell_size=256,
    ),
}
"""The model of the paper; the small one that was released later; one of 11M parameters with its softmax, about as many
as BERT-Mini; and one for a first look, on two cores. A vocabulary's size is its tokenizer's."""


class ElmoModelSettings(BaseModel):
    """`model.*` of a recipe for ELMo: a preset, and what differs from it (None: as in the preset)."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    family: ClassVar[Family] = ELMO
    causal: ClassVar[bool] = False
    """Neither direction sees what it predicts, but together they see all."""

    architecture: Literal["elmo"] = "elmo"
    preset: ElmoPreset = "original"
    vocab_size: Count | None = None
    character_size: Count | None = None
    filters: tuple[tuple[Count, Count], ...] | None = None
    """Width in characters and number of each kind."""
    activation: Literal["relu", "tanh"] | None = None
    num_highway_layers: Annotated[int, Field(ge=0)] | None = None
    projection_size: Count | None = None
    cell_size: Count | None = None
    num_hidden_layers: NumLayers | None = None
    residual: bool | None = None
    hidden_dropout_prob: Probability | None = None
    initializer_range: Scale | None = None

    def resolve(self, vocab_size: int, pad_token_id: int | None = None) -> ElmoSettings:
        """The sizes for a tokenizer; `pad_token_id` is ignored: words have no padding. Raises SettingsError if
        `vocab_size` here is not the tokenizer's, or sizes contradict each other."""
        check_vocab_size(self.vocab_size, vocab_size)
        given = self.model_dump(exclude={"preset", "vocab_size"}, exclude_none=True)
        try:
            return ElmoSettings(**ELMO_PRESETS[self.preset].model_dump() | given | {"vocab_size": vocab_size})
        except ValidationError as error:
            raise sizes_error(self.preset, error) from error
