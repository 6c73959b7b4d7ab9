"""Compression: small errors, nothing lost, fewer bytes, the same optimum."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import log_loss

from daskml_dist import Run
from daskml_dist.comm.bounds import Bounds
from daskml_dist.comm.sharded import ShardedConnection
from daskml_dist.comm.wire import Reader, encode_request
from daskml_dist.compression import (
    COMPRESSORS,
    Compressor,
    EightBit,
    Feedback,
    Float16,
    Packed,
    SignificantlyModified,
    TopK,
    get_compressor,
)
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.policies import POLICIES, Asynchronous
from daskml_dist.ps.messages import Request
from daskml_dist.ps.shard import Shard

DTYPES = ["float32", "float64"]
PUSHING = [name for name, policy in POLICIES.items() if policy().pushes_gradients]


class Signs(Compressor):
    """A user's own: signs and the mean size (1-bit SGD with one scale)."""

    def compress(self, array: NDArray[Any]) -> Packed:
        size = np.abs(array).mean() if len(array) else 0.0
        return Packed((np.array([size], array.dtype), np.packbits(array > 0)))

    def decompress(self, packed: Packed, out: NDArray[Any]) -> None:
        (size,), bits = packed.arrays
        out[:] = np.where(np.unpackbits(bits, count=len(out)), size, -size)


ALL: list[Any] = [*COMPRESSORS, Signs()]


def _unpacked(compressor: Compressor, array: NDArray[Any]) -> NDArray[Any]:
    out = np.full_like(array, np.nan)
    compressor.decompress(compressor.compress(array), out)
    return out


# --- one vector ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_half_precision_keeps_eleven_bits_at_any_scale(dtype: str, size: float) -> None:
    rng = np.random.default_rng(0)
    array = (size * rng.normal(size=1000) * 10.0 ** rng.uniform(-4, 0, 1000)).astype(dtype)
    np.testing.assert_allclose(_unpacked(Float16(), array), array, rtol=2**-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_eight_bits_are_within_half_a_level_of_their_block(dtype: str, n: int) -> None:
    rng = np.random.default_rng(0)
    array = (rng.normal(size=n) * 10.0 ** (np.arange(n) // 256 * 3.0)).astype(dtype)
    error = np.abs(_unpacked(EightBit(), array) - array)
    for start in range(0, n, 256):
        at = slice(start, start + 256)
        assert error[at].max() <= np.abs(array[at]).max() / 254 * (1 + 1e-5)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 1.0])
def test_the_largest_entries_are_sent_as_they_are(share: float) -> None:
    array = np.random.default_rng(0).normal(size=1000)
    out = _unpacked(TopK(share), array)
    sent = np.flatnonzero(out)
    largest = np.argsort(-np.abs(array))[: round(1000 * share)]
    np.testing.assert_array_equal(sent, np.sort(largest))
    np.testing.assert_array_equal(out[sent], array[sent])


def test_significant_entries_are_sent_as_they_are() -> None:
    array = np.random.default_rng(0).normal(size=1000)
    out = _unpacked(SignificantlyModified(0.3), array)
    large = np.abs(array) >= 0.3 * np.abs(array).max()
    np.testing.assert_array_equal(out, np.where(large, array, 0))
    # However many are sent, it takes a bit each at most to say which.
    everything = SignificantlyModified(0.01).compress(np.ones(1000))
    assert everything.nbytes == 1000 * 8 + 125


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(compression: Any, dtype: str) -> None:
    compressor = get_compressor(compression)
    assert compressor is not None
    assert pickle.loads(pickle.dumps(compressor)).__class__ is compressor.__class__
    assert len(_unpacked(compressor, np.empty(0, dtype))) == 0
    np.testing.assert_array_equal(_unpacked(compressor, np.zeros(300, dtype)), 0)
    tiny = np.full(3, np.finfo(dtype).smallest_subnormal)
    assert np.isfinite(_unpacked(compressor, tiny)).all()


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_do_not_overflow(name: str, dtype: str) -> None:
    huge = np.finfo(dtype).max * np.array([0.5, -1e-3, 0.99])
    out = _unpacked(COMPRESSORS[name](), huge.astype(dtype))
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[2], huge[2], rtol=1e-2)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(name: str, value: float) -> None:
    array = np.ones(300)
    array[7] = value
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(_unpacked(COMPRESSORS[name](), array)[7])


