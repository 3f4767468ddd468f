"""Every system from its store to a model: interrupted = uninterrupted, bit for bit; `transformers` opens what is left.

The same of BERT, and of signals in processes of their own, is in `test_interrupted.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from support.commands import write_documents
from support.corpora import contents, learn_and_prepare, names
from support.runs import assert_same_run, losses_of, pretrain_without_report, rows_of, stop_at, weight_bytes
from unmask.batch import Batch, pack
from unmask.errors import Interrupted, ModelError, SettingsError
from unmask.inference.mask_filling import fill_mask
from unmask.models.hub.directory import load_model
from unmask.objectives.causal_lm import next_token_decoder
from unmask.pretraining.run import pretrain
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore
from unmask.training import session
from unmask.training.run import checkpoint

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

Words = tuple[str, list[str]]

SINGLE = "packing.format=single_segment"
RTD = ["objective.name=replaced_token", "model.architecture=electra", "model.embedding_size=16"]
TWO_STAGES = ["objective.schedule=two_stage", "objective.generator_size=1"]
PHASES = (
    "[{until: .5, max_length: 32, micro_batch_size: 3}, {until: 1, max_length: 64, batch_size: 4, micro_batch_size: 2}]"
)
FROM_LEFT_FIRST = "[{until: .5, causal_share: 1}, {until: 1, causal_share: 0}]"

SYSTEMS: dict[str, tuple[str, list[str]]] = {
    "bert without NSP": ("wordpiece", ["objective.sentence_objective=none", "packing.format=doc_sentences"]),
    "bert with sentence order": ("wordpiece", ["objective.sentence_objective=sop", "packing.format=sentence_pair"]),
    "spanbert": (
        "wordpiece",
        [*("objective.masking=span", "objective.span_boundary=true", "objective.sentence_objective=none"), SINGLE],
    ),
    "roberta": (
        "byte_bpe",
        [
            *("model.architecture=roberta", "model.max_position_embeddings=null"),
            *("objective.sentence_objective=none", "packing.format=full_sentences"),
        ],
    ),
    "electra": ("wordpiece", [*RTD, SINGLE]),
    "electra in two stages": ("wordpiece", [*RTD, *TWO_STAGES, SINGLE]),
    "gpt1": ("bpe", ["objective.name=causal_lm", "model.architecture=gpt1", SINGLE]),
    "left-to-right bert": ("wordpiece", ["objective.name=causal_lm", "model.causal=true"]),
    "lstm": ("bpe", ["objective.name=causal_lm", "model.architecture=lstm", "model.num_attention_heads=null", SINGLE]),
    "phases": ("wordpiece", ["model.max_position_embeddings=64", f"phases={PHASES}"]),
    "lamb, inverse square root": ("wordpiece", ["optimizer.name=lamb", "schedule.name=inverse_sqrt"]),
    "muon, warm-up, stable, decay": ("wordpiece", ["optimizer.name=muon", "schedule.name=wsd"]),
    "night": (
        "wordpiece",
        [
            *("model.architecture=modernbert", "model.zero_output_projections=true", "model.classifier_pooling=mean"),
            *("objective.sentence_objective=none", "packing.format=full_sentences", "objective.causal_share=.5"),
            *("objective.output_bias=log_frequency", "objective.target_prob=.3", "objective.target_prob_end=.15"),
            f"phases={FROM_LEFT_FIRST}",
            *("optimizer.name=muon", "schedule.name=wsd", "train.weight_averaging=.9"),
        ],
    ),
    "electra, alone at first": (
        "wordpiece",
        [*RTD, "objective.discriminator_after=.5", "objective.causal_share=.5", "train.recompute=true", SINGLE],
    ),
}
"""The tokenizer of each one's store, and what differs from the recipe in `conftest.py`: twelve steps, checkpoints after
4, 8 and 12. Phase and stage change after step 6."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path, tiny_text: Path) -> dict[str, Path]:
    """By the kind of their tokenizer."""
    stores = {"wordpiece": tiny_store}
    for kind, size in (("bpe", 200), ("byte_bpe", 300)):
        stores[kind] = learn_and_prepare(tiny_text, tmp_path_factory.mktemp(kind), kind=kind, vocab_size=size)
    return stores


