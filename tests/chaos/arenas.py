"""Arenas: clusters that faults happen on, and that are whole again before the next one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

import dask
from distributed import Client, LocalCluster

from daskml_dist.dask_internals.cluster import list_workers

__all__ = ["Arena", "KilledArena", "NetworkArena", "ProcessArena", "network_problem"]

#: Seconds that a nanny may take to bring a worker back.
_PATIENCE = 8.0


class Arena:
    """Some workers of one thread each, and a client."""

    n_workers = 3
    client: Client

    def workers(self) -> dict[str, Any]:
        """What the scheduler knows of each worker."""
        return list_workers(self.client)

    def pids(self, addresses: list[str]) -> list[int]:
        """Processes of some workers."""
        return list(self.client.run(os.getpid, workers=addresses).values())

    def actors(self) -> set[str]:
        """Workers that hold an actor."""
        found = self.client.run(lambda dask_worker: len(dask_worker.state.actors))
        return {address for address, count in found.items() if count}

    def scale(self, n_workers: int) -> None:
        """Ask for so many workers; returns at once."""
        raise NotImplementedError

    def adapt(self, minimum: int) -> None:
        """Let the cluster grow and shrink by itself."""
        raise NotImplementedError

    def end_adapting(self) -> None:
        """Undo it."""
        raise NotImplementedError

    def cut(self, addresses: list[str]) -> None:
        """Drop all packets to and from some workers."""
        raise NotImplementedError

    def mend(self, addresses: list[str]) -> None:
        """Let packets through again."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the cluster."""
        raise NotImplementedError

    def close(self) -> None:
        """End the cluster."""
        raise NotImplementedError

    def heal(self) -> None:
        """Bring the cluster back to its size, or start another one."""
        deadline = time.monotonic() + _PATIENCE
        if not self._is_whole():
            self._refill()
        while not self._is_whole():
            if time.monotonic() > deadline:
                self.close()
                self.start()
                return
            time.sleep(0.05)

    def _refill(self) -> None:
        """Ask for what is missing."""

    def _is_whole(self) -> bool:
        """Whether all workers are there, and answer."""
        workers = self.workers()
        if len(workers) != self.n_workers:
            return False
        answers = self.client.run(os.getpid, on_error="return")
        return all(isinstance(answers.get(address), int) for address in workers)


class ProcessArena(Arena):
    """A local cluster of processes."""

    def start(self) -> None:
        self._cluster = LocalCluster(
            n_workers=self.n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=50,
        )
        self.client = Client(self._cluster)

    def close(self) -> None:
        self.client.close()
        self._cluster.close()

    def scale(self, n_workers: int) -> None:
        self._cluster.scale(n_workers)

    def _refill(self) -> None:
        # A killed worker comes back by itself; one that was retired has to be asked for, once
        # the cluster has forgotten it.
        deadline = time.monotonic() + 2
        while len(self.workers()) < self.n_workers and time.monotonic() < deadline:
            time.sleep(0.05)
        self._cluster.scale(min(len(self.workers()), self.n_workers))
        self._cluster.scale(self.n_workers)


class KilledArena(ProcessArena):
    """A local cluster whose places are never given up, however often their workers are killed."""

    def start(self) -> None:
        self._config = dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
        super().start()

    def close(self) -> None:
        super().close()
        with self._config:
            pass  # as it was

    def adapt(self, minimum: int) -> None:
        self._adaptive = self._cluster.adapt(
            minimum=minimum, maximum=self.n_workers, interval="200ms", wait_count=2
        )

    def end_adapting(self) -> None:
        self._adaptive.stop()
        self._cluster.scale(self.n_workers)


def network_problem() -> str | None:
    """Why there can be no network namespaces here, or None."""
    if not (shutil.which("ip") and shutil.which("bridge")):
        return "no iproute2"
    probe = f"{_prefix()}probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "may not make network namespaces (root may)"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def _prefix() -> str:
    """Of the names of interfaces, which may have 15 letters."""
    return f"dml{os.getpid() % 10**6}"


class NetworkArena(Arena):
    """Workers in network namespaces of their own, on a bridge, with the scheduler on it too."""

    def start(self) -> None:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def adapt(self, minimum: int) -> None:
        """Let the cluster grow and shrink by itself."""
        raise NotImplementedError

    def end_adapting(self) -> None:
        """Undo it."""
        raise NotImplementedError

    def cut(self, addresses: list[str]) -> None:
        self._set_ports(addresses, "0")

    def mend(self, addresses: list[str]) -> None:
        self._set_ports(addresses, "3")

    def _set_ports(self, addresses: list[str], state: str) -> None:
        for address in addresses:
            _set_port(self._ports[_host_of(address)], state)

    def _open(self, stack: ExitStack) -> None:
        prefix, net = _prefix(), f"10.{os.getpid() % 199 + 20}.77"
        _ip("link", "add", prefix, "type", "bridge")
        stack.callback(_ip, "link", "del", prefix)
        _ip("addr", "add", f"{net}.1/24", "dev", prefix)
        _ip("link", "set", prefix, "up")
        self._ports: dict[str, str] = {}
        self._nannies: dict[str, subprocess.Popen[bytes]] = {}
        self._cluster = stack.enter_context(
            LocalCluster(n_workers=0, host=f"{net}.1", dashboard_address=":0", silence_logs=50)
        )
        for number in range(self.n_workers):
            self._add_place(stack, prefix, f"{prefix}n{number}", f"{net}.{number + 2}")
        stack.callback(self._end_nannies)
        self._refill()
        self.client = Client(self._cluster)
        stack.callback(self.client.close)  # in any thread, which the end of a context is not
        self.client.wait_for_workers(self.n_workers, timeout=90)

    def _add_place(self, stack: ExitStack, bridge: str, name: str, host: str) -> None:
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
        # The kernel may still be about to remove the link of an arena that has just ended.
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        self._ports[host] = name

    def _refill(self) -> None:
        for host, name in self._ports.items():
            _set_port(name, "3")
            nanny = self._nannies.get(host)
            if nanny is None or nanny.poll() is not None:
                self._nannies[host] = self._start_nanny(name, host)

    def _start_nanny(self, name: str, host: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli.dask_worker"]
        command += [self._cluster.scheduler_address, "--host", host, "--nthreads", "1"]
        return subprocess.Popen(
            ["ip", "netns", "exec", name, *command, "--no-dashboard"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _end_nannies(self) -> None:
        for nanny in self._nannies.values():
            nanny.terminate()
        for nanny in self._nannies.values():
            with suppress(subprocess.TimeoutExpired):
                nanny.wait(5)
            nanny.kill()
            nanny.wait()


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def _set_port(name: str, state: str) -> None:
    """Set the state of a bridge's port; the kernel refuses until it knows that the link is up."""
    command = ["bridge", "link", "set", "dev", name, "state", state]
    deadline = time.monotonic() + 60
    while subprocess.run(command, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"no {shlex.join(command)}"
        time.sleep(0.05)


def _host_of(address: str) -> str:
    return address.removeprefix("tcp://").rpartition(":")[0]
