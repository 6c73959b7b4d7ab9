"""Base class of the policies: the loop that lanes run, and the settings that loops read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, get_args

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.policies.gates import ArrivalGate, Gate, RoundGate

_Loop = Literal["bulk", "replicas", "free", "shared"]

#: Settings that loops read, and the smallest meaningful value of each.
_CADENCE = {"push_every": 1, "pull_every": 1, "average_every": 0, "meet_every": 0}


class Consistency(Protocol):
    """Protocol of the part of a policy that servers and recovery use; other work has it too.

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
    """Base class of all policies: the loop that lanes run, and the settings of that loop, as data.

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
        ``"shared"``, where each row is a step: most batches of a lane between two meetings at the
        server; 0: trainers meet so that it takes at most 5 % of the time.
    outer_rate : float, default=1.0
        ``"replicas"``: length of the step from the last average to the new one, in units of their
        distance.
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
        self._check_declaration()
        # Types of fields are strings in modules with `from __future__ import annotations`.
        own = {f.name: f.metadata.get("least", 1) for f in fields(self) if f.type in (int, "int")}
        for name, least in (own | _CADENCE).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidParameterError(
                    f"{type(self).__name__}({name}={value!r}): give an integer >= {least}."
                )
        self._check_outer_step()

    def _check_outer_step(self) -> None:
        """Raise for an outer step that is out of range, or that the policy does not take."""
        rate, momentum, name = self.outer_rate, self.outer_momentum, type(self).__name__
        if not (_is_number(rate) and rate > 0):
            raise InvalidParameterError(f"{name}(outer_rate={rate!r}): give a finite number > 0.")
        if not (_is_number(momentum) and 0 <= momentum < 1):
            raise InvalidParameterError(
                f"{name}(outer_momentum={momentum!r}): give a number >= 0 and < 1."
            )
        # There is a last average to step from only if averages are taken during the fit.
        if (rate != 1 or momentum != 0) and not (self.averages and self.average_every):
            raise InvalidParameterError(
                f"{name} has outer_rate={rate!r} and outer_momentum={momentum!r}, which are for "
                "policies whose lanes step alone and meet every `average_every` steps, such as "
                "LocalSGD."
            )

    def _check_declaration(self) -> None:
        """Raise for a subclass without a name or a known loop."""
        loops = get_args(_Loop)
        if not hasattr(self, "name") or getattr(self, "loop", None) not in loops:
            raise InvalidParameterError(
                f"The policy {type(self).__name__} needs a `name`, and a `loop` out of {loops}."
            )

    @property
    def lockstep(self) -> bool:
        """Return whether all lanes have the same clock at each end of a pass."""
        return self.loop in {"bulk", "replicas"}

    @property
    def uses_shards(self) -> bool:
        """Return whether server shards hold the parameters."""
        return self.loop != "replicas"

    @property
    def pushes_gradients(self) -> bool:
        """Return whether lanes push gradients to servers; such pushes can be compressed."""
        return self.loop in {"bulk", "free"}

    @property
    def averages(self) -> bool:
        """Return whether lanes step alone, and their parameters are averaged."""
        return self.loop == "replicas" and not self.sums_gradients

    @property
    def uses_threads(self) -> bool:
        """Return whether a fit in one process should have a lane for each thread."""
        return self.loop == "shared"

    def applies_per_pass(self, n_steps: int, n_lanes: int) -> int:
        """Return the updates that a shard applies in a pass of `n_steps` steps of each lane.

        Gradients that are not pushed yet at the end of a pass are pushed there.
        """
        # In lockstep a step is one update; else each lane's pushes, rounded up, are updates.
        return n_steps if self.lockstep else -(-n_steps // self.push_every) * n_lanes

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard (or of the pass reports)."""
        # An ArrivalGate without a bound on staleness: no lane waits for another.
        return (RoundGate if self.loop == "bulk" else ArrivalGate)(lanes, clock)

    def on_one_host(self) -> Policy:
        """Return a policy by which trainers that share memory make the same steps sooner."""
        return self

    def by_single_rows(self) -> Policy:
        """Return a policy of the same guarantees by which each sparse row may be a step."""
        return self

    def for_one_lane(self) -> Policy:
        """Return a policy by which a fit of one lane makes the same steps without waiting."""
        return self


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and no bool (which Python counts as an int)."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value)


@dataclass(frozen=True)
class Pipeline(NamedParameters):
    """Pipeline of stages: each trainer holds some adjacent layers and passes its activations on.

    A batch is cut into micro-batches that follow each other through the stages, one forward and one
    backward in turn (1F1B), so that a stage keeps the activations of few of them: one for each
    stage that follows, its own, and one in transit. The steps are those of one trainer that holds
    all layers. Where there are twice as many trainers as stages, or more, several pipelines work on
    different lanes, and equal stages sum their gradients.

    Choose it when a network is too large for the memory of a worker; a network that fits learns
    sooner under ``"allreduce"``. Layers are spread so that all stages take as long, as measured;
    where workers are fewer than stages, a stage takes more layers.

    Parameters
    ----------
    stages : int, default=2
        At most the number of layers with parameters.
    micro_batches : int, default=4
        Parts of the batch of each lane. While the pipeline fills and drains, ``stages - 1`` of
        ``lanes * micro_batches + stages - 1`` turns are idle.

    References
    ----------
    Y. Huang et al., "GPipe", NeurIPS 2019. D. Narayanan et al., "PipeDream", SOSP 2019 (1F1B).

    Examples
    --------
    >>> from daskml_dist.policies import Pipeline
    >>> Pipeline(stages=2, micro_batches=8)
    Pipeline(stages=2, micro_batches=8)
    """

    stages: int = 2
    micro_batches: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidParameterError(
                    f"Pipeline({field.name}={value!r}): give an integer >= 1."
                )
