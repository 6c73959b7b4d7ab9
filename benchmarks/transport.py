"""Cost of moving arrays: all-reduce, push and pull, by sockets, shared memory, gloo and MPI.

MPI is measured if mpi4py and ``mpirun`` are installed (``apt-get install openmpi-bin
libopenmpi-dev``, ``pip install mpi4py``), gloo if PyTorch is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing as mp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import _transport_peers as peers
from benchmarks._common import markdown

#: Numbers of elements (float32) and repetitions: 112 bytes, then 1 KB to 64 MB.
PLAN: peers.Plan = [
    (28, 300),
    (1 << 8, 300),
    (1 << 12, 200),
    (1 << 16, 100),
    (1 << 18, 50),
    (1 << 20, 20),
    (1 << 22, 6),
    (1 << 24, 2),
]
#: Numbers of ranks in the tables of all-reduces: with more ranks than cores, some wait for a core.
RANKS = (2, 4)
#: Open MPI's transports between processes of a host: its own choice, and TCP, as between hosts.
MPI_WAYS: dict[str, list[str]] = {
    "Open MPI": [],
    "Open MPI by TCP": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"],
}
#: Numbers of elements that are pushed and pulled.
PUSHED = [28, 1 << 12, 1 << 18]


@contextlib.contextmanager
def _processes(
    target: Callable[..., None], *arguments: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Start processes that run one function, each with a pipe to it."""
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


def all_ranks(size: int, target: Callable[..., None], *arguments: Any) -> list[float]:
    """Return the measurements of rank 0 of `size` processes."""
    with _processes(target, *((rank, *arguments) for rank in range(size))) as pipes:
        ports = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(ports)
        taken: list[list[float]] = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send("end")
    return taken[0]


def _exchanges(shared: bool, plan: peers.Plan) -> list[float]:
    """Return pushes and pulls per second of two trainers of one server, in total."""
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


def _gloo(size: int, plan: peers.Plan) -> list[float] | None:
    if importlib.util.find_spec("torch") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return all_ranks(size, peers.gloo_rank, f"{folder}/meeting", size, plan)


def _mpi(size: int, plan: peers.Plan, way: list[str]) -> list[float] | None:
    """Return the same for MPI; None if it is not installed."""
    mpirun = shutil.which("mpirun")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        return None
    # With more ranks than cores, waiting ranks of Open MPI yield their core.
    command = [mpirun, "-n", str(size), "--oversubscribe", *way]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command += [sys.executable, "-m", "benchmarks._transport_mpi", json.dumps(plan)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if said.returncode:
        raise RuntimeError(f"mpirun failed: {said.stderr[-2000:]}")
    found: list[float] = json.loads(said.stdout.splitlines()[-1])
    return found


def _size(n: int) -> str:
    size = 4 * n
    for unit, digits in (("MB", 20), ("KB", 10)):
        if size >= 1 << digits:
            return f"{size >> digits} {unit}"
    return f"{size} B"


def run(tiny: bool = False) -> str:
    """Return tables of all-reduces by number of ranks, of pushes and pulls, and of latencies."""
    plan = [(n, 3) for n, _ in PLAN[:1]] if tiny else PLAN
    pushed = [(n, 3 if tiny else times) for n, times in plan if n in PUSHED]
    copies = peers.copies(plan)
    tables = [_allreduces(size, plan, copies) for size in (RANKS[:1] if tiny else RANKS)]

    by_memory, by_socket = _exchanges(True, pushed), _exchanges(False, pushed)
    rows = [
        [_size(n), f"{a:,.0f}", f"{b:,.0f}"]
        for (n, _), a, b in zip(pushed, by_memory, by_socket, strict=True)
    ]
    title = "Push and pull under async: 2 trainers, 1 server process (SGD), total exchanges/s"
    exchanged = markdown(title, ["bytes", "shared memory", "sockets"], rows)

    times = 3 if tiny else 3000
    ways = [all_ranks(2, peers.echo, shared, times)[0] for shared in (True, False)]
    title = "One-way latency of 8 bytes (half a round trip), 2 processes, us"
    latency = markdown(title, ["shared memory", "sockets"], [[_us(way) for way in ways]])
    return "\n\n".join([*tables, exchanged, latency])


def _allreduces(size: int, plan: peers.Plan, copies: list[float]) -> str:
    """Return an all-reduce's microseconds for ours and each peer, and the peers' ratios to ours."""
    if size > (os.cpu_count() or 1):  # ranks that wait for a core take milliseconds
        plan = [(n, max(times // 10, 2)) for n, times in plan]
    columns: dict[str, list[float] | None] = {
        "shared memory": all_ranks(size, peers.allreduce_rank, True, plan),
        "sockets": all_ranks(size, peers.allreduce_rank, False, plan),
        "PyTorch gloo": _gloo(size, plan),
        **{name: _mpi(size, plan, way) for name, way in MPI_WAYS.items()},
    }
    found = {name: taken for name, taken in columns.items() if taken is not None}
    own = found["shared memory"]
    others = {
        name: taken for name, taken in found.items() if name not in ("shared memory", "sockets")
    }
    rows = []
    for i, (n, _) in enumerate(plan):
        cells = [
            _us(taken[i]) if taken is not None else "not installed" for taken in columns.values()
        ]
        ratios = [_ratio(taken[i], own[i]) for taken in others.values()]
        rows.append([_size(n), *cells, *ratios, _us(copies[i])])
    head = ["bytes", *columns, *(f"{name} / shared memory" for name in others), "memory copy"]
    title = f"All-reduce of float32, {size} processes, us, medians of {peers.REPEATS}"
    return markdown(title, head, rows)


def _us(value: float) -> str:
    return f"{value:,.1f}"


def _ratio(peer: float, own: float) -> str:
    return f"{peer / own:.1f}" if peer > own else f"{peer / own:.2f}"
