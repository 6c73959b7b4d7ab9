"""Held-out ratings of jokes are predicted as well as by an independent computation."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from daskml_dist.metrics import root_mean_squared_error
from daskml_dist.recommender import ALS, MatrixFactorization

#: Root mean squared errors of biases alone, and with least squares of rank 5.
BIASES, TRUTH = 4.351, 4.124


@pytest.mark.data
@pytest.mark.slow
def test_held_out_ratings_of_jokes(data_dir: Path) -> None:
    with (
        zipfile.ZipFile(data_dir / "jester" / "jester-data-1.zip") as folder,
        folder.open("jester-data-1.csv") as file,
    ):
        table = pd.read_csv(file, header=None).to_numpy(np.float64)[:, 1:]
    users, jokes = np.nonzero(table != 99)
    ratings = pd.DataFrame({"user": users, "item": jokes, "rating": table[users, jokes]})
    ratings = ratings.sample(frac=1, random_state=0)
    held_out, rest = ratings[:200_000], ratings[200_000:]
    model = ALS(5, biases=True, random_state=0).fit(rest)
    found = -model.score(held_out)
    assert found == pytest.approx(
        root_mean_squared_error(held_out["rating"], model.predict(held_out))
    )
    assert found < TRUTH < BIASES
    steps = MatrixFactorization(5, random_state=0).fit(rest)
    assert -steps.score(held_out) < TRUTH
