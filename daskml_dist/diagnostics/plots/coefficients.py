"""Coefficients of a linear model, the largest first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from daskml_dist.diagnostics.curves import COLOURS
from daskml_dist.diagnostics.plots.canvas import get_axes
from daskml_dist.errors import InvalidParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def coefficients(
    estimator: Any,
    *,
    n: int = 20,
    label: Any = None,
    feature_names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the largest coefficients of a fitted linear model, with the names of their features.

    Parameters
    ----------
    estimator : fitted estimator with ``coef_``, or a pipeline that ends with one
    n : int, default=20
        Number of coefficients to draw, the largest in absolute value; >= 1.
    label : label, or int, or None, default=None
        Class whose coefficients are drawn, if there are several; with several targets, the index of
        a target. None: the only one.
    feature_names : sequence of str, or None, default=None
        Names of all features. None: the names that the model was fitted with (in a pipeline, the
        names that its steps return), or else their indices.
    ax : matplotlib.axes.Axes or None, default=None

    Returns
    -------
    matplotlib.axes.Axes
        With a bar for each coefficient, the largest at the top.

    Raises
    ------
    InvalidParameterError
        The estimator has no coefficients, `label` is missing or is not one of its labels, or the
        number of names is wrong.
    DaskMLDistError
        matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.diagnostics import plots
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> clf = SGDClassifier(max_iter=2, tol=None, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    >>> ax = plots.coefficients(clf)  # doctest: +SKIP
    """
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    found = getattr(last, "coef_", None)
    if found is None:
        raise InvalidParameterError(
            f"{type(last).__name__} has no coef_: give a fitted linear model."
        )
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise InvalidParameterError(f"n={n!r}: give a number of coefficients, >= 1.")
    # Coefficients may be sparse (`sparsify`); a regression has a one-dimensional array.
    if hasattr(found, "toarray"):
        found = found.toarray()
    coef = _select_label(last, np.atleast_2d(np.asarray(found)), label)
    names = _find_names(estimator, last, len(coef), feature_names)
    ax = get_axes(ax, "coefficients")
    # Bars are drawn from the bottom up, so the largest one must be last.
    largest = np.argsort(-np.abs(coef), kind="stable")[:n][::-1]
    values = coef[largest]
    # The colour shows the sign: blue for positive, red for negative.
    colours = [COLOURS[0] if value >= 0 else COLOURS[5] for value in values]
    ax.barh(range(len(values)), values, color=colours)
    ax.set_yticks(range(len(values)), [names[i] for i in largest])
    ax.axvline(0.0, color="black", linewidth=0.8)
    ax.set_xlabel("coefficient" if label is None else f"coefficient of {label}")
    return ax


def _select_label(estimator: Any, coef: Any, label: Any) -> Any:
    """Return the coefficients of one label or target, of shape (n_features,)."""
    if len(coef) == 1:
        if label is None:
            return coef[0]
        classes = getattr(estimator, "classes_", ())
        # A binary model has one row of coefficients, for the second label; negate it for the first.
        signs = dict(zip(classes, (-1, 1), strict=True)) if len(classes) == 2 else {0: 1}
    else:
        signs = dict.fromkeys(getattr(estimator, "classes_", range(len(coef))), 1)
    # A label in a list or an array has no hash.
    if not isinstance(label, Hashable) or label not in signs:
        raise InvalidParameterError(
            f"label={label!r}: choose one of {', '.join(repr(str(known)) for known in signs)}."
        )
    row = 0 if len(coef) == 1 else list(signs).index(label)
    return signs[label] * coef[row]


def _find_names(
    estimator: Any, last: Any, n: int, feature_names: Sequence[str] | None
) -> list[str]:
    """Return names of the features of a model: given ones, a pipeline's, the fit's, or numbers."""
    if (
        feature_names is None
        and estimator is not last
        and hasattr(estimator, "get_feature_names_out")
    ):
        # Steps need not have feature names.
        try:
            feature_names = estimator[:-1].get_feature_names_out()
        except (AttributeError, ValueError):
            feature_names = None
    if feature_names is None:
        feature_names = getattr(last, "feature_names_in_", None)
    names = (
        [str(i) for i in range(n)]
        if feature_names is None
        else [str(name) for name in feature_names]
    )
    if len(names) != n:
        raise InvalidParameterError(
            f"feature_names has {len(names)} names, and there are {n} coefficients."
        )
    return names
