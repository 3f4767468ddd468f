"""The scikit-learn estimators: what they learn, how they fit into its tools, and what they say of bad input."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import estimator_checks
from transformers import AutoModelForSequenceClassification

from unmask.batch import pack
from unmask.errors import InputError, SettingsError, UserError, ValuesError
from unmask.finetuning.estimators.estimators import TextClassifier, TextRegressor
from unmask.finetuning.estimators.text_encoder import TextEncoder
from unmask.inference.features.similarity import embed
from unmask.inference.predictor import predict
from unmask.models.hub.directory import load_encoder

DOGS = ["a dog runs", "the dog sits", "a dog and a ball", "two dogs play", "a brown dog", "the dog jumps"]
MEN = ["a man runs", "the man sits", "a man and a ball", "two men play", "a young man", "the man jumps"]
TEXTS = DOGS + MEN
LABELS = ["dog"] * 6 + ["man"] * 6


def classifier(model: Path, **settings: Any) -> TextClassifier:
    usual: dict[str, Any] = {"epochs": 8, "batch_size": 4, "learning_rate": 3e-3, "max_length": 16, "precision": "fp32"}
    return TextClassifier(model, **{**usual, **settings})


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> TextClassifier:
    return classifier(tiny_model).fit(TEXTS, LABELS)


@pytest.mark.parametrize("kind", [TextClassifier, TextRegressor])
def test_help_describes_the_parameters(kind: type[TextClassifier]) -> None:
    documentation = inspect.getdoc(kind) or ""
    assert documentation.startswith("Learns ")
    assert all(f"\n    {name}: " in documentation for name in inspect.signature(kind).parameters)

    class Own(kind):  # type: ignore[valid-type, misc]
        """Of a user."""

    assert Own.__doc__ == "Of a user."


def test_what_a_program_has_set_for_torch_changes_nothing(tiny_model: Path, fitted: TextClassifier) -> None:
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode():
            other = classifier(tiny_model).fit(TEXTS, LABELS)
        assert torch.get_default_dtype() == torch.float64
        assert np.array_equal(other.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
        vectors = embed(tiny_model, TEXTS)
    finally:
        torch.set_default_dtype(torch.float32)
    assert vectors.dtype == np.float32


def test_parameters_are_the_recipes(tiny_model: Path) -> None:
    sizes = {"epochs": 2.0, "batch_size": 5, "max_length": 20, "seed": 3, "from_scratch": True}
    rates = {"warmup_ratio": 0.3, "weight_decay": 0.2, "layer_decay": 0.7, "classifier_dropout": 0.4}
    task = {"name": "classification", "labels": ["dog", "man"]}
    found = classifier(tiny_model, **sizes, **rates)._settings(["text"], task).model_dump()
    for part in ("task", "optimizer", "schedule", "train"):
        found |= found[part]
    assert {name: found[name] for name in sizes | rates} == sizes | rates


class Missing:
    """pandas.NA, as far as it matters here."""

    def __repr__(self) -> str:
        return "<NA>"

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


class Column:
    """What pandas gives for a column, as far as it matters here."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        raise AssertionError("a table's iterator yields the names of its columns")

    def to_numpy(self) -> Any:
        return np.array(self.values, dtype=object)


# ---- Learning


