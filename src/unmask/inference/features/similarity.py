"""How similar texts are: the cosine of their embeddings, for pairs, and for a query among many.

An embedding is a pool of hidden states, divided by its length: by default the mean of the last layer's, or the pool
that a directory of sentence-transformers names. An encoder that was only pre-trained gives weak embeddings: compare
cosines with each other, not with a fixed threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import ColumnError, InputError, SettingsError
from unmask.inference.coverage import Coverage
from unmask.inference.features.batches import FeatureModel, input_sets, pooled_vectors
from unmask.inference.features.extraction import load_feature_model, read_file
from unmask.inference.features.rows import FeatureInput, num_characters, read_feature_input
from unmask.inference.opening import refuse_options
from unmask.inference.task_options import NOTHING_SAID, Columns
from unmask.io.input_files import DataPath, InputFiles
from unmask.io.progress import Progress
from unmask.io.rows import Row
from unmask.models.heads.layer_mixture import CHOICES
from unmask.tasks.settings import ColumnSettings

DIGITS = 6
"""How many digits a float32 cosine keeps: with more, equal texts would seem to differ."""


def embed(
    model: str | Path | FeatureModel,
    texts: Iterable[str],
    *,
    layers: str | None = None,
    pool: str | None = None,
    normalise: bool = True,
    device: str | None = None,
    precision: str | None = None,
) -> NDArray[np.float32]:
    """Embeddings of texts, all of them in memory; for a great many, use `unmask.extract_features`.

    Args:
        model: a model's directory, that of the run that made it, or a model from
            `unmask.load_embedder` (which has its own layers, device and precision).
        layers: `embeddings`, `layer-N`, `second-to-last`, `last` (None) or `concat-last-4`.
        pool: `mean`, `max`, `cls` or `mean-with-special`; None: as sentence-transformers has saved it, else `mean`.
        normalise: True divides each by its length; the embedding of a text without a token stays zero.
        device: `auto` (None), `cpu` or `cuda`.
        precision: `fp32` (None) or `bf16`.

    Returns:
        (texts, width) float32.

    Raises:
        UserError: the model does not load, a setting is none of these, or this is no list of texts.
    """
    _check_list(texts, "texts", '["a fine film"]')
    opened = _open(model, layers, device, precision)
    parts = [vectors for _, vectors in _embedded(opened, _numbered(texts), pool, normalise)]
    return np.concatenate(parts) if parts else np.empty((0, *opened.shape), np.float32)


def load_embedder(
    model: str | Path,
    layers: str = "last",
    *,
    columns: Columns = NOTHING_SAID,
    max_length: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> FeatureModel:
    """A model from `load_feature_model`, whose arguments these are, that gives each token one vector.

    Raises:
        SettingsError: also where layers would be mixed; the message names only choices that this model can embed with.
    """
    opened = load_feature_model(model, columns=columns, max_length=max_length, device=device, precision=precision)
    return opened.with_layers(layers)


def similarities(
    model: str | Path | FeatureModel,
    pairs: Iterable[Sequence[str] | Mapping[str, Any]],
    *,
    layers: str | None = None,
    pool: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The similarity of each pair of texts, read as they are needed; the other arguments are those of `unmask.embed`.

    Args:
        pairs: of each the two texts, or a row with `text_a` and `text_b`.

    Yields:
        `{"text_a", "text_b", "similarity"}`, the last from -1 to 1; 0 where a text has no token; and the `id` of a row
        that has one.

    Raises:
        UserError: as `embed`, or one is not a pair of texts.
    """
    _check_list(pairs, "pairs", '[("a man", "a dog")]')
    rows = (_row_of_pair(pair, f"pair {number}") for number, pair in enumerate(pairs, start=1))
    read = (read_feature_input(row, [ColumnSettings(text_a="text_a", text_b="text_b")]) for row in rows)
    return _similarities(_open(model, layers, device, precision), read, pool)


