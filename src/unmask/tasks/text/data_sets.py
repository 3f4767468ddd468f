"""Published data sets of texts and pairs, GLUE's, their Korean counterparts and others: layouts, labels, metrics.

Wang et al. 2019 (GLUE), Park et al. 2021 (KLUE), Ham et al. 2020 (KorNLI, KorSTS). docs/architecture.md has the steps
for a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unmask.tasks.settings import ColumnSettings
from unmask.tasks.text.examples import TextFiles


@dataclass(frozen=True)
class TextDataSet:
    """A published data set of texts or pairs of texts.

    Attributes:
        files: the columns in each published form: its authors' or GLUE's files, and JSON lines or Parquet from the
            Hugging Face hub. The file of the test split may lack the label.
        labels: in the order of their ids, which is the hub's, spelt as in the published files. If they are names, a
            number in a file is read as the name with that id: the hub's exports have numbers.
        other_names: alternative names of labels in some of the published files.
        unlabelled: values that mean no label: `-` where annotators did not agree, -1 in the hub's test files; an empty
            text is an empty cell.
        primary_metric: the metric by which runs are compared; it is reported first.
        binary_from: a regression's F1 counts values of this or more as positive.
        value_range: the range of all values of a regression.
    """

    files: TextFiles
    labels: tuple[str, ...] = ()
    other_names: Mapping[str, str] = field(default_factory=dict)
    unlabelled: frozenset[str] = frozenset({"-1"})
    primary_metric: str = "accuracy"
    binary_from: float | None = None
    value_range: tuple[float, float] | None = None


def _pair(text_a: str, text_b: str, label: str = "label") -> ColumnSettings:
    return ColumnSettings(text_a=text_a, text_b=text_b, label=label)


_PREMISE = _pair("premise", "hypothesis")
_PREMISE_GOLD = _pair("premise", "hypothesis", "gold_label")
_SENTENCES = _pair("sentence1", "sentence2")
_SENTENCES_GOLD = _pair("sentence1", "sentence2", "gold_label")
_SENTENCES_SCORE = _pair("sentence1", "sentence2", "score")

INFERENCE_LABELS = ("entailment", "neutral", "contradiction")
_NO_AGREEMENT = frozenset({"-", "-1"})
_SIMILARITY = TextDataSet(
    TextFiles((_SENTENCES_SCORE, _SENTENCES)),
    unlabelled=frozenset({"-1", "-1.0"}),
    primary_metric="pearson",
    value_range=(0.0, 5.0),
)

DATA_SETS: dict[str, TextDataSet] = {
    # Warstadt et al. 2018: is a sentence acceptable (1)? Train and dev have no header: source, label, mark, sentence.
    "cola": TextDataSet(
        TextFiles((ColumnSettings(text="sentence"),), header=("source", "label", "mark", "sentence")),
        ("0", "1"),
        primary_metric="matthews_correlation",
    ),
    # Socher et al. 2013: 0 is negative, 1 positive.
    "sst2": TextDataSet(TextFiles((ColumnSettings(text="sentence"),)), ("0", "1")),
    # Dolan and Brockett 2005: 1 is a paraphrase. Its authors' own files are `.txt`.
    "mrpc": TextDataSet(
        TextFiles((_pair("#1 String", "#2 String", "Quality"), _SENTENCES), txt_format=".tsv"), ("0", "1")
    ),
    # Cer et al. 2017: how alike two sentences are, from 0 to 5.
    "stsb": _SIMILARITY,
    # Quora question pairs: 1 is a duplicate. A few questions of the published train file hold line breaks.
    "qqp": TextDataSet(
        TextFiles(
            (_pair("question1", "question2", "is_duplicate"), _pair("question1", "question2")), has_broken_rows=True
        ),
        ("0", "1"),
    ),
    # Williams et al. 2018: GLUE's files, its authors' own, and the hub's.
    "mnli": TextDataSet(
        TextFiles((_SENTENCES_GOLD, _PREMISE), txt_format=".tsv"), INFERENCE_LABELS, unlabelled=_NO_AGREEMENT
    ),
    # From SQuAD: does the sentence hold the answer?
    "qnli": TextDataSet(TextFiles((_pair("question", "sentence"),)), ("entailment", "not_entailment")),
    # The PASCAL challenges of 2005 to 2009.
    "rte": TextDataSet(TextFiles((_SENTENCES,)), ("entailment", "not_entailment")),
    # Levesque et al. 2011, as pairs: 1 is entailment.
    "wnli": TextDataSet(TextFiles((_SENTENCES,)), ("0", "1")),
    # GLUE's diagnostic set, for models of MNLI; only `diagnostic-full.tsv` has labels.
    "ax": TextDataSet(
        TextFiles((_SENTENCES, _PREMISE, _pair("Premise", "Hypothesis", "Label"))),
        INFERENCE_LABELS,
        primary_metric="matthews_correlation",
    ),
    # Bowman et al. 2015.
    "snli": TextDataSet(
        TextFiles((_PREMISE, _SENTENCES_GOLD), txt_format=".tsv"), INFERENCE_LABELS, unlabelled=_NO_AGREEMENT
    ),
    # Khot et al. 2018: `tsv_format` has no header; the `.txt` of `snli_format` are JSON lines.
    "scitail": TextDataSet(
        TextFiles((_PREMISE, _SENTENCES_GOLD), txt_format=".jsonl", header=("premise", "hypothesis", "label")),
        ("entailment", "neutral"),
        other_names={"entails": "entailment"},
        unlabelled=_NO_AGREEMENT,
    ),
    # SNLI and MNLI translated by machine for training, XNLI by people for dev and test.
    "kornli": TextDataSet(TextFiles((_SENTENCES_GOLD, _PREMISE)), INFERENCE_LABELS, unlabelled=_NO_AGREEMENT),
    # STS-B translated; from 0 to 5.
    "korsts": _SIMILARITY,
    "klue-nli": TextDataSet(TextFiles((_PREMISE_GOLD, _PREMISE)), INFERENCE_LABELS),
    # From 0 to 5, the annotators' mean (`real-label`), as in KLUE's own baseline; `label` is that to one decimal.
    "klue-sts": TextDataSet(
        TextFiles(
            tuple(_pair("sentence1", "sentence2", name) for name in ("labels.real-label", "labels.label", "label"))
        ),
        primary_metric="pearson",
        binary_from=3.0,
        value_range=(0.0, 5.0),
    ),
    # The topic of a headline: names in KLUE's own files, their numbers in the hub's.
    "klue-ynat": TextDataSet(
        TextFiles((ColumnSettings(text="title"),)),
        ("IT과학", "경제", "사회", "생활문화", "세계", "스포츠", "정치"),
        primary_metric="f1_macro",
    ),
    # Naver's film reviews: 0 is negative, 1 positive; `ratings_train.txt` is tab-separated.
    "nsmc": TextDataSet(TextFiles((ColumnSettings(text="document"),), txt_format=".tsv"), ("0", "1")),
}
