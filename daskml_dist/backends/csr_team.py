"""Team steps on sparse rows in one loop: like `team_steps`, restricted to the used columns.

Each member writes the gradient columns that its lanes' rows use, with their sums, to memory that
the others can read; in several turns if they exceed the place's size. Every member adds up the
gradients of all lanes in the order of the lanes, and updates only these columns.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Step
from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.elementary_functions import ROW_LOSSES
from daskml_dist.backends.host_gather import address_of, locate_runs
from daskml_dist.backends.host_update import compile_entry_step, update_at
from daskml_dist.backends.intrinsics import (
    array_at,
    copy_values,
    monotonic_nanoseconds,
    pointer,
    prefetch,
)
from daskml_dist.backends.row_slices import Draw
from daskml_dist.backends.shared_buffer import LocalBuffer
from daskml_dist.backends.team_steps import TeamRun, TeamSteps, announce_turn, await_others

#: Maximum steps made together, and stored entries of their rows: about 50 ms.
_MAX_STEPS_AT_ONCE, _MAX_ENTRIES_AT_ONCE = 256, 1 << 22
#: Rows whose entries, and whose bounds in indptr, are prefetched ahead.
_ENTRIES_AHEAD, _ENDS_AHEAD = 12, 32


# `_evaluate_row` stands for the function of a loss, `_add_block_gradient` for the compiled one
# below.
def _evaluate_row(y: Any, raw: Any, parameters: Any) -> Any: ...


def _add_block_gradient(
    block_addresses: Any, index_like: Any, rows: Any, w: Any, index: Any, values: Any, n: Any,
    column_positions: Any, parameters: Any, n_features: Any,
) -> Any:  # fmt: skip
    """Add the gradient of some rows of a block; return loss, slopes, and the number of entries.

    Parameters
    ----------
    block_addresses : int64 (5,)
        Addresses of indptr, indices, data, targets and weights (0: no weights).
    index_like : integers (0,)
        Has the dtype of indptr and indices.
    rows : int64 (n_rows,)
    w : (n_parameters,) floats
    index, values : int32 and floats (capacity,)
        Columns of the gradient and its entries.
    n : int64
        Number of these that are used; the next entry is 0.
    column_positions : int32 (n_parameters,)
        Position of each column among these; -1: not yet present.
    parameters : tuple of floats
        Parameters of the loss.
    n_features : int64
        Where `w` is longer, its last entry is the intercept.
    """
    number, item, index_item = w.dtype.type, w.itemsize, index_like.itemsize
    total, slopes, n_rows = 0.0, 0.0, len(rows)
    for i in range(n_rows):
        # Two stages: first a row's bounds in indptr are prefetched, and some rows later its
        # entries.
        if i + _ENDS_AHEAD < n_rows:
            prefetch(block_addresses[0] + rows[i + _ENDS_AHEAD] * index_item)
        if i + _ENTRIES_AHEAD < n_rows:
            ahead = array_at(
                pointer(block_addresses[0] + rows[i + _ENTRIES_AHEAD] * index_item),
                2,
                index_like.dtype,
            )
            a, b = np.int64(ahead[0]), np.int64(ahead[1])
            for address in range(
                block_addresses[1] + a * index_item, block_addresses[1] + b * index_item, 64
            ):
                prefetch(address)
            for address in range(block_addresses[2] + a * item, block_addresses[2] + b * item, 64):
                prefetch(address)
        row = rows[i]
        ends = array_at(pointer(block_addresses[0] + row * index_item), 2, index_like.dtype)
        first, size = np.int64(ends[0]), np.int64(ends[1]) - np.int64(ends[0])
        column = array_at(pointer(block_addresses[1] + first * index_item), size, index_like.dtype)
        x = array_at(pointer(block_addresses[2] + first * item), size, w.dtype)
        raw, other = number(0), number(0)
        # Two sums: neither waits for the other.
        for k in range(0, size - 1, 2):
            raw += x[k] * w[np.uint64(column[k])]
            other += x[k + 1] * w[np.uint64(column[k + 1])]
        if size % 2:
            raw += x[size - 1] * w[np.uint64(column[size - 1])]
        raw += other
        if len(w) > n_features:
            raw += w[n_features]
        # Loss and derivative of the raw prediction.
        y = array_at(pointer(block_addresses[3] + row * item), 1, w.dtype)[0]
        value, slope = _evaluate_row(y, raw, parameters)
        if block_addresses[4] != 0:
            weight = array_at(pointer(block_addresses[4] + row * item), 1, w.dtype)[0]
            value, slope = value * weight, slope * weight
        total += value
        slopes += slope
        g = number(slope)
        for k in range(size):
            j: Any = np.uint64(column[k])
            # Half of the columns are new, which is unpredictable for the processor: so there is no
            # branch.
            existing = np.int64(column_positions[j])
            entry = n if existing < 0 else existing
            column_positions[j], index[np.uint64(n)] = entry, column[k]
            n += existing < 0
            values[np.uint64(n)] = 0
            values[np.uint64(entry)] += x[k] * g
    return total, slopes, n


def _csr_gradient(
    blocks: Any, index_like: Any, segments: Any, p: Any, w: Any, index: Any, values: Any, n: Any,
    column_positions: Any, parameters: Any, n_features: Any,
) -> Any:  # fmt: skip
    """Write the gradient of the summed loss of a batch after `n` existing entries.

    Return the loss, the new number of entries, and where the next batch begins. `segments` are as
    in `host_gather`, the others as above. All of `column_positions` is -1 before and after.
    """
    first_entry, loss, batch = n, 0.0, segments[p, 0]
    # The entry after the last is always 0: new columns are added to it.
    values[n] = 0
    # The intercept's entry comes first, and gets the slopes.
    if len(w) > n_features:
        index[n], values[n + 1] = n_features, 0
        n += 1
    while p < len(segments) and segments[p, 0] == batch:
        n_runs, counted = segments[p, 4], segments[p, 3] != 0
        starts = array_at(pointer(segments[p, 2]), n_runs, np.int64)
        rows: Any = starts
        # Runs of several rows are expanded row by row.
        if counted:
            counts = array_at(pointer(segments[p, 3]), n_runs, np.int64)
            rows = np.empty(counts.sum(), np.int64)
            n_written = np.int64(0)
            for r in range(n_runs):
                for i in range(counts[r]):
                    rows[n_written + i] = starts[r] + i
                n_written += counts[r]
        block_loss, slopes, n = _add_block_gradient(
            blocks[segments[p, 1]],
            index_like,
            rows,
            w,
            index,
            values,
            n,
            column_positions,
            parameters,
            n_features,
        )
        loss += block_loss
        if len(w) > n_features:
            values[first_entry] += w.dtype.type(slopes)
        p += 1
    # Only used positions are reset.
    for i in range(first_entry, n):
        column_positions[np.uint64(index[i])] = -1
    return loss, n, p


class CSRGather:
    """Gather of rows of CSR blocks, for loops that take whole steps in the used columns.

    Parameters
    ----------
    loss : Loss
        Loss with a kernel for single rows.
    blocks : mapping of int to (X, y, weight)
        All of one dtype; all have weights or none.
    n_rows : int
        Maximum rows of a batch.
    """

    def __init__(
        self, loss: Any, blocks: Mapping[int, tuple[Any, Any, Any | None]], n_rows: int
    ) -> None:
        matrices = [X for X, *_ in blocks.values()]
        self.n_features, self.dtype = matrices[0].shape[1], matrices[0].dtype
        self._blocks = blocks
        self._block_positions = {number: position for position, number in enumerate(blocks)}
        self.set_index_bytes(max(max(X.indptr.itemsize, X.indices.itemsize) for X in matrices))
        nonzeros = sum(X.nnz for X in matrices) / max(sum(X.shape[0] for X in matrices), 1)
        #: Steps that can be made together.
        self.max_steps = min(
            _MAX_STEPS_AT_ONCE, max(1, int(_MAX_ENTRIES_AT_ONCE / max(n_rows * nonzeros, 1)))
        )
        self.parameters = tuple(map(float, loss.parameters))
        part = compiled_with(_add_block_gradient, _evaluate_row=ROW_LOSSES[loss.kernel])
        self.gradient = compiled_with(_csr_gradient, _add_block_gradient=part)

    def set_index_bytes(self, item: int) -> None:
        """Set the bytes of a column index; all gathers of a loop must have the same."""
        wide = np.dtype(np.int64 if item == 8 else np.int32)
        #: An empty array with the common dtype of columns.
        self.index_like = np.empty(0, wide)
        self._block_arrays = [_convert_block(*block, wide) for block in self._blocks.values()]
        self.where = np.array(
            [[address_of(a) for a in arrays] for arrays in self._block_arrays], np.int64
        )

    def locate_segments(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Return the addresses of the batches' runs of rows; valid while the batches exist."""
        return locate_runs(self._block_positions, batches)


