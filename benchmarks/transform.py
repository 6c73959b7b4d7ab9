"""Scalers, encoders, imputers, naive Bayes, predictions and metrics, compared with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import sklearn.compose
import sklearn.impute
import sklearn.linear_model
import sklearn.metrics
import sklearn.naive_bayes
import sklearn.preprocessing
from distributed import wait

from benchmarks._common import markdown, median_seconds, processes
from daskml_dist import compose, impute, linear_model, metrics, naive_bayes, preprocessing

WORKERS, BLOCKS = 2, 8
ROWS, FEATURES = 2_000_000, 8


class Case(NamedTuple):
    """An estimator and its peer, and the data that both are fitted to."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    rows: str


def run(tiny: bool = False) -> str:
    """Return the tables."""
    n = 4_000 if tiny else ROWS
    runs = 1 if tiny else 3
    with processes(WORKERS) as client:
        data = _Data(client, n)
        return "\n\n".join(
            [
                _table(f"`fit` of {n:,} rows", _fits(data, runs)),
                _table(f"`transform` of {n:,} rows", _transforms(data, runs)),
                _table(f"`predict` of {2 * n:,} rows x 28", _predictions(client, 2 * n, runs)),
                _table(f"Metrics of {n:,} rows", _metrics(data, runs)),
            ]
        )


def _table(what: str, rows: Iterator[tuple[str, float, float]]) -> str:
    lines = [
        [name, f"{1e3 * ours:.0f}", f"{1e3 * peer:.0f}", f"{peer / ours:.2f}"]
        for name, ours, peer in rows
    ]
    columns = ["", "daskml_dist, ms", "scikit-learn, ms", "scikit-learn / daskml_dist"]
    return markdown(f"{what}, {WORKERS} single-threaded worker processes", columns, lines)


