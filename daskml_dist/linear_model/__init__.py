"""Linear models, by the names of scikit-learn."""

from daskml_dist.linear_model.logistic_regression import LogisticRegression
from daskml_dist.linear_model.sgd_classifier import SGDClassifier
from daskml_dist.linear_model.sgd_regressor import SGDRegressor

__all__ = ["LogisticRegression", "SGDClassifier", "SGDRegressor"]
