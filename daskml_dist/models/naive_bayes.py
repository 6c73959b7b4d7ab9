"""Naive Bayes: moments of the rows of each class, and joint log-likelihoods computed from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.errors import InvalidDataError
from daskml_dist.models.base import Model, encode_labels

Array = NDArray[np.float64]
#: Bytes of float64 rows that go through all classes together: 1 MiB stays in a core's cache.
_BLOCK_BYTES = 1 << 20
#: Most entries (rows times classes times features) that are computed in one array rather than class
#: by class: for few rows a loop over classes costs more than the arithmetic.
_MAX_BROADCAST_ENTRIES = 1 << 12


@dataclass(frozen=True)
class RowsByClass(Model):
    """Model whose parameters are sums over the rows of each class.

    Parameters
    ----------
    n_features, n_classes : int
    """

    n_features: int
    n_classes: int

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the position of each label among the sorted `classes`."""
        assert classes is not None
        return encode_labels(y, classes, np.int64)


def merge_moments(total: Any, part: Any) -> None:
    """Merge the moments of other rows into `total`, in place; both have one row per group.

    A row is the group's weight, its means and its summed squared deviations.

    References
    ----------
    T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance",
    The American Statistician 37(3), 1983.
    """
    n_features = total.shape[1] // 2
    weight = total[:, :1] + part[:, :1]
    # A group may have no rows in either: its share is 0.
    share = part[:, :1] / namespace(weight).where(weight > 0, weight, 1.0)
    mean_difference = part[:, 1 : 1 + n_features] - total[:, 1 : 1 + n_features]
    total[:, 1 + n_features :] += part[:, 1 + n_features :] + mean_difference**2 * (
        total[:, :1] * share
    )
    total[:, 1 : 1 + n_features] += mean_difference * share
    total[:, :1] = weight


@dataclass(frozen=True, eq=False)
class GaussianLogLikelihood:
    """Function of rows: ``log P(c) + log P(x | c)`` for independent normal features.

    Parameters
    ----------
    theta, var : ndarray of shape (n_classes, n_features)
    log_prior : ndarray of shape (n_classes,)
    """

    theta: Array
    var: Array
    log_prior: Array
    makes_dense: ClassVar[bool] = True

    def __call__(self, X: Any) -> Array:
        """Return the log-likelihoods of n rows, dense or sparse, of shape (n, n_classes)."""
        constant = self._constant
        log_likelihoods = np.empty((X.shape[0], len(self.theta)))
        step = max(1, _BLOCK_BYTES // (8 * max(1, X.shape[1])))
        for start in range(0, len(log_likelihoods), step):
            rows = X[start : start + step]
            rows = np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), np.float64)
            for c in range(len(self.theta)):
                # Not expanded to X @ theta.T, which would lose the digits of rows far from 0.
                squares = (rows - self.theta[c]) ** 2 / self.var[c]
                log_likelihoods[start : start + step, c] = constant[c] - 0.5 * squares.sum(axis=1)
        return log_likelihoods

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Array]:
        """Return the function of rows on a device; only the log-likelihoods leave it."""
        theta, var, constant = map(backend.to_device, (self.theta, self.var, self._constant))

        def apply(X: Any) -> Array:
            rows = cast(X.toarray() if hasattr(X, "toarray") else X, theta.dtype)
            log_likelihoods = [
                constant[c] - 0.5 * total((rows - theta[c, ...]) ** 2 / var[c, ...], axis=1)
                for c in range(len(self.theta))
            ]
            return backend.to_numpy(namespace(theta).stack(log_likelihoods, axis=1))

        return apply

    def for_dtype(self, dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Array]:
        """Return the same function for few dense rows of a dtype, with precomputed constants."""
        constant, theta, var = self._constant, self.theta, self.var

        def apply(X: NDArray[Any]) -> Array:
            if len(X) * theta.size > _MAX_BROADCAST_ENTRIES:
                return self(X)
            squares = np.square(X[:, None] - theta)
            squares /= var
            values: Array = constant - 0.5 * np.add.reduce(squares, axis=2)
            return values

        return apply

    @property
    def _constant(self) -> Array:
        """Terms of the log-likelihood that do not depend on the row, by class."""
        constant: Array = self.log_prior - 0.5 * np.log(2.0 * np.pi * self.var).sum(axis=1)
        return constant


