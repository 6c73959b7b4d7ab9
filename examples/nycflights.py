"""Delays of flights: Parquet, rows with missing values dropped lazily, scaling and regression.

    python examples/nycflights.py FOLDER --policy sync

FOLDER holds ``flights.parquet``; default: where ``python examples/fetch.py nycflights`` puts it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from distributed import Client, LocalCluster
from fetch import data_folder, require
from sklearn.pipeline import make_pipeline

from daskml_dist.linear_model import SGDRegressor
from daskml_dist.metrics import r2_score, root_mean_squared_error
from daskml_dist.policies import POLICIES
from daskml_dist.preprocessing import StandardScaler

FEATURES = ["dep_delay", "distance", "hour", "air_time"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("nycflights"))
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=["sync"])
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    path = arguments.folder / "flights.parquet"
    require(parser, "nycflights", path)
    import dask.dataframe as dd

    frame = dd.read_parquet(path, split_row_groups=True, columns=[*FEATURES, "arr_delay"])
    frame = frame.dropna()  # lazy: nobody knows how many rows are left
    X, y = frame[FEATURES], frame["arr_delay"]
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        for policy in arguments.policy:
            model = make_pipeline(StandardScaler(), SGDRegressor(policy=policy, random_state=0))
            model.fit(X, y)
            predicted = model.predict(X)
            rmse, r2 = root_mean_squared_error(y, predicted), r2_score(y, predicted)
            print(f"{policy:10s} RMSE {rmse:.3f}  R2 {r2:.4f}  passes {model[-1].n_iter_}")


if __name__ == "__main__":
    main()
