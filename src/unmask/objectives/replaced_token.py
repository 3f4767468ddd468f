"""Replaced-token detection: a generator proposes tokens for masked ones, a discriminator detects which tokens were
replaced (ELECTRA, Clark et al. 2020, section 2).

Targets are chosen as for masked language modelling and `mask_token_prob` of them become `[MASK]`; the rest stay as they
are (15 % do in the released code, none in the paper), and none becomes a random entry. The generator learns to predict
all of them. At each target the discriminator sees a sample from the generator's softmax in the same pass, through which
no gradient goes. Its label is 1 where the sample is not the original token, as in the released code and `transformers`
(the paper writes D for the probability of an original one), and 0 everywhere else: a sample that equals the original
counts as original. Its loss is the mean over all real tokens, the special ones included, which are never replaced, as
in the released code and by the paper's sum over t = 1..n.

Two stages (section 3.2): the generator is trained alone; then the discriminator starts from its weights and is trained
alone, with the generator frozen. Nothing is tied there, since shared embeddings would be frozen with the generator, or
change it. The paper does not say whether a frozen generator uses dropout: here it is in eval mode, like everything
frozen. The heads differ, so the discriminator's starts fresh. Its loss is then the only one, and has no weight.

With `discriminator_after` there are two stages as well: the generator alone, then both. Alone, it may read some
sequences from left to right. Here too the discriminator starts from the generator's weights if their sizes are equal.

Departure: the targets of a sequence are all different, while the released code draws them with replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.chance import Stream
from unmask.errors import ModelError, SettingsError
from unmask.io.paths import GENERATOR
from unmask.models.buckets import IS_PADDING, LAST_TOKEN, NO_LABEL, TOKENS, Padding, Paddings
from unmask.models.electra import ElectraEncoder, generator_settings, share_embeddings
from unmask.models.encoder import Encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import ModelSource
from unmask.models.kernels.cross_entropy import SummedCrossEntropy, summed_cross_entropy
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes
from unmask.objectives import base, directions
from unmask.objectives.base import ObjectiveModule, Predictions, Saved, original_ids
from unmask.objectives.corrupted_text import CorruptedText, CorruptedTextTask, new_task
from unmask.objectives.floors import Floor, NoContext, at_least_once, targets_of, unigram_entropy, vocabulary_floors
from unmask.objectives.masks.drawing import sample_from_softmax, token_table
from unmask.objectives.masks.masking import choose_tokens, describe_masking, mask_targets, predict_masked
from unmask.objectives.settings import ReplacedTokenSettings
from unmask.tokenization.vocabulary import Vocabulary

_ADVICE = """no cause was found: train on more tokens, or start from a masked language model that has passed its \
floors (pretrain/continued_electra_short): small ELECTRAs from random weights may not learn"""
"""Where the generator knows frequencies at most."""

_NOT_COMPARED = {"hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout_prob", "initializer_range"}
"""Settings of a generator that need not follow from its discriminator's: they change neither the shapes of weights nor
what they compute."""


class ReplacedToken:
    """The objective: chooses and masks targets, draws the numbers by which they are sampled, counts them."""

    needs_pooler = predicts_next = False

    def __init__(self, settings: ReplacedTokenSettings, vocabulary: Vocabulary) -> None:
        assert vocabulary.mask_id is not None, "checked by `new_objective`"
        self._settings = settings
        self._task = new_task(settings.variant, settings.target_prob)
        self.vocabulary_terms = ("generator", *([self._task.term] if self._task.is_over_vocabulary else []))
        self._mask_id, self._special_ids = vocabulary.mask_id, vocabulary.special_ids

    def prepare(self, batch: Batch) -> Batch:
        """Masks a batch, the same in both stages.

        Returns:
            The batch with the columns of `unmask.objectives.masks.masking.mask_targets` and `sample_fractions`
            (targets,) float64 in [0, 1), where each target's sample is in the generator's cumulative softmax.
        """
        settings = self._settings
        batch = directions.draw_directions(batch)
        chosen = directions.leave_out_left_to_right(batch, choose_tokens(batch, settings.target_prob))
        unused = batch.input_ids[:1]  # nothing is replaced at random
        masked = mask_targets(batch, chosen, settings.mask_token_prob, 0.0, self._mask_id, unused)
        masked = directions.add_next_tokens(masked, batch.input_ids)
        fractions = token_table(batch).draw(Stream.SAMPLE, masked.columns["target_positions"])
        return masked.with_columns(sample_fractions=fractions)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of `generator`, of `lm` where sequences are read from left to right, and of the variant's term, such
        as `discriminator`."""
        return {
            "generator": len(batch.columns["target_positions"]),
            self._task.term: self._task.count(batch),
            **directions.next_counts(batch),
        }

    def build(self, encoder: Encoder) -> ReplacedTokenModule:
        """The module that learns: `encoder` as the discriminator, and a fresh generator.

        With two stages the generator, which is trained first, has the encoder's weights.
        """
        assert isinstance(encoder, ElectraEncoder), "of the family that it trains"
        return ReplacedTokenModule(encoder, self._settings, self._task)

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        """Loads the discriminator's head and the generator of a model directory, if it has them, into a fresh module.

        A masked LM becomes the generator if generator and discriminator are of one size. Tied embeddings, and dropout,
        stay the discriminator's.

        Raises:
            ModelError: as in `unmask.models.hub.directory.load_model`, or `generator/` does not hold a generator.
            SettingsError: the generator's sizes are not those that the settings give it beside this discriminator.
        """
        assert isinstance(module, ReplacedTokenModule), "a module of this objective"
        model = load_model(source)
        module.set_head(self._task.restored(module.head, model))
        folder = source.directory / GENERATOR
        if not folder.is_dir():
            if model.masked_lm_head is not None and self._settings.generator_size == 1:
                module.generator.load_state_dict(module.encoder.state_dict())
                module.generator_head.load_state_dict(model.masked_lm_head.state_dict())
        else:
            loaded = load_model(folder)
            if not isinstance(loaded.encoder, ElectraEncoder) or loaded.masked_lm_head is None:
                raise ModelError(f"{folder} is a {loaded.architecture}; expected a generator, an ElectraForMaskedLM")
            self._check_generator(folder, loaded.encoder.settings, module.generator.settings)
            if module.is_tied:
                share_embeddings(loaded.encoder, module.encoder)
            if self._settings.tie_weights:
                self._check_is_one(folder, loaded.encoder, module.encoder)
            module.generator.load_state_dict(loaded.encoder.state_dict())
            module.generator_head = loaded.masked_lm_head

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        prob = self._settings.mask_token_prob
        targets = targets_of(batches)
        best = NoContext.of(at_least_once(token_counts, targets), prob, 0.0, self._mask_id, self._special_ids)
        floors = vocabulary_floors("generator", best, targets, advice=_ADVICE)
        replaced = None if evaluation is None else evaluation.get("eval/replaced_share")
        if evaluation is not None and replaced is None:  # the generator learns alone
            return floors
        return floors + self._task.floors(unigram_entropy(best.frequencies), replaced)

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        """For both models as they are trained over the run; in two stages each is for half of it, the generator then
        frozen and run forward. From left to right the generator reads until `discriminator_after`."""
        assert isinstance(sizes, EncoderSettings), "of a family that it trains"
        settings = self._settings
        is_joint, causal = settings.schedule == "joint", settings.discriminator_after * settings.causal_share
        targets = directions.share_of_targets(settings.target_prob, causal)
        small = generator_settings(sizes, settings.generator_size, is_joint and settings.tie_embeddings == "all")
        generator = base.encoder_operations(small, length, targets) + targets * base.head_operations(small)
        read, head = self._task.operations(sizes)
        discriminator = base.encoder_operations(sizes, length, read) + head
        if is_joint:
            return 3 * (generator + (1 - settings.discriminator_after) * discriminator)
        return (3 * generator + generator + 3 * discriminator) / 2

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        return ["as the generator reads it; the discriminator reads its samples at the targets"] * most

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        asked, tokens = (sum(map(each, batches)) for each in (self._task.count, lambda batch: batch.num_tokens))
        judged = "all, the special ones included" if asked == tokens else f"{asked / max(1, tokens):.1%}"
        return [*describe_masking(batches, self._mask_id), ("tokens that the discriminator judges", judged)]

    def _check_is_one(self, folder: Path, generator: ElectraEncoder, discriminator: ElectraEncoder) -> None:
        theirs = discriminator.state_dict()
        if not all(torch.equal(weight, theirs[name]) for name, weight in generator.state_dict().items()):
            raise SettingsError(
                f"{folder}: the generator has weights of its own, and objective.tie_weights makes it one with its "
                "discriminator: set objective.tie_weights=false, or remove the folder for a fresh head"
            )

    def _check_generator(self, folder: Path, found: EncoderSettings, expected: EncoderSettings) -> None:
        ours, theirs = expected.model_dump(exclude=_NOT_COMPARED), found.model_dump(exclude=_NOT_COMPARED)
        for sizes in (ours, theirs):
            sizes["embedding_size"] = sizes["embedding_size"] or sizes["hidden_size"]
        if wrong := [f"{name} {theirs[name]}, expected {ours[name]}" for name in ours if theirs[name] != ours[name]]:
            settings = self._settings
            raise SettingsError(
                f"{folder}: the generator has {'; '.join(wrong)}, by objective.generator_size="
                f"{settings.generator_size} and objective.tie_embeddings={settings.tie_embeddings} beside its "
                "discriminator: set these as they were when it was trained, or remove the folder for a fresh generator"
            )


