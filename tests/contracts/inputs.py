"""Tables of rows: shapes of data, dtypes, targets, labels and weights.

A new entry of a table here is used by every contract test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["DTYPES", "SHAPES", "TARGETS", "WEIGHTS", "DType", "Shape", "Target", "make_table"]

FEATURES = ["age", "hours", "income", "size"]

Rng = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """Kind of data.

    Parameters
    ----------
    make : callable
        From a generator and standard normal rows of shape (n, 4) to numbers or words of this shape.
    kind : {"numbers", "counts", "missing", "words", "text"}
    wide : bool
        Whether the values exceed the range of a byte, or the digits of float32.
    unique : bool
        Whether the data determine the coefficients; otherwise only predictions are compared.
    """

    make: Callable[[Rng, NDArray[Any]], NDArray[Any]]
    kind: str = "numbers"
    wide: bool = False
    unique: bool = True


def _with(columns: dict[int, float], scale: float = 1.0) -> Callable[[Rng, NDArray[Any]], Any]:
    """Return rows with offsets in some columns."""

    def make(rng: Rng, rows: NDArray[Any]) -> NDArray[Any]:
        rows = rows * scale
        for column, offset in columns.items():
            rows[:, column] += offset
        return rows

    return make


def _constant(rng: Rng, rows: NDArray[Any]) -> NDArray[Any]:
    rows = rows.copy()
    rows[:, 2] = 7.0
    return rows


def _missing(rng: Rng, rows: NDArray[Any]) -> NDArray[Any]:
    return np.where(rng.random(rows.shape) < 0.15, np.nan, np.round(rows, 1))


def _words(rng: Rng, rows: NDArray[Any]) -> NDArray[Any]:
    words = np.array(["blue", "green", "", "red", "Ünlü", "zz top"], dtype=object)
    return words[np.digitize(rows, [-1.5, -0.5, 0, 0.5, 1.5])]


def _words_missing(rng: Rng, rows: NDArray[Any]) -> NDArray[Any]:
    words = _words(rng, rows)
    words[rng.random(rows.shape) < 0.15] = None
    return words


SHAPES: dict[str, Shape] = {
    "normal": Shape(lambda rng, rows: rows),
    "counts": Shape(lambda rng, rows: np.floor(np.abs(rows) * 2), kind="counts"),
    "mostly zero": Shape(lambda rng, rows: rows * (rng.random(rows.shape) < 0.3)),
    "scales": Shape(lambda rng, rows: rows * [1e-3, 1, 30, 1], wide=True),
    "far": Shape(_with({1: 1e4, 3: -1e5}), wide=True, unique=False),
    "constant column": Shape(_constant, unique=False),
    "missing": Shape(_missing, kind="missing"),
    "words": Shape(_words, kind="words"),
    "words missing": Shape(_words_missing, kind="words"),
    "codes": Shape(lambda rng, rows: np.floor(np.abs(rows) * 2), kind="words"),
}  # fmt: skip


@dataclass(frozen=True)
class DType:
    """Dtypes of the columns of X.

    Parameters
    ----------
    make : callable
        From a frame of float64, or of words, to these dtypes.
    missing, wide : bool
        Whether it can hold missing values; numbers with many digits.
    words, numbers : bool
        Whether it can hold words; numbers.
    """

    make: Callable[[pd.DataFrame], pd.DataFrame]
    missing: bool = True
    wide: bool = True
    numbers: bool = True
    words: bool = False


def _whole(dtype: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: (frame * 3).round().clip(-120, 120).astype(dtype)


def _several(*dtypes: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return a function that gives each column another dtype, in turn."""

    def make(frame: pd.DataFrame) -> pd.DataFrame:
        found = dict(zip(frame.columns, dtypes, strict=True))
        return pd.DataFrame(
            {name: _whole("float64")(frame[[name]])[name].astype(dtype)
             if "int" in dtype.lower() else
             (frame[name] > 0).astype(dtype) if "bool" in dtype else frame[name].astype(dtype)
             for name, dtype in found.items()}
        )  # fmt: skip

    return make


