"""Figures of tagging are those of seqeval, of the original conlleval, and of scikit-learn."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import accuracy_score, classification_report, f1_score
from seqeval.scheme import IOB2
from sklearn.metrics import f1_score as sklearn_f1_score

from unmask.errors import InputError
from unmask.tasks.tagging.examples import TaggingExample
from unmask.tasks.tagging.files import DATA_SETS
from unmask.tasks.tagging.metrics import TaggingScore
from unmask.tasks.tagging.schemes import Scheme

EXACT = 1e-12
"""Both compute in float64 from the same integers; only the order of a few operations differs."""

LABELS = ("O", "B-PER", "I-PER", "B-a-b", "I-a-b", "B-LOC", "I-LOC")
BILOU_LABELS = ("O", *(f"{letter}-{kind}" for kind in ("PER", "LOC") for letter in "BILU"))

any_tag = st.one_of(
    st.just("O"), st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["PER", "a-b", "LOC"]))
)
sentences = st.lists(st.lists(st.tuples(any_tag, any_tag), min_size=1, max_size=8), min_size=1, max_size=6)


def example(tags: Sequence[str], words: str | None = None, predicate: int | None = None) -> TaggingExample:
    text = "x" * len(tags) if words is None else words
    units = tuple((place, place + 1) for place in range(len(text)))
    return TaggingExample(text, units, tuple(tags), predicate, None, {}, "x:5")


def scored(score: TaggingScore, pairs: list[list[tuple[str, str]]]) -> dict[str, float]:
    for pair in pairs:  # one by one
        score.add([example([true for true, _ in pair])], [{"tags": [said for _, said in pair]}])
    return score.metrics()


@given(sentences)
def test_figures_of_entities_are_those_of_seqeval(pairs: list[list[tuple[str, str]]]) -> None:
    metrics = scored(TaggingScore(LABELS), pairs)
    true, said = ([[pair[side] for pair in sentence] for sentence in pairs] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval's, where a type is absent
        report: dict[str, Any] = classification_report(true, said, output_dict=True, zero_division=0)
        assert metrics["overall_accuracy"] == pytest.approx(accuracy_score(true, said), abs=EXACT)
    expected = {"overall": report["micro avg"]} | {name: report[name] for name in report if not name.endswith(" avg")}
    for name, figures in expected.items():
        for ours, theirs in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert metrics[f"{name}_{ours}"] == pytest.approx(figures[theirs], abs=EXACT), (name, ours)
    assert len(metrics) == 3 * len(expected) + 1


@pytest.mark.parametrize(
    ("labels", "scheme", "said", "accuracy"),
    [
        (LABELS, "IOB1", "I-PER I-PER B-PER O I-LOC", 1.0),
        (LABELS, "IOBES", "B-PER E-PER S-PER O S-LOC", 1.0),
        (LABELS, "IOBES", "B-PER L-PER U-PER O O", 0.8),
        (BILOU_LABELS, "BIO", "B-PER L-PER U-PER O U-LOC", 1.0),
        (LABELS, "BIO", "I-PER I-PER B-PER O B-LOC", 0.8),  # as seqeval counts: a mistake is one
    ],
)
def test_single_tags_are_compared_as_bio(labels: tuple[str, ...], scheme: Scheme, said: str, accuracy: float) -> None:
    score = TaggingScore(labels, scheme=scheme)
    score.add([example(["B-PER", "I-PER", "B-PER", "O", "B-LOC"])], [{"tags": said.split()}])
    assert score.metrics()["overall_accuracy"] == pytest.approx(accuracy)


klue_labels = DATA_SETS["klue-ner"].labels
klue_pairs = st.lists(
    st.lists(st.tuples(*[st.sampled_from(klue_labels[:5])] * 2), min_size=1, max_size=8), min_size=1, max_size=5
)


@given(klue_pairs)
def test_figures_of_klue_ner_are_those_of_its_tools(pairs: list[list[tuple[str, str]]]) -> None:
    """Seqeval's strict macro F1 over one long sequence, as there, where O stands between the sentences, and
    scikit-learn's over the characters."""
    metrics = scored(TaggingScore(klue_labels, characters=True), pairs)
    true, said = ([tag for sentence in pairs for tag in [*(pair[side] for pair in sentence), "O"]] for side in (0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strict = f1_score([true], [said], average="macro", mode="strict", scheme=IOB2, zero_division=0)
        characters = [[pair[side] for sentence in pairs for pair in sentence] for side in (0, 1)]
        macro = sklearn_f1_score(*characters, average="macro", zero_division=0)
    expected = 0.0 if np.isnan(strict) else strict  # no entity anywhere
    assert metrics["entity_f1_macro"] == pytest.approx(expected, abs=EXACT)
    assert metrics["character_f1_macro"] == pytest.approx(macro, abs=EXACT)


def test_blanks_among_characters_do_not_count() -> None:
    score = TaggingScore(klue_labels, characters=True)
    score.add([example(["B-PS", "I-PS", "I-PS", "O"], "가 나다")], [{"tags": ["B-PS", "O", "I-PS", "O"]}])
    metrics = score.metrics()
    assert metrics["overall_f1"] == metrics["overall_accuracy"] == metrics["character_f1_macro"] == 1.0
    words = TaggingScore(klue_labels)
    words.add([example(["B-PS", "I-PS", "I-PS", "O"], "가 나다")], [{"tags": ["B-PS", "O", "I-PS", "O"]}])
    assert words.metrics()["overall_f1"] == 0.0


@given(st.lists(st.tuples(*[st.sampled_from(["NOUN", "VERB", "X"])] * 2), min_size=1, max_size=20))
def test_figures_of_other_tags_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    metrics = scored(TaggingScore(("NOUN", "VERB", "X")), [pairs[:3], pairs[3:]])
    true, said = zip(*pairs, strict=True)
    macro = sklearn_f1_score(true, said, average="macro", zero_division=0)
    assert metrics == pytest.approx(
        {"accuracy": sum(one == other for one, other in pairs) / len(pairs), "f1_macro": macro}, abs=EXACT
    )


def test_the_predicate_itself_does_not_count_among_roles() -> None:
    score = TaggingScore(("O", "B-V", "I-V", "B-A0", "I-A0"))
    score.add([example(["B-A0", "B-V", "O"], predicate=1)], [{"tags": ["O", "B-V", "B-A0"]}])
    assert (score.metrics()["overall_f1"], score.metrics()["V_f1"]) == (0.0, 1.0)
    verbs = TaggingScore(("O", "B-V", "I-V", "B-A0", "I-A0"))
    verbs.add([example(["B-A0", "B-V", "O"])], [{"tags": ["O", "B-V", "B-A0"]}])
    assert verbs.metrics()["overall_f1"] == 0.5  # no roles: V is a type like any other


def test_an_argument_of_a_predicate_is_right_if_all_its_pieces_are() -> None:
    """Worked out by hand from the rules of CoNLL-2005's scorer."""
    labels = ("O", *(f"{letter}-{label}" for label in ("A0", "A1", "C-A1", "C-V", "V") for letter in "BI"))
    true = ["B-A1", "I-A1", "O", "B-A0", "B-V", "O", "B-C-A1", "I-C-A1"]

    def figures(said: list[str], predicate: int | None = 4) -> dict[str, float]:
        score = TaggingScore(labels)
        score.add([example(true, predicate=predicate)], [{"tags": said}])
        return score.metrics()

    assert figures(true)["overall_f1"] == 1.0
    half = figures([*true[:6], "O", "O"])  # A0 is right; A1 lacks its second piece
    assert (half["overall_f1"], half["overall_precision"], half["overall_recall"]) == (0.5, 0.5, 0.5)
    assert (half["A1_f1"], "C-A1_f1" in half) == (0.0, False)
    orphan = figures(["O", "O", "O", "B-A0", "B-V", "O", "B-C-A1", "I-C-A1"])  # counts as an A1, of other words
    assert (orphan["overall_f1"], orphan["A1_recall"]) == (0.5, 0.0)
    verb = figures([*true[:5], "B-C-V", *true[6:]])
    assert (verb["overall_f1"], verb["V_f1"]) == (1.0, 0.0)
    assert figures([*true[:6], "O", "O"], predicate=None)["overall_f1"] == pytest.approx(6 / 7)  # types as they are


def test_figures_are_those_of_the_original_conlleval(data_dir: Path) -> None:
    folder = data_dir / "reference" / "conlleval"
    score = TaggingScore(DATA_SETS["wnut17"].labels)
    blocks = (folder / "wnut17-dev-noised.tsv").read_text("utf-8").split("\n\n")
    for block in blocks:
        rows = [line.split("\t") for line in block.split("\n") if line]
        if rows:
            score.add([example([row[1] for row in rows])], [{"tags": [row[2] for row in rows]}])
    metrics = score.metrics()
    told = (folder / "expected-scores.txt").read_text("utf-8")
    figures = re.findall(r"([\w-]+)?: precision: +([\d.]+)%; recall: +([\d.]+)%; FB1: +([\d.]+)", told)
    overall = re.search(r"accuracy: +([\d.]+)%; precision: +([\d.]+)%; recall: +([\d.]+)%; FB1: +([\d.]+)", told)
    assert overall is not None
    assert len(figures) == 6
    half_a_digit = 0.005 + 1e-9  # conlleval tells two digits of a percentage
    assert 100 * metrics["overall_accuracy"] == pytest.approx(float(overall[1]), abs=half_a_digit)
    for name, *values in [*figures, ("overall", overall[2], overall[3], overall[4])]:
        for figure, value in zip(("precision", "recall", "f1"), values, strict=True):
            assert 100 * metrics[f"{name}_{figure}"] == pytest.approx(float(value), abs=half_a_digit), (name, figure)


def test_surface_forms_count_once_each() -> None:
    """True: (a, X) in two sentences, (a b, Y), (c, X). Said: (a, X), (c, Y), (a b, Y), (a b, Y) once more: 2 of 3 said
    and 2 of 3 true are right; case is told apart."""
    sentences = [
        ("a c", "B-X B-X", "B-X B-Y"),
        ("a d", "B-X O", "O O"),
        ("a b", "B-Y I-Y", "B-Y I-Y"),
        ("a b", "O O", "B-Y I-Y"),
    ]
    score = TaggingScore(("O", "B-X", "I-X", "B-Y", "I-Y"), surface_forms=True)
    for text, true, said in sentences:
        units = ((0, 1), (2, 3))
        one = TaggingExample(text, units, tuple(true.split()), None, None, {}, "x:1")
        score.add([one], [{"tags": said.split()}])
    metrics = score.metrics()
    names = ("surface_precision", "surface_recall", "surface_f1")
    assert [metrics[name] for name in names] == pytest.approx([2 / 3, 2 / 3, 2 / 3], abs=EXACT)
    assert metrics["overall_f1"] == pytest.approx(2 * 2 / (4 + 4), abs=EXACT)
    one = TaggingExample("A", ((0, 1),), ("B-X",), None, None, {}, "x:1")
    score.add([one], [{"tags": ["O"]}])
    # 2 of 3 said, 2 of 4 true.
    assert [score.metrics()[name] for name in names] == pytest.approx([2 / 3, 1 / 2, 4 / 7], abs=EXACT)
    assert "surface_f1" not in TaggingScore(LABELS).metrics()
    empty = TaggingScore(LABELS, surface_forms=True).metrics()
    assert [empty[name] for name in names] == [0.0, 0.0, 0.0]


def test_one_tag_everywhere_is_noticed() -> None:
    score = TaggingScore(LABELS)
    score.add([example(["O", "O"])], [{"tags": ["O", "O"]}])
    assert score.degenerate() is None  # there was nothing else to say
    score.add([example(["B-PER"])], [{"tags": ["O"]}])
    assert score.degenerate() == "all 3 words are tagged O"
    assert score.num_examples == 2
    score.add([example(["B-PER"])], [{"tags": ["B-PER"]}])
    assert score.degenerate() is None


def test_nothing_to_count_is_zero() -> None:
    figures = ("precision", "recall", "f1", "accuracy")
    assert TaggingScore(LABELS).metrics() == {f"overall_{figure}": 0.0 for figure in figures}
    score = TaggingScore(("NOUN", "VERB"))
    score.add([example([])], [{"tags": []}])
    assert score.metrics() == {"accuracy": 0.0, "f1_macro": 0.0}


@pytest.mark.parametrize(
    ("prediction", "told"),
    [
        ({}, "x:5: its prediction has no tags: expected a list of 2 tags, one a token"),
        ({"tags": ["O"]}, r'x:5: its prediction says tags \["O"\]: expected a list of 2 tags'),
        ({"tags": "O O"}, 'x:5: its prediction says tags "O O": expected a list'),
        ({"tags": ["O", "B-DOG"]}, 'x:5: its prediction says tag 2 "B-DOG": expected one of B-LOC, B-PER'),
        ({"tags": ["O", None]}, "x:5: its prediction has no tag 2"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(prediction: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        TaggingScore(LABELS).add([example(["O", "O"])], [prediction])
