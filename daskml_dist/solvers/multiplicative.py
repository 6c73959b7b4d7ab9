"""Non-negative factorisation by multiplicative updates: a step of the weights, then of components.

A row's weights follow from those before, so they are remembered with the rows. Where they are lost
they are made again by the steps that they came by, of which the components are sent again.

References
----------
C. Fevotte and J. Idier, "Algorithms for nonnegative matrix factorization with the beta-divergence",
Neural Computation 23(9), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from daskml_dist.backends import Backend
from daskml_dist.backends.namespace import cast, namespace, total
from daskml_dist.errors import DivergedError, InvalidDataError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.nonnegative import Updates, multiplied
from daskml_dist.solvers.base import Array, Solution, Statistic, Sums
from daskml_dist.solvers.nonnegative import FirstWeights, NonnegativeSolver, weighted
from daskml_dist.solvers.rows import row_tiles, to_rows

__all__ = ["MultiplicativeNMF", "MultiplicativeStep", "StepWeights"]

#: Bytes of a piece of a dense block that both products read.
_PIECE = 1 << 20
#: Numbers of the components that are remembered, before weights are made of the last ones alone.
_REMEMBERED = 1 << 24
#: Steps and change of weights that are made of components alone.
_STEPS, _SETTLED = 100, 1e-3
#: Steps from one look at the error to the next.
_LOOK = 10
#: Components that count as 0 where beta is at most 1.
_TINY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class StepWeights(FirstWeights):
    """Weights of the components in each row, after some steps.

    Parameters
    ----------
    beta, l1, l2 : float
        As of :class:`Updates`.
    anchor : ndarray of shape (n_features, k), or None
        Weights begin as what these components alone make of a row.
    history : tuple of ndarray of shape (n_features, k), or None
        Components of each step since; None: they are not told, and lost weights become NaN.
    """

    beta: float = field(default=2.0, kw_only=True)
    l1: float = field(default=0.0, kw_only=True)
    l2: float = field(default=0.0, kw_only=True)
    anchor: Array | None = field(default=None, kw_only=True)
    history: tuple[Array, ...] | None = field(default=(), kw_only=True)

    def updates(self, across: Array, X: Any, backend: Backend) -> Updates:
        """Updates of the weights of some rows."""
        across = to_rows(across, X, backend)
        return Updates(across, self.beta, self.l1, self.l2, backend)

    def make(self, model: Any, rows: BatchRows, backend: Backend) -> Any:
        """As the steps left them."""
        if self.history is None:
            shape = rows.X.shape[0], self.n_components
            return to_rows(np.full(shape, np.nan), rows.X, backend)
        if self.anchor is None:
            W = super().make(model, rows, backend)
        else:
            W = to_rows(np.zeros((rows.X.shape[0], self.n_components)), rows.X, backend)
            updates = self.updates(self.anchor, rows.X, backend)
            for at in row_tiles(rows.X, backend, cached=_PIECE):
                X = updates.rows(backend.part(rows.X, at))
                W[at, ...] = updates.settled(X, _STEPS, _SETTLED)
        for across in self.history:
            updates = self.updates(across, rows.X, backend)
            for at in row_tiles(rows.X, backend, cached=_PIECE):
                W[at, ...] = updates.step(updates.rows(backend.part(rows.X, at)), W[at, ...])
        return W


@dataclass(frozen=True, eq=False)
class MultiplicativeStep(Statistic):
    """A step of the weights; numerators and denominators of that of the components.

    First the numerators, of shape (n_features, k); then the denominators, as far as rows are asked
    for them; the error before the step; and the number of rows whose weights are not known.

    Parameters
    ----------
    across : ndarray of shape (n_features, k)
        The components.
    weights : StepWeights
    anew : bool
        Whether all weights are made anew first.
    looks : bool
        Whether the error is asked for.
    steps : bool
        Whether a step is.
    """

    across: Array
    weights: StepWeights
    anew: bool = False
    looks: bool = False
    steps: bool = True
    in_parts: ClassVar[bool] = True

    @property
    def state(self) -> StepWeights:
        """The weights."""
        return self.weights

    def shape(self, model: Any) -> tuple[int, ...]:
        d, k = self.across.shape
        below = {2.0: k, 1.0: 1}.get(self.weights.beta, d)
        return d + below + 2, k

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        if self.anew:
            rows.state[...] = self.weights.make(model, rows, backend)
        updates = self.weights.updates(self.across, rows.X, backend)
        with np.errstate(over="ignore", invalid="ignore"):  # the solver looks at the sums
            for at in row_tiles(rows.X, backend, cached=_PIECE):
                self._add(rows.part(at, backend), updates, out)
        return float("nan")

    def _add(self, part: BatchRows, updates: Updates, out: Any) -> None:
        W, X = part.state, updates.rows(part.X)
        xp, d = namespace(W), updates.across.shape[0]
        if bool(xp.any(xp.isnan(W))):
            out[-1, 0] += W.shape[0]
            return
        if self.looks:
            errors = updates.errors(X, W)
            weight = None if part.weight is None else cast(part.weight, errors.dtype)
            out[-2, 0] += total(cast(errors if weight is None else errors * weight, out.dtype))
        if not self.steps:
            return
        W[...] = updates.step(X, W)
        own = weighted(W, part.weight)
        updates.add_shares(X, W, own, out[:d, ...], out[d:-2, ...])


@dataclass(frozen=True)
class MultiplicativeNMF(NonnegativeSolver):
    """Non-negative components of all rows, for the smallest beta-divergence.

    Its other parameters are those of its base; `tol` is of the decrease of the error in ten steps,
    of the first error.

    Parameters
    ----------
    beta : float
    """

    name = "mu"
    beta: float
    _more = 3  # a step that is asked for again, and the last error

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Find them.

        Returns
        -------
        Solution
            With the components, of shape (n_features, k), and "error": the divergence of all rows.
        """
        at = self._begun(model, sums, start) if sums.kept is None else self._kept(sums.kept)
        while at.n_iter < self.max_iter and not sums.should_stop:
            if self._has_settled(at, sums):
                break
            sums.keep(at.H, at.state, extra={"error": np.nan})
        settled = at.settled or not self.tol
        if not at.settled:
            at.error = float(self._asked(at, sums, looks=True, steps=False)[-2, 0])
        message = "the error still falls"
        return Solution(at.H, at.n_iter, settled, message, {"error": at.error})

    def _begun(self, model: Any, sums: Sums, start: Array | None) -> _Course:
        entries, zeros = self.begin.totals(sums, counts=self.beta <= 0)
        d = model.n_features
        if zeros:
            raise InvalidDataError(
                "When beta_loss <= 0 and X contains zeros, the solver may diverge. Add small "
                'values to X, or use a positive beta_loss ("kullback-leibler").'
            )
        H, first = self.begin(model, sums, start, entries / (sums.n_rows * d))
        return _Course(H, self._weights(first))

    def _weights(self, first: FirstWeights) -> StepWeights:
        how: dict[str, Any] = {"beta": self.beta, "l1": self.l1_rows, "l2": self.l2_rows}
        return StepWeights(**vars(first), **how)

    def _kept(self, state: dict[str, Array]) -> _Course:
        fill, spread, seed, given = state["first"].tolist()
        first = FirstWeights(
            self.begin.n_components,
            _or_none(state["vectors"]),
            fill,
            spread,
            int(seed),
            bool(given),
        )
        return _Course(state["H"], self._weights(first), state)

    def _has_settled(self, at: _Course, sums: Sums) -> bool:
        """Take a step, unless the error has settled before it."""
        looks = bool(self.tol) and at.n_iter % _LOOK == 0
        found = self._asked(at, sums, looks=looks)
        if looks:
            error = float(np.sqrt(2 * max(0.0, found[-2, 0])))
            if at.n_iter and at.last - error < self.tol * at.first:
                at.settled, at.error = True, float(found[-2, 0])
                return True
            at.first, at.last = error if not at.n_iter else at.first, error
        at.go_on(self._moved(at.H, found, sums.n_rows))
        return False

    def _asked(self, at: _Course, sums: Sums, *, looks: bool, steps: bool = True) -> Array:
        """The sums of a step; again, where some weights were lost."""
        tells = at.tells or at.fresh
        found = sums(MultiplicativeStep(at.H, at.weights_for(tells), at.fresh, looks, steps))
        if found[-1, 0] and not tells:
            at.tells = True
            found = sums(MultiplicativeStep(at.H, at.weights_for(True), True, looks, steps))
        at.fresh = False
        if found[-1, 0] or not np.isfinite(found).all():
            raise DivergedError(
                "The updates overflow. Scale the features (MaxAbsScaler), or use float64."
            )
        return found

    def _moved(self, H: Array, found: Array, n_rows: int) -> Array:
        """Components after a step."""
        d = len(H)
        if self.beta == 2:
            below = H @ found[d:-2]
        elif self.beta == 1:
            below = np.where(found[d] == 0, 1.0, found[d])[None, :]
        else:
            below = found[d:-2]
        l1, l2 = n_rows * self.l1, n_rows * self.l2
        with np.errstate(over="ignore", invalid="ignore"):  # the next sums show it
            new: Array = multiplied(H, found[:d], below, self.beta, l1, l2)
        return np.where(new < _TINY, 0.0, new) if self.beta <= 1 else new


