"""Decoupled local SGD: lanes step alone and exchange parameters with servers asynchronously."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import log_loss

from daskml_dist import Run
from daskml_dist.errors import GenerationError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier, SGDRegressor
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD, Policy, QuorumGate
from daskml_dist.training.worker.loops.decoupled import LaneMemory, OpenReports
from tests.quick import in_turn
from tests.training.lane_fits import RATE, fit_lanes, make_lane_rows

STEPS = 14
X, Y = make_lane_rows(2)


def _blocks() -> tuple[Any, Any]:
    return da.from_array(X, chunks=(40, -1)), da.from_array(Y, chunks=40)


def _fit(policy: Policy, rows: Any = None, **params: Any) -> SGDRegressor:
    usual = {"max_iter": STEPS, "run": Run(n_lanes=2, deterministic=True)}
    return fit_lanes(policy, rows or _blocks(), **usual | params)


def _exchanged(every: int, fragments: int, rate: float, momentum: float) -> NDArray[Any]:
    """Streaming DiLoCo of two lanes in plain NumPy; every step counts once, whatever the delay."""
    shards = np.array_split(np.arange(4), fragments)
    center, velocity = np.zeros(4), np.zeros(4)
    lanes = np.zeros((2, 4))
    origins = np.zeros((2, 4))
    due: dict[tuple[int, int], NDArray[Any]] = {}
    for clock in range(1, STEPS + 1):
        for lane in range(2):
            half = slice(40 * lane, 40 * lane + 40)
            lanes[lane] -= RATE * X[half].T @ (X[half] @ lanes[lane] - Y[half]) / 40
        for s, at in enumerate(shards):
            if (clock, s) in due:
                lanes[:, at] = due[clock, s] + lanes[:, at] - origins[:, at]
                origins[:, at] = due[clock, s]
            if (clock - (s + 1) * every // fragments) % every and clock < STEPS:
                continue
            back = (origins[:, at] - lanes[:, at]).mean(axis=0)
            origins[:, at] = lanes[:, at]
            velocity[at] = momentum * velocity[at] + back
            center[at] -= rate * (back + momentum * velocity[at])
            due[clock + every // fragments, s] = center[at].copy()
    return center


@pytest.mark.parametrize(
    ("plan", "step"), in_turn([(4, 2), (3, 1), (8, 4)], [(1.0, 0.0), (0.7, 0.4)])
)
def test_streamed_fragments_equal_the_plain_recursion(
    plan: tuple[int, int], step: tuple[float, float]
) -> None:
    (every, fragments), (rate, momentum) = plan, step
    policy = LocalSGD(every, fragments=fragments, outer_rate=rate, outer_momentum=momentum)
    reg = _fit(policy)
    np.testing.assert_allclose(reg.coef_, _exchanged(every, fragments, rate, momentum), rtol=1e-9)
    assert [record["rows"] for record in reg.history_] == [80] * STEPS
    assert [record["steps"] for record in reg.history_] == [2] * STEPS


@pytest.mark.parametrize("every", [1, 5, 16])
def test_a_quorum_of_all_lanes_equals_local_sgd(every: int) -> None:
    whole = {"outer_rate": 0.7, "outer_momentum": 0.4}
    met = _fit(LocalSGD(every, **whole), max_iter=20)
    served = _fit(LocalSGD(every, quorum=2, **whole), max_iter=20)
    # Local SGD ends with a mean; decoupled servers end with an outer step.
    if 20 % every == 0:
        np.testing.assert_allclose(served.coef_, met.coef_, rtol=1e-9)
    plain = [_fit(LocalSGD(every, quorum=q), max_iter=20).coef_ for q in (None, 2)]
    np.testing.assert_allclose(plain[1], plain[0], rtol=1e-9)


@pytest.mark.parametrize("policy", [LocalSGD(6, fragments=2), LocalSGD(6, quorum=2)])
def test_results_do_not_depend_on_where_lanes_run(policy: Policy, client: Client) -> None:
    batches: dict[str, Any] = {"batch_size": 8, "max_iter": 6}
    two = _fit(policy, **batches)
    one = _fit(policy, rows=(X, Y), **batches)  # threads of this process
    np.testing.assert_array_equal(two.coef_, one.coef_)


def _rows(n_rows: int = 4_000, n_features: int = 20) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(n_rows, n_features))
    return rows, rows @ rng.normal(size=n_features) + 2 * rng.normal(size=n_rows) > 0


SOME = [
    LocalSGD(8, quorum=2),
    LocalSGD(8, quorum=3, grace=0.01),
    LocalSGD(8, fragments=3),
    LocalSGD(8, quorum=2, fragments=2, outer_rate=0.8, outer_momentum=0.3),
    LocalSGD(1_000, quorum=2, fragments=1),
    LocalSGD(8, quorum=2, steps_by_speed=True),
    LocalSGD(8, quorum=3, fragments=2, steps_by_speed=True),
]


@pytest.mark.parametrize(("policy", "compression"), in_turn(SOME, [None, "8bit", "topk"]))
def test_fits_reach_the_optimum_of_local_sgd(policy: LocalSGD, compression: str | None) -> None:
    rows, y = _rows()
    run = {"n_lanes": 4, "compression": compression}
    params: dict[str, Any] = {"max_iter": 10, "tol": None, "random_state": 0}
    plain = SGDClassifier(policy="local", run=Run(n_lanes=4), **params).fit(rows, y)
    clf = SGDClassifier(policy=policy, run=Run(**run), **params).fit(rows, y)
    expected = log_loss(y, plain.predict_proba(rows))
    assert log_loss(y, clf.predict_proba(rows)) == pytest.approx(expected, rel=0.03)
    assert [record["rows"] for record in clf.history_] == [len(rows)] * 10
    assert clf.history_.extra["dropped_pushes"] == 0


@pytest.mark.parametrize("fragments", [0, 1])
def test_lanes_push_after_the_steps_that_the_server_sets(
    fragments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, y = _rows()
    # From the first reply on, the second lane has to push after 2 steps instead of 8.
    monkeypatch.setattr(QuorumGate, "count_steps", lambda _, lane: [8, 2][lane])
    policy = LocalSGD(8, quorum=1, fragments=fragments, steps_by_speed=True)
    params: dict[str, Any] = {"max_iter": 4, "tol": None, "batch_size": 50, "random_state": 0}
    clf = SGDClassifier(policy=policy, run=Run(n_lanes=2), **params).fit(rows, y)
    pushes = sum(sum(record["staleness_counts"]) for record in clf.history_)
    # 4 x 40 steps each. Lanes do not wait, so a reply may arrive one push later.
    expected = 160 // 8 + 1 + (160 - 8) // 2
    assert pushes == expected if fragments == 0 else expected - 40 < pushes <= expected
    assert [record["rows"] for record in clf.history_] == [len(rows)] * 4


def test_sparse_rows_networks_and_several_classes() -> None:
    rng = np.random.default_rng(0)
    wide = sparse.random_array((2_000, 5_000), density=0.004, rng=0, format="csr")
    y = wide @ rng.normal(size=5_000) > 0
    policy = LocalSGD(8, quorum=2, fragments=2)
    for batch_size in ("auto", 16):
        clf = SGDClassifier(
            policy=policy, run=Run(n_lanes=3), max_iter=12, batch_size=batch_size, random_state=0
        )
        assert clf.fit(wide, y).score(wide, y) > 0.9
        untouched = np.setdiff1d(np.arange(5_000), wide.indices)
        assert not clf.coef_[0, untouched].any()
    rows, z = _rows(n_features=6)
    labels = z + (rows[:, 0] > 0)
    net = MLPClassifier(
        (16,), policy=policy, run=Run(n_lanes=3), max_iter=30, random_state=0, early_stopping=True
    )
    many = SGDClassifier(policy=policy, run=Run(n_lanes=3), random_state=0)
    for model in (net, many):
        assert model.fit(rows, labels).score(rows, labels) > 0.6


def test_a_fit_that_stops_early_includes_all_steps() -> None:
    rows, y = _rows()
    ended = SGDClassifier(
        policy=LocalSGD(50, quorum=1, fragments=2), run=Run(n_lanes=3), max_iter=500, tol=1e-3,
        random_state=0,
    ).fit(rows, y)  # fmt: skip
    assert ended.n_iter_ < 500
    whole = SGDClassifier(run=Run(n_lanes=3), random_state=0).fit(rows, y)
    expected = log_loss(y, whole.predict_proba(rows))
    assert log_loss(y, ended.predict_proba(rows)) == pytest.approx(expected, rel=0.03)


def test_partial_fit_and_warm_start_continue() -> None:
    rows, y = _rows()
    clf = SGDClassifier(
        policy=LocalSGD(8, fragments=1), optimizer="adam", learning_rate=0.01, warm_start=True,
        max_iter=3, tol=None, run=Run(n_lanes=2, deterministic=True), random_state=0,
    )  # fmt: skip
    first = clf.fit(rows, y).coef_
    refitted = clf.fit(rows, y)
    assert not np.array_equal(refitted.coef_, first)
    refitted.partial_fit(rows, y).set_params(policy="sync").fit(rows, y)
    assert refitted.score(rows, y) > 0.75


class _Strike:
    """Callback that kills a worker with or without a server after the second pass."""

    def __init__(self, client: Client, role: str) -> None:
        self._client, self._role = client, role
        self.pid = 0
        self.events: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        if record["pass"] == 2 and not self.pid:
            servers = set(run.server_addresses)
            several = servers if self._role == "server" else set(run.trainer_addresses) - servers
            (self.pid,) = self._client.run(os.getpid, workers=[max(several)]).values()
            os.kill(self.pid, signal.SIGKILL)

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)


class _Rest:
    """Callback that slows each step by half a millisecond; a kill then happens during the fit."""

    def on_step_end(self, step: Any) -> None:
        time.sleep(5e-4)


@pytest.mark.parametrize("role", ["trainer", pytest.param("server", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "policy",
    [SOME[1], SOME[3], pytest.param(SOME[6], marks=pytest.mark.slow)],
    ids=["waiting", "streaming", "by speed"],
)
def test_a_killed_worker_loses_only_its_own_steps(
    policy: LocalSGD, role: str, crew_client: Client
) -> None:
    rows, y = _rows()
    lazy = da.from_array(rows, chunks=(400, -1)), da.from_array(y, chunks=400)
    strike = _Strike(crew_client, role)
    clf = SGDClassifier(
        policy=policy, run=Run(n_lanes=6), max_iter=12, tol=None, batch_size=16, random_state=0,
        callbacks=[strike, _Rest()],
    ).fit(*lazy)  # fmt: skip
    assert strike.events
    assert [record["rows"] for record in clf.history_] == [len(rows)] * 12
    whole = SGDClassifier(run=Run(n_lanes=6), random_state=0).fit(rows, y)
    expected = log_loss(y, whole.predict_proba(rows))
    assert log_loss(y, clf.predict_proba(rows)) == pytest.approx(expected, rel=0.05)
    # Surviving trainers continued without going back.
    assert role == "server" or strike.events[0].restarted is False


def test_reports_are_acknowledged_before_the_next_call() -> None:
    answers: deque[bool] = deque()
    sent: list[int] = []
    context: Any = SimpleNamespace(
        send_pass_report=lambda connection, number, lanes, weights: sent.append(number),
        take_report_answer=lambda connection: answers.popleft(),
    )
    connection: Any = SimpleNamespace(has_answer_to_call=lambda: bool(answers))
    taken_answers: list[tuple[str, bool]] = []
    lanes: Any = {
        n: SimpleNamespace(take_answer=lambda e, n=n: taken_answers.append((n, e))) for n in "ab"
    }
    reports = OpenReports(context, connection)
    reports.send(lanes["a"], 1, lanes, None)
    reports.send(lanes["b"], 1, lanes, None)
    reports.take_answers()
    assert (sent, taken_answers) == ([1, 1], [])
    answers.append(False)
    reports.take_answers()
    assert taken_answers == [("a", False)]
    answers.append(True)
    reports.take_answers(all_of_them=True)
    assert taken_answers == [("a", False), ("b", True)]


def test_a_lane_belongs_to_the_trainer_of_the_latest_generation() -> None:
    memory = LaneMemory(None, 0, [], 0)  # type: ignore[arg-type]
    memory.take("later", 3)
    with pytest.raises(GenerationError):
        memory.take("earlier", 2)
    memory.take("again", 3)
    assert memory.owner == "again"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"quorum": 0}, "give an integer >= 1"),
        ({"quorum": True}, "give an integer >= 1"),
        ({"quorum": 2.0}, "give an integer >= 1"),
        ({"grace": -1.0, "quorum": 1}, "number >= 0 of seconds"),
        ({"grace": np.inf, "quorum": 1}, "number >= 0 of seconds"),
        ({"grace": 1.0}, "Give a quorum"),
        ({"steps_by_speed": 1, "quorum": 1}, "give True or False"),
        ({"steps_by_speed": True}, "Give a quorum"),
        ({"fragments": -1}, "give an integer >= 0"),
        ({"fragments": 17}, "larger sync_every"),
    ],
)
def test_invalid_parameters_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        LocalSGD(16, **bad)


@pytest.mark.parametrize(
    ("policy", "run", "words"),
    [
        (LocalSGD(quorum=3), {"n_lanes": 2}, "Lower quorum"),
        (LocalSGD(fragments=9), {"n_lanes": 2}, "Use fragments=4"),
        (LocalSGD(quorum=2), {"n_lanes": 2, "n_servers": 2}, "Use fragments=2"),
        (LocalSGD(quorum=1), {"n_lanes": 2, "deterministic": True}, "deterministic"),
        (
            LocalSGD(quorum=2, steps_by_speed=True),
            {"n_lanes": 2, "deterministic": True},
            "Leave out steps_by_speed",
        ),
    ],
)
def test_settings_that_do_not_match_the_rows_are_refused(
    policy: LocalSGD, run: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        _fit(policy, run=Run(**run))
