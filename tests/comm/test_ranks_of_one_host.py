"""Ranks of one host that communicate only through shared memory, without sockets."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.comm.choosing_communicators import OneHostSetup
from daskml_dist.comm.shared_memory import ProcessLife
from daskml_dist.errors import CommunicationError, MessageError
from daskml_dist.ps.server import WaitingCallers

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has it")


class _Server:
    """Stand-in for the server that exchanges the messages of all ranks."""

    def __init__(self, n_ranks: int) -> None:
        self._said: list[Any] = [None] * n_ranks
        self._all = threading.Barrier(n_ranks)
        self.turns = 0

    def tell(self, rank: int, words: Any) -> list[Any]:
        self._said[rank] = words
        if self._all.wait(10) == 0:
            self.turns += 1
        messages = list(self._said)
        self._all.wait(10)
        return messages


def _meet(
    allowed: list[bool], say: Callable[[int, list[Any]], Any] = lambda _, place: place
) -> tuple[list[Any], int]:
    """Return the groups of the ranks, or errors, and the number of exchanges."""
    server, hosts = _Server(len(allowed)), [OneHostSetup(each) for each in allowed]

    def meet(rank: int) -> Any:
        def tell(words: Any) -> list[Any]:
            return server.tell(rank, words)

        places = tell(say(rank, hosts[rank].memory_handle))
        try:
            return hosts[rank].group(rank, places, tell, WaitBound(20))
        except MessageError as error:
            return error

    with ThreadPoolExecutor(len(allowed)) as pool:
        groups = list(pool.map(meet, range(len(allowed))))
    for host in hosts:
        host.close()
    return groups, server.turns


@pytest.mark.parametrize("n_ranks", [2, 5])
def test_all_ranks_share_memory_after_two_exchanges(n_ranks: int) -> None:
    groups, turns = _meet([True] * n_ranks)
    assert turns == 2

    def run(group: Communicator) -> Any:
        return group.allreduce(np.arange(7.0) + group.rank)

    with ThreadPoolExecutor(n_ranks) as pool:
        for total in pool.map(run, groups):
            np.testing.assert_array_equal(total, sum(np.arange(7.0) + r for r in range(n_ranks)))
    groups[0].close()
    with pytest.raises(CommunicationError, match="Lost the connection"):
        groups[1].allreduce(np.ones(5))
    for group in groups:
        group.close()


def _elsewhere(rank: int, place: list[Any]) -> Any:
    return [place[0] + rank, *place[1:]]


def _false(rank: int, place: list[Any]) -> Any:
    return [*place[:4], "f" * 64] if rank == 1 else place


def _gone(rank: int, place: list[Any]) -> Any:
    return [place[0], 2**22 + 1, *place[2:]] if rank == 1 else place


@pytest.mark.parametrize(
    ("allowed", "say", "turns"),
    [
        ([True, False, True], lambda _, place: place, 1),
        ([True, True], _elsewhere, 1),
        ([True, True], _false, 2),
        ([True, True, True], _gone, 2),
    ],
    ids=["one may not", "two hosts", "another's memory", "no such process"],
)
def test_shared_memory_is_used_by_all_ranks_or_none(
    allowed: list[bool], say: Callable[[int, list[Any]], Any], turns: int
) -> None:
    assert _meet(allowed, say) == ([None] * len(allowed), turns)


@pytest.mark.parametrize("words", [7, "place", [1, 2, 3], [1, 2, 3, 4, 5], [True, 1, 2, 3, "t"]])
def test_invalid_rendezvous_messages_are_refused(words: Any) -> None:
    groups, _ = _meet([True, True], lambda rank, place: words if rank else place)
    assert [type(error) for error in groups] == [MessageError] * 2


@pytest.fixture
def many_open() -> Iterator[None]:
    """Occupy descriptors below 1,024, so that later ones exceed the limit of `select`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        while stack.enter_context(Path(os.devnull).open()).fileno() <= 1024:
            pass
        yield


@pytest.mark.usefixtures("many_open")
def test_a_killed_process_is_detected() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        life = ProcessLife(process.pid)
        assert not life.has_ended()
        process.kill()
        process.wait(10)
        assert life.has_ended()
    with pytest.raises(ProcessLookupError):
        ProcessLife(2**22 + 1)


def test_the_rendezvous_can_be_repeated() -> None:
    callers, answers = WaitingCallers(), []
    for turn in range(3):
        for rank in (1, 0):
            for answer in callers.add_arrival(rank, [turn, rank], answers.append, 2):
                answer()
        assert [answer["peers"] for answer in answers] == [[[turn, 0], [turn, 1]]] * 2
        answers.clear()