@pytest.fixture(scope="module")
def runs(stores: dict[str, Path], tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each system, a run that was never interrupted."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("whole")
    return {
        system: pretrain_without_report(*words_of(system, stores, tiny_recipe), directory / system)
        for system in SYSTEMS
    }


def words_of(system: str, stores: dict[str, Path], recipe: Path) -> Words:
    """What is given to `pretrain`."""
    kind, overrides = SYSTEMS[system]
    return str(recipe), [f"store={stores[kind]}", *overrides]


# Interrupted = uninterrupted


class Killed(BaseException):
    """Nothing is saved any more."""


def kill() -> NoReturn:
    raise Killed


def stop_after(words: Words, run: Path, step: int) -> None:
    """Begins a run or goes on with it; SIGTERM comes while a step is taken."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Interrupted):
            pretrain(*words, out=run, resume=True)


def kill_at(words: Words, run: Path, step: int) -> None:
    """Begins a run or goes on with it; it ends at once while a step is taken."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, step, kill)
        with pytest.raises(Killed):
            pretrain(*words, out=run, resume=True)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_killed_stopped_and_resumed_is_the_run_that_never_stopped(
    system: str, stores: dict[str, Path], tiny_recipe: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    """Killed after step 5, it goes on from 4; it is stopped after step 6, where phases and stages change; after 9."""
    words, run = words_of(system, stores, tiny_recipe), tmp_path / "run"
    kill_at(words, run, 5)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
    stop_after(words, run, 6)
    stop_after(words, run, 9)
    pretrain(*words, out=run, resume=True)
    assert_same_run(run, runs[system])


@pytest.mark.parametrize("system", ["phases", "electra in two stages", "night", "electra, alone at first"])
def test_so_it_is_around_a_change(
    system: str, stores: dict[str, Path], tiny_recipe: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    """The first step after it, and back over it: killed after step 7, the run goes on from 5."""
    words, run = words_of(system, stores, tiny_recipe), tmp_path / "run"
    stop_after(words, run, 5)
    kill_at(words, run, 7)
    stop_after(words, run, 7)
    pretrain(*words, out=run, resume=True)
    assert_same_run(run, runs[system])


def test_different_systems_are_different_runs(runs: dict[str, Path]) -> None:
    """So that a comparison of two cannot be one of a run with itself."""
    assert len({weight_bytes(run / "model") for run in runs.values()}) == len(SYSTEMS)


# Phases and stages


def shown(words: Words, run: Path) -> list[list[tuple[int, ...]]]:
    """A run, and of each of its steps the lengths of each micro-batch's sequences."""
    steps: list[list[tuple[int, ...]]] = []
    train = session.train

    def train_and_look(module: Any, taken: Any, *others: Any, **named: Any) -> None:
        def look() -> Any:
            for step in taken:
                steps.append([batch.lengths for batch in step.batches])
                yield step

        train(module, look(), *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "train", train_and_look)
        pretrain(*words, out=run)
    return steps


def test_phases_show_what_they_say(stores: dict[str, Path], tiny_recipe: Path, tmp_path: Path) -> None:
    recipe, overrides = words_of("phases", stores, tiny_recipe)
    run = tmp_path / "run"
    steps = shown((recipe, [*overrides, "packing.short_sequence_prob=0", "train.log_every=1"]), run)
    assert [[len(lengths) for lengths in step] for step in steps] == [[3, 3, 2]] * 6 + [[2, 2]] * 6
    longest = [max(max(lengths) for lengths in step) for step in steps]
    assert longest == [32] * 6 + [64] * 6
    rows = [row for row in rows_of(run) if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 13))
    tokens = [sum(sum(lengths) for lengths in step) for step in steps]
    assert [row["tokens"] for row in rows] == [sum(tokens[: number + 1]) for number in range(12)]
    # one schedule over all of it: three steps of warm-up, then down to what is left before the last step
    rates = [0, 1 / 3, 2 / 3, *(left / 9 for left in range(9, 0, -1))]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * rate for rate in rates])
    log = (run / "log.txt").read_text()
    assert "phase 2 of 2 begins" in log
    assert "held-out sequences are as long as those of the last phase (packing.max_length=64) from the first" in log


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("phases", r"phases\.0\.until=0\.5"),
        ("electra in two stages", "stage 2 of 2, which begins at 50% of the budget"),
    ],
)
def test_a_run_in_its_second_part_keeps_its_budget(
    system: str, told: str, stores: dict[str, Path], tiny_recipe: Path, tmp_path: Path
) -> None:
    """With twice as many steps, the first part would have had all that were taken; sooner, the run may have them."""
    (recipe, overrides), run = words_of(system, stores, tiny_recipe), tmp_path / "run"
    stop_after((recipe, overrides), run, 5)
    stop_after((recipe, [*overrides, "train.steps=14"]), run, 8)
    before = contents(run)
    with pytest.raises(SettingsError, match=rf"{told}: under train\.steps=28 .*keep train\.steps=14,.*init_from={run}"):
        pretrain(recipe, [*overrides, "train.steps=28"], out=run, resume=True)
    assert contents(run) == before
    pretrain(recipe, [*overrides, "train.steps=14"], out=run, resume=True)


