"""Connected components beside SciPy's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.sparse.csgraph import connected_components as peer

from daskml_dist import Run
from daskml_dist.graph import connected_components
from tests.graph.graphs import matrix_of

RANDOM = np.random.default_rng(1)
WAY = RANDOM.permutation(5000)

GRAPHS = {
    "few edges": RANDOM.integers(0, 1000, (600, 2)),
    "one long way": np.stack([WAY[:-1], WAY[1:]], axis=1),
    "many ways": np.stack([WAY[:-1], WAY[1:]], axis=1)[np.arange(4999) % 7 > 0],
    "a star": np.stack([np.zeros(500, int), np.arange(500)], axis=1),
    "a loop": np.array([[7, 7]]),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("n_lanes", [1, 5])
def test_components_are_scipys(graph: str, n_lanes: int) -> None:
    passes: list[int] = []

    class Count:
        def on_pass_end(self, run: object, record: dict[str, int]) -> None:
            passes.append(record["pass"])

    edges = pd.DataFrame(GRAPHS[graph], columns=["source", "target"])
    found = connected_components(edges, run=Run(n_lanes=n_lanes), callbacks=[Count()])
    _, labels = peer(matrix_of(edges, found["vertex"]), connection="weak")
    np.testing.assert_array_equal(found["component"], labels)
    # Not as many as the way is long.
    assert len(passes) <= 20
