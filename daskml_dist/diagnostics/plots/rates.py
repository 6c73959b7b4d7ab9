"""Losses over learning rates, of a range test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daskml_dist.diagnostics.plots.canvas import COLOURS, axes_of
from daskml_dist.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_rates"]


def learning_rates(found: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the losses of a range test over its rates, and the rate that it suggests.

    Parameters
    ----------
    found : LearningRates
        Of :func:`daskml_dist.model_selection.learning_rate_range`.
    ax : matplotlib.axes.Axes or None, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With a line of the losses, those of fits that diverged left out, and a dashed line at the
        suggestion. Losses far above that of the smallest rate are beyond the picture.

    Raises
    ------
    InvalidParameterError
        It is no such result.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.model_selection import learning_rate_range
    >>> ax = plots.learning_rates(learning_rate_range(clf, X, y))  # doctest: +SKIP
    """
    if not all(hasattr(found, name) for name in ("rates", "losses", "suggestion")):
        raise InvalidParameterError(
            f"{found!r} has no rates: give what model_selection.learning_rate_range returns."
        )
    ax = axes_of(ax, "learning_rates")
    finite = np.isfinite(found.losses)
    losses = found.losses[finite]
    ax.plot(found.rates[finite], losses, marker=".", color=COLOURS[0])
    if len(losses):
        low, first = losses.min(), losses[0]
        room = max(first - low, 0.05 * abs(first), 1e-12)
        ax.set_ylim(low - 0.1 * room, first + room)
    if found.suggestion is not None:
        label = f"suggestion: {found.suggestion:.3g}"
        ax.axvline(found.suggestion, color=COLOURS[2], linestyle="--", label=label)
        ax.legend()
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    ax.set_ylabel("mean training loss")
    return ax