class ReplacedTokenModule(ObjectiveModule):
    """A discriminator, which is kept, and a generator, each with its head.

    Args:
        encoder: the discriminator's.
        settings: of the objective.
        task: what the discriminator learns; its head is an attribute, by its name.

    Attributes:
        stage: of two, 0 while the generator is trained alone. It is part of the `state_dict`, so a module restored from
            a checkpoint is in the stage that it was saved in.
    """

    encoder: ElectraEncoder

    def __init__(self, encoder: ElectraEncoder, settings: ReplacedTokenSettings, task: CorruptedTextTask) -> None:
        super().__init__()
        self._settings, self._task = settings, task
        self.encoder = encoder
        self.set_head(task.new_head(encoder.settings))
        self.cross_entropy = SummedCrossEntropy()
        sizes = generator_settings(encoder.settings, settings.generator_size, self.is_tied)
        self.generator = encoder if settings.tie_weights else ElectraEncoder(sizes)
        self.generator_head = MaskedLMHead(sizes)
        if self.is_tied:
            share_embeddings(self.generator, encoder)
        if not self.is_joint:
            self.generator.load_state_dict(encoder.state_dict())

    @property
    def head(self) -> nn.Module:
        """The discriminator's."""
        return self.get_submodule(self._task.head_name)

    def set_head(self, head: nn.Module) -> None:
        self.add_module(self._task.head_name, head)

    @property
    def is_joint(self) -> bool:
        """Whether both models are trained at the end of the run."""
        return self._settings.schedule == "joint"

    @property
    def is_tied(self) -> bool:
        return self._settings.tie_embeddings == "all" and self.is_joint

    @property
    def stages(self) -> tuple[float, ...]:
        return self._settings.stages

    @property
    def trains_generator(self) -> bool:
        return self.is_joint or self.stage == 0

    @property
    def trains_discriminator(self) -> bool:
        return self.stage == len(self.stages) - 1

    def begin_stage(self, number: int) -> None:
        """Enters stage 0 or 1, never one before the present; a discriminator of the generator's size starts from its
        weights. It may be called before every step: in that stage already, nothing happens."""
        if number == self.stage:
            return
        assert number == self.stage + 1 < len(self.stages), "stages follow one another"
        if self._settings.generator_size == 1:
            self.encoder.load_state_dict(self.generator.state_dict())
        self.stage = number
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """As in any module, except that a frozen generator stays in eval mode."""
        super().train(mode)
        if not self.trains_generator:
            self.generator.eval()
            self.generator_head.eval()
        return self

    def get_extra_state(self) -> Tensor:
        """The stage, as it is in the `state_dict`."""
        return torch.tensor(self.stage)

    def set_extra_state(self, state: Any) -> None:
        """Takes over the stage of a `state_dict`."""
        self.stage = int(state)
        self.train(self.training)

    @property
    def paddings(self) -> Paddings:
        """How the columns that `forward` reads are padded to a bucket. (Runs in two stages are not captured.)"""
        return {
            "labels": Padding(TOKENS, NO_LABEL),
            "target_positions": Padding("targets", LAST_TOKEN),
            "sample_fractions": Padding("targets", 0.0),
            IS_PADDING: Padding(TOKENS, True),
        }

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The terms `generator` and that of the variant, such as `discriminator`, of those that are being trained, and
        `lm` where sequences are read from left to right."""
        logits, originals, to_next = self._read(batch)
        terms = []
        if self.trains_generator:
            terms.append(LossTerm("generator", self.cross_entropy(logits, originals)))
        terms += directions.next_token_terms(batch, self.generator, self.generator_head, to_next)
        if self.trains_discriminator:
            total = self._task.total(self.encoder, self.head, self.corrupt(batch, logits), self.cross_entropy)
            weight = self._settings.discriminator_weight if self.trains_generator else 1.0
            terms.append(LossTerm(self._task.term, total, 1.0 if self._settings.predicts_tokens else weight))
        return terms

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """`generator_loss` and `generator_accuracy`; then, unless the generator is trained alone, those of the variant:
        see `unmask.objectives.corrupted_text`."""
        logits, originals = self.generator_logits(batch)
        scores = {
            "generator_loss": (summed_cross_entropy(logits, originals), len(originals)),
            "generator_accuracy": ((logits.argmax(-1) == originals).sum(), len(originals)),
        }
        if not self.trains_discriminator:
            return scores
        return scores | self._task.scores(self.encoder, self.head, self.corrupt(batch, logits))

    def saved(self) -> dict[str, Saved]:
        """The discriminator, an ElectraForPreTraining, or an encoder alone where it predicts tokens; and beside it the
        generator, an ElectraForMaskedLM."""
        return {
            "": self._task.saved(self.encoder, self.head),
            GENERATOR: Saved(self.generator, {"masked_lm_head": self.generator_head}),
        }

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions:
        """What the discriminator says of the corrupted text; or the generator's entries, where it is trained alone."""
        logits, _ = self.generator_logits(batch)
        originals, titles = original_ids(batch), [""] * most
        if not self.trains_discriminator:
            return Predictions(originals, predict_masked(batch, most, logits, show), titles)
        tokens = self._task.predictions(self.encoder, self.head, self.corrupt(batch, logits), most, show)
        return Predictions(originals, tokens, titles)

    def generator_logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The generator's logits over the vocabulary at the targets, and the original tokens there.

        Returns:
            (targets, vocabulary), without gradient where the generator is frozen, and (targets,) int64.
        """
        return self._read(batch)[:2]

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """What `generator_logits` returns, and the generator's (tokens, hidden) states that predict the next token."""
        targets = batch.columns["target_positions"]
        places = torch.cat([targets, batch.columns.get(directions.NEXT_POSITIONS, targets[:0])])
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_generator):
            at_targets, to_next = self.generator(batch, places).tensor_split([len(targets)])
            logits = self.generator_head(at_targets, self.generator.word_embeddings)
        return logits, batch.columns["labels"][targets], to_next

    def corrupt(self, batch: Batch, generator_logits: Tensor) -> CorruptedText:
        """The text that the discriminator reads.

        Args:
            batch: prepared.
            generator_logits: (targets, vocabulary) float, which the samples are drawn from.
        """
        targets = batch.columns["target_positions"]
        samples = sample_from_softmax(generator_logits, batch.columns["sample_fractions"])
        samples = samples.clamp(max=self.generator.settings.vocab_size - 1)  # logits of NaN may pick a padded entry
        replaced = torch.zeros(batch.num_tokens, dtype=torch.bool, device=samples.device)
        replaced[targets] = samples != batch.columns["labels"][targets]
        return CorruptedText(batch.with_input_ids(batch.input_ids.scatter(0, targets, samples)), replaced)
