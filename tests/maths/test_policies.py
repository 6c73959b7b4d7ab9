"""Policies: each gate as a state machine, by hand and on random walks against a plain model."""

from __future__ import annotations

import pickle
import random
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies import (
    POLICIES,
    ArrivalGate,
    Asynchronous,
    BoundedStaleness,
    Gate,
    LocalSGD,
    Policy,
    QuorumGate,
    RoundGate,
    Synchronous,
    get_policy,
)

EVERY = pytest.mark.parametrize("name", list(POLICIES))


def _step(gate: Gate, lane: int) -> bool:
    return gate.push(lane, gate.clock(lane) + 1)


class _CountedClocks(dict[int, int]):
    """Clocks of lanes that count how often all lanes are visited."""

    n_visits = 0

    def __iter__(self) -> Any:
        self.n_visits += 1
        return super().__iter__()


@pytest.mark.parametrize("kind", [RoundGate, QuorumGate])
def test_a_push_costs_the_same_with_any_number_of_lanes(kind: Any) -> None:
    gate = kind(range(100))
    gate.clocks = clocks = _CountedClocks(gate.clocks)
    for lane in range(100):
        assert gate.push(lane, 1)
        assert gate.pop_due_lanes() == ([] if lane < 99 else list(range(100)))
    # Only at the end of the round.
    assert clocks.n_visits <= 1


# --- rounds ----------------------------------------------------------------------------------


def test_round_closes_once_all_lanes_arrived() -> None:
    gate = RoundGate([0, 1, 2])
    assert gate.pop_due_lanes() == []
    for lane in (2, 0):
        assert _step(gate, lane)
        assert gate.pop_due_lanes() == []
        assert not gate.may_proceed(lane)
    assert gate.may_proceed(1)
    assert _step(gate, 1)
    assert gate.pop_due_lanes() == [0, 1, 2]
    assert gate.pop_due_lanes() == []
    assert all(gate.may_proceed(lane) and gate.clock(lane) == 1 for lane in range(3))


def test_repeated_late_early_and_foreign_pushes_are_refused() -> None:
    gate = RoundGate([0, 1])
    assert gate.push(0, 1)
    assert not gate.push(0, 1)
    assert not gate.push(0, 2)
    assert not gate.push(7, 1)
    assert gate.push(1, 1)
    assert gate.pop_due_lanes() == [0, 1]
    assert not gate.push(0, 1)
    assert not gate.push(0, 3)
    assert gate.push(0, 2)
    assert gate.pop_due_lanes() == []


def test_leaver_is_not_waited_for() -> None:
    gate = RoundGate([0, 1, 2])
    _step(gate, 0)
    _step(gate, 1)
    assert gate.pop_due_lanes() == []
    gate.leave(2)
    assert gate.pop_due_lanes() == [0, 1]


def test_leaving_closes_no_round_early() -> None:
    gate = RoundGate([0, 1, 2])
    _step(gate, 0)
    gate.leave(2)
    assert gate.pop_due_lanes() == []
    assert not gate.may_proceed(0)
    _step(gate, 1)
    assert gate.pop_due_lanes() == [0, 1]


def test_open_push_of_a_leaver_counts() -> None:
    gate = RoundGate([0, 1])
    _step(gate, 0)
    gate.leave(0)
    assert gate.pop_due_lanes() == []
    _step(gate, 1)
    assert gate.pop_due_lanes() == [0, 1]


def test_open_push_of_the_last_leaver_counts() -> None:
    gate = RoundGate([0, 1])
    _step(gate, 0)
    gate.leave(0)
    gate.leave(1)
    assert gate.pop_due_lanes() == [0]
    assert gate.pop_due_lanes() == []


def test_unknown_leaver_changes_nothing() -> None:
    gate = RoundGate([0, 1])
    gate.leave(9)
    _step(gate, 0)
    assert gate.pop_due_lanes() == []


def test_join_takes_part_in_the_open_round() -> None:
    gate = RoundGate([0, 1], clock=5)
    _step(gate, 0)
    gate.join(2, 0)
    _step(gate, 1)
    assert gate.pop_due_lanes() == []
    assert gate.clock(2) == 5
    assert not gate.push(2, 1)
    assert gate.push(2, 6)
    assert gate.pop_due_lanes() == [0, 1, 2]