def test_a_classifier_learns_and_answers(fitted: TextClassifier) -> None:
    assert fitted.classes_.tolist() == ["dog", "man"]
    assert fitted.predict(TEXTS).tolist() == LABELS
    assert fitted.score(TEXTS, LABELS) == 1.0
    probabilities = fitted.predict_proba(TEXTS)
    assert probabilities.shape == (12, 2)
    assert np.abs(probabilities.sum(1) - 1).max() < 1e-15  # in doubles; in floats it would be about 1e-7
    assert (probabilities.argmax(1) == np.array(LABELS).searchsorted(LABELS) // 6).all()
    assert len(fitted.loss_curve_) == 8
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


def test_the_seed_decides_everything_and_leaves_the_generator_alone(tiny_model: Path, fitted: TextClassifier) -> None:
    before = torch.get_rng_state()
    again, other = (classifier(tiny_model, seed=seed).fit(TEXTS, LABELS) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert not np.array_equal(other.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_columns_of_arrow_are_lists(tiny_model: Path, fitted: TextClassifier) -> None:
    again = classifier(tiny_model).fit(pyarrow.array(TEXTS), pyarrow.chunked_array([LABELS[:5], LABELS[5:]]))
    assert np.array_equal(again.predict_proba(pyarrow.array(TEXTS)), fitted.predict_proba(TEXTS))


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [([3, -1], np.int64), ([True, False], np.bool_), ([("a", 1), ("b", 2)], np.object_), ([1, "x"], np.object_)],
    ids=str,
)
def test_labels_may_be_anything_that_can_be_told_apart(tiny_model: Path, labels: list[Any], dtype: type) -> None:
    y = [labels[0]] * 2 + [labels[1]] * 2
    learned = classifier(tiny_model, epochs=1).fit(TEXTS[4:8], y)
    assert learned.classes_.dtype == dtype
    assert set(learned.classes_.tolist()) == set(labels)
    assert set(learned.predict(TEXTS).tolist()) <= set(labels)


def test_numpy_labels_and_texts_keep_their_type(tiny_model: Path) -> None:
    texts, labels = np.array(TEXTS), np.array([0, 1] * 6, dtype=np.int32)
    learned = classifier(tiny_model, epochs=1).fit(texts, labels)
    assert learned.predict(texts).dtype.kind == "i"
    from_column = classifier(tiny_model, epochs=1).fit(Column(TEXTS), Column([0, 1] * 6))
    assert np.array_equal(from_column.predict_proba(Column(TEXTS)), learned.predict_proba(texts))


def test_texts_and_labels_may_be_computed_one_by_one(tiny_model: Path, fitted: TextClassifier) -> None:
    again = classifier(tiny_model).fit(iter(TEXTS), iter(LABELS))
    assert np.array_equal(again.predict_proba(iter(TEXTS)), fitted.predict_proba(TEXTS))


def test_pairs_of_texts(tiny_model: Path) -> None:
    pairs = [(text, text) for text in TEXTS]
    learned = classifier(tiny_model, max_length=32, epochs=16).fit(pairs, LABELS)
    assert learned.score(np.array(pairs), LABELS) == 1.0
    with pytest.raises(InputError, match="X holds single texts, and the model was fitted on pairs of texts"):
        learned.predict(TEXTS)


MANY = np.array([[1, 0, number % 2] for number in range(6)] + [[0, 1, number % 2] for number in range(6)])
"""About dogs, about men, and the third by chance; the first text of each has one label only."""


@pytest.mark.parametrize("as_given", [csr_matrix, np.ndarray.tolist], ids=lambda make: make.__name__)
def test_any_number_of_labels_each_may_be_given_in_other_forms(tiny_model: Path, as_given: Any) -> None:
    one, other = (classifier(tiny_model, epochs=1).fit(TEXTS, each) for each in (MANY, as_given(MANY)))
    assert other.classes_.tolist() == [0, 1, 2]
    assert np.array_equal(one.predict_proba(TEXTS), other.predict_proba(TEXTS))
    assert one.score(TEXTS, MANY) == other.score(TEXTS, as_given(MANY))


def test_any_number_of_labels_each(tiny_model: Path) -> None:
    learned = classifier(tiny_model, epochs=30).fit(TEXTS, MANY)
    assert learned.classes_.tolist() == [0, 1, 2]
    probabilities, predicted = learned.predict_proba(TEXTS), learned.predict(TEXTS)
    assert (probabilities.shape, predicted.shape) == ((12, 3), (12, 3))
    assert predicted.dtype == np.int64
    assert (predicted == (probabilities >= 0.5)).all()
    assert (predicted[:, :2] == MANY[:, :2]).all()  # what can be learned
    assert not np.allclose(probabilities.sum(1), 1)
    assert learned.score(TEXTS, MANY) == (predicted == MANY).all(1).mean()
    thawed = pickle.loads(pickle.dumps(learned))
    assert np.array_equal(thawed.predict_proba(TEXTS), probabilities)


def test_many_labels_in_the_tools_of_scikit_learn(tiny_model: Path) -> None:
    assert classifier(tiny_model).__sklearn_tags__().classifier_tags.multi_label
    scores = cross_val_score(classifier(tiny_model, epochs=1), TEXTS, MANY, cv=2, scoring="f1_micro")
    assert ((scores >= 0) & (scores <= 1)).all()


def test_probabilities_of_1500_classes_are_all_there_and_in_order(tiny_model: Path) -> None:
    labels = list(range(1500))
    texts = [f"the dog sits {number}" for number in labels]
    learned = classifier(tiny_model, epochs=0.01, batch_size=16).fit(texts, labels)
    probabilities = learned.predict_proba(texts[:3])
    assert probabilities.shape == (3, 1500)
    assert np.allclose(probabilities.sum(1), 1)
    predictor = learned.predictor_
    batch = predictor.tokenizer.encode_inputs([(texts[1], None)], 16)[0].input_ids
    with torch.no_grad():
        outputs = predictor.module.outputs(pack([batch]))
    assert np.allclose(probabilities[1], torch.softmax(outputs[0], -1).numpy(), atol=1e-6)  # float32
    assert (learned.predict(texts[:3]) == probabilities.argmax(1)).all()


def test_a_regressor_learns_numbers(tiny_model: Path) -> None:
    regressor = TextRegressor(tiny_model, epochs=30, batch_size=4, learning_rate=2e-3, max_length=16, precision="fp32")
    values = [-1.0] * 6 + [1.0] * 6
    predicted = regressor.fit(TEXTS, values).predict(TEXTS)
    assert predicted.shape == (12,)
    assert predicted.dtype == np.float64
    assert regressor.score(TEXTS, values) > 0.5  # R^2; 0 is the mean of the values


def test_a_target_of_any_scale_is_learned(tiny_model: Path, tmp_path: Path) -> None:
    """House prices: unscaled, the head would need thousands of steps to reach their mean."""
    values = [200_000.0] * 6 + [300_000.0] * 6
    regressor = TextRegressor(tiny_model, epochs=30, batch_size=4, learning_rate=2e-3, max_length=16, precision="fp32")
    assert regressor.fit(TEXTS, values).score(TEXTS, values) > 0.5
    regressor.save(tmp_path / "model")
    saved = [answer["value"] for answer in predict(tmp_path / "model", [{"text": text} for text in TEXTS])]
    assert saved == pytest.approx(regressor.predict(TEXTS).tolist(), rel=1e-6)


def test_frozen_layers_stay_as_they_are(tiny_model: Path) -> None:
    learned = classifier(tiny_model, epochs=1, freeze_layers=1).fit(TEXTS, LABELS)
    before, after = (
        dict(encoder.named_parameters())
        for encoder in (load_encoder(tiny_model).encoder, learned.predictor_.module.encoder)
    )
    changed = {name[: len("blocks.0")] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"blocks.1", "pooler.d"}


def test_predictions_are_in_fp32_whatever_training_is_in(tiny_model: Path) -> None:
    learned = classifier(tiny_model, epochs=1, precision="bf16").fit(TEXTS, LABELS)
    assert learned.predictor_.compute.dtype == torch.float32


def test_an_encoder_gives_the_embeddings(tiny_model: Path) -> None:
    encoder = TextEncoder(tiny_model, pool="max")
    vectors = encoder.fit_transform(np.array(TEXTS))
    assert (vectors.shape, vectors.dtype) == ((12, 32), np.float32)
    assert np.array_equal(vectors, embed(tiny_model, TEXTS, pool="max", normalise=False))
    unmixed = "choose one of embeddings, second-to-last, last, layer-1, layer-2$"
    mixed = "layers=weighted-all: the weights of such a mixture are learned with a head, and here is none"
    few = "concat-last-4 needs 4 layers and the model has 2"
    for layers, message in (("concat-last-4", few), ("weighted-all", mixed)):
        for use in (TextEncoder.transform, TextEncoder.get_feature_names_out):
            with pytest.raises(SettingsError, match=f"^{message}: {unmixed}"):
                use(TextEncoder(tiny_model, layers=layers), TEXTS)
    assert not np.allclose(TextEncoder(tiny_model, pool="max", max_length=5).transform(TEXTS), vectors)  # in windows
    lengths = np.linalg.norm(TextEncoder(tiny_model, normalise=True).transform(TEXTS), axis=1)
    assert np.allclose(lengths, 1, atol=1e-6)  # fp32


# ---- In scikit-learn's tools


def test_features_have_names(tiny_model: Path) -> None:
    encoder = TextEncoder(tiny_model)
    names = encoder.get_feature_names_out()
    assert names.tolist() == [f"textencoder{number}" for number in range(encoder.transform(TEXTS[:1]).shape[1])]
    pipeline = make_pipeline(encoder, StandardScaler()).fit(TEXTS)
    assert pipeline.get_feature_names_out().tolist() == names.tolist()
    assert len(TextEncoder(tiny_model, layers="embeddings").get_feature_names_out(["text"])) == len(names)


ESTIMATORS = [TextClassifier, TextRegressor, TextEncoder]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
        estimator_checks.check_valid_tag_types,
        estimator_checks.check_mixin_order,
    ],
    ids=lambda check: check.__name__,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator.__name__, estimator())


