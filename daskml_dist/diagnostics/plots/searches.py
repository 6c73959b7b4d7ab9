"""Plots of searches: scores over parameters, rungs of successive halving, learning-rate tests."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from daskml_dist.diagnostics.curves import COLOURS
from daskml_dist.diagnostics.plots.canvas import get_axes
from daskml_dist.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Ratio of the largest to the smallest value above which an axis is logarithmic.
_MIN_LOG_RATIO = 100.0


def search_results(
    search: Any, params: Any = None, *, score: str = "score", ax: Axes | None = None
) -> Axes:
    """Draw the scores of a search over one parameter (a curve) or two (a heat map).

    Parameters
    ----------
    search : fitted search with ``cv_results_``
        A search of scikit-learn is accepted too.
    params : str, or sequence of one or two str, or None, default=None
        Names of the parameters on the x and y axes. None: all parameters that vary. If further
        parameters vary, the best score over them is drawn.
    score : str, default="score"
        Metric to draw, if there are several.
    ax : matplotlib.axes.Axes or None, default=None

    Returns
    -------
    matplotlib.axes.Axes
        With a line of mean test scores and a band of one standard deviation of the splits on each
        side; or an image whose rows are values of the second parameter.

    Raises
    ------
    InvalidParameterError
        The search is not fitted, or lacks a given parameter or score.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> from daskml_dist.diagnostics import plots
    >>> ax = plots.search_results(search)  # doctest: +SKIP
    """
    results = _get_results(search)
    means = _get_column(results, f"mean_test_{score}")
    candidates = results["params"]
    if params is None:
        names = _find_varying_params(candidates)
    else:
        names = [params] if isinstance(params, str) else list(params)
    for name in names:
        if not any(name in candidate for candidate in candidates):
            known = ", ".join(sorted({key for candidate in candidates for key in candidate}))
            raise InvalidParameterError(f"The search has no parameter {name!r}: it has {known}.")
    if not 1 <= len(names) <= 2:
        raise InvalidParameterError(
            f"params={names}: name one parameter, for a curve, or two, for a heat map."
        )
    # With a list of grids, candidates need not have all parameters.
    values = [_list_values([c[name] for c in candidates if name in c]) for name in names]
    # Index of the best candidate for each value, or pair of values.
    best = _find_best(candidates, names, means)
    ax = get_axes(ax, "search_results")
    if len(names) == 1:
        numbers = [best[(_make_key(value),)] for value in values[0]]
        spread = np.asarray(results.get(f"std_test_{score}", np.zeros(len(means))))[numbers]
        _draw_curve(ax, values[0], np.asarray(means)[numbers], spread)
    else:
        _draw_map(ax, values, best, means, score)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1] if len(names) == 2 else f"mean test {score}")
    return ax


def _draw_curve(ax: Axes, values: list[Any], means: Any, spread: Any) -> None:
    """Draw scores over the values of one parameter, evenly spaced if they are not numbers."""
    numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
    x = values if numbers else range(len(values))
    ax.plot(x, means, marker=".", color=COLOURS[0])
    ax.fill_between(x, means - spread, means + spread, color=COLOURS[0], alpha=0.2)
    if not numbers:
        ax.set_xticks(range(len(values)), [str(v) for v in values])
    # For example alpha from 1e-5 to 1.
    elif min(values) > 0 and max(values) >= _MIN_LOG_RATIO * min(values):
        ax.set_xscale("log")


def _draw_map(ax: Axes, values: list[list[Any]], best: Any, means: Any, score: str) -> None:
    """Draw scores over two parameters as an image; NaN marks pairs that were not tried."""
    grid = np.full((len(values[1]), len(values[0])), np.nan)
    for row, of_y in enumerate(values[1]):
        for column, of_x in enumerate(values[0]):
            number = best.get((_make_key(of_x), _make_key(of_y)))
            if number is not None:
                grid[row, column] = means[number]
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis")
    for axis, of_axis in zip((ax.set_xticks, ax.set_yticks), values, strict=True):
        axis(range(len(of_axis)), [f"{v:.4g}" if isinstance(v, float) else str(v) for v in of_axis])
    if (figure := ax.get_figure()) is not None:
        figure.colorbar(image, ax=ax, label=f"mean test {score}")


def rungs(search: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the rungs of a halving search or of Hyperband: a line for each candidate.

    Parameters
    ----------
    search : fitted halving search, or HyperbandSearchCV
    ax : matplotlib.axes.Axes or None, default=None

    Returns
    -------
    matplotlib.axes.Axes
        With a line of mean test scores over resources for each candidate, up to the rung where it
        was dropped; the best one is drawn last and thickest.

    Raises
    ------
    InvalidParameterError
        The search is of another kind, or not fitted.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> from daskml_dist.diagnostics import plots
    >>> ax = plots.rungs(search)  # doctest: +SKIP
    """
    lines, resource = _find_candidate_lines(search)
    ax = get_axes(ax, "rungs")
    # False sorts before True: the best line is drawn last, above the others.
    for points, is_best in sorted(lines, key=lambda line: line[1]):
        style: dict[str, Any] = {"color": "#999999", "linewidth": 1, "alpha": 0.7}
        if is_best:
            style = {"color": COLOURS[0], "linewidth": 2.5, "label": "best"}
        ax.plot(*zip(*points, strict=True), marker=".", **style)
    resources = [x for points, _ in lines for x, _ in points]
    # Resources grow by a constant factor, so they are evenly spaced on a logarithmic axis.
    if min(resources) > 0 and max(resources) > min(resources):
        ax.set_xscale("log")
        marks = sorted(set(resources))
        ax.set_xticks(marks, [f"{mark:g}" for mark in marks])
        ax.set_xticks([], minor=True)
    ax.set_xlabel(resource)
    ax.set_ylabel("mean test score")
    ax.legend()
    return ax


