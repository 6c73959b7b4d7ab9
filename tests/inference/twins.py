"""Comparison of twins (scikit-learn equivalents) with the estimators that they are made from."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

__all__ = ["assert_alone", "assert_answers"]

METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform",
    "score_samples", "apply", "inverse_transform", "predict_interval", "predict_set",
)  # fmt: skip


def assert_answers(
    model: Any, twin: Any, X: Any, rtol: float = 1e-10, aside: Collection[str] = ()
) -> None:
    """Assert that functions of rows are equal: to the bit with an `rtol` of 0."""
    shared = {name for name in METHODS if hasattr(twin, name) and hasattr(model, name)}
    assert {"predict", "transform", "predict_interval"} & shared
    for name in shared - {*aside}:
        try:
            rows = model.transform(X) if name == "inverse_transform" else X
            wanted = getattr(model, name)(rows)
        except ValueError:  # there is no inverse, in scikit-learn neither
            assert name == "inverse_transform"
            continue
        found = getattr(twin, name)(rows)
        if isinstance(wanted, list):  # several outputs
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                _assert_equal(one, other, rtol, name)
        else:
            _assert_equal(found, wanted, rtol, name)


def _assert_equal(found: Any, wanted: Any, rtol: float, name: str) -> None:
    if sparse.issparse(wanted) and wanted.shape[1] > 2**31:  # a dense one would not fit in memory
        assert found.shape == wanted.shape, name
        assert (found != wanted).nnz == 0, name
        return
    if sparse.issparse(wanted):
        found, wanted = found.toarray(), wanted.toarray()
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, name
    if wanted.dtype.kind == "f" and rtol:
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
        assert_allclose(found, wanted, rtol=rtol, atol=rtol * largest, err_msg=name)
    else:
        assert_array_equal(found, wanted, name)


def assert_alone(twin: Any) -> Any:
    """Assert that a pickle refers neither to this package nor to Dask; return its object."""
    stored = pickle.dumps(twin)
    names = {arg for _, arg, _ in pickletools.genops(stored) if isinstance(arg, str)}
    assert [name for name in names if name.partition(".")[0] in ("daskml_dist", "dask")] == []
    return pickle.loads(stored)