def test_tags_say_that_texts_come_in() -> None:
    for estimator, kind in zip(ESTIMATORS, ("classifier", "regressor", None), strict=True):
        tags = estimator().__sklearn_tags__()
        assert (tags.estimator_type, tags.input_tags.string, tags.input_tags.two_d_array) == (kind, True, False)


def test_cross_validation_and_a_search_in_a_pipeline(tiny_model: Path) -> None:
    shout = FunctionTransformer(lambda texts: [text.upper() for text in texts])
    pipeline = make_pipeline(shout, classifier(tiny_model, epochs=2))
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).shape == (2,)
    rates = {"textclassifier__learning_rate": [1e-30, 3e-3]}
    search = GridSearchCV(pipeline, rates, cv=2, scoring="neg_log_loss").fit(np.array(TEXTS), LABELS)
    assert search.best_params_ == {"textclassifier__learning_rate": 3e-3}
    assert search.predict(["a dog"]).shape == (1,)


def test_an_encoder_in_a_pipeline(tiny_model: Path) -> None:
    pipeline = make_pipeline(TextEncoder(tiny_model), LogisticRegression(C=100))
    predicted = cross_val_predict(pipeline, TEXTS, LABELS, cv=3)
    assert (predicted == np.array(LABELS)).mean() > 0.5