def make_csr_gather(
    loss: Any,
    shape: tuple[int, int],
    blocks: Mapping[int, tuple[Any, Any, Any | None]],
    n_rows: int,
) -> CSRGather | None:
    """Return a gather of CSR blocks, or None if one compiled loop cannot read them."""
    csr = all(sparse.issparse(X) and X.format == "csr" for X, *_ in blocks.values())
    if not csr or loss.kernel not in ROW_LOSSES or shape[0] > np.iinfo(np.int32).max:
        return None
    kinds = {array.dtype for X, y, _ in blocks.values() for array in (X, y)}
    return CSRGather(loss, blocks, n_rows) if len(kinds) == 1 else None


def _convert_block(X: Any, y: Any, weight: Any | None, wide: np.dtype[Any]) -> list[Any]:
    """Return a block's CSR arrays, targets and weights, aligned and in the loops' dtypes."""
    # They nearly always are already, and nothing is copied.
    indptr, indices = (np.require(a, wide, ["C", "A"]) for a in (X.indptr, X.indices))
    values = (
        None if a is None else np.require(a, X.dtype, ["C", "A"]) for a in (X.data, y, weight)
    )
    return [indptr, indices, *values]


#: Bytes of an entry's column (int32), and bytes that processors exchange as a unit (two cache
#: lines): data of two members must not share a unit.
_COLUMN_BYTES, _COHERENCE_BYTES = 4, 128