def _as(dtype: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.astype(dtype)


DTYPES: dict[str, DType] = {
    "float64": DType(_as("float64")),
    "float32": DType(_as("float32"), wide=False),
    "int64": DType(_whole("int64"), missing=False, wide=False),
    "int8": DType(_whole("int8"), missing=False, wide=False),
    "uint8": DType(lambda f: _whole("uint8")(f.abs()), missing=False, wide=False),
    "bool": DType(lambda frame: frame > 0, missing=False, wide=False),
    "several": DType(_several("float32", "int8", "bool", "float64"), missing=False, wide=False),
    "Float64": DType(_as("Float64")),
    "Int64": DType(_whole("Int64"), wide=False),
    "several nullable": DType(_several("Float32", "Int16", "float64", "Float64"), wide=False),
    "nullable booleans": DType(
        _several("boolean", "Float64", "boolean", "Int64"), missing=False, wide=False
    ),
    "double[pyarrow]": DType(_as("double[pyarrow]")),
    "several of Arrow": DType(
        _several("float[pyarrow]", "int32[pyarrow]", "bool[pyarrow]", "double[pyarrow]"),
        missing=False,
        wide=False,
    ),
    "object": DType(_as("object"), numbers=False, words=True),
    "str": DType(_as("str"), numbers=False, words=True),
    "string[pyarrow]": DType(_as("string[pyarrow]"), numbers=False, words=True),
    "category": DType(_as("category"), numbers=False, words=True),
}


@dataclass(frozen=True)
class Target:
    """Kind of y.

    Parameters
    ----------
    make : callable
        From an approximately standard normal signal (n,) to targets.
    kind : {"classes", "real", "positive"}
    n_classes : int
    """

    make: Callable[[NDArray[Any]], pd.Series]
    kind: str
    n_classes: int = 0

    @property
    def dtype(self) -> Any:
        """Return the dtype of the targets."""
        return self.make(np.zeros(1)).dtype


def _labels(names: list[Any], dtype: str) -> Target:
    cuts = {2: [0.0], 3: [-0.6, 0.6]}[len(names)]

    def make(signal: NDArray[Any]) -> pd.Series:
        found = np.array(names, dtype=object)[np.digitize(signal, cuts)]
        return pd.Series(found, dtype=dtype)

    return Target(make, "classes", len(names))


def _real(dtype: str, then: Callable[[Any], Any] = lambda s: s) -> Target:
    return Target(lambda signal: pd.Series(then(signal)).astype(dtype), "real")


def _positive(dtype: str, then: Callable[[Any], Any]) -> Target:
    return Target(lambda signal: pd.Series(then(signal)).astype(dtype), "positive")


TARGETS: dict[str, Target] = {
    "int64": _labels([0, 1], "int64"),
    "int64 of 3": _labels([0, 1, 2], "int64"),
    "int8, negative": _labels([-7, 3, 100], "int8"),
    "bool": _labels([False, True], "bool"),
    "float64": _labels([1.0, 2.0, 5.0], "float64"),
    "float32": _labels([-1.0, 1.0], "float32"),
    "str": _labels(["no", "yes"], "str"),
    "object": _labels(["b", "aa", "c"], "object"),
    "string[pyarrow]": _labels(["no", "maybe", "yes"], "string[pyarrow]"),
    "category": _labels(["no", "maybe", "yes"], "category"),
    "Int64": _labels([3, 1, 2], "Int64"),
    "boolean": _labels([True, False], "boolean"),
    "int64[pyarrow]": _labels([1, 2], "int64[pyarrow]"),
    "real": _real("float64"),
    "real float32": _real("float32"),
    "real int64": _real("int64", lambda s: np.round(10 * s)),
    "real bool": _real("bool", lambda s: s > 0),
    "real Float64": _real("Float64"),
    "real double[pyarrow]": _real("double[pyarrow]"),
    "real far": _real("float64", lambda s: 1e5 + s),
    "positive": _positive("float64", lambda s: np.exp(s / 2)),
    "positive int64": _positive("int64", lambda s: 1 + np.floor(np.exp(s / 2))),
    "positive Float64": _positive("Float64", lambda s: np.exp(s / 2)),
    "positive float32": _positive("float32", lambda s: np.exp(s / 2)),
}

WEIGHTS: dict[str, Callable[[Rng, int], pd.Series] | None] = {
    "none": None,
    "float64": lambda rng, n: pd.Series(rng.uniform(0.5, 2, n)),
    "whole": lambda rng, n: pd.Series(rng.integers(0, 4, n)),
    "float32": lambda rng, n: pd.Series(rng.uniform(0.5, 2, n).astype("float32")),
    "Float64": lambda rng, n: pd.Series(rng.uniform(0.5, 2, n)).astype("Float64"),
    # Whole blocks have no weight, except with few rows: k-means would have too few weighted rows.
    "zeros at first": lambda rng, n: pd.Series(np.where(np.arange(n) < n // 2 * (n > 40), 0, 1.5)),
}


def make_table(
    shape: str, dtype: str, target: str, weight: str, n_rows: int, seed: int
) -> pd.DataFrame:
    """Return one frame with all data.

    The columns are features, ``y``, ``w``, ``row`` (an id), ``key`` (for shuffles and sorts, in
    another order), and, for metrics, ``guess`` (like ``y``) and ``p0``, ``p1``... (probabilities
    with ties, of at least two classes).
    """
    rng = np.random.default_rng([seed, n_rows])
    base = rng.normal(size=(n_rows, len(FEATURES)))
    signal = base @ [1.0, -0.5, 0.25, 0.0] / 1.15 + 0.3 * rng.normal(size=n_rows)
    values = SHAPES[shape].make(rng, base)
    frame = DTYPES[dtype].make(pd.DataFrame(values, columns=FEATURES))
    make_weight = WEIGHTS[weight]
    w = pd.Series(np.ones(n_rows)) if make_weight is None else make_weight(rng, n_rows)
    y = TARGETS[target].make(signal)
    row = np.arange(n_rows)
    guessed = signal + 0.7 * rng.normal(size=n_rows)
    centres = np.linspace(-1, 1, max(TARGETS[target].n_classes, 2))
    chances = np.round(np.exp(-np.square(guessed[:, None] - centres)), 2) + 0.05
    chances /= chances.sum(axis=1, keepdims=True)
    more = {f"p{i}": column for i, column in enumerate(chances.T)}
    more["guess"] = TARGETS[target].make(guessed)
    frame = frame.assign(**more)
    return frame.assign(y=y, w=w, row=row, key=rng.permutation(n_rows) % max(n_rows // 2, 1))