def test_backup_workers_are_not_waited_for() -> None:
    gate = Synchronous(backup_workers=1).gate([0, 1, 2])
    _step(gate, 0)
    assert gate.pop_due_lanes() == []
    _step(gate, 2)
    assert gate.pop_due_lanes() == [0, 2]
    # The late push is refused; its lane continues from the open round.
    assert not gate.push(1, 1)
    assert gate.may_proceed(1)
    assert gate.clock(1) == 1
    assert gate.push(1, 2)
    assert gate.pop_due_lanes() == []


def test_backup_workers_never_leave_a_round_empty() -> None:
    gate = Synchronous(backup_workers=5).gate([0, 1])
    assert gate.pop_due_lanes() == []
    _step(gate, 1)
    assert gate.pop_due_lanes() == [1]


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_rounds_on_random_walks(seed: int, spare: int) -> None:
    """Lanes push, repeat, join and leave; a reference of two sets tells when a round closes."""
    rng = random.Random(seed)
    gate = RoundGate(range(4), spare=spare)
    present, arrived, rounds, applied = set(range(4)), set[int](), 0, 0
    pushed = 0
    for _ in range(400):
        lane = rng.randrange(6)
        action = rng.choices(["push", "repeat", "leave", "join"], [8, 2, 1, 1])[0]
        if action == "push" and lane in present and gate.may_proceed(lane):
            assert _step(gate, lane)
            arrived.add(lane)
            pushed += 1
        elif action == "repeat":
            assert not gate.push(lane, gate.clock(lane))
            if lane in arrived:
                assert not gate.push(lane, gate.clock(lane) + 1)
        elif action == "leave":
            gate.leave(lane)
            present.discard(lane)
        elif action == "join" and lane not in present | arrived:
            gate.join(lane, rng.randrange(3))
            present.add(lane)
        is_due = bool(arrived) and len(present - arrived) <= min(spare, max(len(present) - 1, 0))
        group = gate.pop_due_lanes()
        assert group == (sorted(arrived) if is_due else [])
        assert gate.pop_due_lanes() == []
        if group:
            rounds, applied, arrived = rounds + 1, applied + len(group), set()
        assert gate.clock(lane) == rounds
        # Lanes that have not pushed may push, so the round always closes eventually.
        assert all(gate.may_proceed(lane) == (lane not in arrived) for lane in present)
    assert applied + len(arrived) == pushed
    assert rounds > 10


# --- arrival ---------------------------------------------------------------------------------


def test_arrivals_apply_one_by_one_in_their_order() -> None:
    gate = ArrivalGate([0, 1, 2])
    for lane in (2, 0, 2):
        assert _step(gate, lane)
    assert [
        gate.pop_due_lanes(),
        gate.pop_due_lanes(),
        gate.pop_due_lanes(),
        gate.pop_due_lanes(),
    ] == [[2], [0], [2], []]
    assert [gate.clock(lane) for lane in range(3)] == [1, 0, 2]


def test_repeated_and_foreign_arrivals_are_refused() -> None:
    gate = ArrivalGate([0, 1])
    assert gate.push(0, 2)  # two steps in one push
    assert not gate.push(0, 2)
    assert not gate.push(0, 1)
    assert not gate.push(5, 1)
    assert gate.pop_due_lanes() == [0]
    assert gate.pop_due_lanes() == []


def test_no_lane_waits_without_a_bound() -> None:
    gate = Asynchronous().gate([0, 1])
    for _ in range(100):
        assert gate.may_proceed(0)
        _step(gate, 0)


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_fastest_waits_at_the_bound(bound: int) -> None:
    gate = BoundedStaleness(bound).gate([0, 1, 2])
    for _ in range(bound + 1):
        assert gate.may_proceed(0)
        _step(gate, 0)
    assert not gate.may_proceed(0)
    _step(gate, 1)
    assert not gate.may_proceed(0)
    assert gate.may_proceed(2)
    _step(gate, 2)
    assert gate.may_proceed(0)


