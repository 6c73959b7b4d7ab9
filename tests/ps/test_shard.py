"""Shards: dense and coordinate steps, lazy penalties, averaging, snapshots, cutting and joining."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.backends import host_update
from daskml_dist.optimizers import OPTIMIZERS, get_optimizer
from daskml_dist.penalties import PENALTIES, Penalty, get_penalty
from daskml_dist.ps.rule import UpdateRule
from daskml_dist.ps.shard import Shard, TouchedRowSteps
from daskml_dist.ps.shard_state import ShardLayout, ShardState
from daskml_dist.schedules import Constant, Cosine, InverseScaling, Schedule
from tests.interpreted import interpreted
from tests.rules import one_group

N_ROWS, WIDTH = 9, 2  # eight features and the intercept
EVERY = pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
PENALTY = pytest.mark.parametrize("penalty", list(PENALTIES), ids=str)


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(autouse=True)
def uncompiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run loops over few rows in Python, except in tests of the compiled ones."""
    if "compiled" not in request.function.__name__:
        for module in (host_update, host_update):
            monkeypatch.setattr(module, "compiled_with", interpreted)


def _compiled_cases() -> list[Any]:
    """Return optimizers, penalties and dtypes, for each of which numba compiles a loop.

    The default run has Adam with each penalty, and SGD with one, which tracks lazy l1.
    """
    some = {("adam", penalty) for penalty in PENALTIES} | {("sgd", "elasticnet")}
    usual = {p: np.float32 if get_penalty(p, 0.05, 0.5).l1 else np.float64 for p in PENALTIES}
    return [
        pytest.param(
            optimizer, penalty, dtype,
            marks=() if (optimizer, penalty) in some and dtype is usual[penalty]
            else pytest.mark.slow,
        )
        for optimizer in OPTIMIZERS
        for penalty in PENALTIES
        for dtype in (np.float32, np.float64)
    ]  # fmt: skip


def _rule(
    optimizer: str = "sgd",
    penalty: Penalty | None = None,
    schedule: Schedule | None = None,
    **options: Any,
) -> UpdateRule:
    options = {"n_penalised": N_ROWS - 1, "steps_per_pass": 10.0} | options
    return one_group(
        get_optimizer(optimizer), schedule or Constant(0.1), penalty or Penalty(0, 0), **options
    )


def _weights(dtype: Any = np.float64) -> NDArray[Any]:
    return np.random.default_rng(0).normal(size=(N_ROWS, WIDTH)).astype(dtype)


def _gradients(n: int, rows: int = N_ROWS) -> NDArray[Any]:
    return np.random.default_rng(1).normal(size=(n, rows, WIDTH))


def _shard(rule: UpdateRule, w: NDArray[Any] | None = None, start: int = 0) -> Shard:
    return Shard(rule, ShardState(_weights() if w is None else w, {}), start)


# --- steps -----------------------------------------------------------------------------------


def test_step_by_hand() -> None:
    """The mean gradient plus l2, then the threshold of l1; the intercept is not penalised."""
    shard = _shard(_rule(penalty=Penalty(0.3, 0.2)))
    w, total = shard.w.copy(), _gradients(1)[0]
    shard.apply(total.copy(), rows=4.0)
    expected = w - 0.1 * (total / 4 + 0.2 * w)
    expected = np.sign(expected) * np.maximum(abs(expected) - 0.1 * 0.3, 0)
    expected[-1] = w[-1] - 0.1 * total[-1] / 4
    np.testing.assert_allclose(shard.w, expected, rtol=1e-13)
    assert (shard.version, shard.step, shard.rows) == (1, 1, 4)


def test_scale_multiplies_the_rate() -> None:
    shard, reference = _shard(_rule()), _shard(_rule(schedule=Constant(0.025)))
    for gradient in _gradients(3):
        shard.apply(gradient.copy(), 2, scale=0.25)
        reference.apply(gradient.copy(), 2)
    np.testing.assert_allclose(shard.w, reference.w, rtol=1e-13)


def test_schedule_receives_steps_and_passes() -> None:
    calls: list[tuple[int, float]] = []

    class Spy(Constant):
        def __call__(self, step: int, passes: float) -> float:
            calls.append((step, passes))
            return 0.1

    shard = Shard(_rule(schedule=Spy(0.1)), ShardState(_weights(), {}, step=20))
    for gradient in _gradients(2):
        shard.apply(gradient, 1)
    assert calls == [(21, 2.0), (22, 2.1)]
    assert (shard.version, shard.step) == (2, 22)


