"""Round solvers that lose workers resume from the sums that others remember."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from daskml_dist.decomposition import NMF, LatentDirichletAllocation
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.mixture import GaussianMixture
from tests.training.recovery.strikes import Strike, first_of, make_killer

#: Enough rows for a fit to last longer than killing a worker takes.
N_ROWS = 1_000_000


def _unequal_columns(low: float, high: float, of: int, n_rows: int = N_ROWS) -> tuple[Any, Any]:
    """Return rows with columns scaled from 10**low to 10**high, labelled by one column."""
    rng = da.random.default_rng(0)
    X = rng.normal(size=(n_rows, 20), chunks=(n_rows // 10, -1)) * np.logspace(low, high, 20)
    return X, X[:, of] + rng.normal(size=n_rows, chunks=n_rows // 10) > 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("role", first_of("both", "trainer", "server"))
def test_a_round_solver_resumes_from_remembered_sums(crew_client: Client, role: str) -> None:
    # The fit cannot end without the lost worker, so it need not last long.
    X, y = _unequal_columns(-2, 2, of=3, n_rows=N_ROWS // 4)

    def fit(*callbacks: Any) -> LogisticRegression:
        clf = LogisticRegression(
            max_iter=60, tol=0, run=Run(n_lanes=3, deterministic=True), callbacks=list(callbacks)
        )
        return clf.fit(X, y)

    # Not in the first passes, which others may not remember yet on a busy machine.
    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0, passes=5)
    clf = fit(strike)
    assert strike.events
    assert not strike.events[0].restarted
    assert strike.events[0].lost_versions <= 1
    np.testing.assert_array_equal(clf.coef_, undisturbed.coef_)
    assert clf.n_iter_ == undisturbed.n_iter_
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(undisturbed.history_) + 1))
    assert {record["rows"] for record in records} == {len(X)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_mixture_resumes_from_remembered_sums(crew_client: Client) -> None:
    X, _ = _unequal_columns(0, 1, of=3)
    X = X[: N_ROWS // 4].rechunk((N_ROWS // 40, -1))
    start = {"means_init": X[:4].compute(), "weights_init": [0.25] * 4}

    def fit(*callbacks: Any) -> GaussianMixture:
        return GaussianMixture(
            4, max_iter=25, tol=0, precisions_init=[np.eye(20)] * 4, **start,
            run=Run(n_lanes=3, deterministic=True), callbacks=list(callbacks),
        ).fit(X)  # fmt: skip

    undisturbed, strike = fit(), Strike(make_killer(crew_client, "trainer"), after=0.2)
    struck = fit(strike)
    assert strike.events
    assert not strike.events[0].restarted
    np.testing.assert_array_equal(struck.covariances_, undisturbed.covariances_)
    assert struck.lower_bounds_ == undisturbed.lower_bounds_


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("role", ["both", "trainer", "server"])
def test_a_range_solver_resumes_from_the_last_iterate(crew_client: Client, role: str) -> None:
    """The curvature is lost, so it takes other steps to the same optimum."""
    X, y = _unequal_columns(-1, 1, of=10)

    def fit(*callbacks: Any) -> LogisticRegression:
        clf = LogisticRegression(
            max_iter=500, tol=1e-9, run=Run(n_lanes=3), callbacks=list(callbacks)
        )
        with dask.config.set({"daskml_dist.ranges_from": 1}):
            return clf.fit(X, y)

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0.1)
    clf = fit(strike)
    assert strike.events
    assert not strike.events[0].restarted
    np.testing.assert_allclose(clf.coef_, undisturbed.coef_, atol=1e-4)
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, len(records) + 1))
    assert {record["rows"] for record in records} == {len(X)}
    # Fewer than a restarted fit needs.
    assert clf.n_iter_ < 2 * undisturbed.n_iter_


@pytest.mark.slow
@pytest.mark.parametrize("role", ["both", "trainer"])
def test_initial_topics_do_not_depend_on_the_worker(crew_client: Client, role: str) -> None:
    X = da.random.default_rng(0).poisson(0.2, size=(20_000, 100), chunks=(2_000, -1))

    def fit(*callbacks: Any) -> LatentDirichletAllocation:
        model = LatentDirichletAllocation(
            20, max_iter=20, mean_change_tol=0.0, max_doc_update_iter=20, random_state=0,
            run=Run(n_lanes=3, deterministic=True), callbacks=list(callbacks),
        )  # fmt: skip
        return model.fit(X)

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0)
    struck = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(struck.components_, undisturbed.components_)
    assert struck.bound_ == undisturbed.bound_


@pytest.mark.slow
@pytest.mark.parametrize("role", ["both", "trainer"])
@pytest.mark.parametrize("solver", ["cd", "mu"])
def test_derived_data_of_lost_rows_are_recomputed(
    crew_client: Client, solver: str, role: str
) -> None:
    X = abs(da.random.default_rng(0).normal(size=(200_000, 40), chunks=(20_000, -1)))

    def fit(*callbacks: Any) -> NMF:
        run = Run(n_lanes=3, deterministic=True)
        how: dict[str, Any] = {"solver": solver, "init": "random", "random_state": 0, "tol": 0.0}
        return NMF(6, max_iter=25, run=run, callbacks=list(callbacks), **how).fit(X)

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0)
    struck = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(struck.components_, undisturbed.components_)
    assert struck.reconstruction_err_ == undisturbed.reconstruction_err_


@pytest.mark.slow
@pytest.mark.parametrize("role", ["both", "trainer"])
def test_lost_bounds_of_rows_change_no_centroid(crew_client: Client, role: str) -> None:
    """Rows that move to another trainer start without remembered distance bounds."""
    X = da.random.default_rng(0).normal(size=(N_ROWS, 10), chunks=(N_ROWS // 10, -1))

    def fit(*callbacks: Any) -> KMeans:
        run = Run(n_lanes=3, deterministic=True)
        params = {"tol": 0.0, "max_iter": 40, "random_state": 0}
        return KMeans(20, run=run, callbacks=list(callbacks), **params).fit(X)

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0)
    found = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(found.cluster_centers_, undisturbed.cluster_centers_)
    assert found.n_iter_ == undisturbed.n_iter_
    assert found.inertia_ == undisturbed.inertia_


@pytest.mark.slow
@pytest.mark.parametrize("role", ["both", "trainer"])
def test_lost_rows_are_assigned_to_their_leaves_again(crew_client: Client, role: str) -> None:
    """Rows that move to another trainer descend the tree that was grown so far."""
    X = da.random.default_rng(0).normal(size=(N_ROWS, 10), chunks=(N_ROWS // 10, -1))

    def fit(*callbacks: Any) -> BisectingKMeans:
        run = Run(n_lanes=3, deterministic=True)
        return BisectingKMeans(8, random_state=0, run=run, callbacks=list(callbacks)).fit(X)

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0)
    found = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(found.cluster_centers_, undisturbed.cluster_centers_)
    assert found.inertia_ == undisturbed.inertia_


@pytest.mark.slow
@pytest.mark.parametrize("role", ["both", "trainer"])
@pytest.mark.parametrize("policy", ["allreduce", "local"])
def test_mini_batch_steps_resume(crew_client: Client, role: str, policy: str) -> None:
    X = da.random.default_rng(0).normal(size=(N_ROWS, 10), chunks=(N_ROWS // 10, -1))

    def fit(*callbacks: Any) -> MiniBatchKMeans:
        return MiniBatchKMeans(
            20, policy=policy, random_state=0, max_iter=4, max_no_improvement=None,
            run=Run(n_lanes=3, deterministic=True), callbacks=list(callbacks),
        ).fit(X)  # fmt: skip

    undisturbed, strike = fit(), Strike(make_killer(crew_client, role), after=0)
    found = fit(strike)
    assert strike.events
    np.testing.assert_array_equal(found.cluster_centers_, undisturbed.cluster_centers_)
    np.testing.assert_array_equal(found.counts_, undisturbed.counts_)
    assert found.inertia_ == undisturbed.inertia_
