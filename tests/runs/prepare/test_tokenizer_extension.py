"""More words for a tokenizer: old ids stay, `transformers` agrees, and a model goes on with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from support.commands import write_documents
from support.files import write
from unmask.errors import InputError, OutputError, SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.encoder import Encoder
from unmask.models.hub.directory import load_model
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.table import new_objective
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.preparation import prepare
from unmask.tokenization.learning.extension import extend_tokenizer
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

transformers.utils.logging.set_verbosity_error()
pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = [
    "The patient was given a small dose at noon. 환자는 정오에 약을 먹었다. Naïve doses (0.5 mg) help; they do."
] * 3
DOMAIN = "The patient had Angioödem and thrombocytopenia; thrombocytopenias, 혈소판감소증은 noon-time."
WORDS = "Thrombocytopenia\nangioödem\n\n혈소판감소증\nnoon\nTHROMBOCYTOPENIA \nthe\n☃\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, trained on `TEXT`; `bare`, a published `vocab.txt` of the same entries; `words.txt`."""
    folder = tmp_path_factory.mktemp("extension")
    tokenizer, _ = learn_tokenizer(TEXT, TokenizerSettings(vocab_size=200, unused_slots=0))
    (folder / "old").mkdir()
    tokenizer.save(folder / "old")
    (folder / "bare").mkdir()
    (folder / "bare" / "vocab.txt").write_text("".join(f"{entry}\n" for entry in tokenizer.token_strings))
    (folder / "words.txt").write_text(WORDS, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["old", "bare"])
def test_words_come_behind_the_entries(folder: Path, tmp_path: Path, name: str) -> None:
    extension = extend_tokenizer(folder / name, folder / "words.txt", tmp_path / "new")
    before, after = load_tokenizer(folder / name), load_tokenizer(tmp_path / "new")
    korean = "혈소판감소증" if name == "old" else extension.added[2]  # Google's normaliser does not compose it again
    assert extension.added == ("thrombocytopenia", "angioodem", korean, "☃")
    assert extension.known == ("noon", "the")
    assert extension.num_repeated == 1
    assert "☃" in extension.unknown
    assert "angioodem" not in extension.unknown
    assert after.token_strings == (*before.token_strings, *extension.added, *extension.continuing)
    assert "##☃" in extension.continuing
    assert not set(extension.continuing) & set(before.token_strings)
    assert after.special_ids == before.special_ids
    assert after.template == before.template
    assert after.encode_batch(TEXT) == before.encode_batch(TEXT)
    for word in extension.added:
        [[index]] = after.encode_batch([word])
        assert after.token_strings[index] == word
    said = extension.summary()
    assert f"4 words added behind {before.vocab_size} entries" in said
    assert "2 already among the entries: noon, the" in said
    assert f"of the added could not be spelt before: {', '.join(extension.unknown)}; a model starts" in said


def test_characters_of_new_words_are_known_inside_longer_words_too(folder: Path, tmp_path: Path) -> None:
    extension = extend_tokenizer(folder / "old", write(tmp_path / "words.txt", "ㅋㅋ\n"), tmp_path / "new")
    assert (extension.added, extension.continuing) == (("ㅋㅋ",), ("##ㅋ",))
    assert "\n1 of their characters added inside words too: ##ㅋ" in extension.summary()
    after = load_tokenizer(tmp_path / "new")
    [longer, behind] = after.encode_batch(["ㅋㅋㅋㅋ", "환자ㅋㅋ"])
    assert after.tokens(longer) == ["ㅋㅋ", "##ㅋ", "##ㅋ"]
    assert after.tokens(behind)[-2:] == ["##ㅋ", "##ㅋ"]


