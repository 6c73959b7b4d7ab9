"""Plots of the passes of fits: learning curves, staleness, traffic, lanes."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from daskml_dist.diagnostics.curves import COLOURS, number_or_nan
from daskml_dist.diagnostics.plots.canvas import (
    get_axes,
    get_history,
    keep_least_height,
    name_histories,
    whole_numbers,
)
from daskml_dist.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Measures and costs of passes, with the labels of their axes.
_MEASURES = {
    "loss": "mean training loss",
    "val_score": "validation score",
    "eval_score": "score of the eval_set",
}
_X_AXIS_LABELS = {
    "pass": "pass",
    "seconds": "wall time (s)",
    "rows": "rows",
    "bytes": "traffic (MB)",
}
#: Colour of the lines where a fit recovered from a loss.
_RECOVERY = "#d00000"
#: Largest number of workers in a legend; more entries would cover the figure.
_MAX_NAMED_WORKERS = 12


def learning_curves(
    histories: Any, y: str = "loss", *, over: str = "pass", ax: Axes | None = None
) -> Axes:
    """Draw learning curves of fits side by side, for example of several policies.

    Parameters
    ----------
    histories : dict of str to history, or one history, or a list of them
        Fitted estimators are accepted too. Unnamed lines are named after their policies.
    y : {"loss", "val_score", "eval_score"}, default="loss"
        ``"val_score"`` needs ``early_stopping=True``, ``"eval_score"`` ``fit(eval_set=...)``.
    over : {"pass", "seconds", "rows", "bytes"}, default="pass"
        Cost on the x axis: the number of passes, or their cumulative wall time (s), rows or traffic
        (MB).
    ax : matplotlib.axes.Axes or None, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With one line for each history.

    Raises
    ------
    InvalidParameterError
        An argument is invalid, or a fit has not recorded `y`.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> clf = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    >>> ax = plots.learning_curves(clf)  # doctest: +SKIP
    """
    for name, value, valid in (("y", y, _MEASURES), ("over", over, _X_AXIS_LABELS)):
        if value not in valid:
            raise InvalidParameterError(f"{name}={value!r}: choose one of {', '.join(valid)}.")
    lines = {name: _find_curve(name, h, y, over) for name, h in name_histories(histories).items()}
    ax = get_axes(ax, "learning_curves")
    for number, (name, (costs, values)) in enumerate(lines.items()):
        # A marker, since the line of a single pass would be invisible.
        colour = COLOURS[number % len(COLOURS)]
        ax.plot(costs, values, label=name, marker=".", color=colour)
    ax.set_xlabel(_X_AXIS_LABELS[over])
    ax.set_ylabel(_MEASURES[y])
    keep_least_height(ax)
    if over == "pass":
        whole_numbers(ax)
    ax.legend()
    return ax


def _find_curve(name: str, history: Any, y: str, x_axis: str) -> tuple[list[float], list[float]]:
    """Return accumulated costs and values of a history's passes."""
    records = history.records
    if not records or all(record.get(y) is None for record in records):
        raise InvalidParameterError(
            f"The fit {name!r} has recorded no {y!r}; val_score needs early_stopping=True, "
            "eval_score fit(..., eval_set=(X, y)), and each needs at least one whole pass."
        )
    values = [number_or_nan(record.get(y)) for record in records]
    if x_axis == "pass":
        return [record["pass"] for record in records], values
    if x_axis == "bytes":
        costs = [(record["bytes_pushed"] + record["bytes_pulled"]) / 1e6 for record in records]
    else:
        costs = [record[x_axis] for record in records]
    return list(accumulate(costs)), values


