"""Commands on text: tokenizers and stores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import (
    Column,
    Encoding,
    FormatOption,
    Header,
    Json,
    OnError,
    Overwrite,
    Quoted,
    Separator,
    Set,
    TextArgument,
    Workers,
    check_page,
    reading_options,
)

app = typer.Typer()
tokenizer_app = typer.Typer(help="Train and compare tokenizers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.command("train")
def tokenizer_train(
    text: TextArgument,
    out: Annotated[Path, typer.Option("--out", help="the tokenizer's directory")],
    preset: Annotated[str | None, typer.Option("--preset", help="bert, bert-cased, roberta, gpt1 or elmo")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="wordpiece, bpe, byte_bpe, or word (ELMo)")] = None,
    vocab_size: Annotated[int | None, typer.Option("--vocab-size", help="entries, special tokens included")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase/--no-lowercase", help="uncased or cased")] = None,
    segmenter: Annotated[str | None, typer.Option("--segmenter", help="kiwi: Korean morphemes before words")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the sample taken from a large corpus")] = 0,
    format: FormatOption = "auto",
    column: Column = "text",
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    on_error: OnError = "stop",
    settings: Set = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a tokenizer on text; AutoTokenizer opens what it saves, unless it is of the kind word."""
    from unmask.corpus.statistics import format_statistics
    from unmask.io.paths import TRAINING_REPORT
    from unmask.recipe.loading import read_tokenizer_options
    from unmask.tokenization.learning.from_files import train_tokenizer

    given = {"kind": kind, "vocab_size": vocab_size, "lowercase": lowercase, "segmenter": segmenter}
    reading = reading_options(format, column, encoding, separator, header, quoted, on_error)
    options = read_tokenizer_options(preset, given, reading, settings or [])
    _, report = train_tokenizer(
        text, out, options.tokenizer, seed=seed, overwrite=overwrite, reading=options.reading, cleaning=options.cleaning
    )
    print(f"{out}: {report.summary()}")
    print(format_statistics(json.loads((out / TRAINING_REPORT).read_text("utf-8"))["text"]))


@tokenizer_app.command("extend")
def tokenizer_extend(
    source: Annotated[Path, typer.Argument(metavar="MODEL_OR_TOKENIZER", help="a directory with a tokenizer")],
    words: Annotated[Path, typer.Option("--words", help="a text file, one word a line")],
    out: Annotated[Path, typer.Option("--out", help="the new tokenizer's directory")],
    overwrite: Overwrite = False,
) -> None:
    """Add whole words to a tokenizer, behind its entries, for pre-training to continue in a new domain."""
    from unmask.tokenization.learning.extension import extend_tokenizer

    extension = extend_tokenizer(source, words, out, overwrite=overwrite)
    print(f"{out}: {extension.summary()}")


@tokenizer_app.command("report")
def tokenizer_report(
    tokenizers: Annotated[list[Path], typer.Argument(help="tokenizers' directories, to be compared")],
    text: Annotated[list[str], typer.Option("--text", help="held-out text: a file, folder or glob; may be repeated")],
    max_bytes: Annotated[int, typer.Option("--max-bytes", min=1, help="text to look at, sampled from more")] = 10**7,
    seed: Annotated[int, typer.Option("--seed", help="of the sample")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="write a page (.html) too")] = None,
    format: FormatOption = "auto",
    column: Column = "text",
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    on_error: OnError = "stop",
    settings: Set = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare tokenizers on text they were not trained on."""
    from unmask.recipe.loading import read_corpus_options
    from unmask.reports.tokenizer_page import write_page
    from unmask.tokenization.comparison.report import report_tokenizers
    from unmask.tokenization.comparison.tables import format_report

    check_page(out, overwrite)
    reading = reading_options(format, column, encoding, separator, header, quoted, on_error)
    options = read_corpus_options(reading, {}, settings or [])
    report = report_tokenizers(
        tokenizers, text, max_bytes=max_bytes, seed=seed, reading=options.reading, cleaning=options.cleaning
    )
    print(json.dumps(report.as_dict(), ensure_ascii=False) if as_json else format_report(report))
    if out is not None:
        write_page(report, out, overwrite)
        print(f"wrote {out}", file=sys.stderr)


@app.command("prepare")
def prepare_command(
    text: TextArgument,
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="a tokenizer's directory")],
    out: Annotated[Path, typer.Option("--out", help="the store's directory")],
    workers: Workers = None,
    ray: Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="a Ray cluster that encodes")] = None,
    format: FormatOption = "auto",
    column: Column = "text",
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    on_error: OnError = "stop",
    min_characters: Annotated[int, typer.Option("--min-characters", help="drop shorter documents")] = 1,
    duplicates: Annotated[
        str, typer.Option("--duplicates", help="which duplicates to drop: keep (none), documents or paragraphs")
    ] = "keep",
    near_duplicates: Annotated[
        float | None,
        typer.Option("--near-duplicates", metavar="SIMILARITY", help="drop documents as alike as this, 0..1"),
    ] = None,
    sentences: Annotated[str, typer.Option("--sentences", help="found by built-in rules, or by kiwi")] = "rules",
    settings: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted preparation in --out")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Tokenize text once, into a store that every pre-training run reads; a .yaml is a mixture of corpora."""
    from unmask.corpus.statistics import format_statistics
    from unmask.io.cores import count_cores
    from unmask.io.progress import human_bytes
    from unmask.recipe.loading import read_corpus_options
    from unmask.store.preparation import describe_annotations, prepare

    reading = reading_options(format, column, encoding, separator, header, quoted, on_error)
    cleaning = {"min_characters": min_characters, "duplicates": duplicates, "near_duplicates": near_duplicates}
    options = read_corpus_options(reading, cleaning, settings or [])
    store = prepare(
        text,
        tokenizer,
        out,
        workers=workers or count_cores(),
        ray_address=ray,
        resume=resume,
        overwrite=overwrite,
        reading=options.reading,
        cleaning=options.cleaning,
        splitter=sentences,
    )
    print(f"{out}: {human_bytes(store.size_bytes)}")
    for name, times in store.manifest.get("mixture", {}).items():
        print(f"the mixture takes {name} {times:.2f} times: {'some' if times < 1 else 'all'} of its documents")
    written = ("documents", "sentences", "tokens", "unknown_tokens", "documents_without_tokens")
    print(format_statistics(store.manifest["text"], {name: store.manifest[name] for name in written}))
    if store.manifest["text"]["annotations"] or store.manifest["text"]["annotations_removed"]:
        print(describe_annotations(store))


@app.command("verify")
def verify_command(store: Annotated[Path, typer.Argument(help="what `prepare` made")]) -> None:
    """Read every file of a store and compare its checksum."""
    from unmask.io.progress import Progress
    from unmask.store.store import TokenStore

    opened = TokenStore(store)
    with Progress("verifying", total=opened.size_bytes, unit="bytes") as progress:
        opened.verify(progress.advance)
    print(f"{store}: sound; {opened.num_documents:,} documents, {opened.num_tokens:,} tokens")
