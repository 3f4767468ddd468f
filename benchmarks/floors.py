"""Claim: none of ours. The floors to compare a pre-training run with: what is reached without a model, on exactly the
held-out pairs and masks that the run is evaluated on.

Masked-LM loss and accuracy: those of its `results.json`, from the frequencies of the store's entries, and with the
token shown at the target. From counts of the training documents: with the left neighbour, a bigram model; with both
neighbours, by P(t | left) P(right | t). These back off to the frequencies by Witten and Bell's weights, and `[MASK]`
beside a target says nothing. Finally, with both neighbours and the token that is shown. A shown token other than
`[MASK]` is weighed by Bayes' rule: half of such tokens are the targets themselves.
Next-sentence accuracy: from the share of B's words that are also in A, each word counted once or by its surprisal,
with the threshold that is best on training pairs.

With `--run RUN` the recipe is that run's, and the figures of its last evaluation are shown beside the floors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from measure import Row, machine, num_cores, parser, report

if TYPE_CHECKING:
    from unmask.batch import Batch
    from unmask.packing.split import Split
    from unmask.recipe.tree import PretrainRecipe

Array = NDArray[np.float64]

TRAINING_PAIRS = 10_000
"""How many training pairs the overlap's threshold is fitted on."""
_TOKENS_AT_ONCE = 1 << 23


class Neighbours:
    """Counts of tokens and of pairs of neighbours in the training documents.

    Attributes:
        shares: (vocabulary,) float64, the frequency of each entry.
        counts: (vocabulary, vocabulary) sparse, how often an entry (row) comes before another (column).
    """

    def __init__(self, split: Split) -> None:
        from scipy.sparse import coo_array, csr_array

        size = split.store.vocab_size
        self.counts = csr_array((size, size), dtype=np.int64)
        totals = np.zeros(size, dtype=np.int64)
        for documents in _documents(split):
            tokens = np.concatenate(documents)
            totals += np.bincount(tokens, minlength=size)
            before = np.concatenate([document[:-1] for document in documents])
            after = np.concatenate([document[1:] for document in documents])
            ones = np.ones(len(before), dtype=np.int64)
            self.counts = self.counts + coo_array((ones, (before, after)), shape=(size, size)).tocsr()
        self.shares = totals / totals.sum()

    @cached_property
    def _columns(self) -> Any:
        return self.counts.tocsc()

    @cached_property
    def _row_sums(self) -> Array:
        return np.asarray(self.counts.sum(axis=1), dtype=np.float64)

    @cached_property
    def _row_kinds(self) -> Array:
        return np.diff(self.counts.indptr).astype(np.float64)

    def after(self, left: int) -> Array:
        """(vocabulary,): P(t | left) for every t; the frequencies if no document holds `left`, such as `[MASK]`."""
        row = slice(self.counts.indptr[left], self.counts.indptr[left + 1])
        seen, kinds = self._row_sums[left], self._row_kinds[left]
        if seen == 0:
            return self.shares
        probabilities = self.shares * (kinds / (seen + kinds))
        probabilities[self.counts.indices[row]] += self.counts.data[row] / (seen + kinds)
        return probabilities

    def before(self, right: int) -> Array:
        """(vocabulary,): P(right | t) for every t; ones if no document holds `right`."""
        if self.shares[right] == 0:
            return np.ones_like(self.shares)
        column = slice(self._columns.indptr[right], self._columns.indptr[right + 1])
        weights = np.maximum(self._row_sums + self._row_kinds, 1)
        backed_off = np.where(self._row_sums > 0, self._row_kinds / weights, 1.0)
        likelihoods = backed_off * self.shares[right]
        places = self._columns.indices[column]
        likelihoods[places] += self._columns.data[column] / weights[places]
        return likelihoods


def _documents(split: Split) -> Iterator[list[NDArray[Any]]]:
    """The documents of a split as token ids, some at a time."""
    documents: list[NDArray[Any]] = []
    size = 0
    for index in range(split.store.num_documents):
        if index in split:
            documents.append(split.store.document(index).tokens)
            size += len(documents[-1])
            if size >= _TOKENS_AT_ONCE:
                yield documents
                documents, size = [], 0
    if documents:
        yield documents


@dataclass(frozen=True)
class MaskedFigures:
    """A model's mean loss in nats over the targets, and its share of correct guesses."""

    loss: float
    accuracy: float