def answer_similarity(
    model: str | Path,
    texts: Sequence[str | InputFiles],
    query: str | DataPath | None = None,
    corpus: str | DataPath | None = None,
    *,
    columns: Columns = NOTHING_SAID,
    top_k: int = 5,
    layers: str | None = None,
    pool: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Iterator[dict[str, Any]]:
    """What the command outputs: for two texts, for a file of pairs, or for files of queries and of a corpus.

    Args:
        texts: two texts; or one file of pairs, `.tsv`, `.csv` or `.jsonl` with `text_a` and `text_b`, or `-`; or none.
        query, corpus: files of single texts, as `unmask.inference.inputs.read_inputs` takes them, in place of `texts`.
        columns: the columns of texts in these files; see `unmask.inference.features.extraction.load_feature_model`.
        top_k: how many texts are found for each query, at least 1.

    Yields:
        What `similarities` yields; or for each query `{"query", "results": [{"text", "similarity", "index"}]}`, the
        `top_k` most similar texts of the corpus first, equally similar ones in its order; `index` is the text's number
        in the corpus, from 0. Memory holds the queries and what was found; the corpus is read once, some thousands of
        texts at a time.

    Raises:
        SettingsError: the arguments fit none of the three.
        InputError: a file cannot be read, or holds pairs where single texts are wanted, or the other way round.
    """
    given = (len(texts), query is not None, corpus is not None)
    if given not in ((2, False, False), (1, False, False), (0, True, True)):
        raise SettingsError(
            "give two texts, or one file of pairs (.tsv, .csv or .jsonl with text_a and text_b), or both "
            "--query FILE and --corpus FILE"
        )
    if len(texts) == 1 and not isinstance(texts[0], InputFiles) and texts[0] != "-" and not Path(texts[0]).exists():
        raise InputError(
            f"{texts[0]}: no such file: expected one of pairs; two texts are compared where both are given"
        )
    opened = _open(model, layers, device, precision, columns)
    if query is not None and corpus is not None:
        try:
            return iter(_search(opened, read_file(opened, query), read_file(opened, corpus), top_k, pool))
        except ColumnError as error:
            advice = (
                "Name it with --column text=NAME, one name for --query and --corpus; or give texts, one a line, in .txt"
            )
            raise ColumnError(error.problem, advice) from error
    if len(texts) == 1:
        return _similarities(opened, read_file(opened, texts[0]), pool)
    two = read_feature_input(Row({"text_a": str(texts[0]), "text_b": str(texts[1])}, "the two texts"))
    return _similarities(opened, [two], pool)


def _open(
    model: str | Path | FeatureModel,
    layers: str | None,
    device: str | None,
    precision: str | None,
    columns: Columns = NOTHING_SAID,
) -> FeatureModel:
    given: dict[str, Any] = {"layers": layers, "device": device, "precision": precision}
    if isinstance(model, FeatureModel):
        refuse_options(model, **given)
        # A single layer by its number is none of them, and may be read.
        model.with_layers(next((name for name, choice in CHOICES.items() if choice == model.choice), "last"))
        return model
    return load_embedder(model, columns=columns, **{name: value for name, value in given.items() if value is not None})


def _check_list(given: object, what: str, example: str) -> None:
    """Refuses what would be taken letter by letter, or by the names of its columns."""
    if isinstance(given, str | bytes | Mapping) or hasattr(given, "columns") or not isinstance(given, Iterable):
        raise InputError(f"found a {type(given).__name__}: expected a list of {what}, such as {example}")


def _row_of_pair(pair: object, source: str) -> Row:
    if isinstance(pair, Mapping) and "text_a" in pair and "text_b" in pair:
        return Row(pair, source)
    texts = [*pair] if isinstance(pair, Iterable) and not isinstance(pair, str | bytes | Mapping) else []
    if len(texts) != 2:
        raise InputError(f"{source} is {str(pair)[:60]!r}: expected two texts, or a row with text_a and text_b")
    return Row({"text_a": texts[0], "text_b": texts[1]}, source)


def _numbered(texts: Iterable[str]) -> Iterator[FeatureInput]:
    for number, text in enumerate(texts, start=1):
        yield read_feature_input(Row({"text": text}, f"text {number}"))


def _embedded(
    model: FeatureModel, texts: Iterable[FeatureInput], pool: str | None, normalise: bool = True
) -> Iterator[tuple[Sequence[FeatureInput], NDArray[np.float32]]]:
    """Single texts and their embeddings, set by set, of any size; at the end warns of what was cut or empty."""
    checked = model.pool_named(pool)
    coverage = Coverage(model.tokenizer, "texts")
    for part in input_sets(model, map(_single, texts), checked, coverage, num_characters):
        vectors = pooled_vectors(model, part, checked)
        yield part.inputs, unit_length(vectors) if normalise else vectors
    coverage.log()


def unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors, one a row, divided by their lengths; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=(divided := np.zeros_like(vectors)), where=lengths > 0)
    return divided


