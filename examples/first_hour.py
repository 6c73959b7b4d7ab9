"""A new user's first hour: own Parquet, a plan, a lost worker, Ctrl-C, going on, saving.

    pip install "daskml-dist[dataframe]"
    python examples/first_hour.py

Everything happens in a folder that is thrown away, on two worker processes of this machine. Each
step says what it shows, and ends the script where it does not.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

from daskml_dist import Run, advise
from daskml_dist.callbacks import Checkpoint
from daskml_dist.linear_model import SGDClassifier

N_ROWS, COLUMNS = 40_000, ["age", "pay", "days", "visits"]


def write_parquet(folder: Path) -> None:
    """Rows of one's own: four files of a table, with a label."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, len(COLUMNS)))
    frame = pd.DataFrame(X, columns=COLUMNS)
    frame["stays"] = np.where(X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=N_ROWS) > 0, "yes", "no")
    for part in range(4):
        frame[part::4].to_parquet(folder / f"{part}.parquet")


class At:
    """Does something once, at the end of a pass."""

    def __init__(self, number: int, action: Any) -> None:
        self.number, self.action = number, action

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == self.number:
            self.action()

    def on_generation(self, run: Any, event: Any) -> None:
        print("   ", event)


def kill_a_worker(client: Client) -> None:
    """End the process of a worker, as the system does that is short of memory."""
    workers = client.run(os.getpid)
    os.kill(next(iter(workers.values())), signal.SIGKILL)


def press_ctrl_c() -> None:
    """What the keys do: a signal to the process, while the fit runs."""
    threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    time.sleep(0.02)


def classifier(**params: Any) -> SGDClassifier:
    """An estimator of 30 passes; two lanes, so that it does not matter who is lost."""
    settings: dict[str, Any] = {"max_iter": 30, "tol": None, "run": Run(n_lanes=2)}
    return SGDClassifier(random_state=0, **settings | params)


def first_hour(folder: Path, client: Client) -> None:
    print("1. Rows of one's own, of Parquet")
    write_parquet(folder)
    frame = dd.read_parquet(folder).persist()
    X, y = frame[COLUMNS], frame["stays"]
    print(f"    {len(frame):,} rows, {', '.join(COLUMNS)}; label stays")

    print("2. A plan: where, and how long")
    labels = (y == "yes").astype(bool).to_dask_array(lengths=True)
    plan = advise(X.to_dask_array(lengths=True), classifier(), labels)
    print("   ", plan.advice)

    print("3. A fit on the cluster, a notebook's worth of output")
    calm = classifier().fit(X, y)
    print(f"    accuracy {calm.score(X, y):.3f} after {calm.n_iter_} passes")
    assert calm.score(X, y) > 0.9
    assert "<svg" in calm._repr_html_()

    print("4. A worker is killed meanwhile: the same coefficients")
    struck = classifier(callbacks=At(5, lambda: kill_a_worker(client))).fit(X, y)
    assert np.array_equal(struck.coef_, calm.coef_)
    print("    equal, to the last digit")

    print("5. Ctrl-C, and going on from the checkpoint")
    saved = Checkpoint(str(folder / "fit.npz"), every=5, resume=True)
    stopped = classifier(checkpoint=saved, callbacks=At(12, press_ctrl_c))
    try:
        stopped.fit(X, y)
    except KeyboardInterrupt:
        print("    interrupted")
    went_on = classifier(checkpoint=saved).fit(X, y)
    assert went_on.n_iter_ == 30
    assert np.array_equal(went_on.coef_, calm.coef_)
    print("    after all 30 passes the same coefficients as undisturbed")

    print("6. Saving, and predicting without a cluster")
    (folder / "model.pkl").write_bytes(pickle.dumps(went_on))
    model = pickle.loads((folder / "model.pkl").read_bytes())
    rows = pd.DataFrame([[1.0, -1.0, 0.0, 0.0]], columns=COLUMNS)
    print(f"    {rows.iloc[0].to_dict()}: {model.predict(rows)[0]}")
    assert model.predict(rows)[0] == "yes"


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,  # a worker is killed, of which Dask would tell at length
        ) as cluster,
        Client(cluster) as client,
    ):
        first_hour(Path(folder), client)
    print("Done.")


if __name__ == "__main__":
    main()
