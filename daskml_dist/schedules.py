"""Schedules: learning rates as functions of the step's number and of the passes so far.

Rates by step (`InverseScaling`, `Optimal`) are those of stochastic approximation, which converges
if the sum of the rates is infinite and the sum of their squares is finite (Robbins and Monro 1951):
for powers of the step above 1/2. Rates by pass (`StepDecay`, `Cosine`, `Warmup`) do not depend on
the batch size or the number of lanes, which change the number of steps in a pass. A schedule has no
state, so servers and replicas that count the same steps have the same rates, also after a recovery.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar, Self

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.errors.suggestions import suggest_nearest

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "InverseScaling",
    "Optimal",
    "Schedule",
    "StalenessAware",
    "StepDecay",
    "Warmup",
    "get_schedule",
]


class Schedule(ParameterObject):
    """Learning rate as a function of the step and of the passes over the data.

    Attributes
    ----------
    name : str
        Value of an estimator's ``learning_rate`` parameter that selects it, for the schedules in
        `SCHEDULES`; others are passed as objects.

    Examples
    --------
    >>> from daskml_dist.schedules import Constant, Schedule
    >>> isinstance(Constant(0.1), Schedule)
    True
    """

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, step: int, passes: float) -> float:
        """Return the learning rate of a step.

        Parameters
        ----------
        step : int
            Number of the step, from 1. Where each sparse row is a step of its own, rows are
            counted.
        passes : float
            Number of passes over the data before the step.
        """

    @classmethod
    @abstractmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return the schedule that an estimator gets if only the name is given.

        Parameters
        ----------
        learning_rate : float
            Default of the optimizer.
        alpha : float
            Strength of the penalty.
        max_iter : int
            Largest number of passes of the fit.
        """

    @property
    def scales_with_staleness(self) -> bool:
        """Return whether :meth:`scale` can differ from 1."""
        return False

    def scale(self, staleness: float) -> float:
        """Return the factor on the learning rate for a gradient `staleness` versions old."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """Schedule with the same learning rate at every step.

    Parameters
    ----------
    learning_rate : float

    Examples
    --------
    >>> from daskml_dist.schedules import Constant
    >>> schedule = Constant(0.1)
    >>> round(float(schedule(10, 5.0)), 4)
    0.1
    """

    name = "constant"
    learning_rate: float

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)

    def __call__(self, step: int, passes: float) -> float:
        return self.learning_rate

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``Constant(learning_rate)``."""
        return cls(learning_rate)


