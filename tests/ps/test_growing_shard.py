"""Shards of growing tables that are lost repeatedly lose no row, whenever the loss occurs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.packing import name_classes, pack_object, unpack_object
from daskml_dist.models.base import GrowingTable
from daskml_dist.optimizers import get_optimizer
from daskml_dist.penalties import Penalty
from daskml_dist.ps.growing_shard import GrowingShard, make_shard
from daskml_dist.ps.row_store import RowChanges
from daskml_dist.ps.shard_state import HeldRows, ShardSnapshot, ShardState
from daskml_dist.schedules import Constant
from tests.rules import one_group

WIDTH, N_IDS, KEPT = 3, 3_000, 3
#: Number of server losses, and of steps between snapshots.
N_KILLS, EVERY = 100, 7
Make = Callable[[], GrowingShard]


def _make_makers(name: str, **options: Any) -> Make:
    rule = one_group(get_optimizer(name), Constant(0.1), Penalty(0, 0), 0, 10.0)
    table = GrowingTable((0.0, *[0.1] * (WIDTH - 1)), 5, **options)

    def make() -> GrowingShard:
        shard = make_shard(rule, table, ShardState(np.empty((0, WIDTH), np.float32), {}))
        assert isinstance(shard, GrowingShard)
        return shard

    return make


def _step(shard: GrowingShard) -> None:
    """Return the next step of the shard, with ids that occur once and ids that occur often."""
    number = shard.version + 1
    rng = np.random.default_rng(number)
    often = (N_IDS ** rng.random(40)).astype(np.int64)
    ids = np.unique(np.concatenate([often, N_IDS + number * 5 + np.arange(5)])) << 8
    shard.apply(rng.normal(size=(len(ids), WIDTH)).astype(np.float32), 10.0, ids)


def _travel(snapshot: ShardSnapshot) -> ShardSnapshot:
    """Return a snapshot as another process receives it."""
    known = name_classes([ShardSnapshot, RowChanges])
    found: ShardSnapshot = unpack_object(pack_object(snapshot, known), known)
    return found


class _Pair:
    """Shard with its standby, and the snapshots to which both can return."""

    def __init__(self, make: Make) -> None:
        self.make, self.shard = make, make()
        self.begin()

    def begin(self) -> None:
        """Give the shard a new standby, which first receives all rows."""
        self.standby, self.places = self.make(), dict[int, ShardSnapshot]()
        self.ship(whole=True)

    def ship(self, whole: bool = False) -> None:
        place = self.shard.version
        snapshot = _travel(self.shard.snapshot_at(place, KEPT, whole))
        self.standby.follow(place, snapshot, KEPT)
        self.places[place] = replace(snapshot, table=None)
        for old in sorted(self.places)[:-KEPT]:
            del self.places[old]

    def step(self) -> None:
        _step(self.shard)
        if self.shard.version % EVERY == 0:
            self.ship()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("row_wise_adagrad", {"admit_after": 2, "expire_after": 11}),
        ("sgd", {"admit_after": 3, "max_rows": 400}),
        ("adam", {}),
    ],
)
def test_a_hundred_losses_lose_no_row(name: str, options: dict[str, Any]) -> None:
    """Either the shard is lost and its standby takes over, or others are lost and it goes back."""
    make = _make_makers(name, **options)
    rng, pair, last = np.random.default_rng(0), _Pair(make), 0
    for kill in range(N_KILLS):
        for _ in range(rng.integers(1, 3 * EVERY)):
            pair.step()
            last = max(last, pair.shard.version)
        place = int(rng.choice(sorted(pair.places)))
        if kill % 2:
            pair.shard = pair.standby
        pair.shard.go_back(place, pair.places[place])
        assert pair.shard.version == place
        pair.begin()
    while pair.shard.version < last:
        pair.step()
    undisturbed = make()
    while undisturbed.version < last:
        _step(undisturbed)
    found, expected = pair.shard.state(), undisturbed.state()
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.w, expected.w)
    for key, array in expected.opt_state.items():
        np.testing.assert_array_equal(found.opt_state[key], array)
    if options:
        assert found.ids is not None
        assert len(found.ids) < 600


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_trainers_hold_are_joined_by_their_ids(seed: int) -> None:
    """Trainers' ids are before, between, after and equal to the servers' ids."""
    rng = np.random.default_rng(seed)
    ids = np.unique(rng.integers(5, 60, size=30))
    held_ids = rng.permutation(np.unique(rng.integers(70 if seed else 5, size=8)))
    w, rest = rng.normal(size=(len(ids), WIDTH)), rng.normal(size=(len(held_ids), WIDTH))
    held_rows = HeldRows(held_ids, rest, {"square": rest**2}, 3, 3)
    state = ShardState(w, {"square": w**2}, ids=ids)
    truth = dict(zip(ids, w, strict=True)) | dict(zip(held_ids, rest, strict=True))

    found = state.join_held(held_rows, lambda w: {"square": np.ones_like(w)})
    assert found.ids is not None
    assert found.ids.tolist() == sorted(truth)
    np.testing.assert_array_equal(found.w, np.stack([truth[i] for i in sorted(truth)]))
    np.testing.assert_array_equal(found.opt_state["square"], found.w**2)
    assert found.held is None
    # With another optimizer, rows get the other's initial state, and theirs is kept separately.
    found = state.join_held(replace(held_rows, opt_state={}), lambda w: {"square": np.ones_like(w)})
    are_held = np.isin(found.ids, held_ids)
    np.testing.assert_array_equal(found.opt_state["square"][are_held], 1.0)
    assert found.held is not None
