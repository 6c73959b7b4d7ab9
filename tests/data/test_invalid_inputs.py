"""Objects that are not rows, and misspelt names, raise with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from daskml_dist.cluster import KMeans
from daskml_dist.errors import InvalidDataError, InvalidParameterError, InvalidTypeError
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.metrics import get_scorer
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.optimizers import Adam
from daskml_dist.policies import LocalSGD
from daskml_dist.preprocessing import StandardScaler

X = np.random.default_rng(0).normal(size=(20, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("rows", "words"),
    [(None, "X is None"), ("data", "read_parquet"), (Path("a.npy"), "numpy.load"),
     ((row for row in X), "read only once"), (map(float, X[0]), "read only once"),
     ((X, Y[:, None]), r"tuple of 2 collections.*separately, fit\(X, y\)"),
     ([da.from_array(X), da.from_array(X)], r"dask.array.concatenate"),
     ({"a": X[:, 0]}, r"X = pandas.DataFrame\(X\)"), ({1, 2}, "has no order"),
     (lambda: X, "<lambda>, a function"), (np, "numpy, a module"),
     (SGDClassifier, "has no rows")],
    ids=["None", "text", "path", "generator", "map", "tuple", "list", "dict", "set",
         "function", "module", "class"],
)  # fmt: skip
@pytest.mark.parametrize(
    "estimator", [SGDClassifier(), LogisticRegression(), GaussianNB(), MLPClassifier((2,))]
)
def test_invalid_rows_are_refused(estimator: Any, rows: Any, words: str) -> None:
    with pytest.raises(InvalidTypeError, match=words):
        estimator.fit(rows, Y)


@pytest.mark.parametrize(
    ("target", "words"),
    [((v for v in Y), "y is a generator, which can be read only"), (1, "y=1 is a single number"),
     (lambda: Y, "y is <lambda>, a function"), ({"y": Y}, "y is a dict")],
    ids=["generator", "number", "function", "dict"],
)  # fmt: skip
@pytest.mark.parametrize("estimator", [SGDClassifier(), Ridge(), GaussianNB()])
def test_invalid_targets_are_refused(estimator: Any, target: Any, words: str) -> None:
    with pytest.raises(InvalidTypeError, match=words):
        estimator.fit(X, target)


def test_futures_are_refused_as_rows(client: Client) -> None:
    future = client.submit(np.asarray, X)
    for rows in (future, [future, future]):
        with pytest.raises(InvalidTypeError, match=r"X holds futures.*dask\.delayed\("):
            SGDClassifier().fit(rows, Y)
    del rows


def test_blocks_that_contradict_dask_metadata_raise() -> None:
    rows = da.from_array(X, chunks=(10, 3)).map_blocks(lambda b: b[:, :2], dtype=float)
    for estimator in (SGDClassifier(), KMeans(2), StandardScaler()):
        with pytest.raises(InvalidDataError, match=r"shape \(2,\).*declares \(3,\).*chunks="):
            estimator.fit(rows, da.from_array(Y, chunks=10))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGDClassifier(policy="snyc"), "Did you mean 'sync'"),
        (lambda: SGDClassifier(policy=LocalSGD), r"pass an instance, LocalSGD\(\)"),
        (lambda: SGDClassifier(loss="logloss"), "Did you mean 'log_loss'"),
        (lambda: SGDClassifier(loss="squared-hinge"), "Did you mean 'squared_hinge'"),
        (lambda: SGDClassifier(optimizer="Adamm"), "Did you mean 'adam'"),
        (lambda: SGDClassifier(optimizer=Adam), r"pass an instance, Adam\(\)"),
        (lambda: SGDClassifier(penalty="elastic-net"), "Did you mean 'elasticnet'"),
        (lambda: SGDClassifier(learning_rate="inv_scaling"), "Did you mean 'invscaling'"),
        (lambda: LogisticRegression(solver="lbgfs"), "Did you mean 'lbfgs'"),
        (lambda: Ridge(solver="choleski"), "Did you mean 'cholesky'"),
    ],
)
def test_misspelt_names_get_a_suggestion(make: Any, words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        make().fit(X, Y)


def test_unrelated_names_get_no_suggestion() -> None:
    with pytest.raises(InvalidParameterError) as raised:
        SGDClassifier(policy="gossip").fit(X, Y)
    assert "Did you mean" not in str(raised.value)


def test_scores_and_columns() -> None:
    with pytest.raises(InvalidParameterError, match="Did you mean 'roc_auc'"):
        get_scorer("rocauc")
    frame = pd.DataFrame(X, columns=["age", "pay", "days"]).assign(target=Y)
    with pytest.raises(InvalidDataError, match="Did you mean 'target'"):
        SGDClassifier().fit(frame, "Target")


def test_missing_values_are_located_correctly() -> None:
    bad = X.copy()
    bad[7, 2] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 7 of the block, column 2.*daskml_dist.impute"):
        SGDClassifier().fit(bad, Y)
