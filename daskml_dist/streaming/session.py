"""`Session`: an estimator that learns from a stream."""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from daskml_dist.data.feature_names import check_feature_names
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.streaming.progress import Progress
from daskml_dist.streaming.start import Started, check_streams, start

__all__ = ["Session"]


class Session:
    """Stream that an estimator learns from, of :meth:`Streamed.stream`; a context manager.

    The parameters stay in the calling process between calls, which makes a call as cheap as its
    step. The estimator is fitted at any time: whoever asks it for an attribute or a prediction
    gets what has been learned by then. Used by one thread.

    Parameters
    ----------
    estimator : estimator
    classes : array-like or None
        All labels that will ever come.

    Attributes
    ----------
    estimator : estimator
    """

    def __init__(self, estimator: Any, *, classes: Any = None) -> None:
        self.estimator = estimator
        self._classes = classes
        self._progress = Progress()
        self._started: Started | None = None
        self._is_open = False
        #: Names of the attributes that hold what was learned; None: not as of now.
        self._shown: list[str] | None = []

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> Self:
        if vars(self.estimator).get("_stream") is not None:
            raise InvalidParameterError(
                "This estimator learns from a stream already. Leave that one's context first, or "
                "use a clone of the estimator."
            )
        check_streams(self.estimator)
        self._is_open = True
        vars(self.estimator)["_stream"] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            # What ended the stream is told rather than what came of it.
            with suppress(DivergedError) if error is not None else nullcontext():
                self.show()
        finally:
            self._is_open = False
            vars(self.estimator).pop("_stream", None)

    # -- learning ------------------------------------------------------------------------------

    def learn(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Take the loss of some rows, and then the steps along their gradient.

        Parameters
        ----------
        X : ndarray, pandas.DataFrame or scipy.sparse matrix of shape (n_rows, n_features)
            In memory. The first call's dtype is that of the parameters: float32 or float64.
        y : array-like of shape (n_rows,)
            Labels or targets.
        sample_weight : array-like of shape (n_rows,), or float, or None
            Weights of the rows, >= 0, which are taken as they are: one of 2 makes a step of
            twice the length.

        Returns
        -------
        float
            Mean loss of the rows, before they were learned.

        Raises
        ------
        InvalidDataError
            The rows are not like the first ones, or hold NaN, infinity or an unknown label.
            Nothing of them is learned, and the stream may go on.
        DivergedError
            The loss is no finite number any more.
        """
        if not self._is_open:
            raise InvalidParameterError(
                "The stream is closed. Learn inside its context: with clf.stream(...) as s: ..."
            )
        if is_dask(X) or is_dask(y):
            raise InvalidDataError(
                "A stream learns rows in memory, and these are a Dask collection. Compute each "
                "batch first: X, y = dask.compute(X, y)."
            )
        plain = self._started is not None and type(X) is type(y) and hasattr(X, "flags")
        if not plain:
            X, y, sample_weight = self._taken(X, y, sample_weight)
        if self._started is None:
            self._started = start(self.estimator, X, y, sample_weight, self._classes)
        started = self._started
        rows, block = started.make(X, y, sample_weight)
        if block.n_rows == 0:
            return math.nan
        weight = block.n_rows if rows.weight is None else float(rows.weight.sum())
        self._hide()
        loss = started.steps.take(rows, block)
        self._progress.add(loss, weight, block.n_rows)
        if not math.isfinite(loss):
            raise DivergedError(
                f"The loss of row {self.n_rows} of the stream, or of one shortly before, is "
                f"{loss}: the parameters grew beyond all bounds. Lower learning_rate, or scale the "
                "features (StandardScaler), and begin anew."
            )
        return self._progress.last

    def _taken(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The inputs of a call, checked like those of a fit."""
        estimator = self.estimator
        inputs: tuple[Any, Any, Any] = estimator._taken(X, y, sample_weight)
        if self._started is not None:
            estimator._check_target(inputs[1])
            check_feature_names(estimator, inputs[0], reset=False)
        return inputs

    # -- what has been learned -----------------------------------------------------------------

    @property
    def progressive_loss(self) -> float:
        """Mean loss of all rows of the stream, each before it was learned; by their weights."""
        return self._progress.mean

    @property
    def n_rows(self) -> int:
        """Rows learned by this stream."""
        return self._progress.n_rows

    def show(self) -> None:
        """Set the estimator's fitted attributes to what has been learned by now."""
        started = self._started
        if started is None or self._shown is not None:
            return
        estimator, model = self.estimator, started.fit.steps.model
        held = vars(estimator)
        before = dict(held)
        self._shown = []  # what follows reads attributes of the estimator
        try:
            state = started.steps.shard.state()
            estimator._set_parameters(state.final, model, started.rows)
            estimator._set_row_shape(started.rows.survey.row_shape)
            estimator._state, estimator._last_model = state, model
            estimator.n_iter_ = 1
            estimator.t_ = started.seen + self._progress.n_rows
        except BaseException:
            held.clear()
            held.update(before)
            self._shown = None
            raise
        self._shown = [n for n, v in held.items() if n not in before or before[n] is not v]

    def _hide(self) -> None:
        """Take away attributes that a step makes old; whoever asks for one gets it anew."""
        held = vars(self.estimator)
        for name in self._shown or ():
            held.pop(name, None)
        self._shown = None
