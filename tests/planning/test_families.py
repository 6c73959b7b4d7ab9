"""Families of estimators, where `client="auto"` trains, and clusters that there are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.estimators.base import choose_client
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.planning import Costs, PackedMessage, families
from daskml_dist.planning.families import find_family
from daskml_dist.planning.families.factors import _estimate_distinct
from daskml_dist.planning.hypothetical_cluster import (
    _NETWORK_COSTS,
    _WAKE_SECONDS,
    parse_bandwidth,
    simulate_step_seconds,
)
from daskml_dist.planning.places import imagine_place
from daskml_dist.planning.rows import RowsShape
from daskml_dist.planning.simulator import allreduce_seconds
from daskml_dist.policies import AllReduce, Asynchronous, Synchronous
from daskml_dist.recommender import ALS
from daskml_dist.tree import DecisionTreeClassifier

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
RATINGS = pd.DataFrame({"user": np.arange(400) % 40, "item": np.arange(400) % 23, "rating": 1.0})

#: An estimator of each family, and further ones with a special cost model.
PLANNED: list[tuple[Any, Any, Any]] = [
    (SGDClassifier(max_iter=2, tol=None), X, Y),
    (LogisticRegression(), X, Y),
    (Ridge(), X, X[:, 1]),
    (PCA(2), X, None),
    (KMeans(3, random_state=0), X, None),
    (HistGradientBoostingClassifier(max_iter=2), X, Y),
    (RandomForestRegressor(2, random_state=0), X, X[:, 1]),
    (DecisionTreeClassifier(max_depth=2), X, Y),
    (ALS(rank=2, max_iter=2, random_state=0), RATINGS, None),
]


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs as if they had been measured: the usual ones of each family."""

    def costs(request: Any, place: Any, here: Any) -> Costs:
        cluster_costs = {} if place.name == "inline" else request.family.usual_cluster_costs
        return Costs({**request.family.usual, **cluster_costs})

    monkeypatch.setattr("daskml_dist.planning.advising._PlanRequest.find_costs", costs)


@pytest.fixture
def without_stored_costs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide no file of costs, and no measurements."""
    monkeypatch.setattr("daskml_dist.planning.advising.measure_costs", None)
    with dask.config.set({"daskml_dist.planning.cache": False}):
        yield


@pytest.mark.parametrize(("estimator", "rows", "y"), PLANNED)
def test_every_family_plans_and_fits(
    client: Client, usual: None, estimator: Any, rows: Any, y: Any
) -> None:
    before = repr(vars(estimator))
    plan = estimator.plan(rows, y)
    assert repr(vars(estimator)) == before
    own_choices = [choice for choice in plan.choices if choice.own]
    assert [choice.place for choice in own_choices] == ["inline", "cluster"]
    assert all(choice.seconds[0] <= choice.expected <= choice.seconds[1] for choice in own_choices)
    assert plan.best is own_choices[0]
    assert own_choices[1].traffic > own_choices[0].traffic == 0
    larger_plan = plan.what_if(50, bandwidth="10Gbit")
    assert "50 workers" in str(larger_plan)
    assert "simulated" in str(larger_plan)
    assert larger_plan.best == plan.best
    with pytest.raises(InvalidParameterError, match="Start a cluster"):
        larger_plan.choices[-1].fit(rows, y)
    assert len(clone(estimator).fit(rows, y, client="auto").history_) > 0


@pytest.mark.usefixtures("without_stored_costs")
@pytest.mark.parametrize("configured", [False, True])
def test_auto_trains_few_rows_here(client: Client, configured: bool) -> None:
    """By costs that are known already: nothing is measured for a fit."""
    clf = SGDClassifier(max_iter=2, tol=None, random_state=0)
    assert clf.fit(X, Y).history_.extra["n_lanes"] == 2
    with dask.config.set({"daskml_dist.client": "auto" if configured else None}):
        clf.fit(X, Y, client=None if configured else "auto")
    assert clf.history_.extra["n_lanes"] == 1


@pytest.mark.usefixtures("without_stored_costs")
def test_auto_leaves_work_to_the_cluster(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is sooner, and whatever has no plan, or lies on workers."""
    clf = SGDClassifier(max_iter=2, tol=None, random_state=0)
    assert GaussianNB().fit(X, Y, client="auto").history_.extra["n_lanes"] == 2
    lazy = da.from_array(X, chunks=(200, 4)), da.from_array(Y, chunks=200)
    assert clf.fit(*lazy, client="auto").history_.extra["n_lanes"] == 2
    family = find_family(clf)
    monkeypatch.setattr(type(family), "usual", {"fit": 1e9})
    assert clf.fit(X, Y, client="auto").history_.extra["n_lanes"] == 2
    monkeypatch.setattr(type(family), "usual_cluster_costs", {"fit": 1e10})
    assert clf.fit(X, Y, client="auto").history_.extra["n_lanes"] == 1
    with pytest.raises(InvalidParameterError, match="'auto' for whichever is faster"):
        clf.fit(X, Y, client="cluster")


