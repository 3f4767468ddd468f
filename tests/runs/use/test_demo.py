"""The demo as a newcomer runs it: it reaches the figures that the README gives, within margins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.searches import read_json
from unmask.training.run.checkpoint import list_steps

SAMPLES = Path(__file__).parents[3] / "samples"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_reaches_its_figures(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES, tmp_path / "samples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "samples" / "demo.sh"], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    demo = tmp_path / "runs" / "demo"

    pretrained = read_json(demo / "pretrained" / "results.json")
    assert pretrained["mlm_loss"] < pretrained["floors"]["loss/mlm"]["no context"] - 0.7
    assert len(list_steps(demo / "pretrained" / "checkpoints")) == 8, "what the page of `unmask serve` has to show"
    assert read_json(demo / "finetuned" / "results.json")["dev"]["accuracy"] > 0.47
    assert read_json(demo / "reviews" / "results.json")["dev"]["accuracy"] > 0.70
    (names,) = read_json(demo / "names" / "summary.json")["combinations"]
    assert names["n"] == 2
    assert names["dev"]["overall_f1"]["mean"] > 0.25

    gaps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"score"')]
    assert [gap["token_str"] for gap in gaps[3::3]] == ["door", "졸업한"]  # the likeliest, of the sample encoders
    assert '"label": "1"' in done.stdout, "a good review"
    assert "Anna" in done.stdout.split("unmask predict runs/demo/names/ensemble")[1]
    assert "nothing was learned" not in (done.stdout + done.stderr).lower()
