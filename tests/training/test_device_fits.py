"""Whole fits on a device: those on a fake one, whose arrays refuse NumPy's, equal the CPU's.

On a machine with a GPU the same tests run on CuPy too.
"""

from __future__ import annotations

import re
import shutil
import sys
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone

from daskml_dist import Run, naive_bayes, svm
from daskml_dist.backends import Backend, devices, get_backend
from daskml_dist.backends.recorded_steps import RecordedSteps
from daskml_dist.data import batches
from daskml_dist.data.blocks import make_block
from daskml_dist.errors import (
    DeviceMemoryError,
    DeviceUnavailableError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.linear_model import (
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from daskml_dist.losses import LOSSES, SquaredError
from daskml_dist.models.linear import LinearModel
from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import POLICIES
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from daskml_dist.training.worker.lane import Batch
from daskml_dist.training.worker.loops.own_steps import OwnSteps
from daskml_dist.training.worker.loops.residence import moved
from daskml_dist.training.worker.ready_blocks import prepare_block
from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import DeviceArray, FakeCupy, plug_in
from tests.rules import one_group
from tests.strict_backend import StrictBackend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 5))
SIGNAL = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.5])
TARGETS: dict[str, NDArray[Any]] = {
    "two": np.where(SIGNAL + RNG.normal(size=240) > 0, "yes", "no"),
    "three": np.digitize(SIGNAL + RNG.normal(size=240), [-1, 1]),
    "numbers": SIGNAL + RNG.normal(size=240),
    "counts": RNG.poisson(np.exp(SIGNAL / 4)).astype(float),
    "positive": RNG.gamma(2.0, np.exp(SIGNAL / 4)) + 0.01,
    "columns": np.stack([SIGNAL, -SIGNAL], axis=1) + RNG.normal(size=(240, 2)),
}
WEIGHT = RNG.uniform(0.5, 2, size=240)


class _Counted(StrictBackend):
    """Counts what was moved to the device."""

    moved = 0

    def to_device(self, array: Any) -> Any:
        type(self).moved += isinstance(array, np.ndarray)
        return super().to_device(array)


class _Full(StrictBackend):
    """A device without memory for a second array."""

    def to_device(self, array: Any) -> Any:
        raise MemoryError("out of memory allocating 8 bytes")


class _Missing(StrictBackend):
    """A device that is not there."""

    @classmethod
    def problem(cls) -> str | None:
        return "nothing was plugged in. Plug something in."


