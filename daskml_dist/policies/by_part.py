"""Policies of models whose parts are updated at different paces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers import Optimizer, get_optimizer
from daskml_dist.policies.base import Gate, Policy, is_number
from daskml_dist.schedules import Constant, Schedule

__all__ = ["PolicyByPart"]


@dataclass(frozen=True)
class PolicyByPart(Policy):
    """One policy for embeddings, such as async, and all-reduce for all other parameters.

    Also written ``policy={"embeddings": "async", "dense": "allreduce"}``. For models over ids:
    their embeddings are rows of a table on servers, of which a batch uses few, while all batches
    use the layers' weights and the intercept. Trainers hold the weights and the intercept, and sum
    their gradients at each step. Rows of ids are pulled and pushed; servers apply each push on
    arrival, while the trainers sum the other gradients.

    Choose it if the layers are large compared to a batch's ids, or there are many lanes: weights
    that all lanes use do not tolerate old gradients; rows of ids, which few lanes use at the same
    time, do.

    Parameters
    ----------
    embeddings : Asynchronous or BoundedStaleness
        Policy of the rows of ids; of an `Asynchronous`, only `max_delay` may be set. Since lanes
        step together, a gradient is never older than two steps of the other lanes.
    dense : AllReduce
        Policy of all other parameters.
    dense_optimizer : str, Optimizer or None, default=None
        Optimizer of all other parameters; None: the estimator's, which the rows of ids use.
    dense_rate : float or None, default=None
        Learning rate of all other parameters. None: the default of `dense_optimizer`; without one,
        the estimator's.

    References
    ----------
    X. Lian et al., "Persia: An Open, Hybrid System Scaling Deep Learning-based Recommenders up to
    100 Trillion Parameters", KDD 2022.

    Examples
    --------
    >>> from daskml_dist.policies import get_policy
    >>> get_policy({"embeddings": "async", "dense": "allreduce"}).embeddings.name
    'async'
    >>> from daskml_dist.policies import AllReduce, Asynchronous, PolicyByPart
    >>> PolicyByPart(Asynchronous(), AllReduce(), dense_optimizer="adam").dense_schedule
    Constant(learning_rate=0.001)
    """

    name = "by part"
    loop = "parts"
    embeddings: Policy
    dense: Policy
    dense_optimizer: str | Optimizer | None = None
    dense_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in ("embeddings", "dense"):
            if not isinstance(policy := getattr(self, part), Policy):
                raise InvalidParameterError(
                    f"{part}={policy!r} is not a policy object. Give objects, such as "
                    "PolicyByPart(Asynchronous(), AllReduce()), or a mapping of names: "
                    'policy={"embeddings": "async", "dense": "allreduce"}.'
                )
        embeddings, dense = self.embeddings, self.dense
        steps_often = embeddings.push_every == embeddings.pull_every == 1
        is_plain = embeddings.loop == "free" and not (
            embeddings.delay_compensation or embeddings.gradient_table
        )
        if not (is_plain and steps_often):
            raise InvalidParameterError(
                f"embeddings={embeddings!r}: rows of ids are pulled and pushed at each step. Use "
                '"async", "ssp", or Asynchronous(max_delay=...).'
            )
        if not (dense.loop == "replicas" and dense.sums_gradients):
            raise InvalidParameterError(
                f'dense={dense!r}: trainers sum the gradients of what they hold. Use "allreduce".'
            )

        rate = self.dense_rate
        if rate is not None and not (is_number(rate) and rate > 0):
            raise InvalidParameterError(f"dense_rate={rate!r}: give a number > 0, or None.")
        optimizer = self.optimizer_of_dense
        if optimizer is not None and (optimizer.uses_scales or optimizer.whole_matrices):
            raise InvalidParameterError(
                f"dense_optimizer={self.dense_optimizer!r} needs feature scales, or whole "
                'matrices. Use another, such as "adam".'
            )

    @property
    def optimizer_of_dense(self) -> Optimizer | None:
        """Return the optimizer of all parameters except embeddings; None: the estimator's."""
        optimizer = self.dense_optimizer
        return None if optimizer is None else get_optimizer(optimizer)

    @property
    def dense_schedule(self) -> Schedule | None:
        """Return the learning rates of all parameters except embeddings; None: the estimator's."""
        optimizer = self.optimizer_of_dense
        if self.dense_rate is not None:
            return Constant(float(self.dense_rate))
        return None if optimizer is None else Constant(optimizer.default_learning_rate)

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard, which holds rows of ids."""
        return self.embeddings.gate(lanes, clock)

    def applies(self, delay: int, n_lanes: int) -> bool:
        """Return whether a gradient of rows of ids is applied that is `delay` updates old."""
        return self.embeddings.applies(delay, n_lanes)
