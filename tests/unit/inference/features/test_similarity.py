"""Similarities: cosines of pooled hidden states, searched in blocks that do not show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.files import write, write_rows
from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference import example_sets
from unmask.inference.features import batches as feature_batches
from unmask.inference.features.extraction import load_feature_model
from unmask.inference.features.similarity import answer_similarity, embed, similarities, unit_length

QUERIES = ["a man is outside", "two dogs"]
CORPUS = ["people wait", "a man is outside", "a dog", "", "the child plays with a ball", "a man", "people wait"]


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def plain_embedding(model: Path, text: str) -> Any:
    """The mean over the text's own tokens of the last layer of `transformers`."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
    with torch.no_grad():
        return AutoModel.from_pretrained(model).eval()(**inputs).last_hidden_state[0, 1:-1].mean(0).numpy()


def test_similarities_are_cosines(tiny_model: Path) -> None:
    pairs = [("a man is outside", "a man"), ("two dogs", "people wait"), ("a man", "a man")]
    answers = list(similarities(tiny_model, pairs))
    assert [(answer["text_a"], answer["text_b"]) for answer in answers] == pairs
    for answer, pair in zip(answers, pairs, strict=True):
        expected = cosine(*(plain_embedding(tiny_model, text) for text in pair))
        assert answer["similarity"] == pytest.approx(expected, abs=1e-5)  # float32 by two implementations
    assert answers[2]["similarity"] == pytest.approx(1, abs=1e-6)


def test_embeddings_have_length_one_unless_as_they_are(tiny_model: Path) -> None:
    vectors = embed(tiny_model, CORPUS)
    assert vectors.shape == (7, 32)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1).tolist() == pytest.approx([1, 1, 1, 0, 1, 1, 1], abs=1e-6)
    raw = embed(tiny_model, CORPUS[:2], normalise=False)
    np.testing.assert_allclose(raw[1], plain_embedding(tiny_model, CORPUS[1]), atol=1e-5)
    assert embed(tiny_model, []).shape == (0, 32)
    for layers in ("layer-1", "embeddings"):
        opened = load_feature_model(tiny_model, layers)
        np.testing.assert_array_equal(embed(opened, CORPUS[:2]), embed(tiny_model, CORPUS[:2], layers=layers))
    for name, value in {"layers": "concat-last-4", "device": "tpu", "precision": "bf16"}.items():
        with pytest.raises(SettingsError, match=f"^{name}={value}: a loaded FeatureModel has its {name}: load its dir"):
            embed(opened, CORPUS[:2], **{name: value})  # type: ignore[arg-type]


def blocks_of(size: int) -> Any:
    def windows(items: Any, **_: Any) -> Iterator[list[Any]]:
        items = iter(items)
        while block := [item for _, item in zip(range(size), items, strict=False)]:
            yield block

    return windows


def search(folder: Path, model: Path, queries: list[str], corpus: list[str], top_k: int) -> list[dict[str, Any]]:
    """What `compare` finds, for texts in two files."""
    query = write_rows(folder / "query.jsonl", *({"text": text} for text in queries))
    return list(
        answer_similarity(
            model, [], query, write_rows(folder / "c.jsonl", *({"text": text} for text in corpus)), top_k=top_k
        )
    )


