"""Shard of a table whose rows are created when their ids first appear.

To the rest of the package the table is a matrix of ``2**62`` rows, which a layout divides among
servers by ranges of ids. The shard holds the rows that were touched.
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
    """Shard of the ids from `start` on, with rows for the ids that have appeared.

    Parameters
    ----------
    rule : UpdateRule
    table : GrowingTable
    state : ShardState
        Rows of an earlier fit, with their ids; taken over without a copy.
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
        store_state = replace(
            state, w=self._store.w, opt_state=self._store.state, ids=None, held=None
        )
        super().__init__(rule, store_state)
        #: Step of the store at the last snapshot whose changes were sent to a standby; -1 if none
        #: was.
        self._sent_step = -1
        #: Rows that trainers hold, as one of them last stored them; replaced as a whole.
        self.held: HeldRows | None = state.held
        self._expire_after = table.expire_after

    def take(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the rows of some ids; initial values for ids without a row."""
        return self._store.read(index + self._start)

    def apply(
        self,
        grad: NDArray[Any],
        rows: float,
        index: NDArray[np.int64] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Apply one step to the rows of some ids; missing rows are created."""
        assert index is not None
        step = self.version + 1
        # Expiring scans all rows, so it is done only once in `expire_after` steps.
        if self._expire_after is not None and step % self._expire_after == 0:
            self._store.expire(step)
        slots = self._store.slots_for_update(index + self._start, step)
        # After growing, the store has other arrays than those to which the steps are bound.
        if self._store.n_grown != self._n_grown:
            self._bind_store()
        # Ids that were not seen often enough have no row yet.
        is_admitted = slots >= 0
        if not is_admitted.all():
            grad, slots = grad[is_admitted], slots[is_admitted]
        super().apply(grad, rows, slots, scale)

    def _bind_store(self) -> None:
        """Bind the steps to the arrays that now hold the rows."""
        self._n_grown = self._store.n_grown
        self.w, self.opt_state = self._store.w, self._store.state
        self.change_rule(self.rule)

    def _bind_steps(self) -> list[Any]:
        """Return no dense steps: a gradient of a table always touches few rows."""
        self._touched_row_steps = None
        return []

    # A snapshot contains the rows that changed since the previous one. To go back, the old content
    # of a row is copied when the row first changes after a snapshot (`RowStore.mark`), so no
    # snapshot costs a copy of the table.

    def snapshot(self) -> ShardSnapshot:
        """Return a copy of the whole state."""
        return self._describe(self._store.copy_all())

    def _describe(self, table: RowChanges) -> ShardSnapshot:
        """Return a snapshot of the present counts with the given rows."""
        no_rows = np.empty((0, self.w.shape[1]), self.w.dtype)
        return ShardSnapshot(
            no_rows, {}, self.version, self._first_step, self.rows, self._rate_sum, None, None, 0,
            table=table, held=self.held,
        )  # fmt: skip

    def snapshot_at(self, position: int, max_snapshots: int, is_complete: bool) -> ShardSnapshot:
        """Return the changes since the last snapshot, or all rows, and mark this place."""
        changes = self._store.changed_since(-1 if is_complete else self._sent_step)
        self._sent_step = changes.step
        self._store.mark(position, max_snapshots)
        return self._describe(changes)

    def follow(self, position: int, snapshot: ShardSnapshot, max_snapshots: int) -> None:
        """Apply the changes since the last snapshot, and mark its place."""
        assert snapshot.table is not None
        self._store.apply_changes(snapshot.table)
        self._store.mark(position, max_snapshots)
        self._take_counts(snapshot)

    def whole_snapshot(self, position: int, snapshot: ShardSnapshot) -> ShardSnapshot:
        """Return the snapshot of a place, with all rows."""
        return replace(snapshot, table=self._store.content_at(position))

    def go_back(self, position: int, snapshot: ShardSnapshot) -> None:
        """Go back to a marked place."""
        self._store.go_back(position)
        self._take_counts(snapshot)

    def _take_counts(self, snapshot: ShardSnapshot) -> None:
        """Take the counts of a snapshot, after its rows have been restored."""
        self.version, self._first_step = snapshot.version, snapshot.first_step
        self.rows, self._rate_sum = snapshot.rows, snapshot.rate_sum
        self.held = snapshot.held
        self._bind_store()

    def published(self) -> NDArray[Any]:
        """Raise an error: no answer can hold all rows."""
        raise NotImplementedError("a growing table is read by its ids")

    def state(self, copy: bool = True) -> ShardState:
        """Return a copy of everything that a later fit needs, sorted by id."""
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
    """Return the shard of the parameters from row `start` on, as a table or a plain matrix."""
    if table is None:
        return Shard(rule, state, start)
    return GrowingShard(rule, table, state, start)


def draw_initial_rows(ids: NDArray[np.int64], table: GrowingTable, dtype: Any) -> NDArray[Any]:
    """Return the initial values of the rows of sorted ids."""
    settings = RowStoreSettings(
        len(table.scales), {}, dtype=np.dtype(dtype).name, seed=table.seed, scale=table.scales,
        own_field=MODEL_FIELD,
    )  # fmt: skip
    return RowStore(settings).read(ids)


def find_sorted_ids(
    wanted_ids: NDArray[np.int64], ids: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which of the wanted ids are among sorted ids, and their positions there."""
    positions = np.searchsorted(ids, wanted_ids)
    is_known = positions < len(ids)
    is_known[is_known] = ids[positions[is_known]] == wanted_ids[is_known]
    return is_known, positions


def look_up_rows(
    wanted_ids: NDArray[np.int64], ids: NDArray[np.int64], w: NDArray[Any], table: GrowingTable
) -> NDArray[Any]:
    """Return the rows of sorted ids in a table of sorted ids; unknown ids have initial values.

    Parameters
    ----------
    wanted_ids : ndarray of int64 of shape (n_wanted,)
    ids : ndarray of int64 of shape (n_ids,)
    w : ndarray of shape (n_ids, width)
    table : GrowingTable
    """
    is_known, positions = find_sorted_ids(wanted_ids, ids)
    rows = np.empty((len(wanted_ids), w.shape[1]), w.dtype)
    rows[is_known] = w[positions[is_known]]
    rows[~is_known] = draw_initial_rows(wanted_ids[~is_known], table, rows.dtype)
    return rows


def _make_content(state: ShardState, settings: RowStoreSettings) -> RowChanges:
    """Return the rows of an earlier fit as the content of a store, with no steps so far."""
    ids = state.ids
    assert ids is not None
    # If the state has no optimizer state, as from another optimizer, it gets the initial one.
    opt_state = state.opt_state or {
        name: np.full((len(ids), width), settings.state_start[name], settings.dtype)
        for name, width in settings.state_widths.items()
    }
    no_ids, at_start = np.empty(0, np.int64), np.zeros(len(ids), np.int64)
    return RowChanges(-1, 0, ids, at_start, state.w, opt_state, no_ids, no_ids, no_ids, 0, 0, 0, 0)


def _make_store_settings(
    rule: UpdateRule, table: GrowingTable, like: NDArray[Any]
) -> RowStoreSettings:
    """Return the settings of a store for rows of the same width and dtype as `like`."""
    width = like.shape[1]
    state_of_zero, state_of_one = (
        rule.init(np.full((1, width), value, like.dtype)) for value in (0, 1)
    )
    for name, array in state_of_zero.items():
        # A server creates rows one at a time, so their initial state must not depend on their
        # values.
        if not np.array_equal(array, state_of_one[name]) or array.min() != array.max():
            (group,) = rule.groups
            raise InvalidParameterError(
                f"optimizer={group.optimizer!r} has an initial state that depends on the "
                "parameters, but rows of a table are created when their ids appear. Use "
                "another, such as 'adagrad' or 'adam'."
            )
    return RowStoreSettings(
        width,
        {name: array.shape[1] for name, array in state_of_zero.items()},
        dtype=like.dtype.name,
        seed=table.seed,
        scale=table.scales,
        state_start={name: float(array.flat[0]) for name, array in state_of_zero.items()},
        admit_after=table.admit_after,
        expire_after=table.expire_after,
        max_rows=table.max_rows,
        memory_bytes=table.memory_bytes,
        folder=table.folder,
        own_field=MODEL_FIELD,
    )
