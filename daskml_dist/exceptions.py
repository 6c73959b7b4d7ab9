"""Errors and warnings, under the same module path as in scikit-learn.

The package's errors are defined in `daskml_dist.errors`; `NotFittedError` is a subclass of both
packages' errors, and `ConvergenceWarning` is scikit-learn's own.
"""

from __future__ import annotations

from sklearn.exceptions import ConvergenceWarning

from daskml_dist.errors import NotFittedError

__all__ = ["ConvergenceWarning", "NotFittedError"]
