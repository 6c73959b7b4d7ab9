"""Base classes of iterative solvers, and of the sums over rows (statistics) that they reduce.

A solver never sees a row. It requests the sum of a :class:`Statistic` over all rows (a gradient, a
histogram), makes a small update of its parameters, and requests the next sum. The trainers compute
each sum as an all-reduce: every trainer adds up its own rows, on any number of threads, processes
and machines. These are the "statistical queries" of Chu et al., "Map-Reduce for Machine Learning
on Multicore", NIPS 2006.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.models.base import BatchRows, identity_of
from daskml_dist.penalties import Penalty

Array = NDArray[np.float64]
#: Returns a snapshot of a solver, as arrays by name, from which it resumes to the same bits.
State = Callable[[], dict[str, Array]]


class RowState(ABC):
    """Array with an entry per row that outlives a sum: labels, raw predictions, nodes of a tree.

    A statistic whose :attr:`Statistic.state` returns a `RowState` reads and writes the array in
    place, as ``rows.state``. The next statistic that returns a state of the same `name` finds the
    array as the last one left it. Trainers call :meth:`make` if they do not hold the array: at
    the start, after the loss of a worker, and where blocks are streamed because the rows or their
    states do not fit in memory.

    A `RowState` is not pickled: each trainer builds it from the attributes of the statistic.

    Attributes
    ----------
    name : str
        Key of the array among the states of a fit.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows
    >>> from daskml_dist.solvers import RowState
    >>> class NearestCentre(RowState):
    ...     name = "nearest"
    ...     def make(self, model, rows, backend):
    ...         return np.zeros(len(rows.X), np.int64)
    >>> NearestCentre().make(None, BatchRows(np.ones((3, 2))), None)
    array([0, 0, 0])
    """

    name: ClassVar[str]

    @abstractmethod
    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """Return the state of some rows, with the bits that the last statistic left there.

        A pure function of the rows and of the attributes of the statistic. Before the first
        statistic of the fit it returns the initial state.

        Parameters
        ----------
        model : Model
        rows : BatchRows
            Its `state` is None.
        backend : Backend

        Returns
        -------
        array of shape (n, ...), of any dtype
            A new array on the backend's device.
        """


class Statistic(ABC):
    """Base class of requests for a sum over all rows; the map and the reduce step of one.

    Every request is sent to every trainer; the model is sent only once. A statistic is serialised
    as data: its attributes are numbers, text, arrays, losses, and tuples, lists or dictionaries of
    them. Its class is found through the solver's module, which must define or import it.

    Attributes
    ----------
    additive : bool
        Whether the sums of two parts of the rows are added. False: :meth:`merge` combines them,
        and must have zeros as its neutral element.
    remembered : bool
        Whether trainers log the sum, so that a solver that restarts after a loss gets it without
        another pass over the rows. False for a sum too large to be logged: it is computed again.
    in_parts : bool
        Whether :meth:`add` reads X only through :meth:`BatchRows.part` or a linear model's
        gradient, which copy tiles of the size of a processor's cache if X is not aligned.
        Otherwise a trainer copies such a block as a whole before the first sum.
    loss_is_first : bool
        Whether the first entry of the sum is the loss that :meth:`add` returns, which then comes
        from a GPU with the others.
    n_numbers : int
        Number of scalars at the start of the flattened sum. For `RangedSolver`: all processes get
        the scalars; the vectors of the parameters' size behind them are scattered.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows
    >>> from daskml_dist.solvers import Statistic
    >>> class Largest(Statistic):
    ...     additive = False
    ...     def shape(self, model):
    ...         return (2,)
    ...     def add(self, model, rows, out, backend):
    ...         self.merge(out, rows.X.max(axis=0))
    ...     def merge(self, total, part):
    ...         np.maximum(total, part, out=total)
    >>> out = np.zeros(2)
    >>> for block in ([[1.0, 5.0], [2.0, 3.0]], [[4.0, 0.0]]):
    ...     _ = Largest().add(None, BatchRows(np.array(block)), out, None)
    >>> out
    array([4., 5.])
    """

    additive: ClassVar[bool] = True
    remembered: ClassVar[bool] = True
    n_numbers: ClassVar[int] = 0
    in_parts: ClassVar[bool] = False
    loss_is_first: ClassVar[bool] = False

    @property
    def state(self) -> RowState | None:
        """Return the array with an entry per row that the statistic reads or writes, or None."""
        return None

    @property
    def shows_not_finite(self) -> bool:
        """Return whether NaN or infinity in X is certain to make the sum NaN or infinite.

        If so, a trainer searches its rows for NaN only after a sum that is not finite, which saves
        a pass; otherwise it searches them before its first sum.
        """
        # The safe answer: a sum of comparisons or counts, for example, hides a NaN.
        return False

    @abstractmethod
    def shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of the sum."""

    @abstractmethod
    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the contribution of some rows to `out`, in place.

        `rows` and `out` are on the backend's device; array attributes of the statistic are NumPy
        arrays, which this method moves to the device (`Backend.to_device`).

        Parameters
        ----------
        model : Model
            The fit's model.
        rows : BatchRows
            Adjacent rows of a block, with targets as the model encoded them, if any, and weights
            whose mean over all rows of the fit is 1 (None: all are 1).
        out : array of float64
            Of :meth:`shape`.
        backend : Backend

        Returns
        -------
        float, array of no dimension, or None
            Sum of the rows' losses, for the fit's history; None (or NaN) if the statistic computes
            no loss.
        """

    def merge(self, total: Array, part: Array) -> None:
        """Reduce the sum of other rows into `total`, in place."""
        # Overridden if parts are merged in another way, such as by maxima (`additive = False`).
        total += part

    def answer_shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of the array that the solver receives."""
        # The sum itself; a `ReduceScatterStatistic` answers with the results of its ranges.
        return self.shape(model)


