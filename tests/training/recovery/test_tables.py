"""Fits of growing embedding tables that lose workers neither lose nor duplicate table rows."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.recommender import FactorizationMachineClassifier, TwoTower
from tests.quick import quick
from tests.training.recovery.strikes import make_strike

N_ROWS, N_IDS = 1_200, 400


def _lazy_rows() -> tuple[Any, Any]:
    """Return rows of a user and an item each, labelled by both ids, in blocks."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(N_IDS // 2, size=(2, N_ROWS))
    at = np.stack([users, N_IDS // 2 + items], axis=1).ravel()
    starts = np.arange(0, 2 * N_ROWS + 1, 2)
    X = sparse.csr_array((np.ones(2 * N_ROWS), at, starts), shape=(N_ROWS, N_IDS))
    parts = [da.from_array(X[at : at + 200], asarray=False) for at in range(0, N_ROWS, 200)]
    return da.concatenate(parts), da.from_array(users % 2 == items % 2, chunks=200)


@pytest.mark.parametrize("role", quick(["server", "trainer", "two"], "server"))
def test_a_killed_worker_changes_no_table_row(crew_client: Client, role: str) -> None:
    X, y = _lazy_rows()

    def fit(*callbacks: Any) -> Any:
        return FactorizationMachineClassifier(
            random_state=0, max_iter=60, batch_size=16, callbacks=list(callbacks), admit_after=2,
            run=Run(n_lanes=3, n_servers=2),
        ).fit(X, y)  # fmt: skip

    undisturbed, strike = fit(), make_strike(crew_client, role)
    struck = fit(strike)
    assert strike.struck
    assert not strike.events[0].restarted
    np.testing.assert_array_equal(struck.ids_, undisturbed.ids_)
    np.testing.assert_array_equal(struck.weights_, undisturbed.weights_)
    np.testing.assert_array_equal(struck.vectors_, undisturbed.vectors_)


def test_servers_that_share_a_worker_after_a_loss_lose_nothing(crew_client: Client) -> None:
    """Whether one of them moves on depends on the workers of the standbys."""
    X, y = _lazy_rows()

    def fit(*callbacks: Any, max_iter: int = 10**6) -> Any:
        return FactorizationMachineClassifier(
            random_state=0, max_iter=max_iter, batch_size=100, callbacks=list(callbacks),
            run=Run(n_lanes=3, n_servers=4),
        ).fit(X, y)  # fmt: skip

    strike, n_servers = make_strike(crew_client, "server"), []

    class UntilSpread:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            if strike.events:
                n_servers.append(len(set(run.server_addresses)))
                if n_servers[-1] == 3 or len(n_servers) == 150:
                    run.stop()

    struck = fit(strike, UntilSpread())
    # The four servers of three workers are now on the two remaining ones.
    assert 2 in n_servers
    assert not any(event.restarted for event in strike.events), strike.events
    undisturbed = fit(max_iter=len(struck.history_.records))
    np.testing.assert_array_equal(struck.ids_, undisturbed.ids_)
    np.testing.assert_array_equal(struck.vectors_, undisturbed.vectors_)


@pytest.mark.slow
def test_a_killed_worker_changes_no_tower(crew_client: Client) -> None:
    """Rows of a frame are hashed again and give the same batches of negatives."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(60, size=(2, N_ROWS))
    chosen = pd.DataFrame({"user": users, "item": [f"item {i}" for i in items]})
    lazy = dd.from_pandas(chosen[users % 2 == items % 2], npartitions=6, sort=False)

    def fit(*callbacks: Any) -> Any:
        return TwoTower(
            8, random_state=0, max_iter=200, batch_size=16, callbacks=list(callbacks),
            hidden_layer_sizes=(8,), run=Run(n_lanes=3, n_servers=2),
        ).fit(lazy)  # fmt: skip

    undisturbed, strike = fit(), make_strike(crew_client, "two")
    struck = fit(strike)
    assert strike.struck
    assert not strike.events[0].restarted
    np.testing.assert_array_equal(struck.ids_, undisturbed.ids_)
    np.testing.assert_array_equal(struck.user_factors_, undisturbed.user_factors_)
    np.testing.assert_array_equal(struck.item_factors_, undisturbed.item_factors_)
