"""Round solvers resume from the sums that trainers remember, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from daskml_dist.backends import Backend
from daskml_dist.comm.base import Communicator, WaitBound
from daskml_dist.comm.server_connections import SoloCommunicator
from daskml_dist.data.batches import LaneRows, LaneSpec
from daskml_dist.data.collection import as_collection
from daskml_dist.errors import CommunicationError
from daskml_dist.losses import EpsilonInsensitive, LogLoss, Loss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.penalties import Penalty
from daskml_dist.solvers import (
    LBFGS,
    Boosting,
    NewtonCholesky,
    RowState,
    Solution,
    Solver,
    Statistic,
    Sums,
)
from daskml_dist.solvers.newton import TubeNewton
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary
from daskml_dist.training.in_process import InProcessEngine
from daskml_dist.training.plan import make_solver_fit
from daskml_dist.training.spec import FitSpec, RunSettings, TrainerSpec
from daskml_dist.training.worker.lane import Lane, RowStates
from daskml_dist.training.worker.loops import rounds
from daskml_dist.training.worker.loops.context import Context
from daskml_dist.training.worker.loops.solver import run_solver_loop
from daskml_dist.training.worker.reader import ReadyBlock, prepare_block
from tests.comm.ranks import Ranks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 7))
RAW = X @ RNG.normal(size=7) + RNG.normal(size=240)
LABELS, THREE = (RAW > 0).astype(float), np.digitize(RAW, [-1, 1])
SOLVERS: dict[str, tuple[Solver, Loss, Any]] = {
    "lbfgs": (LBFGS(Penalty(0.0, 0.01), 100, 1e-9), LogLoss(), LABELS),
    "orthant-wise": (LBFGS(Penalty(0.01, 0.0), 100, 1e-9), LogLoss(), LABELS),
    "newton": (NewtonCholesky(Penalty(0.0, 1e-4), 100, 1e-12), LogLoss(), LABELS),
    "newton of three": (NewtonCholesky(Penalty(0.0, 1e-4), 100, 1e-12), LogLoss(), THREE),
    "boosting": (Boosting(Penalty(0.0, 0.01), 12, 0.0), LogLoss(), LABELS),
    "tube": (TubeNewton(Penalty(0.0, 1e-3), 60, 1e-6, 0.1, 1.0), EpsilonInsensitive(0.1), RAW),
}


class LostError(CommunicationError):
    """Error that stands for a lost trainer."""


class _FrailLane(Lane):
    """Lane that fails in the sum with the given index."""

    fails_at = 0

    def add_statistic(self, statistic: Any, number: int, left: int, out: Any) -> Any:
        if number == self.fails_at:
            raise LostError(f"lost in sum {number}")
        return super().add_statistic(statistic, number, left, out)


@dataclass
class _Ledger:
    """Ledger that receives the reports of the first trainer."""

    sums: list[Any] = field(default_factory=list)

    def call(self, op: str, first: int, sums: list[Any]) -> dict[str, bool]:
        self.sums[first - 1 :] = sums
        return {"stop": False}

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class _Fit:
    """Fit of two lanes by one or two trainers."""

    fit: FitSpec
    lanes: list[LaneSpec]
    ready: dict[int, ReadyBlock]
    ledger: _Ledger = field(default_factory=_Ledger)

    @classmethod
    def of(cls, solver: Solver, loss: Loss, y: Any) -> _Fit:
        """Return a fit with one of the solvers above."""
        engine = InProcessEngine(as_collection(X, y, classification=y is not RAW))
        summary = DataSummary(engine.inspect_blocks(2))
        classes = None if y is RAW else np.unique(y)
        model = LinearModel(loss, 7, 0 if classes is None else len(classes), fit_intercept=True)
        lanes = engine.choose_lanes(2, bytes_per_lane=None, passes=solver.max_passes)
        rows = DatasetInfo.from_summary(summary, classes, None, False)
        settings = RunSettings(n_lanes=2, deterministic=True)
        fit = make_solver_fit(model, solver, rows, lanes, None, None, settings)
        return cls(fit, lanes, {i: prepare_block(b, fit) for i, b in engine._blocks.items()})

    def run(
        self, memory: dict[str, Any], generation: int, fails_at: int = 0,
        communicator: Communicator | None = None,
    ) -> Solution | None:  # fmt: skip
        """Run one trainer's part of a generation."""
        peers = communicator or SoloCommunicator()
        lane_specs = tuple(self.lanes[peers.rank :: peers.size])
        spec = TrainerSpec(
            "run", peers.rank, peers.rank, peers.size, generation, lane_specs,
            (0,) * len(lane_specs), 1, (), b"", 0, self.fit.rows.lane_rows,
        )  # fmt: skip
        lanes = []
        for one in lane_specs:
            rows = LaneRows(one, 1, 0, False)
            lanes.append(_FrailLane(one.lane, self.fit, rows, self.ready))
            lanes[-1].fails_at = fails_at
        connect: Callable[[], Any] = lambda: self.ledger  # noqa: E731
        context = Context(
            self.fit, list(lanes), spec, connect, peers, WaitBound(20), lambda: None, memory
        )
        found = run_solver_loop(context)
        assert found is None or isinstance(found, Solution)
        return found


def _undisturbed(name: str) -> tuple[Solution, int]:
    fit, memory = _Fit.of(*SOLVERS[name]), dict[str, Any]()
    found = fit.run(memory, 0)
    assert found is not None
    return found, len(fit.ledger.sums)


