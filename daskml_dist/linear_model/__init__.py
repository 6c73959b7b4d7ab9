"""Linear models, by the names of scikit-learn."""

from daskml_dist.linear_model.elastic_net import ElasticNet
from daskml_dist.linear_model.elastic_net_cv import ElasticNetCV
from daskml_dist.linear_model.gamma_regressor import GammaRegressor
from daskml_dist.linear_model.huber_regressor import HuberRegressor
from daskml_dist.linear_model.lasso import Lasso
from daskml_dist.linear_model.lasso_cv import LassoCV
from daskml_dist.linear_model.linear_regression import LinearRegression
from daskml_dist.linear_model.logistic_regression import LogisticRegression
from daskml_dist.linear_model.logistic_regression_cv import LogisticRegressionCV
from daskml_dist.linear_model.poisson_regressor import PoissonRegressor
from daskml_dist.linear_model.ridge import Ridge
from daskml_dist.linear_model.ridge_classifier import RidgeClassifier
from daskml_dist.linear_model.ridge_classifier_cv import RidgeClassifierCV
from daskml_dist.linear_model.ridge_cv import RidgeCV
from daskml_dist.linear_model.sgd_classifier import SGDClassifier
from daskml_dist.linear_model.sgd_regressor import SGDRegressor
from daskml_dist.linear_model.tweedie_regressor import TweedieRegressor

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
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "SGDClassifier",
    "SGDRegressor",
    "TweedieRegressor",
]
