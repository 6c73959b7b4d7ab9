"""Transformers made of others: columns apart, pipelines, stateless ones by the block."""

from __future__ import annotations

import itertools
import operator
import pickle
from datetime import date
from decimal import Decimal
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.compose
import sklearn.impute
import sklearn.preprocessing
from distributed import Client
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_selector
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, PolynomialFeatures

import daskml_dist
from daskml_dist.compose import Blockwise, ColumnTransformer, make_column_transformer
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.impute import SimpleImputer
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

N = 200
CUTS = [0, 0, 60, 61, 150, N]  # the first block is empty


def _rows() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 10, N),
            "job": rng.choice(["cook", "clerk", "pilot"], N),
            "hours": rng.choice([20.0, 40.0, np.nan], N),
            "city": rng.choice(["a", "b"], N),
        }
    )
    return frame, (frame.age + 10 * (frame.job == "pilot") > 42).astype(int)


FRAME, Y = _rows()


def _lazy(values: Any) -> Any:
    parts = [dask.delayed(values[a:b]) for a, b in itertools.pairwise(CUTS)]
    return dd.from_delayed(parts, meta=values[:0])


def _both(transformers: Any, **options: Any) -> tuple[Any, Any]:
    """Ours, and scikit-learn's with its own transformers in place of ours."""
    theirs = [(name, _theirs(t), columns) for name, t, columns in transformers]
    return (
        ColumnTransformer(transformers, **options),
        sklearn.compose.ColumnTransformer(theirs, **options),
    )


def _theirs(transformer: Any) -> Any:
    if isinstance(transformer, str):
        return transformer
    if hasattr(transformer, "steps"):
        return make_pipeline(*(_theirs(step) for _, step in transformer.steps))
    name = type(transformer).__name__
    for module in (sklearn.preprocessing, sklearn.impute):
        if hasattr(module, name):
            return getattr(module, name)(**transformer.get_params())
    return transformer


def _dense(X: Any) -> Any:
    X = dask.compute(X)[0]
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


