"""Watch for drifts: a detector, and what is to happen when it sees one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.streaming.drift import Detector
from daskml_dist.streaming.progress import ProgressiveLoss

__all__ = ["Watch"]

_NAMED = ("rate", "reset")


class Watch:
    """Detector of drifts of one stream, told the mean loss of each call.

    Parameters
    ----------
    detector : Detector or None
    then : {"rate", "reset"}, callable or None
        Called with the session.

    Raises
    ------
    InvalidParameterError

    Attributes
    ----------
    drift : bool
        Whether the last call showed a drift.
    drifts : list of int
        Rows that had been learned when there was one.
    """

    def __init__(self, detector: Any, then: str | Callable[[Any], Any] | None) -> None:
        if detector is not None and not isinstance(detector, Detector):
            raise InvalidParameterError(
                f"drift={detector!r}: give an object with update(x) and drift_detected, such as "
                "PageHinkley() or a detector of River, or None."
            )
        if not (then is None or callable(then) or then in _NAMED):
            raise InvalidParameterError(
                f"on_drift={then!r}: give one of {list(_NAMED)}, a function of the session, or "
                "None."
            )
        if then is not None and detector is None:
            raise InvalidParameterError(
                f"on_drift={then!r} without a detector: set drift=PageHinkley()."
            )
        self._detector = detector
        self._then = then
        self.drift = False
        self.drifts: list[int] = []

    def update(self, session: Any, progress: ProgressiveLoss) -> None:
        """Take the mean loss of the last call, and do what is to be done on a drift."""
        if self._detector is None:
            return
        self._detector.update(progress.last)
        self.drift = bool(self._detector.drift_detected)
        if not self.drift:
            return
        self.drifts.append(progress.n_rows)
        if callable(self._then):
            self._then(session)
        elif self._then is not None:
            session.reset(parameters=self._then == "reset")
