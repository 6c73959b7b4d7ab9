"""Parameters accepted only for compatibility with scikit-learn are checked and have no effect."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from daskml_dist.errors import InvalidParameterError
from daskml_dist.parameters.checks import ACCEPTED
from tests.versions import OLD_SCIKIT_LEARN

SUBPACKAGES = ("linear_model", "svm")
_PUBLIC = [
    getattr(importlib.import_module(f"daskml_dist.{subpackage}"), name)
    for subpackage in SUBPACKAGES
    for name in importlib.import_module(f"daskml_dist.{subpackage}").__all__
]
CLASSES = [kind for kind in _PUBLIC if issubclass(kind, BaseEstimator)]
CASES = [(kind, name) for kind in CLASSES for name in kind._accepted]
#: A valid value other than the default, and an invalid one.
VALUES: dict[str, tuple[Any, Any]] = {
    "copy_X": (False, "yes"),
    "dual": (False, "both"),
    "intercept_scaling": (2.0, -1.0),
    "max_iter": (7, 0),
    "n_jobs": (2, 1.5),
    "precompute": (True, "auto"),
    "random_state": (3, "seed"),
    "tol": (1e-2, -1.0),
}


def _rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    return X, (X @ [1.0, -2.0, 0.5] + rng.normal(size=60) > 0).astype(np.float64)


def test_every_accepted_parameter_has_values_to_try() -> None:
    assert VALUES.keys() == ACCEPTED.keys()
    assert len(CASES) > 10


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_accepted_parameters_are_checked_and_without_effect(kind: Any, name: str) -> None:
    other, bad = VALUES[name]
    X, y = _rows()
    same = {"random_state": 0} if "random_state" in inspect.signature(kind).parameters else {}
    plain = kind(**same).fit(X, y)
    assert np.array_equal(kind(**(same | {name: other})).fit(X, y).coef_, plain.coef_)
    with pytest.raises(InvalidParameterError, match=rf"The '{name}' parameter of {kind.__name__}"):
        kind(**{name: bad}).fit(X, y)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_constructors_have_scikit_learns_parameters_in_its_order(kind: Any) -> None:
    peers = importlib.import_module("sklearn." + kind.__module__.split(".")[1])
    if not hasattr(peers, kind.__name__):
        return
    theirs = list(inspect.signature(getattr(peers, kind.__name__)).parameters)
    ours = list(inspect.signature(kind).parameters)
    if OLD_SCIKIT_LEARN:  # The order is that of the newest version, which lacks these two.
        assert set(theirs) - {"n_alphas", "multi_class"} <= set(ours)
    else:
        assert [name for name in ours if name in theirs] == theirs
