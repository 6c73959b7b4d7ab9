"""Trainers that fuse many steps into one loop equal single steps, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.worker.cores import TrainerCores, choose_core_share, pin_to_processors
from tests.quick import quick

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6_000, 128)).astype(np.float32)
    return da.from_array(X, chunks=(1_500, -1)), da.from_array(X[:, 0] > 0, chunks=1_500)


def _counts_steps(client: Client, by_loop: bool) -> None:
    """Let trainers count the steps of their fused loop, or disable the loop."""

    def switch() -> None:
        from daskml_dist.training.worker.loops.replicas import ReplicaTeamSteps

        kind: Any = ReplicaTeamSteps
        if not hasattr(kind, "usual"):
            kind.usual = kind.take
        kind.taken = 0

        def take(self: Any, clock: int, most: int) -> int:
            n_steps: int = kind.usual(self, clock, most) if by_loop else 0
            kind.taken += n_steps
            return n_steps

        kind.take = take

    client.run(switch)


def _counted_steps(client: Client) -> list[int]:
    def count_steps() -> int:
        from daskml_dist.training.worker.loops.replicas import ReplicaTeamSteps

        kind: Any = ReplicaTeamSteps
        count: int = kind.taken
        return count

    return list(client.run(count_steps).values())


def _restore(client: Client) -> None:
    def restore() -> None:
        from daskml_dist.training.worker.loops.replicas import ReplicaTeamSteps

        kind: Any = ReplicaTeamSteps
        kind.take = kind.usual
        del kind.usual, kind.taken

    client.run(restore)


def _equal(ours: Any, theirs: Any, exact: bool) -> None:
    if exact:
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("penalty", quick(["l2", "elasticnet"], "l2"))
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("n_lanes", [2, 5])
def test_the_fused_loop_equals_single_steps(
    client: Client, n_lanes: int, deterministic: bool, penalty: str
) -> None:
    run, passes = Run(n_lanes=n_lanes, deterministic=deterministic), []

    class Notes:
        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            passes.append(record["pass"])

    fits = []
    for by_loop in (True, False):
        _counts_steps(client, by_loop)
        try:
            clf = SGDClassifier(
                loss="log_loss", policy="allreduce", penalty=penalty, batch_size=200,
                max_iter=5, tol=None, early_stopping=True, random_state=0, run=run,
                learning_rate=0.05, callbacks=[Notes()],
            ).fit(*_rows())  # fmt: skip
            steps = sum(record["steps"] for record in clf.history_.records)
            assert _counted_steps(client) == [steps if by_loop else 0] * 2
        finally:
            _restore(client)
        fits.append(clf)
    ours, theirs = fits
    # Which lanes share a worker, and so the order of sums, may change between fits.
    exact = deterministic or n_lanes == 2
    _equal(ours.coef_, theirs.coef_, exact)
    _equal(ours.intercept_, theirs.intercept_, exact)
    for name in ("loss", "rows", "steps", "val_score"):
        _equal(*([record[name] for record in clf.history_.records] for clf in fits), exact)
    if not deterministic:  # trainers also agree on the loop in the first pass
        sent = [[record["bytes_pushed"] for record in clf.history_.records[1:]] for clf in fits]
        assert sent[0] == sent[1]
    assert passes == [*range(1, 6)] * 2


def _sparse_rows() -> tuple[Any, Any]:
    X = sparse.random_array((4_000, 4_096), density=0.003, format="csr", dtype="f4", rng=0)
    parts = [dask.delayed(X[at : at + 500]) for at in range(0, 4_000, 500)]
    lazy = da.concatenate([da.from_delayed(p, (500, 4_096), "f4", X[:0]) for p in parts])
    return lazy, da.from_array(np.asarray(X.sum(axis=1)) > 6.2, chunks=500)


@pytest.mark.parametrize(
    ("policy", "penalty"),
    [
        ("sync", "l2"),
        pytest.param("sync", "elasticnet", marks=pytest.mark.slow),
        pytest.param("sync", None, marks=pytest.mark.slow),
        pytest.param("allreduce", "elasticnet", marks=pytest.mark.slow),
    ],
)
def test_the_fused_loop_equals_single_steps_on_sparse_rows(
    client: Client, policy: str, penalty: str | None
) -> None:
    run, fits = Run(n_lanes=3, deterministic=True), []
    for by_loop in (True, False):
        _counts_steps(client, by_loop)
        try:
            clf = SGDClassifier(
                loss="log_loss", policy=policy, penalty=penalty, max_iter=4, tol=None,
                random_state=0, run=run,
            ).fit(*_sparse_rows())  # fmt: skip
            steps = sum(record["steps"] for record in clf.history_.records)
            assert _counted_steps(client) == [steps if by_loop else 0] * 2
        finally:
            _restore(client)
        fits.append(clf)
    ours, theirs = fits
    _equal(ours.coef_, theirs.coef_, True)
    for name in ("rows", "steps"):
        _equal(*([record[name] for record in clf.history_.records] for clf in fits), True)
    # The lanes' losses are added in another order.
    losses = ([record["loss"] for record in clf.history_.records] for clf in fits)
    np.testing.assert_allclose(*losses, rtol=1e-14)


# Batches large enough that no step copies its rows before the loop is loaded.
@pytest.mark.parametrize("batch_size", quick([400, 5_000], 5_000))
def test_the_fused_loop_equals_single_steps_on_streamed_blocks(
    client: Client, batch_size: int
) -> None:
    """Many streamed blocks, few of them in memory: the bits equal those of single steps."""

    def make(block_info: Any = None) -> Any:
        seed = block_info[None]["chunk-location"][0]
        return np.random.default_rng(seed).normal(size=(2_500, 24)).astype(np.float32)

    X = da.map_blocks(make, chunks=((2_500,) * 40, (24,)), dtype="f4", meta=np.empty((0, 0), "f4"))
    fits = []
    for by_loop in (True, False):
        _counts_steps(client, by_loop)
        try:
            fits.append(
                SGDClassifier(
                    loss="log_loss", policy="allreduce", batch_size=batch_size, max_iter=2,
                    tol=None, random_state=0, run=Run(memory_budget=4_000_000, n_lanes=2),
                ).fit(X, X[:, 0] > 0)
            )  # fmt: skip
            steps = sum(record["steps"] for record in fits[-1].history_.records)
            assert _counted_steps(client) == [steps if by_loop else 0] * 2
        finally:
            _restore(client)
    ours, theirs = fits
    assert ours.history_.extra["streamed"]
    assert [record["rows"] for record in ours.history_.records] == [100_000] * 2
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    # Losses of several batches are added in another order.
    losses = [fit.history_[-1]["loss"] for fit in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-14)
    assert losses[0] < 0.65


def _seats(*cores: int | tuple[int, ...], threads: tuple[int, ...] = (), host: int = 7) -> Any:
    every = [c if isinstance(c, tuple) else tuple(range(c)) for c in cores]
    return [
        TrainerCores(host, n, c) for c, n in zip(every, threads or [1] * len(every), strict=True)
    ]


@pytest.mark.parametrize(
    ("seats", "shares"),
    [
        (_seats(2, 2), [{0}, {1}]),
        (_seats(5, 5), [{0, 1}, {2, 3, 4}]),
        (_seats(8, 8, threads=(3, 1)), [set(range(6)), {6, 7}]),
        (_seats(2, 2, 2), [set()] * 3),
        (_seats(2, 2, threads=(2, 1)), [set()] * 2),
        (_seats((0,), (1,)), [set()] * 2),
        (_seats(4, 4, host=0), [set()] * 2),
        (_seats(4), [set()]),
        ([*_seats(4, 4), *_seats(4, host=8)], [{0, 1}, {2, 3}, set()]),
    ],
)
def test_trainers_share_the_cores_of_their_host(
    seats: list[TrainerCores], shares: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskml_dist.training.worker.cores._CORE", "/nowhere/{}")
    assert [choose_core_share(rank, seats) for rank in range(len(seats))] == shares


def test_hyperthreads_of_a_core_go_to_one_trainer(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_text(f"{number % 2},{number % 2 + 2}\n")
    monkeypatch.setattr("daskml_dist.training.worker.cores._CORE", str(tmp_path / "{}"))
    assert [choose_core_share(rank, _seats(4, 4)) for rank in (0, 1)] == [{0, 2}, {1, 3}]


def test_processor_affinity_is_restored() -> None:
    before = os.sched_getaffinity(0)
    with pin_to_processors(frozenset([min(before)])):
        assert os.sched_getaffinity(0) == {min(before)}
        assert TrainerCores.detect(1).cores == (min(before),)
    assert os.sched_getaffinity(0) == before
