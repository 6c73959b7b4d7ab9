"""Time of PageRank on two worker processes, compared with SciPy's and networkx' in one.

``python -m benchmarks.graphs --growth``: how the time grows with edges and workers; ``--edges
50e6``: with this number of edges, without peers.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import wait
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components as scipy_components

from benchmarks._common import markdown, processes
from daskml_dist.graph import connected_components, pagerank

#: Number of drawn edges, log2 of the number of vertices, iterations, repetitions.
EDGES, SCALE, ITERATIONS, REPEATS = 10_000_000, 20, 50, 3
DAMPING = 0.85


def run(tiny: bool = False) -> str:
    """Return one table of ranks and one of components."""
    n_edges, scale = (5_000, 9) if tiny else (EDGES, SCALE)
    iterations, repeats = (5, 1) if tiny else (ITERATIONS, REPEATS)
    edges = _edges(n_edges, scale)
    peers = [_scipy(edges, iterations) for _ in range(repeats)]
    networkx = _networkx(edges.head(len(edges) // 10), iterations)
    with processes(2), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")
        warnings.filterwarnings("ignore", "pagerank did not converge")
        lazy = dd.from_pandas(edges, npartitions=8).persist()
        wait(lazy)
        _ours(lazy, iterations)
        ours = [_ours(lazy, iterations) for _ in range(repeats)]
        since = time.perf_counter()
        found = connected_components(lazy)
        seconds = time.perf_counter() - since
    return _table(edges, iterations, peers, ours, networkx) + "\n\n" + _components(
        edges, found, seconds
    )  # fmt: skip


def growth(sizes: tuple[tuple[int, int], ...]) -> str:
    """Return a table: seconds of the graph and of 20 iterations, by (drawn edges, workers)."""
    rows = []
    for n_edges, workers in sizes:
        edges = _edges(n_edges, max(9, n_edges.bit_length() - 4))
        with processes(workers), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            warnings.filterwarnings("ignore", "pagerank did not converge")
            lazy = dd.from_pandas(edges, npartitions=8).persist()
            wait(lazy)
            n = len(edges)
            del edges
            _ours(lazy, 2)
            made, looped, _ = _ours(lazy, 20)
        cells = f"{made:.2f}", f"{looped:.2f}", f"{1e9 * (made + looped) / n:.0f}"
        rows.append([f"{n:,}", workers, *cells])
    head = ["edges", "workers", "building the graph, s", "20 iterations, s", "ns per edge"]
    return markdown("PageRank as the graph grows", head, rows)


def _edges(n_edges: int, scale: int) -> pd.DataFrame:
    """Return distinct random edges with few popular vertices (R-MAT, Chakrabarti et al. 2004)."""
    rng = np.random.default_rng(0)
    source, target = np.zeros(n_edges, np.int64), np.zeros(n_edges, np.int64)
    for _ in range(scale):
        place = rng.random(n_edges)
        down = place > 0.76
        right = ((place > 0.57) & ~down) | (place > 0.95)
        source, target = 2 * source + down, 2 * target + right
    ids = rng.permutation(1 << scale)
    both = np.unique(ids[source] << scale | ids[target])
    return pd.DataFrame({"source": both >> scale, "target": both & ((1 << scale) - 1)})


def _matrix(edges: pd.DataFrame) -> tuple[NDArray[np.int64], Any]:
    ids = np.unique(edges.to_numpy())
    at = tuple(np.searchsorted(ids, edges[name]) for name in ("source", "target"))
    return ids, sparse.csr_matrix((np.ones(len(edges)), at), shape=(len(ids),) * 2)


def _scipy(edges: pd.DataFrame, iterations: int) -> tuple[float, float, NDArray[np.float64]]:
    """Return the seconds of the matrix and of networkx' loop over it, and the ranks."""
    since = time.perf_counter()
    _, A = _matrix(edges)
    out = np.asarray(A.sum(axis=1)).ravel()
    steps = (sparse.diags(np.divide(1.0, out, out=np.zeros_like(out), where=out > 0)) @ A).tocsr()
    n, without = len(out), out == 0
    made = time.perf_counter()
    ranks = np.full(n, 1 / n)
    for _ in range(iterations):
        last = ranks
        ranks = DAMPING * (last @ steps + last[without].sum() / n) + (1 - DAMPING) / n
        np.abs(ranks - last).sum()
    return made - since, time.perf_counter() - made, ranks


