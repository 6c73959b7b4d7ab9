"""Base of the policies: which loop lanes run, and the data that loops read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, get_args

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.names import NamedParameters
from daskml_dist.policies.gates import ArrivalGate, Gate, RoundGate

__all__ = ["Consistency", "Policy"]

_Loop = Literal["bulk", "replicas", "free", "shared"]

#: What loops read, and the least that makes sense.
_CADENCE = {"push_every": 1, "pull_every": 1, "average_every": 0, "meet_every": 0}


class Consistency(Protocol):
    """Part of a policy that servers and recovery ask for; other work than steps has it too.

    Examples
    --------
    >>> from daskml_dist.policies import Consistency, get_policy
    >>> gate = get_policy('sync').gate([0, 1])
    >>> type(gate).__name__
    'RoundGate'
    """

    @property
    def loop(self) -> str: ...

    @property
    def lockstep(self) -> bool: ...

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate: ...


@dataclass(frozen=True)
class Policy(NamedParameters):
    """Base of all policies: a loop, and what that loop asks of it, all of it data.

    A subclass sets the attributes below, as attributes of the class or, where its users choose,
    as fields. Fields that are integers are at least 1, or as their metadata say:
    ``field(default=0, metadata={"least": 0})``. A `gate` of its own says who may run ahead.

    Attributes
    ----------
    name : str
        The string by which the policy is chosen, and which ``history_`` shows.
    loop : {"bulk", "replicas", "free", "shared"}
        ``"bulk"``: all lanes step together through the server. ``"replicas"``: every lane or
        trainer holds the parameters and meets the others by all-reduce. ``"free"``: each lane
        pushes and pulls at its own pace. ``"shared"``: the threads of a process write one array
        and processes meet at the server.
    push_every : int, default=1
        ``"free"``: steps whose gradients are summed before a push.
    pull_every : int, default=1
        ``"free"``: steps between two pulls.
    sums_gradients : bool, default=False
        ``"replicas"``: whether all apply the sum of their gradients at each step, so that there
        is nothing to average.
    average_every : int, default=0
        ``"replicas"``: steps between two averages of the parameters; 0: one average, at the end.
    meet_every : int, default=0
        ``"shared"``, where each row is a step: batches of a lane between two meetings at the server
        at most; 0: trainers meet so that it takes about 5 % of the time.
    outer_rate : float, default=1.0
        ``"replicas"``: length of the step from the last average to the new one, in units of the
        way between them.
    outer_momentum : float, default=0.0
        ``"replicas"``: Nesterov's momentum of these steps (DiLoCo, Douillard et al. 2023).

    Examples
    --------
    >>> from daskml_dist.policies import Policy, get_policy
    >>> gate = get_policy('sync').gate([0, 1])
    >>> type(gate).__name__
    'RoundGate'
    """

    name: ClassVar[str]
    loop: ClassVar[_Loop]
    sums_gradients: ClassVar[bool] = False
    # No annotations: a subclass may make fields of these, or properties.
    push_every = 1
    pull_every = 1
    average_every = 0
    meet_every = 0
    outer_rate = 1.0
    outer_momentum = 0.0

    def __post_init__(self) -> None:
        self._check_class()
        own = {f.name: f.metadata.get("least", 1) for f in fields(self) if f.type in (int, "int")}
        for name, least in (own | _CADENCE).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidParameterError(
                    f"{type(self).__name__}({name}={value!r}): give an integer >= {least}."
                )
        self._check_outer()

    def _check_outer(self) -> None:
        rate, momentum, name = self.outer_rate, self.outer_momentum, type(self).__name__
        if not (_is_number(rate) and rate > 0):
            raise InvalidParameterError(f"{name}(outer_rate={rate!r}): give a finite number > 0.")
        if not (_is_number(momentum) and 0 <= momentum < 1):
            raise InvalidParameterError(
                f"{name}(outer_momentum={momentum!r}): give a number >= 0 and < 1."
            )
        if (rate != 1 or momentum != 0) and not (self.averages and self.average_every):
            raise InvalidParameterError(
                f"{name} has outer_rate={rate!r} and outer_momentum={momentum!r}, which are for "
                "policies whose lanes step alone and meet every `average_every` steps, such as "
                "LocalSGD."
            )

    def _check_class(self) -> None:
        loops = get_args(_Loop)
        if not hasattr(self, "name") or getattr(self, "loop", None) not in loops:
            raise InvalidParameterError(
                f"The policy {type(self).__name__} needs a `name`, and a `loop` out of {loops}."
            )

    @property
    def lockstep(self) -> bool:
        """Whether all lanes are at the same clock at each end of a pass."""
        return self.loop in {"bulk", "replicas"}

    @property
    def uses_shards(self) -> bool:
        """Whether the parameters live in server shards."""
        return self.loop != "replicas"

    @property
    def pushes_gradients(self) -> bool:
        """Whether lanes push gradients to servers, which can be compressed."""
        return self.loop in {"bulk", "free"}

    @property
    def averages(self) -> bool:
        """Whether lanes step alone, and their parameters are averaged."""
        return self.loop == "replicas" and not self.sums_gradients

    @property
    def uses_threads(self) -> bool:
        """Whether a lane a thread is wanted in one process too."""
        return self.loop == "shared"

    def applies_per_pass(self, n_steps: int, n_lanes: int) -> int:
        """Updates that a shard applies in a pass in which each lane makes `n_steps` steps.

        What is open at the end of a pass is pushed there.
        """
        return n_steps if self.lockstep else -(-n_steps // self.push_every) * n_lanes

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Make the state machine of one shard (or of the pass reports)."""
        return (RoundGate if self.loop == "bulk" else ArrivalGate)(lanes, clock)

    def of_one_host(self) -> Policy:
        """A policy under which trainers that share memory make the same steps sooner."""
        return self

    def of_single_rows(self) -> Policy:
        """A policy of the same promise under which each sparse row may be a step of its own."""
        return self

    def of_one_lane(self) -> Policy:
        """A policy under which a fit of one lane makes the same steps, and waits for nobody."""
        return self


def _is_number(value: Any) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value)
