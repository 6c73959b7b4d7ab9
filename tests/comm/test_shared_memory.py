"""Shared memory between processes of one host: transfer, detection of closed peers, cleanup."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.comm import shared_memory
from daskml_dist.comm.base import Communicator, ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.channels import (
    RING_BYTES,
    RingInbox,
    RingOffer,
    RingOutbox,
    accept_ring_offer,
)
from daskml_dist.comm.choosing_communicators import ASLEEP_WORD, SharedGroup, TwoLevelGroup
from daskml_dist.comm.listener import Credentials, Listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import RemoteConnection, serve_connection
from daskml_dist.comm.shared_memory import SharedSegment, WakePipe
from daskml_dist.comm.socket_group import PeerGroup
from daskml_dist.errors import CommunicationError, GenerationError, RunAbortedError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.messages import ServerRequest
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant
from tests.comm.attacks.served import until
from tests.comm.ranks import PATIENCE, Ranks
from tests.rules import one_group

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")
HOST, SECRET = "127.0.0.1", b"s" * 32

Boxes = tuple[RingOutbox, RingInbox]


@pytest.fixture
def boxes() -> Iterator[Callable[..., Boxes]]:
    """Return a function that makes both ends of a ring."""
    sockets: list[socket.socket] = []

    def make(send_wait: WaitBound | None = None, read_wait: WaitBound | None = None) -> Boxes:
        one, other = socket.socketpair()
        sockets.extend([one, other])
        offer = RingOffer(allowed=True)
        found, answer = accept_ring_offer(offer.data, allowed=True)
        ring = offer.accept_answer(answer)
        assert ring is not None
        assert found is not None
        outbox = RingOutbox(one, send_wait or WaitBound(20), ring)
        return outbox, RingInbox(other, read_wait or WaitBound(20), found)

    yield make
    for sock in sockets:
        sock.close()


def test_frames_of_any_size_arrive_whole(boxes: Callable[..., Boxes]) -> None:
    outbox, inbox = boxes()
    rng = np.random.default_rng(0)
    sizes = [1, 7, 4096, RING_BYTES // 3, RING_BYTES, 2 * RING_BYTES + 5, 0, 100_001, 3]
    frames = [rng.integers(0, 256, size, np.uint8) for size in sizes]

    def send() -> None:
        for frame in frames:
            outbox.send([b"head", frame.data])

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        for frame in frames:
            head, got = bytearray(4), np.empty_like(frame)
            inbox.read_into(memoryview(head))
            inbox.read_into(got.data)
            assert head == b"head"
            np.testing.assert_array_equal(got, frame)
        sending.result()
    assert outbox.bytes_sent == inbox.received == sum(sizes) + 4 * len(sizes)


def test_closing_the_control_socket_closes_the_ring(boxes: Callable[..., Boxes]) -> None:
    outbox, inbox = boxes()
    outbox.send([b"last words"])
    outbox.close()
    got = bytearray(10)
    inbox.read_into(memoryview(got))
    assert got == b"last words"
    with pytest.raises(CommunicationError, match="Lost the connection"):
        inbox.read_into(memoryview(got))


def test_a_writer_detects_a_closed_reader(boxes: Callable[..., Boxes]) -> None:
    outbox, inbox = boxes()
    inbox.close()
    with pytest.raises(CommunicationError, match="Lost the connection"):
        outbox.send([bytes(RING_BYTES + 1)])


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (WaitBound(20, is_aborted=lambda: True), RunAbortedError),
        (WaitBound(20, is_renewed=lambda: True), GenerationError),
    ],
)
def test_waits_time_out(
    boxes: Callable[..., Boxes], wait: WaitBound, error: type[Exception]
) -> None:
    _, inbox = boxes(read_wait=wait)
    with pytest.raises(error):
        inbox.read_into(memoryview(bytearray(1)))
    outbox, _ = boxes(send_wait=wait)
    with pytest.raises(error):
        outbox.send([bytes(RING_BYTES + 1)])


def _answer_to(offer: RingOffer, **_: Any) -> bytes:
    ring, answer = accept_ring_offer(offer.data, allowed=True)
    assert ring is None
    return answer


def test_another_network_namespace_is_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = RingOffer(allowed=True)
    monkeypatch.setattr("daskml_dist.comm.channels.identify_machine", lambda: 1)
    assert offer.accept_answer(_answer_to(offer)) is None


def test_memory_that_others_could_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory.os, "fchmod", lambda descriptor, mode: None)
    offer = RingOffer(allowed=True)
    assert offer.accept_answer(_answer_to(offer)) is None


def test_another_object_with_the_same_descriptor_is_refused() -> None:
    offer = RingOffer(allowed=True)
    # The last 32 bytes are the token's digest.
    offer.data = offer.data[:-32] + bytes(32)
    assert offer.accept_answer(_answer_to(offer)) is None


def test_a_wrong_proof_closes_the_connection() -> None:
    with pytest.raises(ConnectionError, match="wrong answer"):
        RingOffer(allowed=True).accept_answer(b"x" * RingOffer.ANSWER)


@pytest.mark.parametrize("caller", [True, False])
@pytest.mark.parametrize("listening", [True, False])
def test_exchange_is_the_same_with_and_without_rings(caller: bool, listening: bool) -> None:
    """Rings are used if both sides allow them; the byte counts are the same."""
    rule = one_group(get_optimizer("sgd"), Constant(1.0), Penalty(0, 0), 5, 1.0)
    shard = Shard(rule, ShardState(np.zeros((5, 1)), {}))
    server = ShardServer(Asynchronous(), [0], shard, None, 1)
    bounds = MessageBounds("float64", 5, 1, 1)
    answer = partial(serve_connection, server, bounds=bounds)
    listener = Listener(
        HOST, Credentials(SECRET, settings=ConnectionSettings(listening)), on_pair=answer
    )
    endpoint = Endpoint("", HOST, listener.port)
    credentials = Credentials(SECRET, settings=ConnectionSettings(caller))
    connection = RemoteConnection(endpoint, credentials, WaitBound(20), bounds)
    try:
        assert isinstance(connection._in, RingInbox) == (caller and listening)
        connection.send(ServerRequest((0,), 0, 1, rows=2.0, values=np.full((5, 1), 4.0)))
        np.testing.assert_array_equal(connection.receive(0).values, np.full((5, 1), -2.0))
        assert connection.call("leave", {"generation": 0, "lanes": [0]})["status"] == 0
        assert connection.bytes_pushed > 40
        assert connection.bytes_pulled > 40
    finally:
        connection.close()
        listener.close()


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "sockets"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_allreduce_gives_the_sum_with_the_same_bits_on_all_ranks(
    ranks: Callable[..., Ranks], size: int, shared: bool
) -> None:
    some = ranks(*[shared] * size)
    assert all(isinstance(group, SharedGroup) == shared for group in some.groups)
    rng = np.random.default_rng(1)
    for dtype in ("float32", "float64"):
        for shape in [(1,), (28, 1), (0, 3), (9_001,), (70_003, 2), (300_000,)]:
            parts = rng.normal(size=(size, *shape)).astype(dtype)
            sums = some.each(lambda group, parts=parts: group.allreduce(parts[group.rank].copy()))
            for total in sums:
                assert total.dtype == dtype
                np.testing.assert_array_equal(total, sums[0])
            truth = parts.astype("float64").sum(axis=0)
            np.testing.assert_allclose(sums[0], truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "sockets"])
def test_allgather_returns_all_arrays_on_all_ranks(
    ranks: Callable[..., Ranks], shared: bool
) -> None:
    some = ranks(*[shared] * 3)

    def arrays(rank: int) -> list[Any]:
        return [
            np.arange(rank),
            np.full((rank, 2), 0.5, np.float32),
            np.arange(100_000 * rank, dtype=np.float64).reshape(-1, 2),
        ][: rank + 1]

    for _ in range(3):
        for gathered in some.each(lambda group: group.allgather(arrays(group.rank))):
            for rank, got in enumerate(gathered):
                for one, truth in zip(got, arrays(rank), strict=True):
                    assert one.dtype == truth.dtype
                    np.testing.assert_array_equal(one, truth)


def test_memory_is_not_overwritten_while_another_rank_reads(ranks: Callable[..., Ranks]) -> None:
    """Many rounds of changing sizes, with one rank late from time to time."""
    some = ranks(True, True, True)
    late = threading.Event()

    def run(group: Communicator) -> list[float]:
        rng = np.random.default_rng(2)
        sums = []
        for turn in range(300):
            n = int(rng.integers(1, 20_000))
            if turn % 3 == group.rank:
                late.wait(1e-4)
            sums.append(np.unique(group.allreduce(np.full(n, float(turn + group.rank)))).tolist())
        return sums

    truth = [[3.0 * turn + 3.0] for turn in range(300)]
    assert some.each(run) == [truth] * 3


@pytest.mark.parametrize(
    ("allowed", "hosts"),
    [([True, False, True], [1, 1, 1]), ([True] * 5, [1, 2, 1, 3, 2])],
    ids=["one may not", "three hosts"],
)
def test_several_hosts_have_the_same_bits(
    ranks: Callable[..., Ranks], allowed: list[bool], hosts: list[int]
) -> None:
    some = ranks(*allowed, hosts=hosts)
    assert all(isinstance(group, TwoLevelGroup) for group in some.groups)
    rng = np.random.default_rng(3)
    for n in (28, 200_001):
        parts = rng.normal(size=(len(allowed), n))
        sums = some.each(lambda group, parts=parts: group.allreduce(parts[group.rank].copy()))
        for total in sums:
            np.testing.assert_array_equal(total, sums[0])
        np.testing.assert_allclose(sums[0], parts.sum(axis=0), rtol=1e-12, atol=1e-12)
    for _ in range(2):
        for gathered in some.each(
            lambda group: group.allgather([np.arange(group.rank), np.ones((2, 1), np.float32)])
        ):
            assert [len(arrays[0]) for arrays in gathered] == list(range(len(allowed)))
            assert [arrays[1].shape for arrays in gathered] == [(2, 1)] * len(allowed)


def test_no_memory_is_shared_if_disabled(ranks: Callable[..., Ranks]) -> None:
    some = ranks(False, False)
    assert all(isinstance(group, PeerGroup) for group in some.groups)
    some = ranks(True, True, hosts=[1, 2])
    assert all(isinstance(group, PeerGroup) for group in some.groups)


def test_a_rank_that_ends_raises_in_waiting_ranks(ranks: Callable[..., Ranks]) -> None:
    some = ranks(True, True)
    some.each(lambda group: group.allreduce(np.ones(5)))
    some.groups[1].close()
    with pytest.raises(CommunicationError, match="Lost the connection"):
        some.groups[0].allreduce(np.ones(5))


def test_the_last_sum_of_a_departed_rank_is_used(ranks: Callable[..., Ranks]) -> None:
    some = ranks(True, True)
    slow = threading.Event()

    def run(group: Communicator) -> Any:
        if group.rank == 1:
            slow.wait(0.05)
        total = group.allreduce(np.ones(5))
        group.close()
        return total

    for total in some.each(run):
        np.testing.assert_array_equal(total, np.full(5, 2.0))


def test_the_last_rank_wakes_each_waiting_rank_once(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[WakePipe] = []
    wake = WakePipe.wake
    monkeypatch.setattr(WakePipe, "wake", lambda pipe: (woken.append(pipe), wake(pipe)))
    *early, last = ranks(*[True] * 4).groups
    with ThreadPoolExecutor(4) as pool:
        sums = []
        for group in early:
            sums.append(pool.submit(group.allreduce, np.ones(5)))
            until(lambda group=group: group._own_words[ASLEEP_WORD])
        assert not woken
        sums.append(pool.submit(last.allreduce, np.ones(5)))
        for total in sums:
            np.testing.assert_array_equal(total.result(), np.full(5, 4.0))
    assert 0 < len(woken) == len(set(woken)) <= len(early)


def test_a_new_generation_ends_waits_of_a_group(ranks: Callable[..., Ranks]) -> None:
    renewed = threading.Event()
    some = ranks(True, True, wait=WaitBound(PATIENCE, is_renewed=renewed.is_set))
    renewed.set()
    with pytest.raises(GenerationError):
        some.groups[0].allreduce(np.ones(5))


# -- cleanup ---------------------------------------------------------------------------------------


def _descriptors() -> list[str]:
    """Return the open descriptors of this process."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def test_shared_memory_has_no_name_in_the_file_system() -> None:
    def named() -> set[str]:
        """Return names of this process only, since other processes use the folder too."""
        mapped = Path("/proc/self/maps").read_text().split()
        return {word for word in [*mapped, *_descriptors()] if word.startswith("/dev/shm/")}

    before = named()
    offer = RingOffer(allowed=True)
    assert any(offer.data)
    assert named() <= before
    offer.close()


