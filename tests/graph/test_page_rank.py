"""PageRank equals the exact solution and networkx; accepted inputs and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.graph import connected_components, pagerank
from tests.graph.graphs import random_edges, ranks_of

EDGES = random_edges()
VERTICES = np.unique(EDGES[["source", "target"]])
SOME = {3: 1.0, 8: 0.5, 20: 2.0}
TIGHT: dict[str, Any] = {"tol": 1e-15, "max_iter": 400}

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"weight": "weight"},
    "personalised": {"personalization": SOME},
    "dangling": {"dangling": SOME, "weight": "weight"},
    "both": {"dangling": {5: 1}, "personalization": SOME, "damping": 0.5},
    "no damping": {"damping": 0.0, "personalization": SOME},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_lanes", [1, 4])
def test_ranks_are_the_solution(case: str, n_lanes: int) -> None:
    found = pagerank(EDGES, **CASES[case], **TIGHT, run=Run(n_lanes=n_lanes))
    np.testing.assert_array_equal(found["vertex"], VERTICES)
    np.testing.assert_allclose(
        found["rank"], ranks_of(EDGES, VERTICES, **CASES[case]), atol=1e-11, rtol=0
    )


def test_networkx_finds_the_same() -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.MultiDiGraph()
    graph.add_weighted_edges_from(EDGES.itertuples(index=False, name=None))
    for options in ({"tol": 1e-13}, {"personalization": SOME}, {"dangling": SOME}):
        theirs = networkx.pagerank(graph, max_iter=500, **options)
        ours = pagerank(EDGES, max_iter=500, weight="weight", **options)
        their_ranks = [theirs[vertex] for vertex in ours["vertex"]]
        np.testing.assert_allclose(ours["rank"], their_ranks, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["pyarrow", "polars", "polars, lazy", "path"])
def test_tables_of_any_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "edges.parquet"
    EDGES.to_parquet(path)
    edges: Any = str(path)
    if kind != "path":
        edges = pytest.importorskip(kind.split(",")[0])
        edges = edges.Table.from_pandas(EDGES) if kind == "pyarrow" else edges.from_pandas(EDGES)
    edges = edges.lazy() if kind == "polars, lazy" else edges
    wanted = pagerank(EDGES, weight="weight", **TIGHT)
    found = pagerank(edges, weight="weight", **TIGHT)
    np.testing.assert_array_equal(found["vertex"], wanted["vertex"])
    np.testing.assert_allclose(found["rank"], wanted["rank"], atol=1e-12)
    assert connected_components(edges).equals(connected_components(EDGES))


@pytest.mark.parametrize("kind", ["array", "list", "array of objects", "Dask Array"])
@pytest.mark.parametrize("columns", [["source", "target"], ["source", "target", "weight"]])
def test_edges_without_column_names(kind: str, columns: list[str]) -> None:
    table = EDGES[columns]
    array = table.to_numpy()
    edges: Any = {
        "array": array,
        "list": list(table.itertuples(index=False, name=None)),
        "array of objects": table.astype(object).to_numpy(),
        "Dask Array": da.from_array(array, chunks=(100, 1)),
    }[kind]
    weight = "weight" if "weight" in columns else None
    run = Run(n_lanes=2)
    pd.testing.assert_frame_equal(pagerank(edges, run=run), pagerank(EDGES, weight=weight, run=run))
    pd.testing.assert_frame_equal(connected_components(edges), connected_components(EDGES))


def test_a_list_of_named_vertices() -> None:
    edges = [("b", "a", 1.0), ("c", "b", 2.0)]
    assert pagerank(edges)["vertex"].tolist() == ["a", "b", "c"]
    assert connected_components(np.array(edges))["component"].tolist() == [0, 0, 0]


def test_ranks_that_do_not_change_have_converged() -> None:
    assert pagerank([("a", "b"), ("b", "a")], tol=0.0)["rank"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["Graph", "DiGraph", "MultiGraph", "MultiDiGraph"])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_graphs_of_networkx(kind: str, weight: str | None) -> None:
    networkx = pytest.importorskip("networkx")

    class Own(getattr(networkx, kind)):  # type: ignore[misc]
        """A user's own graph."""

    graph = Own()
    graph.add_weighted_edges_from(EDGES.itertuples(index=False, name=None))
    graph.add_edge(3, 8)  # without a weight: it counts 1
    graph.add_nodes_from([1000, 2000])
    theirs = networkx.pagerank(graph, weight=weight, tol=1e-14, max_iter=500)
    ours = pagerank(graph, weight=weight, **TIGHT)
    assert ours["vertex"].tolist() == sorted(graph)
    their_ranks = [theirs[vertex] for vertex in ours["vertex"]]
    np.testing.assert_allclose(ours["rank"], their_ranks, atol=1e-10, rtol=0)
    parts = connected_components(graph, vertices=[3000])
    undirected = graph.to_undirected()
    assert parts["component"].nunique() == networkx.number_connected_components(undirected) + 1


