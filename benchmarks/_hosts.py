"""Several hosts on one machine: network namespaces on a bridge, with networks of chosen speed.

Each host has its own TCP stack, address and interface, so its processes communicate with others
over a network as on separate machines: nothing uses loopback or shared memory. The machine itself
is also on the bridge, as the head node with the scheduler and the client. Only root may create
namespaces.

The kernel enforces a rate (a token bucket at both ends of each cable). A delay or a loss is created
by a process between the cable's two ends (:mod:`benchmarks._cable`), since not every kernel has
netem.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from distributed import Client, LocalCluster

__all__ = ["Cable", "Host", "HostCluster", "HostNetwork", "network_problem"]

#: Bytes of a frame: with 1,500, as on the internet, the process of a slow cable would be too busy.
MTU = 9000
#: Limit in seconds for the kernel to bring a link up on a busy machine.
_LINK_SECONDS = 60.0
#: Seconds that a worker gets to exit before it is killed.
_END_SECONDS = 5.0
#: Constants of <linux/if_tun.h>: an interface of Ethernet frames, without a header before each.
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000

#: Numbers of the networks of this process.
_numbers = itertools.count()


@dataclass(frozen=True)
class Cable:
    """Connection between a host and the switch.

    Parameters
    ----------
    rate : float or None
        Bits per second, each way; None: as fast as the kernel moves frames.
    delay : float
        Seconds that a frame takes from one end to the other.
    loss : float
        Share of the frames that are lost.
    """

    rate: float | None = None
    delay: float = 0.0
    loss: float = 0.0

    @property
    def is_relayed(self) -> bool:
        """Return whether a process must relay frames between the ends."""
        return self.delay > 0 or self.loss > 0

    def __str__(self) -> str:
        if self.rate is None:
            said = "unlimited"
        elif self.rate >= 1e9:
            said = f"{self.rate / 1e9:g} Gbit/s"
        else:
            said = f"{self.rate / 1e6:g} Mbit/s"
        said += f", {self.delay * 1e3:g} ms" if self.delay else ""
        return said + (f", {self.loss:.0%} lost" if self.loss else "")


@dataclass
class Host:
    """One host, in a namespace.

    Parameters
    ----------
    name : str
        Name of the namespace, and of the switch's port that its cable is plugged into.
    address : str
        Address on the network.
    """

    name: str
    address: str

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    @property
    def bytes_sent(self) -> int:
        """Return the number of bytes that have left this host, including headers."""
        return self._count("rx_bytes")

    @property
    def bytes_received(self) -> int:
        """Return the number of bytes that have arrived at this host, including headers."""
        return self._count("tx_bytes")

    def _count(self, counter: str) -> int:
        """Return a counter of the switch's port, which receives the bytes that the host sends."""
        return int(Path(f"/sys/class/net/{self.name}/statistics/{counter}").read_text())


class HostNetwork:
    """Hosts on one switch.

    Parameters
    ----------
    n_hosts : int
        At most 250.
    cable : Cable
        Cable of each host; the head node is on the switch itself.
    """

    def __init__(self, n_hosts: int, cable: Cable = Cable()) -> None:
        # Names of interfaces have at most 15 letters. Several networks may exist at the same time,
        # in this process or in others.
        number = next(_numbers) % len(ascii_lowercase)
        self._switch = f"dml{os.getpid() % 10**6}{ascii_lowercase[number]}"
        self._net = f"10.{os.getpid() % 199 + 20}.{number + 77}"
        self._n_hosts = n_hosts
        self._cable = cable
        self.hosts: list[Host] = []

    @property
    def head(self) -> str:
        """Return the address of the machine itself on this network."""
        return f"{self._net}.1"

    def __enter__(self) -> HostNetwork:
        with ExitStack() as stack:
            _ip("link", "add", self._switch, "type", "bridge")
            stack.callback(_ip, "link", "del", self._switch)
            _ip("addr", "add", f"{self.head}/24", "dev", self._switch)
            _ip("link", "set", self._switch, "up")
            for number in range(self._n_hosts):
                host = Host(f"{self._switch}n{number}", f"{self._net}.{number + 2}")
                self._add(stack, host)
                self.hosts.append(host)
            # The bridge uses the smallest MTU of its ports, or its own.
            _ip("link", "set", self._switch, "mtu", str(MTU))
            for host in self.hosts:
                self.plug(host)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def pull(self, host: Host) -> None:
        """Drop all frames to and from a host; neither end is notified."""
        _set_port(host.name, "0")

    def plug(self, host: Host) -> None:
        """Let frames pass again."""
        _set_port(host.name, "3")

    def switch_off(self, host: Host) -> None:
        """Kill all processes on a host together, like a power cut."""
        while self._signal(host, signal.SIGKILL):
            time.sleep(0.01)

    def stop(self, host: Host) -> None:
        """Suspend all processes on a host, whose kernel still answers."""
        self._signal(host, signal.SIGSTOP)

    def _signal(self, host: Host, number: signal.Signals) -> int:
        """Send a signal to all processes on a host; return their number."""
        pids = self._list_processes(host)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def _list_processes(self, host: Host) -> list[int]:
        """Return the processes on a host."""
        command = ["ip", "netns", "pids", host.name]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        return [int(pid) for pid in found.stdout.split()]

    def _add(self, stack: ExitStack, host: Host) -> None:
        """Create a namespace and its cable."""
        name, cable = host.name, self._cable
        _ip("netns", "add", name)
        stack.callback(_ip, "netns", "del", name)
        stack.callback(self.switch_off, host)
        # The kernel may not have removed the link of a network that has just ended.
        subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        if cable.is_relayed:
            self._add_relay(stack, host)
        else:
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "mtu", str(MTU), "master", self._switch, "up")
        _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU))
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        if cable.rate is not None:
            # A bucket of 100 us of traffic, at least one frame, and a queue of 50 ms before it, as
            # in a switch. The saved tokens of a bucket pass without a limit, unlike on a real
            # cable; but with a smaller bucket, the kernel's timer, which is late by about 20 us,
            # would cost a fifth to two thirds of the rate.
            burst = max(int(cable.rate / 8 * 100e-6), MTU + 100)
            bucket = ["root", "tbf", "rate", f"{cable.rate:.0f}bit", "burst", str(burst)]
            bucket += ["latency", "50ms"]
            for where in ([], ["-n", name]):
                device = name if not where else "eth0"
                _run("tc", *where, "qdisc", "add", "dev", device, *bucket)

    def _add_relay(self, stack: ExitStack, host: Host) -> None:
        """Create both ends of a cable, and start the process that moves frames between them."""
        ends = [_open_tap(host.name), _open_tap(f"{host.name}t")]
        _ip("link", "set", f"{host.name}t", "netns", host.name, "name", "eth0")
        command = [sys.executable, "-m", "benchmarks._cable", *map(str, ends)]
        command += [str(self._cable.delay), str(self._cable.loss), host.address.rpartition(".")[2]]
        relay = subprocess.Popen(command, pass_fds=ends, cwd=Path(__file__).parents[1])
        for end in ends:
            os.close(end)
        stack.callback(_end, [relay])


