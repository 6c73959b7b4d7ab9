"""The parameter server's state machine, driven directly; replies are collected in lists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.policies import (
    Asynchronous,
    BoundedStaleness,
    Hogwild,
    LocalSGD,
    Policy,
    Synchronous,
)
from daskml_dist.ps.ledger import PassLedger, PassStoppingRule
from daskml_dist.ps.messages import CallPayload, ServerReply, ServerRequest, ServerStatus
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.schedules import Constant, StalenessAware
from tests.rules import one_group

SIZES = (5, 17, 1)  # rows of the lanes
N_FEATURES, RATE, L2 = 6, 0.1, 0.05
SHAPE = (N_FEATURES + 1, 1)


def _rule(optimizer: str = "sgd", l1: float = 0.0, l2: float = L2, **options: Any) -> UpdateRule:
    options = {"schedule": Constant(RATE), "steps_per_pass": 1.0} | options
    return one_group(
        get_optimizer(optimizer), penalty=Penalty(l1, l2), n_penalised=N_FEATURES, **options
    )


class _Fleet:
    """Lanes of a least-squares problem and their servers, in one thread."""

    def __init__(self, policy: Policy, n_servers: int = 1, rule: UpdateRule | None = None) -> None:
        rng = np.random.default_rng(0)
        self.X = [np.c_[rng.normal(size=(n, N_FEATURES)), np.ones(n)] for n in SIZES]
        self.y = [rng.normal(size=(n, 1)) for n in SIZES]
        self.layout = ShardLayout(*SHAPE, n_servers)
        self.lanes = list(range(len(SIZES)))
        self.replies: dict[int, list[list[ServerReply]]] = {lane: [] for lane in self.lanes}
        self.generation = 0
        self.servers = []
        for rows in self.layout.slices():
            state = ShardState(np.zeros((rows.stop - rows.start, 1)), {})
            shard = Shard(rule or _rule(), state, rows.start)
            self.servers.append(ShardServer(policy, self.lanes, shard, None, n_trainers=1))

    @property
    def w(self) -> NDArray[Any]:
        return np.concatenate([server.shard.w for server in self.servers if server.shard])

    def gradient(self, lane: int, w: NDArray[Any]) -> NDArray[Any]:
        """Return the gradient SUM of a lane's rows."""
        return self.X[lane].T @ (self.X[lane] @ w - self.y[lane])

    def requests(
        self, lane: int, clock: int, values: Any = None, version: int = 0
    ) -> list[ServerRequest]:
        parts = [None] * len(self.servers) if values is None else self.layout.split(values)
        rows = 0.0 if values is None else float(len(self.X[lane]))
        return [
            ServerRequest((lane,), self.generation, clock, version, rows, part) for part in parts
        ]

    def send(
        self, requests: list[ServerRequest], rng: random.Random | None = None
    ) -> list[ServerReply]:
        """Send to all servers in random order; return the list that receives the replies."""
        replies: list[ServerReply] = []
        order = list(zip(self.servers, requests, strict=True))
        if rng is not None:
            rng.shuffle(order)
        for server, request in order:
            server.exchange(request, replies.append)
        return replies

    def push(self, lane: int, clock: int, rng: random.Random | None = None) -> list[ServerReply]:
        return self.send(self.requests(lane, clock, self.gradient(lane, self.w)), rng)

    def round(
        self, lanes: Sequence[int], clock: int, rng: random.Random
    ) -> list[list[ServerReply]]:
        """Let all lanes push step `clock` at the same parameters, in random order."""
        w = self.w
        pushes = [(server, lane) for server in range(len(self.servers)) for lane in lanes]
        rng.shuffle(pushes)
        parts = {lane: self.requests(lane, clock, self.gradient(lane, w)) for lane in lanes}
        replies: dict[int, list[ServerReply]] = {lane: [] for lane in lanes}
        for server, lane in pushes:
            self.servers[server].exchange(parts[lane][server], replies[lane].append)
        return [replies[lane] for lane in lanes]

    def call(self, op: str, **payload: Any) -> list[CallPayload]:
        answers: list[CallPayload] = []
        for server in self.servers:
            server.call(op, {"generation": self.generation, **payload}, answers.append)
        return answers

    def renew(self, lanes: list[int]) -> None:
        self.generation += 1
        for server in self.servers:
            server.renew(self.generation, lanes)


def _descend(fleet: _Fleet, w: NDArray[Any], lanes: Sequence[int]) -> NDArray[Any]:
    """Return one step of gradient descent on the union of the lanes' rows."""
    X = np.concatenate([fleet.X[lane] for lane in lanes])
    y = np.concatenate([fleet.y[lane] for lane in lanes])
    penalised = np.r_[np.ones(N_FEATURES), 0.0][:, None]
    return w - RATE * (X.T @ (X @ w - y) / len(X) + L2 * penalised * w)


