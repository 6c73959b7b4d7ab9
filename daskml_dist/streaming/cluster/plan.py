"""Layout of a stream on a cluster: policy, lanes and servers, from an estimator's parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies import Policy
from daskml_dist.ps.rule import OuterStep
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.training.spec import FitSpec

__all__ = ["StreamLayout"]

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
