"""Plots of fits and searches, drawn with matplotlib.

Each function draws on `ax`, or on a new figure, and returns the Axes. matplotlib comes with
``pip install "daskml-dist[viz]"``, and is imported as the first plot is drawn. ROC curves and
confusion matrices are drawn by scikit-learn's displays, in :mod:`daskml_dist.metrics`.
"""

from daskml_dist.diagnostics.plots.coefficients import coefficients
from daskml_dist.diagnostics.plots.passes import lanes, learning_curves, staleness, traffic
from daskml_dist.diagnostics.plots.searches import learning_rates, rungs, search_results

__all__ = [
    "coefficients",
    "lanes",
    "learning_curves",
    "learning_rates",
    "rungs",
    "search_results",
    "staleness",
    "traffic",
]