@dataclass(frozen=True)
class InverseScaling(Schedule):
    """Schedule that divides the rate by a power of the step: ``learning_rate / step ** power``.

    Parameters
    ----------
    learning_rate : float
        Learning rate of the first step.
    power : float, default=0.5

    Examples
    --------
    >>> from daskml_dist.schedules import InverseScaling
    >>> schedule = InverseScaling(0.1)
    >>> round(float(schedule(10, 5.0)), 4)
    0.0316
    """

    name = "invscaling"
    learning_rate: float
    power: float = 0.5

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.power < math.inf:
            raise InvalidParameterError(f"power={self.power!r}: use a finite number >= 0.")

    def __call__(self, step: int, passes: float) -> float:
        # Steps count from 1, so the first rate is `learning_rate` itself.
        return float(self.learning_rate / step**self.power)

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``InverseScaling(learning_rate)``."""
        return cls(learning_rate)


@dataclass(frozen=True)
class Optimal(Schedule):
    """Schedule ``1 / (alpha * (t0 + step - 1))`` (Bottou 2012), scikit-learn's ``"optimal"``.

    Parameters
    ----------
    alpha : float
        Strength of the penalty.
    t0 : float, optional
        By default such that the first learning rate is ``alpha ** -0.25``, scikit-learn's estimate
        of the size of a coefficient.

    Examples
    --------
    >>> from daskml_dist.schedules import Optimal
    >>> schedule = Optimal(alpha=1e-4)
    >>> round(float(schedule(10, 5.0)), 4)
    9.9108
    """

    name = "optimal"
    alpha: float
    t0: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InvalidParameterError(
                f"alpha={self.alpha!r} with the schedule 'optimal': use alpha > 0, or another "
                "learning_rate such as 'invscaling'."
            )
        if self.t0 is not None:
            _check_positive("t0", self.t0)

    def __call__(self, step: int, passes: float) -> float:
        # The rate 1 / (alpha * t) is optimal for an objective that is alpha-strongly convex, as it
        # is with an l2 penalty (Bottou 2012). t0 bounds the first rates: 1 / (alpha * t0) is alpha
        # ** -0.25, which scikit-learn uses as the typical size of a coefficient.
        t0 = self.alpha**-0.75 if self.t0 is None else self.t0
        return float(1 / (self.alpha * (t0 + step - 1)))

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``Optimal(alpha)``."""
        return cls(alpha)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Schedule that multiplies the learning rate by `factor` after each `every` passes.

    Parameters
    ----------
    learning_rate : float
        Learning rate of the first step.
    every : float, default=10
        Number of passes between two reductions.
    factor : float, default=0.5
        Factor of each reduction, above 0 and at most 1.

    Examples
    --------
    >>> from daskml_dist.schedules import StepDecay
    >>> schedule = StepDecay(0.1, every=10)
    >>> round(float(schedule(10, 5.0)), 4)
    0.1
    """

    name = "step"
    learning_rate: float
    every: float = 10
    factor: float = 0.5

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        _check_positive("every", self.every)
        if not 0 < self.factor <= 1:
            raise InvalidParameterError(f"factor={self.factor!r}: use a number > 0 and <= 1.")

    def __call__(self, step: int, passes: float) -> float:
        # A staircase: the exponent is the number of whole periods of `every` passes.
        return float(self.learning_rate * self.factor ** (passes // self.every))

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``StepDecay(learning_rate)``."""
        return cls(learning_rate)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Schedule that falls to `final` along half a cosine (Loshchilov and Hutter 2017).

    Parameters
    ----------
    learning_rate : float
        Learning rate of the first step.
    passes : float, default=20
        Number of passes after which the learning rate stays at `final`.
    final : float, default=0.0
        Last learning rate, from 0 to `learning_rate`.

    Examples
    --------
    >>> from daskml_dist.schedules import Cosine
    >>> schedule = Cosine(0.1, passes=20)
    >>> round(float(schedule(10, 5.0)), 4)
    0.0854
    """

    name = "cosine"
    learning_rate: float
    passes: float = 20
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        _check_positive("passes", self.passes)
        if not 0 <= self.final <= self.learning_rate:
            raise InvalidParameterError(
                f"final={self.final!r}: use a number from 0 to learning_rate."
            )

    def __call__(self, step: int, passes: float) -> float:
        # SGDR without restarts: equation 5 of Loshchilov and Hutter.
        progress = min(passes / self.passes, 1.0)
        fall = (1 + math.cos(math.pi * progress)) / 2
        return self.final + (self.learning_rate - self.final) * fall

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``Cosine(learning_rate, passes=max_iter)``."""
        return cls(learning_rate, passes=max_iter)