def masked_floors(
    neighbours: Neighbours, batches: Sequence[Batch], mask_id: int, kept_prob: float, random_probs: Array
) -> dict[str, MaskedFigures]:
    """The masked-LM floors of who sees neighbours, on prepared batches, by name."""
    names = "left neighbour", "both neighbours", "both neighbours and the token shown"
    losses: dict[str, float] = dict.fromkeys(names, 0.0)
    right_guesses = dict.fromkeys(names, 0)
    num_targets = 0
    for batch in batches:
        ids = batch.input_ids.numpy()
        for place in batch.columns["target_positions"].tolist():
            num_targets += 1
            label, shown = int(batch.columns["labels"][place]), int(ids[place])
            left = neighbours.after(int(ids[place - 1]))
            both = left * neighbours.before(int(ids[place + 1]))
            both /= both.sum()
            both_shown = both if shown == mask_id else with_shown(both, shown, kept_prob, random_probs)
            for name, probabilities in zip(names, (left, both, both_shown), strict=True):
                losses[name] -= float(np.log(max(probabilities[label], 1e-12)))
                right_guesses[name] += int(probabilities.argmax()) == label
    return {name: MaskedFigures(losses[name] / num_targets, right_guesses[name] / num_targets) for name in names}


def with_shown(probabilities: Array, shown: int, kept_prob: float, random_probs: Array) -> Array:
    """The probabilities of the original token once something other than `[MASK]` is seen in its place.

    What is seen is the original with `kept_prob`, and each random entry with its own probability in `random_probs`.
    """
    posterior = probabilities * random_probs[shown]
    posterior[shown] += probabilities[shown] * kept_prob
    return posterior / posterior.sum()


@dataclass(frozen=True)
class Overlaps:
    """Pairs: how much of B is also in A, from 0 to 1, and whether B follows A."""

    shares: Array
    is_next: NDArray[np.bool_]

    def best_threshold(self) -> float:
        """The share above which to say "it follows" so as to be right most often."""
        order = np.argsort(self.shares)
        shares, is_next = self.shares[order], self.is_next[order]
        right = np.concatenate([[0], np.cumsum(~is_next)]) + np.concatenate([np.cumsum(is_next[::-1])[::-1], [0]])
        cuts = np.concatenate([[-1.0], shares])
        can_cut = np.concatenate([cuts[:-1] < cuts[1:], [True]])
        return float(cuts[np.argmax(np.where(can_cut, right, -1))])

    def accuracy(self, threshold: float) -> float:
        return float(np.mean((self.shares > threshold) == self.is_next))


def overlaps(
    batches: Sequence[Batch], continuation: NDArray[np.bool_], weigh: Callable[[tuple[int, ...]], float]
) -> Overlaps:
    """How much of each pair's B is also in its A, as the model sees them: without targets."""
    shares, is_next = [], []
    for batch in batches:
        ids, types = batch.input_ids.numpy(), batch.token_type_ids.numpy()
        hidden = batch.columns["special_tokens_mask"].numpy() | (batch.columns["labels"].numpy() >= 0)
        for start, end in zip(batch.bounds[:-1].tolist(), batch.bounds[1:].tolist(), strict=True):
            of_sequence = slice(start, end)
            a, b = (
                set(words(ids[of_sequence][segment], hidden[of_sequence][segment], continuation))
                for segment in (types[of_sequence] == 0, types[of_sequence] == 1)
            )
            total = sum(map(weigh, b))
            shares.append(sum(map(weigh, a & b)) / total if total else 0.0)
        is_next.extend((batch.columns["next_sentence_label"] == 0).tolist())
    return Overlaps(np.array(shares), np.array(is_next))


def words(
    ids: NDArray[np.int64], hidden: NDArray[np.bool_], continuation: NDArray[np.bool_]
) -> Iterator[tuple[int, ...]]:
    """The words of a segment, each as its pieces; a word with a hidden piece is left out."""
    begins = np.flatnonzero(~continuation[ids])
    for start, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        if not hidden[start:end].any():
            yield tuple(ids[start:end].tolist())


