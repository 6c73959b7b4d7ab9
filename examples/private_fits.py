"""What privacy costs: test accuracy by epsilon, of a classifier trained by two worker processes.

    python examples/private_fits.py --epsilon 0.1 1 10

prints, for each budget, the accuracy, the noise that it needs, and how much of it was spent when
half of the passes were made.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.array as da
from distributed import Client, LocalCluster
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split

from daskml_dist import DP
from daskml_dist.linear_model import SGDClassifier


def train(
    X: Any, y: Any, epsilon: float | None, passes: int, seed: int | None = None
) -> SGDClassifier:
    """A classifier that spends so much, or that is not private (None)."""
    # Well below one over the number of rows.
    privacy = None if epsilon is None else DP(epsilon=epsilon, delta=1e-6, seed=seed)
    return SGDClassifier(privacy=privacy, max_iter=passes, policy="allreduce").fit(X, y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.03, 0.1, 0.3, 1.0])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--passes", type=int, default=10)
    # Whoever knows the seed can take the noise away again: for tests alone.
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    X, y = make_classification(arguments.rows, 30, n_informative=8, random_state=0)
    X /= 4  # by a bound that is known: rows of norm 1 to 2 lose little to clip=1
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        rows = da.from_array(X_train, chunks=(5_000, -1)), da.from_array(y_train, chunks=5_000)
        print("epsilon  accuracy   noise  spent at half")
        for epsilon in [*arguments.epsilon, None]:
            clf = train(*rows, epsilon, arguments.passes, arguments.seed)
            accuracy = float(clf.score(X_test, y_test))
            if epsilon is None:
                print(f"{'none':>7}  {accuracy:8.4f}")
                continue
            half = clf.history_[(len(clf.history_) - 1) // 2]["epsilon"]
            noise = clf.privacy_spent_.noise_multiplier
            print(f"{epsilon:7g}  {accuracy:8.4f}  {noise:6.2f}  {half:13.3f}")


if __name__ == "__main__":
    main()
