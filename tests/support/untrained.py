"""Directories of models that have learned nothing: an encoder, a left-to-right model, a model of a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.sizes import small, tiny
from unmask.finetuning.run import save_finetuned
from unmask.models.bert import BertEncoder
from unmask.models.encoder import new_encoder
from unmask.models.family import Part
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead
from unmask.models.hub.directory import load_encoder, save_model
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer


def save_bert(
    directory: Path, texts: Sequence[str], *, masked_lm: bool = False, segmenter: str = "none", **sizes: Any
) -> Path:
    """An encoder with a tokenizer of these texts; with a pooler, or a head for masked words."""
    settings = TokenizerSettings.model_validate({"segmenter": segmenter})
    tokenizer, _ = learn_tokenizer(iter(texts), settings, seed=0)
    torch.manual_seed(0)
    encoder = BertEncoder(tiny(tokenizer.vocab_size, **sizes), pooler=not masked_lm)
    save_model(directory, encoder, {"masked_lm_head": MaskedLMHead(encoder.settings)} if masked_lm else {})
    tokenizer.save(directory)
    return directory


def save_masked_lm(directory: Path, architecture: str, texts: Sequence[str], **sizes: Any) -> Path:
    """A masked language model of a family that is not BERT's, with the tokenizer of its paper from these texts."""
    kind = "byte_bpe" if architecture == "roberta" else "wordpiece"
    settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": 300})
    tokenizer, _ = learn_tokenizer(iter(texts), settings, seed=0)
    given = {"width": 16, "layers": 2, "heads": 2, "inner": 32, "positions": 40, "std": 0.1, **sizes}
    its_sizes = small(architecture=architecture, vocab=tokenizer.vocab_size, **given)
    torch.manual_seed(0)
    save_model(directory, new_encoder(its_sizes, pooler=False), {"masked_lm_head": MaskedLMHead(its_sizes)})
    tokenizer.save(directory)
    return directory


def save_discriminator(directory: Path, texts: Sequence[str]) -> Path:
    """ELECTRA's, of 2 layers of 16, with a tokenizer of these texts."""
    tokenizer, _ = learn_tokenizer(iter(texts), TokenizerSettings(), seed=0)
    sizes = small(architecture="electra", vocab=tokenizer.vocab_size, width=16, layers=2, heads=2, inner=32, std=0.1)
    torch.manual_seed(0)
    save_model(directory, new_encoder(sizes), {"discriminator_head": DiscriminatorHead(sizes)})
    tokenizer.save(directory)
    return directory


def save_language_model(
    directory: Path,
    architecture: str,
    kind: str,
    texts: Sequence[str],
    vocab_size: int,
    *,
    spare_rows: int = 0,
    **sizes: Any,
) -> Path:
    """One that reads from left to right, of one layer of 16, with a tokenizer of these texts; `spare_rows` of its
    embeddings have no entry."""
    settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": vocab_size})
    tokenizer, _ = learn_tokenizer(iter(texts), settings, seed=0)
    given = {"width": 16, "layers": 1, "heads": 1 if architecture == "lstm" else 2, "inner": 64, **sizes}
    given |= {"causal": True} if architecture == "bert" else {}
    its_sizes = small(architecture=architecture, vocab=tokenizer.vocab_size + spare_rows, **given)
    torch.manual_seed(0)
    encoder = new_encoder(its_sizes, pooler=False)
    heads: dict[Part, MaskedLMHead] = {}
    if isinstance(encoder, BertEncoder):
        heads["masked_lm_head"] = MaskedLMHead(its_sizes)
    save_model(directory, encoder, heads, causal_lm=True)
    tokenizer.save(directory)
    return directory


def save_task_model(
    directory: Path,
    base: Path,
    columns: ColumnSettings | None = None,
    *,
    seed: int = 0,
    std: float | None = None,
    **settings: Any,
) -> Path:
    """A model of a task on an encoder; the weights of its head are of this deviation, so that predictions differ."""
    task = open_task(TaskSettings.model_validate(settings), columns or ColumnSettings())
    torch.manual_seed(seed)
    module: Any = task.module(load_encoder(base, head=task.head_kind).encoder)
    for parameter in module.head.parameters() if std is not None else ():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)
    save_finetuned(module, task, load_tokenizer(base), directory)
    return directory
