"""Short fits by many learning rates as columns of one fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.blocks import Block
from daskml_dist.data.collection import as_collection
from daskml_dist.estimators.batched_fits.gradient_steps import (
    BatchedSteps,
    StepCandidate,
    group_step_estimators,
)
from daskml_dist.estimators.batched_fits.solver_rounds import NotBatchableError
from daskml_dist.model_selection._roles import TRAIN, FoldAssignment, Ints

__all__ = ["stacked_losses"]


class _Whole(FoldAssignment):
    """One split, which trains on all rows."""

    n_splits = 1

    def played(self, codes: Ints, split: int) -> NDArray[np.int8]:
        """As in :class:`FoldAssignment`."""
        return np.full(len(codes), TRAIN, np.int8)


def stacked_losses(shorts: Sequence[Any], block: Block, passes: int) -> NDArray[np.float64] | None:
    """Mean training losses of the last pass; infinite where a fit diverged."""
    stacks = group_step_estimators(shorts)
    if stacks is None or len(stacks) != 1 or block.y is None or block.y.ndim > 1:
        return None
    classes, y = None, block.y
    if shorts[0]._classification:
        classes, y = np.unique(y, return_inverse=True)
    targets = np.column_stack([y, np.ones(len(y))]).astype(np.float64)
    collection = as_collection(block.rows, targets, block.sample_weight, multi_output=True)
    # Passes but the last are made in one go.
    stack = BatchedSteps([short.set_params(tol=None) for short in shorts], _Whole(), classes)
    try:
        weighted = block.sample_weight is not None
        with stack.opened(collection, weighted, client="inline") as columns:
            stack.advance(columns, passes - 1)
            stack.advance(columns, passes)
    except NotBatchableError:
        return None
    return np.array([_loss(column, passes) for column in columns])


def _loss(column: StepCandidate, passes: int) -> float:
    there = [column.w, *column.opt_state.values()]
    if column.n_iter < passes or not all(a is not None and np.isfinite(a).all() for a in there):
        return math.inf
    loss = float(column.records[-1]["loss"])
    return loss if math.isfinite(loss) else math.inf
