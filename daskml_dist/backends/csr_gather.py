"""Batches of CSR rows on the host, read where they lie: gradients in the columns they touch.

Importing this module loads numba (about half a second), so it is imported at first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.compiled import compiled_with
from daskml_dist.backends.draws import Draw
from daskml_dist.backends.host_gather import parts_of
from daskml_dist.backends.margins import AT_ROW
from daskml_dist.backends.pointers import array_at, pointer, prefetch

__all__ = ["CSRGather", "make"]

#: Steps that are made together at most, and stored entries of their rows: some 50 ms.
_STEPS, _ENTRIES = 256, 1 << 22
#: Rows ahead whose entries, and whose ends, are fetched.
_ENTRIES_AHEAD, _ENDS_AHEAD = 12, 32


# `_loss` stands for the function of a loss, `_part` for the compiled one below.
def _loss(y: Any, raw: Any, parameters: Any) -> Any: ...


def _part(
    here: Any, like: Any, rows: Any, w: Any, index: Any, values: Any, n: Any, place: Any,
    parameters: Any, n_features: Any,
) -> Any:  # fmt: skip
    """Add the gradient of some rows of a block; return loss, slopes, and the entries there are.

    Parameters
    ----------
    here : int64 (5,)
        Addresses of indptr, indices, data, targets and weights; of no weights 0.
    like : integers (0,)
        Of the dtype of indptr and indices.
    rows : int64 (n_rows,)
    w : (n_parameters,) floats
    index, values : int32 and floats (room,)
        Columns of the gradient and its entries, of which `n` are there; the next entry is 0.
    place : int32 (n_parameters,)
        Where in these a column is; -1: nowhere yet.
    """
    number, item, index_item = w.dtype.type, w.itemsize, like.itemsize
    total, slopes, n_rows = 0.0, 0.0, len(rows)
    for i in range(n_rows):
        if i + _ENDS_AHEAD < n_rows:
            prefetch(here[0] + rows[i + _ENDS_AHEAD] * index_item)
        if i + _ENTRIES_AHEAD < n_rows:
            ahead = array_at(
                pointer(here[0] + rows[i + _ENTRIES_AHEAD] * index_item), 2, like.dtype
            )
            a, b = np.int64(ahead[0]), np.int64(ahead[1])
            for at in range(here[1] + a * index_item, here[1] + b * index_item, 64):
                prefetch(at)
            for at in range(here[2] + a * item, here[2] + b * item, 64):
                prefetch(at)
        row = rows[i]
        ends = array_at(pointer(here[0] + row * index_item), 2, like.dtype)
        first, size = np.int64(ends[0]), np.int64(ends[1]) - np.int64(ends[0])
        column = array_at(pointer(here[1] + first * index_item), size, like.dtype)
        x = array_at(pointer(here[2] + first * item), size, w.dtype)
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
        y = array_at(pointer(here[3] + row * item), 1, w.dtype)[0]
        value, slope = _loss(y, raw, parameters)
        if here[4] != 0:
            weight = array_at(pointer(here[4] + row * item), 1, w.dtype)[0]
            value, slope = value * weight, slope * weight
        total += value
        slopes += slope
        g = number(slope)
        for k in range(size):
            j: Any = np.uint64(column[k])
            # Half of the columns are new, which no processor guesses: so there is no branch.
            had = np.int64(place[j])
            to = n if had < 0 else had
            place[j], index[np.uint64(n)] = to, column[k]
            n += had < 0
            values[np.uint64(n)] = 0
            values[np.uint64(to)] += x[k] * g
    return total, slopes, n


def _gradient(
    blocks: Any, like: Any, parts: Any, p: Any, w: Any, index: Any, values: Any, n: Any,
    place: Any, parameters: Any, n_features: Any,
) -> Any:  # fmt: skip
    """Write the gradient of the summed loss of a batch behind `n` entries.

    Returns the loss, the entries there are then, and where the next batch begins. `parts` are as
    in `host_gather`, the others as above; no column has a place before or afterwards.
    """
    begin, loss, batch = n, 0.0, parts[p, 0]
    values[n] = 0
    if len(w) > n_features:
        index[n], values[n + 1] = n_features, 0
        n += 1
    while p < len(parts) and parts[p, 0] == batch:
        n_runs, counted = parts[p, 4], parts[p, 3] != 0
        starts = array_at(pointer(parts[p, 2]), n_runs, np.int64)
        rows: Any = starts
        if counted:
            counts = array_at(pointer(parts[p, 3]), n_runs, np.int64)
            rows = np.empty(counts.sum(), np.int64)
            at = np.int64(0)
            for r in range(n_runs):
                for i in range(counts[r]):
                    rows[at + i] = starts[r] + i
                at += counts[r]
        some, slopes, n = _part(
            blocks[parts[p, 1]], like, rows, w, index, values, n, place, parameters, n_features
        )
        loss += some
        if len(w) > n_features:
            values[begin] += w.dtype.type(slopes)
        p += 1
    for i in range(begin, n):
        place[np.uint64(index[i])] = -1
    return loss, n, p


class CSRGather:
    """Gather of rows of CSR blocks, for loops that make whole steps in the columns they touch.

    Parameters
    ----------
    loss : Loss
        With a kernel of single rows.
    blocks : mapping of int to (X, y, weight)
        Of one dtype; all have weights or none.
    n_rows : int
        Of a batch at most.
    """

    def __init__(
        self, loss: Any, blocks: Mapping[int, tuple[Any, Any, Any | None]], n_rows: int
    ) -> None:
        matrices = [X for X, *_ in blocks.values()]
        self.n_features, self.dtype = matrices[0].shape[1], matrices[0].dtype
        self._blocks = blocks
        self._place = {number: at for at, number in enumerate(blocks)}
        self.widen(max(max(X.indptr.itemsize, X.indices.itemsize) for X in matrices))
        nonzeros = sum(X.nnz for X in matrices) / max(sum(X.shape[0] for X in matrices), 1)
        #: Steps that can be made together.
        self.most_steps = min(_STEPS, max(1, int(_ENTRIES / max(n_rows * nonzeros, 1))))
        self.parameters = tuple(map(float, loss.parameters))
        part = compiled_with(_part, _loss=AT_ROW[loss.kernel])
        self.gradient = compiled_with(_gradient, _part=part)

    def widen(self, item: int) -> None:
        """Have columns of so many bytes, as all gathers of a loop."""
        wide = np.dtype(np.int64 if item == 8 else np.int32)
        #: An empty array of the dtype of all columns.
        self.like = np.empty(0, wide)
        self._held = [_arrays(*block, wide) for block in self._blocks.values()]
        self.where = np.array([[_address(a) for a in arrays] for arrays in self._held], np.int64)

    def parts(self, batches: Sequence[Draw]) -> NDArray[np.int64]:
        """Addresses of the runs of rows of batches; good as long as the batches are there."""
        return parts_of(self._place, batches)


def make(
    loss: Any,
    shape: tuple[int, int],
    blocks: Mapping[int, tuple[Any, Any, Any | None]],
    n_rows: int,
) -> CSRGather | None:
    """A gather, where `csr_gradient` has one loop for the gradients of such rows."""
    csr = all(sparse.issparse(X) and X.format == "csr" for X, *_ in blocks.values())
    if not csr or loss.kernel not in AT_ROW or shape[0] > np.iinfo(np.int32).max:
        return None
    kinds = {array.dtype for X, y, _ in blocks.values() for array in (X, y)}
    return CSRGather(loss, blocks, n_rows) if len(kinds) == 1 else None


def _arrays(X: Any, y: Any, weight: Any | None, wide: np.dtype[Any]) -> list[Any]:
    # All are so nearly always, and nothing is copied.
    indptr, indices = (np.require(a, wide, ["C", "A"]) for a in (X.indptr, X.indices))
    values = (
        None if a is None else np.require(a, X.dtype, ["C", "A"]) for a in (X.data, y, weight)
    )
    return [indptr, indices, *values]


def _address(array: Any) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])
