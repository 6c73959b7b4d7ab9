"""All-reduce of arrays on GPUs: NCCL within a host, the host's communicator between hosts.

All ranks choose the route of the arrays together, from what each announces about itself, so that
they always make the same choice. NCCL itself is behind `DeviceGroup`; everything else here is plain
Python.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import is_host
from daskml_dist.comm.base import Arrays, Communicator, Merge, WaitBound
from daskml_dist.comm.nccl import NcclGroup, find_gpu_and_nccl, make_identifier
from daskml_dist.comm.packing import make_malformed_error
from daskml_dist.errors import CommunicationError

#: Oldest version of NCCL with the calls that nccl4py needs: 2.23, as NCCL encodes it.
_OLDEST_NCCL = 22300


class DeviceGroup(Protocol):
    """Group of the GPUs of one host, which sum and broadcast arrays among themselves."""

    #: Bytes sent by this rank; it receives as many.
    bytes_moved: int

    def all_reduce(self, array: Any) -> Any:
        """Return the sum over the ranks; may reuse `array`."""

    def broadcast(self, array: Any, root: int) -> Any:
        """Return the array of rank `root`; others, of the same shape and dtype, are overwritten."""

    def abort(self) -> None:
        """Abandon pending operations; may be called twice."""

    def close(self) -> None:
        """End the group in order, on all ranks; may be called twice, and after :meth:`abort`."""


#: Function that makes the group of a host from this rank's place in it, the number of its ranks,
#: NCCL's identifier of the group, and the bound of its waits.
MakeGroup = Callable[[int, int, bytes, WaitBound], DeviceGroup]


# -- choice of the route -------------------------------------------------------------------------


@dataclass(frozen=True)
class DevicePlace:
    """Host, GPU and NCCL of a rank, as it announces them to the other ranks.

    Parameters
    ----------
    host : str
    gpu : str
        PCI address of its GPU, by which NCCL distinguishes GPUs; empty if it has none.
    nccl : int
        NCCL's version (22809 is 2.28.9); 0 if it is missing.
    """

    host: str
    gpu: str = ""
    nccl: int = 0

    @classmethod
    def of_this_process(cls, backend: Backend) -> DevicePlace:
        """Return this process's place, with the calling thread's GPU if the backend uses one."""
        gpu_and_nccl = find_gpu_and_nccl() if backend.device == "gpu" else ("", 0)
        return cls(platform.node(), *gpu_and_nccl)


@dataclass(frozen=True)
class DeviceRoute:
    """Route of device arrays, the same on every rank.

    Parameters
    ----------
    hosts : list of list of int
        The ranks of each host.
    problem : str
        Why arrays go through host memory, with the remedy; empty if NCCL carries them.
    """

    hosts: list[list[int]]
    problem: str = ""


def choose_route(places: list[DevicePlace]) -> DeviceRoute:
    """Choose the route from all ranks' places; the same list gives the same route on every rank."""
    # Ranks of one host, in the order of the ranks.
    by_host: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        by_host.setdefault(place.host, []).append(rank)
    hosts = list(by_host.values())
    return DeviceRoute(hosts, _find_problem(places, hosts))


def _find_problem(places: list[DevicePlace], hosts: list[list[int]]) -> str:
    """Return why NCCL cannot carry the arrays, with the remedy; empty if it can."""
    # In the order in which a user would fix the problems.
    if any(not place.gpu for place in places):
        return "a worker has no GPU; give every worker one"
    if len(hosts) == len(places):
        return "there is one worker per host, so NCCL is not needed"
    for place in places:
        if place.nccl < _OLDEST_NCCL:
            installed = f"NCCL {place.nccl}" if place.nccl else "no NCCL"
            return f'{place.host} has {installed}; install it: pip install "daskml-dist[nccl]"'
    for ranks in hosts:
        if len({places[rank].gpu for rank in ranks}) < len(ranks):
            return (
                f"workers of {places[ranks[0]].host} share a GPU, which NCCL refuses; start one "
                "worker per GPU (LocalCUDACluster)"
            )
        if len({places[rank].nccl for rank in ranks}) > 1:
            return (
                f"workers of {places[ranks[0]].host} have different versions of NCCL; install the "
                "same one"
            )
    return ""


