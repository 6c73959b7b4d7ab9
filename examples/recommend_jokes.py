"""Jokes that somebody may like, from the jokes that he and others have rated.

    python examples/recommend_jokes.py --picture jokes.png

reads the Jester ratings (24,983 users, 100 jokes, ratings from -10 to 10; ``jester-data-1.zip`` in
a folder, by default where ``python examples/fetch.py jester`` puts it), keeps some of them apart,
learns factors of the others on a local cluster, and tells how well the ones kept apart are
predicted, and what some users should read next.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from fetch import data_folder, require

from daskml_dist.metrics import root_mean_squared_error
from daskml_dist.recommender import ALS

FILE = "jester-data-1.zip"
#: Marks a joke that was not rated.
MISSING = 99


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("jester"))
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument("--held-out", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", type=Path, help="where to draw the jokes by their factors")
    arguments = parser.parse_args()
    path = arguments.folder / FILE
    require(parser, "jester", path)
    ratings = read(path).sample(frac=1, random_state=0)
    held_out, rest = ratings[: arguments.held_out], ratings[arguments.held_out :]
    print(f"{len(rest):,} ratings, {len(held_out):,} held out, {arguments.workers} workers")
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        size = -(-len(rest) // (2 * arguments.workers))
        parts = [rest[at : at + size] for at in range(0, len(rest), size)]
        frame = dd.from_delayed(client.scatter(parts))
        start = time.perf_counter()
        model = ALS(arguments.rank, biases=True, max_iter=arguments.sweeps, random_state=0)
        model.fit(frame)
        print(f"{model.n_iter_} sweeps in {time.perf_counter() - start:.1f} s")
        mean = np.full(len(held_out), rest["rating"].mean())
        before = root_mean_squared_error(held_out["rating"], mean)
        after = root_mean_squared_error(held_out["rating"], model.predict(held_out))
        print(f"held-out RMSE {after:.3f}, of the mean rating {before:.3f}")
        users = held_out["user"].unique()[:3]
        for user, best in model.recommend(users, n=3).groupby("user", sort=False):
            jokes = ", ".join(
                f"{joke} ({score:.1f})" for joke, score in best[["item", "score"]].values
            )
            print(f"user {user}: {jokes}")
    if arguments.picture:
        draw(model, arguments.picture)


def read(path: Path) -> pd.DataFrame:
    """Ratings, one a row."""
    with zipfile.ZipFile(path) as folder, folder.open(folder.namelist()[0]) as file:
        # As published it is a sheet of Excel, which pandas reads by xlrd.
        reader = pd.read_excel if folder.namelist()[0].endswith(".xls") else pd.read_csv
        table = reader(file, header=None).to_numpy(np.float64)[:, 1:]
    users, jokes = np.nonzero(table != MISSING)
    names = [f"joke {number}" for number in range(1, table.shape[1] + 1)]
    items = pd.Categorical.from_codes(jokes, names).astype(str)
    return pd.DataFrame({"user": users, "item": items, "rating": table[users, jokes]})


def draw(model: Any, path: Path) -> None:
    """Draw the jokes by the two strongest directions of their factors, and the losses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
    centred = model.item_factors_ - model.item_factors_.mean(axis=0)
    axes = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    points = left.scatter(*axes.T, c=model.mean_ + model.item_biases_, cmap="coolwarm", s=30)
    for name, at in zip(model.item_ids_, axes, strict=True):
        left.annotate(name.removeprefix("joke "), at, fontsize=6, xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    figure.colorbar(points, label="mean rating")
    left.set(title="jokes that are liked alike", xlabel="first direction", ylabel="second")
    losses = [record["loss"] for record in model.history_]
    right.plot(range(1, len(losses) + 1), losses, marker="o")
    right.set(title="error of the ratings trained on", xlabel="sweep", ylabel="RMSE")
    figure.savefig(path, dpi=120)
    print(f"drawn to {path}")


if __name__ == "__main__":
    main()