def _check_replies(fleet: _Fleet, rounds: list[list[ServerReply]], clock: int) -> None:
    for replies in rounds:
        assert len(replies) == len(fleet.servers)
        assert {(r.status, r.clock, r.version) for r in replies} == {
            (ServerStatus.OK, clock, clock)
        }


def _check_first_step(fleet: _Fleet, lanes: Sequence[int]) -> None:
    np.testing.assert_allclose(fleet.w, _descend(fleet, np.zeros(SHAPE), lanes), rtol=1e-10)


# --- synchronous -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_servers", [1, 2, 4])
def test_rounds_equal_gradient_descent_on_all_rows(n_servers: int) -> None:
    fleet, rng = _Fleet(Synchronous(), n_servers), random.Random(0)
    expected = np.zeros(SHAPE)
    for clock in range(1, 51):
        rounds = fleet.round(fleet.lanes, clock, rng)
        expected = _descend(fleet, expected, fleet.lanes)
        _check_replies(fleet, rounds, clock)
        np.testing.assert_allclose(fleet.w, expected, rtol=1e-10)


@pytest.mark.parametrize("n_servers", [1, 2, 4])
def test_lane_that_leaves_and_comes_back(n_servers: int) -> None:
    """Every round is gradient descent on the rows of the participating lanes."""
    fleet, rng = _Fleet(Synchronous(), n_servers), random.Random(1)
    expected = np.zeros(SHAPE)
    for clock in range(1, 31):
        if clock == 11:
            assert fleet.call("leave", lanes=[1]) == [{"status": 0}] * n_servers
        if clock == 21:
            fleet.renew(fleet.lanes)
        lanes = [0, 2] if 11 <= clock < 21 else fleet.lanes
        _check_replies(fleet, fleet.round(lanes, clock, rng), clock)
        expected = _descend(fleet, expected, lanes)
        np.testing.assert_allclose(fleet.w, expected, rtol=1e-10)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_results_do_not_depend_on_the_number_of_servers(optimizer: str) -> None:
    found = []
    for n_servers in (1, 2, 4):
        rng = random.Random(n_servers)  # a different order of arrival in each case
        fleet = _Fleet(Synchronous(), n_servers, _rule(optimizer, l1=0.02))
        for clock in range(1, 21):
            fleet.round(fleet.lanes, clock, rng)
        found.append(fleet.w)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert np.any(found[0] != 0)


def test_a_round_closes_when_the_last_missing_lane_leaves() -> None:
    fleet = _Fleet(Synchronous())
    first, second = fleet.push(0, 1), fleet.push(1, 1)
    assert first == second == []
    fleet.call("leave", lanes=[2])
    assert [r.status for r in first + second] == [ServerStatus.OK, ServerStatus.OK]
    _check_first_step(fleet, [0, 1])


def test_repeated_push_is_applied_once() -> None:
    fleet = _Fleet(Synchronous())
    (server,) = fleet.servers
    once, twice = fleet.push(0, 1), fleet.push(0, 1)
    others = [fleet.push(lane, 1) for lane in (1, 2)]
    late = fleet.push(0, 1)
    assert server.dropped == 2
    for replies in (once, twice, *others, late):
        assert [(r.status, r.version, r.clock) for r in replies] == [(ServerStatus.OK, 1, 1)]
    _check_first_step(fleet, fleet.lanes)


def test_a_late_lane_gets_the_clock_to_continue_from() -> None:
    fleet = _Fleet(Synchronous(backup_workers=1))
    fleet.push(0, 1)
    fleet.push(2, 1)
    (reply,) = fleet.push(1, 1)
    assert (reply.status, reply.clock, reply.version) == (ServerStatus.OK, 1, 1)
    _check_first_step(fleet, [0, 2])


def test_one_request_may_push_for_several_lanes() -> None:
    fleet, replies = _Fleet(Synchronous()), []
    total = fleet.gradient(0, fleet.w) + fleet.gradient(2, fleet.w)
    together = ServerRequest((0, 2), 0, 1, 0, float(SIZES[0] + SIZES[2]), total)
    for _ in range(2):  # its repetition is refused
        fleet.servers[0].exchange(together, replies.append)
    assert replies == []
    fleet.push(1, 1)
    assert [(r.lane, r.clock) for r in replies] == [(0, 1), (0, 1)]
    _check_first_step(fleet, fleet.lanes)


