"""The examples at /docs are for the models that are served: each is answered as it stands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from support.serving import app_of
from support.untrained import save_masked_lm
from unmask.serving.engine.models import ServedModel, open_models
from unmask.serving.pages import describe_endpoints

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def served(
    model_directories: dict[str, Path],
    labellers: dict[str, Path],
    run_of_checkpoints: Path,
    served_models: dict[str, ServedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, ServedModel]:
    """A model of every use, a regressor of one text and a model whose mask is `<mask>` among them."""
    place = tmp_path_factory.mktemp("examples")
    one = Path(shutil.copytree(model_directories["regression"] / "model", place / "one"))
    config = json.loads((one / "config.json").read_text("utf-8"))
    config["unmask_task"]["columns"] = {"text": "sentence", "label": "stars"}
    (one / "config.json").write_text(json.dumps(config), "utf-8")
    roberta = save_masked_lm(place / "roberta", "roberta", ["The children play in the garden ."] * 20)
    places = {**labellers, "one": one, "roberta": roberta, "run": run_of_checkpoints}
    return {**served_models, **open_models([f"{name}={path}" for name, path in places.items()], "fp32")}


@pytest.mark.parametrize("names", [["pair"], ["one"], ["roberta", "run"], ["choice", "pair", "single"], None])
def test_every_example_is_answered(names: list[str] | None, served: dict[str, ServedModel]) -> None:
    """Whichever model is chosen; what no model answers is not shown."""
    headers = {"content-type": "application/json"}
    app = app_of({name: served[name] for name in names or served})
    with TestClient(app) as client:
        groups = describe_endpoints(client.get("/openapi.json").json(), app.service.models)
        shown = [address for _, addresses in groups for address in addresses]
        assert ("/predict" in {each["path"] for each in shown}) == (names is None or "pair" in names)
        for address in shown:
            for name, body in address["bodies"].items():
                path = address["path"].replace("{name}", name)
                told = client.request(address["method"], path, content=body, headers=headers)
                assert told.status_code == 200, (path, body, told.text)
