"""Categorical columns equal pandas' categories and dummies over all rows."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.preprocessing import Categorizer, DummyEncoder

SIZES = pd.CategoricalDtype(["small", "large", "huge"], ordered=True)
FRAME = pd.DataFrame(
    {
        "n": np.arange(12.0),
        # No block has all values.
        "job": ["nurse"] * 4 + ["clerk"] * 4 + ["cook"] * 3 + [None],
        "size": pd.Categorical(["large", "small"] * 6, dtype=SIZES),
        "code": [3, 1, 2] * 4,
    }
)


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(frame):
    return dd.from_pandas(frame, npartitions=3)


@pytest.mark.parametrize("make", [lambda frame: frame, lazy], ids=["pandas", "dask"])
def test_categories_are_those_of_all_rows(make):
    found = Categorizer().fit(make(FRAME))
    assert found.columns_ == ["job", "size"]
    assert found.categories_["job"] == pd.CategoricalDtype(["clerk", "cook", "nurse"])
    assert found.categories_["size"] == SIZES
    turned = found.transform(make(FRAME))
    assert turned.dtypes.to_dict() == FRAME.dtypes.to_dict() | found.categories_
    turned = turned.compute() if make is lazy else turned
    expected = FRAME.assign(job=FRAME["job"].astype(found.categories_["job"]))
    pd.testing.assert_frame_equal(turned, expected)
    assert found.get_feature_names_out().tolist() == list(FRAME)


@pytest.mark.parametrize("make", [lambda frame: frame, lazy], ids=["pandas", "dask"])
def test_categories_and_columns_that_are_given(make):
    job_dtype = pd.CategoricalDtype(["nurse", "clerk"])
    found = Categorizer({"job": job_dtype}, ["job", "code"]).fit(make(FRAME))
    assert found.categories_ == {"job": job_dtype, "code": pd.CategoricalDtype([1, 2, 3])}
    turned = found.transform(make(FRAME))
    turned = turned.compute() if make is lazy else turned
    assert turned["job"].isna().sum() == 4  # cooks are none of the categories
    assert turned["code"].tolist() == FRAME["code"].tolist()


def test_categories_that_dask_does_not_know():
    frame = lazy(FRAME)
    frame["job"] = frame["job"].astype("category")
    assert not frame["job"].cat.known
    found = Categorizer().fit(frame)
    assert found.categories_["job"].categories.tolist() == ["clerk", "cook", "nurse"]
    with pytest.raises(InvalidDataError, match="Categorizer"):
        DummyEncoder().fit(frame)


@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("make", [lambda frame: frame, lazy], ids=["pandas", "dask"])
def test_dummies_are_those_of_pandas(make, drop_first):
    whole = Categorizer().fit_transform(FRAME)
    frame = Categorizer().fit_transform(make(FRAME))
    encoder = DummyEncoder(drop_first=drop_first).fit(frame)
    encoded = encoder.transform(frame)
    restored = encoder.inverse_transform(encoded)
    if make is lazy:
        assert list(encoded.columns) == encoder.transformed_columns_.tolist()
        encoded, restored = encoded.compute(), restored.compute()
    expected = pd.get_dummies(whole, columns=["job", "size"], drop_first=drop_first)
    pd.testing.assert_frame_equal(encoded, expected)
    assert encoder.get_feature_names_out().tolist() == list(expected)
    assert encoder.non_categorical_columns_ == ["n", "code"]
    # Without its column, the first category and none are the same.
    truth = whole.fillna({"job": "clerk"}) if drop_first else whole
    pd.testing.assert_frame_equal(restored, truth)


def test_some_columns():
    frame = Categorizer().fit_transform(FRAME)
    encoded = DummyEncoder(["size"]).fit_transform(frame)
    pd.testing.assert_frame_equal(encoded, pd.get_dummies(frame, columns=["size"]))


def test_a_pipeline():
    frame, y = lazy(FRAME.drop(columns="n")), FRAME["n"].to_numpy() < 4
    model = make_pipeline(Categorizer(), DummyEncoder(), LogisticRegression())
    model.fit(frame, dd.from_pandas(pd.Series(y), npartitions=3))
    np.testing.assert_array_equal(model.predict(frame).compute(), y)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: Categorizer().fit(FRAME.to_numpy()), InvalidDataError, "DataFrame"),
        (lambda: Categorizer(columns=["x"]).fit(FRAME), InvalidDataError, r"\['x'\] are not in X"),
        (lambda: Categorizer({"job": ["a"]}).fit(FRAME), InvalidParameterError, "CategoricalDtype"),
        (
            lambda: Categorizer().fit(pd.DataFrame({"a": [1, "x"]}, dtype=object)),
            InvalidDataError,
            "several types",
        ),
        (lambda: DummyEncoder(["job"]).fit(FRAME), InvalidDataError, "Categorizer"),
        (
            lambda: DummyEncoder().fit(FRAME[["size"]]).transform(FRAME[["n"]]),
            InvalidDataError,
            "the fit had",
        ),
        (
            lambda: DummyEncoder().fit(FRAME[["size"]]).transform(FRAME[["size"]].astype("O")),
            InvalidDataError,
            "other categories",
        ),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()
