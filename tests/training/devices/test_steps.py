"""Step fits on a device: policies, optimizers, losses, continued fits.

On a machine with a GPU the same tests run on CuPy too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from daskml_dist import Run
from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.device_gather import RecordedSteps
from daskml_dist.data import batches
from daskml_dist.linear_model import (
    LogisticRegression,
    SGDClassifier,
    SGDRegressor,
)
from daskml_dist.losses import LOSSES
from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import POLICIES
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.worker.lane import LaneBatch
from daskml_dist.training.worker.loops.context import move_arrays
from daskml_dist.training.worker.loops.replicas import OwnSteps
from tests.rules import one_group
from tests.strict_backend import StrictBackend
from tests.training.devices.fits import STEPS, TARGETS, WEIGHT, X, check_device


@pytest.mark.parametrize("n_lanes", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(gpu: None, policy: str, n_lanes: int) -> None:
    if n_lanes > 1 and policy in {"async", "ssp", "hogwild"}:
        pytest.skip("lanes of this policy race, on a CPU too")
    check_device(SGDClassifier(policy=policy, run=Run(n_lanes=n_lanes), **STEPS), TARGETS["two"])


@pytest.mark.parametrize(
    ("policy", "compression"),
    [("allreduce", "8bit"), ("allreduce", "powersgd"), ("local", "fp16"), ("average", "8bit")],
)
def test_gradients_are_packed_on_the_host(gpu: None, policy: str, compression: str) -> None:
    model = SGDClassifier(policy=policy, run=Run(n_lanes=2, compression=compression), **STEPS)
    # Different rounding may select another quantisation level.
    check_device(model, TARGETS["three"], rtol=1e-2)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("policy", ["sync", "allreduce", "local"])
def test_weights_averages_and_held_out_rows(gpu: None, policy: str, deterministic: bool) -> None:
    model = SGDClassifier(
        policy=policy,
        run=Run(n_lanes=2, deterministic=deterministic),
        average=100,
        early_stopping=True,
        class_weight="balanced",
        **STEPS,
    )
    check_device(model, TARGETS["three"], sample_weight=WEIGHT)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(gpu: None, optimizer: str) -> None:
    model = SGDRegressor(
        optimizer=optimizer, policy="allreduce", penalty="elasticnet", alpha=0.01, **STEPS
    )
    check_device(model, TARGETS["numbers"])


@pytest.mark.parametrize("policy", ["allreduce", "local"])
def test_several_targets_with_separate_rates(gpu: None, policy: str) -> None:
    y = TARGETS["columns"] * [1, 10]
    params = STEPS | {"learning_rate": "auto", "penalty": "elasticnet", "policy": policy}
    for optimizer in ("adagrad", "adam"):
        check_device(SGDRegressor(optimizer=optimizer, **params), y)
    check_device(SGDRegressor(early_stopping=True, **params), y, sample_weight=WEIGHT)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(gpu: None, loss: str) -> None:
    if LOSSES[loss].kind == "classification":
        for y in (TARGETS["two"], TARGETS["three"]):
            check_device(SGDClassifier(loss=loss, **STEPS), y)
    else:
        check_device(SGDRegressor(loss=loss, **STEPS), TARGETS["positive"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_batches_of_either_dtype(gpu: None, dtype: Any) -> None:
    tol = 1e-6 if dtype == np.float64 else 1e-3
    on_gpu, on_cpu = (
        LogisticRegression(tol=tol, device=device).fit(X.astype(dtype), TARGETS["two"])
        for device in ("gpu", "cpu")
    )
    assert on_gpu.coef_.dtype == on_cpu.coef_.dtype == dtype
    np.testing.assert_allclose(
        on_gpu.coef_, on_cpu.coef_, rtol=1e-4 if dtype == np.float32 else 1e-6
    )


@pytest.mark.parametrize("policy", ["sync", "allreduce", "average"])
def test_fits_continue(gpu: None, policy: str) -> None:
    """By partial_fit and warm_start: the state is moved from the host and back."""
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(device=device, policy=policy, warm_start=True, average=50, **STEPS)
        clf.fit(X, TARGETS["two"]).fit(X, TARGETS["two"])
        clf.partial_fit(X, TARGETS["two"])
        ends.append(clf.coef_)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


def test_snapshots_of_device_state_are_on_the_host_and_restore_it() -> None:
    backend = StrictBackend()
    rule = one_group(get_optimizer("adam"), Constant(0.1), Penalty(0.0, 0.1), 3, 10.0, 0)

    def steps(home: Backend, shard: Shard) -> Shard:
        for k in range(3):
            shard.apply(home.to_device(np.full((4, 1), k + 1.0)), rows=2)
        return shard

    def new(home: Backend) -> Shard:
        return Shard(rule, ShardState(home.to_device(np.ones((4, 1))), {}))

    first = steps(backend, new(backend))
    snapshot = move_arrays(first.snapshot(), backend.to_numpy)
    assert isinstance(snapshot.w, np.ndarray)
    assert all(isinstance(array, np.ndarray) for array in snapshot.opt_state.values())
    restored = new(backend)
    restored.restore(move_arrays(snapshot, backend.to_device))
    host = get_backend("cpu")
    expected = steps(host, steps(host, new(host))).state()
    found = move_arrays(steps(backend, restored).state(), backend.to_numpy)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-12)
    np.testing.assert_allclose(found.average, expected.average, rtol=1e-12)
    assert (found.step, found.rows) == (expected.step, expected.rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_kernels_under_every_policy(kernels: None, policy: str) -> None:
    model = SGDClassifier(
        policy=policy, run=Run(n_lanes=1), penalty="elasticnet", alpha=0.01, **STEPS
    )
    check_device(model, TARGETS["two"])


@pytest.mark.parametrize(("runs", "held_out"), [(1, False), (1000, False), (1, True)])
@pytest.mark.parametrize("policy", ["sync", "local"])
def test_rows_of_several_blocks(
    kernels: None, policy: str, runs: int, held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are gathered on the device: consecutive rows, single rows, or rows not held out."""
    monkeypatch.setattr(batches, "RUNS_PER_BATCH", runs)
    steps = {**STEPS, "max_iter": 4}
    rows = da.from_array(X, chunks=((100, 7, 133), 5))
    y = da.from_array(TARGETS["two"], chunks=((100, 7, 133),))
    weight = da.from_array(WEIGHT, chunks=((100, 7, 133),))
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(
            policy=policy, run=Run(n_lanes=2), device=device, early_stopping=held_out, **steps
        )
        ends.append(clf.fit(rows, y, sample_weight=weight))
    np.testing.assert_allclose(ends[0].coef_, ends[1].coef_, rtol=1e-6, atol=1e-9)
    found, expected = (
        [(r["steps"], r["rows"], pytest.approx(r["loss"], rel=1e-6)) for r in end.history_.records]
        for end in ends
    )
    assert found == expected


