"""`connected_components`."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.errors.arguments import telling_arguments
from daskml_dist.graph._edges import edges_fit, result_frame
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.graph import ConnectedComponentsSolver
from daskml_dist.training.callbacks import CallbackList

__all__ = ["connected_components"]


@telling_arguments
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
    """Find the connected components of a graph, whichever way its edges point.

    The rounds that it takes grow with the logarithm of the longest way in the graph.

    Parameters
    ----------
    edges, source, target, vertices, run, callbacks, client
        As of :func:`pagerank`.

    Returns
    -------
    pandas.DataFrame
        Columns ``vertex``, sorted, and ``component``: numbers from 0, in the order of each
        component's smallest vertex, as :func:`scipy.sparse.csgraph.connected_components` has them.

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Before any round, naming the remedy.
    TrainingError
        When it cannot go on.

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
    with edges_fit(edges, names, vertices, sides, run, client, name, callbacks) as fit:
        solution, _, _ = fit.solve(ConnectedComponentsSolver(), CallbackList(callbacks))
    _, component = np.unique(solution.values["vertex"], return_inverse=True)
    return result_frame(solution.ids["vertex"], "component", component)
