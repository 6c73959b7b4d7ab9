"""Matrix factorisation: a rating is the product of a user's and an item's factors, plus biases.

:class:`FactorModel` is fitted by alternating least squares. :class:`RatedPairs` is fitted by
gradient steps, in which each rating touches two rows of the parameters.

References
----------
Y. Koren, R. Bell and C. Volinsky, "Matrix factorization techniques for recommender systems", IEEE
Computer 42(8), 2009. Y. Zhou et al., "Large-scale parallel collaborative filtering for the Netflix
prize", AAIM 2008 (ALS-WR). S. Rendle et al., "BPR: Bayesian personalized ranking from implicit
feedback", UAI 2009.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.als import Regressors
from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import cast, is_host, namespace, ones, scalar, total
from daskml_dist.losses.base import Loss
from daskml_dist.models.base import (
    BatchRows,
    Model,
    Parameters,
    Part,
    StepModel,
    distinct,
    encode_signs,
)
from daskml_dist.models.bins import hash_numbers


@dataclass(frozen=True)
class FactorModel(Model):
    """Factors of each user and item, whose product is a rating or a preference.

    If `biased`, the last entry of a user's or item's vector is its bias, which is added to the mean
    of all ratings.

    Parameters
    ----------
    rank : int
        Number of factors, without the bias.
    implicit : bool, default=False
        Whether ratings are counts of interactions, and a pair without one is a weak "no".
    biased : bool, default=False
    dtype : {"float32", "float64"}, default="float32"
        Dtype of the factors.
    """

    rank: int
    implicit: bool = False
    biased: bool = False
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """Length of a user's or an item's vector, with the bias."""
        return self.rank + int(self.biased)

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the ratings unchanged."""
        return y

    def start(self, index_range: slice, seed: int) -> NDArray[Any]:
        """Return initial factors, of expected squared length 1, of a range of users or items.

        They are hashed from the positions, so that they do not depend on the process that holds the
        range.
        """
        column = np.arange(self.rank, dtype=np.uint64)
        factors = np.zeros((index_range.stop - index_range.start, self.width), self.dtype)
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            chunk = factors[start : start + _FACTOR_ROWS_AT_ONCE, : self.rank]
            first = index_range.start + start + 1
            number = np.arange(first, first + len(chunk), dtype=np.uint64)[:, np.newaxis]
            draw = hash_numbers(
                hash_numbers(number) + column + hash_numbers(np.array([seed], np.uint64))
            )
            # The high 53 bits as a number in [0, 1), whose variance is 1 / 12.
            uniform = (draw >> np.uint64(11)) * 2.0**-53
            chunk[:] = (uniform - 0.5) * np.sqrt(12 / self.rank)
        return factors

    def gram(self, factors: NDArray[Any]) -> NDArray[np.float64]:
        """Return the Gram matrix of some factors; those of all parts are added."""
        # In float64, since all users or items are summed.
        total = np.zeros((self.width, self.width))
        for start in range(0, len(factors), _FACTOR_ROWS_AT_ONCE):
            chunk = factors[start : start + _FACTOR_ROWS_AT_ONCE].astype(np.float64)
            total += chunk.T @ chunk
        return total

    def regressors(
        self, factors: NDArray[Any], gram: NDArray[np.float64], mean: float
    ) -> Regressors:
        """Return the factors as regressors of the other side's ratings."""
        if not self.biased:
            return Regressors(factors, np.empty(0, factors.dtype), gram).padded(factors.dtype)
        # A bias of this side is the coefficient of a constant regressor; the other side's bias and
        # the mean are an offset of the ratings.
        ones = factors.copy()
        ones[:, -1] = 1
        offsets = factors[:, -1] + factors.dtype.type(mean)
        return Regressors(ones, offsets, gram).padded(factors.dtype)


#: Users or items whose factors are drawn, or cast to float64, at once: 8 MiB at a rank of 64.
_FACTOR_ROWS_AT_ONCE = 1 << 14


