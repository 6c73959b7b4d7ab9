"""Non-negative matrix factorisation by multiplicative updates, for any beta-divergence.

X is about ``W @ H``. Here H is stored by features, ``across = H.T``, since it lies across all rows:
a lane needs all of it, and of W only its own rows. The update of W (the MM algorithm of the paper),

    W *= ((X * (W @ H) ** (beta - 2)) @ H.T / ((W @ H) ** (beta - 1) @ H.T)) ** gamma(beta),

is made for each row alone; that of H needs numerator and denominator summed over all rows
(:meth:`MultiplicativeUpdates.add_shares`). For beta = 2 and 1 both simplify, so that ``W @ H`` need
not be computed at all, or only at the stored entries of sparse rows.

References
----------
C. Fevotte and J. Idier, "Algorithms for nonnegative matrix factorization with the beta-divergence",
Neural Computation 23(9), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from daskml_dist.backends.base import Backend, SparseRows
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.namespace import cast, namespace, ones, total, zeros
from daskml_dist.backends.nonnegative import divide_by_product, residual_squares
from daskml_dist.errors import InvalidDataError

#: Replaces divisors of 0 (and smaller ones, if beta < 2); scikit-learn's.
_SMALLEST_DIVISOR = float(np.finfo(np.float32).eps)
#: Weights below this are set to 0 if beta < 1; scikit-learn's.
_ZERO_WEIGHT = float(np.finfo(np.float64).eps)


def check_signs(X: Any) -> None:
    """Raise `InvalidDataError` for rows with a negative number."""
    stored = X.values if isinstance(X, SparseRows) else X
    if prod(stored.shape) and bool(namespace(stored).min(stored) < 0):
        raise InvalidDataError(
            "Negative values in data passed to NMF: X must not hold any. Scale the features to "
            "[0, 1] (MinMaxScaler), or use PCA or TruncatedSVD."
        )


def multiply_by_ratio(
    values: Any, above: Any, below: Any, beta: float, l1: float, l2: float
) -> Any:
    """Return weights or components after a multiplicative update by ``above / below``."""
    xp = namespace(values)
    # The gradient is `below` minus `above`; the penalties' gradients, which are positive, belong to
    # its positive part.
    below = below + l1 + l2 * values
    ratio = above / xp.where(below == 0, _SMALLEST_DIVISOR + 0 * below, below)
    # gamma(beta), an exponent with which the error never rises (Fevotte and Idier 2011).
    if beta < 1:
        ratio = ratio ** (1 / (2 - beta))
    elif beta > 2:
        ratio = ratio ** (1 / (beta - 1))
    return values * ratio


@dataclass(frozen=True, eq=False)
class MultiplicativeUpdates:
    """Updates of the weights of rows, given the components, and sums for updates of the latter.

    Parameters
    ----------
    across : array of shape (n_features, k)
        Transposed components, on the device and in the dtype of the rows.
    beta : float
        Parameter of the divergence: 2 Frobenius, 1 Kullback-Leibler, 0 Itakura-Saito.
    l1, l2 : float
        Penalties on a row's weights, and on half their squares.
    backend : Backend
    """

    across: Any
    beta: float
    l1: float
    l2: float
    backend: Backend

    @cached_property
    def gram(self) -> Any:
        """Gram matrix of the components."""
        return self.across.T @ self.across

    @cached_property
    def component_sums(self) -> Any:
        """Sum of each component."""
        return total(self.across, axis=0)

    def rows(self, X: Any) -> Any:
        """Return rows in the form that the other methods take: dense, unless their entries suffice.

        They do for beta = 2, and for compiled loops with beta = 1.
        """
        entries = self.beta == 2 or (self.beta == 1 and isinstance(X, CSRRows))
        return X.toarray() if hasattr(X, "toarray") and not entries else X

    def step(self, X: Any, W: Any) -> Any:
        """Return the weights of some rows after one update."""
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._update_compiled(X, W, 1, 0.0)
        if self.beta == 2:
            # (W @ H) @ H.T = W @ (H @ H.T), with a small matrix in parentheses.
            above, below = self.products(X), W @ self.gram
        else:
            product = self._multiply_out(W)
            below = self.denominator(product, self.across, self.component_sums[None, :])
            above = self._weight_entries(X, product) @ self.across
        updated = multiply_by_ratio(W, above, below, self.beta, self.l1, self.l2)
        return (
            updated
            if self.beta >= 1
            else namespace(W).where(updated < _ZERO_WEIGHT, 0 * updated, updated)
        )

    def settled(self, X: Any, max_updates: int, tol: float) -> Any:
        """Return the weights of some rows after updates to convergence, from equal weights.

        A row ends after `max_updates` updates, or after one that changes no weight by more than
        `tol` times its largest weight. So its weights do not depend on the rows beside it.
        """
        # Equal weights, such that W @ H has each row's sum of entries.
        entries = self._sum_entries(X)[:, None] / (total(self.component_sums) + _SMALLEST_DIVISOR)
        W = entries * ones((1, self.across.shape[1]), entries.dtype, like=entries)
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._update_compiled(X, W, max_updates, tol)
        xp = namespace(W)
        # 1 for rows that continue, 0 for those that have ended, whose weights stay.
        active = zeros((W.shape[0], 1), W.dtype, like=W) + 1
        for _ in range(max_updates):
            updated = self.step(X, W)
            excess = xp.max(xp.abs(updated - W), axis=1) - tol * xp.max(updated, axis=1)
            W = W + active * (updated - W)
            active *= cast(excess > 0, active.dtype)[:, None]
            if not float(xp.max(active)):
                break
        return W

    def _sum_entries(self, X: Any) -> Any:
        """Return the sum of each row's entries."""
        ones_column = ones((X.shape[1], 1), self.across.dtype, like=self.across)
        return namespace(ones_column).reshape(self.backend.dot(X, ones_column), (-1,))

    def _update_compiled(self, X: CSRRows, W: Any, max_updates: int, tol: float) -> Any:
        """Return the weights after up to `max_updates` updates, by a loop over sparse entries."""
        from daskml_dist.backends import nonnegative_kernels

        W, dtype = W.copy(), W.dtype.type
        nonnegative_kernels.multiply_weights(
            X.X.indptr, X.X.indices, X.X.data, X.rows, self.across, self.component_sums,
            dtype(self.l1), dtype(self.l2), dtype(_SMALLEST_DIVISOR), W, max_updates, tol,
        )  # fmt: skip
        return W

    def products(self, X: Any) -> Any:
        """Return the products of rows with the components, ``X @ H.T`` of shape (n, k)."""
        product = self.backend.dot(X, self.across)
        return namespace(self.across).reshape(product, (X.shape[0], self.across.shape[1]))

    def _multiply_out(self, W: Any) -> Any:
        """Return ``W @ H``, in a buffer that the next call overwrites."""
        return self.backend.matmul(W, self.across.T, "found")

    def _weight_entries(self, X: Any, product: Any) -> Any:
        """Return ``X * product ** (beta - 2)``, given dense rows and ``product = W @ H``."""
        if self.beta == 1:
            return divide_by_product(X, product, _SMALLEST_DIVISOR)
        product = _raise_to_least(product, _SMALLEST_DIVISOR) if self.beta < 2 else product
        return X * product ** (self.beta - 2)

    def denominator(self, product: Any, factors: Any, sizes: Any) -> Any:
        """Return the denominator of an update: ``product ** (beta - 1) @ factors``.

        For beta = 1 it is `sizes`, the sums of the columns of `factors`.
        """
        if self.beta == 1:
            return sizes
        product = _raise_to_least(product, _SMALLEST_DIVISOR) if self.beta < 1 else product
        return product ** (self.beta - 1) @ factors

    def add_shares(self, X: Any, W: Any, weighted: Any, out: Any, denominators: Any) -> None:
        """Add the rows' terms of numerator and denominator of the components' update, in place.

        Parameters
        ----------
        X : rows of shape (n, n_features)
        W, weighted : arrays of shape (n, k)
            W, and W with each row multiplied by its sample weight.
        out, denominators : arrays of float64 of shape (n_features, k)
            Numerators and denominators. For beta = 2 `denominators` is the Gram matrix of W, of
            shape (k, k), for beta = 1 the sums of its columns, of shape (1, k).
        """
        if self.beta == 1:
            denominators += total(cast(weighted, denominators.dtype), axis=0)[None, :]
        if isinstance(X, CSRRows) and self.beta == 1:
            from daskml_dist.backends import nonnegative_kernels

            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            least = W.dtype.type(_SMALLEST_DIVISOR)
            nonnegative_kernels.add_component_shares(*csr, self.across, W, weighted, least, out)
            return
        if self.beta == 2:
            denominators += cast(weighted.T @ W, denominators.dtype)
            self.backend.add_tdot(X, weighted, out)
            return
        product = self._multiply_out(W)
        if self.beta != 1:
            denominators += cast(self.denominator(product.T, weighted, None), denominators.dtype)
        self.backend.add_tdot(self._weight_entries(X, product), weighted, out)

    def errors(self, X: Any, W: Any) -> Any:
        """Return the divergence of each row, of shape (n,), float64."""
        xp = namespace(W)
        double = xp.float64
        if isinstance(X, CSRRows) and self.beta == 1:
            from daskml_dist.backends import nonnegative_kernels

            divergences = np.empty(len(X.rows))
            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            least = W.dtype.type(_SMALLEST_DIVISOR)
            nonnegative_kernels.write_divergences(*csr, self.across, W, least, divergences)
            # sum(x log(x / y) - x) over stored entries, plus sum(y) over all features: y = W @ H.
            return divergences + cast(W, double) @ cast(self.component_sums, double)
        if self.beta == 2 and hasattr(X, "toarray"):
            # |x - w H|^2 = |x|^2 - 2 x H.T w + w (H H.T) w, from the stored entries.
            cross_products = cast(self.products(X), double) * cast(W, double)
            squares = cast(W, double) @ cast(self.gram, double) * cast(W, double)
            squared_norms = self._sum_entries(X.with_values(X.values * X.values))
            return cast(squared_norms, double) / 2 + total(squares / 2 - cross_products, axis=1)
        if self.beta == 2:
            return residual_squares(X, W, self.across, self.backend) / 2
        return total(_divergence(X, self._multiply_out(W), self.beta), axis=1, dtype=double)


def _raise_to_least(values: Any, least: float) -> Any:
    """Return the values, with those below `least` replaced by it."""
    return namespace(values).where(values < least, least + 0 * values, values)


def _divergence(X: Any, product: Any, beta: float) -> Any:
    """Return the beta-divergence of each entry of X from W @ H.

    Entries of 0 contribute the terms that are defined for them, as in scikit-learn.
    """
    xp = namespace(X)
    is_nonzero, safe = X > _SMALLEST_DIVISOR, _raise_to_least(product, _SMALLEST_DIVISOR)
    positive = xp.where(is_nonzero, X, safe)  # a number whose logarithm exists, for entries of 0
    if beta == 1:  # Kullback-Leibler
        return xp.where(is_nonzero, positive * xp.log(positive / safe), 0 * X) - X + product
    if beta == 0:  # Itakura-Saito
        ratio = positive / safe
        return xp.where(is_nonzero, ratio - xp.log(ratio), 0 * X) - 1
    own_term = xp.where(is_nonzero, positive**beta - beta * positive * safe ** (beta - 1), 0 * X)
    base = product if beta > 0 else safe
    return (own_term + (beta - 1) * base**beta) / (beta * (beta - 1))
