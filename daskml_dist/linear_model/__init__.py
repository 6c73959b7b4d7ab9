"""Linear models, by the names of scikit-learn."""

from daskml_dist.linear_model.gamma_regressor import GammaRegressor
from daskml_dist.linear_model.huber_regressor import HuberRegressor
from daskml_dist.linear_model.logistic_regression import LogisticRegression
from daskml_dist.linear_model.poisson_regressor import PoissonRegressor
from daskml_dist.linear_model.sgd_classifier import SGDClassifier
from daskml_dist.linear_model.sgd_regressor import SGDRegressor
from daskml_dist.linear_model.tweedie_regressor import TweedieRegressor

__all__ = [
    "GammaRegressor",
    "HuberRegressor",
    "LogisticRegression",
    "PoissonRegressor",
    "SGDClassifier",
    "SGDRegressor",
    "TweedieRegressor",
]
