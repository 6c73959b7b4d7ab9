"""Lists of delayed blocks are rows, targets and weights of every public estimator."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy import sparse

from daskml_dist.data.collection import take_named_columns
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import InvalidParameterError
from tests.contracts.compare import Refusal, attempt
from tests.contracts.small_fits import rows_of, small_estimator, small_estimators
from tests.quick import quick

#: Numeric rows, as held by a delayed block.
OF_NUMBERS = [
    name
    for name in small_estimators()
    if isinstance(rows_of(name)[0], np.ndarray) and rows_of(name)[0].ndim == 2
]
#: Estimators of other packages' models, which need the number of columns immediately.
REFUSING = {
    "BaggingClassifier", "BaggingRegressor", "Blockwise", "StackingClassifier", "StackingRegressor"
}  # fmt: skip


def _results(name: str, X: Any, y: Any) -> dict[str, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small_estimator(name).fit(X, y)
        methods = [m for m in ("predict", "transform") if hasattr(model, m)]
        found = {m: _dense(da.compute(getattr(model, m)(X))[0]) for m in methods}
        if y is not None and hasattr(model, "score"):
            found["score"] = np.asarray(model.score(X, y))
        return found


def _dense(values: Any) -> np.ndarray:
    return np.asarray(values.toarray() if sparse.issparse(values) else values)


@pytest.mark.parametrize(
    "name", quick(OF_NUMBERS, "HistGradientBoostingRegressor", "HuberRegressor", "RidgeClassifier")
)
def test_fits_of_delayed_blocks(name: str, client: Client) -> None:
    whole = [v if v is None else da.from_array(v, chunks=(20, *v.shape[1:])) for v in rows_of(name)]
    parts = [v if v is None else list(v.to_delayed().ravel()) for v in whole]
    if name == "ConformalizedQuantileRegressor":
        # Rows of unknown sizes are held out in another way, and so are those of delayed blocks.
        mask = da.ones(len(whole[0]), chunks=20, dtype=bool)
        whole = [values[mask] for values in whole]
    expected, found = _results(name, *whole), attempt(_results, name, *parts)
    if name in REFUSING:
        assert isinstance(found, Refusal)
        assert found.is_ours
        return
    assert not isinstance(found, Refusal), found
    for method, values in expected.items():
        np.testing.assert_allclose(found[method], values, rtol=1e-9, atol=1e-9)


def test_targets_of_delayed_blocks_have_a_shape() -> None:
    X, y = da.zeros((4, 2), chunks=2), da.zeros(4, chunks=2)
    arrays = take_named_columns(*(list(values.to_delayed().ravel()) for values in (X, y, y)))
    assert [values.ndim for values in arrays] == [2, 1, 1]


def test_categories_of_an_unknown_number_of_columns_are_refused() -> None:
    X, y = (list(da.zeros(n, chunks=2).to_delayed().ravel()) for n in (4, 4))
    with pytest.raises(InvalidParameterError, match="number of columns of X is unknown"):
        HistGradientBoostingClassifier(categorical_features=[0]).fit(X, y)