ENCODE = make_pipeline(SimpleImputer(), StandardScaler())
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "names": ([("n", ENCODE, ["age", "hours"]), ("c", OneHotEncoder(), ["job", "city"])], {}),
    "positions": ([("n", StandardScaler(), [0]), ("c", OneHotEncoder(), [1, 3])], {}),
    "slices": ([("c", OneHotEncoder(), slice("city", None)), ("n", MinMaxScaler(), slice(0, 1))],
               {}),
    "masks": ([("c", OneHotEncoder(), [False, True, False, True])], {"remainder": ENCODE}),
    "selector": ([("n", ENCODE, make_column_selector(dtype_include="number"))], {}),
    "passthrough": ([("p", "passthrough", ["age"]), ("d", "drop", ["job"])],
                    {"remainder": "drop"}),
    "remainder": ([("c", OneHotEncoder(), ["job", "city"])], {"remainder": "passthrough"}),
    "sparse": ([("c", OneHotEncoder(), ["job", "city"])], {"sparse_threshold": 1.0}),
    "weights": ([("n", ENCODE, ["age"]), ("c", OneHotEncoder(), ["job"])],
                {"transformer_weights": {"n": 3.0}}),
    "stateless": ([("f", FunctionTransformer(np.abs, feature_names_out="one-to-one"), ["age"])],
                  {}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_columns_apart_equal_scikit_learn(case: str) -> None:
    ours, theirs = _both(*CASES[case][:1], **CASES[case][1])
    lazy = _lazy(FRAME)
    found, expected = ours.fit_transform(lazy), theirs.fit_transform(FRAME)
    np.testing.assert_allclose(_dense(found), _dense(expected), rtol=1e-10, atol=1e-12)
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    assert ours.sparse_output_ == theirs.sparse_output_
    assert ours.output_indices_ == theirs.output_indices_
    assert ours.feature_names_in_.tolist() == list(FRAME.columns)
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_allclose(_dense(unpickled.transform(FRAME)), _dense(expected), atol=1e-12)
    clone(ours)


def test_columns_of_an_array() -> None:
    X = np.random.default_rng(0).normal(size=(N, 3))
    ours, theirs = _both([("a", StandardScaler(), [0, 2]), ("b", MinMaxScaler(), [1])])
    lazy = da.from_array(X, chunks=(70, 2))
    np.testing.assert_allclose(ours.fit_transform(lazy).compute(), theirs.fit_transform(X))


@pytest.mark.parametrize(
    "fitted", [lambda X: X, pd.DataFrame, sparse.csr_array], ids=["array", "frame", "sparse"]
)
@pytest.mark.parametrize(
    "kind",
    {
        "float32": lambda X: X.astype(np.float32),
        "int8": lambda X: X.astype(np.int8),
        "CSR matrix": sparse.csr_matrix,
        "CSC": sparse.csc_array,
        "frame": lambda X: pd.DataFrame(X).astype({1: np.float32}),
    }.items(),
    ids=operator.itemgetter(0),
)
def test_lazy_results_declare_the_dtype_of_the_rows(fitted: Any, kind: Any) -> None:
    """Columns that are passed through have that of the rows, whatever that of the fit was."""
    X = np.random.default_rng(0).poisson(3.0, (20, 3)).astype(float)
    ours, theirs = _both([("a", MaxAbsScaler(), [0])], remainder="passthrough")
    ours.fit(fitted(X))
    rows = kind[1](X)
    if isinstance(rows, pd.DataFrame):
        lazy = dd.from_pandas(rows, npartitions=2)
    else:
        lazy = da.from_array(X, chunks=(8, 3)).map_blocks(kind[1], meta=rows[:0])
    found, expected = ours.transform(lazy), theirs.fit(fitted(X)).transform(rows)
    assert found.dtype == expected.dtype == found.compute().dtype
    assert type(found._meta) is type(found.compute()) is type(expected)
    np.testing.assert_allclose(_dense(found), _dense(expected), rtol=1e-6)


def test_categories_that_dask_does_not_know_are_declared_as_unknown() -> None:
    frame = pd.DataFrame({"a": np.arange(6.0), "c": pd.Categorical([*"abcabc"])})
    ours = ColumnTransformer([("a", OrdinalEncoder(), ["c"]), ("c", "passthrough", ["c"])])
    ours.set_output(transform="pandas").fit(frame)
    lazy = dd.from_pandas(frame, npartitions=2)
    found = ours.transform(lazy.assign(c=lazy["c"].cat.as_unknown()))
    assert not found["c__c"].cat.known
    assert set(found["c__c"].cat.as_known().cat.categories) == {*"abc"}
    assert ours.transform(lazy)["c__c"].cat.categories.tolist() == [*"abc"]


@pytest.mark.parametrize("fitted", [lambda X: X, pd.DataFrame], ids=["array", "frame"])
def test_rows_of_another_width_are_refused_before_they_are_computed(fitted: Any) -> None:
    X = np.ones((20, 3))
    ours = ColumnTransformer([("a", MaxAbsScaler(), [0])], remainder="passthrough").fit(fitted(X))
    with pytest.raises(InvalidDataError, match="X has 2 features, but ColumnTransformer is expect"):
        ours.transform(da.ones((20, 2), chunks=(8, 2)))


def test_pandas_output() -> None:
    ours = make_column_transformer(
        (ENCODE, ["age", "hours"]), (OneHotEncoder(sparse_output=False), ["job"])
    ).set_output(transform="pandas")
    found = ours.fit_transform(_lazy(FRAME))
    assert isinstance(found, dd.DataFrame)
    computed = found.compute()
    assert list(computed.columns) == list(ours.get_feature_names_out())
    assert len(computed) == N


def test_a_transformer_without_dask_support_is_refused() -> None:
    ours = make_column_transformer((PCA(1), ["age"]))
    with pytest.raises(InvalidParameterError, match=r"PCA .* cannot be fitted .* Blockwise"):
        ours.fit(_lazy(FRAME))


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(InvalidDataError, match=r"Columns \['nothing'\] are not in X"):
        make_column_transformer((StandardScaler(), ["nothing"])).fit(_lazy(FRAME))


def test_a_pipeline_from_frame_to_classes(client: Client) -> None:
    model = make_pipeline(
        make_column_transformer(
            (ENCODE, ["age", "hours"]), (OneHotEncoder(handle_unknown="ignore"), ["job", "city"])
        ),
        SGDClassifier(batch_size=None, optimizer="sgd", learning_rate=0.5, tol=None),
    )
    lazy, y = _lazy(FRAME), _lazy(Y)
    model.fit(lazy, y)
    in_memory = clone(model).fit(FRAME, Y)
    np.testing.assert_allclose(model[-1].coef_, in_memory[-1].coef_, rtol=1e-8)
    assert model.score(lazy, y) == pytest.approx(in_memory.score(FRAME, Y))
    np.testing.assert_array_equal(model.predict(lazy).compute(), in_memory.predict(FRAME))


def test_scikit_learns_own_column_transformer_takes_ours_on_arrays() -> None:
    X = np.random.default_rng(0).normal(size=(N, 3))
    theirs = sklearn.compose.ColumnTransformer(
        [("a", StandardScaler(), [0, 2]), ("b", MinMaxScaler(), [1])]
    )
    found = theirs.fit_transform(da.from_array(X, chunks=(70, 3)))
    assert isinstance(found, da.Array)
    ours = ColumnTransformer(theirs.transformers).fit_transform(X)
    np.testing.assert_allclose(found.compute(), ours)


def test_columns_of_a_selector_are_scikit_learns() -> None:
    selected = [("n", ENCODE, make_column_selector("age|hours"))]
    ours, theirs = _both(selected, remainder="drop")
    ours.fit(_lazy(FRAME))
    theirs.fit(FRAME)
    assert [c for _, _, c in ours.transformers_] == [c for _, _, c in theirs.transformers_]


def test_frames_of_more_columns_in_another_order() -> None:
    ours, theirs = _both(CASES["names"][0])
    ours.fit(_lazy(FRAME))
    expected = theirs.fit(FRAME).transform(FRAME)
    other = FRAME.assign(more=1.0)[["city", "more", "hours", "job", "age"]]
    np.testing.assert_allclose(_dense(ours.transform(_lazy(other))), _dense(expected), atol=1e-12)
    with pytest.raises(InvalidDataError, match=r"columns are missing: \{'age'\}"):
        ours.transform(_lazy(FRAME.drop(columns="age")))


def test_an_unseen_category_names_its_block() -> None:
    ours = make_column_transformer((OneHotEncoder(), ["job"])).fit(_lazy(FRAME))
    frame = FRAME.copy()
    frame.loc[70, "job"] = "only here"
    lazy = ours.transform(_lazy(frame))
    with pytest.raises(InvalidDataError, match=r"Block 3 of X: Found unknown.*set handle_un"):
        lazy.compute()


@pytest.mark.parametrize(
    ("transformers", "message"),
    [
        ([("n", MinMaxScaler(), ["age"]), ("n", MinMaxScaler(), ["hours"])], "not unique"),
        ([("n", 3, ["age"])], "instance of an estimator|should implement fit"),
    ],
)
def test_transformers_that_have_no_meaning(transformers: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        ColumnTransformer(transformers).fit(_lazy(FRAME))


def test_lazy_results_do_not_change_with_a_later_fit() -> None:
    ours, theirs = _both([("n", StandardScaler(), ["age"])])
    lazy = ours.fit_transform(_lazy(FRAME))
    ours.fit(_lazy(FRAME.assign(age=FRAME.age * 100)))
    np.testing.assert_allclose(lazy.compute(), theirs.fit_transform(FRAME), rtol=1e-10)


# --- stateless transformers ------------------------------------------------------------------


@pytest.mark.parametrize(
    "transformer",
    [Normalizer(), Binarizer(threshold=0.5), PolynomialFeatures(2), FunctionTransformer(np.abs)],
    ids=lambda t: type(t).__name__,
)
def test_stateless_transformers_by_the_block(transformer: Any) -> None:
    X = np.random.default_rng(0).normal(size=(N, 3))
    lifted = Blockwise(transformer)
    expected = clone(transformer).fit_transform(X)
    np.testing.assert_allclose(
        lifted.fit_transform(da.from_array(X, chunks=(70, 2))).compute(), expected
    )
    np.testing.assert_allclose(lifted.fit_transform(X), expected)
    clone(lifted)


def test_a_fitted_transformer_by_the_block() -> None:
    X = np.random.default_rng(0).normal(size=(N, 3))
    fitted = PCA(2).fit(X)
    found = Blockwise(fitted).fit_transform(da.from_array(X, chunks=(70, 3)))
    np.testing.assert_allclose(found.compute(), fitted.transform(X))


def test_a_stateful_transformer_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="StandardScaler learns from rows"):
        Blockwise(sklearn.preprocessing.StandardScaler()).fit(da.ones((4, 2)))


def test_polynomial_features_in_a_pipeline() -> None:
    X = np.random.default_rng(0).normal(size=(N, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    model = make_pipeline(
        Blockwise(PolynomialFeatures(2, include_bias=False)),
        SGDClassifier(max_iter=100, random_state=0),
    )
    model.fit(da.from_array(X, chunks=50), da.from_array(y, chunks=50))
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("kind", ["array", "frame"])
@pytest.mark.parametrize(
    "transformer",
    [Normalizer(), PolynomialFeatures(2), FunctionTransformer(feature_names_out="one-to-one")],
    ids=lambda t: type(t).__name__,
)
def test_names_of_the_columns(transformer: Any, kind: str) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=["a", "b", "c"])
    rows = frame if kind == "frame" else frame.to_numpy()
    lazy = _lazy(frame) if kind == "frame" else da.from_array(rows, chunks=(70, 3))
    expected = clone(transformer).fit(rows).get_feature_names_out()
    assert list(Blockwise(transformer).fit(lazy).get_feature_names_out()) == list(expected)


def test_pandas_output_of_a_stateless_transformer() -> None:
    numbers = FRAME[["age"]]
    model = make_pipeline(Blockwise(Normalizer())).set_output(transform="pandas")
    expected = Normalizer().set_output(transform="pandas").fit_transform(numbers)
    pd.testing.assert_frame_equal(model.fit_transform(_lazy(numbers)).compute(), expected)


def test_a_fitted_transformer_stays_so_in_clones() -> None:
    X = np.random.default_rng(0).normal(size=(N, 3))
    fitted = PCA(1).fit(X[:, :2])
    lazy = da.from_array(X, chunks=(70, 3))
    columns = ColumnTransformer([("p", Blockwise(fitted), [0, 1])])
    for model in (columns, clone(columns)):
        np.testing.assert_allclose(model.fit_transform(lazy), fitted.transform(X[:, :2]))


def test_a_parameter_of_the_lifted_transformer() -> None:
    lifted = Blockwise(PolynomialFeatures(2)).set_params(transformer__degree=3)
    assert lifted.get_params()["transformer__degree"] == 3
    assert lifted.fit_transform(da.ones((4, 3))).shape == (4, 20)


def test_a_sample_provides_meta_that_dask_cannot_infer() -> None:
    encoder = sklearn.preprocessing.OneHotEncoder().fit(FRAME[["job"]])
    with pytest.raises(InvalidParameterError, match=r"(?s)cannot transform .*sample=rows"):
        Blockwise(encoder).fit_transform(_lazy(FRAME[["job"]]))
    found = Blockwise(encoder, sample=FRAME[["job"]][:2]).fit_transform(_lazy(FRAME[["job"]]))
    np.testing.assert_array_equal(_dense(found), _dense(encoder.transform(FRAME[["job"]])))


@pytest.mark.parametrize("dtype", ["Float64", "Int64", "double[pyarrow]", "string"])
def test_blocks_of_nullable_and_arrow_columns_are_those_of_rows_in_memory(dtype: str) -> None:
    frame = pd.DataFrame({"a": pd.array([1, None, 3, 4], dtype="Int64")}).astype(dtype)
    lifted = Blockwise(FunctionTransformer())
    found = lifted.fit_transform(dd.from_pandas(frame, npartitions=2))
    expected = lifted.fit_transform(frame)
    pd.testing.assert_frame_equal(found.compute(), expected)
    if dtype != "string":
        pd.testing.assert_frame_equal(expected, frame)
        assert found.dtypes.tolist() == frame.dtypes.tolist()


def test_a_block_that_cannot_be_read_is_named() -> None:
    X = np.ones((N, 2))
    X[100, 0] = np.nan
    lazy = Blockwise(Normalizer()).fit_transform(da.from_array(X, chunks=(70, 2)))
    with pytest.raises(InvalidDataError, match=r"Block 1 of X: Input X contains NaN"):
        lazy.compute()


def test_a_fit_in_memory_transforms_dask_and_the_other_way_round() -> None:
    def ours() -> Any:
        return make_column_transformer((OneHotEncoder(sparse_output=False), ["job"]))

    in_memory, lazily = ours().fit(FRAME), ours().fit(_lazy(FRAME))
    truth = in_memory.transform(FRAME)
    np.testing.assert_array_equal(in_memory.transform(_lazy(FRAME)).compute(), truth)
    np.testing.assert_array_equal(lazily.transform(FRAME), truth)
    with pytest.raises(InvalidDataError, match="only supported for"):
        in_memory.transform(da.ones((4, FRAME.shape[1]), chunks=2))


@pytest.mark.parametrize(
    "values",
    [
        pd.date_range("2020", periods=N),
        pd.timedelta_range("1s", periods=N),
        pd.period_range("2020", periods=N),
        [date(2020, 1, 1)] * N,
        [Decimal(1)] * N,
        pd.array([pd.NA] * N, dtype="Int64"),
    ],
    ids=["date", "span", "period", "day", "decimal", "missing"],
)
def test_a_model_file_holds_no_values_of_columns_that_are_dropped(
    values: Any, tmp_path: Any
) -> None:
    pytest.importorskip("skops", reason="needs the extra export")
    frame = FRAME[["age"]].assign(when=values)
    columns = make_column_transformer((StandardScaler(), ["age"])).fit(frame)
    daskml_dist.save(columns, tmp_path / "model.skops")
    found = daskml_dist.load(tmp_path / "model.skops")
    np.testing.assert_array_equal(
        found.transform(dd.from_pandas(frame, npartitions=2)).compute(), columns.transform(frame)
    )


def test_a_column_of_dates_that_is_used_is_in_a_model_file(tmp_path: Any) -> None:
    pytest.importorskip("skops", reason="needs the extra export")
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=4)})
    columns = make_column_transformer((OrdinalEncoder(), ["when"])).fit(frame)
    daskml_dist.save(columns, tmp_path / "model.skops")
    found = daskml_dist.load(tmp_path / "model.skops")
    lazy = found.transform(dd.from_pandas(frame, npartitions=2))
    np.testing.assert_array_equal(lazy.compute(), np.arange(4.0)[:, None])
