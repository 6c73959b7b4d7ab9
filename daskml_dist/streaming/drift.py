"""Losses of a stream, and detection of drifts: `PageHinkley`, or any detector with River's API.

A drift is a change of the distribution of the rows; the parameters, learned from earlier rows, then
fit worse. A drift raises the losses of rows before they are learned, which need no held-out rows
(`ProgressiveLoss`). A detector gets one number per call, the mean loss of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject

#: Reactions that `on_drift` may name: reset the optimizer and its rates, or also the parameters.
_NAMED_REACTIONS = ("rate", "reset")
#: Most standard deviations that one call counts for. With the default threshold of 12, four such
#: calls are needed, so that a single call of outliers is not a drift.
_MAX_DEVIATIONS = 4.0


@runtime_checkable
class Detector(Protocol):
    """Protocol of drift detectors, compatible with River's.

    Examples
    --------
    >>> from daskml_dist.streaming import Detector
    >>> class LargeLoss:
    ...     drift_detected = False
    ...     def update(self, x):
    ...         self.drift_detected = x > 10
    >>> detector = LargeLoss()
    >>> detector.update(12.0)
    >>> isinstance(detector, Detector), detector.drift_detected
    (True, True)
    """

    @property
    def drift_detected(self) -> bool:
        """Return whether the last value showed a drift."""

    def update(self, x: float) -> object:
        """Update the detector with the next value."""


class PageHinkley(ParameterObject):
    """Page-Hinkley test of losses that rise, in units of their standard deviation.

    The test sums how many standard deviations each loss is above the mean, minus `delta`. The sum
    is never below zero. If it exceeds `threshold`, this is a drift, and the test starts again. Mean
    and deviation are taken over about the last `window` calls, so that the falling losses of the
    first calls are forgotten, and the default values suit any loss and any batch size.

    Parameters
    ----------
    delta : float, default=0.5
        Standard deviations above the mean that do not count as a drift.
    threshold : float, default=12.0
        Limit of the sum, in standard deviations. With the defaults and independent normal losses,
        false alarms are a million calls apart; a rise by one deviation is detected after about 24
        calls, by five or more after 4.
    min_calls : int, default=30
        Calls before which no drift is detected.
    window : int, default=200
        Calls over which mean and deviation are taken, with decreasing weights.

    Attributes
    ----------
    drift_detected : bool
        Whether the last loss showed a drift.
    statistic : float
        The current sum.

    Raises
    ------
    InvalidParameterError
        A parameter is invalid.

    References
    ----------
    E. S. Page, Continuous inspection schemes, Biometrika 41 (1954). D. V. Hinkley, Inference about
    the change-point from cumulative sum tests, Biometrika 58 (1971).

    Examples
    --------
    >>> from daskml_dist.streaming import PageHinkley
    >>> test = PageHinkley()
    >>> losses = [0.4, 0.5] * 50 + [0.9] * 5
    >>> [i for i, loss in enumerate(losses) if test.update(loss).drift_detected]
    [103]
    """

    def __init__(
        self, delta: float = 0.5, threshold: float = 12.0, min_calls: int = 30, window: int = 200
    ) -> None:
        for name, value, minimum in (
            ("delta", delta, 0.0),
            ("threshold", threshold, 0.0),
            ("min_calls", min_calls, 2),
            ("window", window, 2),
        ):
            if not (isinstance(value, int | float) and minimum <= value < math.inf):
                raise InvalidParameterError(
                    f"PageHinkley({name}={value!r}): give a number >= {minimum:g}."
                )
        self.delta = delta
        self.threshold = threshold
        self.min_calls = min_calls
        self.window = window
        self.drift_detected = False
        self._restart()

    def _restart(self) -> None:
        """Discard all losses."""
        self.statistic = 0.0
        #: Number of losses since the last drift, and their running mean and variance.
        self._n = 0
        self._mean = self._variance = 0.0

    def update(self, x: float) -> PageHinkley:
        """Update the test with the next loss.

        Parameters
        ----------
        x : float

        Returns
        -------
        self
        """
        if self.drift_detected:
            self._restart()
        self.drift_detected = False
        # The loss is standardised by the mean and the deviation of the losses before it, so that an
        # outlier does not widen the scale by which it is measured.
        if self._n >= self.min_calls:
            spread = math.sqrt(self._variance)
            excess = (
                (x - self._mean) / spread
                if spread
                else math.copysign(_MAX_DEVIATIONS, x - self._mean)
            )
            excess = 0.0 if x == self._mean else max(-_MAX_DEVIATIONS, min(_MAX_DEVIATIONS, excess))
            # One-sided cumulative sum with slack `delta` (Page 1954): S = max(0, S + z - delta).
            # Clipped at zero, it does not depend on how long the losses were low before they began
            # to rise.
            self.statistic = max(0.0, self.statistic + excess - self.delta)
            self.drift_detected = self.statistic > self.threshold
        # One update with weight 1/n for both: over the first `window` calls this gives the mean and
        # variance of all losses (Welford 1962), then exponentially weighted ones with weight
        # 1/window.
        self._n += 1
        share = 1 / min(self._n, self.window)
        deviation = x - self._mean
        self._mean += share * deviation
        self._variance = (1 - share) * (self._variance + share * deviation * deviation)
        return self


class ProgressiveLoss:
    """Sums of a stream's losses, each computed before the step with its row.

    Every row is a test before it is learned, so the mean is an honest estimate of the loss of later
    rows (Blum, Kalai and Langford 1999). It is Vowpal Wabbit's "average loss".

    Attributes
    ----------
    loss, weight : float
        Sums over all rows.
    n_rows, n_calls : int
    last : float
        Mean loss of the last call's rows.
    """

    def __init__(self) -> None:
        self.loss = self.weight = 0.0
        self.n_rows = self.n_calls = 0
        self.last = float("nan")

    def add(self, loss: float, weight: float, n_rows: int) -> None:
        """Add the loss, weight and rows of a call."""
        self.loss += loss
        self.weight += weight
        self.n_rows += n_rows
        self.n_calls += 1
        self.last = loss / weight if weight else float("nan")

    @property
    def mean(self) -> float:
        """Return the mean over all rows, weighted; NaN before the first row."""
        return self.loss / self.weight if self.weight else float("nan")

    def to_dict(self) -> dict[str, float | int]:
        """Return the sums as values that JSON can hold."""
        return {
            "loss": self.loss, "weight": self.weight, "n_rows": self.n_rows,
            "n_calls": self.n_calls,
        }  # fmt: skip

    def restore(self, saved_sums: dict[str, float | int]) -> None:
        """Restore the sums that :meth:`saved_sums` returned."""
        self.loss, self.weight = float(saved_sums["loss"]), float(saved_sums["weight"])
        self.n_rows, self.n_calls = int(saved_sums["n_rows"]), int(saved_sums["n_calls"])


class DriftWatch:
    """Detector of the drifts of one stream, and the reaction to them.

    Parameters
    ----------
    detector : Detector or None
    reaction : {"rate", "reset"}, callable or None
        Reaction; a callable is called with the session.

    Raises
    ------
    InvalidParameterError

    Attributes
    ----------
    drift : bool
        Whether the last call showed a drift.
    drifts : list of int
        For each drift, the number of rows that had been learned.
    """

    def __init__(self, detector: Any, reaction: str | Callable[[Any], Any] | None) -> None:
        if detector is not None and not isinstance(detector, Detector):
            raise InvalidParameterError(
                f"drift={detector!r}: give an object with update(x) and drift_detected, such as "
                "PageHinkley() or a detector of River, or None."
            )
        if not (reaction is None or callable(reaction) or reaction in _NAMED_REACTIONS):
            raise InvalidParameterError(
                f"on_drift={reaction!r}: give one of {list(_NAMED_REACTIONS)}, a function of the "
                "session, or None."
            )
        if reaction is not None and detector is None:
            raise InvalidParameterError(
                f"on_drift={reaction!r} without a detector: set drift=PageHinkley()."
            )
        self._detector = detector
        self._reaction = reaction
        self.drift = False
        self.drifts: list[int] = []

    def update(self, session: Any, progress: ProgressiveLoss) -> None:
        """Pass the mean loss of the last call to the detector, and react to a drift."""
        if self._detector is None:
            return
        self._detector.update(progress.last)
        self.drift = bool(self._detector.drift_detected)
        if not self.drift:
            return
        self.drifts.append(progress.n_rows)
        if callable(self._reaction):
            self._reaction(session)
        elif self._reaction is not None:
            session.reset(parameters=self._reaction == "reset")