def last_evaluation(run: Path) -> dict[str, float]:
    """The last row of a run's metrics that holds an evaluation, keys without `eval/`."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    evaluations = [row for row in rows if any(name.startswith("eval/") for name in row)]
    return {name.removeprefix("eval/"): value for name, value in evaluations[-1].items()} if evaluations else {}


def measure_floors(settings: PretrainRecipe, store_path: Path, figures: dict[str, float]) -> tuple[list[Row], str]:
    """Every row, and a note on what they were measured on."""
    from unmask import TokenStore, load_tokenizer
    from unmask.objectives.floors import NoContext, by_figure
    from unmask.objectives.table import new_objective
    from unmask.packing.split import Split
    from unmask.pretraining.inputs import prepare_held_out
    from unmask.pretraining.start import open_start
    from unmask.pretraining.steps import build_loader, count_targets

    store = TokenStore(store_path)
    tokenizer = load_tokenizer(store.tokenizer_directory)
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    held_out = prepare_held_out(open_start(settings), store, tokenizer, objective)
    num_targets = sum(len(batch.columns["target_positions"]) for batch in held_out)
    neighbours = Neighbours(Split(store, settings.held_out, is_held_out=False))

    loss, accuracy = figures.get("mlm_loss"), figures.get("mlm_accuracy")
    of_loss, of_accuracy = "held-out masked-LM loss", "held-out masked-LM accuracy"
    counts = count_targets(store, tokenizer)
    written = by_figure(objective.floors(counts, held_out))
    rows = [Row(of_loss, loss, name, value, unit="nats") for name, value in written["loss/mlm"].items()]
    shares = settings.objective.mask_token_prob, settings.objective.random_token_prob
    best = NoContext.of(counts, *shares, tokenizer.mask_id, tokenizer.special_ids)
    floors = masked_floors(neighbours, held_out, best.mask_id, best.kept, best.random)
    rows += [Row(of_loss, loss, name, floor.loss, unit="nats") for name, floor in floors.items()]
    rows += [Row(of_accuracy, accuracy, name, value) for name, value in written["eval/mlm_accuracy"].items()]
    rows += [Row(of_accuracy, accuracy, name, floor.accuracy) for name, floor in floors.items()]

    if settings.objective.sentence_objective == "nsp":
        phase = settings.all_phases[-1]
        loader = build_loader(open_start(settings), store, tokenizer, held_out=False, phase=phase)
        training = [objective.prepare(batch) for batch in loader.sample(TRAINING_PAIRS)]
        surprisals = -np.log(np.maximum(neighbours.shares, 1e-9))
        weights: dict[str, Callable[[tuple[int, ...]], float]] = {
            "overlap of words": lambda word: 1.0,
            "overlap of words by surprisal": lambda word: float(surprisals[list(word)].sum()),
        }
        for name, weigh in weights.items():
            threshold = overlaps(training, tokenizer.continuation, weigh).best_threshold()
            reached = overlaps(held_out, tokenizer.continuation, weigh).accuracy(threshold)
            rows.append(Row("held-out next-sentence accuracy", figures.get("nsp_accuracy"), name, reached))
    pairs = sum(batch.num_sequences for batch in held_out)
    error = (0.24 / pairs) ** 0.5
    return rows, f"{pairs:,} held-out pairs (standard error of .6: {error:.3f}) with {num_targets:,} targets"


def main() -> int:
    given_words = parser(__doc__)
    given_words.add_argument("store", type=Path, help="what `unmask prepare` made")
    given_words.add_argument("--recipe", default="pretrain/bert_mini", help="whose pairs and masks are taken")
    given_words.add_argument("--run", type=Path, help="a run on this store, in place of a recipe")
    given = given_words.parse_args()

    from unmask import TokenStore
    from unmask.recipe.loading import load_pretrain_recipe
    from unmask.training.run.resuming import compare_inputs

    if given.run is not None:
        compare_inputs(given.run, {"store": TokenStore(given.store).fingerprint()}, {"store": given.store})
    recipe = given.recipe if given.run is None else str(given.run / "recipe.yaml")
    settings = load_pretrain_recipe(recipe, [f"store={given.store}"])
    figures = last_evaluation(given.run) if given.run else {}
    rows, note = measure_floors(settings, given.store, figures)
    notes = [note]
    if figures:
        notes.append(f"ours: {given.run.name} at step {figures['step']:,}")
    report("Floors of pre-training", rows, machine(num_cores()), notes, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
