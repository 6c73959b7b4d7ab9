"""`RandomForestClassifier`."""
from __future__ import annotations
from typing import Any
import numpy as np
from daskml_dist._classifier import BaseClassifier
from daskml_dist._forest import BaseForest

class RandomForestClassifier(BaseClassifier, BaseForest):
    """RF."""
    _min_classes = 1
    def __init__(self, n_estimators=100, *, criterion="gini", max_depth=None, min_samples_split=2,
        min_samples_leaf=1, min_weight_fraction_leaf=0.0, max_features="sqrt", max_leaf_nodes=None,
        min_impurity_decrease=0.0, bootstrap=True, random_state=None, class_weight=None, ccp_alpha=0.0,
        monotonic_cst=None, max_bins=255, decomposition="auto", run=None, device="auto", callbacks=None):
        for k,v in locals().items():
            if k not in ("self","__class__"): setattr(self,k,v)
    def _rate(self, n):
        return 1.0 if self.bootstrap else None
    def _set_fitted(self, solution, model, rows):
        self.classes_ = rows.classes
        super()._set_fitted(solution, model, rows)
    def predict_proba(self, X):
        self._check_fitted(X)
        return self._map(None, X, np.float64, len(self.classes_))