def test_descriptors_are_closed(boxes: Callable[..., Boxes]) -> None:
    def count() -> int:
        """Count descriptors of segments and pipes only, since cluster threads open others."""
        gc.collect()
        ours = ("/memfd:daskml_dist", "pipe:")
        return sum(target.startswith(ours) for target in _descriptors())

    before = count()
    for _ in range(5):
        RingOffer(allowed=True).close()
        offer = RingOffer(allowed=True)
        found, answer = accept_ring_offer(offer.data, allowed=True)
        mapped = offer.accept_answer(answer)
        del offer, found, mapped
    until(lambda: count() <= before)


def test_a_segment_is_accessible_to_its_user_only() -> None:
    segment, descriptor = SharedSegment.allocate(100)
    try:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        found_segment = SharedSegment.find(os.getpid(), descriptor, 100)
        found_segment.data[7] = 42
        assert segment.data[7] == 42
        assert found_segment.token == segment.token
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 10)
        with pytest.raises(OSError, match="private segment"):
            SharedSegment.find(os.getpid(), descriptor, 200)
    finally:
        os.close(descriptor)


def test_only_memory_and_pipe_descriptors_are_accepted(tmp_path: Path) -> None:
    """A descriptor number may refer to any file; others must be neither mapped nor written."""
    file = tmp_path / "private"
    file.write_bytes(bytes(10_000))
    file.chmod(0o600)
    with file.open("r+b") as opened, pytest.raises(OSError):  # noqa: PT011 (the system's words)
        SharedSegment.find(os.getpid(), opened.fileno(), file.stat().st_size - 4096)
    with file.open("r+b") as opened, pytest.raises(OSError, match="no wake pipe"):
        WakePipe.find(os.getpid(), opened.fileno())
    unsealed = os.memfd_create("daskml_dist")
    try:
        os.fchmod(unsealed, 0o600)
        os.ftruncate(unsealed, 10_000)
        with pytest.raises(OSError, match="private segment"):
            SharedSegment.find(os.getpid(), unsealed, 10_000 - 4096)
    finally:
        os.close(unsealed)


# -- a fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["sync", "allreduce"])
def test_a_fit_is_the_same_without_shared_memory(client: Client, policy: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    y = (X @ rng.normal(size=6) > 0).astype(int)
    rows, labels = da.from_array(X, chunks=(100, 6)), da.from_array(y, chunks=100)
    fits = []
    for allowed in (True, False):
        with dask.config.set({"daskml_dist.shared_memory": allowed}):
            clf = SGDClassifier(policy=policy, batch_size=20, max_iter=3, tol=None, random_state=0)
            fits.append(clf.fit(rows, labels))
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