def test_push_of_coordinates() -> None:
    """Lanes touch different rows; the sum is applied to their union, and a pull selects rows."""
    fleet = _Fleet(Synchronous(), rule=_rule(coordinates=True))
    replies: list[ServerReply] = []
    for lane, index in enumerate(([0, 4], [4, 5], [])):
        values = np.full((len(index), 1), lane + 1.0)
        at = np.array(index, np.int64)
        wanted = np.array([4, 6])
        request = ServerRequest((lane,), 0, 1, 0, 1.0, values, at, pull_index=wanted)
        fleet.servers[0].exchange(request, replies.append)
    expected = np.zeros(SHAPE)
    expected[[0, 4, 5], 0] = np.array([1.0, 3.0, 2.0]) * -RATE / 3
    np.testing.assert_allclose(fleet.w, expected, rtol=1e-12)
    for reply in replies:
        np.testing.assert_array_equal(reply.values, fleet.w[[4, 6]])


# --- arrival ---------------------------------------------------------------------------------


def test_async_applies_on_arrival_and_once() -> None:
    fleet = _Fleet(Asynchronous())
    expected = np.zeros(SHAPE)
    for n, (lane, clock) in enumerate([(1, 1), (1, 2), (0, 1), (1, 3), (2, 1)], start=1):
        (reply,) = fleet.push(lane, clock)
        expected = _descend(fleet, expected, [lane])
        assert (reply.version, reply.clock) == (n, clock)
        assert reply.values is not None
        np.testing.assert_allclose(reply.values, expected, rtol=1e-10)
        fleet.push(lane, clock)  # repeated
        np.testing.assert_allclose(fleet.w, expected, rtol=1e-10)
    assert fleet.servers[0].dropped == 5


def test_stale_gradient_takes_a_smaller_step() -> None:
    fleet = _Fleet(Asynchronous(), rule=_rule(schedule=StalenessAware(Constant(RATE))))
    old = fleet.gradient(2, fleet.w)
    for clock in range(1, 5):
        fleet.send(fleet.requests(0, clock, fleet.gradient(0, fleet.w), version=clock - 1))
    before = fleet.w
    fleet.send(fleet.requests(2, 1, old.copy(), version=0))
    penalised = np.r_[np.ones(N_FEATURES), 0.0][:, None]
    step = RATE / 4 * (old / SIZES[2] + L2 * penalised * before)
    np.testing.assert_allclose(fleet.w, before - step, rtol=1e-12)


@pytest.mark.parametrize(("most", "allowed"), [(0, 0), (2, 2), ("auto", 2 * len(SIZES))])
def test_a_gradient_that_is_too_old_is_dropped(most: Any, allowed: int) -> None:
    """Ringmaster: its lane counts the step and continues from the current parameters."""
    fleet = _Fleet(Asynchronous(max_delay=most), n_servers=2)
    old = fleet.gradient(2, fleet.w)
    for clock in range(1, allowed + 1):
        fleet.send(fleet.requests(0, clock, fleet.gradient(0, fleet.w), version=clock - 1))
    before = fleet.w
    fleet.send(fleet.requests(2, 1, old, version=0))
    assert (fleet.w != before).all()
    before = fleet.w
    replies = fleet.send(fleet.requests(2, 2, old, version=0))
    np.testing.assert_array_equal(fleet.w, before)
    assert [server.dropped for server in fleet.servers] == [1, 1]
    assert {(reply.clock, reply.version) for reply in replies} == {(2, allowed + 1)}
    fleet.send(fleet.requests(2, 3, old, version=allowed + 1))
    assert (fleet.w != before).all()


def test_a_fast_lane_has_no_more_weight_in_a_gradient_table() -> None:
    """Ringleader: steps start once all lanes have pushed; then each lane's push makes one."""
    fleet = _Fleet(Asynchronous(gradient_table=True), n_servers=2)
    for clock in range(1, 5):
        replies = fleet.push(0, clock)
        assert {(r.status, r.clock, r.version) for r in replies} == {(ServerStatus.OK, clock, 0)}
    fleet.push(1, 1)
    assert not fleet.w.any()
    fleet.push(2, 1)  # each lane's mean gradient at zero: a step of gradient descent
    _check_first_step(fleet, fleet.lanes)
    assert [server.shard.version for server in fleet.servers if server.shard] == [1, 1]
    fleet.renew(fleet.lanes)  # a new generation fills the table again
    fleet.push(0, 5)
    assert [server.shard.version for server in fleet.servers if server.shard] == [1, 1]


