"""A forward and a backward language model, trained jointly (Peters et al. 2018, section 3.1).

They share the character CNN and the softmax; only the LSTMs are separate. The LSTMs' memory of a lane is carried from
each window to the next, without its gradient, is part of every checkpoint, and is never emptied in training, not even
at the ends of documents and epochs, as in the released code. Ours is an option to empty it now and then
(`objective.empty_memory_prob`), for the texts that a model reads from an empty memory when it is used.

The loss `lm` is the mean over the targets of both directions, which have equally many: half the sum of the two models'
mean losses, as in the released code, and its exponential is the perplexity that the paper gives ("the average of
forward and backward"). Sampled softmax makes the training loss lower than the true one; evaluation uses the full
softmax.

The released code multiplies the loss by the number of steps in a window before it takes the gradient. Under Adagrad
with an initial accumulator of 1 and clipping at 10, that equals this loss with 1 / 400 and .5 for windows of 20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.chance import WindowStream, uniform
from unmask.errors import ModelError
from unmask.models.dropout import dropout
from unmask.models.elmo.encoder import BACKWARD, FORWARD, ElmoEncoder
from unmask.models.elmo.projected_lstm import LstmState
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.encoder import Encoder
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import ModelSource
from unmask.models.kernels.decoder_loss import Decoder, score_decoder, summed_decoder_loss
from unmask.models.sizes import Sizes
from unmask.objectives.base import ObjectiveModule, Predictions, Saved
from unmask.objectives.floors import Floor, NoContext, at_least_once, vocabulary_floors
from unmask.objectives.sampled_softmax import draw_candidates, summed_sampled_loss
from unmask.objectives.settings import BiLMSettings
from unmask.tokenization.vocabulary import Vocabulary


class BiLM:
    """The objective: draws the words that the softmax is sampled from, and the lanes that forget.

    Args:
        settings: how many words; how often a lane forgets.
        vocabulary: of a word tokenizer, by descending frequency.
    """

    needs_pooler = False
    vocabulary_terms: tuple[str, ...] = ("lm",)
    predicts_next = True

    def __init__(self, settings: BiLMSettings, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._num_negatives = settings.num_negatives if settings.is_sampled(vocabulary.size) else None
        self._empty_memory_prob = settings.empty_memory_prob

    def prepare(self, batch: Batch) -> Batch:
        """Draws candidates from the key of the window, the same for all of its lanes, and the lanes that forget.

        Returns:
            The batch with the columns `negatives` (n,) int64 and `num_draws` (1,) int64, without them where the softmax
            is the full one, and `forgets` (lanes,) bool, without it where no lane ever does.
        """
        keys = batch.keys
        assert keys is not None, "candidates and the lanes that forget are drawn from the batch's keys"
        if self._empty_memory_prob:
            draws = uniform(keys, batch.columns["lane"], WindowStream.FORGETTING)
            batch = batch.with_columns(forgets=draws < self._empty_memory_prob)
        if self._num_negatives is None:
            return batch
        negatives, num_draws = draw_candidates(int(keys[0]), self._num_negatives, self._vocabulary.size)
        return batch.with_columns(negatives=torch.from_numpy(negatives), num_draws=torch.tensor([num_draws]))

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of `lm`: one per token in each direction."""
        return {"lm": 2 * batch.num_tokens}

    def build(self, encoder: Encoder) -> BiLMModule:
        assert encoder.reads_words, "the encoder has two directions that do not see each other"
        return BiLMModule(encoder)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        """Gives a fresh module the softmax of an ELMo directory, where it has one.

        Raises:
            ModelError: the directory does not load, or its softmax is of another size.
        """
        assert isinstance(module, BiLMModule)
        softmax = load_model(source).softmax
        if softmax is None:
            return
        if softmax.weight.shape != module.softmax.weight.shape:
            raise ModelError(
                f"{source.directory}: its softmax has the shape {tuple(softmax.weight.shape)}, expected "
                f"{tuple(module.softmax.weight.shape)}"
            )
        module.softmax.load_state_dict(softmax.state_dict())

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        """Of words, the end of the sentence among them.

        Args:
            token_counts: (vocabulary,), as `unmask.packing.stream.target_counts` counts: with both marks of sentences.
                Each direction predicts only one of the two marks: both count as the one at the end.
        """
        begin, end = self._vocabulary.special_ids[:2]
        counts = token_counts.copy()
        counts[begin] = 0
        targets = None
        if batches:
            labels = torch.cat([_labels(batch) for batch in batches]).numpy()
            labels[labels == begin] = end
            targets = (labels, labels)
        floors = vocabulary_floors("lm", NoContext.of(at_least_once(counts, targets)), targets)
        return [floor for floor in floors if floor.is_loss]

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        """Every word shown goes through the character CNN once, and through both stacks. The sampled softmax of each
        direction has the negatives and one target."""
        assert isinstance(sizes, ElmoSettings), "of a family that it trains"
        filters, size, cell = sizes.num_filters, sizes.projection_size, sizes.cell_size
        places, width = sizes.max_characters + 1, sizes.character_size
        characters = sum(2 * wide * width * number * (places - wide) for wide, number in sizes.filters)
        highway = sizes.num_highway_layers * 2 * filters * 2 * filters
        layer = 2 * 4 * cell * (size + size) + 2 * cell * size
        softmax = 2 * size * (sizes.vocab_size if self._num_negatives is None else self._num_negatives + 1)
        return 3 * (characters + highway + 2 * filters * size + 2 * (sizes.num_hidden_layers * layer + softmax))

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        return ["each word from those before it, and from those after it"] * most

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        return []


