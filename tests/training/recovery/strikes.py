"""Fits with faults in their workers, and the result of an undisturbed fit."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from sklearn.metrics import log_loss

from benchmarks._strikes import find_standbys, have_standbys
from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier

N_ROWS, N_PASSES = 6_000, 14
EXACT = ["sync", "allreduce", "local", "average"]
SERVED = {"ssp", "async"}


def make_rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 8))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0


def lazy_rows() -> tuple[Any, Any]:
    X, y = make_rows()
    return da.from_array(X, chunks=(600, -1)), da.from_array(y, chunks=600)


def lazy_sparse_rows() -> tuple[Any, Any]:
    X = sparse.random(N_ROWS, 4096, density=0.003, format="csr", rng=0)
    y = X @ np.random.default_rng(0).normal(size=4096) > 0
    parts = [dask.delayed(X[at : at + 600]) for at in range(0, N_ROWS, 600)]
    blocks = [da.from_delayed(part, (600, 4096), X.dtype, X[:0]) for part in parts]
    return da.concatenate(blocks), da.from_array(y, chunks=600)


def make_classifier(policy: Any, *callbacks: Any, **params: Any) -> SGDClassifier:
    # Two servers: a single one that sums the gradients of one host would leave this to the
    # trainers.
    run = Run(n_lanes=3, n_servers=2 if policy == "sync" else 1)
    # A step through servers takes longer than one without.
    batch_size = 32 if policy == "sync" else 16
    params = {"max_iter": N_PASSES, "tol": None, "batch_size": batch_size, "run": run} | params
    # If steps need no server, a fit would be over before a fault; so slow it down.
    some = list(callbacks) if policy in SERVED else [*callbacks, _resting(5e-4)]
    some += [strike.hold_up() for strike in callbacks if isinstance(strike, Strike)]
    return SGDClassifier(policy=policy, random_state=0, callbacks=some, **params)


def _resting(seconds: float, until: str = "") -> Any:
    """Return a callback that makes each step longer by `seconds`, until a file exists."""

    class Resting:
        def on_step_end(self, step: Any) -> None:
            if not (until and os.path.exists(until)):
                time.sleep(seconds)

    return Resting()


_calm: dict[str, SGDClassifier] = {}


def calm_fit(policy: str) -> SGDClassifier:
    if policy not in _calm:
        _calm[policy] = make_classifier(policy).fit(*lazy_rows())
    return _calm[policy]


def kill_worker(client: Client, address: str) -> None:
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)


def hold_lock(path: str) -> None:
    """Compute, and block all other threads of this process, until a file's first byte is set."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 1) as flag:
            while not flag[0]:
                pass
    finally:
        sys.setswitchinterval(interval)


def release_lock(path: Path) -> None:
    """End :func:`hold_lock`; write in place, since a mapped file must not get shorter."""
    with path.open("r+b") as file:
        file.write(b"\1")


#: Seconds after which a fit has standbys; before that it restarts if a server is lost.
STANDBYS = 0.6


class Strike:
    """Callback that injects a fault once, after a number of seconds and passes.

    With `ready` it waits until that function returns True for the run, instead of a time.
    """

    def __init__(
        self,
        strike: Callable[[Any], None],
        after: float = STANDBYS,
        passes: int = 0,
        ready: Callable[[Any], bool] | None = None,
    ) -> None:
        self.strike = strike
        #: File whose existence informs workers that the fault has happened.
        self._fault_file = Path(tempfile.gettempdir(), f"struck-{uuid4().hex}")
        weakref.finalize(self, self._fault_file.unlink, missing_ok=True)
        self.after = after if ready is None else 0.0
        self.passes = passes
        self.ready = ready
        self.first = float("inf")
        self.struck = False
        self.events: list[Any] = []
        #: Records as seen by a callback that follows the fit.
        self.records: list[dict[str, Any]] = []

    def hold_up(self) -> Any:
        """Return a callback that keeps steps slow until the fault, so that the fit goes on."""
        return _resting(2e-3, str(self._fault_file))

    def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
        self.on_pass_redone(run, record)
        self.first = min(self.first, time.monotonic())
        is_due = time.monotonic() - self.first >= self.after and record["pass"] > self.passes
        if not self.struck and is_due and (self.ready is None or self.ready(run)):
            self.struck = True
            self._fault_file.touch()
            self.strike(run)

    def on_pass_redone(self, run: Any, record: dict[str, Any]) -> None:
        del self.records[record["pass"] - 1 :]
        self.records.append(record)
        assert run.n_passes == record["pass"]

    def on_generation(self, run: Any, event: Any) -> None:
        self.events.append(event)
        del self.records[run.n_passes :]


def workers_of(run: Any, role: str) -> set[str]:
    """Return the workers with only a trainer, with the server, or one of each, by role."""
    server = run.server_addresses[0]
    trainer = next(a for a in reversed(run.trainer_addresses) if a != server)
    return {"trainer": {trainer}, "server": {server}, "both": {trainer, server}}[role]


def make_killer(client: Client, role: str) -> Callable[[Any], None]:
    """Return a function that kills the workers of a role."""

    def kill(run: Any) -> None:
        for address in workers_of(run, role):
            kill_worker(client, address)

    return kill


def make_strike(client: Client, role: str) -> Strike:
    """Return a fault that happens once every server has a standby from which the fit can resume."""
    kill = make_killer_of_two(client) if role == "two" else make_killer(client, role)
    return Strike(kill, ready=partial(have_standbys, client))


def make_killer_of_two(client: Client) -> Callable[[Any], None]:
    """Return a function that kills a server and a trainer elsewhere; each server keeps a copy."""

    def kill(run: Any) -> None:
        standbys = find_standbys(client, run)
        copies = [{a, standbys[n][0]} for n, a in enumerate(run.server_addresses)]
        pairs = (
            {server, trainer}
            for server in run.server_addresses
            for trainer in run.trainer_addresses
            if server != trainer
        )
        # Of three workers, two of which each hold a server or its standby, one holds both servers'
        # copies.
        for address in next(pair for pair in pairs if not any(two <= pair for two in copies)):
            kill_worker(client, address)

    return kill


def loss_on_rows(clf: SGDClassifier) -> float:
    X, y = make_rows()
    return float(log_loss(y, clf.predict_proba(X)))


def check_fit(clf: SGDClassifier, policy: str) -> None:
    """Check that every pass counts every row once, and that the result is an undisturbed fit's."""
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, N_PASSES + 1))
    assert {record["rows"] for record in records} == {N_ROWS}
    for strike in clf.callbacks:
        if isinstance(strike, Strike):
            assert strike.records == records
    undisturbed = calm_fit(policy)
    if policy in EXACT:
        np.testing.assert_allclose(clf.coef_, undisturbed.coef_, rtol=1e-6)
    assert loss_on_rows(clf) == pytest.approx(loss_on_rows(undisturbed), rel=0.01)


def first_of(*values: Any) -> list[Any]:
    """Return all values; in the default run, only the first."""
    return [values[0], *(pytest.param(v, marks=pytest.mark.slow) for v in values[1:])]
