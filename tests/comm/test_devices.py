"""Sums of device arrays: choice of transport, order of the levels, timeouts and closing.

Ranks are threads. Their host communicators are real sockets; the GPUs of a host are a collective in
host memory, and device arrays are array-api-strict's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.base import WaitBound
from daskml_dist.comm.devices import (
    DeviceCommunicator,
    DevicePlace,
    choose_route,
    make_device_communicator,
)
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.socket_group import PeerGroup, PeerListener
from daskml_dist.errors import (
    CommunicationError,
    GenerationError,
    RunAbortedError,
    WaitTimeoutError,
)

HOST, CREDENTIALS = "127.0.0.1", Credentials(b"s" * 32)
#: Two boxes of two GPUs, with NCCL 2.28.9.
FOUR = [
    DevicePlace(host, gpu, 22809) for host in ("a", "b") for gpu in ("0000:01:00.0", "0000:02:00.0")
]


def test_ranks_of_a_host_use_nccl() -> None:
    mixed = [FOUR[0], FOUR[2], FOUR[1], FOUR[3], DevicePlace("c", "0000:01:00.0", 23203)]
    route = choose_route(mixed)
    assert route.hosts == [[0, 2], [1, 3], [4]]
    assert not route.problem


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ([DevicePlace("a", "1", 22809), DevicePlace("a", "2", 0)], "a has no NCCL; install it"),
        (
            [DevicePlace("a", "1", 22000), DevicePlace("a", "2", 22809)],
            "a has NCCL 22000; install it",
        ),
        ([DevicePlace("a", "1", 22809), DevicePlace("a", "1", 22809)], "share a GPU"),
        ([DevicePlace("a", "1", 22809), DevicePlace("a", "2", 23203)], "install the same one"),
        ([DevicePlace("a", "1", 22809), DevicePlace("b", "1", 22809)], "one worker per host"),
        ([DevicePlace("a", "1", 22809), DevicePlace("a", "", 22809)], "has no GPU"),
    ],
)
def test_without_nccl_arrays_use_host_memory(places: list[DevicePlace], problem: str) -> None:
    assert problem in choose_route(places).problem


class _Box:
    """Shared state of the ranks of a host: the arrays of each round, and aborts."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.turns: dict[int, dict[int, Any]] = {}
        self.aborted = False


class _BoxGroup:
    """Stand-in for NCCL: collective in host memory that adds in the order of the ranks."""

    bytes_moved = 0

    def __init__(self, box: _Box, backend: Any, rank: int, size: int, wait: WaitBound) -> None:
        self._box, self._backend, self._wait = box, backend, wait
        self._rank, self._size, self._turn = rank, size, 0
        self.ends: list[str] = []

    def _meet(self, array: Any) -> list[Any]:
        box, since = self._box, time.monotonic()
        self._turn += 1
        with box.changed:
            turn = box.turns.setdefault(self._turn, {})
            turn[self._rank] = self._backend.to_numpy(array)
            box.changed.notify_all()
            while len(turn) < self._size:
                if box.aborted:
                    raise CommunicationError("another rank gave up")
                self._wait.check(since, "a GPU of this host")
                box.changed.wait(0.02)
            return [turn[rank] for rank in range(self._size)]

    def all_reduce(self, array: Any) -> Any:
        first, *others = self._meet(array)
        total = first.copy()
        for other in others:
            total += other
        return self._backend.to_device(total)

    def broadcast(self, array: Any, root: int) -> Any:
        return self._backend.to_device(self._meet(array)[root])

    def abort(self) -> None:
        with self._box.changed:
            self._box.aborted = True
            self._box.changed.notify_all()
        self.ends.append("abort")

    def close(self) -> None:
        self.ends.append("close")


class _Ranks:
    """Communicators of one fit, by rank."""

    def __init__(
        self,
        places: list[DevicePlace],
        wait: WaitBound,
        fails: int | None = None,
        no_name: bool = False,
    ) -> None:
        # Imported here, so that tests of the choice need no stand-in for a device.
        from tests.strict_backend import StrictBackend

        self.backend = StrictBackend()
        self._pool = ThreadPoolExecutor(len(places))
        self._boxes: dict[bytes, _Box] = {}
        self._lock = threading.Lock()
        self.groups: dict[int, _BoxGroup] = {}
        listeners = [PeerListener(HOST, CREDENTIALS) for _ in places]
        endpoints = [listener.endpoint for listener in listeners]

        def meet(number: int) -> DeviceCommunicator:
            peers = PeerGroup(number, endpoints, listeners[number], CREDENTIALS, wait)

            def make(rank: int, size: int, identifier: bytes, wait: WaitBound) -> _BoxGroup:
                if number == fails:
                    raise CommunicationError("NCCL failed: /dev/shm is full")
                with self._lock:
                    box = self._boxes.setdefault(identifier, _Box())
                self.groups[number] = _BoxGroup(box, self.backend, rank, size, wait)
                return self.groups[number]

            def identify() -> bytes:
                if no_name:
                    raise CommunicationError("NCCL failed: no network interface")
                return f"of rank {number}".encode()

            place = places[number]
            return make_device_communicator(
                peers, peers.make_subgroup, self.backend, wait, place, identify, make
            )

        self.communicators = list(self._pool.map(meet, range(len(places))))

    def each(self, act: Callable[[DeviceCommunicator], Any]) -> list[Any]:
        return list(self._pool.map(act, self.communicators))

    def close(self) -> None:
        for communicator in self.communicators:
            communicator.close()
        self._pool.shutdown()


