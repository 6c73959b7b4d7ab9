"""Scores that fail: candidates trained on from pass to pass have what the user says instead."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier as TheirSGDClassifier
from sklearn.model_selection import KFold

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.model_selection import HyperbandSearchCV

RNG = np.random.default_rng(0)
X = RNG.normal(size=(101, 3))  # folds of 51 and 50 rows
LABELS = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("ours", [False, True], ids=["by passes", "stacked"])
@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "dask"])
def test_a_score_that_fails_on_a_split(client: Any, ours: bool, lazy: bool) -> None:
    def score(estimator: Any, rows: Any, labels: Any) -> float:
        if len(np.asarray(labels)) == 51:
            raise ValueError("not of 51 rows")
        return 0.5

    rows = (da.from_array(X, chunks=(40, 3)), da.from_array(LABELS, chunks=40))
    given = rows if lazy else (X, LABELS)
    search = HyperbandSearchCV(
        (SGDClassifier if ours else TheirSGDClassifier)(random_state=0), {"alpha": [1e-4, 1e-2]},
        max_iter=3, cv=KFold(2), scoring=score, random_state=0, refit=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = search.fit(*given).cv_results_
    assert np.isnan(table["split0_test_score"]).all()
    assert (table["split1_test_score"] == 0.5).all()
    with pytest.raises(ValueError, match="not of 51 rows"):
        search.set_params(error_score="raise").fit(*given)
