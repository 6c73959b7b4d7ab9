"""Plans of the candidates' own fits, which the columns of a stack are equal to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from daskml_dist.data.batches import LaneSpec
from daskml_dist.data.blocks import Block, BlockInfo, inspect_block
from daskml_dist.data.collection import Collection
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.estimators.batched_fits.solver_rounds import NotStackedError
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.stacked import FoldAssignment
from daskml_dist.optimizers import Optimizer
from daskml_dist.training.data_summary import DataSummary, TargetSurvey
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.engine import Engine
from daskml_dist.training.learning_rate_search import calibrated_together, drawn_sample
from daskml_dist.training.plan import make_fit
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import FitSpec

__all__ = ["OwnPlans", "optimizer_of"]


def optimizer_of(plans: Sequence[FitSpec]) -> Optimizer:
    """Optimizer that fits have in common, where their states are alike too.

    Raises
    ------
    NotStackedError
    """
    (first, _), *others = {
        (p.steps.rule.only.optimizer, frozenset(p.steps.make_start_state(p.rows.dtype).opt_state))
        for p in plans
    }
    if others:
        raise NotStackedError("Their steps are in other units, or begin with another state.")
    return first


@dataclass(frozen=True, eq=False)
class OwnPlans:
    """Plans of fits with weights of 0 for all rows but the training rows of a split.

    Parameters
    ----------
    engine : Engine
    lanes : list of LaneSpec
    rows : DatasetInfo
        Facts of all rows; their targets have codes beside them.
    roles : FoldAssignment
    classes : ndarray or None
        Labels of the targets' codes.
    """

    engine: Engine
    lanes: list[LaneSpec]
    rows: DatasetInfo
    roles: FoldAssignment
    classes: Any

    def rows_of_splits(self, collection: Collection) -> list[DatasetInfo]:
        """Facts of the rows, as each split's fits know them."""
        rows, n_splits = self.rows, self.roles.n_splits
        if self.classes is not None:
            survey = TargetSurvey(rows.survey.infos)
            return [replace(rows, survey=survey, classes=self.classes)] * n_splits
        # Targets of the training rows tell where parameters begin, and their units.
        look = partial(_looked_at, self.roles)
        if self.engine.streaming is None:
            of_blocks = self.engine.ask(look)
        else:
            make = collection.block_maker
            of_blocks = reduce_parts(collection, partial(_look, make, look), _joined)
        return [
            replace(rows, survey=DataSummary([of_block[split] for of_block in of_blocks]))
            for split in range(n_splits)
        ]

    def of(
        self, settings: Sequence[Settings], models: Sequence[LinearModel],
        rows_of: Sequence[DatasetInfo], scales: Sequence[float],
    ) -> list[list[FitSpec]]:  # fmt: skip
        """Plans of each candidate, one a split.

        Parameters
        ----------
        settings : sequence of Settings
            Of each candidate.
        models, rows_of : sequence of LinearModel, sequence of Rows
            Of each split.
        scales : sequence of float
            Factors that make the mean weight of all rows 1 in each split, where it was 1 before.

        Raises
        ------
        NotStackedError
        """
        plans = [
            [self._plan(of, model, rows) for model, rows in zip(models, rows_of, strict=True)]
            for of in settings
        ]
        # Settings of a stack are alike in how they find a rate.
        if not (settings[0].calibrates and settings[0].auto_rate):
            return plans
        n_fits = len(settings) * len(models)
        sample = drawn_sample(plans[0][0], settings[0], self.lanes, self.engine, n_fits=n_fits)
        factor = self.rows.weight_scale or 1.0
        of_splits = [
            (self._in_split(sample, split), scale * factor) for split, scale in enumerate(scales)
        ]
        columns = [
            _calibrated([row[split] for row in plans], block, scale, settings[0].seed)
            for split, (block, scale) in enumerate(of_splits)
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def _plan(self, settings: Settings, model: LinearModel, rows: DatasetInfo) -> FitSpec:
        engine = self.engine
        plan = make_fit(
            settings, model, rows, self.lanes, None, engine.streaming, None, engine.on_one_host
        )
        work = plan.steps
        if work.coordinates or work.steps_single_rows or len(work.rule.groups) > 2:
            raise NotStackedError("Its steps are in few of the parameters.")
        return plan

    def _in_split(self, sample: Block, split: int) -> Block:
        """The sample, in which rows but a split's training rows have no weight."""
        if sample.y is None:
            return sample
        y = sample.y[:, 0]
        if self.classes is not None:
            y = self.classes[y.astype(np.int64)]
        return replace(sample, y=y, sample_weight=_training_weight(self.roles, sample, split))


def _calibrated(plans: Sequence[FitSpec], block: Block, scale: float, seed: int) -> list[FitSpec]:
    """Plans of a split with what pilots find that know the rows by their weights in it."""
    weighed = [replace(plan, rows=replace(plan.rows, weight_scale=scale)) for plan in plans]
    found = calibrated_together(weighed, block, seed)
    return [replace(one, rows=plan.rows) for one, plan in zip(found, plans, strict=True)]


def _training_weight(roles: FoldAssignment, block: Block, split: int) -> Any:
    """Weights of a block's rows, 0 of all but a split's training rows."""
    assert block.y is not None
    codes = block.y[:, 1].astype(np.int64) - 1
    given = 1.0 if block.sample_weight is None else block.sample_weight
    return roles.trained(codes, split) * given


def _looked_at(roles: FoldAssignment, block: Block) -> list[BlockInfo]:
    """Facts of a block, as fits to the training rows of each split know it."""
    assert block.y is not None
    found = []
    for split in range(roles.n_splits):
        weight = _training_weight(roles, block, split).astype(block.rows.dtype)
        found.append(inspect_block(replace(block, y=block.y[:, 0], sample_weight=weight)))
    return found


def _look(make: Callable[..., Block], look: Callable[[Block], Any], i: int, *part: Any) -> Any:
    return [look(make(i, *part))]


def _joined(parts: Sequence[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]
