"""Policies: which lanes may run ahead, and when a push is applied.

A :class:`Policy` is an immutable description, which the user passes as an object or a string. A fit
makes its live state from it, one :class:`Gate` per shard: a small state machine that never blocks.
The server reports to the gate which lanes push, join and leave, and queries it for the pushes to
apply now and for the lanes that may start their next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.policies.base import (
    ArrivalGate,
    Consistency,
    Gate,
    Pipeline,
    Policy,
    QuorumGate,
    RoundGate,
    TrainerGate,
    is_number,
)
from daskml_dist.policies.by_part import PolicyByPart
from daskml_dist.policies.federated import FederatedAveraging
from daskml_dist.policies.hierarchical import Hierarchical
from daskml_dist.policies.local import LocalSGD

__all__ = [
    "POLICIES",
    "AllReduce",
    "ArrivalGate",
    "Asynchronous",
    "BoundedStaleness",
    "Consistency",
    "FederatedAveraging",
    "Gate",
    "Hierarchical",
    "Hogwild",
    "LocalSGD",
    "ModelAveraging",
    "Pipeline",
    "Policy",
    "PolicyByPart",
    "QuorumGate",
    "RoundGate",
    "Synchronous",
    "get_policy",
]


@dataclass(frozen=True)
class Synchronous(Policy):
    """Bulk-synchronous steps through the server: ``"sync"``, the default.

    Each step applies the row-weighted mean of the gradients of all lanes. So the result does not
    depend on how the rows are distributed, and equals gradient descent on the union of the batches.

    Choose it when you want the result of a single machine, the same in each run. With
    `backup_workers` the round closes without the slowest lanes, whose batches of that round are
    dropped: choose that when a few workers are slow at random. The dropped rows are missing from
    ``history_`` ``rows``.

    If one server would hold all dense parameters and all workers are on one host, trainers sum the
    gradients in shared memory, without the server: the same steps, several times faster.

    Parameters
    ----------
    backup_workers : int, default=0
        Lanes that a round does not wait for.

    References
    ----------
    L. G. Valiant, "A bridging model for parallel computation", CACM 1990 (BSP).
    J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (backup workers).

    Examples
    --------
    >>> from daskml_dist.policies import Synchronous
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=Synchronous(backup_workers=1)).policy
    Synchronous(backup_workers=1)
    """

    name = "sync"
    loop = "bulk"
    backup_workers: int = field(default=0, metadata={"least": 0})

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard."""
        return RoundGate(lanes, clock, spare=self.backup_workers)

    def for_one_lane(self) -> Policy:
        """Return the policy of a fit with one lane, which needs no server to sum gradients."""
        # A user's subclass may have another gate or other loop settings, so it is left unchanged.
        return _SynchronousAlone() if type(self) is Synchronous else self

    def on_one_host(self) -> Policy:
        """Return the policy of trainers that share memory and sum gradients without a server."""
        # An all-reduce waits for every lane, so backup workers need the server's rounds.
        return self if self.backup_workers else self.for_one_lane()


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

    Examples
    --------
    >>> from daskml_dist.policies import AllReduce
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=AllReduce()).policy
    AllReduce()
    """

    name = "allreduce"
    loop = "replicas"
    sums_gradients = True


@dataclass(frozen=True)
class _SynchronousAlone(AllReduce):
    """Policy ``"sync"`` for one lane or one host: the same steps, by all-reduce."""

    name = "sync"


@dataclass(frozen=True)
class BoundedStaleness(Policy):
    """Stale-synchronous parallel: ``"ssp"``.

    Pushes apply on arrival; the fastest lane may lead the slowest by `staleness` steps.

    Choose it when workers differ in speed from step to step but not persistently: nearly the
    throughput of ``"async"`` with a bound on the age of gradients.

    Parameters
    ----------
    staleness : int, default=4
        Largest lead in steps (clocks); 0 waits for every lane at each step.

    References
    ----------
    Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", NIPS 2013. M. Li et al., "Scaling Distributed Machine Learning with the Parameter
    Server", OSDI 2014 (bounded delay).

    Examples
    --------
    >>> from daskml_dist.policies import BoundedStaleness
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=BoundedStaleness(staleness=8)).policy
    BoundedStaleness(staleness=8)
    """

    name = "ssp"
    loop = "free"
    staleness: int = field(default=4, metadata={"least": 0})

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard."""
        return ArrivalGate(lanes, clock, staleness=self.staleness)

    def by_single_rows(self) -> Policy:
        """Return the policy of trainers that step row by row and keep the bound."""
        # A user's subclass may have its own gate.
        if type(self) is not BoundedStaleness:
            return self
        # Half of the bound is for the batches between two exchanges, half for the lead at an
        # exchange. Together they are (exchange_every - 1) + staleness, the user's bound.
        half_staleness = self.staleness // 2
        return _BoundedRows(
            exchange_every=half_staleness + 1, staleness=self.staleness - half_staleness
        )


