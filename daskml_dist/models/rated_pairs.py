"""Factors of users and items: a rating is the product of two short vectors, and biases.

:class:`FactorModel` is for alternating least squares. :class:`RatedPairs` is fitted by gradient
steps, of which each rating touches two rows of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import Backend
from daskml_dist.backends.als import Regressors
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, scalar, total
from daskml_dist.losses import Loss
from daskml_dist.models.base import BatchRows, Model, Parameters, Part, StepModel, distinct
from daskml_dist.models.bins import hash_numbers  #


@dataclass(frozen=True)
class FactorModel(Model):
    """A vector for each user and each item, whose product is a rating or a preference.

    With biases the last entry of a vector is what its user or item adds to every rating, beside
    the mean of all.

    Parameters
    ----------
    rank : int
        Length of the vectors, biases apart.
    implicit : bool, default=False
        Whether ratings are counts of what was seen, and a pair without one is a weak "no".
    biased : bool, default=False
    dtype : {"float32", "float64"}, default="float32"
        Of the factors.
    """

    rank: int
    implicit: bool = False
    biased: bool = False
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """Numbers of a user or an item."""
        return self.rank + int(self.biased)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the ratings unchanged."""
        return y

    def start(self, at: slice, seed: int) -> NDArray[Any]:
        """Return initial factors of expected length 1, hashed from the numbers of the ids."""
        column = np.arange(self.rank, dtype=np.uint64)
        factors = np.zeros((at.stop - at.start, self.width), self.dtype)
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            own = factors[start : start + _FACTOR_ROWS_AT_ONCE, : self.rank]
            first = at.start + start + 1
            number = np.arange(first, first + len(own), dtype=np.uint64)[:, np.newaxis]
            draw = hash_numbers(
                hash_numbers(number) + column + hash_numbers(np.array([seed], np.uint64))
            )
            uniform = (draw >> np.uint64(11)) * 2.0**-53
            own[:] = (uniform - 0.5) * np.sqrt(12 / self.rank)
        return factors

    def gram(self, factors: NDArray[Any]) -> NDArray[np.float64]:
        """Return the Gram matrix of some factors.

        Those of all parts add up to that of all factors.
        """
        total = np.zeros((self.width, self.width))
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            part = factors[start : start + _FACTOR_ROWS_AT_ONCE].astype(np.float64)
            total += part.T @ part
        return total

    def regressors(
        self, factors: NDArray[Any], gram: NDArray[np.float64], mean: float
    ) -> Regressors:
        """Return the factors as regressors of the other side's ratings."""
        if not self.biased:
            return Regressors(factors, np.empty(0, factors.dtype), gram).padded(factors.dtype)
        ones = factors.copy()
        ones[:, -1] = 1
        offsets = factors[:, -1] + factors.dtype.type(mean)
        return Regressors(ones, offsets, gram).padded(factors.dtype)


#: Users or items whose factors are drawn, or squared in float64, at once.
_FACTOR_ROWS_AT_ONCE = 1 << 14


#: Standard deviation of the first factors, times the root of the rank.
_START = 0.1


