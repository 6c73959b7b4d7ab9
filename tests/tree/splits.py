"""Number of splits that a tree shares with scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np


def shared_splits(a: Any, b: Any, i: int, k: int) -> int:
    """Return the number of splits that two trees share from a node on.

    If they differ, both must lower the impurity equally: either of two equal splits is valid.
    """
    np.testing.assert_allclose(a.impurity[i], b.impurity[k], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(a.value[i], b.value[k], rtol=1e-7, atol=1e-12)
    assert a.n_node_samples[i] == b.n_node_samples[k]
    at, bt = (a.children_left[i], a.children_right[i]), (b.children_left[k], b.children_right[k])
    if at[0] < 0 or bt[0] < 0:
        return 0
    same = a.feature[i] == b.feature[k] and np.isclose(a.threshold[i], b.threshold[k])
    same &= a.n_node_samples[at[0]] == b.n_node_samples[bt[0]]
    if not same:
        left = [t.impurity[list(c)] @ t.weighted_n_node_samples[list(c)]
                for t, c in ((a, at), (b, bt))]  # fmt: skip
        np.testing.assert_allclose(left[0], left[1], rtol=1e-8, atol=1e-9)
        return 0
    return 1 + shared_splits(a, b, at[0], bt[0]) + shared_splits(a, b, at[1], bt[1])
