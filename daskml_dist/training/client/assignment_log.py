"""Log of who ran the lanes of a fit, and when."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["SeatLog"]


class SeatLog:
    """Log of the workers of lanes over the parts of one fit, each entry another seating."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seatings: list[dict[str, Any]] = []
        self._end = 0.0

    def begin(self) -> None:
        """Note that a part of the fit begins; the first one starts the clock."""
        if self._since is None:
            self._since = time.monotonic()

    def note(self, generation: int, lanes: dict[int, str], seconds: float) -> None:
        """Note who runs each lane from now on, and the seconds that it took to seat them.

        Of a part that begins as the last one ended nothing is noted.
        """
        workers = [address for _, address in sorted(lanes.items())]
        if generation == 0:
            seconds = 0.0
            if self._seatings and self._seatings[-1]["workers"] == workers:
                return
        facts = {"generation": generation, "at": self._now(), "seconds": seconds}
        self._seatings.append({**facts, "workers": workers})

    def end(self) -> None:
        """Note that a part of the fit ended."""
        self._end = self._now()

    def _now(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the history: ``seatings``, and the ``seconds`` that training took."""
        if self._since is None:
            return {}
        return {"seatings": list(self._seatings), "seconds": self._end}