def test_a_leaving_slowest_lane_releases_waiting_lanes() -> None:
    gate = BoundedStaleness(1).gate([0, 1])
    _step(gate, 0)
    _step(gate, 0)
    assert not gate.may_proceed(0)
    gate.leave(1)
    assert gate.may_proceed(0)
    assert [gate.pop_due_lanes(), gate.pop_due_lanes()] == [[0], [0]]
    # A lane that left may always continue.
    assert gate.may_proceed(1)


def test_open_arrival_of_a_leaver_counts() -> None:
    gate = ArrivalGate([0])
    _step(gate, 0)
    gate.leave(0)
    assert gate.pop_due_lanes() == [0]


@pytest.mark.parametrize("bound", [0, 1, 4])
@pytest.mark.parametrize("seed", range(25))
def test_bound_holds_on_random_walks(seed: int, bound: int) -> None:
    """Steps are at most `bound` clocks ahead of the slowest lane, and some lane may always step."""
    rng = random.Random(seed)
    gate = ArrivalGate(range(5), staleness=bound)
    weights = [rng.random() ** 2 + 0.05 for _ in range(5)]
    lead = steps = 0
    for _ in range(600):
        lanes = sorted(gate.clocks)
        if len(lanes) > 2 and rng.random() < 0.003:
            gate.leave(rng.choice(lanes))
            continue
        slowest = min(gate.clocks.values())
        going = [lane for lane in lanes if gate.may_proceed(lane)]
        assert {lane for lane in lanes if gate.clocks[lane] == slowest} <= set(going)
        lane = rng.choices(lanes, [weights[lane] for lane in lanes])[0]
        if lane not in going:
            assert gate.clocks[lane] - slowest > bound
            continue
        lead = max(lead, gate.clocks[lane] - slowest)
        assert _step(gate, lane)
        assert gate.pop_due_lanes() == [lane]
        steps += 1
    assert lead == bound  # reached, never passed
    assert steps > 30  # the slowest sets the pace


@pytest.mark.parametrize("staleness", [None, 0, 3])
def test_a_lane_may_go_without_a_look_at_all_others(staleness: int | None) -> None:
    class Clocks(dict[int, int]):
        def values(self) -> Any:
            raise AssertionError("of very many lanes, a look at all for each one is a square")

    gate = ArrivalGate(range(4), staleness=staleness)
    gate.clocks = Clocks(gate.clocks)
    gate.join(4, 1)
    gate.leave(3)
    for lane in (0, 1, 2):
        _step(gate, lane)
    assert all(gate.may_proceed(lane) for lane in range(5))


@pytest.mark.parametrize("bound", [0, 1, 4])
def test_no_lane_is_blocked_for_ever(bound: int) -> None:
    """With a fair turn for everyone that may go, all clocks reach the end."""
    rng = random.Random(bound)
    gate = ArrivalGate(range(4), staleness=bound)
    while min(gate.clocks.values()) < 50:
        going = [lane for lane in gate.clocks if gate.clocks[lane] < 50 and gate.may_proceed(lane)]
        assert going
        _step(gate, rng.choice(going))


def test_staleness_zero_is_lockstep() -> None:
    gate = BoundedStaleness(0).gate(range(3))
    for clock in range(5):
        for lane in random.Random(clock).sample(range(3), 3):
            assert gate.may_proceed(lane)
            _step(gate, lane)
            assert gate.may_proceed(lane) == (min(gate.clocks.values()) == clock + 1)


# --- quorums ---------------------------------------------------------------------------------


def test_a_round_of_a_quorum_takes_late_lanes_later() -> None:
    gate = LocalSGD(16, quorum=2).gate([0, 1, 2])
    assert gate.push(2, 16)
    assert gate.pop_due_lanes() == []
    assert not gate.may_proceed(2)
    assert not gate.push(2, 32), "the one before was not applied"
    assert gate.push(0, 16)
    assert gate.pop_due_lanes() == [0, 2]
    assert gate.may_proceed(2)
    # The late push is part of the next round, at whatever clock it and the others are.
    assert gate.push(1, 16)
    assert gate.pop_due_lanes() == []
    assert gate.clock(1) == 0, "a clock is that of what was applied"
    assert gate.push(2, 48)
    assert gate.pop_due_lanes() == [1, 2]
    assert [gate.clock(lane) for lane in range(3)] == [16, 16, 48]
    assert not gate.push(1, 16)
    assert not gate.push(7, 16)


