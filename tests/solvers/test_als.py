"""Alternating least squares: each half-sweep solves the normal equations, written in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends import als, als_kernels
from daskml_dist.backends.als import LeastSquares, Ratings, Regressors
from daskml_dist.errors import DivergedError
from daskml_dist.models.rated_pairs import FactorModel
from daskml_dist.solvers import als as solvers_als
from daskml_dist.solvers.als import ALSSolver
from daskml_dist.solvers.keyed import KeyedRows, KeyRange
from daskml_dist.training.worker.loops.halo import EntrySlice, cut_rows_by_entries, take_row_slice

rng = np.random.default_rng(0)
N_USERS, N_ITEMS, RANK = 60, 40, 5
SEEN = rng.random((N_USERS, N_ITEMS)) < 0.2 + 0.6 * (np.arange(N_ITEMS) == 3)
SEEN[7] = False  # a user without a rating
GIVEN = np.where(SEEN, rng.integers(1, 6, SEEN.shape), 0).astype(float)


class Alone:
    """All ratings in one process, in several lanes (implements `solvers.keyed.Keyed`)."""

    def __init__(self, ratings: NDArray[Any], n_lanes: int = 1, most: int | None = None) -> None:
        #: Ratings of a part; None for a single part.
        self._most = most
        self.n_keys = dict(zip(("user", "item"), ratings.shape, strict=True))
        self.n_done, self.should_stop, self.losses = 0, False, list[float]()
        self.kept: Any = None
        self.solver_state: Any = None
        self._rows = {"user": _lanes(ratings, n_lanes, 0), "item": _lanes(ratings.T, n_lanes, 1)}

    def ranges(self, space: str) -> list[KeyRange]:
        return [rows.range for rows in self._rows[space]]

    def map(self, function: Callable[[KeyedRows], Any], side: str) -> list[Any]:
        return [function(rows) for rows in self._rows[side]]

    def in_parts(
        self, side: str, values: NDArray[Any], ready: Any, piece: int | None, again: bool
    ) -> Iterator[Any]:
        of_lanes = [
            ([], [EntrySlice(slice(0, len(rows.range)), slice(0, len(rows.indices)))])
            for rows in self._rows[side]
        ]
        if self._most is not None:
            of_lanes = [
                cut_rows_by_entries(ready(rows).indptr, self._most, piece)
                for rows in self._rows[side]
            ]
        for kind in (0,) if again else (0, 1):
            for i in range(max(len(cut[kind]) for cut in of_lanes)):
                some = [
                    take_row_slice(
                        ready_rows := ready(rows),
                        cut[kind][i],
                        ready_rows.indices[cut[kind][i].entries],
                    )
                    for rows, cut in zip(self._rows[side], of_lanes, strict=True)
                    if i < len(cut[kind])
                ]
                yield values, lambda function, some=some: [function(rows) for rows in some]

    def sum(self, parts: Any) -> NDArray[np.float64]:
        return np.sum(np.asarray(parts, np.float64), axis=0)

    def keep(
        self, values: Any, n_iter: int, solver_state: Any = None, loss: float = np.nan
    ) -> None:
        self.kept = {name: array.copy() for name, array in values.items()}
        self.n_done, self.solver_state = n_iter, np.array(solver_state)
        self.losses.append(loss / 2 / SEEN.sum())


def _lanes(ratings: NDArray[Any], n_lanes: int, by: int) -> list[KeyedRows]:
    found = []
    for lane, numbers in enumerate(np.array_split(np.arange(len(ratings)), n_lanes)):
        at = slice(int(numbers[0]), int(numbers[-1]) + 1)
        part = sparse.csr_array(ratings[at])
        strengths = np.array([part.sum(axis=1)] * 2)
        key_range = KeyRange(lane, at.start, at, numbers, strengths)
        found.append(KeyedRows(key_range, part.indptr.astype(np.int64), part.indices, part.data))
    return found


def naive(
    ratings: NDArray[Any], others: NDArray[Any], reg: float, alpha: float | None, mean: float | None
) -> NDArray[np.float64]:
    """Return the factors of each row by the published equations; with biases if there is a mean."""
    found = np.zeros((len(ratings), others.shape[1]))
    for row, ratings_of_row in zip(found, ratings, strict=True):
        (at,) = np.nonzero(ratings_of_row)
        Y, targets = others[at].copy(), ratings_of_row[at].copy()
        if mean is not None:
            targets -= mean + Y[:, -1]
            Y[:, -1] = 1
        if not len(at):
            continue
        if alpha is None:
            A, b = Y.T @ Y + reg * len(at) * np.eye(Y.shape[1]), Y.T @ targets
        else:
            confidence = 1 + alpha * ratings_of_row
            A = (others.T * confidence) @ others + reg * np.eye(Y.shape[1])
            b = others.T @ (confidence * (ratings_of_row > 0))
        row[:] = np.linalg.solve(A, b)
    return found


CASES = {
    "explicit": (FactorModel(RANK, dtype="float64"), LeastSquares(0.1, False, 1.0)),
    "biased": (FactorModel(RANK, biased=True, dtype="float64"), LeastSquares(0.1, False, 1.0)),
    "implicit": (FactorModel(RANK, implicit=True, dtype="float64"), LeastSquares(0.1, True, 2.0)),
}


@pytest.mark.parametrize("steps", [None, 60])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("long", [False, True])
def test_each_half_sweep_solves_the_normal_equations(
    case: str, steps: int | None, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:  # some rows are processed in pieces
        monkeypatch.setattr(als, "MAX_RATINGS_AT_ONCE", 8)
    model, equations = CASES[case]
    equations = replace(equations, steps=steps)
    keyed = Alone(GIVEN, n_lanes=3)
    mean = GIVEN[SEEN].mean() if model.biased else None
    alpha = equations.alpha if model.implicit else None
    users, items = np.zeros((N_USERS, model.width)), model.start(slice(0, N_ITEMS), 1)
    for n_iter in range(1, 4):
        solution = ALSSolver(model, equations, n_iter, None, 0).solve(keyed)
        users = naive(GIVEN, items, equations.reg, alpha, mean)
        items = naive(GIVEN.T, users, equations.reg, alpha, mean)
        np.testing.assert_allclose(solution.values["user"], users, 1e-8, 1e-8)
        np.testing.assert_allclose(solution.values["item"], items, 1e-8, 1e-8)
        assert keyed.losses[-1] == pytest.approx(_loss(model, equations, users, items, mean))
    assert keyed.losses == sorted(keyed.losses, reverse=True)


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_the_ratings_change_nothing(
    case: str, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (als, solvers_als):
        monkeypatch.setattr(module, "MAX_RATINGS_AT_ONCE", 8)
    model, equations = CASES[case]
    solver = ALSSolver(model, replace(equations, steps=steps), 3, None, 0)
    keyed = Alone(GIVEN, n_lanes=3)
    whole = solver.solve(keyed).values
    for most in (1, 17, 40, 1000):
        parts = Alone(GIVEN, n_lanes=3, most=most)
        found = solver.solve(parts).values
        assert parts.losses == keyed.losses
        for side in whole:
            np.testing.assert_array_equal(found[side], whole[side])


def _loss(
    model: FactorModel, equations: LeastSquares, users: Any, items: Any, mean: float | None
) -> float:
    rank = model.rank
    scores = users[:, :rank] @ items[:, :rank].T
    if mean is not None:
        scores += mean + users[:, -1:] + items[:, -1]
    if not model.implicit:
        return float(np.sqrt(((GIVEN - scores)[SEEN] ** 2).mean()))
    confidence = 1 + equations.alpha * GIVEN
    return float((confidence * (SEEN - scores) ** 2).sum() / confidence.sum())


def test_float32_is_near_float64() -> None:
    for model, equations in CASES.values():
        exact, rounded = (
            ALSSolver(replace(model, dtype=dtype), equations, 3, None, 0).solve(Alone(GIVEN)).values
            for dtype in ("float64", "float32")
        )
        assert rounded["user"].dtype == np.float32
        np.testing.assert_allclose(rounded["user"], exact["user"], rtol=0, atol=2e-3)


#: Around whole vectors of 64 bytes (8 numbers of float64, 16 of float32), and several of these.
WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 33, 48, 65)


def solved(
    equations: LeastSquares, others: NDArray[Any], ratings: NDArray[Any] = GIVEN
) -> NDArray[Any]:
    """Return the factors of each row of ratings, given those of the other side."""
    model = FactorModel(others.shape[1], implicit=equations.implicit, dtype=others.dtype.name)
    gram = model.gram(others) if model.implicit else np.zeros((model.width, model.width))
    (rows,) = _lanes(ratings, 1, 0)
    found = np.zeros((len(ratings), model.width), others.dtype)
    part = Ratings(rows.indptr, rows.indices, rows.values)
    singular = equations.solve(part, model.regressors(others, gram, 0.0), found)
    assert not len(singular)
    return found


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("steps", [None, 400])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 3e-4), ("float64", 1e-11)])
def test_systems_of_all_widths_around_whole_vectors(
    dtype: str,
    rtol: float,
    steps: int | None,
    implicit: bool,
    long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if long:  # some rows are processed in pieces
        monkeypatch.setattr(als, "MAX_RATINGS_AT_ONCE", 8)
    alpha = 2.0 if implicit else None
    equations = LeastSquares(0.1, implicit, 2.0, steps)
    for width in WIDTHS:
        others = np.random.default_rng(width).normal(size=(N_ITEMS, width)).astype(dtype)
        expected = naive(GIVEN, others.astype(float), 0.1, alpha, None)
        found = solved(equations, others)
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, 0, rtol * size, err_msg=f"width {width}")


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("steps", [None, 60])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 3e-4), ("float64", 1e-10)])
def test_rows_of_all_lengths_around_chunks(
    dtype: str, rtol: float, steps: int | None, implicit: bool
) -> None:
    """Ratings are processed in chunks; rows with more ratings than unknowns use other code."""
    draw, width = np.random.default_rng(3), 9
    lengths = [1, 7, 8, 9, 10, 15, 16, 17, 31, 33]
    lengths += [n * als_kernels.RATINGS_PER_CHUNK + more for n in (1, 2) for more in (-1, 0, 1)]
    ratings = np.zeros((len(lengths), 300))
    for row, n in zip(ratings, lengths, strict=True):
        row[draw.choice(300, n, replace=False)] = draw.integers(1, 6, n)
    others = draw.normal(size=(300, width)).astype(dtype)
    equations = LeastSquares(0.1, implicit, 2.0, steps)
    alpha = equations.alpha if implicit else None
    expected = naive(ratings, others.astype(float), 0.1, alpha, None)
    found = solved(equations, others, ratings)
    size = np.abs(expected).max(axis=1)
    np.testing.assert_allclose((found.T / size).T, (expected.T / size).T, 0, rtol)


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-12)])
def test_errors_of_all_widths_around_whole_vectors(dtype: str, rtol: float, implicit: bool) -> None:
    equations, (rows,) = LeastSquares(0.1, implicit, 2.0), _lanes(GIVEN, 1, 0)
    for width in WIDTHS:
        draw, model = (
            np.random.default_rng(width),
            FactorModel(width, implicit=implicit, dtype=dtype),
        )
        users, others = (draw.normal(size=(n, width)).astype(dtype) for n in GIVEN.shape)
        by = model.regressors(others, np.zeros((width, width)), 0.0)
        found = np.zeros(N_USERS)
        equations.errors(Ratings(rows.indptr, rows.indices, rows.values), by, users, found)
        scores = users.astype(float) @ others.T.astype(float)
        each = (GIVEN - scores) ** 2
        if implicit:
            each = (1 + 2.0 * GIVEN) * (1 - scores) ** 2 - scores**2
        expected = np.where(SEEN, each, 0).sum(axis=1)
        np.testing.assert_allclose(found, expected, rtol, rtol, err_msg=f"width {width}")


@pytest.mark.parametrize("reg", [1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("implicit", [False, True])
def test_small_penalties_keep_float32_precision(implicit: bool, reg: float) -> None:
    """Rows have at most as many ratings as unknowns: only the penalty makes them regular."""
    alpha = 2.0 if implicit else None
    for width in WIDTHS:
        others = np.random.default_rng(width).normal(size=(N_ITEMS, width)).astype(np.float32)
        expected = naive(GIVEN, others.astype(float), reg, alpha, None)
        found = solved(LeastSquares(reg, implicit, 2.0), others)
        size = np.abs(expected).max(axis=1, keepdims=True) + 1e-30
        np.testing.assert_array_less(np.abs(found - expected) / size, 1e-3, f"width {width}")


def test_systems_that_float32_cannot_solve_are_solved_in_float64() -> None:
    # Two columns that are nearly the same.
    Y = rng.normal(size=(30, 4)).astype(np.float32)
    Y[:, 3] = Y[:, 2] * (1 + 1e-4 * rng.normal(size=30))
    values, everyone = rng.normal(size=30), np.arange(30, dtype=np.int32)
    by = Regressors(Y, np.empty(0, np.float32), np.zeros((4, 4)))
    found = np.zeros((1, 4), np.float32)
    ratings = Ratings(np.array([0, 30]), everyone, values)
    assert not len(LeastSquares(0.0, False, 1.0).solve(ratings, by, found))
    exact = np.linalg.lstsq(Y.astype(float), values)[0]
    np.testing.assert_allclose(found[0], exact, rtol=1e-4)


def test_long_rows_that_float32_cannot_add_up_are_added_up_in_float64() -> None:
    """One column is nearly the sum of two others, in a row of more ratings than a piece holds."""
    draw, n = np.random.default_rng(0), als.MAX_RATINGS_AT_ONCE + 5_000
    Y = draw.normal(size=(n, 5)).astype(np.float32)
    Y[:, 4] = Y[:, 2] + Y[:, 3] + 1e-3 * draw.normal(size=n)
    values = Y.astype(float) @ np.arange(1.0, 6.0) + draw.normal(size=n)
    by = Regressors(Y, np.empty(0, np.float32), np.zeros((5, 5)))
    found = np.zeros((1, 5), np.float32)
    ratings = Ratings(np.array([0, n]), np.arange(n, dtype=np.int32), values)
    assert not len(LeastSquares(1e-9, False, 1.0).solve(ratings, by, found))
    Y64 = Y.astype(float)
    exact = np.linalg.solve(Y64.T @ Y64 + 1e-9 * n * np.eye(5), Y64.T @ values)
    np.testing.assert_allclose(found[0], exact, rtol=1e-5)


def test_a_singular_system_names_the_remedy() -> None:
    solver = ALSSolver(FactorModel(30), LeastSquares(0.0, False, 1.0), 2, None, 0)
    with pytest.raises(DivergedError, match="Raise reg_param, or lower rank"):
        solver.solve(Alone(GIVEN))


def test_overflow_raises() -> None:
    solver = ALSSolver(FactorModel(2), LeastSquares(0.1, False, 1.0), 2, None, 0)
    with pytest.raises(DivergedError, match="not finite"):
        solver.solve(Alone(GIVEN * 1e38))


@pytest.mark.parametrize("steps", [None, 3])
def test_a_fit_resumes_from_kept_factors(steps: int | None) -> None:
    for model, equations in CASES.values():
        solver = ALSSolver(model, replace(equations, steps=steps), 4, None, 0)
        undisturbed = solver.solve(Alone(GIVEN)).values
        keyed = Alone(GIVEN)
        replace(solver, max_iter=2).solve(keyed)
        assert keyed.n_done == 2
        after = solver.solve(keyed).values
        for side in undisturbed:
            np.testing.assert_array_equal(after[side], undisturbed[side])


def test_initial_factors_do_not_depend_on_the_trainer() -> None:
    model = FactorModel(4)
    whole = model.start(slice(0, 10), 3)
    np.testing.assert_array_equal(whole[6:], model.start(slice(6, 10), 3))
    assert not np.array_equal(whole, model.start(slice(0, 10), 4))
    many = model.start(slice(0, 20000), 0).astype(float)
    np.testing.assert_allclose(many.T @ many / 20000, np.eye(4) / 4, atol=0.01)


def test_the_fit_stops_when_the_loss_no_longer_decreases() -> None:
    model, equations = CASES["explicit"]
    keyed = Alone(GIVEN)
    solution = ALSSolver(model, equations, 200, 1e-3, 0).solve(keyed)
    assert solution.converged
    assert solution.n_iter == len(keyed.losses) < 200
    before, last = keyed.losses[-2:]
    assert 0 <= before - last <= 1e-3 * before
