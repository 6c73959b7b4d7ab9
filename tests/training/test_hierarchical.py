"""Hierarchical policy: hosts sum gradients at each step and are averaged every few steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.policies import AllReduce, Asynchronous, Hierarchical, LocalSGD, Policy
from tests.quick import in_turn
from tests.training.lane_fits import RATE, fit_lanes, make_lane_rows

EVERY, STEPS = 3, 12
X, Y = make_lane_rows(3)
#: Rows of each lane.
LANES = [slice(0, 40), slice(40, 80), slice(80, 120)]


def _blocks(client: Client) -> tuple[Any, Any]:
    """Return rows with each lane's part on a separate worker, in the order of the workers."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = [
        client.persist(
            (da.from_array(X[at], chunks=-1), da.from_array(Y[at], chunks=-1)), workers=[w]
        )
        for at, w in zip(LANES, workers, strict=True)
    ]
    return da.concatenate([x for x, _ in parts]), da.concatenate([y for _, y in parts])


def _fit(policy: Policy, rows: Any, deterministic: bool = False) -> SGDRegressor:
    run = Run(n_lanes=3, deterministic=deterministic)
    return fit_lanes(policy, rows, max_iter=STEPS, run=run)


def _descended(hosts: list[list[int]], rate: float, momentum: float) -> NDArray[Any]:
    """Return gradient descent of each host on its rows, with outer steps along the mean."""
    w, velocity = np.zeros(4), np.zeros(4)
    for _ in range(STEPS // EVERY):
        ends = []
        for lanes in hosts:
            rows = np.concatenate([np.arange(120)[LANES[lane]] for lane in lanes])
            v = w.copy()
            for _ in range(EVERY):
                v -= RATE * X[rows].T @ (X[rows] @ v - Y[rows]) / len(rows)
            ends.append(len(rows) / 120 * v)
        back = w - np.sum(ends, axis=0)
        velocity = momentum * velocity + back
        w = w - rate * (back + momentum * velocity)
    return w


def _tell_hosts(numbers: dict[int, int] | None) -> None:
    """Let this process report the numbered host; None restores its real host."""
    from daskml_dist.comm import channels, choosing_communicators, shared_memory

    found: Any = shared_memory.identify_machine
    if numbers is not None:
        host = numbers[os.getpid()]

        def found() -> int:
            return host

    for module in (channels, choosing_communicators):
        module.identify_machine = found  # type: ignore[attr-defined]


@pytest.fixture
def three_there(crew_client: Client) -> Iterator[Client]:
    """Provide a client of three workers and restore their hosts afterwards."""
    yield crew_client
    crew_client.run(_tell_hosts, None)


def _on_hosts(client: Client, hosts: list[int]) -> None:
    """Let the three workers report the hosts with the given numbers."""
    pids = [pid for _, pid in sorted(client.run(os.getpid).items())]
    client.run(_tell_hosts, dict(zip(pids, hosts, strict=True)))


OUTER = LocalSGD(EVERY, outer="nesterov", outer_rate=0.7, outer_momentum=0.6)


@pytest.mark.parametrize(
    ("hosts", "deterministic"), in_turn([[1, 1, 1], [1, 1, 2], [1, 2, 3]], [False, True])
)
def test_fit_equals_the_plain_recursion(
    hosts: list[int], deterministic: bool, three_there: Client
) -> None:
    _on_hosts(three_there, hosts)
    found = _fit(Hierarchical(between=OUTER), _blocks(three_there), deterministic=deterministic)
    groups = [[n for n in range(3) if hosts[n] == host] for host in set(hosts)]
    np.testing.assert_allclose(found.coef_, _descended(groups, 0.7, 0.6), rtol=1e-9)


def test_one_host_equals_allreduce_and_single_lane_hosts_equal_local_sgd(
    three_there: Client,
) -> None:
    plain, rows = Hierarchical(between=LocalSGD(EVERY)), _blocks(three_there)
    together = _fit(plain, rows)
    np.testing.assert_allclose(together.coef_, _fit(AllReduce(), rows).coef_, rtol=1e-9)
    _on_hosts(three_there, [1, 2, 3])
    apart = _fit(plain, rows)
    np.testing.assert_allclose(apart.coef_, _fit(LocalSGD(EVERY), rows).coef_, rtol=1e-9)


def test_batches_of_several_lanes_on_two_hosts(three_there: Client) -> None:
    _on_hosts(three_there, [1, 2, 2])
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6_000, 10))
    y = rows @ rng.normal(size=10) + rng.normal(size=6_000) > 0
    lazy = da.from_array(rows, chunks=(600, -1)), da.from_array(y, chunks=600)
    clf = SGDClassifier(
        policy=Hierarchical(), run=Run(n_lanes=6), random_state=0, early_stopping=True, average=True
    ).fit(*lazy)
    assert clf.score(rows, y) > 0.87
    assert clf.history_.records[0]["bytes_pushed"] > 0


class _Kill:
    """Kills the worker of the last trainer at the end of the second pass."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.events: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == 2:
            address = max(set(run.trainer_addresses) - set(run.server_addresses))
            (pid,) = self._client.run(os.getpid, workers=[address]).values()
            os.kill(pid, signal.SIGKILL)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(three_there: Client) -> None:
    _on_hosts(three_there, [1, 1, 2])
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6_000, 10))
    y = rows @ rng.normal(size=10) + rng.normal(size=6_000) > 0
    lazy = da.from_array(rows, chunks=(600, -1)), da.from_array(y, chunks=600)
    kill = _Kill(three_there)
    clf = SGDClassifier(
        policy=Hierarchical(), run=Run(n_lanes=6), random_state=0, max_iter=300, tol=None,
        callbacks=[kill],
    ).fit(*lazy)  # fmt: skip
    assert kill.events
    assert {record["rows"] for record in clf.history_} == {6_000}
    assert clf.score(rows, y) > 0.87


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"inside": "async"}, "inside='allreduce'"),
        ({"between": "local"}, r"between=LocalSGD\(\.\.\.\)"),
        ({"between": Asynchronous()}, r"between=LocalSGD\(\.\.\.\)"),
        ({"between": LocalSGD(quorum=2)}, "without quorum and fragments"),
        ({"between": LocalSGD(fragments=2)}, "without quorum and fragments"),
    ],
)
def test_invalid_parameters_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        Hierarchical(**bad)


def test_compression_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="hosts send whole parameters"):
        SGDRegressor(policy=Hierarchical(), run=Run(compression="8bit")).fit(X, Y)