def test_auto_without_a_client_is_here() -> None:
    assert choose_client(SGDClassifier(max_iter=1, tol=None), "auto", _Memory()) == "inline"


class _Memory:
    kind = "memory"


@pytest.mark.parametrize(
    ("estimator", "y", "rtol"),
    [
        (LogisticRegression(), Y, 0.0),
        (Ridge(), X[:, 1], 0.0),
        (SGDRegressor(max_iter=2, tol=None, random_state=0), X @ [1.0, 2.0, 3.0, 4.0], 1e-3),
    ],
)
def test_lanes_of_ones_own_end_alike_in_both_places(
    client: Client, estimator: Any, y: Any, rtol: float
) -> None:
    """Sums to the bit; steps to rounding, since a block here is not a block there."""
    estimator.set_params(run=Run(n_lanes=3, deterministic=True))
    in_process = clone(estimator).fit(X, y, client="inline")
    on_cluster = clone(estimator).fit(X, y, client=client)
    np.testing.assert_allclose(in_process.coef_, on_cluster.coef_, rtol=rtol)
    np.testing.assert_allclose(
        in_process.intercept_, on_cluster.intercept_, rtol=rtol, atol=rtol / 10
    )


def test_a_family_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bayes.py").write_text(
        "from daskml_dist.planning.costs import Work\n"
        "from daskml_dist.planning.families.base import Family\n"
        "class Bayes(Family):\n"
        "    kind, estimators = 'naive Bayes', ('BaseNB',)\n"
        "    def work(self, estimator, rows, place, passes):\n"
        "        return Work({'fit': 1.0}, {'pass': 1.0}, passes)\n"
    )
    with pytest.raises(InvalidParameterError, match="no plans for GaussianNB"):
        find_family(GaussianNB())
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    families.load_families.cache_clear()
    try:
        assert find_family(GaussianNB()).kind == "naive Bayes"
        with pytest.raises(InvalidParameterError, match="naive Bayes"):
            find_family(3)
    finally:
        families.load_families.cache_clear()


# --- suppositions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bandwidth", "bytes_"),
    [("10Gbit", 1.25e9), ("1.25GB", 1.25e9), ("100 Mbit/s", 12.5e6), ("10Gb", 1.25e9), (7, 7.0)],
)
def test_bandwidths(bandwidth: Any, bytes_: float) -> None:
    assert parse_bandwidth(bandwidth) == bytes_


@pytest.mark.parametrize(
    "more",
    [{"bandwidth": "fast"}, {"bandwidth": -1}, {"bandwidth": "1.2.3GB"}, {"workers": 0},
     {"workers": 2.5}, {"workers": "many"}, {"latency": -1.0}, {"latency": "0.1ms"},
     {"stragglers": float("nan")}, {"policy": "sorted"}],
)  # fmt: skip
def test_invalid_assumptions_are_refused(usual: None, more: dict[str, Any]) -> None:
    plan = Ridge().plan(X, X[:, 1], client=None)
    with pytest.raises(InvalidParameterError, match=next(iter(more))):
        plan.what_if(**{"workers": 2, **more})


