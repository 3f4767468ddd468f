"""Settings of the fine-tuning tasks and their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import Field, field_validator, model_validator

from unmask.config import Settings, nearest
from unmask.errors import InputError
from unmask.io.input_files import STANDARD_INPUT, InputFiles, find_inputs
from unmask.io.settings import TableSettings
from unmask.tasks.kinds import FACTS, TaskKind

ClassificationGlue = Literal["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "ax"]
ClassificationOther = Literal["snli", "scitail", "kornli", "klue-nli", "klue-ynat", "nsmc"]
RegressionName = Literal["stsb", "korsts", "klue-sts"]
QaName = Literal["squad1", "squad2", "korquad1", "triviaqa", "mrqa"]
ChoiceName = Literal["swag", "race", "storycloze", "codah"]
TaggingName = Literal["wnut17", "wikigold", "wikiann", "klue-ner"]

DataSetName = Literal[ClassificationGlue, ClassificationOther, RegressionName, QaName, ChoiceName, TaggingName]

TaskName = TaskKind | DataSetName

KINDS: dict[DataSetName, TaskKind] = {
    **dict.fromkeys((*get_args(ClassificationGlue), *get_args(ClassificationOther)), "classification"),
    **dict.fromkeys(get_args(RegressionName), "regression"),
    **dict.fromkeys(get_args(QaName), "qa"),
    **dict.fromkeys(get_args(ChoiceName), "choice"),
    **dict.fromkeys(get_args(TaggingName), "tagging"),
}
"""The kind of task of each data set."""

SIMILARITY: frozenset[TaskName] = frozenset({"mrpc", "qqp", "stsb", "korsts", "klue-sts"})
"""Data sets of similarity, whose two texts have no order (GPT-1, section 3.3)."""


def kind_of(name: TaskName) -> TaskKind:
    """The kind of a task: itself, or that of a data set."""
    return KINDS[name] if name in KINDS else cast(TaskKind, name)


def wrong_name(name: str) -> str:
    """What is wrong with the name of a task, for a message, with the closest match; empty if there is such a task."""
    if name == "multi_label":
        return "there is no task 'multi_label': it is classification, which reads several labels of a text too"
    known = [*FACTS, *KINDS]
    return "" if name in known else f"there is no task {name!r}{nearest(name, known)}"


class EvaluationSettings(Settings):
    """What is measured during pre-training beside the held-out losses."""

    pairs: str | None = None
    """Minimal pairs, a file or a folder as for `unmask evaluate --pairs`: each evaluation adds the share of pairs whose
    right sentence is likelier, `eval/pairs_accuracy`, a mean over paradigms."""
    pairs_sample: int = Field(default=50, ge=1)
    """Pairs of each paradigm that are compared, at most."""


class TaskSettings(Settings):
    """What is learned from labelled examples. Settings that do not apply to the kind of task are refused."""

    name: TaskName = "classification"
    """A kind, for files with columns named by `data.columns`, or the id of a published data set."""
    max_length: int = Field(default=128, ge=4)
    """Tokens of a row, special ones included."""
    truncation: bool = True
    """True: longer inputs are cut at the end of the longer text, and counted; False: they are refused. Question
    answering and tagging read longer texts in windows, and cut nothing."""
    classifier_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the classifier, between the layers of its BiLSTM and, of ELMo, on the features that either of them
    reads; null takes the encoder's."""
    auxiliary_lm_weight: float = Field(default=0.0, ge=0)
    """Weight of the auxiliary next-token prediction, for causal encoders (GPT-1, section 3.2: 0.5)."""
    encoder_top: Literal["none", "bilstm"] = "none"
    """`bilstm`: a new BiLSTM on the encoder, trained with it, and the classifier on top (BERT, section 5.1, where it is
    used on the left-to-right model)."""
    two_orders: bool | None = None
    """Whether pairs are read in both orders and the two representations added (GPT-1, section 3.3); for causal
    encoders. Null does so for the data sets in `SIMILARITY` with encoders without segments, such as GPT-1."""

    # Classification and tagging.
    labels: list[str] | None = Field(default=None, min_length=2)
    """The labels in the order of their ids; null takes the data set's, or those of the training file, sorted."""

    # Classification.
    multi_label: bool = False
    """True: any number of labels per example, each decided independently at a probability of 0.5, or its threshold."""
    thresholds: Literal["dev"] | dict[str, Annotated[float, Field(gt=0, lt=1)]] | None = None
    """Of a multi-label task, the probability from which on each label is predicted: `dev` chooses them on the dev file,
    each for its label's F1; by label; null: 0.5."""
    label_separator: str = Field(default=",", min_length=1)
    """Separates the labels of a multi-label example in a table; JSON has lists."""

    negative_label: str | None = None
    """A label that means none of the others, such as TACRED's `no_relation`: adds precision, recall and F1 of the other
    labels together to what is measured."""
    class_weights: Literal["balanced"] | None = None
    """`balanced`: in training an example counts the more the rarer its label is, examples / (labels x examples of it);
    of several labels each by itself."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """The share of a target that is spread over all labels in training."""
    calibration: Literal["temperature"] | None = None
    """`temperature`: after training, logits are divided by the number that makes the dev file's labels most probable
    (Guo et al. 2017); the saved head answers so."""

    # Classification and regression.
    long_text: Literal["cut", "windows"] = "cut"
    """`windows`: a text over max_length is read in windows of that length, and their outputs are put together."""
    window_pooling: Literal["mean", "max", "learnt"] = "mean"
    """How windows become one: the mean of their logits or values, the largest of each; `learnt`: the head reads the sum
    of what the encoder makes of each window, weighed by how well it fits a learnt query."""

    # Windows of any kind.
    doc_stride: int = Field(default=128, ge=1)
    """Tokens from one window's beginning to the next one's. More than a window holds means all that it holds, so that
    windows are adjacent; in tagging half of it."""

    # Question answering and tagging.
    cut_pieces: bool = True
    """True: WordPiece entries that hide where more answers or entities of the training file begin or end than they show
    are no longer used, and text is cut into shorter ones; False: the model's pieces, as published."""

    # Question answering.
    max_question_length: int = Field(default=64, ge=1)
    """Most tokens of a question; longer ones are cut, and counted."""
    max_answer_length: int = Field(default=30, ge=1)
    """Most tokens of an answer."""
    n_best: int = Field(default=20, ge=1)
    """How many answers each prediction lists."""
    unanswerable: bool | None = None
    """Whether a passage may hold no answer; null takes the data set's value, or looks at the training file."""
    null_threshold: float | None = None
    """A question is answered if its best span's score exceeds the null score by more than this (tau in BERT's paper,
    section 4.3); null: chosen on the dev file for the highest F1, or 0 without a dev file."""
    answerability: bool = False
    """True: a classifier, trained with the spans, decides whether there is an answer (RoBERTa, section 3.3; see
    `unmask.tasks.qa.module`), its logit in place of the span's at `[CLS]`; needs training questions without one."""
    drop_unfound_answers: bool = False
    """True: training answers that are not in their passage are counted and left out; False: they are refused."""

    # Multiple choice.
    max_choice_length: int | None = Field(default=None, ge=1)
    """Most tokens of a choice with its question, and no more than a row holds: the end of the question is cut, then
    that of the choice, and counted; null: only contexts are cut."""

    # Tagging.
    units: Literal["words", "characters"] | None = None
    """What of a `text` gets a tag; null: words, or, where 5 % of the training file's sentences or more have entities
    that begin or end inside a word, such as Korean names before a particle, and for klue-ner, characters."""
    document_context: bool = False
    """True: the surrounding sentences fill each row on both sides, up to max_length (BERT, section 5.3)."""
    repair_tags: bool = True
    """True: an I- that continues no entity is read as a B-, and counted; False: it is refused."""
    tagging_head: Literal["linear", "bilstm"] = "linear"
    """`bilstm`: a two-layer BiLSTM on frozen features (BERT, section 5.3); needs freeze_layers: all. `linear` with
    `feature_layers` other than `last` is on such features too."""
    bilstm_size: int = Field(default=768, ge=1)
    """Units of each direction of the BiLSTM, also that of `encoder_top`; the paper's 768 whatever the encoder. Fewer
    are faster for a small encoder."""
    feature_layers: str | None = None
    """What is read of a frozen encoder that tags, or of an ELMo that classifies texts: embeddings, layer-1 and so on,
    second-to-last, last, weighted-last-4, concat-last-4, weighted-all, or weighted-all-and-embeddings (ELMo, section
    3.2). Null: last in tagging, all that ELMo mixes in classifying."""
    mixture_penalty: float = Field(default=0.0, ge=0)
    """Of a weighted mixture of layers, lambda in the loss's lambda * ||w||^2 (ELMo, section 3.3: 1 keeps the weights
    nearly alike, .001 lets them differ)."""

    @field_validator("name", mode="before")
    @classmethod
    def _is_known(cls, name: Any) -> Any:
        if isinstance(name, str) and (problem := wrong_name(name)):
            raise ValueError(problem)
        return name

    @model_validator(mode="after")
    def _each_label_once(self) -> TaskSettings:
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            twice = next(label for label in self.labels if self.labels.count(label) > 1)
            raise ValueError(f"labels names {twice!r} twice: expected every label once")
        return self

    @model_validator(mode="after")
    def _fits_the_kind(self) -> TaskSettings:
        kind = kind_of(self.name)
        for field, kinds in FIELDS_OF_KINDS.items():
            is_given = getattr(self, field) != type(self).model_fields[field].default
            if field == "feature_layers" and self.feature_layers == "last":  # what any other head reads
                is_given = False
            if is_given and kind not in kinds:
                which = kind if self.name == kind else f"{self.name}, which is {kind}"
                whose = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
                raise ValueError(f"{field} is for {whose}, not for {which}: leave it out")
        if self.negative_label is not None and self.multi_label:
            raise ValueError("negative_label is one of the labels of which a text has one: leave out multi_label")
        if self.thresholds is not None and not self.multi_label:
            raise ValueError(
                "thresholds are for labels of which a text may have many: set multi_label to true, or leave them out"
            )
        if isinstance(self.thresholds, dict) and self.calibration is not None:
            raise ValueError(
                "calibration moves the probabilities that thresholds are compared with: set thresholds to dev, or give "
                "their numbers to `unmask predict`"
            )
        of_windows = {"window_pooling": "mean", "doc_stride": 128}
        for field, usual in of_windows.items():
            if kind in FIELDS_OF_KINDS["long_text"] and self.long_text != "windows" and getattr(self, field) != usual:
                raise ValueError(
                    f"{field} is for texts that are read in windows: set long_text to windows, or leave it out"
                )
        if self.bilstm_size != 768 and "bilstm" not in (self.tagging_head, self.encoder_top):
            raise ValueError("bilstm_size is of a BiLSTM: set tagging_head or encoder_top to bilstm, or leave it out")
        top, has_top = "encoder_top bilstm", self.encoder_top == "bilstm"
        for are_both, one, other in (
            (self.max_choice_length is not None and not self.truncation, "max_choice_length", "truncation false"),
            (self.long_text == "windows" and self.two_orders, "long_text windows", "two_orders"),
            (has_top and self.window_pooling == "learnt", top, "window_pooling learnt"),
            (has_top and self.tagging_head == "bilstm", top, "tagging_head bilstm, on a frozen encoder,"),
            (has_top and self.reads_features, top, "feature_layers, of a frozen encoder,"),
            (has_top and self.answerability, top, "answerability"),
            (has_top and self.two_orders, top, "two_orders"),
        ):
            if are_both:
                raise ValueError(f"{one} and {other} do not go together: keep one of them")
        return self

    def recorded(self) -> dict[str, Any]:
        """What the `config.json` of a fine-tuned model says of them."""
        kind = kind_of(self.name)
        in_any_case = {"name", "max_length", *FACTS[kind].recorded}
        if_set = {name for name in _RECORDED_IF_SET if kind in FIELDS_OF_KINDS[name]}
        return self.model_dump(include=in_any_case) | self.model_dump(include=if_set, exclude_defaults=True)

    @property
    def reads_features(self) -> bool:
        """Whether a tagger's head reads layers of a frozen encoder, in place of one that it is trained with."""
        is_chosen = kind_of(self.name) == "tagging" and self.feature_layers not in (None, "last")
        return self.tagging_head == "bilstm" or is_chosen

    def reads_both_orders(self, num_segments: int) -> bool:
        """Whether pairs are read in both orders.

        Args:
            num_segments: `type_vocab_size` of the encoder.
        """
        if self.two_orders is not None:
            return self.two_orders
        return self.name in SIMILARITY and num_segments == 0 and self.encoder_top == "none"


