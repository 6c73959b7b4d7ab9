"""Lanes of a fit over time, with the workers that ran them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist.diagnostics.plots.canvas import COLOURS, axes_of, history_of
from daskml_dist.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["lanes"]

_RECOVERY = "#d00000"
#: Workers that a legend names; of more it would hide the picture.
_NAMED = 12


def lanes(history: Any, *, ax: Axes | None = None) -> Axes:
    """Draw which worker ran each lane of a fit, and when; recoveries are gaps with a red line.

    Parameters
    ----------
    history : History or fitted estimator
        Of a fit on a cluster.
    ax : matplotlib.axes.Axes or None, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With a collection of bars for each worker, over seconds since training began, and a dashed
        line where each generation after the first begins.

    Raises
    ------
    InvalidParameterError
        The fit was on no cluster, or it is no history.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> clf = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    >>> ax = plots.lanes(clf)  # doctest: +SKIP
    """
    extra = history_of(history).extra
    seatings = extra.get("seatings")
    if not seatings:
        raise InvalidParameterError(
            "The history tells of no workers: the fit ran in one process. Fit with a "
            "distributed.Client."
        )
    ax = axes_of(ax, "lanes")
    ends = [after["at"] - after["seconds"] for after in seatings[1:]] + [extra["seconds"]]
    bars: dict[str, list[tuple[int, float, float]]] = {}
    for seating, end in zip(seatings, ends, strict=True):
        for lane, worker in enumerate(seating["workers"]):
            bars.setdefault(worker, []).append((lane, seating["at"], end))
    for number, (worker, of_worker) in enumerate(bars.items()):
        left = [begin for _, begin, _ in of_worker]
        ax.barh(
            [lane for lane, _, _ in of_worker],
            [max(0.0, end - begin) for _, begin, end in of_worker],
            left=left, height=0.9, color=COLOURS[number % len(COLOURS)],
            label=worker if number < _NAMED else None,
        )  # fmt: skip
    for seating in seatings:
        if seating["generation"]:
            ax.axvline(seating["at"], color=_RECOVERY, linestyle="--", linewidth=1.5)
    ax.set_xlabel("seconds since training began")
    ax.set_ylabel("lane")
    ax.set_ylim(-0.5, len(seatings[0]["workers"]) - 0.5)
    ax.set_xlim(0.0, max(extra["seconds"], 1e-9))
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(title="worker", loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize="small")
    return ax
