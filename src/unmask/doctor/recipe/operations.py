"""The floating-point operations of pre-training, worked out from sizes.

Only necessary operations count, two for a multiply-add, the backward pass as twice the forward pass; element-wise work
is left out. In the last block, keys and values are needed for every token, the rest only at the places that a head
reads. A token of a causal model attends to half of its sequence on average.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.batch import Batch
from unmask.models.electra import generator_settings
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.heads.span_boundary_head import POSITION_SIZE
from unmask.models.settings import EncoderSettings
from unmask.objectives.settings import (
    BiLMSettings,
    CausalLMSettings,
    MaskedLMSettings,
    ObjectiveSettings,
    ReplacedTokenSettings,
)


@dataclass(frozen=True)
class SequenceShape:
    """The sequences of a run, as far as work depends on them.

    Args:
        length: the mean number of tokens in a sequence, special ones included.
        targets: share of the tokens that are masked.
        pairs: True if something about the two segments is learnt.
        boundaries: share of the tokens that are boundaries of a predicted span.
        boundary_targets: share of the tokens that are predicted from boundaries.
    """

    length: float
    targets: float
    pairs: bool = False
    boundaries: float = 0.0
    boundary_targets: float = 0.0

    @classmethod
    def of(cls, objective: ObjectiveSettings, batch: Batch, length: float) -> SequenceShape:
        """The shape of sequences like those of a prepared batch.

        Args:
            length: the mean of the whole run, of which the batch is a sample.
        """
        columns = batch.columns
        return cls(
            length,
            objective.target_prob if isinstance(objective, MaskedLMSettings | ReplacedTokenSettings) else 0.0,
            objective.asked_of_pairs != "none",
            len(columns.get("boundary_positions", ())) / batch.num_tokens,
            len(columns.get("boundary_targets", ())) / batch.num_tokens,
        )


def flops_per_token(sizes: EncoderSettings, objective: ObjectiveSettings, shape: SequenceShape) -> float:
    """Necessary floating-point operations of training per token shown; for two stages, the mean of both.

    A full block: 2 (4 h^2 + 2 h f) per token, and 4 h for each token that it attends to. The head over the vocabulary:
    2 (h e + e V) per target.
    """
    match objective:
        case MaskedLMSettings():
            return 3 * _masked_lm(sizes, shape)
        case CausalLMSettings():
            targets = 1 - 1 / shape.length  # all tokens but the first of each sequence
            transform = sizes.hidden_size**2 if sizes.family.has("masked_lm_head") else 0
            head = 2 * (transform + sizes.hidden_size * sizes.vocab_size)
            return 3 * (_encoder(sizes, shape.length, targets) + targets * head)
        case ReplacedTokenSettings():
            return _replaced_token(sizes, objective, shape)
        case BiLMSettings():
            raise AssertionError("the doctor does not examine bilm")


def bilm_flops_per_word(sizes: ElmoSettings, objective: BiLMSettings) -> float:
    """As `flops_per_token`, for ELMo: every word shown goes through the character CNN once, and through both stacks.

    The sampled softmax of each direction has the negatives and one target.
    """
    filters, size, cell = sizes.num_filters, sizes.projection_size, sizes.cell_size
    places = sizes.max_characters + 1
    characters = sum(2 * width * sizes.character_size * number * (places - width) for width, number in sizes.filters)
    highway = sizes.num_highway_layers * 2 * filters * 2 * filters
    layer = 2 * 4 * cell * (size + size) + 2 * cell * size
    vocab_size = sizes.vocab_size
    softmax = 2 * size * (objective.num_negatives + 1 if objective.is_sampled(vocab_size) else vocab_size)
    return 3 * (characters + highway + 2 * filters * size + 2 * (sizes.num_hidden_layers * layer + softmax))


def _masked_lm(sizes: EncoderSettings, shape: SequenceShape) -> float:
    hidden, width, vocab_size = sizes.hidden_size, sizes.embedding_width, sizes.vocab_size
    read = shape.targets + shape.pairs / shape.length + shape.boundaries
    sentences = shape.pairs * 2 * (hidden**2 + 2 * hidden) / shape.length
    boundary = 2 * ((2 * hidden + POSITION_SIZE) * hidden + hidden * width + width * vocab_size)
    return (
        _encoder(sizes, shape.length, read)
        + shape.targets * _vocabulary_head(sizes)
        + sentences
        + shape.boundary_targets * boundary
    )


def _replaced_token(sizes: EncoderSettings, objective: ReplacedTokenSettings, shape: SequenceShape) -> float:
    """For both models; in two stages each is trained for half of the run, the generator then frozen and run forward."""
    is_joint = objective.schedule == "joint"
    of_generator = generator_settings(sizes, objective.generator_size, is_joint and objective.tie_embeddings == "all")
    generator = _encoder(of_generator, shape.length, shape.targets) + shape.targets * _vocabulary_head(of_generator)
    discriminator = _encoder(sizes, shape.length, 1.0) + 2 * (sizes.hidden_size**2 + sizes.hidden_size)
    if is_joint:
        return 3 * (generator + discriminator)
    return (3 * generator + generator + 3 * discriminator) / 2


def _vocabulary_head(sizes: EncoderSettings) -> float:
    """The forward pass of a masked-LM head, per target."""
    width = sizes.embedding_width
    return 2 * (sizes.hidden_size * width + width * sizes.vocab_size)


def _encoder(sizes: EncoderSettings, length: float, read: float) -> float:
    """The forward pass, per token.

    Args:
        read: share of the tokens whose output is read, at most 1.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    if sizes.family.is_recurrent:
        first = 2 * 4 * inner * (hidden + inner) + (2 * inner * hidden if inner != hidden else 0)
        return sizes.num_hidden_layers * first
    attended = length / 2 if sizes.is_causal else length
    block = 2 * (4 * hidden**2 + 2 * hidden * inner) + 4 * attended * hidden
    keys_and_values = 4 * hidden**2
    last_block = keys_and_values + min(1.0, read) * (block - keys_and_values)
    width = sizes.embedding_width
    projection = 2 * width * hidden if width != hidden else 0
    return projection + (sizes.num_hidden_layers - 1) * block + last_block