@dataclass(frozen=True, eq=False)
class CountsLogLikelihood:
    """Function of rows: ``log P(c) + log P(x | c)`` of counts, up to a constant of each row.

    Parameters
    ----------
    feature_log_prob : ndarray of shape (n_classes, n_features)
    log_prior : ndarray of shape (n_classes,)
    """

    feature_log_prob: Array
    log_prior: Array

    def __call__(self, X: Any) -> Array:
        """Return the log-likelihoods of n rows, dense or sparse, of shape (n, n_classes)."""
        return np.asarray(X @ self.feature_log_prob.T + self.log_prior)

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Array]:
        """Return the function of rows on a device; only the log-likelihoods leave it."""
        factor = backend.to_device(np.ascontiguousarray(self.feature_log_prob.T))
        shape = -1, len(self.log_prior)
        return lambda X: backend.to_numpy(backend.dot(X, factor)).reshape(shape) + self.log_prior


@dataclass(frozen=True, eq=False)
class BinaryLogLikelihood(CountsLogLikelihood):
    """Function of rows: ``log P(c) + log P(x | c)`` of binary features.

    Parameters
    ----------
    threshold : float or None
        A feature is 1 where it is larger (None: rows hold zeros and ones).
    """

    threshold: float | None
    hides_not_finite: ClassVar[bool] = True
    makes_dense: ClassVar[bool] = True

    @property
    def _counts(self) -> CountsLogLikelihood:
        # x log p + (1 - x) log(1 - p) = x (log p - log(1 - p)) + log(1 - p), so that sparse rows
        # need their entries only: the last term is summed over all features in advance.
        log_absent = np.log(1 - np.exp(self.feature_log_prob))
        return CountsLogLikelihood(
            self.feature_log_prob - log_absent, self.log_prior + log_absent.sum(axis=1)
        )

    def __call__(self, X: Any) -> Array:
        """Return the log-likelihoods of n rows, dense or sparse, of shape (n, n_classes)."""
        X = X if self.threshold is None else (self.threshold < X).astype(np.float64)
        return self._counts(X)

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Array]:
        """Return the function of rows on a device; only the log-likelihoods leave it."""
        apply = self._counts.on_device(backend, dtype)
        if (threshold := self.threshold) is None:
            return apply
        return lambda X: apply((X.toarray() if hasattr(X, "toarray") else X) > threshold)


def to_categories(X: NDArray[Any], signed: bool = False) -> NDArray[np.int64]:
    """Return the categories of rows as integers; raise for negative ones unless `signed`."""
    codes = X.astype(np.int64)
    if not signed and codes.size and codes.min() < 0:
        raise InvalidDataError(
            "Negative values in data passed to CategoricalNB (input X): a category is a number "
            "from 0 on. Encode X with OrdinalEncoder."
        )
    return codes


@dataclass(frozen=True, eq=False)
class CategoriesLogLikelihood:
    """Function of rows: ``log P(c) + log P(x | c)`` of categories.

    Parameters
    ----------
    feature_log_prob : list of ndarray of shape (n_classes, n_categories)
        One a feature.
    log_prior : ndarray of shape (n_classes,)
    """

    feature_log_prob: list[Array]
    log_prior: Array
    hides_not_finite: ClassVar[bool] = True
    makes_dense: ClassVar[bool] = True

    def __call__(self, X: Any) -> Array:
        """Return the log-likelihoods of n rows, dense or sparse, of shape (n, n_classes)."""
        codes = to_categories(X if isinstance(X, np.ndarray) else X.toarray())
        if len(codes):
            self._check_largest(codes.max(axis=0))
        log_likelihoods = np.tile(self.log_prior, (len(codes), 1))
        for j, table in enumerate(self.feature_log_prob):
            # The classes' probabilities of each row's category, looked up feature by feature.
            log_likelihoods += table.T[codes[:, j]]
        return log_likelihoods

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Array]:
        """Return the function of rows on a device; only the log-likelihoods leave it."""
        tables = [backend.to_device(np.ascontiguousarray(t.T)) for t in self.feature_log_prob]
        prior = backend.to_device(self.log_prior[None])

        def apply(X: Any) -> Array:
            xp = namespace(prior)
            rows = X.toarray() if hasattr(X, "toarray") else X
            to_categories(backend.to_numpy(xp.min(rows, axis=0)))
            self._check_largest(backend.to_numpy(xp.max(rows, axis=0)).astype(np.int64))
            codes, log_likelihoods = cast(rows, xp.int64), prior
            for j, table in enumerate(tables):
                log_likelihoods = log_likelihoods + xp.take(table, codes[:, j], axis=0)
            return backend.to_numpy(log_likelihoods)

        return apply

    def _check_largest(self, largest: NDArray[np.int64]) -> None:
        """Raise for a category that the fit did not see, given the largest of each feature."""
        for j, table in enumerate(self.feature_log_prob):
            if largest[j] >= table.shape[1]:
                raise InvalidDataError(
                    f"Column {j} holds category {largest[j]}, but the fit only knows categories "
                    f"0 to {table.shape[1] - 1}. Set min_categories to the number of all "
                    "possible categories."
                )