#: Bytes of a compressed vector over those of the vector.
PROMISED = {
    ("fp16", "float32"): 1 / 2,
    ("fp16", "float64"): 1 / 4,
    ("8bit", "float32"): 1 / 4 + 1 / 256,
    ("8bit", "float64"): 1 / 8 + 1 / 256,
    ("topk", "float32"): 0.01 * 2,
    ("topk", "float64"): 0.01 * 1.5,
}


@pytest.mark.parametrize(("name", "dtype"), PROMISED)
def test_bytes_fall_as_promised(name: str, dtype: str) -> None:
    array = np.random.default_rng(0).normal(size=10_000).astype(dtype)
    packed = COMPRESSORS[name]().compress(array)
    assert packed.nbytes / array.nbytes == pytest.approx(PROMISED[name, dtype], rel=0.01)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("sparse_push", [False, True])
def test_packed_pushes_travel_whole(compression: Any, sparse_push: bool) -> None:
    compressor = get_compressor(compression)
    assert compressor is not None
    rng = np.random.default_rng(0)
    packed = compressor.compress(rng.normal(size=60))
    index = np.arange(30) if sparse_push else None
    sent = Request((3, 5), 1, 2, 4, 8.0, None, index, pull_index=index, packed=packed)
    data = b"".join(bytes(buffer) for buffer in encode_request(sent, {}))
    found = Reader(_Bytes(data), Bounds("float64", 30, 2, 6)).read()
    assert isinstance(found, Request)
    assert found.packed is not None
    assert (found.lanes, found.clock, found.rows) == ((3, 5), 2, 8.0)
    for ours, theirs in zip(packed.arrays, found.packed.arrays, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert len(data) < packed.nbytes + 60 * 8 * sparse_push + 200


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, buffer: memoryview) -> None:
        buffer[:], self._data = self._data[: len(buffer)], self._data[len(buffer) :]


# --- error feedback --------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sparse_push", [False, True])
def test_nothing_is_lost(compression: Any, dtype: str, sparse_push: bool) -> None:
    """Sum of what arrives, and of what is kept, is the sum of the gradients; then a flush."""
    compressor = get_compressor(compression)
    assert compressor is not None
    rng = np.random.default_rng(0)
    feedback = Feedback(compressor, (200, 2), dtype)
    given, arrived = np.zeros((200, 2)), np.zeros((200, 2))
    for _ in range(50):
        index = np.sort(rng.choice(200, 30, replace=False)) if sparse_push else None
        values = rng.normal(size=(30 if sparse_push else 200, 2)).astype(dtype)
        before = values.copy()
        packed = feedback.pack(values, index)
        np.testing.assert_array_equal(values, before)
        out = np.empty_like(values)
        compressor.decompress(packed, out.reshape(-1))
        at = slice(None) if index is None else index
        given[at] += values
        arrived[at] += out
        np.testing.assert_allclose(
            arrived + feedback.residual, given, atol=1e3 * np.finfo(dtype).eps
        )
    assert np.abs(feedback.residual).max() > 0
    rest, index = feedback.flush(np.zeros((200, 2), dtype))
    assert index is None
    np.testing.assert_allclose(arrived + rest, given, atol=1e3 * np.finfo(dtype).eps)
    assert not feedback.residual.any()


def test_a_sparse_flush_takes_along_the_rows_that_wait() -> None:
    feedback = Feedback(TopK(0.5), (6, 1), "float64")
    feedback.pack(np.array([[1.0], [8.0]]), np.array([2, 4]))
    values, index = feedback.flush(np.array([[3.0]]), np.array([5]))
    np.testing.assert_array_equal(index, [2, 5])
    np.testing.assert_array_equal(values, [[1.0], [3.0]])
    assert not feedback.residual.any()


