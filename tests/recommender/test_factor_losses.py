"""A worker killed during a pass does not change the factors of a lock-step fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.recommender import MatrixFactorization

rng = np.random.default_rng(0)
N_ROWS = 12_000
RATINGS = pd.DataFrame(
    {
        "user": rng.integers(0, 3000, N_ROWS),
        "item": rng.integers(0, 500, N_ROWS),
        "rating": rng.integers(1, 6, N_ROWS),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sync", "allreduce", "ssp", "async", "hogwild"])
def test_a_kill_during_a_pass_changes_nothing(
    crew: LocalCluster, tmp_path: Path, policy: str
) -> None:
    class Killer:
        def __init__(self, mark: Path) -> None:
            self.mark = mark

        def on_step_end(self, step: Any) -> None:
            import os
            import signal
            import time

            time.sleep(5e-4)  # otherwise the fit would end before the kill is detected
            if step.lane == 1 and step.clock == 700 and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    # Two servers: a single one on one host would leave sums of gradients to the trainers.
    run = Run(n_lanes=3, n_servers=2 if policy == "sync" else 1, deterministic=True)
    model = MatrixFactorization(
        4, max_iter=20, batch_size=64, policy=policy, run=run, random_state=0
    )
    frame = dd.from_pandas(RATINGS, npartitions=6, sort=False)
    with Client(crew) as client:
        client.wait_for_workers(3)
        undisturbed = model.fit(frame)
        factors, losses = (
            undisturbed.item_factors_,
            [record["loss"] for record in undisturbed.history_],
        )
        mark = tmp_path / "killed"
        model.set_params(callbacks=Killer(mark)).fit(frame)
    assert mark.exists()
    assert model.history_.extra["generations"]
    assert [record["rows"] for record in model.history_] == [N_ROWS] * 20
    if policy in ("sync", "allreduce"):
        np.testing.assert_array_equal(model.item_factors_, factors)
        assert [record["loss"] for record in model.history_] == pytest.approx(losses)
    assert model.history_[-1]["loss"] < 0.5 * losses[0]
