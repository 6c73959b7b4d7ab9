"""Rows per second of a growing table's store: created, updated, read, and read without a row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._common import markdown
from daskml_dist.ps.row_store import RowStore, RowStoreSettings

SIZES = [10**5, 10**6, 10**7, 10**8]
WIDTH, BATCH = 16, 100_000
#: Bytes of the arrays that stay in memory: for the largest table all but the rows themselves.
MEMORY = 4 << 30
#: Largest number of rows for which a dict is measured too.
MOST_IN_DICT = 10**7
_ODD, _MASK = 0x1E3779B97F4A7C15, (1 << 63) - 1


def run(tiny: bool = False) -> str:
    """Return the table."""
    rows = [_measured(n, tiny) for n in ([2000] if tiny else SIZES)]
    title = (
        f"Millions of rows per second on one core: {WIDTH} float32 and one state value, batches of "
        f"{BATCH:,} ids drawn uniformly"
    )
    columns = [
        "rows", "arrays stored in", "bytes per row", "inserted", "found", "updated", "read",
        "read, ids without a row", "dict and NumPy: found", "updated", "read",
    ]  # fmt: skip
    return markdown(title, columns, rows)


def _ids(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return distinct ids: multiplication by an odd number is one-to-one, also modulo 2**63."""
    return (numbers.astype(np.uint64) * np.uint64(_ODD)).view(np.int64) & _MASK


def _measured(n: int, tiny: bool) -> list[str]:
    rng, n_batch = np.random.default_rng(0), 500 if tiny else BATCH
    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(
            RowStoreSettings(
                WIDTH, {"accumulator": 1}, "float32", 0, 0.01, memory_bytes=MEMORY, folder=folder
            )
        )
        store.slots_for_update(_ids(np.arange(n, n + 1)), 0)  # compiled by now
        make = _Clock()
        for start in range(0, n, n_batch):
            ids = np.sort(_ids(np.arange(start, min(start + n_batch, n))))
            make.time(store.slots_for_update, ids, 0)
        drawn = [rng.integers(0, n, n_batch) for _ in range(2 if tiny else 21)]
        batches = [np.unique(_ids(numbers)) for numbers in drawn]
        unseen = [ids | np.int64(1) << 62 for ids in batches]
        unseen = [np.unique(ids[store.find(ids) < 0]) for ids in unseen]
        arrays = [store.w, store.ids, store.touched, *store.state.values()]
        n_bytes = sum(array.nbytes for array in arrays) + store._index.table.nbytes
        rates = [
            make.rate,
            _rate(store.find, batches),
            _rate(lambda ids: _update(store, ids), batches),
            _rate(store.read, batches),
            _rate(store.read, unseen),
        ]
        where = "memory" if n_bytes <= MEMORY else "memory, `w` in a file"
        texts = [f"{n:,}", where, f"{n_bytes / n:.0f}", *map(_text, rates)]
        return [*texts, *(_rates_of_dict(n, batches) if n <= MOST_IN_DICT else ["-"] * 3)]


def _update(store: RowStore, ids: NDArray[np.int64]) -> None:
    """Read and write rows and their state, as in a step without its arithmetic."""
    slots = store.slots_for_update(ids, 1)
    store.scatter(slots, store.gather(slots))
    store.scatter_state(slots, store.gather_state(slots))


def _rates_of_dict(n: int, batches: list[NDArray[np.int64]]) -> list[str]:
    """Measure the same with a dict from ids to rows of NumPy's arrays."""
    slots = dict(zip(_ids(np.arange(n)).tolist(), range(n), strict=True))
    w, state = np.zeros((n, WIDTH), np.float32), np.zeros((n, 1), np.float32)
    touched = np.zeros(n, np.int64)

    def find(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(list(map(slots.__getitem__, ids.tolist())), np.int64)

    def update(ids: NDArray[np.int64]) -> None:
        found = find(ids)
        touched[found] = 1
        w[found] = w[found]
        state[found] = state[found]

    return [_text(_rate(call, batches)) for call in (find, update, lambda ids: w[find(ids)])]


class _Clock:
    """Number of ids and seconds of some calls."""

    def __init__(self) -> None:
        self._n, self._seconds = 0, 0.0

    def time(self, call: Callable[..., Any], ids: NDArray[np.int64], *more: Any) -> None:
        begin = time.perf_counter()
        call(ids, *more)
        self._seconds += time.perf_counter() - begin
        self._n += len(ids)

    @property
    def rate(self) -> float:
        return self._n / self._seconds


def _rate(call: Callable[[NDArray[np.int64]], Any], batches: list[NDArray[np.int64]]) -> float:
    """Return ids per second: the median of the batches without the first, which warms up."""
    rates = []
    for ids in batches:
        clock = _Clock()
        clock.time(call, ids)
        rates.append(clock.rate)
    return float(np.median(rates[1:]))


def _text(rate: float) -> str:
    return f"{rate / 1e6:.1f}"