@pytest.mark.parametrize("fragments", [0, 2])
def test_slow_lanes_push_after_fewer_steps(fragments: int) -> None:
    """One push of each lane per unit of time: 32, 8 and 1 steps."""
    policy = LocalSGD(32, quorum=1, fragments=fragments, steps_by_speed=True)
    gate, time = policy.gate(range(3)), [0.0]
    assert isinstance(gate, QuorumGate)
    gate.now = lambda: time[0]
    clocks = [0, 0, 0]

    def meet(*steps: int) -> list[int]:
        for lane, n_steps in enumerate(steps):
            clocks[lane] += n_steps
            gate.push(lane, clocks[lane])
            gate.pop_due_lanes()
        return [gate.count_steps(lane) for lane in range(3)]

    assert meet(32, 8, 1) == [0, 0, 0], "no pace is known before the second push"
    time[0] += 1
    assert meet(32, 8, 1) == [32, 8, 2], "at least a sixteenth"
    # A lane that is stopped once, and small changes of pace, change nothing.
    time[0] += 1
    meet(32, 8, 1)
    time[0] += 100
    assert meet(32, 9, 1) == [32, 8, 2]
    for _ in range(5):
        time[0] += 1
        n_steps_of_lanes = meet(24, 12, 12)
    assert n_steps_of_lanes == [32, 16, 16], "in proportion to the fastest lane"
    gate.leave(0)
    gate.leave(1)
    assert gate.count_steps(2) == 32, "lanes that have left count no more"


def test_the_grace_of_a_round() -> None:
    time = [100.0]
    gate = QuorumGate([0, 1, 2, 3], quorum=2, grace=5.0, now=lambda: time[0])
    gate.push(0, 1)
    assert gate.pop_due_lanes() == []
    assert gate.seconds_to_due() is None
    gate.push(1, 1)
    assert gate.pop_due_lanes() == []
    assert gate.seconds_to_due() == 5.0
    time[0] += 4
    gate.push(2, 1)
    assert gate.pop_due_lanes() == []
    assert gate.seconds_to_due() == 1.0, "from the quorum on, not from the last push"
    time[0] += 1
    assert gate.pop_due_lanes() == [0, 1, 2]
    assert gate.seconds_to_due() is None
    # No lane is waited for once all have arrived, or the missing ones have left.
    for lane in (3, 1, 0):
        gate.push(lane, 2)
    assert gate.pop_due_lanes() == []
    gate.leave(2)
    assert gate.pop_due_lanes() == [0, 1, 3]


@pytest.mark.parametrize("quorum", [1, 3, 5, None])
@pytest.mark.parametrize("seed", range(25))
def test_quorums_on_random_walks(seed: int, quorum: int | None) -> None:
    """Every push is applied once, in rounds of a quorum while there are enough lanes."""
    rng = random.Random(seed)
    gate = LocalSGD(1, quorum=quorum, fragments=1).gate(range(5))
    pushed: list[tuple[int, int]] = []
    applied: list[tuple[int, int]] = []
    open_pushes: dict[int, int] = {}
    clocks = dict.fromkeys(range(5), 0)
    for _ in range(300):
        present = sorted(gate.clocks)
        if len(present) > 1 and rng.random() < 0.01:
            gate.leave(rng.choice(present))
        elif going := [lane for lane in present if gate.may_proceed(lane)]:
            lane = rng.choice(going)
            clocks[lane] += 1
            assert gate.push(lane, clocks[lane])
            open_pushes[lane] = clocks[lane]
            pushed.append((lane, clocks[lane]))
        waiting = set(gate.clocks) - set(open_pushes)
        if group := gate.pop_due_lanes():
            assert len(group) >= (quorum or 5) or not waiting
            assert set(group) == set(open_pushes)
            applied += open_pushes.items()
            open_pushes.clear()
        else:
            assert len(open_pushes) < (quorum or 5)
            assert waiting or not open_pushes
    assert sorted(applied + list(open_pushes.items())) == sorted(pushed)


