"""Rate of steps whose rows come one after the other, where no pilot on a sample finds one.

First steps of Adagrad have the size of the rate in each parameter, whatever the gradient. So the
first one along a row moves its prediction by the rate times the sum of the sizes of its entries,
and the rate is what makes that a useful distance: a rate that is fixed is a thousand times too long
for rows of numbers in the thousands, and too short for rows of few small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from daskml_dist.data.batches import LaneSpec
from daskml_dist.models.linear import LinearModel
from daskml_dist.training.engine import Engine
from daskml_dist.training.sample import sample_rows

__all__ = ["first_rate", "row_size"]

#: Distance of the first step: of log-odds, and in spreads of the targets.
_MOVES = {"classification": 4.0, "regression": 2.0}
#: Rate at most, of rows that are nearly empty.
_MOST = 0.5
#: Rows that are looked at.
_ROWS = 1000


def row_size(engine: Engine, lanes: Sequence[LaneSpec], seed: int) -> float:
    """Sum of the sizes of a row's entries, in the mean over a sample of the rows."""
    rows = sample_rows(engine, lanes, _ROWS, seed, 0.0).rows
    entries = rows.data if sparse.issparse(rows) else rows
    total = np.abs(entries).sum(dtype=np.float64)
    return float(total / max(rows.shape[0], 1))


def first_rate(model: LinearModel) -> float:
    """Rate that suits rows of the size that the model knows, in spreads of the targets."""
    assert model.row_size is not None
    distance = _MOVES[model.loss.kind]
    return distance / max(model.row_size + float(model.fit_intercept), distance / _MOST)
