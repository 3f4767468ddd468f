"""`transformers`' Trainer on examples that `unmask` has encoded: the same tokens, in the same batches where asked.

It has what a user of it would have: dynamic padding to the longest of each batch by the library's own collators, fused
AdamW, fused attention. Its rates, decay, clipping and schedule are ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Sampler
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from unmask.chance import Permutation

if TYPE_CHECKING:
    from unmask.batch import Batch
    from unmask.models.family import HeadKind
    from unmask.tasks.encoded import EncodedExamples

MODELS: dict[HeadKind, Any] = {
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "multiple_choice": AutoModelForMultipleChoice,
}
COLLATORS: dict[HeadKind, Any] = {
    "sequence_classification": DataCollatorWithPadding,
    "token_classification": DataCollatorForTokenClassification,
    "question_answering": DataCollatorWithPadding,
    "multiple_choice": DataCollatorForMultipleChoice,
}


def features(encoded: EncodedExamples) -> list[dict[str, Any]]:
    """The units as a user's own code would hand them to the Trainer; those of several rows as lists of lists."""
    made = []
    for unit in range(len(encoded)):
        batch = encoded.batch([unit])
        ids = [part.tolist() for part in batch.input_ids.split(batch.lengths)]
        segments = [part.tolist() for part in batch.token_type_ids.split(batch.lengths)]
        masks = [[1] * length for length in batch.lengths]
        columns: dict[str, Any] = {"input_ids": ids, "token_type_ids": segments, "attention_mask": masks}
        if "unit_bounds" not in batch.columns:
            columns = {name: rows[0] for name, rows in columns.items()}
        targets = {name: batch.columns[name].tolist() for name in (*encoded.unit_columns, *encoded.token_columns)}
        made.append(
            columns | {name: value[0] if name in encoded.unit_columns else value for name, value in targets.items()}
        )
    return made


def load_model(directory: Path, head_kind: HeadKind, labels: tuple[str, ...], seed: int) -> Any:
    """The model of a directory, with the head that it has, or else one drawn from the seed."""
    set_seed(seed)
    names = (
        {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
        if labels
        else {}
    )
    return MODELS[head_kind].from_pretrained(directory, **names)


class OurOrder(Sampler[int]):
    """The order of `unmask.tasks.encoded.ExampleLoader`: one pass is one epoch."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = Permutation(self.count, self.seed, self.epoch)
        self.epoch += 1
        return (order[place] for place in range(self.count))


class _OrderedTrainer(Trainer):  # type: ignore[misc]
    """Keeps the loss of each step.

    Attributes:
        order: of the examples; None leaves it to the Trainer.
        masks_positions: True leaves padding out of the softmax over the positions of an answer.
    """

    order: Sampler[int] | None = None
    masks_positions = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.losses: list[Tensor] = []

    def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        if not self.masks_positions:
            return super().compute_loss(model, inputs, *arguments, **named)
        targets = [inputs.pop("start_positions"), inputs.pop("end_positions")]
        answer = model(**inputs)
        is_padding = inputs["attention_mask"] == 0
        logits = [part.masked_fill(is_padding, float("-inf")) for part in (answer.start_logits, answer.end_logits)]
        losses = [functional.cross_entropy(part, target) for part, target in zip(logits, targets, strict=True)]
        return sum(losses) / 2

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return super()._get_train_sampler(*arguments) if self.order is None else self.order

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        loss: Tensor = super().training_step(*arguments, **named)
        self.losses.append(loss)
        return loss


@dataclass
class _Clock(TrainerCallback):
    ends: list[float] = field(default_factory=list)

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self.ends.append(time.perf_counter())


def train(
    model: Any,
    head_kind: HeadKind,
    tokenizer: Path,
    training: list[dict[str, Any]],
    *,
    seed: int,
    steps: int,
    warmup_steps: int,
    batch_size: int,
    learning_rate: float,
    optimizer: Any,
    max_grad_norm: float,
    our_order: bool,
    masks_positions: bool,
    folder: Path,
) -> tuple[list[float], list[float]]:
    """Trains on the CPU in fp32.

    Args:
        optimizer: our `OptimizerSettings`.
        our_order: False leaves the order to the Trainer.
        masks_positions: see `_OrderedTrainer`; for question answering.
        folder: where it may write; it is told to write nothing.

    Returns:
        The loss of each step, and when each ended, in seconds.
    """
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        max_steps=steps,
        learning_rate=learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=warmup_steps,
        optim="adamw_torch_fused",
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.epsilon,
        max_grad_norm=max_grad_norm,
        seed=seed,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    collator = COLLATORS[head_kind](AutoTokenizer.from_pretrained(tokenizer))
    clock = _Clock()
    trainer = _OrderedTrainer(model, arguments, data_collator=collator, train_dataset=training, callbacks=[clock])
    trainer.order = OurOrder(len(training), seed) if our_order else None
    trainer.masks_positions = masks_positions and head_kind == "question_answering"
    trainer.train()
    return [float(loss) for loss in trainer.losses], clock.ends


class PaddedModel:
    """A model of `transformers` that answers packed batches in the shape that a task of ours decodes."""

    def __init__(self, model: Any, head_kind: HeadKind) -> None:
        self.model, self.head_kind = model.eval(), head_kind

    def outputs(self, batch: Batch) -> Tensor:
        lengths = torch.tensor(batch.lengths)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (rows, longest)
        inputs = {"attention_mask": mask.long()}
        for name in ("input_ids", "token_type_ids"):
            inputs[name] = torch.zeros(mask.shape, dtype=torch.int64)
            inputs[name][mask] = getattr(batch, name)
        if self.head_kind == "multiple_choice":
            units = len(batch.columns["unit_bounds"]) - 1
            inputs = {name: value.view(units, -1, mask.shape[1]) for name, value in inputs.items()}
        answer = self.model(**inputs)
        if self.head_kind == "question_answering":
            both: Tensor = torch.stack([answer.start_logits, answer.end_logits], -1)
            return both[mask]
        logits: Tensor = answer.logits
        return logits[mask] if self.head_kind == "token_classification" else logits
