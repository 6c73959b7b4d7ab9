"""Recovery after a loss: choice of the state from which a fit continues, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from daskml_dist.policies.base import Consistency
from daskml_dist.ps.snapshots import AvailableSnapshots

H = TypeVar("H")


@dataclass(frozen=True)
class RecoveryPoint(Generic[H]):
    """Place from which each server and each lane continues.

    Parameters
    ----------
    hosts : list of H
        Host that becomes each server.
    places : list of (int or None)
        Snapshot from which each server continues; None means its present state.
    clocks : dict of lane to int
    """

    hosts: list[H]
    places: list[int | None]
    clocks: dict[int, int]


def choose_recovery_point(
    policy: Consistency, available_snapshots: Sequence[Sequence[tuple[H, AvailableSnapshots]]]
) -> RecoveryPoint[H] | None:
    """Choose the latest place from which the fit can continue as if nothing had happened.

    Lanes in lock-step continue from a place that every server has; later steps are repeated, with
    the same digits. Lanes at their own pace continue from the present state of each server. A
    lane's clock is the smallest that any server has for it, and the other servers drop repeated
    pushes.
    """
    if not available_snapshots or not all(
        any(holding.positions for _, holding in server) for server in available_snapshots
    ):
        return None
    if not policy.lockstep:
        chosen = [_latest_place(server) for server in available_snapshots]
        # Threads that share memory count their steps only at the first server.
        with_clocks = chosen[:1] if policy.loop == "shared" else chosen
        clocks = [holding.clocks[place] for _, holding, place in with_clocks]
        # The server with the smallest clock of a lane decides; the others drop repeated pushes.
        lanes = {lane: min(c.get(lane, 0) for c in clocks) for lane in clocks[0]}
        return _make_recovery_point(chosen, lanes)
    # Lock-step: a place that some host of every server has. Other states are dropped.
    common = set.intersection(
        *(
            {place for _, holding in server for place in holding.positions}
            for server in available_snapshots
        )
    )
    if not common:
        return None
    # The latest place, so that the least work is repeated.
    place = max(common)
    sources = [
        next((h, holding, place) for h, holding in s if place in holding.positions)
        for s in available_snapshots
    ]
    return _make_recovery_point(sources, sources[0][1].clocks[place])


def _latest_place(
    server: Sequence[tuple[H, AvailableSnapshots]],
) -> tuple[H, AvailableSnapshots, int]:
    """Return the first host of a server that has any place, with its latest place."""
    host, holding = next((h, holding) for h, holding in server if holding.positions)
    return (
        host,
        holding,
        max(holding.positions) if holding.current_position is None else holding.current_position,
    )


def _make_recovery_point(
    chosen_snapshots: Sequence[tuple[H, AvailableSnapshots, int]], clocks: dict[int, int]
) -> RecoveryPoint[H]:
    """Return the recovery point for the chosen hosts and places."""
    places = [
        None if place == holding.current_position else place
        for _, holding, place in chosen_snapshots
    ]
    return RecoveryPoint([host for host, _, _ in chosen_snapshots], places, dict(clocks))