def test_two_stages_are_a_generator_then_a_discriminator(
    stores: dict[str, Path], tiny_recipe: Path, tmp_path: Path
) -> None:
    recipe, overrides = words_of("electra in two stages", stores, tiny_recipe)
    run = tmp_path / "run"
    pretrain(recipe, [*overrides, "train.log_every=1", "train.eval_every=6", "held_out=.3"], out=run)
    rows = [row for row in rows_of(run) if "loss" in row]
    assert ["loss/generator" in row for row in rows] == [True] * 6 + [False] * 6
    assert ["loss/discriminator" in row for row in rows] == [False] * 6 + [True] * 6
    rates = [0, 1 / 3, 2 / 3, 1, 2 / 3, 1 / 3] * 2  # a schedule of its own for each, warm-up included
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * rate for rate in rates])
    first, last = [row for row in rows_of(run) if "eval/generator_loss" in row]
    assert "eval/discriminator_loss" not in first
    assert last["eval/generator_loss"] == first["eval/generator_loss"]  # it is frozen, to the last bit
    assert 0 < last["eval/replaced_share"] < 0.16


def test_the_last_steps_of_the_first_stage_have_a_row(
    stores: dict[str, Path], tiny_recipe: Path, tmp_path: Path
) -> None:
    recipe, overrides = words_of("electra in two stages", stores, tiny_recipe)
    words, every = (recipe, [*overrides, "train.log_every=4"]), ("loss/generator", "loss/discriminator")
    pretrain(*words, out=tmp_path / "whole")
    rows = [row for row in rows_of(tmp_path / "whole") if "loss" in row]
    assert [(row["step"], *(name in row for name in every)) for row in rows] == [
        (4, True, False),
        (6, True, False),
        (8, False, True),
        (12, False, True),
    ]
    stop_after(words, tmp_path / "run", 6)
    kill_at(words, tmp_path / "run", 7)
    pretrain(*words, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_generator_fills_masks_and_its_discriminator_names_it(runs: dict[str, Path]) -> None:
    for system in ("electra", "electra in two stages"):
        generator = runs[system] / "model" / "generator"
        told = rf"\(ElectraForPreTraining\) is a discriminator of replaced tokens: .*fills masks: give {generator}$"
        with pytest.raises(ModelError, match=told):
            fill_mask(runs[system], "the [MASK] man")
        assert len(fill_mask(generator, "the [MASK] man", top_k=3)) == 3


def test_the_generator_of_a_two_stage_run_is_that_of_its_first_stage(
    stores: dict[str, Path], tiny_recipe: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    words, run = words_of("electra in two stages", stores, tiny_recipe), tmp_path / "run"
    stop_after(words, run, 6)
    after_six = load_file(run / "checkpoints" / "step-00000006" / checkpoint.WEIGHTS)
    generator = load_model(runs["electra in two stages"] / "model" / "generator").encoder.state_dict()
    for name, weight in generator.items():
        assert torch.equal(weight, after_six[f"generator.{name}"]), name
    discriminator = load_model(runs["electra in two stages"] / "model").encoder.state_dict()
    assert any(not torch.equal(weight, generator[name]) for name, weight in discriminator.items())


# Texts that are hardly any

SHORT = ["spanbert", "roberta", "electra", "gpt1", "lstm", "bert with sentence order", "phases"]


@pytest.mark.parametrize("system", SHORT)
def test_documents_shorter_than_a_span_are_read(
    system: str, stores: dict[str, Path], tiny_recipe: Path, tmp_path: Path
) -> None:
    """Of one token each, most of them; a step may then have no target at all."""
    kind, overrides = SYSTEMS[system]
    documents = ["a", "a b", "I", "we are. he is.", "no"] * 8
    texts = [f"{word} {number}"[:-2] for number, word in enumerate(documents)]
    text = write_documents(tmp_path / "short.jsonl", texts)
    prepare([text], stores[kind].parent / "tokenizer", tmp_path / "store")
    words = [f"store={tmp_path / 'store'}", *overrides, "train.log_every=1"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 12
    assert all(loss is not None for loss in losses)


# What is left opens in transformers

CLASSES: dict[str, dict[str, str]] = {
    "bert without NSP": {"": "BertForMaskedLM"},
    "bert with sentence order": {"": "BertForPreTraining"},
    "spanbert": {"": "BertForMaskedLM"},
    "roberta": {"": "RobertaForMaskedLM"},
    "electra": {"": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"},
    "electra in two stages": {"": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"},
    "electra, alone at first": {"": "ElectraForPreTraining", "generator": "ElectraForMaskedLM"},
    "night": {"": "ModernBertForMaskedLM"},
    "gpt1": {"": "OpenAIGPTLMHeadModel"},
    "left-to-right bert": {"": "BertLMHeadModel"},
}
"""Of each folder in `model/`. An LSTM has no class there."""

TOLERANCE = 1e-5
"""Logits of order 1 after two layers in fp32; measured are below 1e-6."""


def opened(class_name: str, directory: Path) -> PreTrainedModel:
    """Refuses what is missing or left over."""
    model, report = getattr(transformers, class_name).from_pretrained(directory, output_loading_info=True)
    assert not any(report.values()), report
    loaded: PreTrainedModel = model.eval()
    return loaded


def our_logits(directory: Path, batch: Batch) -> torch.Tensor:
    """(tokens, vocabulary), or (tokens,) of a discriminator."""
    loaded = load_model(directory)
    encoder = loaded.encoder.eval()
    hidden = encoder(batch)
    if loaded.discriminator_head is not None:
        return loaded.discriminator_head(hidden)
    if loaded.is_causal_lm:
        states, weight, bias = next_token_decoder(encoder, loaded.masked_lm_head, hidden)
        return nn.functional.linear(states, weight, bias)
    assert loaded.masked_lm_head is not None
    return loaded.masked_lm_head.eval()(hidden, encoder.word_embeddings)


@torch.no_grad()
@pytest.mark.parametrize(("system", "folder"), [(system, folder) for system in CLASSES for folder in CLASSES[system]])
def test_transformers_opens_it_and_computes_the_same(system: str, folder: str, runs: dict[str, Path]) -> None:
    directory = runs[system] / "model" / folder
    class_name = CLASSES[system][folder]
    assert json.loads((directory / "config.json").read_text())["architectures"] == [class_name]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("the old man went to the store and bought a gallon of milk")["input_ids"][:32]
    assert len(ids) > 10
    output = opened(class_name, directory)(input_ids=torch.tensor([ids]))
    theirs = output.prediction_logits if class_name == "BertForPreTraining" else output.logits
    ours = our_logits(directory, pack([ids]))
    assert float((ours - theirs[0]).abs().max()) < TOLERANCE
    assert float(ours.std()) > 100 * TOLERANCE  # what is compared says something


def test_what_transformers_has_no_class_for_stands_beside(runs: dict[str, Path]) -> None:
    spanbert, bert = (set(names(runs[system] / "model")) for system in ("spanbert", "bert without NSP"))
    assert spanbert - bert == {"span_boundary.safetensors"}
    assert (runs["lstm"] / "model" / "model.safetensors").exists()


def test_tied_embeddings_are_saved_with_both(runs: dict[str, Path]) -> None:
    model = runs["electra"] / "model"
    both = load_model(model).encoder, load_model(model / "generator").encoder
    assert torch.equal(both[0].word_embeddings, both[1].word_embeddings)
    assert both[0].settings.hidden_size == 4 * both[1].settings.hidden_size


def test_results_name_the_floor_of_each_loss(runs: dict[str, Path], stores: dict[str, Path]) -> None:
    for system, run in runs.items():
        results = json.loads((run / "results.json").read_text())
        vocab_size = len(TokenStore(stores[SYSTEMS[system][0]]).token_counts())
        assert any("unigram entropy" in floors for floors in results["floors"].values())
        for key, floors in results["floors"].items():
            if floors.keys() & {"chance", "share entropy", "always original"}:  # of one of two labels
                assert key.partition("/")[2].removesuffix("_accuracy") in ("nsp", "sop", "discriminator")
                assert all(0 < value < 1 for value in floors.values())
            elif key.startswith("loss/"):
                assert results[f"{key.removeprefix('loss/')}_loss"] > 0
                assert 0 < floors["unigram entropy"] < torch.log(torch.tensor(vocab_size)), (system, key)
                assert next(iter(floors.values())) <= floors["unigram entropy"]
            else:
                assert 0 <= results[key.removeprefix("eval/")] <= 1
                assert 0 < floors["no context"] < 0.5, (system, key)
