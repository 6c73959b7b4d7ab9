"""Passes that a fit has made, of which a lost worker may take some back."""

from __future__ import annotations

from typing import Any

from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.engine import RunView

__all__ = ["Made"]


class Made:
    """Records of the passes that are made and count, and how many callbacks were told of.

    Parameters
    ----------
    view : RunView
        Its `n_passes` is kept.
    """

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._first = view.n_passes
        self._records: list[dict[str, Any]] = []
        self._told = 0

    @property
    def n_passes(self) -> int:
        """Number of passes, of this run alone."""
        return len(self._records)

    def take_back(self, records: list[dict[str, Any]]) -> None:
        """Forget the passes that are no more among the run's, and all behind them.

        Parameters
        ----------
        records : list of dict
            As the server has them, from the first on.
        """
        # A pass that is made again takes another time; its loss may be the same, or NaN.
        now = [record["seconds"] for record in records]
        known = [record["seconds"] for record in self._records]
        kept = 0
        while kept < min(len(known), len(now)) and known[kept] == now[kept]:
            kept += 1
        del self._records[kept:]
        self._view.n_passes = self._first + kept

    def tell(self, record: dict[str, Any], callbacks: CallbackList) -> None:
        """Take the record of the next pass, and tell the callbacks."""
        self._records.append(record)
        self._view.n_passes = self._first + len(self._records)
        if len(self._records) > self._told:
            self._told += 1
            callbacks.on_pass_end(self._view, record)
        else:
            callbacks.on_pass_redone(self._view, record)
