"""Bottom-k sampling: frequencies follow the weights and depend only on row positions."""

from __future__ import annotations

import numpy as np

from daskml_dist.backends import get_backend
from daskml_dist.models.base import BatchRows
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.solvers.k_means import SeedSample

BACKEND, MODEL = get_backend("cpu"), Unlabelled(1)
WEIGHT = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
X = np.arange(len(WEIGHT))[:, None].astype(float)


def _winners(seed: int, n_rows: int, cuts: tuple[int, ...] = ()) -> list[int]:
    race = SeedSample(n_rows=n_rows, groups=(), shift=None, seed=seed, round=0)
    total = np.zeros(race.shape(MODEL))
    for start, stop in zip((0, *cuts), (*cuts, len(X)), strict=True):
        part = np.zeros_like(total)
        rows = BatchRows(X[start:stop], weight=WEIGHT[start:stop], block=3, first=start)
        race.add(MODEL, rows, part, BACKEND)
        race.merge(total, part)
    return total[total[:, 0] > 0, 1].astype(int).tolist()


def test_rows_are_sampled_in_proportion_to_their_weights() -> None:
    first = np.bincount([_winners(seed, 1)[0] for seed in range(3000)], minlength=len(WEIGHT))
    expected = 3000 * WEIGHT / WEIGHT.sum()
    assert first[0] == 0
    # Chi-squared of three degrees of freedom: above 16 once in a thousand.
    assert (((first - expected) ** 2)[1:] / expected[1:]).sum() < 16


def test_rows_are_sampled_without_replacement() -> None:
    """Frequencies equal those of successive draws without replacement."""
    rng = np.random.default_rng(0)
    share = WEIGHT / WEIGHT.sum()
    truth = np.zeros(len(WEIGHT))
    found = np.zeros(len(WEIGHT))
    for seed in range(2000):
        truth[rng.choice(len(WEIGHT), 2, replace=False, p=share)] += 1
        found[_winners(seed, 2)] += 1
    assert abs(truth - found).max() < 150  # three standard deviations of a difference
    assert sorted(_winners(0, 9)) == [1, 2, 3, 4]  # all rows were drawn


def test_samples_do_not_depend_on_the_pieces() -> None:
    for seed in range(20):
        whole = _winners(seed, 2)
        assert _winners(seed, 2, (2,)) == whole
        assert _winners(seed, 2, (1, 3)) == whole
