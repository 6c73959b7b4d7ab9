"""Decisions at a new generation: recovery point, present workers, assignment of lanes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskml_dist.data.batches import LaneSpec, Segment
from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import POLICIES, Asynchronous, Hogwild, Synchronous, get_policy
from daskml_dist.ps.ledger import PassLedger, PassReport, PassStoppingRule
from daskml_dist.ps.messages import CallPayload, ServerReply, ServerRequest, ServerStatus
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.ps.snapshots import (
    AvailableSnapshots,
    LaneSnapshot,
    RecentSnapshots,
    ServerSnapshot,
    standby_generation,
)
from daskml_dist.schedules import InverseScaling
from daskml_dist.training.client import membership
from daskml_dist.training.client.generations import Generations
from daskml_dist.training.client.lane_assignments import LaneAssignments, Placement, reassign_lanes
from daskml_dist.training.client.membership import Membership
from daskml_dist.training.client.membership_changes import WorkerSpeeds
from daskml_dist.training.client.recovery import choose_recovery_point
from daskml_dist.training.client.run_actors import WorkerUnreachableError
from tests.rules import one_group

# --- no worker left -------------------------------------------------------------------------


def test_losing_all_workers_after_the_roll_call_is_an_ordinary_loss() -> None:
    """The fit then waits for new workers and starts another generation."""
    crew, seating = object.__new__(Generations), object.__new__(LaneAssignments)
    crew.assignments = seating
    seating._membership = Membership(None, lease=1.0)
    seating.speeds = {}
    for act in (seating.weighted_threads, lambda: crew._start_servers(1)):
        with pytest.raises(WorkerUnreachableError, match="all were lost"):
            act()


@pytest.mark.parametrize(
    ("dealt", "even", "found"),
    [
        ({"a", "b", "c"}, False, {"a"}),
        ({"a", "b", "c"}, True, {"a"}),
        ({"a", "b", "c", "new"}, True, {"a", "new"}),
        ({"b", "c"}, False, {"a", "new"}),
    ],
)
def test_new_workers_get_lanes_only_if_no_other_worker_is_left(
    dealt: set[str], even: bool, found: set[str]
) -> None:
    """Otherwise lanes would wait until it has imported the fit's modules."""
    seating: Any = object.__new__(LaneAssignments)
    seating.lanes, seating.workers = _lanes(4), dict(enumerate("abca"))
    seating.speeds, seating.dealt = {}, dealt
    seating._rows = SimpleNamespace(find_current_holders=dict)
    seating._membership = SimpleNamespace(ready={"a": 1, "new": 1}, paused={}, leaving=set())
    seating._move_lanes([], even)
    assert set(seating.workers.values()) == found


# --- recovery point ---------------------------------------------------------------------------


def _at(now: int | None, *snapshots: int, lanes: int = 2) -> AvailableSnapshots:
    """Return the snapshots of a server whose lanes are all at the clock of its recovery point."""
    places = [*snapshots, *([] if now is None else [now])]
    return AvailableSnapshots(now, {place: dict.fromkeys(range(lanes), place) for place in places})


def test_a_single_surviving_server_continues_without_a_snapshot() -> None:
    found = choose_recovery_point(
        Synchronous(), [[("server", _at(70, 32, 64)), ("standby", _at(None, 32, 64))]]
    )
    assert found is not None
    assert (found.hosts, found.places, found.clocks) == (["server"], [None], {0: 70, 1: 70})


def test_a_standby_resumes_from_its_last_snapshot() -> None:
    for policy in (Synchronous(), Asynchronous(), get_policy("average")):
        found = choose_recovery_point(policy, [[("standby", _at(None, 32, 64))]])
        assert found is not None
        assert (found.hosts, found.places, found.clocks) == (["standby"], [64], {0: 64, 1: 64})


def test_lock_step_servers_return_to_the_latest_common_snapshot() -> None:
    available = [
        [("a", _at(97, 32, 64, 96)), ("a's standby", _at(None, 32, 64))],
        [("b's standby", _at(None, 32, 64))],
    ]
    found = choose_recovery_point(Synchronous(), available)
    assert found is not None
    assert (found.hosts, found.places) == (["a", "b's standby"], [64, 64])
    assert found.clocks == {0: 64, 1: 64}


