"""Jobs: one fit from its rows to its result, for any model and any place to run.

Every fit takes the same steps::

    with FitJob(collection, client, run, callbacks) as job:
        job.rows = DatasetInfo.of(job.summarize_rows(), classes, class_weight, weighted)
        job.lay_out_lanes(passes)
        fit = job.plan_steps(settings, model, initial)   # or plan_rounds(model, solver, start)
        result = job.train(fit)                          # or train_steps, train_rounds: in parts
    result.raise_if_interrupted()

`KeyedJob` is the job of entries that are partitioned by ranges of their keys (edges of graphs,
ratings). The job chooses the engine that trains: in this process, on a client's cluster, or on a
cluster that lives as long as the job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.collection import Collection
from daskml_dist.data.computing import (
    check_client,
    check_not_inherited,
    check_synchronous,
    is_inherited,
)
from daskml_dist.data.keyed.collection import KeyedCollection
from daskml_dist.data.keyed.cut import KeyedBlock
from daskml_dist.data.keyed.ids import find_positions
from daskml_dist.data.row_checks import make_no_rows_error
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import Model, StepModel
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.keyed import KeyedSolution, KeyedSolver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.engine import Engine, FitResult
from daskml_dist.training.history import History
from daskml_dist.training.in_parts import (
    AdaptiveRate,
    RoundsProgress,
    StepsProgress,
    train_in_parts,
)
from daskml_dist.training.plan import make_fit, make_solver_fit
from daskml_dist.training.spec import (
    FitSpec,
    KeyedWork,
    RoundWork,
    RowsSpec,
    RunSettings,
    RunSpec,
    Settings,
    count_training_rows,
)

#: Value of `client`: train rows in memory in this process, even if there is a current client.
INLINE = "inline"
#: Value of `client`: train rows in memory where a plan predicts the earlier end. Estimators with a
#: plan replace it before they open a job; for all others it is the current client.
AUTO = "auto"
#: Bytes of rows for each lane of sums in one process (4 MiB): with fewer, starting a thread takes
#: longer than it saves.
SUM_BYTES_PER_LANE = 1 << 22
#: Memory budget of fits over keys, in bytes: no block is ever streamed, since every iteration reads
#: all of them.
KEEP_ALL_BYTES = 2**62


class FitJob:
    """One fit from its rows to its result, as a context manager that opens and closes its engine.

    Parameters
    ----------
    collection : Collection
    client : distributed.Client, str or None
        Where to train: `INLINE`, `AUTO`, a client, or None for the current client. If there is no
        client, rows in memory are trained in this process, and Dask collections on a cluster that
        the job starts.
    run : RunSettings
    callbacks : CallbackList, optional
        Called at the phases of the fit, and after its passes.

    Attributes
    ----------
    engine : Engine
        Set between entering and leaving the context.
    rows : DatasetInfo
        Summary of the rows, and how the fit reads them; set by the caller after
        :meth:`summarize_rows`.
    lanes : list of LaneSpec
        Set by :meth:`lay_out_lanes`.
    """

    engine: Engine
    rows: DatasetInfo
    lanes: list[LaneSpec]

    def __init__(
        self,
        collection: Collection,
        client: Any,
        run: RunSettings,
        callbacks: CallbackList | None = None,
    ) -> None:
        self.run = run
        self.callbacks = CallbackList() if callbacks is None else callbacks
        self._collection, self._client = collection, client

    def __enter__(self) -> Self:
        engine = _open_engine(self._collection, self._client, self.run)
        # Errors about values name the column; a `KeyedCollection` has no columns.
        engine.feature_names = getattr(self._collection, "feature_names", None)
        engine.callbacks = self.callbacks
        self.engine = engine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.engine.__exit__(*error)

    # -- rows ----------------------------------------------------------------------------------

    def summarize_rows(self) -> DataSummary:
        """Return the summary of all rows, reading them once; raise where there are no rows."""
        summary = DataSummary(self.engine.inspect_blocks(self.run.n_lanes))
        summary.check_devices()
        if summary.n_rows == 0:
            raise make_no_rows_error()
        return summary

    def lay_out_lanes(
        self,
        passes: int,
        *,
        bytes_per_lane: int | None = None,
        device: str = "cpu",
        by_block: bool = False,
    ) -> None:
        """Set the lanes of a fit of at most `passes` passes (:meth:`Engine.choose_lanes`).

        `bytes_per_lane`: bytes of rows for which one more lane in one process is worth while;
        `by_block`: each block is a lane, unless the user gave a number of lanes.
        """
        self.lanes = self.engine.choose_lanes(
            self.run.n_lanes,
            bytes_per_lane=bytes_per_lane,
            passes=passes,
            device=device,
            by_block=by_block,
        )

    def lay_out_sum_lanes(
        self, passes: int, *, on_host: bool = False, bytes_per_lane: int | None = None
    ) -> None:
        """Set the lanes of a fit by sums over all rows, which threads of a process share.

        `on_host`: rows are read on the CPU, whatever the device is; `bytes_per_lane`: as in
        :meth:`lay_out_lanes`, by default `SUM_BYTES_PER_LANE`.
        """
        run = self.run
        device = "cpu" if on_host else self.rows.summary.device(run.device, run.deterministic)
        share = SUM_BYTES_PER_LANE if bytes_per_lane is None else bytes_per_lane
        self.lay_out_lanes(passes, bytes_per_lane=share, device=device)

    @property
    def row_lanes(self) -> list[LaneSpec]:
        """Return lanes that together have each row once: only the first, if lanes hold columns."""
        return self.lanes if self.engine.columns is None else self.lanes[:1]

    # -- specification -------------------------------------------------------------------------

    def plan_steps(
        self,
        settings: Settings,
        model: StepModel,
        initial: ShardState | None = None,
        *,
        rows: DatasetInfo | None = None,
    ) -> FitSpec:
        """Plan a fit by gradient steps; `rows` replaces :attr:`rows`."""
        engine = self.engine
        needs_scales = settings.optimizer.uses_scales and model.linear is not None
        return make_fit(
            settings,
            model,
            self.rows if rows is None else rows,
            self.lanes,
            initial,
            engine.streaming,
            engine.scales() if needs_scales else None,
            engine.on_one_host,
            engine.columns,
        )

    def plan_rounds(
        self, model: Model, solver: Solver | RowSolver, start: NDArray[Any] | None = None
    ) -> FitSpec:
        """Plan a fit by a solver: either of sums over all rows, or on each trainer's own rows."""
        engine = self.engine
        return make_solver_fit(
            model, solver, self.rows, self.lanes, start, engine.streaming, self.run,
            budget=engine.row_memory_bytes,
        )  # fmt: skip

    # -- run -----------------------------------------------------------------------------------

    def train(self, fit: FitSpec, callbacks: CallbackList | None = None) -> FitResult:
        """Run a fit from start to end."""
        return self.engine.train(fit, self.callbacks if callbacks is None else callbacks)

    def train_steps(
        self,
        fit: FitSpec,
        checkpoint: Checkpoint | None = None,
        *,
        adaptive_rate: AdaptiveRate | None = None,
        has_settled: Callable[[ShardState], bool] | None = None,
    ) -> FitResult:
        """Run a fit by gradient steps, in parts if the client acts between two passes.

        The client does so to save a checkpoint, to change the rate (`adaptive_rate`), to end the
        fit because of its state (`has_settled`), or because a callback needs the parameters.
        """
        is_uncut = checkpoint is None and not self.callbacks.need_parameters
        if is_uncut and adaptive_rate is None and has_settled is None:
            return self.train(fit)
        progress = StepsProgress(fit, adaptive_rate, has_settled)
        return train_in_parts(self.engine, progress, self.callbacks, checkpoint)

    def train_rounds(
        self, fit: FitSpec, checkpoint: Checkpoint | None = None, seed: int | None = None
    ) -> FitResult:
        """Run a fit by a solver, in parts if it is saved to a checkpoint.

        `seed`: the seed that was drawn because the user gave no `random_state`; a checkpoint holds
        it.
        """
        if checkpoint is None:
            return self.train(fit)
        return train_in_parts(self.engine, RoundsProgress(fit, seed), self.callbacks, checkpoint)

    def solve_beside(self, fit: FitSpec, solver: Solver) -> NDArray[Any]:
        """Return the parameters that a solver finds from the rows of a fit by steps.

        The fit by steps itself is run before or after this, by another call.
        """
        stopping = PassStoppingRule(solver.max_passes, None)
        work = RoundWork(fit.work.model, solver, None, None, stopping)
        result = self.train(replace(fit, work=work), CallbackList())
        if result.interrupted is not None:
            raise result.interrupted
        assert isinstance(result.state, Solution)
        return result.state.w

    # -- result --------------------------------------------------------------------------------

    def make_history(self, fit: FitSpec, result: FitResult, **extra_facts: Any) -> History:
        """Return the history of a fit; `extra_facts` are facts that this kind of fit adds."""
        facts = {
            "policy": fit.work.name,
            "n_lanes": len(fit.rows.lane_rows),
            "streamed": fit.rows.streaming is not None,
            "generations": result.events,
            "lost_rows": result.lost_rows,
            **extra_facts,
            **self.engine.history_facts,
        }
        return History(result.records, extra=facts, interrupted=result.interrupted is not None)


