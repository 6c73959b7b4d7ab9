"""Conversion of the forms in which users hold a graph to a table with one row per edge."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.conversion import convert_foreign, copy_to_host, load_pandas
from daskml_dist.data.keyed.ids import convert_ids
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError

#: Columns of the tables that are made here.
_SOURCE, _TARGET, _WEIGHT = "source", "target", "weight"
_FORMS = (
    "Give a pandas or Dask dataframe with one row per edge, an array of shape (n_edges, 2) or, "
    "with weights, (n_edges, 3), a list of such tuples, or a networkx graph."
)


class EdgeTable(NamedTuple):
    """Edges as a dataframe.

    Parameters
    ----------
    frame : pandas or Dask dataframe
    source, target : object
        Names of the columns of ids.
    weight : object or None
        Name of the column of weights; None: all are equal.
    vertices : ndarray or None
        Ids of additional vertices.
    """

    frame: Any
    source: Any
    target: Any
    weight: Any
    vertices: NDArray[Any] | None


def convert_edges(
    edges: Any, source: Any, target: Any, weight: Any, vertices: Any, *, weighted: bool
) -> EdgeTable:
    """Return edges of any accepted form as a table.

    The names are the user's, and only tables have them. If the algorithm is `weighted`, the third
    column of an array holds weights; otherwise it is ignored.
    """
    extra_ids = None if vertices is None else convert_ids(vertices, "vertices")
    if _is_networkx_graph(edges):
        return _convert_networkx(edges, weight, extra_ids)
    table = convert_foreign(edges)
    if is_dataframe_like(table):
        return EdgeTable(table, source, target, weight, extra_ids)
    if isinstance(table, list | tuple):
        frame = _convert_list(table)
    elif getattr(table, "ndim", None) == 2 and not sparse.issparse(table):
        frame = _convert_array(table)
    else:
        raise InvalidDataError(f"{type(edges).__name__} is no table of edges. {_FORMS}")
    has_weights = _WEIGHT in frame.columns
    if weight is not None and not has_weights:
        raise InvalidDataError(
            f"weight={weight!r}: the edges have no weights. Give them in a third column, or leave "
            "weight out."
        )
    return EdgeTable(
        frame, _SOURCE, _TARGET, _WEIGHT if has_weights and weighted else None, extra_ids
    )


def _name_columns(n_columns: int, shape: str) -> list[str]:
    """Return the names of the columns of edges; raise if there are not two or three of them."""
    if n_columns not in (2, 3):
        raise InvalidDataError(f"The edges have the shape {shape}. {_FORMS}")
    return [_SOURCE, _TARGET, _WEIGHT][:n_columns]


def _convert_list(edges: Any) -> Any:
    """Return a list of tuples (source, target) or (source, target, weight) as a frame."""
    is_row = [isinstance(edge, list | tuple | np.ndarray) for edge in edges]
    lengths = {len(edge) for edge in edges} if all(is_row) else set()
    if len(lengths) != 1:
        raise InvalidDataError(
            "Edges in a list must be tuples of one length: (source, target), or (source, target, "
            f"weight). {_FORMS}"
        )
    names = _name_columns(min(lengths), f"({len(edges)}, {min(lengths)})")
    # pandas finds a dtype for each column: NumPy would make text of ids and weights alike.
    return load_pandas().DataFrame(list(map(tuple, edges)), columns=names)


def _convert_array(edges: Any) -> Any:
    """Return an array with a row for each edge as a frame, which is lazy if the array is."""
    names = _name_columns(edges.shape[1], str(tuple(edges.shape)))
    if not is_dask(edges):
        return _make_frame(np.asarray(copy_to_host(edges)), names)
    import dask.dataframe as dd

    # A partition of a frame holds whole rows.
    frame = dd.from_dask_array(edges.rechunk({1: -1}), columns=names)
    meta = _make_frame(np.empty((0, len(names)), edges.dtype), names)
    return frame.map_partitions(_read_partition, names, meta=meta)


def _read_partition(partition: Any, names: list[str]) -> Any:
    """Return a partition of an array's rows with the dtypes of `_make_frame`."""
    return _make_frame(partition.to_numpy(), names)


def _make_frame(edges: NDArray[Any], names: list[str]) -> Any:
    """Return an array of edges as a pandas frame, with integer ids if the array has floats."""
    frame = load_pandas().DataFrame(edges, columns=names)
    if edges.dtype.kind != "f":
        # Objects in a column may be numbers beside a column of text.
        return frame.infer_objects()
    # An array has one dtype, so ids beside weights are floats. Other floats are hardly ids: most
    # likely the array is not one of edges.
    ids = edges[:, :2]
    if not (np.isfinite(ids) & (ids == np.floor(ids)) & (np.abs(ids) < 2**53)).all():
        raise InvalidDataError(
            "The first two columns of the array must be ids of vertices, but hold floats that are "
            "not whole numbers below 2**53. Give ids of that kind in a dataframe with the columns "
            "'source' and 'target'."
        )
    return frame.astype({_SOURCE: np.int64, _TARGET: np.int64})


# --- networkx --------------------------------------------------------------------------------


def _is_networkx_graph(edges: Any) -> bool:
    """Return whether edges are a graph of networkx, or of a class derived from one."""
    # By the module of the types: networkx need not be installed, and is not imported.
    kinds = (kind.__module__.partition(".")[0] for kind in type(edges).__mro__)
    return "networkx" in kinds and hasattr(edges, "is_directed")


def _convert_networkx(graph: Any, weight: Any, extra_ids: NDArray[Any] | None) -> EdgeTable:
    """Return the edges of a networkx graph, and all its nodes as vertices.

    As in networkx, an edge of an undirected graph leads in both directions, and an edge without the
    attribute that is named `weight` has the weight 1.
    """
    pandas = load_pandas()
    rows = [(u, v) for u, v in graph.edges()]
    values = None
    if weight is not None:
        attributes = [value for _, _, value in graph.edges(data=weight)]
        if rows and all(value is None for value in attributes):
            raise InvalidDataError(
                f"No edge of the graph has the attribute {weight!r}. Name the attribute that holds "
                "the weights, or leave weight out."
            )
        values = [1.0 if value is None else value for value in attributes]
    if not graph.is_directed():
        # A loop is one edge in each direction alike.
        reversed_edges = [number for number, (u, v) in enumerate(rows) if u != v]
        rows += [rows[number][::-1] for number in reversed_edges]
        values = None if values is None else values + [values[number] for number in reversed_edges]
    # The nodes come first, so that all ids get the dtype that pandas finds for all of them.
    nodes = pandas.Series([*graph.nodes(), *(node for row in rows for node in row)])
    try:
        ids = convert_ids(nodes, "nodes")
        node_ids = ids[: len(graph)]
        vertices = (
            node_ids
            if extra_ids is None
            else convert_ids(pandas.Series([*node_ids.tolist(), *extra_ids.tolist()]), "vertices")
        )
    except InvalidDataError as error:
        raise InvalidDataError(
            f"{error} For a networkx graph: networkx.convert_node_labels_to_integers(graph, "
            "label_attribute='name') numbers the nodes."
        ) from error
    ends = ids[len(graph) :].reshape(-1, 2)
    columns = {_SOURCE: ends[:, 0], _TARGET: ends[:, 1]}
    if values is not None:
        columns[_WEIGHT] = np.asarray(values)
    return EdgeTable(
        pandas.DataFrame(columns), _SOURCE, _TARGET, None if values is None else _WEIGHT, vertices
    )