def test_servers_one_round_apart_use_a_common_round() -> None:
    available = [[("a", _at(65, 32, 64))], [("b", _at(64, 32, 64))]]
    found = choose_recovery_point(Synchronous(), available)
    assert found is not None
    assert (found.hosts, found.places) == (["a", "b"], [64, None])


def test_free_running_lanes_resume_from_the_lowest_clock_of_all_servers() -> None:
    available = [
        [("a", AvailableSnapshots(50, {50: {0: 30, 1: 20}}))],
        [("b's standby", AvailableSnapshots(None, {32: {0: 12, 1: 20}, 48: {0: 27, 1: 21}}))],
    ]
    found = choose_recovery_point(Asynchronous(), available)
    assert found is not None
    assert found.places == [None, 48]
    assert found.clocks == {0: 27, 1: 20}
    shared = choose_recovery_point(Hogwild(), available)
    assert shared is not None
    assert shared.clocks == {0: 30, 1: 20}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_without_any_snapshot_restarts_the_fit(policy: str) -> None:
    chosen = get_policy(policy)
    assert choose_recovery_point(chosen, []) is None
    assert choose_recovery_point(chosen, [[("a", _at(9, 8))], []]) is None
    assert choose_recovery_point(chosen, [[("a", _at(9, 8))], [("b's standby", _at(None))]]) is None


def test_the_last_three_snapshots_are_kept_and_abandoned_ones_dropped() -> None:
    snapshots = RecentSnapshots()
    for at in (0, 32, 64, 96):
        snapshots.add(ServerSnapshot(at, {0: at}))
    assert list(snapshots.clocks) == [32, 64, 96]
    snapshots.add(ServerSnapshot(64, {0: 1}))
    assert snapshots.clocks == {32: {0: 32}, 64: {0: 1}}
    assert snapshots.last is snapshots[64]
    assert snapshots.get(96) is None
    alone = RecentSnapshots(1)
    for at in (0, 32):
        alone.add(ServerSnapshot(at, {0: at}))
        alone.drop_from(at + 1)
    assert list(alone.clocks) == [32]


# --- snapshots of servers ------------------------------------------------------------------------

SHAPE = (5, 2)


def _server(policy: Any, optimizer: str = "adam", generation: int = 0) -> ShardServer:
    rule = one_group(
        get_optimizer(optimizer), InverseScaling(0.1), Penalty(0.01, 0.01), 4, 1.0, average_after=4
    )
    shard = Shard(rule, ShardState(np.zeros(SHAPE), {}))
    ledger = PassLedger([0, 1], PassStoppingRule(99, tol=None), lockstep=policy.lockstep)
    return ShardServer(policy, [0, 1], shard, ledger, 1, generation, n_steps=10)


def _push(server: ShardServer, lane: int, clock: int) -> None:
    values = np.random.default_rng([lane, clock]).normal(size=SHAPE)
    request = ServerRequest((lane,), server.generation, clock, 0, 3.0, values, pull=False, loss=1.5)
    server.exchange(request, lambda reply: None)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", [Synchronous(), Asynchronous()])
def test_a_standby_resumes_bit_for_bit(policy: Any, optimizer: str) -> None:
    server, standby = _server(policy, optimizer), _server(policy, optimizer, standby_generation(0))
    snapshots: list[ServerSnapshot] = []
    server.make_snapshots(snapshots.append, interval=8)
    for clock in range(1, 28):
        for lane in (0, 1):
            _push(server, lane, clock)
        while snapshots:
            _keep(standby, snapshots.pop(0))
            server.shipped()
    place = max(standby.pause(1).positions)
    standby.renew(1, [0, 1], position=place)
    # Pushes that the standby lacks are sent again; those it has are dropped.
    for clock in range(1, 28):
        for lane in (0, 1):
            _push(standby, lane, clock)
    assert server.shard is not None
    assert standby.shard is not None
    np.testing.assert_array_equal(standby.shard.w, server.shard.w)
    state, expected = standby.state(), server.state()
    assert state is not None
    assert expected is not None
    np.testing.assert_array_equal(state.average, expected.average)
    assert (state.step, state.rows) == (expected.step, expected.rows)
    assert standby.dropped > 0
    assert standby.ledger is not None
    assert server.ledger is not None
    assert standby.ledger.partial_rows == server.ledger.partial_rows == 27 * 2 * 3


