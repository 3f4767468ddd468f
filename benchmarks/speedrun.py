"""Claim: what a recipe's model is worth after a fixed time. In the same minutes of the same cores, on the same store:
accuracy on minimal pairs (BLiMP) along the way, held-out loss, and scores after fine-tuning with fixed settings.

    python benchmarks/speedrun.py pretrain STORE --out runs/speedrun --minutes 30 --recipes pretrain/modern_mini
    python benchmarks/speedrun.py pretrain STORE --out runs/speedrun --change mask15=objective.target_prob=.15
    python benchmarks/speedrun.py peer STORE --out runs/speedrun --minutes 30       the same with `transformers`
    python benchmarks/speedrun.py finetune --out runs/speedrun --tasks stsb mrpc    three seeds, random weights beside
    python benchmarks/speedrun.py report --out runs/speedrun                        speedrun.md and speedrun.png

Minutes are those of training: evaluations and saving do not count. Recipes may have no phases, since how long each is
would depend on the machine: `modern_mini` and `modern_tiny` are such. `afternoon`, `night` and `night_gpu` are their
phases, and are trained by their own budget of tokens. Settings stand behind a recipe in the same word, as in
`--recipes pretrain/modern_mini "pretrain/bert_mini phases=[] schedule.name=linear"`, which is what is trained by
default. Each `--change NAME=KEY=VALUE` trains the first recipe once more, with that key changed. The peer is a BERT of
BERT-Mini's size, trained by the Trainer on masked blocks of 128 tokens as in `transformers`' example for masked
language models: texts joined and cut, 15 % of the tokens masked anew in each epoch, AdamW, a rate that falls linearly;
its rate and batch are those of `pretrain/bert_mini`, and it computes in bf16 where our side does.
Finished work is kept under --out, and the same call continues where it stopped. docs/speedrun.md has what came out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from measure import parser

PAIRS = "tasks/blimp"
"""Below the data folder."""
ALL_PAIRS = "pairs.json"
"""Of a run: how many of all pairs the model got right at its end."""
PEER = "transformers"
LENGTH, BATCH, RATE = 128, 32, 1e-3
"""Of the peer, as in `pretrain/bert_mini`."""
PROBED = 30
"""Its steps that are timed first, to know how many the minutes hold: its rate falls by their number."""

RECIPES = ["pretrain/modern_mini", "pretrain/bert_mini phases=[] schedule.name=linear"]
"""Those of docs/speedrun.md: with one length, and for BERT a rate that falls linearly."""

TASKS: dict[str, tuple[str, list[str]]] = {
    "stsb": ("pearson", ["optimizer.learning_rate=3e-4", "train.epochs=5"]),
    "mrpc": ("accuracy", ["optimizer.learning_rate=2e-4", "train.epochs=4"]),
    "sst2": ("accuracy", ["optimizer.learning_rate=2e-4", "train.epochs=2"]),
    "wikigold": ("overall_f1", ["optimizer.learning_rate=3e-4", "train.batch_size=16", "train.epochs=8"]),
    "squad1": ("f1", ["optimizer.learning_rate=3e-4", "train.epochs=4"]),
    "korsts": ("pearson", ["optimizer.learning_rate=3e-4", "train.epochs=5"]),
    "nsmc": ("accuracy", ["optimizer.learning_rate=2e-4", "train.epochs=1"]),
    "klue-ner": ("overall_f1", ["optimizer.learning_rate=3e-4", "train.batch_size=16", "train.epochs=5"]),
}
"""The figure of each, and settings that no model was given a choice of."""

ENGLISH = [*TASKS][:5]
SPLIT = {"wikigold": "wikigold.conll.txt", "squad1": "dev-v1.1.json", "klue-ner": "klue-ner-v1.1_dev.tsv"}
"""Published files that `unmask split` makes into two."""

PUBLISHED = {"korsts": ("sts-train.tsv", "sts-dev.tsv"), "nsmc": ("ratings_train.txt.zst", "ratings_test.txt")}
"""Files for training and measuring, where they are not called train.tsv and dev.tsv."""


def unmask(*words: str) -> str:
    """Runs a command, and stops if it fails; returns what it prints."""
    print("unmask", *words, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, "-m", "unmask", *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"unmask {' '.join(words)} failed")
    return done.stdout


def pretrain(given: Namespace, data: Path) -> None:
    recipes = [(recipe, settings) for recipe, *settings in map(str.split, given.recipes)]
    sides = {Path(recipe).stem: (recipe, settings) for recipe, settings in recipes}
    if len(sides) < len(recipes):
        raise SystemExit("--recipes names one twice: expected each once; --change NAME=KEY=VALUE changes the first")
    for change in given.change:
        name, _, setting = change.partition("=")
        if "=" not in setting or name in sides:
            raise SystemExit(f"--change {change}: expected NAME=KEY=VALUE with a name of its own")
        sides[name] = (recipes[0][0], [*recipes[0][1], setting])
    for name, (recipe, settings) in sides.items():
        for seed in range(given.seeds):
            run = given.out / "runs" / f"{name}-{seed}"
            if (run / ALL_PAIRS).exists():
                continue
            budget = f"train.minutes={given.minutes:g}"
            when = [f"train.eval_every={given.eval_every}", "train.eval_sequences=500"]
            pairs = [f"eval.pairs={given.pairs or data / PAIRS}", f"eval.pairs_sample={given.pairs_sample}"]
            unmask(
                *("pretrain", recipe, f"store={given.store}", budget, *when, *pairs, *settings, f"seed={seed}"),
                *("--out", str(run), "--resume"),
            )
            measured = unmask("evaluate", str(run), "--pairs", str(given.pairs or data / PAIRS), "--json")
            (run / ALL_PAIRS).write_text(measured, encoding="utf-8")


def train_peer(given: Namespace, data: Path) -> None:
    """`transformers`' Trainer for as many minutes; its models along the way are measured by `unmask`."""
    import torch
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForMaskedLM,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    from unmask.inference.pairs import open_scorer, score_paradigms
    from unmask.tasks.minimal_pairs.reading import read_paradigms, sample
    from unmask.training.device import choose_compute

    run = given.out / "runs" / f"{PEER}-0"
    if (run / ALL_PAIRS).exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(given.store / "tokenizer")
    set_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    model = BertForMaskedLM(config)
    dataset = PeerRows(given.store, tokenizer.cls_token_id, tokenizer.sep_token_id)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    paradigms = read_paradigms(given.pairs or data / PAIRS)
    few = sample(paradigms, given.pairs_sample)
    curve: list[dict[str, float]] = []

    class Measure(TrainerCallback):  # type: ignore[misc]
        """Stops when the minutes are over, and measures six times on the way, while its clock stands still."""

        began = spent = 0.0
        measured = 0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began, self.spent, self.measured = time.perf_counter(), 0.0, 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = time.perf_counter()
            minutes = (now - self.began - self.spent) / 60
            control.should_training_stop = minutes >= given.minutes
            if 6 * minutes < (self.measured + 1) * given.minutes:
                return
            self.measured += 1
            model.save_pretrained(run / "model")
            tokenizer.save_pretrained(run / "model")
            mean = score_paradigms(open_scorer(run / "model"), few).figures()["metrics"]
            curve.append({"minutes": minutes, "pairs": mean["accuracy"]})
            self.spent += time.perf_counter() - now

    def train(steps: int, callbacks: list[Any]) -> None:
        arguments = TrainingArguments(
            output_dir=str(run / "trainer"),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            warmup_steps=steps // 20,
            weight_decay=0.01,
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
            bf16=choose_compute().dtype == torch.bfloat16,
        )
        Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator, callbacks=callbacks).train()

    drawn = {name: weight.clone() for name, weight in model.state_dict().items()}
    train(5, [])
    began = time.perf_counter()
    train(PROBED, [])
    a_step = (time.perf_counter() - began) / PROBED
    model.load_state_dict(drawn)
    train(max(6, int(60 * given.minutes / a_step)), [Measure()])
    model.save_pretrained(run / "model")
    tokenizer.save_pretrained(run / "model")
    (run / "results.json").write_text(json.dumps({"curve": curve}), encoding="utf-8")
    results = score_paradigms(open_scorer(run / "model"), paradigms).figures()
    (run / ALL_PAIRS).write_text(json.dumps(results), encoding="utf-8")