@pytest.mark.parametrize("policy", ["sync", "local", "allreduce"])
def test_sparse_rows_of_several_blocks(kernels: None, policy: str) -> None:
    rows = da.from_array(sparse.csr_array(np.where(np.abs(X) > 0.5, X, 0)), chunks=((100, 140), 5))
    y, weight = (da.from_array(a, chunks=((100, 140),)) for a in (TARGETS["two"], WEIGHT))
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(policy=policy, run=Run(n_lanes=1), device=device, **STEPS)
        ends.append(clf.fit(rows, y, sample_weight=weight).coef_)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_sparse_rows_of_many_features(kernels: None, policy: str) -> None:
    rows = sparse.random_array((240, 4096), density=0.002, format="csr", rng=0)
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(policy=policy, run=Run(n_lanes=1), device=device, **STEPS)
        ends.append(clf.fit(rows, TARGETS["two"]).coef_)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("policy", "n_lanes"), [("local", 2), ("average", 1), ("allreduce", 1)])
def test_steps_on_touched_columns_are_recorded(
    kernels: None, policy: str, n_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Adagrad without a penalty, the replica is on the device."""
    recorded, run = [], RecordedSteps.__call__

    def counted(self: Any, batches: Any, steps: Any) -> Any:
        recorded.append(len(steps))
        return run(self, batches, steps)

    monkeypatch.setattr(RecordedSteps, "__call__", counted)
    rows = sparse.random_array((240, 4096), density=0.002, format="csr", rng=0)
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(
            policy=policy, run=Run(n_lanes=n_lanes), device=device, optimizer="adagrad",
            penalty=None, warm_start=True, early_stopping=True, **STEPS,
        )  # fmt: skip
        for _ in range(2):
            clf.fit(rows, TARGETS["two"], sample_weight=WEIGHT)
        ends.append(clf)
        # Steps on the CPU are not recorded.
        assert sum(recorded) >= 2 * 3 * 240 * 0.9 // 32
    np.testing.assert_allclose(ends[0].coef_, ends[1].coef_, rtol=1e-6, atol=1e-9)
    losses = [[record["loss"] for record in end.history_.records] for end in ends]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_lanes_without_rows_step_on_a_device() -> None:
    """Their empty batches touch the intercept's row, which must not be gathered on the device."""
    backend = StrictBackend()
    parts = get_optimizer("adagrad"), Constant(0.1), Penalty(0.0, 0.0)
    rule = one_group(*parts, 3, 10.0, coordinates=True)
    replica = Shard(rule, ShardState(backend.to_device(np.ones((4, 1))), {}), backend=backend)
    lane: Any = SimpleNamespace(
        backend=backend,
        gather_when_ready=None,
        draw_next_batch=lambda: LaneBatch([], 0, np.array([3])),
        own_gradient=lambda w, batch: w * 0,
    )
    OwnSteps(lane, replica).take(2)
    assert replica.version == 2
    np.testing.assert_array_equal(backend.to_numpy(replica.w), np.ones((4, 1)))