@PENALTY
@EVERY
def test_step_without_rows_changes_no_parameter(optimizer: str, penalty: str | None) -> None:
    shard = _shard(_rule(optimizer, get_penalty(penalty, 0.1, 0.5)))
    shard.apply(np.zeros((N_ROWS, WIDTH)), rows=0)
    np.testing.assert_array_equal(shard.w, _weights())
    assert (shard.version, shard.rows) == (1, 0)


@DTYPES
@PENALTY
@EVERY
def test_coordinates_of_all_rows_equal_dense(
    optimizer: str, penalty: str | None, dtype: Any
) -> None:
    kinds = get_penalty(penalty, 0.05, 0.5)
    dense = _shard(_rule(optimizer, kinds), _weights(dtype))
    lazy = _shard(_rule(optimizer, kinds, coordinates=True), _weights(dtype))
    for gradient in _gradients(12).astype(dtype):
        dense.apply(gradient.copy(), 3)
        lazy.apply(gradient.copy(), 3, np.arange(N_ROWS))
    np.testing.assert_allclose(lazy.w, dense.w, rtol=1e-12 if dtype is np.float64 else 1e-5)
    assert lazy.w.dtype == dtype
    settled = lazy.w.copy()
    lazy.apply_pending_penalty()
    np.testing.assert_array_equal(lazy.w, settled)


@EVERY
def test_touched_rows_equal_those_of_a_smaller_problem(optimizer: str) -> None:
    """Untouched rows keep parameters and optimizer state, without a penalty."""
    index = np.array([1, 2, 5, 8])
    shard = _shard(_rule(optimizer, coordinates=True))
    small = _shard(_rule(optimizer), _weights()[index])
    for gradient in _gradients(5, len(index)):
        shard.apply(gradient.copy(), 2, index)
        small.apply(gradient.copy(), 2)
    np.testing.assert_array_equal(shard.w[index], small.w)
    untouched = np.setdiff1d(np.arange(N_ROWS), index)
    np.testing.assert_array_equal(shard.w[untouched], _weights()[untouched])
    for name, array in shard.opt_state.items():
        np.testing.assert_array_equal(array[index], small.opt_state[name])
        fresh = shard.rule.only_group.optimizer.init(shard.w)[name]
        np.testing.assert_array_equal(array[untouched], fresh[untouched])


@pytest.mark.parametrize(("optimizer", "penalty", "dtype"), _compiled_cases())
def test_compiled_steps_in_few_rows_have_the_bits_of_arrays(
    optimizer: str, penalty: str | None, dtype: Any
) -> None:
    rule = _rule(optimizer, get_penalty(penalty, 0.05, 0.5), InverseScaling(0.1), coordinates=True)
    compiled, arrays = (_shard(rule, _weights(dtype)) for _ in range(2))
    (group,) = arrays._groups
    arrays._touched_row_steps = [
        TouchedRowSteps(group, arrays.w, arrays.opt_state, arrays._row_rate_sums, arrays._backend)
    ]
    arrays._touched_row_steps[0]._compiled = False
    for shard in (compiled, arrays):
        shard.apply(_gradients(1)[0].astype(dtype), 3, np.arange(N_ROWS))
    draw = np.random.default_rng(2)
    for gradient in _gradients(8).astype(dtype):
        index = np.flatnonzero(draw.random(N_ROWS) < 0.5)
        compiled.apply(gradient[index], 3, index)
        arrays.apply(gradient[index], 3, index)
    assert compiled._touched_row_steps is not None
    assert bool(compiled._touched_row_steps[0]._compiled) == (
        rule.only_group.optimizer.elementwise_update is not None
    )
    np.testing.assert_array_equal(compiled.w, arrays.w)
    for name, array in compiled.opt_state.items():
        np.testing.assert_array_equal(array, arrays.opt_state[name])


def test_step_that_touches_nothing() -> None:
    shard = _shard(_rule(penalty=Penalty(0.1, 0.1), coordinates=True))
    shard.apply(np.empty((0, WIDTH)), 3, np.empty(0, np.int64))
    np.testing.assert_array_equal(shard.w, _weights())
    assert shard.version == 1


# --- lazy penalties --------------------------------------------------------------------------


