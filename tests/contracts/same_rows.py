"""The same rows from a collection and in memory must give the same results.

A failing case is printed as a dict, and can be repeated by one command::

    python -m tests.contracts.same_rows "{'subject': ...}"
"""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from tests.contracts.cases import CONTAINERS, Case, is_ordered
from tests.contracts.compare import Refusal, attempt, differences, plain
from tests.contracts.graphs import (
    ARRAY_SOURCES,
    ARRAY_STEPS,
    FRAME_SOURCES,
    FRAME_STEPS,
    Context,
    junk,
)
from tests.contracts.inputs import TARGETS, make_table
from tests.contracts.results import UserInput

__all__ = ["check", "deliver", "select_determined"]


# --- delivery --------------------------------------------------------------------------------


def deliver(case: Case, folder: Path) -> UserInput:
    """Return a user's input."""
    table = make_table(
        case.shape, case.dtype, case.target, case.weight, case.n_rows, case.seed
    )  # fmt: skip
    kind = CONTAINERS[case.container]
    context = Context(case.n_blocks, case.seed, folder)
    if kind == "frame":
        if any(FRAME_STEPS[step].drops_junk for step in case.steps):
            table = junk(table, case.seed)
        return _of_frames(case, table, context)
    if kind == "array":
        if any(ARRAY_STEPS[step].drops_junk for step in case.steps):
            table = junk(table, case.seed)
        return _of_arrays(case, table, context)
    return _of_memory(case, table)


def _columns(case: Case) -> list[str]:
    return case.of.columns(max(TARGETS[case.target].n_classes, 2))


def _of_frames(case: Case, table: pd.DataFrame, context: Context) -> UserInput:
    frame = FRAME_SOURCES[case.source](table, context)
    for step in case.steps:
        frame = FRAME_STEPS[step].make(frame, context)
    names = _columns(case)
    X, y, w, row = frame[names], frame["y"], frame["w"], frame["row"]
    if case.container == "array of a frame":
        X, y, w, row = (part.to_dask_array() for part in (X, y, w, row))
    elif case.y_as == "column frame":
        y = frame[["y"]]
    elif case.y_as == "array":
        y = y.to_dask_array()
    elif case.y_as == "name":
        X, y = frame[[*names, "y"]], "y"
    if case.of.is_metric and len(names) == 1 and case.container == "frame":
        X = X[names[0]]
    w = None if case.weight == "none" else w
    return UserInput(X, y, w, row, is_ordered(case.steps), whole=context.persisted)


def _of_arrays(case: Case, table: pd.DataFrame, context: Context) -> UserInput:
    arrays_of_case = _arrays_of(case, table)
    source = ARRAY_SOURCES[case.source]
    arrays = {name: source(values, context) for name, values in arrays_of_case.items()}
    for step in case.steps:
        arrays = ARRAY_STEPS[step].make(arrays, context)
    if case.container != "array" and arrays["X"].ndim == 2 and arrays["X"].numblocks[1] > 1:
        arrays["X"] = arrays["X"].rechunk({1: -1})
    if case.container == "sparse array":
        meta = sparse.csr_array((0, 0), dtype=arrays["X"].dtype)
        arrays["X"] = arrays["X"].map_blocks(sparse.csr_array, meta=meta)
    whole = [arrays, context.persisted]
    if case.container == "list of delayed":
        arrays = {name: list(array.to_delayed().ravel()) for name, array in arrays.items()}
    return UserInput(arrays["X"], arrays["y"], arrays.get("w"), arrays["row"], whole=whole)


def _arrays_of(case: Case, table: pd.DataFrame) -> dict[str, Any]:
    names = _columns(case)
    X = np.column_stack([plain(table[name]) for name in names])
    if len(names) == 1 and case.of.is_metric:
        X = plain(table[names[0]])
    arrays = {"X": X, "y": plain(table["y"]), "row": table["row"].to_numpy()}
    if case.weight != "none":
        arrays["w"] = plain(table["w"])
    return arrays


def _of_memory(case: Case, table: pd.DataFrame) -> UserInput:
    if case.container == "pandas":
        names = _columns(case)
        X = table[names[0]] if case.of.is_metric and len(names) == 1 else table[names]
        w = None if case.weight == "none" else table["w"]
        return UserInput(X, table["y"], w, table["row"])
    arrays = _arrays_of(case, table)
    kinds = {"CSR": sparse.csr_array, "CSC": sparse.csc_matrix}
    if case.container in kinds and arrays["X"].ndim == 2:
        arrays["X"] = kinds[case.container](arrays["X"])
    return UserInput(arrays["X"], arrays["y"], arrays.get("w"), arrays["row"])


# --- checking --------------------------------------------------------------------------------


def check(case: Case) -> list[str]:
    """Return the differences between rows of a collection and the same rows in memory.

    Returns
    -------
    list of str
        One line for each difference, beginning with the two sides.
    """
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        user_input = deliver(case, Path(folder))
        in_memory = attempt(user_input.in_memory)
        if isinstance(in_memory, Refusal):
            return []  # Dask itself cannot compute these rows
        lines = [f"graph: {line}" for line in _wrong_rows(case, in_memory)]
        ours = attempt(case.of.results, in_memory)
        if CONTAINERS[case.container] != "memory":
            lazily = attempt(case.of.results, user_input)
            lines += [f"lazily: {line}" for line in _compare(case, lazily, ours, user_input)]
        if case.of.twin_results is not None and _has_twin(case, in_memory):
            with warnings.catch_warnings():
                # A division by zero makes the result useless, for example the weight of an empty
                # class.
                warnings.simplefilter("error", RuntimeWarning)
                theirs = attempt(case.of.twin_results, in_memory)
            lines += [f"scikit-learn: {line}" for line in _compare_twin(case, ours, theirs)]
        elif isinstance(ours, Refusal) and case.n_rows > 40:
            # It is right to refuse what scikit-learn refuses even without weights.
            twin = case.of.twin_results
            if twin is None or not isinstance(attempt(twin, replace(in_memory, w=None)), Refusal):
                lines.append(f"in memory: {ours}")
        return lines


