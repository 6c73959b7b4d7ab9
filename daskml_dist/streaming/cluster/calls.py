"""Calls of a stream on a cluster: their rows are cut into steps, and each step goes to lanes.

Under a lockstep policy all lanes have a share of each step. Otherwise whole steps go to lanes in
turn, so that no lane waits for another. The cut depends only on the rows and the number of lanes,
not on the number of workers or on time, so that a call repeated after a loss is cut in the same
way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.policies.base import Policy
from daskml_dist.ps.rule import OuterStep
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.training.spec import FitSpec

#: Steps of the single pass of a stream: more than any stream makes, since it has no end (2**60;
#: loops compare and add such counts in int64).
_UNLIMITED_STEPS = 1 << 60


@dataclass(frozen=True)
class StreamLayout:
    """Policy, number of lanes and number of servers of a stream on a cluster.

    Parameters
    ----------
    policy : Policy
    n_lanes : int or None
        None: one lane for each worker.
    n_servers : int
    """

    policy: Policy
    n_lanes: int | None
    n_servers: int

    @classmethod
    def from_estimator(cls, estimator: Any) -> StreamLayout:
        """Return the layout for an estimator's parameters; raise for unsupported ones."""
        settings = estimator._check_settings(None)
        run, policy = settings.run, settings.policy
        refused = {
            f"shard={run.shard!r}": run.shard != "rows",
            f"compression={run.compression!r}": run.compression is not None,
            f"pipeline={settings.pipeline!r}": settings.pipeline is not None,
            f"{policy!r}, which draws clients,": policy.draws_lanes,
            f"{policy!r}, whose lanes are not synchronised,": policy.averages_on_servers,
            f"{policy!r}, whose parts have their own policies,": policy.loop == "parts",
            f"{policy!r}, whose hosts have their own parameters,": policy.sums_within_hosts,
            f"{policy!r}, whose backup workers drop rows,": getattr(policy, "backup_workers", 0),
        }
        for setting, is_set in refused.items():
            if is_set:
                raise InvalidParameterError(
                    f"{setting} is not supported by streams on a cluster, which learn every row "
                    "exactly once. Leave it out."
                )
        if settings.clip is not None and run.n_servers > 1:
            raise InvalidParameterError(
                "The norm of the whole gradient needs all parameters on one server, but "
                f"n_servers={run.n_servers}. Use n_servers=1, or clip=None."
            )
        return cls(policy, run.n_lanes, run.n_servers)

    @property
    def together(self) -> bool:
        """Return whether each step has rows of all lanes, under a lockstep policy."""
        return self.policy.lockstep

    def fit(self, fit: FitSpec, state: ShardState, n_lanes: int) -> FitSpec:
        """Return a one-lane fit as a fit of `n_lanes` lanes whose servers start from `state`."""
        policy, work = self.policy, fit.steps
        outer = OuterStep.from_policy(policy, work.model.parameters)
        # All lanes have the same weight in means: a stream has no number of rows per lane.
        rows = replace(fit.rows, lane_rows=(1,) * n_lanes)
        return replace(fit, rows=rows).replace_work(
            policy=policy,
            rule=replace(work.rule, outer=outer),
            layout=ShardLayout(*work.model.parameters.shape, self.n_servers),
            n_steps=_UNLIMITED_STEPS,
            single_rows=False,
            step_callbacks=(),
            initial=state if policy.uses_shards else None,
        )


#: Rows of a step that one lane learns: (lane, features, targets, weights).
Share = tuple[int, Any, Any, Any]
#: One step: (number in the stream, rows of all lanes, shares of the lanes that have rows).
Step = tuple[int, int, list[Share]]


@dataclass(eq=False)
class Call:
    """Rows of one call of a session, cut into steps and assigned to lanes.

    Parameters
    ----------
    steps : list of Step
        Steps with the shares of all lanes.
    tag : object
        Value that is passed back to the session with the loss.
    scales : tuple of (ndarray, float), or None
        Largest values of the features and norm of the rows; None if they do not exceed those of
        earlier calls.
    change_after : callable or None
        Function that changes the state after the call; all lanes continue from its result. It
        returns None for no change.
    loss : float or None
        Sum of the losses of the call's rows, each before its step; None until it is known.

    Attributes
    ----------
    nbytes : int
        Bytes of the rows, targets and weights.
    """

    steps: list[Step]
    tag: Any = None
    scales: tuple[Any, float] | None = None
    change_after: Callable[[ShardState], ShardState | None] | None = None
    loss: float | None = None
    nbytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for _, _, shares in self.steps:
            for _, X, *targets_and_weights in shares:  # X is a dense array or a CSR matrix
                parts = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
                self.nbytes += sum(
                    a.nbytes for a in (*parts, *targets_and_weights) if a is not None
                )

    @property
    def n_rows(self) -> int:
        """Return the number of rows of all steps."""
        return sum(rows for _, rows, _ in self.steps)

    def select_lanes(self, lanes: frozenset[int], every_step: bool) -> list[Step]:
        """Return the steps with the shares of some lanes only.

        Without `every_step`, steps in which these lanes have no share are omitted.
        """
        steps = [
            (number, rows, [share for share in shares if share[0] in lanes])
            for number, rows, shares in self.steps
        ]
        return [step for step in steps if every_step or step[2]]


def deal_rows(
    rows: BatchRows, n_rows: int, max_rows: int | None, n_lanes: int, first: int, together: bool
) -> list[Step]:
    """Return the steps of a call, numbered from `first`, with the shares of the lanes.

    With `together`, the rows of a step are divided among all lanes; else one lane has each step.
    """
    # Steps of equal size, of at most `max_rows` rows, cut like those of a pass of a fit.
    n_steps = 1 if max_rows is None else -(-n_rows // max_rows)
    bounds = itertools.pairwise([i * n_rows // n_steps for i in range(n_steps + 1)])
    steps = []
    for number, (start, stop) in enumerate(bounds, first):
        n_shares = n_lanes if together else 1
        cuts = [start + i * (stop - start) // n_shares for i in range(n_shares + 1)]
        # The first lane changes with each step, so that no lane always has the larger shares.
        shares = [
            _copy_share((number + i) % n_lanes, rows, slice(a, b))
            for i, (a, b) in enumerate(itertools.pairwise(cuts))
        ]
        steps.append((number, stop - start, sorted(shares, key=lambda share: share[0])))
    return steps


def _copy_share(lane: int, rows: BatchRows, row_slice: slice) -> Share:
    """Return a lane's share of a step, as a copy of some of the rows."""
    X = rows.X[row_slice]
    # The caller may overwrite the rows before they are sent, or sent again.
    X = np.array(X) if isinstance(X, np.ndarray) else X.copy()
    y, weight = (None if a is None else np.array(a[row_slice]) for a in (rows.y, rows.weight))
    return lane, X, y, weight
