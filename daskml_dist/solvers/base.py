"""Base classes of the solvers, and of the sums over rows that they request.

A solver never sees a row: it requests sums over all rows (the "statistical queries" of Chu et
al., "Map-Reduce for Machine Learning on Multicore", NIPS 2006), makes a small update, and
requests again. The trainers answer, each from its own rows, on any number of threads, processes
and machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.models.base import BatchRows, identity_of
from daskml_dist.penalties import Penalty

__all__ = [
    "NestedSums",
    "PenalisedSolver",
    "RangedSolver",
    "RangedSums",
    "ReduceScatterStatistic",
    "RowState",
    "SinglePassSolver",
    "Solution",
    "Solver",
    "State",
    "Statistic",
    "Sums",
    "VectorSpace",
    "initial_parameters",
]

Array = NDArray[np.float64]
#: Makes all that a solver needs to go on from where it is.
State = Callable[[], dict[str, Array]]


class RowState(ABC):
    """State that each row keeps between sums: a label, a raw prediction, a node of a tree.

    A statistic that names one in :attr:`Statistic.state` finds it in ``rows.state``, to be read
    and written in place: it is what the last statistic left there that named a state of the same
    `name`. Where nobody holds it (at the beginning, after a loss, where blocks are streamed and
    the memory of all of them does not fit) it is made again.

    It need not travel: a statistic can make it of its own attributes.

    Attributes
    ----------
    name : str
        Tells the states of a fit apart.

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
        """Return the state of some rows as the last statistic left it, to the bit.

        A pure function of the rows and of what the statistic brought along. Before the first
        statistic it is what the memory begins with.

        Parameters
        ----------
        model : Model
        rows : BatchRows
            Without a state.
        backend : Backend

        Returns
        -------
        array of shape (n, ...), of any dtype
            New, where the backend works.
        """


class Statistic(ABC):
    """Base class of sums over rows. A statistic travels to every trainer, the model does not.

    It goes as data: its attributes are numbers, text, arrays, losses, and tuples, lists or
    dictionaries of these. Its class comes with the solver: define it where the solver's module
    does, or imports it.

    Attributes
    ----------
    additive : bool
        Whether what two parts of the rows give is added. False: a subclass says in :meth:`merge`
        how they come together; zeros are what no rows give.
    remembered : bool
        Whether trainers remember the sum, so that it needs no look at the rows where the solver
        begins again after a loss. False for what is too large: it is summed anew.
    in_parts : bool
        Whether :meth:`add` reads X by :meth:`BatchRows.part` or a linear model's gradient alone,
        which copy what a processor's cache holds where X starts at any byte. Otherwise such blocks
        are copied whole first.
    n_numbers : int
        With how many numbers the flattened sum begins, before vectors of the parameters' size;
        for solvers in ranges.

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
    ...         return float("nan")
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

    @property
    def state(self) -> RowState | None:
        """Return the state that rows keep between sums, or None."""
        return None

    @property
    def shows_not_finite(self) -> bool:
        """Return whether NaN or infinity in X surely makes the sum NaN or infinite.

        Such rows are then looked for only where it is.
        """
        return False

    @abstractmethod
    def shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of the sum."""

    @abstractmethod
    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add what some rows contribute to `out`, in place.

        The arrays lie where the backend works; what the statistic brought along is the host's.

        Parameters
        ----------
        model : Model
            The fit's model.
        rows : BatchRows
            Neighbours in a block, with targets as the model encoded them, if any, and weights
            whose mean over all rows of the fit is 1 (None: all are 1).
        out : array of float64
            Of :meth:`shape`.
        backend : Backend

        Returns
        -------
        float, or array of no dimension
            Sum of the rows' losses, for the history; NaN where the statistic knows of none.
        """

    def merge(self, total: Array, part: Array) -> None:
        """Bring what other rows gave into `total`, in place."""
        total += part

    def answer_shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of what the solver gets."""
        return self.shape(model)


class ReduceScatterStatistic(Statistic):
    """Base class of sums of which each trainer finishes a range, and hands on the result.

    Histograms, of which the best splits are asked for, or rows of a matrix that is factored. The
    solver gets the results of all ranges, one after the other; they must be the same wherever the
    ranges are cut.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.solvers import ReduceScatterStatistic
    >>> class RowsOfMeans(ReduceScatterStatistic):
    ...     def shape(self, model):
    ...         return (3, 2)  # of each class: a sum, and its rows
    ...     def add(self, model, rows, out, backend):
    ...         np.add.at(out, rows.y, np.column_stack([rows.X[:, 0], np.ones(len(rows.X))]))
    ...         return float("nan")
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
            Neighbours along the first axis of the sum; at least one.
        at : slice
            Which ones.

        Returns
        -------
        ndarray of float64
            Along its first axis lies what the range gave.
        """

    @abstractmethod
    def answer_shape(self, model: Any) -> tuple[int, ...]:
        """Return the shape of the results of all ranges."""


