"""`Saved`: a stream as it was saved, and what it takes to go on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.errors import CheckpointError
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.in_parts import resume_from_checkpoint
from daskml_dist.training.spec import FitSpec

__all__ = ["Saved"]


@dataclass(frozen=True)
class Saved:
    """A stream as it was saved.

    Parameters
    ----------
    state : ShardState
    facts : dict
    """

    state: ShardState
    facts: dict[str, Any]

    @property
    def stream(self) -> dict[str, Any]:
        """Facts of the stream's course: position, sums and the likeness of its rows."""
        found: dict[str, Any] = self.facts["stream"]
        return found

    def likeness_for(self, *names: str) -> list[Any]:
        """Facts of the first rows that a kind of estimators has of its own."""
        likeness = self.stream["likeness"]
        if missing := [name for name in names if name not in likeness]:
            raise CheckpointError(
                f"The checkpoint is of a stream of another kind of estimator: it has no {missing}. "
                "Name another file, or set resume=False to begin anew."
            )
        return [likeness[name] for name in names]

    @property
    def classes(self) -> NDArray[Any] | None:
        """Labels of the stream; None for regression."""
        likeness = self.stream["likeness"]
        if likeness["classes"] is None:
            return None
        return np.array(likeness["classes"], dtype=likeness["labels"])

    def rows(self, n_rows: int) -> tuple[Any, NDArray[Any] | None]:
        """Rows that a stream starts from as it did from its first ones; all their values are 0.

        They are at least as many as asked for, and have all labels.
        """
        likeness, y = self.stream["likeness"], self._targets(n_rows)
        n_rows = n_rows if y is None else len(y)
        shape, dtype = (n_rows, *likeness["row_shape"]), likeness["dtype"]
        if likeness["nonzeros"] is not None:
            n = likeness["nonzeros"]
            at = np.tile(np.arange(n), n_rows), np.arange(n_rows + 1) * n
            return sparse.csr_matrix((np.zeros(n * n_rows, dtype), *at), shape), y
        X = np.zeros(shape, dtype)
        names = likeness["names"]
        if names is None:
            return X, y
        import pandas as pd

        frame = pd.DataFrame(X, columns=list(names))
        return frame.astype({name: kind for name, kind in names.items() if kind}), y

    def _targets(self, n_rows: int) -> NDArray[Any] | None:
        likeness, classes = self.stream["likeness"], self.classes
        if classes is None:
            if (given := likeness["targets"]) is None:
                return None
            return np.array([given if _several(likeness) else given[0]] * n_rows)
        if _several(likeness):
            return np.zeros((n_rows, likeness["n_targets"]), np.int64)
        return np.resize(classes, max(n_rows, len(classes)))

    def fit(self, fit: FitSpec, path: str | os.PathLike[str]) -> FitSpec:
        """The fit of such rows with the state, and the rates, of the stream."""
        fit, _ = resume_from_checkpoint(fit, path, self.state, self.facts)
        likeness = self.stream["likeness"]
        rule = replace(fit.steps.rule, steps_per_pass=likeness["steps_per_pass"])
        rates = likeness["rates"]
        if likeness.get("row_size") is not None:
            model: Any = fit.steps.model
            fit = fit.replace_work(model=replace(model, row_size=likeness["row_size"]))
        return fit.replace_work(rule=rule if rates is None else rule.with_constant_rates(rates))


def _several(likeness: dict[str, Any]) -> bool:
    """Return whether targets have columns."""
    return likeness["n_targets"] is not None