class KeyedJob(FitJob):
    """Fit over keys, whose entries are partitioned by ranges of their keys.

    Parameters
    ----------
    collection : KeyedCollection
    client, run, callbacks
        As of :class:`FitJob`, except that `run` is changed: fits over keys run on the CPU, and keep
        all their blocks in memory.

    Attributes
    ----------
    summary : DataSummary
        Summary of all blocks; their rows are entries.
    """

    _collection: KeyedCollection

    def __init__(
        self,
        collection: KeyedCollection,
        client: Any,
        run: RunSettings,
        callbacks: CallbackList | None = None,
    ) -> None:
        run = replace(run, device="cpu", memory_budget=KEEP_ALL_BYTES)
        super().__init__(collection, client, run, callbacks)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            # Dask tasks number the ids and partition the entries on the workers that hold them.
            self.engine.cut_keys(self.run.n_lanes)
            self.summary = DataSummary(self.engine.inspect_blocks())
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def map_side(self, side: str, function: Callable[[KeyedBlock], Any]) -> list[Any]:
        """Apply a picklable function to each lane's block of a side; return the results by lane."""
        names = [s.name for s in self._collection.sides]
        side_index = names.index(side)
        return self.engine.map_kept_blocks(
            partial(_apply_to_side, side_index, len(names), function)
        )[side_index :: len(names)]

    def find_key_numbers(self, side: str, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of ids among all row keys of a side; -1 for unknown ids."""
        key_numbers = np.full(len(ids), -1)
        first = 0
        # Blocks are in the order of their key ranges, so numbers are cumulative.
        for positions, n in self.map_side(side, partial(_find_positions, ids)):
            key_numbers[positions >= 0] = positions[positions >= 0] + first
            first += n
        return key_numbers

    def solve(
        self, solver: KeyedSolver, callbacks: CallbackList
    ) -> tuple[KeyedSolution, FitResult, FitSpec]:
        """Run a solver; return its solution, the result and the specification of the fit."""
        self.lay_out_lanes(solver.max_passes)
        # Keys have no features: entries are counted as rows.
        rows = RowsSpec("float64", "int32", count_training_rows(self.lanes), None, None, None)
        stopping = PassStoppingRule(solver.max_passes, None)
        work = KeyedWork(
            Unlabelled(0), solver, stopping, remote_key_bytes=self.engine.remote_key_bytes
        )
        fit = FitSpec(rows, work, RunSpec.from_settings(self.run, self.summary))
        result = self.train(fit, callbacks)
        if result.interrupted is not None:
            raise result.interrupted
        assert isinstance(result.state, KeyedSolution)
        return result.state, result, fit


def _apply_to_side(
    side_index: int, n_sides: int, function: Callable[[KeyedBlock], Any], block: Any
) -> Any:
    """Apply a function to a block of one side; return None for blocks of other sides."""
    # Blocks are numbered lane by lane, in each lane by the order of the sides.
    return function(block) if block.index % n_sides == side_index else None


def _find_positions(ids: NDArray[Any], block: KeyedBlock) -> tuple[NDArray[np.int64], int]:
    """Return the positions of ids in a block, and its number of ids."""
    return find_positions(block.ids, ids), len(block.ids)


# -- where a job runs ------------------------------------------------------------------------------


def _open_engine(collection: Collection, client: Any | None, run: RunSettings) -> Engine:
    """Return the engine for a client, for the current one, or for none."""
    if isinstance(client, str) and client == INLINE:
        return _open_inline_engine(collection)
    # Estimators with a plan have replaced "auto" before; for all others it is the current client.
    if isinstance(client, str) and client == AUTO:
        client = None
    if client is not None:
        check_client(client)
    in_task = _is_in_dask_task()
    if client is None:
        client = _current_client(in_task, collection.kind)
    # Engines import the trainers and the transports. They are imported here, since importing an
    # estimator, or predicting, needs neither.
    if client is None and collection.kind == "memory":
        from daskml_dist.training.in_process import InProcessEngine

        return InProcessEngine(collection)
    from daskml_dist.dask_internals.cluster import wait_until_connected
    from daskml_dist.training.client.on_cluster import ClusterEngine

    if client is None and not in_task:
        return ClusterEngine.on_own_cluster(collection, run.memory_budget, run.device)
    with ExitStack() as stack:
        if in_task:
            current_client = stack.enter_context(leave_task_slot())
            client = current_client if client is None else client
        assert client is not None
        check_synchronous(client, "fit")
        check_not_inherited(client, "fit")
        wait_until_connected(client)
        # On an error before `pop_all` the stack closes here, and the thread rejoins the pool.
        engine = ClusterEngine(collection, client, run.memory_budget, run.device)
        engine.close_with_engine(stack.pop_all())
    return engine


@contextmanager
def leave_task_slot() -> Iterator[Any | None]:
    """Leave the worker's thread pool during the context, if the calling thread runs a Dask task.

    Otherwise a fit in a task would wait for tasks that need the thread of this task. The value is
    the client of the task, None outside of tasks.
    """
    if not _is_in_dask_task():
        yield None
        return
    from distributed import worker_client

    from daskml_dist.dask_internals.cluster import wait_until_connected

    with worker_client() as client:
        wait_until_connected(client)
        yield client


def find_default_client(collection: Collection) -> Any | None:
    """Return the client that a fit without `client=` would use; None where there is none."""
    return _current_client(_is_in_dask_task(), collection.kind)


def _open_inline_engine(collection: Collection) -> Engine:
    """Return the engine of this process, even if there is a client."""
    if collection.kind != "memory":
        raise InvalidParameterError(
            'client="inline" needs rows in the memory of this process, but these are a Dask '
            "collection. Gather them first: X, y = dask.compute(X, y)."
        )
    from daskml_dist.training.in_process import InProcessEngine

    return InProcessEngine(collection)


def _is_in_dask_task() -> bool:
    """Return whether the calling thread runs a Dask task."""
    # If distributed is not loaded there is neither a task nor a client, and no need to load it.
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    # `get_worker` raises outside of tasks.
    with suppress(ValueError):
        get_worker()
        return True
    return False


def _current_client(in_task: bool, kind: str) -> Any | None:
    """Return the current client for a fit that was given none; None if it must not be used."""
    if in_task or "distributed" not in sys.modules:
        return None
    from distributed import Client

    from daskml_dist.dask_internals.cluster import is_client_of_worker

    with suppress(ValueError):
        client = Client.current(allow_global=True)
        # In a process forked from that of its client, rows in memory are trained without it.
        if is_inherited(client) and kind == "memory":
            return None
        # On a worker outside of a task (in a thread that a task has started), the fit would wait
        # for the thread of that task: rows in memory are trained in this process.
        if kind != "memory" or not is_client_of_worker(client):
            return client
    return None
