"""Fit over keys (edges of graphs, ratings): entries are cut by ranges of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import BlockInfo
from daskml_dist.data.keyed import KeyedBlock, KeyedCollection
from daskml_dist.data.keyed.ids import find_positions
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.solvers.keyed import KeyedSolution, KeyedSolver
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.data_summary import DataSummary
from daskml_dist.training.engine import FitResult
from daskml_dist.training.run import open_engine
from daskml_dist.training.settings import RunSettings
from daskml_dist.training.spec import FitSpec, RowsSpec, RunSpec, count_training_rows
from daskml_dist.training.work import KeyedWork

__all__ = ["KeyedFit"]

#: Memory budget that keeps all blocks of keys: each takes part in every iteration.
_KEEP_ALL_BYTES = 2**62


class KeyedFit:
    """Entries cut by ranges of keys, on the workers that hold them.

    Parameters
    ----------
    collection : KeyedCollection
    run : RunSettings
    client : distributed.Client or None
        As :func:`open_engine`.
    callbacks : CallbackList, optional
        Who is told of the phases of the fit.

    Attributes
    ----------
    infos : list of BlockInfo
        Of all blocks; `n_rows` are entries.
    """

    def __init__(
        self,
        collection: KeyedCollection,
        run: RunSettings,
        client: Any,
        callbacks: CallbackList | None = None,
    ) -> None:
        self._collection = collection
        self._run = run
        self._client = client
        self._callbacks = callbacks
        self.infos: list[BlockInfo] = []

    def __enter__(self) -> Self:
        self.engine = open_engine(
            self._collection, self._client, _KEEP_ALL_BYTES, callbacks=self._callbacks
        )
        self.engine.__enter__()
        try:
            # Ids are numbered and entries cut where they lie, by tasks of Dask.
            self.engine.cut_keys(self._run.n_lanes)
            self.infos = self.engine.survey()
        except BaseException as error:
            self.engine.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.__exit__(kind, error, trace)

    @property
    def n_entries(self) -> int:
        """Return the number of entries of all lanes."""
        # Each lane has one block a side, all with the same entries.
        n_sides = len(self._collection.sides)
        return sum(info.n_rows for info in self.infos[::n_sides])

    def ask(self, side: str, function: Callable[[KeyedBlock], Any]) -> list[Any]:
        """Return the results of a picklable function of each lane's block of a side."""
        names = [s.name for s in self._collection.sides]
        return self.engine.ask(_ForOneSide(names.index(side), len(names), function))[
            names.index(side) :: len(names)
        ]

    def numbers(self, side: str, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of some row keys of a side; -1 for ids that are none."""
        found = np.full(len(ids), -1)
        first = 0
        # Blocks are in the order of their key ranges, so numbers are cumulative.
        for at, n in self.ask(side, _FindPositions(ids)):
            found[at >= 0] = at[at >= 0] + first
            first += n
        return found

    def solve(
        self, solver: KeyedSolver, callbacks: CallbackList
    ) -> tuple[KeyedSolution, FitResult, FitSpec]:
        """Run a solver."""
        # Keyed solvers compute on the host.
        engine, run = self.engine, replace(self._run, device="cpu")
        lanes = engine.lanes(run.n_lanes, share=None, passes=solver.max_passes)
        # Keys have no features: entries are counted as rows.
        rows = RowsSpec("float64", "int32", count_training_rows(lanes), None, None, None)
        stopping = PassStoppingRule(solver.max_passes, None)
        work = KeyedWork(Unlabelled(0), solver, stopping, room=engine.room)
        fit = FitSpec(rows, work, RunSpec.of(run, DataSummary(self.infos)))
        result = engine.train(fit, callbacks)
        if result.interrupted is not None:
            raise result.interrupted
        assert isinstance(result.state, KeyedSolution)
        return result.state, result, fit


class _ForOneSide:
    """Picklable function applied to the blocks of one side only."""

    def __init__(self, at: int, n_sides: int, function: Callable[[KeyedBlock], Any]) -> None:
        self._at, self._n_sides, self._function = at, n_sides, function

    def __call__(self, block: Any) -> Any:
        return self._function(block) if block.index % self._n_sides == self._at else None


class _FindPositions:
    """Picklable function that returns the positions of ids in a block, and its number of ids."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def __call__(self, block: KeyedBlock) -> tuple[NDArray[np.int64], int]:
        return find_positions(block.ids, self._ids), len(block.ids)
