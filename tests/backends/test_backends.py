"""Backends: products of dense, CSR and renumbered CSR batches equal those of SciPy."""

from __future__ import annotations

import ctypes
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import Backend, cupy_backend, get_backend
from daskml_dist.backends.base import Step
from daskml_dist.backends.cupy_backend import CupyRows
from daskml_dist.backends.devices import DEVICES, gpu_problem, stored_dtype
from daskml_dist.backends.moved_once import MovedOnce
from daskml_dist.backends.pinned_copy import PinnedCopy
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.losses import Huber, LogLoss
from daskml_dist.optimizers import Adam
from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import plug_in

N, P = 30, 12
ROWS = {
    "gathered": np.array([5, 0, 29, 5, 7]),  # a row may appear twice
    "slice": slice(3, 20),
    "none": np.empty(0, np.intp),
}
WIDTH = pytest.mark.parametrize("width", [1, 3])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
CONTAINERS = pytest.mark.parametrize(
    "container", [np.asarray, sparse.csr_array, sparse.csr_matrix], ids=lambda c: c.__name__
)


def _X(dtype: Any = np.float64) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, P)) * (rng.random((N, P)) < 0.3)
    X[4] = X[7] = 0  # rows without entries
    X[:, 2] = 0
    return X.astype(dtype)


def _draw(*shape: int, dtype: Any = np.float64) -> NDArray[Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def _tolerance(dtype: Any) -> float:
    return 1e-5 if dtype is np.float32 else 1e-12


@DTYPES
@WIDTH
@pytest.mark.parametrize("rows", list(ROWS))
@CONTAINERS
def test_products(backend: Backend, container: Any, rows: str, width: int, dtype: Any) -> None:
    X = _X(dtype)
    batch = backend.rows(backend.to_device(container(X)), ROWS[rows])
    dense = X[ROWS[rows]]
    assert batch.shape == dense.shape
    w = _draw(P, width, dtype=dtype)
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(w)))
    expected = dense @ w
    assert raw.dtype == dtype
    assert raw.shape == (expected[:, 0] if width == 1 else expected).shape
    tolerance = {"rtol": _tolerance(dtype), "atol": _tolerance(dtype)}
    np.testing.assert_allclose(raw.reshape(-1, width), expected, **tolerance)

    g, start = _draw(len(dense), width, dtype=dtype), _draw(P, width, dtype=dtype)
    out = backend.to_device(start.copy())
    backend.add_tdot(batch, backend.to_device(g[:, 0] if width == 1 else g), out)
    found = backend.to_numpy(out)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, start + dense.T @ g, **tolerance)


@DTYPES
@WIDTH
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix])
def test_products_at_touched_columns(
    backend: Backend, container: Any, width: int, dtype: Any
) -> None:
    """Pieces renumbered to the columns of their union, as a batch of coordinates."""
    X = _X(dtype)
    block = backend.to_device(container(X))
    chosen = [np.array([5, 0, 29]), np.array([4]), np.array([12, 13, 5])]
    pieces = [backend.rows(block, rows) for rows in chosen]
    columns = backend.columns(pieces)
    union = np.flatnonzero(np.any(X[np.concatenate(chosen)] != 0, axis=0))
    np.testing.assert_array_equal(columns, union)
    assert columns.dtype == np.int64
    w, total, expected = _draw(P, width, dtype=dtype), 0, np.zeros((P, width))
    out = backend.to_device(np.zeros((len(columns), width), dtype))
    for piece, rows in zip(pieces, chosen, strict=True):
        raw = backend.to_numpy(backend.dot(piece, backend.to_device(w[columns])))
        total += len(raw)
        np.testing.assert_allclose(
            raw.reshape(-1, width), X[rows] @ w, rtol=_tolerance(dtype), atol=_tolerance(dtype)
        )
        g = _draw(len(rows), width, dtype=dtype)
        backend.add_tdot(piece, backend.to_device(g[:, 0] if width == 1 else g), out)
        expected += X[rows].T @ g
    assert total == 7
    np.testing.assert_allclose(
        backend.to_numpy(out), expected[columns], rtol=_tolerance(dtype), atol=_tolerance(dtype)
    )


