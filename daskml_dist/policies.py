"""Policies: who may run ahead, and when a push applies.

A :class:`Policy` is an immutable description that the user passes by object or by string. A fit
makes its live state from it, a :class:`Gate` per shard: a small state machine that never blocks.
The server tells the gate which lane pushed, joined or left, and asks it two questions: which
pushes apply now, and may this lane go on?
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from daskml_dist.errors import InvalidParameterError

__all__ = [
    "POLICIES",
    "AllReduce",
    "ArrivalGate",
    "Asynchronous",
    "BoundedStaleness",
    "Gate",
    "Hogwild",
    "LocalSGD",
    "ModelAveraging",
    "Policy",
    "RangedRounds",
    "RoundGate",
    "Rounds",
    "Synchronous",
    "get_policy",
]


class Gate(ABC):
    """Live state of one policy over a set of lanes.

    A lane's clock counts the steps that it has finished (pushed). Repeated pushes are refused
    here, which makes every push idempotent.

    Parameters
    ----------
    lanes : iterable of int
        The lanes that take part from the start.
    clock : int, default=0
        The clock at which they start.
    """

    def __init__(self, lanes: Iterable[int], clock: int = 0) -> None:
        self.clocks: dict[int, int] = dict.fromkeys(lanes, clock)

    def join(self, lane: int, clock: int) -> None:
        """Let a lane take part from `clock` on."""
        self.clocks[lane] = clock

    def leave(self, lane: int) -> None:
        """Forget a lane: nobody waits for it any more. Its open push, if any, still counts."""
        self.clocks.pop(lane, None)

    @abstractmethod
    def push(self, lane: int, clock: int) -> bool:
        """Record that `lane` pushed its step `clock` (from 1); False when it must be dropped."""

    @abstractmethod
    def due(self) -> list[int]:
        """Lanes whose pushes form the next apply; empty when nothing is due."""

    @abstractmethod
    def may_go(self, lane: int) -> bool:
        """Whether `lane` may start its next step now."""

    def clock(self, lane: int) -> int:
        """The clock that `lane` goes on from."""
        return self.clocks.get(lane, 0)


class RoundGate(Gate):
    """Rounds: a round applies once all lanes but `spare` have pushed it."""

    def __init__(self, lanes: Iterable[int], clock: int = 0, *, spare: int = 0) -> None:
        super().__init__(lanes, clock)
        self._round = clock
        self._spare = spare
        self._arrived: set[int] = set()

    def join(self, lane: int, clock: int) -> None:
        super().join(lane, max(clock, self._round))

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or lane in self._arrived or clock != self._round + 1:
            return False
        self.clocks[lane] = clock
        self._arrived.add(lane)
        return True

    def due(self) -> list[int]:
        missing = sum(lane not in self._arrived for lane in self.clocks)
        if not self._arrived or missing > min(self._spare, max(len(self.clocks) - 1, 0)):
            return []
        group = sorted(self._arrived)
        self._arrived.clear()
        self._round += 1
        return group

    def may_go(self, lane: int) -> bool:
        return lane not in self._arrived

    def clock(self, lane: int) -> int:
        return self._round


class ArrivalGate(Gate):
    """Pushes apply on arrival; a lane may lead the slowest by `staleness` clocks."""

    def __init__(
        self, lanes: Iterable[int], clock: int = 0, *, staleness: int | None = None
    ) -> None:
        super().__init__(lanes, clock)
        self._staleness = staleness
        self._arrived: list[int] = []

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or clock <= self.clocks[lane]:
            return False
        self.clocks[lane] = clock
        self._arrived.append(lane)
        return True

    def due(self) -> list[int]:
        return [self._arrived.pop(0)] if self._arrived else []

    def may_go(self, lane: int) -> bool:
        if self._staleness is None or lane not in self.clocks:
            return True
        return self.clocks[lane] - min(self.clocks.values()) <= self._staleness


#: Loops in which lanes answer the questions of a round solver.
_SOLVERS = frozenset({"solver", "ranges"})


@dataclass(frozen=True)
class Policy:
    """Base of all policies; the class attributes tell the trainer which loop to run.

    Attributes
    ----------
    name : str
        The string by which the policy is chosen.
    loop : {"rounds", "replicas", "free", "shared", "solver", "ranges"}
        ``"rounds"``: all lanes step together through the server. ``"replicas"``: every lane or
        trainer holds the parameters and meets the others by all-reduce. ``"free"``: each lane
        pushes and pulls at its own pace. ``"shared"``: the threads of a process write one array
        and processes meet at the server. ``"solver"``: all lanes answer a solver's questions.
        ``"ranges"``: the same, and each trainer holds a range of the solver's vectors.
    """

    name: ClassVar[str]
    loop: ClassVar[Literal["rounds", "replicas", "free", "shared", "solver", "ranges"]]

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), self._least(field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidParameterError(
                    f"{type(self).__name__}({field.name}={value!r}): give an integer >= {least}."
                )

    @staticmethod
    def _least(name: str) -> int:
        return 0 if name in {"backup_workers", "staleness"} else 1

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are at the same clock at each end of a pass."""
        return self.loop in {"rounds", "replicas", *_SOLVERS}

    @property
    def uses_shards(self) -> bool:
        """Whether the parameters live in server shards."""
        return self.loop not in {"replicas", *_SOLVERS}

    @property
    def pushes_gradients(self) -> bool:
        """Whether lanes push gradients to servers, which can be compressed."""
        return self.loop in {"rounds", "free"}

    @property
    def uses_threads(self) -> bool:
        """Whether a lane a thread is wanted in one process too."""
        return self.loop in {"shared", *_SOLVERS}

    @property
    def replays(self) -> bool:
        """Whether trainers remember what is needed to go on, so that any one of them can."""
        return self.loop in _SOLVERS

    def applies_per_pass(self, n_steps: int, n_lanes: int) -> int:
        """Updates that a shard applies in a pass in which each lane makes `n_steps` steps."""
        return n_steps if self.lockstep else n_steps * n_lanes

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Make the state machine of one shard (or of the pass reports)."""
        return ArrivalGate(lanes, clock)

    def of_one_lane(self) -> Policy:
        """A policy under which a fit of one lane makes the same steps, and waits for nobody."""
        return self


@dataclass(frozen=True)
class Synchronous(Policy):
    """Bulk-synchronous steps through the server: ``"sync"``, the default.

    Each step applies the row-weighted mean of the gradients of all lanes, so the result does not
    depend on how the rows are spread, and equals gradient descent on the union of the batches.

    Choose it when you want the result of a single machine, the same at each run. With
    `backup_workers` the round closes without the slowest lanes, whose batch of that round is
    dropped: choose that when a few workers are slow at random. The dropped rows are missing
    from ``history_`` ``rows``.

    Parameters
    ----------
    backup_workers : int, default=0
        Lanes that a round does not wait for.

    References
    ----------
    L. G. Valiant, "A bridging model for parallel computation", CACM 1990 (BSP).
    J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (backup workers).
    """

    name = "sync"
    loop = "rounds"
    backup_workers: int = 0

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Make the state machine of one shard."""
        return RoundGate(lanes, clock, spare=self.backup_workers)

    def of_one_lane(self) -> Policy:
        """That lane steps on its own parameters: there is nothing to sum on a server."""
        # A subclass may do something else.
        return _SynchronousAlone() if type(self) is Synchronous else self