def test_a_set_may_end_between_the_two_of_a_pair(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(CORPUS[first], CORPUS[second]) for first, second in ((0, 1), (1, 2), (4, 5), (0, 6), (1, 5))]
    expected = list(similarities(tiny_model, pairs))
    monkeypatch.setattr(example_sets, "MOST_CHARACTERS", 20)
    found = list(similarities(tiny_model, pairs))
    assert [(answer["text_a"], answer["text_b"]) for answer in found] == pairs
    alike = [answer["similarity"] for answer in expected]
    assert [answer["similarity"] for answer in found] == pytest.approx(alike, abs=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_search_finds_the_most_alike_in_blocks_of_any_size(
    size: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_batches, "in_sets", blocks_of(size))
    answers = search(tmp_path, tiny_model, QUERIES, CORPUS, 4)
    wanted, among = (embed(tiny_model, texts) for texts in (QUERIES, CORPUS))
    for answer, query, cosines in zip(answers, QUERIES, wanted @ among.T, strict=True):
        assert answer["query"] == query
        found = [result["index"] for result in answer["results"]]
        # "people wait" stands there twice: batches of other sizes may differ in the last bit of one of them.
        assert [CORPUS[index] for index in found] == [CORPUS[i] for i in np.argsort(-cosines, kind="stable")[:4]]
        assert [result["text"] for result in answer["results"]] == [CORPUS[index] for index in found]
        alike = [result["similarity"] for result in answer["results"]]
        assert alike == pytest.approx(cosines[found].tolist(), abs=1e-5)
    assert answers[0]["results"][0]["index"] == 1


def test_search_holds_no_more_than_it_found(tiny_model: Path, tmp_path: Path) -> None:
    (answer,) = search(tmp_path, tiny_model, ["a man"], CORPUS[:2], 5)
    assert len(answer["results"]) == 2
    equal = search(tmp_path, tiny_model, ["a man"], ["people wait"] * 3, 2)
    assert [result["index"] for result in equal[0]["results"]] == [0, 1]


def test_pairs_may_be_rows(tiny_model: Path) -> None:
    (two,) = similarities(tiny_model, [("a man", "a dog")])
    row = {"text_a": "a man", "text_b": "a dog"}
    more = {**row, "id": 7, "text": "both"}
    assert list(similarities(tiny_model, [row, more, ["a man", "a dog"]])) == [two, {"id": 7, **two}, two]


@pytest.mark.parametrize(
    "given",
    ["ab", b"ab", {"a man": "a dog"}, SimpleNamespace(columns=["ab", "cd"]), 5],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_list_is_not_taken_apart(given: Any, tiny_model: Path) -> None:
    found = f"found a {type(given).__name__}: expected a list of"
    with pytest.raises(InputError, match=rf"{found} texts, such as \["):
        embed(tiny_model, given)
    with pytest.raises(InputError, match=rf"{found} pairs, such as \["):
        similarities(tiny_model, given)


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("ab", "pair 2 is 'ab': expected two texts, or a row with text_a and text_b"),
        (("a", "b", "c"), r"pair 2 is .*: expected two texts"),
        (5, "pair 2 is '5': expected two texts"),
        (("a", 5), "pair 2: text_b is 5: expected a text"),
        ({"a": "x", 0: "y"}, r"pair 2 is .*: expected two texts, or a row with text_a and text_b"),
        ({"text_a": "a"}, r"pair 2 is .*: expected two texts, or a row with text_a and text_b"),
    ],
)
def test_the_number_of_a_wrong_pair_is_told(pair: Any, told: str, tiny_model: Path) -> None:
    with pytest.raises(InputError, match=told):
        list(similarities(tiny_model, [("a", "b"), pair]))


