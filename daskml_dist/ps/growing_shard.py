"""A shard of a table whose rows are made when their ids first come.

To all other rooms the table is a matrix of ``2**62`` rows, which a layout divides among servers by
ranges of ids; the shard holds the rows that were touched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.id_hashing import MODEL_FIELD
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import GrowingTable
from daskml_dist.ps.row_store import RowChanges, RowStore, RowStoreSettings
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import HeldRows, ShardSnapshot, ShardState


class GrowingShard(Shard):
    """Shard of the ids from `start` on, with room for those that have come.

    Parameters
    ----------
    rule : UpdateRule
    table : GrowingTable
    state : ShardState
        Rows of an earlier fit, with their ids; taken over.
    start : int
        First id of the shard.
    """

    def __init__(
        self, rule: UpdateRule, table: GrowingTable, state: ShardState, start: int
    ) -> None:
        self._start = start
        self._store = RowStore(_make_store_settings(rule, table, state.w))
        if state.ids is not None:
            self._store.restore(_make_content(state, self._store.settings))
        self._n_grown = self._store.n_grown
        given = replace(state, w=self._store.w, opt_state=self._store.state, ids=None, held=None)
        super().__init__(rule, given)
        #: Step of the store at the last snapshot of which a standby has got what changed; -1: none.
        self._sent_step = -1
        #: Rows that trainers hold, as one of them last handed them over; replaced as a whole.
        self.held: HeldRows | None = state.held
        self._expire_after = table.expire_after

    def take(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the rows of some ids; those that have no row yet are as they begin."""
        return self._store.read(index + self._start)

    def apply(
        self,
        grad: NDArray[Any],
        rows: float,
        index: NDArray[np.int64] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Apply one step to the rows of some ids, which are made where they are not there."""
        assert index is not None
        step = self.version + 1
        # A look at all rows, once in as many steps as they may lie untouched.
        if self._expire_after is not None and step % self._expire_after == 0:
            self._store.expire(step)
        slots = self._store.slots_for_update(index + self._start, step)
        # A store that has grown has other arrays than those that the steps write to.
        if self._store.n_grown != self._n_grown:
            self._bind_store()
        # Ids that were not seen often enough have no row yet.
        admitted = slots >= 0
        if not admitted.all():
            grad, slots = grad[admitted], slots[admitted]
        super().apply(grad, rows, slots, scale)

    def _bind_store(self) -> None:
        """Bind the steps to the arrays that hold the rows now."""
        self._n_grown = self._store.n_grown
        self.w, self.opt_state = self._store.w, self._store.state
        self.change_rule(self.rule)

    def _bind_steps(self) -> list[Any]:
        """Return no steps of all rows: a gradient is of few of them."""
        self._few = None
        return []

    # A snapshot has the rows that changed since the one before. To go back, rows are kept as they
    # were when they first changed after it (`RowStore.mark`): no snapshot costs a copy of a table.

    def snapshot(self) -> ShardSnapshot:
        """Return a copy of everything."""
        return self._describe(self._store.copy_all())

    def _describe(self, table: RowChanges) -> ShardSnapshot:
        """Return a snapshot of the present counts, and of a table."""
        nothing = np.empty((0, self.w.shape[1]), self.w.dtype)
        return ShardSnapshot(
            nothing, {}, self.version, self._first_step, self.rows, self._rate_sum, None, None, 0,
            table=table, held=self.held,
        )  # fmt: skip

    def snapshot_at(self, place: int, most: int, whole: bool) -> ShardSnapshot:
        """Return what has changed since the last snapshot, or all rows, and mark this place."""
        changes = self._store.changed_since(-1 if whole else self._sent_step)
        self._sent_step = changes.step
        self._store.mark(place, most)
        return self._describe(changes)

    def follow(self, place: int, snapshot: ShardSnapshot, most: int) -> None:
        """Take over what has changed since the last snapshot, and mark its place."""
        assert snapshot.table is not None
        self._store.apply_changes(snapshot.table)
        self._store.mark(place, most)
        self._take_counts(snapshot)

    def whole_snapshot(self, place: int, snapshot: ShardSnapshot) -> ShardSnapshot:
        """Return the snapshot of a place with all rows."""
        return replace(snapshot, table=self._store.content_at(place))

    def go_back(self, place: int, snapshot: ShardSnapshot) -> None:
        """Go back to a place that was marked."""
        self._store.go_back(place)
        self._take_counts(snapshot)

    def _take_counts(self, snapshot: ShardSnapshot) -> None:
        """Take up the counts of a snapshot whose rows are there."""
        self.version, self._first_step = snapshot.version, snapshot.first_step
        self.rows, self._rate_sum = snapshot.rows, snapshot.rate_sum
        self.held = snapshot.held
        self._bind_store()

    def published(self) -> NDArray[Any]:
        """Raise: no answer can hold all rows."""
        raise NotImplementedError("a growing table is read by its ids")

    def state(self, copy: bool = True) -> ShardState:
        """Return a copy of everything a later fit needs, in the order of the ids."""
        slots = self._store.sorted_slots()
        return ShardState(
            self._store.gather(slots),
            self._store.gather_state(slots),
            self.step,
            self.rows,
            ids=self._store.ids[slots],
            held=self.held,
        )


def make_shard(
    rule: UpdateRule, table: GrowingTable | None, state: ShardState, start: int = 0
) -> Shard:
    """Return the shard of the parameters from row `start` on, of a table or of all rows."""
    if table is None:
        return Shard(rule, state, start)
    return GrowingShard(rule, table, state, start)


def draw_initial_rows(ids: NDArray[np.int64], table: GrowingTable, dtype: Any) -> NDArray[Any]:
    """Return the values with which the rows of sorted ids begin."""
    settings = RowStoreSettings(
        len(table.scales), {}, dtype=np.dtype(dtype).name, seed=table.seed, scale=table.scales,
        own_field=MODEL_FIELD,
    )  # fmt: skip
    return RowStore(settings).read(ids)


def find_sorted_ids(
    wanted: NDArray[np.int64], ids: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which ids are among sorted ones, and where they stand there."""
    at = np.searchsorted(ids, wanted)
    known = at < len(ids)
    known[known] = ids[at[known]] == wanted[known]
    return known, at


def look_up_rows(
    wanted: NDArray[np.int64], ids: NDArray[np.int64], w: NDArray[Any], table: GrowingTable
) -> NDArray[Any]:
    """Return the rows of sorted ids in a table of sorted ids; new ones are as in their first step.

    Parameters
    ----------
    wanted : ndarray of int64 of shape (n_wanted,)
    ids : ndarray of int64 of shape (n_ids,)
    w : ndarray of shape (n_ids, width)
    table : GrowingTable
    """
    known, at = find_sorted_ids(wanted, ids)
    found = np.empty((len(wanted), w.shape[1]), w.dtype)
    found[known] = w[at[known]]
    found[~known] = draw_initial_rows(wanted[~known], table, found.dtype)
    return found


def _make_content(state: ShardState, settings: RowStoreSettings) -> RowChanges:
    """Return the rows of an earlier fit as a store's content; no step has touched them yet."""
    ids = state.ids
    assert ids is not None
    # A state without the optimizer's, as of another optimizer, begins anew.
    kept = state.opt_state or {
        name: np.full((len(ids), width), settings.state_start[name], settings.dtype)
        for name, width in settings.state_widths.items()
    }
    nothing, at_start = np.empty(0, np.int64), np.zeros(len(ids), np.int64)
    return RowChanges(-1, 0, ids, at_start, state.w, kept, nothing, nothing, nothing, 0, 0, 0, 0)


def _make_store_settings(
    rule: UpdateRule, table: GrowingTable, like: NDArray[Any]
) -> RowStoreSettings:
    """Return the settings of a store of rows like these."""
    width = like.shape[1]
    zero, one = (rule.init(np.full((1, width), value, like.dtype)) for value in (0, 1))
    for name, array in zero.items():
        # Rows are made by the server, one at a time: their state must not depend on their values.
        if not np.array_equal(array, one[name]) or array.min() != array.max():
            (group,) = rule.groups
            raise InvalidParameterError(
                f"optimizer={group.optimizer!r} has an initial state that depends on the "
                "parameters, but rows of a table are created when their ids appear. Use "
                "another, such as 'adagrad' or 'adam'."
            )
    return RowStoreSettings(
        width,
        {name: array.shape[1] for name, array in zero.items()},
        dtype=like.dtype.name,
        seed=table.seed,
        scale=table.scales,
        state_start={name: float(array.flat[0]) for name, array in zero.items()},
        admit_after=table.admit_after,
        expire_after=table.expire_after,
        max_rows=table.max_rows,
        memory_bytes=table.memory_bytes,
        folder=table.folder,
        own_field=MODEL_FIELD,
    )
