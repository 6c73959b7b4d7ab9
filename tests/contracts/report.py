"""Settings of the property tests, and the report of a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, settings

from tests.contracts.compare import Refusal, attempt

__all__ = ["describe_case", "drawn", "fail_simplest", "lines_of", "simplest", "what"]

#: A fixed seed and no stored runs; no search for a smaller case, since `simplest` does that.
drawn = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

Check = Callable[[Any], list[str]]


def fail_simplest(case: Any, check: Check, module: str) -> NoReturn:
    """Fail with the simplest case that fails in the same way, and the command that repeats it."""
    raise AssertionError(describe_case(simplest(case, check), check, module))


def describe_case(case: Any, check: Check, module: str) -> str:
    """Return the command that repeats a case, and its differences."""
    return "\n    ".join([f'python -m {module} "{case}"', *lines_of(case, check)])


def simplest(case: Any, check: Check) -> Any:
    """Return the case with as many default fields as possible and the same first difference."""
    differs = what(lines_of(case, check))
    if not differs:
        return case  # the failure does not occur each time
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
    """Return simpler values, the simplest first; for steps, fewer steps."""
    return [default, *((step,) for step in value)] if isinstance(value, tuple) else [default]


def what(lines: list[str]) -> set[str]:
    """Return the differences without numbers."""
    return {":".join(line.split(":")[:2])[:60] for line in lines}


def lines_of(case: Any, check: Check, *, all_errors: bool = False) -> list[str]:
    """Return the differences; an error, or nothing if the values are incompatible, counts too."""
    lines = attempt(check, case)
    if isinstance(lines, Refusal):
        return [f"the harness: {lines}"] if all_errors else []
    return lines
