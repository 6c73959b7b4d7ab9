"""Rows of baskets on the host: their items, and the rows of each item as bits.

The support of a set of items is the number of rows that contain all of them. With a bit for each
row and item (a vertical layout), 64 rows are counted by an AND of words and a population count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.numpy_backend import NumpyBackend
from daskml_dist.backends.row_slices import row_slices

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

#: Bytes of dense rows that are read together (1 MiB), in a cache.
_CACHED_BYTES = 1 << 20
#: Words of all items in a tile of rows (1 MiB), so that a processor's cache holds them for all
#: candidates; minimum and maximum words of one item.
_TILE_WORDS, _MIN_ITEM_WORDS, _MAX_ITEM_WORDS = 1 << 17, 64, 1024
#: Words of two items that are compared in the time needed to count a pair in one row: used by
#: `add_pair_counts` to choose between rows and bits.
_WORDS_A_PAIR = 8


def find_first_negative(X: Any, backend: NumpyBackend) -> tuple[int, float] | None:
    """Return the row and value of the first entry below 0, or None."""
    if isinstance(X, CSRRows):
        values, indptr = X.X.data, X.X.indptr
        if values.dtype.kind in "bu" or not len(values) or values.min() >= 0:
            return None
        for i, row in enumerate(X.rows.tolist()):
            row_values = values[indptr[row] : indptr[row + 1]]
            if len(row_values) and row_values.min() < 0:
                return i, float(row_values.min())
        return None
    if X.dtype.kind in "bu":
        return None
    for row_slice in _word_aligned_slices(X):
        part = backend.borrow_rows(X, row_slice)
        if part.size and part.min() < 0:
            row = int((part < 0).any(axis=1).argmax())
            return row_slice.start + row, float(part[row].min())
    return None


def add_item_counts(X: Any, out: NDArray[np.float64], backend: NumpyBackend) -> None:
    """Add to `out` the number of rows in which each column is not zero."""
    from daskml_dist.backends.itemset_kernels import count_csr_items, count_items

    if isinstance(X, CSRRows):
        count_csr_items(X.X.indptr, X.X.indices, _nonzero_flags(X.X.data), X.rows, out)
        return
    for row_slice in _word_aligned_slices(X):
        count_items(_nonzero_flags(backend.borrow_rows(X, row_slice)), out)


def add_pair_counts(
    X: Any, items: NDArray[np.int64], first: int, end: int, out: NDArray[np.float64]
) -> bool:
    """Add to `out` the number of rows that contain each pair of items, row by row.

    Return False, without changes, if comparing bits is cheaper.
    """
    from daskml_dist.backends.itemset_kernels import count_pairs, count_row_pairs

    if not isinstance(X, CSRRows):
        return False
    m, rank = len(items), _rank_columns(items, X.shape[1])
    rows = X.X.indptr, X.X.indices, _nonzero_flags(X.X.data), X.rows, rank
    # Row by row costs the pairs in the rows; bit by bit costs the pairs of items times the words.
    if count_row_pairs(*rows) * _WORDS_A_PAIR > m * (m - 1) / 2 * (X.shape[0] / 64):
        return False
    count_pairs(*rows, first, end, m, out)
    return True


class ItemBits:
    """Consecutive rows of a block as bits, with a run of words for each item.

    They are made when first requested, and kept if they are not larger than the rows.

    Attributes
    ----------
    nbytes : int
        Bytes of the words that are kept.
    """

    def __init__(self) -> None:
        self._items: NDArray[np.int64] = np.empty(0, np.int64)
        self._bit_words: Words | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the words that are kept."""
        return 0 if self._bit_words is None else self._bit_words.nbytes

    def tiles(
        self, X: Any, items: NDArray[np.int64], backend: NumpyBackend
    ) -> Iterator[tuple[Words, NDArray[np.int64]]]:
        """Yield words (n_tiles, n, n_words) of consecutive rows, with the n items' columns."""
        if X.shape[0] == 0:
            return
        if self._bit_words is None or not np.isin(items, self._items, assume_unique=True).all():
            n, m = X.shape[0], max(1, len(items))
            width = min(max(_TILE_WORDS // m, _MIN_ITEM_WORDS), _MAX_ITEM_WORDS, -(-n // 64))
            # Bits larger than the rows themselves are made for one tile at a time, and not kept.
            if isinstance(X, CSRRows) and n * m // 8 > _csr_bytes(X):
                yield from self._in_turn(X, items, width)
                return
            n_tiles = -(-n // (64 * width))
            self._bit_words, self._items = np.zeros((n_tiles, m, width), np.uint64), items
            self._fill(X, backend)
        yield self._bit_words, self._items

    def _fill(self, X: Any, backend: NumpyBackend) -> None:
        """Write the bits of the items in all rows."""
        from daskml_dist.backends.itemset_kernels import pack_csr_rows, pack_rows

        assert self._bit_words is not None
        if isinstance(X, CSRRows):
            csr, rank = X.X, _rank_columns(self._items, X.shape[1])
            pack_csr_rows(
                csr.indptr, csr.indices, _nonzero_flags(csr.data), X.rows, rank, self._bit_words
            )
            return
        for row_slice in _word_aligned_slices(X):
            pack_rows(
                _nonzero_flags(backend.borrow_rows(X, row_slice)),
                self._items,
                row_slice.start // 64,
                self._bit_words,
            )

    @staticmethod
    def _in_turn(
        X: CSRRows, items: NDArray[np.int64], width: int
    ) -> Iterator[tuple[Words, NDArray[np.int64]]]:
        """Yield the words of one tile after the other, in the same memory."""
        from daskml_dist.backends.itemset_kernels import pack_csr_rows

        csr, rank, bought = X.X, _rank_columns(items, X.shape[1]), _nonzero_flags(X.X.data)
        tile_words = np.empty((1, len(items), width), np.uint64)
        for row_slice in row_slices(X.shape[0], 64 * width):
            tile_words[...] = 0
            pack_csr_rows(csr.indptr, csr.indices, bought, X.rows[row_slice], rank, tile_words)
            yield tile_words, items


def add_set_counts(
    bit_words: Words,
    prefix: NDArray[np.int32],
    bounds: NDArray[np.int64],
    last: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    """Add to `out` the number of rows that contain all items of each candidate."""
    from daskml_dist.backends.itemset_kernels import count_supports

    # Arrays received in messages are read-only; numba would compile the loop again for them.
    writable = [np.require(array, requirements=["C", "A", "W"]) for array in (prefix, bounds, last)]
    count_supports(bit_words, writable[0], writable[1], writable[2], out)


def _word_aligned_slices(X: Any) -> Iterator[slice]:
    """Yield slices of dense rows that begin at multiples of 64 rows."""
    step = _CACHED_BYTES // max(1, X.shape[1] * X.dtype.itemsize)
    yield from row_slices(X.shape[0], max(64, step // 64 * 64))


def _nonzero_flags(values: NDArray[Any]) -> Bytes:
    """Return 1 for values that are not zero, else 0."""
    flags: Bytes = np.ascontiguousarray(values != 0).view(np.uint8)
    return flags


def _rank_columns(items: NDArray[np.int64], n_columns: int) -> NDArray[np.int32]:
    """Return the position of each column among some items; -1 if it is none of them."""
    rank = np.full(n_columns, -1, np.int32)
    rank[items] = np.arange(len(items), dtype=np.int32)
    return rank


def _csr_bytes(X: CSRRows) -> int:
    """Return the bytes of a CSR matrix."""
    csr = X.X
    return int(csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes)
