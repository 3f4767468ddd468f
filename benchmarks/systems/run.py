"""Claim: none about speed. Which pre-training system suits a text: all of them at one small size, on the same bytes of
the same documents; the comparison behind the table and the figure of docs/results/systems.md. Every piece of work is an
`unmask` command in its own process; finished work is kept under --out, and the same call continues where it stopped.

    python benchmarks/systems/run.py pretrain --out runs/systems --workers 2  tokenizers, stores, one run a system
    python benchmarks/systems/run.py points --out runs/systems --workers 2  five checkpoints of each, on SST-2 and SNLI
    python benchmarks/systems/run.py ends --out runs/systems --workers 2  SST-2, MRPC, RTE, a part of SQuAD, 3 seeds
    python benchmarks/systems/run.py exits --out runs/systems --workers 2  five seeds each, until it leaves its plateau
    python benchmarks/systems/run.py rates --out runs/systems  fifty steps of each with nothing beside it
    python benchmarks/systems/run.py report --out runs/systems  systems.md and two figures

SNLI is its dev file, split 9:1 by premise: premises are ordered by the SHA-256 of their text, and the first nine tenths
are for training. SST-2 is the first 10,000 examples. SQuAD 1.1 is its dev file split by article (`unmask split`), whole
articles up to 1,500 questions. Losses of different objectives, or over different vocabularies, cannot be compared;
scores can.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # `benchmarks/`, where `measure` and this folder are found

from measure import parser
from systems.exits import exits_of
from systems.plan import (
    CONTINUED_SHARE,
    MEASURES,
    NUM_POINTS,
    POINT_TASKS,
    SYSTEMS,
    TOKENIZERS,
    System,
    folder_of,
    points_of,
    recipe_words,
    run_of,
    store_of,
)
from systems.report import report

CORPUS = "corpora/enwiki-2015-core.jsonl.zst"
SEEDS, EXIT_SEEDS = 3, 5
SQUAD_QUESTIONS = 1500
SST2_EXAMPLES = 10_000


def call(words: Sequence[str], log: Path) -> None:
    """Runs an `unmask` command on one thread; its output goes to `log`.

    Raises:
        RuntimeError: it failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        done = subprocess.run([sys.executable, "-m", "unmask", *words], stdout=file, stderr=file, env=environment)
    print(f"{'done' if done.returncode == 0 else 'FAILED'}: unmask {' '.join(words)}", file=sys.stderr, flush=True)
    if done.returncode:
        raise RuntimeError(f"unmask {' '.join(words)} failed: see {log}")


def work(jobs: Iterable[tuple[Path, list[str]]], workers: int) -> None:
    """Runs the commands that have no result yet, `workers` at a time; reports at the end which have failed."""
    wanted = [(result, words) for result, words in jobs if not result.exists()]
    with ThreadPoolExecutor(workers) as pool:
        futures = [
            pool.submit(call, words, result.parents[1] / "logs" / f"{result.parent.name}.log")
            for result, words in wanted
        ]
    if failures := [str(failure) for future in futures if (failure := future.exception())]:
        raise SystemExit("\n".join(failures))


# ---- Pre-training


def text_jobs(out: Path, data: Path) -> Iterator[tuple[Path, list[str]]]:
    for name, words in TOKENIZERS.items():
        made = out / f"tokenizer-{name}"
        results = made / ("word_tokenizer.json" if name == "word" else "tokenizer.json")
        yield results, ["tokenizer", "train", str(data / CORPUS), *words, "--out", str(made)]


def store_jobs(out: Path, data: Path) -> Iterator[tuple[Path, list[str]]]:
    for name in TOKENIZERS:
        made = out / f"store-{name}"
        words = ["prepare", str(data / CORPUS), "--tokenizer", str(out / f"tokenizer-{name}"), "--out", str(made)]
        yield made / "manifest.json", [*words, "--resume"]


