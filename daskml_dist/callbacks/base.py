"""Base class of callbacks that hold the state of a fit, and helpers for records of passes."""

from __future__ import annotations

from typing import Any, Self

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject


class FitCallback(ParameterObject):
    """Base class of callbacks that hold the state of one fit, such as an open file.

    Estimators are cloned and pickled with their callbacks: copies have the parameters but not the
    state (attributes that begin with an underscore). Two concurrent fits need two callbacks.
    """

    # Open files and connections cannot be copied, and a search fits many clones of an estimator.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # Copies share the parameters: a trial belongs to its Optuna study, and rows to score may be
    # large.
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(**self.__getstate__())

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.__getstate__().items())
        return f"{type(self).__name__}({arguments})"


def find_fit_facts(run: Any) -> dict[str, Any]:
    """Return the facts that loggers write at the start of a fit, without those that are None."""
    names = ("policy_name", "n_lanes", "n_servers", "max_iter")
    facts = {name: getattr(run, name) for name in names}
    return {name: value for name, value in facts.items() if value is not None}


def is_more_better(name: str) -> bool:
    """Return whether larger values of a measure are better: True for scores, False for losses."""
    # EvalMonitor adds suffixes to its keys if there are several sets of rows or scores.
    return name == "val_score" or name.startswith("eval_score")


def find_numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the measured numbers of a record, without the number of the pass.

    None means "not measured"; a list, such as counts by staleness, is not one curve.
    """
    return {
        key: value
        for key, value in record.items()
        if not (key == "pass" or value is None or isinstance(value, list))
    }


def find_measure(record: dict[str, Any], name: str, callback: str) -> float:
    """Return the measure `name` of a pass's record; raise for `callback` if there is none."""
    value = record.get(name)
    if value is None or isinstance(value, str | list):
        raise InvalidParameterError(
            f"{callback}(monitor={name!r}): the fit records no such measure. Choose one of "
            f"{', '.join(find_numbers(record))}; val_score needs early_stopping=True, and "
            "eval_score fit(..., eval_set=(X, y))."
        )
    return float(value)
