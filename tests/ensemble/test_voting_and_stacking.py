"""Voting and stacking on Dask collections equal scikit-learn with the same members."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn import ensemble as truth
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.naive_bayes import GaussianNB as TheirGaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from daskml_dist import ensemble
from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.compose import make_column_transformer
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.linear_model import LogisticRegression, Ridge, RidgeClassifier
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import OneHotEncoder

RNG = np.random.default_rng(0)
N = 360
X = RNG.normal(size=(N, 4))
LABELS = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + X[:, 1] + RNG.normal(size=N), [-1, 1])]
NUMBERS = X @ RNG.normal(size=4) + RNG.normal(size=N)
WEIGHTS = RNG.random(N)

LOGISTIC = LogisticRegression(tol=1e-10)
CLASSIFIERS = [("line", LOGISTIC), ("bayes", GaussianNB()), ("out", "drop")]
MIXED = [*CLASSIFIERS, ("theirs", TheirGaussianNB())]
REGRESSORS = [("weak", Ridge()), ("strong", Ridge(alpha=100.0))]

CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "hard votes": ("VotingClassifier", {"estimators": CLASSIFIERS}, LABELS),
    "soft votes": (
        "VotingClassifier",
        {"estimators": MIXED, "voting": "soft", "weights": [1, 2, 0, 3]},
        LABELS,
    ),
    "mean": ("VotingRegressor", {"estimators": REGRESSORS, "weights": [1, 3]}, NUMBERS),
    "stack": (
        "StackingClassifier", {"estimators": MIXED, "final_estimator": LOGISTIC, "cv": 3}, LABELS,
    ),
    "labels through": (
        "StackingClassifier",
        {
            "estimators": CLASSIFIERS, "final_estimator": LOGISTIC, "passthrough": True,
            "stack_method": "predict", "cv": KFold(3, shuffle=False),
        },
        LABELS,
    ),
    "two labels": ("StackingClassifier", {"estimators": CLASSIFIERS}, LABELS == "a"),
    "several labels": (
        "StackingClassifier",
        {
            "estimators": [("line", RidgeClassifier()), ("near", KNeighborsClassifier(5))],
            "final_estimator": RidgeClassifier(), "cv": KFold(3), "passthrough": True,
        },
        np.column_stack([LABELS == "a", NUMBERS > 0]).astype(int),
    ),
    "numbers": ("StackingRegressor", {"estimators": REGRESSORS, "cv": 3}, NUMBERS),
    "numbers through": (
        "StackingRegressor",
        {"estimators": REGRESSORS, "passthrough": True, "final_estimator": Ridge(), "cv": 3},
        NUMBERS,
    ),
}  # fmt: skip
KINDS = {
    "hard votes": "unknown chunks",
    "soft votes": "frame",
    "stack": "frame",
    "labels through": "frame",
    "two labels": "unknown chunks",
}


def _rows(kind: str, y: Any, weighted: bool) -> tuple[Any, Any, dict[str, Any], Any]:
    if kind == "frame":
        frame = pd.DataFrame(X, columns=list("abcd")).assign(target=y)
        rows = dd.from_pandas(frame.assign(w=WEIGHTS) if weighted else frame, npartitions=3)
        params = {"sample_weight": "w"} if weighted else {}
        return rows, "target", params, rows[list("abcd")]
    rows, labels, weights = (da.from_array(v, chunks=100) for v in (X, y, WEIGHTS))
    rows = rows.rechunk((100, 4))
    if kind == "unknown chunks":
        all_rows = rows[:, 0] > -99
        rows, labels, weights = rows[all_rows], labels[all_rows], weights[all_rows]
    return rows, labels, {"sample_weight": weights} if weighted else {}, rows


SLOW = ("labels through", "two labels", "numbers through")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in CASES]
)
def test_predictions_equal_scikit_learn(case: str, client: Any) -> None:
    name, options, y = CASES[case]
    weighted = case in ("soft votes", "stack", "mean", "numbers")
    theirs = getattr(truth, name)(**options)
    if case == "two labels":
        theirs.set_params(final_estimator=LogisticRegression())  # ours is the default
    theirs.fit(X, y, **({"sample_weight": WEIGHTS} if weighted else {}))
    rows, target, params, new = _rows(KINDS.get(case, "array"), y, weighted)
    ours = getattr(ensemble, name)(**options).fit(rows, target, **params)
    for method in ("predict", "predict_proba", "transform"):
        assert hasattr(ours, method) == hasattr(theirs, method)
        if hasattr(theirs, method):
            found, wanted = getattr(ours, method)(new), getattr(theirs, method)(X)
            assert isinstance(found, da.Array)
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(found.compute(), wanted, atol=1e-6)
            else:
                assert (found.compute() == wanted).all()
    assert ours.score(new, y) == pytest.approx(theirs.score(X, y))
    assert list(ours.named_estimators_) == list(theirs.named_estimators_)
    assert len(ours.estimators_) == len(theirs.estimators_)
    assert ours.n_features_in_ == 4
    names = np.array(list("abcd")) if KINDS.get(case) == "frame" else None
    assert (ours.get_feature_names_out() == theirs.get_feature_names_out(names)).all()
    twin = ours.to_sklearn()
    assert type(twin) is getattr(truth, name)
    computed = new.compute()
    if name.endswith("Regressor"):
        np.testing.assert_allclose(twin.predict(computed), ours.predict(computed), atol=1e-8)
    else:
        assert (twin.predict(computed) == ours.predict(computed)).all()


def test_prefitted_members(client: Any) -> None:
    members = [("line", LogisticRegression(tol=1e-10).fit(X, LABELS)), ("bayes", GaussianNB())]
    members[1][1].fit(X, LABELS)
    options = {"estimators": members, "final_estimator": LOGISTIC, "cv": "prefit"}
    theirs = truth.StackingClassifier(**options).fit(X, LABELS)
    rows, target, _, _ = _rows("frame", LABELS, False)
    ours = ensemble.StackingClassifier(**options)
    with pytest.warns(UserWarning, match="X has feature names"):
        ours.fit(rows, target)
    found = ours.final_estimator_.coef_
    np.testing.assert_allclose(found, theirs.final_estimator_.coef_, atol=1e-6)


@pytest.mark.slow
def test_sparse_rows_pass_through(client: Any) -> None:
    rows = da.from_array(X, chunks=(100, 4)).map_blocks(sparse.csr_array)
    labels = da.from_array(LABELS, chunks=100)
    options = {"estimators": [("line", LOGISTIC)], "final_estimator": LOGISTIC, "cv": 3}
    ours = ensemble.StackingClassifier(passthrough=True, **options).fit(rows, labels)
    theirs = truth.StackingClassifier(passthrough=True, **options).fit(X, LABELS)
    found = ours.predict_proba(rows).compute()
    np.testing.assert_allclose(found, theirs.predict_proba(X), atol=1e-6)


def test_weights_by_metadata_routing(client: Any) -> None:
    rows, target, _, _ = _rows("array", LABELS, False)
    weights = da.from_array(WEIGHTS, chunks=100)
    with sklearn.config_context(enable_metadata_routing=True):
        members = [
            ("asks", LogisticRegression(tol=1e-10).set_fit_request(sample_weight=True)),
            ("not", LogisticRegression(tol=1e-10).set_fit_request(sample_weight=False)),
        ]
        ours = ensemble.VotingClassifier(members).fit(rows, target, sample_weight=weights)
    codes = np.unique(LABELS, return_inverse=True)[1]
    for member, weight in zip(ours.estimators_, (WEIGHTS, None), strict=True):
        alone = LogisticRegression(tol=1e-10).fit(X, codes, weight)
        np.testing.assert_allclose(member.coef_, alone.coef_, atol=1e-8)


def test_incompatible_members_are_refused() -> None:
    rows, target, params, _ = _rows("array", LABELS, True)
    voting, stacking = ensemble.VotingClassifier, ensemble.StackingClassifier
    nearest = [("near", KNeighborsClassifier())]
    for model, fit_params, error, text in [
        (voting([]), {}, InvalidParameterError, "non-empty list"),
        (voting([("n", None)]), {}, InvalidParameterError, "left out by"),
        (voting(CLASSIFIERS, weights=[1]), {}, InvalidParameterError, "got 1 weights"),
        (voting([("r", Ridge())]), {}, InvalidParameterError, "should be a classifier"),
        (voting(nearest), params, InvalidTypeError, "near.*does not support sample weights"),
        (voting(CLASSIFIERS), {"offset": target}, InvalidParameterError, "offset"),
        (stacking([("a", "drop")]), {}, InvalidParameterError, "All estimators are dropped"),
        (stacking(CLASSIFIERS, Ridge()), {}, InvalidParameterError, "should be a classifier"),
    ]:
        with pytest.raises(error, match=text):
            model.fit(rows, target, **fit_params)
    with pytest.raises(InvalidDataError, match="continuous"):
        voting(CLASSIFIERS).fit(rows, da.from_array(NUMBERS, chunks=100))
    by_block = np.array([1, "a"], object)[np.arange(N) // 100 % 2]
    with pytest.raises(InvalidDataError, match="several types"):
        voting(CLASSIFIERS).fit(rows, da.from_array(by_block, chunks=100))
    with pytest.raises(InvalidDataError, match="feature"):
        voting(CLASSIFIERS).fit(rows, target).predict(rows[:, :2]).compute()


def test_splits_that_are_no_partition_are_refused(client: Any) -> None:
    rows, target, _, _ = _rows("array", LABELS, False)
    model = ensemble.StackingClassifier([("bayes", GaussianNB())], cv=ShuffleSplit(2))
    with pytest.raises(InvalidParameterError, match="only works for partitions"):
        model.fit(rows, target)


NO_ROWS = {
    ("VotingClassifier", "hard"): ["predict"],
    ("VotingClassifier", "soft"): ["predict", "predict_proba"],
    ("VotingRegressor", None): ["predict"],
    ("StackingClassifier", None): ["predict", "predict_proba"],
    ("StackingRegressor", None): ["predict"],
    ("BaggingClassifier", None): ["predict", "predict_proba", "predict_log_proba"],
    ("BaggingRegressor", None): ["predict"],
}


@pytest.mark.parametrize(("name", "voting"), NO_ROWS)
def test_empty_rows_have_empty_predictions(name: str, voting: str | None) -> None:
    members: Any = REGRESSORS if "Regressor" in name else CLASSIFIERS[:2]
    params = {"estimator": members[0][1]} if "Bagging" in name else {"estimators": members}
    model = getattr(ensemble, name)(**params | ({"voting": voting} if voting else {}))
    model.fit(X, NUMBERS if "Regressor" in name else LABELS)
    empty = pd.DataFrame(X[:0])
    for method in NO_ROWS[name, voting]:
        for rows in (X[:0], empty.set_axis(list("abcd"), axis=1)):
            with pytest.raises(InvalidDataError, match=f"minimum of 1 is required by {name}"):
                getattr(model, method)(rows)
        lazy = da.from_array(X, chunks=(100, -1))[da.from_array(X[:, 0] > 9, chunks=100)]
        assert len(getattr(model, method)(lazy).compute()) == 0


def test_members_may_refuse_texts_that_are_not_in_the_rows() -> None:
    frame = pd.DataFrame({"text": np.where(X[:, 1] > 0, "x", "y"), "number": X[:, 0]})
    rows = dd.from_pandas(frame, npartitions=2)
    target = dd.from_pandas(pd.Series(LABELS), npartitions=2)
    encode = make_column_transformer((OneHotEncoder(), ["text"]), remainder="passthrough")
    member = make_pipeline(encode, LogisticRegression())
    for model in (
        ensemble.StackingClassifier([("linear", member)], cv=KFold(2)),
        CalibratedClassifierCV(member, cv=KFold(2)),
        GridSearchCV(member, {"logisticregression__C": [1.0]}, cv=KFold(2)),
    ):
        found = model.fit(rows, target).predict(rows).compute()
        np.testing.assert_array_equal(found, model.predict(frame))
        assert model.score(rows, target) == pytest.approx(model.score(frame, LABELS))
