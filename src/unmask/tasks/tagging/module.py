"""The modules that learn to tag: a classifier on each token of an encoder, or a head on a frozen one's features.

Devlin et al. 2019, section 5.3; Peters et al. 2018, section 5.3. A frozen encoder never changes, so `with_features`
runs it once over all rows and every epoch reads the result from disk. Without that column, as in `evaluate` and
`predict`, the module computes the same features itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.io.npy import map_features, writing_features
from unmask.io.progress import Progress
from unmask.io.writing import as_output_error
from unmask.models.buckets import NO_LABEL, TOKENS, Padding, Paddings
from unmask.models.encoder import Encoder
from unmask.models.heads.bilstm import BiLstmHead, FeatureHead, token_outputs
from unmask.models.heads.layer_mixture import find_choice
from unmask.tasks.base import TaskModule
from unmask.tasks.encoded import BATCH_TOKENS, EncodedExamples

FEATURES = "features"
"""The token column that replaces the encoder's output."""


class TaggingModule(TaskModule):
    """An encoder with a classifier on each token.

    Args:
        encoder: any.
        head: maps (tokens, hidden) to (tokens, labels); a `BiLstmHead` also gets the sequence lengths.
    """

    @property
    def paddings(self) -> Paddings | None:
        """How the columns that `forward` reads are padded to a bucket; None for a BiLSTM, which needs lengths."""
        return None if isinstance(self.head, BiLstmHead | FeatureHead) else {"labels": Padding(TOKENS, NO_LABEL)}

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `task`; the last block and the head compute only labelled tokens, unless the batch is padded to a
        bucket."""
        if isinstance(self.head, BiLstmHead | FeatureHead) or batch.is_padded:  # a BiLSTM reads all of a sequence
            return super().forward(batch)
        labels = batch.columns["labels"]
        labelled = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
        logits = self.head(self.encoder(batch, labelled))
        total = functional.cross_entropy(logits.float(), labels[labelled], reduction="sum")
        return [LossTerm("task", total)]

    def outputs(self, batch: Batch) -> Tensor:
        """(tokens, labels)."""
        return token_outputs(self.encoder, self.head, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """Cross-entropy over the labelled tokens."""
        labels = batch.columns["labels"]
        total = functional.cross_entropy(outputs.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return [LossTerm("task", total)]

    def num_targets(self, batch: Batch) -> int:
        return int((batch.columns["labels"] != IGNORE_INDEX).sum())


class FeatureTaggingModule(TaggingModule):
    """A frozen encoder, always in eval mode, and a `FeatureHead` on its features.

    Args:
        encoder: its parameters get no gradients from now on.
        head: maps features and the sequence lengths to (tokens, labels).
        feature_layers: the layers that the head reads.
        mixture_penalty: see `TaskModule`.

    Raises:
        SettingsError: there are no such layers, or there is a penalty and they are not mixed.
    """

    def __init__(self, encoder: Encoder, head: nn.Module, feature_layers: str, mixture_penalty: float = 0.0) -> None:
        super().__init__(encoder.requires_grad_(False).eval(), head, mixture_penalty)
        self._choice = find_choice(feature_layers, encoder.settings.num_hidden_layers)

    def train(self, mode: bool = True) -> Self:
        """As for any module, but the encoder stays in eval mode: its features are the same in every epoch."""
        super().train(mode)
        self.encoder.eval()
        return self

    def outputs(self, batch: Batch) -> Tensor:
        """(tokens, labels) float32, from the column `features` if the batch has it, else from the encoder."""
        features = batch.columns.get(FEATURES)
        if features is None:
            features = self.features(batch)
        logits: Tensor = self.head(features, batch.lengths)
        return logits

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        """What the head reads: (tokens, width), or (tokens, layers, hidden) for a mixture."""
        return self._choice.select(self.encoder.hidden_states(batch))


@torch.inference_mode()
def with_features(
    encoded: EncodedExamples, encoder: Encoder, feature_layers: str, path: Path, device: torch.device
) -> EncodedExamples:
    """The examples with their features as a token column, which lies on disk and is read as batches are made.

    Features are computed in float32 whatever the precision of the run, as in `evaluate`.

    Args:
        encoded: the encoder runs once on every row.
        encoder: on `device`, in eval mode.
        feature_layers: a name of `unmask.models.heads.layer_mixture.find_choice`.
        path: a `.npy` file to write, float32, one row per token in the order of `encoded`; its folder is created, an
            existing file is replaced. It must stay as long as the examples are used.

    Raises:
        SettingsError: no such layers, or the encoder has too few.
        OutputError: the disk is full, or the place cannot be written.
    """
    assert not encoder.training, "features are computed without dropout"
    settings = encoder.settings
    choice = find_choice(feature_layers, settings.num_hidden_layers)
    num_tokens = len(encoded.input_ids)
    with as_output_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with (
        Progress(f"features: {path.stem}", num_tokens) as progress,
        writing_features(path, choice.shape(settings.num_hidden_layers, settings.hidden_size)) as writer,
    ):
        for units, batch in encoded.batches_by_length(BATCH_TOKENS[device.type]):
            selected = choice.select(encoder.hidden_states(batch.to(device)))
            features, begin = selected.cpu().numpy(), 0
            for unit in units.tolist():
                tokens = encoded.tokens_of(unit)
                end = begin + tokens.stop - tokens.start
                writer.write(tokens.start, features[begin:end])
                begin = end
            progress.advance(batch.num_tokens)
        writer.finish(num_tokens)
    return replace(encoded, token_columns={**encoded.token_columns, FEATURES: map_features(path)})
