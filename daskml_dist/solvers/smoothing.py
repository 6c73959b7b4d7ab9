"""Newton's method on a loss with kinks: rounded off, less and less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daskml_dist.backends.namespace import cast, namespace
from daskml_dist.losses import EpsilonInsensitive
from daskml_dist.solvers.base import Array, PenalisedSolver, Solution, Sums, start_of
from daskml_dist.solvers.newton import NewtonSteps

__all__ = ["RoundedTube", "TubeNewton"]

#: Widths of the rounding, in units of the targets' spread. Larger leaps lose the way: of the few
#: rows inside the parabola, others are there after a step.
_WIDTHS = [10.0 ** -(k / 2) for k in range(11)]
#: Iterations at most for each width but the last.
_MOST = 10


@dataclass(frozen=True)
class RoundedTube(EpsilonInsensitive):
    """``max(0, |raw - y| - epsilon)`` whose kinks are parabolas of some width.

    Parameters
    ----------
    epsilon, width : float
        In the unit of the target.
    """

    name = "rounded_tube"
    has_hessian = True
    width: float = 1.0

    def value_gradient_hessian(self, y: Any, raw: Any) -> tuple[Any, Any, Any]:
        """As in `Loss`, for raw predictions of shape (n,)."""
        xp, residual = namespace(raw), raw - cast(y, raw.dtype)
        excess = self._residual_beyond_epsilon(residual)
        share = xp.minimum(excess / self.width, 1)
        values = (excess - self.width * share / 2) * share
        # Without a tube the parabola of |residual| holds at 0 as well.
        inside = share < 1
        if self.epsilon > 0:
            inside &= excess > 0
        return values, xp.copysign(share, residual), cast(inside, raw.dtype) / self.width


@dataclass(frozen=True)
class TubeNewton(PenalisedSolver):
    """The epsilon-insensitive loss by Newton steps on rounded losses, each from the last solution.

    The last rounding is 1e-5 of the targets' spread, and so about is what the solution is off.

    Parameters
    ----------
    epsilon : float
        Half the width of the tube.
    spread : float
        Standard deviation of the targets.

    References
    ----------
    O. Chapelle, "Training a support vector machine in the primal", Neural Computation 19, 2007.
    """

    name = "tube-newton"
    epsilon: float = 0.0
    spread: float = 1.0

    @property
    def max_passes(self) -> int:
        """All line searches to their ends."""
        return 21 * (self.max_iter + len(_WIDTHS))

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Minimise the penalised mean loss."""
        w, n_done, first = start_of(model, start), 0, 0
        made: dict[str, Any] = {}
        if (kept := sums.kept) is not None:
            w, n_done, first = kept["w"], int(kept["n_done"]), int(kept["width"])
            made = {"n_iter": int(kept["n_iter"]), "before": float(kept["before"])}
        for number, width in enumerate(_WIDTHS[first:], first):
            loss = RoundedTube(self.epsilon, width * self.spread)
            steps = NewtonSteps(model, sums, self.penalty, self.tol, loss, many_flat=1.0)
            left = self.max_iter - n_done
            most = left if width == _WIDTHS[-1] else min(left, _MOST)
            run = steps.run(w, most, **made, width=number, n_done=n_done)
            w, n_done, made = run.w, n_done + run.n_iter, {}
        message = run.trouble or f"the limit of {self.max_iter} iterations was reached"
        return Solution(w, n_done, run.solved or sums.should_stop, message)