class ReduceScatterStatistic(Statistic):
    """Base class of sums that are reduce-scattered: each trainer postprocesses a range of one.

    Trainers gather the results of :meth:`finish` instead of the sum, which may be far larger: the
    best splits of histograms, or updated rows of a matrix that is factored. The solver gets the
    results of all ranges, concatenated; they must not depend on where the ranges are cut.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import ReduceScatterStatistic
    >>> class RowsOfMeans(ReduceScatterStatistic):
    ...     def shape(self, model):
    ...         return (3, 2)  # of each class: a sum, and its rows
    ...     def add(self, model, rows, out, backend):
    ...         np.add.at(out, rows.y, np.column_stack([rows.X[:, 0], np.ones(len(rows.X))]))
    ...     def finish(self, model, own, at):
    ...         return own[:, 0] / own[:, 1]
    ...     def answer_shape(self, model):
    ...         return (3,)
    >>> RowsOfMeans().finish(None, np.array([[6.0, 2.0], [5.0, 5.0]]), slice(0, 2))
    array([3., 1.])
    """

    @abstractmethod
    def finish(self, model: Any, own: Array, at: slice) -> Array:
        """Return the result of a range of the sum.

        Parameters
        ----------
        model : Model
        own : ndarray of float64 of shape (m, ...)
            The range of the sum, along its first axis; m is at least 1.
        at : slice
            Indices of the range on the first axis of the sum.

        Returns
        -------
        ndarray of float64
            Results of all ranges are concatenated along the first axis.
        """

    @abstractmethod
    def answer_shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of the concatenated results of all ranges."""


class Sums(Protocol):
    """All rows of a fit, as a solver sees them: a callable that returns the sum of a statistic.

    Attributes
    ----------
    n_rows : int
        Rows of the fit; also the sum of their weights.
    should_stop : bool
        Whether the user asked the fit to end; a solver then returns its last iterate.
    kept : dict from str to ndarray, or None
        The state last given to :meth:`keep`, if the solver restarts after a loss: it resumes from
        there. None: it starts from the beginning.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.models import BatchRows
    >>> from daskml_dist.solvers import Statistic
    >>> class Total(Statistic):
    ...     def shape(self, model):
    ...         return (1,)
    ...     def add(self, model, rows, out, backend):
    ...         out += rows.X.sum()
    ...         return 0.0
    >>> class SumsHere:  # sums over rows in memory, enough to test a solver
    ...     n_rows, should_stop, kept = 3, False, None
    ...     def __call__(self, statistic):
    ...         out = np.zeros(statistic.shape(None))
    ...         statistic.add(None, BatchRows(np.array([[1.0], [2.0], [6.0]])), out, None)
    ...         return out
    ...     def keep(self, w, state=None, again=0, extra=None):
    ...         pass
    >>> sums = SumsHere()
    >>> sums(Total()) / sums.n_rows
    array([3.])
    """

    n_rows: int

    @property
    def should_stop(self) -> bool: ...

    @property
    def kept(self) -> dict[str, Array] | None: ...

    def __call__(self, statistic: Statistic) -> Array:
        """Return the sum over all rows, in float64; read-only, since trainers log it."""

    def keep(
        self,
        w: Array,
        state: State | None = None,
        again: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Record the end of an iteration at `w`: a fit that is interrupted ends there.

        Parameters
        ----------
        w : ndarray of float64
        state : callable, optional
            Returns a snapshot of the solver as arrays by name. It is called once the log of sums
            is large, and replaces the log. A solver that passes it reads `kept` when it starts,
            and resumes to the same bits, as if the iteration had just ended. It passes None after
            its last iteration.
        again : int, default=0
            Number of sums at the end of the log that a solver resumed from `state` requests once
            more, in their order: they stay in the log.
        extra : dict, optional
            As of :class:`Solution`, for a fit that is interrupted here.
        """