@dataclass(frozen=True)
class Asynchronous(Policy):
    """Downpour SGD: ``"async"``.

    No lane waits for others; each pushes and pulls at its own pace.

    Choose it when some workers are persistently slow, or join and leave, and a slightly noisier
    path to the optimum is acceptable. If many lanes share one model, gradients are many updates
    old: combine it with ``StalenessAware``, or with one of the last two parameters.

    Parameters
    ----------
    push_every : int, default=1
        Steps whose gradients are summed before a push (DistBelief's n_push).
    pull_every : int, default=1
        Steps between pulls (DistBelief's n_fetch).
    max_delay : int, "auto" or None, default=None
        Largest age of a gradient, in updates. Servers drop an older one, and its lane continues
        from the present parameters (Ringmaster ASGD). ``"auto"``: twice the number of lanes, since
        among lanes of equal speed a gradient is as many updates old as there are other lanes. None:
        all are applied. ``history_`` has the rows that were applied, and the number of dropped
        pushes.
    delay_compensation : float, default=0.0
        Adds the product of this number, the squared mean gradient, and the change of the parameters
        since the lane pulled them, to each mean gradient: a first-order correction that
        approximates the curvature by the squared gradient (DC-ASGD, which uses 0.04). Servers then
        keep the parameters that each lane pulled last. Not with `push_every` or `pull_every`.
    gradient_table : bool, default=False
        Steps follow the mean of all lanes' latest gradients, which servers keep, so that slow lanes
        have the same weight as fast ones (Ringleader ASGD). For lanes whose rows differ. Some
        pushes only fill the table, up to half of them among lanes of equal speed. Not with the two
        parameters above.

    References
    ----------
    J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012.
    A. Maranjyan et al., "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time
    Complexity", ICML 2025.
    S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017.
    A. Maranjyan and P. Richtarik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time
    Complexity under Data Heterogeneity", ICLR 2026.

    Examples
    --------
    >>> from daskml_dist.policies import Asynchronous
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=Asynchronous(max_delay="auto")).policy.max_delay
    'auto'
    """

    name = "async"
    loop = "free"
    push_every: int = 1
    pull_every: int = 1
    max_delay: int | Literal["auto"] | None = None
    delay_compensation: float = 0.0
    gradient_table: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        max_delay = self.max_delay
        is_count = isinstance(max_delay, int) and not isinstance(max_delay, bool) and max_delay >= 0
        if not (max_delay is None or max_delay == "auto" or is_count):
            raise InvalidParameterError(
                f"Asynchronous(max_delay={max_delay!r}): give an integer >= 0, 'auto' or None."
            )
        factor = self.delay_compensation
        if not (is_number(factor) and factor >= 0):
            raise InvalidParameterError(
                f"Asynchronous(delay_compensation={factor!r}): give a finite number >= 0."
            )
        if factor and not self.push_every == self.pull_every == 1:
            raise InvalidParameterError(
                "Asynchronous(delay_compensation=...) corrects gradients of one pull: leave "
                "push_every and pull_every at 1."
            )
        if not isinstance(self.gradient_table, bool):
            raise InvalidParameterError(
                f"Asynchronous(gradient_table={self.gradient_table!r}): give True or False."
            )
        if self.gradient_table and (factor or max_delay is not None):
            raise InvalidParameterError(
                "Asynchronous(gradient_table=True) bounds delays by itself and steps along many "
                "gradients: leave max_delay at None and delay_compensation at 0."
            )

    def applies(self, delay: int, n_lanes: int) -> bool:
        """Return whether a gradient is applied that is `delay` updates old."""
        if self.max_delay is None:
            return True
        return delay <= (2 * n_lanes if self.max_delay == "auto" else self.max_delay)

    def by_single_rows(self) -> Policy:
        """Return the policy of trainers that step row by row at their own pace."""
        # Threads that share an array have no pushes to sum or drop, and no pulls to skip.
        usual = type(self) is Asynchronous and self == Asynchronous()
        return _AsynchronousRows() if usual else self


