"""Forests on a cluster: what each feature is worth, and whether probabilities can be trusted.

    python examples/forests.py
    python examples/forests.py --rows 500000 --picture forests.png

grows a random forest and extremely randomised trees on drawn rows of two classes, tells their
scores (of rows not drawn, too), shows that both decompositions grow the same trees, and with
--picture draws importances and calibration (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from daskml_dist.ensemble import ExtraTreesClassifier, RandomForestClassifier


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--trees", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", type=Path, help="file to draw importances and calibration to")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        X, y = drawn(arguments.rows)
        models = {
            "random forest": RandomForestClassifier(
                arguments.trees, random_state=0, oob_score=True, min_samples_leaf=5
            ),
            "extra trees": ExtraTreesClassifier(
                arguments.trees, random_state=0, min_samples_leaf=5
            ),
        }
        shares = {}
        for name, model in models.items():
            start = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - start
            shares[name] = model.predict_proba(X)[:, 1].compute()
            out_of_bag = f", {model.oob_score_:.4f} out of bag" if model.bootstrap else ""
            print(f"{name}: {seconds:.1f} s, accuracy {model.score(X, y):.4f}{out_of_bag}")
        forest = models["random forest"]
        other = RandomForestClassifier(**{**forest.get_params(), "decomposition": "data"})
        same = np.array_equal(other.fit(X, y).apply(X).compute(), forest.apply(X).compute())
        print(f"the other decomposition grows the same trees: {same}")
        if arguments.picture:
            out = forest.oob_decision_function_[:, 1]
            draw(arguments.picture, models, {"not drawn": out, **shares}, y.compute())


def drawn(n: int) -> tuple[Any, Any]:
    """Rows of eight features, of which five matter, and their classes."""
    state = np.random.default_rng(0)
    X = state.normal(size=(n, 8)).astype(np.float32)
    raw = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + X[:, 3] + 0.5 * X[:, 4] ** 2 - 0.5
    y = (2 * raw + state.logistic(size=n) > 0).astype(np.int64)
    chunk = -(-n // 8)
    return da.from_array(X, chunks=(chunk, -1)).persist(), da.from_array(y, chunks=chunk).persist()


def draw(path: Path, models: dict[str, Any], shares: dict[str, Any], y: Any) -> None:
    """Draw the importances, and how often a class comes that a model gives a probability."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for k, (name, model) in enumerate(models.items()):
        at = np.arange(model.n_features_in_) + 0.4 * k
        left.bar(at, model.feature_importances_, 0.4, label=name)
    left.set(title="importance", xlabel="feature")
    left.legend()
    edges = np.linspace(0, 1, 11)
    for name, share in shares.items():
        bins = np.digitize(share, edges[1:-1])
        there = [b for b in range(10) if (bins == b).any()]
        right.plot(
            [share[bins == b].mean() for b in there], [y[bins == b].mean() for b in there],
            "o-", label=name,
        )  # fmt: skip
    right.plot([0, 1], [0, 1], ":", color="grey")
    right.set(title="calibration", xlabel="probability given", ylabel="how often it comes")
    right.legend()
    figure.savefig(path)
    print(f"drawn to {path}")


if __name__ == "__main__":
    main()
