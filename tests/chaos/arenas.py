"""Arenas: clusters for faults, which are restored before the next fault."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import dask
from distributed import Client, LocalCluster

from benchmarks._hosts import Host, HostCluster, HostNetwork
from daskml_dist.dask_internals.cluster import list_workers

__all__ = ["Arena", "KilledArena", "NetworkArena", "ProcessArena"]

#: Seconds that a nanny gets to restart a worker.
_PATIENCE = 8.0


class Arena:
    """Workers of one thread each, and a client."""

    n_workers = 3
    client: Client

    def workers(self) -> dict[str, Any]:
        """Return the scheduler's information about each worker."""
        return list_workers(self.client)

    def pids(self, addresses: list[str]) -> list[int]:
        """Return the process ids of some workers."""
        return list(self.client.run(os.getpid, workers=addresses).values())

    def actors(self) -> set[str]:
        """Return the workers that hold an actor."""
        found = self.client.run(lambda dask_worker: len(dask_worker.state.actors))
        return {address for address, count in found.items() if count}

    def scale(self, n_workers: int) -> None:
        """Request a number of workers; return immediately."""
        raise NotImplementedError

    def adapt(self, minimum: int) -> None:
        """Let the cluster grow and shrink automatically."""
        raise NotImplementedError

    def end_adapting(self) -> None:
        """End the adaptive scaling."""
        raise NotImplementedError

    def cut(self, addresses: list[str]) -> None:
        """Drop all packets to and from some workers."""
        raise NotImplementedError

    def mend(self, addresses: list[str]) -> None:
        """Let packets pass again."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the cluster."""
        raise NotImplementedError

    def close(self) -> None:
        """End the cluster."""
        raise NotImplementedError

    def heal(self) -> None:
        """Restore the cluster's size, or start another cluster."""
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
        """Request the missing workers."""

    def _is_whole(self) -> bool:
        """Return whether all workers exist and answer."""
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
        # A killed worker is restarted automatically; a retired one must be requested, after the
        # cluster has forgotten it.
        deadline = time.monotonic() + 2
        while len(self.workers()) < self.n_workers and time.monotonic() < deadline:
            time.sleep(0.05)
        self._cluster.scale(min(len(self.workers()), self.n_workers))
        self._cluster.scale(self.n_workers)


class KilledArena(ProcessArena):
    """A local cluster that never gives up a worker, however often it is killed."""

    def start(self) -> None:
        self._config = dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
        super().start()

    def close(self) -> None:
        super().close()
        with self._config:
            pass  # unchanged

    def adapt(self, minimum: int) -> None:
        self._adaptive = self._cluster.adapt(
            minimum=minimum, maximum=self.n_workers, interval="200ms", wait_count=2
        )

    def end_adapting(self) -> None:
        self._adaptive.stop()
        self._cluster.scale(self.n_workers)


class NetworkArena(Arena):
    """Workers on separate hosts, emulated by network namespaces."""

    def start(self) -> None:
        with ExitStack() as stack:
            self._network = stack.enter_context(HostNetwork(self.n_workers))
            self._host_cluster = HostCluster(self._network)
            self.client = stack.enter_context(self._host_cluster)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def adapt(self, minimum: int) -> None:
        """Let the cluster grow and shrink automatically."""
        raise NotImplementedError

    def end_adapting(self) -> None:
        """End the adaptive scaling."""
        raise NotImplementedError

    def cut(self, addresses: list[str]) -> None:
        for host in self._hosts(addresses):
            self._network.pull(host)

    def mend(self, addresses: list[str]) -> None:
        for host in self._hosts(addresses):
            self._network.plug(host)

    def _hosts(self, addresses: list[str]) -> list[Host]:
        """Return the hosts of some workers."""
        names = {address.removeprefix("tcp://").rpartition(":")[0] for address in addresses}
        return [host for host in self._network.hosts if host.address in names]

    def _refill(self) -> None:
        self._host_cluster.refill()
