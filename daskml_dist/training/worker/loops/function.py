"""Loop *function*: every trainer runs a user's function, whose ranks form a group.

After a loss the function restarts on all ranks, with the last state that it saved: each rank holds
a copy, and the ranks agree on the latest. The copy belongs to the process and the run, so it also
outlives a trainer whose function has returned.
"""

from __future__ import annotations

import copy
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.base import CHECK_SECONDS
from daskml_dist.comm.rank_group import (
    PackedValue,
    RankGroup,
    RankParameters,
    pack_value,
    split_packed,
    unpack_value,
)
from daskml_dist.errors import DaskMLDistError, FunctionError, is_consequence
from daskml_dist.training.spec import FunctionCall, RankResults
from daskml_dist.training.worker.kept_values import kept_values
from daskml_dist.training.worker.lane import BlocksLane
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.rounds import share_furthest

#: Stack frames of the user's error that the message shows.
_SHOWN_FRAMES = 5
_running = threading.local()


def is_running_function() -> bool:
    """Return whether the calling thread is running a function of a rank group."""
    return getattr(_running, "depth", 0) > 0


def run_function_loop(context: Context) -> RankResults:
    """Run the function on this rank; return its result."""
    call = context.fit.work.call
    assert call is not None
    # From now on the ranks also wait for each other's computations.
    context.wait.timeout = call.timeout or context.wait.timeout
    with _open_parameters(context) as parameters:
        point = _SavedPoint(context)
        group = RankGroup(
            context.communicator,
            context.addresses,
            context.wait,
            context.n_worker_threads,
            context.generation,
            point.save,
            parameters,
        )
        lanes = cast("list[BlocksLane]", context.lanes)
        blocks = [block.values for lane in lanes for block in lane.value_blocks if block.values]
        user_rows = [values[0] for values in blocks] if call.is_single else blocks
        function, state = _load_call(call, context)
        if point.state is not None:
            state = unpack_value(split_packed(point.state))
        with _await_turn(context):
            value = _call_function(
                lambda: pack_value(function(group, user_rows, state)), call, group, context
            )
        group.end()
        if parameters is not None:
            parameters.leave()
    return RankResults(np.empty(0), values={context.rank: value})


def _load_call(call: FunctionCall, context: Context) -> tuple[Callable[..., Any], Any]:
    """Return a new copy of the function and its initial state."""
    try:
        function, state = cloudpickle.loads(call.packed)
    except Exception as error:
        raise FunctionError(
            f"{call.name} and its state cannot be loaded on rank {context.rank} ({error!r}). Give "
            "all workers the modules that it uses (client.upload_file for a file of your own), or "
            "define the function in the notebook or script that calls run_together.",
            context.rank,
            context.address,
        ) from error
    return function, state


@contextmanager
def _await_turn(context: Context) -> Iterator[None]:
    """Wait until an earlier trainer of the run in this process has left the function."""
    lock: threading.Lock = kept_values(context.run_id).setdefault("turn", threading.Lock())
    # The earlier call ends when its own group fails, unless code in another language blocks it.
    since = time.monotonic()
    while not lock.acquire(timeout=CHECK_SECONDS):
        context.wait.check(since, "the previous call of the function")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _open_parameters(context: Context) -> Iterator[RankParameters | None]:
    """Connect to the servers of the function's parameters, if it has any."""
    if not context.fit.work.uses_shards:
        yield None
        return
    connection = context.connect()
    try:
        yield RankParameters(
            context.fit.steps.model.parameters,
            context.fit.rows.dtype,
            connection,
            tuple(lane.number for lane in context.lanes),
            max(context.clocks.values()),
        )
    finally:
        connection.close()


class _SavedPoint:
    """Last state that the function has saved, and its number.

    Attributes
    ----------
    state : ndarray of uint8 or None
        The state, packed into one array; None if none was saved.
    """

    def __init__(self, context: Context) -> None:
        self._process_memory = kept_values(context.run_id)
        self._n_saved: int = self._process_memory.get("number", 0)
        self.state: NDArray[np.uint8] | None = self._process_memory.get("state")
        # Ranks may have reached different calls when one was lost; the latest state is used.
        packed = share_furthest(context, [self._n_saved], self._pack)
        if packed is not None:
            self._keep(int(packed[:8].copy().view(np.int64)[0]), packed[8:])

    def _pack(self) -> NDArray[np.uint8]:
        """Return the number and the state as one array, for ranks with an earlier state."""
        assert self.state is not None
        return np.concatenate([np.array([self._n_saved], np.int64).view(np.uint8), self.state])

    def save(self, state: NDArray[np.uint8]) -> None:
        """Save the next state."""
        self._keep(self._n_saved + 1, state)

    def _keep(self, n_saved: int, state: NDArray[np.uint8]) -> None:
        """Keep a state in this process until the run is forgotten."""
        self._n_saved, self.state = n_saved, state
        self._process_memory.update(number=n_saved, state=state)


def _call_function(
    function: Callable[[], PackedValue], call: FunctionCall, group: RankGroup, context: Context
) -> PackedValue:
    """Return the function's result, packed; raise `FunctionError` for an error of its own."""
    _running.depth = getattr(_running, "depth", 0) + 1
    try:
        # The package's loops ignore these errors; the user's code gets the usual warnings.
        with np.errstate(over="warn", invalid="warn"):
            return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit would end the worker's thread silently
        # The group's failure explains more than the error that the function, or a library in it,
        # raised as a result.
        if error is group.failure:
            raise
        if group.failure is not None:
            # A copy: this failure may itself be the cause of the current error, and Dask would
            # follow the cycle of causes without end.
            raise copy.copy(group.failure) from None
        if isinstance(error, DaskMLDistError) and is_consequence(error):
            raise
        worker = context.address
        worker_text = f" (worker {worker})" if worker else ""
        frames = "".join(traceback.format_tb(error.__traceback__)[-_SHOWN_FRAMES:])
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        raise FunctionError(
            f"{call.name} raised {type(error).__name__} on rank {group.rank} of {group.size}"
            f"{worker_text}, and was ended on all others: {error}{notes}\nThe last frames there:\n"
            f"{frames}",
            group.rank,
            worker,
        ) from error
    finally:
        _running.depth -= 1