class Sums(Protocol):
    """All rows of a fit, as a solver sees them: a callable that answers statistics.

    Attributes
    ----------
    n_rows : int
        Rows of the fit; also the sum of their weights.
    should_stop : bool
        Whether the user asked the fit to end; a solver then returns what it has.
    kept : dict from str to ndarray, or None
        The state that :meth:`keep` was given, where the solver begins again after a loss; it goes
        on from there. None: from the start.

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
    >>> class SumsHere:  # of rows in memory, to try a solver by itself
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
        """Return the sum over all rows, in float64; read-only, since it is remembered."""

    def keep(
        self,
        w: Array,
        state: State | None = None,
        again: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Take note that an iteration ended at `w`: a fit that is interrupted ends there.

        Parameters
        ----------
        w : ndarray of float64
        state : callable, optional
            Makes all that the solver needs to go on from here to the same digits. It is called
            now and then, once much is remembered: the sums so far are then forgotten. A solver
            that gives it looks at `kept` when it begins, and goes on as if the iteration had just
            ended; after its last iteration it gives none.
        again : int, default=0
            How many of the last sums it asks for again, in their order, when it goes on.
        extra : dict, optional
            What an estimator makes attributes of where the fit ends here, as of `Solution`.
        """


class VectorSpace(Protocol):
    """Vectors of which this process may hold a range; scalars are the same in all processes."""

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
    own : slice
        The range of the flattened parameters that this process holds.
    n_done : int
        Iterations that were made before, where a fit goes on after a loss.
    """

    n_rows: int
    own: slice
    n_done: int

    @property
    def should_stop(self) -> bool: ...

    def whole(self, own: Array) -> Array:
        """Gather a vector of the parameters' size from the ranges of all processes."""

    def __call__(self, statistic: Statistic) -> Array:
        """Return this process's range of a sum over all rows, flat.

        What the sum begins with (:attr:`Statistic.n_numbers`) every process gets; the rest are
        vectors of the parameters' size, of each of which a process gets its own range.
        """

    def keep(self, n_iter: int) -> None:
        """Take note that an iteration ended at the last vector that :meth:`whole` gathered.

        After a loss the fit goes on from there.
        """


@dataclass
class Solution:
    """Result of a solver.

    Parameters
    ----------
    w : ndarray of float64
        What was found: the parameters, or whatever the estimator makes its attributes of.
    n_iter : int
    converged : bool
    message : str
        Why it did not converge.
    extra : dict
        What else an estimator makes attributes of; ``"warnings"``: texts that the user is to see.

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
    """Base class of the solvers, which find parameters from sums over rows. Immutable: it travels.

    Attributes
    ----------
    name : str
        What an estimator's ``solver`` argument calls it.
    max_passes : int
        Passes over the data at most.

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
        """Solve the problem; the same sums must lead to the same requests.

        Parameters
        ----------
        model : Model
        sums : Sums
        start : ndarray of float64, or None
            What the estimator begins with, if anything; may be changed.
        """

    def identity(self) -> dict[str, Any]:
        """Return the facts, as JSON values, that a checkpoint of this solver must agree with."""
        return identity_of(self)


class RangedSolver(Solver):
    """Base class of solvers that can also work on ranges of vectors, too large for one process.

    Examples
    --------
    >>> from daskml_dist.solvers import SOLVERS, RangedSolver
    >>> [name for name, solver in SOLVERS.items() if issubclass(solver, RangedSolver)]
    ['lbfgs']
    """

    @abstractmethod
    def solve_in_ranges(self, model: Any, ranges: RangedSums, start: Array) -> Solution:
        """Solve together with other processes, which make the same calls.

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
        What it means is the solver's own affair.

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
    """Solver of one request: the sum is the solution."""

    statistic: Statistic

    name = "one_pass"

    @property
    def max_passes(self) -> int:
        """Return 1."""
        return 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the sum."""
        return Solution(sums(self.statistic).copy())


@dataclass
class NestedSums:
    """Sums for a solver that runs inside another; its checkpoints are ignored.

    Parameters
    ----------
    sums : Sums
        The outer solver's.
    n_rows : int
    """

    sums: Sums
    n_rows: int

    @property
    def kept(self) -> None:
        return None

    @property
    def should_stop(self) -> bool:
        return self.sums.should_stop

    def __call__(self, statistic: Statistic) -> Array:
        return self.sums(statistic)

    def keep(self, *_: Any, **__: Any) -> None:
        """Ignore the checkpoint: only the outer solver makes any."""


def initial_parameters(model: Any, start: Array | None) -> Array:
    """Return the parameters to start from: zeros where none are given."""
    return np.zeros(model.parameters.shape) if start is None else start
