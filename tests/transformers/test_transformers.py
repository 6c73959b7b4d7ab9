"""Transformers on every kind of collection: scikit-learn's values, lazily."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.feature_extraction
import sklearn.impute
import sklearn.preprocessing
from distributed import Client
from scipy import sparse
from sklearn.base import clone

from daskml_dist import feature_selection, impute, preprocessing
from daskml_dist.data.column_statistics import SKETCH_SIZE, merge_sketches, sketch_column
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
    InvalidTypeError,
    NotFittedError,
)
from tests.versions import OLD_SCIKIT_LEARN

N = 120
CUTS = [0, 30, 30, 100, N]  # uneven, one block empty
NAMES = ["a", "b", "c"]


def _numbers(missing: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * [1, 100, 0] + [0, 5, 7]
    if missing:
        X[rng.random((N, 3)) < 0.1] = np.nan
        X[30:100, 1] = np.nan  # a whole block
    return X


def _words() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.choice(["x", "y", "z"], N, p=[0.6, 0.3, 0.1]),
            "b": rng.integers(0, 5, N),
            "c": rng.choice([1.5, 2.5, np.nan], N),
        }
    )
    frame.loc[110, "a"] = "only here"
    return frame


def _parts(values: Any) -> list[Any]:
    return [values[a:b] for a, b in itertools.pairwise(CUTS)]


def _frame(frame: pd.DataFrame) -> Any:
    return dd.from_delayed([dask.delayed(part) for part in _parts(frame)], meta=frame[:0])


def _array(X: Any) -> da.Array:
    return da.from_array(np.asarray(X), chunks=(tuple(np.diff(CUTS)), 3))


def _unknown(X: Any) -> da.Array:
    keep = da.ones(N, chunks=(tuple(np.diff(CUTS)),), dtype=bool)
    return _array(X)[keep]


def _sparse(X: Any) -> da.Array:
    blocks = [
        da.from_delayed(
            dask.delayed(sparse.csr_array)(part), part.shape, meta=sparse.csr_array((0, 3))
        )
        for part in _parts(np.asarray(X))
    ]
    return da.concatenate(blocks)


KINDS: dict[str, Callable[[Any], Any]] = {
    "dask Array": _array,
    "column chunks": lambda X: _array(X).rechunk({1: 2}),
    "unknown chunks": _unknown,
    "dask DataFrame": lambda X: _frame(pd.DataFrame(X, columns=NAMES)),
}

# Parameters to try, and the rows that they are for.
CASES: dict[str, list[tuple[dict[str, Any], str]]] = {
    "StandardScaler": [({}, "numbers"), ({}, "missing"), ({"with_std": False}, "missing"),
                       ({"with_mean": False}, "sparse")],
    "MinMaxScaler": [({}, "numbers"), ({"feature_range": (-1, 2), "clip": True}, "missing")],
    "MaxAbsScaler": [({}, "numbers"), ({}, "missing"), ({}, "sparse")],
    "RobustScaler": [({}, "numbers"), ({"unit_variance": True, "quantile_range": (10, 90)},
                                       "missing"), ({"with_centering": False}, "sparse")],
    "QuantileTransformer": [({"n_quantiles": 50}, "numbers"),
                            ({"n_quantiles": 20, "output_distribution": "normal"}, "missing"),
                            ({"n_quantiles": 50}, "sparse"),
                            ({"n_quantiles": 9, "ignore_implicit_zeros": True}, "sparse")],
    "KBinsDiscretizer": [({"n_bins": 4, "quantile_method": "averaged_inverted_cdf"}, "uneven"),
                         ({"n_bins": [3, 2, 5], "encode": "onehot-dense",
                           "quantile_method": "averaged_inverted_cdf"}, "uneven"),
                         ({"strategy": "uniform", "encode": "ordinal"}, "uneven"),
                         ({"strategy": "kmeans", "n_bins": 3, "encode": "ordinal"}, "uneven")],
    "PolynomialFeatures": [({}, "numbers"), ({"degree": (2, 3), "include_bias": False}, "numbers"),
                           ({"interaction_only": True}, "sparse"), ({"degree": 3}, "sparse")],
    "OneHotEncoder": [({"sparse_output": False}, "words"),
                      ({"drop": "first", "sparse_output": False}, "words"),
                      ({"min_frequency": 15, "sparse_output": False}, "words"),
                      ({"max_categories": 3, "sparse_output": False}, "words"),
                      ({"handle_unknown": "ignore", "sparse_output": False}, "numbers")],
    "OrdinalEncoder": [({}, "words"), ({"max_categories": 3}, "words"),
                       ({"encoded_missing_value": -5}, "words")],
    "SimpleImputer": [({}, "missing"), ({"strategy": "median"}, "missing"),
                      ({"strategy": "most_frequent"}, "missing"),
                      ({"strategy": "most_frequent"}, "words"),
                      ({"strategy": "constant", "fill_value": 3.0}, "missing"),
                      ({"add_indicator": True}, "missing"),
                      ({"missing_values": 7.0, "keep_empty_features": True}, "numbers")],
}  # fmt: skip
# Of targets: tests/transformers/test_target_encoder.py and test_label_encoder.py; those that
# scikit-learn has no peer of: test_categorizer.py.
ELSEWHERE = {"TargetEncoder", "LabelEncoder", "Categorizer", "DummyEncoder"}
MODULES = {
    **dict.fromkeys(preprocessing.__all__, (preprocessing, sklearn.preprocessing)),
    **dict.fromkeys(impute.__all__, (impute, sklearn.impute)),
}
EVERY = [
    (name, parameters, rows, kind)
    for name in MODULES
    if name not in ELSEWHERE
    for parameters, rows in CASES[name]
    for kind in ({rows: None} if rows in ("words", "sparse") else KINDS)
]


def _rows(rows: str, kind: str) -> tuple[Any, Any]:
    """Lazy rows, and the same in memory."""
    if rows == "words":
        return _frame(_words()), _words()
    X = _numbers(missing=rows == "missing")
    if rows == "uneven":
        X[:, 2] = np.sqrt(np.arange(N) * 7 % 97)
    if rows == "sparse":
        X[X < 0] = 0
        return _sparse(X), sparse.csr_array(X)
    in_memory = pd.DataFrame(X, columns=NAMES) if kind == "dask DataFrame" else X
    return KINDS[kind](X), in_memory


def _dense(X: Any) -> Any:
    X = dask.compute(X)[0]
    X = X.toarray() if sparse.issparse(X) else X
    return np.asarray(X)


def _same(found: Any, expected: Any) -> None:
    if isinstance(expected, list) or getattr(expected, "dtype", np.dtype(int)).kind == "O":
        for a, b in zip(found, expected, strict=True):
            _same(a, b)
    elif isinstance(expected, np.ndarray) and expected.dtype.kind in "biuf":
        assert found.dtype == expected.dtype or OLD_SCIKIT_LEARN
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    elif expected is None or not hasattr(expected, "fit"):
        assert np.array_equal(found, expected) or found == expected


def _fitted_attributes(estimator: Any) -> dict[str, Any]:
    return {k: v for k, v in vars(estimator).items() if k.endswith("_") and not k.startswith("_")}


@pytest.mark.parametrize(
    ("name", "parameters", "rows", "kind"), EVERY, ids=lambda value: str(value).replace(" ", "_")
)
def test_equals_scikit_learn(name: str, parameters: Any, rows: str, kind: str) -> None:
    ours_in, theirs_in = MODULES[name]
    lazy, in_memory = _rows(rows, kind)
    ours = getattr(ours_in, name)(**parameters).fit(lazy)
    theirs = getattr(theirs_in, name)(**parameters).fit(in_memory)
    for attribute, expected in _fitted_attributes(theirs).items():
        _same(getattr(ours, attribute), expected)
    result, expected = ours.transform(lazy), theirs.transform(in_memory)
    assert result.shape[1] == expected.shape[1]
    _same(_dense(result).astype(float) if rows != "words" else _dense(result),
          _dense(expected).astype(float) if rows != "words" else _dense(expected))  # fmt: skip
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    unpickled = pickle.loads(pickle.dumps(ours))
    _same(_dense(unpickled.transform(in_memory)), _dense(theirs.transform(in_memory)))
    clone(ours)


def test_every_transformer_is_tried() -> None:
    assert set(MODULES) == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("name", ["StandardScaler", "OrdinalEncoder", "SimpleImputer"])
def test_pandas_output_is_a_dask_dataframe(name: str) -> None:
    rows = "words" if name == "OrdinalEncoder" else "missing"
    lazy, in_memory = _rows(rows, "dask DataFrame")
    ours = getattr(MODULES[name][0], name)().set_output(transform="pandas").fit(lazy)
    theirs = getattr(MODULES[name][1], name)().set_output(transform="pandas").fit(in_memory)
    found = ours.transform(lazy)
    assert isinstance(found, dd.DataFrame)
    assert list(found.columns) == list(theirs.get_feature_names_out())
    pd.testing.assert_frame_equal(found.compute(), theirs.transform(in_memory))


def test_lazy_results_do_not_change_with_a_later_fit() -> None:
    X = _numbers(missing=False)
    scaler = preprocessing.StandardScaler().fit(_array(X))
    lazy = scaler.transform(_array(X))
    scaler.fit(_array(X * 100))
    np.testing.assert_allclose(
        lazy.compute(), sklearn.preprocessing.StandardScaler().fit_transform(X), atol=1e-12
    )


def test_undoing_is_lazy_too() -> None:
    X = _numbers(missing=False)
    scaler = preprocessing.StandardScaler().fit(_array(X))
    back = scaler.inverse_transform(scaler.transform(_array(X)))
    np.testing.assert_allclose(back.compute(), X)


def test_weights_of_a_scaler() -> None:
    X, weight = _numbers(missing=False), np.random.default_rng(1).uniform(size=N)
    theirs = sklearn.preprocessing.StandardScaler().fit(X, sample_weight=weight)
    for sample_weight in (weight, da.from_array(weight, chunks=17)):
        ours = preprocessing.StandardScaler().fit(_array(X), sample_weight=sample_weight)
        np.testing.assert_allclose(ours.mean_, theirs.mean_)
        np.testing.assert_allclose(ours.var_, theirs.var_, atol=1e-12)


@pytest.mark.parametrize("name", ["StandardScaler", "MinMaxScaler", "MaxAbsScaler"])
def test_partial_fit_with_more_rows(name: str) -> None:
    X = _numbers(missing=True)
    ours, theirs = (getattr(module, name)() for module in (preprocessing, sklearn.preprocessing))
    for rows in (X, X * 3, X - 1):
        ours.partial_fit(_array(rows))
        theirs.partial_fit(rows)
    for attribute, expected in _fitted_attributes(theirs).items():
        _same(getattr(ours, attribute), expected)


def test_a_large_offset_keeps_its_digits() -> None:
    X = np.random.default_rng(0).normal(size=(N, 3)) + 1e8
    ours = preprocessing.StandardScaler().fit(_array(X))
    np.testing.assert_allclose(ours.var_, X.var(axis=0), rtol=1e-7)  # 1e8 * eps


def test_strings_of_arrow_with_missing_values() -> None:
    words = _words()["a"].where(np.arange(N) % 7 > 0, None)
    lazy = _frame(pd.DataFrame({"a": words.astype("string[pyarrow]")}))
    expected = pd.DataFrame({"a": words.astype(object).where(words.notna(), np.nan)})
    ours = preprocessing.OneHotEncoder(sparse_output=False).fit(lazy)
    theirs = sklearn.preprocessing.OneHotEncoder(sparse_output=False).fit(expected)
    np.testing.assert_array_equal(ours.transform(lazy).compute(), theirs.transform(expected))


def test_sparse_codes_are_csr_chunks(client: Client) -> None:
    lazy = _frame(_words())
    ours = preprocessing.OneHotEncoder().fit(lazy)
    blocks = dask.compute(*ours.transform(lazy).to_delayed().ravel())
    assert all(sparse.issparse(block) for block in blocks)
    theirs = sklearn.preprocessing.OneHotEncoder().fit_transform(_words())
    np.testing.assert_array_equal(sparse.vstack(blocks).toarray(), theirs.toarray())


def test_an_unseen_category_names_its_block() -> None:
    encoder = preprocessing.OneHotEncoder().fit(_frame(_words()[["a"]][:100].assign()))
    lazy = encoder.transform(_frame(_words()[["a"]]))
    with pytest.raises(InvalidDataError, match=r"Block 3 of X: Found unknown.*handle_unknown"):
        lazy.compute()


@pytest.mark.parametrize(
    "transformer",
    [
        preprocessing.StandardScaler(),
        preprocessing.RobustScaler(),
        impute.SimpleImputer(strategy="median"),
        impute.SimpleImputer(),
    ],
    ids=str,
)
def test_a_block_that_cannot_be_read_is_named(transformer: Any) -> None:
    X = _numbers(missing=False)
    X[50, 0] = np.inf
    with pytest.raises(InvalidDataError, match=r"Block 2 of X: .*infinity"):
        transformer.fit(_array(X))


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix])
@pytest.mark.parametrize(
    "transformer",
    [
        preprocessing.MaxAbsScaler(),
        preprocessing.PolynomialFeatures(),
        preprocessing.QuantileTransformer(n_quantiles=10),
        feature_selection.VarianceThreshold(),
    ],
    ids=str,
)
def test_sparse_results_declare_their_kind_of_matrix(transformer: Any, kind: Any) -> None:
    X = np.abs(_numbers(missing=False)[:, :2])
    lazy = _array(X).map_blocks(kind, meta=kind((0, X.shape[1])))
    result = clone(transformer).fit(lazy).transform(lazy)
    assert type(result._meta) is type(result.blocks[0].compute())


@pytest.mark.parametrize(
    "transformer",
    [preprocessing.KBinsDiscretizer(n_bins=2), preprocessing.MinMaxScaler()],
    ids=str,
)
def test_sparse_rows_of_dask_raise_the_error_of_those_in_memory(transformer: Any) -> None:
    X = _numbers(missing=False)[:, :2]
    transformer = clone(transformer).fit(X)
    with pytest.raises(InvalidTypeError) as in_memory:
        transformer.transform(sparse.csr_array(X))
    with pytest.raises(InvalidTypeError) as of_dask:
        transformer.transform(_array(X).map_blocks(sparse.csr_array))
    assert str(of_dask.value) == str(in_memory.value)


def test_no_rows_at_all() -> None:
    empty = _array(_numbers(missing=False))[da.zeros(N, chunks=(tuple(np.diff(CUTS)),), dtype=bool)]
    with pytest.raises(InvalidDataError, match="0 sample"):
        preprocessing.MinMaxScaler().fit(empty)


# --- the sketch ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["normal", "heavy", "sorted", "few values", "constant"])
def test_the_sketch_keeps_its_bound(shape: str) -> None:
    rng = np.random.default_rng(0)
    column = {
        "normal": lambda: rng.normal(size=200_000),
        "heavy": lambda: rng.standard_cauchy(200_000),
        "sorted": lambda: np.arange(200_000.0),
        "few values": lambda: rng.integers(0, 5, 200_000).astype(float),
        "constant": lambda: np.full(200_000, 3.0),
    }[shape]()
    sketch = merge_sketches([sketch_column(part) for part in np.array_split(column, 11)])
    assert len(sketch.values) <= SKETCH_SIZE
    assert sketch.n_rows == pytest.approx(len(column))
    assert sketch.error / len(column) < 2e-3
    column.sort()
    for q in (0, 0.01, 0.25, 0.5, 0.9, 1):
        value = sketch.quantile(q)
        low = np.searchsorted(column, value, side="left")
        high = np.searchsorted(column, value, side="right")
        rank = q * (len(column) - 1)
        assert low - sketch.error - 1 <= rank <= high + sketch.error + 1
    assert sketch.quantile(0) == column[0]
    assert sketch.quantile(1) == column[-1]


# --- errors ----------------------------------------------------------------------------------


def test_errors_are_of_the_package() -> None:
    X = _array(_numbers(missing=False))
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        preprocessing.StandardScaler().transform(X)
    with pytest.raises(InvalidParameterError, match="'feature_range' parameter"):
        preprocessing.MinMaxScaler(feature_range=3).fit(X)


# --- objects and delayed blocks --------------------------------------------------------------


def test_arrays_of_objects_with_missing_values() -> None:
    """As Dask makes them of Arrow-backed frames."""
    numbers = np.array([[1.0, pd.NA], [3, 4.0], [pd.NA, 8]], dtype=object)
    words = np.array([["a"], [pd.NA], ["b"]], dtype=object)
    for lay in np.asarray, partial(da.from_array, chunks=(2, -1)):
        filled = dask.compute(impute.SimpleImputer().fit(lay(numbers)).transform(lay(numbers)))[0]
        np.testing.assert_array_equal(filled.astype(float), [[1, 6], [3, 4], [2, 8]])
        encoder = preprocessing.OneHotEncoder(sparse_output=False).fit(lay(words))
        assert [str(c) for c in encoder.categories_[0]] == ["a", "b", "nan"]


def test_inputs_that_scikit_learn_refuses_raise() -> None:
    mixed = da.from_array(np.array([["a"], [1]], dtype=object), chunks=2)
    with pytest.raises(InvalidTypeError, match=r"Block 0 of X: .*strings or numbers"):
        preprocessing.OneHotEncoder().fit(mixed)
    with pytest.raises(InvalidDataError, match="does not support data with dtype bool"):
        impute.SimpleImputer(strategy="most_frequent").fit(da.zeros((4, 2), dtype=bool))


def test_delayed_blocks_are_transformed() -> None:
    X = np.random.default_rng(0).normal(size=(10, 3))
    blocks = [dask.delayed(X[:4]), dask.delayed(X[4:])]
    for scaler in preprocessing.StandardScaler(), preprocessing.MinMaxScaler():
        found = scaler.fit_transform(blocks).compute()
        np.testing.assert_allclose(found, clone(scaler).fit_transform(X))


def test_columns_of_arrow_may_be_numbered() -> None:
    words = pd.DataFrame({0: ["a", None, "b"], 1: ["x", "y", None]}).astype("string[pyarrow]")
    lazy = dd.from_pandas(words, npartitions=2)
    codes = preprocessing.OrdinalEncoder().fit_transform(lazy).compute()
    np.testing.assert_array_equal(codes, [[0, 0], [np.nan, 1], [1, np.nan]])


@pytest.mark.parametrize("kind", ["numpy", "pandas", "array", "frame"])
def test_gaps_of_a_column_without_values_in_a_block_come_back(kind: str) -> None:
    X = _numbers(missing=True)  # a block has no value of the second column
    model = impute.SimpleImputer(add_indicator=True)
    if kind in ("pandas", "frame"):
        model.set_output(transform="pandas")
    rows: Any = pd.DataFrame(X, columns=NAMES) if kind in ("pandas", "frame") else X
    if kind == "array":
        rows = da.from_array(X, chunks=(30, 3))
    elif kind == "frame":
        rows = dd.from_pandas(rows, npartitions=4)
    filled = model.fit(rows).transform(rows)
    found = model.inverse_transform(filled)
    assert hasattr(found, "dask") == (kind in ("array", "frame"))
    np.testing.assert_array_equal(*dask.compute(found, X))


def test_gaps_come_back_beside_a_column_that_was_left_out() -> None:
    X = _numbers(missing=True)
    X[:, 0] = np.nan
    model = impute.SimpleImputer(add_indicator=True)
    with pytest.warns(UserWarning, match="without any observed values"):
        filled = model.fit(X).transform(X)
    np.testing.assert_array_equal(model.inverse_transform(filled), X)
    with pytest.raises(InvalidDataError, match="Pass rows that transform has returned"):
        model.inverse_transform(X[:, :1])
    with pytest.raises(InvalidParameterError, match="add_indicator=True"):
        impute.SimpleImputer().fit(X[:, 1:]).inverse_transform(X[:, 1:])


def test_gaps_of_texts_come_back() -> None:
    X = np.array([["a", None], ["b", "c"], [None, "c"]], dtype=object)
    model = impute.SimpleImputer(
        missing_values=None, strategy="constant", fill_value="?", add_indicator=True
    )
    assert model.fit(X).inverse_transform(model.transform(X)).tolist() == X.tolist()
