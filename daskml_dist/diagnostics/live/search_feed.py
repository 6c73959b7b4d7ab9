"""The feed of the page from works of many fits: what they do, and the rungs of searches."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from daskml_dist.diagnostics.live.feed import harmless, line_of

__all__ = ["SearchFeed"]


class SearchFeed:
    """Feed of the page about a work, where there is a current client; else nothing.

    Parameters
    ----------
    name : str
        Of the estimator's class.
    """

    def __init__(self, name: str) -> None:
        self._client: Any = None
        self._fit, self._began = uuid.uuid4().hex, time.monotonic()
        self._begin(name)

    @harmless
    def _begin(self, name: str) -> None:
        from distributed import default_client

        try:
            self._client = default_client()
        except ValueError:
            return
        facts = {"policy": "", "max_iter": None, "n_lanes": 0, "n_servers": 0}
        self._tell("begin", estimator=name, client=self._client.id, began=time.time(), **facts)

    @harmless
    def phase(self, text: str) -> None:
        """Tell what it does now."""
        self._tell("phase", text=text)

    @harmless
    def rung(self, scores: Sequence[dict[str, Any]]) -> None:
        """Tell the scores of some candidates: ``candidate``, ``bracket``, ``resource``, ``score``.

        A score that is NaN is of a candidate that failed.
        """
        plain = [
            [
                int(told["candidate"]),
                int(told["bracket"]),
                float(told["resource"]),
                float(told["score"]),
            ]
            for told in scores
        ]
        self._tell("rung", scores=plain)

    @harmless
    def end(self, how: str) -> None:
        """Tell the end."""
        self._tell("end", how=how)
        self._client = None

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._client is not None:
            at = time.monotonic() - self._began
            event = {"fit": self._fit, "kind": kind, "at": at, **facts}
            line_of(self._client).tell(self._client, event)
