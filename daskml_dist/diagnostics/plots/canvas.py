"""Axes and named histories for plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from daskml_dist.diagnostics.curves import LEAST_SPAN
from daskml_dist.errors import DaskMLDistError, InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def get_axes(ax: Axes | None, name: str) -> Axes:
    """Return the given Axes, or those of a new figure; `name` of the plot is used in errors."""
    # plt.subplots(2) returns an array of Axes, which is often passed by mistake.
    if ax is not None and not (hasattr(ax, "plot") and hasattr(ax, "xaxis")):
        raise InvalidParameterError(
            f"ax={ax!r}: give matplotlib Axes, such as plt.subplots()[1] (one of them if there "
            "are several), or None for a new figure."
        )
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise DaskMLDistError(
            f"plots.{name} needs matplotlib: pip install 'daskml-dist[viz]'"
        ) from error
    # The constrained layout keeps long labels and legends from being cut off.
    _, made = pyplot.subplots(layout="constrained")
    return made


def keep_least_height(ax: Axes) -> None:
    """Widen the y axis if values hardly change, so that their lines look flat."""
    low, high = ax.dataLim.intervaly
    least = LEAST_SPAN * max(abs(low), abs(high))
    # With an empty plot the limits are infinite, and the comparison is False.
    if high - low < least:
        centre = low + (high - low) / 2
        ax.set_ylim(centre - least / 2, centre + least / 2)


def whole_numbers(ax: Axes) -> None:
    """Allow only integer ticks on the x axis, which counts passes."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def get_history(estimator_or_history: Any) -> Any:
    """Return the history of a fitted estimator, or a given history itself."""
    history = getattr(estimator_or_history, "history_", estimator_or_history)
    if not (hasattr(history, "records") and hasattr(history, "extra")):
        raise InvalidParameterError(
            f"{estimator_or_history!r} has no history: give a fitted estimator of daskml_dist, or "
            "its history_."
        )
    return history


def name_histories(histories: Any) -> dict[str, Any]:
    """Return histories by name; unnamed ones are named by policy: "sync", "sync #2"."""
    if isinstance(histories, Mapping):
        named = {str(name): get_history(one) for name, one in histories.items()}
    else:
        several = histories if isinstance(histories, list | tuple) else [histories]
        named = {}
        for one in several:
            history = get_history(one)
            name = str(history.extra.get("policy", "fit"))
            # The second and later fits with the same policy get a number.
            number = sum(known.split(" #")[0] == name for known in named)
            named[f"{name} #{number + 1}" if number else name] = history
    if not named:
        raise InvalidParameterError("There is no history to plot: give at least one.")
    return named
