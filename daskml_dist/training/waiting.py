"""Bounded waits of the client: one that lasts tells the user what it waits for, and how long."""

from __future__ import annotations

import logging
import time

__all__ = ["Patience"]

#: Seconds after which a wait tells of itself.
_TELL = 1.5

logger = logging.getLogger("daskml_dist")


class Patience:
    """The bound of one wait.

    It tells of itself by a warning of the logger ``daskml_dist``, which Python writes to standard
    error (a notebook shows it, and a progress display lets it pass) unless the user has set up
    logging. Each text is told once.

    Parameters
    ----------
    what : str
        What is waited for.
    timeout : float
        Seconds without progress.
    remedy : str, default=""
        What the user can do meanwhile; a sentence.
    """

    def __init__(self, what: str, timeout: float, remedy: str = "") -> None:
        self._what = what
        self._timeout = timeout
        self._remedy = remedy
        self._since = time.monotonic()
        self._told: set[str] = set()

    def renew(self) -> None:
        """Wait as long again: there was progress."""
        self._since = time.monotonic()

    def lasts(self, state: str = "") -> bool:
        """Return whether there is time left; tell of the wait once it has taken a moment.

        Parameters
        ----------
        state : str, default=""
            How far that is which is waited for.
        """
        waited = time.monotonic() - self._since
        if waited > _TELL and state not in self._told:
            self._told.add(state)
            bound = f"{state}; {self._timeout:g} s" if state else f"{self._timeout:g} s"
            logger.warning("%s", f"waiting for {self._what} ({bound}). {self._remedy}".strip())
        return waited <= self._timeout