def _has_twin(case: Case, in_memory: UserInput) -> bool:
    if case.subject == "PCA" and case.container in ("CSR", "CSC"):
        return False  # scikit-learn's ARPACK does not find the last component of sparse rows
    if case.subject == "RidgeCV 1" and case.shape == "far":
        # Without an intercept scikit-learn's coefficients have a relative error of 2e-6, ours of
        # 1e-12 (test_columns_far_from_zero_keep_their_precision).
        return False
    if case.weight == "none":
        return True
    if case.of.name == "KMeans" and not np.all(np.asarray(plain(in_memory.w), float)):
        return False  # its empty cluster moves to a row of weight 0, and stays empty
    return case.of.setting.twin_is_weighted and not _has_class_without_weight(case, in_memory)


def _has_class_without_weight(case: Case, in_memory: UserInput) -> bool:
    """Return whether a class has no weight: its intercept has no optimum, but falls forever."""
    if "classes" not in case.of.targets or case.of.is_metric:
        return False
    weight, labels = (
        np.ravel(np.asarray(plain(in_memory.w), float)),
        np.ravel(np.asarray(plain(in_memory.y))),
    )
    sums = pd.Series(weight).groupby(labels).sum()
    return bool((sums == 0).any())


def _wrong_rows(case: Case, in_memory: UserInput) -> list[str]:
    """Return rows that the graph should have delivered but did not: a defect of it, or of Dask."""
    found = np.sort(
        np.concatenate(in_memory.row) if isinstance(in_memory.row, list) else in_memory.row
    )
    if np.array_equal(found, np.arange(case.n_rows)):
        return []
    return [f"{len(found)} rows of {case.n_rows}: {found[:10]}"]


def _compare(case: Case, lazily: Any, ours: Any, user_input: UserInput) -> list[str]:
    if isinstance(lazily, Refusal) and isinstance(ours, Refusal):
        return [] if lazily.is_ours else [f"raises {lazily}; in memory: {ours}"]
    if isinstance(lazily, Refusal):
        return [] if _is_known(lazily) else [f"raises {lazily}"]
    if isinstance(ours, Refusal):
        return [] if _is_known(ours) else [f"no error; in memory: {ours}"]
    if case.container == "list of delayed" and "transform()" in ours and "transform()" in lazily:
        # The dtype of delayed blocks is unknown before they are computed: float64 is declared and
        # returned.
        lazily = {**lazily, "transform()": lazily["transform()"].astype(ours["transform()"].dtype)}
    both = [select_determined(case, results) for results in (lazily, ours)]
    if not user_input.ordered:
        both = [{name: _sorted(name, value) for name, value in r.items()} for r in both]
    return differences(*both, max(case.of.setting.rtol, case.rtol), whole=True)


def _sorted(name: str, value: Any) -> Any:
    """Return results of rows with each column sorted, if the order of rows is not defined."""
    if not (name.endswith(")") or name == "labels_") or np.ndim(value) == 0:
        return value
    return np.sort(value.astype(str) if value.dtype == object else value, axis=0)


def _compare_twin(case: Case, ours: Any, theirs: Any) -> list[str]:
    if isinstance(theirs, Refusal):
        return []
    if isinstance(ours, Refusal):
        return [] if _is_known(ours) else [f"raises {ours}"]
    if case.of.name.startswith("MLP") and ours["loss_"] < (1 - 1e-5) * theirs["loss_"]:
        return []  # scikit-learn has stopped early, by a loss on which both agree
    # The peer gets float64 rows.
    rtol = max(case.of.setting.twin_rtol, case.rtol, 1e-2 if case.dtype == "float32" else 0.0)
    return differences(
        select_determined(case, ours), select_determined(case, theirs), rtol, whole=False
    )


#: Inputs that scikit-learn's transformers refuse for rows in memory but ours accept lazily, and
#: vice versa; and inputs that cannot be aligned.
_KNOWN = (
    "NAType",
    "pandas.NA",
    "value of NA",
    "does not accept sparse chunks",
    "needs dense rows",
    "trees need dense rows",
    "rows cannot be aligned",
    "Pass the same rows in both",
    "Pass the same rows in each",
)


def _is_known(refusal: Refusal) -> bool:
    return any(text in str(refusal) for text in _KNOWN)


def select_determined(case: Case, results: dict[str, Any]) -> dict[str, Any]:
    """Return the results that the rows determine."""
    if _has_tie(results):
        results = {
            n: v for n, v in results.items() if n not in {"predict()", "score()", "metric()"}
        }
    if case.is_unique or "transform()" in results:
        return results
    return {name: value for name, value in results.items() if name.endswith(")")}


def _has_tie(results: dict[str, Any]) -> bool:
    """Return whether rounding decides between two classes for some row."""
    if "predict_proba()" not in results:
        return False
    ordered = np.sort(results["predict_proba()"], axis=1)
    return bool((ordered[:, -1] - ordered[:, -2] < 1e-9).any())


def replay(text: str) -> list[str]:
    """Check a case given as a dict, on a new cluster if it had one."""
    case = Case(**ast.literal_eval(text))
    if not case.client:
        return check(case)
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0"):
        return check(case)


if __name__ == "__main__":
    print("\n".join(replay(sys.argv[1]) or ["no difference"]))
