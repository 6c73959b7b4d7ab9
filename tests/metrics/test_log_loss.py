"""Log loss: several labels, missing ones, clipping, warnings."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from daskml_dist import metrics
from tests.metrics.rows import (
    BINARY,
    CHUNKS,
    CLASSES,
    PROBA,
    WEIGHTS,
    assert_equal,
    lazy,
    series,
    unknown,
)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("labels", [None, [0, 1, 2]])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_log_loss_of_three_labels(normalize: bool, labels: Any, weights: str) -> None:
    options = {"normalize": normalize, "labels": labels, "sample_weight": WEIGHTS[weights]}
    expected = sklearn.metrics.log_loss(CLASSES, PROBA, **options)
    tables = [
        lazy(PROBA),
        unknown(PROBA),
        da.from_array(PROBA, chunks=(CHUNKS, (2, 1))),
    ]
    for table in tables:
        truth = unknown(CLASSES) if np.isnan(table.shape[0]) else CLASSES
        if options["sample_weight"] is not None and np.isnan(table.shape[0]):
            options["sample_weight"] = unknown(WEIGHTS[weights])
        assert_equal(metrics.log_loss(truth, table, **options), expected)
    frame = dd.from_pandas(pd.DataFrame(PROBA), npartitions=3)
    assert_equal(
        metrics.log_loss(series(CLASSES), frame, normalize=normalize, labels=labels),
        sklearn.metrics.log_loss(CLASSES, PROBA, normalize=normalize, labels=labels),
    )


def test_log_loss_where_labels_are_missing() -> None:
    expected = sklearn.metrics.log_loss(CLASSES * 0, PROBA, labels=[0, 1, 2])
    assert_equal(metrics.log_loss(lazy(CLASSES * 0), lazy(PROBA), labels=[0, 1, 2]), expected)


def test_log_loss_clips() -> None:
    for dtype in ("float32", "float64"):
        sure = BINARY.astype(dtype)
        sure[3] = 1 - sure[3]
        found = metrics.log_loss(lazy(BINARY), lazy(sure))
        np.testing.assert_allclose(found, sklearn.metrics.log_loss(BINARY, sure), rtol=1e-5)


def test_log_loss_warns_as_scikit_learn() -> None:
    with pytest.warns(UserWarning, match="do not sum to one"):
        found = metrics.log_loss(lazy(CLASSES), lazy(PROBA * 0.9))
    with pytest.warns(UserWarning, match="do not sum to one"):
        assert_equal(found, sklearn.metrics.log_loss(CLASSES, PROBA * 0.9))
    with pytest.warns(UserWarning, match=r"Labels passed were \[2, 0, 1\]"):
        found = metrics.log_loss(lazy(CLASSES), lazy(PROBA), labels=[2, 0, 1])
    assert_equal(found, sklearn.metrics.log_loss(CLASSES, PROBA))
