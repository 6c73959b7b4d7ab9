"""Histograms of trees are summed directly between the GPUs of a host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.backends.namespace import is_host
from daskml_dist.comm import devices
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from daskml_dist.solvers import forest_joint_growth
from daskml_dist.training.worker.loops.own_rows import _TrainerRows
from tests.training.devices.test_forests import FEW, THREE, WEIGHT, X, Y

#: On 4 workers and 3 features, so that in boosting one worker owns no feature.
MODELS: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "boosting": (
        HistGradientBoostingClassifier,
        THREE,
        {"max_iter": 2, "max_leaf_nodes": 6, "early_stopping": False},
    ),
    "forest": (RandomForestRegressor, Y, {**FEW, "decomposition": "data"}),
}


class _Meeting:
    """Shared sums of the threads that stand for the GPUs of a host."""

    def __init__(self, size: int) -> None:
        self.parts: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)


class _Group:
    """Stand-in for NCCL between the GPUs of a host; NumPy arrays do not use it."""

    bytes_moved = 0

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def all_reduce(self, array: Any) -> Any:
        parts, barrier = self._meeting.parts, self._meeting.barrier
        parts[self._rank] = array
        barrier.wait()
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        barrier.wait()  # parts are not overwritten until all have read them
        return total

    def abort(self) -> None:
        pass

    close = abort


def _groups(size: int) -> Callable[[int, int, bytes, Any], _Group]:
    """Return a factory of groups of `n` ranks that share their sums."""
    meeting = _Meeting(size)

    def make(rank: int, n_ranks: int, identifier: bytes, wait: Any) -> _Group:
        assert n_ranks == size
        return _Group(meeting, rank)

    return make


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("model", MODELS)
def test_histograms_are_summed_on_gpus(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask.array as da

    make, y, params = MODELS[model]
    monkeypatch.setattr(forest_joint_growth, "SMALL_NODE_ROWS", 60)
    monkeypatch.setattr(forest_joint_growth, "_MESSAGE_BYTES", 2**15)
    monkeypatch.setattr(devices, "find_gpu_and_nccl", lambda: ("0000:01:00.0", 22809))
    monkeypatch.setattr(devices, "_find_problem", lambda places, hosts: "")
    monkeypatch.setattr(devices, "make_identifier", lambda: b"here")
    monkeypatch.setattr(devices.NcclGroup, "connect", _groups(4))
    where: list[bool] = []
    begin = _TrainerRows.__init__

    def spy(self: Any, *args: Any) -> None:
        begin(self, *args)
        where.append(self.sums_on_device)

    monkeypatch.setattr(_TrainerRows, "__init__", spy)
    cpu = make(device="cpu", **params).fit(X[:, :3], y, WEIGHT)
    assert not any(where)
    where.clear()
    with LocalCluster(n_workers=4, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster):
            rows = (da.from_array(a, chunks=(100, *a.shape[1:])) for a in (X[:, :3], y, WEIGHT))
            gpu = make(device="gpu", run=Run(n_lanes=4), **params).fit(*rows)
    assert where == [True] * 4
    found, expected = gpu._trees.packed(), cpu._trees.packed()
    assert {n: a.tobytes() for n, a in found.items()} == {
        n: a.tobytes() for n, a in expected.items()
    }


class _Device:
    """Array that is not in host memory."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape = values, values.shape

    def reshape(self, *shape: Any) -> _Device:
        return _Device(self.values.reshape(*shape))

    def copy(self) -> _Device:
        return _Device(self.values.copy())


def test_reduced_device_arrays_are_not_copied_to_the_host() -> None:
    class Communicator:
        rank, size = 1, 2

        def bounds(self, n: int) -> list[int]:
            return [0, n // 2, n]

        def reduce_scatter(self, array: _Device, bounds: list[int]) -> _Device:
            return _Device(array.values[bounds[1] : bounds[2]] * 2)

        def allreduce(self, array: _Device) -> _Device:
            return _Device(array.values * 2)

    rows = object.__new__(_TrainerRows)
    rows._communicator, rows.size = Communicator(), 2  # type: ignore[assignment]
    array = np.arange(24).reshape(4, 3, 2)
    reduced: Any = rows.sum_own_range(_Device(array))  # type: ignore[arg-type]
    assert not is_host(reduced)
    np.testing.assert_array_equal(reduced.values, 2 * array[2:])
    np.testing.assert_array_equal(rows.sum_trainers(_Device(array)).values, 2 * array)  # type: ignore
