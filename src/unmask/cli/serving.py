"""Commands that put models to work for others."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from unmask.cli.options import Precision

app = typer.Typer()


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
    precision: Precision = "fp32",
) -> None:
    """Answer over HTTP: one endpoint for each use of a model. UNMASK_TOKEN holds the token that clients must send."""
    from unmask.errors import SettingsError

    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingsError(f"serving needs {error.name}: pip install 'unmask[serve]'") from error
    import torch

    from unmask.serving.models import default_models, open_models
    from unmask.serving.server import check_address, serve

    token = os.environ.get("UNMASK_TOKEN") or None
    check_address(host, token, insecure)
    if precision == "bf16" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() - 1))  # in bf16 HTTP takes long enough to need a core
    serve(lambda: open_models(models or default_models(), precision), host, port, token=token)
