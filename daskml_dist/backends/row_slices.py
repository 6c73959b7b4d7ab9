"""Rows of arrays in slices: draws of batches, slices that fit in a cache, slices for threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.host_threads import count_cores

#: A batch's runs of neighbouring rows, by block: block number, first rows, and lengths (None: one
#: row each).
Draw = Sequence[tuple[int, NDArray[np.intp], NDArray[np.intp] | None]]


def run_over_threads(work: Callable[[slice], None], n_rows: int, least: int) -> None:
    """Call a function on slices of all rows, in threads; the function must release the GIL.

    Only in a process's main thread: other threads, such as those of a Dask worker, already share
    the cores. ``OMP_NUM_THREADS`` limits the threads, as in other libraries.
    """
    n_threads = min(n_rows // least, _count_allowed_threads())
    if n_threads < 2:
        work(slice(0, n_rows))
        return
    # The calling thread processes the first slice.
    first_slice, *other_slices = row_slices(n_rows, -(-n_rows // n_threads))
    with ThreadPoolExecutor(len(other_slices), "daskml-rows") as pool:
        futures = [pool.submit(work, row_slice) for row_slice in other_slices]
        work(first_slice)
    for future in futures:
        future.result()


def _count_allowed_threads() -> int:
    """Return the number of threads that the caller may use."""
    if threading.current_thread() is not threading.main_thread():
        return 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = count_cores()
    return max(1, min(cores, int(limit))) if limit.isdecimal() else cores


def row_slices(n_rows: int, step: int) -> Iterator[slice]:
    """Yield slices of `step` rows (at least one) that cover `n_rows`; the last may be shorter."""
    step = max(step, 1)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
