"""The simulator of the benchmarks, against closed forms, recurrences and a plain loop."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.simulate import NOISE, RATES
from benchmarks.simulator.threads import SCHEMES, Memory, updates_per_second
from benchmarks.simulator.training import LogisticRun, Problem
from daskml_dist.planning import PackedMessage
from daskml_dist.planning.simulator import (
    OperationCosts,
    SimulatedRun,
    Stragglers,
    allreduce_seconds,
    events,
    simulate,
)
from daskml_dist.policies import (
    AllReduce,
    Asynchronous,
    BoundedStaleness,
    FederatedAveraging,
    Hogwild,
    LocalSGD,
    ModelAveraging,
    Policy,
    Synchronous,
)

FREE = OperationCosts(compute=1.0)
ROUGH = Stragglers(noise=0.6, pause_share=0.05, pause=4.0, slow_share=0.2, slow_factor=1.7)
COSTLY = OperationCosts(
    1.0, message=0.03, apply=1e-4, add=1e-5, peer=0.01, latency=0.05, bandwidth=1e4
)
SERVED = [
    Synchronous(),
    Synchronous(backup_workers=2),
    BoundedStaleness(0),
    BoundedStaleness(3),
    Asynchronous(),
    Asynchronous(push_every=3, pull_every=2),
    Hogwild(),
]


# --- closed forms ----------------------------------------------------------------------------


def test_decoupled_lanes_wait_as_long_as_their_quorum() -> None:
    costs = OperationCosts(1.0, latency=0.5)
    # One lane of four takes three times as long.
    slow = Stragglers(slow_share=0.25, slow_factor=3.0)
    all_wait = simulate(LocalSGD(10, quorum=4), costs, 4, steps=100, stragglers=slow)
    assert all_wait.seconds == pytest.approx(10 * (30 + 1))
    assert all_wait.updates == 10
    # The other three average among themselves; the slow one's updates join later rounds, and in
    # the end it is alone.
    three = simulate(LocalSGD(10, quorum=3), costs, 4, steps=100, stragglers=slow)
    assert three.updates >= 17
    # With exchanges in the background no lane waits.
    behind = simulate(LocalSGD(10, quorum=3, fragments=2), costs, 4, steps=100, stragglers=slow)
    assert behind.seconds == pytest.approx(300 + 1)
    decoupled = simulate(LocalSGD(10, fragments=1), costs, 4, steps=100)
    assert decoupled.seconds == pytest.approx(100 + 1)
    # A grace period includes slightly later lanes.
    late = Stragglers(slow_share=0.25, slow_factor=1.1)
    rounds = [
        simulate(LocalSGD(10, quorum=3, grace=g), costs, 4, steps=100, stragglers=late).updates
        for g in (0.0, 2.0)
    ]
    assert rounds[1] == 10 < rounds[0]


@pytest.mark.parametrize("fragments", [0, 1])
def test_slow_lanes_push_as_often_as_fast_ones(fragments: int) -> None:
    slow = Stragglers(slow_share=0.5, slow_factor=4.0)
    policy = LocalSGD(16, quorum=1, fragments=fragments)
    by_speed = dataclasses.replace(policy, steps_by_speed=True)
    runs = [simulate(p, FREE, 2, steps=320, stragglers=slow) for p in (policy, by_speed)]
    assert [run.seconds for run in runs] == [4 * 320] * 2
    assert runs[0].updates == 2 * 320 / 16
    # From its third push on, the slow one pushes after 4 steps. Once it is alone, it is the
    # fastest: when the other has made its 320 steps, it has made 80.
    assert runs[1].updates == pytest.approx(320 / 16 + 2 + (80 - 32) / 4 + 240 / 16, abs=1)


@pytest.mark.parametrize("policy", [LocalSGD(10, quorum=4), LocalSGD(10, fragments=1)], ids=repr)
def test_decoupled_lanes_push_packed_messages_and_get_whole_answers(policy: Policy) -> None:
    """The server's card is all that takes time: four pushes and four answers a meeting."""
    costs = OperationCosts(1e-9, bandwidth=1e3)
    plain = simulate(policy, costs, 4, n_bytes=1000, steps=10)
    assert plain.seconds == pytest.approx(4 + 4)
    small = simulate(policy, costs, 4, n_bytes=1000, steps=10, packed=PackedMessage(125.0))
    assert small.seconds == pytest.approx(0.5 + 4)
    assert small.use["server network"] == pytest.approx(4 / 4.5)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_round_is_compute_and_latency_and_apply(workers: int) -> None:
    costs = OperationCosts(0.5, apply=1e-3, add=1e-4, latency=0.02)
    out = simulate(Synchronous(), costs, workers, n_bytes=100, steps=10)
    apply = 100 * (1e-3 + workers * 1e-4)
    # The reply to the last round is not waited for.
    assert out.seconds == pytest.approx(10 * (0.5 + 0.02 + apply) + 9 * 0.02)
    assert out.idle == pytest.approx(1 - 10 * 0.5 / out.seconds)
    assert out.updates == 10
    assert out.steps == 10 * workers


