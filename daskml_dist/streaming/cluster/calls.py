"""Calls of a stream, and how the rows of each are dealt among lanes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.policies import Policy
from daskml_dist.ps.rule import OuterStep
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.training.spec import FitSpec

__all__ = ["Call", "Share", "Step", "StreamLayout", "cut_steps", "deal_rows"]

#: Steps of a pass that has no end.
_ENDLESS = 1 << 60


@dataclass(frozen=True)
class StreamLayout:
    """Layout of a stream on a cluster.

    Parameters
    ----------
    policy : Policy
    n_lanes : int or None
        None: one a worker.
    n_servers : int
    """

    policy: Policy
    n_lanes: int | None
    n_servers: int

    @classmethod
    def of(cls, estimator: Any) -> StreamLayout:
        """Layout that an estimator's parameters ask for, as in a fit."""
        settings = estimator._check_settings(None)
        run, policy = settings.run, settings.policy
        refused = {
            f"shard={run.shard!r}": run.shard != "rows",
            f"compression={run.compression!r}": run.compression is not None,
            f"pipeline={settings.pipeline!r}": settings.pipeline is not None,
            f"{policy!r}, whose backup workers drop rows,": getattr(policy, "backup_workers", 0),
        }
        for what, is_there in refused.items():
            if is_there:
                raise InvalidParameterError(
                    f"{what} has no meaning for a stream on a cluster, which learns whole rows, "
                    "each once. Leave it out."
                )
        if settings.clip is not None and run.n_servers > 1:
            raise InvalidParameterError(
                "The norm of the whole gradient is known where one server holds all parameters, "
                f"and there are n_servers={run.n_servers}. Use n_servers=1, or clip=None."
            )
        return cls(policy, run.n_lanes, run.n_servers)

    @property
    def together(self) -> bool:
        """Return whether all lanes share each step."""
        return self.policy.lockstep

    def fit(self, fit: FitSpec, state: ShardState, n_lanes: int) -> FitSpec:
        """The fit of one lane, for many, from a state."""
        policy, outer = self.policy, None
        if policy.outer_rate != 1 or policy.outer_momentum != 0:
            outer = OuterStep(float(policy.outer_rate), float(policy.outer_momentum))
        work = fit.steps
        rows = replace(fit.rows, lane_rows=(1,) * n_lanes)
        return replace(fit, rows=rows).replace_work(
            policy=policy,
            rule=replace(work.rule, outer=outer),
            layout=ShardLayout(*work.model.parameters.shape, self.n_servers),
            n_steps=_ENDLESS,
            single_rows=False,
            step_callbacks=(),
            initial=state if policy.uses_shards else None,
        )


#: A lane and its rows of a step: features, targets and weights.
Share = tuple[int, Any, Any, Any]
#: Number of a step, its rows in all, and some lanes' shares of them.
Step = tuple[int, int, list[Share]]


@dataclass(eq=False)
class Call:
    """Call of a session, as lanes are to learn it.

    Parameters
    ----------
    steps : list of Step
        With the shares of all lanes.
    tag : object
        What the session knows it by.
    scales : tuple of (ndarray, float), or None
        Largest values of the features and norm of the rows, where these are larger than before.
    then : callable or None
        What the client makes of the state after the call, which all lanes go on from; it returns
        None where that is the state itself.
    loss : float or None
        Sum of the losses of its rows, each before its step; None until it is known.
    """

    steps: list[Step]
    tag: Any = None
    scales: tuple[Any, float] | None = None
    then: Callable[[ShardState], ShardState | None] | None = None
    loss: float | None = None
    nbytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for _, _, shares in self.steps:
            for _, X, *others in shares:
                parts = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
                self.nbytes += sum(a.nbytes for a in (*parts, *others) if a is not None)

    @property
    def n_rows(self) -> int:
        """Rows of all steps."""
        return sum(rows for _, rows, _ in self.steps)

    def of(self, lanes: frozenset[int], every_step: bool) -> list[Step]:
        """Steps with the shares of some lanes; without `every_step` those that have any."""
        found = [
            (number, rows, [share for share in shares if share[0] in lanes])
            for number, rows, shares in self.steps
        ]
        return [step for step in found if every_step or step[2]]


def cut_steps(n_rows: int, most: int | None) -> list[int]:
    """Bounds of the steps of a call, of so many rows each at most; as those of a pass."""
    n_steps = 1 if most is None else -(-n_rows // most)
    return [i * n_rows // n_steps for i in range(n_steps + 1)]


def deal_rows(
    rows: BatchRows, n_rows: int, most: int | None, n_lanes: int, first: int, together: bool
) -> list[Step]:
    """Deal the rows of a call among lanes."""
    bounds = itertools.pairwise(cut_steps(n_rows, most))
    found = []
    for number, (start, stop) in enumerate(bounds, first):
        parts = n_lanes if together else 1
        at = [start + i * (stop - start) // parts for i in range(parts + 1)]
        # In turn, so that what does not divide goes round.
        shares = [
            _share((number + i) % n_lanes, rows, slice(a, b))
            for i, (a, b) in enumerate(itertools.pairwise(at))
        ]
        found.append((number, stop - start, sorted(shares, key=lambda share: share[0])))
    return found


def _share(lane: int, rows: BatchRows, at: slice) -> Share:
    X = rows.X[at]
    # The caller may write over the rows before they are sent, or sent again.
    X = np.array(X) if isinstance(X, np.ndarray) else X.copy()
    y, weight = (None if a is None else np.array(a[at]) for a in (rows.y, rows.weight))
    return lane, X, y, weight
