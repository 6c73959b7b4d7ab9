"""Linear models, with scikit-learn's names."""

from daskml_dist.linear_model._glm import GammaRegressor, PoissonRegressor, TweedieRegressor
from daskml_dist.linear_model._ridge_cv import RidgeClassifierCV, RidgeCV
from daskml_dist.linear_model._summary import RegressionSummary
from daskml_dist.linear_model.elastic_net import ElasticNet, Lasso
from daskml_dist.linear_model.elastic_net_cv import ElasticNetCV, LassoCV
from daskml_dist.linear_model.huber_regressor import HuberRegressor
from daskml_dist.linear_model.linear_regression import LinearRegression
from daskml_dist.linear_model.logistic_regression import LogisticRegression
from daskml_dist.linear_model.logistic_regression_cv import LogisticRegressionCV
from daskml_dist.linear_model.ridge import Ridge
from daskml_dist.linear_model.ridge_classifier import RidgeClassifier
from daskml_dist.linear_model.sgd_classifier import SGDClassifier
from daskml_dist.linear_model.sgd_regressor import SGDRegressor

__all__ = [
    "ElasticNet",
    "ElasticNetCV",
    "GammaRegressor",
    "HuberRegressor",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "LogisticRegressionCV",
    "PoissonRegressor",
    "RegressionSummary",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
    "SGDRegressor",
    "TweedieRegressor",
]
