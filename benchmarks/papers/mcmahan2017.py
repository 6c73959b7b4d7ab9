"""McMahan et al. 2017 (FedAvg): clients with two classes each; every round draws some of them.

Real fits under `FederatedAveraging`, without a cluster, by the accuracy on test rows after each
round: FedAvg, FedProx (Li et al. 2020), FedAdam and FedAvgM (Reddi et al. 2021, Hsu et al. 2019).
Every method has its best local learning rate, chosen on a separate partition. A second table has
stragglers, which FedAvg drops, while FedProx uses the steps that they have made.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
#: Learning rates of FedSGD, whose clients make one step with a full batch in a round.
SGD_RATES = (0.1, 0.3, 1.0)
#: Clients, rows of a local batch, local epochs, rounds, and rounds for choosing a rate.
CLIENTS, BATCH, EPOCHS, ROUNDS, TRIED_ROUNDS = 100, 20, 5, 40, 20
#: Share of the clients that a round draws.
FRACTION = 0.1
#: Number of last rounds whose mean accuracy counts: that of one round depends on the drawn clients.
LAST = 10
#: Rows of MNIST to train and to test on: a few minutes on one core.
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

#: Second table: share of drawn clients that are late, local epochs, batch, rounds, clients.
LATE, LATE_EPOCHS, LATE_BATCH, LATE_ROUNDS, LATE_CLIENTS = 0.9, 20, 10, 60, 60
LATE_RATES = (0.1, 0.3)
LATE_METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, stragglers are dropped": {"drops": True},
    "stragglers send partial work": {},
    "the same, FedProx, mu 0.01": {"proximal": 0.01},
    "the same, FedProx, mu 0.1": {"proximal": 0.1},
    "the same, FedProx, mu 1": {"proximal": 1.0},
}


@dataclass(frozen=True)
class Straggling(FederatedAveraging):
    """Federated averaging with stragglers, which make only a part of their steps.

    Parameters
    ----------
    drops : bool
        Whether stragglers are left out of their round; otherwise the steps that they made count.
    """

    drops: bool = False

    def draw_clients(self, seed: int, number: int, rows: Sequence[int]) -> list[int]:
        """Return the clients of a round; at least one is not left out."""
        drawn = super().draw_clients(seed, number, rows)
        late = [_lateness(seed, number, client) < LATE for client in drawn]
        there = [client for client, is_late in zip(drawn, late, strict=True) if not is_late]
        return (there or drawn[:1]) if self.drops else drawn

    def limit_client_steps(self, seed: int, number: int, client: int, n_steps: int) -> int:
        """Return the number of steps of a client; for a late client it is random."""
        # Below LATE the draw is uniform, so it also determines how far the client got.
        share = _lateness(seed, number, client) / LATE
        return n_steps if share >= 1 else 1 + int(share * n_steps)


def _lateness(seed: int, number: int, client: int) -> float:
    """Return a draw from [0, 1) for a client and a round, the same for all methods."""
    return float(np.random.default_rng([seed, number, client]).random())


@dataclass(frozen=True)
class Method:
    """Local learning rate of a method, and the accuracies of its fits by seed and round."""

    rate: float
    accuracies: NDArray[np.float64]

    @property
    def last(self) -> NDArray[np.float64]:
        """Return the mean accuracy of the last rounds, for each seed."""
        found: NDArray[np.float64] = self.accuracies[:, -LAST:].mean(axis=1)
        return found


@dataclass(frozen=True)
class Figures:
    """Methods by name, and the name of the training data."""

    data: str
    n_rows: int
    methods: dict[str, Method]
    late: dict[str, Method]


def measure(tiny: bool = False, real: bool = False) -> Figures:
    """Return the accuracies of all methods."""
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
    return Figures(data.name, len(data.y), found, measure_late(tiny))


def measure_late(tiny: bool = False) -> dict[str, Method]:
    """Return accuracies with stragglers on scikit-learn's digits, at each method's better rate."""
    data = _Data(real=False, tiny=tiny, clients=LATE_CLIENTS, rounds=LATE_ROUNDS)
    found = {}
    for name, own in list(LATE_METHODS.items())[: 2 if tiny else None]:
        policy = Straggling(1 / 6, local_epochs=2 if tiny else LATE_EPOCHS, **own)
        runs = [
            Method(rate, np.array([data.fit(policy, rate, seed, LATE_BATCH, LATE_ROUNDS)
                                   for seed in range(1 if tiny else SEEDS)]))
            for rate in LATE_RATES
        ]  # fmt: skip
        found[name] = max(runs, key=lambda method: float(method.last.mean()))
    return found


class _Data:
    """Digits: rows to distribute among clients, and rows for testing."""

    def __init__(
        self, real: bool, tiny: bool, clients: int = CLIENTS, rounds: int = ROUNDS
    ) -> None:
        self.clients, self.rounds = (10, 3) if tiny else (clients, rounds)
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
        """Return the accuracy of a method after each round."""
        own = METHODS[method]
        work = {} if "local_steps" in own else {"local_epochs": EPOCHS}
        policy = FederatedAveraging(FRACTION, **work, **own)
        return self.fit(policy, rate, seed, BATCH if work else len(self.y), rounds)

    def fit(
        self, policy: FederatedAveraging, rate: float, seed: int, batch: int, rounds: int
    ) -> NDArray[np.float64]:
        """Return accuracies after each round; the seed sets partition, clients and start."""
        parted = partition_by_class(self.X, self.y, self.clients, random_state=seed)
        # Clients have equal sizes, so equal lanes of consecutive rows are the clients.
        X, y = (part.compute(scheduler="sync") for part in parted)
        clf = MLPClassifier(
            (64,), policy=policy, solver="sgd", momentum=0.0, learning_rate_init=rate,
            batch_size=batch, alpha=0.0, max_iter=min(rounds, self.rounds), tol=None,
            random_state=seed, run=Run(n_lanes=self.clients),
        )  # fmt: skip
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clf.fit(X, y, eval_set=(self.X_test, self.y_test), client="inline")
        return np.array([record["eval_score"] for record in clf.history_])


def table(figures: Figures) -> str:
    """Return a row for each method, and a second table with stragglers."""
    some = next(iter(figures.methods.values())).accuracies
    first = _compare(
        f"McMahan et al. 2017: test accuracy of a perceptron with 64 hidden units, mean of the "
        f"last {min(LAST, some.shape[1])} of {some.shape[1]} rounds and of {len(some)} seeds, on "
        f"{figures.n_rows:,} rows of {figures.data} partitioned by class, two for each client; a "
        f"tenth of the clients a round, {EPOCHS} local epochs, batches of {BATCH}",
        figures.methods,
    )
    late = next(iter(figures.late.values())).accuracies
    second = _compare(
        f"Li et al. 2020: the same on scikit-learn's digits, {LATE_CLIENTS} clients, ten drawn "
        f"per round, {LATE_EPOCHS} local epochs, batches of {LATE_BATCH}, {late.shape[1]} rounds; "
        f"{LATE:.0%} of the drawn are late",
        figures.late,
    )
    return f"{first}\n\n{second}"


def _compare(title: str, methods: dict[str, Method]) -> str:
    """Return a table of methods compared with the first of them."""
    first = next(iter(methods.values())).last
    rows = []
    for name, method in methods.items():
        # A seed is a partition, so methods are compared seed by seed.
        gain = method.last - first
        error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.nan
        rows.append([
            name, f"{method.rate:g}", f"{method.last.mean():.3f}",
            f"{method.accuracies[:, -LAST:].std(axis=1).mean():.3f}",
            f"{gain.mean():+.3f} ± {error:.3f}" if gain.any() else "",
        ])  # fmt: skip
    columns = [
        "method",
        "local rate",
        "accuracy",
        "std over rounds",
        "difference from the first (std. error)",
    ]
    return markdown(title, columns, rows)


def draw(figures: Figures, path: Path) -> None:
    """Draw the accuracy by rounds."""
    with small_picture(path, 1) as (ax,):
        for (name, method), (style, colour) in zip(figures.methods.items(), STYLES, strict=False):
            mean = method.accuracies.mean(axis=0)
            # The accuracy of a round depends on the drawn clients: use a running mean of five.
            smooth = np.convolve(mean, np.ones(5) / 5, "valid") if len(mean) > 5 else mean
            rounds = np.arange(len(smooth)) + 1 + len(mean) - len(smooth)
            ax.plot(rounds, smooth, style, color=colour, label=name)
        label(ax, f"{figures.data}, two classes a client", "round", "test accuracy", "method")