class BiLMModule(ObjectiveModule):
    """An encoder with the softmax, and its LSTMs' memory of each lane.

    The buffers `remembered_outputs` (directions, layers, lanes, projection) and `remembered_cells` (..., cell) grow as
    lanes are first seen. Of several processes each has those of its own lanes, until they are joined to be saved.
    """

    lane_buffers = ("remembered_outputs", "remembered_cells")

    encoder: ElmoEncoder
    remembered_outputs: Tensor
    remembered_cells: Tensor

    def __init__(self, encoder: ElmoEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.softmax = WordSoftmax(encoder.settings)
        self._evaluated: list[LstmState] | None = None
        nothing = self._nothing(0, torch.device("cpu"))
        self.register_buffer("remembered_outputs", torch.stack([each.outputs for each in nothing]))
        self.register_buffer("remembered_cells", torch.stack([each.cells for each in nothing]))
        self.register_load_state_dict_pre_hook(_resize_lanes)  # type: ignore[no-untyped-call]

    def _nothing(self, num_lanes: int, device: torch.device) -> list[LstmState]:
        return [self.encoder.empty_memory(num_lanes, device) for _ in (FORWARD, BACKWARD)]

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `lm`; updates the memory of the batch's lanes."""
        lanes = batch.columns["lane"]
        self._add_lanes(int(lanes.amax()) + 1)
        forgets = batch.columns.get("forgets", torch.zeros_like(lanes, dtype=torch.bool))[:, None]
        remembered = [
            LstmState(
                self.remembered_outputs[direction][:, lanes].masked_fill(forgets, 0),
                self.remembered_cells[direction][:, lanes].masked_fill(forgets, 0),
            )
            for direction in (FORWARD, BACKWARD)
        ]
        hidden, remembered = self._read(batch, remembered)
        with torch.no_grad():
            for direction in (FORWARD, BACKWARD):
                self.remembered_outputs[direction][:, lanes] = remembered[direction].outputs
                self.remembered_cells[direction][:, lanes] = remembered[direction].cells
        hidden = dropout(hidden, self.encoder.settings.hidden_dropout_prob, self.training)
        labels = _labels(batch)
        if "negatives" in batch.columns:
            candidates, num_draws = batch.columns["negatives"], int(batch.columns["num_draws"])
            total = summed_sampled_loss(self.softmax, hidden, labels, candidates, num_draws)
        else:
            total = summed_decoder_loss(Decoder(hidden, self.softmax.weight, self.softmax.bias), labels)
        return [LossTerm("lm", total)]

    def _add_lanes(self, num_lanes: int) -> None:
        missing = num_lanes - self.remembered_outputs.shape[2]
        if missing > 0:
            more = self._nothing(missing, self.remembered_outputs.device)
            outputs, cells = (torch.stack(each) for each in zip(*[(m.outputs, m.cells) for m in more], strict=True))
            self.remembered_outputs = torch.cat([self.remembered_outputs, outputs], 2)
            self.remembered_cells = torch.cat([self.remembered_cells, cells], 2)

    def _read(self, batch: Batch, memories: list[LstmState]) -> tuple[Tensor, list[LstmState]]:
        """(2 * tokens, projection): the outputs of both directions, each in its reading order."""
        characters = torch.cat([batch.columns["characters"], batch.columns["backward_characters"]])
        vectors = self.encoder.embeddings(characters).chunk(2)  # one pass, in which a word is computed once
        read = [
            self.encoder.read_in(direction, vectors[direction], batch.lengths, memories[direction])
            for direction in (FORWARD, BACKWARD)
        ]
        return torch.cat([layers[-1] for layers, _ in read]), [memory for _, memory in read]

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """`lm_loss` and `lm_accuracy` over the targets of both directions, and the loss of each.

        An evaluation has a memory of its own, which is empty at its first window and carried from batch to batch.
        """
        if self._evaluated is None or int(batch.columns["window"][0]) == 0:
            self._evaluated = self._nothing(batch.num_sequences, batch.input_ids.device)
        hidden, self._evaluated = self._read(batch, self._evaluated)
        decoder = Decoder(hidden, self.softmax.weight, self.softmax.bias)
        losses, right = score_decoder(decoder, _labels(batch))
        forward_loss, backward_loss = losses.chunk(2)
        return {
            "lm_loss": (losses.sum(), len(losses)),
            "lm_accuracy": (right.sum(), len(right)),
            "lm_forward_loss": (forward_loss.sum(), len(forward_loss)),
            "lm_backward_loss": (backward_loss.sum(), len(backward_loss)),
        }

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions | None:
        return None  # windows depend on each other

    def saved(self) -> dict[str, Saved]:
        return {"": Saved(self.encoder, {"softmax": self.softmax})}


def _labels(batch: Batch) -> Tensor:
    return torch.cat([batch.columns["labels"], batch.columns["backward_labels"]])


def _resize_lanes(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Gives the buffers the size of the lanes that are about to be loaded, which may be more or fewer."""
    for name in BiLMModule.lane_buffers:
        saved, present = state.get(prefix + name), getattr(module, name)
        if isinstance(saved, Tensor) and saved.dim() == present.dim():
            setattr(module, name, present.new_zeros(*present.shape[:2], saved.shape[2], present.shape[3]))
