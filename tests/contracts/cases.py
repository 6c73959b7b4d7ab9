"""Cases: a subject, its rows and the graph that they come from, as plain values."""

from __future__ import annotations

import dataclasses
import sys
from random import Random
from typing import Any

import numpy as np
import pytest
from sklearn.utils import get_tags

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

from hypothesis import strategies as st

from tests.contracts.graphs import ARRAY_SOURCES, ARRAY_STEPS, FRAME_SOURCES, FRAME_STEPS
from tests.contracts.inputs import DTYPES, SHAPES, TARGETS, WEIGHTS
from tests.contracts.subjects import SUBJECTS, Subject

__all__ = ["CONTAINERS", "Y_AS", "Case", "cases", "is_ordered"]

#: Type of X, and whether it comes from a graph of dataframes or of arrays.
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
#: How y is passed with a dataframe.
Y_AS = ("series", "column frame", "array", "name")


@dataclasses.dataclass(frozen=True)
class Case:
    """Plain values that determine a case."""

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
        fields = dataclasses.asdict(self).items()
        return str({n: v for n, v in fields if n == "subject" or v != getattr(plainest, n)})

    @property
    def of(self) -> Subject:
        """Return the subject."""
        return SUBJECTS[self.subject]

    @property
    def is_unique(self) -> bool:
        """Return whether the data determine the coefficients."""
        enough = self.n_rows >= 40 and self.dtype not in {"bool", "nullable booleans"}
        return SHAPES[self.shape].unique and self.of.setting.unique and enough

    @property
    def rtol(self) -> float:
        """Return the tolerance for the case's dtype and shape, instead of the subject's."""
        if self.dtype in {"float32", "several nullable"}:
            return 2e-3 if self.of.setting.rtol < 1e-3 else 1e-2
        return 1e-6 if "float32" in self.target + self.weight else 0.0 if self.is_unique else 1e-5


# --- drawing ---------------------------------------------------------------------------------


@st.composite
def cases(draw: Any, *, subjects: Any = None, client: bool = False, **options: str) -> Case:
    """Return cases whose parts are compatible.

    Parameters
    ----------
    subjects : iterable of str, optional
        Subjects to draw from.
    client : bool, default=False
        Whether there will be a client.
    **given : str
        Values of ``container``, ``source`` and ``step`` that are not drawn.
    """
    # Everything is drawn from one number: hypothesis would try small changes of a case, and simple
    # cases first, but as many different cases as possible are wanted.
    number = draw(st.integers(0, 2**32))
    return _drawn(Random(f"{number} {options}"), list(subjects or SUBJECTS), client, **options)


def _drawn(
    rng: Random,
    names: list[str],
    client: bool,
    container: str | None = None,
    source: str | None = None,
    step: str | None = None,
) -> Case:
    possible = [n for n in names if container is None or container in _containers(SUBJECTS[n])]
    name = rng.choice(possible)
    subject = SUBJECTS[name]
    where = container or rng.choice(_containers(subject))
    shape = rng.choice(subject.setting.shapes)
    steps = _steps(rng, CONTAINERS[where], step)
    if client and sys.version_info < (3, 12):
        # With a lock in Dask's cached properties, graphs that need divisions deadlock.
        steps = tuple(s for s in steps if s not in {"sorted", "indexed", "sorted by target"})
    if where == "array of a frame" and not is_ordered(steps):
        where = "frame"  # columns become arrays one by one, which Dask then computes separately
    if where == "array of a frame":
        # Dask makes no computable array from such a frame.
        steps = tuple(s for s in steps if s != "parts aliased")
    return Case(
        name,
        where,
        source or rng.choice(_sources(where)),
        steps,
        shape,
        rng.choice([d for d in DTYPES if _holds(d, shape, where)]),
        rng.choice([t for t in TARGETS if _is_for(t, subject, where)]),
        rng.choice(_ways_of_y(subject, where, steps)),
        rng.choice(list(WEIGHTS)) if subject.weighted else "none",
        rng.choice([150, 60, 13] if subject.setting.is_exact else [150, 60]),
        rng.choice([1, 2, 3, 4, 5]),
        rng.randrange(1_000),
        client,
    )


def _sources(container: str) -> list[str]:
    kind = CONTAINERS[container]
    table: Any = {"frame": FRAME_SOURCES, "array": ARRAY_SOURCES, "memory": ["memory"]}[kind]
    # Dask makes no computable array from such a frame.
    return [s for s in table if container != "array of a frame" or "unverified" not in s]


def _steps(rng: Random, kind: str, step: str | None) -> tuple[str, ...]:
    table: Any = {"frame": FRAME_STEPS, "array": ARRAY_STEPS, "memory": {}}[kind]
    found = rng.sample(list(table), rng.randrange(3)) if table else []
    if step is not None and step not in found:
        found.insert(rng.randrange(len(found) + 1), step)
    if kind == "array":
        # After a filter, sizes are unknown.
        found.sort(key=lambda s: 2 * (not table[s].needs_sizes) + table[s].drops_junk)
    return tuple(found)


def is_ordered(steps: tuple[str, ...]) -> bool:
    """Return whether rows of a frame come in the same order each time."""
    ordered = True
    for step in steps:
        frame_step = FRAME_STEPS[step]
        ordered = frame_step.persists or (ordered and frame_step.ordered)
    return ordered


#: NumPy dtypes, the same for each column.
_PLAIN = {"float64", "float32", "int64", "int8", "uint8", "bool", "object"}
_SPARSE = {"sparse array", "CSR", "CSC"}


def _holds(dtype: str, shape: str, container: str) -> bool:
    """Return whether a dtype can hold a shape of data in a container."""
    values, data = DTYPES[dtype], SHAPES[shape]
    if container not in {"frame", "array of a frame", "pandas"} and dtype not in _PLAIN:
        return False
    if data.kind == "words":
        return values.numbers if shape == "codes" else values.words
    fits = values.missing or data.kind != "missing"
    return values.numbers and fits and (values.wide or not data.wide)


def _containers(subject: Subject) -> list[str]:
    """Return the containers that a subject accepts."""
    words = any(SHAPES[shape].kind == "words" for shape in subject.setting.shapes)
    dense = words or subject.is_metric or subject.is_composed
    trained = hasattr(subject.model, "run")
    return [
        container
        for container in CONTAINERS
        if (container in {"frame", "pandas"} or not subject.needs_names)
        and not (container in _SPARSE and dense)
        and not (container == "list of delayed" and not trained)
    ]


def _is_for(target: str, subject: Subject, container: str) -> bool:
    kind = TARGETS[target]
    if container == "array of a frame" and not isinstance(kind.dtype, np.dtype):
        return False
    if target == "real int64" and not subject.setting.wide_targets:
        return False
    of_two = subject.is_metric and subject.columns(2) == ["p1"]
    return kind.kind in subject.targets and (kind.n_classes == 2 or not of_two)


def _ways_of_y(subject: Subject, container: str, steps: tuple[str, ...]) -> list[str]:
    if container != "frame":
        return ["series"]
    trained = not subject.is_metric and hasattr(subject.model, "run")
    by_name = trained and get_tags(subject.model).target_tags.required
    possible = {"name": by_name, "array": is_ordered(steps)}
    return [way for way in Y_AS if possible.get(way, True)]
