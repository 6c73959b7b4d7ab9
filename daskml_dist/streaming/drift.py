"""`PageHinkley`: detector of drifts by the losses of a stream."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters

__all__ = ["Detector", "PageHinkley"]

#: Deviations that one call counts for at most: no single call is a drift.
_MOST = 4.0


@runtime_checkable
class Detector(Protocol):
    """Detector of drifts, as those of River are.

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
        """Take the next value."""


class PageHinkley(NamedParameters):
    """Page-Hinkley test of losses that rise, in units of their own spread.

    It adds up by how many standard deviations each loss is above the mean, less `delta`, never
    below zero, and detects a drift where the sum exceeds `threshold`; then it begins anew. Mean
    and deviation are of the last `window` calls or so, so that the losses of the first calls,
    which fall, are forgotten, and the numbers below suit any loss and any batch.

    Parameters
    ----------
    delta : float, default=0.5
        Standard deviations above the mean that are no drift.
    threshold : float, default=12.0
        Sum, in standard deviations. With the defaults and independent normal losses false alarms
        are a million calls apart; a rise by one deviation is seen after about 24 calls, by five
        or more after 4.
    min_calls : int, default=30
        Calls before which there are no drifts.
    window : int, default=200
        Calls over which mean and deviation are taken, with weights that fall off.

    Attributes
    ----------
    drift_detected : bool
        Whether the last loss showed a drift.
    statistic : float
        The sum.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.

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
        self,
        delta: float = 0.5,
        threshold: float = 12.0,
        min_calls: int = 30,
        window: int = 200,
    ) -> None:
        for name, value, least in (
            ("delta", delta, 0.0),
            ("threshold", threshold, 0.0),
            ("min_calls", min_calls, 2),
            ("window", window, 2),
        ):
            if not (isinstance(value, int | float) and least <= value < math.inf):
                raise InvalidParameterError(
                    f"PageHinkley({name}={value!r}): give a number >= {least:g}."
                )
        self.delta = delta
        self.threshold = threshold
        self.min_calls = min_calls
        self.window = window
        self.drift_detected = False
        self._begin()

    def _begin(self) -> None:
        self.statistic = 0.0
        self._n = 0
        self._mean = self._variance = 0.0

    def update(self, x: float) -> PageHinkley:
        """Take the next loss.

        Parameters
        ----------
        x : float

        Returns
        -------
        self
        """
        if self.drift_detected:
            self._begin()
        self.drift_detected = False
        if self._n >= self.min_calls:
            spread = math.sqrt(self._variance)
            above = (x - self._mean) / spread if spread else math.copysign(_MOST, x - self._mean)
            above = 0.0 if x == self._mean else max(-_MOST, min(_MOST, above))
            self.statistic = max(0.0, self.statistic + above - self.delta)
            self.drift_detected = self.statistic > self.threshold
        self._n += 1
        share = 1 / min(self._n, self.window)
        away = x - self._mean
        self._mean += share * away
        self._variance = (1 - share) * (self._variance + share * away * away)
        return self