def staleness(histories: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the staleness of applied gradients: mean and maximum of each pass.

    Parameters
    ----------
    histories : dict of str to history, or one history, or a list of them
        As in :func:`learning_curves`.
    ax : matplotlib.axes.Axes or None, default=None

    Returns
    -------
    matplotlib.axes.Axes
        With two lines for each history (mean, and maximum as a dashed line), in versions of the
        parameters.

    Raises
    ------
    InvalidParameterError
        There is no history.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> clf = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    >>> ax = plots.staleness(clf)  # doctest: +SKIP
    """
    named = name_histories(histories)
    ax = get_axes(ax, "staleness")
    for number, (name, history) in enumerate(named.items()):
        colour = COLOURS[number % len(COLOURS)]
        passes = [record["pass"] for record in history.records]
        for key, style in (("mean", "-"), ("max", "--")):
            values = [number_or_nan(record.get(f"staleness_{key}")) for record in history.records]
            ax.plot(passes, values, style, marker=".", color=colour, label=f"{name}, {key}")
    ax.set_xlabel("pass")
    ax.set_ylabel("staleness (versions)")
    # The maximum may be a thousand times the mean, and both may be 0.
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set_ylim(bottom=0.0)
    whole_numbers(ax)
    ax.legend()
    return ax


def traffic(history: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the bytes of each pass of a fit as stacked bars: pushed bytes below pulled bytes.

    Parameters
    ----------
    history : History or fitted estimator
    ax : matplotlib.axes.Axes or None, default=None

    Returns
    -------
    matplotlib.axes.Axes
        With two containers of bars, in megabytes (10^6 bytes).

    Raises
    ------
    InvalidParameterError
        The argument is not a history.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> clf = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    >>> ax = plots.traffic(clf)  # doctest: +SKIP
    """
    records = get_history(history).records
    ax = get_axes(ax, "traffic")
    passes = [record["pass"] for record in records]
    pushed, pulled = (
        [record[f"bytes_{way}"] / 1e6 for record in records] for way in ("pushed", "pulled")
    )
    ax.bar(passes, pushed, color=COLOURS[0], label="pushed")
    ax.bar(passes, pulled, bottom=pushed, color=COLOURS[1], label="pulled")
    ax.set_xlabel("pass")
    ax.set_ylabel("traffic (MB)")
    whole_numbers(ax)
    ax.legend()
    return ax


def lanes(history: Any, *, ax: Axes | None = None) -> Axes:
    """Draw which worker ran each lane of a fit, and when; a recovery is a gap with a red line.

    Parameters
    ----------
    history : History or fitted estimator
        The fit must have run on a cluster.
    ax : matplotlib.axes.Axes or None, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With a collection of bars for each worker, over the seconds since training began, and a
        dashed line at the start of each generation after the first.

    Raises
    ------
    InvalidParameterError
        The fit did not run on a cluster, or the argument is not a history.
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
    extra = get_history(history).extra
    seatings = extra.get("seatings")
    if not seatings:
        raise InvalidParameterError(
            "The history has no workers: the fit ran in one process. Fit with a distributed.Client."
        )
    ax = get_axes(ax, "lanes")
    # The workers of a generation ran until the recovery before the next one began; that recovery
    # took `seconds` and ended `at`.
    ends = [after["at"] - after["seconds"] for after in seatings[1:]] + [extra["seconds"]]
    bars: dict[str, list[tuple[int, float, float]]] = {}
    for seating, end in zip(seatings, ends, strict=True):
        for lane, worker in enumerate(seating["workers"]):
            bars.setdefault(worker, []).append((lane, seating["at"], end))
    # Draw the bars of each worker: lane, begin and end.
    for number, (worker, of_worker) in enumerate(bars.items()):
        left = [begin for _, begin, _ in of_worker]
        ax.barh(
            [lane for lane, _, _ in of_worker],
            [max(0.0, end - begin) for _, begin, end in of_worker],
            left=left, height=0.9, color=COLOURS[number % len(COLOURS)],
            label=worker if number < _MAX_NAMED_WORKERS else None,
        )  # fmt: skip
    for seating in seatings:
        if seating["generation"]:
            ax.axvline(seating["at"], color=_RECOVERY, linestyle="--", linewidth=1.5)
    ax.set_xlabel("seconds since training began")
    ax.set_ylabel("lane")
    ax.set_ylim(-0.5, len(seatings[0]["workers"]) - 0.5)
    # matplotlib warns about an axis of length 0, which a very short fit could have.
    ax.set_xlim(0.0, max(extra["seconds"], 1e-9))
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    # Below the axes, since the bars fill them.
    ax.legend(title="worker", loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize="small")
    return ax
