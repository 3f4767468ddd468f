"""Commands that put models to work for others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.options import (
    ColumnsOption,
    Encoding,
    Header,
    Json,
    Model,
    Overwrite,
    PrecisionOption,
    Quoted,
    Separator,
    given_files,
)
from unmask.io.progress import counted
from unmask.serving.settings import Limits

app = typer.Typer()


@app.command("export")
def export_command(
    model: Model,
    check: Annotated[
        str,
        typer.Option("--check", help="labelled examples, or texts if it is not fine-tuned: measured before and after"),
    ],
    out: Annotated[Path, typer.Option("--out", help="the directory to write")],
    format: Annotated[str, typer.Option("--format", help="onnx, or onnx-int8")] = "onnx",
    max_loss: Annotated[float, typer.Option("--max-loss", help="how much worse the metric may be, of 1")] = 0.01,
    columns: ColumnsOption = None,
    encoding: Encoding = "utf-8",
    separator: Separator = None,
    header: Header = "first_row",
    quoted: Quoted = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a model as ONNX, with a certificate of what it answers, or refuse."""
    from unmask.exporting.export import export
    from unmask.recipe.loading import read_columns

    named, files = read_columns(columns or []), given_files(check, encoding, separator, header, quoted)
    certificate = export(model, out, files, named, format=format, max_loss=max_loss, overwrite=overwrite)
    if as_json:
        print(json.dumps(certificate, ensure_ascii=False))
        return
    measured = {
        certificate["metric"]: {when: each[certificate["metric"]] for when, each in certificate["metrics"].items()}
    }
    for name, each in {
        **measured,
        "ms of one example": certificate["latency_ms"],
        "bytes": certificate["size_bytes"],
    }.items():
        print(f"  {name:<24} {each['before']:,.4g} before, {each['after']:,.4g} after")
    on = counted(certificate["examples"], "example")
    for name, value in certificate["largest_difference"].items():
        print(f"  {'largest difference':<24} {value:.2g} of {name}, {on}")
    print(out)


@app.command("serve")
def serve_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=]DIR ...", help="models or runs; the sample encoders where left out"),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="the address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="let other machines in without a token (UNMASK_TOKEN)")
    ] = False,
    precision: PrecisionOption = "fp32",
    timeout: Annotated[
        int, typer.Option("--timeout", min=1, help="seconds until a request is given up, and a silent client left")
    ] = int(Limits.timeout_s),
    batch_tokens: Annotated[
        int, typer.Option("--batch-tokens", min=1, help="the most tokens of requests that are computed together")
    ] = Limits.batch_tokens,
) -> None:
    """Answer over HTTP: one endpoint for each use of a model. UNMASK_TOKEN holds the token that clients must send."""
    from unmask.errors import SettingsError

    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401  which uvicorn can do without
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingsError(f"serving needs {error.name}: pip install 'unmask[serve]'") from error
    from unmask.serving.server import check_address, serve

    token = os.environ.get("UNMASK_TOKEN") or None
    check_address(host, token, insecure)
    limits = Limits(timeout_s=timeout, batch_tokens=batch_tokens)
    serve(models or [], precision, host, port, token=token, limits=limits)
