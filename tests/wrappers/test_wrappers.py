"""Estimators of other packages on blocks: lazy answers, and learning block after block."""

from __future__ import annotations

from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.metrics import get_scorer
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from daskml_dist import linear_model
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.wrappers import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
    Incremental,
    ParallelPostFit,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * RNG.standard_normal(60)
LABELS = np.where(Y > 0, "up", "down")
CHUNKS = (7, 0, 30, 1, 22)
STARTS = np.cumsum((0, *CHUNKS))
FRAME = pd.DataFrame(X, columns=list("abcd"))


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(values):
    return da.from_array(values, chunks=(CHUNKS, *values.shape[1:]))


def unknown(values):
    return lazy(values)[da.ones(60, chunks=CHUNKS) > 0]


# --- lazy answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (GradientBoostingClassifier(n_estimators=3, random_state=0), ["predict", "predict_proba"]),
        (LinearSVC(), ["predict", "decision_function"]),
        (LogisticRegression(), ["predict_log_proba"]),
        (make_pipeline(StandardScaler(), KNeighborsRegressor()), ["predict"]),
        (PCA(2), ["transform"]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("make", [lazy, unknown])
def test_answers_are_those_of_the_estimator(model, methods, make):
    y = Y if is_regressor(model) else LABELS
    truth, wrapper = clone(model).fit(X, y), ParallelPostFit(model).fit(X, y)
    assert is_classifier(wrapper) == is_classifier(model)
    for method in methods:
        answers = getattr(wrapper, method)(make(X))
        expected = getattr(truth, method)(X)
        assert answers.dtype == expected.dtype
        is_number = expected.dtype.kind == "f"  # of which blocks may round otherwise
        same = np.testing.assert_allclose if is_number else np.testing.assert_array_equal
        same(answers.compute(), expected)
        np.testing.assert_array_equal(getattr(wrapper, method)(X), expected)
    for method in {"predict_proba", "transform"} - {*dir(model)}:
        assert not hasattr(wrapper, method)


def test_frames_keep_their_columns():
    frame = dd.from_pandas(FRAME.assign(label=LABELS), npartitions=3)
    wrapper = ParallelPostFit(LogisticRegression()).fit(frame[list("abcd")], frame["label"])
    truth = LogisticRegression().fit(FRAME, LABELS)
    answers = wrapper.predict(frame[list("abcd")]).compute()
    np.testing.assert_array_equal(answers, truth.predict(FRAME))
    assert wrapper.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(InvalidDataError, match="feature names"):
        wrapper.predict(frame[list("abdc")])


def test_gathered_rows_are_those_in_memory():
    weight = RNG.random(60)
    wrapper = ParallelPostFit(Ridge()).fit(lazy(X), lazy(Y), sample_weight=lazy(weight))
    np.testing.assert_allclose(wrapper.coef_, Ridge().fit(X, Y, weight).coef_, rtol=1e-12)
    components = ParallelPostFit(PCA(2, svd_solver="full")).fit(lazy(X)).components_
    np.testing.assert_allclose(components, PCA(2, svd_solver="full").fit(X).components_)


def test_a_fitted_estimator_needs_no_fit():
    truth = LogisticRegression().fit(X, LABELS)
    wrapper = ParallelPostFit(truth)
    np.testing.assert_array_equal(wrapper.predict(lazy(X)).compute(), truth.predict(X))
    assert wrapper.classes_.tolist() == ["down", "up"]
    unfitted = clone(wrapper)
    with pytest.raises(NotFittedError):
        unfitted.predict(lazy(X))
    with pytest.raises(AttributeError, match="classes_"):
        _ = unfitted.classes_


def test_scores():
    weight = RNG.random(60)
    classifier = ParallelPostFit(LogisticRegression()).fit(X, LABELS)
    truth = LogisticRegression().fit(X, LABELS)
    found = classifier.score(lazy(X), lazy(LABELS), sample_weight=lazy(weight))
    assert found == pytest.approx(truth.score(X, LABELS, weight))
    losing = ParallelPostFit(LogisticRegression(), scoring="neg_log_loss").fit(X, LABELS)
    expected = get_scorer("neg_log_loss")(truth, X, LABELS)
    assert losing.score(lazy(X), lazy(LABELS)) == pytest.approx(expected)
    regressor = ParallelPostFit(Ridge()).fit(X, Y)
    assert regressor.score(lazy(X), lazy(Y)) == pytest.approx(Ridge().fit(X, Y).score(X, Y))
    clusters = ParallelPostFit(MiniBatchKMeans(2, random_state=0, n_init=1)).fit(X)
    assert clusters.score(X) == pytest.approx(clusters.estimator_.score(X))
    with pytest.raises(InvalidParameterError, match="scoring"):
        clusters.score(lazy(X))


# --- block after block ---------------------------------------------------------------------------


def blockwise(model, order, *columns, **params):
    """A model after `partial_fit` of each block that has rows, in an order."""
    model = clone(model)
    for i in order:
        at = slice(STARTS[i], STARTS[i + 1])
        if at.stop > at.start:
            model.partial_fit(*(column[at] for column in columns), **params)
    return model


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("make", [lazy, unknown])
def test_blocks_are_learned_in_their_order(shuffled, make):
    model = SGDClassifier(random_state=0)
    order = np.random.RandomState(3).permutation(5) if shuffled else range(5)
    found = Incremental(model, shuffle_blocks=shuffled, random_state=3).fit(make(X), make(LABELS))
    expected = blockwise(model, order, X, LABELS, classes=["down", "up"])
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    np.testing.assert_array_equal(found.predict(make(X)).compute(), expected.predict(X))


def test_partial_fit_continues_and_fit_restarts():
    model = Incremental(SGDRegressor(random_state=0), shuffle_blocks=False)
    model.partial_fit(lazy(X), lazy(Y)).partial_fit(lazy(X), lazy(Y))
    twice = blockwise(SGDRegressor(random_state=0), [*range(5), *range(5)], X, Y)
    np.testing.assert_array_equal(model.coef_, twice.coef_)
    once = blockwise(SGDRegressor(random_state=0), range(5), X, Y)
    np.testing.assert_array_equal(model.fit(lazy(X), lazy(Y)).coef_, once.coef_)
    in_memory = model.fit(X, Y).partial_fit(X, Y)
    expected = SGDRegressor(random_state=0).partial_fit(X, Y).partial_fit(X, Y)
    np.testing.assert_array_equal(in_memory.coef_, expected.coef_)


def test_merged_blocks_equal_all_rows():
    """Merged moments and counts of blocks equal those of all rows in any order."""
    weight = RNG.random(60)
    frame = dd.from_pandas(FRAME.assign(label=LABELS, w=weight), npartitions=3)
    found = Incremental(GaussianNB()).fit(
        frame[list("abcd")], frame["label"], sample_weight=frame["w"]
    )
    truth = GaussianNB().fit(FRAME, LABELS, sample_weight=weight)
    np.testing.assert_allclose(found.theta_, truth.theta_)
    assert found.classes_.tolist() == ["down", "up"]
    assert found.n_features_in_ == 4
    scaler = Incremental(StandardScaler()).fit(lazy(X))
    np.testing.assert_allclose(
        scaler.transform(lazy(X)).compute(), StandardScaler().fit_transform(X)
    )


def test_lists_are_learned():
    truth = SGDRegressor(random_state=0).partial_fit(X, Y)
    model = Incremental(SGDRegressor(random_state=0)).fit(X.tolist(), Y.tolist())
    np.testing.assert_array_equal(model.predict(X), truth.predict(X))
    with pytest.raises(InvalidDataError, match="inhomogeneous"):
        model.fit([[1.0], [1.0, 2.0]], [0.0, 1.0])


def test_labels_of_later_rows():
    model = Incremental(GaussianNB())
    model.partial_fit(lazy(X), lazy(LABELS), classes=["down", "up", "zero"])
    zeros = np.full(60, "zero")
    model.partial_fit(lazy(X + 9), lazy(zeros))
    assert (model.predict(lazy(X + 9)).compute() == "zero").all()


def test_estimators_of_the_package_learn_on_all_workers():
    found = Incremental(linear_model.SGDClassifier(random_state=0)).fit(lazy(X), lazy(LABELS))
    assert isinstance(found.estimator_, linear_model.SGDClassifier)
    assert found.score(lazy(X), lazy(LABELS)) > 0.8


def test_refusals():
    with pytest.raises(InvalidParameterError, match="no partial_fit"):
        Incremental(Ridge()).fit(lazy(X), lazy(Y))
    holed = X.copy()
    holed[20, 1] = np.nan
    with pytest.raises(InvalidDataError, match="Block 2 of X"):
        Incremental(GaussianNB(), shuffle_blocks=False).fit(lazy(holed), lazy(LABELS))
    model = Incremental(GaussianNB()).fit(lazy(X), lazy(LABELS))
    before = model.class_count_.copy()
    with pytest.raises(InvalidDataError):
        model.partial_fit(lazy(holed), lazy(LABELS))
    np.testing.assert_array_equal(model.class_count_, before)


# --- votes of blocks -----------------------------------------------------------------------------


def members(model, y, weight=None):
    """A clone fitted to each block that has rows."""
    blocks = [slice(a, b) for a, b in pairwise(STARTS) if b > a]
    weights = [{} if weight is None else {"sample_weight": weight[at]} for at in blocks]
    return [clone(model).fit(X[at], y[at], **w) for at, w in zip(blocks, weights, strict=True)]


#: Three classes, of which the block of one row has one alone.
THREE = np.digitize(Y, [-1, 1])


@pytest.mark.parametrize("make", [lazy, unknown])
def test_votes_are_those_of_each_block_s_model(make):
    weight = RNG.random(60)
    model = DecisionTreeClassifier(max_depth=2, random_state=0)
    truth = members(model, THREE, weight)
    hard = BlockwiseVotingClassifier(model).fit(make(X), make(THREE), make(weight))
    counts = np.sum([one.predict(X)[:, np.newaxis] == [0, 1, 2] for one in truth], axis=0)
    np.testing.assert_array_equal(hard.predict(make(X)).compute(), counts.argmax(axis=1))
    assert not hasattr(hard, "predict_proba")
    soft = BlockwiseVotingClassifier(model, voting="soft", classes=[0, 1, 2])
    soft.fit(make(X), make(THREE), make(weight))
    mean = np.zeros((60, 3))
    for one in truth:
        mean[:, one.classes_] += one.predict_proba(X) / 4
    np.testing.assert_allclose(soft.predict_proba(make(X)).compute(), mean, atol=1e-12)
    np.testing.assert_array_equal(soft.predict(X), mean.argmax(axis=1))
    assert soft.score(make(X), make(THREE)) == (mean.argmax(axis=1) == THREE).mean()


def test_means_are_those_of_each_block_s_model():
    found = BlockwiseVotingRegressor(Ridge()).fit(lazy(X), lazy(Y))
    mean = np.mean([one.predict(X) for one in members(Ridge(), Y)], axis=0)
    np.testing.assert_allclose(found.predict(lazy(X)).compute(), mean)
    in_memory = BlockwiseVotingRegressor(Ridge()).fit(X, Y)
    np.testing.assert_array_equal(in_memory.predict(X), Ridge().fit(X, Y).predict(X))
    assert len(in_memory.estimators_) == 1


def test_votes_of_labels_that_are_numbers_among_objects():
    labels = (Y > 0).astype(int)
    truth = BlockwiseVotingClassifier(GaussianNB()).fit(X, labels)
    model = BlockwiseVotingClassifier(GaussianNB()).fit(X, labels.astype(object))
    assert model.score(X, labels.astype(object)) == truth.score(X, labels)


def test_votes_name_the_block_that_is_refused():
    with pytest.raises(InvalidDataError, match="Block 3 of X"):  # of one class
        BlockwiseVotingClassifier(LogisticRegression()).fit(lazy(X), lazy(LABELS))
    with pytest.raises(InvalidParameterError, match="predict_proba"):
        BlockwiseVotingClassifier(LinearSVC(), voting="soft").fit(lazy(X), lazy(LABELS))
    with pytest.raises(InvalidParameterError, match="voting"):
        BlockwiseVotingClassifier(LinearSVC(), voting="loud").fit(lazy(X), lazy(LABELS))
    for voting in ("hard", "soft"):
        model = BlockwiseVotingClassifier(GaussianNB(), voting=voting, classes=[0, 2])
        with pytest.raises(InvalidDataError, match=r"classes=\[0, 2\] lacks: \[1\]"):
            model.fit(lazy(X), lazy(THREE))
    with pytest.raises(NotFittedError):
        BlockwiseVotingRegressor(Ridge()).predict(lazy(X))
