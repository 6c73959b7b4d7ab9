"""A fit comes through every fault, with the result of an undisturbed one.

One fault that fails is run again alone by its seed: ``pytest tests/chaos -m "" -k seed017``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from chaos.arenas import Arena
from chaos.disks import FillDisk, small_disk
from chaos.faults import NETWORK_KINDS, PASSES, PROCESS_KINDS, Fault, Striker, draw, prepare
from chaos.growths import draw_strike, survive
from chaos.moments import NETWORK_TROUBLES, PROCESS_TROUBLES, draw_trouble
from chaos.pipelines import draw_ambush, outlast
from chaos.works import classifier, do, objective
from daskml_dist.errors import CheckpointError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint

N_ROWS = 6_000
#: Seconds in which a fit must end, whatever happens to it: before a wait of a fit runs out (300).
BOUND = 200.0
#: Policies with reproducible results, also after a loss.
EXACT = {"sync", "allreduce", "local", "average"}
#: The seed of a quick process fault; all others are slow, as are network faults, which restart
#: workers.
QUICK = {217}


def _seeds(seeds: range) -> list[Any]:
    return [
        pytest.param(n, id=f"seed{n:03}", marks=() if n in QUICK else pytest.mark.slow)
        for n in seeds
    ]


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 8))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0


def _lazy() -> tuple[Any, Any]:
    X, y = _rows()
    return da.from_array(X, chunks=(600, -1)), da.from_array(y, chunks=600)


def _loss(clf: SGDClassifier) -> float:
    """What the fit minimises, of all rows."""
    return objective(clf, *_rows())


@pytest.fixture
def expected(undisturbed: dict[Any, Any]) -> Callable[[str, int], SGDClassifier]:
    """The fit without a fault."""

    def fit(policy: str, max_iter: int) -> SGDClassifier:
        if (policy, max_iter) not in undisturbed:
            clf = classifier(policy, max_iter).fit(*_lazy())
            _check_passes(clf, max_iter)
            undisturbed[policy, max_iter] = clf
        return undisturbed[policy, max_iter]

    return fit


def _check_passes(clf: SGDClassifier, max_iter: int) -> None:
    """Check that each pass exists once and counts every row once."""
    records = clf.history_.records
    assert [record["pass"] for record in records] == list(range(1, max_iter + 1))
    assert {record["rows"] for record in records} == {N_ROWS}


def _check_same(clf: SGDClassifier, other: SGDClassifier, policy: str) -> None:
    """Check that the coefficients equal those of the other fit, or are as accurate."""
    if policy in EXACT:
        np.testing.assert_allclose(clf.coef_, other.coef_, atol=1e-6, rtol=0)
        np.testing.assert_allclose(clf.intercept_, other.intercept_, atol=1e-6, rtol=0)
    else:
        assert _loss(clf) == pytest.approx(_loss(other), rel=0.01)


def _survive(
    fault: Fault,
    arena: Arena,
    expected: Callable[[str, int], SGDClassifier],
    note: Callable[[Striker], None],
    assert_clean: Callable[..., None],
) -> None:
    """Fit while the fault happens, and compare."""
    arena.heal()
    wanted = expected(fault.policy, fault.max_iter)
    prepare(fault, arena)
    X, y = _lazy()
    if fault.persisted:
        X, y = arena.client.persist([X, y])
    striker = Striker(fault, arena)
    clf = classifier(fault.policy, fault.max_iter, striker)
    began = time.monotonic()
    try:
        clf.fit(X, y)
    finally:
        seconds = time.monotonic() - began
        note(striker)
        striker.join()
        print(f"{fault}\n{striker.victims} {striker.struck_at} {seconds:.2f} s")
        print(*striker.generations, sep="\n")
    assert seconds < BOUND
    assert striker.passes == list(range(1, fault.max_iter + 1))
    _check_passes(clf, fault.max_iter)
    _check_same(clf, wanted, fault.policy)
    arena.heal()
    assert_clean(arena.client, keep=[X, y])


class TestProcesses:
    """Faults of processes."""

    @pytest.mark.parametrize("seed", _seeds(range(160)))
    def test_fault(
        self, seed: int, processes: Arena, expected: Any, note: Any, assert_clean: Any
    ) -> None:
        _survive(draw(seed, PROCESS_KINDS), processes, expected, note, assert_clean)

    @pytest.mark.slow
    @pytest.mark.parametrize("pretended", [False, True])
    def test_full_disk(
        self,
        pretended: bool,
        processes: Arena,
        expected: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The fit raises, the previous checkpoint is intact, and a fit resumes from it."""
        processes.heal()
        passes = PASSES["sync"]
        with small_disk(tmp_path, monkeypatch, pretended) as disk:
            fill = FillDisk(disk, after_pass=int(np.random.default_rng(0).integers(4, 20)))
            file = Checkpoint(tmp_path / "fit.npz", every=2)
            with pytest.raises(CheckpointError, match="previous checkpoint is intact"):
                classifier("sync", passes, fill, checkpoint=file).fit(*_lazy())
            _, facts = file.load()
            assert facts["passes"] in {fill.after_pass - 2, fill.after_pass - 1}
            disk.make_room()
            resuming = Checkpoint(file.path, every=passes, resume=True)
            clf = classifier("sync", passes, checkpoint=resuming).fit(*_lazy())
        _check_passes(clf, passes)
        _check_same(clf, expected("sync", passes), "sync")


class TestNetwork:
    """Faults of the network."""

    @pytest.mark.parametrize("seed", _seeds(range(160, 200)))
    def test_fault(
        self, seed: int, network: Arena, expected: Any, note: Any, assert_clean: Any
    ) -> None:
        _survive(draw(seed, NETWORK_KINDS), network, expected, note, assert_clean)


class TestMoments:
    """Losses at every moment of a run's life, of every kind of work."""

    @pytest.mark.parametrize("seed", _seeds(range(200, 900)))
    def test_trouble(self, seed: int, killed: Arena) -> None:
        do(draw_trouble(seed, PROCESS_TROUBLES), killed)


class TestNetworkMoments:
    """A network that goes and comes, at every moment."""

    @pytest.mark.parametrize("seed", _seeds(range(900, 1000)))
    def test_trouble(self, seed: int, network: Arena) -> None:
        do(draw_trouble(seed, NETWORK_TROUBLES), network)


class TestGrowths:
    """Workers killed while trees grow."""

    @pytest.mark.parametrize("seed", _seeds(range(1000, 1100)))
    def test_strike(self, seed: int, killed: Arena) -> None:
        survive(draw_strike(seed), killed)


class TestPipelines:
    """Both workers killed under pipelines over dataframes."""

    @pytest.mark.parametrize("seed", _seeds(range(1100, 1300)))
    def test_ambush(self, seed: int, pair: Arena) -> None:
        outlast(draw_ambush(seed), pair)