# Placeholders for functions of `csr_team`, `team_steps` and `host_update`.
def _batch_gradient(
    blocks: Any, index_like: Any, segments: Any, p: Any, w: Any, index: Any, values: Any, n: Any,
    column_positions: Any, parameters: Any, n_features: Any,
) -> Any: ...  # fmt: skip
def _announce_turn(own_flag: Any, turn: Any, other_members: Any) -> None: ...
def _await_others(turn: Any, other_members: Any, patience: Any, yields: Any) -> Any: ...
def _update_touched(
    state: Any, index: Any, grad: Any, rows: Any, rate: Any, l1: Any, l2: Any, n_penalised: Any,
    row_rate_sums: Any, rate_sum: Any, step_rate: Any, longest: Any, coefficients: Any,
) -> None: ...  # fmt: skip


_update_at_rest = _update_touched  # used if the learning rate is 0


def _write_own_gradients(
    sizes: Any, counts: Any, losses: Any, busy: Any, blocks: Any, index_like: Any, segments: Any,
    p: Any, w: Any, index: Any, values: Any, column_positions: Any, parameters: Any,
    n_features: Any,
) -> Any:  # fmt: skip
    """Write the gradients of the own lanes' batches one after the other, and their sizes.

    Also set their losses; return where the next batches begin.
    """
    n, since = np.int64(0), monotonic_nanoseconds()
    for lane in range(len(counts)):
        first_entry = n
        losses[lane] = 0.0
        if counts[lane] > 0:
            losses[lane], n, p = _batch_gradient(
                blocks,
                index_like,
                segments,
                p,
                w,
                index,
                values,
                n,
                column_positions,
                parameters,
                n_features,
            )
        sizes[lane] = n - first_entry
        now = monotonic_nanoseconds()
        busy[lane] += now - since
        since = now
    return p


