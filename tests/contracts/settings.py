"""Settings of the subjects, and tolerances of their results.

A subject that is not in the table is tested with its defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from daskml_dist import Run, linear_model, metrics, preprocessing
from tests.contracts.inputs import FEATURES

__all__ = ["DRAWN_METRICS", "ELSEWHERE", "SETTINGS", "TIGHT", "Setting"]

NUMBERS = ("normal", "counts", "mostly zero", "scales", "far", "constant column")
#: Shapes of data on which no gradient step can be too long.
TAME = ("normal", "mostly zero")
WORDS = ("words", "words missing", "codes")


@dataclass(frozen=True)
class Setting:
    """Setting of a subject, and how it is compared.

    Parameters
    ----------
    params : dict
        Parameters of the estimator.
    shapes, targets : tuple of str
        Kinds of data, and kinds of targets.
    rtol : float
        Tolerance between results of a collection and of the rows in memory.
    twin : dict or None
        Parameters of scikit-learn's class in addition to the shared ones; None: not compared.
    twin_rtol : float
        Tolerance between results and scikit-learn's.
    twin_is_weighted : bool
        Whether scikit-learn's class finds the optimum of weighted rows.
    unique : bool
        Whether the data determine the fitted attributes.
    wide_targets : bool
        Whether the optimum is still unique if targets spread ten times as far.
    """

    params: dict[str, Any] = field(default_factory=dict)
    shapes: tuple[str, ...] = NUMBERS
    targets: tuple[str, ...] = ("classes", "real", "positive")
    rtol: float = 1e-5
    twin: dict[str, Any] | None = field(default_factory=dict)
    twin_rtol: float = 1e-3
    twin_is_weighted: bool = True
    unique: bool = True
    wide_targets: bool = True

    @property
    def is_exact(self) -> bool:
        """Return whether a few rows are enough for a comparison."""
        return self.rtol < 1e-4


def _of(shapes: tuple[str, ...] = NUMBERS, **facts: Any) -> Callable[..., Setting]:
    return lambda **params: Setting(params, shapes, **facts)


TIGHT = {"tol": 1e-9, "max_iter": 2_000}
_FULL_BATCH = {
    "batch_size": None, "optimizer": "sgd", "learning_rate": 0.2, "max_iter": 6, "tol": None,
}  # fmt: skip
# With this strong penalty on weights there is one nearby optimum, whatever the order of sums.
_SMALL = {"hidden_layer_sizes": (4,), "activation": "tanh", "alpha": 1.0, "random_state": 0}
_STEPS = {"solver": "sgd", "batch_size": None, "learning_rate_init": 0.1, "max_iter": 6, "tol": 0.0}
_exact, _numbers = _of(rtol=1e-8, twin_rtol=1e-6), _of()
# scikit-learn's solvers stop early if columns differ by orders of magnitude.
_iterative = _of(("normal", "counts", "mostly zero", "constant column"))
_bounded = _of(("normal", "counts", "mostly zero", "constant column"), twin_rtol=1e-2)
_bounded_ridge = _of(
    ("normal", "counts", "mostly zero", "constant column"), twin={"tol": 1e-12, "max_iter": 100_000}
)
_positive = _of(("normal", "mostly zero", "constant column"), targets=("positive",))
_counts = _of(("counts",), rtol=1e-8, twin_rtol=1e-8)
_tame = _of(TAME, rtol=1e-7, twin=None)
_loose = _of(TAME, rtol=1e-3, twin_rtol=1e-2)
_scaled = _of((*NUMBERS, "missing"), rtol=1e-8, twin_rtol=1e-8)
_coded = _of(WORDS, rtol=1e-10, twin_rtol=1e-10)
_grouped = _of(("normal",))
# Eigenvectors rotate if eigenvalues are close to each other.
_turned = _of(("normal",), rtol=1e-6, twin_rtol=1e-5)
# Another path leads to another optimum.
_parts = partial(
    _of(("counts",), rtol=1e-6, twin=None), n_components=2, tol=0.0, max_iter=20, random_state=0
)
# scikit-learn's scores divide by the spread of constants, and lose digits to large means.
_scored = _of(("normal", "counts", "mostly zero"), targets=("classes",), rtol=1e-7, twin_rtol=1e-7)
_quantiles = _of(NUMBERS, rtol=1e-8, twin_rtol=1e-6)
_binned = _of(("normal", "counts", "scales", "constant column"), rtol=1e-8, twin_rtol=1e-8)


def _mixed(**params: Any) -> Setting:
    """Return settings with two components from the same start; scikit-learn ignores weights."""
    kind = params.get("covariance_type", "full")
    precisions = {"full": np.stack([np.eye(4)] * 2), "tied": np.eye(4), "diag": np.ones((2, 4))}
    start = {
        "weights_init": [0.5, 0.5],
        "means_init": np.eye(2, 4),
        "precisions_init": precisions.get(kind, np.ones(2)),
    }
    steps = {"n_components": 2, "max_iter": 4, "tol": 1e6, "reg_covar": 1e-2}
    return Setting(steps | start | params, ("normal",), rtol=1e-6, twin_rtol=1e-5)


def _layers(**params: Any) -> Setting:
    """Return settings of small networks; scikit-learn's stop by the loss, a little earlier.

    If two units of a layer have become equal, rounding decides which of them does what.
    """
    rounds = {"solver": "lbfgs", "tol": 1e-8, "max_iter": 1_000}
    steps = "batch_size" in params
    twin = None if steps else dict[str, Any]()
    rtol = 1e-6 if steps else 1e-5  # the objective is flat where a solver stops
    return Setting(
        _SMALL | rounds | params, TAME, rtol=rtol, twin=twin, twin_rtol=1e-2, unique=steps,
        wide_targets=steps,  # the penalty is as strong as targets of spread one need
    )  # fmt: skip


def _lines(kind: Any, name: str, **more: Any) -> list[tuple[str, Any]]:
    """Return members of a vote, with different penalties."""
    return [(f"of {value}", kind(**{name: value}, **more)) for value in (0.1, 10.0)]


#: Settings in which each subject is tested.
SETTINGS: dict[str, list[Setting]] = {
    "LinearRegression": [_exact(), _exact(fit_intercept=False), _bounded(positive=True)],
    "Ridge": [_exact(), _exact(alpha=10.0, fit_intercept=False), _bounded_ridge(positive=True)],
    # Rows without weight are left out too; their errors do not count.
    "RidgeCV": [
        _exact(),
        _exact(alphas=[0.1, 5.0], fit_intercept=False),
    ],
    "RidgeClassifier": [
        _exact(),
        # scikit-learn balances labels by the number of rows, not by their weights.
        _of(rtol=1e-8, twin_rtol=1e-6, twin_is_weighted=False)(alpha=10.0, class_weight="balanced"),
    ],
    "RidgeClassifierCV": [_exact(alphas=[0.1, 5.0])],
    "Lasso": [_numbers(alpha=0.05, tol=1e-10)],
    "ElasticNet": [_numbers(alpha=0.05, tol=1e-10), _numbers(alpha=0.1, l1_ratio=0.2, tol=1e-10)],
    "LogisticRegression": [
        _iterative(**TIGHT),
        _iterative(solver="newton-cholesky", class_weight="balanced", tol=1e-9),
        _iterative(C=0.1, fit_intercept=False, **TIGHT),
        _of(TAME, twin=None, rtol=1e-3)(penalty="l1", **TIGHT),
        _of(
            TAME,
            rtol=1e-3,
            twin={"solver": "saga", "max_iter": 5_000, "tol": 1e-7},
            twin_rtol=1e-2,
            twin_is_weighted=False,  # saga ends elsewhere each time, with a larger objective
        )(l1_ratio=1.0, C=0.3, **TIGHT),
    ],
    "PoissonRegressor": [_positive(**TIGHT), _positive(solver="newton-cholesky", tol=1e-9)],
    "GammaRegressor": [_positive(**TIGHT)],
    "TweedieRegressor": [_positive(power=1.5, **TIGHT), _positive(power=0, **TIGHT)],
    "HuberRegressor": [_loose(tol=1e-8, max_iter=1_000)],
    "LinearSVC": [_loose(tol=1e-9)],
    "LinearSVR": [_loose(tol=1e-9, loss="squared_epsilon_insensitive")],
    "SGDClassifier": [
        _tame(**_FULL_BATCH),
        _tame(policy="allreduce", class_weight="balanced", run=Run(n_lanes=3), **_FULL_BATCH),
        _tame(loss="squared_hinge", average=True, **_FULL_BATCH),
        _tame(loss="hinge", penalty="l1", alpha=0.01, **_FULL_BATCH),
    ],
    "SGDRegressor": [
        _tame(**_FULL_BATCH | {"learning_rate": 0.1}),
        _tame(policy="allreduce", run=Run(n_lanes=3), **_FULL_BATCH | {"learning_rate": 0.1}),
    ],
    "MLPClassifier": [_layers(), _layers(**_STEPS | {"activation": "relu"})],
    "MLPRegressor": [_layers(), _layers(**_STEPS)],
    "GaussianNB": [_exact()],
    "BernoulliNB": [_exact(), _exact(alpha=0.5, binarize=1.0)],
    "CategoricalNB": [_counts(), _counts(alpha=0.5, min_categories=9)],
    "ComplementNB": [_counts(), _counts(alpha=0.5, norm=True)],
    "MultinomialNB": [_counts(), _counts(alpha=0.5, fit_prior=False)],
    # Random centres depend on the positions of rows, which differ. No integer row is equally near
    # to two of the given centres: otherwise rounding would decide its cluster.
    "KMeans": [
        _grouped(
            n_clusters=3, init=np.sin(np.arange(12.0)).reshape(3, 4), n_init=1, tol=1e-9
        )
    ],
    # Batches are cut from the rows in the order of chunks, which differs; here one batch has all
    # rows.
    "MiniBatchKMeans": [
        _of(("normal",), rtol=1e-8, twin=None)(
            n_clusters=3,
            init=np.sin(np.arange(12.0)).reshape(3, 4),
            batch_size=1_000,
            max_iter=4,
            max_no_improvement=None,
            reassignment_ratio=0,
        )
    ],
    "GaussianMixture": [
        _mixed(),
        _mixed(covariance_type="tied"),
        _mixed(covariance_type="diag"),
        _mixed(covariance_type="spherical"),
    ],
    # Batches are cut from the rows in their order, which differs between cases; here one batch has
    # all rows.
    "IncrementalPCA": [_turned(n_components=2, batch_size=1_000)],
    "TruncatedSVD": [_turned()],
    "NMF": [
        _parts(),
        _parts(init="random", alpha_W=1e-3, l1_ratio=0.5),
        _parts(init="nndsvda", solver="mu", beta_loss="kullback-leibler"),
    ],
    "PCA": [_turned(), _turned(n_components=2, whiten=True)],
    "StandardScaler": [_scaled(), _scaled(with_mean=False)],
    "MinMaxScaler": [_scaled(), _scaled(feature_range=(-1, 2), clip=True)],
    "MaxAbsScaler": [_scaled()],
    "RobustScaler": [_scaled(), _scaled(unit_variance=True, quantile_range=(10, 90))],
    "QuantileTransformer": [_quantiles(n_quantiles=10), _quantiles(output_distribution="normal")],
    "KBinsDiscretizer": [
        _binned(n_bins=3),
        _binned(n_bins=[2, 3, 2, 4], strategy="uniform", encode="ordinal"),
        _binned(n_bins=2, encode="onehot-dense"),
    ],
    "PolynomialFeatures": [_exact(), _exact(degree=(2, 3), interaction_only=True)],
    "OneHotEncoder": [
        _coded(),
        _coded(drop="first"),
        _coded(max_categories=3, sparse_output=False),
    ],
    "OrdinalEncoder": [_coded(), _coded(max_categories=3, encoded_missing_value=-5)],
    "TargetEncoder": [_of(WORDS, rtol=1e-8, twin_rtol=1e-8)()],
    "SimpleImputer": [
        _scaled(),
        _scaled(strategy="median", add_indicator=True),
        _of((*WORDS, "missing"))(strategy="most_frequent"),
    ],
    "VarianceThreshold": [_scaled(), _scaled(threshold=0.5)],
    "SelectKBest": [_scored(k=2)],
    "SelectPercentile": [_scored(percentile=50)],
    "SelectFpr": [_scored(alpha=0.9)],
    "SelectFdr": [_scored(alpha=0.9)],
    "SelectFwe": [_scored(alpha=0.9)],
    "GenericUnivariateSelect": [_scored(mode="k_best", param=1)],
    "TfidfTransformer": [_counts()],
    "VotingClassifier": [
        _iterative(estimators=_lines(linear_model.LogisticRegression, "C", **TIGHT), voting="soft"),
        _iterative(estimators=_lines(linear_model.LogisticRegression, "C", **TIGHT)),
    ],
    "VotingRegressor": [_exact(estimators=_lines(linear_model.Ridge, "alpha"))],
    "ColumnTransformer": [
        _scaled(
            transformers=[
                ("scaled", preprocessing.StandardScaler(), FEATURES[2:]),
                ("kept", "passthrough", [FEATURES[1]]),
            ]
        )
    ],
}  # fmt: skip

#: Public classes that are not subjects by themselves, or do not take a table of numbers or words.
ELSEWHERE = {
    "ALS": "takes ratings of users and items",
    "BaggingClassifier": "what it draws belongs to numbers of rows, which differ",
    "BaggingRegressor": "what it draws belongs to numbers of rows, which differ",
    "BisectingKMeans": "what it draws belongs to places of rows, which differ",
    "Blockwise": "takes a transformer that learns nothing",
    "BlockwiseVotingClassifier": "its members belong to blocks, which differ",
    "BlockwiseVotingRegressor": "its members belong to blocks, which differ",
    "CalibratedClassifierCV": "its folds belong to places of rows, which differ",
    "ConformalClassifier": "its splits belong to places of rows, which differ",
    "ConformalRegressor": "its splits belong to places of rows, which differ",
    "ConformalizedQuantileRegressor": "its splits belong to places of rows, which differ",
    "Categorizer": "makes frames of frames",
    "CountVectorizer": "takes documents",
    "DecisionTreeClassifier": "what it draws belongs to numbers of rows and features, which differ",
    "DecisionTreeRegressor": "what it draws belongs to numbers of rows and features, which differ",
    "DeepFMClassifier": "columns become ids: compared in tests/recommender",
    "DummyEncoder": "makes frames of frames",
    "ElasticNetCV": "folds belong to places of rows, which differ",
    "ExtraTreesClassifier": "what it draws belongs to numbers of rows and features, which differ",
    "ExtraTreesRegressor": "what it draws belongs to numbers of rows and features, which differ",
    "FactorizationMachineClassifier": "columns become ids: compared in tests/recommender",
    "FactorizationMachineRegressor": "columns become ids: compared in tests/recommender",
    "FeatureHasher": "learns nothing, and takes dicts",
    "FieldAwareFMClassifier": "columns become ids: compared in tests/recommender",
    "FieldHasher": "makes 2**62 columns",
    "GridSearchCV": "fits others",
    "HalvingGridSearchCV": "fits others",
    "HalvingRandomSearchCV": "fits others",
    "HashingVectorizer": "learns nothing, and takes documents",
    "HistGradientBoostingRanker": "ranks rows of queries: compared in tests/ensemble",
    "HyperbandSearchCV": "fits others",
    "Incremental": "fits others",
    "IncrementalSearchCV": "fits others",
    "LabelEncoder": "takes labels alone",
    "LassoCV": "folds belong to places of rows, which differ",
    "LatentDirichletAllocation": "what rows begin with belongs to their blocks, which differ",
    "LogisticRegressionCV": "folds belong to places of rows, which differ",
    "MatrixFactorization": "takes ratings of users and items",
    "NamespaceHasher": "learns nothing, and takes dicts",
    "ParallelPostFit": "fits others",
    "RandomForestClassifier": "what it draws belongs to numbers of rows and features, which differ",
    "RandomForestRegressor": "what it draws belongs to numbers of rows and features, which differ",
    "RandomizedSearchCV": "fits others",
    "StackingClassifier": "its folds belong to places of rows, which differ",
    "StackingRegressor": "its folds belong to places of rows, which differ",
    "TfidfVectorizer": "takes documents",
    "TorchClassifier": "takes a module of torch",
    "TorchRegressor": "takes a module of torch",
    "TwoTower": "takes pairs of users and items",
    "WideAndDeepClassifier": "columns become ids: compared in tests/recommender",
    "ndcg_at_k": "takes frames of recommended items",
    "precision_at_k": "takes frames of recommended items",
}
#: Metrics that are tested; others are built like one of these, and are tested in `tests/metrics`.
DRAWN_METRICS = {
    "accuracy_score",
    "average_precision_score",
    "confusion_matrix",
    "log_loss",
    "mean_absolute_error",
    "mean_squared_error",
    "r2_score",
    "roc_auc_score",
    "root_mean_squared_error",
}
SCORES = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
OTHERS = SCORES - DRAWN_METRICS - ELSEWHERE.keys()
ELSEWHERE |= dict.fromkeys(sorted(OTHERS), "tests/metrics has it")