def _find_candidate_lines(search: Any) -> tuple[list[tuple[list[tuple[float, float]], bool]], str]:
    """Return (points, is_best) of each candidate, and the name of the resource.

    A point is (resource, mean test score), one for each rung that the candidate reached.
    """
    # Searches by partial fits (Hyperband) keep a history of scores after some passes.
    history = getattr(search, "history_", None)
    if isinstance(history, list) and history and "passes" in history[0]:
        by_number: dict[Any, list[tuple[float, float]]] = {}
        for row in history:
            point = (row["passes"], row["mean_test_score"])
            by_number.setdefault(row["candidate"], []).append(point)
        best = search.best_index_
        return [(sorted(points), number == best) for number, points in by_number.items()], "passes"
    results = _get_results(search)
    if "n_resources" not in results:
        raise InvalidParameterError(
            f"{type(search).__name__} has no rungs: give a fitted halving search or Hyperband; "
            "for other searches, use search_results."
        )
    resource = str(getattr(search, "resource", "resources"))
    # A halving search lists a candidate once per rung, each time with another resource.
    by_candidate: dict[Any, list[tuple[float, float]]] = {}
    for candidate, n, score in zip(
        results["params"], results["n_resources"], results["mean_test_score"], strict=True
    ):
        by_candidate.setdefault(_make_candidate_key(candidate, resource), []).append((n, score))
    best_key = _make_candidate_key(results["params"][search.best_index_], resource)
    return [(sorted(points), key == best_key) for key, points in by_candidate.items()], resource


def _make_candidate_key(params: dict[str, Any], resource: str) -> Any:
    """Return a hashable value that identifies a candidate regardless of its resource."""
    # The resource may itself be a parameter, such as n_estimators, which grows with each rung.
    return tuple(sorted((name, _make_key(v)) for name, v in params.items() if name != resource))


def _get_results(search: Any) -> Any:
    """Return the results of a search; raise if it is not fitted."""
    results = getattr(search, "cv_results_", None)
    if results is None:
        raise InvalidParameterError(
            f"{type(search).__name__} has no cv_results_: give a fitted search."
        )
    return results


def _get_column(results: Any, name: str) -> Any:
    """Return a column of the results; raise an error that names the available scores."""
    if name not in results:
        known = [key.removeprefix("mean_test_") for key in results if key.startswith("mean_test_")]
        raise InvalidParameterError(
            f"score={name.removeprefix('mean_test_')!r}: the search has {', '.join(known)}."
        )
    return results[name]


def _find_varying_params(candidates: list[dict[str, Any]]) -> list[str]:
    """Return the parameters that differ between candidates; the first one if none does."""
    names = list(dict.fromkeys(name for candidate in candidates for name in candidate))
    several = [n for n in names if len({_make_key(c[n]) for c in candidates if n in c}) > 1]
    return several or names[:1]


def _make_key(value: Any) -> Any:
    """Return a hashable value that identifies a parameter's value."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _list_values(candidate_values: list[Any]) -> list[Any]:
    """Return the distinct values of a parameter, sorted where that is possible."""
    values = list({_make_key(value): value for value in candidate_values}.values())
    try:
        return sorted(values)
    except (TypeError, ValueError):
        return values


def _find_best(candidates: Any, names: list[str], means: Any) -> dict[tuple[Any, ...], int]:
    """Return the index of the best candidate for each combination of values."""
    best: dict[tuple[Any, ...], int] = {}
    for number, candidate in enumerate(candidates):
        if not all(name in candidate for name in names):
            continue
        key = tuple(_make_key(candidate[name]) for name in names)
        known = best.get(key)
        # Failed candidates have NaN: any other candidate is better.
        if known is None or np.isnan(means[known]) or means[number] > means[known]:
            best[key] = number
    return best


def learning_rates(found: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the losses of a range test over its rates, and the rate that it suggests.

    Parameters
    ----------
    found : LearningRates
        Result of :func:`daskml_dist.model_selection.learning_rate_range`.
    ax : matplotlib.axes.Axes or None, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With a line of the losses, without fits that diverged, and a dashed line at the suggested
        rate. Losses far above that of the smallest rate are outside the axes.

    Raises
    ------
    InvalidParameterError
        The argument is not such a result.
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
            f"{found!r} has no rates: give the result of model_selection.learning_rate_range."
        )
    ax = get_axes(ax, "learning_rates")
    finite = np.isfinite(found.losses)
    losses = found.losses[finite]
    ax.plot(found.rates[finite], losses, marker=".", color=COLOURS[0])
    if len(losses):
        # The upper limit is as far above the first loss as the lowest loss is below it: losses just
        # before divergence are orders of magnitude larger, and would flatten the rest.
        low, first = losses.min(), losses[0]
        margin = max(first - low, 0.05 * abs(first), 1e-12)
        ax.set_ylim(low - 0.1 * margin, first + margin)
    if found.suggestion is not None:
        label = f"suggestion: {found.suggestion:.3g}"
        ax.axvline(found.suggestion, color=COLOURS[2], linestyle="--", label=label)
        ax.legend()
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    ax.set_ylabel("mean training loss")
    return ax
