"""Targets and weights of a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskml_dist.data import make_block
from daskml_dist.data.conversion import as_column
from daskml_dist.errors import InvalidDataError
from tests.data.rows import X


@pytest.mark.parametrize(
    "y",
    [
        [0, 1, 2, 3],
        np.arange(4)[:, None],
        pd.Series(range(4)),
        pd.Series(range(4), dtype="Int64"),
        pd.Series(range(4), dtype="int64[pyarrow]"),
        pd.DataFrame({"y": range(4)}),
    ],
    ids=["list", "column", "series", "nullable", "arrow", "dataframe"],
)
def test_y_of_every_kind(y: Any) -> None:
    labels = make_block(0, X, y, classification=True).y
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1, 2, 3]
    target = make_block(0, X.astype("float32"), y, classification=False).y
    assert target.dtype == np.float64


@pytest.mark.parametrize(
    "labels",
    [
        np.array(list("abab")),
        pd.Series(list("abab")),
        pd.Series(list("abab"), dtype="category"),
        pd.Series(list("abab"), dtype="string[pyarrow]"),
        np.array([True, False, True, False]),
    ],
)
def test_labels_are_kept(labels: Any) -> None:
    block = make_block(0, X, labels, classification=True)
    assert block.y.tolist() == list(labels)


def test_several_outputs() -> None:
    with pytest.raises(InvalidDataError, match=r"y should be a 1d array, got .*\(4, 3\)"):
        make_block(0, X, X, classification=False)
    with pytest.raises(InvalidDataError, match=r"sample_weight should be a 1d array"):
        make_block(0, X, sample_weight=pd.DataFrame(X), classification=False)


def test_lengths_that_differ() -> None:
    with pytest.raises(InvalidDataError, match=r"Block 7: X has 4 rows but y has 3.*chunk_sizes"):
        make_block(7, X, [0, 1, 1], classification=True)
    with pytest.raises(InvalidDataError, match="Block 7: X has 4 rows but sample_weight has 1"):
        make_block(7, X, sample_weight=[1.0], classification=True)


@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "NaN"), (np.inf, "infinity or a value too large for dtype"), (1e300, "float32")],
)
def test_targets_that_are_not_finite(bad: float, message: str) -> None:
    y = np.array([0.0, 1.0, bad, 1.0])
    with pytest.raises(InvalidDataError, match=rf"Block 2: Input y contains.*{message}.*row 2"):
        make_block(2, X.astype("float32"), y, classification=False)


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 1.0, np.nan, 1.0],
        [0.0, 1.0, np.inf, 1.0],
        np.array(["a", "b", None, "b"], object),
        pd.Series(["a", "b", None, "b"]),
        pd.Series(["a", "b", None, "b"], dtype="category"),
        pd.Series(["a", "b", pd.NA, "b"], dtype=object),
        pd.Series([1, 2, None, 2], dtype="Int64"),
    ],
)
def test_missing_labels(labels: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 5: Input y contains (NaN|infinity).*Drop"):
        make_block(5, X, labels, classification=True)


def test_targets_that_are_not_numbers() -> None:
    with pytest.raises(InvalidDataError, match="Block 0: y is not numeric"):
        make_block(0, X, list("abab"), classification=False)
    for classification in (True, False):
        with pytest.raises(InvalidDataError, match="Complex data not supported: y"):
            make_block(0, X, X[:, 0] + 1j, classification=classification)


def test_scalar_weight_is_spread() -> None:
    block = make_block(0, X.astype("float32"), sample_weight=2.0, classification=False)
    assert block.sample_weight.dtype == np.float32
    assert block.sample_weight.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1.0, r"Negative values in sample_weight \(row 1 .*zero or more"),
        (np.nan, "Input sample_weight contains NaN"),
        (np.inf, "Input sample_weight contains infinity"),
    ],
)
def test_bad_weights(weight: float, message: str) -> None:
    with pytest.raises(InvalidDataError, match=f"Block 4: {message}"):
        make_block(4, X, sample_weight=[1.0, weight, 1.0, 1.0], classification=True)


def test_as_column_shares_memory() -> None:
    y = np.arange(4)[:, None]
    assert np.shares_memory(as_column(y, name="y"), y)
    series = pd.Series(X[:, 0])
    assert np.shares_memory(as_column(series, name="y"), series.to_numpy())
