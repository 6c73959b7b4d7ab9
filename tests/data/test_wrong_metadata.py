"""Blocks that contradict Dask's metadata raise an error that names meta as the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from daskml_dist import metrics
from daskml_dist.cluster import KMeans
from daskml_dist.data.block_errors import find_declared_numbers
from daskml_dist.data.lazy import join_delayed
from daskml_dist.decomposition import PCA
from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LinearRegression, SGDClassifier, SGDRegressor
from daskml_dist.model_selection import cross_val_score
from daskml_dist.preprocessing import MinMaxScaler, QuantileTransformer, StandardScaler

N, SIZE = 40, 20
X = np.random.default_rng(0).normal(size=(N, 2))
Y = X @ [1.0, -1.0]
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(y=Y)
LAZY_Y = da.from_array(Y, chunks=SIZE)


def _worded(block: Any, block_info: Any = None) -> Any:
    """Return the second block as strings."""
    if block_info and block_info[0]["chunk-location"][0] == 1:
        return np.full(block.shape, "word", dtype=object)
    return block


def _array(values: Any) -> da.Array:
    lazy = da.from_array(values, chunks=(SIZE, *values.shape[1:]))
    return lazy.map_blocks(_worded, dtype=float, meta=lazy._meta)


def _frame() -> Any:
    """Return a frame whose second partition has strings in column "b"."""
    parts = [FRAME[:SIZE], FRAME[SIZE:].assign(b="word")]
    delayed_parts = [dask.delayed(part) for part in parts]
    return dd.from_delayed(delayed_parts, meta=FRAME[:0], verify_meta=False)


def _dated(block: Any, block_info: Any = None) -> Any:
    if block_info and block_info[0]["chunk-location"][0] == 1:
        return np.full(block.shape, np.datetime64("2024-01-01"))
    return block


def _dates() -> da.Array:
    lazy = da.from_array(X, chunks=(SIZE, 2))
    return lazy.map_blocks(_dated, dtype=float, meta=lazy._meta)


#: Rows whose second block contradicts Dask's metadata.
ROWS: dict[str, Callable[[], Any]] = {
    "array": lambda: _array(X),
    "frame": lambda: _frame()[["a", "b"]],
    "dates": _dates,
}
#: Operations on such rows.
USES: dict[str, Callable[[Any], Any]] = {
    "fit by steps": lambda rows: SGDRegressor(max_iter=1, tol=None).fit(rows, LAZY_Y),
    "fit by rounds": lambda rows: LinearRegression().fit(rows, LAZY_Y),
    "fit of trees": lambda rows: HistGradientBoostingRegressor(max_iter=1).fit(rows, LAZY_Y),
    "clustering": lambda rows: KMeans(2, max_iter=1).fit(rows),
    "decomposition": lambda rows: PCA(1).fit(rows),
    "scaler's fit": lambda rows: StandardScaler().fit(rows),
    "quantiles' fit": lambda rows: QuantileTransformer(n_quantiles=5).fit(rows),
    "transform": lambda rows: _fitted(StandardScaler(), rows).transform(rows).compute(),
    "inverse": lambda rows: _fitted(MinMaxScaler(), rows).inverse_transform(rows).compute(),
    "predict": lambda rows: _fitted(LinearRegression(), rows).predict(rows).compute(),
    "predict of trees": lambda rows: (
        _fitted(HistGradientBoostingRegressor(max_iter=1), rows).predict(rows).compute()
    ),
    "score": lambda rows: _fitted(LinearRegression(), rows).score(rows, LAZY_Y),
    "cross validation": lambda rows: cross_val_score(
        LinearRegression(), rows, LAZY_Y, cv=2, error_score="raise"
    ),
}


def _fitted(model: Any, rows: Any) -> Any:
    """Return a model fitted to valid rows, with column names if the rows have them."""
    return model.fit(FRAME[["a", "b"]] if hasattr(rows, "columns") else X, Y)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("use", USES)
def test_rows_that_contradict_dask_metadata_raise(use: str, kind: str, client: Client) -> None:
    with pytest.raises(
        InvalidDataError, match=r"Block 1: X has (values|columns \['b'\]) of"
    ) as got:
        USES[use](ROWS[kind]())
    _check_words(str(got.value))


def _check_words(message: str) -> None:
    assert "not those that Dask was told (its meta)" in message
    assert "ncode" not in message


@pytest.mark.parametrize("fit", [SGDRegressor(max_iter=1, tol=None).fit, LinearRegression().fit])
def test_targets_that_contradict_dask_metadata_raise(fit: Any, client: Client) -> None:
    with pytest.raises(InvalidDataError, match=r"Block 1: y has values of dtype object") as found:
        fit(da.from_array(X, chunks=(SIZE, 2)), _array(Y))
    _check_words(str(found.value))


#: Metrics of numbers, of scores and of labels.
METRICS: dict[str, Callable[[Any], Any]] = {
    "mean_squared_error": lambda words: metrics.mean_squared_error(LAZY_Y, words),
    "r2_score": lambda words: metrics.r2_score(LAZY_Y, words),
    "median_absolute_error": lambda words: metrics.median_absolute_error(LAZY_Y, words),
    "roc_auc_score": lambda words: metrics.roc_auc_score(LAZY_Y > 0, words),
    "log_loss": lambda words: metrics.log_loss(LAZY_Y > 0, words),
    "accuracy_score": lambda words: metrics.accuracy_score((LAZY_Y > 0).astype(int), words),
}


@pytest.mark.parametrize("name", METRICS)
def test_predictions_that_contradict_dask_metadata_raise(name: str, client: Client) -> None:
    share = 1 / (1 + np.exp(-Y))
    words = _array((Y > 0).astype(float) if name == "accuracy_score" else share)
    with pytest.raises(InvalidDataError, match=r"Block 1: y_\w+ has values of dtype obj") as found:
        METRICS[name](words)
    _check_words(str(found.value))


def test_strings_that_agree_with_the_metadata_suggest_an_encoder(client: Client) -> None:
    """The remedy is then an encoder, not meta."""
    words = np.full((N, 2), "word", dtype=object)
    strings = da.from_array(words, chunks=(SIZE, 2))
    blocks = [dask.delayed(words[:SIZE]), dask.delayed(words[SIZE:])]
    labels = (LAZY_Y > 0).astype(int)
    for rows, y in ((strings, labels), (blocks, list(labels.to_delayed()))):
        with pytest.raises(InvalidDataError, match="Encode it first") as found:
            SGDClassifier(max_iter=1, tol=None).fit(rows, y)
        assert "meta" not in str(found.value)
    assert find_declared_numbers(join_delayed(blocks, 2), "X") is None


def test_numbers_in_object_blocks_are_accepted(client: Client) -> None:
    """Objects that are all numbers agree with the metadata; labels may be of any type."""
    lazy = da.from_array(X, chunks=(SIZE, 2))
    objects = lazy.map_blocks(lambda block: block.astype(object), dtype=float, meta=lazy._meta)
    assert LinearRegression().fit(objects, LAZY_Y).score(objects, LAZY_Y) == pytest.approx(1.0)
    labels = LAZY_Y.map_blocks(lambda y: np.where(y > 0, "yes", "no"), dtype=int)
    model = SGDClassifier(max_iter=1, tol=None).fit(lazy, labels)
    assert model.classes_.tolist() == ["no", "yes"]
