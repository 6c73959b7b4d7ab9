"""Cases: a subject, its rows and the graph that they come from; drawn, checked and replayed.

A case is plain values, so that a failure is shown as a dict and run again by one line::

    python -m tests.contracts.cases "{'subject': ...}"
"""

from __future__ import annotations

import ast
import dataclasses
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import sparse

from tests.contracts.compare import Refusal, attempt, differences, plain
from tests.contracts.graphs import (
    ARRAY_SOURCES,
    ARRAY_STEPS,
    FRAME_SOURCES,
    FRAME_STEPS,
    Context,
    junk,
)
from tests.contracts.inputs import DTYPES, SHAPES, TARGETS, WEIGHTS, make_table
from tests.contracts.subjects import SUBJECTS, Given, Subject

__all__ = ["CONTAINERS", "Y_AS", "Case", "cases", "check", "deliver", "kept"]

#: What X is, and whether it comes from a graph of dataframes or of arrays.
CONTAINERS = {
    "frame": "frame",
    "array of a frame": "frame",
    "array": "array",
    "sparse array": "array",
    "list of delayed": "array",
    "pandas": "memory",
    "NumPy": "memory",
    "CSR": "memory",
    "CSC": "memory",
}
#: How y is passed beside a dataframe.
Y_AS = ("series", "column frame", "array", "name")


@dataclasses.dataclass(frozen=True)
class Case:
    """Plain values that a case follows from."""

    subject: str
    container: str = "frame"
    source: str = "from_pandas"
    steps: tuple[str, ...] = ()
    shape: str = "normal"
    dtype: str = "float64"
    target: str = "int64"
    y_as: str = "series"
    weight: str = "none"
    n_rows: int = 60
    n_blocks: int = 3
    seed: int = 0
    client: bool = False

    def __str__(self) -> str:
        plainest = type(self)(self.subject)
        told = dataclasses.asdict(self).items()
        return str({n: v for n, v in told if n == "subject" or v != getattr(plainest, n)})

    @property
    def of(self) -> Subject:
        """The subject."""
        return SUBJECTS[self.subject]

    @property
    def is_unique(self) -> bool:
        """Whether coefficients follow from the data."""
        enough = self.n_rows >= 40 and self.dtype not in {"bool", "nullable booleans"}
        return SHAPES[self.shape].unique and enough

    @property
    def rtol(self) -> float:
        """How near results in the case's dtype and shape can be, in place of the subject's."""
        if self.dtype in {"float32", "several nullable"}:
            return 2e-3
        return 1e-6 if "float32" in self.target + self.weight else 0.0 if self.is_unique else 1e-5


# --- drawing ---------------------------------------------------------------------------------


@st.composite
def cases(
    draw: Any, *, client: bool = False, subjects: Any = None, container: str | None = None,
    source: str | None = None, step: str | None = None,
) -> Case:  # fmt: skip
    """Cases in which everything fits together; what is given is not drawn."""
    names = [
        name
        for name in (SUBJECTS if subjects is None else subjects)
        if container is None or container in _possible(SUBJECTS[name])
    ]
    name = draw(st.sampled_from(names))
    subject = SUBJECTS[name]
    shape = draw(st.sampled_from(subject.setting.shapes))
    where = container or draw(st.sampled_from(_possible(subject)))
    dtypes = [d for d in DTYPES if _holds(d, shape, where)]
    targets = [t for t in TARGETS if _is_for(t, subject, where)]
    kind = CONTAINERS[where]
    steps = _steps(draw, kind, step)
    if where == "array of a frame" and not _is_ordered(steps):
        where = "frame"  # columns become arrays one by one, which Dask then computes apart
    return Case(
        name,
        where,
        source or draw(st.sampled_from(list(_sources(kind)))),
        steps,
        shape,
        draw(st.sampled_from(dtypes)),
        draw(st.sampled_from(targets)),
        draw(st.sampled_from(_ways_of_y(subject, where, steps))),
        draw(st.sampled_from(list(WEIGHTS) if subject.weighted else ["none"])),
        draw(st.sampled_from([150, 60, 13])),
        draw(st.sampled_from([3, 4, 2, 5, 1])),
        draw(st.integers(0, 10**6)),
        client,
    )


def _sources(kind: str) -> Any:
    return {"frame": FRAME_SOURCES, "array": ARRAY_SOURCES, "memory": ["memory"]}[kind]


