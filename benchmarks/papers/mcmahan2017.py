"""McMahan et al. 2017 (FedAvg): clients of two classes each, of which every round draws some.

Real fits under `FederatedAveraging`, without a cluster, by the accuracy on test rows after each
round: FedAvg beside FedProx (Li et al. 2020), FedAdam and FedAvgM (Reddi et al. 2021, Hsu et al.
2019). Every method has its best local learning rate, chosen on a partition of its own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from benchmarks._common import markdown, read_mnist
from benchmarks.papers._picture import BLUE, GREEN, GREY, ORANGE, label, small_picture
from daskml_dist import Run
from daskml_dist.datasets import partition_by_class
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import FederatedAveraging

__all__ = ["draw", "measure", "table"]

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedSGD": {"local_steps": 1},
    "FedProx, mu 0.1": {"proximal": 0.1},
    "FedProx, mu 1": {"proximal": 1.0},
    "FedAdam, 0.01": {"outer": "adam", "outer_rate": 0.01},
    "FedAdam, 0.03": {"outer": "adam", "outer_rate": 0.03},
    "FedAvgM": {"outer": "momentum", "outer_rate": 0.3},
}
RATES, SEEDS = (0.03, 0.1, 0.3), 5
#: Of FedSGD, whose clients make one step of a full batch in a round.
SGD_RATES = (0.1, 0.3, 1.0)
#: Clients, rows of a local batch, local epochs, rounds, and those for choosing a rate.
CLIENTS, BATCH, EPOCHS, ROUNDS, TRIED_ROUNDS = 100, 20, 5, 40, 20
#: Share of the clients that a round draws.
FRACTION = 0.1
#: Last rounds whose mean accuracy counts: one round's depends much on who was drawn.
LAST = 10
#: Rows of MNIST to learn from, and to test with: a few minutes on one core.
MNIST_ROWS, MNIST_TEST = 20_000, 5_000
STYLES = [
    ("-", GREY),
    ("--", GREY),
    ("--", BLUE),
    ("-", BLUE),
    ("--", ORANGE),
    ("-", ORANGE),
    (":", GREEN),
]


@dataclass(frozen=True)
class Method:
    """Local learning rate of a method, and the accuracies of its fits by seed and round."""

    rate: float
    accuracies: NDArray[np.float64]

    @property
    def last(self) -> NDArray[np.float64]:
        """Mean accuracy of the last rounds, for each seed."""
        found: NDArray[np.float64] = self.accuracies[:, -LAST:].mean(axis=1)
        return found


@dataclass(frozen=True)
class Figures:
    """Methods by name, and the data that they learned from."""

    data: str
    n_rows: int
    methods: dict[str, Method]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Accuracies of all methods."""
    data = _Data(real, tiny)
    seeds = 1 if tiny else SEEDS
    names = list(METHODS)[:2] if tiny else list(METHODS)
    found = {}
    for name in names:
        rates = SGD_RATES if name == "FedSGD" else RATES
        rates = rates[1:2] if tiny else rates
        tried = {r: data.learn(name, r, seeds, TRIED_ROUNDS)[-LAST:].mean() for r in rates}
        rate = max(tried, key=lambda r: float(np.nan_to_num(tried[r])))
        runs = [data.learn(name, rate, seed, ROUNDS) for seed in range(seeds)]
        found[name] = Method(rate, np.array(runs))
    return Figures(data.name, len(data.y), found)


class _Data:
    """Digits: rows to part among clients, and rows to test with."""

    def __init__(self, real: bool, tiny: bool) -> None:
        self.clients, self.rounds = (10, 3) if tiny else (CLIENTS, ROUNDS)
        if real:
            X, y, X_test, y_test = read_mnist()
            self.X, self.y, self.name = X[:MNIST_ROWS], y[:MNIST_ROWS], "MNIST"
            self.X_test, self.y_test = X_test[:MNIST_TEST], y_test[:MNIST_TEST]
            return
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        X, y = (X / 16).astype(np.float32)[order], y[order]
        self.X, self.y, self.X_test, self.y_test = X[597:], y[597:], X[:597], y[:597]
        self.name = "scikit-learn's digits"

    def learn(self, method: str, rate: float, seed: int, rounds: int) -> NDArray[np.float64]:
        """Accuracy after each round; the seed draws partition, clients and first parameters."""
        parted = partition_by_class(self.X, self.y, self.clients, random_state=seed)
        # Clients are alike in size, so that even lanes of rows in their order are the clients.
        X, y = (part.compute(scheduler="sync") for part in parted)
        own = METHODS[method]
        work = {} if "local_steps" in own else {"local_epochs": EPOCHS}
        clf = MLPClassifier(
            (64,), policy=FederatedAveraging(FRACTION, **work, **own), solver="sgd", momentum=0.0,
            learning_rate_init=rate, batch_size=BATCH if work else len(y), alpha=0.0,
            max_iter=min(rounds, self.rounds), tol=None, random_state=seed,
            run=Run(n_lanes=self.clients),
        )  # fmt: skip
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clf.fit(X, y, eval_set=(self.X_test, self.y_test), client="inline")
        return np.array([record["eval_score"] for record in clf.history_])


def table(figures: Figures) -> str:
    """A row for each method."""
    first = next(iter(figures.methods.values())).last
    rows = []
    for name, method in figures.methods.items():
        # Seeds are partitions, so methods are compared seed by seed.
        gain = method.last - first
        error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.nan
        rows.append([
            name, f"{method.rate:g}", f"{method.last.mean():.3f}",
            f"{method.accuracies[:, -LAST:].std(axis=1).mean():.3f}",
            f"{gain.mean():+.3f} ± {error:.3f}" if gain.any() else "",
        ])  # fmt: skip
    some = next(iter(figures.methods.values())).accuracies
    title = (
        f"McMahan et al. 2017: test accuracy of a perceptron with 64 hidden units, mean of the "
        f"last {min(LAST, some.shape[1])} of {some.shape[1]} rounds and of {len(some)} seeds, on "
        f"{figures.n_rows:,} rows of {figures.data} parted by class, two for each client; a tenth "
        f"of the clients a round, {EPOCHS} local epochs, batches of {BATCH}"
    )
    columns = ["method", "local rate", "accuracy", "std of rounds", "beside FedAvg (std. error)"]
    return markdown(title, columns, rows)


def draw(figures: Figures, path: Path) -> None:
    """Accuracy by rounds."""
    with small_picture(path, 1) as (ax,):
        for (name, method), (style, colour) in zip(figures.methods.items(), STYLES, strict=False):
            mean = method.accuracies.mean(axis=0)
            # Rounds jump with who is drawn: a running mean of five.
            smooth = np.convolve(mean, np.ones(5) / 5, "valid") if len(mean) > 5 else mean
            rounds = np.arange(len(smooth)) + 1 + len(mean) - len(smooth)
            ax.plot(rounds, smooth, style, color=colour, label=name)
        label(ax, f"{figures.data}, two classes a client", "round", "test accuracy", "method")