@pytest.mark.parametrize("rows", ["gathered", "slice"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [0, 1])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array], ids=lambda c: c.__name__)
def test_fused_gradients(
    backend: Backend, container: Any, intercept: int, weighted: bool, rows: str
) -> None:
    """Where a backend has a kernel it does what its products do; else nothing."""
    X, loss = _X(), Huber(0.5)
    batch = backend.rows(backend.to_device(container(X)), ROWS[rows])
    dense = X[ROWS[rows]]
    y, w = _draw(len(dense)), _draw(P + intercept, 1)
    weight = np.abs(_draw(len(dense))) if weighted else None
    start = _draw(P + intercept + 1, 1)[1:]
    out = backend.to_device(start.copy())
    moved = None if weight is None else backend.to_device(weight)
    found = backend.add_fused(
        loss.kernel,
        backend.to_device(w),
        batch,
        backend.to_device(y),
        moved,
        out,
        loss.parameters,
    )
    if found is None:
        assert backend.name == "numpy"
        np.testing.assert_array_equal(backend.to_numpy(out), start)
        return
    values, g = loss.value_and_gradient(y, dense @ w[:P, 0] + (w[P, 0] if intercept else 0))
    values, g = (values, g) if weight is None else (values * weight, g * weight)
    gradient = np.append(dense.T @ g, g.sum())[: P + intercept, None]
    assert float(found) == pytest.approx(values.sum(), rel=1e-12)
    np.testing.assert_allclose(backend.to_numpy(out), start + gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array], ids=lambda c: c.__name__)
def test_fused_softmax(backend: Backend, container: Any, weighted: bool) -> None:
    X, loss = _X(), LogLoss()
    batch = backend.rows(backend.to_device(container(X)), slice(3, 20))
    y = np.arange(17, dtype=np.int32) % 3
    w, start = _draw(P + 1, 3), _draw(P + 2, 3)[1:]
    weight = np.abs(_draw(17)) if weighted else None
    out = backend.to_device(start.copy())
    moved = [None if a is None else backend.to_device(a) for a in (w, y, weight)]
    found = backend.add_fused(loss.kernel, moved[0], batch, moved[1], moved[2], out)
    if found is None:
        assert backend.name == "numpy"
        return
    values, g = loss.value_and_gradient(y, X[3:20] @ w[:P] + w[P])
    values, g = (values, g) if weight is None else (values * weight, g * weight[:, None])
    gradient = np.vstack([X[3:20].T @ g, g.sum(axis=0)])
    assert float(found) == pytest.approx(values.sum(), rel=1e-12)
    np.testing.assert_allclose(backend.to_numpy(out), start + gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("chosen", ROWS)
@WIDTH
def test_rows_that_are_stored_in_less_than_float32(
    backend: Backend, stored: str, width: int, chosen: str
) -> None:
    """They are copied and gathered as they are stored, and computed with in float32."""
    if backend.device == "cpu":
        pytest.skip("stores float32")
    rng, at = np.random.default_rng(0), ROWS[chosen]
    X = rng.normal(size=(N, 3)).astype(stored_dtype(stored))
    w, g = (rng.normal(size=(n, width)).astype(np.float32) for n in (3, len(X[at])))
    g = g[:, 0] if width == 1 else g
    weight = np.abs(rng.normal(size=len(g))).astype(np.float32)
    rows, exact = backend.rows(backend.to_device(X), at), X[at].astype(np.float64)
    assert rows.dtype == X.dtype
    there = [backend.to_device(a) for a in (w, g, weight, np.zeros((3, width)), np.zeros((3, 3)))]
    backend.add_tdot(rows, there[1], there[3])
    backend.add_gram(rows, there[2], there[4])
    found = [backend.to_numpy(a) for a in (backend.dot(rows, there[0]), *there[3:])]
    expected = [exact @ w, exact.T @ g, exact.T * weight @ exact]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 1 << 24, (1 << 24) + 1, 3 * (1 << 24) + 5])
