"""`unmask glue run`: a run for each task, and their averages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import Command, check_refused
from support.untrained import save_bert


@pytest.mark.usefixtures("one_thread", "without_report")
def test_tasks_one_after_another_and_again(place: Path, unmask: Command) -> None:
    for folder, labels in (("RTE", ("entailment", "not_entailment")), ("WNLI", ("0", "1"))):
        Path("GLUE", folder).mkdir(parents=True)
        for name in ("train.tsv", "dev.tsv"):
            rows = "".join(f"{number}\tthe man\ta dog\t{labels[number % 2]}\n" for number in range(8))
            Path("GLUE", folder, name).write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}", "utf-8")
    save_bert(place / "bert", ["the man and a dog"] * 9, max_position_embeddings=256)
    words = ["glue", "run", "GLUE", "init_from=bert", "train.steps=2", "train.epochs=null", "--out", "runs"]
    check_refused(unmask(*words), "GLUE: no CoLA/train.tsv, CoLA/dev.tsv, ")
    words += ["--tasks", "rte,wnli"]
    finished = unmask(*words)
    assert finished.code == 0, finished.errors
    assert "rte (1 of 2)\n" in finished.errors
    assert "wnli (2 of 2)\n" in finished.errors
    assert [line.split()[:2] for line in finished.output.splitlines()[:2]] == [
        ["rte", "accuracy"],
        ["wnli", "accuracy"],
    ]
    measured = json.loads(Path("runs/rte/results.json").read_text("utf-8"))["dev"]["accuracy"]
    assert f"rte    accuracy {100 * measured:4.1f}\n" in finished.output
    assert unmask(*words, "--resume").output == finished.output
    Path("runs/stsb").mkdir()  # it is not finished, and has no figures
    assert unmask(*words[:-1], "rte", "--resume").output == finished.output, "wnli is there"
    from_here = [word.replace("=bert", f"={Path.cwd()}/bert") for word in words[:-1]]
    assert unmask(*from_here, "rte", "--overwrite").output == finished.output, "the same model"
    before = Path("runs/rte/results.json").read_bytes()
    again = [*words[:-1], "rte", "--overwrite"]
    other = [word.replace("=bert", "=other") for word in again]
    check_refused(unmask(*other), "runs/wnli is there, of bert, and rte would be of other: an average is of one model")
    from_wnli = [word.replace("=bert", "=runs/wnli") for word in again]
    assert unmask(*from_wnli).code == 0, "of the model that wnli's run began from"
    assert unmask("glue", "average", "runs/rte", "runs/wnli").errors == ""
    before = Path("runs/rte/results.json").read_bytes()
    results, config = Path("runs/wnli/results.json"), Path("runs/wnli/model/config.json")
    for file, found, instead, message in (
        (results, '"dev"', '"test"', "runs/wnli: it was measured on no dev file"),
        (config, '"wnli"', '"rte"', "runs/wnli: its config.json says that it was fine-tuned for 'rte'"),
    ):
        content = file.read_text("utf-8")
        file.write_text(content.replace(found, instead), "utf-8")
        check_refused(unmask(*again), message)
        file.write_text(content, "utf-8")
    assert Path("runs/rte/results.json").read_bytes() == before
    Path("runs/rte").rename("runs/other")
    check_refused(unmask(*words), "runs/wnli exists already")  # and not after hours of the first task
