"""Penalties on the coefficients: l2, l1 and their mixture, the elastic net.

`get_penalty` turns scikit-learn's parameters `penalty`, `alpha` and `l1_ratio` into a `Penalty`;
optimizers and solvers apply it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.errors.suggestions import suggest_nearest

__all__ = ["PENALTIES", "Penalty", "get_penalty", "soft_threshold"]


@dataclass(frozen=True)
class Penalty(ParameterObject):
    """The term ``l1 * sum(|w|) + l2 / 2 * sum(w ** 2)`` of an objective.

    Parameters
    ----------
    l1, l2 : float
        Strengths, relative to the mean loss of a row.
    intercept_scaling : float or None
        Penalise ``intercept / intercept_scaling`` like a coefficient, as in liblinear; None:
        intercepts are not penalised. Only round solvers use it.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.penalties import Penalty
    >>> round(float(Penalty(l1=0.0, l2=0.1).value(np.array([3.0, 4.0]))), 4)
    1.25
    """

    l1: float
    l2: float
    intercept_scaling: float | None = None

    def value(self, w: NDArray[Any]) -> float:
        """Return the value of the term for parameters `w`, all of which are penalised."""
        xp, total = namespace(w), 0.0  # NumPy, or the module of an array on a GPU
        if self.l1:
            total += self.l1 * float(xp.sum(xp.abs(w)))
        if self.l2:
            total += self.l2 / 2 * float(xp.sum(w * w))
        return total


#: Penalty for each name, as a function of alpha and l1_ratio.
PENALTIES: dict[str | None, Callable[[float, float], Penalty]] = {
    "l2": lambda alpha, l1_ratio: Penalty(0.0, alpha),
    "l1": lambda alpha, l1_ratio: Penalty(alpha, 0.0),
    "elasticnet": lambda alpha, l1_ratio: Penalty(alpha * l1_ratio, alpha * (1 - l1_ratio)),
    None: lambda alpha, l1_ratio: Penalty(0.0, 0.0),
}


def get_penalty(penalty: str | None, alpha: float, l1_ratio: float) -> Penalty:
    """Return the penalty that scikit-learn's three parameters describe.

    The objective is the mean loss plus
    ``alpha * ((1 - l1_ratio) / 2 * sum(w ** 2) + l1_ratio * sum(|w|))``, where ``"l2"`` fixes
    `l1_ratio` at 0 and ``"l1"`` at 1.

    Parameters
    ----------
    penalty : {"l2", "l1", "elasticnet"} or None
    alpha : float
        Strength, at least 0.
    l1_ratio : float
        Share of l1 in ``"elasticnet"``, between 0 and 1.

    Raises
    ------
    InvalidParameterError
        The name is unknown, or a number is out of range.

    Examples
    --------
    >>> from daskml_dist.penalties import get_penalty
    >>> get_penalty('elasticnet', 0.1, 0.5)
    Penalty(l1=0.05, l2=0.05, intercept_scaling=None)
    """
    if not (penalty is None or isinstance(penalty, str)) or penalty not in PENALTIES:
        raise InvalidParameterError(
            f"penalty={penalty!r}: use one of {list(PENALTIES)}."
            f"{suggest_nearest(penalty, PENALTIES)}"
        )
    if not 0 <= alpha < np.inf:
        raise InvalidParameterError(
            f"alpha={alpha!r}: use a finite number >= 0 (penalty=None switches the penalty off)."
        )
    if not 0 <= l1_ratio <= 1:
        raise InvalidParameterError(
            f"l1_ratio={l1_ratio!r}: use a number from 0 (only l2) to 1 (only l1)."
        )
    return PENALTIES[penalty](float(alpha), float(l1_ratio))


def soft_threshold(w: NDArray[Any], t: float | NDArray[Any]) -> None:
    """Move `w` towards zero by `t`, in place; entries within `t` of zero become exactly 0.

    This is the proximal operator of ``t * sum(|w|)``.

    Parameters
    ----------
    w : ndarray
    t : float or ndarray that broadcasts to the shape of `w`
        At least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.penalties import soft_threshold
    >>> w = np.array([-2.0, 0.5, 3.0])
    >>> soft_threshold(w, 1.0)
    >>> w.tolist()
    [-1.0, 0.0, 2.0]
    """
    xp = namespace(w)
    # w minus its projection to [-t, t] (Moreau's decomposition): one clip, without branches by
    # sign.
    w -= xp.maximum(xp.minimum(w, t), -t)