def _single(given: FeatureInput) -> FeatureInput:
    if given.text_b is not None:
        raise InputError(f"{given.source}: a pair of texts: expected single ones, in a column `text`")
    return given


def _similarities(model: FeatureModel, pairs: Iterable[FeatureInput], pool: str | None) -> Iterator[dict[str, Any]]:
    texts = chain.from_iterable(map(_two_texts, pairs))
    begun: list[tuple[FeatureInput, NDArray[np.float32]]] = []
    for part, vectors in _embedded(model, texts, pool):
        found = [*begun, *zip(part, vectors, strict=True)]
        begun = found[len(found) // 2 * 2 :]  # a set may end between the two of a pair
        whole = found[: len(found) - len(begun)]
        if whole:
            yield from compare_neighbours([text for text, _ in whole], np.stack([vector for _, vector in whole]))


def compare_neighbours(texts: Sequence[FeatureInput], vectors: NDArray[np.float32]) -> Iterator[dict[str, Any]]:
    """What `similarities` yields, for texts of which every two are a pair, and their vectors of length 1."""
    cosines = _rounded(np.einsum("ij,ij->i", vectors[::2], vectors[1::2]))
    for first, second, cosine in zip(texts[::2], texts[1::2], cosines.tolist(), strict=True):
        kept = {} if first.id is None else {"id": first.id}
        yield {**kept, "text_a": first.text_a, "text_b": second.text_a, "similarity": cosine}


def _rounded(cosines: NDArray[np.float32]) -> NDArray[np.float64]:
    return cosines.astype(np.float64).clip(-1, 1).round(DIGITS)


def _two_texts(pair: FeatureInput) -> tuple[FeatureInput, FeatureInput]:
    if pair.text_b is None:
        raise InputError(f"{pair.source}: a single text: expected a pair, in the columns text_a and text_b")
    first = FeatureInput(pair.text_a, None, None, pair.id, pair.source)
    return first, replace(first, text_a=pair.text_b)


def _search(
    model: FeatureModel, queries: Iterable[FeatureInput], corpus: Iterable[FeatureInput], top_k: int, pool: str | None
) -> list[dict[str, Any]]:
    if top_k < 1:
        raise SettingsError(f"top_k is {top_k}: expected at least 1")
    asked: list[FeatureInput] = []
    parts = []
    for part, vectors in _embedded(model, queries, pool):
        parts.append(vectors)
        asked += part
    if not asked:
        return []
    wanted = np.concatenate(parts)
    best = np.empty((len(asked), 0))
    numbers = np.empty((len(asked), 0), np.int64)
    texts: dict[int, str] = {}  # those among the best for any query
    first = 0
    with Progress("comparing", unit="texts") as progress:
        for part, vectors in _embedded(model, corpus, pool):
            found = np.concatenate([best, _rounded(wanted @ vectors.T)], axis=1)
            ids = np.concatenate(
                [numbers, np.broadcast_to(np.arange(first, first + len(part)), (len(asked), len(part)))], 1
            )
            order = np.argsort(-found, axis=1, kind="stable")[:, :top_k]  # stable: of equals the earlier comes first
            best, numbers = np.take_along_axis(found, order, 1), np.take_along_axis(ids, order, 1)
            texts = {
                number: texts[number] if number < first else part[number - first].text_a
                for number in np.unique(numbers).tolist()
            }
            first += len(part)
            progress.advance(len(part))
    return [
        {
            "query": given.text_a,
            "results": [
                {"text": texts[number], "similarity": cosine, "index": number}
                for number, cosine in zip(its.tolist(), cosines.tolist(), strict=True)
            ],
        }
        for given, its, cosines in zip(asked, numbers, best, strict=True)
    ]
