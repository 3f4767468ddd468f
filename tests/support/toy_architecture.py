"""An architecture in one file: each token's embedding, to which each block adds a mixture with the sequence's mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.encoder import TokenEncoder
from unmask.models.family import Family, ModelClass, WeightNames
from unmask.models.kernels.products import Linear
from unmask.models.layers import initialise, new_embedding
from unmask.models.settings import EncoderSettings

TOY = Family(
    name="toy",
    title="Toy",
    encoder=f"{__name__}:ToyEncoder",
    model_type="unmask-toy",
    classes={
        "ToyBody": ModelClass(),
        "ToyWithWords": ModelClass(frozenset({"masked_lm_head"})),
        "ToyWithLabels": ModelClass(frozenset({"sequence_classification"})),
    },
    weights=WeightNames(
        prefix="toy.",
        embeddings={"embeddings.word": ("embeddings.word",)},
        layer="layers.",
        block={"mixer": ("mixer",)},
        parts={
            "masked_lm_head": {"dense": ("lm_head.dense",), "norm": ("lm_head.norm",), "": ("lm_head",)},
            "sequence_classification": {"dense": ("classifier",)},
        },
    ),
    tokenizer="wordpiece",
    presets={"tiny": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 1}},
    in_transformers=False,
    deepen=f"{__name__}:deepened",
)


class ToyBlock(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mixer = Linear(2 * hidden_size, hidden_size)

    def forward(self, hidden: Tensor, sequences: Tensor) -> Tensor:
        sums = hidden.new_zeros(int(sequences[-1]) + 1, hidden.shape[1]).index_add(0, sequences, hidden)
        means = sums / torch.bincount(sequences)[:, None]
        mixed: Tensor = self.mixer(torch.cat([hidden, means[sequences]], 1))
        return hidden + torch.tanh(mixed)


class ToyEncoder(TokenEncoder):
    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.embeddings = nn.ModuleDict({"word": new_embedding(settings.vocab_size, settings.hidden_size)})
        self.blocks = nn.ModuleList(ToyBlock(settings.hidden_size) for _ in range(settings.num_hidden_layers))
        initialise(self, settings.initializer_range)

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        hidden = self.hidden_states(batch)[-1]
        return hidden if wanted is None else hidden[wanted]

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        states = [self.embeddings["word"](batch.input_ids)]
        for block in self.blocks:
            states.append(block(states[-1], batch.sequence_of_token()))
        return states


@torch.no_grad()
def deepened(encoder: ToyEncoder, num_layers: int) -> ToyEncoder:
    """The same with blocks on top that add nothing yet."""
    deeper = ToyEncoder(encoder.settings.model_copy(update={"num_hidden_layers": num_layers}))
    deeper.load_state_dict(encoder.state_dict(), strict=False)
    for block in deeper.blocks[len(encoder.blocks) :]:
        for parameter in block.parameters():
            parameter.zero_()
    return deeper
