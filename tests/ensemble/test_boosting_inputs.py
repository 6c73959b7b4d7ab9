"""Unusual rows for boosting are handled as in scikit-learn, or refused with a remedy."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble as truth

from daskml_dist.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3))
Y = 2 * X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=len(X))
HALF = (np.arange(400) % 2).astype(float)
GIVEN: dict[str, Any] = {"max_iter": 2}


def framed(categories: Any) -> Any:
    return pd.DataFrame(X, columns=list("abc")).assign(k=categories)


def part(i: int) -> Any:
    """Return a partition with other categories than the others."""
    names = [f"k{(j + i) % (3 + i)}" for j in range(100)]
    return framed("").iloc[100 * i : 100 * (i + 1)].assign(k=pd.Categorical(names), y=Y[:100])


PARTS = [part(i) for i in range(4)]
WHOLE = pd.concat([p.astype({"k": str}) for p in PARTS]).astype({"k": "category"})


@pytest.mark.parametrize(
    "rows",
    [
        (X, Y, HALF),
        (X[:1], Y[:1]),
        (np.ones((50, 2)), Y[:50]),
        (framed(pd.Categorical(np.arange(400) % 4, categories=range(300))), Y),
        (framed(pd.Categorical(np.arange(400) % 4 > 1)), Y),
    ],
    ids=["weights of zero", "one row", "constant", "unused categories", "bools"],
)
def test_unusual_rows_are_handled_as_in_scikit_learn(rows: Any) -> None:
    peer = truth.HistGradientBoostingRegressor(**GIVEN).fit(*rows)
    model = HistGradientBoostingRegressor(**GIVEN).fit(*rows)
    np.testing.assert_allclose(model.predict(rows[0]), peer.predict(rows[0]), rtol=1e-6)


@pytest.mark.parametrize("params", [{}, {"categorical_features": [0]}], ids=str)
def test_rows_of_missing_values_only_predict_the_mean(params: dict[str, Any]) -> None:
    missing = np.full((50, 2), np.nan)
    model = HistGradientBoostingRegressor(**GIVEN, **params).fit(missing, Y[:50])
    np.testing.assert_allclose(model.predict([[np.nan, np.nan], [1, 2]]), Y[:50].mean())


@pytest.mark.parametrize("declared", [False, True])
def test_partitions_of_other_categories(declared: bool) -> None:
    unknown = PARTS[0].k.cat.set_categories([dd.utils.UNKNOWN_CATEGORIES])
    meta = PARTS[0].assign(**({} if declared else {"k": unknown})).iloc[:0]
    lazy = dd.from_delayed([dask.delayed(p) for p in PARTS], meta=meta, verify_meta=False)
    model = HistGradientBoostingRegressor(**GIVEN)
    if declared:
        with pytest.raises(InvalidDataError, match=r"'k' holds categories that .* not declare"):
            model.fit(lazy, "y")
        return
    in_memory = HistGradientBoostingRegressor(**GIVEN).fit(
        WHOLE.drop(columns="y"), WHOLE.y.to_numpy()
    )
    found = model.fit(lazy, "y")._trees.packed()
    for name, array in in_memory._trees.packed().items():
        np.testing.assert_array_equal(found[name], array)


def test_empty_blocks_and_float_labels() -> None:
    labels = (Y > 0).astype(float)
    parts = [da.zeros((0, 3), chunks=((0,), 3)), da.from_array(X, chunks=(200, 3))]
    of_labels = [da.zeros(0, chunks=((0,),)), da.from_array(labels, chunks=200)]
    model = HistGradientBoostingClassifier(**GIVEN)
    lazy = model.fit(da.concatenate(parts), da.concatenate(of_labels)).predict_proba(X)
    np.testing.assert_array_equal(lazy, model.fit(X, labels).predict_proba(X))
    assert model.predict(X).dtype == float


@pytest.mark.parametrize(
    ("y", "more", "match"),
    [
        (np.where(Y > 3, np.nan, Y), {}, "y contains NaN"),
        (np.where(Y > 3, np.inf, Y), {}, "y contains infinity"),
        (Y, {"sample_weight": np.zeros(400)}, "All weights are zero"),
        (Y, {"sample_weight": -HALF}, "Negative values in sample_weight"),
    ],
    ids=["nan", "infinity", "no weight", "negative weight"],
)
def test_bad_targets_and_weights_are_named(y: Any, more: Any, match: str) -> None:
    with pytest.raises(InvalidDataError, match=match):
        HistGradientBoostingRegressor(**GIVEN).fit(X, y, **more)


@pytest.mark.parametrize("kind", ["pyarrow", "Categorical", "Enum"])
def test_categories_of_other_tables(kind: str) -> None:
    module = pytest.importorskip("pyarrow" if kind == "pyarrow" else "polars")
    names = [f"k{i % 5}" if i % 7 else None for i in range(400)]
    frame = framed(pd.Categorical(names)).assign(c=HALF)
    if kind == "pyarrow":
        table = module.Table.from_pandas(frame)
    else:
        dtype = module.Enum([f"k{i}" for i in range(5)]) if kind == "Enum" else module.Categorical
        column = module.Series("k", names, dtype=dtype)
        table = module.from_pandas(frame.drop(columns="k")).with_columns(column)
    wanted = HistGradientBoostingRegressor(**GIVEN).fit(frame, Y).predict(frame)
    model = HistGradientBoostingRegressor(**GIVEN).fit(table, Y, eval_set=(table, Y))
    for rows in (table, frame):
        np.testing.assert_array_equal(model.predict(rows), wanted)
    assert model.score(table, Y) == model.score(frame, Y)
    known = HistGradientBoostingRegressor(**GIVEN).fit(frame, Y)
    np.testing.assert_array_equal(known.predict(table), wanted)


def test_invalid_categories_are_named() -> None:
    many = framed(pd.Categorical([f"{i % 300}" for i in range(400)]))
    lazy = dd.from_pandas(many, npartitions=2), da.from_array(Y, chunks=200)
    for rows in ((many, Y), lazy):
        with pytest.raises(InvalidDataError, match=r"'k' .* a cardinality of 300"):
            HistGradientBoostingRegressor(**GIVEN).fit(*rows)
    mixed = framed(pd.Categorical(["a" if i % 2 else 3 for i in range(400)]))
    with pytest.raises(InvalidDataError, match="'k' are of different types"):
        HistGradientBoostingRegressor(**GIVEN).fit(mixed, Y)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"monotonic_cst": {"z": 1}}, r"1 unexpected feature names: \['z'\]"),
        ({"monotonic_cst": {"a": "+"}}, r"monotonic_cst\['a'\] must be either"),
        ({"monotonic_cst": [0, 0, 0, 1]}, "Categorical features cannot"),
        ({"monotonic_cst": [0.3, 0, 0, 0]}, r"Observed values: \[0.3\]"),
        ({"categorical_features": np.array([b"a"])}, "got: bytes8"),
        ({"categorical_features": ["z"]}, "not a valid feature name"),
    ],
    ids=str,
)
def test_bad_constraints_and_categories_are_named(params: dict[str, Any], match: str) -> None:
    frame = framed(pd.Categorical(np.arange(400) % 4))
    with pytest.raises(InvalidParameterError, match=match):
        HistGradientBoostingRegressor(**GIVEN, **params).fit(frame, Y)