def _publish_part(
    address: Any, part_index: Any, max_entries: Any, head: Any, sizes: Any, index: Any, values: Any
) -> Any:
    """Write sizes, and a part of the own gradients, to a place; return the number of bytes."""
    published_sizes = array_at(pointer(address), len(sizes), np.int64)
    copy_values(published_sizes, sizes)
    # Gradients longer than a place are sent in parts, one per turn.
    first_entry = part_index * max_entries
    n = max(min(sizes.sum() - first_entry, max_entries), np.int64(0))
    columns = array_at(pointer(address + head), n, np.int32)
    sums = array_at(pointer(address + head + max_entries * 4), n, values.dtype)
    for i in range(n):
        columns[i] = index[first_entry + i]
        sums[i] = values[first_entry + i]
    return 8 * len(sizes) + n * (4 + values.itemsize)


def _collect_part(
    address: Any, part_index: Any, max_entries: Any, head: Any, sizes: Any, index: Any, values: Any
) -> None:
    """Read from another member's place what `_publish_part` wrote there."""
    copy_values(sizes, array_at(pointer(address), len(sizes), np.int64))
    first_entry = part_index * max_entries
    n = max(min(sizes.sum() - first_entry, max_entries), np.int64(0))
    columns = array_at(pointer(address + head), n, np.int32)
    sums = array_at(pointer(address + head + max_entries * 4), n, values.dtype)
    for i in range(n):
        index[first_entry + i] = columns[i]
        values[first_entry + i] = sums[i]


def _sum_lane_gradients(
    order: Any, sizes: Any, index: Any, values: Any, column_positions: Any, union: Any, total: Any
) -> Any:
    """Add up the gradients of all lanes, in order; return the number of columns."""
    n = np.int64(0)
    # Always in the order of the lanes' numbers, so every member gets the same bits, whichever
    # member runs a lane.
    for position in range(len(order)):
        rank, lane = order[position, 0], order[position, 1]
        first_entry = sizes[rank, :lane].sum()
        for i in range(first_entry, first_entry + sizes[rank, lane]):
            j: Any = np.uint64(index[rank, i])
            k = np.int64(column_positions[j])
            if k < 0:
                column_positions[j], union[n], total[n, 0] = n, index[rank, i], values[rank, i]
                n += 1
            else:
                total[np.uint64(k), 0] += values[rank, i]
    for i in range(n):
        column_positions[np.uint64(union[i])] = -1
    return n


