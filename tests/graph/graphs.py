"""Graphs, and results of other implementations for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

RANDOM = np.random.default_rng(0)


def random_edges(n_edges: int = 600, n: int = 150) -> pd.DataFrame:
    """Return weighted edges with few popular targets, loops, repeated edges and dead ends."""
    source, target = RANDOM.integers(0, n, n_edges), RANDOM.zipf(1.5, n_edges) % n
    loops = RANDOM.random(n_edges) < 0.02
    return pd.DataFrame(
        {
            "source": np.where(source % 7 == 0, source + 1, source),
            "target": np.where(loops, source, target),
            "weight": RANDOM.integers(0, 4, n_edges) / 2.0,
        }
    )


def matrix_of(edges: pd.DataFrame, vertices: Any, weight: str | None = None) -> Any:
    """Return the adjacency matrix of sorted vertices."""
    ids = np.asarray(vertices)
    at = (np.searchsorted(ids, edges["source"]), np.searchsorted(ids, edges["target"]))
    values = np.ones(len(edges)) if weight is None else edges[weight].to_numpy()
    return sparse.csr_matrix((values, at), shape=(len(ids), len(ids)))


def share(vertices: Any, values: dict[Any, float] | None) -> NDArray[np.float64]:
    """Return the shares of all vertices, given those of some."""
    if values is None:
        return np.full(len(vertices), 1 / len(vertices))
    found = np.array([values.get(v, 0.0) for v in np.asarray(vertices).tolist()])
    return found / found.sum()


def ranks_of(
    edges: pd.DataFrame,
    vertices: Any,
    damping: float = 0.85,
    personalization: dict[Any, float] | None = None,
    dangling: dict[Any, float] | None = None,
    weight: str | None = None,
) -> NDArray[np.float64]:
    """Return exact ranks: the solution of the linear equations, not of an iteration."""
    A = matrix_of(edges, vertices, weight).toarray()
    out = A.sum(axis=1)
    jumps = share(vertices, personalization)
    rest = jumps if dangling is None else share(vertices, dangling)
    with np.errstate(invalid="ignore"):
        steps = np.where(out[:, None] > 0, A / out[:, None], rest)
    found = np.linalg.solve(np.eye(len(A)) - damping * steps.T, (1 - damping) * jumps)
    return found / found.sum()