@pytest.fixture(params=["strict", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, or what stands for one."""
    if request.param == "strict":
        plug_in(_Counted, monkeypatch)


class _Emulated(EmulatedCupy):
    """Is always there."""

    @classmethod
    def problem(cls) -> str | None:
        return None


@pytest.fixture(params=["emulated", pytest.param("cupy", marks=pytest.mark.gpu)])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with its kernels, or the host's emulation of it."""
    if request.param == "emulated":
        if shutil.which("g++") is None:
            pytest.skip("no g++ here")
        plug_in(_Emulated, monkeypatch)


def _parameters(model: Any) -> list[NDArray[Any]]:
    """All fitted arrays of numbers."""
    found = {n: np.asarray(v) for n, v in vars(model).items() if n.endswith("_")}
    return [found[n] for n in sorted(found) if found[n].dtype.kind == "f"]


def _check(model: Any, y: NDArray[Any], rtol: float = 1e-6, **fit: Any) -> None:
    """A fit on the device ends where the CPU's does, and predicts on the CPU."""
    there = clone(model).set_params(device="gpu").fit(X, y, **fit)
    here = clone(model).set_params(device="cpu").fit(X, y, **fit)
    arrays = list(zip(_parameters(there), _parameters(here), strict=True))
    assert arrays
    for found, expected in arrays:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    assert there.predict(X).shape == here.predict(X).shape


STEPS = {"max_iter": 3, "tol": None, "random_state": 0, "batch_size": 32}


@pytest.mark.parametrize("n_lanes", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(gpu: None, policy: str, n_lanes: int) -> None:
    if n_lanes > 1 and policy in {"async", "ssp", "hogwild"}:
        pytest.skip("lanes of this policy race, on a CPU too")
    _check(SGDClassifier(policy=policy, run=Run(n_lanes=n_lanes), **STEPS), TARGETS["two"])


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
    _check(model, TARGETS["three"], sample_weight=WEIGHT)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(gpu: None, optimizer: str) -> None:
    model = SGDRegressor(
        optimizer=optimizer, policy="allreduce", penalty="elasticnet", alpha=0.01, **STEPS
    )
    _check(model, TARGETS["numbers"])


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(gpu: None, loss: str) -> None:
    if LOSSES[loss].kind == "classification":
        for y in (TARGETS["two"], TARGETS["three"]):
            _check(SGDClassifier(loss=loss, **STEPS), y)
    else:
        _check(SGDRegressor(loss=loss, **STEPS), TARGETS["positive"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_batches_of_either_dtype(gpu: None, dtype: Any) -> None:
    tol = 1e-6 if dtype == np.float64 else 1e-3
    there, here = (
        LogisticRegression(tol=tol, device=device).fit(X.astype(dtype), TARGETS["two"])
        for device in ("gpu", "cpu")
    )
    assert there.coef_.dtype == here.coef_.dtype == dtype
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-4 if dtype == np.float32 else 1e-6)


@pytest.mark.parametrize("policy", ["sync", "allreduce", "average"])
def test_fits_go_on(gpu: None, policy: str) -> None:
    """By partial_fit and warm_start: the state comes from the host, and goes back there."""
    ends = []
    for device in ("gpu", "cpu"):
        clf = SGDClassifier(device=device, policy=policy, warm_start=True, average=50, **STEPS)
        clf.fit(X, TARGETS["two"]).fit(X, TARGETS["two"])
        clf.partial_fit(X, TARGETS["two"])
        ends.append(clf.coef_)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


def test_an_image_of_what_lies_on_a_device_is_the_hosts_and_restores_it() -> None:
    backend = StrictBackend()
    rule = one_group(get_optimizer("adam"), Constant(0.1), Penalty(0.0, 0.1), 3, 10.0, 0)

    def steps(home: Backend, shard: Shard) -> Shard:
        for k in range(3):
            shard.apply(home.to_device(np.full((4, 1), k + 1.0)), rows=2)
        return shard

    def new(home: Backend) -> Shard:
        return Shard(rule, ShardState(home.to_device(np.ones((4, 1))), {}))

    first = steps(backend, new(backend))
    image = moved(first.image(), backend.to_numpy)
    assert isinstance(image.w, np.ndarray)
    assert all(isinstance(slot, np.ndarray) for slot in image.slots.values())
    again = new(backend)
    again.restore(moved(image, backend.to_device))
    host = get_backend("cpu")
    expected = steps(host, steps(host, new(host))).state()
    found = moved(steps(backend, again).state(), backend.to_numpy)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-12)
    np.testing.assert_allclose(found.average, expected.average, rtol=1e-12)
    assert (found.step, found.rows) == (expected.step, expected.rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_kernels_under_every_policy(kernels: None, policy: str) -> None:
    model = SGDClassifier(
        policy=policy, run=Run(n_lanes=1), penalty="elasticnet", alpha=0.01, **STEPS
    )
    _check(model, TARGETS["two"])


@pytest.mark.parametrize(("runs", "held_out"), [(1, False), (1000, False), (1, True)])
@pytest.mark.parametrize("policy", ["sync", "local"])
def test_rows_of_several_blocks(
    kernels: None, policy: str, runs: int, held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen where they lie: runs of neighbours, row by row, or from what is not held out."""
    monkeypatch.setattr(batches, "RUNS", runs)
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


STORED_FITS = [
    (SGDClassifier(**STEPS), "two"),
    (SGDClassifier(**STEPS), "three"),
    (SGDClassifier(policy="allreduce", early_stopping=True, average=100, **STEPS), "three"),
    (SGDRegressor(policy="local", **STEPS), "numbers"),
    (LogisticRegression(tol=1e-3), "two"),
    (LogisticRegression(tol=1e-3), "three"),
    (LogisticRegression(tol=1e-3, penalty="l1"), "two"),
    (LogisticRegression(tol=1e-3, solver="newton-cholesky"), "two"),
    (LogisticRegression(tol=1e-3, solver="newton-cholesky"), "three"),
    (LogisticRegression(tol=0.1, solver="boosting"), "two"),
]


@pytest.mark.parametrize(("model", "target"), STORED_FITS)
def test_features_in_half_precision(kernels: None, stored: str, model: Any, target: str) -> None:
    """Nothing is lost but what the rows themselves lose; the arithmetic is float32."""
    y = TARGETS[target]
    there = clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(X, y)
    here = clone(model).set_params(device="cpu").fit(_rounded(X, stored), y)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-3, atol=1e-4)
    on_cpu = clone(model).set_params(device="cpu", run__compute_dtype=stored).fit(X, y)
    whole = clone(model).set_params(device="cpu").fit(X.astype(np.float32), y)
    np.testing.assert_array_equal(on_cpu.coef_.astype(np.float32), whole.coef_)


def _rounded(rows: NDArray[Any], stored: str) -> NDArray[np.float32]:
    return rows.astype(np.float32).astype(devices.stored_dtype(stored)).astype(np.float32)


@pytest.mark.parametrize("intercept", [False, True])
def test_rows_in_half_precision_that_no_kernel_takes(
    kernels: None, stored: str, intercept: bool
) -> None:
    """Rows too wide for it."""
    wide = RNG.normal(size=(240, 2100)) / 10
    model = SGDClassifier(fit_intercept=intercept, **STEPS)
    there = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(wide, TARGETS["two"])
    )
    here = model.set_params(device="cpu").fit(_rounded(wide, stored), TARGETS["two"])
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_longer_than_half_precision_holds(kernels: None, stored: str) -> None:
    """Sums over features are float32, whatever the rows are stored in."""
    large = X * (5e4 / np.abs(X).max())
    assert np.abs(large).sum(axis=1).max() > np.finfo(np.float16).max
    model = LogisticRegression(max_iter=5, solver="boosting")
    there = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(large, TARGETS["two"])
    )
    here = clone(model).set_params(device="cpu").fit(_rounded(large, stored), TARGETS["two"])
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-3)


def test_sparse_rows_are_stored_whole(kernels: None, stored: str) -> None:
    rows = sparse.csr_array(np.where(np.abs(X) > 1, X, 0).astype(np.float32))
    model = SGDClassifier(**STEPS)
    there = (
        clone(model).set_params(device="gpu", run__compute_dtype=stored).fit(rows, TARGETS["two"])
    )
    here = model.set_params(device="cpu").fit(rows, TARGETS["two"])
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-4, atol=1e-5)


def test_features_too_large_for_half_precision_are_told(kernels: None, stored: str) -> None:
    number = devices.stored_dtype(stored).type
    largest = float(np.nextafter(number(np.inf), number(0)))
    # Of float32 too, and nearer to the next power of two than to the largest number.
    rows = X / np.abs(X).max() * (largest * 1.003)
    with pytest.raises(
        InvalidDataError, match=rf"X .*{stored}.* {re.escape(f'{largest:g}')} at most"
    ):
        SGDClassifier(device="gpu", run=Run(compute_dtype=stored)).fit(rows, TARGETS["two"])


def test_other_dtypes_of_features_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"'float16', 'bfloat16'"):
        SGDClassifier(run=Run(compute_dtype="int8")).fit(X, TARGETS["two"])


def test_bfloat16_needs_a_package(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    model = SGDClassifier(run=Run(compute_dtype="bfloat16"), **STEPS)
    with pytest.raises(DeviceUnavailableError, match=r"ml_dtypes .*pip install .*float16"):
        clone(model).set_params(device="gpu").fit(X, TARGETS["two"])
    # A CPU stores float32.
    model.set_params(device="cpu").fit(X, TARGETS["two"])


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
def test_steps_at_columns_are_recorded(
    kernels: None, policy: str, n_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Adagrad, without a penalty; the replica then lies on the device."""
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
        # The CPU's steps are none of them.
        assert sum(recorded) >= 2 * 3 * 240 * 0.9 // 32
    np.testing.assert_allclose(ends[0].coef_, ends[1].coef_, rtol=1e-6, atol=1e-9)
    losses = [[record["loss"] for record in end.history_.records] for end in ends]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_lanes_without_rows_step_on_a_device() -> None:
    """Their batches touch the intercept's row, which must not be gathered there."""
    backend = StrictBackend()
    parts = get_optimizer("adagrad"), Constant(0.1), Penalty(0.0, 0.0)
    rule = one_group(*parts, 3, 10.0, coordinates=True)
    replica = Shard(rule, ShardState(backend.to_device(np.ones((4, 1))), {}), backend=backend)
    lane: Any = SimpleNamespace(
        backend=backend,
        ready_chooser=None,
        next_batch=lambda: Batch([], 0, np.array([3])),
        new_gradient=lambda w, batch: w * 0,
    )
    OwnSteps(lane, replica).take(2)
    assert replica.version == 2
    np.testing.assert_array_equal(backend.to_numpy(replica.w), np.ones((4, 1)))


ROUNDS = [
    (LogisticRegression(tol=1e-6), "two"),
    (LogisticRegression(tol=1e-6), "three"),
    (LogisticRegression(tol=1e-6, penalty="l1", max_iter=500), "two"),
    (LogisticRegression(solver="newton-cholesky"), "two"),
    (LogisticRegression(solver="newton-cholesky"), "three"),
    (LogisticRegression(solver="boosting", max_iter=50, tol=0.1), "two"),
    (LinearRegression(), "numbers"),
    (LinearRegression(), "columns"),
    (Ridge(), "numbers"),
    (Lasso(alpha=0.1), "numbers"),
    (ElasticNet(alpha=0.1), "numbers"),
    (PoissonRegressor(tol=1e-6), "counts"),
    (PoissonRegressor(solver="newton-cholesky"), "counts"),
    (GammaRegressor(tol=1e-6), "positive"),
    (TweedieRegressor(power=1.5, tol=1e-6), "positive"),
    (HuberRegressor(tol=1e-6, max_iter=500), "numbers"),
    (svm.LinearSVC(tol=1e-6, max_iter=2000), "two"),
    (svm.LinearSVR(loss="squared_epsilon_insensitive", tol=1e-4), "numbers"),
    (naive_bayes.GaussianNB(), "three"),
    (naive_bayes.BernoulliNB(), "three"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "target"), ROUNDS, ids=[f"{type(m).__name__}-{i}" for i, (m, _) in enumerate(ROUNDS)]
)
def test_every_round_solver(gpu: None, model: Any, target: str) -> None:
    _check(model, TARGETS[target], rtol=1e-5)
    _check(model, TARGETS[target], rtol=1e-5, sample_weight=WEIGHT)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(_Counted, monkeypatch)
    _Counted.moved = 0
    SGDClassifier(max_iter=1, tol=None).fit(X, TARGETS["two"])
    assert _Counted.moved
    plug_in(_Missing, monkeypatch)
    assert get_backend("auto").name == "numpy"
    SGDClassifier(max_iter=1, tol=None).fit(X, TARGETS["two"])


def test_blocks_are_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(_Counted, monkeypatch)
    moved = []
    for passes in (1, 20):
        _Counted.moved = 0
        SGDClassifier(
            device="gpu", policy="allreduce", max_iter=passes, tol=None, batch_size=240
        ).fit(X, TARGETS["two"])
        moved.append(_Counted.moved)
    # What a step moves is its rows' numbers alone, never the block or the parameters.
    assert moved[1] <= moved[0] + 19


def test_parameters_are_moved_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of ten blocks, whose rows and targets are moved at first."""
    plug_in(_Counted, monkeypatch)
    _Counted.moved = 0
    rows, y = da.from_array(X, chunks=(24, 5)), da.from_array(TARGETS["two"], chunks=24)
    model = LogisticRegression(device="gpu", run=Run(n_lanes=1)).fit(rows, y)
    rounds = len(model.history_.records)
    assert 20 + rounds < _Counted.moved < 20 + 3 * (rounds + 2)


def test_rows_that_lie_on_the_device_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are checked there too; only a fit of another dtype has them made anew."""
    plug_in(FakeCupy, monkeypatch)
    monkeypatch.setattr(DeviceArray, "copied", 0)
    there = DeviceArray(X)
    block = make_block(3, there, TARGETS["numbers"], classification=False)
    fit: Any = SimpleNamespace(
        device="gpu",
        dtype="float64",
        model=LinearModel(SquaredError(), 5, 0, fit_intercept=True),
        rule=SimpleNamespace(coordinates=False),
        classes=None,
        weight_scale=None,
        compute_dtype=None,
    )
    assert prepare_block(block, fit).X is there
    assert DeviceArray.copied == 0
    fit.dtype = "float32"
    np.testing.assert_array_equal(prepare_block(block, fit).X.get(), X.astype(np.float32))
    wrong = X.copy()
    wrong[7, 2] = np.inf
    block = make_block(3, DeviceArray(wrong), TARGETS["numbers"], classification=False)
    for fit.dtype in ("float64", "float32"):
        with pytest.raises(InvalidDataError, match=r"Block 3: .*infinity.*row 7 of the block"):
            prepare_block(block, fit)


def test_sparse_rows_of_many_features_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto"; the fake device has no sparse arrays, and would raise."""
    plug_in(_Counted, monkeypatch)
    rows = sparse.random_array((240, 4096), density=0.002, format="csr", rng=0)
    SGDClassifier(max_iter=1, tol=None).fit(rows, TARGETS["two"])


@pytest.mark.parametrize("model", [SGDClassifier(**STEPS), LogisticRegression(tol=1e-3)])
def test_sparse_rows_are_not_summed_in_order_on_a_device(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(_Counted, monkeypatch)
    _Counted.moved = 0
    rows, ends = sparse.csr_array(X), []
    for device in ("auto", "cpu"):
        model = clone(model).set_params(device=device, run__deterministic=True)
        ends.append(model.fit(rows, TARGETS["two"]).coef_)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not _Counted.moved
    with pytest.raises(InvalidParameterError, match=r'deterministic.* Use device="cpu", or dense'):
        model.set_params(device="gpu").fit(rows, TARGETS["two"])


def test_no_silent_move_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(_Missing, monkeypatch)
    with pytest.raises(DeviceUnavailableError, match="Plug something in"):
        SGDClassifier(device="gpu").fit(X, TARGETS["two"])


def test_out_of_device_memory_names_the_block_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(_Full, monkeypatch)
    with pytest.raises(DeviceMemoryError, match=r"Block 0 of .* MiB .*memory_budget"):
        SGDClassifier(device="gpu").fit(X, TARGETS["two"])
