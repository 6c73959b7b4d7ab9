"""Ctrl-C in a fit on a cluster: the estimator keeps the parameters of the last pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.policies import POLICIES
from daskml_dist.training.client import cluster_run
from daskml_dist.training.client.cluster_run import RunEnding
from daskml_dist.training.client.generations import Saved, SavedSnapshots
from tests.quick import quick
from tests.training.interrupts.endless import (
    At,
    check_goes_on,
    check_kept,
    endless,
    lazy_rows,
    make_rows,
    press,
)


@pytest.mark.parametrize("policy", quick(POLICIES, "sync", "async", "hogwild"))
def test_an_interrupted_cluster_fit_keeps_its_parameters(client: Client, policy: str) -> None:
    X, y = lazy_rows()
    callback = At(3)
    clf = endless(policy, callbacks=callback, run=Run(n_lanes=2, n_servers=2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert callback.events == [1, 2, 3, "end"]
    check_kept(clf, 3)
    check_goes_on(clf, X, y)


@pytest.mark.parametrize(
    "policy",
    quick(["sync", "average", "async", "allreduce"], "average"),
)
def test_an_interrupted_fit_without_workers_keeps_the_clients_snapshot(
    client: Client, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the user does not want to wait for new workers."""
    saved, put = [], SavedSnapshots.put

    def note(self: SavedSnapshots, snapshots: list[Saved], on_disk: bool) -> None:
        put(self, snapshots, on_disk)
        saved.append(snapshots)

    def interrupt_if_saved() -> None:
        if saved:
            press()

    callback = At(0)
    monkeypatch.setattr(callback, "on_pass_end", lambda run, record: interrupt_if_saved())
    monkeypatch.setattr(SavedSnapshots, "put", note)
    monkeypatch.setattr(RunEnding, "_recover_from_workers", lambda _: None)
    for name in ("_STANDBY_AFTER", "_SAVE", "_SAVE_WITH_STANDBYS"):
        monkeypatch.setattr(cluster_run, name, 0.0)
    X, y = lazy_rows()
    clf = endless(policy, callbacks=callback, run=Run(n_lanes=2, n_servers=2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    snapshot = saved[-1][0][0]
    assert sum(snapshot.clocks.values()) * 32 <= clf.t_ <= sum(snapshot.clocks.values()) * 64
    assert clf.history_.interrupted
    assert clf.score(*make_rows()) > 0.7
    check_goes_on(clf, X, y)


def test_a_second_interrupt_during_the_cleanup_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_up = RunEnding.clean_up

    def interrupted(self: RunEnding) -> None:
        press()
        clean_up(self)
        press()

    monkeypatch.setattr(RunEnding, "clean_up", interrupted)
    clf = endless("sync", callbacks=At(2))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*lazy_rows())
    check_kept(clf, 2)
    # The fixture checks that nothing is left on the cluster.


def test_a_round_solver_on_a_cluster_keeps_its_last_iterate(client: Client) -> None:
    clf = LogisticRegression(C=1e3, tol=1e-9, callbacks=At(6))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*lazy_rows())
    assert clf.history_.interrupted
    assert clf.score(*make_rows()) > 0.9


SCRIPT = """
import os, signal, threading, time
import dask, dask.array as da, numpy as np
from distributed import Client, LocalCluster
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.dask_internals import interrupt_shields as shields_of_process

def say(word):
    print(word, flush=True)

class Ready:
    def on_pass_end(self, run, record):
        if record["pass"] == 3:
            say("ready")

def shields():
    return len(shields_of_process._shields)

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
            kept = vars(fresh).keys() - {"_feature_dtypes"}  # known before rows are read
            say(f"nothing kept {kept == vars(SGDClassifier()).keys()}")
        say(f"same workers {client.run(os.getpid) == pids}")
        say(f"shields {sum(client.run(shields).values())}")
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            time.sleep(0.01)
        say("clean")
"""


@pytest.mark.slow
def test_ctrl_c_of_a_terminal_spares_the_workers() -> None:
    """The signal is sent to the whole process group, as by JupyterLab's stop button."""
    lines = []
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
                lines.append(line.strip())
                if lines[-1] == "ready":
                    os.killpg(process.pid, signal.SIGINT)
        finally:
            process.kill()
        noise = process.stderr.read()
    assert lines == [
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
