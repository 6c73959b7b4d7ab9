"""`pagerank`."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors.arguments import telling_arguments
from daskml_dist.graph._edges import edges_fit, find_chosen, result_frame, warn_unsettled
from daskml_dist.parameters.checks import check_count, check_number
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.graph import PageRankSolver
from daskml_dist.training.callbacks import CallbackList

__all__ = ["pagerank"]


@telling_arguments
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
    (multi)graphs. Each worker holds ranges of the vertices, with all edges that end at these; in
    every iteration it fetches the ranks that they touch. The edges must fit in the memory of all
    workers together (about 4 bytes an edge, 12 with weights; some three times as many while they
    are sorted); a lost worker costs some iterations at most, and changes no digit.

    Parameters
    ----------
    edges : pandas.DataFrame or dask DataFrame
        A row for each edge. Edges that come several times count as often; their weights add up.
    damping : float, default=0.85
        How often a surfer follows an edge, rather than jump; networkx calls it `alpha`.
    personalization : dict or Series, default=None
        Shares of some vertices, at which the surfer arrives who jumps. None: all alike.
    max_iter : int, default=100
    tol : float, default=1e-6
        The iteration ends where the absolute changes of all ranks add up to less than `tol` times
        the number of vertices.
    nstart : dict or Series, default=None
        Ranks of some vertices to start from. None: all alike.
    dangling : dict or Series, default=None
        Shares of some vertices, at which the surfer arrives who finds no edge to follow. None: as
        `personalization`.
    source, target : str, default="source", "target"
        Columns that hold the vertices' ids: numbers or text, not both.
    weight : str, default=None
        Column that holds the edges' weights, at least 0; None: all are alike.
    vertices : array-like, default=None
        Ids of vertices that there are besides, which may have no edge.
    run : Run or None, default=None
        `n_lanes`, ranges of vertices: with a number the ranks do not depend on the workers, to the
        bit. None: one a worker thread.
    callbacks : callback, sequence of callbacks, or None, default=None
        Each iteration is a pass; its ``"loss"`` is the sum of the changes.
    client : distributed.Client or None, default=None
        None: the current client; without one a pandas frame is ranked in this process.

    Returns
    -------
    pandas.DataFrame
        Columns ``vertex``, sorted, and ``rank``; the ranks add up to 1.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Before any iteration, naming the remedy.
    TrainingError
        When it cannot go on.

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
    with edges_fit(edges, names, vertices, sides, run, client, "pagerank", callbacks) as fit:
        solver = PageRankSolver(
            float(damping),
            int(max_iter),
            float(tol),
            find_chosen(fit, "in", personalization, "personalization"),
            find_chosen(fit, "in", dangling, "dangling"),
            find_chosen(fit, "in", nstart, "nstart"),
        )
        solution, _, _ = fit.solve(solver, CallbackList(callbacks))
    if not solution.converged:
        warn_unsettled("pagerank", solution.n_iter, solution.message, "Increase max_iter, or tol.")
    return result_frame(solution.ids["vertex"], "rank", solution.values["vertex"])