# --- fits ------------------------------------------------------------------------------------


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


def _cases() -> Iterator[Any]:
    """Each compressor under each policy; by default, under one."""
    for number, compression in enumerate(ALL):
        for policy in PUSHING:
            quick = policy == PUSHING[number % len(PUSHING)]
            yield pytest.param(compression, policy, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("compression", "policy"), list(_cases()))
def test_the_optimum_is_that_without_compression(compression: Any, policy: str) -> None:
    X, y = _rows()
    plain = _classifier(policy=policy).fit(X, y)
    small = _classifier(policy=policy, run__compression=compression).fit(X, y)
    assert not np.array_equal(small.coef_, plain.coef_)
    expected = log_loss(y, plain.predict_proba(X))
    assert log_loss(y, small.predict_proba(X)) == pytest.approx(expected, rel=0.01)
    assert small.history_.extra["compression"] == getattr(compression, "name", compression)
    assert [r["rows"] for r in small.history_] == [r["rows"] for r in plain.history_]
    assert small.history_.extra["dropped_pushes"] == 0


def test_a_regression() -> None:
    X, _ = _rows()
    t = X @ np.linspace(-1, 1, 20)
    reg = SGDRegressor(
        run=Run(compression="8bit", n_lanes=3), max_iter=50, tol=None, random_state=0
    )
    assert reg.fit(X, t).score(X, t) > 0.99


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sum of all gradients that shards apply, and the residuals at each end."""
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
def test_a_fit_pushes_all_of_every_gradient(
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
    """Passes of few steps are flushed at `max_iter` alone; a fit that stops before has a rest."""
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


def test_a_cluster_pushes_fewer_bytes(client: Client) -> None:
    X, y = _lazy(1_000, 400)
    params = {"batch_size": 5, "max_iter": 2}
    plain = _classifier(**params).fit(X, y)
    before = plain.history_.records[1]["bytes_pushed"]
    for name in ("fp16", "8bit", "topk"):
        clf = _classifier(**params, run__compression=name).fit(X, y)
        ratio = clf.history_.records[1]["bytes_pushed"] / before
        # The last of 40 pushes goes whole; a message has a header of about 100 bytes.
        expected = (39 * PROMISED[name, "float64"] + 1) / 40
        assert expected < ratio < expected + 0.02


# --- parameters ------------------------------------------------------------------------------


def test_every_compressor_is_found_by_its_name() -> None:
    assert get_compressor(None) is None
    for name, kind in COMPRESSORS.items():
        assert kind.name == name
        assert get_compressor(name) == kind()
        assert get_compressor(found := kind()) is found


@pytest.mark.parametrize("bad", ["gzip", 8, TopK])
def test_unknown_compression_is_told(bad: Any) -> None:
    with pytest.raises(InvalidParameterError, match="'8bit', 'fp16', 'significant', 'topk'"):
        _classifier(run__compression=bad).fit(*_rows())


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in PUSHING])
def test_policies_that_push_no_gradients_are_told(policy: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"\['sync', 'ssp', 'async'\]"):
        _classifier(run__compression="fp16").fit(*_rows(), policy=policy)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TopK, 0),
        (TopK, 1.5),
        (TopK, "all"),
        (SignificantlyModified, -1),
        (SignificantlyModified, np.nan),
        (EightBit, 0),
        (EightBit, 2.5),
    ],
)
def test_bad_numbers_are_told(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="give a"):
        kind(value)


@pytest.mark.parametrize(
    "arrays", [(), (np.ones((2, 2)),), ([1.0],), (np.array(["a"]),), (np.ones(1),) * 256]
)
def test_what_cannot_travel_is_told(arrays: Any) -> None:
    with pytest.raises(InvalidParameterError, match="1 to 255 arrays of numbers"):
        Packed(arrays)
