"""Settings of the drawn tests, and how a failure is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, settings

from tests.contracts.compare import Refusal, attempt

__all__ = ["drawn", "fail_simplest", "lines_of", "simplest", "told", "what"]

#: One seed and no memory of other runs; no search for a smaller case, since `simplest` soon ends.
drawn = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Check = Callable[[Any], list[str]]


def fail_simplest(case: Any, check: Check, module: str) -> NoReturn:
    """Fail with the simplest case that fails as this one, and the line that runs it again."""
    raise AssertionError(told(simplest(case, check), check, module))


def told(case: Any, check: Check, module: str) -> str:
    """The line that runs a case again, and what differs in it."""
    return "\n    ".join([f'python -m {module} "{case}"', *lines_of(case, check)])


def simplest(case: Any, check: Check) -> Any:
    """The case with as many fields at their defaults as leave the first difference where it is."""
    differs = what(lines_of(case, check))
    if not differs:
        return case  # not each time
    for field in dataclasses.fields(case):
        if field.default is dataclasses.MISSING or getattr(case, field.name) == field.default:
            continue
        for value in _plainer(getattr(case, field.name), field.default):
            other = dataclasses.replace(case, **{field.name: value})
            if differs & what(lines_of(other, check)):
                case = other
                break
    return case


def _plainer(value: Any, default: Any) -> list[Any]:
    """Plainer values, the plainest first; of steps, fewer."""
    return [default, *((step,) for step in value)] if isinstance(value, tuple) else [default]


def what(lines: list[str]) -> set[str]:
    """What differs, without numbers."""
    return {":".join(line.split(":")[:2])[:60] for line in lines}


def lines_of(case: Any, check: Check, *, all_errors: bool = False) -> list[str]:
    """What differs; the error itself, or nothing, where the values do not go together."""
    lines = attempt(check, case)
    if isinstance(lines, Refusal):
        return [f"the harness: {lines}"] if all_errors else []
    return lines