def num_steps(out: Path, system: System, epochs: float) -> int:
    """The steps of a run, exact enough to tell where a fifth of it ends: segment pairs show more tokens than there are,
    and many sequences are short, so the doctor plans some and counts."""
    from unmask.doctor.recipe.examination import examine_recipe
    from unmask.recipe.loading import load_pretrain_recipe

    name, *overrides = recipe_words(out, system)
    settings = load_pretrain_recipe(name, overrides)
    if settings.packing.format == "stream":  # every token once, in windows that are all full
        words = epochs * json.loads((store_of(out, system) / "manifest.json").read_text("utf-8"))["tokens"]
        return max(NUM_POINTS, int(words / (settings.train.batch_size * settings.packing.max_length)))
    steps = examine_recipe(name, [*overrides, f"train.epochs={epochs:g}"], probe_s=0).figures["steps"]
    assert isinstance(steps, float), "the recipes compared have a budget in epochs"
    return max(NUM_POINTS, int(steps))


def pretrain_jobs(out: Path, epochs: float, continued: bool) -> Iterator[tuple[Path, list[str]]]:
    """The runs that start from random weights, or those that continue from their models."""
    for name, system in SYSTEMS.items():
        if bool(system.continues) != continued:
            continue
        run, its_epochs = run_of(out, name), epochs * CONTINUED_SHARE if continued else epochs
        if (run / "results.json").exists():
            continue
        every = num_steps(out, system, its_epochs) // NUM_POINTS
        words = [
            *("pretrain", *recipe_words(out, system), f"train.epochs={its_epochs:g}"),
            *(f"train.save_every={every}", f"train.eval_every={max(1, every // 4)}", "train.eval_sequences=1000"),
            *(f"train.keep_last={2 * NUM_POINTS}", "--out", str(run), "--resume"),
        ]
        yield run / "results.json", words


def rate_jobs(out: Path) -> Iterator[tuple[Path, list[str]]]:
    """Short runs that say how many tokens a second each system takes in."""
    for name, system in SYSTEMS.items():
        run = out / "rates" / folder_of(name)
        words = ["pretrain", *recipe_words(out, system), "train.epochs=null", "train.steps=50", "train.log_every=5"]
        yield run / "results.json", [*words, "train.eval_every=null", "train.eval_sequences=1", "--out", str(run)]


# ---- Fine-tuning


