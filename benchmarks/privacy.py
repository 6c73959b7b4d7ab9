"""Private fits: accuracy compared with Opacus and diffprivlib, the accountants' epsilon, rates."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import OneHotEncoder, minmax_scale

from benchmarks._common import data_folder, markdown, read_a9a
from daskml_dist import DP
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.privacy import compute_epsilon, compute_step_rdp

DELTA = 1e-5
BUDGETS = (1.0, 3.0, 8.0)
#: Number of fits in each cell: of ours, and of peers.
SEEDS, PEER_SEEDS = 5, 3
PASSES, BATCH_ROWS, HIDDEN = 20, 256, 64


def run(tiny: bool = False) -> str:
    """Return the tables."""
    return "\n\n".join([_accuracies(tiny), _epsilons(tiny), _rates(tiny)])


# -- accuracy --------------------------------------------------------------------------------------


def read_adult() -> tuple[Any, Any, Any, Any]:
    """Return Adult: one-hot categories, and numbers scaled by bounds from its description."""

    def read(name: str) -> list[list[str]]:
        lines = (data_folder() / "adult" / name).read_text().splitlines()
        return [line.rstrip(".").split(", ") for line in lines if line.count(",") == 14]

    train, test = read("adult.data"), read("adult.test")
    categories = OneHotEncoder(sparse_output=False, handle_unknown="ignore", dtype=np.float32)
    named = [1, 3, 5, 6, 7, 8, 9, 13]
    categories.fit([[row[i] for i in named] for row in train])

    def convert(rows: list[list[str]]) -> tuple[Any, Any]:
        # Age, years of education, capital gains and losses (mostly 0), weekly hours.
        given = np.array([[float(row[i]) for i in (0, 4, 10, 11, 12)] for row in rows])
        given[:, 2:4] = np.log1p(given[:, 2:4])
        bounds = np.array([90, 16, np.log1p(99_999), np.log1p(4_356), 99])
        hot = categories.transform([[row[i] for i in named] for row in rows])
        X = np.hstack([given / bounds, hot]).astype(np.float32)
        return X, np.array([row[14] == ">50K" for row in rows]).astype(int)

    return *convert(train), *convert(test)


def _problems(tiny: bool) -> dict[str, tuple[Any, Any, Any, Any]]:
    if tiny:
        X, y = load_breast_cancer(return_X_y=True)
        X = minmax_scale(X).astype(np.float32)
        return {"breast cancer": (X, y, X, y)}
    X, y, X_test, y_test = read_a9a()
    signs = (y > 0).astype(int), (y_test > 0).astype(int)
    return {
        "adult": read_adult(),
        "a9a": (X.toarray(), signs[0], X_test.toarray(), signs[1]),
    }


Fit = Callable[[Any, Any, float | None, int], Callable[[Any], Any]]


def _fit_linear(X: Any, y: Any, epsilon: float | None, seed: int) -> Callable[[Any], Any]:
    privacy = None if epsilon is None else DP(epsilon, DELTA, seed=seed)
    clf = SGDClassifier(privacy=privacy, random_state=seed, batch_size=BATCH_ROWS)
    return clf.fit(X, y).predict  # type: ignore[no-any-return]


def _fit_network(X: Any, y: Any, epsilon: float | None, seed: int) -> Callable[[Any], Any]:
    privacy = None if epsilon is None else DP(epsilon, DELTA, seed=seed)
    clf = MLPClassifier(
        (HIDDEN,), privacy=privacy, random_state=seed, batch_size=BATCH_ROWS, max_iter=PASSES,
        learning_rate_init=0.002,
    )  # fmt: skip
    return clf.fit(X, y).predict  # type: ignore[no-any-return]


def _fit_opacus(network: bool) -> Fit:
    """Fit the same model, optimizer, rate, batches and passes by Opacus."""

    def fit(X: Any, y: Any, epsilon: float | None, seed: int) -> Callable[[Any], Any]:
        import torch
        from opacus import PrivacyEngine

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        n = X.shape[1]
        layers = [torch.nn.Linear(n, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)]
        model: Any = torch.nn.Sequential(*(layers if network else [torch.nn.Linear(n, 1)]))
        make = torch.optim.Adam if network else torch.optim.Adagrad
        optimizer: Any = make(model.parameters(), lr=0.002 if network else 0.05)
        rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y, dtype=torch.float32))
        loader: Any = torch.utils.data.DataLoader(rows, batch_size=BATCH_ROWS, shuffle=True)
        if epsilon is not None:
            model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private_with_epsilon(
                module=model, optimizer=optimizer, data_loader=loader, epochs=PASSES,
                target_epsilon=epsilon, target_delta=DELTA, max_grad_norm=1.0,
            )  # fmt: skip
        loss = torch.nn.BCEWithLogitsLoss()
        for _ in range(PASSES):
            for some, targets in loader:
                if not len(some):
                    continue
                optimizer.zero_grad()
                loss(model(some)[:, 0], targets).backward()
                optimizer.step()
        return lambda given: (model(torch.tensor(given))[:, 0] > 0).numpy().astype(int)

    return fit


#: Fits and predicts in a process with diffprivlib, which needs an older scikit-learn.
_DIFFPRIVLIB = """
import sys
import numpy as np
from diffprivlib.models import LogisticRegression
given = np.load(sys.argv[1])
largest = float(np.linalg.norm(given["X"], axis=1).max())
epsilon = float(given["epsilon"])
clf = LogisticRegression(
    epsilon=epsilon, data_norm=largest, max_iter=500, random_state=int(given["seed"])
)
np.save(sys.argv[2], clf.fit(given["X"], given["y"]).predict(given["X_test"]))
"""


def _fit_diffprivlib(X: Any, y: Any, epsilon: float | None, seed: int) -> Callable[[Any], Any]:
    def predict(X_test: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder, "given.npz"), Path(folder, "found.npy")
            limit = np.inf if epsilon is None else epsilon
            np.savez(given, X=X, y=y, X_test=X_test, epsilon=limit, seed=seed)
            command = [sys.executable, "-W", "ignore", "-c", _DIFFPRIVLIB, str(given), str(found)]
            environment = os.environ | {"PYTHONPATH": str(_peer_folder("diffprivlib"))}
            subprocess.run(command, check=True, env=environment)
            return np.load(found)

    return predict


def _peer_folder(name: str) -> Path | None:
    """Return the folder of a peer whose dependencies conflict with ours."""
    given = os.environ.get("DASKML_DIST_PEERS")
    folder = Path(given or ".", name)
    return folder if given and folder.is_dir() else None


def _is_here(package: str | None) -> bool:
    if package is None:
        return True
    if package == "diffprivlib":
        return _peer_folder(package) is not None
    return importlib.util.find_spec(package) is not None


def _accuracies(tiny: bool) -> str:
    fits: dict[str, tuple[str | None, Fit]] = {
        "`SGDClassifier`": (None, _fit_linear),
        "Opacus, same model": ("opacus", _fit_opacus(network=False)),
        "diffprivlib `LogisticRegression`": ("diffprivlib", _fit_diffprivlib),
        f"`MLPClassifier(({HIDDEN},))`": (None, _fit_network),
        f"Opacus, same network ({HIDDEN},)": ("opacus", _fit_opacus(network=True)),
    }
    rows = []
    for data, (X, y, X_test, y_test) in _problems(tiny).items():
        for name, (package, fit) in fits.items():
            if not _is_here(package):
                rows.append([data, name, *["not installed"] * (2 if tiny else len(BUDGETS) + 1)])
                continue
            seeds = range(1 if tiny else SEEDS if package is None else PEER_SEEDS)
            cells = []
            for epsilon in (*BUDGETS[:1], None) if tiny else (*BUDGETS, None):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # fits without a tolerance do not converge
                    predicts = [fit(X, y, epsilon, seed) for seed in seeds]
                scores = [float(np.mean(predict(X_test) == y_test)) for predict in predicts]
                spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
                cells.append(f"{statistics.mean(scores):.4f}{spread}")
            rows.append([data, name, *cells])
    budgets = [f"epsilon {epsilon:g}" for epsilon in (BUDGETS[:1] if tiny else BUDGETS)]
    title = (
        f"Test accuracy at delta {DELTA:g}, {PASSES} passes, batches of {BATCH_ROWS} rows, clip 1 "
        f"(mean and standard deviation of {SEEDS} fits, {PEER_SEEDS} for peers; "
        "diffprivlib's delta is 0)"
    )
    return markdown(title, ["data", "fit", *budgets, "without privacy"], rows)


# -- the accountant --------------------------------------------------------------------------------

#: Sampling rate, noise multiplier, number of steps.
_MECHANISMS = [
    (0.01, 1.0, 1000), (0.005, 2.0, 4000), (0.001, 0.6, 20_000), (0.1, 3.0, 100), (0.5, 1.0, 100),
    (1.0, 30.0, 50),
]  # fmt: skip


def _epsilons(tiny: bool) -> str:
    rows = []
    for rate, multiplier, steps in _MECHANISMS[: 1 if tiny else None]:
        own = compute_epsilon(steps * compute_step_rdp(rate, multiplier), DELTA)
        cells = [f"{own:.9f}"]
        for package, compute in (("opacus", _of_opacus), ("dp_accounting", _of_dp_accounting)):
            missing = importlib.util.find_spec(package) is None
            found = None if missing else compute(rate, multiplier, steps)
            cells.append("not installed" if found is None else f"{found:.9f}")
        rows.append([rate, multiplier, steps, *cells])
    columns = ["sampling rate", "noise multiplier", "steps", "epsilon", "Opacus", "dp-accounting"]
    return markdown(f"Epsilon of three accountants (Rényi, delta {DELTA:g})", columns, rows)


def _of_opacus(rate: float, multiplier: float, steps: int) -> float:
    from opacus.accountants.analysis import rdp

    from daskml_dist.privacy import RDP_ORDERS

    found = rdp.compute_rdp(q=rate, noise_multiplier=multiplier, steps=steps, orders=RDP_ORDERS)
    return float(rdp.get_privacy_spent(orders=RDP_ORDERS, rdp=found, delta=DELTA)[0])


def _of_dp_accounting(rate: float, multiplier: float, steps: int) -> float:
    import logging

    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns about orders that it leaves out
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return float(RdpAccountant().compose(step, steps).get_epsilon(DELTA))


# -- rates -----------------------------------------------------------------------------------------


def _rates(tiny: bool) -> str:
    rng, rows = np.random.default_rng(0), []
    n_rows = 2_000 if tiny else 200_000
    for n_features in (14, 100, 784)[: 1 if tiny else None]:
        X = rng.standard_normal((n_rows, n_features)).astype(np.float32)
        y = (X[:, 0] + X[:, 1] > 0).astype(int)
        for batch in (256, 1024, 4096)[: 1 if tiny else None]:
            params: dict[str, Any] = {"batch_size": batch, "max_iter": 8, "learning_rate": 0.05}
            rows.append(
                [f"`SGDClassifier`, {n_features}", batch, *_compare(SGDClassifier, params, X, y)]
            )
    X, y = X[: 2_000 if tiny else 50_000, :100], y[: 2_000 if tiny else 50_000]
    for batch in (256, 1024)[: 1 if tiny else None]:
        params = {"hidden_layer_sizes": (100,), "batch_size": batch, "max_iter": 6}
        rows.append(
            [
                f"`MLPClassifier((100,))`, {X.shape[1]}",
                batch,
                *_compare(MLPClassifier, params, X, y),
            ]
        )
    columns = ["fit, features", "batch size", "private, rows/s", "ordinary, rows/s", "ratio"]
    return markdown(
        "Rates of fits in one process (float32, best pass of three fits)", columns, rows
    )


def _compare(kind: Any, params: dict[str, Any], X: Any, y: Any) -> list[str]:
    """Return the best rates of alternating private and plain fits, and their ratio."""
    best = {True: 0.0, False: 0.0}
    for _ in range(3):
        for private in best:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit = kind(privacy=DP(3.0, DELTA) if private else None, tol=None, **params)
                fit.fit(X, y)
            best[private] = max(best[private], *fit.history_.rows_per_second)
    private, plain = best[True], best[False]
    return [f"{private:,.0f}", f"{plain:,.0f}", f"{private / plain:.2f}"]
