"""The command line: each command hands its words to one function, and turns errors into a message and an exit code.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Results go to standard output,
progress and messages to standard error. Exit codes: 0 done, 1 our fault, 2 the user's, 130 and 143 after Ctrl-C or
SIGTERM.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from unmask import __version__
from unmask.errors import Interrupted, UnmaskError

app = typer.Typer(
    help="Raw text to a pre-trained BERT-family encoder, to fine-tuned models, to measured results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
tokenizer_app = typer.Typer(help="Train and compare tokenizers.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")

Text = Annotated[
    list[str],
    typer.Argument(help=".txt .md .jsonl .csv .tsv .parquet .xml (also .gz .bz2 .xz .zst), folders, globs, -"),
]
Format = Annotated[str, typer.Option("--format", help="of the text, where the suffix does not say: gutenberg ...")]
Column = Annotated[str, typer.Option("--column", help="JSON field or table column that holds the text")]
OnError = Annotated[str, typer.Option("--on-error", help="stop at what cannot be read, or skip, count and list it")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any other setting, as cleaning.boilerplate_lines=true"),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", help="settings over the recipe's")]
RunOut = Annotated[Path, typer.Option("--out", help="the run directory")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the run in --out; start it where there is none")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is in --out")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="processes; all cores where left out")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object")]
Model = Annotated[Path, typer.Argument(help="a model directory, or the run that made it")]


@tokenizer_app.command("train")
def tokenizer_train(
    text: Text,
    out: Annotated[Path, typer.Option("--out", help="the tokenizer's directory")],
    preset: Annotated[str | None, typer.Option("--preset", help="bert, bert-cased, roberta or gpt1")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="wordpiece, bpe or byte_bpe")] = None,
    vocab_size: Annotated[int | None, typer.Option("--vocab-size", help="entries, special tokens included")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase/--no-lowercase", help="uncased or cased")] = None,
    segmenter: Annotated[str | None, typer.Option("--segmenter", help="kiwi: Korean morphemes before words")] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the sample taken from a large corpus")] = 0,
    format: Format = "auto",
    column: Column = "text",
    on_error: OnError = "stop",
    settings: Set = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a tokenizer on text; AutoTokenizer opens what it saves."""
    from unmask.corpus_account import format_account
    from unmask.recipe import read_tokenizer_options
    from unmask.tokenizer_training import train_tokenizer

    given = {"kind": kind, "vocab_size": vocab_size, "lowercase": lowercase, "segmenter": segmenter}
    reading = {"format": format, "column": column, "on_error": on_error}
    options = read_tokenizer_options(preset, given, reading, settings or [])
    _, report = train_tokenizer(
        text,
        out,
        options.tokenizer,
        seed=seed,
        overwrite=overwrite,
        reading=options.reading,
        cleaning=options.cleaning,
    )
    print(f"{out}: {report.summary()}")
    print(format_account(json.loads((out / "training.json").read_text("utf-8"))["text"]))


