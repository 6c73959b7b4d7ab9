"""Schedules: hand-computed learning rates, staleness, and refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from daskml_dist.errors import InvalidParameterError
from daskml_dist.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    InverseScaling,
    Optimal,
    Schedule,
    StalenessAware,
    StepDecay,
    Warmup,
    get_schedule,
)

DEFAULTS: dict[str, Any] = {"default": 0.1, "alpha": 1e-4, "max_iter": 20}
NAMES = list(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "step", "passes", "expected"),
    [
        (Constant(0.3), 1, 0, 0.3),
        (Constant(0.3), 10**6, 1e4, 0.3),
        (InverseScaling(0.4), 1, 0, 0.4),
        (InverseScaling(0.4), 16, 5, 0.1),
        (InverseScaling(0.4, power=1), 8, 0, 0.05),
        (InverseScaling(0.4, power=0), 8, 0, 0.4),
        (Optimal(0.01, t0=10), 1, 0, 10.0),
        (Optimal(0.01, t0=10), 11, 0, 5.0),
        (Optimal(1e-4), 1, 0, 10.0),  # alpha ** -0.25
        (Optimal(1e-4), 1001, 0, 5.0),  # t0 = alpha ** -0.75 = 1000
        (StepDecay(0.8), 99, 9.99, 0.8),
        (StepDecay(0.8), 99, 10, 0.4),
        (StepDecay(0.8), 99, 29.9, 0.2),
        (StepDecay(0.8, every=0.5, factor=0.1), 1, 1, 0.008),
        (Cosine(0.6), 1, 0, 0.6),
        (Cosine(0.6), 1, 10, 0.3),
        (Cosine(0.6), 1, 20, 0.0),
        (Cosine(0.6), 1, 50, 0.0),
        (Cosine(0.6, passes=4, final=0.2), 1, 2, 0.4),
        (Cosine(0.6, passes=4, final=0.2), 1, 9, 0.2),
        (Warmup(Constant(0.4)), 1, 0.25, 0.1),
        (Warmup(Constant(0.4)), 1, 7, 0.4),
        (Warmup(Constant(0.4), passes=4), 1, 1, 0.1),
        (Warmup(Cosine(0.6, passes=4), passes=4), 1, 2, 0.15),
        (StalenessAware(InverseScaling(0.4)), 16, 5, 0.1),
    ],
)
def test_by_hand(schedule: Schedule, step: int, passes: float, expected: float) -> None:
    rate = schedule(step, passes)
    assert type(rate) is float
    assert rate == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_optimal_is_that_of_scikit_learn() -> None:
    """t0 makes the first rate scikit-learn's typical coefficient, sqrt(1 / sqrt(alpha))."""
    for alpha in (1e-6, 1e-3, 1.0):
        typical = (1 / alpha**0.5) ** 0.5
        t0 = 1 / (typical * alpha)
        for step in (1, 7, 1000):
            assert Optimal(alpha)(step, 0) == pytest.approx(1 / (alpha * (t0 + step - 1)))


@pytest.mark.parametrize("name", NAMES)
def test_named_schedule(name: str) -> None:
    schedule = get_schedule(name, **DEFAULTS)
    assert type(schedule) is SCHEDULES[name]
    assert schedule.name == name
    assert get_schedule(schedule, **DEFAULTS) is schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert type(schedule).__doc__
    rates = [schedule(1 + 10 * p, p) for p in range(21)]
    assert all(rate > 0 for rate in rates[:20])
    after_warmup = rates[1:]
    assert after_warmup == sorted(after_warmup, reverse=True)
    assert max(rates) <= (10 if name == "optimal" else DEFAULTS["default"])
    assert not schedule.scales_with_staleness
    assert schedule.scale(7.0) == 1.0


def test_first_step_of_a_warmup_is_not_wasted() -> None:
    assert 0 < Warmup(Constant(1.0))(1, 0.0) < 0.01


def test_named_schedules_take_the_defaults() -> None:
    assert get_schedule("auto", **DEFAULTS) == Constant(0.1)
    assert get_schedule("cosine", **DEFAULTS) == Cosine(0.1, passes=20)
    assert get_schedule("optimal", **DEFAULTS) == Optimal(1e-4)
    assert get_schedule(0.7, **DEFAULTS) == Constant(0.7)
    assert get_schedule(1, **DEFAULTS) == Constant(1.0)


def test_staleness_divides_the_rate() -> None:
    schedule = StalenessAware(Constant(0.3))
    assert schedule.scales_with_staleness
    assert [schedule.scale(s) for s in (0, 1, 2, 4)] == [1, 1, 0.5, 0.25]
    warm = Warmup(schedule)
    assert warm.scales_with_staleness
    assert warm.scale(4) == 0.25
    assert not Warmup(Constant(0.3)).scales_with_staleness


@pytest.mark.parametrize(
    "wrong", [0, -0.1, 0.0, float("nan"), float("inf"), "quick", "", None, [0.1], Constant]
)
def test_wrong_learning_rate_lists_the_choices(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        get_schedule(wrong, **DEFAULTS)
    assert all(f"'{name}'" in str(caught.value) for name in ["auto", *NAMES])
    assert "learning_rate=" in str(caught.value)


def test_optimal_without_a_penalty_names_the_remedy() -> None:
    with pytest.raises(InvalidParameterError, match=r"alpha > 0.*invscaling"):
        get_schedule("optimal", default=0.1, alpha=0.0, max_iter=5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: Constant(float("inf")),
        lambda: InverseScaling(-1),
        lambda: InverseScaling(0.1, power=-1),
        lambda: Optimal(0.1, t0=0),
        lambda: StepDecay(0),
        lambda: StepDecay(0.1, every=0),
        lambda: StepDecay(0.1, factor=0),
        lambda: StepDecay(0.1, factor=1.5),
        lambda: Cosine(0),
        lambda: Cosine(0.1, passes=0),
        lambda: Cosine(0.1, final=0.2),
        lambda: Cosine(0.1, final=-0.2),
        lambda: Warmup(0.1),  # type: ignore[arg-type]
        lambda: Warmup(Constant(0.1), passes=0),
        lambda: StalenessAware("constant"),  # type: ignore[arg-type]
    ],
)
def test_wrong_parameter(make: Callable[[], Schedule]) -> None:
    with pytest.raises(InvalidParameterError, match=r"use|wrap"):
        make()
