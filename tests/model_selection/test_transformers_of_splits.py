"""Transformers fitted to all splits together equal those fitted to each split separately."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from daskml_dist import preprocessing as ours
from daskml_dist.compose import make_column_transformer
from daskml_dist.data import reduce
from daskml_dist.impute import SimpleImputer
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import KFold, ShuffleSplit, StratifiedKFold
from daskml_dist.model_selection._batched_fits import _fit_transformers
from daskml_dist.model_selection._validation import Splits
from daskml_dist.models.batched import TRAIN

RNG = np.random.default_rng(0)
N = 90
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N) + np.arange(N) / 30,
        "b": RNG.exponential(size=N),
        "c": RNG.choice(["red", "green", "blue"], N),
        "y": RNG.integers(0, 2, N),
    }
)
GAPS = FRAME.assign(a=FRAME["a"].where(FRAME["b"] < 2))
NUMBERS = ["a", "b"]
#: Steps before the last, and the rows that they accept.
STEPS: dict[str, tuple[Any, Any]] = {
    "standard": (ours.StandardScaler(), GAPS[NUMBERS]),
    "range": (ours.MinMaxScaler(), GAPS[NUMBERS]),
    "largest": (ours.MaxAbsScaler(), GAPS[NUMBERS]),
    "quartiles": (ours.RobustScaler(), FRAME[NUMBERS]),
    "quantiles": (ours.QuantileTransformer(n_quantiles=10), FRAME[NUMBERS]),
    "bins": (ours.KBinsDiscretizer(encode="ordinal"), FRAME[NUMBERS]),
    "median": (SimpleImputer(strategy="median"), GAPS[NUMBERS]),
    "most": (SimpleImputer(strategy="most_frequent"), FRAME),
    "one hot": (ours.OneHotEncoder(min_frequency=25), FRAME[["c"]]),
    "ordinal": (ours.OrdinalEncoder(), FRAME[["c"]]),
    "powers of scaled": (
        make_pipeline(ours.StandardScaler(), ours.PolynomialFeatures()), FRAME[NUMBERS],
    ),
    "target": (
        make_pipeline(ours.TargetEncoder(random_state=0), ours.StandardScaler()), FRAME[["c"]],
    ),
    "columns": (
        make_column_transformer(
            (make_pipeline(SimpleImputer(), ours.StandardScaler()), ["a"]),
            (ours.OneHotEncoder(), ["c"]),
            (ours.TargetEncoder(random_state=0), ["c"]),
            remainder=ours.MinMaxScaler(),
        ),
        GAPS[[*NUMBERS, "c"]],
    ),
}  # fmt: skip
SPLITTERS = {
    "ranges": KFold(2),  # a split has no training rows in the first block
    "stratified": StratifiedKFold(3, shuffle=True, random_state=0),
    "drawn": ShuffleSplit(2, random_state=0),
}


@pytest.mark.parametrize(
    ("name", "cv"),
    [(name, "ranges") for name in STEPS]
    + [(name, cv) for name in ("target", "columns") for cv in ("stratified", "drawn")],
)
def test_transformers_are_equal_bit_for_bit(name: str, cv: str) -> None:
    step, rows = STEPS[name]
    pipeline = make_pipeline(step, LogisticRegression())
    frame = dd.from_pandas(rows.assign(y=FRAME["y"]), npartitions=3)
    X, y = frame[list(rows.columns)], frame["y"]
    splits = Splits(pipeline, X, y, None, {}, SPLITTERS[cv])
    (heads,), counted = _fit_transformers([pipeline], splits)
    for split, head in enumerate(heads):
        X_train, y_train, _ = splits.select_side(split, TRAIN)
        alone = clone(head).fit(X_train, y_train)
        np.testing.assert_array_equal(_dense(head.transform(rows)), _dense(alone.transform(rows)))
        labels, counts = np.unique(y_train.compute(), return_counts=True)
        assert counted.trained is not None
        assert counted.trained.labels.tolist() == labels.tolist()
        assert counted.trained.weights[split].tolist() == counts.tolist()


def _dense(values: Any) -> Any:
    return values.toarray() if hasattr(values, "toarray") else values


def test_one_pass_fits_the_transformers_of_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    n_passes: list[int] = []
    on_blocks = reduce._compute_on_blocks

    def counted(passes: Any) -> Any:
        n_passes.append(len(passes))
        return on_blocks(passes)

    monkeypatch.setattr(reduce, "_compute_on_blocks", counted)
    step, rows = STEPS["columns"]
    frame = dd.from_pandas(rows.assign(y=FRAME["y"]), npartitions=3)
    pipeline = make_pipeline(step, LogisticRegression())
    splits = Splits(pipeline, frame[list(rows.columns)], frame["y"], None, {}, StratifiedKFold(3))
    n_passes.clear()
    _fit_transformers([pipeline], splits)
    # First rows of each split and labels; three transformers and an imputer each; a scaler each.
    assert n_passes == [3 + 1, 3 * 4, 3]