def _take_csr_team_steps(
    progress: Any, blocks: Any, segments: Any, batches: Any, state: Any, row_rate_sums: Any,
    no_rate_sums: Any, penalty: Any, model: Any, scratch: Any, first: Any, meeting: Any,
) -> bool:  # fmt: skip
    """Take steps; return False if others are not ready, and the loop must be entered again.

    Parameters
    ----------
    progress : int64 (6,)
        Steps made, position in `segments`, whether the own gradients of the next step are written,
        turns begun, turns of the next step completed, and bytes written.
    blocks, segments
        As in `CSRGather`; batches are sorted by step, and within a step by own lane.
    batches : tuple
        counts, losses, busy, rows, rates, as in `team_steps`; then rate_sum and longest of each
        step, as in `host_update.update_at`, and numbers.
    state, penalty, first, meeting
        As in `team_steps`.
    row_rate_sums, no_rate_sums : float64 (n_parameters,) and (0,)
        As in `host_update.update_at`; both empty if no penalty is pending.
    model : tuple
        parameters of the loss, n_features, and an empty array with the dtype of column indices.
    scratch : tuple
        order, int64 (n_lanes, 2): rank of each lane, and its position there. rank: the own rank.
        most, head: maximum entries in a place, and the bytes before them. sizes, int64 (n_ranks,
        n): sizes of each rank's gradients. index, values, int32 and floats (n_ranks, size): their
        columns and sums. place, int32 (n_parameters,): position of a column among entries; -1
        between uses. union, total, int32 (n,) and floats (n, 1): columns and sums of the whole
        gradient.
    """
    counts, losses, busy, rows, rates, rate_sum, longest, numbers = batches
    n_penalised, l1, l2 = penalty
    parameters, n_features, like = model
    order, rank, most, head, sizes, index, values, place, union, total = scratch
    own, own_at, all_at, others, patience, yields = meeting
    w = state[0]
    number = w.dtype.type
    while progress[0] < len(rows):
        b = progress[0]
        # Own gradients of this step; not repeated if the loop was left while waiting.
        if progress[2] == 0:
            progress[1] = _write_own_gradients(
                sizes[rank, : counts.shape[1]], counts[b], losses[b], busy, blocks, like, segments,
                progress[1], w, index[rank], values[rank], place, parameters, n_features,
            )  # fmt: skip
            progress[2], progress[4] = 1, -1
        # Turns of this step: publish a part, wait for the others' parts, read them, until all are
        # complete.
        while len(others) > 0:
            if progress[4] >= 0:  # a turn is in progress
                turn = first + progress[3] - 1
                if not _await_others(turn, others, patience, yields):
                    return False
                longest_sum = np.int64(0)
                for r in range(len(sizes)):
                    if r != rank:
                        _collect_part(
                            all_at[turn & 1, r], progress[4], most, head, sizes[r], index[r],
                            values[r],
                        )  # fmt: skip
                    longest_sum = max(longest_sum, sizes[r].sum())
                # Sizes are sent with the first part; the longest gradient determines the number of
                # turns.
                if (progress[4] + 1) * most >= longest_sum:
                    break
            progress[4] += 1
            turn = first + progress[3]
            progress[5] += _publish_part(
                own_at[turn & 1, 0], progress[4], most, head, sizes[rank], index[rank], values[rank]
            )
            _announce_turn(own, turn, others)
            progress[3] += 1
        # Sum and step in the union of touched columns; all members do the same.
        if rows[b] > 0:
            n = _sum_lane_gradients(order, sizes, index, values, place, union, total)
            rate = number(rates[b])
            if rates[b] > 0:
                _update_touched(
                    state, union[:n], total[:n], number(rows[b]), rate, l1, l2, n_penalised,
                    row_rate_sums, rate_sum[b], rates[b], longest[b], numbers[b],
                )  # fmt: skip
            else:
                _update_at_rest(
                    state, union[:n], total[:n], number(rows[b]), rate, number(0), number(0),
                    n_penalised, no_rate_sums, rate_sum[b], rates[b], longest[b], numbers[b],
                )  # fmt: skip
        progress[0], progress[2] = b + 1, 0
    return True


