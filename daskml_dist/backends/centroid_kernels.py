"""Compiled sums of each centroid's rows, with products only for rows that may have changed label.

Importing this module loads numba, so it is imported at first use.

A row's label is the nearest centroid by sums of squared differences in float64. Products of rows
and centroids, which BLAS rounds in unspecified ways, only select the candidates: so labels do not
depend on how rows are split, nor on the stored bounds.

References
----------
G. Hamerly, "Making k-means even faster", SDM 2010.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.compiled import compiled_entry, compiled_inside
from daskml_dist.backends.host_memory import Scratch
from daskml_dist.backends.row_slices import row_slices

#: Numbers stored per row: its label, an upper bound of the distance to its centroid, and a lower
#: bound of the distance to all others; negative if nothing is known.
N_BOUNDS = 3
#: Bytes of a tile of rows, and of its products with the centroids, that fit in a core's cache.
_CACHED_BYTES = 1 << 19
#: Rows of a tile: fewer make products slow, more exceed the cache.
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 128, 4096
#: If more than this share of a slice's rows remains after screening, all its rows are processed,
#: and the next slices (this many) are not screened.
_FULL_PASS_SHARE, _SLICES_NOT_SCREENED = 0.6, 8

_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})
_inside = compiled_inside(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


def add_to_nearest(
    X: NDArray[Any],
    shift: NDArray[Any],
    centroids: NDArray[Any],
    weight: NDArray[Any] | None,
    out: NDArray[np.float64],
    scratch: Scratch,
    bounds: NDArray[Any] | None = None,
    previous_centroids: NDArray[Any] | None = None,
) -> float:
    """Add dense rows to the sums of their nearest centroids; see :meth:`Backend.assign`."""
    inertia, none = 0.0, np.empty(0, X.dtype)
    nearest = _NearestCentroids(centroids, previous_centroids, scratch)
    for row_slice, shifted, tile_bounds in nearest.iterate_tiles(X, shift, bounds):
        scale = none if weight is None else weight[row_slice]
        inertia += _add_labelled_rows(
            shifted, nearest.centroids, scale, tile_bounds, nearest.above, out
        )
    return inertia


def nearest(
    X: NDArray[Any], shift: NDArray[Any], centroids: NDArray[Any], scratch: Scratch
) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Return the nearest centroid of each row, and the squared distance to it."""
    labels, distances = np.empty(len(X), np.intp), np.empty(len(X), X.dtype)
    for row_slice, shifted, tile_bounds in _NearestCentroids(
        centroids, None, scratch
    ).iterate_tiles(X, shift, None):
        labels[row_slice] = tile_bounds[:, 0]
        _measure_distances(shifted, centroids, tile_bounds, distances[row_slice])
    return labels, distances


