"""Row-wise Adagrad and Adam: formulas, fits of tables, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import Adagrad, RowWiseAdagrad, RowWiseAdam, get_optimizer
from daskml_dist.recommender import FactorizationMachineClassifier
from tests.recommender.test_embeddings import _lazy, _rows

NAMES = ["row_wise_adagrad", "row_wise_adam"]


def test_adagrad_accumulates_mean_squares_of_rows() -> None:
    rng = np.random.default_rng(0)
    w, sums = rng.normal(size=(5, 3)), np.full((5, 1), 0.5)
    optimizer = RowWiseAdagrad(initial_accumulator=0.5)
    found, state = w.copy(), optimizer.init(w)
    for step in range(1, 4):
        grad = rng.normal(size=w.shape)
        sums += (grad**2).mean(axis=1, keepdims=True)
        w -= 0.1 / np.sqrt(sums) * grad
        optimizer.update(found, grad, state, 0.1, step)
    np.testing.assert_allclose(found, w, rtol=1e-9)
    np.testing.assert_allclose(state["row_accumulator"], sums, rtol=1e-12)


def test_adam_has_one_second_moment_a_row() -> None:
    rng = np.random.default_rng(0)
    w, m, v = rng.normal(size=(5, 3)), np.zeros((5, 3)), np.zeros((5, 1))
    optimizer = RowWiseAdam()
    found, state = w.copy(), optimizer.init(w)
    for step in range(1, 4):
        grad = rng.normal(size=w.shape)
        m = 0.9 * m + 0.1 * grad
        v = 0.999 * v + 0.001 * (grad**2).mean(axis=1, keepdims=True)
        w -= 0.1 * m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        optimizer.update(found, grad, state, 0.1, step)
    np.testing.assert_allclose(found, w, rtol=1e-9)
    np.testing.assert_allclose(state["row_v"], v, rtol=1e-12)


def test_rows_of_one_entry_equal_the_plain_optimizer() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(7, 1)).astype(np.float32)
    for plain, row_wise in ((Adagrad(), RowWiseAdagrad()), (get_optimizer("adam"), RowWiseAdam())):
        one, other = w.copy(), w.copy()
        states = plain.init(one), row_wise.init(other)
        for step in range(1, 6):
            grad = rng.normal(size=w.shape).astype(np.float32)
            plain.update(one, grad.copy(), states[0], 0.1, step)
            row_wise.update(other, grad.copy(), states[1], 0.1, step)
        np.testing.assert_allclose(other, one, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_stores_one_value_per_row(name: str) -> None:
    X, y = _rows()
    params: dict[str, Any] = {"init_scale": 0.3, "random_state": 0, "optimizer": name}
    if name == "row_wise_adam":
        params["learning_rate"] = 0.05
    clf = FactorizationMachineClassifier(max_iter=60, **params).fit(X, y)
    assert clf.score(X, y) > 0.95
    (state,) = (a for n, a in clf._state.opt_state.items() if n.startswith("row_"))
    assert state.shape == (len(clf._state.w), 1)
    # A fit in parts continues with it.
    parts = FactorizationMachineClassifier(max_iter=30, warm_start=True, **params).fit(X, y)
    np.testing.assert_array_equal(parts.fit(X, y).weights_.shape, clf.weights_.shape)


@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_the_servers(client: Client, name: str) -> None:
    X, y = _lazy(*_rows())
    fits = [
        FactorizationMachineClassifier(
            random_state=0, max_iter=3, batch_size=50, optimizer=name,
            run=Run(n_lanes=3, n_servers=n_servers, deterministic=True),
        ).fit(X, y, client=where)
        for n_servers, where in ((1, client), (2, client), (1, None))
    ]  # fmt: skip
    for other in fits[1:]:
        np.testing.assert_array_equal(other.ids_, fits[0].ids_)
        np.testing.assert_array_equal(other.vectors_, fits[0].vectors_)


@pytest.mark.parametrize("name", NAMES)
def test_models_without_a_table_refuse_them(name: str) -> None:
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    with pytest.raises(InvalidParameterError, match="has no table of ids"):
        SGDClassifier(optimizer=name).fit(X, y)


def test_an_optimizer_without_row_wise_form_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="only Adagrad and Adam have a row-wise form"):
        get_optimizer("row_wise_ftrl")
