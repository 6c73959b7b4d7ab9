"""Subclasses whose constructors take fewer parameters than their base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from tests.contracts.small_fits import each_base, rows_of, small_estimator, small_estimators

#: PyTorch estimators need module parameters, which are not in the constructor.
NAMES = [name for name in small_estimators() if not name.startswith("Torch")]


@pytest.mark.parametrize("name", each_base(NAMES))
@pytest.mark.filterwarnings("ignore")
def test_a_subclass_with_fewer_parameters_works(name: str) -> None:
    base = small_estimator(name)
    kind, params = type(base), base.get_params(deep=False)

    class Narrow(kind):  # type: ignore[misc, valid-type]
        def __init__(self, knob: int = 1) -> None:
            super().__init__(**params)
            self.knob = knob

    rows = [part for part in rows_of(name) if part is not None]
    model = clone(Narrow(2))
    assert model.get_params(deep=False)["knob"] == 2
    method = "predict" if hasattr(model.fit(*rows), "predict") else "transform"
    if not hasattr(model, method):  # only for the rows of its fit
        return
    found, expected = (getattr(one, method)(rows[0]) for one in (model, base.fit(*rows)))
    if sparse.issparse(found):  # a million columns if made by a hasher
        assert found.shape == expected.shape
        assert (found != expected).nnz == 0
        return
    np.testing.assert_array_equal(_plain(found), _plain(expected))


def _plain(values: Any) -> Any:
    return np.asarray(values, dtype=object) if hasattr(values, "dtypes") else np.asarray(values)
