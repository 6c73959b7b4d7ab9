"""Base class of the policies, and the gates that hold lanes back.

A `Policy` names the loop that lanes run, and the settings that the loop reads. Its `Gate` is a
state machine that decides which pushes are applied, and which lanes may start a step. Gates never
block: a server queries them after each message, and delays its answer to lanes that may not start
their next step. Clocks count finished steps, so that a repeated push has no effect.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject, describe_changes
from daskml_dist.policies.outer import OuterOptimizer, resolve_outer
from daskml_dist.policies.paces import LanePaces


class Gate(ABC):
    """State machine of one policy over a set of lanes.

    A lane's clock counts the steps that it has pushed. Repeated pushes are refused, which makes
    every push idempotent.

    Parameters
    ----------
    lanes : iterable of int
        The lanes that take part from the start.
    clock : int, default=0
        The clock at which they start.

    Examples
    --------
    >>> from daskml_dist.policies import Gate, get_policy
    >>> gate = get_policy('sync').gate([0, 1])
    >>> type(gate).__name__
    'RoundGate'
    """

    def __init__(self, lanes: Iterable[int], clock: int = 0) -> None:
        self.clocks: dict[int, int] = dict.fromkeys(lanes, clock)

    def join(self, lane: int, clock: int) -> None:
        """Add a lane, which has made `clock` steps."""
        self.clocks[lane] = clock

    def leave(self, lane: int) -> None:
        """Remove a lane, so that no lane waits for it; its push in the open round stays."""
        self.clocks.pop(lane, None)

    @abstractmethod
    def push(self, lane: int, clock: int) -> bool:
        """Record the push of step `clock` (from 1) of a lane; return False if it is refused."""

    @abstractmethod
    def pop_due_lanes(self) -> list[int]:
        """Return the lanes whose pushes are to be applied together now; empty if none are due."""

    @abstractmethod
    def may_proceed(self, lane: int) -> bool:
        """Return True if `lane` may start its next step now."""

    def may_all_proceed(self, lanes: Iterable[int]) -> bool:
        """Return True if the lanes of one trainer's message may start their next steps."""
        return all(self.may_proceed(lane) for lane in lanes)

    def clock(self, lane: int) -> int:
        """Return the clock from which `lane` continues."""
        return self.clocks.get(lane, 0)

    def slowest_clock(self) -> int:
        """Return the smallest clock of the lanes."""
        return min(self.clocks.values())

    def seconds_to_due(self) -> float | None:
        """Return the seconds until pushes become due without a new one; None if they do not."""
        return None

    def count_steps(self, lane: int) -> int:
        """Return after how many steps `lane` should push next; 0: as many as before."""
        return 0


class RoundGate(Gate):
    """Gate of rounds: a round is applied once all lanes but `spare` have pushed their step.

    Examples
    --------
    >>> from daskml_dist.policies import RoundGate
    >>> gate = RoundGate([0, 1])
    >>> [gate.push(0, 1), gate.may_proceed(0), gate.push(1, 1), gate.may_proceed(0)]
    [True, False, True, False]
    """

    def __init__(self, lanes: Iterable[int], clock: int = 0, *, spare: int = 0) -> None:
        super().__init__(lanes, clock)
        #: Clock of the last applied round, from which all lanes continue.
        self._round = clock
        self._n_spare = spare
        #: Lanes that have pushed in the open round.
        self._arrived: set[int] = set()

    def join(self, lane: int, clock: int) -> None:
        super().join(lane, max(clock, self._round))  # it had no part in earlier rounds

    def push(self, lane: int, clock: int) -> bool:
        # Refused: repeated pushes, and pushes that arrive after their round has closed.
        if lane not in self.clocks or lane in self._arrived or clock != self._round + 1:
            return False
        self.clocks[lane] = clock
        self._arrived.add(lane)
        return True

    def pop_due_lanes(self) -> list[int]:
        """Return the lanes of a round once at most `spare` are missing, and open the next round."""
        # Nearly all pushes of a round are decided by these counts, whatever the number of lanes.
        if len(self.clocks) - len(self._arrived) > self._n_spare:
            return []
        # A lane that has left may be in `_arrived` but not in `clocks`. Whatever `spare` is, at
        # least one of the remaining lanes must have pushed.
        missing = sum(lane not in self._arrived for lane in self.clocks)
        if not self._arrived or missing > min(self._n_spare, max(len(self.clocks) - 1, 0)):
            return []
        group = sorted(self._arrived)
        self._arrived.clear()
        self._round += 1
        return group

    def may_proceed(self, lane: int) -> bool:
        return lane not in self._arrived

    def clock(self, lane: int) -> int:
        return self._round


