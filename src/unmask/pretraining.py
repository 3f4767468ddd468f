"""Pre-training: a store (or raw text) and a recipe to a model directory. The whole run, read from top to bottom.

What is shown to the model, and when, is a pure function of the recipe; an interrupted run that is resumed ends with the
same weights, bit for bit, as one that never stopped.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch

from unmask.batch import Batch
from unmask.data.corpus import read_documents
from unmask.data.corpus_files import find_files
from unmask.data.documents import CorpusCounts
from unmask.data.encoding import text_hash
from unmask.data.loader import LoadedStep, PairLoader, Position
from unmask.data.mixture import SUFFIXES as MIXTURE_SUFFIXES
from unmask.data.packing import PairPlanner, Split
from unmask.data.statistics import unigram_entropy
from unmask.data.store import TokenStore
from unmask.errors import InputError, SettingsError
from unmask.files import write_json
from unmask.interruption import Interruption
from unmask.models.attention import describe_attention
from unmask.models.bert import BertEncoder
from unmask.models.hub import load_encoder, load_model, save_model
from unmask.models.settings import EncoderSettings, ModelSettings
from unmask.objectives.masked_lm import MaskedLM, MaskedLMModule
from unmask.objectives.table import OBJECTIVES
from unmask.paths import model_directory
from unmask.preparation import prepare
from unmask.progress import human_count
from unmask.recipe import PretrainRecipe, load_pretrain_recipe
from unmask.report import write_report
from unmask.samples import masked_lm_samples
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.tokenizer_training import train_tokenizer
from unmask.training.checkpoint import Checkpoint, find_checkpoint
from unmask.training.device import Compute, choose_compute
from unmask.training.run_directory import opening_run
from unmask.training.run_log import RunLog, write_environment
from unmask.training.session import run_session

logger = logging.getLogger("unmask")

STATIC_COPIES = 10
"""Masked copies of the text under `masking_mode: static` (RoBERTa, section 4.1)."""


def pretrain(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    workers: int = 1,
) -> Path:
    """Pre-trains a model.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with `unmask`: `pretrain/bert_tiny`.
        overrides: `key.path=value` words, such as `corpus=my.txt` and `train.steps=1000`.
        out: the run directory; the model is in its `model/`.
        resume: True goes on from the newest sound checkpoint, and starts from nothing where there is none.
        overwrite: True replaces a run at `out`.
        workers: processes that prepare a corpus; see `unmask.prepare`.

    Returns:
        The model's directory.

    Raises:
        UserError: whatever is wrong with recipe, text, store or output. Where it is found before the first step,
            nothing has been written, and a run that was to be overwritten is as it was.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    settings = load_pretrain_recipe(recipe, overrides)
    directory = Path(out)
    compute = choose_compute(settings.device, settings.precision)
    with (
        opening_run(directory, settings, resume=resume, overwrite=overwrite, keeps=("store",)) as changes,
        RunLog(directory, echo=True),
    ):
        for change in changes:
            logger.info(change)
        write_environment(
            directory,
            recipe=recipe,
            command=sys.argv,
            seed=settings.seed,
            device=compute.describe(),
            num_threads=torch.get_num_threads(),
        )
        run = open_inputs(settings, directory, workers)
    with RunLog(directory, echo=True) as log:
        _train(settings, run, directory, compute, log)
    write_report(directory)
    return directory / "model"


@dataclass(frozen=True)
class Inputs:
    """What a run needs, opened and found to fit together.

    Attributes:
        store, tokenizer, objective: what is learnt, and how.
        module: with its first weights.
        checkpoint: what the run goes on from; None at its beginning.
        steps: the batches from there on.
        held_out: masked batches to evaluate on; none where nothing is held out.
    """

    store: TokenStore
    tokenizer: TextTokenizer
    objective: MaskedLM
    module: MaskedLMModule
    checkpoint: Checkpoint | None
    steps: Iterator[LoadedStep]
    held_out: list[Batch]


def open_inputs(settings: PretrainRecipe, directory: Path, workers: int) -> Inputs:
    """Opens whatever a run needs, made from its corpus where there is no store yet.

    The first step's batches are made too: damage to what they are read from is told before the run begins.

    Raises:
        UserError: an input is missing, damaged, or does not fit the others.
    """
    checkpoint = find_checkpoint(directory / "checkpoints")
    check_model(settings)
    store = open_store(settings, directory, workers)
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = OBJECTIVES[settings.objective.name](settings.objective, tokenizer.vocabulary)
    torch.manual_seed(settings.seed)
    module = build_module(settings, objective, tokenizer)
    steps = build_loader(settings, store, tokenizer, held_out=False).steps(
        Position() if checkpoint is None else Position(**checkpoint.state["position"])
    )
    held_out = prepare_held_out(settings, store, tokenizer, objective)
    return Inputs(store, tokenizer, objective, module, checkpoint, chain([next(steps)], steps), held_out)