@pytest.fixture
def ranks() -> Iterator[Callable[..., _Ranks]]:
    pytest.importorskip("array_api_strict")
    started: list[_Ranks] = []

    def make(places: list[DevicePlace], wait: WaitBound | None = None, **options: Any) -> _Ranks:
        started.append(_Ranks(places, wait or WaitBound(20), **options))
        return started[-1]

    yield make
    for each in started:
        each.close()


def _draw(rank: int, n: int = 1000) -> Any:
    return np.random.default_rng(rank).normal(size=(n, 2)).astype(np.float32)


LAYOUTS = {
    "two boxes of two": (FOUR, lambda a: (a[0] + a[1]) + (a[2] + a[3])),
    "in turns": ([FOUR[i] for i in (0, 2, 1, 3)], lambda a: (a[0] + a[2]) + (a[1] + a[3])),
    "two and one": (FOUR[:3], lambda a: (a[0] + a[1]) + a[2]),
    "one box": (
        [DevicePlace("a", str(i), 22809) for i in range(3)],
        lambda a: (a[0] + a[1]) + a[2],
    ),
    "no NCCL": ([DevicePlace(p.host, p.gpu) for p in FOUR], lambda a: a[0] + a[1] + a[2] + a[3]),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_sums_are_in_the_order_of_the_levels_bit_for_bit(
    ranks: Callable[..., _Ranks], layout: str
) -> None:
    places, add = LAYOUTS[layout]
    four = ranks(places)
    for _ in range(2):  # twice: successive rounds must not interfere
        totals = four.each(lambda c: c.allreduce(four.backend.to_device(_draw(c.rank))))
        expected = add([_draw(rank) for rank in range(len(places))])
        for total in totals:  # to_numpy refuses arrays that are not on the device
            np.testing.assert_array_equal(four.backend.to_numpy(total), expected)
    # Only the first ranks of hosts exchange data; without NCCL all ranks do.
    n_received = {"one box": 0, "no NCCL": 3}.get(layout, 1)
    assert four.communicators[0].bytes_sent == 2 * n_received * _draw(0).nbytes


def test_numpy_arrays_and_gathers_use_the_host_communicator(ranks: Callable[..., _Ranks]) -> None:
    four = ranks(FOUR)
    for total in four.each(lambda c: c.allreduce(np.full(3, c.rank))):
        np.testing.assert_array_equal(total, [6, 6, 6])

    def gather(c: DeviceCommunicator) -> list[list[Any]]:
        return c.allgather([np.array([c.rank]), four.backend.to_device(_draw(c.rank, c.rank))])

    for gathered in four.each(gather):
        for rank, (number, part) in enumerate(gathered):
            assert number == rank
            np.testing.assert_array_equal(part, _draw(rank, rank))
    data = four.each(lambda c: c.broadcast_bytes([b"from ", b"the first"]))
    assert [received.tobytes() for received in data] == [b"", *[b"from the first"] * 3]


def test_closing_closes_every_group(ranks: Callable[..., _Ranks]) -> None:
    four = ranks(FOUR)
    four.close()
    assert [group.ends for group in four.groups.values()] == [["close"]] * 4


@pytest.mark.parametrize("failing", [{"fails": 3}, {"no_name": True}])
def test_no_rank_uses_nccl_if_one_cannot(
    ranks: Callable[..., _Ranks], failing: dict[str, Any]
) -> None:
    four = ranks(FOUR, **failing)
    assert all("NCCL failed" in c.route.problem for c in four.communicators)
    totals = four.each(lambda c: c.allreduce(four.backend.to_device(_draw(c.rank))))
    for total in totals:
        np.testing.assert_array_equal(
            four.backend.to_numpy(total), four.backend.to_numpy(totals[0])
        )
    assert all(group.ends == ["abort"] for group in four.groups.values())


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (WaitBound(0.5), WaitTimeoutError),
        (WaitBound(110, is_aborted=lambda: _over.is_set()), RunAbortedError),
        (WaitBound(110, is_renewed=lambda: _over.is_set()), GenerationError),
    ],
)
def test_a_missing_rank_times_out_the_others(
    ranks: Callable[..., _Ranks], wait: WaitBound, error: type[Exception]
) -> None:
    """The first rank to notice aborts; no rank waits longer than the timeout at any level."""
    _over.clear()
    four = ranks(FOUR, wait)

    def act(c: DeviceCommunicator) -> BaseException | None:
        if c.rank == 1:
            return None
        try:
            c.allreduce(four.backend.to_device(_draw(c.rank)))
        except Exception as caught:
            return caught
        raise AssertionError("a sum without rank 1")

    since = time.monotonic()
    timer = threading.Timer(0.3, _over.set)
    timer.start()
    caught = [error for error in four.each(act) if error is not None]
    timer.join()
    assert time.monotonic() - since < 55
    assert len(caught) == 3
    assert any(isinstance(e, error) for e in caught)
    assert all(isinstance(e, error | CommunicationError) for e in caught)
    if error is WaitTimeoutError:
        assert any("Check the workers' logs" in str(e) for e in caught)
    for rank in (0, 2, 3):
        assert four.groups[rank].ends[0] == "abort"


_over = threading.Event()