class HostCluster:
    """Dask workers of one thread on the hosts of a network, with the scheduler on the head node.

    Parameters
    ----------
    network : HostNetwork
        An entered context.
    workers_per_host : int
        Number of processes on each host.
    environ : callable, optional
        Function that returns additional environment variables of a host's processes.
    """

    def __init__(
        self,
        network: HostNetwork,
        workers_per_host: int = 1,
        environ: Callable[[Host], Mapping[str, str]] = lambda host: {},
    ) -> None:
        self._network = network
        self._per_host = workers_per_host
        self._environ = environ
        self.nannies: dict[str, list[subprocess.Popen[bytes]]] = {}

    def __enter__(self) -> Client:
        with ExitStack() as stack:
            self.cluster = stack.enter_context(
                LocalCluster(
                    n_workers=0,
                    host=self._network.head,
                    dashboard_address=":0",
                    silence_logs=50,
                )
            )
            stack.callback(lambda: _end([n for there in self.nannies.values() for n in there]))
            self.refill()
            client = Client(self.cluster)
            stack.callback(client.close)  # works in any thread, unlike leaving its context
            client.wait_for_workers(len(self._network.hosts) * self._per_host, timeout=180)
            self._stack = stack.pop_all()
        return client

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def switch_off(self, host: Host) -> None:
        """Kill a host's workers, and all its other processes, together."""
        self._network.switch_off(host)
        for nanny in self.nannies.pop(host.address, []):
            nanny.wait()

    def refill(self) -> None:
        """Plug all cables in, and start missing workers."""
        for host in self._network.hosts:
            self._network.plug(host)
            there = [n for n in self.nannies.get(host.address, []) if n.poll() is None]
            while len(there) < self._per_host:
                there.append(self._start_nanny(host))
            self.nannies[host.address] = there

    def _start_nanny(self, host: Host) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli.dask_worker"]
        command += [self.cluster.scheduler_address, "--host", host.address, "--nthreads", "1"]
        return subprocess.Popen(
            host.command(*command, "--no-dashboard"),
            env={**os.environ, **self._environ(host)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def network_problem() -> str | None:
    """Return why there can be no hosts on this machine, or None."""
    if missing := [tool for tool in ("ip", "bridge", "tc") if shutil.which(tool) is None]:
        return f"no {', '.join(missing)} (of iproute2)"
    probe = f"dmlp{os.getpid() % 10**6}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "may not make network namespaces (root may)"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


def _run(*command: str) -> None:
    """Run a command; an error contains its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")


def _ip(*args: str) -> None:
    """Run iproute2's `ip`."""
    _run("ip", *args)


def _open_tap(name: str) -> int:
    """Create an interface whose frames a process reads and writes; return its file descriptor."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return end


def _set_port(name: str, state: str) -> None:
    """Set a switch port's state; the kernel refuses until it knows that the link is up."""
    command = ["bridge", "link", "set", "dev", name, "state", state]
    deadline = time.monotonic() + _LINK_SECONDS
    while subprocess.run(command, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"no {shlex.join(command)}"
        time.sleep(0.05)


def _end(processes: list[subprocess.Popen[Any]]) -> None:
    """End processes; kill those that do not exit in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.kill()
        process.wait()
