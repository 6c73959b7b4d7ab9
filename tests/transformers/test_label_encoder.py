"""`LabelEncoder` on every kind of lazy column: scikit-learn's numbers and labels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing

from daskml_dist.errors import InvalidDataError, InvalidTypeError, NotFittedError
from daskml_dist.preprocessing import LabelEncoder

PLACES = np.random.default_rng(0).integers(0, 4, 90)
LABELS = {
    "words": np.array(["b", "Ünlü", "a", "longest"])[PLACES],
    "objects": np.array(["b", "Ünlü", "a", "longest"], dtype=object)[PLACES],
    "integers": np.array([7, -3, 500, 10**9])[PLACES],
    "floats": np.array([0.5, np.nan, -1, 3])[PLACES],
    "booleans": PLACES > 1,
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "array": lambda y: da.from_array(y, chunks=40),
    "a column": lambda y: da.from_array(y[:, None], chunks=(40, 1)),
    "unknown chunks": lambda y: da.from_array(y, chunks=40)[da.ones(90, chunks=40, dtype=bool)],
    "series": lambda y: dd.from_pandas(pd.Series(y), npartitions=3),
    "categories": lambda y: dd.from_pandas(pd.Series(y).astype("category"), npartitions=3),
    "delayed": lambda y: [dask.delayed(part) for part in np.array_split(y, 3)],
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scikit_learn(labels: str, kind: str) -> None:
    y = LABELS[labels]
    lazy, theirs = KINDS[kind](y), sklearn.preprocessing.LabelEncoder().fit(y)
    ours = LabelEncoder().fit(lazy)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    codes = ours.transform(lazy)
    assert isinstance(codes, da.Array)
    assert codes.dtype == codes.compute().dtype
    np.testing.assert_array_equal(codes.compute(), theirs.transform(y))
    np.testing.assert_array_equal(ours.inverse_transform(codes).compute(), y)
    np.testing.assert_array_equal(LabelEncoder().fit_transform(lazy).compute(), codes.compute())
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(unpickled.transform(y), theirs.transform(y))


def test_lazy_results_do_not_change_with_a_later_fit() -> None:
    y = da.from_array(LABELS["words"], chunks=40)
    encoder = LabelEncoder()
    codes = encoder.fit_transform(y)
    encoder.fit(["other"])
    expected = sklearn.preprocessing.LabelEncoder().fit_transform(LABELS["words"])
    np.testing.assert_array_equal(codes.compute(), expected)


def test_bad_labels() -> None:
    y = da.from_array(LABELS["words"], chunks=40)
    with pytest.raises(NotFittedError):
        LabelEncoder().transform(y)
    unseen = LabelEncoder().fit(y[:1]).transform(y)
    with pytest.raises(
        InvalidDataError, match=r"previously unseen labels.*Fit on rows with all labels"
    ):
        unseen.compute()
    with pytest.raises(InvalidDataError, match="previously unseen labels"):
        LabelEncoder().fit(y).inverse_transform(da.full(3, 9)).compute()
    with pytest.raises(InvalidDataError, match="should be a 1d array"):
        LabelEncoder().fit(da.zeros((4, 2)))
    mixed = da.from_array(np.array(["a", "b", 1, 2], dtype=object), chunks=2)
    with pytest.raises(InvalidTypeError, match="strings or numbers"):
        LabelEncoder().fit(mixed)
