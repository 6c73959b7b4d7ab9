"""Neural networks: multi-layer perceptrons with scikit-learn's names, and PyTorch modules."""

from daskml_dist.neural_network._torch.classifier import TorchClassifier
from daskml_dist.neural_network._torch.regressor import TorchRegressor
from daskml_dist.neural_network._torch.tables import GrowingEmbeddings
from daskml_dist.neural_network.mlp_classifier import MLPClassifier
from daskml_dist.neural_network.mlp_regressor import MLPRegressor

__all__ = [
    "GrowingEmbeddings",
    "MLPClassifier",
    "MLPRegressor",
    "TorchClassifier",
    "TorchRegressor",
]