@pytest.mark.parametrize("name", ["old", "bare"])
def test_transformers_gives_the_same_ids(folder: Path, tmp_path: Path, name: str) -> None:
    extend_tokenizer(folder / name, folder / "words.txt", tmp_path / "new")
    ours, theirs = load_tokenizer(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert len(theirs) == ours.vocab_size
    for text in (*TEXT[:1], DOMAIN, WORDS):
        [expected] = ours.encode_inputs([(text, None)])
        assert theirs(text)["input_ids"] == expected.input_ids
    thrombo = ours.token_strings.index("thrombocytopenia")
    assert ours.encode_batch([DOMAIN])[0].count(thrombo) == 2, "also at the beginning of a longer word"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("fine\ntwo words\n", "line 2: 'two words' is 'two' and 'words' to the tokenizer"),
        ("covid-19", "line 1: 'covid-19' is 'covid' and '-' and '19' to the tokenizer"),
        ("\n[MASK]", r"line 2: '\[MASK\]' is a special token"),
        ("漢字", "line 1: '漢字' is '漢' and '字' to the tokenizer"),
        ("\u0301", "is nothing to the tokenizer"),
        ("a" * 101, "line 1: a word of 101 characters, the tokenizer takes 100"),
        ("a b\n" * 7, r"7 line\(s\) cannot be added(.|\n)*line 5: .*\n\.\.\. and 2 more"),
        ("noon\nthe\n", "none of its 2 words is new"),
        ("", "none of its 0 words is new"),
        (b"fine\ncaf\xe9\n", "not UTF-8"),
    ],
)
def test_what_can_be_no_entry_is_refused(folder: Path, tmp_path: Path, lines: str | bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        extend_tokenizer(folder / "old", write(tmp_path / "words.txt", lines), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        extend_tokenizer(folder / "old", tmp_path / "nowhere.txt", tmp_path / "new")


def test_a_tokenizer_of_words_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    found, _ = train_word_tokenizer(TEXT, TokenizerSettings(kind="word", vocab_size=300))
    (tmp_path / "other").mkdir()
    found.save(tmp_path / "other")
    with pytest.raises(SettingsError, match="it takes any word as it is"):
        extend_tokenizer(tmp_path / "other", folder / "words.txt", tmp_path / "new")


# Words as added tokens, where entries come of merges


@pytest.fixture(scope="module", params=["byte_bpe", "bpe"])
def merges(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    settings = TokenizerSettings.model_validate({"kind": request.param, "vocab_size": 320})
    tokenizer, _ = learn_tokenizer(TEXT, settings)
    tokenizer.save(directory)
    (directory / "words.txt").write_text(WORDS.replace("noon\n", ""), encoding="utf-8")  # which BPE has in pieces
    return directory


def test_words_come_behind_merges_as_added_tokens(merges: Path, tmp_path: Path) -> None:
    extension = extend_tokenizer(merges, merges / "words.txt", tmp_path / "new")
    before, after = load_tokenizer(merges), load_tokenizer(tmp_path / "new")
    has_case = after.kind == "byte_bpe"
    words = ("Thrombocytopenia", "angioödem", "혈소판감소증", "THROMBOCYTOPENIA", "☃")
    assert extension.added == (words if has_case else ("thrombocytopenia", "angioodem", "혈소판감소증", "☃"))
    assert extension.known == ("the",)
    assert after.token_strings == (*before.token_strings, *extension.added)
    assert (after.special_ids, after.template) == (before.special_ids, before.template)
    other = [
        *TEXT,
        "thrombocytopenias angioödeme xThrombocytopenia nooned",
        "혈소판감소증은",
    ]  # parts of words are none
    assert after.encode_batch(other) == before.encode_batch(other)
    for index, word in enumerate(extension.added, start=before.vocab_size):
        assert after.encode_batch([word]) == [[index]]
        [inside] = after.encode_batch([f"(noon {word}, the {word})"])
        assert inside.count(index) == 2
        assert index not in after.special_ids


def test_transformers_finds_the_same_added_tokens(merges: Path, tmp_path: Path) -> None:
    """In a directory of ours, and in one that it saved after adding a word itself; twice extended."""
    theirs = AutoTokenizer.from_pretrained(merges)
    theirs.add_tokens(["mediastinum"])
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "again.txt").write_text("sepsis\n")
    for source in (merges, tmp_path / "theirs"):
        extend_tokenizer(source, merges / "words.txt", tmp_path / "first", overwrite=True)
        extend_tokenizer(tmp_path / "first", tmp_path / "again.txt", tmp_path / "new", overwrite=True)
        ours, theirs = load_tokenizer(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
        assert len(theirs) == ours.vocab_size
        for text in (*TEXT[:1], DOMAIN, WORDS, "Sepsis, sepsis of the mediastinum; Thrombocytopenia"):
            [expected] = ours.encode_inputs([(text, None)])
            assert theirs(text)["input_ids"] == expected.input_ids
        assert ours.token_strings.index("sepsis") in expected.input_ids


def test_a_roberta_of_the_hub_keeps_its_class(folder: Path, tmp_path: Path) -> None:
    """Its files beside `tokenizer.json`, and the list of added tokens in its configuration, as version 4 wrote them."""
    tokenizer, _ = learn_tokenizer(TEXT, TokenizerSettings(kind="byte_bpe", vocab_size=320))
    hub = tmp_path / "hub"
    hub.mkdir()
    tokenizer.save(hub)
    definition = json.loads((hub / "tokenizer.json").read_text())
    (hub / "vocab.json").write_text(json.dumps(definition["model"]["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in definition["model"]["merges"])]
    (hub / "merges.txt").write_text("\n".join(lines) + "\n")
    config = json.loads((hub / "tokenizer_config.json").read_text())
    listed = {str(token.pop("id")): token for token in definition["added_tokens"]}
    config |= {"tokenizer_class": "RobertaTokenizer", "added_tokens_decoder": listed}
    (hub / "tokenizer_config.json").write_text(json.dumps(config))
    extension = extend_tokenizer(hub, folder / "words.txt", tmp_path / "new")
    ours, theirs = load_tokenizer(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert type(theirs).__name__.startswith("RobertaTokenizer")
    assert len(theirs) == ours.vocab_size == tokenizer.vocab_size + len(extension.added)
    for text in (*TEXT[:1], DOMAIN, WORDS):
        [expected] = ours.encode_inputs([(text, None)])
        assert theirs(text)["input_ids"] == expected.input_ids
    extend_tokenizer(hub, folder / "words.txt", tmp_path / "new", overwrite=True)


def test_a_store_is_encoded_with_added_tokens(merges: Path, tmp_path: Path) -> None:
    extension = extend_tokenizer(merges, merges / "words.txt", tmp_path / "new")
    (tmp_path / "text.txt").write_text("\n".join(f"The {word}  is at noon." for word in extension.added * 2))
    store = prepare([tmp_path / "text.txt"], tmp_path / "new", tmp_path / "store")
    assert store.token_counts()[-len(extension.added) :].tolist() == [2] * len(extension.added)


def test_what_can_be_no_added_token_is_refused(merges: Path, tmp_path: Path) -> None:
    """Punctuation may be inside. An entry for part of a word cannot be one for a word too."""
    tokenizer = load_tokenizer(merges)
    ends = "</w>" if tokenizer.kind == "bpe" else "Ġ"
    letters = [entry for entry in tokenizer.token_strings if entry.isalpha() and ends not in entry]
    part = next(entry for entry in letters if len(tokenizer.encode_batch([entry])[0]) > 1)
    (tmp_path / "words.txt").write_text(f"covid-19\ntwo words\n{part}\n<unk>\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        extend_tokenizer(merges, tmp_path / "words.txt", tmp_path / "new")
    assert str(refused.value).splitlines()[1:] == [
        "line 2: 'two words' is 'two' and 'words' to the tokenizer",
        f"line 3: {part!r} is an entry already that stands for part of a word",
        "line 4: '<unk>' is a special token",
    ]


def test_only_a_tokenizer_is_overwritten(folder: Path, tmp_path: Path) -> None:
    extend_tokenizer(folder / "old", folder / "words.txt", tmp_path / "new")
    with pytest.raises(OutputError, match="--overwrite"):
        extend_tokenizer(folder / "old", folder / "words.txt", tmp_path / "new")
    (tmp_path / "new" / "training.json").write_text("{}")  # as `unmask tokenizer train` leaves it
    extend_tokenizer(folder / "old", folder / "words.txt", tmp_path / "new", overwrite=True)
    assert not (tmp_path / "new" / "training.json").exists()
    with pytest.raises(OutputError, match="new is needed and would be overwritten"):
        extend_tokenizer(tmp_path / "new", folder / "words.txt", tmp_path / "new", overwrite=True)
    (tmp_path / "new" / "config.json").write_text("{}")
    with pytest.raises(OutputError, match=r"config\.json"):
        extend_tokenizer(folder / "old", folder / "words.txt", tmp_path / "new", overwrite=True)


def embeddings_of(encoder: Encoder) -> torch.Tensor:
    assert isinstance(encoder, BertEncoder)
    return encoder.word_embeddings


def test_a_model_goes_on_with_new_words(
    tiny_recipe: Path, tiny_text: Path, tiny_store: Path, tmp_path: Path, without_report: None
) -> None:
    """New rows start as the mean of what the model's own tokenizer made of the words, and then learn."""
    run = tmp_path / "run"
    pretrain(str(tiny_recipe), [f"store={tiny_store}", "train.steps=2"], out=run)
    (tmp_path / "words.txt").write_text("nightingale\nserendipity\n", encoding="utf-8")
    added = extend_tokenizer(run, tmp_path / "words.txt", tmp_path / "tokenizer").added
    assert added == ("nightingale", "serendipity")
    documents = [json.loads(line)["text"] for line in tiny_text.read_text().splitlines()]
    texts = [f"{text} A nightingale sang. What serendipity it was." for text in documents]
    text = write_documents(tmp_path / "text.jsonl", texts)
    store = prepare([text], tmp_path / "tokenizer", tmp_path / "store")
    old, new = load_tokenizer(run / "model"), load_tokenizer(store.tokenizer_directory)
    assert all(store.token_counts()[old.vocab_size :] >= len(documents))

    lines = tiny_recipe.read_text().splitlines(keepends=True)
    without_sizes = "".join(line for line in lines if not line.startswith("model:"))
    recipe = write(tmp_path / "goes-on.yaml", without_sizes)
    words = [f"store={tmp_path / 'store'}", f"init_from={run / 'model'}", "train.steps=2"]
    settings = load_pretrain_recipe(str(recipe), words)
    module = build_module(open_start(settings), new_objective(settings.objective, new.vocabulary), new)
    model = load_model(run / "model")
    assert isinstance(module, MaskedLMModule)
    before, after = embeddings_of(model.encoder), embeddings_of(module.encoder)
    assert model.masked_lm_head is not None
    assert torch.equal(after[: old.vocab_size], before)
    for number, word in enumerate(added):
        [pieces] = old.encode_batch([word])
        assert len(pieces) > 1, "a word that was in pieces"
        row = old.vocab_size + number
        assert new.token_strings[row] == word
        torch.testing.assert_close(after[row], before[pieces].mean(0), rtol=0, atol=0)  # the very same sum
        bias = module.masked_lm_head.bias[row]
        torch.testing.assert_close(bias, model.masked_lm_head.bias[pieces].mean(), rtol=0, atol=0)
    result = pretrain(str(recipe), words, out=tmp_path / "goes-on")
    learned = embeddings_of(load_model(result).encoder)
    assert len(learned) == new.vocab_size
    assert not torch.equal(learned[old.vocab_size :], after[old.vocab_size :])
    assert load_tokenizer(result).token_strings == new.token_strings
