"""A rank on a separate host: ``python -m benchmarks._host_ranks JSON``, which describes its task.

Ranks and the process that starts them exchange lines of JSON, over standard input and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks._hosts import HostNetwork

#: Limit in seconds for measuring all sizes in one way.
_TIMEOUT = 300.0
#: Number of attempts to start Open MPI.
_MPI_STARTS = 3


class LinePipe:
    """Pipe of JSON lines to the parent process, with the methods of a multiprocessing pipe."""

    def send(self, message: Any) -> None:
        """Send a line."""
        print(json.dumps(message), flush=True)

    put = send  # the method name of a queue

    def recv(self) -> Any:
        """Wait for a line."""
        return json.loads(sys.stdin.readline())


def all_hosts(network: HostNetwork, size: int, way: str, **settings: Any) -> Any:
    """Return the measurements of rank 0 of `size` ranks, each on a host."""
    hosts = network.hosts[:size]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ranks = []
        for rank, host in enumerate(hosts):
            said = {"way": way, "rank": rank, "size": size, "meeting": f"{folder}/meeting"}
            said |= {"hosts": [h.address for h in hosts], **settings}
            command = [sys.executable, "-m", "benchmarks._host_ranks", json.dumps(said)]
            process = subprocess.Popen(
                host.command(*command),
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        if way == "ddp":  # only rank 0 reports, at its end
            return _read(ranks[0])
        first = [_read(process) for process in ranks]
        for process in ranks:
            _write(process, first)  # the ports; for gloo's ranks, that all have started
        taken = [_read(process) for process in ranks]
        for process in ranks:
            if way == "sockets":  # ranks close only after all have measured
                _write(process, "end")
            process.wait(timeout=_TIMEOUT)
    return taken[0]


def mpi_on_hosts(network: HostNetwork, size: int, plan: list[tuple[int, int]]) -> list[float]:
    """Return the microseconds of MPI's all-reduces, with one rank on each host."""
    hosts = network.hosts[:size]
    with tempfile.TemporaryDirectory() as folder:
        # Open MPI starts its daemons with a remote shell; here a host is a namespace.
        agent = Path(folder) / "agent"
        cases = "".join(f"{h.address}) n={h.name};; " for h in hosts)
        agent.write_text(
            f'#!/bin/sh\ncase "$1" in {cases}esac\nshift\nexec ip netns exec $n sh -c "$*"\n'
        )
        agent.chmod(0o700)
        net = f"{network.head}/24"
        command = ["mpirun", "-n", str(size), "--host", ",".join(h.address for h in hosts)]
        command += ["--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent)]
        command += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        command += ["--mca", "btl_tcp_if_include", net, "--mca", "oob_tcp_if_include", net]
        # There are more ranks than cores, so waiting ranks yield their core.
        command += ["--mca", "mpi_yield_when_idle", "1", "-x", "PYTHONPATH"]
        command += [sys.executable, "-m", "benchmarks._transport_mpi", json.dumps(plan)]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        # Open MPI's daemons sometimes crash at start, before any rank runs.
        for _ in range(_MPI_STARTS):
            said = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": paths},
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT,
            )
            if not said.returncode:
                break
    if said.returncode:
        raise RuntimeError(f"mpirun failed: {said.stderr[-2000:]}")
    found: list[float] = json.loads(said.stdout.splitlines()[-1])
    return found


def _read(process: subprocess.Popen[str]) -> Any:
    """Read a line from a rank."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("A rank ended before it sent anything.")
    return json.loads(line)


def _write(process: subprocess.Popen[str], message: Any) -> None:
    """Write a line to a rank."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def main() -> None:
    """Perform the task that the command line describes."""
    said = json.loads(sys.argv[1])
    rank, pipe = said["rank"], LinePipe()
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    if said["way"] == "sockets":
        from benchmarks._transport_peers import allreduce_rank

        allreduce_rank(rank, False, said["plan"], pipe, said["hosts"], said.get("pause", 0.0))
    elif said["way"] == "gloo":
        from benchmarks._transport_peers import gloo_rank

        gloo_rank(rank, said["meeting"], said["size"], said["plan"], pipe)
    else:
        from benchmarks._torch_ddp import train_rank

        train_rank(rank, said["meeting"], said["features"], said["batch"], said["steps"],
                   "float64", pipe)  # fmt: skip


if __name__ == "__main__":
    main()