@dataclass(frozen=True)
class AllReduce(Policy):
    """Synchronous steps without a server: ``"allreduce"``.

    Every trainer holds the parameters and the optimizer's state; gradients are summed over the
    trainers' own connections. The maths is that of ``"sync"``.

    Choose it for dense models of any size on workers of equal speed: no server can become the
    bottleneck, and nothing is pulled.

    References
    ----------
    A. Sergeev and M. Del Balso, "Horovod", 2018. S. Li et al., "PyTorch Distributed", VLDB 2020.
    """

    name = "allreduce"
    loop = "replicas"


@dataclass(frozen=True)
class _SynchronousAlone(AllReduce):
    """``"sync"`` of one lane."""

    name = "sync"


@dataclass(frozen=True)
class BoundedStaleness(Policy):
    """Stale-synchronous parallel: ``"ssp"``.

    Pushes apply on arrival; the fastest lane may lead the slowest by `staleness` steps.

    Choose it when workers differ in speed from step to step but not for ever: nearly the
    throughput of ``"async"`` with a bound on how old a gradient can be.

    Parameters
    ----------
    staleness : int, default=4
        Largest lead in steps (clocks); 0 waits for every lane at each step.

    References
    ----------
    Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", NIPS 2013. M. Li et al., "Scaling Distributed Machine Learning with the Parameter
    Server", OSDI 2014 (bounded delay).
    """

    name = "ssp"
    loop = "free"
    staleness: int = 4

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Make the state machine of one shard."""
        return ArrivalGate(lanes, clock, staleness=self.staleness)


@dataclass(frozen=True)
class Asynchronous(Policy):
    """Downpour SGD: ``"async"``.

    Nobody waits; each lane pushes and pulls at its own pace.

    Choose it when some workers are persistently slow, or come and go, and a slightly noisier
    path to the optimum is fine. Pair it with ``StalenessAware`` if many lanes share one model.

    Parameters
    ----------
    push_every : int, default=1
        Steps whose gradients are summed before a push (DistBelief's n_push).
    pull_every : int, default=1
        Steps between pulls (DistBelief's n_fetch).

    References
    ----------
    J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012.
    """

    name = "async"
    loop = "free"
    push_every: int = 1
    pull_every: int = 1

    def applies_per_pass(self, n_steps: int, n_lanes: int) -> int:
        """Updates that a shard applies in a pass; what is open at its end is pushed."""
        return -(-n_steps // self.push_every) * n_lanes


@dataclass(frozen=True)
class LocalSGD(Policy):
    """Local steps, averaged now and then: ``"local"``.

    Each lane steps alone; every `sync_every` steps the parameters are averaged by rows.

    Choose it when the network is slow next to a gradient: it sends `sync_every` times less than
    ``"allreduce"``.

    Parameters
    ----------
    sync_every : int, default=16
        Local steps between two averages.

    References
    ----------
    P. Moritz et al., "SparkNet: Training Deep Networks in Spark", ICLR 2016.
    """

    name = "local"
    loop = "replicas"
    sync_every: int = 16


@dataclass(frozen=True)
class ModelAveraging(Policy):
    """One average at the end: ``"average"``.

    Each lane trains alone on its own rows; the parameters are averaged by rows once.

    Choose it when communication is nearly impossible, or for a quick first model of a convex
    problem whose rows are spread at random. It is the least accurate policy.

    References
    ----------
    M. Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010.
    """

    name = "average"
    loop = "replicas"


@dataclass(frozen=True)
class Hogwild(Policy):
    """Threads that race on one array: ``"hogwild"``.

    The threads of a process update one parameter array: single sparse rows without locks,
    components racing; batches in turn, read by others meanwhile. Processes send what they changed
    to the server and take what the others changed.

    Choose it for sparse data, where two batches rarely touch the same coordinates, on workers
    with several threads.

    References
    ----------
    B. Recht et al., "HOGWILD!", NIPS 2011. C. Noel and S. Osindero, "Dogwild!", 2014.
    """

    name = "hogwild"
    loop = "shared"


@dataclass(frozen=True)
class Rounds(Policy):
    """What round solvers run under; users choose a solver, not this.

    One trainer runs the solver; all sum what it asks for, by all-reduce.
    """

    name = "rounds"
    loop = "solver"


@dataclass(frozen=True)
class RangedRounds(Policy):
    """As `Rounds` where vectors are large: each trainer runs the solver on a range of them."""

    name = "rounds"
    loop = "ranges"


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Synchronous,
        AllReduce,
        BoundedStaleness,
        Asynchronous,
        LocalSGD,
        ModelAveraging,
        Hogwild,
    )
}


def get_policy(policy: str | Policy) -> Policy:
    """Return the policy that a string or an object names.

    Parameters
    ----------
    policy : str or Policy
        One of ``POLICIES`` or an instance.

    Returns
    -------
    Policy

    Raises
    ------
    InvalidParameterError
        For anything else; the message lists the valid names.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]()
    raise InvalidParameterError(
        f"Unknown policy {policy!r}. Use one of {sorted(POLICIES)}, or an object such as "
        "BoundedStaleness(staleness=4)."
    )
