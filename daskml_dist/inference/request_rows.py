"""Rows of requests, made what a predictor takes; by a server, and by the workers that help it."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from daskml_dist.errors import RequestError
from daskml_dist.inference.predictor import Predictor


class WorkerModel:
    """A model that a worker keeps, with a predictor for each method asked for.

    Parameters
    ----------
    data : bytes
        The pickled model. From it a worker that joins, or spills, has the model again.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._model = pickle.loads(data)
        self._made: dict[str, Predictor] = {}
        self.blas = ThreadpoolController()  # what the model needs is loaded

    def predictor(self, method: str) -> Predictor:
        """Return the predictor of a method."""
        found = self._made.get(method)
        if found is None:  # two threads may both make it: either will do
            found = self._made[method] = Predictor(self._model, method)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data,)

    def __sizeof__(self) -> int:
        """Return the bytes that Dask counts: of the pickle and of the model made from it."""
        return 2 * len(self._data)


def predict_on_worker(
    held: WorkerModel, method: str, rows: RequestRows, n_threads: int
) -> NDArray[Any]:
    """Return the answers of a worker's model for rows: the task that a service sends."""
    predictor = held.predictor(method)
    with _LIMITS.at(n_threads, held.blas):
        return predictor(join_request_rows([_align(rows)], predictor))


def count_blas_threads() -> int:
    """Return the threads of this process's BLAS; 0 where no BLAS is known."""
    found = ThreadpoolController().select(user_api="blas").info()
    return max((one["num_threads"] for one in found), default=0)


def _align(rows: RequestRows) -> RequestRows:
    """Return rows aligned in memory: of others, as messages may bring, NumPy calls no BLAS."""
    if isinstance(rows, dict):
        return {name: np.require(values, requirements="A") for name, values in rows.items()}
    return np.require(rows, requirements="A")


class _BlasLimits:
    """Limits of this process's BLAS threads, shared by all that want as many."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_threads = self._n_users = self._turn = 0
        self._waiting: Counter[int] = Counter()
        self._limiter: Any = None

    @contextmanager
    def at(self, n_threads: int, blas: ThreadpoolController) -> Iterator[None]:
        """Have so many threads meanwhile; who wants another number waits for their turn."""
        if n_threads < 1:
            yield
            return
        with self._changed:
            self._wait(n_threads)
            if not self._n_users:
                self._n_threads, self._turn = n_threads, self._turn + 1
                self._limiter = blas.limit(limits=n_threads, user_api="blas")
            self._n_users += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_users -= 1
                if not self._n_users:
                    self._limiter.restore_original_limits()
                    self._changed.notify_all()

    def _wait(self, n_threads: int) -> None:
        others = self._waiting.total() - self._waiting[n_threads]
        if not self._n_users or (self._n_threads == n_threads and not others):
            return  # those who come all the time leave a turn to others
        turn = self._turn
        self._waiting[n_threads] += 1
        try:
            self._changed.wait_for(
                lambda: not self._n_users or (self._n_threads == n_threads and self._turn > turn)
            )
        finally:
            self._waiting[n_threads] -= 1


_LIMITS = _BlasLimits()


#: Rows as they come: a matrix, or columns by the names of the features that the model reads, in its
#: order.
RequestRows = NDArray[Any] | dict[str, NDArray[Any]]


def count_rows(rows: RequestRows) -> int:
    """Return the number of rows of a matrix or of columns."""
    return len(next(iter(rows.values())) if isinstance(rows, dict) else rows)


def find_feature_dtype(predictor: Any, at: int) -> str | None:
    """Return the dtype that a feature had in the fit, as far as it is known."""
    dtypes = predictor.dtypes
    if not dtypes:
        return None
    return str(dtypes[at if len(dtypes) > 1 else 0])


def join_request_rows(pieces: Sequence[RequestRows], predictor: Any) -> Any:
    """Return the rows of several requests as the one argument of a predictor.

    Where the fit knew names, that is a frame: pipelines choose columns by them, but for those that
    a predictor makes bare arithmetic of. A model fitted to
    names takes a matrix where pandas is not installed.
    """
    first = pieces[0]
    if isinstance(first, dict):
        columns = {
            name: _concatenate([piece[name] for piece in pieces if isinstance(piece, dict)])
            for name in first
        }
        return _make_frame(columns, predictor)
    rows = _concatenate([piece for piece in pieces if not isinstance(piece, dict)])
    if predictor.names is None or rows.ndim != 2 or getattr(predictor, "bare", False):
        return rows
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=predictor.names)


def _concatenate(pieces: list[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _make_frame(columns: dict[str, NDArray[Any]], predictor: Any) -> Any:
    try:
        import pandas
    except ImportError:
        raise RequestError(
            "This server has no pandas, which rows of named columns need: send one matrix, or "
            "install daskml-dist[dataframe] there.",
            422,
        ) from None
    categories = {
        name: "category"
        for name in columns
        if find_feature_dtype(predictor, predictor.names.index(name)) == "category"
    }
    frame = pandas.DataFrame(columns)
    return frame.astype(categories) if categories else frame
