"""An early end of fits that get no better."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.callbacks.base import FitCallback, measure_of, more_is_better
from daskml_dist.errors import InvalidParameterError

__all__ = ["EarlyStopping"]


class EarlyStopping(FitCallback):
    """Callback that ends a fit once a measure of its passes gets no better.

    Under policies whose lanes run at their own pace, the pass that is open when the last one is
    told still ends. An estimator's own `tol` and ``early_stopping=True`` end a fit too; set
    ``tol=None`` where this callback alone is to do it.

    Parameters
    ----------
    monitor : str, default="eval_score"
        A key of the history's records: ``"eval_score"`` (of the rows of ``fit(eval_set=...)``),
        ``"val_score"`` (of rows held out, with ``early_stopping=True``), of which more is better;
        or ``"loss"``, of which less is.
    patience : int, default=5
        Passes in a row without an improvement, after which the fit ends; >= 1.
    min_delta : float, default=0.0
        What counts as an improvement, beyond the best so far; >= 0.
    restore_best : bool, default=False
        Keep the parameters of the best pass instead of the last one's. They are brought to the
        client after each pass. A fit by gradient steps alone can.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning; as the first pass ends: it has no such measure.

    References
    ----------
    Prechelt, L. (1998). Early stopping, but when? Neural Networks: Tricks of the Trade, 55-69.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.callbacks import EarlyStopping
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> stop = EarlyStopping(patience=2)
    >>> clf = SGDClassifier(tol=None, callbacks=[stop], random_state=0)
    >>> clf.fit(X, y, eval_set=(X, y)).n_iter_ < 20
    True
    """

    def __init__(
        self,
        monitor: str = "eval_score",
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = False,
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InvalidParameterError(
                f"EarlyStopping(patience={patience!r}): give an integer >= 1, in passes."
            )
        if not 0 <= min_delta < math.inf:
            raise InvalidParameterError(
                f"EarlyStopping(min_delta={min_delta!r}): give a number >= 0."
            )
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.restore_best = restore_best
        self._best, self._stale = -math.inf, 0
        self._kept: Any = None

    @property
    def needs_parameters(self) -> bool:
        """Return whether the fit is to bring its parameters to the client after each pass."""
        return self.restore_best

    def on_fit_begin(self, run: Any) -> None:
        """Forget the last fit.

        Parameters
        ----------
        run : object
        """
        self._best, self._stale, self._kept = -math.inf, 0, None

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """End the fit where passes have been no better for long.

        Parameters
        ----------
        run : object
        record : dict
        """
        value = measure_of(record, self.monitor, "EarlyStopping")
        signed = value if more_is_better(self.monitor) else -value
        if signed > self._best + self.min_delta or (
            self._best == -math.inf and signed > self._best
        ):
            self._best, self._stale = signed, 0
            if self.restore_best:
                self._kept = np.copy(run.parameters())
            return
        self._stale += 1
        if self._stale >= self.patience:
            run.stop()

    def on_fit_end(self, run: Any) -> None:
        """Give the fit the best parameters.

        Parameters
        ----------
        run : object
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            run.end_with(kept)
