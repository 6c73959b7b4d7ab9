"""What benchmarks/transport.py runs in processes of its own: ranks, trainers, a server, gloo."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.comm.allreduce import PeerGroup, PeerListener
from daskml_dist.comm.base import Endpoint, Wait
from daskml_dist.comm.listener import Credentials, Listener
from daskml_dist.comm.remote import RemoteConnection, serve
from daskml_dist.comm.shared_group import share_memory
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.messages import Request
from daskml_dist.ps.server import ParameterServer
from daskml_dist.ps.shard import Shard, ShardState, UpdateRule
from daskml_dist.schedules import Constant

HOST, SECRET = "127.0.0.1", b"s" * 32
#: Repetitions of which the median counts.
REPEATS = 5


def median_microseconds(act: Callable[[], Any], times: int) -> float:
    """Median over the repetitions of the mean time of `act`."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            act()
        taken.append((time.perf_counter() - start) / times * 1e6)
    return statistics.median(taken)


def allreduce_rank(
    rank: int, shared: bool, plan: list[tuple[int, int]], ports: Any, results: Any
) -> None:
    """Sum float32 arrays with another process; `plan`: (elements, times) each."""
    credentials = Credentials(SECRET, shared_memory=shared)
    listener = PeerListener(HOST, credentials)
    ports.send(listener.endpoint.port)
    endpoints = [Endpoint("", HOST, port) for port in ports.recv()]
    peers = PeerGroup(rank, endpoints, listener, credentials, Wait(60))
    group = share_memory(peers, Wait(60), shared)
    taken = []
    for n, times in plan:
        array = np.ones(n, np.float32)
        for _ in range(3):
            group.allreduce(array)
        taken.append(median_microseconds(partial(group.allreduce, array * 0), times))
    group.close()
    if rank == 0:
        results.send(taken)


def gloo_rank(rank: int, plan: list[tuple[int, int]], meeting: str, results: Any) -> None:
    """The same by PyTorch."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    taken = []
    for n, times in plan:
        array = torch.zeros(n)
        for _ in range(3):
            torch.distributed.all_reduce(array)
        taken.append(median_microseconds(partial(torch.distributed.all_reduce, array), times))
    torch.distributed.destroy_process_group()
    if rank == 0:
        results.send(taken)


def server(n: int, shared: bool, pipe: Any) -> None:
    """One shard of `n` float32 by plain SGD, until told to stop."""
    rule = UpdateRule(get_optimizer("sgd"), Constant(0.1), Penalty(0, 0), n, 1.0)
    shard = Shard(rule, ShardState(np.zeros((n, 1), np.float32), {}))
    state = ParameterServer(Asynchronous(), [0, 1], shard, None, 2)
    answer = partial(serve, state, dtype="float32", width=1)
    listener = Listener(HOST, Credentials(SECRET, shared_memory=shared), on_pair=answer)
    pipe.send(listener.port)
    pipe.recv()
    listener.close()


def trainer(lane: int, n: int, shared: bool, times: int, pipe: Any) -> None:
    """Push and pull `times` times; tells the seconds of each repetition."""
    endpoint = Endpoint("", HOST, pipe.recv())
    credentials = Credentials(SECRET, shared_memory=shared)
    connection = RemoteConnection(endpoint, credentials, Wait(60), "float32", 1)
    gradient, clock, version = np.zeros((n, 1), np.float32), 0, 0
    for _ in range(REPEATS):
        pipe.send("ready")
        pipe.recv()
        start = time.perf_counter()
        for _ in range(times):
            clock += 1
            connection.send(Request((lane,), 0, clock, version, 1.0, gradient))
            version = connection.receive(lane).version
        pipe.send(time.perf_counter() - start)
    connection.close()


def gloo_meeting() -> Any:
    """A file that gloo's ranks meet at."""
    return tempfile.TemporaryDirectory()
