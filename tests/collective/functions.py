"""Functions that ranks run together."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.collective import RankGroup, run_together
from daskml_dist.errors import DaskMLDistError


def make_every_call(group: RankGroup, blocks: list[Any], state: Any) -> int:
    """Compare each collective with NumPy's result for the ranks' known values."""
    rank, size = group.rank, group.size
    assert group.allgather({"rank": rank}) == [{"rank": r} for r in range(size)]
    found = group.allgather(np.full(rank, float(rank)))
    assert [f.tolist() for f in found] == [[float(r)] * r for r in range(size)]
    assert group.alltoall([(rank, r) for r in range(size)]) == [(r, rank) for r in range(size)]
    for root in range(size):
        assert group.broadcast(f"of {rank}" if rank == root else None, root) == f"of {root}"
    ranks = np.arange(size)
    for dtype in ("float64", "float32", "int64", "int8", "complex128", "uint16"):
        for shape in ((), (3,), (0,), (2, 4), (70_000,)):
            array = np.full(shape, rank + 1, dtype)
            total = group.allreduce(array)
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, np.full(shape, (ranks + 1).sum(), dtype))
            np.testing.assert_array_equal(array, np.full(shape, rank + 1, dtype))  # unchanged
    assert group.allreduce(np.eye(3)[:, ::2] * rank, "max").sum() == 2 * size - 2
    np.testing.assert_array_equal(group.allreduce([rank, -rank], "min"), [0, 1 - size])
    assert group.allreduce(rank == 0) == 1
    assert group.allreduce(f"{rank}" == "0", lambda a, b: a | b)
    # A function other than a sum, applied in the order of ranks.
    joined = group.allreduce(np.array([rank, rank]), lambda a, b: np.array([a[0], b[1]]))
    assert joined.tolist() == [0, size - 1]
    rows = np.arange(20.0).reshape(10, 2)
    rows_of_rank = slice(10 * rank // size, 10 * (rank + 1) // size)
    np.testing.assert_array_equal(group.reduce_scatter(rows), size * rows[rows_of_rank])
    group.barrier()
    return group.rank


def add_up(group: RankGroup, blocks: list[Any], state: Any) -> tuple[Any, int]:
    """Return the sum of all blocks' entries, and the number of this rank's blocks."""
    sum_of_rank = np.sum([np.sum(block) for block in blocks], dtype=float)
    return float(group.allreduce(sum_of_rank)), len(blocks)


def list_blocks(group: RankGroup, blocks: list[Any], state: Any) -> list[Any]:
    """Return this rank's blocks."""
    return blocks


def count_to_ten(group: RankGroup, blocks: list[Any], state: Any) -> tuple[int, float, int]:
    """Add the blocks ten times, saving after each; a rank that finds an order to exit does so once.

    The state holds the folder of orders, the number of additions, and the total.
    """
    folder, n, total = state
    while n < 10:
        if group.rank == group.size - 1:
            obey(folder, n)
        sum_of_rank = float(sum(np.sum(block) for block in blocks))
        total += float(group.allreduce(sum_of_rank))
        n += 1
        group.save((folder, n, total))
    return n, total, group.generation


def obey(folder: str, n: int) -> None:
    """End this process without clean-up, if there is an order to do so."""
    order = Path(folder, f"end-{n}")
    try:
        order.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def raise_on_one(group: RankGroup, blocks: Any, state: Any) -> None:
    """Raise on the last rank."""
    if group.rank == group.size - 1:
        raise LookupError("no such thing")
    group.barrier()


def return_on_one(group: RankGroup, blocks: Any, state: Any) -> None:
    """Return early on all ranks but the first."""
    if group.rank == 0:
        group.barrier()
        group.allreduce(1.0)


def differ(group: RankGroup, blocks: Any, state: Any) -> None:
    """Sum arrays of different shapes."""
    group.allreduce(np.zeros(3 + group.rank))


def cross(group: RankGroup, blocks: Any, state: Any) -> None:
    """Make different calls."""
    _ = group.allgather(1) if group.rank else group.allreduce(1)


def swallow(group: RankGroup, blocks: Any, state: Any) -> None:
    """Hide the error of different calls behind another one."""
    try:
        cross(group, blocks, state)
    except DaskMLDistError as error:
        raise ValueError("a library that hides what happened") from error


def make_lock(group: RankGroup, blocks: Any, state: Any) -> Any:
    """Return an object that cannot be pickled."""
    return threading.Lock()


def leave(group: RankGroup, blocks: Any, state: Any) -> None:
    """Exit as a script does."""
    raise SystemExit(3)


def nest(group: RankGroup, blocks: Any, state: Any) -> Any:
    """Run another function inside."""
    return run_together(None, add_up, np.arange(3.0))