class _NearestCentroids:
    """Nearest-centroid search for rows.

    Parameters
    ----------
    centroids : ndarray of shape (k, n_features)
    previous_centroids : ndarray of shape (k, n_features) or None
        Centroids for which the stored bounds hold; None: no bounds are known.
    scratch : Scratch

    Attributes
    ----------
    above : scalar
        Factor by which a distance is multiplied, so that rounding never makes it too small.
    """

    def __init__(
        self, centroids: NDArray[Any], previous_centroids: NDArray[Any] | None, scratch: Scratch
    ) -> None:
        self.centroids = np.ascontiguousarray(centroids)
        self._scratch, dtype = scratch, centroids.dtype
        exact = centroids.astype(np.float64)
        # Scores are |c|^2 / 2 - x c: half squared distances, except for the row's own norm.
        self._half = ((exact**2).sum(axis=1) / 2).astype(dtype)
        # Bound of the relative error of sums over the features.
        eps = (centroids.shape[1] + 8) * np.finfo(dtype).eps
        self._eps, self.above = dtype.type(eps), dtype.type(1 + eps)
        self._largest = self.above * np.sqrt(2 * self._half.max(initial=0))
        #: Number of following slices to process without screening, since screening was useless
        #: before.
        self._in_vain = 0
        self._has_previous = previous_centroids is not None
        if previous_centroids is not None:
            # A row closer to its centroid than half the distance to the next centroid cannot change
            # label.
            self._alone = ((1 - eps) / 2 * _distances_to_nearest(exact)).astype(dtype)
            ways = (1 + eps) * np.sqrt(
                ((exact - previous_centroids.astype(np.float64)) ** 2).sum(axis=1)
            )
            self._moves, self._other_moves = (
                ways.astype(dtype),
                _largest_other_moves(ways).astype(dtype),
            )

    def iterate_tiles(
        self, X: NDArray[Any], shift: NDArray[Any], bounds: NDArray[Any] | None
    ) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Yield slices, their shifted rows, and bounds with labels; valid until the next one."""
        d = X.shape[1]
        # Slices that fit in a core's cache, so that products and sums read rows from memory once.
        step = min(max(_CACHED_BYTES // X.itemsize // max(d, 1), _MIN_TILE_ROWS), _MAX_TILE_ROWS)
        for row_slice in row_slices(len(X), step):
            n = row_slice.stop - row_slice.start
            shifted = self._scratch.empty("near", (n, d), X.dtype)
            squares = self._scratch.empty("squares", (n,), X.dtype)
            _shift_rows(X[row_slice], shift, shifted, squares)
            if bounds is None:
                tile_bounds = self._scratch.empty("bounds", (n, N_BOUNDS), X.dtype)
            else:
                tile_bounds = bounds[row_slice]
            self._label(
                shifted, squares, tile_bounds, has_bounds=bounds is not None and self._has_previous
            )
            yield row_slice, shifted, tile_bounds

    def _label(
        self,
        shifted_rows: NDArray[Any],
        squares: NDArray[Any],
        bounds: NDArray[Any],
        *,
        has_bounds: bool,
    ) -> None:
        """Find the nearest centroid of rows that may have changed theirs, in two passes."""
        n, k = shifted_rows.shape[0], len(self.centroids)
        if k == 1:
            bounds[...] = 0
            return
        numbers = self._scratch.empty("numbers", (n,), np.int32)
        n_chosen = n
        # First pass: bounds exclude most rows. If they exclude few, the next slices skip this pass.
        if has_bounds and not self._in_vain:
            moves = self._moves, self._other_moves, self._alone
            n_chosen = _screen_rows(
                shifted_rows, self.centroids, *moves, self.above, bounds, numbers
            )
            self._in_vain = _SLICES_NOT_SCREENED if n_chosen > _FULL_PASS_SHARE * n else 0
        elif has_bounds:
            self._in_vain -= 1
        if n_chosen > _FULL_PASS_SHARE * n:
            numbers[...] = np.arange(n)
            n_chosen = n
        chosen = shifted_rows
        if n_chosen < n:
            chosen = self._scratch.empty(
                "chosen", (n_chosen, shifted_rows.shape[1]), shifted_rows.dtype
            )
            _copy_chosen_rows(shifted_rows, numbers, chosen)
        # Second pass: products with all centroids, for the remaining rows.
        for tile in row_slices(
            n_chosen, max(_CACHED_BYTES // shifted_rows.itemsize // k, _MIN_TILE_ROWS)
        ):
            shape = k, tile.stop - tile.start
            # One row of products per centroid, so that vector instructions compare many rows.
            products = self._scratch.empty("products", shape, shifted_rows.dtype)
            np.matmul(self.centroids, chosen[tile].T, out=products)
            labels = self._scratch.empty("labels", shape[1:], np.int32)
            least = self._scratch.empty("least", shape[1:], shifted_rows.dtype)
            second = self._scratch.empty("second", shape[1:], shifted_rows.dtype)
            _find_two_nearest(products, self._half, labels, least, second)
            _settle_close_calls(
                shifted_rows, numbers[tile], self.centroids, self._half, products, labels, least,
                second, squares, self._eps, self._largest, bounds,
            )  # fmt: skip


def _distances_to_nearest(centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each centroid to the nearest other one."""
    squares: NDArray[np.float64] = np.full(len(centroids), np.inf)
    for number in range(1, len(centroids)):
        squared_distances = ((centroids[number] - centroids[:number]) ** 2).sum(axis=1)
        np.minimum(squares[:number], squared_distances, out=squares[:number])
        squares[number] = squared_distances.min()
    np.sqrt(squares, out=squares)
    return squares