@pytest.mark.slow  # each process imports torch
def test_processes_of_joblib_give_the_same(tiny_model: Path) -> None:
    estimator = classifier(tiny_model, epochs=1)
    alone, together = (cross_val_score(estimator, TEXTS, LABELS, cv=2, n_jobs=jobs) for jobs in (1, 2))
    assert np.array_equal(alone, together)


def test_a_fitted_estimator_is_pickled_and_copied_and_a_clone_is_not_fitted(fitted: TextClassifier) -> None:
    expected = fitted.predict_proba(TEXTS)
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert np.array_equal(other.predict_proba(TEXTS), expected)
        assert other.classes_.tolist() == ["dog", "man"]
        assert other.loss_curve_ == fitted.loss_curve_
    with pytest.raises(NotFittedError):
        clone(fitted).predict(TEXTS)
    assert clone(fitted).get_params() == fitted.get_params()


def test_a_saved_model_answers_here_and_in_transformers(fitted: TextClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    answers = list(predict(tmp_path / "model", [{"text": text} for text in TEXTS]))
    assert [answer["label"] for answer in answers] == LABELS
    assert np.allclose([answer["probabilities"]["man"] for answer in answers], fitted.predict_proba(TEXTS)[:, 1])
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert opened.config.id2label == {0: "dog", 1: "man"}


# ---- Bad input


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ([], [], "X is empty"),
        ("a text", ["a"], "X is one str: expected a list or an array"),
        (None, ["a"], "X is one NoneType"),
        (pyarrow.table({"x": TEXTS}), ["a"], "X is one Table: expected a list or an array; give one of its columns"),
        ({"a", "b"}, ["a", "b"], "X is a set, which has no order: expected a list or an array"),
        (["a", "b"], frozenset({"a", "b"}), "y is a frozenset, which has no order"),
        ([1, 2], ["a", "b"], r"X\[0\] is '1' \(int\): expected a text, or a pair of texts"),
        (["a", None], ["a", "b"], r"X\[1\] is 'None' \(NoneType\)"),
        (["a", float("nan")], ["a", "b"], r"X\[1\] is 'nan' \(float\)"),
        ([("a", "b", "c")], ["a"], r"X\[0\] is .* \(tuple\)"),
        (np.zeros((2, 3)), ["a", "b"], r"X\[0\] is .* \(list\)"),
        (["a", ("b", "c")], ["a", "b"], r"X\[0\] holds 1 text\(s\) and X\[1\] 2"),
        (["a", "b\ud800"], ["a", "b"], r"X\[1\]: text holds half of a surrogate pair"),
        (["a", "b"], ["a"], "X has 2 texts and y 1 values"),
        (["a", "b"], ["a", "a"], "every label of y is 'a': there is nothing to learn"),
        (["a", "b"], ["a", None], r"y\[1\] is None: expected a label"),
        (["a", "b"], [1.0, float("nan")], r"y\[1\] is nan: expected a label"),
        (["a", "b"], ["good", Missing()], r"y\[1\] is <NA>: expected a label"),
        (["a", "b"], ["good", ""], r"y\[1\] is '': expected a label; take unlabelled texts out"),
        (
            ["a"] * 3,
            ["a", "b", "b "],
            r"y\[2\]: the label b is written 'b ' here and 'b' in y\[1\], .*invisible characters\)$",
        ),
        (["a"] * 3, ["a", "b", "b\0"], r"y\[2\]: the label b is written 'b\\x00' here and 'b' in y\[1\].* alike: "),
        (["a"] * 2, ["\u00e9", "e\u0301"], r"y\[1\]: the label é is written 'e\\u0301' here and '\\xe9' in y\[0\]"),
        (["a", "b"], [["dog"], ["man", "dog"]], r"y\[0\] is \['dog'\]: expected one label .*MultiLabelBinarizer"),
        (["a", "b"], [[0], [1]], r"^y has one column: give y\.ravel\(\) "),
        (["a", "b"], MANY[[0, 6], :1], r"^y has one column: give y\.ravel\(\) "),
        (["a", "b"], csr_matrix(MANY[[0, 6], :1]), r"^y has one column: give y\.ravel\(\) "),
        (["a", "b"], [[0, 1], [1, 2]], r"y\[1\] is \[1, 2\]: expected 0 or 1 for each of 2 labels"),
        (["a", "b"], [[0, 1], [1, 1, 0]], r"y\[1\] is \[1, 1, 0\]: expected 0 or 1 for each of 2 labels"),
        (["a", "b"], [[0, 1]], "X has 2 texts and y 1 values"),
        (["a", "b"], [[0, 1], [0, 1]], "every text has the same labels in y"),
        (["a", "b"], [1, "1"], "two different labels of y are both written '1'"),
    ],
)
def test_bad_texts_and_labels(tiny_model: Path, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValuesError, match=message) as refused:
        classifier(tiny_model).fit(texts, labels)
    assert isinstance(refused.value, InputError)  # as well as the ValueError that scikit-learn expects


