"""Neural networks, trained under any policy."""

from daskml_dist.neural_network._torch_classifier import TorchClassifier
from daskml_dist.neural_network._torch_regressor import TorchRegressor

__all__ = ["TorchClassifier", "TorchRegressor"]
