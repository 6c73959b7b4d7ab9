"""Embedding models on dataframes: equal to a `FieldHasher`, streams, files, refusals."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.model_selection import cross_val_score

import daskml_dist
from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.feature_extraction import FieldHasher
from daskml_dist.inference import Predictor
from daskml_dist.recommender import (
    DeepFMClassifier,
    FactorizationMachineClassifier,
    FactorizationMachineRegressor,
    FieldAwareFMClassifier,
    WideAndDeepClassifier,
)
from daskml_dist.training.checkpoint import Checkpoint

N_ROWS = 600
CLASSIFIERS = [
    FactorizationMachineClassifier, FieldAwareFMClassifier, WideAndDeepClassifier, DeepFMClassifier,
]  # fmt: skip


def _table(bags: bool = False) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return rows of user, site, device and age, labelled by user and site together."""
    rng = np.random.default_rng(0)
    users, sites = rng.integers(20, size=(2, N_ROWS))
    frame = pd.DataFrame(
        {
            "user": users,
            "site": [f"site {i}" for i in sites],
            "device": pd.Categorical(rng.choice(["phone", "desk"], N_ROWS)),
            "age": rng.random(N_ROWS),
        }
    )
    if bags:
        frame["tags"] = [rng.integers(9, size=n).tolist() for n in rng.integers(4, size=N_ROWS)]
    return frame, users % 2 == sites % 2


def _lazy(frame: pd.DataFrame, y: Any, n: int = 3) -> tuple[Any, Any]:
    table = dd.from_pandas(frame.assign(label=y), npartitions=n, sort=False)
    return table.drop(columns="label"), table["label"]


def _params(**more: Any) -> dict[str, Any]:
    return {"random_state": 0, "batch_size": 50, "init_scale": 0.3, **more}


def _assert_same(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(first.ids_, second.ids_)
    np.testing.assert_array_equal(first.weights_, second.weights_)
    np.testing.assert_array_equal(first.vectors_, second.vectors_)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_table_equals_the_output_of_a_field_hasher(kind: Any) -> None:
    X, y = _table(bags=True)
    model = kind(**_params(bags="sum", max_iter=2)).fit(X, y)
    hashed = FieldHasher(bags="sum").fit_transform(X)
    more = {} if kind is FactorizationMachineClassifier else {"n_fields": 5}
    other = kind(**_params(max_iter=2, **more)).fit(hashed, y)
    _assert_same(model, other)
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(hashed))
    assert model.score(X, y) == other.score(hashed, y)
    assert model.fields_ == list(X)
    assert list(model.feature_names_in_) == list(X)
    assert model.kinds_ == ["integer", "text", "text", "numeric", "integers"]
    assert model.n_features_in_ == 5
    assert not hasattr(other, "fields_")


def test_products_of_ids_are_learned() -> None:
    X, y = _table()
    clf = FactorizationMachineClassifier(**_params(max_iter=40)).fit(X, y)
    assert clf.score(X, y) > 0.95
    regressor = FactorizationMachineRegressor(**_params(max_iter=40)).fit(X, y.astype(float))
    assert regressor.score(X, y.astype(float)) > 0.8


def test_a_dask_table_stays_lazy(client: Client) -> None:
    X, y = _table()
    lazy, lazy_y = _lazy(X, y)
    params = _params(max_iter=2, run=Run(n_lanes=3, deterministic=True))
    model = DeepFMClassifier(**params).fit(lazy, lazy_y, client=client)
    hashed = FieldHasher().fit_transform(lazy)
    other = DeepFMClassifier(n_fields=4, **params).fit(hashed, lazy_y, client=client)
    _assert_same(model, other)
    # The target is given as a column name, which is then no field.
    named = DeepFMClassifier(**params).fit(lazy.assign(label=lazy_y), "label", client=client)
    _assert_same(model, named)
    found = model.predict_proba(lazy)
    assert found.dask
    # The order of sums in BLAS depends on the number of rows, which is smaller in blocks.
    np.testing.assert_allclose(found.compute(), model.predict_proba(X), rtol=1e-5)
    assert model.score(lazy, lazy_y) == model.score(X, y)


def test_only_float_columns_are_numeric_features() -> None:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    y = X[:, 0] * X[:, 1] > 0
    frame = pd.DataFrame(X, columns=list("abc"))
    model = FactorizationMachineClassifier(**_params()).fit(frame, y)
    _assert_same(model, FactorizationMachineClassifier(**_params()).fit(X, y))
    assert not hasattr(model, "fields_")
    # Integers stored as floats may be ids.
    whole = frame.abs().round()
    ids = FactorizationMachineClassifier(numeric=[], **_params()).fit(whole, y)
    assert ids.kinds_ == ["float"] * 3
    _assert_same(ids, FactorizationMachineClassifier(**_params()).fit(whole.astype("Int64"), y))


def test_missing_values_have_a_separate_id() -> None:
    X, y = _table()
    X = X.astype({"user": "Int64"})
    X.loc[::7, ["user", "site", "device", "age"]] = None
    model = FactorizationMachineClassifier(missing="own", **_params()).fit(X, y)
    hashed = FieldHasher(missing="own").fit_transform(X)
    _assert_same(model, FactorizationMachineClassifier(**_params()).fit(hashed, y))