#: Root mean square length of the initial vectors of `RatedPairs`: small beside the ratings, but not
#: 0, a saddle point at which the gradient of all factors vanishes.
_INITIAL_LENGTH = 0.1


@dataclass(frozen=True)
class RatedPairs(StepModel):
    """Model of pairs of a user and an item, predicted by ``offset + p_u @ q_i (+ b_u + c_i)``.

    The parameters have a row for each user, then a row for each item: its factors, divided by the
    root of `unit`, and, with biases, its bias divided by `unit`. So initial values and steps suit
    ratings in any unit. A row of data is a pair of indices of such rows.

    Parameters
    ----------
    n_users, n_items : int
    rank : int
        Number of factors.
    loss : Loss
    reg : float
        Each rating adds ``reg / 2`` times the squares of the two rows that it touches. Over all
        ratings, each user and item is thus penalised in proportion to its number of ratings
        (ALS-WR).
    biased : bool, default=True
    offset : float, default=0.0
        Prediction of a pair whose user and item are unknown.
    negatives : int, default=0
        Number of items drawn at random for each pair, as negative examples.
    pairwise : bool, default=False
        Whether the loss is of the difference between the predictions of a pair and of each of its
        negatives (BPR), rather than of each prediction.
    n_drawn : int or None
        Negatives are drawn from this many first items; None: all.
    target_unit : float or None
        Spread of the first ratings, for automatic learning rates; None: not measured.
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
    target_unit: float | None = field(default=None, compare=False)

    starts_threads: ClassVar[bool] = False
    parameters: Parameters = field(init=False, repr=False, compare=False)
    touches: float | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        width = self.rank + int(self.biased)
        parts = Part("user", (self.n_users, width)), Part("item", (self.n_items, width))
        object.__setattr__(self, "parameters", Parameters(parts, width))
        # Number of parameter rows that a pair uses: its user, its item, and each negative.
        object.__setattr__(self, "touches", 2.0 + self.negatives)

    @property
    def unit(self) -> float:
        """Return the unit of the predictions' differences from the offset."""
        return self.target_unit or 1.0

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return ratings; for classification losses, +1 for ratings above 0 and -1 for others."""
        if self.loss.kind == "classification":
            return encode_signs(y > 0, dtype)
        return y.astype(dtype, copy=False)

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return the numbers of users and items unchanged."""
        return X

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the initial parameters of all users and items."""
        return self.init_rows(slice(None), seed, dtype)

    def init_rows(self, at: slice, seed: int, dtype: Any) -> NDArray[Any]:
        """Return normal factors, hashed from the positions of users and items, and biases of 0."""
        number = np.arange(*at.indices(self.parameters.shape[0]))
        # Users and items have separate streams, so that adding users leaves items unchanged.
        is_item = (number >= self.n_users).astype(np.int64)
        keys = hash_numbers(np.array([2 * seed, 2 * seed + 1], np.uint64))
        own_number = (number - is_item * self.n_users).astype(np.uint64)
        column = np.arange(self.rank, dtype=np.uint64)
        draw = hash_numbers(hash_numbers(own_number + keys[is_item])[:, np.newaxis] + column)
        # Normal numbers from two uniform ones (Box and Muller 1958).
        radius, angle = _uniform(draw), _uniform(hash_numbers(draw))
        w = np.zeros((len(number), self.parameters.shape[1]), dtype)
        normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        w[:, : self.rank] = normal * (_INITIAL_LENGTH / np.sqrt(self.rank))
        return w

    def touched(self, pieces: list[BatchRows], backend: Backend) -> NDArray[np.int64]:
        """Return the parameter rows of the batch's users and items, and renumber the pieces.

        Negatives are drawn here: the pieces then have a column for each.
        """
        index, places = distinct(
            [backend.to_numpy(self.draw_negatives(p, backend)) for p in pieces]
        )
        for piece, place in zip(pieces, places, strict=True):
            piece.X = backend.to_device(place)
        return index

    def draw_negatives(self, rows: BatchRows, backend: Backend) -> Any:
        """Return columns of users, items and drawn negative items, as indices of parameter rows."""
        X = rows.X
        if not self.negatives or X.shape[1] > 2:  # none, or drawn by `touched`
            return X
        n_drawn = self.n_items if self.n_drawn is None else self.n_drawn
        # By the batch's own random numbers, uniformly: an item that the user has rated may be drawn
        # too.
        negatives = rows.draw().integers(n_drawn, size=(X.shape[0], self.negatives))
        negatives += self.n_users
        xp = namespace(X)
        return xp.concat([X, cast(backend.to_device(negatives), X.dtype)], axis=1)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of some pairs to `out`; return the summed loss without the penalty."""
        columns, shared = self.draw_negatives(rows, backend), (rows.weight, out, backend)
        # The penalty's gradient is added with each pair's; its value is not part of the loss.
        loss: Any = (
            0.0 if self.pairwise else self._add_pointwise(w, columns[:, :2], rows.y, *shared)
        )
        negative_targets = None if columns.shape[1] == 2 else self._negative_targets(rows.y)
        for c in range(2, columns.shape[1]):
            if self.pairwise:
                loss = loss + self._add_pairwise(w, columns[:, :2], columns[:, c], *shared)
            else:
                xp = namespace(columns)
                pairs = xp.stack([columns[:, 0], columns[:, c]], axis=1)
                loss = loss + self._add_pointwise(w, pairs, negative_targets, *shared)
        return loss

    def _negative_targets(self, y: Any) -> Any:
        """Return the targets of drawn items, all negative."""
        # -1 is the other class; for regressions, 0 represents a pair without interest.
        return namespace(y).full_like(y, -1.0 if self.loss.kind == "classification" else 0.0)

    def _add_pointwise(
        self, w: Any, pairs: Any, y: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        """Add the gradient of pairs and their targets; return the sum of their losses."""
        if is_host(w):
            from daskml_dist.backends.pair_kernels import add_pair_gradients

            # One compiled loop over the pairs; None for a loss that it does not support.
            kernel_loss = add_pair_gradients(
                self.loss, w, pairs, y, weight, self.rank, self.reg, self.offset, self.unit, out
            )
            if kernel_loss is not None:
                return kernel_loss
        users, items = pairs[:, 0], pairs[:, 1]
        user_rows, item_rows = self._take_rows(w, users), self._take_rows(w, items)
        losses, slope = self._compute_slopes(y, self._predict_raw(user_rows, item_rows), weight)
        # Chain rule: the gradient of p_u is the slope times q_i, plus the penalty's reg * p_u; a
        # user of several pairs gets the sum.
        user_gradient = slope * self._partner_derivative(item_rows) + self._shrink(
            user_rows, weight
        )
        item_gradient = slope * self._partner_derivative(user_rows) + self._shrink(
            item_rows, weight
        )
        backend.add_rows(user_gradient, users, None, out)
        backend.add_rows(item_gradient, items, None, out)
        return losses

    def _add_pairwise(
        self, w: Any, pairs: Any, negatives: Any, weight: Any, out: Any, backend: Backend
    ) -> Any:
        """Add the gradient of BPR (Rendle et al. 2009, figure 4); return the sum of the losses.

        The loss of ``x_uij = x_ui - x_uj``, with i an item of the user and j a drawn one.
        """
        user_rows, item_rows = self._take_rows(w, pairs[:, 0]), self._take_rows(w, pairs[:, 1])
        other_rows = self._take_rows(w, negatives)
        difference = self._predict_raw(user_rows, item_rows) - self._predict_raw(
            user_rows, other_rows
        )
        losses, slope = self._compute_slopes(
            namespace(difference).ones_like(difference), difference, weight
        )
        user_gradient = slope * (item_rows - other_rows)
        item_gradient = slope * self._partner_derivative(user_rows)
        if self.biased:
            user_gradient[:, self.rank] = 0  # the user's bias cancels in the difference
        backend.add_rows(user_gradient + self._shrink(user_rows, weight), pairs[:, 0], None, out)
        backend.add_rows(item_gradient + self._shrink(item_rows, weight), pairs[:, 1], None, out)
        backend.add_rows(self._shrink(other_rows, weight) - item_gradient, negatives, None, out)
        return losses

    def _compute_slopes(self, y: Any, raw: Any, weight: Any) -> tuple[Any, Any]:
        """Return the sum of the losses, and their slopes as a column.

        Gradients are divided by ``unit**2``, so that they are of one size in any unit.
        """
        losses, slope = self.loss.value_and_gradient(y, raw)
        if weight is not None:
            losses, slope = losses * weight, slope * weight
        return scalar(total(losses, dtype=namespace(losses).float64)), slope[:, None] / self.unit

    def _shrink(self, row: Any, weight: Any) -> Any:
        """Return the gradient of the penalty by some rows of pairs."""
        gradient = self.reg * row
        if self.unit != 1:
            gradient[:, : self.rank] /= self.unit
        # A weight counts a pair several times, its penalty included.
        return gradient if weight is None else gradient * weight[:, None]

    def _take_rows(self, w: Any, indices: Any) -> Any:
        """Return some rows of the parameters."""
        return namespace(w).take(w, indices, axis=0)

    def _predict_raw(self, of_user: Any, of_item: Any) -> Any:
        """Return the raw prediction of each pair."""
        k = self.rank
        raw = total(of_user[:, :k] * of_item[:, :k], axis=1)
        if self.biased:
            raw += of_user[:, k]
            raw += of_item[:, k]
        raw *= self.unit
        raw += self.offset
        return raw

    def _partner_derivative(self, row: Any) -> Any:
        """Return the derivative of the raw prediction with respect to the pair's other row."""
        # The other row's factors; the derivative with respect to the bias is 1.
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
        """Return the weight, and the weighted squared errors or correct signs; of shape (2,)."""
        columns = self.draw_negatives(rows, backend)
        user_rows = self._take_rows(w, columns[:, 0])
        raws = [
            self._predict_raw(user_rows, self._take_rows(w, columns[:, c]))
            for c in range(1, columns.shape[1])
        ]
        ys = [rows.y, *(self._negative_targets(rows.y) for _ in raws[1:])]
        if self.pairwise:  # the difference to each negative, which should be positive
            raws, ys = [raws[0] - raw for raw in raws[1:]], [-y for y in ys[1:]]
        sums = [self._sum_scores(y, raw, rows.weight) for y, raw in zip(ys, raws, strict=True)]
        return np.array(np.sum(sums, axis=0), np.float64)

    def _sum_scores(self, y: Any, raw: Any, weight: Any) -> list[float]:
        """Return the sums of :meth:`validation_sums` for some pairs."""
        xp = namespace(raw)
        weight = ones(y.shape, np.float64, y) if weight is None else cast(weight, xp.float64)
        if self.loss.kind == "classification":
            scores = cast((raw > 0) == (y > 0), xp.float64)
        else:
            scores = (cast(y, xp.float64) - self.loss.inverse_link(raw)) ** 2
        return [float(total(weight)), float(weight @ scores)]

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return minus the root mean squared error, or the share of correct signs."""
        if sums[0] == 0:
            return float("nan")
        mean = float(sums[1] / sums[0])
        return mean if self.loss.kind == "classification" else -(mean**0.5)


def _uniform(draw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers strictly between 0 and 1 (for a logarithm), of 64 random bits each."""
    numbers: NDArray[np.float64] = ((draw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return numbers
