"""Copies of blocks to a device: through pinned memory, once, and none on the CPU."""

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
from daskml_dist.backends.cupy_backend import PinnedCopy, PinnedRing
from daskml_dist.backends.devices import MovedOnce, stored_dtype
from daskml_dist.linear_model import SGDClassifier
from tests.backends.batches import CONTAINERS, make_rows
from tests.cuda_emulation import EmulatedCupy
from tests.fake_cupy import plug_in


@pytest.mark.parametrize("size", [0, 1, 1 << 24, (1 << 24) + 1, 3 * (1 << 24) + 5])
def test_large_arrays_are_copied_through_two_alternating_buffers(size: int) -> None:
    """memmove stands in for the driver; a buffer must not be refilled before it was sent."""
    cuda = _FakeCuda()
    copy = PinnedCopy(cuda, lambda size, dtype: np.empty(size, dtype))
    source = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    out = copy(source)
    np.testing.assert_array_equal(out, source)
    assert cuda.waits == ["queued work"]


def test_small_arrays_are_sent_from_parts_of_one_memory() -> None:
    """A part that a transfer may still read must not be overwritten."""
    cuda = _FakeCuda()
    ring = PinnedRing(cuda, lambda array: array.data.ptr, np.empty(100, np.uint8))
    rng = np.random.default_rng(0)
    sent = []
    for sizes in ([30], [20, 25], [25], [1, 2, 3], [100], [0], [60, 60], [40]):
        parts = [rng.integers(0, 255, size, dtype=np.uint8) for size in sizes]
        sent.append((ring(parts), np.concatenate(parts)))
    cuda.synchronize()
    for found, expected in sent:
        np.testing.assert_array_equal(found, expected)


def test_copies_have_the_dtype_and_shape_of_their_source(stored: str) -> None:
    source = np.arange(6.0).reshape(2, 3).astype(stored_dtype(stored))
    out = PinnedCopy(_FakeCuda(), lambda size, dtype: np.empty(size, dtype))(source)
    assert out.dtype == source.dtype
    np.testing.assert_array_equal(out, source)


def test_arrays_shared_by_blocks_are_moved_once(backend: Backend) -> None:
    once, shared = MovedOnce(backend), np.arange(3.0)
    moved = once.to_device(shared)
    assert once.to_device(shared) is moved
    assert once.to_device(moved) is moved
    for k in range(100):  # its memory may be that of the previous one
        other = once.to_device(np.full(3, float(k)))
        np.testing.assert_array_equal(backend.to_numpy(other), [k] * 3)
    assert once.device == backend.device


@pytest.mark.gpu
def test_small_arrays_arrive_behind_queued_work() -> None:
    """The arrays exceed the ring buffer, so that its parts are reused."""
    backend: Any = get_backend("gpu")
    work = backend.to_device(np.ones((2000, 2000)))
    sent = []
    for k in range(600):
        if k % 50 == 0:
            work = work @ work / 2000
        part = np.arange(k, k + 1000, dtype=np.int64)
        sent.append((k, backend.send_small([part.view(np.uint8)])))
    for k, device_array in sent:
        expected = np.arange(k, k + 1000)
        np.testing.assert_array_equal(backend.to_numpy(device_array).view(np.int64), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_arrays_are_copied_there_and_back(dtype: str) -> None:
    """The device still reads the previous contents of the memory."""
    backend = get_backend("gpu")
    rows = np.random.default_rng(0).normal(size=((1 << 23) + 5, 1)).astype(dtype)
    for scale in (1, -3):
        work = backend.to_device(np.ones((2000, 2000)))
        for _ in range(20):
            work = work @ work / 2000
        moved = backend.to_device(scale * rows)
        np.testing.assert_array_equal(backend.to_numpy(moved), scale * rows)
        del work, moved


def test_only_copies_of_blocks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies through pinned memory are complete on return; row indices are sent in each step."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    waited = []

    def copy(array: NDArray[Any]) -> NDArray[Any]:
        waited.append(array.shape)
        return array.copy()

    monkeypatch.setattr(cupy_backend, "_MIN_PINNED_BYTES", 400)
    monkeypatch.setattr(cupy_backend, "thread_pinned_copy", lambda cupy: copy)
    monkeypatch.setattr(EmulatedCupy, "problem", lambda: None)
    plug_in(EmulatedCupy, monkeypatch)
    dense = np.random.default_rng(0).normal(size=(240, 2))
    X, y = sparse.csr_array(dense), np.digitize(dense[:, 0], [-1, 1])
    options = {"loss": "hinge", "batch_size": 80, "max_iter": 2, "tol": None, "random_state": 0}
    clf = SGDClassifier(device="gpu", **options).fit(X, y)
    assert waited == [a.shape for a in (X.data, X.indices, X.indptr, y)]
    np.testing.assert_allclose(clf.coef_, SGDClassifier(device="cpu", **options).fit(X, y).coef_)


class _FakeCuda:
    """Stand-in for CuPy with arrays, a stream and events."""

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

    def asarray(self, array: Any) -> Any:
        return array.copy()  # CuPy waits for this copy

    def record(self) -> str:
        return "queued work"

    def wait_event(self, event: str) -> None:
        self.waits.append(event)

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        # Sent at the next wait, so that a buffer refilled too early is detected.
        self._sent.append((to, source, size))

    def synchronize(self) -> None:
        self.send(len(self._sent))

    def send(self, upto: int) -> None:
        """Do the oldest pending copy."""
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


@CONTAINERS
def test_blocks_on_the_cpu_are_not_copied(container: Any) -> None:
    backend = get_backend("cpu")
    X = container(make_rows())
    assert backend.to_device(X) is X
    if not sparse.issparse(X):
        assert np.shares_memory(backend.rows(X, slice(2, 9)), X)
