"""The doctor's look at a store: its sizes, what is wrong with it, what a model has to beat, and first samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.config import build_settings, merge, parse_overrides
from unmask.corpus.statistics import format_statistics
from unmask.doctor.findings import Diagnosis, Finding, Sample
from unmask.doctor.recipe.material import load_recipe
from unmask.doctor.samples import decode_samples, describe_step, first_step
from unmask.doctor.store.checks import (
    check_store,
    entries_table,
    facts_table,
    length_figures,
    length_histograms,
    length_table,
    longest_table,
)
from unmask.doctor.store.floors import floors_table
from unmask.doctor.store.statistics import count_store, find_duplicates
from unmask.errors import InputError, SettingsError, UserError
from unmask.io.progress import Progress, human_count
from unmask.objectives.floors import by_figure, unigram_entropy
from unmask.objectives.table import OBJECTIVES, new_objective
from unmask.packing.settings import PAIRED, PackingSettings
from unmask.pretraining.own_store import check_tokenizer
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import template_of
from unmask.recipe.loading import ALTERNATIVES
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.opening import open_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer


def examine_store(path: Path, recipe: str | None, overrides: Sequence[str]) -> Diagnosis:
    """Counts a store, checks it, and makes the first samples of a recipe of it.

    Args:
        recipe, overrides: as `diagnose` has them.

    Raises:
        SettingsError: the recipe is wrong.
        StoreError: the store is unfinished or damaged.
    """
    store = TokenStore(path)
    tokenizer = open_tokenizer(store.tokenizer_directory)
    settings = None
    if tokenizer.reads_words:
        words = next(entry.settings for entry in OBJECTIVES.values() if entry.settings.reads == "words")
        use, packing, text_length = build_settings(words, {}, "doctor"), PackingSettings(format="stream"), 0
    else:
        settings = _sampling_recipe(path, tokenizer, recipe, overrides)
        use, packing = settings.objective, settings.packing
        text_length = _text_length(settings, tokenizer)
    with Progress("examining", total=store.num_tokens) as progress:
        statistics = count_store(store, progress.advance)
    duplicates = find_duplicates(store)
    findings = check_store(store, statistics, duplicates, packing=packing, text_length=text_length, objective=use)
    try:
        floors = new_objective(use, tokenizer.vocabulary).floors(statistics.token_counts)
    except SettingsError:  # nor can samples be made, which will say why
        floors = []
    facts = store.figures()
    tables = [
        facts_table(facts, statistics, tokenizer),
        *([floors_table(floors)] if floors else []),
        length_table(statistics),
        entries_table(statistics, tokenizer),
        longest_table(statistics, tokenizer),
    ]
    samples: tuple[Sample, ...] = ()
    is_sound = not any(finding.level == "fault" and "repeated" not in finding.name for finding in findings)
    if settings is None or tokenizer.reads_words:
        findings.append(Finding("no-samples", "note", "the windows that ELMo reads of a store of words are not shown"))
    elif is_sound:
        try:
            check_tokenizer(settings, tokenizer, path)
            step = first_step(open_start(settings), store, tokenizer)
        except UserError as error:  # too few documents, or a tokenizer for another objective
            findings.append(Finding("no-samples", "fault" if isinstance(error, InputError) else "note", str(error)))
        else:
            tables.append(describe_step(step, settings))
            samples = decode_samples(step)
    figures = {
        **facts,
        "entries_used": int((statistics.token_counts > 0).sum()),
        "duplicate_documents_share": duplicates.share,
        "sentence_length": length_figures(statistics.sentence_lengths),
        "document_length": length_figures(statistics.document_lengths),
        "floors": by_figure(floors),
    }
    headline = (
        ("Documents", f"{store.num_documents:,}"),
        ("Tokens", human_count(store.num_tokens)),
        ("Bytes a token", f"{facts['bytes_per_token']:.2f}"),
        ("Unknown tokens", f"{facts['unknown_tokens_share']:.2%}"),
        ("Copied documents", f"{duplicates.share:.2%}"),
        ("Unigram entropy", f"{unigram_entropy(statistics.token_counts):.3f}"),
    )
    written = {"sentences": facts["sentences"], "tokens": store.num_tokens}
    return Diagnosis(
        "store",
        str(path),
        tuple(findings),
        headline,
        tuple(tables),
        length_histograms(statistics),
        samples,
        listings=(("From the files to the store", format_statistics(store.manifest["text"], written)),),
        figures=figures,
    )


def _text_length(settings: PretrainRecipe, tokenizer: TextTokenizer) -> int:
    """How many tokens of text fit into a sequence."""
    length, num_segments = settings.packing.max_length, 2 if settings.packing.format in PAIRED else 1
    try:
        return template_of(open_start(settings), tokenizer).capacity(length, num_segments)
    except UserError:  # the samples cannot be made either, and will say why
        return length


def _sampling_recipe(
    store: Path, tokenizer: TextTokenizer, recipe: str | None, overrides: Sequence[str]
) -> PretrainRecipe:
    """The recipe that makes the samples, with this store as its text: by default of the first objective that needs no
    more of a tokenizer than this one has."""
    if recipe is not None:
        settings, _ = load_recipe(recipe, overrides)
        return settings.model_copy(update={"store": str(store), "corpus": None})
    values: dict[str, Any] = {"store": str(store), "train": {"steps": "1"}}
    given = parse_overrides(overrides)
    if "objective" not in given:
        has_mask = tokenizer.find_role("mask_token") is not None
        fitting = (each for each in OBJECTIVES.items() if has_mask or not each[1].settings.needs_mask)
        name, entry = next(fitting)
        values |= {"objective": {"name": name}, **entry.settings.beside}
    return build_settings(PretrainRecipe, merge(values, given, ALTERNATIVES), "doctor")
