"""Scorers: scikit-learn's names, and its values of Dask collections."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from daskml_dist.errors import InvalidParameterError
from daskml_dist.metrics import get_scorer, get_scorer_names, make_scorer, mean_pinball_loss
from daskml_dist.metrics.scorers import SCORERS
from tests.metrics.rows import BINARY, CLASSES, WEIGHTS, N, lazy
from tests.quick import quick

X = np.random.default_rng(4).normal(size=(N, 3)) + 0.5 * CLASSES[:, None] + BINARY[:, None]
COUNTS = CLASSES + 1
#: Arguments that scikit-learn's scorer does not accept.
WITHOUT_WEIGHTS = {
    "neg_max_error",
    "neg_negative_likelihood_ratio",
    "positive_likelihood_ratio",
    "roc_auc_ovo_weighted",
}


@cache
def fitted(kind: str) -> tuple[Any, Any]:
    model: Any = PoissonRegressor if kind == "counts" else LogisticRegression
    y = {"counts": COUNTS, "classes": CLASSES, "binary": BINARY}[kind]
    return model(solver="newton-cholesky").fit(X, y), y


def kind_of(name: str) -> str:
    if name.startswith("top_k") or name.endswith(("_macro", "_micro", "_weighted", "_ovr")):
        return "classes"
    metric = getattr(SCORERS[name]._score_func, "__module__", "")
    return "counts" if metric.endswith("regression") else "binary"


#: One of each metric.
ONCE = [name for name in SCORERS if not name.endswith(("_micro", "_weighted"))]


@pytest.mark.parametrize("name", quick(SCORERS, *ONCE))
def test_value_of_a_collection_is_scikit_learns(name: str) -> None:
    model, y = fitted(kind_of(name))
    theirs = sklearn.metrics.get_scorer(name)
    scorer = get_scorer(name)
    assert scorer(model, lazy(X), lazy(y)) == pytest.approx(theirs(model, X, y), rel=1e-9)
    assert scorer(model, X, y) == theirs(model, X, y)
    if name in WITHOUT_WEIGHTS:
        return
    weight = WEIGHTS["float"]
    expected = theirs(model, X, y, sample_weight=weight)
    found = scorer(model, lazy(X), lazy(y), sample_weight=lazy(weight))
    assert found == pytest.approx(expected, rel=1e-9)


def test_names() -> None:
    assert get_scorer_names() == sorted(sklearn.metrics.get_scorer_names())
    assert set(SCORERS) <= set(get_scorer_names())
    model, y = fitted("binary")
    for name in set(get_scorer_names()) - set(SCORERS):
        with pytest.raises(InvalidParameterError, match="not available for Dask"):
            get_scorer(name)(model, lazy(X), lazy(y))
    with pytest.raises(InvalidParameterError, match="not the name of a score"):
        get_scorer("f17")


def test_own_scorer() -> None:
    model, y = fitted("counts")
    scorer = make_scorer(mean_pinball_loss, greater_is_better=False, alpha=0.3)
    expected = -sklearn.metrics.mean_pinball_loss(y, model.predict(X), alpha=0.3)
    assert scorer(model, lazy(X), lazy(y)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(InvalidParameterError, match="response_method"):
        make_scorer(mean_pinball_loss, response_method="transform")


def test_nullable_labels_above_the_digits_of_floats() -> None:
    labels = BINARY + 2**60
    model = LogisticRegression().fit(X, labels)
    expected = model.score(X, labels)
    assert expected < 1
    assert get_scorer("accuracy")(model, X, pd.Series(labels, dtype="Int64")) == expected
