"""scikit-learn's metadata routing: metadata is passed exactly to the consumers that request it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn
from sklearn import linear_model, metrics, model_selection
from sklearn import preprocessing as scalers
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.pipeline import make_pipeline

from daskml_dist import model_selection as ours
from daskml_dist.errors import InvalidParameterError, InvalidTypeError
from daskml_dist.linear_model import LogisticRegression, LogisticRegressionCV
from daskml_dist.metrics import accuracy_score, make_scorer
from daskml_dist.preprocessing import StandardScaler
from tests.quick import quick
from tests.versions import OLD_SCIKIT_LEARN

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = (X[:, 0] + RNG.normal(size=120) > 0).astype(int)
WEIGHTS = RNG.integers(0, 5, size=120).astype(float)
FOLDS = model_selection.KFold(3)
EXACT: dict[str, Any] = {"tol": 1e-8, "max_iter": 500}
GRID = {"C": [0.01, 1.0]}


@pytest.fixture(autouse=True)
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def _asking(kind: Any, fit: bool | None, score: bool | None) -> Any:
    return kind(**EXACT).set_fit_request(sample_weight=fit).set_score_request(sample_weight=score)


def _lazy(values: Any) -> Any:
    return da.from_array(values, chunks=(40, *values.shape[1:]))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("search", [model_selection.GridSearchCV, ours.GridSearchCV])
def test_pipelines_in_searches(search: Any, scaled: bool) -> None:
    def fitted(kind: Any, scaler: Any, of: Any) -> Any:
        pipeline = make_pipeline(
            scaler().set_fit_request(sample_weight=scaled), _asking(kind, True, True)
        )
        grid = {f"{kind.__name__.lower()}__C": GRID["C"]}
        scorer = metrics.make_scorer(metrics.accuracy_score).set_score_request(sample_weight=True)
        return of(pipeline, grid, cv=FOLDS, scoring=scorer).fit(X, Y, sample_weight=WEIGHTS)

    found = fitted(LogisticRegression, StandardScaler, search)
    expected = fitted(
        linear_model.LogisticRegression, scalers.StandardScaler, model_selection.GridSearchCV
    )
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )
    np.testing.assert_allclose(
        found.best_estimator_[-1].coef_, expected.best_estimator_[-1].coef_, rtol=1e-5
    )


@pytest.mark.parametrize(("fit", "score"), [(True, True), (False, True), (True, False)])
def test_batched_fits_pass_requested_metadata(fit: bool, score: bool) -> None:
    found, expected = (
        of(_asking(kind, fit, score), GRID, cv=FOLDS).fit(X, Y, sample_weight=WEIGHTS)
        for of, kind in (
            (ours.GridSearchCV, LogisticRegression),
            (model_selection.GridSearchCV, linear_model.LogisticRegression),
        )
    )
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )
    np.testing.assert_allclose(
        found.best_estimator_.coef_, expected.best_estimator_.coef_, rtol=1e-5
    )


@pytest.mark.parametrize("score", quick([True, False], True))
def test_cross_validation_of_dask_rows(client: Any, score: bool) -> None:
    model = _asking(LogisticRegression, True, score)
    lazily = ours.cross_val_score(
        model, _lazy(X), _lazy(Y), cv=FOLDS, params={"sample_weight": _lazy(WEIGHTS)}
    )
    expected = model_selection.cross_val_score(
        model, X, Y, cv=FOLDS, params={"sample_weight": WEIGHTS}
    )
    np.testing.assert_allclose(lazily, expected)


def test_requests_that_dask_rows_cannot_meet_are_refused(client: Any) -> None:
    rows, more = (_lazy(X), _lazy(Y)), {"sample_weight": _lazy(WEIGHTS)}

    def search(model: Any, scoring: Any = None) -> Any:
        return ours.GridSearchCV(model, GRID, cv=FOLDS, scoring=scoring)

    with pytest.raises(UnsetMetadataPassedError, match="set_fit_request"):
        search(LogisticRegression()).fit(*rows, **more)
    with pytest.raises(InvalidParameterError, match="not requested by fit"):
        search(_asking(LogisticRegression, False, True)).fit(*rows, **more)
    with pytest.raises(InvalidParameterError, match=r"set_score_request\(sample_weight=True\)"):
        search(_asking(LogisticRegression, True, False)).fit(*rows, **more)
    asking = make_scorer(accuracy_score).set_score_request(sample_weight=True)
    model = LogisticRegression(**EXACT).set_fit_request(sample_weight=True)
    found = search(model, asking).fit(*rows, **more)
    expected = search(model, asking).fit(X, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("requests_weights", [True, False])
@pytest.mark.parametrize("scoring", ["accuracy", "balanced_accuracy"])
def test_penalty_scores_use_weights_if_requested(scoring: str, requests_weights: bool) -> None:
    scorer = metrics.get_scorer(scoring).set_score_request(sample_weight=requests_weights)
    params = {"Cs": [0.01, 1.0], "cv": FOLDS, "scoring": scorer, "tol": 1e-8, "max_iter": 500}
    theirs = linear_model.LogisticRegressionCV(**params).fit(X, Y, sample_weight=WEIGHTS)
    found = LogisticRegressionCV(**params).fit(X, Y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(found.scores_[1], theirs.scores_[1])
    np.testing.assert_allclose(found.coef_, theirs.coef_, rtol=1e-4)
    if requests_weights:
        expected = theirs.score(X, Y, sample_weight=WEIGHTS)
        assert found.score(X, Y, sample_weight=WEIGHTS) == pytest.approx(expected)
    else:
        with pytest.raises(InvalidTypeError, match="not routed to any object"):
            found.score(X, Y, sample_weight=WEIGHTS)
    assert found.score(X, Y) == pytest.approx(theirs.score(X, Y))


@pytest.mark.skipif(OLD_SCIKIT_LEARN, reason="scikit-learn 1.7 lets unset requests of scorers pass")
def test_unrequested_metadata_of_penalties_is_refused() -> None:
    model = LogisticRegressionCV(Cs=[1.0], cv=ours.GroupKFold(2))
    groups = np.arange(120) % 4
    assert model.fit(X, Y, groups=groups).scores_[1].shape == (2, 1)
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        model.fit(X, Y, WEIGHTS, groups=groups)
    with pytest.raises(InvalidTypeError, match="not routed to any object"):
        model.fit(X, Y, groups=groups, colour="red")
    with sklearn.config_context(enable_metadata_routing=False):
        weighed = model.fit(X, Y, WEIGHTS, groups=groups).scores_[1]
        assert not np.allclose(weighed, model.fit(X, Y, groups=groups).scores_[1])
        for call in (model.fit, model.score):
            with pytest.raises(InvalidParameterError, match="only supported if enable_metadata"):
                call(X, Y, colour="red")
