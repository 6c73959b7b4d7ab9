"""Compile the loops of common estimators in advance, and keep them on disk.

    python -m daskml_dist warm
    python -m daskml_dist warm --only LogisticRegression KMeans --dtype float32
    python -m daskml_dist warm --scheduler tcp://10.0.0.7:8786

numba keeps machine code beside the package, in the user's cache folder, or in the folder that
NUMBA_CACHE_DIR names. With --scheduler one worker of each host compiles, for all that share its
cache.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.cli._places import connect_client
from daskml_dist.errors import InvalidParameterError, TrainingError
from daskml_dist.errors.suggestions import suggest_nearest

#: Types of rows for which functions are compiled.
DTYPES = ("float64", "float32")
#: Rows and features of dense rows: more than NumPy processes without compiled loops.
_DENSE = 5_000, 40
#: Rows, features and share of the non-zero entries of sparse rows.
_SPARSE = 2_000, 400, 0.02
#: Passes of 79 steps each: in total more steps than NumPy makes before a loop is compiled.
_PASSES = 20


@dataclass(frozen=True)
class Compiled:
    """Number of functions that numba compiled, and the seconds of the compilation and the fits."""

    functions: int
    seconds: float


@dataclass(frozen=True)
class _Subject:
    """Estimator to fit, with its parameters and the kinds of its rows and target."""

    name: str  # subpackage and class
    params: dict[str, Any]
    rows: str = "dense"  # or "sparse"
    target: str = "classes"  # or "numbers", "none"


def _make_subject(
    name: str, rows: str = "dense", target: str = "classes", **params: Any
) -> _Subject:
    return _Subject(name, params, rows, target)


#: Estimators to fit, by the names that ``--only`` accepts. The fits are as small as possible while
#: they compile the functions that a large one would call: two passes or trees, and eight centroids.
SUBJECTS: dict[str, tuple[_Subject, ...]] = {
    "LogisticRegression": (
        _make_subject("linear_model.LogisticRegression", max_iter=3),
        _make_subject("linear_model.LogisticRegression", "sparse", max_iter=3),
    ),
    "LogisticRegressionCV": (
        _make_subject("linear_model.LogisticRegressionCV", Cs=2, cv=2, max_iter=3),
    ),
    "SGDClassifier": (
        _make_subject("linear_model.SGDClassifier", max_iter=_PASSES, tol=None, batch_size=64),
        _make_subject("linear_model.SGDClassifier", "sparse", max_iter=2, tol=None),
    ),
    "SGDRegressor": (
        _make_subject(
            "linear_model.SGDRegressor",
            target="numbers", max_iter=_PASSES, tol=None, batch_size=64,
        ),
    ),
    "KMeans": (_make_subject("cluster.KMeans", target="none", n_clusters=8, max_iter=3),),
    "MiniBatchKMeans": (
        _make_subject("cluster.MiniBatchKMeans", target="none", n_clusters=8, max_iter=3),
    ),
    "GaussianMixture": (
        _make_subject("mixture.GaussianMixture", target="none", n_components=4, max_iter=3),
    ),
    "GaussianNB": (_make_subject("naive_bayes.GaussianNB"),),
    "MultinomialNB": (_make_subject("naive_bayes.MultinomialNB", "sparse"),),
    "TruncatedSVD": (_make_subject("decomposition.TruncatedSVD", "sparse", "none"),),
    "LatentDirichletAllocation": (
        _make_subject("decomposition.LatentDirichletAllocation", "sparse", "none", max_iter=2),
    ),
    "DecisionTreeClassifier": (_make_subject("tree.DecisionTreeClassifier", max_depth=4),),
    "RandomForestClassifier": (
        _make_subject("ensemble.RandomForestClassifier", n_estimators=2, max_depth=4),
    ),
    "RandomForestRegressor": (
        _make_subject(
            "ensemble.RandomForestRegressor", target="numbers", n_estimators=2, max_depth=4
        ),
    ),
    "HistGradientBoostingClassifier": (
        _make_subject("ensemble.HistGradientBoostingClassifier", max_iter=2),
    ),
    "HistGradientBoostingRegressor": (
        _make_subject("ensemble.HistGradientBoostingRegressor", target="numbers", max_iter=2),
    ),
}  # fmt: skip


def warm_up(name: str, dtype: str) -> Compiled:
    """Fit the estimators of a name to generated rows and predict, in this process."""
    start = time.perf_counter()
    with _count_of_compiled() as count, warnings.catch_warnings():
        # The fits have too few passes to converge, and warn of it.
        warnings.simplefilter("ignore")
        for subject in SUBJECTS[name]:
            _fit_and_predict(subject, dtype)
    return Compiled(count(), time.perf_counter() - start)


def _fit_and_predict(subject: _Subject, dtype: str) -> None:
    """Fit and predict with a subject's estimator, so that its loops are compiled."""
    subpackage, _, kind = subject.name.partition(".")
    model = getattr(import_module(f"daskml_dist.{subpackage}"), kind)(**subject.params)
    X = _make_rows(subject.rows, dtype)
    # A target that features explain, so that trees split and linear models change.
    total = np.asarray(X[:, :5].sum(axis=1)).ravel()
    if subject.target == "none":
        model.fit(X, client="inline")
    elif subject.target == "numbers":
        model.fit(X, total.astype(dtype), client="inline")
    else:
        model.fit(X, (total > np.median(total)).astype(np.int64), client="inline")
    # Predictions have their own loops, whose compilation would delay the first request.
    for method in ("predict", "transform"):
        if hasattr(model, method):
            getattr(model, method)(X)


