"""Policies of trainers that step along sparse rows one by one."""

from __future__ import annotations

import pytest

from daskml_dist.policies import Asynchronous, BoundedStaleness, LocalSGD


@pytest.mark.parametrize("bound", [0, 1, 4, 7])
def test_trainers_that_step_row_by_row_keep_the_bound(bound: int) -> None:
    """They synchronise every few batches, so that the lead in between is within the bound, too."""
    policy = BoundedStaleness(bound).by_single_rows()
    gate, fast, slow, clock = policy.gate([0, 1, 2, 3]), (0, 1), (2, 3), 0
    while gate.may_all_proceed(fast):
        clock += policy.exchange_every
        for lane in fast:
            gate.join(lane, clock)
    assert 0 < clock <= bound + 1
    assert gate.may_all_proceed(slow)
    gate.join(2, clock)
    assert not gate.may_all_proceed(fast)  # the slowest lane of the others counts
    gate.join(3, clock)
    assert gate.may_all_proceed(fast)
    for lane in fast:
        gate.leave(lane)
    assert gate.may_all_proceed(slow)


def test_a_trainer_does_not_wait_for_its_own_lanes() -> None:
    gate = BoundedStaleness(0).by_single_rows().gate([0, 1, 2])
    gate.join(0, 5)
    assert gate.may_all_proceed((0, 1))


def test_policies_with_push_every_step_by_batches() -> None:
    class Own(Asynchronous):
        name = "own"

    for policy in (Asynchronous(push_every=2), Asynchronous(max_delay=3), Own(), LocalSGD()):
        assert policy.by_single_rows() is policy
    assert Asynchronous().by_single_rows().name == "async"
    assert BoundedStaleness(3).by_single_rows().name == "ssp"
