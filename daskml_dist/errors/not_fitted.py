"""The error that is scikit-learn's too: the one that needs scikit-learn."""

from __future__ import annotations

import sklearn.exceptions

from daskml_dist.errors import DaskMLDistError


class NotFittedError(DaskMLDistError, sklearn.exceptions.NotFittedError):
    """The estimator was asked to predict before it was fitted."""

    __module__ = "daskml_dist.errors"  # where users know it from