def test_texts_without_tokens_are_like_nothing(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    (answer,) = similarities(tiny_model, [("", "a man")])
    assert answer["similarity"] == 0
    assert "1 without any text" in caplog.text


def test_a_model_that_computes_nothing_finite_is_refused(tiny_model: Path) -> None:
    model = load_feature_model(tiny_model)
    next(model.encoder.parameters()).data[:] = float("nan")
    for pool in ("cls", "mean", "max"):
        with pytest.raises(ModelError, match="what the model computes is not finite"):
            list(embed(model, ["a man", "a dog"], pool=pool))


@pytest.mark.parametrize(
    ("value", "pool"),
    [
        *((value, pool) for value in (float("nan"), float("inf")) for pool in ("cls", "mean", "max")),
        *((float("-inf"), pool) for pool in ("cls", "mean", "mean-with-special")),
    ],
)
def test_one_text_of_many_that_is_not_finite_is_told(
    pool: str, value: float, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, states_of = load_feature_model(tiny_model), feature_batches._states

    def states(model: Any, batch: Any) -> Any:
        found = states_of(model, batch).clone()
        found[: int(batch.lengths[0]), 0] = value  # one dimension of the longest text
        return found

    monkeypatch.setattr(feature_batches, "_states", states)
    with pytest.raises(ModelError, match="what the model computes is not finite"):
        embed(model, ["a man", "a man and two dogs", "a dog"], pool=pool)


def test_vectors_of_any_length_get_length_one() -> None:
    vectors = np.array([[3, 4], [6e-7, -8e-7], [0, 0], [0, 2e15]], dtype=np.float32)
    np.testing.assert_allclose(unit_length(vectors), [[0.6, 0.8], [0.6, -0.8], [0, 0], [0, 1]], rtol=1e-6)


def test_the_commands_three_ways(tiny_model: Path, tmp_path: Path) -> None:
    (two,) = answer_similarity(tiny_model, ["a man", "a dog"])
    assert two == next(similarities(tiny_model, [("a man", "a dog")]))
    pairs = write(tmp_path / "pairs.tsv", "id\ttext_a\ttext_b\nx\ta man\ta dog\n")
    assert list(answer_similarity(tiny_model, [str(pairs)])) == [{"id": "x", **two}]
    query = write(tmp_path / "query.txt", "".join(f"{text}\n" for text in QUERIES))
    corpus = write_rows(tmp_path / "corpus.jsonl", *({"text": text} for text in CORPUS))
    assert list(answer_similarity(tiny_model, [], query, corpus, top_k=2)) == search(
        tmp_path, tiny_model, QUERIES, CORPUS, 2
    )


def test_refused(tiny_model: Path, tmp_path: Path) -> None:
    single = write(tmp_path / "single.txt", "a man\n")
    pair = write_rows(tmp_path / "pair.jsonl", {"text_a": "a", "text_b": "b"})
    for words in ([], ["a", "b", "c"]):
        with pytest.raises(SettingsError, match="give two texts, or one file of pairs"):
            answer_similarity(tiny_model, words)
    with pytest.raises(SettingsError, match="give two texts"):
        answer_similarity(tiny_model, [], single)
    with pytest.raises(InputError, match=r"single\.txt:1: a single text: expected a pair"):
        list(answer_similarity(tiny_model, [str(single)]))
    with pytest.raises(InputError, match=r"pair\.jsonl:1: a pair of texts: expected single ones"):
        answer_similarity(tiny_model, [], single, pair)
    table = write(tmp_path / "table.txt", "text\na man\n")
    with pytest.raises(InputError, match=r"table\.txt:1: read as a text, and it is the header of a table \(text\)"):
        answer_similarity(tiny_model, [], table, single)
    asked, among = write(tmp_path / "q.csv", "query\na man\n"), write(tmp_path / "c.csv", "passage\na dog\n")
    one_name = (
        r"Name it with --column text=NAME, one name for --query and --corpus; or give texts, one a line, in \.txt"
    )
    for columns, told in (({}, r"q\.csv:2: no column 'tokens'"), ({"text": "query"}, r"c\.csv:2: no column 'query'")):
        with pytest.raises(InputError, match=rf"{told}.* {one_name}$"):
            answer_similarity(tiny_model, [], asked, among, columns=columns)
    unmixed = "one of embeddings, second-to-last, last, layer-1, layer-2$"  # what two layers give, and no mixture
    for layers, told in (
        ("weighted-all", "layers=weighted-all: the weights of such a mixture are learned .*, and here is none"),
        ("weighted-last-4", "layers=weighted-last-4: the weights"),
        ("concat-last-4", "concat-last-4 needs 4 layers and the model has 2"),
        ("first", "no feature layers 'first'"),
    ):
        with pytest.raises(SettingsError, match=f"^{told}.*: .*{unmixed}"):
            answer_similarity(tiny_model, ["a", "b"], layers=layers)
    with pytest.raises(SettingsError, match=r"^layers=weighted-all-and-embeddings: the weights"):
        embed(load_feature_model(tiny_model, "weighted-all-and-embeddings"), ["a"])
    with pytest.raises(SettingsError, match="pool=none gives a vector for each token"):
        embed(tiny_model, ["a"], pool="none")
    with pytest.raises(SettingsError, match="no pool 'sum'"):
        embed(tiny_model, ["a"], pool="sum")
    with pytest.raises(SettingsError, match="top_k is 0"):
        search(tmp_path, tiny_model, ["a"], ["b"], 0)