def write_data(out: Path, data: Path) -> dict[str, tuple[Path, Path]]:
    """The training and dev file of each task; makes those that do not come ready."""
    folder, tasks = out / "data", data / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    with (tasks / "sst2" / "train.tsv").open(encoding="utf-8") as lines:
        (folder / "sst2.tsv").write_text("".join(islice(lines, SST2_EXAMPLES + 1)), encoding="utf-8")
    rows = [json.loads(line) for line in (tasks / "snli" / "dev.jsonl").read_text("utf-8").splitlines()]
    premises = sorted({row["premise"] for row in rows}, key=lambda text: hashlib.sha256(text.encode()).hexdigest())
    training = set(premises[: len(premises) * 9 // 10])
    for name, wanted in (("train", True), ("dev", False)):
        part = "".join(json.dumps(row) + "\n" for row in rows if (row["premise"] in training) == wanted)
        (folder / f"snli-{name}.jsonl").write_text(part, encoding="utf-8")
    if not (folder / "squad1").exists():
        published = str(tasks / "squad1" / "dev-v1.1.json")
        call(["split", published, "--task", "squad1", "--out", str(folder / "squad1")], folder / "split.log")
    articles, questions = [], 0
    for article in json.loads((folder / "squad1" / "train.json").read_text("utf-8"))["data"]:
        if questions < SQUAD_QUESTIONS:
            articles.append(article)
            questions += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
    (folder / "squad1.json").write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return {
        "sst2": (folder / "sst2.tsv", tasks / "sst2" / "dev.tsv"),
        "snli": (folder / "snli-train.jsonl", folder / "snli-dev.jsonl"),
        "mrpc": (tasks / "mrpc" / "train.tsv", tasks / "mrpc" / "dev.tsv"),
        "rte": (tasks / "rte" / "train.tsv", tasks / "rte" / "dev.tsv"),
        "squad1": (folder / "squad1.json", folder / "squad1" / "dev.json"),
    }


def finetune_words(
    system: System, task: str, model: Path, files: tuple[Path, Path], out: Path, random: bool
) -> list[str]:
    """`random`: from random weights of the model's sizes, all of which are then trained, ELMo's too."""
    measure = MEASURES[task]
    settings = [*measure.settings, *system.fine_tuning, *(() if task == "squad1" else system.judging_sequences)]
    if random:
        settings = [word for word in settings if not word.startswith("freeze_layers=")] + ["from_scratch=true"]
    return [
        *("finetune", f"finetune/{measure.recipe}", f"init_from={model}", f"data.train={files[0]}"),
        *(f"data.dev={files[1]}", *settings, "--out", str(out), "--resume"),
    ]


def checkpoint_jobs(out: Path) -> Iterator[tuple[Path, list[str]]]:
    for name in SYSTEMS:
        run = run_of(out, name)
        for step in points_of(run):
            model = out / "points" / f"{folder_of(name)}-{step}"
            words = ["checkpoint", str(run), "--step", str(step), "--out", str(model)]
            yield model / "config.json", words


def point_jobs(out: Path, files: dict[str, tuple[Path, Path]]) -> Iterator[tuple[Path, list[str]]]:
    for name, system in SYSTEMS.items():
        steps = points_of(run_of(out, name))
        for step in steps if system.same_as or system.continues else (0, *steps):
            for task in POINT_TASKS:
                model = out / "points" / f"{folder_of(name)}-{step or steps[-1]}"
                run = out / "scores" / f"{folder_of(name)}-{step}-{task}"
                yield run / "results.json", finetune_words(system, task, model, files[task], run, random=not step)


def end_jobs(out: Path, files: dict[str, tuple[Path, Path]]) -> Iterator[tuple[Path, list[str]]]:
    for name, system in SYSTEMS.items():
        for task in system.tasks:
            for arm in ["pretrained"] if system.same_as else ["pretrained", "random"]:
                run = out / "ends" / f"{folder_of(name)}-{task}-{arm}"
                model = run_of(out, name) / "model"
                command = finetune_words(system, task, model, files[task], run, random=arm == "random")
                yield run / "summary.json", [*command, f"search.restarts={SEEDS}"]


def main() -> None:
    words = parser(__doc__)
    words.add_argument("part", choices=["pretrain", "exits", "points", "ends", "rates", "report"])
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--workers", type=int, default=1, help="processes at a time, of one thread each")
    words.add_argument("--epochs", type=float, default=0.3, help="passes over the text, of each from random weights")
    words.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    given = words.parse_args()
    if given.part != "report" and "UNMASK_DATA" not in os.environ:
        raise SystemExit("UNMASK_DATA names no folder of large public data (docs/data.md): nothing to compare on")
    if given.part == "report":
        return report(given.out, given.systems)
    for name in set(SYSTEMS) - set(given.systems):
        del SYSTEMS[name]
    for name in set(TOKENIZERS) - {system.tokenizer for system in SYSTEMS.values()}:
        del TOKENIZERS[name]
    data = Path(os.environ["UNMASK_DATA"])
    if given.part in ("pretrain", "exits"):
        work(text_jobs(given.out, data), given.workers)
        work(store_jobs(given.out, data), given.workers)
    if given.part == "exits":
        return exits_of(given.out, given.systems, EXIT_SEEDS, given.workers)
    if given.part == "pretrain":
        work(pretrain_jobs(given.out, given.epochs, continued=False), given.workers)
        work(pretrain_jobs(given.out, given.epochs, continued=True), given.workers)
        return None
    if given.part == "rates":
        return work(rate_jobs(given.out), workers=1)
    files = write_data(given.out, data)
    if given.part == "points":
        work(checkpoint_jobs(given.out), given.workers)
    work((point_jobs if given.part == "points" else end_jobs)(given.out, files), given.workers)
    return None


if __name__ == "__main__":
    main()
