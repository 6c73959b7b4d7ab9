"""Ctrl-C: the caller hears of it, the estimator keeps what the fit had come to, nothing is lost."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import LogisticRegression, PoissonRegressor, SGDClassifier
from daskml_dist.optimizers import SGD
from daskml_dist.policies import POLICIES
from daskml_dist.svm import LinearSVC
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.client import cluster_run
from daskml_dist.training.client.ending import Ending
from daskml_dist.training.client.saved import Saved, SavedImages
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.interrupts import Interrupts
from tests.quick import quick

N_ROWS = 2_000


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Tests that are started in the background hand down a Ctrl-C that is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(N_ROWS, 8))
    return X, (X[:, 0] > 0).astype(int)


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(400, -1)), da.from_array(y, chunks=400)


def _endless(policy: Any, **params: Any) -> SGDClassifier:
    usual = {"batch_size": 64, "run": Run(n_lanes=2), "random_state": 0, "optimizer": "sgd"}
    params = {**usual, **params}
    return SGDClassifier(policy=policy, max_iter=10**6, tol=None, **params)


class At:
    """Does something when a pass ends."""

    def __init__(self, number: int, do: Callable[[], None] = _interrupt) -> None:
        self.number = number
        self.do = do
        self.told: list[Any] = []

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.told.append(record["pass"])
        if record["pass"] == self.number:
            self.do()

    def on_fit_end(self, run: Any) -> None:
        self.told.append("end")


def _check_kept(clf: SGDClassifier, passes: int) -> None:
    assert clf.history_.interrupted
    assert "interrupted" in repr(clf.history_)
    assert clf.n_iter_ == len(clf.history_) >= passes
    assert clf.t_ >= clf.n_iter_ * N_ROWS
    assert clf.score(*_rows()) > 0.8


def _check_goes_on(clf: SGDClassifier, X: Any, y: Any) -> None:
    seen = clf.t_
    clf.set_params(callbacks=None, warm_start=True, max_iter=2)
    assert not clf.fit(X, y).history_.interrupted
    assert clf.t_ == seen + 2 * N_ROWS
    assert clf.partial_fit(X, y).t_ == seen + 3 * N_ROWS


# --- the handler -----------------------------------------------------------------------------


def test_the_first_is_raised_and_later_ones_are_not() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            _interrupt()
        _interrupt()


def test_one_that_is_held_is_raised_at_the_end() -> None:
    told = []

    def run() -> None:
        with Interrupts() as interrupts:
            with interrupts.held():
                _interrupt()
                told.append("whole")
            told.append("after")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert told == ["whole", "after"]


def test_one_that_comes_in_a_step_is_raised_between_two() -> None:
    with Interrupts() as interrupts, interrupts.between_steps():
        interrupts.rest()
        _interrupt()
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupts.rest()
        assert interrupts.came_at_rest(caught.value)


def test_a_second_one_waits_for_no_step() -> None:
    with Interrupts() as interrupts, interrupts.between_steps():
        _interrupt()
        with pytest.raises(KeyboardInterrupt) as caught:
            _interrupt()
        assert not interrupts.came_at_rest(caught.value)


def test_one_in_a_users_own_code_is_raised_at_once() -> None:
    with Interrupts() as interrupts, interrupts.between_steps(), interrupts.at_once():
        with pytest.raises(KeyboardInterrupt):
            _interrupt()


def test_a_users_own_handler_is_called() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: called.append(1))
    try:
        with Interrupts() as interrupts, interrupts.between_steps():
            _interrupt()
            _interrupt()
            interrupts.rest()
        assert called == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_have_none() -> None:
    def run() -> None:
        with Interrupts() as interrupts, interrupts.between_steps():
            interrupts.rest()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- in one process --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fit_in_memory_keeps_whole_steps(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, count = [], itertools.count()
    update = SGD.update

    def interrupted(self: SGD, w: Any, *args: Any) -> None:
        if next(count) == 100:  # threads race under "hogwild"
            _interrupt()
        update(self, w, *args)
        steps.append(w.copy())

    monkeypatch.setattr(SGD, "update", interrupted)
    clf = _endless(policy)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_rows())
    assert len(steps) > 100
    _check_kept(clf, 0 if policy == "hogwild" else 2)
    if policy in ("sync", "allreduce"):
        np.testing.assert_array_equal(np.append(clf.coef_, clf.intercept_), steps[-1].ravel())
    monkeypatch.undo()
    _check_goes_on(clf, *_rows())


@pytest.mark.parametrize(
    ("solver", "penalty"), [("lbfgs", "l1"), ("lbfgs", "l2"), ("newton-cholesky", "l2")]
)
def test_a_round_solver_keeps_its_last_iterate(solver: str, penalty: str) -> None:
    X, y = _rows()
    params = {"solver": solver, "penalty": penalty, "C": 1e3, "tol": 1e-9, "max_iter": 1000}
    truth = LogisticRegression(**params).fit(X, y)
    clf = LogisticRegression(callbacks=At(5), warm_start=True, **params)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert clf.history_.interrupted
    assert 1 <= clf.n_iter_[0] < truth.n_iter_[0]
    assert clf.score(X, y) > 0.9
    clf.set_params(callbacks=None).fit(X, y)
    np.testing.assert_allclose(clf.coef_, truth.coef_, rtol=1e-3)


@pytest.mark.parametrize("estimator", [LogisticRegression, PoissonRegressor, LinearSVC])
def test_an_interrupted_round_fit_has_what_a_whole_one_has(estimator: Any) -> None:
    """Every attribute, in its shape."""
    X, y = _rows()
    tight = {"tol": 1e-9, "max_iter": 1000}
    whole, cut = estimator(**tight).fit(X, y), estimator(callbacks=At(6), **tight)
    with pytest.raises(KeyboardInterrupt):
        cut.fit(X, y)
    assert cut.history_.interrupted
    shapes = [
        {name: np.shape(value) for name, value in vars(fitted).items() if name.endswith("_")}
        for fitted in (whole, cut)
    ]
    assert shapes[1] == shapes[0] | {"history_": np.shape(cut.history_)}


def test_before_the_first_step_nothing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = _endless("sync")
    monkeypatch.setattr(InProcessEngine, "survey", lambda *_: _interrupt())
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_rows())
    assert not hasattr(clf, "coef_")


def test_one_that_comes_when_all_is_done_leaves_a_whole_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InProcessEngine, "close", lambda *_: _interrupt())
    clf = SGDClassifier(max_iter=3, tol=None)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_rows())
    assert clf.n_iter_ == 3
    assert not clf.history_.interrupted


@pytest.mark.parametrize("when", ["in a part", "as it is saved"])
def test_a_fit_with_checkpoints_keeps_what_it_had(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback, saved = At(5), Checkpoint(tmp_path / "fit.npz", every=2)
    if when == "as it is saved":
        callback.number, saves = 0, Checkpoint.save

        def save(self: Checkpoint, state: Any, facts: Any) -> None:
            saves(self, state, facts)
            if facts["passes"] == 4:
                _interrupt()

        monkeypatch.setattr(Checkpoint, "save", save)
    clf = _endless("sync", callbacks=callback, checkpoint=saved)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_rows())
    _check_kept(clf, 4)
    assert callback.told[-1] == "end"
    assert saved.load()[1]["passes"] == 4


# --- on a cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "async", "hogwild"))
def test_a_fit_on_a_cluster_keeps_what_it_had(client: Client, policy: str) -> None:
    X, y = _lazy()
    callback = At(3)
    clf = _endless(policy, callbacks=callback, run=Run(n_lanes=2, n_servers=2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert callback.told == [1, 2, 3, "end"]
    _check_kept(clf, 3)
    _check_goes_on(clf, X, y)


@pytest.mark.parametrize(
    "policy",
    quick(["sync", "average", "async", "allreduce"], "average"),
)
def test_a_fit_whose_workers_are_lost_keeps_the_clients_images(
    client: Client, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a user who does not want to wait for others."""
    saved, put = [], SavedImages.put

    def note(self: SavedImages, images: list[Saved], on_disk: bool) -> None:
        put(self, images, on_disk)
        saved.append(images)

    def interrupt_if_saved() -> None:
        if saved:
            _interrupt()

    callback = At(0)
    monkeypatch.setattr(callback, "on_pass_end", lambda run, record: interrupt_if_saved())
    monkeypatch.setattr(SavedImages, "put", note)
    monkeypatch.setattr(Ending, "_told_by_workers", lambda _: None)
    for name in ("_SHADOW_AFTER", "_SAVE", "_SAVE_SHADOWED"):
        monkeypatch.setattr(cluster_run, name, 0.0)
    X, y = _lazy()
    clf = _endless(policy, callbacks=callback, run=Run(n_lanes=2, n_servers=2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    image = saved[-1][0][0]
    assert sum(image.clocks.values()) * 32 <= clf.t_ <= sum(image.clocks.values()) * 64
    assert clf.history_.interrupted
    assert clf.score(*_rows()) > 0.7
    _check_goes_on(clf, X, y)


def test_another_one_during_the_clean_up_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_up = Ending.clean_up

    def interrupted(self: Ending) -> None:
        _interrupt()
        clean_up(self)
        _interrupt()

    monkeypatch.setattr(Ending, "clean_up", interrupted)
    clf = _endless("sync", callbacks=At(2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_lazy())
    _check_kept(clf, 2)
    # The fixture sees that nothing is left.


def test_a_round_solver_on_a_cluster_keeps_its_last_iterate(client: Client) -> None:
    clf = LogisticRegression(C=1e3, tol=1e-9, callbacks=At(6))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*_lazy())
    assert clf.history_.interrupted
    assert clf.score(*_rows()) > 0.9


SCRIPT = """
import os, signal, threading, time
import dask, dask.array as da, numpy as np
from distributed import Client, LocalCluster
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training import dask_internals

def say(word):
    print(word, flush=True)

class Ready:
    def on_pass_end(self, run, record):
        if record["pass"] == 3:
            say("ready")

def shields():
    return len(dask_internals._shields)

def read():
    time.sleep(0.1)
    return np.zeros((100, 4))

def tell_when_shielded(client):
    while not all(client.run(shields).values()):
        time.sleep(0.01)
    say("ready")

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
    ) as cluster, Client(cluster) as client:
        pids = client.run(os.getpid)
        X = np.random.default_rng(0).normal(size=(1000, 4))
        X, y = da.from_array(X, chunks=(250, -1)), da.from_array(X[:, 0] > 0, chunks=250)
        clf = SGDClassifier(max_iter=10**6, tol=None, callbacks=[Ready()])
        try:
            clf.fit(X, y)
        except KeyboardInterrupt:
            say(f"kept {clf.history_.interrupted} {clf.score(X, y) > 0.8}")
        say(f"next {clf.set_params(max_iter=2, callbacks=None).fit(X, y).n_iter_}")

        slow, fresh = [dask.delayed(read)() for _ in range(500)], SGDClassifier()
        threading.Thread(target=tell_when_shielded, args=[client]).start()
        try:
            fresh.fit(slow, [dask.delayed(np.arange)(100) for _ in slow])
        except KeyboardInterrupt:
            say(f"nothing kept {vars(fresh).keys() == vars(SGDClassifier()).keys()}")
        say(f"same workers {client.run(os.getpid) == pids}")
        say(f"shields {sum(client.run(shields).values())}")
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            time.sleep(0.01)
        say("clean")
"""


def test_ctrl_c_of_a_terminal_spares_the_workers() -> None:
    """It goes to the whole process group, as JupyterLab's button does."""
    told = []
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                told.append(line.strip())
                if told[-1] == "ready":
                    os.killpg(process.pid, signal.SIGINT)
        finally:
            process.kill()
        noise = process.stderr.read()
    assert told == [
        "ready",
        "kept True True",
        "next 2",
        "ready",
        "nothing kept True",
        "same workers True",
        "shields 0",
        "clean",
    ], noise
    assert "RunAbortedError" not in noise
    assert "Compute Failed" not in noise
