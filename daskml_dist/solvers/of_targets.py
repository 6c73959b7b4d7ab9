"""One solver for each of several targets, side by side: readings of rows answer all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums
from daskml_dist.solvers.lock_step import Seat, in_lock_step

__all__ = ["OfTargets", "TargetSolvers", "side_by_side"]


@dataclass(frozen=True, eq=False)
class OfTargets(Statistic):
    """Other statistics, of a model of one target each; the rows are read together.

    Parameters
    ----------
    each : tuple of Statistic
        Without a memory of rows.
    targets : tuple of int
        Column of the targets that each is asked of.
    """

    each: tuple[Statistic, ...]
    targets: tuple[int, ...]

    @property
    def in_parts(self) -> bool:  # type: ignore[override]
        """As of all."""
        return all(one.in_parts for one in self.each)

    @property
    def shows_not_finite(self) -> bool:
        """As of any."""
        return any(one.shows_not_finite for one in self.each)

    def _shapes(self, model: LinearModel) -> list[tuple[int, ...]]:
        return [
            one.shape(model.of_target(target))
            for one, target in zip(self.each, self.targets, strict=True)
        ]

    def shape(self, model: LinearModel) -> tuple[int, ...]:
        return (sum(map(prod, self._shapes(model))),)

    def parts(self, model: LinearModel, sums: Any) -> list[Any]:
        """Sums of each, which share the memory of all."""
        found, start = [], 0
        for shape in self._shapes(model):
            stop = start + prod(shape)
            found.append(namespace(sums).reshape(sums[start:stop], shape))
            start = stop
        return found

    def add(self, model: LinearModel, rows: BatchRows, out: Any, backend: Backend) -> Any:
        loss, xp = 0.0, namespace(rows.y)
        parts = self.parts(model, out)
        for one, target, part in zip(self.each, self.targets, parts, strict=True):
            y = xp.concat([rows.y[:, target]])  # a copy in one piece, as kernels read it
            of_one = BatchRows(
                rows.X, y, rows.weight, rows.key, rows.block, rows.first, places=rows.places
            )
            loss = loss + one.add(model.of_target(target), of_one, part, backend)
        return loss if len(self.each) == model.width else float("nan")


@dataclass(frozen=True, eq=False)
class TargetSolvers(Solver):
    """A solver for each target, which goes the way that it would go alone.

    ``extra["targets"]`` has what else each found.

    Parameters
    ----------
    each : tuple of Solver
        Whose statistics are added, and remember nothing of the rows.
    """

    each: tuple[Solver, ...]

    name = "of_targets"

    @cached_property
    def max_passes(self) -> int:
        """As many as the slowest takes."""
        return max(solver.max_passes for solver in self.each)

    def solve(self, model: LinearModel, sums: Sums, start: Array | None) -> Solution:
        """Solve for all targets."""
        seats = [
            Seat(
                model.of_target(target),
                solver,
                None if start is None else start[:, target : target + 1].copy(),
                sums.n_rows,
                lambda: sums.should_stop,
            )
            for target, solver in enumerate(self.each)
        ]

        def answers(at: list[int], questions: list[Statistic]) -> Sequence[Array]:
            asked = OfTargets(tuple(questions), tuple(at))
            return asked.parts(model, sums(asked))

        found = in_lock_step(seats, answers)
        last = [one for one in found if not one.converged]
        return Solution(
            np.concatenate([one.w for one in found], axis=1),
            max(one.n_iter for one in found),
            not last,
            last[0].message if last else "",
            {
                "targets": [one.extra for one in found],
                "warnings": [text for one in found for text in one.extra.get("warnings", ())],
            },
        )


def side_by_side(
    problems: Sequence[tuple[LinearModel, Solver]], n_targets: int | None
) -> tuple[LinearModel, Solver]:
    """One problem of those of each target; of targets of one dimension, this itself.

    Parameters
    ----------
    problems : sequence of (LinearModel, Solver)
        Models are alike but for what they take from their targets.
    n_targets : int or None
        As of :class:`LinearModel`.
    """
    model, solver = problems[0]
    if n_targets is None:
        return model, solver
    shift = tuple(shift for one, _ in problems for shift in one.target_shift)
    joined = replace(model, n_targets=n_targets, target_shift=shift)
    return joined, TargetSolvers(tuple(solver for _, solver in problems))
