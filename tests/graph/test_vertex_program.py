"""Vertex programs of a user's own, beside SciPy."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy.sparse.csgraph import dijkstra
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.errors import DivergedError, InvalidParameterError
from daskml_dist.graph import VertexProgram
from tests.graph.graphs import matrix_of, random_edges, ranks_of

EDGES = random_edges().assign(weight=lambda frame: frame["weight"] + 1).drop_duplicates(
    ["source", "target"]
)  # fmt: skip
VERTICES = np.unique(EDGES[["source", "target"]])


def shortest_ways(origin: int, direction: str = "in") -> Any:
    class ShortestWays(VertexProgram):
        combine = "min"

        def __init__(self, origin: int) -> None:
            self.origin = origin

        def start(self, vertices: Any, degree: Any) -> Any:
            return np.where(vertices == self.origin, 0.0, np.inf)

        def gather(self, value: Any, degree: Any, weight: Any) -> Any:
            return value + weight

        def apply(self, old: Any, total: Any) -> Any:
            return np.minimum(old, total)

    program = ShortestWays(origin)
    ShortestWays.direction = direction
    return program


@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_shortest_ways(direction: str) -> None:
    found = shortest_ways(1, direction).run(EDGES, weight="weight", run=Run(n_lanes=3))
    A = matrix_of(EDGES, VERTICES, "weight")
    A = {"in": A, "out": A.T, "both": A}[direction]
    truth = dijkstra(A, directed=direction != "both", indices=int(np.searchsorted(VERTICES, 1)))
    np.testing.assert_allclose(found["value"], truth)


def test_workers_run_it(client: Client) -> None:
    class Ranks(VertexProgram):
        tol = 1e-15
        max_iter = 300

        def start(self, vertices: Any, degree: Any) -> Any:
            return 1.0

        def gather(self, value: Any, degree: Any, weight: Any) -> Any:
            return value / degree

        def apply(self, old: Any, total: Any) -> Any:
            return 0.15 + 0.85 * total

    edges = EDGES[EDGES["target"].isin(EDGES["source"])]
    while not edges["target"].isin(edges["source"]).all():
        edges = edges[edges["target"].isin(edges["source"])]
    found = Ranks().run(dd.from_pandas(edges, npartitions=3))
    # GraphLab's ranks, which no jump keeps at a sum of 1.
    ranks = ranks_of(edges, found["vertex"])
    np.testing.assert_allclose(found["value"] / found["value"].sum(), ranks, atol=1e-12)


def test_the_largest_around_and_early_ends() -> None:
    class Largest(VertexProgram):
        combine = "max"
        direction = "both"

        def start(self, vertices: Any, degree: Any) -> Any:
            return vertices

        def apply(self, old: Any, total: Any) -> Any:
            return np.maximum(old, total)

    found = Largest().run(EDGES, vertices=[999], run=Run(n_lanes=2))
    assert found["value"].iloc[-1] == 999
    early = Largest()
    early.max_iter = 1
    with pytest.warns(ConvergenceWarning, match="Largest.*Increase max_iter"):
        early.run(EDGES)


def wrong(**parts: Any) -> VertexProgram:
    class Wrong(VertexProgram):
        def start(self, vertices: Any, degree: Any) -> Any:
            return 1.0

        def apply(self, old: Any, total: Any) -> Any:
            return old

    for name, part in parts.items():
        setattr(Wrong, name, part)
    return Wrong()


BAD = {
    "combine": ({"combine": "mean"}, InvalidParameterError, "combine"),
    "direction": ({"direction": "up"}, InvalidParameterError, "direction"),
    "start": ({"start": lambda *_: [1, 2]}, InvalidParameterError, "`start`"),
    "gather": ({"gather": lambda *_: np.ones((3, 3))}, InvalidParameterError, "`gather`"),
    "one of many": (
        {"gather": lambda self, value, *_: value[:1]},
        InvalidParameterError,
        "`gather`",
    ),
    "apply": ({"apply": lambda *_: "a"}, InvalidParameterError, "`apply`"),
    "NaN": ({"apply": lambda *_: np.nan}, DivergedError, "no messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_inputs_are_refused(case: str) -> None:
    parts, error, match = BAD[case]
    with pytest.raises(error, match=match):
        wrong(**parts).run(EDGES)


def test_a_non_numeric_start_is_refused() -> None:
    class Nowhere(VertexProgram):
        def start(self, vertices: Any, degree: Any) -> Any:
            return np.nan

        def apply(self, old: Any, total: Any) -> Any:
            return old

    with pytest.raises(DivergedError, match="`start` of Nowhere made NaN of 2 vertices"):
        Nowhere().run(pd.DataFrame({"source": ["a"], "target": ["b"]}))


def test_complex_numbers_are_refused() -> None:
    class Imagined(VertexProgram):
        def start(self, vertices: Any, degree: Any) -> Any:
            return 0.0

        def apply(self, old: Any, total: Any) -> Any:
            return old + 1j

    with pytest.raises(InvalidParameterError, match="they are complex"):
        Imagined().run(pd.DataFrame({"source": ["a"], "target": ["b"]}))
