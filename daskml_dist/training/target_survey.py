"""Survey of targets that have codes of rows beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from daskml_dist.data.column_statistics import Spread
from daskml_dist.training.data_summary import DataSummary

__all__ = ["TargetSurvey"]


@dataclass(frozen=True)
class TargetSurvey(DataSummary):
    """A survey of targets alone, without the codes beside them.

    Parameters
    ----------
    weight : float or None
        Rows of a split, counted by their weights; None: all rows.
    n_columns : int or None
        Columns of the targets; None: they have one dimension.
    """

    weight: float | None = None
    n_columns: int | None = None

    @property
    def n_rows(self) -> Any:
        """Rows, or their weight in a split."""
        return sum(i.n_rows for i in self.infos) if self.weight is None else self.weight

    @property
    def n_targets(self) -> int | None:
        """Columns of the targets; None for targets of one dimension."""
        return self.n_columns

    @property
    def targets(self) -> Spread:
        """Of all columns but the codes'."""
        both, n = DataSummary(self.infos).targets, self.n_columns or 1
        return replace(
            both, origin=both.origin[:n], offset=both.offset[:n], squares=both.squares[:n]
        )
