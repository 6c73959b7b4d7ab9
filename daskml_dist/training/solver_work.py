"""Work of fits by solvers: rounds of sums, values of keys, and what trainers find together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.models.base import Model
from daskml_dist.ps.layout import Layout
from daskml_dist.ps.ledger import StoppingRule
from daskml_dist.solvers import Solver
from daskml_dist.solvers.keyed import KeyedSolver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.work import Work

__all__ = ["KeyedWork", "OwnRowsWork", "ResumableWork", "RoundWork", "SolverWork"]


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
