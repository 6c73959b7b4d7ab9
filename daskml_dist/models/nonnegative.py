"""Non-negative factorisation by multiplicative updates: weights of rows, given the components.

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

from daskml_dist.backends import Backend
from daskml_dist.backends.base import SparseRows
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.namespace import cast, namespace, ones, total, zeros
from daskml_dist.backends.nonnegative import divide_by_product, residual_squares
from daskml_dist.errors import InvalidDataError

#: What takes the place of zeros that are divided by.
_SMALLEST_DIVISOR = float(np.finfo(np.float32).eps)
#: Weights that count as 0 where beta < 1.
_ZERO_WEIGHT = float(np.finfo(np.float64).eps)


def check_signs(X: Any) -> None:
    """Check that rows hold no number below 0."""
    stored = X.values if isinstance(X, SparseRows) else X
    if prod(stored.shape) and bool(namespace(stored).min(stored) < 0):
        raise InvalidDataError(
            "Negative values in data passed to NMF: X must not hold any. Scale the features to "
            "[0, 1] (MinMaxScaler), or use PCA or TruncatedSVD."
        )


def multiply_by_ratio(
    values: Any, above: Any, below: Any, beta: float, l1: float, l2: float
) -> Any:
    """Return weights or components after a multiplicative update."""
    xp = namespace(values)
    # The exponent makes the updates monotone for every beta (Fevotte and Idier 2011).
    below = below + l1 + l2 * values
    ratio = above / xp.where(below == 0, _SMALLEST_DIVISOR + 0 * below, below)
    if beta < 1:
        ratio = ratio ** (1 / (2 - beta))
    elif beta > 2:
        ratio = ratio ** (1 / (beta - 1))
    return values * ratio


@dataclass(frozen=True, eq=False)
class MultiplicativeUpdates:
    """Updates of the weights of rows for one set of components.

    Parameters
    ----------
    across : array of shape (n_features, k)
        The components, where the rows lie and in the dtype of their arithmetic.
    beta : float
        Of the divergence.
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
        """Products of the components."""
        return self.across.T @ self.across

    @cached_property
    def sizes(self) -> Any:
        """Sum of each component."""
        return total(self.across, axis=0)

    def rows(self, X: Any) -> Any:
        """Return rows in the form that the other methods take.

        Dense unless few entries are enough.
        """
        entries = self.beta == 2 or (self.beta == 1 and isinstance(X, CSRRows))
        return X.toarray() if hasattr(X, "toarray") and not entries else X

    def step(self, X: Any, W: Any) -> Any:
        """Return the weights of some rows after one update."""
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._update_compiled(X, W, 1, 0.0)
        if self.beta == 2:
            above, below = self.products(X), W @ self.gram
        else:
            found = self._multiply_out(W)
            below = self.below(found, self.across, self.sizes[None, :])
            above = self._weight_entries(X, found) @ self.across
        new = multiply_by_ratio(W, above, below, self.beta, self.l1, self.l2)
        return new if self.beta >= 1 else namespace(W).where(new < _ZERO_WEIGHT, 0 * new, new)

    def settled(self, X: Any, most: int, tol: float) -> Any:
        """Return the weights of some rows after updates to convergence from equal weights.

        A row ends after `most` of them, or one that changes no weight by more than `tol` of the
        largest.
        """
        W = self._make_equal_weights(X)
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._update_compiled(X, W, most, tol)
        xp = namespace(W)
        going = zeros((W.shape[0], 1), W.dtype, like=W) + 1
        for _ in range(most):
            new = self.step(X, W)
            apart = xp.max(xp.abs(new - W), axis=1) - tol * xp.max(new, axis=1)
            W = W + going * (new - W)
            going *= cast(apart > 0, going.dtype)[:, None]
            if not float(xp.max(going)):
                break
        return W

    def _make_equal_weights(self, X: Any) -> Any:
        """Return equal weights, whose products have the sum of the row's entries."""
        scale = self._sum_entries(X)[:, None] / (total(self.sizes) + _SMALLEST_DIVISOR)
        return scale * ones((1, self.across.shape[1]), scale.dtype, like=scale)

    def _sum_entries(self, X: Any) -> Any:
        """Return the sum of each row's entries."""
        each = ones((X.shape[1], 1), self.across.dtype, like=self.across)
        return namespace(each).reshape(self.backend.dot(X, each), (-1,))

    def _update_compiled(self, X: CSRRows, W: Any, most: int, tol: float) -> Any:
        """Return the weights after up to `most` updates, by a loop over sparse entries."""
        from daskml_dist.backends import nonnegative_kernels

        W, of = W.copy(), W.dtype.type
        nonnegative_kernels.multiply_weights(
            X.X.indptr, X.X.indices, X.X.data, X.rows, self.across, self.sizes, of(self.l1),
            of(self.l2), of(_SMALLEST_DIVISOR), W, most, tol,
        )  # fmt: skip
        return W

    def products(self, X: Any) -> Any:
        """Return the products of rows with the components."""
        found = self.backend.dot(X, self.across)
        return namespace(self.across).reshape(found, (X.shape[0], self.across.shape[1]))

    def _multiply_out(self, W: Any) -> Any:
        """Return the products of weights and components, valid until the next call."""
        return self.backend.matmul(W, self.across.T, "found")

    def _weight_entries(self, X: Any, found: Any) -> Any:
        """Return ``X * found ** (beta - 2)`` of dense rows and their approximation."""
        if self.beta == 1:
            return divide_by_product(X, found, _SMALLEST_DIVISOR)
        found = _raise_to_least(found, _SMALLEST_DIVISOR) if self.beta < 2 else found
        return X * found ** (self.beta - 2)

    def below(self, found: Any, others: Any, sizes: Any) -> Any:
        """Return the denominator of an update: ``found ** (beta - 1) @ others``."""
        if self.beta == 1:
            return sizes
        found = _raise_to_least(found, _SMALLEST_DIVISOR) if self.beta < 1 else found
        return found ** (self.beta - 1) @ others

    def add_shares(self, X: Any, W: Any, own: Any, out: Any, below: Any) -> None:
        """Add what the components' update is made of.

        Parameters
        ----------
        X : rows of shape (n, n_features)
        W, own : arrays of shape (n, k)
            Weights, and the same times the weights of the rows.
        out, below : arrays of float64 of shape (n_features, k)
            Numerators; and denominators, or what they are made of: of shape (k, k) for beta=2, and
            (1, k) for beta=1.
        """
        if self.beta == 1:
            below += total(cast(own, below.dtype), axis=0)[None, :]
        if isinstance(X, CSRRows) and self.beta == 1:
            from daskml_dist.backends import nonnegative_kernels

            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            least = W.dtype.type(_SMALLEST_DIVISOR)
            nonnegative_kernels.add_component_shares(*csr, self.across, W, own, least, out)
            return
        if self.beta == 2:
            below += cast(own.T @ W, below.dtype)
            self.backend.add_tdot(X, own, out)
            return
        found = self._multiply_out(W)
        if self.beta != 1:
            below += cast(self.below(found.T, own, None), below.dtype)
        self.backend.add_tdot(self._weight_entries(X, found), own, out)

    def errors(self, X: Any, W: Any) -> Any:
        """Return the divergence of each row, of shape (n,), float64."""
        xp = namespace(W)
        double = xp.float64
        if isinstance(X, CSRRows) and self.beta == 1:
            from daskml_dist.backends import nonnegative_kernels

            out = np.empty(len(X.rows))
            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            least = W.dtype.type(_SMALLEST_DIVISOR)
            nonnegative_kernels.write_divergences(*csr, self.across, W, least, out)
            return out + cast(W, double) @ cast(self.sizes, double)
        if self.beta == 2 and hasattr(X, "toarray"):
            of_rows = cast(self.products(X), double) * cast(W, double)
            squares = cast(W, double) @ cast(self.gram, double) * cast(W, double)
            own = self._sum_entries(X.with_values(X.values * X.values))
            return cast(own, double) / 2 + total(squares / 2 - of_rows, axis=1)
        if self.beta == 2:
            return residual_squares(X, W, self.across, self.backend) / 2
        return total(_divergence(X, self._multiply_out(W), self.beta), axis=1, dtype=double)


def _raise_to_least(values: Any, least: float) -> Any:
    """Return the values, with those below `least` replaced by it."""
    return namespace(values).where(values < least, least + 0 * values, values)


def _divergence(X: Any, found: Any, beta: float) -> Any:
    """Return the divergence of each entry; zero entries contribute the remaining terms."""
    xp = namespace(X)
    there, near = X > _SMALLEST_DIVISOR, _raise_to_least(found, _SMALLEST_DIVISOR)
    some = xp.where(there, X, near)  # any number, where there is none
    if beta == 1:
        return xp.where(there, some * xp.log(some / near), 0 * X) - X + found
    if beta == 0:
        ratio = some / near
        return xp.where(there, ratio - xp.log(ratio), 0 * X) - 1
    own = xp.where(there, some**beta - beta * some * near ** (beta - 1), 0 * X)
    whole = found if beta > 0 else near
    return (own + (beta - 1) * whole**beta) / (beta * (beta - 1))