def test_what_it_refuses_of_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    with pytest.raises(InvalidDataError, match="No edge of the graph has the attribute 'km'"):
        pagerank(networkx.path_graph(3), weight="km")
    with pytest.raises(InvalidDataError, match="convert_node_labels_to_integers"):
        pagerank(networkx.grid_2d_graph(2, 2))
    assert pagerank(networkx.empty_graph(2))["rank"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("ids", ["text", "floats", "far apart", "columns"])
def test_ids_of_any_type(ids: str) -> None:
    make: Any = {
        "text": "v{:05d}".format,
        "floats": lambda v: v + 0.5,
        "far apart": lambda v: v * 10**15 - 10**17,
        "columns": int,
    }[ids]
    edges = EDGES.assign(source=EDGES["source"].map(make), target=EDGES["target"].map(make))
    names = {}
    if ids == "columns":
        edges = edges.rename(columns={"source": "from", "target": "to"})
        names = {"source": "from", "target": "to"}
    found = pagerank(edges, **names, **TIGHT, run=Run(n_lanes=3))
    assert found["vertex"].tolist() == [make(v) for v in VERTICES.tolist()]
    np.testing.assert_allclose(found["rank"], ranks_of(EDGES, VERTICES), atol=1e-11)


def test_workers_change_nothing(client: Client) -> None:
    run = Run(n_lanes=3)
    edges = dd.from_pandas(EDGES, npartitions=5)
    on_cluster = pagerank(edges, weight="weight", run=run)
    alone = pagerank(EDGES, weight="weight", run=run)
    in_memory = pagerank(EDGES, weight="weight", run=run, client=client)
    np.testing.assert_allclose(on_cluster["rank"], alone["rank"], rtol=1e-12)
    np.testing.assert_array_equal(in_memory["rank"], alone["rank"])
    texts = edges.astype({"source": str, "target": str})
    found = pagerank(texts).sort_values("vertex", key=lambda v: v.astype(int))
    np.testing.assert_allclose(found["rank"], pagerank(EDGES)["rank"], rtol=1e-12)
    components = connected_components(edges)
    pd.testing.assert_frame_equal(components, connected_components(EDGES))


def test_vertices_without_edges() -> None:
    alone = pagerank(EDGES, vertices=[1000, 3, 2000], **TIGHT, run=Run(n_lanes=3))
    every = [*VERTICES.tolist(), 1000, 2000]
    assert alone["vertex"].tolist() == every
    np.testing.assert_allclose(alone["rank"], ranks_of(EDGES, every), atol=1e-11)
    nothing = pagerank(EDGES.head(0), vertices=["a", "b"])
    assert nothing["rank"].tolist() == [0.5, 0.5]


def test_missing_convergence_warns() -> None:
    with pytest.warns(ConvergenceWarning, match="2 iteration.*Increase max_iter"):
        early = pagerank(EDGES, max_iter=2)
    assert early["rank"].sum() == pytest.approx(1)
    again = pagerank(EDGES, nstart=dict(pagerank(EDGES, **TIGHT).to_numpy()), max_iter=1)
    np.testing.assert_allclose(again["rank"], ranks_of(EDGES, VERTICES), atol=1e-10)


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no table": ({1: [2]}, {}, InvalidDataError, "dict is no table.*one row per edge"),
    "a matrix": (np.eye(5), {}, InvalidDataError, r"shape \(5, 5\).*array of shape"),
    "a sparse matrix": (sparse.eye(3).tocsr(), {}, InvalidDataError, "no table of edges"),
    "rows of features": (np.full((4, 2), 0.5), {}, InvalidDataError, "not whole numbers"),
    "a missing id": (np.full((4, 2), np.nan), {}, InvalidDataError, "not whole numbers"),
    "pairs and triples": ([(1, 2), (1, 2, 0.5)], {}, InvalidDataError, "tuples of one length"),
    "no tuples": ([1, 2], {}, InvalidDataError, "tuples of one length"),
    "no weights": ([(1, 2)], {"weight": "weight"}, InvalidDataError, "in a third column"),
    "no column": (EDGES, {"source": "from"}, InvalidDataError, "no column 'from'"),
    "no name": (EDGES, {"source": None}, InvalidDataError, "None is no name of a column"),
    "names": (EDGES, {"source": ["source"]}, InvalidDataError, "is no name of a column"),
    "no rows": (EDGES.head(0), {}, InvalidDataError, "no rows"),
    "NaN": (EDGES.astype(float).mask(EDGES["source"] == 3), {}, InvalidDataError, "dropna"),
    "None": (EDGES.astype(object).replace({"target": {3: None}}), {}, InvalidDataError, "dropna"),
    "mixed": (
        EDGES.astype(object).replace({"target": {3: "three"}}), {}, InvalidDataError, "several",
    ),
    "text and numbers": (
        EDGES.assign(target=EDGES["target"].map(str)), {}, InvalidDataError, "several",
    ),
    "negative": (EDGES.assign(weight=-1.0), {"weight": "weight"}, InvalidDataError, "at least 0"),
    "NaN weight": (EDGES.assign(weight=np.nan), {"weight": "weight"}, InvalidDataError, "dropna"),
    "text weight": (EDGES.assign(weight="a"), {"weight": "weight"}, InvalidDataError, "astype"),
    "no vertex": (EDGES, {"personalization": {-5: 1.0}}, InvalidDataError, "no edge has.*-5"),
    "other type": (EDGES, {"personalization": {"3": 1.0}}, InvalidDataError, "no edge has.*'3'"),
    "no share": (EDGES, {"personalization": {3: 0.0}}, InvalidDataError, "above 0"),
    "a list": (EDGES, {"dangling": [3]}, InvalidDataError, "dict"),
    "damping": (EDGES, {"damping": 1.5}, InvalidParameterError, "from 0 to 1"),
    "max_iter": (EDGES, {"max_iter": 0}, InvalidParameterError, "max_iter"),
    "run": (EDGES, {"run": Run(n_servers=2)}, InvalidParameterError, "n_servers"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_invalid_inputs_are_refused(case: str) -> None:
    edges, options, error, match = BAD[case]
    with pytest.raises(error, match=match):
        pagerank(edges, **options)


def test_invalid_lazy_edges_are_refused(client: Client) -> None:
    edges = dd.from_pandas(EDGES.astype(float).mask(EDGES["source"] == 3), npartitions=3)
    with pytest.raises(InvalidDataError, match="dropna"):
        pagerank(edges)
    edges = dd.from_pandas(EDGES, npartitions=3)
    with pytest.raises(InvalidDataError, match="no entries"):
        pagerank(edges[edges["source"] < 0])


@pytest.mark.data
def test_the_votes_of_wikipedia(data_dir: Path) -> None:
    path = next((data_dir / "snap").glob("*[Vv]ote*"))
    edges = pd.read_csv(path, sep="\t", comment="#", names=["source", "target"])
    ranks = pagerank(edges, tol=1e-10).sort_values("rank", ascending=False)
    first = ranks.iloc[0]
    assert first["vertex"] == 4037
    assert first["rank"] == pytest.approx(0.004607, abs=1e-5)


@pytest.mark.parametrize("weight", [1e308, 1e-320])
def test_weights_whose_sums_nothing_can_be_divided_by_are_refused(weight: float) -> None:
    edges = pd.DataFrame({"source": list("aab"), "target": list("bca"), "weight": weight})
    with pytest.raises(InvalidDataError, match="Scale the weights"):
        pagerank(edges, weight="weight")


def test_huge_shares_are_shares() -> None:
    edges = pd.DataFrame({"source": ["a"], "target": ["b"]})
    found = pagerank(edges, personalization={"a": 1e308, "b": 1e308})
    pd.testing.assert_frame_equal(found, pagerank(edges))