def check_model(settings: PretrainRecipe) -> None:
    """Refuses sizes that contradict each other, as far as they are known before there is a tokenizer.

    Raises:
        SettingsError: such a contradiction.
        ModelError: `init_from` is no model.
    """
    if settings.init_from is not None:
        _check_positions(settings, load_encoder(model_directory(settings.init_from)).encoder.settings)
    else:
        _check_positions(settings, settings.model.resolve(settings.model.vocab_size or TokenizerSettings().vocab_size))


def open_store(settings: PretrainRecipe, directory: Path, workers: int) -> TokenStore:
    """The recipe's store, or one made from its corpus inside the run directory: tokenizer first, then the tokens."""
    if settings.store is not None:
        return TokenStore(Path(settings.store))
    assert settings.corpus is not None, "the recipe has one or the other"
    check_corpus(settings)
    tokenizer = settings.tokenizer
    if isinstance(tokenizer, TokenizerSettings):
        trained = directory / "tokenizer"
        if not trained.exists():
            _, report = train_tokenizer(
                settings.corpus,
                trained,
                tokenizer,
                seed=settings.seed,
                reading=settings.reading,
                cleaning=settings.cleaning,
            )
            logger.info("tokenizer: %s", report.summary().replace("\n", "; "))
        tokenizer = str(trained)
    _ = load_tokenizer(Path(tokenizer)).mask_id  # refuses one without before the work begins
    return prepare(
        settings.corpus,
        tokenizer,
        directory / "store",
        workers=workers,
        resume=True,
        reading=settings.reading,
        cleaning=settings.cleaning,
    )


def check_corpus(settings: PretrainRecipe) -> None:
    """Refuses a corpus of fewer than two training documents, without reading further than the second.

    Raises:
        InputError: there are fewer, or the corpus cannot be read.
    """
    assert settings.corpus is not None, "a store has been checked otherwise"
    if any(Path(path).suffix in MIXTURE_SUFFIXES for path in settings.corpus):
        return  # reading it means reading all of it, which making the store will do
    threshold = int(settings.held_out * 2**32)
    files = find_files(settings.corpus, settings.reading.format)
    documents = read_documents(files, CorpusCounts(), settings.reading, settings.cleaning)
    training = islice((document for document in documents if text_hash(document.text) >= threshold), 2)
    if (num_documents := len(list(training))) < 2:
        raise InputError(
            f"{', '.join(settings.corpus)}: {num_documents} training document(s), but segment pairs need two, since a "
            "random segment B comes from another document: give more documents (in .txt a blank line ends one), or "
            "change held_out"
        )


def _train(settings: PretrainRecipe, run: Inputs, directory: Path, compute: Compute, log: RunLog) -> None:
    module = run.module.to(compute.device)
    encoder = module.encoder.settings
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    logger.info(
        "%s parameters; %s documents, %s tokens; %s held-out sequences",
        human_count(num_parameters),
        f"{run.store.num_documents:,}",
        human_count(run.store.num_tokens),
        sum(batch.num_sequences for batch in run.held_out),
    )
    logger.info(compute.describe())
    logger.info(
        describe_attention(compute.device, compute.dtype, encoder.attention_probs_dropout_prob, encoder.head_size)
    )

    with Interruption() as interruption:
        last_evaluation = run_session(
            "pre-training",
            directory,
            module=module,
            steps=run.steps,
            prepare=run.objective.prepare,
            counts=run.objective.counts,
            settings=settings.train,
            optimizer=settings.optimizer,
            schedule=settings.schedule,
            checkpoint=run.checkpoint,
            evaluate=evaluator(module, run.held_out, compute) if run.held_out else None,
            compute=compute,
            log=log,
            interruption=interruption,
        )
        save_pretrained(module, run.tokenizer, directory / "model")
        floors = {"loss/mlm": {"unigram entropy": unigram_entropy(run.store.token_counts())}}
        write_json(
            directory / "results.json",
            {**last_evaluation, "num_parameters": num_parameters, "floors": floors},
        )
        if run.held_out:
            samples = masked_lm_samples(module, run.held_out[0].to(compute.device), run.tokenizer)
            write_json(directory / "samples.json", samples)