class _Data:
    """Rows in memory, and the same rows in the workers' memory, as sent by Dask."""

    def __init__(self, client: Any, n: int) -> None:
        import dask.dataframe as dd
        import pandas as pd

        rng = np.random.default_rng(0)
        numbers = rng.normal(size=(n, FEATURES))
        codes = rng.integers(0, 20, size=(n, 3))
        names = [f"v{i}" for i in range(20)]
        labels = {f"c{i}": pd.Categorical.from_codes(codes[:, i], names) for i in range(3)}
        frame = pd.DataFrame(numbers, columns=[f"x{i}" for i in range(FEATURES)])
        gaps = np.where(rng.random(numbers.shape) < 0.05, np.nan, numbers)
        wide = rng.normal(size=(n, 28)).astype(np.float32)
        proba = rng.random(n)
        self.here: dict[str, Any] = {
            "array": numbers,
            "frame": frame,
            "array with NaN": gaps,
            "frame with NaN": frame.mask(np.isnan(gaps)),
            "codes": codes,
            "categories": pd.DataFrame(labels),
            "mixed": frame.assign(**labels),
            "wide": wide,
            "y2": (wide[:, 0] > 0).astype(np.int64),
            "y2 column": pd.Series((wide[:, 0] > 0).astype(np.int64), name="y"),
            "y10": rng.integers(0, 10, n),
            "proba": proba,
            "probas": np.column_stack([1 - proba, proba]),
            "guess": (proba > 0.5).astype(np.int64),
        }
        size = -(-n // BLOCKS)
        self.there: dict[str, Any] = {
            name: client.persist(
                da.from_array(values, chunks=(size, *values.shape[1:]))
                if isinstance(values, np.ndarray)
                else dd.from_pandas(values, npartitions=BLOCKS)
            )
            for name, values in self.here.items()
        }
        wait(list(self.there.values()))

    def target(self, rows: str) -> str:
        """Return the name of the target for a kind of rows."""
        return "y2" if isinstance(self.here[rows], np.ndarray) else "y2 column"


def _numbers(rows: str) -> Iterator[Case]:
    pre, sk = preprocessing, sklearn.preprocessing
    for name in ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"):
        yield Case(name, getattr(pre, name), getattr(sk, name), rows)
    for strategy in ("mean", "median"):
        yield Case(
            f"SimpleImputer, {strategy}",
            lambda s=strategy: impute.SimpleImputer(strategy=s),
            lambda s=strategy: sklearn.impute.SimpleImputer(strategy=s),
            f"{rows} with NaN",
        )


def _cases() -> list[Case]:
    cases = [*_numbers("array"), *_numbers("frame")]
    pre, sk = preprocessing, sklearn.preprocessing
    for rows in ("codes", "categories"):
        for name in ("OneHotEncoder", "OrdinalEncoder", "TargetEncoder"):
            cases.append(Case(name, getattr(pre, name), getattr(sk, name), rows))
    cases.append(Case("ColumnTransformer", _columns, _sklearn_columns, "mixed"))
    return cases


def _columns() -> Any:
    numbers, names = [f"x{i}" for i in range(FEATURES)], [f"c{i}" for i in range(3)]
    return compose.make_column_transformer(
        (preprocessing.StandardScaler(), numbers), (preprocessing.OneHotEncoder(), names)
    )


def _sklearn_columns() -> Any:
    numbers, names = [f"x{i}" for i in range(FEATURES)], [f"c{i}" for i in range(3)]
    return sklearn.compose.make_column_transformer(
        (sklearn.preprocessing.StandardScaler(), numbers),
        (sklearn.preprocessing.OneHotEncoder(), names),
    )


def _fits(data: _Data, runs: int) -> Iterator[tuple[str, float, float]]:
    for case in _cases():
        y = data.target(case.rows)
        X, dX, y, dy = data.here[case.rows], data.there[case.rows], data.here[y], data.there[y]
        yield (
            f"{case.name}, {case.rows}",
            median_seconds(lambda c=case, X=dX, y=dy: c.ours().fit(X, y), runs),
            median_seconds(lambda c=case, X=X, y=y: c.peer().fit(X, y), runs),
        )
    for y in ("y2", "y10"):
        yield (
            f"GaussianNB, 28 float32, {y[1:]} classes",
            median_seconds(
                lambda y=y: naive_bayes.GaussianNB().fit(data.there["wide"], data.there[y]), runs
            ),
            median_seconds(
                lambda y=y: sklearn.naive_bayes.GaussianNB().fit(data.here["wide"], data.here[y]),
                runs,
            ),
        )


def _transforms(data: _Data, runs: int) -> Iterator[tuple[str, float, float]]:
    """Compare with scikit-learn's `transform` of each block on its worker."""
    for case in _cases():
        few = data.here[case.rows][:5_000], data.here["y2"][:5_000]
        ours, peer = case.ours().fit(*few), case.peer().fit(*few)
        there = data.there[case.rows]
        yield (
            f"{case.name}, {case.rows}",
            median_seconds(lambda t=ours, X=there: _made(t.transform(X)), runs),
            median_seconds(lambda t=peer, X=there: _made(_blockwise(t.transform, X)), runs),
        )


def _made(lazy: Any) -> None:
    """Compute a collection, and release it."""
    wait(dask.persist(lazy))


def _blockwise(function: Callable[[Any], Any], X: Any) -> list[Any]:
    blocks = X.to_delayed()
    apply = dask.delayed(function, pure=False)
    return [apply(block) for block in (blocks if isinstance(blocks, list) else blocks.ravel())]


def _predictions(client: Any, n: int, runs: int) -> Iterator[tuple[str, float, float]]:
    """Compare with scikit-learn's function of each block on its worker."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 28)).astype(np.float32)
    dX = client.persist(da.from_array(X, chunks=(-(-n // BLOCKS), -1)))
    wait(dX)
    for k, labels in ((2, X[:2_000, 0] > 0), (5, (X[:2_000, 0] * 2).astype(int) % 5)):
        ours = linear_model.LogisticRegression(max_iter=50).fit(X[:2_000], labels)
        peer = sklearn.linear_model.LogisticRegression(max_iter=50)
        peer.fit(X[:2_000], labels)
        for name in ("predict_proba", "decision_function", "predict"):
            yield (
                f"{name}, {k} classes",
                median_seconds(lambda m=ours, f=name: getattr(m, f)(dX).sum().compute(), runs),
                median_seconds(
                    lambda m=peer, f=name: _sklearn_map(getattr(m, f), dX).sum().compute(), runs
                ),
            )


def _sklearn_map(function: Callable[[Any], Any], X: Any) -> Any:
    some = function(np.ones((1, X.shape[1]), dtype=X.dtype))
    if some.ndim == 1:
        return X.map_blocks(function, drop_axis=1, dtype=some.dtype)
    return X.map_blocks(function, chunks=(X.chunks[0], some.shape[1:]), dtype=some.dtype)


def _metrics(data: _Data, runs: int) -> Iterator[tuple[str, float, float]]:
    for name, given in (
        ("accuracy_score", "guess"),
        ("confusion_matrix", "guess"),
        ("log_loss", "proba"),
        ("log_loss", "probas"),
        ("roc_auc_score", "proba"),
        ("average_precision_score", "proba"),
        ("mean_squared_error", "proba"),
        ("mean_absolute_error", "proba"),
        ("r2_score", "proba"),
    ):
        ours, peer = getattr(metrics, name), getattr(sklearn.metrics, name)
        yield (
            f"{name}, {given}",
            median_seconds(lambda f=ours, g=given: f(data.there["y2"], data.there[g]), runs),
            median_seconds(lambda f=peer, g=given: f(data.here["y2"], data.here[g]), runs),
        )