def _networkx(edges: pd.DataFrame, iterations: int) -> str:
    """Return the seconds for a tenth of the edges, if it is installed."""
    try:
        import networkx
    except ImportError:
        return ""
    since = time.perf_counter()
    graph = networkx.DiGraph()
    graph.add_edges_from(edges.itertuples(index=False, name=None))
    made = time.perf_counter()
    try:
        networkx.pagerank(graph, DAMPING, max_iter=iterations, tol=0)
    except networkx.PowerIterationFailedConvergence:
        pass
    return f"{made - since:.2f} + {time.perf_counter() - made:.2f}"


class _Clock:
    """Callback that times the iterations, from the launch of the run to its result."""

    def on_fit_begin(self, run: Any) -> None:
        self._since = time.perf_counter()

    def on_fit_end(self, run: Any) -> None:
        self.seconds = time.perf_counter() - self._since


def _ours(lazy: Any, iterations: int) -> tuple[float, float, NDArray[np.float64]]:
    """Return the seconds to build the graph and of the iterations, and the ranks."""
    clock, since = _Clock(), time.perf_counter()
    found = pagerank(lazy, DAMPING, max_iter=iterations, tol=0, callbacks=[clock])
    whole = time.perf_counter() - since
    return whole - clock.seconds, clock.seconds, found["rank"].to_numpy()


def _table(
    edges: pd.DataFrame, iterations: int, peers: list[Any], ours: list[Any], networkx: str
) -> str:
    rows = []
    for name, found in (("SciPy, one process", peers), ("daskml_dist, 2 processes", ours)):
        made, looped = (statistics.median(one[i] for one in found) for i in (0, 1))
        rows.append([name, f"{made:.2f}", f"{looped:.2f}", f"{made + looped:.2f}"])
    ratios = [f"{float(a) / float(b):.2f}" for a, b in zip(rows[0][1:], rows[1][1:], strict=True)]
    rows.append(["ratio", *ratios])
    rows.append(["networkx, a tenth of the edges: graph + ranks", "", "", networkx])
    error = np.abs(peers[0][2] - ours[0][2]).max()
    title = (
        f"PageRank of {len(edges):,} edges, {len(ours[0][2]):,} vertices, {iterations} iterations; "
        f"ranks differ by {error:.0e}"
    )
    return markdown(title, ["", "building the graph, s", "iterations, s", "total, s"], rows)


def _components(edges: pd.DataFrame, found: pd.DataFrame, seconds: float) -> str:
    since = time.perf_counter()
    _, A = _matrix(edges)
    made = time.perf_counter()
    n, labels = scipy_components(A, connection="weak")
    looped = time.perf_counter()
    same = "equal" if np.array_equal(labels, found["component"]) else "DIFFERENT components"
    rows = [
        ["SciPy", f"{made - since:.2f} + {looped - made:.2f}"],
        [f"ours ({same})", f"{seconds:.2f}"],
    ]
    return markdown(f"The {n:,} components of the same graph", ["", "graph + components, s"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--edges", type=float)
    chosen = parser.parse_args()
    if chosen.edges:
        print(growth(((int(chosen.edges), 2),)))
    elif chosen.growth:
        grown = [(n, 2) for n in (10**6, 2 * 10**6, 4 * 10**6, 8 * 10**6)]
        print(growth((*grown, (4 * 10**6, 1))))
    else:
        print(run())