def test_pushes_queue_at_the_servers_network_card_and_processor() -> None:
    costs = OperationCosts(1.0, message=0.02, latency=0.1, bandwidth=1e3)
    network = simulate(Synchronous(), costs, 8, n_bytes=50, steps=1)
    assert network.seconds == pytest.approx(1 + 0.1 + 8 * 0.05 + 0.02)
    processor = simulate(Synchronous(), costs, 8, n_bytes=10, steps=1)
    assert processor.seconds == pytest.approx(1 + 0.1 + 0.01 + 8 * 0.02)


def test_one_worker_pays_each_way() -> None:
    costs = OperationCosts(1.0, message=0.02, apply=1e-3, latency=0.1, bandwidth=1e3)
    out = simulate(Asynchronous(), costs, 1, n_bytes=50, steps=100)
    step = 1 + 2 * (0.1 + 0.05) + 0.02 + 0.05
    assert out.seconds == pytest.approx(100 * step - 0.1 - 0.05)
    shared = simulate(Asynchronous(), costs, 1, n_bytes=50, steps=100, colocated=True)
    assert shared.seconds == pytest.approx(100 * (1 + 0.02 + 0.05))


@pytest.mark.parametrize("policy", [Asynchronous(), BoundedStaleness(4)], ids=repr)
def test_lanes_that_have_their_rows_are_done_after_their_steps(policy: Policy) -> None:
    """The one beside the server makes its 10 steps and no more; the other takes twice as long."""
    costs = OperationCosts(1.0, latency=0.5)
    out = simulate(policy, costs, 2, steps=10, colocated=True, fixed_shares=True)
    assert (out.seconds, out.steps) == (10 * 2.0 - 0.5, 20)
    assert out.busy == 20.0
    assert simulate(policy, costs, 2, steps=10, colocated=True).seconds < out.seconds


@pytest.mark.parametrize("workers", [2, 10, 60, 300])
def test_server_saturates_at_one_over_its_work(workers: int) -> None:
    """Closed queue of deterministic customers: min(n / round trip, 1 / service)."""
    costs = OperationCosts(1.0, message=0.02, latency=0.1)
    out = simulate(Asynchronous(), costs, workers, steps=50)
    assert out.rate == pytest.approx(min(workers / (1 + 0.02 + 0.2), 1 / 0.02), rel=0.05)


@pytest.mark.parametrize("servers", [1, 2, 4, 64])
def test_servers_share_the_bytes(servers: int) -> None:
    """A worker sends and receives simultaneously, so its card transfers one model a second."""
    costs = OperationCosts(0.001, bandwidth=1e6)
    out = simulate(Asynchronous(), costs, 16, servers=servers, n_bytes=1e6, steps=20)
    assert out.rate == pytest.approx(min(servers, 16 / (1 + 1 / servers)), rel=0.1)
    busiest = max(out.use, key=lambda what: out.use[what])
    assert busiest == ("worker network" if servers == 64 else "server network")


