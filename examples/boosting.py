"""Boosted trees on a cluster: when they stop, which features count, whether shares can be trusted.

    python examples/boosting.py
    python examples/boosting.py --rows 500000 --picture boosting.png

fits gradient boosting on drawn rows of two classes with a missing value here and there, a category
and a feature that must not lower a prediction; it stops by rows of its own, tells what shuffling
each feature costs, and with --picture draws losses, importances and calibration (matplotlib).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from sklearn.inspection import permutation_importance
from sklearn.metrics import log_loss, roc_auc_score

from daskml_dist.ensemble import HistGradientBoostingClassifier

#: Rows to stop by, and rows to tell scores of, beside those of the fit.
HELD, TOLD = 4_000, 4_000
N_FEATURES = 6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2, help="0: this process alone")
    parser.add_argument("--picture", type=Path, help="file to draw to")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    X, y = drawn(arguments.rows + HELD + TOLD)
    X_test, y_test = X[-TOLD:], y[-TOLD:]
    held = slice(arguments.rows, arguments.rows + HELD)
    with workers(arguments.workers):
        chunk = -(-arguments.rows // 8)
        lazy = da.from_array(X[: arguments.rows], chunks=(chunk, -1))
        target = da.from_array(y[: arguments.rows], chunks=chunk)
        model = HistGradientBoostingClassifier(
            max_iter=arguments.iterations,
            learning_rate=0.2,
            categorical_features=[4],
            monotonic_cst=[0, 0, 0, 1, 0, 0],
            early_stopping=True,
            random_state=0,
        )
        start = time.perf_counter()
        model.fit(lazy, target, X_val=X[held], y_val=y[held])
        seconds = time.perf_counter() - start
    shares = model.predict_proba(X_test)[:, 1]
    print(
        f"{model.n_iter_} of {arguments.iterations} iterations in {seconds:.1f} s: "
        f"AUC {roc_auc_score(y_test, shares):.4f}, log loss {log_loss(y_test, shares):.4f}"
    )
    found = permutation_importance(
        model, X_test, y_test, scoring="roc_auc", n_repeats=3, random_state=0
    )
    falls = [f"{f}: {found.importances_mean[f]:.4f}" for f in np.argsort(-found.importances_mean)]
    print(f"AUC falls without feature {', '.join(falls)}")
    if arguments.picture:
        draw(arguments.picture, model, found, X_test, y_test)


@contextlib.contextmanager
def workers(n: int) -> Iterator[None]:
    """Processes to fit on; none for 0."""
    if not n:
        yield
        return
    with (
        LocalCluster(
            n_workers=n, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        yield


def drawn(n: int) -> tuple[Any, Any]:
    """Rows of two classes: four numbers, a category of nine, and a feature that tells nothing."""
    state = np.random.default_rng(0)
    X = state.normal(size=(n, N_FEATURES))
    X[:, 4] = state.integers(0, 9, n)
    raw = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + X[:, 3] + (X[:, 4] % 4 == 1)
    X[state.random(X.shape) < 0.03] = np.nan
    return X, (2 * raw + state.logistic(size=n) > 0.5).astype(np.int64)


def draw(path: Path, model: Any, importance: Any, X: Any, y: Any) -> None:
    """Draw the loss after each iteration, the importances, and how often a class comes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    staged = [log_loss(y, shares) for shares in model.staged_predict_proba(X)]
    left.plot(-model.train_score_, label="rows of the fit")
    left.plot(-model.validation_score_, label="rows held out")
    left.plot(np.arange(1, len(staged) + 1), staged, ":", label="rows never seen")
    left.set(title="log loss", xlabel="iteration")
    left.legend()
    middle.barh(np.arange(N_FEATURES), importance.importances_mean, xerr=importance.importances_std)
    middle.set(title="AUC lost by shuffling", ylabel="feature")
    edges, shares = np.linspace(0, 1, 11), model.predict_proba(X)[:, 1]
    bins = np.digitize(shares, edges[1:-1])
    there = [b for b in range(10) if (bins == b).any()]
    right.plot(
        [shares[bins == b].mean() for b in there], [y[bins == b].mean() for b in there], "o-"
    )
    right.plot([0, 1], [0, 1], ":", color="grey")
    right.set(title="calibration", xlabel="probability given", ylabel="how often it comes")
    figure.savefig(path)
    print(f"drawn to {path}")


if __name__ == "__main__":
    main()
