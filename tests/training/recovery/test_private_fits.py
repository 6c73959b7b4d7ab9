"""Private fits that lose workers repeat steps with the same batches and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

from daskml_dist import DP
from tests.training.recovery.strikes import lazy_rows, make_classifier, make_strike


@pytest.mark.parametrize("policy", ["allreduce", pytest.param("sync", marks=pytest.mark.slow)])
def test_a_killed_worker_changes_no_bit(crew_client: Client, policy: str) -> None:
    how: dict[str, Any] = {
        "privacy": DP(3.0, 1e-5, seed=5), "run__deterministic": True, "max_iter": 7,
    }  # fmt: skip
    undisturbed = make_classifier(policy).set_params(**how).fit(*lazy_rows())
    strike = make_strike(crew_client, "trainer")
    struck = make_classifier(policy, strike).set_params(**how).fit(*lazy_rows())
    assert strike.events
    np.testing.assert_array_equal(struck.coef_, undisturbed.coef_)
    assert struck.privacy_spent_ == undisturbed.privacy_spent_
    assert struck.history_[-1]["epsilon"] == undisturbed.history_[-1]["epsilon"]
