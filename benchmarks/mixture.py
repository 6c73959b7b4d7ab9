"""Time of GaussianMixture on two worker processes, compared with scikit-learn's in one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.mixture import GaussianMixture as Peer

from benchmarks._common import markdown, median_seconds, persisted, processes
from daskml_dist.mixture import GaussianMixture

ROWS, FEATURES, COMPONENTS, STEPS, REPEATS = 200_000, 20, 10, 10, 1
KINDS = ("full", "tied", "diag", "spherical")


def run(tiny: bool = False) -> str:
    """Return one table: the same steps from the same start, by covariance type and dtype."""
    n, d, k = (2_000, 4, 3) if tiny else (ROWS, FEATURES, COMPONENTS)
    X = _rows(n, d, k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with tol=0 no number of steps suffices
        cases = [(kind, dtype) for kind in KINDS for dtype in ("float64", "float32")]
        # Before the cluster: scikit-learn holds the interpreter, and this process runs the
        # scheduler.
        theirs = {case: _timed(Peer, case, X.astype(case[1]), k) for case in cases}
        with processes(2):
            held = {dtype: persisted(X.astype(dtype), 8) for dtype in ("float64", "float32")}
            ours = {case: _timed(GaussianMixture, case, held[case[1]], k) for case in cases}
    table = []
    for case in cases:
        (mine, found), (peer, wanted) = ours[case], theirs[case]
        ratio = f"{peer / mine:.1f}"
        table.append([*case, f"{mine:.2f}", f"{peer:.2f}", ratio, f"{abs(found - wanted):.1e}"])
    head = [
        "covariances",
        "dtype",
        "fit, s",
        "scikit-learn, s",
        "ratio",
        "difference of lower_bound_",
    ]
    title = f"{STEPS} steps of {k} components, {n:,} x {d}, persisted, 2 worker processes"
    return markdown(title, head, table)


def _rows(n: int, d: int, k: int) -> Any:
    rng = np.random.default_rng(0)
    means, shapes = rng.normal(size=(k, d)) * 1.5, rng.normal(size=(k, d, d)) / np.sqrt(d)
    of = rng.integers(0, k, n)
    return means[of] + np.einsum("ij,ijk->ik", rng.normal(size=(n, d)), shapes[of])


def _timed(make: Any, case: tuple[str, str], X: Any, k: int) -> tuple[float, float]:
    kind, d = case[0], X.shape[1]
    precisions = {"full": np.stack([np.eye(d)] * k), "tied": np.eye(d), "diag": np.ones((k, d))}
    model = make(
        k,
        covariance_type=kind,
        means_init=np.asarray(X[:k], dtype=np.float64),
        weights_init=np.full(k, 1 / k),
        precisions_init=precisions.get(kind, np.ones(k)),
        max_iter=STEPS,
        tol=0.0,
    )
    return median_seconds(lambda: model.fit(X), REPEATS), model.lower_bound_
