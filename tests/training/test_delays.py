"""Fits whose servers drop old gradients, or correct delayed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import Asynchronous


def _rows(is_sparse: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if not is_sparse:
        X = rng.normal(size=(1_200, 8))
        return X, (X[:, 0] > X[:, 1]).astype(int)
    X = sparse.random_array((1_200, 3_000), density=0.005, format="csr", rng=rng)
    return X, (X[:, :1_500].sum(axis=1) > X[:, 1_500:].sum(axis=1)).astype(int)


def _fit(policy: Asynchronous, X: Any, y: Any, **run: Any) -> SGDClassifier:
    return SGDClassifier(
        policy=policy, max_iter=30, tol=None, random_state=0, batch_size=20,
        learning_rate="constant", eta0=0.5, run=Run(**run),
    ).fit(X, y)  # fmt: skip


@pytest.mark.parametrize("is_sparse", [False, True])
def test_corrected_and_bounded_delays_find_the_classes(is_sparse: bool) -> None:
    X, y = _rows(is_sparse)
    found = _fit(Asynchronous(max_delay="auto", delay_compensation=2.0), X, y, n_lanes=4)
    assert found.score(X, y) > (0.8 if is_sparse else 0.95)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_gradient_tables_of_lanes_of_one_class_find_the_classes(is_sparse: bool) -> None:
    X, y = _rows(is_sparse)
    in_order = np.argsort(y, kind="stable")  # lanes of one class each
    found = _fit(Asynchronous(gradient_table=True), X[in_order], y[in_order], n_lanes=4)
    assert found.score(X, y) > (0.8 if is_sparse else 0.95)
    # Pushes that only initialise the gradient table count: 15 steps of 20 rows a lane and pass.
    assert all(record["rows"] == len(y) for record in found.history_.records)


def test_dropped_gradients_are_counted() -> None:
    X, y = _rows(False)
    found = _fit(Asynchronous(max_delay=0), X, y, n_lanes=4)
    history = found.history_
    n_dropped = history.extra["dropped_pushes"]
    assert n_dropped > 0
    # Each lane makes 15 steps of 20 rows a pass; dropped ones are counted as steps too.
    assert all(record["steps"] == 60 for record in history.records)
    assert sum(record["rows"] for record in history.records) == 20 * (30 * 60 - n_dropped)
    assert found.score(X, y) > 0.95