# --- the table -------------------------------------------------------------------------------


@EVERY
def test_gate_starts_at_a_clock(name: str) -> None:
    gate = get_policy(name).gate([3, 1], 7)
    assert gate.clock(1) == gate.clock(3) == 7
    assert not gate.push(1, 7)
    assert gate.push(1, 8)


@EVERY
def test_every_gate_refuses_a_repeated_push(name: str) -> None:
    gate = get_policy(name).gate([0])
    for clock in (1, 2, 3):
        assert gate.may_proceed(0)
        assert gate.push(0, clock)
        assert gate.pop_due_lanes() == [0]
        assert not gate.push(0, clock)
        assert gate.pop_due_lanes() == []


@EVERY
def test_table_entry(name: str) -> None:
    policy = get_policy(name)
    assert policy.name == name
    assert policy == POLICIES[name]()
    assert get_policy(policy) is policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert policy.loop in {"bulk", "replicas", "free", "shared"}
    assert policy.lockstep == (policy.loop in {"bulk", "replicas"})
    assert policy.uses_shards == (policy.loop != "replicas")


@EVERY
def test_docstring_names_its_source_and_when_to_choose_it(name: str) -> None:
    doc = POLICIES[name].__doc__ or ""
    assert "Choose it" in doc
    assert f'"{name}"' in doc
    _, _, sources = doc.partition("References\n")
    assert re.search(r"\b(19|20)\d\d\b", sources)


@EVERY
def test_policy_is_immutable_and_checks_its_numbers(name: str) -> None:
    policy: Any = POLICIES[name]
    for field in fields(policy):
        with pytest.raises(FrozenInstanceError):
            setattr(policy(), field.name, 3)
        if "Optimizer" in str(field.type):
            continue
        real, flag = "float" in str(field.type), "bool" in str(field.type)
        for wrong in (-1, np.inf if real else 1.5, 1 if flag else True, "4", None):
            if wrong is getattr(policy(), field.name):
                continue
            kind = "True or False" if flag else "number >=? 0" if real else "integer >= [01]"
            with pytest.raises(InvalidParameterError, match=rf"{field.name}=.*{kind}"):
                policy(**{field.name: wrong})


def test_repr_of_a_policy_shows_non_default_parameters() -> None:
    assert repr(Asynchronous()) == "Asynchronous()"
    assert repr(LocalSGD(8, outer="nesterov")) == "LocalSGD(sync_every=8, outer='nesterov')"

    class Own(Asynchronous):
        """Policy of a user."""

    assert repr(Own(pull_every=2)) == "Own(pull_every=2)"


def test_least_numbers() -> None:
    assert Synchronous(backup_workers=0) == Synchronous()
    assert BoundedStaleness(0).staleness == 0
    assert LocalSGD(1).sync_every == 1
    for make in (LocalSGD, Asynchronous):
        with pytest.raises(InvalidParameterError, match=">= 1"):
            make(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_delay": -1}, {"max_delay": True}, {"max_delay": 1.5}, {"max_delay": "no"},
        {"delay_compensation": -1}, {"delay_compensation": np.nan},
        {"delay_compensation": 0.1, "push_every": 2}, {"delay_compensation": 0.1, "pull_every": 2},
        {"gradient_table": 1}, {"gradient_table": True, "max_delay": "auto"},
        {"gradient_table": True, "delay_compensation": 0.1},
    ],
)  # fmt: skip
def test_delays_are_bounded_by_meaningful_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        Asynchronous(**wrong)


@pytest.mark.parametrize("wrong", ["SSP", "", None, 4, Synchronous, ["sync"]])
def test_unknown_policy_lists_the_names(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        get_policy(wrong)
    assert all(f"'{name}'" in str(caught.value) for name in POLICIES)


def test_base_policy_uses_arrivals() -> None:
    assert type(Policy.gate(get_policy("hogwild"), [0])) is ArrivalGate