# -- the communicator ----------------------------------------------------------------------------


class DeviceCommunicator(Communicator):
    """Communicator of device arrays and NumPy arrays, among the same ranks.

    Sums of device arrays stay on the device. Device arrays that are gathered, exchanged or merged
    go through host memory, and are returned as NumPy arrays.

    Device arrays are summed within each host by its group; then the first ranks of the hosts sum
    over the network and broadcast the result to the other ranks of their hosts. Without groups they
    go through host memory. NumPy arrays go directly to the host's communicator.

    Parameters
    ----------
    host : Communicator
        Communicator of the same ranks, for arrays in host memory; closed with this one.
    backend : Backend
    route : DeviceRoute
    group : DeviceGroup or None
        This host's group; None if the host has one rank, or NCCL is not used.
    firsts : Communicator or None
        Communicator of the hosts' first ranks, on those ranks; None if there is one host.
    """

    def __init__(
        self,
        host: Communicator,
        backend: Backend,
        route: DeviceRoute,
        group: DeviceGroup | None = None,
        firsts: Communicator | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.size = host.rank, host.size
        self.route = route
        self.sums_on_device = not route.problem
        self._host, self._backend = host, backend
        self._group, self._firsts = group, firsts
        # The traffic of the setup does not count as traffic of the fit.
        self._setup_bytes = host.bytes_sent, host.bytes_received

    @property
    def traffic(self) -> dict[str, int]:
        """Return the bytes sent and received by this rank, by transport."""
        totals = Counter({} if self._group is None else {"NCCL": 2 * self._group.bytes_moved})
        for group in (self._host, self._firsts):
            totals.update({} if group is None else group.traffic)
        return dict(totals)

    def allreduce(self, array: Any, out: Any = None) -> Any:
        if is_host(array):
            total = self._host.allreduce(array, out)
        elif self.route.problem:
            total = self._sum_through_host(self._host, array)
        else:
            total = self._sum_by_levels(array)
        self._count_traffic()
        return total

    def _sum_through_host(self, communicator: Communicator, array: Any) -> Any:
        """Return a sum over ranks that is computed in host memory."""
        return self._backend.to_device(communicator.allreduce(self._backend.to_numpy(array)))

    def _sum_by_levels(self, array: Any) -> Any:
        """Sum within the host on its GPUs, then between hosts' first ranks; broadcast the sum."""
        try:
            # All GPUs of a host have the host's sum. Its first rank adds the sums of other hosts;
            # only then do the other ranks need the new sum.
            if self._group is not None:
                array = self._group.all_reduce(array)
            if self._firsts is not None:
                array = self._sum_through_host(self._firsts, array)
            if self._group is not None and len(self.route.hosts) > 1:
                array = self._group.broadcast(array, 0)
        except BaseException:
            # Pending operations of the other ranks of this host only end when all ranks abandon
            # them.
            self.abort()
            raise
        return array

    def _reduce_scatter(self, array: Any, bounds: list[int]) -> Any:
        if not is_host(array):
            # NCCL computes the sum on every GPU in any case; this rank's range is a part of it.
            own_range = slice(bounds[self.rank], bounds[self.rank + 1])
            return self.allreduce(array)[own_range]
        own_range = self._host.reduce_scatter(array, bounds)
        self._count_traffic()
        return own_range

    def allgather(self, arrays: list[Any]) -> list[Arrays]:
        gathered = self._host.allgather(self._copy_to_host(arrays))
        self._count_traffic()
        return gathered

    def alltoall(self, arrays: list[Any]) -> Arrays:
        received = self._host.alltoall(self._copy_to_host(arrays))
        self._count_traffic()
        return received

    def reduce(self, arrays: list[Any], merge: Merge) -> Arrays:
        merged = self._host.reduce(self._copy_to_host(arrays), merge)
        self._count_traffic()
        return merged

    def broadcast_bytes(self, buffers: Sequence[Any] = ()) -> NDArray[np.uint8]:
        data = self._host.broadcast_bytes(buffers)
        self._count_traffic()
        return data

    def _copy_to_host(self, arrays: list[Any]) -> Arrays:
        """Return arrays in host memory."""
        return [a if is_host(a) else self._backend.to_numpy(a) for a in arrays]

    def _count_traffic(self) -> None:
        """Add up the bytes of all transports."""
        device_bytes = 0 if self._group is None else self._group.bytes_moved
        groups = [self._host] if self._firsts is None else [self._host, self._firsts]
        setup_sent, setup_received = self._setup_bytes
        self.bytes_sent = device_bytes - setup_sent + sum(group.bytes_sent for group in groups)
        self.bytes_received = (
            device_bytes - setup_received + sum(group.bytes_received for group in groups)
        )

    def abort(self) -> None:
        """Abandon the GPUs' pending operations; a new generation makes new groups."""
        if self._group is not None:
            self._group.abort()

    def close(self) -> None:
        """Close the group and the host's communicator."""
        try:
            if self._group is not None:
                self._group.close()
        finally:
            self._host.close()


def make_device_communicator(
    host: Communicator,
    make_subgroup: Callable[[list[int]], Communicator],
    backend: Backend,
    wait: WaitBound,
    own_place: DevicePlace | None = None,
    identify: Callable[[], bytes] | None = None,
    make_group: MakeGroup | None = None,
) -> Communicator:
    """Return a communicator of device arrays, whose route all ranks have agreed on.

    If no rank has a GPU, the host's communicator itself is returned.
    """
    try:
        # Step 1: all ranks announce their places. Step 2: each chooses the same route from the same
        # list. Step 3: either all ranks open the route, or none does.
        places = _gather_places(host, own_place or DevicePlace.of_this_process(backend))
        if not any(rank_place.gpu for rank_place in places) and backend.device == "cpu":
            return host
        route = choose_route(places)
        group = None
        if not route.problem:
            group, problem = _open_group(
                host, route, wait, identify or make_identifier, make_group or NcclGroup.connect
            )
            route = DeviceRoute(route.hosts, problem)
    except BaseException:
        host.close()
        raise
    firsts = [ranks[0] for ranks in route.hosts]
    is_leader = not route.problem and len(firsts) > 1 and host.rank in firsts
    return DeviceCommunicator(
        host, backend, route, group, make_subgroup(firsts) if is_leader else None
    )


def _gather_places(host: Communicator, own_place: DevicePlace) -> list[DevicePlace]:
    """Return the places of all ranks."""
    data = np.frombuffer(json.dumps(asdict(own_place)).encode(), np.uint8)
    try:
        return [DevicePlace(**json.loads(arrays[0].tobytes())) for arrays in host.allgather([data])]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise make_malformed_error(f"no place of its GPU ({type(error).__name__})") from error


def _open_group(
    host: Communicator,
    route: DeviceRoute,
    wait: WaitBound,
    identify: Callable[[], bytes],
    make_group: MakeGroup,
) -> tuple[DeviceGroup | None, str]:
    """Return this host's group, or None and the reason; all ranks have groups, or none has.

    It is a collective of all ranks: each performs both all-gathers, even if it failed before.
    """
    ranks = next(ranks for ranks in route.hosts if host.rank in ranks)
    group, failure, own_identifier = None, "", b""
    if host.rank == ranks[0] and len(ranks) > 1:
        own_identifier, failure = _try_or_report(identify, b"")
    # NCCL's identifier of each host's group, made by the host's first rank.
    gathered = host.allgather([np.frombuffer(own_identifier, np.uint8)])
    identifier = gathered[ranks[0]][0].tobytes()
    if len(ranks) > 1 and identifier:
        host_index = ranks.index(host.rank)
        group, failure = _try_or_report(
            lambda: make_group(host_index, len(ranks), identifier, wait), None
        )
    try:
        # All ranks learn of a failure on any of them, and all give up NCCL together.
        outcomes = host.allgather([np.frombuffer(failure.encode(), np.uint8)])
    except BaseException:
        if group is not None:
            group.abort()
        raise
    failures = [outcome[0].tobytes().decode() for outcome in outcomes]
    problem = next((failure for failure in failures if failure), "")
    if problem and group is not None:
        group.abort()
    return None if problem else group, problem


def _try_or_report(attempt: Callable[[], Any], otherwise: Any) -> tuple[Any, str]:
    """Return a result and no failure, or `otherwise` and the failure; other errors are raised."""
    try:
        return attempt(), ""
    except CommunicationError as error:
        return otherwise, str(error)
