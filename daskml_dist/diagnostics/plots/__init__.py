"""Pictures of fits, drawn with matplotlib.

Each function draws on `ax`, or on a new figure, and returns the Axes. matplotlib comes with
``pip install "daskml-dist[viz]"``, and is loaded as the first picture is drawn. Displays of curves
and matrices of predictions are scikit-learn's, in :mod:`daskml_dist.metrics`.
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
