"""Non-negative factorisation by multiplicative updates: weights of rows, given the components.

References
----------
C. Fevotte and J. Idier, "Algorithms for nonnegative matrix factorization with the beta-divergence",
Neural Computation 23(9), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.backends.namespace import cast, namespace, ones, total, zeros
from daskml_dist.backends.nonnegative import left_squares, shares

__all__ = ["Updates", "multiplied"]

#: What takes the place of zeros that are divided by.
_LEAST = float(np.finfo(np.float32).eps)
#: Weights that count as 0 where beta < 1.
_TINY = float(np.finfo(np.float64).eps)


def multiplied(values: Any, above: Any, below: Any, beta: float, l1: float, l2: float) -> Any:
    """Weights, or components, after an update by its numerator and denominator."""
    xp = namespace(values)
    below = below + l1 + l2 * values
    ratio = above / xp.where(below == 0, _LEAST + 0 * below, below)
    if beta < 1:
        ratio = ratio ** (1 / (2 - beta))
    elif beta > 2:
        ratio = ratio ** (1 / (beta - 1))
    return values * ratio


@dataclass(frozen=True, eq=False)
class Updates:
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
        """Rows as the other methods take them: dense, but where few entries are enough."""
        entries = self.beta == 2 or (self.beta == 1 and isinstance(X, CSRRows))
        return X.toarray() if hasattr(X, "toarray") and not entries else X

    def step(self, X: Any, W: Any) -> Any:
        """Weights of some rows after one update."""
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._compiled(X, W, 1, 0.0)
        if self.beta == 2:
            above, below = self.products(X), W @ self.gram
        else:
            found = self._found(W)
            below = self.below(found, self.across, self.sizes[None, :])
            above = self._shares(X, found) @ self.across
        new = multiplied(W, above, below, self.beta, self.l1, self.l2)
        return new if self.beta >= 1 else namespace(W).where(new < _TINY, 0 * new, new)

    def settled(self, X: Any, most: int, tol: float) -> Any:
        """The weights of some rows after updates from a start of the row's own.

        A row ends after `most` of them, or one that changes no weight by more than `tol` of the
        largest.
        """
        W = self._start(X)
        if isinstance(X, CSRRows) and self.beta == 1:
            return self._compiled(X, W, most, tol)
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

    def _start(self, X: Any) -> Any:
        """Equal weights, by which the row's sum is that of its entries."""
        scale = self._sums(X)[:, None] / (total(self.sizes) + _LEAST)
        return scale * ones((1, self.across.shape[1]), scale.dtype, like=scale)

    def _sums(self, X: Any) -> Any:
        """Sum of each row's entries."""
        each = ones((X.shape[1], 1), self.across.dtype, like=self.across)
        return namespace(each).reshape(self.backend.dot(X, each), (-1,))

    def _compiled(self, X: CSRRows, W: Any, most: int, tol: float) -> Any:
        from daskml_dist.backends import nonnegative_kernels

        W, of = W.copy(), W.dtype.type
        nonnegative_kernels.multiply(
            X.X.indptr, X.X.indices, X.X.data, X.rows, self.across, self.sizes, of(self.l1),
            of(self.l2), of(_LEAST), W, most, tol,
        )  # fmt: skip
        return W

    def products(self, X: Any) -> Any:
        """Products of rows with the components."""
        found = self.backend.dot(X, self.across)
        return namespace(self.across).reshape(found, (X.shape[0], self.across.shape[1]))

    def _found(self, W: Any) -> Any:
        """Products of weights and components; good until the next."""
        return self.backend.matmul(W, self.across.T, "found")

    def _shares(self, X: Any, found: Any) -> Any:
        """``X * found ** (beta - 2)`` of dense rows and what is found for them."""
        if self.beta == 1:
            return shares(X, found, _LEAST)
        found = _at_least(found, _LEAST) if self.beta < 2 else found
        return X * found ** (self.beta - 2)

    def below(self, found: Any, others: Any, sizes: Any) -> Any:
        """Denominator of an update: ``found ** (beta - 1) @ others``."""
        if self.beta == 1:
            return sizes
        found = _at_least(found, _LEAST) if self.beta < 1 else found
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
            least = W.dtype.type(_LEAST)
            nonnegative_kernels.add_shares(*csr, self.across, W, own, least, out)
            return
        if self.beta == 2:
            below += cast(own.T @ W, below.dtype)
            self.backend.add_tdot(X, own, out)
            return
        found = self._found(W)
        if self.beta != 1:
            below += cast(self.below(found.T, own, None), below.dtype)
        self.backend.add_tdot(self._shares(X, found), own, out)

    def errors(self, X: Any, W: Any) -> Any:
        """Divergence of each row, of shape (n,), float64."""
        xp = namespace(W)
        double = xp.float64
        if isinstance(X, CSRRows) and self.beta == 1:
            from daskml_dist.backends import nonnegative_kernels

            out = np.empty(len(X.rows))
            csr = X.X.indptr, X.X.indices, X.X.data, X.rows
            least = W.dtype.type(_LEAST)
            nonnegative_kernels.divergence(*csr, self.across, W, least, out)
            return out + cast(W, double) @ cast(self.sizes, double)
        if self.beta == 2 and hasattr(X, "toarray"):
            of_rows = cast(self.products(X), double) * cast(W, double)
            squares = cast(W, double) @ cast(self.gram, double) * cast(W, double)
            own = self._sums(X.with_values(X.values * X.values))
            return cast(own, double) / 2 + total(squares / 2 - of_rows, axis=1)
        if self.beta == 2:
            return left_squares(X, W, self.across, self.backend) / 2
        return total(_divergence(X, self._found(W), self.beta), axis=1, dtype=double)


def _at_least(values: Any, least: float) -> Any:
    return namespace(values).where(values < least, least + 0 * values, values)


def _divergence(X: Any, found: Any, beta: float) -> Any:
    """Divergence of each entry; those that are 0 have what is left of it."""
    xp = namespace(X)
    there, near = X > _LEAST, _at_least(found, _LEAST)
    some = xp.where(there, X, near)  # any number, where there is none
    if beta == 1:
        return xp.where(there, some * xp.log(some / near), 0 * X) - X + found
    if beta == 0:
        ratio = some / near
        return xp.where(there, ratio - xp.log(ratio), 0 * X) - 1
    own = xp.where(there, some**beta - beta * some * near ** (beta - 1), 0 * X)
    whole = found if beta > 0 else near
    return (own + (beta - 1) * whole**beta) / (beta * (beta - 1))