def _steps(draw: Any, kind: str, step: str | None) -> tuple[str, ...]:
    table: Any = {"frame": FRAME_STEPS, "array": ARRAY_STEPS, "memory": {}}[kind]
    if not table:
        return ()
    found = draw(st.lists(st.sampled_from(list(table)), max_size=2, unique=True))
    found = [step, *found] if step is not None and step not in found else found
    if kind == "array":
        # Sizes are unknown from a filter on.
        found.sort(key=lambda s: (not table[s].needs_sizes, table[s].drops_junk))
        found.sort(key=lambda s: (table[s].drops_junk and 1) or (not table[s].needs_sizes) * 2)
    return tuple(found)


#: Of NumPy's dtypes, each column the same.
_PLAIN = {"float64", "float32", "int64", "int8", "uint8", "bool", "object"}
_SPARSE = {"sparse array", "CSR", "CSC"}


def _holds(dtype: str, shape: str, container: str) -> bool:
    """Whether a dtype can hold a shape of data in a container."""
    held, data = DTYPES[dtype], SHAPES[shape]
    if container not in {"frame", "array of a frame", "pandas"} and dtype not in _PLAIN:
        return False
    if data.kind == "words":
        return held.numbers if shape == "codes" else held.words
    fits = held.missing or data.kind != "missing"
    return held.numbers and fits and (held.wide or not data.wide)


def _possible(subject: Subject) -> list[str]:
    """Containers that a subject takes."""
    words = any(SHAPES[shape].kind == "words" for shape in subject.setting.shapes)
    trained = hasattr(subject.model, "memory_budget")
    return [
        container
        for container in CONTAINERS
        if (container in ("frame", "pandas") or not subject.needs_names)
        and not (container in _SPARSE and words)
        and not (container == "list of delayed" and not trained)
    ]


def _is_for(target: str, subject: Subject, container: str) -> bool:
    kind = TARGETS[target]
    if subject.is_metric and "score" in subject.name and subject.columns(2) == ["p1"]:
        return kind.kind in subject.targets and kind.n_classes == 2
    return kind.kind in subject.targets


def _ways_of_y(subject: Subject, container: str, steps: tuple[str, ...]) -> list[str]:
    if container != "frame":
        return ["series"]
    by_name = not subject.is_metric and hasattr(subject.model, "memory_budget")
    possible = {"name": by_name, "array": _is_ordered(steps)}
    return [way for way in Y_AS if possible.get(way, True)]


# --- delivery --------------------------------------------------------------------------------


def deliver(case: Case, folder: Path) -> Given:
    """What a user would pass."""
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


def _of_frames(case: Case, table: pd.DataFrame, context: Context) -> Given:
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
    return Given(X, y, None if case.weight == "none" else w, row, _is_ordered(case.steps))


def _is_ordered(steps: tuple[str, ...]) -> bool:
    """Whether rows of a frame come in the same order each time."""
    ordered = True
    for step in steps:
        ordered = step == "persisted" or (ordered and FRAME_STEPS[step].ordered)
    return ordered


def _of_arrays(case: Case, table: pd.DataFrame, context: Context) -> Given:
    held = _arrays_of(case, table)
    source = ARRAY_SOURCES[case.source]
    arrays = {name: source(values, context) for name, values in held.items()}
    for step in case.steps:
        arrays = ARRAY_STEPS[step].make(arrays, context)
    if case.container == "sparse array" and arrays["X"].ndim == 2:
        whole = arrays["X"].rechunk({1: -1}) if arrays["X"].numblocks[1] > 1 else arrays["X"]
        arrays["X"] = whole.map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 0)))
    if case.container == "list of delayed":
        arrays = {name: list(array.to_delayed().ravel()) for name, array in arrays.items()}
    return Given(arrays["X"], arrays["y"], arrays.get("w"), arrays["row"])


def _arrays_of(case: Case, table: pd.DataFrame) -> dict[str, Any]:
    names = _columns(case)
    X = np.column_stack([plain(table[name]) for name in names])
    if len(names) == 1 and case.of.is_metric:
        X = plain(table[names[0]])
    held = {"X": X, "y": plain(table["y"]), "row": table["row"].to_numpy()}
    if case.weight != "none":
        held["w"] = plain(table["w"])
    return held


