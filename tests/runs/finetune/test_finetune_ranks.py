"""Several processes fine-tune one model and end with the weights of one."""

from __future__ import annotations

from pathlib import Path

import torch

from support.files import write_rows
from support.ranks import run_ranks
from support.runs import rows_of
from support.untrained import save_bert
from unmask.finetuning.run import finetune


def test_two_processes_fine_tune_to_the_bits_of_one(tmp_path: Path) -> None:
    """Also where the last step of an epoch has five examples for four processes."""
    reviews = [
        {"review": f"a {('dull', 'lovely')[n % 2]} film " + "indeed " * (n % 7), "label": n % 2} for n in range(29)
    ]
    for name, part in (("train", reviews[:21]), ("dev", reviews[21:])):
        write_rows(tmp_path / f"{name}.jsonl", *part)
    model = save_bert(tmp_path / "model", [row["review"] for row in reviews] * 3, max_position_embeddings=32)
    words = [
        *(f"init_from={model}", f"data.train={tmp_path / 'train.jsonl'}", f"data.dev={tmp_path / 'dev.jsonl'}"),
        *("data.columns.text=review", "train.epochs=2", "train.batch_size=8", "train.micro_batch_size=2"),
        *("device=cpu", "task.max_length=32", "train.eval_every=epoch"),
    ]
    torch.set_num_threads(1)
    finetune("finetune/classification", words, out=tmp_path / "one")
    for number in (2, 4):
        out = tmp_path / f"of-{number}"
        ended = run_ranks(*[["finetune", "finetune/classification", *words, "--out", str(out)]] * number)
        assert [each.exit_code for each in ended] == [0] * number, ended[0].errors
        assert [row["step"] for row in rows_of(out) if "eval/loss" in row] == [3, 6]
        for name in ("model.safetensors", "head.safetensors"):
            files = [place / "model" / name for place in (tmp_path / "one", out)]
            assert files[0].exists() == files[1].exists()
            assert not files[0].exists() or files[0].read_bytes() == files[1].read_bytes()
    search = run_ranks(
        *[["finetune", "finetune/classification", *words, "search.restarts=2", "--out", str(tmp_path / "s")]] * 2
    )
    assert [each.exit_code for each in search] == [2, 2]
    assert "a search trains each of its runs in one process" in search[0].errors
