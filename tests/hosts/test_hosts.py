"""Fits on 2, 4 and 8 hosts, with two workers each or with wrong clocks, equal those on one host.

Hosts are network namespaces, which need root: ``pytest -m slow tests/hosts``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.pipeline import make_pipeline

from benchmarks._hosts import Cable, Host, HostCluster, HostNetwork, network_problem
from daskml_dist import Run
from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA
from daskml_dist.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from daskml_dist.graph import pagerank
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import POLICIES, Pipeline
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.recommender import ALS
from tests.hosts.clocks import HostClocks

pytestmark = pytest.mark.slow

#: Policies under which lanes wait for each other, so that results are reproducible.
LOCK_STEP = ("sync", "allreduce", "local", "average")
#: Lanes of every fit, whatever the number of hosts.
LANES = 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4_000, 12))
Y = (X[:, 0] - X[:, 1] + 0.3 * RNG.normal(size=len(X)) > 0).astype(np.int64)
RATINGS = pd.DataFrame(
    {
        "user": RNG.integers(60, size=3_000),
        "item": RNG.integers(40, size=3_000),
        "rating": RNG.integers(1, 6, size=3_000).astype(np.float32),
    }
)


def rows() -> tuple[Any, Any]:
    """Return the rows as Dask arrays of 16 blocks."""
    return da.from_array(X, chunks=(250, -1)), da.from_array(Y, chunks=250)


def sgd(policy: str, **settings: Any) -> SGDClassifier:
    """Return a classifier whose lanes do not depend on the workers."""
    run = Run(**{"n_lanes": LANES, "deterministic": True, **settings})
    return SGDClassifier(
        policy=policy, max_iter=4, tol=None, batch_size=32, random_state=0, run=run
    )


def probabilities(model: Any) -> Any:
    """Return probabilities of some rows by a model fitted on all rows."""
    return model.fit(*rows()).predict_proba(X[:200])


def ratings() -> Any:
    """Return ratings predicted by a solver that exchanges factors by key."""
    model = ALS(rank=4, max_iter=3, random_state=0)
    return model.fit(dd.from_pandas(RATINGS, npartitions=6)).predict(RATINGS[:100])


def network(**settings: Any) -> MLPClassifier:
    """Return a network whose lanes do not depend on the workers."""
    run = Run(n_lanes=LANES, deterministic=True)
    settings = {"max_iter": 3, "tol": None, "random_state": 0, "run": run} | settings
    return MLPClassifier(**{"hidden_layer_sizes": (8,)} | settings)


def ranks() -> Any:
    """Return the PageRank of the bipartite graph of ratings."""
    edges = dd.from_pandas(RATINGS, npartitions=6)
    return pagerank(edges, source="user", target="item", tol=1e-10).sort_index().to_numpy()


def large() -> Any:
    """Return probabilities of a solver whose vectors are split into ranges over hosts."""
    with dask.config.set({"daskml_dist.ranges_from": 1}):
        return probabilities(LogisticRegression(tol=1e-8))


def searched() -> Any:
    """Return scores of a search that is one batched fit."""
    grid = {"alpha": [1e-4, 1e-2, 1.0]}
    return GridSearchCV(sgd("sync"), grid, cv=2).fit(*rows()).cv_results_["mean_test_score"]


def streamed(policy: str = "allreduce") -> Any:
    """Return coefficients of a stream learned synchronously or by independent workers."""
    clf = SGDClassifier(random_state=0, policy=policy)
    with clf.stream(client=Client.current(), classes=[0, 1]) as stream:
        for start in range(0, len(X), 200):
            stream.learn(X[start : start + 200], Y[start : start + 200])
    assert stream.n_rows == len(X)
    return clf.coef_


#: Fits, and the allowed difference from one host: none if lanes wait for each other and sum in
#: order, rounding if blocks are summed where they are, and the effect of a few steps for
#: free-running lanes.
SUBJECTS: dict[str, tuple[Any, float]] = {
    **{
        policy: (lambda policy=policy: probabilities(sgd(policy)), 0.0 if lock_step else 0.05)
        for policy in POLICIES
        for lock_step in [policy in LOCK_STEP]
    },
    "two servers": (lambda: probabilities(sgd("sync", n_servers=2)), 0.0),
    "features": (
        lambda: probabilities(sgd("allreduce", n_lanes=2, shard="features", deterministic=False)),
        1e-9,
    ),
    "pipeline": (
        lambda: probabilities(make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8))),
        1e-6,
    ),
    "trees": (
        lambda: probabilities(HistGradientBoostingClassifier(max_iter=8, random_state=0)),
        0.0,
    ),
    "forest": (
        lambda: probabilities(RandomForestClassifier(6, max_depth=4, random_state=0)),
        0.0,
    ),
    "network": (lambda: probabilities(network()), 0.0),
    # Hosts hold neighbouring layers; from four hosts on, several pipelines sum their gradients.
    "stages": (
        lambda: probabilities(network(hidden_layer_sizes=(8, 6), pipeline=Pipeline(2, 2))),
        0.0,
    ),
    "ranges": (large, 1e-6),
    "search": (searched, 0.0),
    "clusters": (lambda: KMeans(3, random_state=0).fit(rows()[0]).cluster_centers_, 1e-9),
    "statistics": (lambda: PCA(3).fit(rows()[0]).explained_variance_, 1e-10),
    "keys": (ratings, 1e-4),
    "graph": (ranks, 1e-9),
    "stream": (streamed, 0.5),
    "stream of each by itself": (lambda: streamed("average"), 0.5),
}


@pytest.fixture(scope="module")
def one_host() -> dict[str, Any]:
    """Return the result of each fit on one host of two workers."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    with HostNetwork(1) as network, HostCluster(network, 2):
        return {name: fit() for name, (fit, _) in SUBJECTS.items()}