@dataclass(frozen=True)
class ModelAveraging(Policy):
    """One average at the end: ``"average"``.

    Each lane trains independently on its own rows; the parameters are averaged once, weighted by
    the lanes' rows: by the sums of their weights if they have any.

    Choose it when communication is nearly impossible, or for a quick first model of a convex
    problem whose rows are spread at random. It is the least accurate policy.

    References
    ----------
    M. Zinkevich et al., "Parallelized Stochastic Gradient Descent", NIPS 2010.

    Examples
    --------
    >>> from daskml_dist.policies import ModelAveraging
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=ModelAveraging()).policy
    ModelAveraging()
    """

    name = "average"
    loop = "replicas"


@dataclass(frozen=True)
class Hogwild(Policy):
    """Threads that update one array without waiting for each other: ``"hogwild"``.

    The threads of a process update one parameter array. Steps of single sparse rows take no lock,
    so that updates of one parameter race. Steps of batches exclude each other, while other threads
    read the array. Processes send their changes to the server, and receive those of other
    processes.

    Choose it for sparse data, where two batches rarely touch the same coordinates, on workers
    with several threads.

    References
    ----------
    B. Recht et al., "HOGWILD!", NIPS 2011. C. Noel and S. Osindero, "Dogwild!", 2014.

    Examples
    --------
    >>> from daskml_dist.policies import Hogwild
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=Hogwild()).policy
    Hogwild()
    """

    name = "hogwild"
    loop = "shared"


@dataclass(frozen=True)
class _AsynchronousRows(Hogwild):
    """Policy ``"async"`` for single sparse rows, by threads that race on one array."""

    name = "async"


@dataclass(frozen=True)
class _BoundedRows(Hogwild):
    """Policy ``"ssp"`` for single sparse rows, by threads that race on one array.

    A trainer contacts the server only every `exchange_every` batches, so its lead may exceed
    `staleness` by ``exchange_every - 1``.
    """

    name = "ssp"
    exchange_every: int = 1
    staleness: int = field(default=0, metadata={"least": 0})

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard."""
        return TrainerGate(lanes, clock, staleness=self.staleness)


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


#: Keys of a mapping that names the policy of each part.
_PARTS = ("embeddings", "dense")


def get_policy(policy: str | Policy | Mapping[str, Any]) -> Policy:
    """Return the policy for a string, a policy object, or a mapping from parts to these.

    Parameters
    ----------
    policy : str, Policy, or mapping of str to these
        One of ``POLICIES``, an instance, or the policies of ``"embeddings"`` and ``"dense"``.

    Returns
    -------
    Policy

    Raises
    ------
    InvalidParameterError
        For anything else; the message lists the valid names.

    Examples
    --------
    >>> from daskml_dist.policies import get_policy
    >>> get_policy('ssp').staleness
    4
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]()
    if isinstance(policy, Mapping):
        if set(policy) != set(_PARTS):
            raise InvalidParameterError(
                f"policy={dict(policy)!r} must have the parts {_PARTS}. Use "
                'policy={"embeddings": "async", "dense": "allreduce"}.'
            )
        embeddings, dense = (get_policy(policy[name]) for name in _PARTS)
        return PolicyByPart(embeddings, dense)
    raise InvalidParameterError(
        f"Unknown policy {policy!r}. Use one of {sorted(POLICIES)}, or an object such as "
        f"BoundedStaleness(staleness=4).{suggest_nearest(policy, POLICIES)}"
    )