def _largest_other_moves(ways: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each centroid, the largest move of any other centroid."""
    first, *smaller = np.sort(ways)[::-1]
    largest = np.full(len(ways), first)
    largest[ways.argmax()] = smaller[0] if smaller else 0.0
    return largest


@_fast
def _shift_rows(X: Any, shift: Any, rows: Any, squares: Any) -> None:
    """Write rows minus the shift, and the squared norm of each."""
    for i in range(X.shape[0]):
        square = rows.dtype.type(0)
        for j in range(X.shape[1]):
            shifted = X[i, j] - shift[j]
            rows[i, j] = shifted
            square += shifted * shifted
        squares[i] = square


@_fast
def _screen_rows(
    rows: Any,
    centroids: Any,
    moves: Any,
    other_moves: Any,
    alone: Any,
    above: Any,
    bounds: Any,
    out: Any,
) -> int:
    """Write the numbers of rows that may have changed their centroid; return how many there are."""
    n_found = 0
    for i in range(rows.shape[0]):
        lower = bounds[i, 2]
        if lower >= 0:
            label = int(bounds[i, 0])
            # Hamerly (2010): any other centroid may have come nearer by at most the longest of
            # their moves.
            lower -= other_moves[label] + (above - 1) * lower
            lower = max(lower, rows.dtype.type(0))
            bounds[i, 2] = lower
            # A row keeps its label if its centroid is nearer than half the distance to the next
            # centroid, or nearer than the lower bound for all others.
            far, upper = max(lower, alone[label]), bounds[i, 1]
            if upper + moves[label] >= far and upper - moves[label] < far:
                # The bound is not sufficient: compute the exact distance.
                square = rows.dtype.type(0)
                for j in range(rows.shape[1]):
                    difference = rows[i, j] - centroids[label, j]
                    square += difference * difference
                upper = np.sqrt(square) * above
            else:
                upper += moves[label]
            if upper < far:
                continue
        out[n_found] = i
        n_found += 1
    return n_found


@_fast
def _copy_chosen_rows(rows: Any, row_numbers: Any, out: Any) -> None:
    """Copy the rows of the given numbers to `out`."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = rows[row_numbers[r], j]


@_fast
def _find_two_nearest(products: Any, half: Any, labels: Any, least: Any, second: Any) -> None:
    """Write each row's nearest centroid, its score ``|c|**2 / 2 - x c``, and the next best."""
    k, n = products.shape
    for i in range(n):
        least[i] = half[0] - products[0, i]
        second[i] = np.inf
        labels[i] = 0
    for c in range(1, k):
        for i in range(n):
            score = half[c] - products[c, i]
            # Selections instead of branches, so that the loop over rows is vectorised.
            nearer = score < least[i]
            second[i] = min(second[i], least[i] if nearer else score)
            least[i] = score if nearer else least[i]
            labels[i] = np.int32(c) if nearer else labels[i]


@_fast
def _settle_close_calls(
    rows: Any, row_numbers: Any, centroids: Any, half: Any, products: Any, labels: Any, least: Any,
    second: Any, squares: Any, eps: Any, largest: Any, bounds: Any,
) -> None:  # fmt: skip
    """Decide between centroids that rounding cannot distinguish, and set the bounds."""
    for r in range(products.shape[1]):
        i, other = row_numbers[r], second[r]
        # Bound of the rounding error of a product; closer scores are decided in float64.
        error = eps * (np.sqrt(squares[i]) + largest) ** 2
        if not other - least[r] > 2 * error:
            labels[r] = _find_nearest_exactly(
                rows[i], centroids, half, products[:, r], least[r] + 2 * error
            )
            other = least[r]
        bounds[i, 0] = labels[r]
        bounds[i, 2] = np.sqrt(max(squares[i] + 2 * other - 4 * error, squares.dtype.type(0)))


@_inside
def _find_nearest_exactly(
    row: Any, centroids: Any, half: Any, products: Any, max_score: Any
) -> int:
    """Return the nearest centroid by float64 sums, among scores of at most `max_score`."""
    best, label = np.inf, 0
    for c in range(len(half)):
        if half[c] - products[c] <= max_score:
            square = 0.0
            for j in range(len(row)):
                difference = np.float64(row[j]) - np.float64(centroids[c, j])
                square += difference * difference
            if square < best:
                best, label = square, c
    return label


@_fast
def _add_labelled_rows(
    rows: Any, centroids: Any, weight: Any, bounds: Any, above: Any, out: Any
) -> float:
    """Add rows to the sums of their centroids, and bound their distances; return the inertia."""
    inertia = 0.0
    for i in range(rows.shape[0]):
        label = int(bounds[i, 0])
        scale = weight[i] if len(weight) else rows.dtype.type(1)
        square = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            difference = rows[i, j] - centroids[label, j]
            square += difference * difference
        out[label, 0] += scale
        for j in range(rows.shape[1]):
            out[label, j + 1] += scale * rows[i, j]
        # The distance to the row's centroid, rounded up, is the bound for the next call.
        bounds[i, 1] = np.sqrt(square) * above
        inertia += scale * square
    return inertia


@_fast
def _measure_distances(rows: Any, centroids: Any, bounds: Any, out: Any) -> None:
    """Write the squared distance of each row to its centroid."""
    for i in range(rows.shape[0]):
        label = int(bounds[i, 0])
        square = rows.dtype.type(0)
        for j in range(rows.shape[1]):
            difference = rows[i, j] - centroids[label, j]
            square += difference * difference
        out[i] = square