class VectorSpace(Protocol):
    """Inner product and norm of vectors of which each process may hold a range.

    The results are the same in all processes.
    """

    def dot(self, a: Array, b: Array) -> float:
        """Return the dot product of two vectors."""

    def largest(self, a: Array) -> float:
        """Return the largest absolute value of a vector's components; 0 for none."""


class RangedSums(VectorSpace, Protocol):
    """All rows of a fit, as seen by each of several processes that solve together.

    Attributes
    ----------
    n_rows : int
        As of :class:`Sums`.
    should_stop : bool
        As of :class:`Sums`; the same in all processes.
    own_range : slice
        The range of the flattened parameters that this process holds.
    n_done : int
        Iterations done before the loss from which the fit resumes; 0 at the start.
    """

    n_rows: int
    own_range: slice
    n_done: int

    @property
    def should_stop(self) -> bool: ...

    def gather(self, own_values: Array) -> Array:
        """Gather a vector of the parameters' size from the ranges of all processes (all-gather)."""

    def __call__(self, statistic: Statistic) -> Array:
        """Return this process's share of a sum over all rows, flattened (reduce-scatter).

        It begins with the scalars of the sum (:attr:`Statistic.n_numbers`), the same in all
        processes. The own range of each of its vectors of the parameters' size follows.
        """

    def keep(self, n_iter: int) -> None:
        """Record the end of an iteration at the last vector that :meth:`gather` gathered.

        After a loss the fit resumes from there.
        """


@dataclass
class Solution:
    """Result of a solver.

    Parameters
    ----------
    w : ndarray of float64
        The parameters, or another array from which the estimator derives its fitted attributes.
    n_iter : int
    converged : bool
    message : str
        Why it did not converge.
    extra : dict
        Further results for the estimator's fitted attributes, by name; under ``"warnings"`` the
        texts of warnings for the user.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import Solution
    >>> Solution(np.zeros(2), n_iter=7).n_iter
    7
    """

    w: Array
    n_iter: int = 1
    converged: bool = True
    message: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