def test_large_arrays_go_through_two_buffers_in_turns(size: int) -> None:
    """The driver's part is played by memmove; a buffer is not filled before it was sent."""
    cuda = _FakeCuda()
    copy = PinnedCopy(cuda, lambda size, dtype: np.empty(size, dtype))
    source = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    out = copy(source)
    np.testing.assert_array_equal(out, source)
    assert cuda.waits == ["queued work"]


def test_copies_have_the_dtype_and_shape_of_their_source(stored: str) -> None:
    source = np.arange(6.0).reshape(2, 3).astype(stored_dtype(stored))
    out = PinnedCopy(_FakeCuda(), lambda size, dtype: np.empty(size, dtype))(source)
    assert out.dtype == source.dtype
    np.testing.assert_array_equal(out, source)


def test_what_blocks_share_is_moved_once(backend: Backend) -> None:
    once, shared = MovedOnce(backend), np.arange(3.0)
    moved = once.to_device(shared)
    assert once.to_device(shared) is moved
    assert once.to_device(moved) is moved
    for k in range(100):  # whose memory may be that of the one before
        other = once.to_device(np.full(3, float(k)))
        np.testing.assert_array_equal(backend.to_numpy(other), [k] * 3)
    assert once.device == backend.device


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_arrays_there_and_back(dtype: str) -> None:
    """While the device still works on what the memory held before."""
    backend = get_backend("gpu")
    rows = np.random.default_rng(0).normal(size=((1 << 23) + 5, 1)).astype(dtype)
    for scale in (1, -3):
        work = backend.to_device(np.ones((2000, 2000)))
        for _ in range(20):
            work = work @ work / 2000
        moved = backend.to_device(scale * rows)
        np.testing.assert_array_equal(backend.to_numpy(moved), scale * rows)
        del work, moved


def test_only_blocks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes through pinned memory is there on return; numbers of rows are sent in each step."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    waited = []

    def copy(array: NDArray[Any]) -> NDArray[Any]:
        waited.append(array.shape)
        return array.copy()

    monkeypatch.setattr(cupy_backend, "_PINNED_FROM", 400)
    monkeypatch.setattr(cupy_backend, "pinned_copy", lambda cupy: copy)
    monkeypatch.setattr(EmulatedCupy, "problem", lambda: None)
    plug_in(EmulatedCupy, monkeypatch)
    dense = np.random.default_rng(0).normal(size=(240, 2))
    X, y = sparse.csr_array(dense), np.digitize(dense[:, 0], [-1, 1])
    options = {"loss": "hinge", "batch_size": 80, "max_iter": 2, "tol": None, "random_state": 0}
    clf = SGDClassifier(device="gpu", **options).fit(X, y)
    assert waited == [a.shape for a in (X.data, X.indices, X.indptr, y)]
    np.testing.assert_allclose(clf.coef_, SGDClassifier(device="cpu", **options).fit(X, y).coef_)


class _FakeCuda:
    """What a copy asks of CuPy: arrays, a stream and events."""

    uint8 = np.uint8

    def __init__(self) -> None:
        self.cuda = self.runtime = self
        self.ptr = 0
        self.waits: list[str] = []
        self.memcpyHostToDevice = 1
        self._sent: list[tuple[int, int, int]] = []
        self._done = 0

    def empty(self, shape: Any, dtype: Any) -> Any:
        return np.empty(shape, dtype).view(_WithPointer)

    def Stream(self, non_blocking: bool) -> _FakeCuda:
        assert non_blocking
        return self

    def Event(self, disable_timing: bool) -> _FakeEvent:
        return _FakeEvent(self)

    def get_current_stream(self) -> _FakeCuda:
        return self

    def record(self) -> str:
        return "queued work"

    def wait_event(self, event: str) -> None:
        self.waits.append(event)

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        # Sent when somebody waits for it, so that a buffer filled too early shows.
        self._sent.append((to, source, size))

    def synchronize(self) -> None:
        self.send(len(self._sent))

    def send(self, upto: int) -> None:
        """Do what was asked for first."""
        while self._done < upto:
            ctypes.memmove(*self._sent[self._done])
            self._done += 1