@tokenizer_app.command("report")
def tokenizer_report(
    tokenizers: Annotated[list[Path], typer.Argument(help="tokenizers' directories, to be compared")],
    text: Annotated[list[str], typer.Option("--text", help="held-out text: a file, folder or glob; may be repeated")],
    max_bytes: Annotated[int, typer.Option("--max-bytes", min=1, help="text to look at, sampled from more")] = 10**7,
    seed: Annotated[int, typer.Option("--seed", help="of the sample")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="write a page (.html) too")] = None,
    format: Format = "auto",
    column: Column = "text",
    on_error: OnError = "stop",
    settings: Set = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare tokenizers on text they were not trained on."""
    from unmask.files import refuse_existing
    from unmask.recipe import read_corpus_options
    from unmask.tokenizer_page import write_page
    from unmask.tokenizer_report import report_tokenizers
    from unmask.tokenizer_tables import format_report

    if out is not None:
        refuse_existing(out, overwrite)
    options = read_corpus_options({"format": format, "column": column, "on_error": on_error}, {}, settings or [])
    report = report_tokenizers(
        tokenizers, text, max_bytes=max_bytes, seed=seed, reading=options.reading, cleaning=options.cleaning
    )
    print(json.dumps(report.as_dict(), ensure_ascii=False) if as_json else format_report(report))
    if out is not None:
        write_page(report, out, overwrite=overwrite)


@app.command("prepare")
def prepare_command(
    text: Text,
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="a tokenizer's directory")],
    out: Annotated[Path, typer.Option("--out", help="the store's directory")],
    workers: Workers = None,
    ray: Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="a Ray cluster that encodes")] = None,
    format: Format = "auto",
    column: Column = "text",
    on_error: OnError = "stop",
    min_characters: Annotated[int, typer.Option("--min-characters", help="drop shorter documents")] = 1,
    duplicates: Annotated[
        str, typer.Option("--duplicates", help="of what equal ones are dropped: keep, documents or paragraphs")
    ] = "keep",
    near_duplicates: Annotated[
        float | None,
        typer.Option("--near-duplicates", metavar="SIMILARITY", help="drop documents as alike as this, 0..1"),
    ] = None,
    sentences: Annotated[str, typer.Option("--sentences", help="found by built-in rules, or by kiwi")] = "rules",
    settings: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted preparation in --out")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Tokenize text once, into a store that every pre-training run reads; a .yaml is a mixture of corpora."""
    from unmask.corpus_account import format_account
    from unmask.preparation import prepare
    from unmask.progress import human_bytes
    from unmask.recipe import read_corpus_options

    reading = {"format": format, "column": column, "on_error": on_error}
    cleaning = {"min_characters": min_characters, "duplicates": duplicates, "near_duplicates": near_duplicates}
    options = read_corpus_options(reading, cleaning, settings or [])
    store = prepare(
        text,
        tokenizer,
        out,
        workers=workers or _cores(),
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
    print(format_account(store.manifest["text"], {name: store.manifest[name] for name in written}))


@app.command("verify")
def verify_command(store: Annotated[Path, typer.Argument(help="what `prepare` made")]) -> None:
    """Read every file of a store and compare its checksum."""
    from unmask.data.store import TokenStore

    opened = TokenStore(store)
    opened.verify()
    print(f"{store}: sound; {opened.num_documents:,} documents, {opened.num_tokens:,} tokens")


@app.command("pretrain")
def pretrain_command(
    recipe: Annotated[str, typer.Argument(help="a YAML file, or a name such as pretrain/bert_tiny")],
    out: RunOut,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    workers: Workers = None,
) -> None:
    """Pre-train a model from a store (store=DIR) or straight from text (corpus=FILE)."""
    from unmask.pretraining import pretrain

    model = pretrain(recipe, overrides or [], out=out, resume=resume, overwrite=overwrite, workers=workers or _cores())
    print(f"{model}\n{out / 'report.html'}")


@app.command("finetune")
def finetune_command(
    recipe: Annotated[str, typer.Argument(help="a YAML file, or a name such as finetune/sst2")],
    out: RunOut,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Fine-tune a model on labelled examples (init_from=MODEL data.train=FILE data.dev=FILE)."""
    from unmask.finetuning import finetune

    model = finetune(recipe, overrides or [], out=out, resume=resume, overwrite=overwrite)
    print(f"{model}\n{out / 'report.html'}")


@app.command("evaluate")
def evaluate_command(
    model: Annotated[
        Path | None, typer.Argument(help="a fine-tuned model or its run; left out with --predictions")
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="labelled examples")] = ...,  # type: ignore[assignment]
    task: Annotated[str | None, typer.Option("--task", help="the model's own where left out")] = None,
    predictions: Annotated[Path | None, typer.Option("--predictions", help="score this file of predictions")] = None,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model, or a file of predictions, on labelled examples."""
    from unmask.evaluation import evaluate, evaluate_predictions

    if (model is None) == (predictions is None):
        _fail("give a MODEL to measure, or --predictions FILE to score without one: one of the two", 2)
    if predictions is not None:
        result = evaluate_predictions(predictions, data, task)
    else:
        assert model is not None
        result = evaluate(model, data, task)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print(f"{result['task']}: {result['n']:,} examples")
        for name, value in result["metrics"].items():
            print(f"  {name:<24} {value:.4f}")


@app.command("predict")
def predict_command(
    model: Model,
    inputs: Annotated[str, typer.Argument(metavar="FILE|-", help=".jsonl, .tsv, .csv, .txt (one text a line), or -")],
) -> None:
    """Predict: one JSON object a line, in the order of the inputs."""
    from unmask.prediction import predict_file

    _print_json_lines(predict_file(model, inputs))


@app.command("fill-mask")
def fill_mask_command(
    model: Model,
    text: Annotated[str, typer.Argument(help="a text with [MASK] in it, or - for one text a line")],
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="candidates for each [MASK]")] = 5,
) -> None:
    """Say what may stand at [MASK]: one JSON object a line, the likeliest first."""
    from unmask.mask_filling import MaskFiller, read_texts

    filler = MaskFiller(model)
    lines = read_texts(sys.stdin.buffer, "standard input") if text == "-" else [("", text)]
    _print_json_lines(answer for source, line in lines for answer in filler.fill(line, top_k, source))