@pytest.mark.parametrize(
    ("values", "told"),
    [
        *(([1.0, wrong], r"y\[1\] is .*: expected a finite number") for wrong in (math.nan, math.inf, "1", None, True)),
        ([1.0, 1e300], r"y\[1\] is 1e\+300: too large for float32; scale y"),
        ([2.0, 2.0], r"y: every value is 2 \(as a 32-bit float\): there is nothing to learn"),
        ([1.7e9, 1.7e9 + 599], r"y: as 32-bit floats the values lie between 1,700,000,000 and 1,700,000,640"),
        (np.array([[1.0], [2.0]]), r"^y has one column: give y\.ravel\(\) "),
    ],
)
def test_bad_targets(tiny_model: Path, values: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        TextRegressor(tiny_model).fit(["a", "b"], values)


def test_texts_that_are_cut_in_training_are_told(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    classifier(tiny_model, max_length=8, epochs=1).fit(["a dog " * 20, "a man"], ["x", "y"])
    assert [line for line in caplog.messages if line.startswith("X: ")] == [
        "X: 2 examples, 1 longer than task.max_length and cut"
    ]


def test_a_vocabulary_of_another_language_is_warned_of_once(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in every fold, nor at `fit` and at `predict`."""
    texts = ["국민은 기다린다", "영화가 좋다", "영화는 길다", "국민이 온다"]
    cross_val_score(classifier(tiny_model, epochs=1), texts, ["a", "b", "a", "b"], cv=2)
    [told] = [line for line in caplog.messages if line.startswith("X: ")]
    assert told.startswith("X: 100 % of the tokens")


def test_few_steps_are_warned_of_once(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.finetuning.estimators.estimators.WARNED_OF", set())
    for _ in range(2):
        classifier(tiny_model, epochs=2).fit(TEXTS, LABELS)
    assert caplog.record_tuples == [
        ("unmask", 30, "epochs=2 gives 6 steps, in which little is learnt: epochs=67 gives 201")
    ]


def test_labels_that_differ_in_case_are_told(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    learned = classifier(tiny_model, epochs=1).fit(TEXTS[:3], ["dog", "Dog", "cat"])
    assert learned.classes_.tolist() == ["Dog", "cat", "dog"]
    assert "labels that differ only in the case count as different ones: 'dog' and 'Dog' (y[1])" in caplog.text


def test_what_was_not_fitted_says_so(tiny_model: Path, tmp_path: Path) -> None:
    for estimator in (TextClassifier(tiny_model), TextRegressor(tiny_model)):
        with pytest.raises(NotFittedError):
            estimator.predict(TEXTS)
        with pytest.raises(NotFittedError):
            estimator.save(tmp_path)


@pytest.mark.parametrize("is_many", [False, True])
def test_a_fit_that_fails_changes_nothing(tiny_model: Path, is_many: bool) -> None:
    numbers = np.eye(3, dtype=int)[[0, 1, 2] * 4]
    estimator = classifier(tiny_model / "nowhere", epochs=1)
    with pytest.raises(UserError):
        estimator.fit(TEXTS, numbers if is_many else LABELS)
    with pytest.raises(NotFittedError):
        estimator.predict(TEXTS)
    estimator.set_params(model=tiny_model).fit(TEXTS, LABELS)
    with pytest.raises(UserError):
        estimator.set_params(model=tiny_model / "nowhere").fit(TEXTS, numbers if is_many else ["x", "y", "z"] * 4)
    assert set(estimator.predict(TEXTS)) <= {"dog", "man"}


def test_bad_parameters_are_told_by_name(tiny_model: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"learning_rate": -1}, "TextClassifier.*learning_rate"),
        ({"epochs": 0}, "TextClassifier.*epochs"),
        ({"max_length": 65}, "max_length 65 is over the 64 positions"),
        ({"freeze_layers": 3}, "freeze_layers=3: the model has 2 layers"),
        ({"device": "tpu"}, "TextClassifier.*device"),
    ):
        with pytest.raises(SettingsError, match=message):
            classifier(tiny_model, **settings).fit(TEXTS, LABELS)
    for estimator in (TextClassifier(), TextEncoder()):
        with pytest.raises(SettingsError, match=r"\(model=None\): give the directory of a pre-trained model"):
            estimator.fit(TEXTS, LABELS)
    with pytest.raises(UserError, match=str(tmp_path)):
        TextEncoder(tmp_path).fit(TEXTS)
    with pytest.raises(InputError, match="X holds pairs of texts"):
        TextEncoder(tiny_model).transform([("a", "b")])


@pytest.mark.parametrize("epochs", [4, 0.9])
def test_a_run_that_diverges_says_so(tiny_model: Path, epochs: float) -> None:
    """Amid an epoch too."""
    with pytest.raises(UserError, match=r"the run has diverged\. Give a lower learning_rate"):
        classifier(tiny_model, learning_rate=1e30, epochs=epochs, batch_size=1).fit(TEXTS, LABELS)
