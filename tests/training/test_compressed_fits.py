"""Fits with compressed gradients: residuals lose nothing, and fewer bytes are sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.metrics import log_loss

from daskml_dist import Run
from daskml_dist.callbacks import Checkpoint
from daskml_dist.comm.server_connections import ShardedConnection
from daskml_dist.compression import EF21, OneBit, PowerSGD, TopK
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.policies import POLICIES, Asynchronous, LocalSGD, Synchronous
from daskml_dist.ps.shard import Shard
from tests.maths.compressors import ALL, COMPRESSING, PROMISED, Signs, policies_of
from tests.quick import quick


def _rows(n_features: int = 20, n_rows: int = 800) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features))
    return X, X @ rng.normal(size=n_features) + 2 * rng.normal(size=n_rows) > 0


def _classifier(**params: Any) -> SGDClassifier:
    defaults: dict[str, Any] = {
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "run__n_lanes": 2,
        "batch_size": 10,
        "max_iter": 20,
        "tol": None,
        "random_state": 0,
    }
    return SGDClassifier().set_params(**(defaults | params))


#: Compressors whose defaults suit large models, with settings for 20 features.
_FOR_FEW: dict[str, Any] = {"ef21": EF21(0.05, momentum=0.9)}


def _cases() -> Iterator[Any]:
    """Each compressor under each policy that takes it; by default, under one."""
    # One row of coefficients has no low-rank form: several classes are tested below.
    for number, compression in enumerate(c for c in ALL if c != "powersgd"):
        policies = policies_of(compression)
        for policy in policies:
            marks = [] if policy == policies[number % len(policies)] else pytest.mark.slow
            yield pytest.param(_FOR_FEW.get(compression, compression), policy, marks=marks)


@cache
def _fit_plain(policy: Any) -> SGDClassifier:
    """Return the fit without compression, computed once for all compressors."""
    return _classifier(policy=policy).fit(*_rows())


@pytest.mark.parametrize(("compression", "policy"), list(_cases()))
def test_compressed_fits_reach_the_uncompressed_optimum(compression: Any, policy: str) -> None:
    X, y = _rows()
    # Lanes that are averaged rarely stop farther from the optimum, compressed or not.
    how: Any = LocalSGD(sync_every=2) if policy == "local" else policy
    plain = _fit_plain(how)
    small = _classifier(policy=how, run__compression=compression).fit(X, y)
    assert not np.array_equal(small.coef_, plain.coef_)
    expected = log_loss(y, plain.predict_proba(X))
    assert log_loss(y, small.predict_proba(X)) == pytest.approx(expected, rel=0.01)
    assert small.history_.extra["compression"] == getattr(compression, "name", compression)
    assert [r["rows"] for r in small.history_] == [r["rows"] for r in plain.history_]
    assert small.history_.extra["dropped_pushes"] == 0


def _three_classes() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 30))
    return X, np.argmax(X @ rng.normal(size=(30, 3)) + rng.normal(size=(600, 3)), axis=1)


@pytest.mark.parametrize("deterministic", quick([False, True], True))
def test_low_rank_gradients_are_sent_exactly_by_factors(deterministic: bool) -> None:
    """With three classes, gradients have two independent columns (rank 2)."""
    X, y = _three_classes()
    params = {"policy": "allreduce", "run__n_lanes": 3, "run__deterministic": deterministic}
    plain = _classifier(**params).fit(X, y)
    small = _classifier(**params, run__compression=PowerSGD(rank=2)).fit(X, y)
    np.testing.assert_allclose(small.coef_, plain.coef_, rtol=1e-9, atol=1e-9)
    assert not np.array_equal(small.coef_, plain.coef_)
    # With a lower rank the residual of one step is sent with the next.
    one = _classifier(**params, run__compression=PowerSGD(rank=1)).fit(X, y)
    expected = log_loss(y, plain.predict_proba(X))
    assert log_loss(y, one.predict_proba(X)) == pytest.approx(expected, rel=0.01)


def test_gradient_estimates_reach_the_optimum_of_heterogeneous_lanes() -> None:
    """With full batches, estimates converge to the lanes' gradients."""
    X, _ = _rows()
    X[400:] += 1  # bytes of the second lane
    t = X @ np.linspace(-1, 1, 20) + np.repeat([0.0, 1.0], 400)
    params: dict[str, Any] = {
        "policy": "allreduce", "batch_size": None, "max_iter": 800, "tol": None, "alpha": 0.01,
        "optimizer": "sgd", "learning_rate": 0.02, "shuffle": False,
    }  # fmt: skip
    found = [
        SGDRegressor(**params, run=Run(n_lanes=2, compression=compression)).fit(X, t).coef_
        for compression in (None, EF21(0.1))
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_compressed_regression_reaches_the_optimum() -> None:
    X, _ = _rows()
    t = X @ np.linspace(-1, 1, 20)
    reg = SGDRegressor(
        run=Run(compression="8bit", n_lanes=3), max_iter=50, tol=None, random_state=0
    )
    assert reg.fit(X, t).score(X, t) > 0.99


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the sum of all gradients that shards apply, and residuals at the end of each fit."""
    found: dict[str, Any] = {"sum": 0.0, "residuals": []}
    apply, close = Shard.apply, ShardedConnection.close

    def new_apply(self: Shard, grad: Any, rows: float, index: Any = None, scale: Any = 1) -> None:
        dense = np.zeros(self.w.shape)
        dense[slice(None) if index is None else index] = grad
        found["sum"] = found["sum"] + dense
        apply(self, grad, rows, index, scale)

    def new_close(self: ShardedConnection) -> None:
        found["residuals"] += [f.residual for f in self._feedback.values()]
        close(self)

    monkeypatch.setattr(Shard, "apply", new_apply)
    monkeypatch.setattr(ShardedConnection, "close", new_close)
    return found


@pytest.mark.parametrize(
    ("policy", "rows_of_batch", "wide"),
    [
        ("sync", 10, False),
        ("ssp", None, False),
        (Asynchronous(push_every=3, pull_every=2), 10, False),
        ("async", 10, True),
        pytest.param("sync", 10, True, marks=pytest.mark.slow),
        pytest.param("sync", None, False, marks=pytest.mark.slow),
        pytest.param("ssp", 10, True, marks=pytest.mark.slow),
    ],
)
def test_residuals_push_the_whole_of_every_gradient(
    arrived: dict[str, Any], policy: Any, rows_of_batch: int | None, wide: bool
) -> None:
    """With a learning rate of nearly 0 gradients do not depend on what arrived before."""
    X, y = _rows()
    if wide:
        X = sparse.random_array((800, 3000), density=0.002, format="csr", random_state=0)
    sums = []
    for compression in (None, TopK(0.05)):
        arrived["sum"] = 0.0
        clf = _classifier(
            policy=policy, run__compression=compression, batch_size=rows_of_batch, max_iter=2,
            learning_rate=1e-300, alpha=0.0,
        )  # fmt: skip
        clf.fit(X, y)
        sums.append(arrived["sum"])
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-9, atol=1e-9)
    assert len(arrived["residuals"]) in (1, 2)
    assert not np.any([residual.any() for residual in arrived["residuals"]])


def test_a_fit_of_few_steps_that_stops_early_loses_little() -> None:
    """Short passes flush residuals only at `max_iter`; a fit that stops earlier loses some."""
    X, y = _rows()
    params = {"batch_size": None, "learning_rate": 0.5, "max_iter": 500, "tol": 1e-4}
    plain = _classifier(**params).fit(X, y)
    small = _classifier(**params, run__compression=TopK(0.2)).fit(X, y)
    assert small.n_iter_ < 500
    expected = log_loss(y, plain.predict_proba(X))
    assert log_loss(y, small.predict_proba(X)) == pytest.approx(expected, rel=0.01)


def _lazy(n_features: int = 20, n_rows: int = 800) -> tuple[Any, Any]:
    X, y = _rows(n_features, n_rows)
    size = n_rows // 4
    return da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)


@pytest.fixture(scope="module")
def alone() -> NDArray[Any]:
    """Coefficients of a fit whose trainers share a process with the server."""
    return (
        _classifier(run__compression="8bit", run__n_lanes=3, run__deterministic=True)
        .fit(*_lazy())
        .coef_
    )


def test_local_and_remote_trainers_give_the_same_bits(alone: NDArray[Any], client: Client) -> None:
    clf = _classifier(run__compression="8bit", run__n_lanes=3, run__deterministic=True).fit(
        *_lazy()
    )
    assert clf.history_.extra["n_lanes"] == 3
    np.testing.assert_array_equal(clf.coef_, alone)


@pytest.mark.parametrize("name", quick(["fp16", "8bit", "4bit", "topk"], "4bit", "topk"))
def test_a_cluster_pushes_fewer_bytes(name: str, client: Client) -> None:
    X, y = _lazy(1_000, 400)
    params = {"batch_size": 5, "max_iter": 2}

    class Served(Synchronous):
        """`"sync"` with a server even on one host, where it would otherwise sum without one."""

    def share(fit: SGDClassifier) -> float:
        # A lane on the server's worker sends nothing, and the other lane may be there too.
        last = fit.history_.records[1]
        return float(last["bytes_pushed"] / last["bytes_pulled"])

    before = share(_classifier(**params, policy=Served()).fit(X, y))
    ratio = share(_classifier(**params, run__compression=name).fit(X, y)) / before
    # The last of 40 pushes is uncompressed; a message has a header of about 100 bytes.
    expected = (39 * PROMISED[name, "float64"] + 1) / 40
    assert expected < ratio < expected + 0.02


@pytest.mark.parametrize("name", quick(["8bit", "4bit", "topk"], "8bit", "topk"))
def test_averaged_lanes_send_compressed_differences(name: str, client: Client) -> None:
    """The bits do not depend on where lanes run, and bytes stay near the compressor's bound."""
    X, y = _lazy(1_000, 400)
    params = {"policy": LocalSGD(sync_every=5), "batch_size": 5, "max_iter": 4}
    plain = _classifier(**params, run__n_lanes=4).fit(X, y)
    settings = {"run__compression": name, "run__n_lanes": 4}
    small = _classifier(**params, **settings).fit(X, y)
    alone = _classifier(**params, **settings).fit(X.compute(), y.compute())
    np.testing.assert_array_equal(small.coef_, alone.coef_)
    pushed = [fit.history_.records[1]["bytes_pushed"] for fit in (small, plain)]
    # Two lanes of a trainer each send their own difference; without compression, one mean.
    assert pushed[0] < 2 * (PROMISED[name, "float64"] + 0.05) * pushed[1]
    if name == "8bit":  # the largest hundredth of a few differences is not the whole gradient
        np.testing.assert_allclose(small.coef_, plain.coef_, atol=0.01 * np.ptp(plain.coef_))


#: Compressors with every kind of lane state: residuals, averages, estimates, common factors.
_IN_ALL_FORMS: list[Any] = [
    "8bit", TopK(0.05), OneBit(64, momentum=0.5), EF21(0.1, momentum=0.5), PowerSGD(rank=1)
]  # fmt: skip


@pytest.mark.parametrize(
    "compression",
    quick(_IN_ALL_FORMS, *(form for form in _IN_ALL_FORMS if form != TopK(0.05))),
    ids=lambda c: getattr(c, "name", c),
)
def test_compressed_allreduce_does_not_depend_on_the_workers(
    compression: Any, client: Client
) -> None:
    X, y = _three_classes()
    lazy = da.from_array(X, chunks=(150, -1)), da.from_array(y, chunks=150)
    params = {"policy": "allreduce", "run__n_lanes": 4, "run__compression": compression}
    low_rank = compression == PowerSGD(rank=1)
    # Factors are sums; `deterministic` adds them in the order of lanes.
    model = _classifier(**params, run__deterministic=low_rank)
    alone = clone(model).fit(X, y)
    together = clone(model).fit(*lazy)
    assert together.history_.records[0]["bytes_pushed"] > 0
    np.testing.assert_array_equal(together.coef_, alone.coef_)
    assert np.isfinite(alone.coef_).all()


@pytest.mark.parametrize("compression", quick(["8bit", OneBit(momentum=0.5)], OneBit(momentum=0.5)))
def test_many_lanes_reduce_ranges_in_turn(compression: Any, client: Client) -> None:
    """Large models: fewer bytes than broadcasting every lane's message, and the same bits."""
    X, y = _three_classes()
    X, y = np.tile(X[:160], 200), y[:160]  # 18,003 coefficients
    lazy = da.from_array(X, chunks=(40, -1)), da.from_array(y, chunks=40)
    params: dict[str, Any] = {
        "policy": "allreduce", "run__n_lanes": 4, "max_iter": 2, "learning_rate": 1e-4,
    }  # fmt: skip
    plain, small = (
        _classifier(**params, run__compression=c).fit(*lazy) for c in (None, compression)
    )
    alone = _classifier(**params, run__compression=compression).fit(X, y)
    np.testing.assert_array_equal(small.coef_, alone.coef_)
    pushed = [fit.history_.records[0]["bytes_pushed"] for fit in (small, plain)]
    # Half of each lane's message is sent to the other trainer, then half of all parameters.
    name = getattr(compression, "name", compression)
    assert pushed[0] == pytest.approx(1.5 * PROMISED[name, "float64"] * pushed[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["topk", PowerSGD(rank=1)])
def test_compressed_allreduce_does_not_depend_on_four_workers(compression: Any) -> None:
    X, y = _three_classes()
    lazy = da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)
    params = {
        "policy": "allreduce", "run__n_lanes": 6, "run__compression": compression,
        "run__deterministic": True, "max_iter": 4,
    }  # fmt: skip
    found = [_classifier(**params).fit(*lazy).coef_]  # threads of this process
    with (
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        found.append(_classifier(**params).fit(*lazy).coef_)
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("name", quick(["fp16", "8bit", "4bit", "1bit", "topk"], "1bit", "topk"))
def test_compressed_gradients_are_few_bytes(name: str, client: Client) -> None:
    X, y = _lazy(1_000, 400)
    params = {"policy": "allreduce", "batch_size": 5, "max_iter": 2, "run__n_lanes": 2}

    def pushed(**more: Any) -> float:
        # In the first of two passes everything is compressed.
        records = _classifier(**params, **more).fit(X, y).history_.records
        return float(records[0]["bytes_pushed"])

    ratio = pushed(run__compression=name) / pushed()
    # 1,001 values; a message has a header of some 100 bytes, and names the lane.
    assert PROMISED[name, "float64"] - 0.001 < ratio < PROMISED[name, "float64"] + 0.05


@pytest.mark.parametrize("name", quick(["fp16", "8bit", "4bit"], "4bit"))
def test_one_shot_average_of_compressed_differences(name: str, client: Client) -> None:
    """Each lane sends its difference from the start; bits do not depend on placement."""
    X, y = _lazy()
    params = {"policy": "average", "run__n_lanes": 4}
    plain = _classifier(**params).fit(X, y)
    model = _classifier(**params, run__compression=name)
    small = clone(model).fit(X, y)
    alone = clone(model).fit(X.compute(), y.compute())
    np.testing.assert_array_equal(small.coef_, alone.coef_)
    size = {"fp16": 2**-11, "8bit": 1 / 254, "4bit": 1 / 14}[name]
    largest = 2 * np.abs(plain.coef_).max()  # bytes of one lane's difference
    assert 0 < np.abs(small.coef_ - plain.coef_).max() < size * largest


def test_a_single_lane_sends_nothing() -> None:
    X, y = _rows()
    found = [
        _classifier(policy="allreduce", run__n_lanes=1, run__compression=compression)
        .fit(X, y)
        .coef_
        for compression in (None, "topk")
    ]
    np.testing.assert_array_equal(found[1], found[0])


def test_steps_of_compressed_sums_are_averaged() -> None:
    X, y = _three_classes()
    params = {"policy": "allreduce", "average": True}
    plain = _classifier(**params).fit(X, y)
    small = _classifier(**params, run__compression="fp16").fit(X, y)
    np.testing.assert_allclose(small.coef_, plain.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compression", quick(["8bit", TopK(0.2)], TopK(0.2)))
def test_gradients_of_touched_coefficients(compression: Any) -> None:
    """Each lane sends only the coefficients that its batch of sparse rows touches."""
    X = sparse.random_array((800, 3000), density=0.002, format="csr", random_state=0)
    y = np.asarray(X.sum(axis=1)).ravel() > 2.9
    params = {"policy": "allreduce", "run__n_lanes": 2, "learning_rate": 0.5}
    plain = _classifier(**params).fit(X, y)
    small = _classifier(**params, run__compression=compression).fit(X, y)
    expected = log_loss(y, plain.predict_proba(X))
    assert log_loss(y, small.predict_proba(X)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("compression", ["powersgd", "ef21", OneBit(momentum=0.9)])
def test_compressors_of_whole_gradients_are_refused_for_sparse_steps(compression: Any) -> None:
    for policy in ("sync", "async", "local", "average"):
        with pytest.raises(InvalidParameterError, match=r"Use policy='allreduce'"):
            _classifier(run__compression=compression).fit(*_rows(), policy=policy)
    X = sparse.random_array((800, 3000), density=0.002, format="csr", random_state=0)
    with pytest.raises(InvalidParameterError, match="touch few parameters"):
        _classifier(policy="allreduce", run__compression=compression).fit(X, _rows()[1])


@pytest.mark.parametrize("compression", ["topk", "significant", "1bit", Signs()])
def test_lossy_compression_of_a_single_message_is_refused(compression: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"\['fp16', '8bit', '4bit'\].*'local'"):
        _classifier(run__compression=compression).fit(*_rows(), policy="average")


@pytest.mark.parametrize("bad", ["gzip", 8, TopK])
def test_unknown_compression_is_refused(bad: Any) -> None:
    names = "'1bit', '4bit', '8bit', 'ef21', 'fp16', 'powersgd', 'significant', 'topk'"
    with pytest.raises(InvalidParameterError, match=names):
        _classifier(run__compression=bad).fit(*_rows())


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in COMPRESSING])
def test_compression_is_refused_by_policies_that_send_nothing(policy: str) -> None:
    names = r"\['sync', 'allreduce', 'ssp', 'async', 'local', 'average'\]"
    with pytest.raises(InvalidParameterError, match=names):
        _classifier(run__compression="fp16").fit(*_rows(), policy=policy)


@pytest.mark.parametrize("compression", [TopK(0.1), EF21(0.1), PowerSGD(1)])
def test_residuals_are_flushed_before_a_checkpoint(compression: Any, tmp_path: Path) -> None:
    """Residuals are flushed before a checkpoint, so that a resumed fit equals an unbroken one."""
    X, y = _three_classes()
    params = {"policy": "allreduce", "run__compression": compression}
    found = []
    for name, stops in (("whole", [4]), ("parts", [2, 4])):
        for stop in stops:
            saved = Checkpoint(tmp_path / name, every=2, resume=True)
            clf = _classifier(**params, max_iter=stop, checkpoint=saved).fit(X, y)
        assert clf.n_iter_ == 4
        found.append(clf.coef_)
    np.testing.assert_array_equal(found[1], found[0])