class _Course:
    """Components as far as they are found, and how they came.

    Parameters
    ----------
    H : ndarray of shape (n_features, k)
    weights : StepWeights
        Weights to begin with.
    state : dict from str to ndarray, optional
        As :meth:`state` returns.
    """

    def __init__(
        self, H: Array, weights: StepWeights, state: dict[str, Array] | None = None
    ) -> None:
        self.H, self._first = H, weights
        self._anchor: Array | None = None
        self._history: list[Array] = []
        #: Errors at the begin, at the last look and in the end, and steps.
        self.first = self.last = self.error = np.nan
        self.n_iter = 0
        self.settled = False
        #: Whether sums tell how weights came, and whether all are made anew.
        self.tells, self.fresh = False, state is None
        if state is not None:
            self._anchor, self._history = _or_none(state["anchor"]), list(state["history"])
            self.first, self.last, n_iter, tells, fresh = state["course"].tolist()
            self.n_iter, self.tells, self.fresh = int(n_iter), bool(tells), bool(fresh)

    def weights_for(self, tells: bool) -> StepWeights:
        """Memory of the next step, which tells how it came or not."""
        first = self._first
        if tells:
            return replace(first, anchor=self._anchor, history=tuple(self._history))
        how: dict[str, Any] = {"beta": first.beta, "l1": first.l1, "l2": first.l2}
        return StepWeights(first.n_components, history=None, **how)

    def go_on(self, H: Array) -> None:
        """Take the components after a step."""
        self._history.append(self.H)
        self.H = H
        self.n_iter += 1
        if (len(self._history) + 1) * H.size > _REMEMBERED:
            self._anchor, self._history, self.fresh = H, [], True

    def state(self) -> dict[str, Array]:
        """All that is needed to go on."""
        first, none = self._first, np.empty((0, 0))
        course = [self.first, self.last, self.n_iter, self.tells, self.fresh]
        return {
            "H": self.H,
            "vectors": none if first.vectors is None else first.vectors,
            "first": np.array([first.fill, first.spread, first.seed, first.given], float),
            "anchor": none if self._anchor is None else self._anchor,
            "history": np.array(self._history) if self._history else np.empty((0, *self.H.shape)),
            "course": np.array(course, float),
        }


def _or_none(array: Array) -> Array | None:
    return array if array.size else None
