"""What `run.py` compares with: `transformers`, eager or compiled, and `sentence-transformers`.

Each has what its users would have: fused attention, bf16 autocast, fused AdamW with our decay and clipping, padding to
the longest of a batch with a mask (none if no row is padded), and logits over the vocabulary at every token.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gpu.cases import WARM_STEPS, Case, Taken, make_batches, make_objective, timed_rounds
from gpu.tuning import EPOCHS, Encoded, Texts, Tuned, Tuning, read_examples, sample_vectors
from gpu.work import peak_memory, wait

if TYPE_CHECKING:
    import torch

    from unmask.batch import Batch

SEED = 0


def train_theirs(case: Case, is_compiled: bool) -> Taken:
    """Steps of BertForPreTraining on batches masked beforehand."""
    import torch
    from transformers import BertForPreTraining

    torch.manual_seed(SEED)
    device = torch.device(case.device)
    objective = make_objective(case)
    model = BertForPreTraining.from_pretrained(
        case.folder / f"weights-{case.preset}",
        attn_implementation="sdpa",
        hidden_dropout_prob=case.dropout_prob,
        attention_probs_dropout_prob=case.dropout_prob,
    ).to(device)
    prepared = [objective.prepare(batch) for batch in make_batches(case)]
    rows = [_padded(batch, device) for batch in prepared]
    losses = {}
    if not case.dropout_prob:
        model.eval()
        with torch.no_grad():
            losses["fp32"] = _loss_in_parts(model, rows[0])
    model.train()
    step = model
    if is_compiled:
        step = torch.compile(model)
    optimizer = _adamw(model, learning_rate=1e-4)
    upcoming = cycle(rows)
    taken: dict[str, float] = {}
    micro_batches = 1

    def take_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        batch = next(upcoming)
        total: Any = 0.0
        for part in _split(batch, micro_batches):
            with torch.autocast(device.type, torch.bfloat16):
                loss = step(**part).loss / micro_batches
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not taken:
            taken.update(loss=float(total), norm=float(norm))

    while True:
        try:
            take_step()
            break
        except torch.OutOfMemoryError:
            if micro_batches == len(rows[0]["input_ids"]):
                raise
            micro_batches *= 2
            upcoming = cycle(rows)
    for _ in range(WARM_STEPS):
        take_step()

    def take(number: int) -> None:
        for _ in range(number):
            take_step()
        wait(device)

    wait(device)
    seconds = timed_rounds(case, take)
    if losses:
        losses["bf16"] = taken["loss"]
    return Taken(
        seconds,
        tokens=sum(batch.num_tokens for batch in prepared) / len(prepared),
        memory=None if losses else peak_memory(device),
        losses=losses,
        gradient_norm=taken["norm"] if losses else None,
        micro_batches=micro_batches,
    )


def _padded(batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """A packed batch as rows, with a mask if some are padded."""
    from torch.nn.utils.rnn import pad_sequence

    def rows(column: torch.Tensor, padding: int) -> torch.Tensor:
        return pad_sequence(list(column.split(batch.lengths)), batch_first=True, padding_value=padding).to(device)

    padded = {
        "input_ids": rows(batch.input_ids, 0),
        "token_type_ids": rows(batch.token_type_ids, 0),
        "labels": rows(batch.columns["labels"], -100),
        "next_sentence_label": batch.columns["next_sentence_label"].to(device),
    }
    if min(batch.lengths) < max(batch.lengths):
        padded["attention_mask"] = rows(batch.input_ids.new_ones(batch.num_tokens), 0)
    return padded


def _split(batch: dict[str, torch.Tensor], number: int) -> list[dict[str, torch.Tensor]]:
    if number == 1:
        return [batch]
    parts = {name: column.chunk(number) for name, column in batch.items()}
    return [{name: column[n] for name, column in parts.items()} for n in range(len(parts["input_ids"]))]


def _loss_in_parts(model: Any, batch: dict[str, torch.Tensor], rows: int = 64) -> float:
    """The loss of a whole batch, with the logits of some rows at a time in memory."""
    from torch.nn.functional import cross_entropy

    names = {"labels": "prediction_logits", "next_sentence_label": "seq_relationship_logits"}
    sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for part in _split(batch, -(-len(batch["input_ids"]) // rows)):
        answer = model(**{name: column for name, column in part.items() if name not in names})
        for name, logits in names.items():
            targets = part[name].flatten()
            sums[name] += float(cross_entropy(answer[logits].flatten(0, -2), targets, reduction="sum"))
            counts[name] += int((targets != -100).sum())
    return sum(sums[name] / counts[name] for name in names)


def _adamw(model: Any, learning_rate: float) -> torch.optim.Optimizer:
    import torch

    named = list(model.named_parameters())
    plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6, fused=True)


def tune_theirs(tuning: Tuning, is_compiled: bool) -> Tuned:
    """A plain loop over a DataLoader: examples tokenized at once, batches padded to their longest, then metrics."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )

    torch.manual_seed(SEED)
    device = torch.device(tuning.device)
    tokenizer = AutoTokenizer.from_pretrained(tuning.model)
    kind = AutoModelForQuestionAnswering if tuning.task == "squad" else AutoModelForSequenceClassification
    model = kind.from_pretrained(tuning.model, attn_implementation="sdpa").to(device)
    began = time.perf_counter()
    train, dev = (_tokenized(tuning, tokenizer, name) for name in ("train", "dev"))
    tokenization_s = time.perf_counter() - began
    collate = DataCollatorWithPadding(tokenizer)
    first: Any = collate(train[: tuning.batch_size])
    first = first.to(device)
    model.eval()
    with torch.no_grad():
        losses = {"fp32": _tuning_loss(model, first, nullcontext())}
        losses["bf16"] = _tuning_loss(model, first, torch.autocast(device.type, torch.bfloat16))
    step = model
    if is_compiled:
        step = torch.compile(model, dynamic=True)
    optimizer = _adamw(model, learning_rate=5e-5)
    batches = DataLoader(train, tuning.batch_size, shuffle=True, collate_fn=collate, pin_memory=device.type == "cuda")
    dev_batches = DataLoader(dev, tuning.batch_size, collate_fn=collate)
    epochs: list[float] = []
    steps: list[float] = []
    started = time.perf_counter()
    while len(epochs) < 2 or (len(epochs) < EPOCHS and time.perf_counter() - started < tuning.seconds):
        began = time.perf_counter()
        model.train()
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16):
                loss = step(**batch.to(device, non_blocking=True)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        wait(device)
        steps.append((time.perf_counter() - began) / len(batches))
        model.eval()
        _measure(step, dev_batches, device)
        epochs.append(time.perf_counter() - began)
    return Tuned(
        num_examples=len(train),
        tokenization_s=tokenization_s,
        epochs_s=tuple(epochs),
        steps_per_s=1 / median(steps[1:]),
        losses=losses,
        token_lengths=tuple(len(its["input_ids"]) for its in train),
    )


def _tokenized(tuning: Tuning, tokenizer: Any, name: str) -> list[dict[str, Any]]:
    examples = read_examples(tuning, name)
    firsts = [its.text for its in examples]
    seconds = None if tuning.task == "sst2" else [its.second for its in examples]
    is_qa = tuning.task == "squad"
    cut: Any = "only_second" if is_qa else True
    encoded = tokenizer(firsts, seconds, truncation=cut, max_length=tuning.max_length, return_offsets_mapping=is_qa)
    columns = [name for name in encoded if name != "offset_mapping"]
    made = [{column: encoded[column][n] for column in columns} for n in range(len(examples))]
    for number, (features, its) in enumerate(zip(made, examples, strict=True)):
        if not is_qa:
            features["labels"] = its.label
            continue
        first, last = its.label, its.label + len(its.answer)
        for place, (start, end) in enumerate(encoded["offset_mapping"][number]):
            if encoded.sequence_ids(number)[place] == 1:
                if start == first:
                    features["start_positions"] = place
                if end == last:
                    features["end_positions"] = place
    return made


def _tuning_loss(model: Any, batch: Any, context: Any) -> float:
    """The loss of one batch; padding cannot be an answer, though `transformers`' own softmax includes it."""
    from torch.nn.functional import cross_entropy

    with context:
        answer = model(**batch)
    if "start_positions" not in batch:
        return float(answer.loss)
    is_padding = batch["attention_mask"] == 0
    sides = (answer.start_logits, "start_positions"), (answer.end_logits, "end_positions")
    return sum(
        float(cross_entropy(logits.float().masked_fill(is_padding, float("-inf")), batch[name])) / 2
        for logits, name in sides
    )


def _measure(model: Any, batches: Any, device: torch.device) -> float:
    """The share of dev that is answered correctly: the class, or both ends of the answer."""
    import torch

    right = []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for batch in batches:
            batch = batch.to(device, non_blocking=True)
            answer = model(**batch)
            if "labels" in batch:
                right.append((answer.logits.argmax(-1) == batch["labels"]).float())
            else:
                starts = answer.start_logits.argmax(-1) == batch["start_positions"]
                right.append((starts & (answer.end_logits.argmax(-1) == batch["end_positions"])).float())
    return float(torch.cat(right).mean())


def encode_theirs(texts: Texts, is_compiled: bool, batch_sizes: tuple[int, ...]) -> Encoded:
    """`SentenceTransformer.encode`, which sorts by length itself, at the best of several batch sizes."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

    model = SentenceTransformer(
        str(texts.encoder), device=texts.device, model_kwargs={"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
    )
    model.max_seq_length = texts.max_length
    lines = Path(texts.file).read_text("utf-8").splitlines()
    vectors = [its[0].float().tolist() for its in model.encode(lines[:8], output_value="token_embeddings")]
    if is_compiled:
        inner = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        inner.compile(dynamic=True)
    rates = {}
    for size in batch_sizes:
        model.encode(lines[: 4 * size], batch_size=size, show_progress_bar=False)
        began = time.perf_counter()
        model.encode(lines, batch_size=size, show_progress_bar=False)
        rates[size] = len(lines) / (time.perf_counter() - began)
    best = max(rates, key=lambda size: rates[size])
    return Encoded([rates[best]], sample_vectors(vectors), f"batches of {best}" + (", compiled" if is_compiled else ""))