@dataclass(frozen=True)
class Warmup(Schedule):
    """Schedule that rises linearly from almost zero to another schedule (Goyal et al. 2017).

    Parameters
    ----------
    schedule : Schedule
        Schedule of the learning rate after the rise.
    passes : float, default=1.0
        Number of passes in which the rate rises.

    Examples
    --------
    >>> from daskml_dist.schedules import Constant, Warmup
    >>> round(float(Warmup(Constant(0.1), passes=2.0)(10, 1.0)), 4)
    0.05
    """

    name = "warmup"
    schedule: Schedule
    passes: float = 1.0

    #: Smallest factor, since a learning rate of exactly 0 would waste the first step.
    _least_factor: ClassVar[float] = 1e-3

    def __post_init__(self) -> None:
        _check_schedule(self.schedule)
        _check_positive("passes", self.passes)

    def __call__(self, step: int, passes: float) -> float:
        # "Gradual warmup" (Goyal et al. 2017, section 2.2). The wrapped schedule runs during the
        # warmup, so that the rate has no jump at its end.
        rise = min(max(passes / self.passes, self._least_factor), 1.0)
        return rise * self.schedule(step, passes)

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``Warmup(Constant(learning_rate))``."""
        return cls(Constant(learning_rate))

    @property
    def scales_with_staleness(self) -> bool:
        """Return whether the wrapped schedule scales with staleness."""
        return self.schedule.scales_with_staleness

    def scale(self, staleness: float) -> float:
        """Return the factor of the wrapped schedule."""
        return self.schedule.scale(staleness)


@dataclass(frozen=True)
class StalenessAware(Schedule):
    """Schedule that divides the rate of a stale gradient by its staleness (Zhang et al. 2016).

    It has no name among the strings of ``learning_rate``: pass the object.

    Parameters
    ----------
    schedule : Schedule
        Learning rate of a fresh gradient.

    Examples
    --------
    >>> from daskml_dist.schedules import Constant, StalenessAware
    >>> schedule = StalenessAware(Constant(0.1))
    >>> round(float(schedule.scale(4)), 4)
    0.25
    """

    name = "staleness_aware"
    schedule: Schedule
    #: The learning rate falls with staleness.
    scales_with_staleness = True

    def __post_init__(self) -> None:
        _check_schedule(self.schedule)

    def __call__(self, step: int, passes: float) -> float:
        return self.schedule(step, passes)

    @classmethod
    def from_defaults(cls, learning_rate: float, alpha: float, max_iter: int) -> Self:
        """Return ``StalenessAware(Constant(learning_rate))``."""
        return cls(Constant(learning_rate))

    def scale(self, staleness: float) -> float:
        """Return ``1 / max(1, staleness)``."""
        # A fresh gradient has staleness 0, which counts as 1.
        return 1 / max(1.0, staleness)


def _check_positive(name: str, value: float) -> None:
    """Raise if a parameter is not finite and above 0."""
    if not 0 < value < math.inf:
        raise InvalidParameterError(f"{name}={value!r}: use a finite number > 0.")


def _check_schedule(schedule: Schedule) -> None:
    """Raise if an object is not a schedule."""
    if not isinstance(schedule, Schedule):
        raise InvalidParameterError(
            f"schedule={schedule!r}: wrap a schedule object, such as Constant(0.01)."
        )


#: Schedules that ``learning_rate`` may name. `StalenessAware` is not among them: it wraps another.
SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (Constant, InverseScaling, Optimal, StepDecay, Cosine, Warmup)
}


def get_schedule(
    learning_rate: float | str | Schedule, *, default: float, alpha: float, max_iter: int
) -> Schedule:
    """Return the schedule for the value of an estimator's ``learning_rate``.

    Parameters
    ----------
    learning_rate : float, str or Schedule
        A number is a constant rate; ``"auto"`` is the constant rate `default`.
    default : float
        Learning rate of the optimizer, for schedules given by name.
    alpha : float
        Strength of the penalty, for ``"optimal"``.
    max_iter : int
        Passes of the fit, for ``"cosine"``.

    Raises
    ------
    InvalidParameterError
        The name is unknown, or a number is not positive and finite.

    Examples
    --------
    >>> from daskml_dist.schedules import get_schedule
    >>> get_schedule('constant', default=0.1, alpha=1e-4, max_iter=20)
    Constant(learning_rate=0.1)
    """
    if isinstance(learning_rate, Schedule):
        return learning_rate
    if isinstance(learning_rate, str):
        if learning_rate == "auto":
            return Constant(default)
        if learning_rate in SCHEDULES:
            return SCHEDULES[learning_rate].from_defaults(default, alpha, max_iter)
    elif isinstance(learning_rate, Real) and 0 < learning_rate < math.inf:
        return Constant(float(learning_rate))
    names = ["auto", *SCHEDULES]
    raise InvalidParameterError(
        f"learning_rate={learning_rate!r}: use a finite number > 0, one of {names}, or a "
        f"schedule object from daskml_dist.schedules.{suggest_nearest(learning_rate, names)}"
    )