FIELDS_OF_KINDS: dict[str, tuple[TaskKind, ...]] = {
    "classifier_dropout": ("classification", "regression", "choice", "tagging"),
    "auxiliary_lm_weight": ("classification", "regression", "choice"),
    "encoder_top": ("classification", "regression", "qa", "tagging"),
    "two_orders": ("classification", "regression"),
    "truncation": ("classification", "regression", "choice"),
    "labels": ("classification", "tagging"),
    "multi_label": ("classification",),
    "label_separator": ("classification",),
    "thresholds": ("classification",),
    "negative_label": ("classification",),
    "class_weights": ("classification",),
    "label_smoothing": ("classification",),
    "calibration": ("classification",),
    "long_text": ("classification", "regression"),
    "window_pooling": ("classification", "regression"),
    "doc_stride": ("classification", "regression", "qa", "tagging"),
    "max_question_length": ("qa",),
    "max_answer_length": ("qa",),
    "max_choice_length": ("choice",),
    "n_best": ("qa",),
    "unanswerable": ("qa",),
    "null_threshold": ("qa",),
    "answerability": ("qa",),
    "drop_unfound_answers": ("qa",),
    "units": ("tagging",),
    "cut_pieces": ("qa", "tagging"),
    "document_context": ("tagging",),
    "repair_tags": ("tagging",),
    "tagging_head": ("tagging",),
    "feature_layers": ("classification", "regression", "tagging"),
    "mixture_penalty": ("classification", "regression", "tagging"),
    "bilstm_size": ("classification", "regression", "qa", "tagging"),
}
"""Settings that apply only to some kinds of task."""