def build_module(settings: PretrainRecipe, objective: MaskedLM, tokenizer: TextTokenizer) -> MaskedLMModule:
    """The module to train: random weights, or those of `init_from`, whose sizes then hold.

    Raises:
        SettingsError: `init_from` has another vocabulary than the store, fewer positions than a sequence, or other
            sizes than `model.*` says.
    """
    needs_pooler = settings.objective.sentence_objective != "none"
    if settings.init_from is None:
        sizes = settings.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        _check_positions(settings, sizes)
        return objective.build(BertEncoder(sizes, pooler=needs_pooler))
    directory = model_directory(settings.init_from)
    start = load_encoder(directory, pooler=needs_pooler)
    sizes = start.encoder.settings
    _check_positions(settings, sizes)
    if sizes.vocab_size != tokenizer.vocab_size:
        raise SettingsError(
            f"init_from={settings.init_from} has {sizes.vocab_size} vocabulary entries, the store's tokenizer has "
            f"{tokenizer.vocab_size}: prepare the store with the model's tokenizer"
        )
    if has_tokenizer(directory) and load_tokenizer(directory).token_strings != tokenizer.token_strings:
        raise SettingsError(
            f"init_from={settings.init_from} has other vocabulary entries than the store's tokenizer: "
            "prepare the store with the model's tokenizer"
        )
    if settings.model != ModelSettings() and settings.model.resolve(tokenizer.vocab_size, tokenizer.pad_id) != sizes:
        raise SettingsError(f"model.* says other sizes than init_from={settings.init_from}: leave model.* out")
    if sizes.architecture != "bert":
        raise SettingsError(f"init_from={settings.init_from} is of the family {sizes.architecture}: expected bert")
    module = objective.build(start.encoder)
    heads = load_model(directory)
    module.masked_lm_head = heads.masked_lm_head or module.masked_lm_head
    if module.next_sentence_head is not None:
        module.next_sentence_head = heads.next_sentence_head or module.next_sentence_head
    return module


def has_tokenizer(directory: Path) -> bool:
    """Whether a model's directory brings its tokenizer, as those that other programs save may not."""
    return any((directory / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


def _check_positions(settings: PretrainRecipe, sizes: EncoderSettings) -> None:
    if settings.packing.max_length > sizes.num_positions:
        raise SettingsError(
            f"packing.max_length {settings.packing.max_length} is over the model's {sizes.num_positions} "
            "positions: shorten the sequences, or raise model.max_position_embeddings"
        )


def build_loader(settings: PretrainRecipe, store: TokenStore, tokenizer: TextTokenizer, held_out: bool) -> PairLoader:
    """The loader of the training documents, or of the held-out ones."""
    static = settings.objective.masking_mode == "static"
    batch_size = settings.train.batch_size
    return PairLoader(
        planner=PairPlanner(Split(store, settings.held_out, held_out), settings.packing, settings.seed),
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        batch_size=batch_size,
        micro_batch_size=settings.train.micro_batch_size or batch_size,
        plan_copies=STATIC_COPIES if static else settings.packing.copies,
        mask_copies=STATIC_COPIES if static else None,
    )


def prepare_held_out(
    settings: PretrainRecipe, store: TokenStore, tokenizer: TextTokenizer, objective: MaskedLM
) -> list[Batch]:
    """At most `train.eval_sequences` held-out sequences, masked once and for all; none of fewer than two documents."""
    split = Split(store, settings.held_out, is_held_out=True)
    if split.num_documents < 2:
        if settings.held_out > 0:
            logger.warning(
                "held_out=%s of %s documents is %s, and pairs need two: nothing is evaluated; set held_out higher",
                settings.held_out,
                f"{store.num_documents:,}",
                split.num_documents,
            )
        return []
    loader = build_loader(settings, store, tokenizer, held_out=True)
    return [objective.prepare(batch) for batch in loader.epoch(settings.train.eval_sequences)]


def evaluator(module: MaskedLMModule, batches: Sequence[Batch], compute: Compute) -> Callable[[], dict[str, float]]:
    """A function that measures the module on prepared batches: the means of its scores, and the perplexity."""

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for batch in batches:
            with compute.autocast():
                scores = module.scores(batch.to(compute.device))
            for name, (total, count) in scores.items():
                totals[name] = totals.get(name, 0.0) + float(total)
                counts[name] = counts.get(name, 0) + count
        metrics = {name: totals[name] / max(1, counts[name]) for name in totals}
        metrics["mlm_perplexity"] = math.exp(min(metrics["mlm_loss"], 700.0))  # e^710 is no float any more
        return metrics

    return evaluate


def save_pretrained(module: MaskedLMModule, tokenizer: TextTokenizer, directory: Path) -> None:
    """Writes the model directory: encoder, heads and tokenizer, as `transformers` opens them."""
    save_model(
        directory,
        module.encoder,
        masked_lm_head=module.masked_lm_head,
        next_sentence_head=module.next_sentence_head,
    )
    tokenizer.save(directory)
