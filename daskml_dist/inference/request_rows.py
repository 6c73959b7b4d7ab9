"""Rows of requests in the form that a predictor accepts, for a server and its Dask workers.

A worker's results are bit-identical to the server's: it joins rows in the same way, and predicts
with the same number of BLAS threads (`_BlasLimits`), on which the digits of products depend.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from daskml_dist.errors import RequestError
from daskml_dist.inference.predictor import Predictor


class WorkerModel:
    """Model that a worker holds, with a predictor for each requested method.

    Parameters
    ----------
    data : bytes
        The pickled model. It is stored because Dask may send the model to another worker, or read
        it from disk; both make the model from it again.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._model = pickle.loads(data)
        self._predictors: dict[Any, Any] = {}
        # Looked up here: unpickling has loaded the libraries that the model needs, among them BLAS.
        self.blas = ThreadpoolController()

    def predictor(self, method: str | Callable[[Any], Any]) -> Any:
        """Return a predictor: of a method, or made by a function; made at its first use."""
        # Two threads may both make one; both are equally good.
        predictor = self._predictors.get(method)
        if predictor is None:
            new = method(self._model) if callable(method) else Predictor(self._model, method)
            predictor = self._predictors[method] = new
        return predictor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data,)

    def __sizeof__(self) -> int:
        """Return the bytes that Dask counts: of the pickle and of the model made from it."""
        return 2 * len(self._data)


def predict_on_worker(
    worker_model: WorkerModel, method: str | Callable[[Any], Any], rows: RequestRows, n_threads: int
) -> NDArray[Any] | ValueError | TypeError:
    """Return the results of a worker's model for rows: the task of one request.

    The error of rows that the model refuses is returned: if the task failed, the worker would log a
    traceback for each bad request of a client.
    """
    predictor = worker_model.predictor(method)
    with _LIMITS.limit_threads(n_threads, worker_model.blas):
        try:
            answers: NDArray[Any] = predictor(join_request_rows([_align(rows)], predictor))
        except (ValueError, TypeError) as error:
            return error.with_traceback(None)
    return answers


def count_blas_threads() -> int:
    """Return the number of threads of this process's BLAS; 0 if no BLAS is known."""
    libraries = ThreadpoolController().select(user_api="blas").info()
    return max((library["num_threads"] for library in libraries), default=0)


def _align(rows: RequestRows) -> RequestRows:
    """Return rows aligned in memory; rows read from a message may not be.

    NumPy multiplies unaligned rows without BLAS, with other rounding.
    """
    if isinstance(rows, dict):
        return {name: np.require(values, requirements="A") for name, values in rows.items()}
    return np.require(rows, requirements="A")


class _BlasLimits:
    """Limit of this process's BLAS threads, shared by all predictions that need the same limit.

    The limit applies to the whole process, so predictions for servers with different numbers of
    threads take turns: one that needs another limit waits until all running ones have ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Present limit, number of predictions under it, and number of limits so far.
        self._n_threads = self._n_users = self._n_limits = 0
        # Number of waiting predictions, by the limit that they need.
        self._waiting: Counter[int] = Counter()
        self._limiter: Any = None

    @contextmanager
    def limit_threads(self, n_threads: int, blas: ThreadpoolController) -> Iterator[None]:
        """Limit BLAS to `n_threads` while the context is open; 0 does not change the limit."""
        if n_threads < 1:
            yield
            return
        with self._changed:
            self._wait(n_threads)
            if not self._n_users:
                self._n_threads, self._n_limits = n_threads, self._n_limits + 1
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
        """Wait until the limit is free, or equal to `n_threads`; called with the lock held."""
        # If predictions wait for another limit, a new one for the present limit waits behind them:
        # else a steady flow of requests would never release the limit.
        n_others = self._waiting.total() - self._waiting[n_threads]
        if not self._n_users or (self._n_threads == n_threads and not n_others):
            return
        turn = self._n_limits
        self._waiting[n_threads] += 1
        try:
            self._changed.wait_for(
                lambda: (
                    not self._n_users or (self._n_threads == n_threads and self._n_limits > turn)
                )
            )
        finally:
            self._waiting[n_threads] -= 1


_LIMITS = _BlasLimits()


#: Rows of a request: a matrix, or columns by the names of the features that the model reads, in the
#: model's order.
RequestRows = NDArray[Any] | dict[str, NDArray[Any]]


def count_rows(rows: RequestRows) -> int:
    """Return the number of rows of a matrix or of columns."""
    return len(next(iter(rows.values())) if isinstance(rows, dict) else rows)


def find_feature_dtype(predictor: Any, feature_index: int) -> str | None:
    """Return the dtype that a feature had in the fit; None if it is not known."""
    dtypes = predictor.dtypes
    if not dtypes:
        return None
    # One dtype stands for all features.
    return str(dtypes[feature_index if len(dtypes) > 1 else 0])


def join_request_rows(request_rows: Sequence[RequestRows], predictor: Any) -> Any:
    """Return the rows of several requests as the one argument of a predictor.

    A frame if the fit stored names, since pipelines select columns by names; a matrix if the
    predictor only does arithmetic, or if pandas is not installed.
    """
    first_piece = request_rows[0]
    if isinstance(first_piece, dict):
        columns = {
            name: _concatenate([piece[name] for piece in request_rows if isinstance(piece, dict)])
            for name in first_piece
        }
        return _make_frame(columns, predictor)
    rows = _concatenate([piece for piece in request_rows if not isinstance(piece, dict)])
    if predictor.names is None or rows.ndim != 2 or getattr(predictor, "bare", False):
        return rows
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=predictor.names)


def _concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays concatenated; a single one, as most requests have, without a copy."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _make_frame(columns: dict[str, NDArray[Any]], predictor: Any) -> Any:
    """Return columns as a frame, with categories for features that had categories in the fit."""
    try:
        import pandas
    except ImportError:
        raise RequestError(
            "This server has no pandas, which named columns need: send one matrix, or install "
            "daskml-dist[dataframe] on the server.",
            422,
        ) from None
    categories = {
        name: "category"
        for name in columns
        if find_feature_dtype(predictor, predictor.names.index(name)) == "category"
    }
    frame = pandas.DataFrame(columns)
    return frame.astype(categories) if categories else frame
