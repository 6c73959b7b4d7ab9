"""Networks: multi-layer perceptrons by the names of scikit-learn."""

from daskml_dist.neural_network.mlp_classifier import MLPClassifier
from daskml_dist.neural_network.mlp_regressor import MLPRegressor

__all__ = ["MLPClassifier", "MLPRegressor"]
