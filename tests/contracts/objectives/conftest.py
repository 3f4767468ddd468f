"""Every entry of OBJECTIVES in each of its variants, over a store of its own kind of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import write_rows
from support.sizes import sizes_of
from unmask.batch import Batch
from unmask.models.encoder import new_encoder
from unmask.objectives.base import Objective
from unmask.objectives.table import new_objective
from unmask.packing.loader import Position, SequenceLoader
from unmask.packing.stream import StreamLoader
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import build_loader
from unmask.recipe.tree import PretrainRecipe
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.opening import Tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings

VOCAB_SIZE = 200
"""Word pieces or words."""

ALONE = {"sentence_objective": "none"}
STAGES = {"schedule": "two_stage", "generator_size": 1}
ELECTRA = {"architecture": "electra", "embedding_size": 16}
MODERNBERT = {"architecture": "modernbert", "num_hidden_layers": 2, "local_attention": 8}

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "masked_lm": {
        "tokens, NSP on segment pairs": {},
        "static masks": {"objective": {"masking_mode": "static"}},
        "whole words, NSP on sentence pairs": {
            "objective": {"masking": "whole_word"},
            "packing": {"format": "sentence_pair"},
        },
        "sentence order": {"objective": {"sentence_objective": "sop"}},
        "spans": {"objective": {"masking": "span", **ALONE}},
        "entities": {"objective": {"masking": "entity", **ALONE}},
        "noun phrases on single segments, static": {
            "objective": {"masking": "noun_phrase", "masking_mode": "static", **ALONE},
            "packing": {"format": "single_segment"},
        },
        "spans and boundaries on single segments, static": {
            "objective": {"masking": "span", "span_boundary": True, "masking_mode": "static", **ALONE},
            "packing": {"format": "single_segment"},
        },
        "RoBERTa on full sentences": {
            "objective": ALONE,
            "packing": {"format": "full_sentences"},
            "model": {"architecture": "roberta", "max_position_embeddings": None},
        },
        "ModernBERT, spans": {
            "objective": {"masking": "span", **ALONE},
            "packing": {"format": "full_sentences"},
            "model": MODERNBERT,
        },
        "ModernBERT, spans and boundaries": {
            "objective": {"masking": "span", "span_boundary": True, **ALONE},
            "packing": {"format": "single_segment"},
            "model": MODERNBERT,
        },
        "ModernBERT, whole words, static": {
            "objective": {"masking": "whole_word", "masking_mode": "static", **ALONE},
            "packing": {"format": "full_sentences"},
            "model": {**MODERNBERT, "tie_word_embeddings": False},
        },
        "ELECTRA on doc sentences": {"objective": ALONE, "packing": {"format": "doc_sentences"}, "model": ELECTRA},
    },
    "causal_lm": {
        "GPT-1": {"model": {"architecture": "gpt1"}, "packing": {"format": "single_segment"}},
        "BERT": {"model": {"causal": True}},
        "LSTM": {
            "model": {"architecture": "lstm", "num_attention_heads": None, "attention_probs_dropout_prob": None},
            "packing": {"format": "single_segment"},
        },
    },
    "replaced_token": {
        "tied": {"model": ELECTRA, "packing": {"format": "single_segment"}},
        "untied, static masks, 15 % kept": {
            "objective": {"tie_embeddings": "none", "masking_mode": "static", "mask_token_prob": 0.85},
            "model": ELECTRA,
        },
        "the first of two stages": {"objective": STAGES, "model": ELECTRA, "stage": 0},
        "the second of two stages": {"objective": STAGES, "model": ELECTRA, "stage": 1},
        "at the targets alone": {"objective": {"variant": "electra_15"}, "model": ELECTRA},
        "targets restored": {"objective": {"variant": "replace_mlm"}, "model": ELECTRA},
        "all tokens restored, one encoder": {
            "objective": {"variant": "all_tokens_mlm", "tie_weights": True, "generator_size": 1},
            "model": ELECTRA,
        },
    },
    "bilm": {
        "sampled softmax": {"objective": {"num_negatives": 50}},
        "full softmax": {"objective": {"num_negatives": 500}},
        "forgetting": {"objective": {"num_negatives": 500, "empty_memory_prob": 0.3}},
    },
}
"""What differs from the recipe in `case`; every entry must stand here (`test_every_entry_is_tested`)."""

NEXT_TOKEN = ("causal_lm", "bilm")
"""Objectives that mask nothing: preparing a batch draws nothing, but for a sampled softmax."""

SIZES = sizes_of(preset="tiny", width=32, heads=2, positions=32, dropout=0)

SIZES_OF_ELMO: dict[str, Any] = {
    "architecture": "elmo",
    "preset": "tiny",
    "filters": [[1, 4], [2, 8]],
    "projection_size": 16,
    "cell_size": 32,
    "hidden_dropout_prob": 0,
}

KINDS = {"entity": re.compile(r"[A-Z]\w+(?: [A-Z]\w+)*"), "noun_phrase": re.compile(r"\b(?:an?|the|his|her|my) \w+")}
"""What the text is annotated with, roughly."""


@dataclass(frozen=True)
class Case:
    objective: Objective
    recipe: PretrainRecipe
    loader: SequenceLoader | StreamLoader
    tokenizer: Tokenizer
    stage: int | None

    def module(self) -> Any:
        torch.manual_seed(0)
        sizes = self.recipe.model.resolve(self.tokenizer.vocab_size, self.tokenizer.pad_id)
        return self.in_stage(self.objective.build(new_encoder(sizes, pooler=self.objective.needs_pooler)))

    def in_stage(self, module: Any) -> Any:
        if self.stage is not None:
            module.set_extra_state(self.stage)
        return module

    @property
    def is_static(self) -> bool:
        return getattr(self.recipe.objective, "masking_mode", "dynamic") == "static"

    @property
    def draws(self) -> bool:
        """Whether preparing a batch is a matter of chance."""
        forgets = getattr(self.recipe.objective, "empty_memory_prob", 0) > 0
        return self.masks or self.samples_words or forgets

    @property
    def masks(self) -> bool:
        """Whether targets are masked, not what comes next."""
        return self.recipe.objective.name not in NEXT_TOKEN

    @property
    def samples_words(self) -> bool:
        """Whether the loss is that of a sampled softmax."""
        return 2 * getattr(self.recipe.objective, "num_negatives", VOCAB_SIZE) <= VOCAB_SIZE

    @property
    def asks_about_targets(self) -> bool:
        """Whether ELECTRA's discriminator is asked about the targets alone."""
        return getattr(self.recipe.objective, "variant", "electra") == "electra_15"

    @property
    def reads_on(self) -> bool:
        """Whether the module remembers what it has read, so that its sequences are lanes of a stream."""
        return self.recipe.objective.name == "bilm"

    def steps(self, epoch: int = 0, micro_batch_size: int = 8) -> Iterator[list[Batch]]:
        """The batches of each step from the beginning of an epoch on, prepared."""
        for step in replace(self.loader, micro_batch_size=micro_batch_size).steps(Position(epoch)):
            yield [self.objective.prepare(batch) for batch in step.batches]

    def batches(self, epoch: int = 0, micro_batch_size: int = 8) -> list[Batch]:
        """The first step of an epoch, prepared."""
        return next(self.steps(epoch, micro_batch_size))

    def batch(self, epoch: int = 0) -> Batch:
        [batch] = self.batches(epoch)
        return batch


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> dict[str, TokenStore]:
    """Of the same annotated text, by the kind of tokenizer."""
    directory = tmp_path_factory.mktemp("objectives")
    with (samples_dir / "text" / "en-books.jsonl").open(encoding="utf-8") as books:
        documents = [annotated(json.loads(line)["text"][:1500]) for line in islice(books, 12)]
    text = write_rows(directory / "text.jsonl", *documents)
    made: dict[str, TokenStore] = {}
    for kind in ("wordpiece", "word"):
        settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": VOCAB_SIZE})
        train_tokenizer([text], directory / kind, settings)
        made[kind] = prepare([text], directory / kind, directory / f"{kind}-store")
    return made