#: Hosts, workers per host, and seconds by which their wall clocks are ahead of the scheduler's.
SIZES = {
    "2x1": (2, 1, (0.0,)),
    "4x1": (4, 1, (0.0,)),
    "8x1": (8, 1, (0.0,)),
    "2x2": (2, 2, (0.0,)),
    "clocks apart": (2, 1, (3_600.0, -86_400.0)),
}


@pytest.fixture(scope="module", params=SIZES.values(), ids=SIZES)
def hosts(
    request: pytest.FixtureRequest, one_host: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Provide a cluster of the given hosts and workers."""
    n_hosts, per_host, ahead = request.param
    clocks = HostClocks(tmp_path_factory.mktemp("clocks"))
    with HostNetwork(n_hosts) as network:
        for host, seconds in zip(network.hosts, cycle(ahead), strict=False):
            clocks.put_ahead(host, seconds)
        with HostCluster(network, per_host, clocks.environ) as client:
            yield client


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_results_on_several_hosts_equal_one_host(
    hosts: Client, one_host: dict[str, Any], name: str, assert_clean: Any
) -> None:
    """Results over a network equal those on one host."""
    fit, allowed = SUBJECTS[name]
    np.testing.assert_allclose(fit(), one_host[name], rtol=allowed, atol=allowed)
    assert_clean(hosts)


# -- network faults --------------------------------------------------------------------------------


class Silence:
    """Callback that cuts a host's network for some time and records new generations."""

    def __init__(self, network: HostNetwork, host: Host, seconds: float | None) -> None:
        self.network, self.host, self.seconds = network, host, seconds
        self.generations: list[str] = []
        self.passes = 0
        self._thread: threading.Thread | None = None

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.passes += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._pull)
            self._thread.start()
        # Continues until the silence was detected and a few passes followed.
        if self.generations and self.passes > 3:
            run.stop()

    def on_generation(self, run: Any, event: Any) -> None:
        self.generations.append(str(event))
        self.passes = 0

    def _pull(self) -> None:
        self.network.pull(self.host)
        if self.seconds is not None:
            time.sleep(self.seconds)
            self.network.plug(self.host)


@pytest.fixture
def two_hosts() -> Iterator[tuple[HostNetwork, Client]]:
    """Provide two hosts that a test may break."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    with HostNetwork(2) as network, HostCluster(network) as client:
        yield network, client


@pytest.mark.parametrize("policy", ["sync", "allreduce", "async"])
def test_a_fit_continues_without_a_disconnected_host(
    two_hosts: tuple[HostNetwork, Client], policy: str
) -> None:
    """The fit continues with the other host, and the reason names the worker."""
    network, _ = two_hosts
    silence = Silence(network, network.hosts[1], None)
    clf = SGDClassifier(
        policy=policy, max_iter=10**6, tol=None, random_state=0, callbacks=[silence]
    ).fit(*rows())
    assert network.hosts[1].address in silence.generations[0]
    assert clf.score(X, Y) > 0.9


@pytest.mark.parametrize("policy", ["sync", "allreduce", "async"])
def test_lost_packets_do_not_affect_a_fit(policy: str, assert_clean: Any) -> None:
    """One packet in a hundred is lost each way: the fit ends, and no host counts as silent."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    generations: list[str] = []

    class Note:
        def on_generation(self, run: Any, event: Any) -> None:
            generations.append(str(event))

    with HostNetwork(2, Cable(1e9, loss=0.01)) as network, HostCluster(network) as client:
        clf = sgd(policy).set_params(callbacks=[Note()]).fit(*rows())
        assert_clean(client)
    assert not generations
    assert clf.score(X, Y) > 0.9
