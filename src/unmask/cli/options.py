"""Arguments and options that several commands take, and how results are printed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from unmask.io.input_files import InputFiles
    from unmask.io.settings import TableSettings

TextArgument = Annotated[
    list[str],
    typer.Argument(help=".txt .md .jsonl .csv .tsv .parquet .xml (also .gz .bz2 .xz .zst), folders, globs, -"),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="of the text, where the suffix does not say: gutenberg ...")
]
Column = Annotated[str, typer.Option("--column", help="JSON field or table column that holds the text")]
OnError = Annotated[str, typer.Option("--on-error", help="stop at what cannot be read, or skip, count and list it")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any other setting, as cleaning.boilerplate_lines=true"),
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value ...]", help="settings over the recipe's")
]
RunOut = Annotated[Path, typer.Option("--out", help="the run directory")]
Resume = Annotated[bool, typer.Option("--resume", help="continue the run in --out; start it where there is none")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is in --out")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="processes; all cores where left out")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object")]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=COLUMN", help="what a column is called, as label=gold; may be repeated"),
]
Encoding = Annotated[str, typer.Option("--encoding", help="of the files, such as cp949 (Korean Windows) or utf-16")]
Separator = Annotated[
    str | None, typer.Option("--separator", metavar="CHARACTER", help="between the cells of a table, or tab")
]
Header = Annotated[str, typer.Option("--header", help="first_row, or none: a table's columns are called 1, 2, 3 ...")]
Quoted = Annotated[
    bool | None,
    typer.Option("--quoted/--not-quoted", help="whether cells may be in quotes; usual in .csv, not in .tsv"),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
PrecisionOption = Annotated[str, typer.Option("--precision", help="fp32 or bf16")]
Model = Annotated[Path, typer.Argument(help="a model directory, or the run that made it")]
TaskSettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[task.KEY=VALUE ...]", help="settings over those that the model remembers"),
]


def given_files(
    names: str | Path, encoding: str, separator: str | None, header: str, quoted: bool | None
) -> InputFiles:
    """The files of examples that a command is given, with the options that say how they are written."""
    from unmask.io.input_files import find_inputs
    from unmask.io.tables import warn_of_notation

    files = find_inputs(names, table_settings(encoding, separator, header, quoted))
    warn_of_notation(files)
    return files


def reading_options(
    format: str, column: str, encoding: str, separator: str | None, header: str, quoted: bool | None, on_error: str
) -> dict[str, Any]:
    """What these options say of how files become documents; see `unmask.corpus.settings.ReadingSettings`."""
    of_tables = {"encoding": encoding, "separator": separator, "header": header, "quoted": quoted}
    return {"format": format, "column": column, **of_tables, "on_error": on_error}


def table_settings(encoding: str, separator: str | None, header: str, quoted: bool | None) -> TableSettings:
    """What these options say."""
    from unmask.config import build_settings
    from unmask.io.settings import TableOptions

    options = {"encoding": encoding, "separator": separator, "header": header, "quoted": quoted}
    return build_settings(TableOptions, options, "options")


def stated_options(context: typer.Context) -> dict[str, str]:
    """The parameters that the command line states, by their names, each as it is written there."""
    stated = {}
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name is not None and source is not None and source.name == "COMMANDLINE":
            value = context.params[each.name]
            written = value[0] if isinstance(value, list) else str(value)
            opts = each.secondary_opts if value is False and each.secondary_opts else each.opts
            stated[each.name] = written if each.param_type_name == "argument" else opts[0]
    return stated


def refuse_unused(context: typer.Context, mode: str, used: Mapping[str, Collection[str]]) -> None:
    """Refuses what the command line states and the way in which the command is used does not read.

    Args:
        mode: of `used`.
        used: the parameters that each mode reads, by the option that selects it, such as `--pairs`; by "" those where
            no such option is given. What is in none of them is read in every mode.
    """
    from unmask.errors import SettingsError

    for name, written in stated_options(context).items():
        modes = [each for each, names in used.items() if name in names]
        if modes and mode not in modes:
            where = f"with {mode}" if mode else f"without {' or '.join(modes)}"
            raise SettingsError(f"{written} has no effect {where}: leave it out")


def print_json_lines(rows: Iterable[dict[str, Any]]) -> None:
    from unmask.io.writing import json_line

    for row in rows:
        print(json_line(row).decode(), end="")


def refuse_overwrite_alone(out: Path | None, overwrite: bool) -> None:
    """Raises SettingsError where there is nothing to overwrite."""
    from unmask.errors import SettingsError

    if overwrite and out is None:
        raise SettingsError("--overwrite has no effect without --out: leave it out")


def check_page(out: Path | None, overwrite: bool, or_lines: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Refuses the place of a page, or of JSON lines where these are had too, before the work for it begins; None is no
    page, and `inputs` are read for it."""
    from unmask.errors import SettingsError
    from unmask.io.paths import check_writable
    from unmask.io.writing import refuse_inputs_inside

    refuse_overwrite_alone(out, overwrite)
    if out is None:
        return
    if out.suffix not in (".html", *([".jsonl"] if or_lines else [])) or not out.parent.is_dir():
        lines = " or of JSON lines, such as lines.jsonl," if or_lines else ""
        raise SettingsError(
            f"--out {out}: expected the name of a page, such as page.html,{lines} in a folder that exists"
        )
    check_writable(out, overwrite)
    refuse_inputs_inside(out, inputs)


def goes_to_file(stream: TextIO) -> bool:
    """Whether what is written to a stream is kept in a file: a terminal, or a pipe to one, shows it already."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # it is none of the system's
        return False


def is_one_of_several() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
