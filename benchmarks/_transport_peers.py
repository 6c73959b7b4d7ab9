"""Processes of benchmarks/transport.py: ranks, trainers, a server, gloo."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import ConnectionSettings, Endpoint, WaitBound
from daskml_dist.comm.choosing_communicators import choose_communicator
from daskml_dist.comm.listener import Channel, Credentials, Listener, call_listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import RemoteConnection, serve_connection
from daskml_dist.comm.socket_group import PeerGroup, PeerListener
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous
from daskml_dist.ps.messages import ServerRequest
from daskml_dist.ps.rule import ParameterGroup, UpdateRule
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant

HOST, SECRET = "127.0.0.1", b"s" * 32
#: Number of repetitions, whose median counts.
REPEATS = 5

#: For each array: its number of elements, and how often it is moved in a repetition.
Plan = list[tuple[int, int]]


def microseconds(act: Callable[[], Any], times: int) -> float:
    """Return the median over repetitions of the mean time of `act`, after calls to warm up."""
    for _ in range(5):
        act()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            act()
        taken.append((time.perf_counter() - start) / times * 1e6)
    return statistics.median(taken)


def copies(plan: Plan) -> list[float]:
    """Return the microseconds to copy arrays in this process."""
    taken = []
    for n, times in plan:
        array, other = np.zeros(n, np.float32), np.zeros(n, np.float32)
        taken.append(microseconds(partial(np.copyto, other, array), times))
    return taken


def allreduce_rank(
    rank: int,
    shared: bool,
    plan: Plan,
    pipe: Any,
    hosts: list[str] | None = None,
    pause: float = 0.0,
) -> None:
    """Sum float32 arrays with other processes; with several hosts, each rank has one.

    Before each sum a rank is busy with other work for `pause` seconds, which are not counted.
    """
    credentials = Credentials(SECRET, settings=ConnectionSettings(shared))
    listener = PeerListener(HOST if hosts is None else hosts[rank], credentials)
    pipe.send(listener.endpoint.port)
    ports = pipe.recv()
    places = zip(hosts or [HOST] * len(ports), ports, strict=True)
    endpoints = [Endpoint("", host, port) for host, port in places]
    peers = PeerGroup(rank, endpoints, listener, credentials, WaitBound(60))
    group = choose_communicator(peers, WaitBound(60), shared)

    def add(array: NDArray[np.float32]) -> None:
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        group.allreduce(array)

    taken = []
    for n, times in plan:
        taken.append(microseconds(partial(add, np.zeros(n, np.float32)), times) - pause * 1e6)
    pipe.send(taken)
    pipe.recv()
    group.close()


def gloo_rank(rank: int, meeting: str, size: int, plan: Plan, pipe: Any) -> None:
    """Measure the same with PyTorch."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size
    )
    pipe.send(0)
    pipe.recv()
    taken = []
    for n, times in plan:
        act = partial(torch.distributed.all_reduce, torch.zeros(n))
        taken.append(microseconds(act, times))
    torch.distributed.destroy_process_group()
    pipe.send(taken)


def echo(rank: int, shared: bool, times: int, pipe: Any) -> None:
    """Send 8 bytes back and forth; report the microseconds of one way."""
    credentials = Credentials(SECRET, settings=ConnectionSettings(shared))
    pairs: queue.SimpleQueue[tuple[Channel, Channel]] = queue.SimpleQueue()
    listener = Listener(HOST, credentials, on_pair=lambda *pair: pairs.put(pair))
    pipe.send(listener.port)
    port = pipe.recv()[0]
    if rank == 0:
        source, sink = pairs.get(timeout=60)
    else:
        sink, source = call_listener(Endpoint("", HOST, port), credentials)
    inbox, outbox = source.open_inbox(WaitBound(60)), sink.open_outbox(WaitBound(60))
    data = memoryview(bytearray(8))

    def turn() -> None:
        if rank == 0:
            outbox.send([data])
        inbox.read_into(data)
        if rank == 1:
            outbox.send([data])

    pipe.send([microseconds(turn, times) / 2])
    pipe.recv()
    listener.close()


def server(shared: bool, sizes: list[int], pipe: Any) -> None:
    """Serve shards of float32 under plain SGD, one size after the other."""
    for n in sizes:
        group = ParameterGroup(0, n, get_optimizer("sgd"), Penalty(0, 0), n)
        rule = UpdateRule((group,), Constant(0.1), 1.0)
        shard = Shard(rule, ShardState(np.zeros((n, 1), np.float32), {}))
        state = ShardServer(Asynchronous(), [0, 1], shard, None, 2)
        answer = partial(serve_connection, state, bounds=MessageBounds("float32", n, 1, 2))
        listener = Listener(
            HOST, Credentials(SECRET, settings=ConnectionSettings(shared)), on_pair=answer
        )
        pipe.send(listener.port)
        pipe.recv()
        listener.close()


def trainer(lane: int, shared: bool, plan: Plan, pipe: Any) -> None:
    """Push and pull; report the seconds of each repetition."""
    for n, times in plan:
        endpoint = Endpoint("", HOST, pipe.recv())
        credentials = Credentials(SECRET, settings=ConnectionSettings(shared))
        connection = RemoteConnection(
            endpoint, credentials, WaitBound(60), MessageBounds("float32", n, 1, 2)
        )
        gradient, clock, version = np.zeros((n, 1), np.float32), 0, 0
        for _ in range(REPEATS):
            pipe.send("ready")
            pipe.recv()
            start = time.perf_counter()
            for _ in range(times):
                clock += 1
                connection.send(ServerRequest((lane,), 0, clock, version, 1.0, gradient))
                version = connection.receive(lane).version
            pipe.send(time.perf_counter() - start)
        connection.close()
