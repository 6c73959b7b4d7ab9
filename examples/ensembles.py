"""Ensembles on a cluster: a vote, a stack and a bag of members, and probabilities that hold.

    python examples/ensembles.py
    python examples/ensembles.py --rows 500000 --workers 4

fits each to drawn rows of two classes, and tells accuracy and Brier score on rows of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import (
    BaggingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.metrics import accuracy_score, brier_score_loss
from daskml_dist.naive_bayes import GaussianNB

N_FEATURES = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2, help="0: this process alone")
    arguments = parser.parse_args()
    with workers(arguments.workers):
        X, y = drawn(arguments.rows, seed=0)
        X_test, y_test = drawn(arguments.rows // 4, seed=1)
        print(f"{'':28}{'accuracy':>10}{'Brier':>10}{'seconds':>10}")
        for name, model in models().items():
            start = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - start
            labels, shares = model.predict(X_test), model.predict_proba(X_test)
            accuracy = accuracy_score(y_test, labels)
            brier = brier_score_loss(y_test, shares[:, 1])
            print(f"{name:28}{accuracy:10.4f}{brier:10.4f}{seconds:10.2f}", flush=True)


def models() -> dict[str, Any]:
    """Members alone, and what is made of them."""
    bayes, line = GaussianNB(), LogisticRegression()
    forest = RandomForestClassifier(n_estimators=20, max_depth=8, random_state=0)
    members = [("bayes", bayes), ("line", line), ("forest", forest)]
    return {
        "naive Bayes": bayes,
        "naive Bayes, calibrated": CalibratedClassifierCV(bayes, method="isotonic", cv=3),
        "forest": forest,
        "vote": VotingClassifier(members, voting="soft"),
        "stack": StackingClassifier(members, cv=3),
        "bag of lines": BaggingClassifier(line, max_features=0.5, random_state=0),
    }


def drawn(n_rows: int, seed: int) -> tuple[da.Array, da.Array]:
    """Rows of two classes; half of the features say the same twice, which naive Bayes trusts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, N_FEATURES))
    X[:, 4:] = X[:, :4] + 0.1 * rng.normal(size=(n_rows, 4))
    score = X[:, 0] - X[:, 1] + X[:, 2] * (X[:, 3] > 0)
    y = (score + rng.logistic(size=n_rows) > 0).astype(int)
    chunk = -(-n_rows // 8)
    return da.from_array(X, chunks=(chunk, -1)), da.from_array(y, chunks=chunk)


@contextlib.contextmanager
def workers(n: int) -> Iterator[None]:
    """So many worker processes for as long as the block runs."""
    if n == 0:
        yield
        return
    with (
        LocalCluster(
            n_workers=n, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        yield


if __name__ == "__main__":
    main()
