"""Servers of a fit, and the final states of servers and trainers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
import numpy as np

from daskml_dist.models.base import GrowingTable
from daskml_dist.ps.growing_shard import make_shard
from daskml_dist.ps.ledger import PassLedger
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import HeldRows, ShardState, StateParts
from daskml_dist.ps.snapshots import (
    KEPT_SNAPSHOTS,
    LaneSnapshot,
    ServerSnapshot,
    join_lane_snapshots,
)
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.keyed import KeyedSolution
from daskml_dist.training.spec import FitSpec, InterruptedState, RankResults, TrainerResult

#: Number of parameters (8 MiB in float64) from which the memory of another snapshot matters.
_LARGE = 1 << 20
#: Share of a worker's memory limit for rows of tables; the same as for blocks that are read.
_TABLE_SHARE = 0.4


def count_fit_servers(fit: FitSpec) -> int:
    """Return the number of servers: one per shard, or one for the ledger alone."""
    return len(fit.work.layout.slices()) if fit.work.uses_shards else 1


def make_server(
    fit: FitSpec,
    server_index: int,
    n_trainers: int,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
    generation: int = 0,
    memory_limit: float | None = None,
) -> ShardServer:
    """Make server `server_index`; number 0 also holds the ledger.

    Rows of a table beyond their share of `memory_limit`, the limit of the process, are kept in
    mapped files.
    """
    work, lanes = fit.work, list(range(len(fit.rows.lane_rows)))
    shard = ledger = None
    if fit.work.uses_shards:
        rows = fit.work.layout.slices()[server_index]
        # A server with a shard holds a slice of the parameters and the optimizer's state for it.
        start = fit.make_start_state(rows)
        if fit.steps.policy.averages_on_servers:
            # An earlier fit's optimizer state belongs to the lanes' own steps, not to outer steps.
            start = ShardState(start.w, {}, rows=start.rows)
        if server_index == 0 and fit.steps.policy.loop == "parts":
            start.held = make_first_held_rows(fit)
        table = _bound_table(fit, memory_limit)
        shard = make_shard(fit.steps.server_rule, table, start, rows.start)
    if server_index == 0:
        # The first server also collects the lanes' reports and decides when the fit ends.
        ledger = PassLedger(
            lanes,
            copy.copy(fit.work.stopping),
            lockstep=fit.work.lockstep,
            score=fit.steps.model.validation_score if fit.rows.validation_fraction else None,
            on_record=on_record,
            first_pass=fit.work.first_pass,
            score_names=fit.work.score_names,
            describe_pass=None if fit.work.privacy is None else _PrivatePasses(fit),
            mean_weight=fit.rows.mean_weight,
        )
    return ShardServer(
        work, lanes, shard, ledger, n_trainers, generation, work.first_clock, work.n_steps,
        work.compression, _count_kept_snapshots(fit),
    )  # fmt: skip


def make_first_held_rows(fit: FitSpec) -> HeldRows:
    """Return the initial rows that trainers hold: those of an earlier fit, or new ones."""
    work, initial = fit.steps, fit.steps.initial
    ids = work.model.own_ids
    w = np.zeros((len(ids), work.shape[1]), fit.rows.dtype)
    if initial is None or initial.ids is None:
        return HeldRows(ids, w, work.held_rule.init(w), 0, work.first_clock)
    is_known = np.isin(ids, initial.ids)
    positions = np.searchsorted(initial.ids, ids[is_known])
    w[is_known] = initial.w[positions]
    opt_state = work.held_rule.init(w)
    earlier_rows = initial.held
    if earlier_rows is not None and earlier_rows.opt_state.keys() == opt_state.keys():
        return HeldRows(ids, w, earlier_rows.opt_state, earlier_rows.step, work.first_clock)
    for name in opt_state.keys() & initial.opt_state.keys():
        opt_state[name][is_known] = initial.opt_state[name][positions]
    # The servers counted the steps of every lane.
    step = initial.step // len(fit.rows.lane_rows)
    return HeldRows(ids, w, opt_state, step, work.first_clock)


def _bound_table(fit: FitSpec, memory_limit: float | None) -> GrowingTable | None:
    """Return the table of a fit, with the bytes of its rows that stay in a server's memory."""
    table, budget = fit.steps.model.table, fit.run.memory_budget
    if table is None or table.memory_bytes is not None:
        return table
    if budget is None:
        if not memory_limit:
            return table
        budget = int(_TABLE_SHARE * memory_limit)
    # Divided by two, since a worker may have a server and another server's standby.
    folder = table.folder or dask.config.get("temporary-directory", None)
    return replace(table, memory_bytes=budget // 2, folder=folder)


class _PrivatePasses:
    """Entries in the records of a private fit's passes: the privacy spent, and no loss.

    A loss is a sum over rows without noise, so trainers do not report it.

    Parameters
    ----------
    fit : FitSpec
    """

    def __init__(self, fit: FitSpec) -> None:
        self._n_steps, self._privacy = fit.work.n_steps, fit.work.privacy

    def __call__(self, pass_number: int) -> dict[str, Any]:
        assert self._privacy is not None
        budget_spent = self._privacy.spent(pass_number * self._n_steps)
        return {"loss": math.nan, "epsilon": budget_spent.epsilon}


def _count_kept_snapshots(fit: FitSpec) -> int:
    """Return the number of snapshots that a server keeps: one if they are large and it is alone."""
    is_alone = count_fit_servers(fit) == 1
    large = not fit.work.remembers_course and fit.steps.n_parameters >= _LARGE
    return 1 if is_alone and large else KEPT_SNAPSHOTS


def join_final_states(
    fit: FitSpec, shards: list[ShardState | None], results: list[TrainerResult]
) -> ShardState | Solution:
    """Return the final state of a fit, from shards and trainers."""
    held_shards = [s for s in shards if s is not None]
    # Return values of a function on each rank, and the parameters that servers held for it.
    if ranks := [r.state for r in results if isinstance(r.state, RankResults)]:
        return RankResults.join(ranks, ShardState.join(held_shards) if held_shards else None)
    # Lanes or stages that each hold a part of the parameters.
    if ranges := [r.state for r in results if isinstance(r.state, StateParts)]:
        return StateParts.join(ranges)
    # Trainers that each own the values of some keys.
    if keyed := [r.state for r in results if isinstance(r.state, KeyedSolution)]:
        return KeyedSolution.join(keyed)
    whole_states = (r.state for r in results if not isinstance(r.state, StateParts))
    trainer_state = next((state for state in whole_states if state is not None), None)
    # Slices of the parameters on the servers, in order.
    if not held_shards:
        assert trainer_state is not None
        return trainer_state
    # The shard of a single server is already whole; joining would copy a large table needlessly.
    joined = held_shards[0] if len(held_shards) == 1 else ShardState.join(held_shards)
    if joined.held is not None:
        # The servers' copy of the rows that trainers hold may be older.
        newer_rows = trainer_state.held if isinstance(trainer_state, ShardState) else None
        return joined.join_held(newer_rows or joined.held, fit.steps.rule.init)
    if isinstance(trainer_state, ShardState):
        # Shared memory: the servers have the parameters, and a trainer has the optimizer's state.
        joined.opt_state, joined.step = trainer_state.opt_state, trainer_state.step
    return joined


def join_interrupted_states(
    fit: FitSpec, shards: list[ShardState | None], results: list[TrainerResult]
) -> InterruptedState | None:
    """Return the present state of an interrupted fit, or None if there is no usable one."""
    interrupted_states = [r.interrupted_state for r in results if r.interrupted_state is not None]
    interrupted_states += [
        InterruptedState(r.state) for r in results if isinstance(r.state, ShardState | Solution)
    ]
    rows = sum(interrupted.rows for interrupted in interrupted_states)
    if fit.work.uses_shards:
        if any(shard is None for shard in shards):
            return None
        own_results = [
            TrainerResult(0, 0, interrupted.state) for interrupted in interrupted_states[:1]
        ]
        state = join_final_states(fit, shards, own_results)
    elif not interrupted_states:
        return None
    else:
        # If gradients are summed, all replicas are equal; otherwise the model is the mean of the
        # lanes' parameters.
        are_alike = fit.work.remembers_course or fit.steps.policy.sums_gradients
        state = interrupted_states[0].state if are_alike else _average_left(interrupted_states)
    if isinstance(state, ShardState):
        rows_before = 0.0 if fit.steps.initial is None else fit.steps.initial.rows
        if state.rows <= rows_before:
            return None
    opt_state = state.opt_state.values() if isinstance(state, ShardState) else ()
    # A diverged state is dropped: a warm start from NaN would fail immediately.
    if not all(np.isfinite(array).all() for array in (state.w, *opt_state)):
        return None
    return InterruptedState(state, rows=rows)


def _average_left(interrupted_states: list[InterruptedState]) -> ShardState | Solution:
    """Return the mean of the trainers' states, weighted by their rows."""
    first, total = interrupted_states[0].state, sum(part.row_share for part in interrupted_states)
    states = [(part.row_share / total, part.state) for part in interrupted_states]
    if len(interrupted_states) == 1 or not isinstance(first, ShardState):
        return first
    shards = [(share, state) for share, state in states if isinstance(state, ShardState)]
    first.w = np.sum([n * s.w for n, s in shards], axis=0, dtype=first.w.dtype)
    if first.average is not None:
        weighted_averages = [n * s.final for n, s in shards]
        first.average = np.sum(weighted_averages, axis=0, dtype=first.w.dtype)
    return first


def revive_servers(
    fit: FitSpec, snapshots: Sequence[tuple[ServerSnapshot, list[dict[str, Any]]]]
) -> list[ShardServer]:
    """Make servers in the calling process, from a snapshot and records for each."""
    servers = []
    for number, (snapshot, records) in enumerate(snapshots):
        server = make_server(fit, number, n_trainers=1)
        server.take(snapshot, records)
        # A later generation, so that late messages of lost trainers are refused.
        server.renew(1, range(len(fit.rows.lane_rows)), position=snapshot.position)
        servers.append(server)
    return servers


def results_from_snapshots(fit: FitSpec, lanes: Mapping[int, LaneSnapshot]) -> list[TrainerResult]:
    """Return the results of trainers whose lanes are in the state of these snapshots."""
    total, interrupted_states = sum(fit.rows.lane_rows), []
    for number, lane in join_lane_snapshots(lanes).items():
        if lane.shard is not None:
            shard = Shard(fit.steps.rule, fit.make_start_state())
            shard.restore(lane.shard)
            interrupted_states.append(
                InterruptedState(shard.state(), fit.rows.lane_rows[number] / total)
            )
    rows = sum(lane.rows for lane in lanes.values())
    return [
        TrainerResult(0, 0, interrupted_state=replace(state, rows=0.0 if i else rows))
        for i, state in enumerate(interrupted_states)
    ]
