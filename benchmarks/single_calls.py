"""One row in every call of every estimator with a scikit-learn equivalent, compared with it.

The tests of exports find the estimators automatically; run it where `tests/` is.
"""

from __future__ import annotations

import copy
import itertools
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._common import markdown
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.inference import to_sklearn
from daskml_dist.tree import DecisionTreeClassifier, DecisionTreeRegressor

METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform",
    "score_samples", "inverse_transform",
)  # fmt: skip
#: Number of alternating rounds, and seconds of each call in one; the smallest mean counts.
ROUNDS, SECONDS = 5, 0.0015
#: A call counts as slower at this multiple of scikit-learn's time: smaller differences are noise.
SLOWER = 1.03
Figures = tuple[str, str, str, float, float]


def run(tiny: bool = False) -> str:
    """Return both tables."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        models = itertools.islice(_models(), 2 if tiny else None)
        figures = [one for name, model, rows in models for one in _calls(name, model, rows)]
    groups = defaultdict(list)
    for one in figures:
        groups[one[1], one[2]].append(one[3:])
    summary = [[f"`{method}`", kind, *_of_group(pairs)] for (method, kind), pairs in groups.items()]
    slower = [
        [name, f"`{method}`", kind, f"{ours:.1f}", f"{theirs:.1f}"]
        for name, method, kind, ours, theirs in figures
        if ours > SLOWER * theirs
    ]
    columns = [
        "call",
        "input",
        "estimators",
        "daskml_dist",
        "scikit-learn",
        "scikit-learn / daskml_dist",
        "slower",
    ]
    return "\n\n".join([
        markdown("Calls with one row, medians in us", columns, summary),
        markdown(f"Slower than scikit-learn's by more than {SLOWER - 1:.0%}, us",
                 ["", "call", "input", "daskml_dist", "scikit-learn"], slower),
    ])  # fmt: skip


def _of_group(pairs: list[tuple[float, float]]) -> list[str]:
    ours, theirs = np.array(pairs).T
    times = theirs / ours
    return [
        str(len(pairs)), f"{np.median(ours):.1f}", f"{np.median(theirs):.1f}",
        f"{np.median(times):.1f} ({times.min():.2f} to {times.max():.0f})",
        str(int((ours > SLOWER * theirs).sum())),
    ]  # fmt: skip


def _models() -> Iterator[tuple[str, Any, Any]]:
    """Yield fitted estimators in their settings, and rows for each."""
    from tests.inference.test_to_sklearn import MODELS, OTHERS, Y, fitted
    from tests.inference.test_to_sklearn import X as rows

    for name in (*MODELS, *OTHERS):
        yield name, *fitted(name)
    trees = DecisionTreeClassifier(max_depth=4), RandomForestClassifier(5, max_depth=4)
    for model in (*trees, HistGradientBoostingClassifier(max_iter=5)):
        yield type(model).__name__, model.fit(rows, Y > 0), rows
    yield "DecisionTreeRegressor", DecisionTreeRegressor(max_depth=4).fit(rows, Y), rows


def _calls(name: str, model: Any, rows: Any) -> Iterator[Figures]:
    for kind, one, fitted in _kinds(model, rows):
        twin = to_sklearn(fitted)
        for method in METHODS:
            if not (hasattr(fitted, method) and hasattr(twin, method)):
                continue
            try:
                row = one if method != "inverse_transform" else fitted.transform(one)
                calls = [partial(getattr(each, method), row) for each in (fitted, twin)]
                yield name, method, kind, *_in_turn(calls)
            except (ValueError, TypeError, AttributeError, NotImplementedError):
                continue  # these rows have no inverse, in scikit-learn neither


def _kinds(model: Any, rows: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield a row in an array and in a frame, with a model for each; documents in a list."""
    if isinstance(rows, pd.DataFrame):
        yield "frame", rows[:1], model
        if not hasattr(model, "steps") and not hasattr(model, "transformers"):
            yield "array", rows[:1].to_numpy(), _without_names(model)
    elif isinstance(rows, np.ndarray):
        yield "array", rows[:1], model
        yield "frame", pd.DataFrame(rows[:1]), model
    else:
        yield "list", list(rows[:1]), model


def _without_names(model: Any) -> Any:
    """Return the same fitted model, as if it had been fitted to an array."""
    nameless = copy.copy(model)
    vars(nameless).pop("feature_names_in_", None)
    return nameless


def _in_turn(calls: list[Callable[[], Any]]) -> list[float]:
    """Return the microseconds of each call, measured in turn."""
    times = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        times.append(max(3, int(SECONDS / (time.perf_counter() - start))))
    best = [np.inf] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(times[i]):
                call()
            best[i] = min(best[i], 1e6 * (time.perf_counter() - start) / times[i])
    return best
