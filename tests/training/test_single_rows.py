"""Single-row steps on sparse rows, under policies with free-running trainers."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import Asynchronous, BoundedStaleness, Policy
from daskml_dist.schedules import Constant, StalenessAware
from daskml_dist.training.worker.loops.row_by_row import RowByRow

N_ROWS, N_FEATURES = 4_000, 4_096


def _rows() -> tuple[Any, Any]:
    X = sparse.random_array((N_ROWS, N_FEATURES), density=0.003, format="csr", dtype="f4", rng=0)
    y = X @ np.random.default_rng(0).normal(size=N_FEATURES) > 0
    parts = [dask.delayed(X[at : at + 500]) for at in range(0, N_ROWS, 500)]
    lazy = da.concatenate([da.from_delayed(p, (500, N_FEATURES), "f4", X[:0]) for p in parts])
    return lazy, da.from_array(y, chunks=500)


def _fit(policy: str | Policy, **params: Any) -> SGDClassifier:
    settings: dict[str, Any] = {"max_iter": 6, "tol": None, "random_state": 0, "learning_rate": 0.1}
    return SGDClassifier(loss="log_loss", policy=policy, **settings | params).fit(*_rows())


@pytest.mark.parametrize(
    "policy",
    [
        "async",
        "ssp",
        *(pytest.param(BoundedStaleness(s), marks=pytest.mark.slow) for s in (0, 1, 9)),
    ],
)
@pytest.mark.parametrize("n_lanes", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_each_sparse_row_is_a_step(client: Client, policy: str | Policy, n_lanes: int) -> None:
    clf = _fit(policy, run=Run(n_lanes=n_lanes))
    records = clf.history_.records
    assert [record["rows"] for record in records] == [N_ROWS] * 6
    assert clf.history_.extra["policy"] == (policy if isinstance(policy, str) else "ssp")
    assert records[-1]["loss"] < 0.9 * records[0]["loss"]
    assert clf.score(*_rows()) > 0.85


@pytest.mark.parametrize(
    ("policy", "params", "by_rows"),
    [
        ("async", {}, True),
        ("ssp", {}, True),
        ("async", {"batch_size": 100}, False),
        (Asynchronous(push_every=2), {}, False),
        ("async", {"learning_rate": StalenessAware(Constant(0.1))}, False),
    ],
    ids=["async", "ssp", "batches", "pushes", "staleness"],
)
def test_explicit_batches_replace_single_row_steps(
    policy: str | Policy, params: dict[str, Any], by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, usual = [], RowByRow.step

    def step(self: RowByRow, *args: Any) -> int:
        steps.append(1)
        return usual(self, *args)

    monkeypatch.setattr(RowByRow, "step", step)
    assert _fit(policy, max_iter=1, run=Run(n_lanes=2), **params).coef_.any()
    assert bool(steps) == by_rows