def _of_memory(case: Case, table: pd.DataFrame) -> Given:
    if case.container == "pandas":
        names = _columns(case)
        X = table[names[0]] if case.of.is_metric and len(names) == 1 else table[names]
        w = None if case.weight == "none" else table["w"]
        return Given(X, table["y"], w, table["row"])
    held = _arrays_of(case, table)
    kinds = {"CSR": sparse.csr_array, "CSC": sparse.csc_matrix}
    if case.container in kinds and held["X"].ndim == 2:
        held["X"] = kinds[case.container](held["X"])
    return Given(held["X"], held["y"], held.get("w"), held["row"])


# --- checking --------------------------------------------------------------------------------


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="contracts-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(case: Case) -> list[str]:
    """What differs between the rows of a collection and the same rows in memory.

    Returns
    -------
    list of str
        A line for each difference, beginning with the two sides.
    """
    with _folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = deliver(case, folder)
        held = attempt(given.held)
        if isinstance(held, Refusal):
            return []  # Dask itself cannot make these rows
        lines = [f"graph: {line}" for line in _wrong_rows(case, held)]
        ours = attempt(case.of.results, held)
        if CONTAINERS[case.container] != "memory":
            lazily = attempt(case.of.results, given)
            lines += [f"lazily: {line}" for line in _compare(case, lazily, ours, given)]
        if case.of.twin_results is not None:
            theirs = attempt(case.of.twin_results, held)
            lines += [f"scikit-learn: {line}" for line in _compare_twin(case, ours, theirs)]
        elif isinstance(ours, Refusal) and case.n_rows > 40:
            lines.append(f"in memory: {ours}")
        return lines


def _wrong_rows(case: Case, held: Given) -> list[str]:
    """Rows that the graph should have delivered and has not: a defect of the graph, or of Dask."""
    found = np.sort(np.concatenate(held.row) if isinstance(held.row, list) else held.row)
    if np.array_equal(found, np.arange(case.n_rows)):
        return []
    return [f"{len(found)} rows of {case.n_rows}: {found[:10]}"]


def _compare(case: Case, lazily: Any, ours: Any, given: Given) -> list[str]:
    if isinstance(lazily, Refusal) and isinstance(ours, Refusal):
        return [] if lazily.is_ours else [f"raises {lazily}; in memory: {ours}"]
    if isinstance(lazily, Refusal):
        return [] if _is_known(lazily) else [f"raises {lazily}"]
    if isinstance(ours, Refusal):
        return [] if _is_known(ours) else [f"no error; in memory: {ours}"]
    both = [kept(case, results) for results in (lazily, ours)]
    if not given.ordered:
        both = [{name: _sorted(name, value) for name, value in r.items()} for r in both]
    return differences(*both, max(case.of.setting.rtol, case.rtol), whole=True)


def _sorted(name: str, value: Any) -> Any:
    """Results of rows, each column by itself in order: what does not tell of the rows' order."""
    if not name.endswith(")") or np.ndim(value) == 0:
        return value
    return np.sort(value.astype(str) if value.dtype == object else value, axis=0)


def _compare_twin(case: Case, ours: Any, theirs: Any) -> list[str]:
    if isinstance(theirs, Refusal):
        return []
    if isinstance(ours, Refusal):
        return [] if _is_known(ours) else [f"raises {ours}"]
    rtol = max(case.of.setting.twin_rtol, case.rtol)
    return differences(kept(case, ours), kept(case, theirs), rtol, whole=False)


#: What scikit-learn's transformers refuse of rows in memory and ours take lazily, and the other way
#: round; and what cannot be aligned.
_KNOWN = ("NAType", "pandas.NA", "takes no sparse chunks", "rows cannot be aligned")


def _is_known(refusal: Refusal) -> bool:
    return any(text in str(refusal) for text in _KNOWN)


def kept(case: Case, results: dict[str, Any]) -> dict[str, Any]:
    """The results that follow from the rows."""
    if case.is_unique or "transform()" in results:
        return results
    return {name: value for name, value in results.items() if name.endswith(")")}


def replay(told: str) -> list[str]:
    """Check a case that was told as a dict, on a cluster of its own where it had one."""
    case = Case(**ast.literal_eval(told))
    if not case.client:
        return check(case)
    from distributed import Client

    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0"):
        return check(case)


if __name__ == "__main__":
    print("\n".join(replay(sys.argv[1]) or ["no difference"]))