class CSRTeam(TeamSteps):
    """Steps of a replica on the sparse gradients of a whole team, many in one call.

    Parameters
    ----------
    gathers : list of CSRGather or None
    optimizer, step
        As in `TeamSteps`.
    board : Board
        With a place for each member.
    """

    def _bind(self, gather: Any, step: Step) -> tuple[Any, tuple[Any, ...]]:
        board, number, n = self._board, step.w.dtype.type, len(step.w)
        lanes, gathers = board.lanes, [g for g in self._gathers if g is not None]
        loops = [compile_entry_step(self._optimizer, step.l1 * lr, lr) for lr in (1.0, 0.0)]
        update, update_at_rest = (
            compiled_with(update_at, exact=True, _step_entry=loop) for loop in loops
        )
        loop = compiled_with(
            _take_csr_team_steps,
            _write_own_gradients=compiled_with(
                _write_own_gradients, _batch_gradient=gather.gradient
            ),
            _publish_part=compiled_with(_publish_part),
            _collect_part=compiled_with(_collect_part),
            _sum_lane_gradients=compiled_with(_sum_lane_gradients),
            _announce_turn=compiled_with(announce_turn),
            _await_others=compiled_with(await_others),
            _update_touched=update,
            _update_at_rest=update_at_rest,
        )
        order = np.array(
            [(r, k) for _, r, k in sorted((n, r, k) for r, lane_counts in enumerate(lanes)
             for k, n in enumerate(lane_counts))], np.int64,
        )  # fmt: skip
        widest = max(map(len, lanes))
        head = -(-8 * widest // _COHERENCE_BYTES) * _COHERENCE_BYTES
        most = max((board.size - head) // (_COLUMN_BYTES + step.w.itemsize), 1)
        # As long as all parameters, though batches use few: untouched pages are not committed.
        shape = len(lanes), widest * n + 1
        union = min(len(order) * n, n)
        penalty = np.int64(step.n_penalised), number(step.l1), number(step.l2)
        model = gather.parameters, gather.n_features, _unify_index_dtype(gathers)
        scratch = (
            order, board.rank, most, head, np.zeros((len(lanes), widest), np.int64),
            np.empty(shape, np.int32), np.empty(shape, step.w.dtype), np.full(n, -1, np.int32),
            np.empty(union, np.int32), np.empty((union, 1), step.w.dtype),
        )  # fmt: skip
        self._l2 = step.l2
        return loop, (np.empty(0), penalty, model, scratch)

    def _list_step_values(self, steps: Sequence[Step]) -> tuple[Any, ...]:
        rows, rates, numbers = super()._list_step_values(steps)
        rate_sum = np.array([step.rate_sum for step in steps], np.float64)
        longest = np.zeros(len(steps), numbers.dtype)
        if self._l2:
            longest[:] = [1 / (step.lr * self._l2) if step.lr else 0 for step in steps]
        return rows, rates, rate_sum, longest, numbers

    def _arrays(self, step: Step) -> tuple[Any, ...]:
        (state,) = super()._arrays(step)
        return state, np.empty(0) if step.row_rate_sums is None else step.row_rate_sums

    def _run(self, *arguments: Any) -> TeamRun:
        return _CSRRun(*arguments)


def _unify_index_dtype(gathers: Sequence[CSRGather]) -> NDArray[Any]:
    """Return an empty array of the widest index dtype, after widening all gathers to it."""
    widest = max(gather.index_like.itemsize for gather in gathers)
    for gather in gathers:
        gather.set_index_bytes(widest)
    return gathers[0].index_like


class _CSRRun(TeamRun):
    """Some steps of a team on sparse rows, in progress."""

    @property
    def turns(self) -> int:
        return int(self._progress[3])

    @property
    def n_bytes_written(self) -> int | None:
        return int(self._progress[5])


class CSRSteps:
    """Steps of one replica on the sparse batches of one gather, many in one call.

    Parameters
    ----------
    gather : CSRGather
    optimizer, step
        As in `TeamSteps`.
    """

    def __init__(self, gather: CSRGather, optimizer: Any, step: Step) -> None:
        self._team = CSRTeam([gather], optimizer, step, LocalBuffer([0]))
        self.max_steps, self.serves = self._team.max_steps, self._team.serves

    def __call__(self, batches: Sequence[Draw], steps: Sequence[Step]) -> NDArray[np.float64]:
        """Make steps; return the summed loss of each batch before its step."""
        counts = np.array([[step.rows] for step in steps], np.int64)
        run = self._team([batches], counts, steps)
        run.run()
        losses: NDArray[np.float64] = run.losses[:, 0]
        return losses