class _FakeEvent:
    def __init__(self, cuda: _FakeCuda) -> None:
        self._cuda = cuda
        self._at = 0

    def record(self, stream: _FakeCuda) -> None:
        self._at = len(stream._sent)

    def synchronize(self) -> None:
        self._cuda.send(self._at)


class _WithPointer(np.ndarray):  # type: ignore[type-arg]
    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def test_fused_steps(backend: Backend) -> None:
    """Adam with both penalties on all rows but the last, as its own lines have it."""
    optimizer, w = Adam(), _draw(P, 2)
    slots = optimizer.init(w)
    device_w = backend.to_device(w.copy())
    device_slots = {name: backend.to_device(slot.copy()) for name, slot in slots.items()}
    strengths = np.r_[np.full(P - 1, 0.3), 0.0][:, None]
    for number in (1, 2, 3):
        grad = _draw(P, 2) / number
        moved = backend.to_device(4 * grad)
        step = Step(device_w, moved, device_slots, 4.0, 0.1, number, 0.3, 0.2, P - 1)
        if not backend.update(optimizer, step):
            assert backend.name == "numpy"
            return
        grad[:-1] += 0.2 * w[:-1]
        optimizer.update(w, grad, slots, 0.1, number, strengths)
    np.testing.assert_allclose(backend.to_numpy(device_w), w, rtol=1e-12, atol=1e-14)


def test_batches_may_be_prepared_before_they_are_used(backend: Backend) -> None:
    """Two batches renumbered in advance, of blocks of different widths, used in turns."""
    blocks = [_X(), np.c_[_X(), _X()]]
    batches = []
    for X in blocks:
        piece = backend.rows(backend.to_device(sparse.csr_array(X)), np.array([1, 2, 3]))
        batches.append((X, piece, backend.columns([piece])))
    for X, piece, columns in batches * 2 + batches[::-1]:
        w = _draw(X.shape[1], 2)
        raw = backend.to_numpy(backend.dot(piece, backend.to_device(w[columns])))
        np.testing.assert_allclose(raw, X[1:4] @ w, rtol=1e-12, atol=1e-12)


def test_wider_block_after_use_of_a_narrow_one(backend: Backend) -> None:
    X = _X()
    piece = backend.rows(backend.to_device(sparse.csr_array(X)), np.array([1, 2, 3]))
    columns = backend.columns([piece])
    w = _draw(P, 2)
    device_w = backend.to_device(w[columns])
    backend.dot(piece, device_w)
    wide = backend.to_device(sparse.csr_array(([1.0], ([0], [900_000])), shape=(1, 1_000_000)))
    np.testing.assert_array_equal(backend.columns([backend.rows(wide, slice(0, 1))]), [900_000])
    raw = backend.to_numpy(backend.dot(piece, device_w))
    np.testing.assert_allclose(raw, X[1:4] @ w, rtol=1e-12, atol=1e-12)


def test_columns_of_the_same_rows_again(backend: Backend) -> None:
    block = backend.to_device(sparse.csr_array(_X()))
    for _ in range(3):
        columns = backend.columns([backend.rows(block, np.array([1, 2, 3]))])
        np.testing.assert_array_equal(columns, np.flatnonzero(np.any(_X()[1:4] != 0, axis=0)))


