"""`VertexProgram`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.graph._edges import edges_fit, result_frame, warn_unsettled
from daskml_dist.parameters.checks import check_count, check_number, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.graph import COMBINE_FUNCTIONS, DIRECTIONS, VertexSolver, edge_sides
from daskml_dist.training.callbacks import CallbackList

__all__ = ["VertexProgram"]


class VertexProgram(ABC):
    """Base class of iterations along the edges of a graph, of a user's own.

    Every vertex has a number. In each iteration it gathers messages along its edges, which are
    combined, and makes its next number of its old one and of these; until no number changes. The
    methods take arrays, of many edges or vertices at once, and must not look at anything else: so
    a program gives the same numbers on any workers, and after a loss.

    Attributes
    ----------
    direction : {"in", "out", "both"}, default="in"
        Along which edges a vertex gathers: those that end at it, those that begin at it, or both.
    combine : {"sum", "min", "max"}, default="sum"
        How its messages come together.
    max_iter : int, default=100
        Iterations at most.
    tol : float, default=0.0
        A number that moves by at most so much counts as unchanged.

    See Also
    --------
    pagerank, connected_components

    References
    ----------
    Malewicz et al., "Pregel: a system for large-scale graph processing", SIGMOD 2010; Gonzalez et
    al., "PowerGraph", OSDI 2012.

    Examples
    --------
    Lengths of the shortest ways from a vertex:

    >>> import numpy as np
    >>> import pandas as pd
    >>> from daskml_dist.graph import VertexProgram
    >>> class ShortestWays(VertexProgram):
    ...     combine = "min"
    ...     def __init__(self, origin):
    ...         self.origin = origin
    ...     def start(self, vertices, degree):
    ...         return np.where(vertices == self.origin, 0.0, np.inf)
    ...     def gather(self, value, degree, weight):
    ...         return value + weight
    ...     def apply(self, old, total):
    ...         return np.minimum(old, total)
    >>> roads = pd.DataFrame(
    ...     {"source": ["a", "a", "b"], "target": ["b", "c", "c"], "km": [1.0, 5.0, 2.0]}
    ... )
    >>> ShortestWays("a").run(roads, weight="km")
      vertex  value
    0      a    0.0
    1      b    1.0
    2      c    3.0
    """

    direction: ClassVar[str] = "in"
    combine: ClassVar[str] = "sum"
    max_iter: int = 100
    tol: float = 0.0

    @abstractmethod
    def start(self, vertices: NDArray[Any], degree: NDArray[np.float64]) -> Any:
        """First numbers of some vertices.

        Parameters
        ----------
        vertices : ndarray of shape (n,)
            Their ids.
        degree : ndarray of float64 of shape (n,)
            Sum of the weights of the edges along which each of them sends messages (their number,
            without weights).

        Returns
        -------
        array-like of shape (n,), or float
        """

    def gather(
        self, value: NDArray[np.float64], degree: NDArray[np.float64], weight: NDArray[np.float64]
    ) -> Any:
        """Messages along some edges: by default the senders' numbers.

        Parameters
        ----------
        value, degree : ndarray of float64 of shape (n,)
            Of the vertex that sends along each edge.
        weight : ndarray of float64 of shape (n,)
            Of the edges; ones without weights.

        Returns
        -------
        array-like of shape (n,), or float
        """
        return value

    @abstractmethod
    def apply(self, old: NDArray[np.float64], total: NDArray[np.float64]) -> Any:
        """Next numbers of some vertices.

        Parameters
        ----------
        old : ndarray of float64 of shape (n,)
        total : ndarray of float64 of shape (n,)
            Their messages combined; without any 0 for ``"sum"``, infinity for ``"min"`` and minus
            infinity for ``"max"``.

        Returns
        -------
        array-like of shape (n,)
        """

    def run(
        self,
        edges: Any,
        *,
        source: Any = "source",
        target: Any = "target",
        weight: Any = None,
        vertices: Any = None,
        run: Run | None = None,
        callbacks: Any = None,
        client: Any = None,
    ) -> Any:
        """Iterate over a graph.

        Parameters
        ----------
        edges, source, target, weight, vertices, run, callbacks, client
            As of :func:`daskml_dist.graph.pagerank`.

        Returns
        -------
        pandas.DataFrame
            Columns ``vertex``, sorted, and ``value``.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any iteration, naming the remedy.
        DivergedError
            A number became NaN.
        """
        name = type(self).__name__
        check_one_of("direction", self.direction, tuple(DIRECTIONS))
        check_one_of("combine", self.combine, tuple(COMBINE_FUNCTIONS))
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol)
        sides = edge_sides(self.direction)
        names = source, target, weight
        with edges_fit(edges, names, vertices, sides, run, client, name, callbacks) as fit:
            solution, _, _ = fit.solve(VertexSolver(self), CallbackList(callbacks))
        if not solution.converged:
            warn_unsettled(name, solution.n_iter, solution.message, "Increase max_iter, or tol.")
        space = VertexSolver.space
        return result_frame(solution.ids[space], "value", solution.values[space])
