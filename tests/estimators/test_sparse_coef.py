"""Sparse coefficients give the same predictions, twins and further steps."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.svm import LinearSVC

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ [2.0, 0.0, -1.0, 0.0]
STEPS: dict[str, Any] = {"random_state": 0, "tol": None, "max_iter": 3}
MODELS = [LogisticRegression(), LinearSVC(), SGDClassifier(**STEPS), SGDRegressor(**STEPS)]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_sparse_coefficients_keep_predictions(model: Any, n_classes: int) -> None:
    y = Y if isinstance(model, SGDRegressor) else np.digitize(Y, [0.0, 1.5][: n_classes - 1])
    with pytest.raises(NotFittedError):
        type(model)().sparsify()
    model.fit(X, y)
    coef, methods = model.coef_, [name for name in ("predict", "decision_function")
                                if hasattr(model, name)]  # fmt: skip
    before = [getattr(model, name)(X) for name in methods]
    assert model.sparsify() is model
    assert sparse.issparse(model.coef_)
    for copy in (model, pickle.loads(pickle.dumps(model)), model.to_sklearn()):
        for name, expected in zip(methods, before, strict=True):
            np.testing.assert_allclose(getattr(copy, name)(X), expected)
    lazy = model.predict(da.from_array(X, chunks=(20, 4)))
    assert np.array_equal(lazy.compute(scheduler="sync"), before[0])
    assert np.array_equal(model.densify().coef_, coef)
    assert np.array_equal(model.densify().coef_, coef)


def test_steps_continue_from_sparse_coefficients() -> None:
    models = [SGDRegressor(**STEPS).fit(X, Y) for _ in range(2)]
    models[0].sparsify()
    assert np.array_equal(*(model.partial_fit(X, Y).coef_ for model in models))
