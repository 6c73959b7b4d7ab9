"""Edges of a frame as a fit over vertices, for all functions of this room."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.data.containers import load_pandas
from daskml_dist.data.keyed.collection import EntryColumns, read_frame_entries
from daskml_dist.data.keyed.ids import convert_ids
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.outside import outside
from daskml_dist.parameters.checks import check_run
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.graph import VertexShares
from daskml_dist.solvers.keyed import EntrySide
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.keyed_fit import KeyedFit

__all__ = ["edges_fit", "find_chosen", "result_frame", "warn_unsettled"]

_USED = ("n_lanes", "deterministic")


def edges_fit(
    edges: Any,
    names: tuple[Any, Any, Any],
    vertices: Any,
    sides: Sequence[EntrySide],
    run: Run | None,
    client: Any,
    name: str,
    callbacks: object,
) -> KeyedFit:
    """A fit over the vertices of some edges, to be entered."""
    source, target, weight = names
    columns = EntryColumns(source, target, weight, least=0.0, shared=True)
    settings = check_run(run, "cpu", name=name, used=_USED)
    more = None if vertices is None else convert_ids(vertices, "vertices")
    told = CallbackList(callbacks)
    return KeyedFit(read_frame_entries(edges, columns, sides, more), settings, client, told)


def find_chosen(fit: KeyedFit, side: str, given: Any, name: str) -> VertexShares | None:
    """Shares that a user gives some vertices, by their numbers."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        if not hasattr(given, "to_dict"):
            raise InvalidDataError(
                f"{name}={given!r}: give a dict from vertex to share, or a pandas Series."
            )
        given = given.to_dict()
    ids = convert_ids(_column(list(given)), name)
    shares = _shares(list(given.values()), name)
    numbers = fit.numbers(side, ids)
    if (numbers < 0).any():
        unknown = ids[numbers < 0][:5].tolist()
        raise InvalidDataError(
            f"{name} names what is no vertex of any edge: {unknown} (of {len(ids)} named). Name "
            "vertices that are the source or target of an edge, with ids of the same type."
        )
    order = np.argsort(numbers)
    return VertexShares(numbers[order], shares[order] / shares.sum())


def _shares(given: list[Any], name: str) -> NDArray[np.float64]:
    """Shares as numbers, the largest of which is 1: their sum may be no finite number else."""
    try:
        shares = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"{name} holds what is no number: {error}.") from error
    if not np.isfinite(shares).all() or (shares < 0).any() or not (shares > 0).any():
        raise InvalidDataError(
            f"{name} must give its vertices finite shares of at least 0, one of them above 0."
        )
    scaled: NDArray[np.float64] = shares / shares.max()
    return scaled


def _column(values: list[Any]) -> NDArray[Any]:
    """Ids as a column would hold them."""
    found: NDArray[Any] = np.asarray(load_pandas().Series(values))
    return found


def result_frame(ids: NDArray[Any], name: str, values: NDArray[Any]) -> Any:
    """A frame of vertices, sorted, and a value of each."""
    return load_pandas().DataFrame({"vertex": ids, name: values})


def warn_unsettled(function: str, n_iter: int, message: str, remedy: str) -> None:
    """Warn that an iteration ended before it settled."""
    warnings.warn(
        f"{function} did not converge in {n_iter} iteration(s): {message}. {remedy}",
        ConvergenceWarning,
        stacklevel=outside(),
    )