@pytest.mark.parametrize("index", [None, np.array([1, 4, 6])])
def test_a_delayed_gradient_is_corrected_by_the_change_of_parameters(index: Any) -> None:
    """Zheng et al. 2017: g + c g * g * (w - what the lane pulled), of the mean gradient g."""
    rule = _rule(l2=0.0)
    fleet = _Fleet(Asynchronous(delay_compensation=0.3), rule=rule)
    (server,) = fleet.servers
    replies: list[ServerReply] = []
    server.exchange(ServerRequest((2,), 0, 0, pull_index=index), replies.append)
    rows = slice(None) if index is None else index
    g = fleet.gradient(2, fleet.w)[rows] / SIZES[2]
    for clock in range(1, 4):
        fleet.push(0, clock)
    before = fleet.w
    push = SIZES[2] * g
    server.exchange(ServerRequest((2,), 0, 1, 0, SIZES[2], push, index), replies.append)
    np.testing.assert_array_equal(push, SIZES[2] * g)  # the caller's array must not change
    corrected = g + 0.3 * g * g * (before[rows] - 0)
    expected = before.copy()
    expected[rows] -= RATE * corrected
    np.testing.assert_allclose(fleet.w, expected, rtol=1e-12)


@pytest.mark.parametrize("bound", [0, 1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_bounded_staleness_on_random_schedules(seed: int, bound: int) -> None:
    """No lane gets more than `bound` ahead, all reach the end, and no push is lost."""
    rng, fleet = random.Random(seed), _Fleet(BoundedStaleness(bound))
    end, clocks = 25, dict.fromkeys(range(3), 0)
    waiting = {lane: fleet.send(fleet.requests(lane, 0)) for lane in fleet.lanes}
    while min(clocks.values()) < end:
        going = [lane for lane, replies in waiting.items() if replies and clocks[lane] < end]
        assert going
        lane = rng.choice(going)
        assert clocks[lane] - min(clocks.values()) <= bound
        clocks[lane] += 1
        waiting[lane] = fleet.push(lane, clocks[lane])
    assert all(waiting.values())
    assert fleet.servers[0].shard is not None
    assert fleet.servers[0].shard.version == 3 * end
    assert fleet.servers[0].dropped == 0


def test_a_leaving_lane_releases_waiting_lanes() -> None:
    fleet = _Fleet(BoundedStaleness(0))
    first, second = fleet.push(0, 1), fleet.push(1, 1)
    assert first == second == []
    fleet.call("leave", lanes=[2])
    assert [r.lane for r in first + second] == [0, 1]


def test_hogwild_adds_the_changes_of_a_process() -> None:
    fleet = _Fleet(Hogwild())
    for lane in (1, 0):
        (request,) = fleet.requests(lane, 1, np.ones(SHAPE))
        request.progress = np.array([[3.0, 12.0, 0.5]])
        fleet.send([request])
    np.testing.assert_array_equal(fleet.w, 2)


# --- generations, the end --------------------------------------------------------------------


def test_requests_of_a_stale_generation_are_dropped_with_a_reply() -> None:
    fleet = _Fleet(Synchronous())
    waiting = fleet.push(0, 1)
    old = fleet.requests(1, 1, fleet.gradient(1, fleet.w))
    fleet.renew(fleet.lanes)
    assert [r.status for r in waiting] == [ServerStatus.STALE_GENERATION]
    assert [r.status for r in fleet.send(old)] == [ServerStatus.STALE_GENERATION]
    answers: list[CallPayload] = []
    fleet.servers[0].call("leave", {"generation": 0, "lanes": [0]}, answers.append)
    assert answers == [{"status": int(ServerStatus.STALE_GENERATION)}]
    # The open round was dropped with the old generation: all lanes push again, once.
    rounds = fleet.round(fleet.lanes, 1, random.Random(0))
    _check_replies(fleet, rounds, 1)
    _check_first_step(fleet, fleet.lanes)


def test_an_open_round_of_kept_lanes_survives_generations() -> None:
    """If a generation is shorter than a round, pushes of several generations form one round."""
    fleet = _Fleet(LocalSGD(4, quorum=2))
    (server,) = fleet.servers
    first = fleet.send(fleet.requests(0, 4, fleet.gradient(0, fleet.w)))
    server.pause(1)
    server.renew(1, fleet.lanes)
    fleet.generation = 1
    assert [reply.status for reply in first] == [ServerStatus.STALE_GENERATION]
    # The lane gets the server's clock immediately, and repeats pushes without a reply.
    assert [reply.clock for reply in fleet.send(fleet.requests(0, 4))] == [0]
    replies_before = fleet.send(fleet.requests(0, 4, fleet.gradient(0, fleet.w)))
    assert not replies_before
    other = fleet.send(fleet.requests(1, 4, fleet.gradient(1, fleet.w)))
    assert [reply.clock for reply in replies_before + other] == [4, 4]
    assert server.shard is not None
    assert server.shard.version == 1
    assert server.shard.rows == SIZES[0] + SIZES[1]


def test_push_without_a_pull_is_not_answered() -> None:
    fleet, replies = _Fleet(Asynchronous()), []
    push = ServerRequest((0,), 0, 1, 0, 1.0, np.ones(SHAPE), pull=False)
    fleet.servers[0].exchange(push, replies.append)
    fleet.renew(fleet.lanes)
    fleet.servers[0].exchange(push, replies.append)
    assert replies == []
    assert fleet.servers[0].shard is not None
    assert fleet.servers[0].shard.version == 1


def _ledger() -> PassLedger:
    return PassLedger([0, 1, 2], PassStoppingRule(5, tol=None), lockstep=True)


@pytest.mark.parametrize("end", ["abort", "renew"])
def test_the_end_answers_all_waiting_lanes(end: str) -> None:
    shard = Shard(_rule(), ShardState(np.zeros(SHAPE), {}))
    server = ShardServer(Synchronous(), [0, 1, 2], shard, _ledger(), n_trainers=3)
    replies: list[ServerReply] = []
    answers: list[CallPayload] = []
    for lane in (0, 1):
        request = ServerRequest((lane,), 0, 1, 0, 1.0, np.ones(SHAPE))
        server.exchange(request, replies.append)
    server.call("rendezvous", {"generation": 0, "rank": 1, "info": "b"}, answers.append)
    report = {"lanes": [0], "loss": 1.0, "rows": 2.0, "steps": 1}
    server.call("report", {"generation": 0, "pass": 1, "report": report}, answers.append)
    assert replies == answers == []
    expected = ServerStatus.ABORTED if end == "abort" else ServerStatus.STALE_GENERATION
    for _ in range(2):  # no request is answered twice
        server.abort("worker lost") if end == "abort" else server.renew(1, [0, 1, 2])
        assert [(r.lane, r.status) for r in replies] == [(0, expected), (1, expected)]
        assert answers == [{"status": int(expected)}] * 2
    server.exchange(ServerRequest((2,), 0, 1), replies.append)
    server.call("rendezvous", {"generation": 0, "rank": 0, "info": "a"}, answers.append)
    assert replies[-1].status == expected
    assert answers[-1] == {"status": int(expected)}
    np.testing.assert_array_equal(shard.w, 0)


def test_rendezvous_returns_all_peers_in_the_order_of_ranks() -> None:
    server = ShardServer(Synchronous(), [0], None, _ledger(), n_trainers=3)
    answers: list[CallPayload] = []
    for rank in (2, 0, 1):
        assert answers == []
        payload = {"generation": 0, "rank": rank, "info": f"peer {rank}"}
        server.call("rendezvous", payload, answers.append)
    assert answers == [{"status": 0, "peers": ["peer 0", "peer 1", "peer 2"]}] * 3


def test_pass_ends_for_all_lanes_together() -> None:
    server = ShardServer(Synchronous(), [0, 1, 2], None, _ledger(), n_trainers=1)
    answers: list[CallPayload] = []
    for number in range(1, 6):
        for lane in (1, 0, 2):
            assert len(answers) == 3 * (number - 1)
            report = {"lanes": [lane], "loss": 3.0, "rows": 2.0, "steps": 4}
            payload = {"generation": 0, "pass": number, "report": report}
            server.call("report", payload, answers.append)
    assert [a["stop"] for a in answers] == [False] * 12 + [True] * 3
    assert server.ledger is not None
    assert [(r["loss"], r["rows"], r["steps"]) for r in server.ledger.records] == [(1.5, 6, 4)] * 5


def test_published_copies_are_read_only_and_never_change() -> None:
    fleet, rng = _Fleet(Synchronous()), random.Random(0)
    copies: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for clock in range(1, 6):
        rounds = fleet.round(fleet.lanes, clock, rng)
        published = [reply.values for replies in rounds for reply in replies]
        published.append(fleet.servers[0].shard.published())
        for values in published:
            assert values is published[0]  # one copy a version
        assert published[0] is not None
        with pytest.raises(ValueError, match="read-only"):
            published[0][0] = 1
        copies.append((published[0], published[0].copy()))
    state = fleet.servers[0].state()
    assert state is not None
    state.w[...] = 7
    for values, as_given in copies:
        np.testing.assert_array_equal(values, as_given)
    np.testing.assert_array_equal(copies[-1][0], fleet.w)