class PeerRows:
    """Blocks of the store's tokens, as the example script cuts them, each between `[CLS]` and `[SEP]`."""

    def __init__(self, store: Path, cls: int, sep: int) -> None:
        import numpy as np

        from unmask.store.store import TokenStore

        opened = TokenStore(store)
        self._tokens = np.concatenate(
            [opened.tokens(index, 0, int(length)) for index, length in enumerate(opened.sizes()[0])]
        )
        self._ends = [cls], [sep]

    def __len__(self) -> int:
        return len(self._tokens) // (LENGTH - 2)

    def __getitem__(self, number: int) -> dict[str, list[int]]:
        start, (first, last) = number * (LENGTH - 2), self._ends
        return {"input_ids": [*first, *self._tokens[start : start + LENGTH - 2].tolist(), *last]}


def finetune(given: Namespace, data: Path) -> None:
    """Each finished run's model on each task, three seeds, and beside it the first run's model from random weights."""
    runs = [path.parent for path in sorted((given.out / "runs").glob(f"*-0/{ALL_PAIRS}"))]
    if not runs:
        raise SystemExit(f"{given.out}: no finished run: begin with the part `pretrain`")
    for task in given.tasks:
        files = task_files(given.out, data, task)
        for run in runs:
            for start in ("pretrained", "random") if run == runs[0] else ("pretrained",):
                out = given.out / "scores" / f"{run.name}-{task}-{start}"
                if not (out / "summary.json").exists():
                    begins = ["from_scratch=true"] if start == "random" else []
                    unmask(
                        *(
                            "finetune",
                            f"finetune/{task}",
                            f"init_from={run / 'model'}",
                            *files,
                            *TASKS[task][1],
                            *begins,
                        ),
                        *("search.restarts=3", "--out", str(out), "--resume"),
                    )


