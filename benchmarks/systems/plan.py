"""What `run.py` compares, on which tasks, and where its files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NUM_POINTS = 5
"""How many checkpoints of each run are fine-tuned."""
CONTINUED_SHARE = 1 / 3
"""The text of a system that starts from another's model, beside that of those that start from random weights."""
GPT1_FINE_TUNING = ("task.auxiliary_lm_weight=0.5",)
"""L3 = L2 + .5 L1 (Radford et al. 2018, section 3.2)."""


@dataclass(frozen=True)
class System:
    """A way to pre-train.

    Attributes:
        recipe: a recipe of the size at which all are compared.
        tokenizer: a key of `TOKENIZERS`.
        settings: in place of the recipe's.
        fine_tuning: settings in place of those of a task's recipe.
        judging_sequences: more of them, for the tasks that judge whole sequences: all but SQuAD.
        tasks: those that it is measured on; all if left out.
        same_as: a system with the same model and tokenizer, whose figures for random weights are this one's too.
        continues: the system whose model this one starts from, to see a part of the same text again; that one starts
            from random weights.
    """

    recipe: str
    tokenizer: str
    settings: tuple[str, ...] = ()
    fine_tuning: tuple[str, ...] = ()
    judging_sequences: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("sst2", "mrpc", "rte", "squad1")
    same_as: str | None = None
    continues: str | None = None


TOKENIZERS: dict[str, tuple[str, ...]] = {
    "wordpiece": ("--vocab-size", "8192"),
    "byte_bpe": ("--kind", "byte_bpe", "--vocab-size", "8192"),
    "bpe": ("--kind", "bpe", "--vocab-size", "8192"),
    "word": ("--kind", "word", "--vocab-size", "50000"),
}

SYSTEMS = {
    "elmo": System(
        "elmo_mini",
        "word",
        fine_tuning=("freeze_layers=all", "task.encoder_top=bilstm", "task.bilstm_size=256"),
        tasks=("sst2", "mrpc", "rte"),
    ),
    "bert": System("bert_mini", "wordpiece"),
    "bert without nsp": System("bert_mini", "wordpiece", ("objective.sentence_objective=none",), same_as="bert"),
    "bert left-to-right": System("bert_ltr_mini", "wordpiece"),
    "roberta": System("roberta_mini", "byte_bpe"),
    "spanbert": System("spanbert_mini", "wordpiece", same_as="bert"),
    "electra": System("electra_joint_mini", "wordpiece"),
    "electra, continued": System("continued_electra_short", "wordpiece", continues="bert without nsp"),
    "gpt1": System("gpt1_mini", "bpe", judging_sequences=GPT1_FINE_TUNING),
    "lstm": System("lstm_mini", "bpe", judging_sequences=GPT1_FINE_TUNING),
}


@dataclass(frozen=True)
class Measure:
    """A task to fine-tune on: its recipe, the figure on dev, and the settings of every system."""

    recipe: str
    metric: str
    settings: tuple[str, ...]


MEASURES = {
    "sst2": Measure("sst2", "accuracy", ("optimizer.learning_rate=2e-4", "train.epochs=2")),
    "snli": Measure("snli", "accuracy", ("optimizer.learning_rate=2e-4", "train.epochs=2")),
    "mrpc": Measure("mrpc", "accuracy", ("optimizer.learning_rate=1e-4", "train.epochs=3")),
    "rte": Measure("rte", "accuracy", ("optimizer.learning_rate=1e-4", "train.epochs=3")),
    "squad1": Measure(
        "squad1",
        "f1",
        (
            *("optimizer.learning_rate=3e-4", "train.epochs=2", "train.batch_size=16"),
            *("task.max_length=128", "task.doc_stride=64"),
        ),
    ),
}
POINT_TASKS = ("sst2", "snli")


def folder_of(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def run_of(out: Path, name: str) -> Path:
    return out / "runs" / folder_of(name)


def store_of(out: Path, system: System) -> Path:
    return out / f"store-{system.tokenizer}"


def recipe_words(out: Path, system: System) -> list[str]:
    """The arguments of `unmask pretrain` and `unmask doctor`."""
    begin = [f"init_from={run_of(out, system.continues) / 'model'}"] if system.continues else []
    return [f"pretrain/{system.recipe}", f"store={store_of(out, system)}", *begin, *system.settings]


def flops_per_token(out: Path, system: System) -> float:
    """Necessary floating-point operations of pre-training, per token shown."""
    from unmask.batch import pack
    from unmask.doctor.recipe.examination import examine_recipe
    from unmask.objectives.table import new_objective
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.tokenization.opening import open_tokenizer

    name, *overrides = recipe_words(out, system)
    settings = load_pretrain_recipe(name, overrides)
    if settings.objective.reads == "words":
        tokenizer = open_tokenizer(store_of(out, system) / "tokenizer")
        objective = new_objective(settings.objective, tokenizer.vocabulary)
        sizes = settings.model.resolve(tokenizer.vocab_size)
        return objective.operations(sizes, pack([[0]]), settings.packing.max_length)
    found = examine_recipe(name, overrides, probe_s=0).figures["flops_per_token"]
    assert isinstance(found, float)
    return found


def points_of(run: Path) -> list[int]:
    """The steps of five evenly spaced checkpoints; the last is the end of the run."""
    from unmask.training.run.checkpoint import list_steps

    steps = list_steps(run / "checkpoints")
    return sorted(
        {min(steps, key=lambda step: abs(step - steps[-1] * k / NUM_POINTS)) for k in range(1, NUM_POINTS + 1)}
    )