@pytest.mark.parametrize("n_bytes", [1000, 1e6])
def test_replica_times_are_maxima_plus_averaging(n_bytes: float) -> None:
    seconds = ROUGH.seconds(1.0, 6, 40, seed=3)
    costs = dataclasses.replace(COSTLY, apply=0.0)
    meeting = allreduce_seconds(costs, 6, n_bytes)
    for policy, every in ((AllReduce(), 1), (LocalSGD(sync_every=8), 8), (ModelAveraging(), 40)):
        out = simulate(policy, costs, 6, n_bytes=n_bytes, steps=40, stragglers=ROUGH, seed=3)
        parts = seconds.reshape(6, -1, every).sum(axis=2)
        assert out.seconds == pytest.approx(parts.max(axis=0).sum() + 40 // every * meeting)
        assert out.busy == pytest.approx(seconds.sum())


def test_clients_that_are_not_drawn_are_not_waited_for() -> None:
    seconds = ROUGH.seconds(1.0, 6, 40, seed=3)
    policy = FederatedAveraging(0.5, local_steps=8)
    costs = dataclasses.replace(COSTLY, apply=0.0)
    out = simulate(policy, costs, 6, steps=40, stragglers=ROUGH, seed=3)
    parts = seconds.reshape(6, -1, 8).sum(axis=2)
    drawn = [parts[policy.draw_clients(0, number, [1] * 6), number] for number in range(5)]
    assert {len(clients) for clients in drawn} == {3}
    assert out.busy == pytest.approx(sum(clients.sum() for clients in drawn))
    meetings = 5 * allreduce_seconds(costs, 6, 1024)
    assert out.seconds == pytest.approx(sum(each.max() for each in drawn) + meetings)


def test_ring_sends_no_more_with_more_workers() -> None:
    costs = OperationCosts(1.0, bandwidth=1e9)
    many = [allreduce_seconds(costs, n, 1e9) for n in (3, 10, 1000)]
    np.testing.assert_allclose(many, [2 * (n - 1) / n for n in (3, 10, 1000)])
    assert allreduce_seconds(COSTLY, 1, 1e9) == 0


# --- independent recurrences -----------------------------------------------------------------


def _ends(seconds: NDArray[np.float64], staleness: int | None) -> NDArray[np.float64]:
    """When each step of each worker ends if nothing costs time but computing.

    Step k begins once the worker's own last step has ended, and step k - 1 - staleness of all.
    """
    ends = np.zeros((seconds.shape[0], seconds.shape[1] + 1))
    for k in range(1, ends.shape[1]):
        start = ends[:, k - 1]
        if staleness is not None and k - 1 - staleness > 0:
            start = np.maximum(start, ends[:, k - 1 - staleness].max())
        ends[:, k] = start + seconds[:, k - 1]
    return ends[:, 1:]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("staleness", [0, 1, 4, 16, None])
def test_bound_is_the_recurrence(staleness: int | None, seed: int) -> None:
    workers, steps = 9, 60
    policy = Asynchronous() if staleness is None else BoundedStaleness(staleness)
    out = simulate(policy, FREE, workers, steps=steps, stragglers=ROUGH, seed=seed)
    # Fast workers make more than their share of the steps, so times are recomputed.
    seconds = np.tile(ROUGH.seconds(1.0, workers, steps, seed), 8)
    ends = np.sort(_ends(seconds, staleness), axis=None)
    assert out.seconds == pytest.approx(ends[workers * steps - 1])


def test_bound_zero_equals_rounds_and_a_large_bound_never_waits() -> None:
    def run(policy: Policy) -> SimulatedRun:
        return simulate(policy, FREE, 12, steps=80, stragglers=ROUGH)

    barrier = ROUGH.seconds(1.0, 12, 80, seed=0).max(axis=0).sum()
    assert run(Synchronous()).seconds == pytest.approx(barrier)
    assert run(BoundedStaleness(0)).seconds == pytest.approx(barrier)
    large = dataclasses.replace(run(BoundedStaleness(10**6)), lead=0)
    assert large == run(Asynchronous())


def test_backup_workers_leave_the_slow_one_behind() -> None:
    slow = Stragglers(slow_share=0.01, slow_factor=10.5)
    out = simulate(Synchronous(backup_workers=1), FREE, 5, steps=100, stragglers=slow)
    assert out.seconds == pytest.approx(out.updates)
    assert out.steps == 4 * out.updates
    assert out.dropped == pytest.approx(out.updates / 11, abs=2)
    assert simulate(Synchronous(), FREE, 5, steps=100, stragglers=slow).seconds == 1050


# --- the gates' promises ---------------------------------------------------------------------


class _Watched:
    """Gate that counts finished gradients independently of its clocks."""

    is_over = False

    def __init__(self, workers: int) -> None:
        self.made = Counter(dict.fromkeys(range(workers), 0))
        self.applied = 0
        self.widest = 0

    def pull(self) -> int:
        return self.applied

    def gradient(self, worker: int, copy: Any) -> int:
        self.made[worker] += 1
        self.widest = max(self.widest, max(self.made.values()) - min(self.made.values()))
        return 1

    def apply(self, gradients: list[int], now: float) -> None:
        self.applied += sum(gradients)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 5, 20])
def test_no_worker_leads_by_more_than_the_bound(staleness: int, cached: bool) -> None:
    watched = _Watched(10)
    out = simulate(
        BoundedStaleness(staleness), COSTLY, 10,
        steps=100, stragglers=ROUGH, cached=cached, training=watched,
    )  # fmt: skip
    assert out.lead <= staleness
    # The step under way comes on top of the clock.
    assert watched.widest <= staleness + 1
    assert watched.widest >= min(staleness, 10)


