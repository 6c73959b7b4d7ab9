"""A bound of the time that a fit takes."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from dask.utils import parse_timedelta

from daskml_dist.callbacks.base import FitCallback
from daskml_dist.errors import InvalidParameterError

__all__ = ["TimeLimit"]


class TimeLimit(FitCallback):
    """Callback that ends a fit before it takes longer than a limit.

    A fit ends with a whole pass: it stops once another pass, as long as the longest so far, would
    end after the limit. The first pass is always made. The estimator is fitted as if `max_iter` had
    been so many passes, and warns of no missing convergence.

    Parameters
    ----------
    limit : float, str or datetime.timedelta
        Seconds, or a time as Dask writes it, such as ``"10 minutes"``; > 0. It counts from the
        first step on: reading the data comes before.

    Raises
    ------
    InvalidParameterError
        `limit` is no such time.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.callbacks import TimeLimit
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> limit = TimeLimit('10 minutes')
    >>> clf = SGDClassifier(max_iter=3, tol=None, callbacks=[limit], random_state=0)
    >>> clf.fit(X, y).n_iter_
    3
    """

    def __init__(self, limit: float | str | timedelta) -> None:
        self.limit = limit
        self._seconds = _seconds(limit)
        self._begin = self._last = self._longest = 0.0

    def on_fit_begin(self, run: Any) -> None:
        """Start the clock.

        Parameters
        ----------
        run : object
        """
        self._begin = self._last = time.monotonic()
        self._longest = 0.0

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        """End the fit where another pass would take too long.

        Parameters
        ----------
        run : object
        record : dict
        """
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        if now + self._longest > self._begin + self._seconds:
            run.stop()


def _seconds(limit: Any) -> float:
    try:
        seconds = float(parse_timedelta(limit))
    except Exception:  # of whatever kind: the words of Dask name no parameter
        seconds = 0.0
    if isinstance(limit, bool) or not 0 < seconds < float("inf"):
        raise InvalidParameterError(
            f'TimeLimit(limit={limit!r}): give seconds > 0, or a time such as "10 minutes".'
        )
    return seconds
