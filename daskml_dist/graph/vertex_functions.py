"""Graph algorithms: PageRank, connected components, and custom vertex programs.

Each reads a frame of edges as entries with two keys (`_open_fit`), lets a solver of
`solvers/graph.py` iterate over the vertices, and returns a frame with a value for each vertex.

In all three, each vertex gathers values from its neighbours and uses the result to update its own
value (gather-apply, Gonzalez et al. 2012). An edge is stored with the vertex that gathers along it,
and is never moved: an iteration only moves values of vertices between workers.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.data.conversion import load_pandas
from daskml_dist.data.keyed.collection import EntryColumns, read_frame_entries
from daskml_dist.data.keyed.ids import convert_ids
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.graph.edge_tables import convert_edges
from daskml_dist.parameters.checks import check_count, check_number, check_one_of, check_run
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.graph import (
    COMBINE_FUNCTIONS,
    DIRECTIONS,
    ConnectedComponentsSolver,
    PageRankSolver,
    VertexShares,
    VertexSolver,
    edge_sides,
)
from daskml_dist.solvers.keyed import EntrySide
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.job import KeyedJob

#: Options of `Run` that have an effect here; others are refused.
_USED_RUN_SETTINGS = ("n_lanes", "deterministic")


def _open_fit(
    edges: Any,
    names: tuple[Any, Any, Any],
    vertices: Any,
    sides: Sequence[EntrySide],
    run: Run | None,
    client: Any,
    name: str,
    callbacks: object,
    *,
    weighted: bool = True,
) -> KeyedJob:
    """Return the fit over the vertices of some edges: a context manager that reads the edges."""
    settings = check_run(run, "cpu", name=name, used_settings=_USED_RUN_SETTINGS)
    table = convert_edges(edges, *names, vertices, weighted=weighted)
    # `shared`: both columns hold ids of one kind of key, the vertices. Weights must be >= 0.
    columns = EntryColumns(table.source, table.target, table.weight, least=0.0, shared=True)
    entries = read_frame_entries(table.frame, columns, sides, table.vertices)
    return KeyedJob(entries, client, settings, CallbackList(callbacks))


def _find_vertex_shares(job: KeyedJob, shares_by_vertex: Any, name: str) -> VertexShares | None:
    """Return the shares of the vertices that the user named, in the order of their numbers."""
    if shares_by_vertex is None:
        return None
    if not isinstance(shares_by_vertex, Mapping):
        if not hasattr(shares_by_vertex, "to_dict"):
            raise InvalidDataError(
                f"{name}={shares_by_vertex!r}: give a dict from vertex to share, or a pandas "
                "Series."
            )
        shares_by_vertex = shares_by_vertex.to_dict()
    ids = convert_ids(_as_column_of_ids(list(shares_by_vertex)), name)
    shares = _convert_shares(list(shares_by_vertex.values()), name)
    numbers = job.find_key_numbers("in", ids)  # -1: not a vertex of any edge
    if (numbers < 0).any():
        unknown = ids[numbers < 0][:5].tolist()
        raise InvalidDataError(
            f"{name} names vertices that no edge has: {unknown} (of {len(ids)} named). Name "
            "vertices that are the source or target of an edge, with ids of the same type."
        )
    # Sort by the numbers of the vertices, so that sums over them do not depend on the order of the
    # user's dict. The shares are scaled to a sum of 1.
    order = np.argsort(numbers)
    return VertexShares(numbers[order], shares[order] / shares.sum())


def _convert_shares(values: list[Any], name: str) -> NDArray[np.float64]:
    """Return shares as numbers, scaled so that the largest is 1 and their sum cannot overflow."""
    try:
        shares = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"{name} holds values that are not numbers: {error}.") from error
    if not np.isfinite(shares).all() or (shares < 0).any() or not (shares > 0).any():
        raise InvalidDataError(
            f"{name} must give finite values >= 0, at least one of them above 0."
        )
    scaled: NDArray[np.float64] = shares / shares.max()
    return scaled


def _as_column_of_ids(values: list[Any]) -> NDArray[Any]:
    """Return ids in the dtype that pandas would use for a column of them."""
    # Same dtype as the columns of edges: NumPy would convert a list of numbers and text to text.
    ids: NDArray[Any] = np.asarray(load_pandas().Series(values))
    return ids


def _make_result_frame(ids: NDArray[Any], name: str, values: NDArray[Any]) -> Any:
    """Return a frame with the sorted vertices and the value of each."""
    return load_pandas().DataFrame({"vertex": ids, name: values})


def _warn_not_converged(function: str, n_iter: int, message: str, remedy: str) -> None:
    """Warn that an iteration ended before it converged."""
    warnings.warn(
        f"{function} did not converge in {n_iter} iteration(s): {message}. {remedy}",
        ConvergenceWarning,
        stacklevel=user_stack_level(),
    )


@suggest_arguments
def connected_components(
    edges: Any,
    *,
    source: Any = "source",
    target: Any = "target",
    vertices: Any = None,
    run: Run | None = None,
    callbacks: Any = None,
    client: Any = None,
) -> Any:
    """Find the weakly connected components of a graph.

    The number of rounds grows with the logarithm of the graph's diameter.

    Parameters
    ----------
    edges, source, target, vertices, run, callbacks, client
        As in :func:`pagerank`.

    Returns
    -------
    pandas.DataFrame
        Columns ``vertex``, sorted, and ``component``: numbers from 0, in the order of each
        component's smallest vertex, as in :func:`scipy.sparse.csgraph.connected_components`.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Before any round, naming the remedy.
    TrainingError
        The computation cannot continue.

    References
    ----------
    Zhang, Azad and Hu, "FastSV: a distributed-memory connected component algorithm with fast
    convergence", SIAM PP 2020.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.graph import connected_components
    >>> edges = pd.DataFrame({"source": ["b", "c", "e"], "target": ["a", "b", "d"]})
    >>> connected_components(edges)["component"].tolist()
    [0, 0, 0, 1, 1]
    """
    names, sides = (source, target, None), ConnectedComponentsSolver.sides
    name = "connected_components"
    with _open_fit(
        edges, names, vertices, sides, run, client, name, callbacks, weighted=False
    ) as fit:
        solution, _, _ = fit.solve(ConnectedComponentsSolver(), CallbackList(callbacks))
    # After FastSV each vertex points to the smallest vertex of its component, which is the label of
    # the component; labels are replaced by their ranks, 0, 1, 2 and so on.
    _, component = np.unique(solution.values["vertex"], return_inverse=True)
    return _make_result_frame(solution.ids["vertex"], "component", component)


@suggest_arguments
def pagerank(
    edges: Any,
    damping: float = 0.85,
    *,
    personalization: Any = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: Any = None,
    dangling: Any = None,
    source: Any = "source",
    target: Any = "target",
    weight: Any = None,
    vertices: Any = None,
    run: Run | None = None,
    callbacks: Any = None,
    client: Any = None,
) -> Any:
    """Rank the vertices of a graph by PageRank.

    The parameters are those of :func:`networkx.pagerank`, and so are the ranks of its directed
    (multi)graphs. Each worker holds ranges of the vertices, with all edges that end there; in every
    iteration it fetches the ranks of the sources of these edges. The edges must fit in the memory
    of all workers together (about 4 bytes per edge, 12 with weights; about three times as much
    while they are sorted). A lost worker costs at most some iterations, and changes no digit of the
    result.

    Parameters
    ----------
    edges : dataframe or any other table, array-like, or networkx graph
        A row for each edge. Edges that come several times count as often; their weights add up.
        The columns of an array (NumPy, Dask), and of a list of tuples, are sources, targets and, if
        there is a third one, weights. Of a graph all nodes are ranked, and an edge without a
        direction leads in both, as in networkx.
    damping : float, default=0.85
        Probability that a surfer follows an edge rather than jumps; networkx calls it `alpha`.
    personalization : dict or Series, default=None
        Probabilities of some vertices, as shares, as targets of a jump. None: all are equal.
    max_iter : int, default=100
    tol : float, default=1e-6
        The iteration ends when the sum of the absolute changes of all ranks is at most `tol` times
        the number of vertices.
    nstart : dict or Series, default=None
        Initial ranks of some vertices. None: all are equal.
    dangling : dict or Series, default=None
        Shares of some vertices, as targets from vertices without outgoing edges. None: as in
        `personalization`.
    source, target : str, default="source", "target"
        Columns of a table that hold the vertices' ids: all numbers or all text.
    weight : str, default=None
        Column of a table, or attribute of a graph, that holds the edges' weights, at least 0; None:
        all are equal (except for an array with a third column).
    vertices : array-like, default=None
        Ids of additional vertices, which may have no edge.
    run : Run or None, default=None
        `n_lanes` is the number of ranges of vertices: if it is given, the ranks do not depend on
        the workers, to the bit. None: one for each worker thread.
    callbacks : callback, sequence of callbacks, or None, default=None
        Each iteration is a pass; its ``"loss"`` is the sum of the absolute changes.
    client : distributed.Client or None, default=None
        None: the current client; without one, a pandas frame is processed in this process.

    Returns
    -------
    pandas.DataFrame
        Columns ``vertex``, sorted, and ``rank``; the ranks add up to 1.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Before any iteration, naming the remedy.
    TrainingError
        The computation cannot continue.

    See Also
    --------
    connected_components, VertexProgram

    References
    ----------
    Page, Brin, Motwani and Winograd, "The PageRank citation ranking: bringing order to the web",
    1999.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.graph import pagerank
    >>> edges = pd.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "b"]})
    >>> pagerank(edges).sort_values("rank", ascending=False)["vertex"].tolist()
    ['b', 'c', 'a']
    """
    check_number("damping", damping, lambda v: 0 <= v <= 1, "from 0 to 1")
    check_count("max_iter", max_iter)
    check_number("tol", tol)
    names, sides = (source, target, weight), PageRankSolver.sides
    with _open_fit(edges, names, vertices, sides, run, client, "pagerank", callbacks) as fit:
        # Power iteration: x <- damping (P'x + mass of dangling vertices) + (1 - damping) jump.
        # Shares are given by ids, but the solver uses numbers of vertices, which exist only after
        # the edges have been read.
        solver = PageRankSolver(
            float(damping),
            int(max_iter),
            float(tol),
            _find_vertex_shares(fit, personalization, "personalization"),
            _find_vertex_shares(fit, dangling, "dangling"),
            _find_vertex_shares(fit, nstart, "nstart"),
        )
        solution, _, _ = fit.solve(solver, CallbackList(callbacks))
    if not solution.converged:
        _warn_not_converged(
            "pagerank", solution.n_iter, solution.message, "Increase max_iter, or tol."
        )
    return _make_result_frame(solution.ids["vertex"], "rank", solution.values["vertex"])


class VertexProgram(ABC):
    """Base class of vertex programs: iterations along the edges of a graph, as three methods.

    Every vertex has a value. In each iteration it gathers messages along its edges, combines them,
    and computes its next value from its old value and the combined messages, until no value
    changes. The methods get arrays, for many edges or vertices at once, and must depend on nothing
    else, so that a program gives the same values on any workers, and after the loss of a worker.

    Attributes
    ----------
    direction : {"in", "out", "both"}, default="in"
        Along which edges a vertex gathers: edges that end at it, edges that begin at it, or both.
    combine : {"sum", "min", "max"}, default="sum"
        How the messages of a vertex are combined.
    max_iter : int, default=100
        Largest number of iterations.
    tol : float, default=0.0
        Largest change of a value that counts as unchanged.

    See Also
    --------
    pagerank, connected_components

    References
    ----------
    Malewicz et al., "Pregel: a system for large-scale graph processing", SIGMOD 2010; Gonzalez et
    al., "PowerGraph", OSDI 2012.

    Examples
    --------
    Lengths of the shortest paths from a vertex:

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
        """Return the initial values of some vertices.

        Parameters
        ----------
        vertices : ndarray of shape (n,)
            Their ids.
        degree : ndarray of float64 of shape (n,)
            Sum of the weights of the edges along which each vertex sends messages (without weights:
            their number).

        Returns
        -------
        array-like of shape (n,), or float
        """

    def gather(
        self, value: NDArray[np.float64], degree: NDArray[np.float64], weight: NDArray[np.float64]
    ) -> Any:
        """Return the messages along some edges; by default the values of the senders.

        Parameters
        ----------
        value, degree : ndarray of float64 of shape (n,)
            Value and degree of the vertex that sends along each edge.
        weight : ndarray of float64 of shape (n,)
            Weights of the edges; ones if there are none.

        Returns
        -------
        array-like of shape (n,), or float
        """
        return value

    @abstractmethod
    def apply(self, old: NDArray[np.float64], total: NDArray[np.float64]) -> Any:
        """Return the next values of some vertices.

        Parameters
        ----------
        old : ndarray of float64 of shape (n,)
        total : ndarray of float64 of shape (n,)
            Combined messages of each vertex; without messages: 0 for ``"sum"``, infinity for
            ``"min"`` and minus infinity for ``"max"``.

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
        """Iterate over a graph until no value changes, or `max_iter` times.

        Parameters
        ----------
        edges, source, target, weight, vertices, run, callbacks, client
            As in :func:`daskml_dist.graph.pagerank`.

        Returns
        -------
        pandas.DataFrame
            Columns ``vertex``, sorted, and ``value``.

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any iteration, naming the remedy.
        DivergedError
            A value became NaN.
        """
        name = type(self).__name__
        check_one_of("direction", self.direction, tuple(DIRECTIONS))
        check_one_of("combine", self.combine, tuple(COMBINE_FUNCTIONS))
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol)
        # Edges are stored with the vertices that gather along them: with "both", each edge is
        # stored twice, with its source and with its target.
        sides = edge_sides(self.direction)
        names = source, target, weight
        with _open_fit(edges, names, vertices, sides, run, client, name, callbacks) as fit:
            solution, _, _ = fit.solve(VertexSolver(self), CallbackList(callbacks))
        if not solution.converged:
            _warn_not_converged(
                name, solution.n_iter, solution.message, "Increase max_iter, or tol."
            )
        space = VertexSolver.space
        return _make_result_frame(solution.ids[space], "value", solution.values[space])
