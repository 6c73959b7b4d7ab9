"""Reduce requests of custom solvers: ranges finished by trainers, and errors that end a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.data.collection import as_collection
from daskml_dist.errors import DivergedError, InvalidParameterError, MessageError
from daskml_dist.models.base import BatchRows, Model
from daskml_dist.solvers import ReduceScatterStatistic, Solution, Solver, Statistic, Sums
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.job import FitJob
from daskml_dist.training.spec import RunSettings

Array = NDArray[np.float64]

X = np.random.default_rng(0).normal(scale=6.0, size=(1200, 6))
LAZY = da.from_array(X, chunks=(400, -1))


@dataclass(frozen=True)
class Points(Model):
    """Rows without targets."""

    n_features: int

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Quartiles(ReduceScatterStatistic):
    """Bins of the quartiles of each feature; no trainer has the whole histogram."""

    remembered: ClassVar[bool] = False
    n_bins: int = 32

    def shape(self, model: Points) -> tuple[int, ...]:
        return model.n_features, self.n_bins

    def answer_shape(self, model: Points) -> tuple[int, ...]:
        return model.n_features, 3

    def add(self, model: Points, rows: BatchRows, out: Any, backend: Backend) -> float:
        bins = np.clip(rows.X + self.n_bins // 2, 0, self.n_bins - 1).astype(int)
        for feature, column in enumerate(bins.T):
            out[feature] += np.bincount(column, minlength=self.n_bins)
        return 0.0

    def finish(self, model: Points, sums: Array, at: slice) -> Array:
        assert len(sums) == at.stop - at.start
        shares = sums.cumsum(axis=1) / sums.sum(axis=1, keepdims=True)
        return np.stack([(shares < q).sum(axis=1) for q in (0.25, 0.5, 0.75)], axis=1)


class MergedQuartiles(Quartiles):
    """The same statistic, declared as not additive."""

    additive = False


@dataclass(frozen=True)
class Asks(Solver):
    """Solver that makes a number of requests and returns the last result."""

    name = "asks"
    times: int
    max_passes: int = 3
    statistic: Statistic = Quartiles()

    def solve(self, model: Points, sums: Sums, start: Array | None) -> Solution:
        assert start is None
        return Solution([sums(self.statistic) for _ in range(self.times)][-1])


def _asked(
    solver: Solver, client: Client | None, callbacks: Sequence[Any] = (), **run: Any
) -> Array:
    settings = RunSettings(n_lanes=3, **run)
    rows = as_collection(LAZY if client else X)
    with FitJob(rows, client, settings, CallbackList(callbacks)) as job:
        job.rows = DatasetInfo.from_summary(job.summarize_rows(), None, None, False)
        job.lay_out_lanes(3)
        result = job.train(job.plan_rounds(Points(6), solver))
    assert isinstance(result.state, Solution)
    return result.state.w


def test_each_trainer_finishes_a_separate_range(client: Client) -> None:
    out = np.zeros((6, 32))
    Quartiles().add(Points(6), BatchRows(X), out, None)  # type: ignore[arg-type]
    truth = Quartiles().finish(Points(6), out, slice(0, 6))
    for where in (client, None):
        for statistic, exact in (
            (Quartiles(), True),
            (Quartiles(), False),
            (MergedQuartiles(), False),
        ):
            found = _asked(Asks(2, statistic=statistic), where, deterministic=exact)
            np.testing.assert_array_equal(found, truth)


def test_an_unreadable_request_ends_the_fit_soon(client: Client) -> None:
    """Its sender would repeat it in every generation."""

    @dataclass(frozen=True)
    class Garbled(Quartiles):
        note: int = 0

    garbled = Asks(1, statistic=Garbled(note="no number"))  # type: ignore[arg-type]
    with pytest.raises(MessageError, match=r"without a lost worker.*cannot be read.*same version"):
        _asked(garbled, client)


def test_an_error_of_a_solver_ends_the_fit_immediately(client: Client) -> None:
    """The other trainer's broken connection is often reported before its cause."""
    begun = []

    class Count:
        def on_generation(self, run: Any, event: Any) -> None:
            begun.append(event)

    @dataclass(frozen=True)
    class Fails(Asks):
        def solve(self, model: Points, sums: Sums, start: Array | None) -> Solution:
            sums(self.statistic)
            raise DivergedError("It cannot go on.")

    for _ in range(5):
        with pytest.raises(DivergedError, match="It cannot go on"):
            _asked(Fails(1), client, [Count()])
    assert len(begun) < 5  # occasionally one, if this machine is slow


def test_a_solver_may_not_exceed_its_declared_passes() -> None:
    with pytest.raises(InvalidParameterError, match="max_passes=3 sums"):
        _asked(Asks(4), None)
