"""Hierarchies of policies: one within a host, another between hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies.base import Policy
from daskml_dist.policies.local import LocalSGD

__all__ = ["Hierarchical"]


@dataclass(frozen=True)
class Hierarchical(Policy):
    """One policy within each host, and another between hosts: all-reduce, and local SGD.

    The lanes of a host sum their gradients at each step in shared memory, and so step as one lane.
    Every few steps the hosts' parameters are averaged, weighted by their rows, like those of single
    lanes under ``"local"``. Workers that share memory count as one host.

    Choose it if the network between hosts is slow compared to a gradient, and a host has several
    workers: the number of copies that drift apart between two averages is then the number of hosts,
    not the number of lanes.

    The groups of lanes depend on where the lanes run. So the result does, too, and a lost worker
    may change it; all steps since the last average are then repeated.

    Parameters
    ----------
    inside : {"allreduce"}, default="allreduce"
        Policy of the lanes of a host.
    between : LocalSGD, default=LocalSGD()
        Policy of the hosts, without `quorum` and `fragments`.

    References
    ----------
    T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (section on
    hierarchical local SGD).

    Examples
    --------
    >>> from daskml_dist.policies import Hierarchical, LocalSGD
    >>> Hierarchical(between=LocalSGD(sync_every=64, outer="nesterov")).average_every
    64
    """

    name = "hierarchical"
    loop = "replicas"
    sums_within_hosts = True
    inside: str = "allreduce"
    between: Policy = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        if self.inside != "allreduce":
            raise InvalidParameterError(
                f"Hierarchical(inside={self.inside!r}): lanes of a host sum their gradients. Use "
                "inside='allreduce'."
            )
        between = self.between
        if not isinstance(between, LocalSGD) or between.loop != "replicas":
            raise InvalidParameterError(
                f"Hierarchical(between={between!r}): hosts are averaged every few steps. Use "
                "between=LocalSGD(...), without quorum and fragments."
            )
        super().__post_init__()

    @property
    def average_every(self) -> int:  # type: ignore[override]
        """Return the steps between two averages of the hosts."""
        return self.between.average_every

    @property
    def outer(self) -> Any:
        """Return the optimizer of the steps between averages."""
        return self.between.outer

    @property
    def outer_rate(self) -> Any:
        """Return the learning rate of the outer steps."""
        return self.between.outer_rate

    @property
    def outer_momentum(self) -> Any:
        """Return the momentum of the outer steps."""
        return self.between.outer_momentum

    @property
    def compresses(self) -> bool:
        """Return False: hosts send whole parameters, and lanes within a host send no messages."""
        return False
