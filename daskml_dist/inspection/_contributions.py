"""Contributions of features as the output of a predictor, for serving."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.inference.predictor import Predictor
from daskml_dist.inspection.shap_values import find_trees, make_row_explainer, read_features

#: Name of the output.
CONTRIBUTIONS = "contributions"


def has_contributions(model: Any) -> bool:
    """Return whether a fitted model's predictions can be explained without background rows."""
    return find_trees(model) is not None


class ContributionPredictor:
    """Contributions of features to predictions, with the interface of a `Predictor`.

    Each row has a column for each feature, and a last column with the base value: they add up to
    the raw prediction. With several outputs, the last axis is the output.

    Parameters
    ----------
    model : estimator
        Fitted model of trees.
    """

    method = CONTRIBUTIONS
    #: The values of a row have the same bits whatever other rows are in the call.
    rows_apart = True
    bare = False

    def __init__(self, model: Any) -> None:
        self.model = model
        of_rows = Predictor(model)
        self.n_features, self.names, self.needed = (
            of_rows.n_features, of_rows.names, of_rows.needed,
        )  # fmt: skip
        self.dtypes, self.classes = of_rows.dtypes, of_rows.classes
        self._explain = make_row_explainer(model, None)

    @property
    def maker(self) -> type[ContributionPredictor]:
        """Class that makes an equal predictor from a worker's copy of the model."""
        return type(self)

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """Return the contributions of the features for each row, and the base value."""
        values, base = self._explain(read_features(self.model, X)), self._explain.base
        last = np.broadcast_to(
            base[0] if values.ndim == 2 else base, (len(values), *values.shape[2:])
        )
        return np.concatenate([values, last[:, None]], axis=1)