def _make_rows(kind: str, dtype: str) -> NDArray[Any] | sparse.csr_matrix:
    """Return random rows: normal ones, or sparse (CSR) ones, uniform on [0, 1)."""
    rng = np.random.default_rng(0)
    if kind == "dense":
        return rng.normal(size=_DENSE).astype(dtype)
    n_rows, n_features, density = _SPARSE
    rows = sparse.random(n_rows, n_features, density, format="csr", random_state=0)
    return sparse.csr_matrix(rows.astype(dtype))


@contextmanager
def _count_of_compiled() -> Iterator[Callable[[], int]]:
    """Yield a function that counts numba's compilations meanwhile, nested ones as one."""
    from numba.core import event

    with event.install_recorder("numba:compile") as recorder:

        def count() -> int:
            # A function that calls others compiles these between its own start and end.
            depth, n_compiled = 0, 0
            for _, record in recorder.buffer:
                n_compiled += record.is_start and depth == 0
                depth += 1 if record.is_start else -1
            return n_compiled

        yield count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CLASS",
        help=f"subjects to compile, of: {', '.join(SUBJECTS)}; default: all",
    )
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=DTYPES,
        default=list(DTYPES),
        help="dtype of the rows; default: all",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=(
            "address of a Dask scheduler, such as tcp://10.0.0.7:8786, whose hosts compile; "
            "default: this host"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    names = list(SUBJECTS) if arguments.only is None else arguments.only
    for name in names:
        if name not in SUBJECTS:
            raise InvalidParameterError(
                f"There is nothing to compile for {name!r}. Choose from "
                f"{list(SUBJECTS)}.{suggest_nearest(name, SUBJECTS)}"
            )
    cases = [(name, dtype) for name in names for dtype in dict.fromkeys(arguments.dtype)]
    if arguments.scheduler is None:
        _warm_cases(cases, None, ["here"])
        return 0
    # One worker for each host is enough, since all workers of a host share the cache on its disk.
    with connect_client(arguments.scheduler) as client:
        workers = _choose_worker_per_host(client)
        if not workers:
            raise TrainingError(
                f"The cluster at {arguments.scheduler} has no workers. Start some: "
                f"dask worker {arguments.scheduler}"
            )
        _warm_cases(cases, client, workers)
    return 0


def _warm_cases(cases: list[tuple[str, str]], client: Any, workers: list[str]) -> None:
    """Warm up this process, or a worker of each host, and print a line for each case."""
    width = max(len(name) for name, _ in cases)
    start, n_functions = time.perf_counter(), 0
    # One case after the other, so that its line is printed as soon as it is done.
    for name, dtype in cases:
        if client is None:
            by_host = {workers[0]: warm_up(name, dtype)}
        else:
            # Tasks, since `Client.run` would block the worker's event loop while it compiles.
            tasks = [
                client.submit(warm_up, name, dtype, workers=[worker], pure=False)
                for worker in workers
            ]
            by_host = dict(zip(workers, client.gather(tasks), strict=True))
        # Hosts compile in parallel and independently.
        all_hosts = Compiled(
            sum(compiled.functions for compiled in by_host.values()),
            max(compiled.seconds for compiled in by_host.values()),
        )
        n_functions += all_hosts.functions
        print(
            f"{name:{width}}  {dtype}  {all_hosts.functions:3d} functions "
            f"{all_hosts.seconds:6.1f} s",
            flush=True,
        )
    place = "here" if client is None else f"on {len(workers)} host{'s' * (len(workers) > 1)}"
    print(f"{n_functions} functions compiled {place} in {time.perf_counter() - start:.1f} s")


def _choose_worker_per_host(client: Any) -> list[str]:
    """Return the address of the first worker on each host."""
    # A later entry of a dict replaces an earlier one of the same key, hence the reverse order.
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    return list({urlsplit(address).hostname: address for address in reversed(addresses)}.values())
