"""What moving arrays costs: all-reduce and push and pull, by sockets, shared memory and gloo."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing as mp
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import _transport_peers as peers
from benchmarks._common import markdown

#: Elements (float32) and repetitions: 112 bytes, then 1 KB to 16 MB.
PLAN: peers.Plan = [
    (28, 2000),
    (1 << 8, 2000),
    (1 << 12, 1000),
    (1 << 16, 200),
    (1 << 18, 100),
    (1 << 20, 30),
    (1 << 22, 10),
]
#: The sizes that are pushed and pulled.
PUSHED = [28, 1 << 12, 1 << 18]


@contextlib.contextmanager
def _processes(
    target: Callable[..., None], *arguments: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Processes of one function, each with a pipe to it."""
    # Forked from a process that has imported everything once, and has no threads.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks._transport_peers"])
    started, pipes = [], []
    for own in arguments:
        pipe, other = context.Pipe()
        started.append(context.Process(target=target, args=(*own, other), daemon=True))
        started[-1].start()
        pipes.append(pipe)
    yield tuple(pipes)
    for process in started:
        process.join(timeout=10)


def both_ranks(target: Callable[..., None], *arguments: Any) -> list[float]:
    """What rank 0 measured."""
    with _processes(target, (0, *arguments), (1, *arguments)) as pipes:
        ports = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(ports)
        taken: list[list[float]] = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send("end")
    return taken[0]


def _exchanges(shared: bool, plan: peers.Plan) -> list[float]:
    """Pushes and pulls a second of two trainers of one server, in all."""
    rates = []
    sizes = [n for n, _ in plan]
    with (
        _processes(peers.server, (shared, sizes)) as (server,),
        _processes(peers.trainer, (0, shared, plan), (1, shared, plan)) as trainers,
    ):
        for _, times in plan:
            port = server.recv()
            for pipe in trainers:
                pipe.send(port)
            rates.append(statistics.median(_rate(trainers, times) for _ in range(peers.REPEATS)))
            server.send("next")
    return rates


def _rate(trainers: tuple[Any, ...], times: int) -> float:
    for pipe in trainers:
        pipe.recv()
    for pipe in trainers:
        pipe.send("go")
    return float(sum(times / pipe.recv() for pipe in trainers))


def _gloo(plan: peers.Plan) -> list[float] | None:
    if importlib.util.find_spec("torch") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return both_ranks(peers.gloo_rank, f"{folder}/meeting", plan)


def _size(n: int) -> str:
    size = 4 * n
    for unit, digits in (("MB", 20), ("KB", 10)):
        if size >= 1 << digits:
            return f"{size >> digits} {unit}"
    return f"{size} B"


def run(tiny: bool = False) -> str:
    """Three tables."""
    plan = [(n, 3) for n, _ in PLAN[:1]] if tiny else PLAN
    pushed = [(n, 3 if tiny else times) for n, times in plan if n in PUSHED]
    copies = peers.copies(plan)
    shared = both_ranks(peers.allreduce_rank, True, plan)
    sockets = both_ranks(peers.allreduce_rank, False, plan)
    gloo = _gloo(plan)
    rows = []
    for i, (n, _) in enumerate(plan):
        peer = ["not installed", ""] if gloo is None else [_us(gloo[i]), _ratio(gloo[i], shared[i])]
        rows.append([_size(n), _us(shared[i]), _us(sockets[i]), *peer, _us(copies[i])])
    columns = ["bytes", "shared memory", "sockets", "PyTorch gloo", "gloo / ours", "one copy"]
    reduced = markdown("All-reduce of float32, 2 processes, us, medians of 5", columns, rows)

    by_memory, by_socket = _exchanges(True, pushed), _exchanges(False, pushed)
    rows = [
        [_size(n), f"{a:,.0f}", f"{b:,.0f}"]
        for (n, _), a, b in zip(pushed, by_memory, by_socket, strict=True)
    ]
    title = "Push and pull under async: 2 trainers, 1 server process (SGD), exchanges/s in all"
    exchanged = markdown(title, ["bytes", "shared memory", "sockets"], rows)

    times = 3 if tiny else 3000
    ways = [both_ranks(peers.echo, shared, times)[0] for shared in (True, False)]
    title = "One way of 8 bytes, half of there and back, 2 processes, us"
    latency = markdown(title, ["shared memory", "sockets"], [[_us(way) for way in ways]])
    return "\n\n".join([reduced, exchanged, latency])


def _us(value: float) -> str:
    return f"{value:,.1f}"


def _ratio(peer: float, own: float) -> str:
    return f"{peer / own:.1f}"
