"""The doctor: what is wrong with a store, a recipe or a run, and what a run of it will take and has to reach.

One function looks at the path and hands it to whom it concerns; every answer has one shape, `Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.config import build_settings, merge, parse_overrides
from unmask.corpus_account import format_account
from unmask.data.store import TokenStore
from unmask.doctor.decoded_samples import decode_samples, describe_step, first_step
from unmask.doctor.findings import Diagnosis, Finding, Sample, sorted_findings
from unmask.doctor.recipe_material import load_recipe
from unmask.doctor.store_checks import (
    Floors,
    check_store,
    entries_table,
    facts_table,
    floors_table,
    length_figures,
    length_histograms,
    length_table,
    longest_table,
    sources_table,
    store_facts,
    unknown_share,
)
from unmask.doctor.store_statistics import count_store, find_duplicates
from unmask.errors import InputError, SettingsError, UserError
from unmask.info import KINDS
from unmask.progress import Progress, human_count
from unmask.recipe import ALTERNATIVES, PretrainRecipe, find_recipe
from unmask.tokenization.tokenizer import load_tokenizer

PROBE_S = 20.0


def diagnose(
    target: str | Path,
    overrides: Sequence[str] = (),
    *,
    recipe: str | None = None,
    probe_s: float = PROBE_S,
    num_samples: int = 3,
) -> Diagnosis:
    """Examines a store, a recipe or a run.

    Args:
        target: a store's or a run's directory, a recipe's file, or the name of a recipe: `pretrain/bert_tiny`.
        overrides: `key.path=value` words over the recipe: the one that is examined, or the one that a store's samples
            are made by.
        recipe: of a store's samples; the defaults where left out.
        probe_s: about how long a recipe's speed is measured; 0 leaves that out.
        num_samples: decoded sequences to show.

    Raises:
        InputError: there is nothing known at `target`.
        UserError: it is known, but damaged, unfinished or wrong.
    """
    kind = _kind(str(target))
    if recipe is not None and kind != "store":
        raise SettingsError(f"--recipe says how a store's samples are made, and {target} is a {kind}: leave it out")
    if kind == "store":
        diagnosis = _examine_store(Path(target), recipe, overrides, num_samples)
    elif kind == "recipe":
        from unmask.doctor.recipe_examination import examine_recipe

        diagnosis = examine_recipe(str(target), overrides, probe_s=probe_s, num_samples=num_samples)
    else:
        if overrides:
            raise SettingsError(f"{target} is a run, whose recipe is settled: leave out {' '.join(overrides)}")
        from unmask.doctor.run_checks import check_run

        diagnosis = Diagnosis("run", str(target), tuple(check_run(Path(target))))
    return Diagnosis(**{**vars(diagnosis), "findings": tuple(sorted_findings(diagnosis.findings))})


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as one JSON object."""
    return asdict(diagnosis)


def _kind(target: str) -> str:
    """What a target is: `store`, `recipe` or `run`."""
    path = Path(target)
    if path.exists():
        found = next((kind for kind, (is_one, _) in KINDS.items() if is_one(path)), None)
        if found in ("store", "run", "recipe"):
            return found
        what = f"is a {found}" if found else "is none of what `unmask` knows"
        raise InputError(f"{path} {what}: expected a store (manifest.json), a run (recipe.yaml) or a recipe (.yaml)")
    try:
        find_recipe(target)
    except SettingsError as error:
        raise InputError(
            f"{target}: no such file or directory, and no recipe of that name: expected a store (what `unmask prepare` "
            f"made), a run, a recipe's file or its name\n{error}"
        ) from error
    return "recipe"


def _examine_store(path: Path, recipe: str | None, overrides: Sequence[str], num_samples: int) -> Diagnosis:
    store = TokenStore(path)
    settings = _sampling_recipe(path, recipe, overrides)
    pairs = settings.objective.sentence_objective == "nsp"
    tokenizer = load_tokenizer(store.tokenizer_directory)
    with Progress("examining", total=store.num_tokens) as progress:
        statistics = count_store(store, progress.advance)
    duplicates = find_duplicates(store)
    max_length = settings.packing.max_length
    findings = check_store(store, tokenizer, statistics, duplicates, max_length=max_length, pairs=pairs)
    floors = Floors.of(statistics.token_counts)
    facts = store_facts(store)
    tables = [
        facts_table(facts, statistics, tokenizer),
        sources_table(store.manifest),
        floors_table(floors, store.vocab_size, pairs=pairs),
        length_table(statistics),
        entries_table(statistics, tokenizer),
        longest_table(statistics, tokenizer),
    ]
    samples: tuple[Sample, ...] = ()
    is_sound = not any(finding.level == "fault" and "repeated" not in finding.name for finding in findings)
    if is_sound:
        try:
            step = first_step(settings, store, tokenizer)
        except UserError as error:  # too few documents, or a tokenizer for another objective
            findings.append(Finding("no-samples", "fault" if isinstance(error, InputError) else "note", str(error)))
        else:
            tables.append(describe_step(step, max_length))
            samples = decode_samples(step, num_samples)
    unknown = unknown_share(statistics, tokenizer)
    figures = {
        **facts,
        "unknown_tokens_share": unknown,
        "entries_used": int((statistics.token_counts > 0).sum()),
        "duplicate_documents_share": duplicates.share,
        "sentence_length": length_figures(statistics.sentence_lengths),
        "document_length": length_figures(statistics.document_lengths),
        "floors": floors.figures(pairs=pairs),
    }
    headline = (
        ("Documents", f"{store.num_documents:,}"),
        ("Tokens", human_count(store.num_tokens)),
        ("Bytes a token", f"{facts['bytes_per_token']:.2f}"),
        ("Unknown tokens", f"{unknown:.2%}"),
        ("Copied documents", f"{duplicates.share:.2%}"),
        ("Unigram entropy", f"{floors.unigram:.3f}"),
    )
    return Diagnosis(
        "store",
        str(path),
        tuple(findings),
        headline,
        tuple(tables),
        length_histograms(statistics),
        samples,
        listings=_account(store),
        figures=figures,
    )


def _account(store: TokenStore) -> tuple[tuple[str, str], ...]:
    """What came in, what was removed and dropped, what went out; older stores have kept no account."""
    account = store.manifest["text"]
    if "documents_read" not in account:
        return ()
    written = {"sentences": store.manifest["sentences"], "tokens": store.num_tokens}
    return (("From the files to the store", format_account(account, written)),)


def _sampling_recipe(store: Path, recipe: str | None, overrides: Sequence[str]) -> PretrainRecipe:
    """The recipe that makes the samples, with this store for its text."""
    if recipe is not None:
        settings, _ = load_recipe(recipe, overrides)
        return settings.model_copy(update={"store": str(store), "corpus": None})
    values = {"store": str(store), "train": {"steps": "1"}}
    return build_settings(PretrainRecipe, merge(values, parse_overrides(overrides), ALTERNATIVES), "doctor")
