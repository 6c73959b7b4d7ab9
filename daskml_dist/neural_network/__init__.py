"""Networks: multi-layer perceptrons by the names of scikit-learn, and modules of PyTorch."""

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