def test_a_fit_continues_with_the_same_columns() -> None:
    X, y = _table()
    model = FactorizationMachineClassifier(**_params(shuffle=False))
    other = FactorizationMachineClassifier(**_params(shuffle=False))
    hashed = FieldHasher().fit_transform(X)
    for at in (slice(300), slice(300, None)):
        model.partial_fit(X[at], y[at], classes=[False, True])
        other.partial_fit(hashed[at], y[at], classes=[False, True])
    _assert_same(model, other)
    # Columns in another order would give ids of other fields.
    with pytest.raises(InvalidDataError, match="same order"):
        model.partial_fit(X[["site", "user", "device", "age"]], y)
    with pytest.raises(InvalidDataError, match="same order"):
        model.predict(X[["site", "user", "device", "age"]])
    with pytest.raises(InvalidDataError, match=r"'user' is of kind text, but in the fit"):
        model.partial_fit(X.assign(user=X["user"].astype(str)), y)
    # A new fit to an array has no fields.
    numbers = X[["age"]].to_numpy()
    assert not hasattr(model.fit(numbers, y), "fields_")
    assert model.predict(numbers).shape == (N_ROWS,)


def test_a_stream_of_tables(tmp_path: Any) -> None:
    """Equals steps of `partial_fit`, also after resuming from a file."""
    X, y = _table(bags=True)
    params = _params(shuffle=False, learning_rate=0.1, dtype="float64")
    theirs = DeepFMClassifier(**params)
    ours = DeepFMClassifier(**params)
    place = Checkpoint(tmp_path / "stream.npz", every=1)
    with ours.stream(classes=[False, True], checkpoint=place) as stream:
        for at in range(0, 300, 50):
            stream.learn(X[at : at + 50], y[at : at + 50])
            theirs.partial_fit(X[at : at + 50], y[at : at + 50], classes=[False, True])
    _assert_same(ours, theirs)
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))
    resumed = DeepFMClassifier(**params)
    place = Checkpoint(tmp_path / "stream.npz", every=100, resume=True)
    with resumed.stream(classes=[False, True], checkpoint=place) as stream:
        for at in range(300, N_ROWS, 50):
            stream.learn(X[at : at + 50], y[at : at + 50])
            theirs.partial_fit(X[at : at + 50], y[at : at + 50])
    # The intercept is added to a different number than before.
    np.testing.assert_array_equal(resumed.ids_, theirs.ids_)
    np.testing.assert_allclose(resumed.vectors_, theirs.vectors_, rtol=1e-9)
    np.testing.assert_allclose(resumed.predict_proba(X), theirs.predict_proba(X), rtol=1e-9)


@pytest.mark.parametrize("suffix", [pytest.param("skops", marks=pytest.mark.slow), "safetensors"])
def test_a_saved_model_reads_tables(tmp_path: Any, suffix: str) -> None:
    X, y = _table()
    model = DeepFMClassifier(**_params()).fit(X, y)
    path = tmp_path / f"clicks.{suffix}"
    model.save(path)
    loaded = daskml_dist.load(path)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(Predictor(loaded)(X[:3]), model.predict_proba(X[:3]))


def test_folds_and_copies_of_a_table() -> None:
    X, y = _table()
    scores = cross_val_score(FactorizationMachineClassifier(**_params(max_iter=30)), X, y, cv=3)
    assert scores.mean() > 0.7


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"user": [-1, *range(N_ROWS - 1)]}, "cannot be negative"),
        ({"user": pd.array([None, *range(N_ROWS - 1)], "Int64")}, "missing='own'"),
        ({"site": [None, *["a"] * (N_ROWS - 1)]}, "missing='own'"),
        ({"age": [np.nan, *[1.0] * (N_ROWS - 1)]}, "missing='own'"),
        ({"site": ["a", 1] * (N_ROWS // 2)}, "mixed types"),
        ({"user": [1j] * N_ROWS}, "cannot be used as ids"),
    ],
)
def test_bad_columns_name_the_remedy(columns: dict[str, Any], match: str) -> None:
    X, y = _table()
    with pytest.raises(InvalidDataError, match=match):
        FactorizationMachineClassifier().fit(X.assign(**columns), y)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"numeric": "age"}, "numeric"), ({"numeric": ["size"]}, "is not a column"),
        ({"numeric": ["site"]}, "is of kind text"), ({"bags": "max"}, "bags"),
        ({"missing": "drop"}, "missing"),
    ],
)  # fmt: skip
def test_bad_parameters_name_the_remedy(params: dict[str, Any], match: str) -> None:
    X, y = _table()
    with pytest.raises((InvalidParameterError, InvalidDataError), match=match):
        FactorizationMachineClassifier(**params).fit(X, y)


def test_fields_beyond_the_layers_are_refused() -> None:
    """Otherwise compiled loops would write beyond their arrays."""
    X, y = _table()
    hashed = FieldHasher().fit_transform(X)
    with pytest.raises(InvalidDataError, match="n_fields=4 or more"):
        DeepFMClassifier(n_fields=2).fit(hashed, y)
    model = DeepFMClassifier(n_fields=4, **_params()).fit(hashed, y)
    wide = FieldHasher().fit_transform(X.assign(more=1))
    with pytest.raises(InvalidDataError, match="n_fields=5 or more"):
        model.predict(wide)
