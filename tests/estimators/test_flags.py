"""Boolean parameters of every estimator refuse strings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import pytest

from daskml_dist import (
    cluster,
    decomposition,
    ensemble,
    linear_model,
    mixture,
    naive_bayes,
    neural_network,
    recommender,
    svm,
    tree,
)
from daskml_dist.errors import InvalidParameterError

SUBPACKAGES = (
    cluster, decomposition, ensemble, linear_model, mixture, naive_bayes, neural_network,
    recommender, svm, tree,
)  # fmt: skip
#: Required arguments of constructors.
NEEDED = {
    "TorchClassifier": {"module": lambda: None},
    "TorchRegressor": {"module": lambda: None},
    "VotingClassifier": {"estimators": [("a", linear_model.Ridge())]},
    "VotingRegressor": {"estimators": [("a", linear_model.Ridge())]},
    "StackingClassifier": {"estimators": [("a", linear_model.Ridge())]},
    "StackingRegressor": {"estimators": [("a", linear_model.Ridge())]},
}
X = np.arange(24.0).reshape(12, 2)
Y = np.arange(12) % 2


def _flags() -> Iterator[tuple[type, str]]:
    for subpackage in SUBPACKAGES:
        for kind in (getattr(subpackage, name) for name in subpackage.__all__):
            for parameter in inspect.signature(kind.__init__).parameters.values():
                if isinstance(parameter.default, bool):
                    yield kind, parameter.name


@pytest.mark.parametrize(("kind", "name"), [*_flags()], ids=lambda v: getattr(v, "__name__", v))
def test_boolean_parameters_refuse_strings(kind: type, name: str) -> None:
    if kind.__name__.startswith("Torch"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    estimator = kind(**NEEDED.get(kind.__name__, {}), **{name: "no"})
    with pytest.raises(InvalidParameterError, match=name):
        estimator.fit(X, Y)
