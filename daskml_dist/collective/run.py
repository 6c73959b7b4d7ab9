"""Run one function on every process that holds blocks, on all together or on none."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import cloudpickle

from daskml_dist.collective.parameter_server import ParameterServer
from daskml_dist.comm.rank_group import RankGroup, unpack_value
from daskml_dist.data.value_blocks import as_value_collection
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.job import KEEP_ALL_BYTES, FitJob
from daskml_dist.training.spec import (
    FitSpec,
    FitWork,
    FunctionCall,
    FunctionWork,
    RankResults,
    RowsSpec,
    RunSettings,
    RunSpec,
    count_training_rows,
)
from daskml_dist.training.worker.loops.function import is_running_function

#: Function of its group, its own blocks and the initial state.
RankFunction = Callable[[RankGroup, list[Any], Any], Any]


def run_together(
    client: Any,
    function: RankFunction,
    blocks: Any = None,
    *,
    state: Any = None,
    server: ParameterServer | None = None,
    retries: int | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Run a function at the same time on every worker that holds blocks, as communicating ranks.

    The processes are *ranks* of a group, which communicate through shared memory and sockets
    (encrypted if the cluster is). If a worker is lost, leaves, or joins, the function restarts on
    all ranks, with the last state that it saved (``group.save``) and all blocks. Blocks that were
    lost with a worker are computed again from their recipes, and may then be on other ranks.

    Parameters
    ----------
    client : distributed.Client or None
        Cluster to run on. None: the current client; without any, this process is the only rank.
    function : callable
        Called as ``function(group, blocks, state)`` on every rank. `group` is a
        :class:`RankGroup`, `blocks` the list of the rank's own blocks in their order. The function
        may return anything that can be pickled.
    blocks : Dask collection, array or frame in memory, list of these, or None, default=None
        Data to run on. For one collection, a block is a chunk or partition; for a list of several,
        it is a tuple with the nth block of each. Arrays and frames in memory are cut into one block
        per thread. None: one rank on every worker, without blocks.
    state : object, default=None
        Initial state.
    server : ParameterServer or None, default=None
        Parameters that servers hold for the ranks: ``group.parameters``.
    retries : int or None, default=None
        Number of times that the function may restart after losses. None: as long as it makes
        progress, as in fits.
    timeout : float or None, default=None
        Seconds that a rank waits for the others in one call of its group. None:
        ``daskml_dist.timeout`` of Dask's configuration, 300 by default.

    Returns
    -------
    list
        The value that each rank returned, by rank.

    Raises
    ------
    FunctionError
        The function raised an error on a rank, which the error names; it was ended on all ranks.
    RankMismatchError
        Ranks made different calls of the group, or one returned while others waited for it.
    WaitTimeoutError
        A rank waited for too long for another one.
    WorkerLostError
        Workers were lost more often than `retries`.
    InvalidDataError, InvalidTypeError, InvalidParameterError
        There are no blocks, or arguments are invalid.

    See Also
    --------
    daskml_dist.collective.ParameterServer : Parameters for functions that push and pull.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.collective import run_together
    >>> def mean(group, blocks, state):
    ...     sums = np.array([sum(b.sum() for b in blocks), sum(b.size for b in blocks)])
    ...     total, n = group.allreduce(sums)
    ...     return float(total / n)
    >>> run_together(None, mean, np.arange(5.0))
    [2.0]
    """
    _check_arguments(function, retries, timeout, server)
    collection = as_value_collection(blocks)
    name = getattr(function, "__name__", type(function).__name__)
    call = FunctionCall(
        _pack_call(function, state, name),
        name,
        collection.is_single,
        None if retries is None else int(retries),
        None if timeout is None else float(timeout),
    )
    settings = RunSettings(
        device="cpu",
        memory_budget=KEEP_ALL_BYTES,
        n_servers=1 if server is None else server.n_servers,
        name=name,
    )
    with FitJob(collection, client, settings) as job:
        summary = job.summarize_rows()
        job.lay_out_lanes(1)
        dtype = "float64" if server is None else server.dtype
        rows = RowsSpec(dtype, dtype, count_training_rows(job.lanes), None, None, None)
        work: FitWork = (
            FunctionWork(Unlabelled(0), PassStoppingRule(1, None), call)
            if server is None
            else server.plan(call)
        )
        result = job.train(
            FitSpec(rows, work, RunSpec.from_settings(settings, summary)), CallbackList()
        )
    if result.interrupted is not None:
        raise result.interrupted
    assert isinstance(result.state, RankResults)
    if server is not None:
        server.take(result.state.parameters)
    return [unpack_value(value) for value in result.state.values.values()]


def _check_arguments(
    function: Any, retries: int | None, timeout: float | None, server: Any
) -> None:
    """Raise `InvalidParameterError` for invalid arguments."""
    if not callable(function):
        raise InvalidParameterError(
            f"function={function!r} cannot be called. run_together(client, function, blocks) calls "
            "function(group, blocks, state) on every rank."
        )
    is_count = isinstance(retries, Integral) and not isinstance(retries, bool) and retries >= 0
    if retries is not None and not is_count:
        raise InvalidParameterError(f"retries={retries!r}: use an integer >= 0.")
    if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
        raise InvalidParameterError(f"timeout={timeout!r}: use seconds > 0.")
    if server is not None and not isinstance(server, ParameterServer):
        raise InvalidParameterError(
            f"server={server!r} is not a ParameterServer: make one from named arrays, "
            'ParameterServer({"w": np.zeros(10)}).'
        )
    if is_running_function():
        raise InvalidParameterError(
            "run_together was called inside a function that run_together runs: each rank would "
            "start its own run and wait for the others' workers. Call it from the client, or "
            "use the group that is passed to the function."
        )


def _pack_call(function: Any, state: Any, name: str) -> bytes:
    """Return the function and its state as bytes."""
    try:
        return bytes(cloudpickle.dumps((function, state)))
    except Exception as error:
        raise InvalidParameterError(
            f"{name} or its state cannot be sent to workers ({error}). Make locks, open files, "
            "connections and clients within the function; give data as blocks."
        ) from error