_RECORDED_IF_SET = (
    *("encoder_top", "two_orders", "long_text", "window_pooling", "doc_stride", "bilstm_size", "feature_layers"),
    *("multi_label", "negative_label", "answerability", "max_choice_length", "units"),
)
"""Settings of which `config.json` speaks only where they are not the usual ones."""


class ColumnSettings(Settings):
    """Names of the columns (or JSON fields) of the examples; null: as in the data set, or the name of the setting."""

    text: str | None = None
    """The one text of an example."""
    text_a: str | None = None
    """The first text of a pair."""
    text_b: str | None = None
    """The second text of a pair."""
    label: str = "label"
    """Also the number of the right choice of `choices`, and the value of a regression."""
    id: str | None = None
    """Kept beside each prediction; null keeps `id` if there is such a column."""
    question: str | None = None
    context: str | None = None
    """The passage of a question, or the text that the choices continue."""
    answers: str | None = None
    """`{"text": [...], "answer_start": [...]}`, or one answer's text."""
    choices: str | list[str] | None = None
    """The column of a JSON list, or the names of the columns that hold one choice each."""
    first_choice: int | None = Field(default=None, ge=0, le=1)
    """The number that means the first choice, in labels and in answers; null: as in the data set, else 0. Letters, A
    for the first, are read too."""
    labels: tuple[str, ...] | None = Field(default=None, min_length=2)
    """Multi-label: the columns that hold 1 or 0, one for each label and called like it."""
    tokens: str | None = None
    """The words of a sentence: a list in JSON, or a text with spaces between them. In files of one word a line the
    number of a column, from 1, or a name of CoNLL-U's (`lemma`); null: the first."""
    tags: str | None = None
    """Their tags, in the same form, or as numbers whose names `task.labels` lists; null: `tags`, or `ner_tags`; in
    files of one word a line the last column. It may hold `[[start, end, label]]` for a `text` too."""
    predicate: str | None = None
    """The number, from 0, of the word whose roles are tagged; null: none is marked."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the one or two text columns; empty if they are not given."""
        return tuple(name for name in (self.text, self.text_a, self.text_b) if name is not None)

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that hold what is learned."""
        return (self.label,) if self.labels is None else self.labels

    @model_validator(mode="after")
    def _one_or_two(self) -> ColumnSettings:
        if self.text is not None and (self.text_a is not None or self.text_b is not None):
            raise ValueError("text is for single texts, text_a and text_b for pairs: keep one or the other")
        if (self.text_a is None) != (self.text_b is None):
            raise ValueError("text_a and text_b belong together: give both")
        return self


Files = str | list[str]
"""A path, a glob, a folder of shards, or a list of these: files that are read as if they were one."""


class DataSettings(TableSettings):
    """Files of examples: .tsv and .csv with a header, .jsonl, .json, .parquet, or a data set's published form."""

    train: Files
    train_examples: int | None = Field(default=None, ge=1)
    """How many of its examples train, drawn by `seed`; of one seed, fewer are among more. null: all."""
    dev: Files | None = None
    """Measured during and after training; null measures nothing."""
    test: Files | None = None
    """Measured once, at the end."""
    columns: ColumnSettings = ColumnSettings()
    dev_columns: ColumnSettings = ColumnSettings()
    """Of dev, where they are not called as in train."""
    test_columns: ColumnSettings = ColumnSettings()
    """Of test, likewise."""

    def files(self, split: Literal["train", "dev", "test"]) -> InputFiles | None:
        """The files of a split; raises InputError as `find_inputs`, and for standard input."""
        given: Files | None = getattr(self, split)
        if given is None:
            return None
        found = find_inputs(given, TableSettings(**self.of_tables))
        if STANDARD_INPUT in found.paths:
            raise InputError(f"data.{split}=-: standard input cannot be read again: write it to a file, and give that")
        return found

    def measured(self) -> Iterator[tuple[Literal["dev", "test"], InputFiles, ColumnSettings]]:
        """The files that a model is measured on, with the columns that are called otherwise in them."""
        if (dev := self.files("dev")) is not None:
            yield "dev", dev, self.dev_columns
        if (test := self.files("test")) is not None:
            yield "test", test, self.test_columns