class QuorumGate(Gate):
    """Gate of rounds that are applied soon after `quorum` lanes have pushed; late ones join later.

    Unlike those of a `RoundGate`, rounds have no clocks: a push belongs to the round that is open
    when it arrives, and none is refused for being late. A lane's clock is that of its last push
    that was applied.

    Parameters
    ----------
    lanes : iterable of int
    clock : int, default=0
    quorum : int or None, default=None
        Lanes whose pushes make a round; None: all lanes.
    grace : float, default=0.0
        Seconds that a round stays open for more lanes once it has its quorum.
    paces : LanePaces or None, default=None
        Makes slow lanes push after fewer steps; None: all push after the same number.
    lanes_wait : bool, default=True
        Whether lanes make no steps between a push and its answer.
    now : callable, default=time.monotonic
        Returns the time in seconds.

    References
    ----------
    A. Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", 2026.

    Examples
    --------
    >>> from daskml_dist.policies import QuorumGate
    >>> gate = QuorumGate([0, 1, 2], quorum=2)
    >>> gate.push(0, 16), gate.pop_due_lanes(), gate.push(2, 16), gate.pop_due_lanes()
    (True, [], True, [0, 2])
    """

    def __init__(
        self,
        lanes: Iterable[int],
        clock: int = 0,
        *,
        quorum: int | None = None,
        grace: float = 0.0,
        paces: LanePaces | None = None,
        lanes_wait: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(lanes, clock)
        self._quorum = quorum
        self._grace = grace
        self._paces, self._lanes_wait = paces, lanes_wait
        self.now = now
        #: Clock of the push of each lane in the open round.
        self._arrived: dict[int, int] = {}
        #: Time at which the open round is due; None before it has its quorum.
        self._due: float | None = None

    def push(self, lane: int, clock: int) -> bool:
        # A lane that has moved to another trainer may repeat pushes that are already applied.
        if lane in self._arrived or clock <= self.clocks.get(lane, clock):
            return False
        self._arrived[lane] = clock
        if self._paces is not None:
            self._paces.end(lane, clock - self.clocks.get(lane, clock), self.now())
            if not self._lanes_wait:
                self._paces.begin(lane, self.now())
        return True

    def leave(self, lane: int) -> None:
        super().leave(lane)
        if self._paces is not None:
            self._paces.leave(lane)

    def pop_due_lanes(self) -> list[int]:
        """Return the lanes of the open round once it is due; then open the next one."""
        if not self._arrived:
            return []
        # Lanes that have left may be in the round, but none of them is awaited. Nearly all pushes
        # are decided by the counts, whatever the number of lanes.
        missing = len(self._arrived) < len(self.clocks) or any(
            lane not in self._arrived for lane in self.clocks
        )
        if missing and (self._quorum is None or len(self._arrived) < self._quorum):
            return []
        if missing and self._grace:
            if self._due is None:
                self._due = self.now() + self._grace
            if self.now() < self._due:
                return []
        self._due = None
        group = sorted(self._arrived)
        # Lanes that have left have no clock any more.
        self.clocks |= {n: clock for n, clock in self._arrived.items() if n in self.clocks}
        self._arrived.clear()
        if self._paces is not None and self._lanes_wait:
            for lane in group:
                self._paces.begin(lane, self.now())
        return group

    def count_steps(self, lane: int) -> int:
        return 0 if self._paces is None else self._paces.count_steps(lane)

    def seconds_to_due(self) -> float | None:
        """Return the remaining grace of the open round; None before it has its quorum."""
        return None if self._due is None else max(0.0, self._due - self.now())

    def may_proceed(self, lane: int) -> bool:
        return lane not in self._arrived


class ArrivalGate(Gate):
    """Gate that applies pushes on arrival; a lane may lead the slowest by `staleness` clocks.

    Examples
    --------
    >>> from daskml_dist.policies import ArrivalGate
    >>> gate = ArrivalGate([0, 1], staleness=1)
    >>> [gate.push(0, 1), gate.may_proceed(0), gate.push(0, 2), gate.may_proceed(0)]
    [True, True, True, False]
    """

    def __init__(
        self, lanes: Iterable[int], clock: int = 0, *, staleness: int | None = None
    ) -> None:
        super().__init__(lanes, clock)
        self._staleness = staleness
        self._arrived: list[int] = []
        #: Number of lanes at each clock. The slowest clock is the smallest key; there are far fewer
        #: clocks than lanes to search.
        self._n_lanes_at = Counter(self.clocks.values())

    def join(self, lane: int, clock: int) -> None:
        self._count_lane_at(lane, clock)
        super().join(lane, clock)

    def leave(self, lane: int) -> None:
        self._count_lane_at(lane, None)
        super().leave(lane)

    def _count_lane_at(self, lane: int, clock: int | None) -> None:
        """Move a lane to another clock in the counts; None removes it."""
        if (old_clock := self.clocks.get(lane)) is not None:
            self._n_lanes_at[old_clock] -= 1
            if not self._n_lanes_at[old_clock]:
                del self._n_lanes_at[old_clock]
        if clock is not None:
            self._n_lanes_at[clock] += 1

    def push(self, lane: int, clock: int) -> bool:
        if lane not in self.clocks or clock <= self.clocks[lane]:
            return False
        self._count_lane_at(lane, clock)
        self.clocks[lane] = clock
        self._arrived.append(lane)
        return True

    def pop_due_lanes(self) -> list[int]:
        return [self._arrived.pop(0)] if self._arrived else []

    def may_proceed(self, lane: int) -> bool:
        # Stale-synchronous parallel (Ho et al. 2013): the lead over the slowest lane is bounded.
        if self._staleness is None or lane not in self.clocks:
            return True
        return self.clocks[lane] - self.slowest_clock() <= self._staleness

    def slowest_clock(self) -> int:
        return min(self._n_lanes_at)


class TrainerGate(ArrivalGate):
    """Gate of trainers whose lanes share one message: the slowest lane of a trainer is bounded.

    That lane may lead the slowest lane of the other trainers by `staleness` clocks. Lanes of one
    trainer do not wait for each other, and the slowest trainer does not wait.
    """

    def may_all_proceed(self, lanes: Iterable[int]) -> bool:
        own_clocks = {lane: self.clocks[lane] for lane in lanes if lane in self.clocks}
        other_clocks = [clock for lane, clock in self.clocks.items() if lane not in own_clocks]
        if self._staleness is None or not own_clocks or not other_clocks:
            return True
        return min(own_clocks.values()) - min(other_clocks) <= self._staleness


#: Names of the loops that lanes may run.
PolicyLoop = Literal["bulk", "replicas", "free", "shared", "decoupled", "parts"]

#: Settings that loops read, each with its smallest meaningful value.
_CADENCE = {
    "push_every": 1,
    "pull_every": 1,
    "average_every": 0,
    "exchange_every": 0,
    "fragments": 0,
}


class Consistency(Protocol):
    """Protocol of the part of a policy that servers and recovery use.

    Work without a policy, such as that of solvers, implements it for recovery, too.

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

    @property
    def keeps_lanes(self) -> bool: ...

    @property
    def delay_compensation(self) -> float: ...

    @property
    def gradient_table(self) -> bool: ...

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate: ...

    def applies(self, delay: int, n_lanes: int) -> bool: ...


@dataclass(frozen=True)
class Policy(ParameterObject):
    """Base class of all policies: the loop that lanes run, and the settings of that loop, as data.

    A subclass sets the attributes below, as class attributes or, if users may choose them, as
    fields. Integer fields must be at least 1, or the minimum in their metadata: ``field(default=0,
    metadata={"least": 0})``. A subclass may override `gate` to decide which lanes may run ahead.

    Attributes
    ----------
    name : str
        The string that selects the policy, and that ``history_`` shows.
    loop : {"bulk", "replicas", "free", "shared", "decoupled", "parts"}
        ``"bulk"``: all lanes step together through the server. ``"replicas"``: every lane or
        trainer holds the parameters and combines them with the others by all-reduce. ``"free"``:
        each lane pushes and pulls at its own pace. ``"shared"``: the threads of a process update
        one array, and processes exchange changes through the server. ``"decoupled"``: every lane
        trains independently and sends its progress to the server, which makes an outer step of it.
        ``"parts"``: rows of ids as in ``"free"``, all other parameters as in ``"replicas"`` with
        `sums_gradients`.
    push_every : int, default=1
        ``"free"``: steps whose gradients are summed before a push.
    pull_every : int, default=1
        ``"free"``: steps between two pulls.
    sums_gradients : bool, default=False
        ``"replicas"``: whether all lanes apply the sum of their gradients at each step, so that no
        averaging is needed.
    average_every : int, default=0
        ``"replicas"``: steps between two averages of the parameters; 0: one average, at the end.
        ``"decoupled"``: steps of a lane between two pushes.
    quorum : int or None, default=None
        ``"decoupled"``: lanes whose pushes make an outer step; None: all.
    steps_by_speed : bool, default=False
        ``"decoupled"``: whether slow lanes push after fewer steps.
    fragments : int, default=0
        ``"decoupled"``: parts of the parameters that lanes exchange one after the other, while they
        continue to step; 0: they exchange all parameters together, and wait for the answer.
    exchange_every : int, default=0
        ``"shared"``, if each row is a step: most batches of a lane between two exchanges with the
        server; 0: trainers choose it so that exchanges take at most 5 % of the time.
    outer : str, Optimizer or None, default=None
        ``"replicas"``, ``"decoupled"``: optimizer of the step from the last average towards the new
        one; None: the new average itself is taken.
    outer_rate : float or None, default=None
        ``"replicas"``, ``"decoupled"``: learning rate of these steps; None: the optimizer's
        default, 1 for the mean.
    outer_momentum : float or None, default=None
        ``"replicas"``, ``"decoupled"``: momentum of these steps; None: the optimizer's default, 0
        for the mean.
    sums_within_hosts : bool, default=False
        ``"replicas"``: whether all lanes of a host apply the sum of their gradients at each step,
        and the hosts' parameters are averaged.
    draws_lanes : bool, default=False
        ``"replicas"``: whether each round draws some lanes, which step and are averaged.
    proximal : float, default=0.0
        ``"replicas"``: factor on the distance to the last average that is added to each gradient.
    delay_compensation : float, default=0.0
        ``"free"``: factor of the server's correction of a gradient for the updates since its
        parameters were pulled (Zheng et al. 2017); the server then keeps each lane's last pulled
        parameters.
    gradient_table : bool, default=False
        ``"free"``: whether steps follow the mean of all lanes' gradients, which the server keeps.
    optimizer_of_dense : Optimizer or None, default=None
        ``"parts"``: optimizer of the parameters that trainers hold; None: the estimator's.
    dense_schedule : Schedule or None, default=None
        ``"parts"``: learning rates of the parameters that trainers hold; None: the estimator's.

    Examples
    --------
    >>> from daskml_dist.policies import Policy, get_policy
    >>> gate = get_policy('sync').gate([0, 1])
    >>> type(gate).__name__
    'RoundGate'
    """

    name: ClassVar[str]
    loop: ClassVar[PolicyLoop]
    sums_gradients: ClassVar[bool] = False
    draws_lanes: ClassVar[bool] = False
    sums_within_hosts: ClassVar[bool] = False
    # No annotations, so that a subclass may define these as fields or properties.
    push_every = 1
    pull_every = 1
    average_every = 0
    exchange_every = 0
    fragments = 0
    quorum = cast("int | None", None)
    steps_by_speed = False
    outer = cast(Any, None)
    outer_rate = cast(Any, None)
    outer_momentum = cast(Any, None)
    proximal = 0.0
    delay_compensation = 0.0
    gradient_table = False
    optimizer_of_dense = cast(Any, None)
    dense_schedule = cast(Any, None)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The dataclass decorator runs later and keeps this method.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Policy.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return describe_changes(self)

    def __post_init__(self) -> None:
        self._check_declaration()
        # With `from __future__ import annotations`, the types of fields are strings.
        least_values = {
            f.name: f.metadata.get("least", 1) for f in fields(self) if f.type in (int, "int")
        }
        for name, minimum in (least_values | _CADENCE).items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise InvalidParameterError(
                    f"{type(self).__name__}({name}={value!r}): give an integer >= {minimum}."
                )
        self._check_outer_step()

    def _check_outer_step(self) -> None:
        """Raise if the outer step is out of range, or the policy has none."""
        rate, momentum, name = self.outer_rate, self.outer_momentum, type(self).__name__
        if rate is not None and not (is_number(rate) and rate > 0):
            raise InvalidParameterError(f"{name}(outer_rate={rate!r}): give a finite number > 0.")
        if momentum is not None and not (is_number(momentum) and 0 <= momentum < 1):
            raise InvalidParameterError(
                f"{name}(outer_momentum={momentum!r}): give a number >= 0 and < 1."
            )
        # An outer step starts from the last average, so averages must be taken during the fit.
        if self.outer_optimizer is not None and not (self.averages and self.average_every):
            raise InvalidParameterError(
                f"{name} has outer_rate={rate!r}, outer_momentum={momentum!r} and "
                f"outer={self.outer!r}, which need a policy whose lanes step alone and "
                "synchronise every `average_every` steps, such as LocalSGD."
            )

    def _check_declaration(self) -> None:
        """Raise for a subclass without a name or a known loop."""
        loops = get_args(PolicyLoop)
        if not hasattr(self, "name") or getattr(self, "loop", None) not in loops:
            raise InvalidParameterError(
                f"The policy {type(self).__name__} needs a `name`, and a `loop` out of {loops}."
            )

    @property
    def outer_optimizer(self) -> OuterOptimizer | None:
        """Return the optimizer of the steps between averages; None: lanes take the average."""
        return resolve_outer(type(self).__name__, self.outer, self.outer_rate, self.outer_momentum)

    @property
    def lockstep(self) -> bool:
        """Return whether all lanes have the same clock at each end of a pass."""
        return self.loop in {"bulk", "replicas"}

    @property
    def uses_shards(self) -> bool:
        """Return whether server shards hold the parameters."""
        return self.loop != "replicas"

    @property
    def trainers_communicate(self) -> bool:
        """Return whether trainers send each other messages, and hold state lost with them."""
        return self.loop in {"replicas", "parts"}

    @property
    def compresses(self) -> bool:
        """Return whether lanes' messages can be compressed: gradients, or local progress."""
        return self.loop != "shared"

    @property
    def averages(self) -> bool:
        """Return whether lanes train independently, and their parameters are averaged."""
        return self.loop == "decoupled" or (self.loop == "replicas" and not self.sums_gradients)

    @property
    def averages_on_servers(self) -> bool:
        """Return whether lanes train independently, and servers average their progress."""
        return self.averages and self.uses_shards

    @property
    def keeps_lanes(self) -> bool:
        """Return whether trainers keep their lanes when others are lost.

        The lanes continue from their present state, and resend messages that were not answered.
        """
        return self.loop == "decoupled"

    @property
    def uses_threads(self) -> bool:
        """Return whether a fit in one process should have a lane for each thread."""
        return self.loop == "shared"

    def applies_per_pass(self, n_steps: int, n_lanes: int) -> int:
        """Return the updates that a shard applies in a pass of `n_steps` steps of each lane.

        Gradients that are not yet pushed at the end of a pass are pushed then.
        """
        # In lockstep, or on a replica, a step is one update.
        if self.lockstep or self.averages:
            return n_steps
        # Otherwise each push of a lane is an update; the number per lane is rounded up.
        return -(-n_steps // self.push_every) * n_lanes

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard (or of the pass reports)."""
        # An ArrivalGate without a bound on staleness: no lane waits for another.
        return (RoundGate if self.loop == "bulk" else ArrivalGate)(lanes, clock)

    def applies(self, delay: int, n_lanes: int) -> bool:
        """Return whether a gradient is applied that is `delay` updates old."""
        return True

    def on_one_host(self) -> Policy:
        """Return a faster policy with the same steps for trainers that share memory."""
        return self

    def by_single_rows(self) -> Policy:
        """Return a policy with the same guarantees under which each sparse row may be a step."""
        return self

    def count_client_steps(self, n_rows: int, batch_size: int | None) -> tuple[int, int]:
        """Return a drawn lane's batches in one pass over its rows, and its steps in a round."""
        n_batches = 1 if batch_size is None else max(1, -(-n_rows // batch_size))
        return n_batches, n_batches

    def for_round(self, n_steps: int) -> Policy:
        """Return the policy of a fit whose rounds have `n_steps` steps."""
        return self

    def draw_clients(self, seed: int, number: int, rows: Sequence[int]) -> list[int]:
        """Return the lanes that step in a round; `rows` has the number of rows of each lane."""
        return list(range(len(rows)))

    def limit_client_steps(self, seed: int, number: int, client: int, n_steps: int) -> int:
        """Return the number of steps that a drawn client makes in a round; all by default."""
        return n_steps

    def for_one_lane(self) -> Policy:
        """Return a policy under which a single lane makes the same steps without waiting."""
        return self


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number and not a bool (a subclass of int in Python)."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value)


@dataclass(frozen=True)
class Pipeline(ParameterObject):
    """Pipeline of stages: each trainer holds some adjacent layers and passes its activations on.

    A batch is cut into micro-batches that follow each other through the stages, alternating one
    forward and one backward pass (1F1B), so that a stage keeps the activations of only a few of
    them: one for each stage that follows, its own, and one in transit. The steps are the same as
    those of a single trainer with all layers. With at least twice as many trainers as stages,
    several pipelines process different lanes, and equal stages sum their gradients.

    Choose it when a network is too large for the memory of one worker; a network that fits learns
    faster under ``"allreduce"``. Layers are distributed by measured times, so that all stages take
    equally long; if there are fewer workers than stages, each stage takes more layers.

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
