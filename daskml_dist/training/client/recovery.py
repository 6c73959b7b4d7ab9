"""Recovery after a loss: the choice of the state that a fit continues from, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from daskml_dist.policies.base import Consistency
from daskml_dist.ps.snapshots import AvailableSnapshots

H = TypeVar("H")


@dataclass(frozen=True)
class RecoveryPoint(Generic[H]):
    """Place that each server, and each lane, continues from.

    Parameters
    ----------
    hosts : list of H
        Host that is each server from now on.
    places : list of (int or None)
        Snapshot that each server continues from; None: its present state.
    clocks : dict of lane to int
    """

    hosts: list[H]
    places: list[int | None]
    clocks: dict[int, int]


def choose_recovery_point(
    policy: Consistency, held: Sequence[Sequence[tuple[H, AvailableSnapshots]]]
) -> RecoveryPoint[H] | None:
    """Choose the latest place from which the fit can continue as if nothing had happened.

    Lanes in lock-step go on from a place that every server has: what came after it is made again,
    to the same digits. Lanes at their own pace go on from wherever each server is; a lane's
    clock is that of the server which has seen least of it, and the others drop what they know.
    """
    if not held or not all(any(holding.places for _, holding in server) for server in held):
        return None
    if not policy.lockstep:
        chosen = [_latest_place(server) for server in held]
        # Threads that share memory count their steps at the first server alone.
        known = chosen[:1] if policy.loop == "shared" else chosen
        clocks = [holding.clocks[place] for _, holding, place in known]
        # A server that has seen less of a lane decides its clock; the others drop repeated pushes.
        lanes = {lane: min(c.get(lane, 0) for c in clocks) for lane in clocks[0]}
        return _make_recovery_point(chosen, lanes)
    # Lock-step: a place that some host of every server has. The servers' other states are dropped.
    common = set.intersection(
        *({place for _, holding in server for place in holding.places} for server in held)
    )
    if not common:
        return None
    # The latest: the least work is made again.
    place = max(common)
    at = [next((h, holding, place) for h, holding in s if place in holding.places) for s in held]
    return _make_recovery_point(at, at[0][1].clocks[place])


def _latest_place(
    server: Sequence[tuple[H, AvailableSnapshots]],
) -> tuple[H, AvailableSnapshots, int]:
    """Return the first host of a server that holds anything, with its latest place."""
    host, holding = next((h, holding) for h, holding in server if holding.places)
    return host, holding, max(holding.places) if holding.now is None else holding.now


def _make_recovery_point(
    chosen: Sequence[tuple[H, AvailableSnapshots, int]], clocks: dict[int, int]
) -> RecoveryPoint[H]:
    """Return the recovery point of chosen hosts and places."""
    places = [None if place == holding.now else place for _, holding, place in chosen]
    return RecoveryPoint([host for host, _, _ in chosen], places, dict(clocks))