@dataclass(frozen=True)
class RatedPairs(StepModel):
    """A loss of ``offset + p_u @ q_i``, with biases ``+ b_u + c_i``, of a user and an item.

    The parameters are a row for each user and, after these, for each item: factors and, with
    biases, what the user or item adds to every rating. Rows of data are the numbers of two rows of
    the parameters.

    Parameters
    ----------
    n_users, n_items : int
    rank : int
        Length of the factors.
    loss : Loss
    reg : float
        Half the penalty, in each rating, of the squares of the two rows that it touches: over all
        ratings each user and item is penalised times the number of its own (ALS-WR).
    biased : bool, default=True
    offset : float, default=0.0
        Prediction of a pair of which nothing is known.
    negatives : int, default=0
        Items drawn at random beside each pair, which are not what its user chose.
    pairwise : bool, default=False
        Whether the loss is of the order of a pair and each of these: of the difference of their
        predictions, which is to be positive.
    n_drawn : int or None
        Items that others are drawn from, the first ones; None: all.
    """

    n_users: int
    n_items: int
    rank: int
    loss: Loss
    reg: float
    biased: bool = True
    offset: float = 0.0
    negatives: int = 0
    pairwise: bool = False
    n_drawn: int | None = None

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)
    touches: float | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        width = self.rank + int(self.biased)
        parts = Part("user", (self.n_users, width)), Part("item", (self.n_items, width))
        object.__setattr__(self, "parameters", Parameters(parts, width))
        object.__setattr__(self, "touches", 2.0 + self.negatives)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return ratings; for losses of classification +1 for ratings above 0 and else -1."""
        if self.loss.kind == "classification":
            return np.where(y > 0, 1, -1).astype(dtype)
        return y.astype(dtype, copy=False)

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return the numbers of users and items unchanged."""
        return X

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters of all users and items."""
        return self.init_rows(slice(None), seed, dtype)

    def init_rows(self, at: slice, seed: int, dtype: Any) -> NDArray[Any]:
        """Return normal factors, hashed from the numbers of users and items, and biases of 0."""
        number = np.arange(*at.indices(self.parameters.shape[0]))
        is_item = (number >= self.n_users).astype(np.int64)
        keys = hash_numbers(np.array([2 * seed, 2 * seed + 1], np.uint64))
        own = (number - is_item * self.n_users).astype(np.uint64)
        column = np.arange(self.rank, dtype=np.uint64)
        draw = hash_numbers(hash_numbers(own + keys[is_item])[:, np.newaxis] + column)
        # Box and Muller 1958.
        radius, angle = _uniform(draw), _uniform(hash_numbers(draw))
        w = np.zeros((len(number), self.parameters.shape[1]), dtype)
        normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        w[:, : self.rank] = normal * (_START / np.sqrt(self.rank))
        return w

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the rows of the batch's users and items, drawn ones too; renumber the pieces."""
        index, places = distinct([backend.to_numpy(self.drawn(p, backend)) for p in pieces])
        for piece, at in zip(pieces, places, strict=True):
            piece.X = backend.to_device(at)
        return index

    def drawn(self, rows: BatchRows, backend: Backend) -> Any:
        """Return the numbers of users, of items, and of the negative items that are drawn."""
        X = rows.X
        if not self.negatives or X.shape[1] > 2:
            return X
        n_drawn = self.n_items if self.n_drawn is None else self.n_drawn
        others = rows.draw().integers(n_drawn, size=(X.shape[0], self.negatives))
        others += self.n_users
        xp = namespace(X)
        return xp.concat([X, cast(backend.to_device(others), X.dtype)], axis=1)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of some pairs to `out`; return the summed loss without the penalty."""
        at, given = self.drawn(rows, backend), (rows.weight, out, backend)
        loss: Any = 0.0 if self.pairwise else self._add_pointwise(w, at[:, :2], rows.y, *given)
        others = None if at.shape[1] == 2 else self._negative_targets(rows.y)
        for c in range(2, at.shape[1]):
            if self.pairwise:
                loss = loss + self._add_pairwise(w, at[:, :2], at[:, c], *given)
            else:
                xp = namespace(at)
                pairs = xp.stack([at[:, 0], at[:, c]], axis=1)
                loss = loss + self._add_pointwise(w, pairs, others, *given)
        return loss

    def _negative_targets(self, y: Any) -> Any:
        """Return the targets of drawn items, all negative."""
        return namespace(y).full_like(y, -1.0 if self.loss.kind == "classification" else 0.0)

    def _add_pointwise(
        self, w: Any, at: Any, y: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        """Add the gradient of pairs and their targets; return the sum of their losses."""
        if is_host(w) and (found := self._add_compiled(w, at, y, weight, out)) is not None:
            return found
        users, items = at[:, 0], at[:, 1]
        of_user, of_item = self._take_rows(w, users), self._take_rows(w, items)
        losses, slope, reg = self._compute_slopes(y, self._predict_raw(of_user, of_item), weight)
        backend.add_rows(
            slope * self._partner_derivative(of_item) + reg * of_user, users, None, out
        )
        backend.add_rows(
            slope * self._partner_derivative(of_user) + reg * of_item, items, None, out
        )
        return losses

    def _add_pairwise(
        self, w: Any, at: Any, others: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        """Add the gradient of the order of items and drawn items (BPR, Rendle et al. 2009)."""
        of_user, of_item = self._take_rows(w, at[:, 0]), self._take_rows(w, at[:, 1])
        of_other = self._take_rows(w, others)
        apart = self._predict_raw(of_user, of_item) - self._predict_raw(of_user, of_other)
        losses, slope, reg = self._compute_slopes(namespace(apart).ones_like(apart), apart, weight)
        by_user, by_item = slope * (of_item - of_other), slope * self._partner_derivative(of_user)
        if self.biased:
            by_user[:, self.rank] = 0  # the user's bias cancels in the difference
        backend.add_rows(by_user + reg * of_user, at[:, 0], None, out)
        backend.add_rows(by_item + reg * of_item, at[:, 1], None, out)
        backend.add_rows(reg * of_other - by_item, others, None, out)
        return losses

    def _compute_slopes(self, y: Any, raw: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Return the sum of the losses, slopes as a column, and penalties."""
        losses, slope = self.loss.value_and_gradient(y, raw)
        reg: Any = self.reg
        if weight is not None:
            losses, slope, reg = losses * weight, slope * weight, reg * weight[:, None]
        return scalar(total(losses, dtype=namespace(losses).float64)), slope[:, None], reg

    def _add_compiled(self, w: Any, at: Any, y: Any, weight: Any, out: Any) -> float | None:
        """Add the gradient of pairs in one compiled loop; return None where there is none."""
        from daskml_dist.backends.pair_kernels import add_pair_gradients

        return add_pair_gradients(
            self.loss, w, at, y, weight, self.rank, self.reg, self.offset, out
        )

    def _take_rows(self, w: Any, at: Any) -> Any:
        """Return some rows of the parameters."""
        return namespace(w).take(w, at, axis=0)

    def _predict_raw(self, of_user: Any, of_item: Any) -> Any:
        """Return the raw prediction of each pair."""
        k = self.rank
        raw = total(of_user[:, :k] * of_item[:, :k], axis=1)
        raw += self.offset
        if self.biased:
            raw += of_user[:, k]
            raw += of_item[:, k]
        return raw

    def _partner_derivative(self, row: Any) -> Any:
        """Return the derivative of the raw prediction by the other row of the pair."""
        if self.biased:
            row = namespace(row).asarray(row, copy=True)
            row[:, self.rank] = 1
        return row

    def identity(self) -> dict[str, Any]:
        """Return loss, numbers of users and items, rank and penalty."""
        sizes = [self.n_users, self.n_items, self.rank, self.biased]
        drawn = [self.negatives, self.pairwise]
        return {
            "model": "pairs", "loss": repr(self.loss), "sizes": sizes, "reg": self.reg,
            "drawn": drawn,
        }  # fmt: skip

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return the sum of weights, and of squared errors or correct signs times weights; (2,)."""
        at = self.drawn(rows, backend)
        of_user = self._take_rows(w, at[:, 0])
        raws = [
            self._predict_raw(of_user, self._take_rows(w, at[:, c])) for c in range(1, at.shape[1])
        ]
        ys = [rows.y, *(self._negative_targets(rows.y) for _ in raws[1:])]
        if self.pairwise:
            raws, ys = [raws[0] - raw for raw in raws[1:]], [-y for y in ys[1:]]
        sums = [self._sum_scores(y, raw, rows.weight) for y, raw in zip(ys, raws, strict=True)]
        return np.array(np.sum(sums, axis=0), np.float64)

    def _sum_scores(self, y: Any, raw: Any, weight: Any) -> list[float]:
        """Return the sum of weights, and of squared errors or correct signs."""
        xp = namespace(raw)
        weight = ones(y.shape, np.float64, y) if weight is None else cast(weight, xp.float64)
        if self.loss.kind == "classification":
            found = cast((raw > 0) == (y > 0), xp.float64)
        else:
            found = (cast(y, xp.float64) - self.loss.inverse_link(raw)) ** 2
        return [float(total(weight)), float(weight @ found)]

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return minus the root mean squared error, or the share of correct signs."""
        if sums[0] == 0:
            return float("nan")
        mean = float(sums[1] / sums[0])
        return mean if self.loss.kind == "classification" else -(mean**0.5)


def _uniform(draw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers strictly between 0 and 1, made of 64 random bits each."""
    found: NDArray[np.float64] = ((draw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return found