@pytest.mark.parametrize("policy", SERVED, ids=repr)
@pytest.mark.parametrize("servers", [1, 3])
def test_workers_within_the_bound_never_wait(
    policy: Policy, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, looks = events._ServerSimulation._release, []

    def checked(self: Any, server: Any, number: int, worker: Any) -> None:
        release(self, server, number, worker)
        looks.append(number)
        assert not any(server.gate.may_proceed(lane) for _, lane in server.waiting)

    monkeypatch.setattr(events._ServerSimulation, "_release", checked)
    out = simulate(policy, COSTLY, 8, servers=servers, steps=40, stragglers=ROUGH)
    assert set(looks) == set(range(servers))
    assert out.steps >= 8 * 40
    assert 0 < out.idle < 1
    assert all(0 < use <= 1 for use in out.use.values())


@pytest.mark.parametrize("policy", [*SERVED, AllReduce(), LocalSGD()], ids=repr)
def test_a_seed_determines_the_simulation(policy: Policy) -> None:
    def run(seed: int) -> SimulatedRun:
        return simulate(policy, COSTLY, 6, steps=30, stragglers=ROUGH, seed=seed)

    assert run(1) == run(1)
    assert run(1).seconds != run(2).seconds


# --- real gradients --------------------------------------------------------------------------


def test_rounds_train_as_a_plain_loop() -> None:
    problem = Problem.make(300, 8, excess=0.0)
    simulated, plain = (LogisticRun(problem, 4, [0.5, 2.0]) for _ in range(2))
    simulate(Synchronous(), COSTLY, 4, steps=25, stragglers=ROUGH, training=simulated)
    for _ in range(25):
        w = plain.pull()
        plain.apply([plain.gradient(worker, w) for worker in range(4)], 0.0)
    np.testing.assert_allclose(simulated.pull(), plain.pull(), rtol=1e-12)


def test_middle_bound_is_best_where_copies_age() -> None:
    """Li et al. 2014: half the time idle at bound 0, under 2 % at 16, and more steps."""
    problem = Problem.make(800, 20, excess=0.002)

    def run(bound: int, cached: bool) -> tuple[float, float, float]:
        training = LogisticRun(problem, 16, RATES)
        with threadpool_limits(1):
            out = simulate(
                BoundedStaleness(bound), OperationCosts(0.02), 16,
                steps=2000, stragglers=NOISE, cached=cached, training=training,
            )  # fmt: skip
        assert training.reached is not None
        return out.idle, training.reached[1], training.reached[2]

    (idle, steps, seconds), middle, large = (run(bound, cached=True) for bound in (0, 4, 64))
    assert 0.4 < idle < 0.6
    assert run(16, cached=True)[0] < 0.02
    assert large[1] > 3 * steps
    assert middle[2] < min(seconds, large[2])
    # Fresh reads at each step leave nothing to lose.
    assert run(64, cached=False)[1] < 1.5 * steps


# --- locks -----------------------------------------------------------------------------------


def test_one_core_pays_for_its_locks_alone() -> None:
    memory = Memory()
    nnz = np.mean([len(row) for row in _rows()])
    lock_free = 1 / (1e-6 + nnz * memory.write)
    assert updates_per_second("lock-free", 1, 1e-6) == pytest.approx(lock_free, rel=0.03)
    each = 1 / (1e-6 + nnz * (memory.write + memory.atomic))
    assert updates_per_second("one lock per coordinate", 1, 1e-6) == pytest.approx(each, rel=0.03)


def _rows() -> list[NDArray[np.int64]]:
    from benchmarks.simulator.threads import _rows

    return _rows(np.random.default_rng(0), 47_236, 76, 200)


def test_locks_lose_where_gradients_are_cheap() -> None:
    """Recht et al. 2011: lock-free speed grows with the cores, that of locks does not."""
    speed = {
        scheme: [updates_per_second(scheme, cores, 1e-6) for cores in (2, 4, 8, 16)]
        for scheme in SCHEMES
    }
    lock_free = speed.pop("lock-free")
    assert all(np.diff(lock_free) > 0)
    for scheme, rates in speed.items():
        assert rates[-1] < lock_free[-1] / 3, scheme
        assert rates[-1] < 1.2 * rates[1], scheme


def test_locks_hardly_matter_where_gradients_are_costly() -> None:
    rates = [updates_per_second(scheme, 8, 1e-3) for scheme in ("lock-free", "one lock")]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)
    alone = updates_per_second("lock-free", 1, 1e-3)
    assert rates[0] == pytest.approx(8 * alone, rel=0.05)
