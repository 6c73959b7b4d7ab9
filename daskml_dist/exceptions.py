"""Errors and warnings under the path that scikit-learn's users know.

Errors of the package are in `daskml_dist.errors`; `NotFittedError` is of both packages, and
`ConvergenceWarning` is scikit-learn's own.
"""

from __future__ import annotations

from sklearn.exceptions import ConvergenceWarning

from daskml_dist.errors import NotFittedError

__all__ = ["ConvergenceWarning", "NotFittedError"]