def annotated(text: str) -> dict[str, Any]:
    spans = [[*match.span(), kind] for kind, form in KINDS.items() for match in form.finditer(text)]
    return {"text": text, "spans": spans}


@pytest.fixture(scope="session")
def variants() -> dict[str, dict[str, dict[str, Any]]]:
    """Each entry's, by their names."""
    return VARIANTS


@pytest.fixture(
    scope="module",
    params=[pytest.param((name, variant), id=f"{name}: {variant}") for name in VARIANTS for variant in VARIANTS[name]],
)
def case(request: pytest.FixtureRequest, stores: dict[str, TokenStore]) -> Case:
    name, variant = request.param
    changes = VARIANTS[name][variant]
    store = stores["word" if name == "bilm" else "wordpiece"]
    packing = {"format": "stream", "max_length": 8} if name == "bilm" else {"max_length": 32}
    recipe = PretrainRecipe.model_validate(
        {
            "store": str(store.directory),
            "objective": {"name": name, **changes.get("objective", {})},
            "packing": {**packing, **changes.get("packing", {})},
            "model": {**(SIZES_OF_ELMO if name == "bilm" else SIZES), **changes.get("model", {})},
            "train": {"steps": 1, "batch_size": 8},
        }
    )
    tokenizer = open_tokenizer(store.tokenizer_directory)
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    loader = build_loader(open_start(recipe), store, tokenizer, held_out=False, phase=recipe.all_phases[0])
    made = Case(objective, recipe, loader, tokenizer, changes.get("stage"))
    assert objective.counts(made.batch())[recipe.objective.main_term], (
        "no target in the variant's first step, 8 sequences of 32 tokens of books: give it settings that have some"
    )
    return made
