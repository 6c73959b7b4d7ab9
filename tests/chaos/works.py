"""Work under faults, each with its independent or undisturbed result for comparison."""

from __future__ import annotations

import gc
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
from sklearn import linear_model

from chaos.arenas import Arena
from chaos.moments import Trouble, TroubleMaker
from daskml_dist import Run
from daskml_dist.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from daskml_dist.metrics import mean_squared_error
from daskml_dist.policies import POLICIES
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.schedules import InverseScaling

__all__ = ["ALPHA", "BOUND", "check_clean", "classifier", "do", "objective"]

N_ROWS, N_BLOCKS = 3_000, 6
#: Limit in seconds for the work, whatever happens.
BOUND = 200.0
#: Large enough for a fit to get near the optimum, where the order of the lanes hardly matters.
ALPHA = 0.1
#: Policies whose result is always the same, also after a loss.
_EXACT = {"sync", "allreduce", "local", "average"}

_truths: dict[tuple[str, int], Any] = {}


def do(trouble: Trouble, arena: Arena) -> TroubleMaker:
    """Do some work while the fault happens; raise if the result is not the true one."""
    arena.heal()
    truth = _truth(trouble)
    arena.heal()
    rows = _rows(trouble, arena)
    maker = TroubleMaker(trouble, arena)
    began = time.monotonic()
    with dask.config.set({"daskml_dist.timeout": 60}), maker.at_its_moment():
        found = _work(trouble, rows, maker)
    maker.seconds = seconds = time.monotonic() - began
    del rows
    assert seconds < BOUND, f"took {seconds:.1f} s"
    if trouble.work in POLICIES:
        assert maker.passes == list(range(1, trouble.max_iter + 1))
        assert {record["rows"] for record in found.history_.records} == {N_ROWS}
    _compare(trouble, found, truth)
    check_clean(arena)
    return maker


def check_clean(arena: Arena) -> None:
    """Check that nothing of the work is left on the cluster."""
    deadline = time.monotonic() + 60
    while left := arena.client.run_on_scheduler(_tasks):
        assert time.monotonic() < deadline, f"left behind: {left}"
        gc.collect()
        time.sleep(0.05)


def _tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


def _numbers() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 8))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS)


def _rows(trouble: Trouble, arena: Arena) -> tuple[Any, Any]:
    X, y = _numbers()
    if trouble.work in POLICIES or trouble.work == "lbfgs":
        y = y > 0
    if trouble.rows == "memory":
        return X, y

    def slowly(block: Any) -> Any:  # local, so pickled by value: workers cannot import the tests
        time.sleep(0.05)
        return block

    n = N_ROWS // N_BLOCKS
    lazy = da.from_array(X, chunks=(n, -1)).map_blocks(slowly, meta=X[:0], dtype=X.dtype)
    column = da.from_array(y, chunks=n)
    if trouble.rows == "persisted":
        lazy, column = arena.client.persist([lazy, column])
    return lazy, column


def classifier(policy: str, max_iter: int, *callbacks: Any, **more: Any) -> SGDClassifier:
    """Return a classifier whose fit is always the same in lock-step."""
    return SGDClassifier(
        policy=policy,
        max_iter=max_iter,
        tol=None,
        batch_size=32,
        # Two servers: a single one would leave the sums of one host to the trainers under "sync".
        run=Run(n_lanes=3, n_servers=2 if policy == "sync" else 1),
        random_state=0,
        optimizer="sgd",
        learning_rate=InverseScaling(0.5),
        alpha=ALPHA,
        callbacks=list(callbacks),
        **more,
    )


def _work(trouble: Trouble, rows: tuple[Any, Any], maker: TroubleMaker | None) -> Any:
    X, y = rows
    if trouble.work == "lbfgs":
        return LogisticRegression(solver="lbfgs", tol=1e-8, run=Run(n_lanes=3)).fit(X, y)
    if trouble.work == "least squares":
        return LinearRegression(run=Run(n_lanes=3)).fit(X, y)
    if trouble.work == "scaler":
        return StandardScaler().fit(X)
    if trouble.work == "metric":
        return mean_squared_error(y, X[:, 0])
    callbacks = [maker] if maker else []
    return classifier(trouble.work, trouble.max_iter, *callbacks).fit(X, y)


def _truth(trouble: Trouble) -> Any:
    """Return NumPy's result, or that of the same work without a fault."""
    X, y = _numbers()
    if trouble.work == "scaler":
        return X.mean(axis=0)
    if trouble.work == "metric":
        return np.mean((y - X[:, 0]) ** 2)
    if trouble.work in POLICIES and trouble.work not in _EXACT:
        return linear_model.LogisticRegression(C=1 / (ALPHA * N_ROWS), tol=1e-8).fit(X, y > 0)
    key = (trouble.work, trouble.rows == "memory")
    if key not in _truths:
        kind = "memory" if trouble.rows == "memory" else "lazy"
        quiet = Trouble(**{**vars(trouble), "rows": kind})
        _truths[key] = _work(quiet, _rows(quiet, None), None)  # type: ignore[arg-type]
    return _truths[key]


def _compare(trouble: Trouble, found: Any, truth: Any) -> None:
    if trouble.work == "scaler":
        np.testing.assert_allclose(found.mean_, truth, atol=1e-12)
    elif trouble.work == "metric":
        np.testing.assert_allclose(found, truth, rtol=1e-12)
    elif trouble.work in _EXACT or trouble.work not in POLICIES:
        np.testing.assert_allclose(found.coef_, truth.coef_, atol=1e-6, rtol=0)
        np.testing.assert_allclose(found.intercept_, truth.intercept_, atol=1e-6, rtol=0)
    else:
        loss, least = _loss(found), _loss(truth)
        assert abs(loss - least) < 0.01 * least, f"objective {loss}, at the optimum {least}"


def _loss(clf: Any) -> float:
    X, y = _numbers()
    return objective(clf, X, y > 0)


def objective(clf: Any, X: Any, y: Any) -> float:
    """Return the mean loss of rows plus the penalty, the objective that a fit minimises.

    Near its minimum the objective hardly depends on where a race ends; the loss alone has a slope
    there.
    """
    raw = X @ clf.coef_.ravel() + clf.intercept_
    loss = np.mean(np.logaddexp(0, np.where(y, -raw, raw)))
    return float(loss + ALPHA / 2 * (clf.coef_**2).sum())