def _keep(standby: ShardServer, snapshot: ServerSnapshot, generation: int = 0) -> CallPayload:
    answers: list[CallPayload] = []
    payload = {"generation": standby_generation(generation), "first": 0, "blob": (snapshot, [])}
    standby.call("keep", payload, answers.append)
    return answers[0]


def test_a_server_that_was_replaced_cannot_reach_the_new_ones_standby() -> None:
    standby = _server(Synchronous(), generation=standby_generation(0))
    snapshot = ServerSnapshot(0, {0: 0, 1: 0}, _server(Synchronous()).shard.snapshot())  # type: ignore[union-attr]
    assert _keep(standby, snapshot)["status"] == ServerStatus.OK
    standby.pause(1)
    assert _keep(standby, snapshot)["status"] == ServerStatus.STALE_GENERATION
    standby.stand_by(1)
    assert _keep(standby, snapshot, generation=0)["status"] == ServerStatus.STALE_GENERATION
    assert _keep(standby, snapshot, generation=1)["status"] == ServerStatus.OK


def test_pulls_block_while_two_snapshots_are_in_flight() -> None:
    server, replies = _server(Synchronous()), []
    server.make_snapshots(lambda snapshot: None, interval=1)
    for clock in (1, 2):
        for lane in (0, 1):
            request = ServerRequest((lane,), 0, clock, 0, 1.0, np.ones(SHAPE))
            server.exchange(request, replies.append)
    assert replies == []  # the initial snapshot, and that of the first round
    server.shipped()
    server.shipped()
    assert [reply.lane for reply in replies] == [0, 1, 0, 1]


def test_a_paused_server_refuses_calls_and_reports_its_snapshots() -> None:
    server, replies = _server(Synchronous()), []
    server.make_snapshots(None, interval=2)
    for clock in (1, 2, 3):
        for lane in (0, 1):
            _push(server, lane, clock)
    waiting = ServerRequest((0,), 0, 4, 0, 1.0, np.ones(SHAPE))
    server.exchange(waiting, replies.append)
    holding = server.pause(1)
    assert [reply.status for reply in replies] == [ServerStatus.STALE_GENERATION]
    assert (holding.current_position, holding.positions) == (3, {0, 2, 3})
    for generation in (0, 1):
        answers: list[ServerReply] = []
        server.exchange(ServerRequest((0,), generation, 4), answers.append)
        assert answers[0].status == ServerStatus.STALE_GENERATION


def test_a_trainer_snapshot_is_complete_once_all_lanes_have_reported() -> None:
    ledger = PassLedger([0, 1], PassStoppingRule(9, tol=None), lockstep=True)
    server = ShardServer(get_policy("local"), [0, 1], None, ledger, 1, n_steps=10)
    answers: list[CallPayload] = []
    for lane in (0, 1):
        assert server.get_snapshot_clocks() == {}
        blob = {lane: LaneSnapshot(1.0 + lane, 5.0, 8)}
        server.call("store", {"generation": 0, "clock": 8, "blob": blob}, answers.append)
    assert [answer["status"] for answer in answers] == [0, 0]
    assert server.pause(1).clocks == {8: {0: 8, 1: 8}}
    server.renew(1, [0, 1], position=8)
    server.call("restore", {"generation": 1}, answers.append)
    assert answers[-1]["blob"] == {0: LaneSnapshot(1.0, 5.0, 8), 1: LaneSnapshot(2.0, 5.0, 8)}


def test_reports_are_counted_once() -> None:
    ledger = PassLedger([0, 1], PassStoppingRule(9, tol=None), lockstep=False)
    for _ in range(2):
        ledger.report(1, PassReport([0], loss=4.0, rows=2.0, steps=1))
    ledger.count(1, rows=3.0, loss=6.0, steps=2)
    ledger.report(1, PassReport([1]))
    ledger.report(1, PassReport([1]))  # after the pass is closed
    (record,) = ledger.records
    assert (record["rows"], record["loss"], record["steps"]) == (5, 2.0, 3)


