"""Rows of lost workers are sent or read again, or reported as lost."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

from daskml_dist import Run
from daskml_dist.dask_internals.cluster import list_workers
from daskml_dist.errors import DataLostError
from daskml_dist.policies import FederatedAveraging
from tests.lost_workers import wait_for_three
from tests.training.recovery.strikes import (
    N_ROWS,
    Strike,
    check_fit,
    first_of,
    kill_worker,
    lazy_rows,
    make_classifier,
    make_rows,
    workers_of,
)


@pytest.mark.slow
def test_lost_rows_in_the_clients_memory_are_sent_again(crew_client: Client) -> None:
    strike = Strike(lambda run: kill_worker(crew_client, workers_of(run, "trainer").pop()))
    X, y = make_rows()
    undisturbed = make_classifier("sync").fit(X, y)
    clf = make_classifier("sync", strike).fit(X, y)
    assert strike.events
    assert {record["rows"] for record in clf.history_.records} == {N_ROWS}
    np.testing.assert_allclose(clf.coef_, undisturbed.coef_, rtol=1e-6)


@pytest.mark.slow
def test_lost_persisted_rows_are_recomputed(crew_client: Client) -> None:
    X, y = (part.persist() for part in lazy_rows())
    wait([X, y])
    strike = Strike(lambda run: kill_worker(crew_client, workers_of(run, "trainer").pop()))
    clf = make_classifier("sync", strike).fit(X, y)
    assert strike.events
    check_fit(clf, "sync")


def _scattered(client: Client) -> tuple[Any, Any]:
    """Return scattered rows that cannot be recomputed, each block on one worker."""
    X, y = make_rows()
    workers = sorted(list_workers(client))
    parts = []
    for number, rows in enumerate(np.array_split(np.arange(N_ROWS), 6)):
        future = client.scatter([(X[rows], y[rows])], workers=[workers[number % 3]], hash=False)[0]
        parts.append(dask.delayed(future))
    X_parts = [da.from_delayed(p[0], (1_000, 8), dtype="float64") for p in parts]
    y_parts = [da.from_delayed(p[1], (1_000,), dtype=bool) for p in parts]
    return da.concatenate(X_parts), da.concatenate(y_parts)


@pytest.mark.slow
def test_federated_clients_with_lost_rows_are_not_sampled(crew_client: Client) -> None:
    wait_for_three(crew_client)
    X, y = _scattered(crew_client)
    strike = Strike(lambda run: kill_worker(crew_client, workers_of(run, "trainer").pop()))
    clf = make_classifier(FederatedAveraging(1.0), strike, run=Run(on_lost_data="skip"))
    clf.fit(X, y)
    lost = clf.history_.extra["lost_rows"]
    assert lost in (1_000, 2_000)
    last = clf.history_[-1]
    assert (len(last["clients"]), last["rows"]) == (6 - lost // 1_000, N_ROWS - lost)
    assert clf.score(*make_rows()) > 0.85


def test_rows_that_the_user_cancels_during_a_fit_are_named(crew_client: Client) -> None:
    wait_for_three(crew_client)
    X, y = crew_client.persist(list(_scattered(crew_client)))
    wait([X, y])
    strike = Strike(lambda run: crew_client.cancel([X, y], force=True))
    with pytest.raises(DataLostError, match=r"cancelled, .* Cancel rows only after the fit"):
        make_classifier("sync", strike).fit(X, y)


@pytest.mark.parametrize("policy", first_of("allreduce", "sync", "async"))
def test_permanently_lost_rows_raise_or_are_skipped(crew_client: Client, policy: str) -> None:
    for mode in ("raise", "skip"):
        wait_for_three(crew_client)
        X, y = _scattered(crew_client)
        strike = Strike(lambda run: kill_worker(crew_client, workers_of(run, "trainer").pop()))
        clf = make_classifier(policy, strike, run=Run(on_lost_data=mode))
        if mode == "raise":
            with pytest.raises(DataLostError, match=r"persist\(\) rather than scatter"):
                clf.fit(X, y)
            continue
        clf.fit(X, y)
        # One of the two blocks may have a copy on a worker that used it.
        lost = clf.history_.extra["lost_rows"]
        assert lost in (1_000, 2_000)
        # A fit without a standby yet, as on a busy machine, restarts without the lost rows.
        at_first = N_ROWS - lost if strike.events[0].restarted else N_ROWS
        assert clf.history_.records[0]["rows"] == at_first
        assert clf.history_.records[-1]["rows"] == N_ROWS - lost
        assert clf.score(*make_rows()) > 0.85
        del X, y
