"""Columns that differ from those of the fit: refused by all methods, for all kinds of frames."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from sklearn.base import clone

from tests.contracts.compare import attempt
from tests.contracts.inputs import FEATURES, TARGETS, make_table
from tests.contracts.subjects import SUBJECTS, Subject

__all__ = ["CHANGES", "FRAMES", "Other", "check", "subjects"]

#: Changes of the columns.
CHANGES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "in another order": lambda X: X[list(X.columns[::-1])],
    "renamed": lambda X: X.rename(columns={FEATURES[0]: "other"}),
    "missing": lambda X: X.drop(columns=FEATURES[0]),
    "one more": lambda X: X.assign(more=X[FEATURES[0]]),
}
FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda X: X,
    "dask": lambda X: dd.from_pandas(X, npartitions=2),
}
METHODS = ("predict", "predict_proba", "decision_function", "transform", "score")


@dataclass(frozen=True)
class Other:
    """A subject, and its input after a fit on pandas."""

    subject: str
    change: str = "in another order"
    frame: str = "dask"


def subjects() -> list[str]:
    """Return the subjects that are fitted to all columns of a frame."""
    return [n for n, s in SUBJECTS.items() if s.model is not None and not s.needs_names]


@cache
def _fitted(name: str) -> tuple[Any, pd.DataFrame]:
    """Return a fitted subject, and its rows."""
    subject = SUBJECTS[name]
    table = _rows(subject)
    return clone(subject.model).fit(table[FEATURES], table["y"]), table


def _rows(subject: Subject) -> pd.DataFrame:
    shape = subject.setting.shapes[0]
    dtype = "str" if shape == "words" else "float64"
    target = next(t for t, kind in TARGETS.items() if kind.kind in subject.targets)
    return make_table(shape, dtype, target, "none", 40, 0)


def check(case: Other) -> list[str]:
    """Return the methods that accept the columns without an error, one line each."""
    to_frame = FRAMES[case.frame]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, table = _fitted(case.subject)
        X = to_frame(CHANGES[case.change](table[FEATURES]))
        y = (to_frame(table[["y"]])["y"],)
        return [
            line
            for method in METHODS
            if hasattr(model, method)
            and (line := _line(method, attempt(_call, model, method, X, *y)))
        ]


def _call(model: Any, method: str, X: Any, y: Any) -> Any:
    found = model.score(X, y) if method == "score" else getattr(model, method)(X)
    return dask.compute(found)


def _line(method: str, found: Any) -> str:
    if isinstance(getattr(found, "error", None), ValueError):
        return ""
    return f"{method}: {found if hasattr(found, 'error') else 'no error'}"


if __name__ == "__main__":
    print("\n".join(check(Other(**ast.literal_eval(sys.argv[1]))) or ["no difference"]))