class Solver(NamedParameters, ABC):
    """Base class of the solvers, which compute parameters from sums over rows.

    A solver is immutable, since a copy runs in the first trainer, and in its successor after a
    loss.

    Attributes
    ----------
    name : str
        Value of an estimator's ``solver`` parameter that selects it.
    max_passes : int
        Most passes over the data.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import Solution, Solver, Statistic
    >>> class Total(Statistic):
    ...     def shape(self, model):
    ...         return (2,)
    ...     def add(self, model, rows, out, backend):
    ...         out += rows.X.sum(axis=0)
    ...         return 0.0
    >>> class Divide(Solver):
    ...     name, max_passes = "divide", 1
    ...     def solve(self, model, sums, start):
    ...         return Solution(sums(Total()) / sums.n_rows)
    >>> Divide().max_passes
    1
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def max_passes(self) -> int: ...

    @abstractmethod
    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Solve the problem; a deterministic function of the sums.

        After a loss the solver runs again, and its first requests are answered from a log: it must
        make the same requests.

        Parameters
        ----------
        model : Model
        sums : Sums
        start : ndarray of float64, or None
            Initial parameters of the estimator (a warm start); may be changed.
        """

    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this solver must agree with."""
        return identity_of(self)


class RangedSolver(Solver):
    """Base class of solvers that can also shard their vectors, if too large for one process.

    Examples
    --------
    >>> from daskml_dist.solvers import SOLVERS, RangedSolver
    >>> [name for name, solver in SOLVERS.items() if issubclass(solver, RangedSolver)]
    ['lbfgs']
    """

    @abstractmethod
    def solve_in_ranges(self, model: Any, ranges: RangedSums, start: Array) -> Solution:
        """Solve in step with the other processes, which make the same calls in the same order.

        Parameters
        ----------
        model : Model
        ranges : RangedSums
        start : ndarray of float64
            The own range of the flattened parameters to start from.

        Returns
        -------
        Solution
            With the own range of the flattened parameters.
        """


@dataclass(frozen=True)
class PenalisedSolver(Solver):
    """Base class of the solvers of a linear model's mean loss plus a penalty.

    Parameters
    ----------
    penalty : Penalty
        Strengths, relative to the mean loss; intercepts are not penalised.
    max_iter : int
    tol : float
        Tolerance of the solver's own stopping rule.

    Attributes
    ----------
    handles_l1 : bool
        Whether the penalty may have an l1 part.

    Examples
    --------
    >>> from daskml_dist.solvers import SOLVERS
    >>> [name for name, solver in SOLVERS.items() if solver.handles_l1]
    ['lbfgs', 'boosting']
    """

    penalty: Penalty
    max_iter: int
    tol: float
    handles_l1: ClassVar[bool] = False


@dataclass(frozen=True)
class SinglePassSolver(Solver):
    """Solver that returns the sum of one statistic, for fits in closed form."""

    statistic: Statistic

    name = "one_pass"
    max_passes = 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the sum."""
        # A copy: the sum is read-only, and belongs to the log.
        return Solution(sums(self.statistic).copy())


@dataclass
class NestedSums:
    """Sums for a solver that runs inside another, and whose snapshots are ignored.

    Parameters
    ----------
    sums : Sums
        Sums of the outer solver.
    """

    sums: Sums
    n_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_rows = self.sums.n_rows

    @property
    def kept(self) -> None:
        # Snapshots are the outer solver's: an inner solver that runs again starts from the
        # beginning, and gets the same sums.
        return None

    @property
    def should_stop(self) -> bool:
        return self.sums.should_stop

    def __call__(self, statistic: Statistic) -> Array:
        return self.sums(statistic)

    def keep(self, *_: Any, **__: Any) -> None:
        """Ignore the end of an inner iteration: only the outer solver takes snapshots."""


def known_loss(loss: Any) -> Any:
    """Return the loss that :meth:`Statistic.add` has returned, NaN in place of None."""
    return np.nan if loss is None else loss


def initial_parameters(model: Any, start: Array | None) -> Array:
    """Return the initial parameters: `start`, or zeros if it is None."""
    return np.zeros(model.parameters.shape) if start is None else start
