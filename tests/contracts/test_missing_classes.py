"""Meta-estimators when a class is missing in a fold, a block or the held-out rows."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.multiclass import OneVsRestClassifier

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.model_selection import KFold
from daskml_dist.naive_bayes import GaussianNB
from tests.contracts.compare import Refusal, attempt
from tests.quick import in_turn

_N = 90
_PLACES = np.arange(_N)
_ALTERNATING = _PLACES % 2
#: Labels by the parts without a class: all folds and blocks but one, all after the first, etc.
LABELS: dict[str, NDArray[Any]] = {
    "each block has one class": np.sort(_PLACES % 3),
    "a class is in the first block alone": np.where(_PLACES < 30, _PLACES % 3, _ALTERNATING),
    "a class has one row": np.where(_PLACES == 40, 2, _ALTERNATING),
}
_LINE, _BAYES = LogisticRegression(), GaussianNB()
_TWO = [("line", _LINE), ("bayes", _BAYES)]


def _calibrated() -> dict[str, Any]:
    return {
        f"calibrated {type(member).__name__}, {method}, ensemble={ensemble}": (
            CalibratedClassifierCV(member, method=method, ensemble=ensemble, cv=KFold(3))
        )
        for member in (_LINE, _BAYES)
        for method in ("sigmoid", "isotonic", "temperature")
        for ensemble in (True, False)
    }


MODELS: dict[str, Any] = {
    **_calibrated(),
    "bagging": BaggingClassifier(_LINE, n_estimators=3, max_samples=10, random_state=0),
    "early stopping": SGDClassifier(early_stopping=True, random_state=0),
    "one vs rest": OneVsRestClassifier(_LINE),
    "stacking": StackingClassifier(_TWO, cv=KFold(3)),
    "voting, hard": VotingClassifier(_TWO),
    "voting, soft": VotingClassifier(_TWO, voting="soft"),
}


def _predicted(model: Any, X: Any, y: Any) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(model).fit(X, y)
        shares = np.asarray(model.predict_proba(X)) if hasattr(model, "predict_proba") else None
        return np.asarray(model.predict(X)), shares


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [*itertools.product(["memory"], MODELS, LABELS), *in_turn(["Dask"], MODELS, LABELS)],
)
def test_missing_classes_are_supported_or_refused(kind: str, name: str, labels: str) -> None:
    if kind == "Dask" and name == "one vs rest":
        pytest.skip("scikit-learn's own takes rows in memory")
    if kind == "memory" and "temperature" in name:
        pytest.importorskip("sklearn", "1.8", reason="it has no temperature scaling")
    y = LABELS[labels]
    X = np.random.default_rng(0).normal(size=(_N, 3)) + y[:, None]
    arguments = (
        (X, y) if kind == "memory" else (da.from_array(X, chunks=(30, 3)), da.from_array(y, 30))
    )
    found = attempt(_predicted, MODELS[name], *arguments)
    if isinstance(found, Refusal):
        # Only calibration may need each class in each fold.
        assert found.is_ours
        assert "calibrated" in name
        assert any(words in str(found) for words in ("lack", "class"))
        return
    predicted, shares = found
    assert set(predicted.tolist()) <= {0, 1, 2}
    if shares is not None:
        assert shares.shape == (_N, 3)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