def _check(found: Solution | None, undisturbed: Solution) -> None:
    assert found is not None
    np.testing.assert_array_equal(found.w, undisturbed.w)
    assert found.n_iter == undisturbed.n_iter
    assert found.converged == undisturbed.converged


@pytest.mark.parametrize("much", [0, 2**24], ids=["kept", "replayed"])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_resumes_to_the_same_digits(
    name: str, much: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "REPLACED_FROM_BYTES", much)
    undisturbed, n_sums = _undisturbed(name)
    assert n_sums > 8
    fit, memory = _Fit.of(*SOLVERS[name]), dict[str, Any]()
    # A trainer is lost repeatedly, each time a few sums later.
    for generation, at in enumerate([1, *range(3, n_sums, max(4, n_sums // 16))]):
        with pytest.raises(LostError):
            fit.run(memory, generation, fails_at=at)
    _check(fit.run(memory, 99), undisturbed)
    assert len(fit.ledger.sums) == n_sums
    log = memory["log"]
    assert log.is_whole
    if name != "lbfgs":  # SciPy's solver state cannot be resumed
        assert (len(log.sums) < 4 + n_sums / 2) == (much == 0)


def test_sums_beyond_the_memory_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, n_sums = _undisturbed("lbfgs")
    monkeypatch.setattr(rounds, "MAX_REMEMBERED_BYTES", 1000)
    fit, memory = _Fit.of(*SOLVERS["lbfgs"]), dict[str, Any]()
    with pytest.raises(LostError):
        fit.run(memory, 0, fails_at=n_sums)
    assert not memory["log"].is_whole
    assert not memory["log"].sums
    _check(fit.run(memory, 1), undisturbed)


@pytest.mark.parametrize("name", ["orthant-wise", "newton", "lbfgs"])
@pytest.mark.parametrize("lost", [0, 1], ids=["who leads", "who follows"])
def test_a_solver_resumes_if_another_trainer_leads(
    name: str, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "REPLACED_FROM_BYTES", 400)
    undisturbed, n_sums = _undisturbed(name)
    fit = _Fit.of(*SOLVERS[name])
    memories: list[dict[str, Any]] = [{}, {}]

    def part(peers: Communicator, generation: int, at: int) -> Any:
        try:
            return fit.run(memories[peers.rank], generation, at, peers)
        except CommunicationError as error:
            peers.close()
            return error

    for generation, at in enumerate([n_sums // 3, 2 * n_sums // 3, 0]):
        ranks = Ranks([False, False], WaitBound(20), None)
        found = ranks.each(partial(part, generation=generation, at=at))
        ranks.close()
        if at:
            assert any(isinstance(one, LostError) for one in found)
            # A new trainer without remembered sums joins; the survivor may lead or follow.
            left = memories[1 - lost]
            memories = [left, {}] if generation % 2 else [{}, left]
    _check(found[0], undisturbed)
    assert len(fit.ledger.sums) == n_sums


# --- memory of the rows ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Visits(RowState):
    """Row memory that counts the visits of each row."""

    name = "visits"
    n: int
    memories_made: ClassVar[list[int]] = []

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        self.memories_made.append(self.n)
        return np.full(len(rows.y), float(self.n))


@dataclass(frozen=True)
class Visit(Statistic):
    """Statistic that sums the visits of all rows so far; at first `n`."""

    n: int

    @property
    def state(self) -> Visits:
        return Visits(self.n)

    def shape(self, model: Any) -> tuple[int, ...]:
        return (1,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> float:
        rows.state[...] += 1
        out[0] += rows.state.sum()
        return 0.0


class VisitAgain(Visit):
    """The same statistic, whose sum is not remembered."""

    remembered = False


@dataclass(frozen=True)
class Visitor(Solver):
    """Solver that sums over the rows twelve times."""

    name = "visitor"
    max_passes = 12

    def solve(self, model: Any, sums: Sums, start: Any) -> Solution:
        results = [sums((VisitAgain if n % 3 == 1 else Visit)(n))[0] for n in range(12)]
        return Solution(np.array(results))


def test_row_memory_is_kept_and_rebuilt_only_after_a_loss() -> None:
    fit, memory = _Fit.of(Visitor(), LogLoss(), LABELS), dict[str, Any]()
    truth = 240.0 * np.arange(1, 13)
    Visits.memories_made.clear()
    found = fit.run({}, 0)
    assert found is not None
    np.testing.assert_array_equal(found.w, truth)
    assert Visits.memories_made == [0, 0]  # once a block
    for generation, at in enumerate(range(2, 13, 3)):
        with pytest.raises(LostError):
            fit.run(memory, generation, fails_at=at)
    Visits.memories_made.clear()
    found = fit.run(memory, 9)
    assert found is not None
    np.testing.assert_array_equal(found.w, truth)
    assert sorted(set(Visits.memories_made)) == [1, 4, 7, 10]


def test_row_memory_that_does_not_fit_is_rebuilt() -> None:
    states, visits = RowStates(8 * 5), Visits(3)
    rows = [BatchRows(X[:5], RAW[:5], block=0), BatchRows(X[5:9], RAW[5:9], block=1)]
    for number, expected in ((1, [3, 3]), (2, [3])):
        Visits.memories_made.clear()
        for some in rows:
            with states.lend_state(visits, number - 1, number, None, some, None):
                some.state += 1
        assert Visits.memories_made == expected  # the larger block's memory is kept
    with pytest.raises(LostError), states.lend_state(visits, 2, 3, None, rows[0], None):
        raise LostError("half written")
    Visits.memories_made.clear()
    with states.lend_state(visits, 2, 3, None, rows[0], None):
        assert Visits.memories_made == [3]