@app.command("info")
def info_command(
    path: Annotated[Path, typer.Argument(help="a store, model, run, tokenizer or recipe")],
    as_json: Json = False,
) -> None:
    """Say what something is: sizes, settings, progress, provenance."""
    from unmask.info import describe, format_description

    description = describe(path)
    print(json.dumps(description, ensure_ascii=False) if as_json else format_description(description))


@app.command("doctor")
def doctor_command(
    target: Annotated[str, typer.Argument(help="a store, a run, a recipe's file or its name")],
    overrides: Overrides = None,
    recipe: Annotated[str | None, typer.Option("--recipe", help="makes the samples of a store")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="write a page (.html) too")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a store, a recipe or a run, and what a run will take. Exit code 2: a fault was found."""
    from unmask.doctor.diagnosis import diagnose, to_json
    from unmask.doctor.page import write_page
    from unmask.doctor.terminal import print_diagnosis
    from unmask.files import refuse_existing

    if out is not None:
        refuse_existing(out, overwrite)
    diagnosis = diagnose(target, overrides or [], recipe=recipe)
    if out is not None:
        write_page(diagnosis, out)
    if as_json:
        print(json.dumps(to_json(diagnosis), ensure_ascii=False))
    else:
        print_diagnosis(diagnosis)
    if diagnosis.has_fault:
        raise typer.Exit(2)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    if version:
        print(f"unmask {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command that the words ask for; exits with its code."""
    sys.argv[0] = "unmask"  # in the record of a run, however it was started
    # PyTorch's threads spin while they wait. Beside other work that costs most of the speed; asleep they cost nothing.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        try:
            app(prog_name="unmask")
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None
            raise
        finally:
            sys.stdout.flush()
    except UnmaskError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone: it has all it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _fail(f"the disk is full ({error.filename or 'while writing'}): free some space, or write elsewhere", 2)
        _fail_with_log()
    except Exception:
        _fail_with_log()


def _stop(number: int, frame: FrameType | None) -> None:
    raise Interrupted(f"stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}", number)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}" if code in (1, 2) else message, file=sys.stderr)
    sys.exit(code)


def _fail_with_log() -> NoReturn:
    """Our own fault: the traceback goes to a file that can be sent to us."""
    trace = traceback.format_exc()
    fault = f"a fault in unmask, not in your input: {trace.strip().rsplit(chr(10), 1)[-1]}"
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="unmask-", suffix=".log", delete=False) as log:
            report = f"unmask {__version__}: {' '.join(sys.argv)}\n\n{trace}"
            log.write(report.encode("utf-8", "backslashreplace"))
    except OSError:  # no room even for that
        _fail(f"{fault}\nplease report it:\n{trace}", 1)
    _fail(f"{fault}\nthe traceback is in {log.name}: please report it", 1)


def _print_json_lines(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