def test_repeating_a_closed_pass_report_ignores_a_later_stop_request() -> None:
    """Otherwise one lane would start the next pass and wait there for the other forever."""
    ledger = PassLedger([0, 1], PassStoppingRule(9, tol=None), lockstep=True)
    server = ShardServer(get_policy("local"), [0, 1], None, ledger, 1)
    answers: list[CallPayload] = []

    def report(number: int, lane: int) -> bool:
        payload = {"generation": 0, "pass": number, "report": {"lanes": [lane]}}
        server.call("report", payload, answers.append)
        return bool(answers[-1]["stop"]) if answers else False

    report(1, 0), report(1, 1)
    assert report(1, 0) is False
    server.stop()
    assert report(1, 1) is False
    report(2, 0), report(2, 1)
    assert [answer["stop"] for answer in answers[-2:]] == [True, True]
    assert report(2, 0) is True


# --- present workers --------------------------------------------------------------------------


class _Clock:
    """Clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.workers: dict[str, dict[str, Any]] = {}
        monkeypatch.setattr(membership, "list_workers", lambda client: self.workers)
        for clock in ("monotonic", "time"):
            monkeypatch.setattr(membership.time, clock, lambda: self.now)

    def beat(self, *addresses: str, seconds: float = 0.5, status: str = "running") -> None:
        self.now += seconds
        for address in addresses:
            self.workers[address] = {"nthreads": 2, "last_seen": self.now, "status": status}


def test_a_worker_is_silent_once_its_lease_has_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, membership = _Clock(monkeypatch), Membership(None, lease=3.0)
    clock.beat("a", "b")
    membership.note_work_begun("b")
    for _ in range(6):
        clock.beat("a")
        membership.call()
        assert membership.find_silent(["a", "b"]) == []
    clock.beat("a")
    clock.beat("a")
    membership.call()
    assert membership.find_silent(["a", "b"]) == ["b"]
    membership.count_as_lost("b")
    assert membership.call() == {"a": 2}
    del clock.workers["b"]
    membership.call()
    clock.beat("b")  # another worker at the same address
    assert membership.call() == {"a": 2, "b": 2}


def test_a_suspended_client_considers_no_worker_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, membership = _Clock(monkeypatch), Membership(None, lease=3.0)
    clock.beat("a")
    membership.call()
    membership.note_work_begun("a")
    clock.now += 60
    membership.call()
    assert membership.find_silent(["a"]) == []


def test_a_worker_that_imports_its_part_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, membership = _Clock(monkeypatch), Membership(None, lease=3.0)
    clock.beat("a")
    for seconds in range(40):
        clock.now += 1.0
        membership.call()
        assert bool(membership.find_silent(["a"])) == (seconds > 30)


def test_leaving_workers_are_present_but_get_no_new_assignments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, membership = _Clock(monkeypatch), Membership(None, lease=3.0)
    clock.beat("a", "b")
    clock.beat("c", status="closing_gracefully")
    membership.call()
    membership.announce_leaving("b")
    assert set(membership.call()) == {"a", "b", "c"}
    assert set(membership.staying_workers) == {"a"}


# --- assignment of lanes and servers ----------------------------------------------------------


def _lanes(n: int) -> list[LaneSpec]:
    return [LaneSpec(i, (Segment(i, 0, 10),)) for i in range(n)]


def test_lanes_of_a_lost_worker_go_to_the_freest_that_holds_their_rows() -> None:
    current = {0: "a", 1: "a", 2: "b", 3: "c", 4: "c"}
    workers_of_lanes = {3: ["a", "b"], 4: ["b"]}
    assigned = reassign_lanes(_lanes(5), current, workers_of_lanes, {"a": 1, "b": 1})
    assert assigned == {0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}


@pytest.mark.parametrize("seed", range(20))
def test_evening_out_never_leaves_a_better_move(seed: int) -> None:
    rng = random.Random(seed)
    workers = [f"w{i}" for i in range(rng.randint(1, 5))]
    capacity = {w: rng.choice([0.3, 1, 1, 2]) for w in workers}
    lanes = _lanes(rng.randint(1, 12))
    current = {lane.lane: rng.choice([*workers, "gone"]) for lane in lanes}
    assigned = reassign_lanes(lanes, current, {}, capacity, rebalance=True)
    load = {w: sum(at == w for at in assigned.values()) for w in workers}
    assert set(assigned) == {lane.lane for lane in lanes}
    fullest = max(load[w] / capacity[w] for w in workers)
    assert all((load[w] + 1) / capacity[w] >= fullest for w in workers)


@pytest.mark.parametrize("keeps", [True, False])
def test_free_running_lanes_have_one_trainer_per_worker(keeps: bool) -> None:
    lanes = _lanes(6)
    fit: Any = SimpleNamespace(
        work=SimpleNamespace(call=None, keeps_lanes=keeps), rows=SimpleNamespace(lane_rows=[10] * 6)
    )
    membership: Any = SimpleNamespace(paused={}, leaving=set(), ready={"a": 1, "b": 1})
    rows: Any = SimpleNamespace(find_current_holders=dict)
    workers = ["a", "a", "b", "b", "lost", "lost"]
    assignments = LaneAssignments(fit, Placement(lanes, workers), rows, membership)
    running: Any = [
        SimpleNamespace(address="a", lanes=lanes[:2]),
        SimpleNamespace(address="b", lanes=lanes[2:4]),
    ]
    parts = assignments.assign_lanes(running, rebalance=False)
    found = [(part.address, len(part.lanes), part.trainer is None) for part in parts]
    if keeps:
        assert sorted(found) == [("a", 0, False), ("a", 3, True), ("b", 0, False), ("b", 3, True)]
    else:
        assert sorted(found) == [("a", 1, True), ("a", 2, False), ("b", 1, True), ("b", 2, False)]


def test_a_worker_is_slow_only_if_slow_in_consecutive_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "daskml_dist.training.client.membership_changes.time.monotonic", lambda: now[0]
    )
    pace, workers = WorkerSpeeds([100, 100, 100]), {0: "a", 1: "b", 2: "c"}
    found, seconds = [], [0.0, 0.0, 0.0]
    for number in range(1, 9):
        now[0] += 1.0
        for lane, seconds_of_lane in enumerate((1.0, 1.1, 1.0 if number == 3 else 4.0)):
            seconds[lane] += seconds_of_lane
        busy = {lane: (seconds[lane], number) for lane in workers}
        found.append(pace.record_pass(number, busy, workers))
        assert pace.record_pass(number, busy, workers) == {}  # a repeated record is ignored
    assert found[:5] == [{}] * 5
    assert found[5] == {"c": pytest.approx(0.275)}


def test_waiting_for_a_core_does_not_count_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "daskml_dist.training.client.membership_changes.time.monotonic", lambda: now[0]
    )
    pace, workers = WorkerSpeeds([100, 100, 100]), {0: "a", 1: "b", 2: "c"}
    seconds = [0.0, 0.0, 0.0]
    for number in range(1, 100):
        now[0] += 0.05
        # Each process in turn is descheduled for the duration of five passes.
        for lane in workers:
            seconds[lane] += 0.06 if number % 3 == lane else 0.01
        busy = {lane: (seconds[lane], number) for lane in workers}
        assert pace.record_pass(number, busy, workers) == {}


@pytest.mark.parametrize(
    ("servers", "ships", "common", "left"),
    [
        # The workers of a server and of its standby.
        (["ab", "ac"], True, True, "a"),
        (["ab", "ab", "ba"], True, True, None),
        (["ab", "ac", "bc"], True, True, "a"),
        (["ab", "ac"], False, True, None),
        (["ab", "ac"], True, False, None),
        (["a", "a"], True, True, None),
        (["ab"], True, True, None),
    ],
)
def test_a_server_moves_to_a_worker_with_fewer(
    servers: list[str], ships: bool, common: bool, left: str | None
) -> None:
    pairs = [
        SimpleNamespace(
            host=SimpleNamespace(address=addresses[0]), standby_ships=ships,
            standby=SimpleNamespace(address=addresses[1]) if len(addresses) > 1 else None,
        )
        for addresses in servers
    ]  # fmt: skip
    generations: Any = SimpleNamespace(
        servers=pairs, _moving=None, _find_common_places=lambda hosts: [{1}] if common else []
    )
    assert Generations.move_crowded_server(generations) == left
    moving = generations._moving
    assert (None if moving is None else moving.host.address) == left
