"""Work of a fit, and gradient steps of a model under a policy.

The machinery of a run (servers, generations, recovery, reports) asks of either what `Work` says,
and the loop that it names knows which of the two it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.compression import Compressor
from daskml_dist.models.base import LinearForm, Model, StepModel
from daskml_dist.policies import Policy
from daskml_dist.policies.gates import ArrivalGate, Gate
from daskml_dist.policies.pipeline import Pipeline
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.solvers import Solver
from daskml_dist.solvers.keyed import KeyedSolver
from daskml_dist.solvers.own_rows import RowSolver

__all__ = ["KeyedWork", "OwnRowsWork", "RoundWork", "StepWork", "Work"]


#: Steps of a pass from which on the last push of every pass is not compressed.
_MANY_STEPS = 32


class Work(ABC):
    """Base class of what the lanes of a fit do.

    Attributes
    ----------
    model : Model
    stopping : StoppingRule
        In its initial state.
    n_steps : int
        Steps of each lane in a pass.
    first_pass : int
        Passes made before, where the fit is a later part of a longer one.
    seed : int
    shuffle : bool
    layout : Layout
        Of the parameters that servers hold.
    coordinates : bool
        Whether a step touches few of the parameters.
    compression : Compressor or None
        What pushes to servers are compressed with.
    micro_batch : int or None
        Rows of a batch that the model is given at once; None: all of them, or what a cache holds.
    step_callbacks : tuple of object
        Told of each step, where it is made.
    on_host : bool
        Whether rows are read in host memory, whatever the device.
    """

    on_host: ClassVar[bool] = False
    model: Model
    layout: Layout
    stopping: StoppingRule
    n_steps: int
    first_pass: int
    seed: int
    shuffle: bool
    compression: Compressor | None
    micro_batch: int | None
    step_callbacks: tuple[Any, ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """Name that the history calls it by."""

    @property
    @abstractmethod
    def loop(self) -> str:
        """Name of the loop that runs it."""

    @property
    def coordinates(self) -> bool:
        return False

    @property
    def reads(self) -> int:
        """Passes over streamed blocks that may follow each other."""
        return self.stopping.max_iter

    @property
    def planned(self) -> int | None:
        """Passes that the user asked for, at most; None where their bound is but a solver's."""
        return self.stopping.max_iter

    @property
    def in_turn(self) -> bool:
        """Whether each row is a step of its own."""
        return False

    @property
    def linear(self) -> LinearForm | None:
        """Form of a linear model, for kernels of steps; None: there are none."""
        return None

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are at the same clock at each end of a pass."""
        return True

    @property
    def uses_shards(self) -> bool:
        """Whether the parameters live in server shards."""
        return False

    @property
    def uses_threads(self) -> bool:
        """Whether a lane a thread is wanted in one process too."""
        return True

    @property
    def in_pairs(self) -> bool:
        """Whether a trainer sends to another one what is for that one alone."""
        return False

    @property
    def replays(self) -> bool:
        """Whether trainers remember what is needed to go on, so that any one of them can."""
        return False

    @property
    @abstractmethod
    def carried(self) -> int:
        """Bytes of the parameters that it begins with, which travel with it."""

    def of_lane(self, lane: int) -> Work:
        """Work of a lane, by its number."""
        return self

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """State machine of the pass reports."""
        return ArrivalGate(lanes, clock)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Keys of the scores that a loop reports its passes with."""
        return ()

    @property
    def first_clock(self) -> int:
        """Clock at which every lane starts."""
        return self.first_pass * self.n_steps

    def passes(self, clock: int) -> range:
        """Numbers of the passes to make at most, from a clock on.

        One that ends at the clock is among them: it may not have been reported yet.
        """
        first = max(self.first_pass + 1, -(-clock // self.n_steps))
        return range(first, self.stopping.max_iter + 1)


@dataclass(frozen=True)
class StepWork(Work):
    """Gradient steps of a model.

    Parameters
    ----------
    model : StepModel
    policy : Policy
    rule : UpdateRule
    layout : Layout
    stopping : StoppingRule
    n_steps : int
    seed : int
    shuffle : bool
    initial : ShardState or None
        Whole state to go on from; None: as the model begins.
    first_pass : int, default=0
    single_rows : bool, default=False
        Whether each row of a batch is an update of its own.
    compression : Compressor or None
    micro_batch : int or None
    step_callbacks : tuple of object
    pipeline : Pipeline or None
        Of the layers of a `StagedModel`.
    columns : tuple of int, or None
        First column of each lane, and their number, where each lane has some columns of all rows
        (of a `ColumnModel`); None: it has some rows.
    """

    model: StepModel
    policy: Policy
    rule: UpdateRule
    layout: Layout
    stopping: StoppingRule
    n_steps: int
    seed: int
    shuffle: bool
    initial: ShardState | None
    first_pass: int = 0
    single_rows: bool = False
    compression: Compressor | None = None
    micro_batch: int | None = None
    step_callbacks: tuple[Any, ...] = ()
    pipeline: Pipeline | None = None
    columns: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def loop(self) -> str:
        return self.policy.loop

    @property
    def coordinates(self) -> bool:
        return self.rule.coordinates

    @property
    def in_turn(self) -> bool:
        return self.single_rows

    @property
    def linear(self) -> LinearForm | None:
        # Its kernels make whole steps, of whole rows.
        return self.model.linear if self.columns is None else None

    @property
    def lockstep(self) -> bool:
        return self.policy.lockstep

    @property
    def uses_shards(self) -> bool:
        return self.policy.uses_shards

    @property
    def uses_threads(self) -> bool:
        return self.policy.uses_threads

    @property
    def in_pairs(self) -> bool:
        return self.pipeline is not None

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        return self.policy.gate(lanes, clock)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the parameters."""
        return self.model.parameters.shape

    @property
    def carried(self) -> int:
        return 0 if self.initial is None else self.initial.w.nbytes

    def rows_of(self, lane: int) -> slice:
        """Rows of the parameters that belong to a lane's columns."""
        assert self.columns is not None
        model: Any = self.model
        found: slice = model.rows_of_columns(*self.columns[lane : lane + 2])
        return found

    def of_lane(self, lane: int) -> StepWork:
        """Work of a lane: of its own columns where it has some of them alone."""
        if self.columns is None:
            return self
        model: Any = self.model
        part = model.of_columns(*self.columns[lane : lane + 2])
        initial = None if self.initial is None else self.initial.part(self.rows_of(lane))
        # Losses are the last lane's.
        told = self.step_callbacks if lane == len(self.columns) - 2 else ()
        return replace(self, model=part, initial=initial, step_callbacks=told)

    def pushes_whole(self, clock: int) -> bool:
        """Whether the push that ends a lane's step `clock` goes without compression.

        It takes along all that was left out before: at the end of each pass, or, where a pass has
        few steps, of the last one.
        """
        passes, rest = divmod(clock, self.n_steps)
        return rest == 0 and (self.n_steps >= _MANY_STEPS or passes >= self.stopping.max_iter)

    def start_state(self, dtype: str, rows: slice = slice(None)) -> ShardState:
        """Fresh state of some rows of the parameters."""
        if self.initial is not None:
            return self.initial.part(rows)
        return ShardState(self.model.init_rows(rows, self.seed, dtype), {})


class SolverWork(Work):
    """Base class of a solver's work: servers keep the passes alone, and there are no steps."""

    #: Servers keep the passes alone.
    layout: ClassVar[Layout] = Layout(0, 0, 1)  # type: ignore[misc]
    n_steps: ClassVar[int] = 1  # type: ignore[misc]
    shuffle: ClassVar[bool] = False  # type: ignore[misc]
    compression: ClassVar[None] = None  # type: ignore[misc]
    micro_batch: ClassVar[None] = None  # type: ignore[misc]
    step_callbacks: ClassVar[tuple[Any, ...]] = ()  # type: ignore[misc]

    @property
    def planned(self) -> int | None:
        """None: the bound counts every line search that could fail, and is never met."""
        return None

    @property
    def carried(self) -> int:
        return 0

    @property
    def replays(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class ResumableWork(SolverWork):
    """Base class of a solver's work that can pause, be written to a checkpoint, and go on.

    Parameters
    ----------
    first_pass : int, default=0
        Passes made before, where the fit is a later part of a longer one.
    log : ndarray of uint8, or None
        State that these have come to, as the loop packs it; None: the fit begins.
    pause_at : int or None
        Number of passes after which the fit ends as far as it has come, to be gone on with.
    is_stopped : bool, default=False
        Whether the user has ended the fit already.
    """

    first_pass: int = 0
    log: NDArray[np.uint8] | None = None
    pause_at: int | None = None
    is_stopped: bool = False

    @property
    def carried(self) -> int:
        return 0 if self.log is None else self.log.nbytes


@dataclass(frozen=True)
class RoundWork(ResumableWork):
    """Sums over all rows, asked for by a solver.

    Parameters
    ----------
    model : Model
    solver : Solver
    shape : tuple of int or None
        Of the parameters; None where the solver finds something else.
    start : ndarray or None
        What the solver starts from; None: zeros where there is a shape.
    stopping : StoppingRule
    in_ranges : bool, default=False
        Whether each trainer holds a range of the solver's vectors.
    seed : int, default=0
        Of what statistics draw.
    first_pass, log, pause_at, is_stopped
        As in `ResumableWork`; passes are sums, and the log is `SumLog.packed`.
    """

    model: Model
    solver: Solver
    shape: tuple[int, ...] | None
    start: NDArray[Any] | None
    stopping: StoppingRule
    in_ranges: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        return "rounds"

    @property
    def loop(self) -> str:
        return "ranges" if self.in_ranges else "solver"

    @property
    def carried(self) -> int:
        return super().carried + (0 if self.start is None else self.start.nbytes)

    def first(self) -> NDArray[np.float64] | None:
        """Parameters to start from, in an array of their own; None where there are none."""
        if self.start is not None:
            return self.start.astype(np.float64)
        return None if self.shape is None else np.zeros(self.shape)


@dataclass(frozen=True)
class OwnRowsWork(ResumableWork):
    """Solver that trainers run on their own rows, together.

    Parameters
    ----------
    model : Model
    solver : RowSolver
    stopping : StoppingRule
    first_rows : ndarray of int64
        Of each block, the number of its first row among all.
    seed : int, default=0
    budget : float, default=inf
        Bytes of blocks that are held, and of what is made of rows, on one worker.
    row_bytes : float, default=0
        Bytes of a row in the blocks that are held.
    first_pass, log, pause_at, is_stopped
        As in `ResumableWork`; passes are iterations.
    """

    model: Model
    solver: RowSolver
    stopping: StoppingRule
    first_rows: NDArray[np.int64]
    seed: int = 0
    budget: float = float("inf")
    row_bytes: float = 0.0

    @property
    def planned(self) -> int:
        """A tree each, or an iteration."""
        return self.solver.max_passes

    @property
    def reads(self) -> int:
        """Whoever reads the rows again begins anew."""
        return 1

    @property
    def score_names(self) -> tuple[str, ...]:
        return self.solver.score_names

    #: The solver moves what it makes of rows.
    on_host: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "own rows"

    @property
    def loop(self) -> str:
        return "own_rows"


@dataclass(frozen=True)
class KeyedWork(SolverWork):
    """Values of keys, found by a solver on all trainers together.

    Parameters
    ----------
    model : Model
    solver : KeyedSolver
    stopping : StoppingRule
    seed : int, default=0
    room : int, optional
        Bytes that a trainer may take for values of keys that its entries touch, beside those that
        come of others meanwhile. Default: whatever there are.
    """

    model: Model
    solver: KeyedSolver
    stopping: StoppingRule
    seed: int = 0
    first_pass: int = 0
    room: int | None = None

    @property
    def name(self) -> str:
        return "keys"

    @property
    def loop(self) -> str:
        return "keyed"
