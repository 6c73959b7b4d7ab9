"""A study of Optuna on a cluster, whose pruner ends fits that are worse than others were.

    python examples/optuna_search.py
    python examples/optuna_search.py --pruner halving --trials 60 --rows 200000

searches the learning rate and the penalty of logistic regression by gradient steps on drawn rows
that lie on the workers. After each pass the score of rows held out goes to the trial, and the fits
that the pruner ends leave nothing on the cluster. With --workers 0 all of it is in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from daskml_dist.callbacks import OptunaPruning
from daskml_dist.linear_model import SGDClassifier

#: Rows that trials are compared by, beside those of the fits.
HELD = 5_000
N_FEATURES = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--passes", type=int, default=10, help="of a fit that is not pruned")
    parser.add_argument("--pruner", choices=["median", "halving"], default="median")
    parser.add_argument("--workers", type=int, default=2, help="0: this process alone")
    arguments = parser.parse_args()
    if importlib.util.find_spec("optuna") is None:
        parser.error("this example needs Optuna: pip install optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    X, y = drawn(arguments.rows + HELD)
    held = X[-HELD:], y[-HELD:]
    passes = 0

    def objective(trial: Any) -> float:
        nonlocal passes
        model = SGDClassifier(
            learning_rate=trial.suggest_float("learning_rate", 1e-4, 3.0, log=True),
            alpha=trial.suggest_float("alpha", 1e-7, 1.0, log=True),
            max_iter=arguments.passes,
            tol=None,
            random_state=0,
            callbacks=[OptunaPruning(trial)],
        )
        try:
            model.fit(rows, labels, eval_set=held)
        finally:
            passes += len(trial.study.trials[trial.number].intermediate_values)
        return float(model.history_[-1]["eval_score"])

    pruner = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
        "halving": optuna.pruners.SuccessiveHalvingPruner(),
    }[arguments.pruner]
    study = optuna.create_study(
        direction="maximize", pruner=pruner, sampler=optuna.samplers.TPESampler(seed=0)
    )
    with workers(arguments.workers):
        rows, labels = X[:-HELD], y[:-HELD]
        if arguments.workers:
            chunk = -(-arguments.rows // 8)
            # Brought to the workers once for all trials.
            rows, labels = dask.persist(
                da.from_array(rows, chunks=(chunk, -1)), da.from_array(labels, chunks=chunk)
            )
        start = time.perf_counter()
        study.optimize(objective, n_trials=arguments.trials)
        seconds = time.perf_counter() - start
    pruned = study.get_trials(states=(optuna.trial.TrialState.PRUNED,))
    print(
        f"{len(pruned)} of {arguments.trials} trials pruned; {passes} of "
        f"{arguments.trials * arguments.passes} passes in {seconds:.1f} s"
    )
    found = ", ".join(f"{name}={value:.2g}" for name, value in study.best_params.items())
    print(f"best: accuracy {study.best_value:.4f} with {found}")


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
    """Rows of two classes, some features far larger than others."""
    state = np.random.default_rng(0)
    scales = np.logspace(-1, 1, N_FEATURES)
    X = state.normal(size=(n, N_FEATURES))
    raw = X @ state.normal(size=N_FEATURES)
    return X * scales, (raw + state.logistic(size=n) > 0).astype(np.int64)


if __name__ == "__main__":
    main()
