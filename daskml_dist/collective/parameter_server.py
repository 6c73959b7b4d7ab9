"""Parameters on actors of a Dask cluster, for a function that several ranks run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.models.base import BatchRows, Parameters, Part, StepModel
from daskml_dist.optimizers import Optimizer, get_optimizer
from daskml_dist.penalties import get_penalty
from daskml_dist.policies import POLICIES, Policy, get_policy
from daskml_dist.ps.ledger import PassStoppingRule
from daskml_dist.ps.rule import UpdateRule, make_parameter_groups
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.schedules import Schedule, get_schedule
from daskml_dist.training.spec import FunctionCall, StepWork

#: Steps in a pass: a function has no passes, so this number is never reached.
_NO_PASSES = 1 << 60


class ParameterServer(ParameterObject):
    """Parameter server for a function that pushes gradients and pulls parameters.

    The named arrays are cut into one shard per server, an actor that the scheduler places. Standbys
    on other workers hold snapshots, so that a lost server loses few updates (none under ``"sync"``,
    whose open round is repeated). Between two runs the object itself holds the arrays and the state
    of the optimizer.

    Parameters
    ----------
    arrays : mapping of str to array-like
        Initial parameters, all of float32 or float64.
    n_servers : int, default=1
    policy : {"async", "ssp", "sync"} or Policy, default="async"
        When a push is applied, and how far a rank may run ahead of the slowest.
    optimizer : str or Optimizer, default="sgd"
        Optimizer that turns a mean gradient into a step.
    learning_rate : float or Schedule, default=0.01

    Raises
    ------
    InvalidDataError
        There are no parameters, or they are not finite numbers.
    InvalidParameterError
        The policy needs no server, or a name is unknown.

    References
    ----------
    Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.collective import ParameterServer, run_together
    >>> server = ParameterServer({"w": np.zeros(2)}, learning_rate=0.5)
    >>> def descend(group, blocks, state):
    ...     for _ in range(20):
    ...         w = group.parameters.pull()["w"]
    ...         group.parameters.push({"w": w - np.array([1.0, 2.0])})
    >>> _ = run_together(None, descend, server=server)
    >>> server.as_numpy()["w"].round(3)
    array([1., 2.])
    """

    def __init__(
        self,
        arrays: Mapping[str, ArrayLike],
        *,
        n_servers: int = 1,
        policy: str | Policy = "async",
        optimizer: str | Optimizer = "sgd",
        learning_rate: float | Schedule = 0.01,
    ) -> None:
        initial = {name: np.asarray(array) for name, array in arrays.items()}
        if not initial:
            raise InvalidDataError("arrays is empty: name at least one array of parameters.")
        for name, array in initial.items():
            if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
                raise InvalidDataError(f"The parameters {name!r} must be finite real numbers.")
        if isinstance(n_servers, bool) or not isinstance(n_servers, int) or n_servers < 1:
            raise InvalidParameterError(f"n_servers={n_servers!r} must be an integer >= 1.")
        self.n_servers = n_servers
        self.policy = get_policy(policy)
        if self.policy.trainers_communicate or self.policy.averages:
            policy_names = sorted(
                name for name, policy_class in POLICIES.items() if policy_class().uses_shards
            )
            raise InvalidParameterError(
                f"Under the policy {self.policy.name!r} ranks hold the parameters themselves. Use "
                f"one of {policy_names}, or group.allreduce."
            )
        self.optimizer = get_optimizer(optimizer)
        self.schedule = get_schedule(learning_rate, default=0.01, alpha=0.0, max_iter=1)
        kinds = {array.dtype for array in initial.values()}
        self.dtype = "float32" if kinds == {np.dtype(np.float32)} else "float64"
        parts = tuple(Part(name, array.shape, penalised=False) for name, array in initial.items())
        self._model = NamedArrays(Parameters(parts))
        w = np.zeros(self._model.parameters.shape, self.dtype)
        for name, view in self._model.parameters.views(w).items():
            view[...] = initial[name]
        self._state = ShardState(w, {})

    def as_numpy(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the parameters by name, as they were after the last run."""
        return dict(self._model.parameters.views(self._state.w.copy()))

    @property
    def n_updates(self) -> int:
        """Return the total number of updates that the servers have made."""
        return self._state.step

    def plan(self, call: FunctionCall) -> StepWork:
        """Return the work of a function that pushes to these parameters; called by the engine."""
        penalty = get_penalty(None, 0.0, 0.0)
        groups = make_parameter_groups(self._model.parameters, self.optimizer, penalty)
        return StepWork(
            model=self._model,
            policy=self.policy,
            rule=UpdateRule(groups, self.schedule, steps_per_pass=1.0),
            layout=ShardLayout(*self._model.parameters.shape, self.n_servers),
            stopping=PassStoppingRule(1, None),
            n_steps=_NO_PASSES,
            seed=0,
            shuffle=False,
            initial=self._state,
            call=call,
        )

    def take(self, state: ShardState | None) -> None:
        """Take the parameters at the end of a run; called by the engine."""
        if state is not None:
            self._state = state


class NamedArrays(StepModel):
    """Model that consists only of parameters; the function computes the gradients.

    Parameters
    ----------
    parameters : Parameters
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def encode(self, y: Any, classes: Any, dtype: Any) -> Any:
        """Return the targets unchanged; there are none."""
        return y

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add nothing: the function pushes its gradients itself."""
        return 0.0

    def identity(self) -> dict[str, Any]:
        """Return the names of the parameters."""
        return {"model": "NamedArrays", "parts": [part.name for part in self.parameters.parts]}