@pytest.mark.parametrize("touch", [True, False])
def test_lazy_l1_equals_the_dense_penalty(touch: bool) -> None:
    """SGD applies `rate * l1` for every step, at the next touch or at the end."""
    kinds = Penalty(0.07, 0.0)
    dense = _shard(_rule(penalty=kinds))
    lazy = _shard(_rule(penalty=kinds, coordinates=True))
    index = np.array([0, 3, 8])
    for step in range(10):
        last = step == 9
        rows = np.arange(N_ROWS) if touch and last else index
        part = np.zeros((len(rows), WIDTH))
        whole = np.zeros((N_ROWS, WIDTH))
        whole[rows] = part
        dense.apply(whole, 1)
        lazy.apply(part, 1, rows)
    untouched = np.setdiff1d(np.arange(N_ROWS), index)
    if not touch:
        np.testing.assert_array_equal(lazy.w[untouched], _weights()[untouched])
        lazy.apply_pending_penalty()
    np.testing.assert_allclose(lazy.w, dense.w, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(lazy.w == 0, dense.w == 0)
    np.testing.assert_array_equal(lazy.w[-1], _weights()[-1])
    assert np.any(lazy.w == 0)


@pytest.mark.parametrize("schedule", [Constant(0.1), Cosine(0.2, passes=2), InverseScaling(0.1)])
def test_lazy_l2_is_close_to_the_dense_penalty(schedule: Schedule) -> None:
    """Whatever the learning rates were while a row was not touched."""
    kinds = Penalty(0.0, 0.02)
    dense = _shard(_rule(penalty=kinds, schedule=schedule))
    lazy = _shard(_rule(penalty=kinds, schedule=schedule, coordinates=True))
    for _ in range(20):
        dense.apply(np.zeros((N_ROWS, WIDTH)), 1)
        lazy.apply(np.zeros((1, WIDTH)), 1, np.array([8]))
    lazy.apply_pending_penalty()
    np.testing.assert_allclose(lazy.w, dense.w, rtol=2e-3)
    np.testing.assert_array_equal(lazy.w[-1], dense.w[-1])


def test_applying_pending_penalties_twice_equals_once() -> None:
    shard = _shard(_rule(penalty=Penalty(0.05, 0.1), coordinates=True))
    for _ in range(5):
        shard.apply(np.ones((1, WIDTH)), 1, np.array([2]))
    shard.apply_pending_penalty()
    settled = shard.w.copy()
    shard.apply_pending_penalty()
    np.testing.assert_array_equal(shard.w, settled)
    assert np.all(settled[:2] != _weights()[:2])
    # Penalties that were applied are not applied again at the next touch.
    reference = _shard(_rule(penalty=Penalty(0.05, 0.1)), settled.copy())
    shard.apply(np.zeros((N_ROWS, WIDTH)), 1, np.arange(N_ROWS))
    reference.apply(np.zeros((N_ROWS, WIDTH)), 1)
    np.testing.assert_allclose(shard.w, reference.w, rtol=1e-12)


@pytest.mark.parametrize("l1", [0.0, 0.001])
def test_lazy_l1_of_a_long_untouched_row_stops_at_zero(l1: float) -> None:
    shard = _shard(_rule(penalty=Penalty(l1, 0.5), coordinates=True))
    for _ in range(100):
        shard.apply(np.zeros((1, WIDTH)), 1, np.array([8]))
    shard.apply(np.zeros((1, WIDTH)), 1, np.array([3]))
    np.testing.assert_allclose(shard.w[3], 0, atol=1e-15)
    shard.apply_pending_penalty()
    assert np.all(shard.w[:3] * _weights()[:3] >= 0)
    assert np.all(abs(shard.w[:3]) < abs(_weights()[:3]))


def test_lazy_l1_is_not_reduced_by_l2() -> None:
    """The bound on pending l2 does not bound pending l1, all of which a gradient must exceed."""
    shard = _shard(_rule(penalty=Penalty(0.01, 0.5), coordinates=True))
    for _ in range(99):
        shard.apply(np.zeros((1, WIDTH)), 1, np.array([8]))
    shard.apply(np.full((1, WIDTH), 0.9), 1, np.array([3]))
    np.testing.assert_allclose(shard.w[3], 0, atol=1e-15)  # 0.9 < 100 * 0.01


@PENALTY
@EVERY
@pytest.mark.parametrize("coordinates", [False, True])
def test_learning_rate_of_zero(optimizer: str, penalty: str | None, coordinates: bool) -> None:
    """A cosine reaches 0 and stays there."""
    kinds, schedule = get_penalty(penalty, 0.1, 0.5), Cosine(0.1, passes=0.1)
    shard = _shard(_rule(optimizer, kinds, schedule, coordinates=coordinates))
    index = np.arange(N_ROWS) if coordinates else None
    shard.apply(np.ones((N_ROWS, WIDTH)), 1, index)
    assert shard.learning_rate() == 0
    before = shard.w.copy()
    for _ in range(3):
        shard.apply(np.ones((N_ROWS, WIDTH)), 1, index)
    shard.apply_pending_penalty()
    np.testing.assert_allclose(shard.w, before, rtol=1e-12)


# --- averaging -------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", [False, True])
def test_averaging_starts_after_the_given_rows(coordinates: bool) -> None:
    shard = _shard(_rule(average_after=10, coordinates=coordinates))
    index = np.arange(N_ROWS) if coordinates else None
    coefficients = []
    for gradient in _gradients(8):
        shard.apply(gradient, 4, index)
        coefficients.append(shard.w.copy())
    average = shard.state().average
    assert average is not None
    np.testing.assert_allclose(
        average, np.mean(coefficients[2:], axis=0), rtol=1e-13
    )  # from 12 rows on


def test_average_has_the_dtype_of_the_fit() -> None:
    shard = _shard(_rule(average_after=1), _weights(np.float32))
    shard.apply(_gradients(1)[0].astype(np.float32), 4)
    average = shard.state().average
    assert average is not None
    assert average.dtype == np.float32


def test_no_average_before_the_given_rows() -> None:
    shard = _shard(_rule(average_after=1000))
    shard.apply(_gradients(1)[0], 4)
    assert shard.state().average is None


# --- snapshots and states --------------------------------------------------------------------


def test_published_copies_are_read_only_and_one_per_version() -> None:
    shard = _shard(_rule(penalty=Penalty(0.1, 0.1), coordinates=True))
    first = shard.published()
    assert shard.published() is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    copies = [(first, first.copy())]
    for change in (
        lambda: shard.apply(np.ones((2, WIDTH)), 1, np.array([0, 3])),
        lambda: shard.apply(np.ones((2, WIDTH)), 1, np.array([0, 3])),
        lambda: shard.apply_pending_penalty(),
        lambda: shard.add(np.ones((N_ROWS, WIDTH)), 5),
        lambda: shard.replace(np.zeros((N_ROWS, WIDTH))),
    ):
        change()
        snapshot = shard.published()
        np.testing.assert_array_equal(snapshot, shard.w)
        assert not any(np.shares_memory(snapshot, old) for old, _ in copies)
        copies.append((snapshot, snapshot.copy()))
    for snapshot, as_given in copies:
        np.testing.assert_array_equal(snapshot, as_given)


def test_delta_of_another_process_is_added() -> None:
    shard = _shard(_rule())
    shard.add(np.ones((N_ROWS, WIDTH)), 7)
    np.testing.assert_array_equal(shard.w, _weights() + 1)
    assert (shard.version, shard.rows) == (1, 7)


@PENALTY
@EVERY
def test_resuming_from_a_state_equals_continuing(optimizer: str, penalty: str | None) -> None:
    rule = _rule(optimizer, get_penalty(penalty, 0.05, 0.5), InverseScaling(0.1))
    whole, gradients = _shard(rule), _gradients(10)
    for gradient in gradients:
        whole.apply(gradient.copy(), 2)
    first = _shard(rule)
    for gradient in gradients[:6]:
        first.apply(gradient.copy(), 2)
    state = first.state()
    before = state.w.copy()
    first.apply(gradients[0].copy(), 2)
    np.testing.assert_array_equal(state.w, before)  # a copy
    second = Shard(rule, state)
    for gradient in gradients[6:]:
        second.apply(gradient.copy(), 2)
    np.testing.assert_array_equal(second.w, whole.w)
    assert (second.step, second.rows) == (whole.step, whole.rows) == (10, 20)


@pytest.mark.parametrize("n_shards", [2, 4, 20])
@pytest.mark.parametrize("coordinates", [False, True])
@DTYPES
@PENALTY
@EVERY
def test_shards_equal_the_whole(
    optimizer: str, penalty: str | None, dtype: Any, coordinates: bool, n_shards: int
) -> None:
    kinds = get_penalty(penalty, 0.05, 0.5)
    rule = _rule(optimizer, kinds, coordinates=coordinates, average_after=4)
    layout = ShardLayout(N_ROWS, WIDTH, n_shards)
    whole = _shard(rule, _weights(dtype))
    parts = [Shard(rule, whole.state().slice_rows(rows), rows.start) for rows in layout.slices()]
    assert len(parts) == min(n_shards, N_ROWS)
    rng = np.random.default_rng(2)
    for gradient in _gradients(6).astype(dtype):
        index = np.flatnonzero(rng.random(N_ROWS) < 0.6) if coordinates else np.arange(N_ROWS)
        total = gradient[index]
        whole.apply(total.copy(), 2, index if coordinates else None)
        for shard, (local, at) in zip(parts, layout.split_index(index), strict=True):
            shard.apply(total[at].copy(), 2, local if coordinates else None)
    expected, found = whole.state(), ShardState.join([shard.state() for shard in parts])
    np.testing.assert_array_equal(found.w, expected.w)
    np.testing.assert_array_equal(found.average, expected.average)
    for name, array in expected.opt_state.items():
        np.testing.assert_array_equal(found.opt_state[name], array)
    assert (found.step, found.rows) == (expected.step, expected.rows)