def test_columns_of_rows_without_entries(backend: Backend) -> None:
    piece = backend.rows(backend.to_device(sparse.csr_array(_X())), np.array([4, 7]))
    assert len(backend.columns([piece])) == 0
    raw = backend.to_numpy(backend.dot(piece, backend.to_device(np.empty((0, 1)))))
    np.testing.assert_array_equal(raw, [0, 0])


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_indices_of_both_widths(backend: Backend, index_dtype: Any) -> None:
    X = sparse.csr_array(_X())
    X.indices, X.indptr = X.indices.astype(index_dtype), X.indptr.astype(index_dtype)
    batch = backend.rows(backend.to_device(X), np.array([1, 9]))
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(_draw(P, 1))))
    np.testing.assert_allclose(raw, (_X()[[1, 9]] @ _draw(P, 1))[:, 0], rtol=1e-12, atol=1e-15)


def test_columns_beyond_32_bits_are_refused() -> None:
    X = sparse.csr_array(([1.0], ([0], [2**31])), shape=(1, 2**31 + 1))
    with pytest.raises(InvalidDataError, match=r"2,147,483,649 columns.*hash.*device=\"cpu\""):
        EmulatedCupy().to_device(X)
    X = sparse.csr_array(([1.0], ([0], [2**31 - 2])), shape=(1, 2**31 - 1))
    assert EmulatedCupy().to_device(X).indices.tolist() == [2**31 - 2]


def test_new_entries_in_the_same_places_are_not_checked_anew() -> None:
    """To find out whether rows are canonical a device is waited for; that is known."""
    backend = EmulatedCupy()
    for known in (True, False):
        X = sparse.csr_matrix(_X())
        X.has_canonical_format = known  # a check would find True
        rows = CupyRows(X)
        doubled = rows.with_values(2 * rows.values)
        np.testing.assert_array_equal(doubled.toarray(), 2 * _X())
        weighted = backend._weighted(X, np.arange(N))
        np.testing.assert_array_equal(weighted.toarray(), np.arange(N)[:, None] * _X())
        columns = backend.columns([rows])
        np.testing.assert_array_equal(rows.toarray(), _X()[:, columns])
        found = [each.has_canonical_format for each in (doubled.X, weighted, rows.X)]
        assert found == [known] * 3
        np.testing.assert_array_equal(X.toarray(), _X())


def _unaligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that starts at an odd byte, as what came over a network may."""
    buffer = np.empty(array.nbytes + 1, np.uint8)[1:]
    shifted = buffer.view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


def test_unaligned_blocks(backend: Backend) -> None:
    X = _X()
    dense = _unaligned(X)
    assert not dense.flags.aligned
    np.testing.assert_array_equal(backend.to_numpy(backend.to_device(dense)), X)
    csr = sparse.csr_array(X)
    parts = (_unaligned(csr.data), _unaligned(csr.indices), _unaligned(csr.indptr))
    batch = backend.rows(
        backend.to_device(sparse.csr_array(parts, shape=csr.shape)), ROWS["gathered"]
    )
    raw = backend.to_numpy(backend.dot(batch, backend.to_device(_draw(P, 1))))
    expected = (X[ROWS["gathered"]] @ _draw(P, 1))[:, 0]
    np.testing.assert_allclose(raw, expected, rtol=1e-12, atol=1e-15)


@CONTAINERS
def test_blocks_on_the_cpu_are_not_copied(container: Any) -> None:
    backend = get_backend("cpu")
    X = container(_X())
    assert backend.to_device(X) is X
    if not sparse.issparse(X):
        assert np.shares_memory(backend.rows(X, slice(2, 9)), X)


def test_one_instance_for_each_call() -> None:
    """An instance holds scratch arrays of one thread."""
    assert get_backend("auto") is not get_backend("auto")
    assert get_backend("cpu").name == "numpy"
    assert get_backend("auto").name == ("numpy" if gpu_problem() else "cupy")


@pytest.mark.parametrize("wrong", ["cuda", "", None])
def test_unknown_device_lists_the_names(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        get_backend(wrong)
    assert all(f"'{device}'" in str(caught.value) for device in DEVICES)
