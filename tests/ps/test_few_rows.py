"""Steps on the few rows that a batch touches, with parameter groups and clipped gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daskml_dist.optimizers import SGD, Adagrad, Adam
from daskml_dist.penalties import Penalty
from daskml_dist.ps.rule import ParameterGroup, UpdateRule
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant

N_ROWS, WIDTH = 14, 3
#: Embeddings, a following layer with another rate, running means, and counts.
GROUPS = (
    ParameterGroup(0, 6, Adagrad(), Penalty(0.0, 0.2), 5),
    ParameterGroup(6, 10, Adam(), Penalty(0.1, 0.0), 4, rate=0.3),
    ParameterGroup(10, 12, SGD(), Penalty(0.0, 0.0), 0, buffer=True),
    ParameterGroup(12, 14, SGD(), Penalty(0.0, 0.0), 0, additive=True),
)


def make_shard(
    groups: tuple[ParameterGroup, ...], first: int = 0, stop: int = N_ROWS, **more: Any
) -> Shard:
    rule = UpdateRule(groups, Constant(0.1), 10.0, coordinates=True, **more)
    w = np.random.default_rng(0).normal(size=(N_ROWS, WIDTH))
    return Shard(rule, ShardState(w[first:stop].copy(), {}), first)


def batches(seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    for _ in range(8):
        index = np.flatnonzero(rng.random(N_ROWS) < 0.5)
        yield index, rng.normal(size=(len(index), WIDTH))


@pytest.mark.parametrize("compiled", [True, False])
def test_parameter_groups_step_independently(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        from daskml_dist.backends import get_backend

        monkeypatch.setattr(
            type(get_backend("cpu")), "coordinate_updater", lambda self, *args: None
        )
    together = make_shard(GROUPS)
    alone = []
    for group in GROUPS:
        n = group.stop - group.start
        single_group = replace(group, start=0, stop=n, rate=1.0)
        rule = UpdateRule((single_group,), Constant(0.1 * group.rate), 10.0, coordinates=True)
        alone.append(Shard(rule, ShardState(together.w[group.rows].copy(), {})))
    for index, gradient in batches():
        together.apply(gradient.copy(), 4, index)
        for group, shard in zip(GROUPS, alone, strict=True):
            mine = (index >= group.start) & (index < group.stop)
            shard.apply(gradient[mine], 4, index[mine] - group.start)
    together.apply_pending_penalty()
    for group, shard in zip(GROUPS, alone, strict=True):
        shard.apply_pending_penalty()
        np.testing.assert_allclose(together.w[group.rows], shard.w, rtol=1e-12)
        for name in group.state_names:
            np.testing.assert_allclose(together.opt_state[name][group.rows], shard.opt_state[name])


def test_shards_of_rows_equal_the_whole() -> None:
    whole, parts = (
        make_shard(GROUPS),
        [make_shard(GROUPS, 0, 7), make_shard(GROUPS, 7, N_ROWS)],
    )
    for index, gradient in batches():
        whole.apply(gradient.copy(), 4, index)
        first = index < 7
        parts[0].apply(gradient[first], 4, index[first])
        parts[1].apply(gradient[~first], 4, index[~first] - 7)
    for shard in (whole, *parts):
        shard.apply_pending_penalty()
    np.testing.assert_allclose(np.vstack([part.w for part in parts]), whole.w, rtol=1e-12)


def test_clipping_of_few_rows_equals_clipping_of_all() -> None:
    """Untouched rows have no gradient."""
    plain = (ParameterGroup(0, N_ROWS, SGD(), Penalty(0.0, 0.0), 0),)
    few, many = (make_shard(plain, clip=0.05) for _ in range(2))
    for index, gradient in batches():
        before = few.w.copy()
        few.apply(gradient.copy(), 4, index)
        spread = np.zeros((N_ROWS, WIDTH))
        spread[index] = gradient
        many.apply(spread, 4)
        assert np.linalg.norm(few.w - before) == pytest.approx(0.1 * 0.05)
        np.testing.assert_allclose(few.w, many.w, rtol=1e-12)
    # Running means and sums are not part of the norm.
    both = make_shard(GROUPS, clip=1e-9)
    index = np.arange(N_ROWS)
    before = both.w[10:].copy()
    both.apply(np.ones((N_ROWS, WIDTH)), 2.0, index)
    np.testing.assert_allclose(both.w[10:12], before[:2] - 0.5)
    np.testing.assert_allclose(both.w[12:], before[2:] - 1)