def task_files(out: Path, data: Path, task: str) -> list[str]:
    folder, names = data / "tasks" / task, PUBLISHED.get(task, ("train.tsv", "dev.tsv"))
    if task in SPLIT:
        published, folder = folder / SPLIT[task], out / "data" / task
        if not folder.exists():
            unmask("split", str(published), "--task", task, "--out", str(folder))
        names = (f"train{published.suffix}", f"dev{published.suffix}")
    return [f"data.{part}={folder / name}" for part, name in zip(("train", "dev"), names, strict=True)]


# ---- What came out


def curve(run: Path) -> list[tuple[float, float]]:
    """Minutes of training, and the percentage of sampled pairs that the model got right then."""
    results = json.loads((run / "results.json").read_text("utf-8"))
    if "curve" in results:
        return [(point["minutes"], point["pairs"]) for point in results["curve"]]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    points, seconds, tokens = [], 0.0, 0
    for row in rows:
        if "tokens_per_s" in row:
            seconds += (row["tokens"] - tokens) / row["tokens_per_s"]
            tokens = row["tokens"]
        if "eval/pairs_accuracy" in row:
            points.append((seconds / 60, 100 * row["eval/pairs_accuracy"]))
    return points


def scores(out: Path, run: str) -> Iterator[str]:
    for task, (figure, _) in TASKS.items():
        for start in ("pretrained", "random"):
            path = out / "scores" / f"{run}-{task}-{start}" / "summary.json"
            if path.exists():
                found = [trial["dev"][figure] for trial in json.loads(path.read_text("utf-8"))["trials"]]
                spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
                yield f"{task} {figure}{'' if start == 'pretrained' else ', random weights'}: {mean(found):.3f}{spread}"


def report(given: Namespace) -> None:
    from matplotlib.figure import Figure

    if not given.out.is_dir():
        raise SystemExit(f"{given.out}: no such folder: begin with the part `pretrain`")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines = ["| run | held-out masked loss | pairs, % | fine-tuned |", "|---|---|---|---|"]
    for path in sorted((given.out / "runs").glob(f"*/{ALL_PAIRS}")):
        run, pairs = path.parent, json.loads(path.read_text("utf-8"))["metrics"]
        results = json.loads((run / "results.json").read_text("utf-8"))
        axes.plot(*zip(*curve(run), strict=True), marker="o", markersize=4, label=run.name)
        loss = f"{results['mlm_loss']:.3f}" if "mlm_loss" in results else ""
        lines.append(f"| {run.name} | {loss} | {pairs['accuracy']:.1f} | {'; '.join(scores(given.out, run.name))} |")
    axes.set(xlabel="minutes of training", ylabel="% right", title="Pairs right against minutes")
    axes.axhline(50, color="gray", linestyle="--")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(given.out / "speedrun.png", dpi=120)
    (given.out / "speedrun.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    if given.json:
        given.json.write_text(json.dumps({"rows": lines}), encoding="utf-8")


def main() -> None:
    words = parser(__doc__)
    words.add_argument("part", choices=["pretrain", "peer", "finetune", "report"])
    words.add_argument("store", type=Path, nargs="?")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--minutes", type=float, default=30)
    words.add_argument("--recipes", nargs="+", default=RECIPES)
    words.add_argument("--change", nargs="+", default=[], metavar="NAME=KEY=VALUE")
    words.add_argument("--seeds", type=int, default=1, help="of each recipe and change")
    words.add_argument("--eval-every", type=int, default=500, help="steps")
    words.add_argument("--pairs", type=Path, help="in place of BLiMP, such as samples/pairs/ko")
    words.add_argument("--pairs-sample", type=int, default=20, help="pairs of each paradigm, along the way")
    words.add_argument("--tasks", nargs="+", choices=list(TASKS), default=ENGLISH)
    given = words.parse_args()
    if given.part == "report":
        return report(given)
    if "UNMASK_DATA" not in os.environ:
        raise SystemExit("UNMASK_DATA names no folder of large public data (docs/data.md): nothing to measure on")
    data = Path(os.environ["UNMASK_DATA"])
    if given.part == "finetune":
        return finetune(given, data)
    if given.store is None or not (given.store / "manifest.json").is_file():
        raise SystemExit("give the directory of a store, as `unmask prepare` makes it")
    given.out.mkdir(parents=True, exist_ok=True)
    return pretrain(given, data) if given.part == "pretrain" else train_peer(given, data)


if __name__ == "__main__":
    main()