def test_waiting_times_equal_the_closed_form() -> None:
    """Rounds without stragglers take computation plus a ring; async is bound by the server."""
    for n_bytes in (1e3, 1e8):
        found = simulate_step_seconds(AllReduce(), 0.1, 8, n_bytes, 1e-4, 1e9)
        ring = allreduce_seconds(_network(1e-4 + _WAKE_SECONDS, 1e9), 8, n_bytes)
        assert found == pytest.approx(0.1 + ring + _NETWORK_COSTS.apply * n_bytes)
    assert simulate_step_seconds(AllReduce(), 0.1, 1, 1e8, 1.0, 1.0) == 0.1
    full = simulate_step_seconds(Asynchronous(), 1e-6, 200, 8.0, 0.0, 1e12)
    assert full == pytest.approx(200 * _NETWORK_COSTS.message, rel=0.05)


@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize("way", ["gather", "ranges", "sum"])
def test_messages_that_are_packed_take_less_of_a_network(way: str, lanes: int) -> None:
    """Without latency and computing: the bytes that each card sends, over its bandwidth."""
    packed = PackedMessage(1e6, way)
    found = simulate_step_seconds(AllReduce(), 0.0, lanes, 1e8, 0.0, 1e6, packed=packed)
    whole = simulate_step_seconds(AllReduce(), 0.0, lanes, 1e8, 0.0, 1e6)
    others = lanes - 1
    expected = {"gather": others, "ranges": 2 * others / lanes, "sum": 2 * others / lanes}[way]
    assert found == pytest.approx(expected, rel=0.05)
    assert whole == pytest.approx(100 * 2 * others / lanes, rel=0.05)
    # Servers get the message, and answer with all parameters.
    served = simulate_step_seconds(Synchronous(), 0.0, lanes, 1e8, 0.0, 1e6, packed=packed)
    assert 98 * lanes < served < 102 * lanes


@pytest.mark.parametrize("policy", ["allreduce", "sync", "async", "local", "average"])
def test_plans_count_the_bytes_that_a_fit_sends(usual: None, client: Client, policy: str) -> None:
    rng = np.random.default_rng(0)
    rows = da.from_array(rng.normal(size=(400, 2000)), chunks=(100, -1))
    y = da.from_array(rng.integers(2, size=400), chunks=100)
    for compression in (None, "8bit"):
        model = SGDClassifier(
            policy=policy, max_iter=3, tol=None, batch_size=10, learning_rate=0.01,
            run=Run(compression=compression, n_lanes=2),
        )  # fmt: skip
        planned = next(
            c.traffic for c in model.plan(rows, y).choices if c.own and c.place != "inline"
        )
        records = model.fit(rows, y).history_.records
        moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records)
        # A lane beside the server sends nothing, and a step in many goes whole.
        assert 0.45 * planned < moved < 1.3 * planned


def _network(latency: float, bandwidth: float) -> Any:
    return replace(_NETWORK_COSTS, latency=latency, bandwidth=bandwidth)


def test_more_workers_compute_less_each(usual: None) -> None:
    """A pass of sums is shared by workers until the meeting takes longest."""
    rows = RowsShape(10_000_000, 100, 0, "float32")
    family = find_family(Ridge())
    share = [
        family.work(Ridge(), rows, imagine_place(n, None), 1).one_pass["square"] for n in (1, 50)
    ]
    assert share[0] == pytest.approx(50 * share[1])


def test_the_number_of_ids_is_estimated_from_a_sample() -> None:
    """Estimated from the distinct ids among 65,536 sampled ones; exact if all are read."""
    assert _estimate_distinct(np.arange(1000) % 7) == 7
    for count in (500, 40_000):
        found = _estimate_distinct(np.random.default_rng(0).integers(0, count, 1_000_000))
        assert found == pytest.approx(count, rel=0.05)
    with pytest.raises(InvalidDataError, match="get_partition"):
        ALS().plan(pd_to_dask(RATINGS))


def pd_to_dask(frame: pd.DataFrame) -> Any:
    import dask.dataframe as dd

    return dd.from_pandas(frame, npartitions=2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "rows", "y"), PLANNED)
def test_real_costs_of_every_family(
    client: Client, folder: Path, estimator: Any, rows: Any, y: Any
) -> None:
    """Measured once, here and there, then known: to a decision too."""
    plan = estimator.plan(rows, y)
    own_choices = [choice for choice in plan.choices if choice.own]
    assert all(0 < choice.expected < 60 for choice in own_choices)
    assert str(estimator.plan(rows, y)) == str(plan)
