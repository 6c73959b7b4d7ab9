"""`TargetEncoder` on Dask collections has the encodings of scikit-learn."""

from __future__ import annotations

import itertools
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.preprocessing import TargetEncoder

N = 400
CUTS = [0, 90, 90, 100, 250, N]


def _rows() -> tuple[pd.DataFrame, dict[str, pd.Series]]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"job": rng.choice(["cook", "clerk", "pilot"], N), "size": rng.integers(0, 4, N)}
    )
    frame.loc[95, "job"] = "only here"
    frame.loc[::17, "job"] = None
    number = rng.normal(size=N) + 1e4 + (frame["job"] == "pilot")
    return frame, {
        "continuous": number,
        "binary": pd.Series(np.where(number > 1e4, "yes", "no")),
        "multiclass": pd.Series(np.where(number > 1e4 + 1, 2, number > 1e4).astype(int)),
        "whole numbers": (number * 10).round(),
    }


FRAME, TARGETS = _rows()


def _lazy(values: Any) -> Any:
    parts = [dask.delayed(values[a:b]) for a, b in itertools.pairwise(CUTS)]
    return dd.from_delayed(parts, meta=values[:0])


@pytest.mark.parametrize("smooth", ["auto", 0.0, 5.0])
@pytest.mark.parametrize("kind", list(TARGETS))
def test_encodings_equal_scikit_learn(kind: str, smooth: Any) -> None:
    y = TARGETS[kind]
    options = {"smooth": smooth, "target_type": "continuous" if " " in kind else "auto"}
    ours = TargetEncoder(**options).fit(_lazy(FRAME), _lazy(y))
    theirs = sklearn.preprocessing.TargetEncoder(**options).fit(FRAME, y)
    assert ours.target_type_ == theirs.target_type_
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_allclose(ours.target_mean_, theirs.target_mean_)
    for found, expected in zip(ours.encodings_, theirs.encodings_, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    found = ours.transform(_lazy(FRAME)).compute()
    np.testing.assert_allclose(found, theirs.transform(FRAME), rtol=1e-8)
    unseen = pd.DataFrame({"job": ["new"], "size": [9]})
    np.testing.assert_allclose(ours.transform(unseen), theirs.transform(unseen), rtol=1e-8)


def test_rows_are_encoded_by_the_other_folds() -> None:
    """A category with one row is not encoded by its own target, but by the mean of the others."""
    y = TARGETS["continuous"]
    encoder = TargetEncoder(smooth=0.0, cv=4, random_state=0)
    encoded = encoder.fit_transform(_lazy(FRAME), _lazy(y)).compute()
    assert encoded.shape == (N, 2)
    assert encoded[95, 0] != pytest.approx(y[95], abs=1e-6)
    assert encoder.transform(FRAME[95:96])[0, 0] == pytest.approx(y[95])
    again = TargetEncoder(smooth=0.0, cv=4, random_state=0)
    np.testing.assert_array_equal(again.fit_transform(_lazy(FRAME), _lazy(y)).compute(), encoded)
    # Memorised noise of categories is removed; the common signal remains.
    noise = np.random.default_rng(1).normal(size=N)
    ids = pd.DataFrame({"id": np.arange(N) % 200})
    leak = np.corrcoef(
        TargetEncoder(smooth=0.0).fit(_lazy(ids), _lazy(pd.Series(noise))).transform(ids)[:, 0],
        noise,
    )[0, 1]
    crossed = TargetEncoder(smooth=0.0, random_state=0).fit_transform(
        _lazy(ids), _lazy(pd.Series(noise))
    )
    assert leak > 0.6
    assert abs(np.corrcoef(crossed.compute()[:, 0], noise)[0, 1]) < 0.2


def test_without_a_target() -> None:
    with pytest.raises(InvalidDataError, match="requires y"):
        TargetEncoder().fit(_lazy(FRAME))


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_target_of_another_type_is_refused(is_lazy: bool) -> None:
    make = _lazy if is_lazy else (lambda values: values)
    X = make(FRAME)
    with pytest.raises(InvalidParameterError, match="has 3 values"):
        TargetEncoder(target_type="binary").fit(X, make(TARGETS["multiclass"]))
    with pytest.raises(InvalidDataError, match="Unknown label type"):
        TargetEncoder(target_type="multiclass").fit(X, make(TARGETS["continuous"]))


def test_two_labels_in_memory_are_no_multiclass_target() -> None:
    with pytest.raises(InvalidParameterError, match='Use "binary"'):
        TargetEncoder(target_type="multiclass").fit_transform(FRAME, TARGETS["binary"])
