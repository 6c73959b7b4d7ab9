"""Typical mistakes of users: the error of each, and the words that name its remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import sklearn.linear_model
import sklearn.preprocessing
from scipy import sparse
from sklearn.pipeline import make_pipeline

import daskml_dist
from daskml_dist import Run, cluster, errors, inference, inspection, metrics, serving
from daskml_dist import model_selection as ms
from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.callbacks import (
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    EvalMonitor,
    OptunaPruning,
    TimeLimit,
)
from daskml_dist.compose import Blockwise, ColumnTransformer, make_column_transformer
from daskml_dist.decomposition import NMF, PCA, TruncatedSVD
from daskml_dist.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from daskml_dist.feature_extraction import CountVectorizer, FeatureHasher, TfidfVectorizer
from daskml_dist.frequent_patterns import association_rules, frequent_itemsets
from daskml_dist.graph import connected_components, pagerank
from daskml_dist.impute import SimpleImputer
from daskml_dist.linear_model import (
    ElasticNet,
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from daskml_dist.mixture import GaussianMixture
from daskml_dist.naive_bayes import CategoricalNB, GaussianNB, MultinomialNB
from daskml_dist.neural_network import MLPClassifier
from daskml_dist.policies import LocalSGD
from daskml_dist.preprocessing import (
    KBinsDiscretizer,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from daskml_dist.recommender import ALS, MatrixFactorization
from daskml_dist.streaming import PageHinkley, folder
from daskml_dist.tree import DecisionTreeClassifier

DATA, TYPE = errors.InvalidDataError, errors.InvalidTypeError
PARAMETER, UNFITTED = errors.InvalidParameterError, errors.NotFittedError
FILE = errors.ModelFileError

#: A mistake, the error that it raises, and words in its message that name the remedy.
Mistake = tuple[Callable[[], Any], type[errors.DaskMLDistError], str]

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
T = X[:, 0] + 1.0
NAMES = np.where(Y, "yes", "no").astype(object)
FRAME = pd.DataFrame(X, columns=["age", "pay", "days"])
WORDS = FRAME.assign(job=["clerk", "nurse"] * 20)
DATES = FRAME.assign(day=pd.date_range("2020-01-01", periods=40))
SPANS = FRAME.assign(wait=pd.timedelta_range("1h", periods=40))
LABELLED = FRAME.assign(label=Y)
HOLES = FRAME.assign(pay=FRAME["pay"].where(FRAME.index != 33))
ARRAY, LAZY_Y = da.from_array(X, chunks=(20, 3)), da.from_array(Y, chunks=20)
UNKNOWN = ARRAY[LAZY_Y > -1]


def lazy(frame: Any) -> Any:
    """Return the frame as a Dask dataframe."""
    return dd.from_pandas(frame, npartitions=2)


@cache
def fitted() -> Any:
    """Return a classifier fitted to three named columns."""
    return GaussianNB().fit(FRAME, Y)


def damaged(name: str) -> None:
    Path(name).write_bytes(b"no model")


def in_stream(do: Callable[[Any], Any], classes: Any = (0, 1)) -> Any:
    with SGDClassifier(max_iter=1).stream(classes=classes) as session:
        session.learn(X, Y)
        return do(session)


def published() -> str:
    """Return a registry with one version of one model."""
    serving.publish(fitted(), "models", "clicks")
    return "models"


#: Rows.
ROWS: dict[str, Mistake] = {
    "None for rows": (
        lambda: SGDClassifier().fit(None, Y), TYPE,
        "forget to return something?",
    ),
    "a path for rows": (
        lambda: LogisticRegression().fit("data/*.parquet", Y), DATA,
        "perhaps no file matched the path",
    ),
    "a Path for rows": (
        lambda: HistGradientBoostingClassifier().fit(Path("a.csv"), Y), DATA,
        "Check the path and its pattern",
    ),
    "a path for a transformer's rows": (
        lambda: StandardScaler().fit("a.csv"), DATA, "Check the path and its pattern",
    ),
    "a generator of rows": (
        lambda: GaussianNB().fit((row for row in X), Y), TYPE,
        "Convert it to an array, X = numpy.array(list(X)),",
    ),
    "a dict of columns": (
        lambda: SGDClassifier().fit({"a": T}, Y), TYPE,
        "Convert it to a dataframe: X = pandas.DataFrame(X)",
    ),
    "a dict of columns, scaled": (
        lambda: StandardScaler().fit({"a": T}), TYPE, "Convert it to a dataframe: X =",
    ),
    "a set of rows": (
        lambda: SGDClassifier().fit({1, 2}, Y), TYPE, "Pass a list or an array instead",
    ),
    "X and y as one tuple": (
        lambda: SGDClassifier().fit((X, Y[:, None]), Y), TYPE, "dask.array.concatenate",
    ),
    "several arrays": (
        lambda: SGDClassifier().fit([ARRAY, ARRAY], Y), TYPE, "dask.array.concatenate",
    ),
    "one column as an array": (
        lambda: SGDClassifier().fit(T, Y), DATA, "Reshape your data either using",
    ),
    "one column as a Series": (
        lambda: SGDClassifier().fit(FRAME["age"], Y), DATA, "pass a frame, df[['age']]",
    ),
    "one column as a Dask Series": (
        lambda: SGDClassifier().fit(lazy(FRAME)["age"], Y), DATA, "pass a frame, df[['age']]",
    ),
    "a Series to scale": (
        lambda: StandardScaler().fit(FRAME["age"]), DATA, "pass a frame, df[['age']]",
    ),
    "a Dask Series to scale": (
        lambda: StandardScaler().fit(lazy(FRAME)["age"]), DATA, "pass a frame, df[['age']]",
    ),
    "a Dask Series to cluster": (
        lambda: cluster.KMeans(2).fit(lazy(FRAME)["age"]), DATA, "pass a frame, df[['age']]",
    ),
    "a Dask Series to encode": (
        lambda: OneHotEncoder().fit(lazy(WORDS)["job"]), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "a Series to encode": (
        lambda: OneHotEncoder().fit(WORDS["job"]), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "images": (
        lambda: SGDClassifier().fit(X[:, :, None], Y), DATA,
        "PyTorch networks (TorchClassifier) accept such",
    ),
    "a number for rows": (
        lambda: SGDClassifier().fit(5, Y), DATA, "Reshape your data either using",
    ),
    "a list of texts": (
        lambda: SGDClassifier().fit(["a text"] * 40, Y), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "a list of texts to cluster": (
        lambda: cluster.KMeans(2).fit(["a text"] * 40), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "a list of texts to a tree": (
        lambda: RandomForestClassifier().fit(["a text"] * 40, Y), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "an array of texts": (
        lambda: SGDClassifier().fit(np.array(["a text"] * 40), Y), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "a Series of texts": (
        lambda: SGDClassifier().fit(pd.Series(["a text"] * 40), Y), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "a Dask Series of texts": (
        lambda: SGDClassifier().fit(lazy(WORDS)["job"], Y), DATA,
        "a vectorizer of daskml_dist.feature_extraction",
    ),
    "rows of unequal length": (
        lambda: SGDClassifier().fit([[1.0], [1.0, 2.0]], [0, 1]), DATA, "Pass rows of equal length",
    ),
    "no rows": (
        lambda: SGDClassifier().fit(X[:0], Y[:0]), DATA,
        "Check the files or the filter that X comes",
    ),
    "no rows, lazily": (
        lambda: SGDClassifier().fit(ARRAY[:0], LAZY_Y[:0]), DATA,
        "Check the files or the filter that X comes",
    ),
    "no columns": (
        lambda: SGDClassifier().fit(X[:, :0], Y), DATA, "Select at least one column of X",
    ),
    "a missing value": (
        lambda: SGDClassifier().fit(HOLES, Y), DATA,
        "Drop such rows (`dropna()` of a dataframe) or",
    ),
    "a missing value, lazily": (
        lambda: cluster.KMeans(2).fit(lazy(HOLES)), DATA,
        "Drop such rows (`dropna()` of a dataframe) or",
    ),
    "infinity": (
        lambda: LogisticRegression().fit(np.where(X > 1, np.inf, X), Y), DATA,
        "Drop such rows (`dropna()` of a dataframe) or",
    ),
    "infinity, scaled": (
        lambda: StandardScaler().fit(np.where(X > 1, np.inf, X)), DATA,
        "Replace it, for example X.replace([inf, -inf],",
    ),
    "a column of words": (
        lambda: SGDClassifier().fit(WORDS, Y), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "a column of words, lazily": (
        lambda: SGDClassifier().fit(lazy(WORDS), LAZY_Y), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "a column of words, scaled": (
        lambda: StandardScaler().fit(WORDS), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "a column of words for boosting": (
        lambda: HistGradientBoostingClassifier().fit(WORDS, Y), DATA,
        "X = X.astype({'job': 'category'})",
    ),
    "a column of words for boosting, lazily": (
        lambda: HistGradientBoostingClassifier().fit(lazy(WORDS), LAZY_Y), DATA,
        "X = X.categorize(['job'])",
    ),
    "a column of categories": (
        lambda: SGDClassifier().fit(WORDS.astype({"job": "category"}), Y), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "dates": (lambda: SGDClassifier().fit(DATES, Y), DATA, ".dt.hour"),
    "dates, lazily": (lambda: SGDClassifier().fit(lazy(DATES), LAZY_Y), DATA, ".dt.hour"),
    "dates with a zone": (
        lambda: SGDClassifier().fit(DATES.assign(day=DATES["day"].dt.tz_localize("UTC")), Y), DATA,
        ".dt.hour",
    ),
    "dates, scaled": (lambda: StandardScaler().fit(DATES), DATA, ".dt.hour"),
    "dates, scaled lazily": (lambda: StandardScaler().fit(lazy(DATES)), DATA, ".dt.hour"),
    "dates for boosting": (lambda: HistGradientBoostingRegressor().fit(DATES, T), DATA, ".dt.hour"),
    "dates to cluster": (lambda: cluster.KMeans(2).fit(DATES), DATA, ".dt.hour"),
    "dates alone": (
        lambda: SGDClassifier().fit(DATES[["day"]].to_numpy(), Y), DATA,
        "Pass numbers instead of dates, such as the",
    ),
    "dates alone, scaled": (
        lambda: StandardScaler().fit(DATES[["day"]].to_numpy()), DATA,
        "Pass numbers instead of dates, such as the",
    ),
    "dates as objects": (
        lambda: SGDClassifier().fit(DATES[["age", "day"]].to_numpy(), Y), TYPE,
        "Convert each to a number first",
    ),
    "times that pass": (
        lambda: SGDClassifier().fit(SPANS, Y), DATA, "Convert the time spans ['wait']:",
    ),
    "times that pass, lazily": (
        lambda: PCA(2).fit(lazy(SPANS)), DATA, "Convert the time spans ['wait']:",
    ),
    "times that pass, scaled": (
        lambda: MinMaxScaler().fit(SPANS), DATA, "Convert the time spans ['wait']:",
    ),
    "times that pass alone": (
        lambda: SGDClassifier().fit(SPANS[["wait"]].to_numpy(), Y), DATA,
        "Pass numbers instead of time spans, such as",
    ),
    "periods": (
        lambda: SGDClassifier().fit(DATES.assign(day=DATES["day"].dt.to_period("M")), Y), DATA,
        "Extract numbers from the periods ['day'], such",
    ),
    "complex numbers": (
        lambda: SGDClassifier().fit(X + 1j, Y), DATA, "Pass X.real and X.imag instead",
    ),
    "two columns of one name": (
        lambda: SGDClassifier().fit(pd.DataFrame(X, columns=["a", "a", "b"]), Y), DATA,
        "Give each its own name (X.columns =",
    ),
    "names and numbers for columns": (
        lambda: SGDClassifier().fit(pd.DataFrame(X, columns=["a", 1, 2]), Y), TYPE,
        "Convert them: X.columns = X.columns.astype(str)",
    ),
    "a function for rows": (
        lambda: SGDClassifier().fit(lambda: X, Y), TYPE,
        "Pass the array, dataframe or Dask collection",
    ),
    "a Dask Bag": (
        lambda: SGDClassifier().fit(db.from_sequence(X.tolist()), Y), DATA,
        "Pass a Dask Array or DataFrame, for example",
    ),
    "a Dask Bag to scale": (
        lambda: StandardScaler().fit(db.from_sequence(X.tolist())), DATA,
        "Pass a Dask Array or DataFrame, for example",
    ),
    "unknown chunks beside others": (
        lambda: SGDClassifier().fit(UNKNOWN, da.from_array(Y, chunks=30)), DATA,
        "Pass the same rows in both; if chunk sizes are",
    ),
    "texts of bytes": (
        lambda: SGDClassifier().fit(np.array([[b"a"]] * 40), Y), DATA,
        "if it holds numbers, X = X.astype('float64')",
    ),
    "X and y swapped": (lambda: SGDClassifier().fit(Y, X), DATA, "they are swapped"),
    "X and y swapped, lazily": (
        lambda: SGDClassifier().fit(LAZY_Y, ARRAY), DATA, "they are swapped",
    ),
    "X and y swapped in frames": (
        lambda: LinearRegression().fit(FRAME["age"], FRAME[["pay", "days"]]), DATA,
        "they are swapped",
    ),
    "X and y swapped in Dask frames": (
        lambda: LogisticRegression().fit(lazy(FRAME)["age"], lazy(FRAME)[["pay", "days"]]), DATA,
        "they are swapped",
    ),
    "X and y swapped in a score": (lambda: fitted().score(Y, X), DATA, "they are swapped"),
    "X and y swapped in a split": (
        lambda: ms.cross_val_score(GaussianNB(), Y, X), DATA, "they are swapped",
    ),
    "the label left in X": (
        lambda: SGDClassifier().fit(WORDS, WORDS["job"]), DATA, "X.drop(columns='job')",
    ),
    "the label left in X, lazily": (
        lambda: SGDClassifier().fit(lazy(WORDS), lazy(WORDS)["job"]), DATA, "X.drop(columns='job')",
    ),
}  # fmt: skip

#: Targets and weights.
TARGETS: dict[str, Mistake] = {
    "no target": (lambda: SGDClassifier().fit(X), DATA, "Pass y as well"),
    "no target for a search": (
        lambda: ms.GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9]}, cv=2).fit(X), DATA,
        "Pass y as well",
    ),
    "no target for a regressor": (lambda: Ridge().fit(X, None), DATA, "Pass y as well"),
    "a number for a target": (
        lambda: Ridge().fit(X, 1), TYPE, "Pass one value per row: an array, or a Dask",
    ),
    "a target of other length": (
        lambda: SGDClassifier().fit(X, Y[:30]), DATA, "Pass the same rows in each",
    ),
    "a target of other length, lazily": (
        lambda: SGDClassifier().fit(ARRAY, LAZY_Y[:30]), DATA, "Pass the same rows in each",
    ),
    "words for a regressor": (
        lambda: SGDRegressor().fit(X, NAMES), DATA, "use a classifier for labels",
    ),
    "words for a regressor, lazily": (
        lambda: LinearRegression().fit(lazy(FRAME), lazy(WORDS)["job"]), DATA,
        "use a classifier for labels",
    ),
    "words for a forest of numbers": (
        lambda: RandomForestRegressor().fit(X, NAMES), DATA, "use a classifier for labels",
    ),
    "words for boosting of numbers": (
        lambda: HistGradientBoostingRegressor().fit(X, list(NAMES)), DATA,
        "use a classifier for labels",
    ),
    "categories for a regressor": (
        lambda: Ridge().fit(X, WORDS["job"].astype("category")), DATA,
        "use a classifier for labels",
    ),
    "numbers for a classifier": (
        lambda: SGDClassifier().fit(X, T), DATA, "Use a regressor for a continuous target",
    ),
    "numbers for a classifier, lazily": (
        lambda: LogisticRegression().fit(ARRAY, da.from_array(T, chunks=20)), DATA,
        "Use a regressor for a continuous target",
    ),
    "numbers for boosting of labels": (
        lambda: HistGradientBoostingClassifier().fit(X, T), DATA,
        "Use a regressor for a continuous target",
    ),
    "missing labels": (
        lambda: GaussianNB().fit(X, np.where(Y, "a", None)), DATA,
        "Drop such rows first: keep = ~y.isna() of a",
    ),
    "missing targets": (
        lambda: Ridge().fit(X, np.where(Y, T, np.nan)), DATA,
        "Drop such rows from X, y and sample_weight",
    ),
    "one class": (
        lambda: SGDClassifier().fit(X, np.ones(40)), DATA, "Check how the rows were filtered",
    ),
    "dates for a target": (
        lambda: Ridge().fit(X, DATES["day"]), DATA, "Pass numbers instead of dates, such as the",
    ),
    "times that pass for a target": (
        lambda: Ridge().fit(X, SPANS["wait"]), DATA,
        "Pass numbers instead of time spans, such as",
    ),
    "times that pass for a target, lazily": (
        lambda: Ridge().fit(lazy(FRAME), lazy(SPANS)["wait"]), DATA,
        "Pass numbers instead of time spans, such as",
    ),
    "dates for labels": (
        lambda: SGDClassifier().fit(X, DATES["day"].dt.date), DATA,
        "Convert the labels to one type, strings or",
    ),
    "a generator of labels": (
        lambda: GaussianNB().fit(X, (v for v in Y)), TYPE,
        "Convert it to an array, y = numpy.array(list(y)),",
    ),
    "a dict for a target": (
        lambda: Ridge().fit(X, {"y": T}), TYPE, "Convert it to a dataframe: y =",
    ),
    "a column that is not there": (
        lambda: SGDClassifier().fit(LABELLED, "Label"), DATA, "Did you mean 'label'?",
    ),
    "a column that is not there, lazily": (
        lambda: SGDClassifier().fit(lazy(LABELLED), y="lable"), DATA, "Did you mean 'label'?",
    ),
    "the name of an array's column": (
        lambda: SGDClassifier().fit(X, "label"), DATA, "X.pop('label')",
    ),
    "columns that are not there": (
        lambda: MLPClassifier().fit(LABELLED, ["label", "more"]), DATA,
        "Name columns of the dataframe, or pass the",
    ),
    "indicators for labels": (
        lambda: SGDClassifier().fit(X, np.eye(3)[Y]), DATA, "Pass one column, for example y[:, 0]",
    ),
    "indicators for labels of a frame": (
        lambda: SGDClassifier().fit(X, pd.get_dummies(WORDS["job"])), DATA,
        "Pass one column, for example y[:, 0]",
    ),
    "labels of bytes": (
        lambda: SGDClassifier().fit(X, NAMES.astype("S")),
        DATA,
        "Decode them: numpy.asarray(y, 'S').astype(str)",
    ),
    "labels of several types": (
        lambda: SGDClassifier().fit(X, np.array([1, "a"] * 20, dtype=object)), DATA,
        "Convert the labels to one type, strings or",
    ),
    "a sparse target": (
        lambda: SGDClassifier().fit(X, sparse.csr_matrix(Y[:, None])), DATA, "Pass y.toarray()",
    ),
    "complex targets": (lambda: Ridge().fit(X, T + 1j), DATA, "Pass y.real and y.imag instead"),
    "negative counts": (
        lambda: PoissonRegressor().fit(X, -np.abs(T)), DATA,
        "Correct them, or use loss='squared_error'",
    ),
    "a zero for a gamma distribution": (
        lambda: GammaRegressor().fit(X, np.zeros(40)), DATA,
        "Correct them, or use loss='squared_error'",
    ),
    "an infinite target": (
        lambda: LinearRegression().fit(X, np.where(Y, np.inf, T)), DATA,
        "Drop such rows from X, y and sample_weight",
    ),
    "negative weights": (
        lambda: SGDClassifier().fit(X, Y, sample_weight=-np.ones(40)), DATA,
        "Weights count rows: make them zero or more",
    ),
    "missing weights": (
        lambda: Ridge().fit(X, T, sample_weight=np.full(40, np.nan)), DATA,
        "Drop such rows from X, y and sample_weight",
    ),
    "weights of other length": (
        lambda: SGDClassifier().fit(X, Y, sample_weight=np.ones(30)), DATA,
        "Pass the same rows in each",
    ),
    "weights of zero": (
        lambda: GaussianNB().fit(X, Y, sample_weight=np.zeros(40)), DATA,
        "Give some rows a positive weight",
    ),
    "a matrix of weights": (
        lambda: Ridge().fit(X, T, sample_weight=np.ones((40, 2))), DATA,
        "one column such as sample_weight[:, 0]",
    ),
    "a weight for each class": (
        lambda: SGDClassifier().fit(X, Y, sample_weight="balanced"), DATA,
        "class_weight='balanced'",
    ),
    "a column of weights that is not there": (
        lambda: SGDClassifier().fit(LABELLED, "label", sample_weight="weight"), DATA,
        "Name a column of a dataframe, or pass the",
    ),
    "words for weights": (
        lambda: SGDClassifier().fit(X, Y, sample_weight=NAMES), DATA,
        "if it holds numbers, sample_weight =",
    ),
}  # fmt: skip

#: Calls of methods.
CALLS: dict[str, Mistake] = {
    "epochs of a fit": (
        lambda: SGDClassifier().fit(X, Y, epochs=3), TYPE, "Here it is named 'max_iter'",
    ),
    "iterations of a fit": (
        lambda: LogisticRegression().fit(X, Y, max_iter=3), TYPE,
        "a parameter of the constructor: LogisticRegression(max_iter=",
    ),
    "batches of a fit": (
        lambda: MLPClassifier().fit(X, Y, batch_size=3), TYPE,
        "a parameter of the constructor: MLPClassifier(batch_size=",
    ),
    "callbacks of a fit": (
        lambda: SGDClassifier().fit(X, Y, callbacks=[]), TYPE,
        "a parameter of the constructor: SGDClassifier(callbacks=",
    ),
    "validation_data of a fit": (
        lambda: MLPClassifier().fit(X, Y, validation_data=(X, Y)), TYPE,
        "Here it is named 'eval_set'",
    ),
    "rounds to stop early": (
        lambda: HistGradientBoostingClassifier().fit(X, Y, early_stopping_rounds=3), TYPE,
        "Here it is named 'n_iter_no_change'",
    ),
    "eval_set of a fit without": (
        lambda: LogisticRegression().fit(X, Y, eval_set=[(X, Y)]), TYPE, "Its arguments are (X, y",
    ),
    "evals of boosting": (
        lambda: HistGradientBoostingClassifier().fit(X, Y, evals=[(X, Y)]), TYPE,
        "Here it is named 'eval_set'",
    ),
    "eval_set of boosting without labels": (
        lambda: HistGradientBoostingClassifier().fit(X, Y, eval_set=[X]), PARAMETER,
        "eval_set=(X_val, y_val)",
    ),
    "scores of boosting without rows": (
        lambda: HistGradientBoostingClassifier().fit(X, Y, scoring=["accuracy"]), PARAMETER,
        "pass the rows to score",
    ),
    "weights by another name": (
        lambda: SGDClassifier().fit(X, Y, weights=np.ones(40)), TYPE,
        "Here it is named 'sample_weight'",
    ),
    "weights by another name, in a transformer": (
        lambda: StandardScaler().fit(X, weights=np.ones(40)), TYPE,
        "Here it is named 'sample_weight'",
    ),
    "verbose in a fit": (
        lambda: SGDClassifier().fit(X, Y, verbose=1), TYPE,
        "a parameter of the constructor: SGDClassifier(verbose=",
    ),
    "an argument that nobody knows": (
        lambda: cluster.KMeans(2).fit(X, groups=Y), TYPE, "Its arguments are (X, y=None,",
    ),
    "an argument of a vectorizer that nobody knows": (
        lambda: CountVectorizer().fit(["a b"], stop_words="english"), TYPE,
        "a parameter of the constructor: CountVectorizer(stop_words=",
    ),
    "too many arguments": (
        lambda: cluster.KMeans(2).fit(X, None, None, 3), TYPE, "Its arguments are (X, y=None,",
    ),
    "no arguments": (lambda: SGDClassifier().fit(), TYPE, "Its arguments are (X, y=None,"),
    "a score without labels": (
        lambda: fitted().score(FRAME), TYPE, "Its arguments are (X, y, sample_weight=None)",
    ),
    "eval_set without labels": (
        lambda: SGDClassifier().fit(X, Y, eval_set=X), PARAMETER, "eval_set=(X_val, y_val)",
    ),
    "eval_set of one row of pairs": (
        lambda: SGDClassifier().fit(X, Y, eval_set=[X, Y, Y, Y]), PARAMETER,
        "eval_set=(X_val, y_val)",
    ),
    "scoring of another name": (
        lambda: SGDClassifier().fit(X, Y, eval_set=(X, Y), scoring="acc"), PARAMETER,
        "Did you mean 'accuracy'?",
    ),
    "a policy of a fit": (
        lambda: SGDClassifier().fit(X, Y, policy="fastest"), PARAMETER,
        "Use one of ['allreduce', 'async', 'average',",
    ),
    "predict before fit": (
        lambda: SGDClassifier().predict(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "predict_proba before fit": (
        lambda: LogisticRegression().predict_proba(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "predict of a forest before fit": (
        lambda: RandomForestClassifier().predict(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "transform before fit": (
        lambda: StandardScaler().transform(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "transform before fit, lazily": (
        lambda: StandardScaler().transform(ARRAY), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "a prediction of an ensemble before fit": (
        lambda: VotingClassifier([("a", GaussianNB())]).predict(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "a score before fit": (
        lambda: GaussianNB().score(X, Y), UNFITTED, "Call 'fit' with appropriate arguments before",
    ),
    "more columns than those of the fit": (
        lambda: fitted().predict(np.ones((3, 4))), DATA, "Select the columns that it was fitted on",
    ),
    "more columns than those of the fit, lazily": (
        lambda: fitted().predict(da.ones((3, 4))), DATA, "Select the columns that it was fitted on",
    ),
    "more columns to transform": (
        lambda: StandardScaler().fit(X).transform(np.ones((3, 4))), DATA,
        "Select the columns that it was fitted on",
    ),
    "other columns": (
        lambda: fitted().predict(FRAME.rename(columns={"age": "years"})), DATA,
        "Pass the columns of the fit, in their order:",
    ),
    "columns in another order": (
        lambda: fitted().predict(FRAME[["pay", "age", "days"]]), DATA,
        "Pass the columns of the fit, in their order:",
    ),
    "the label among new columns": (
        lambda: fitted().predict(LABELLED), DATA, "Pass the columns of the fit, in their order:",
    ),
    "the label among new columns, lazily": (
        lambda: fitted().predict(lazy(LABELLED)), DATA,
        "Pass the columns of the fit, in their order:",
    ),
    "a row alone": (lambda: fitted().predict(X[0]), DATA, "Reshape your data either using"),
    "a row of a frame alone": (
        lambda: fitted().predict(FRAME.iloc[0]), DATA, "pass a frame, df[[0]]",
    ),
    "a dict as a row": (
        lambda: fitted().predict({"age": 1.0, "pay": 1.0, "days": 1.0}), TYPE,
        "Convert it to a dataframe: X = pandas.DataFrame([X])",
    ),
    "a list of dicts as rows": (
        lambda: fitted().predict([{"age": 1.0, "pay": 1.0, "days": 1.0}]), DATA,
        "Make a frame of the dicts: X =",
    ),
    "no rows to predict": (
        lambda: fitted().predict(None), TYPE, "forget to return something?",
    ),
    "words to predict": (
        lambda: fitted().predict(WORDS.assign(days=WORDS["job"])[["age", "pay", "days"]]), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "a missing value to predict": (
        lambda: fitted().predict(HOLES), DATA, "Drop such rows (`dropna()` of a dataframe) or",
    ),
    "labels that are texts in a score": (
        lambda: fitted().score(FRAME, NAMES), DATA, "to one type, for example y.astype(str)",
    ),
    "fewer labels in a score": (
        lambda: fitted().score(FRAME, Y[:30]), DATA, "Pass the same rows in each",
    ),
}  # fmt: skip

#: Parameters of constructors.
PARAMETERS: dict[str, Mistake] = {
    "an old name of a loss": (
        lambda: SGDClassifier(loss="log").fit(X, Y), PARAMETER, "Did you mean 'log_loss'?",
    ),
    "logistic": (
        lambda: SGDClassifier(loss="logistic").fit(X, Y), PARAMETER, "Did you mean 'log_loss'?",
    ),
    "mse": (lambda: SGDRegressor(loss="mse").fit(X, T), PARAMETER, "Did you mean 'squared_error'?"),
    "mae": (
        lambda: SGDRegressor(loss="mae").fit(X, T), PARAMETER,
        "Use one of ['epsilon_insensitive', 'gamma',",
    ),
    "cross_entropy": (
        lambda: SGDClassifier(loss="cross_entropy").fit(X, T), PARAMETER,
        "Did you mean 'log_loss'?",
    ),
    "binary_crossentropy": (
        lambda: HistGradientBoostingClassifier(loss="binary_crossentropy").fit(X, Y), PARAMETER,
        "Did you mean 'log_loss'?",
    ),
    "a loss of labels for numbers": (
        lambda: SGDRegressor(loss="log_loss").fit(X, T), PARAMETER,
        "Use one of ['epsilon_insensitive', 'gamma',",
    ),
    "reg:squarederror": (
        lambda: HistGradientBoostingRegressor(loss="reg:squarederror").fit(X, T), PARAMETER,
        "Did you mean 'squared_error'?",
    ),
    "a loss's class": (
        lambda: SGDClassifier(loss=LocalSGD).fit(X, Y), PARAMETER,
        "pass an instance, LocalSGD()",
    ),
    "cuda": (lambda: SGDClassifier(device="cuda").fit(X, Y), PARAMETER, "Did you mean 'gpu'?"),
    "cuda:0": (
        lambda: LogisticRegression(device="cuda:0").fit(X, Y), PARAMETER, "Did you mean 'gpu'?",
    ),
    "CPU": (lambda: LogisticRegression(device="CPU").fit(X, Y), PARAMETER, "Did you mean 'cpu'?"),
    "none as a penalty": (
        lambda: SGDClassifier(penalty="none").fit(X, Y), PARAMETER, "Did you mean None?",
    ),
    "none as a penalty of a logistic regression": (
        lambda: LogisticRegression(penalty="none").fit(X, Y), PARAMETER, "Did you mean None?",
    ),
    "ridge": (lambda: SGDClassifier(penalty="ridge").fit(X, Y), PARAMETER, "Did you mean 'l2'?"),
    "lasso": (lambda: SGDClassifier(penalty="lasso").fit(X, Y), PARAMETER, "Did you mean 'l1'?"),
    "a solver of a ridge": (
        lambda: Ridge(solver="choleski").fit(X, T), PARAMETER, "Did you mean 'cholesky'?",
    ),
    "adaptive": (
        lambda: SGDClassifier(learning_rate="adaptiv").fit(X, Y), PARAMETER,
        "use a finite number > 0, one of ['auto',",
    ),
    "no rate": (
        lambda: SGDClassifier(learning_rate=0).fit(X, Y), PARAMETER,
        "use a finite number > 0, one of ['auto',",
    ),
    "RMSprop": (
        lambda: SGDClassifier(optimizer="RMSprop").fit(X, Y), PARAMETER,
        "use one of ['sgd', 'momentum', 'nesterov',",
    ),
    "AdamW": (
        lambda: MLPClassifier(optimizer="adam_w").fit(X, Y), PARAMETER, "Did you mean 'adamw'?",
    ),
    "a policy by another name": (
        lambda: SGDClassifier(policy="asynchronous").fit(X, Y), PARAMETER, "Did you mean 'async'?",
    ),
    "a policy's class": (
        lambda: SGDClassifier(policy=LocalSGD).fit(X, Y), PARAMETER,
        "pass an instance, LocalSGD()",
    ),
    "lanes as a parameter": (
        lambda: SGDClassifier(n_lanes=2), TYPE, "It belongs to run: run=Run(n_lanes=...)",
    ),
    "a dict for a Run": (
        lambda: SGDClassifier(run={"n_lanes": 2}).fit(X, Y), PARAMETER,
        "use daskml_dist.Run, for example",
    ),
    "half a lane": (
        lambda: SGDClassifier(run=Run(n_lanes=0.5)).fit(X, Y), PARAMETER, "use an integer >= 1",
    ),
    "a Run's parameter by another name": (lambda: Run(lanes=2), TYPE, "Did you mean 'n_lanes'?"),
    "a memory budget": (
        lambda: SGDClassifier(run=Run(memory_budget="much")).fit(X, Y), PARAMETER,
        'use "auto", a number of bytes, or a string',
    ),
    "a Run's parameter that is not used": (
        lambda: LogisticRegression(run=Run(n_servers=2)).fit(X, Y), PARAMETER,
        "it only uses n_lanes, deterministic,",
    ),
    "a path for a checkpoint": (
        lambda: SGDClassifier(checkpoint="c.npz").fit(X, Y), PARAMETER,
        "use Checkpoint(path, every=1) of",
    ),
    "a path for a network's checkpoint": (
        lambda: MLPClassifier(checkpoint="c.npz").fit(X, Y), PARAMETER,
        "use Checkpoint(path, every=1) of",
    ),
    "a name for callbacks": (
        lambda: SGDClassifier(callbacks="early_stopping").fit(X, Y), PARAMETER,
        "it needs one or more of on_phase, on_fit_begin,",
    ),
    "a class for a callback": (
        lambda: SGDClassifier(callbacks=[EarlyStopping]).fit(X, Y), PARAMETER,
        "pass an instance, as in",
    ),
    "a function for a callback": (
        lambda: LogisticRegression(callbacks=[print]).fit(X, Y), PARAMETER,
        "it needs one or more of on_phase, on_fit_begin,",
    ),
    "epochs": (lambda: SGDClassifier(epochs=3), TYPE, "Here it is named 'max_iter'"),
    "lr": (lambda: SGDClassifier(lr=0.1), TYPE, "Here it is named 'learning_rate'"),
    "lambda": (lambda: Ridge(**{"lambda": 0.1}), TYPE, "Here it is named 'alpha'"),
    "trees": (
        lambda: HistGradientBoostingClassifier(n_estimators=3), TYPE,
        "Here it is named 'max_iter'",
    ),
    "leaves": (
        lambda: HistGradientBoostingClassifier(num_leaves=3), TYPE,
        "Here it is named 'max_leaf_nodes'",
    ),
    "k": (lambda: cluster.KMeans(k=3), TYPE, "Here it is named 'n_clusters'"),
    "seed": (lambda: cluster.KMeans(seed=3), TYPE, "Here it is named 'random_state'"),
    "too many parameters in their order": (
        lambda: SGDClassifier("log_loss", "l2"), TYPE, "Pass the others by name, such as",
    ),
    "an unknown parameter to set": (
        lambda: SGDClassifier().set_params(alpah=1), PARAMETER, "Did you mean 'alpha'?",
    ),
    "an unknown parameter of a scaler": (
        lambda: StandardScaler(mean=True), TYPE, "It has copy, with_mean, with_std",
    ),
    "an unknown parameter of a scaler to set": (
        lambda: StandardScaler().set_params(mean=True), PARAMETER,
        "Valid parameters are: ['copy', 'with_mean',",
    ),
    "sparse of an encoder": (
        lambda: OneHotEncoder(sparse=False), TYPE, "It has categories, drop, dtype,",
    ),
    "base_estimator": (
        lambda: BaggingClassifier(base_estimator=GaussianNB()), TYPE, "Did you mean 'estimator'?",
    ),
    "balance": (
        lambda: SGDClassifier(class_weight="balance").fit(X, Y), PARAMETER,
        'use "balanced", a dict from label to weight',
    ),
    "a weight of a class that is not there": (
        lambda: SGDClassifier(class_weight={7: 1.0}).fit(X, Y), PARAMETER,
        "Use labels among [0, 1], or name all of these",
    ),
    "a weight below zero": (
        lambda: LogisticRegression(class_weight={0: -1.0}).fit(X, Y), PARAMETER,
        'use "balanced", a dict from label to weight',
    ),
    "C of zero": (lambda: LogisticRegression(C=0).fit(X, Y), PARAMETER, "use a number > 0"),
    "a negative alpha": (lambda: Ridge(alpha=-1).fit(X, T), PARAMETER, "use a number >= 0"),
    "words for alpha": (lambda: SGDClassifier(alpha="0.1").fit(X, Y), PARAMETER, "use a number"),
    "a share above one": (
        lambda: ElasticNet(l1_ratio=2).fit(X, T), PARAMETER, "use a number from 0 to 1",
    ),
    "a share of validation": (
        lambda: SGDClassifier(early_stopping=True, validation_fraction=20).fit(X, Y), PARAMETER,
        "use a number between 0 and 1",
    ),
    "half an iteration": (
        lambda: SGDClassifier(max_iter=0.5).fit(X, Y), PARAMETER, "use an integer >= 1",
    ),
    "iterations as a text": (
        lambda: LogisticRegression(max_iter="100").fit(X, Y), PARAMETER, "use an integer >= 0",
    ),
    "tol as a text": (
        lambda: SGDClassifier(tol="1e-3").fit(X, Y), PARAMETER, "use a number >= 0, or None",
    ),
    "a text for a flag": (
        lambda: SGDClassifier(fit_intercept="no").fit(X, Y), PARAMETER, "use True or False",
    ),
    "a text for a seed": (
        lambda: SGDClassifier(random_state="42").fit(X, Y), PARAMETER,
        "use an integer, a RandomState or None",
    ),
    "half precision": (
        lambda: SGDClassifier(run=Run(compute_dtype="fp16")).fit(X, Y), PARAMETER,
        "Did you mean 'float16'?",
    ),
    "more clusters than rows": (lambda: cluster.KMeans(50).fit(X), DATA, "Ask for fewer clusters"),
    "no cluster": (lambda: cluster.KMeans(0).fit(X), PARAMETER, "use an integer >= 1"),
    "kmeans++": (
        lambda: cluster.KMeans(2, init="kmeans++").fit(X), PARAMETER, "Did you mean 'k-means++'?",
    ),
    "first centres of other width": (
        lambda: cluster.KMeans(2, init=np.ones((2, 2))).fit(X), PARAMETER,
        "Give init an array of shape (2, 3)",
    ),
    "more components than columns": (lambda: PCA(5).fit(X), PARAMETER, "Ask for fewer components"),
    "more components than columns, lazily": (
        lambda: PCA(5).fit(ARRAY), PARAMETER, "Ask for fewer components",
    ),
    "a share of variance": (
        lambda: PCA("95%").fit(X), PARAMETER, "use an integer >= 0, a number between 0 and",
    ),
    "components of a TruncatedSVD": (
        lambda: TruncatedSVD(5).fit(X), PARAMETER, "Ask for fewer components",
    ),
    "negative values for NMF": (
        lambda: NMF(2).fit(X), DATA, "Scale the features to [0, 1] (MinMaxScaler), or",
    ),
    "negative values for a multinomial": (
        lambda: MultinomialNB().fit(X, Y), DATA, "Use GaussianNB, or scale the features to [0, 1]",
    ),
    "negative values for categories": (
        lambda: CategoricalNB().fit(X, Y), DATA, "Encode X with OrdinalEncoder",
    ),
    "no component": (lambda: GaussianMixture(0).fit(X), PARAMETER, "use an integer >= 1"),
    "covariances by another name": (
        lambda: GaussianMixture(2, covariance_type="diagonal").fit(X), PARAMETER,
        "Did you mean 'diag'?",
    ),
    "an old name of a criterion": (
        lambda: RandomForestRegressor(criterion="mse").fit(X, T), PARAMETER,
        "Did you mean 'squared_error'?",
    ),
    "a criterion of trees": (
        lambda: DecisionTreeClassifier(criterion="ginni").fit(X, Y), PARAMETER,
        "Did you mean 'gini'?",
    ),
    "auto features": (
        lambda: RandomForestClassifier(max_features="auto").fit(X, Y), PARAMETER,
        "use an integer >= 1, a share of (0, 1],",
    ),
    "no trees": (
        lambda: RandomForestClassifier(n_estimators=0).fit(X, Y), PARAMETER, "use an integer >= 1",
    ),
    "no depth": (
        lambda: DecisionTreeClassifier(max_depth=0).fit(X, Y), PARAMETER,
        "use an integer >= 1, or None for no",
    ),
    "too many bins": (
        lambda: HistGradientBoostingClassifier(max_bins=1000).fit(X, Y), PARAMETER,
        "use an integer from 2 to 255",
    ),
    "a sample of more than all rows": (
        lambda: HistGradientBoostingClassifier(subsample=50).fit(X, Y), PARAMETER,
        "use a number of (0, 1]",
    ),
    "one-side sampling of a share": (
        lambda: HistGradientBoostingRegressor(sampling_method="goss", subsample=0.3).fit(X, T),
        PARAMETER, "Set subsample=1.0, or sampling_method='uniform'",
    ),
    "one-side sampling of medians": (
        lambda: HistGradientBoostingRegressor("absolute_error", sampling_method="goss").fit(X, T),
        PARAMETER, "Take subsample=0.5, sampling_method='uniform', or another loss",
    ),
    "leafwise": (
        lambda: HistGradientBoostingClassifier(grow_policy="leafwise").fit(X, Y), PARAMETER,
        "use one of ['lossguide', 'depthwise']",
    ),
    "constraints of other columns": (
        lambda: HistGradientBoostingRegressor(monotonic_cst={"no": 1}).fit(FRAME, T), PARAMETER,
        "X has ['age', 'pay', 'days']",
    ),
    "constraints of other width": (
        lambda: HistGradientBoostingRegressor(monotonic_cst=[1]).fit(X, T), PARAMETER,
        "Give one number per feature, or a dict",
    ),
    "categories of other columns": (
        lambda: HistGradientBoostingRegressor(categorical_features=["no"]).fit(FRAME, T), PARAMETER,
        "Use some of these",
    ),
    "names of categories of an array": (
        lambda: HistGradientBoostingRegressor(categorical_features=["no"]).fit(X, T), PARAMETER,
        "as an array of integers or as a boolean mask",
    ),
    "layers as a text": (
        lambda: MLPClassifier("100").fit(X, Y), PARAMETER, "Use integers, such as (64, 32)",
    ),
    "ReLU": (lambda: MLPClassifier(activation="ReLU").fit(X, Y), PARAMETER, "Did you mean 'relu'?"),
    "softmax": (
        lambda: MLPClassifier(activation="softmax").fit(X, Y), PARAMETER,
        "use one of ['identity', 'logistic', 'relu',",
    ),
    "a layer of zero": (
        lambda: MLPClassifier((0,)).fit(X, Y), PARAMETER, "Use integers, such as (64, 32)",
    ),
}  # fmt: skip

#: Transformers, and the columns that they are given.
TRANSFORMERS: dict[str, Mistake] = {
    "a column missing in a frame": (
        lambda: make_column_transformer((StandardScaler(), ["aeg"])).fit(FRAME), DATA,
        "Name columns that X has, which a dataframe",
    ),
    "a column missing in a Dask frame": (
        lambda: make_column_transformer((StandardScaler(), ["aeg"])).fit(lazy(FRAME)), DATA,
        "Name existing columns",
    ),
    "a single column missing": (
        lambda: make_column_transformer((CountVectorizer(), "text")).fit(FRAME), DATA,
        "Name columns that X has, which a dataframe",
    ),
    "a single column missing, lazily": (
        lambda: make_column_transformer((CountVectorizer(), "text")).fit(lazy(FRAME)), DATA,
        "Name existing columns",
    ),
    "a column missing in new rows": (
        lambda: (
            make_column_transformer((StandardScaler(), ["age"]))
            .fit(FRAME)
            .transform(FRAME[["pay"]])
        ), DATA, "Transform rows with all columns that the fit",
    ),
    "a column missing in new Dask rows": (
        lambda: (
            make_column_transformer((StandardScaler(), ["age"]))
            .fit(FRAME)
            .transform(lazy(FRAME[["pay"]]))
        ), DATA, "Transform rows with all columns that the fit",
    ),
    "a column missing in new Dask rows of a Dask fit": (
        lambda: (
            make_column_transformer((StandardScaler(), ["age"]))
            .fit(lazy(FRAME))
            .transform(lazy(FRAME[["pay"]]))
        ), DATA, "Transform rows with all columns that the fit",
    ),
    "a place that is no column": (
        lambda: make_column_transformer((StandardScaler(), [7])).fit(X), DATA,
        "Name columns that X has, which a dataframe",
    ),
    "a place that is no column, lazily": (
        lambda: make_column_transformer((StandardScaler(), [7])).fit(ARRAY), DATA,
        "names need a dataframe",
    ),
    "names of an array's columns": (
        lambda: make_column_transformer((StandardScaler(), ["age"])).fit(X), DATA,
        "Pass a dataframe, or the positions of the columns",
    ),
    "names of a Dask array's columns": (
        lambda: make_column_transformer((StandardScaler(), ["age"])).fit(ARRAY), DATA,
        "names need a dataframe",
    ),
    "columns before their transformer": (
        lambda: make_column_transformer((["age"], StandardScaler())), PARAMETER,
        "the transformer comes first",
    ),
    "columns before their transformer, one": (
        lambda: make_column_transformer(("age", StandardScaler())), PARAMETER,
        "the transformer comes first",
    ),
    "columns before their named transformer": (
        lambda: ColumnTransformer([("a", ["age"], StandardScaler())]).fit(FRAME), TYPE,
        "Give (name, transformer, columns), such as",
    ),
    "columns before their named transformer, lazily": (
        lambda: ColumnTransformer([("a", ["age"], StandardScaler())]).fit(lazy(FRAME)), PARAMETER,
        "Give (name, transformer, columns), such as",
    ),
    "a name to make_column_transformer": (
        lambda: make_column_transformer(("a", StandardScaler(), ["age"])), PARAMETER,
        "give (transformer, columns)",
    ),
    "no name": (
        lambda: ColumnTransformer([(StandardScaler(), ["age"])]).fit(FRAME), DATA,
        "Give (name, transformer, columns), such as",
    ),
    "no name, lazily": (
        lambda: ColumnTransformer([(StandardScaler(), ["age"])]).fit(lazy(FRAME)), PARAMETER,
        "make_column_transformer generates the names",
    ),
    "a dict of transformers": (
        lambda: ColumnTransformer({"a": StandardScaler()}).fit(FRAME), PARAMETER, "Give a list",
    ),
    "a list of transformers": (
        lambda: make_column_transformer([(StandardScaler(), ["age"])]), PARAMETER,
        "give (transformer, columns)",
    ),
    "a transformer's class": (
        lambda: make_column_transformer((StandardScaler, ["age"])).fit(FRAME), TYPE,
        "Pass an object: add the parentheses",
    ),
    "a transformer's class, lazily": (
        lambda: make_column_transformer((StandardScaler, ["age"])).fit(lazy(FRAME)), PARAMETER,
        "Pass an object: add the parentheses",
    ),
    "one name twice": (
        lambda: ColumnTransformer(
            [("a", StandardScaler(), ["age"]), ("a", StandardScaler(), ["pay"])]
        ).fit(FRAME), DATA, "Give each a different name",
    ),
    "a remainder of another name": (
        lambda: make_column_transformer((StandardScaler(), ["age"]), remainder="pass").fit(FRAME),
        PARAMETER, "must be a str among",
    ),
    "scikit-learn's transformer on Dask": (
        lambda: make_column_transformer((sklearn.preprocessing.StandardScaler(), ["age"])).fit(
            lazy(FRAME)
        ), PARAMETER, "Use the StandardScaler of daskml_dist if",
    ),
    "words that are scaled": (
        lambda: make_column_transformer((StandardScaler(), ["job"])).fit(WORDS), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "words that are scaled, lazily": (
        lambda: make_column_transformer((StandardScaler(), ["job"])).fit(lazy(WORDS)), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
    "an unknown category": (
        lambda: OneHotEncoder().fit(WORDS[["job"]]).transform(pd.DataFrame({"job": ["cook"]})),
        DATA, "Fit on rows with every category, or set",
    ),
    "an unknown category, lazily": (
        lambda: (
            OneHotEncoder()
            .fit(lazy(WORDS[["job"]]))
            .transform(lazy(pd.DataFrame({"job": ["cook"]})))
            .compute()
        ), DATA, "Fit on rows with every category, or set",
    ),
    "an unknown category among columns": (
        lambda: (
            make_column_transformer((OneHotEncoder(), ["job"]))
            .fit(WORDS)
            .transform(WORDS.assign(job="cook"))
        ), DATA, "Fit on rows with every category, or set",
    ),
    "an unknown category among Dask columns": (
        lambda: (
            make_column_transformer((OneHotEncoder(), ["job"]))
            .fit(WORDS)
            .transform(lazy(WORDS.assign(job="cook")))
            .compute()
        ), DATA, "Fit on rows with every category, or set",
    ),
    "an unknown ordinal": (
        lambda: OrdinalEncoder().fit(WORDS[["job"]]).transform(pd.DataFrame({"job": ["cook"]})),
        DATA, "Fit on rows with every category, or set",
    ),
    "categories of another fit": (
        lambda: OneHotEncoder(categories=[["clerk"]]).fit(WORDS[["job"]]), DATA,
        "Fit on rows with every category, or set",
    ),
    "categories of one column too few": (
        lambda: OrdinalEncoder(categories=[]).fit(WORDS[["job"]]), DATA,
        "Give a list of categories for each column, or",
    ),
    "an unknown label": (
        lambda: LabelEncoder().fit(NAMES).transform(["maybe"]), DATA,
        "Fit on rows with all labels, or drop these",
    ),
    "a frame of labels": (
        lambda: LabelEncoder().fit(WORDS), DATA, "Pass one column, such as y[:, 0]",
    ),
    "words and numbers of a column": (
        lambda: OneHotEncoder().fit(pd.DataFrame({"a": ["a", 1]})), TYPE,
        "Make each column one type: X[column].astype(str)",
    ),
    "words to impute": (
        lambda: SimpleImputer().fit(WORDS[["job"]]), DATA, 'strategy="most_frequent"',
    ),
    "words to impute, lazily": (
        lambda: SimpleImputer().fit(lazy(WORDS[["job"]])), DATA, 'strategy="most_frequent"',
    ),
    "a median of words": (
        lambda: SimpleImputer(strategy="median").fit(WORDS), DATA, 'strategy="most_frequent"',
    ),
    "a median of words, lazily": (
        lambda: SimpleImputer(strategy="median").fit(lazy(WORDS)), DATA, 'strategy="most_frequent"',
    ),
    "words of an array to impute": (
        lambda: SimpleImputer().fit(WORDS[["job"]].to_numpy()), DATA, 'strategy="most_frequent"',
    ),
    "dates to impute": (lambda: SimpleImputer().fit(DATES), TYPE, ".dt.hour"),
    "mode": (
        lambda: SimpleImputer(strategy="mode").fit(X), PARAMETER, "Did you mean 'most_frequent'?",
    ),
    "average": (
        lambda: SimpleImputer(strategy="average").fit(ARRAY), PARAMETER, "Did you mean 'mean'?",
    ),
    "a text to fill numbers": (
        lambda: SimpleImputer(strategy="constant", fill_value="no").fit(X), DATA,
        "Fill numeric columns with a number",
    ),
    "a target encoder without a target": (
        lambda: TargetEncoder().fit(WORDS[["job"]], None), DATA,
        "TargetEncoder requires y to be passed: pass",
    ),
    "a target encoder without a target, lazily": (
        lambda: TargetEncoder().fit(lazy(WORDS[["job"]])), DATA,
        "TargetEncoder requires y to be passed: pass",
    ),
    "one bin": (
        lambda: KBinsDiscretizer(1).fit(X), PARAMETER, "must be an int in the range [2, inf) or",
    ),
    "bins of another kind": (
        lambda: KBinsDiscretizer(encode="one-hot").fit(X), PARAMETER, "Did you mean 'onehot'?",
    ),
    "a range turned round": (
        lambda: MinMaxScaler(feature_range=(1, 0)).fit(X), DATA,
        "Give (least, greatest), such as (0, 1)",
    ),
    "a range turned round, lazily": (
        lambda: MinMaxScaler(feature_range=(1, 0)).fit(ARRAY), DATA,
        "Give (least, greatest), such as (0, 1)",
    ),
    "quantiles turned round": (
        lambda: RobustScaler(quantile_range=(90, 10)).fit(X), DATA,
        "Give (low, high) in percent, such as (25.0,",
    ),
    "quantiles turned round, lazily": (
        lambda: RobustScaler(quantile_range=(90, 10)).fit(ARRAY), DATA,
        "Give (low, high) in percent, such as (25.0,",
    ),
    "no quantiles": (
        lambda: QuantileTransformer(n_quantiles=0).fit(X), PARAMETER,
        "must be an int in the range [1,",
    ),
    "gaussian": (
        lambda: QuantileTransformer(output_distribution="gaussian").fit(X), PARAMETER,
        "Did you mean 'normal'?",
    ),
    "a negative degree": (
        lambda: PolynomialFeatures(-1).fit(X), PARAMETER, "must be an int in the range [0, inf) or",
    ),
    "one text": (
        lambda: CountVectorizer().fit("one text"), DATA,
        "Pass a list of strings; for one text, [text]",
    ),
    "numbers for texts": (
        lambda: CountVectorizer().fit([1, 2, 3]), DATA, 'fill missing ones first: X.fillna("")',
    ),
    "missing texts": (
        lambda: TfidfVectorizer().fit(["a text", None]), DATA,
        'fill missing ones first: X.fillna("")',
    ),
    "texts without words": (
        lambda: CountVectorizer().fit(["a", "b"]), DATA, "Check the texts, token_pattern,",
    ),
    "a list of texts a row": (
        lambda: CountVectorizer().fit([["a text"], ["more"]]), DATA,
        'fill missing ones first: X.fillna("")',
    ),
    "a share of documents": (
        lambda: CountVectorizer(min_df=5, max_df=2).fit(["a text"] * 3), DATA,
        "Set min_df below max_df",
    ),
    "no list of features": (
        lambda: FeatureHasher(input_type="string").fit_transform(["a text"]), DATA,
        "Pass a list of words for each row",
    ),
    "a centred sparse matrix": (
        lambda: StandardScaler().fit(sparse.csr_matrix(X)), DATA, "with_mean=False",
    ),
    "Blockwise of an unfitted": (
        lambda: (
            Blockwise(sklearn.preprocessing.StandardScaler()).fit(ARRAY).transform(ARRAY).compute()
        ), PARAMETER, "Fit it first on a sample of the rows, or use",
    ),
    "a Blockwise's class": (
        lambda: Blockwise(sklearn.preprocessing.StandardScaler).fit(ARRAY), PARAMETER,
        "pass an instance, StandardScaler()",
    ),
    "names of columns to encode": (
        lambda: OneHotEncoder(columns=["job"]), TYPE, "It has categories, drop, dtype,",
    ),
    "names out of a scaler not fitted": (
        lambda: StandardScaler().get_feature_names_out(), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
}  # fmt: skip

#: Pipelines.
PIPELINES: dict[str, Mistake] = {
    "a name for a target of a pipeline": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier()).fit(LABELLED, y="label"), DATA,
        "X.pop('label')",
    ),
    "a name for a target of a Dask pipeline": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier()).fit(lazy(LABELLED), y="label"),
        DATA, "X.pop('label')",
    ),
    "a name for a target of a pipeline of columns": (
        lambda: make_pipeline(
            make_column_transformer((StandardScaler(), ["age"])), GaussianNB()
        ).fit(lazy(LABELLED), "label"), DATA, "X.pop('label')",
    ),
    "a name for a target of a pipeline of columns in memory": (
        lambda: make_pipeline(
            make_column_transformer((StandardScaler(), ["age"])), GaussianNB()
        ).fit(LABELLED, "label"), DATA, "X.pop('label')",
    ),
    "eval_set of a pipeline's step": (
        lambda: make_pipeline(
            make_column_transformer((OneHotEncoder(sparse_output=False), ["job"])), SGDClassifier()
        ).fit(WORDS, Y, sgdclassifier__eval_set=(WORDS, Y)), DATA, "pipeline[:-1].transform",
    ),
    "eval_set of a pipeline's step, scaled": (
        lambda: make_pipeline(PolynomialFeatures(), SGDClassifier()).fit(
            X, Y, sgdclassifier__eval_set=(X, Y)
        ), DATA, "pipeline[:-1].transform",
    ),
    "an unknown parameter of a step": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier()).set_params(sgdclassifier__alpah=1),
        PARAMETER, "Did you mean 'alpha'?",
    ),
    "words into a pipeline": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier()).fit(WORDS, Y), DATA,
        "from daskml_dist.preprocessing import OneHotEncoder",
    ),
}  # fmt: skip

#: Metrics and scorers.
METRICS: dict[str, Mistake] = {
    "fewer predictions": (
        lambda: metrics.accuracy_score(Y, Y[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer predictions, lazily": (
        lambda: metrics.accuracy_score(LAZY_Y, LAZY_Y[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer predicted numbers": (
        lambda: metrics.mean_squared_error(T, T[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer predicted numbers, lazily": (
        lambda: metrics.r2_score(da.from_array(T, chunks=20), da.from_array(T[:30], chunks=20)),
        DATA, "Pass the same rows in each",
    ),
    "fewer probabilities": (
        lambda: metrics.log_loss(Y, T[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer scores": (lambda: metrics.roc_auc_score(Y, T[:30]), DATA, "Pass the same rows in each"),
    "fewer scores, lazily": (
        lambda: metrics.roc_auc_score(LAZY_Y, da.from_array(T[:30], chunks=30)), DATA,
        "Pass the same rows in each",
    ),
    "fewer weights": (
        lambda: metrics.accuracy_score(Y, Y, sample_weight=np.ones(30)), DATA,
        "Pass the same rows in each",
    ),
    "numbers for labels": (
        lambda: metrics.accuracy_score(Y, T), DATA,
        "Pass labels, for example what predict() returns",
    ),
    "numbers for labels, lazily": (
        lambda: metrics.f1_score(LAZY_Y, da.from_array(T, chunks=20)), DATA,
        "Pass labels, for example what predict() returns",
    ),
    "words beside numbers": (
        lambda: metrics.accuracy_score(Y, NAMES), DATA, "Convert both to one type, for example",
    ),
    "words for numbers": (
        lambda: metrics.mean_squared_error(NAMES, NAMES), DATA, "if it holds numbers, y_true =",
    ),
    "labels for probabilities": (
        lambda: metrics.log_loss(Y, Y + 1), DATA, "Pass probabilities: the result of",
    ),
    "probabilities above one": (
        lambda: metrics.brier_score_loss(Y, T + 5), DATA,
        "Pass probabilities: the result of predict_proba()",
    ),
    "negative values of a logarithm": (
        lambda: metrics.mean_squared_log_error(-np.abs(T), T), DATA,
        "Use mean_squared_error where targets may be",
    ),
    "negative values of a deviance": (
        lambda: metrics.mean_poisson_deviance(-np.abs(T), T), DATA,
        "Use mean_squared_error where values may be",
    ),
    "binary of several classes": (
        lambda: metrics.f1_score(np.arange(40) % 3, np.arange(40) % 3), DATA,
        "Please choose another average setting, one of",
    ),
    "an average of another name": (
        lambda: metrics.f1_score(Y, Y, average="mean"), PARAMETER, "must be a str among",
    ),
    "a positive label that is not there": (
        lambda: metrics.precision_score(NAMES, NAMES), DATA,
        "Set pos_label to the label that counts as",
    ),
    "a curve of several classes": (
        lambda: metrics.roc_curve(np.arange(40) % 3, T), DATA,
        "Score one class at a time: y_true == label",
    ),
    "no labels": (
        lambda: metrics.confusion_matrix(Y, Y, labels=[]), PARAMETER, "Name one, or leave it out",
    ),
    "labels that are not there": (
        lambda: metrics.confusion_matrix(Y, Y, labels=[7]), DATA,
        "Name labels that y_true holds, or leave labels",
    ),
    "squared": (
        lambda: metrics.mean_squared_error(T, T, squared=False), TYPE,
        "use root_mean_squared_error for the",
    ),
    "a keyword by place": (
        lambda: metrics.accuracy_score(Y, Y, False, None), TYPE,
        "Its arguments are (y_true, y_pred, *,",
    ),
    "predictions missing": (
        lambda: metrics.accuracy_score(Y), TYPE, "Its arguments are (y_true, y_pred, *,",
    ),
    "None for labels": (
        lambda: metrics.accuracy_score(None, Y), PARAMETER,
        "must be an array-like or a sparse array",
    ),
    "a negative beta": (
        lambda: metrics.fbeta_score(Y, Y, beta=-1), PARAMETER,
        "must be a float in the range [0.0, inf].",
    ),
    "no beta": (
        lambda: metrics.fbeta_score(Y, Y), TYPE, "Its arguments are (y_true, y_pred, *, beta,",
    ),
    "no k": (
        lambda: metrics.top_k_accuracy_score(Y, T, k=0), PARAMETER,
        "must be an int in the range [1,",
    ),
    "one cluster": (
        lambda: metrics.silhouette_score(X, np.zeros(40)), DATA,
        "Ask for more clusters: a silhouette compares",
    ),
    "an alpha of a pinball": (
        lambda: metrics.mean_pinball_loss(T, T, alpha=5), PARAMETER,
        "must be a float in the range [0.0, 1.0].",
    ),
    "missing predictions": (
        lambda: metrics.mean_squared_error(T, np.full(40, np.nan)), DATA,
        "Drop such rows from y_true, the predictions and",
    ),
    "a scorer by another name": (
        lambda: metrics.get_scorer("acc"), PARAMETER, "Did you mean 'accuracy'?",
    ),
    "rmse": (
        lambda: metrics.get_scorer("rmse"), PARAMETER,
        "Did you mean 'neg_root_mean_squared_error'?",
    ),
    "mse of a scorer": (
        lambda: metrics.get_scorer("mean_squared_error"), PARAMETER,
        "Did you mean 'neg_mean_squared_error'?",
    ),
    "a scorer of nothing": (
        lambda: metrics.make_scorer("accuracy"), PARAMETER,
        'for a name, use get_scorer("accuracy")',
    ),
    "a model for predictions": (
        lambda: metrics.accuracy_score(Y, fitted()), PARAMETER,
        "must be an array-like or a sparse array",
    ),
    "no rows of a metric": (
        lambda: metrics.accuracy_score([], []), DATA,
        "Check the files or the filter that the rows",
    ),
    "a frame for predictions": (
        lambda: metrics.accuracy_score(Y, FRAME), DATA, "Pass one column, for example y_pred[:, 0]",
    ),
}  # fmt: skip

NB = GaussianNB()
GRID = {"var_smoothing": [1e-9, 1e-8]}

#: Searches, splits and curves.
SEARCHES: dict[str, Mistake] = {
    "an unknown parameter of a grid": (
        lambda: ms.GridSearchCV(SGDClassifier(), {"alpah": [1]}).fit(X, Y), PARAMETER,
        "Did you mean 'alpha'?",
    ),
    "a value for a list": (
        lambda: ms.GridSearchCV(SGDClassifier(), {"alpha": 0.1}).fit(X, Y), PARAMETER,
        "need to be wrapped in a list",
    ),
    "a text for a list": (
        lambda: ms.GridSearchCV(SGDClassifier(), {"loss": "hinge"}).fit(X, Y), PARAMETER,
        "need to be wrapped in a list",
    ),
    "no values": (
        lambda: ms.GridSearchCV(SGDClassifier(), {"alpha": []}).fit(X, Y), PARAMETER,
        "Give one value or more",
    ),
    "no grid": (
        lambda: ms.GridSearchCV(SGDClassifier(), None).fit(X, Y), PARAMETER,
        "must be an instance of 'dict' or an",
    ),
    "a grid forgotten": (
        lambda: ms.GridSearchCV(SGDClassifier()), TYPE,
        "Its arguments are (estimator, param_grid, *,",
    ),
    "a step of a pipeline forgotten": (
        lambda: ms.GridSearchCV(
            make_pipeline(StandardScaler(), SGDClassifier()), {"alpha": [1]}
        ).fit(X, Y), DATA, "such as sgdclassifier__alpha",
    ),
    "one fold": (
        lambda: ms.GridSearchCV(NB, GRID, cv=1).fit(X, Y), PARAMETER,
        "must be an int in the range [2, inf), an",
    ),
    "more folds than rows": (
        lambda: ms.GridSearchCV(NB, GRID, cv=99).fit(X, Y), DATA,
        "Ask for fewer folds: cv=5, or n_splits=5",
    ),
    "folds as a text": (
        lambda: ms.GridSearchCV(NB, GRID, cv="5").fit(X, Y), PARAMETER,
        "must be an int in the range [2, inf), an",
    ),
    "a score by another name": (
        lambda: ms.GridSearchCV(NB, GRID, scoring="acc").fit(X, Y), PARAMETER,
        "Did you mean 'accuracy'?",
    ),
    "several scores, which to refit": (
        lambda: ms.GridSearchCV(NB, GRID, scoring=["accuracy", "f1"]).fit(X, Y), DATA,
        "Set refit to the name of one score, such as",
    ),
    "an estimator's class": (
        lambda: ms.GridSearchCV(GaussianNB, GRID).fit(X, Y), TYPE,
        "Pass an object: add the parentheses",
    ),
    "an estimator's name": (
        lambda: ms.GridSearchCV("GaussianNB", GRID).fit(X, Y), PARAMETER,
        "must be an object implementing",
    ),
    "a search before fit": (
        lambda: ms.GridSearchCV(NB, GRID).predict(X), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "no candidates": (
        lambda: ms.RandomizedSearchCV(NB, GRID, n_iter=0).fit(X, Y), PARAMETER,
        "must be an int in the range [1,",
    ),
    "a grid for distributions": (
        lambda: ms.RandomizedSearchCV(NB, param_grid=GRID), TYPE,
        "It has cv, error_score, estimator, n_iter,",
    ),
    "a resource that is no parameter": (
        lambda: ms.HalvingGridSearchCV(NB, GRID, resource="epochs").fit(X, Y), DATA,
        "Name a parameter that counts iterations, such",
    ),
    "a factor of one": (
        lambda: ms.HalvingGridSearchCV(NB, GRID, factor=1).fit(X, Y), PARAMETER,
        "use a number > 1, such as 3",
    ),
    "a search of fewer labels": (
        lambda: ms.GridSearchCV(NB, GRID).fit(X, Y[:30]), DATA, "Pass the same rows in each",
    ),
    "scores of an estimator's class": (
        lambda: ms.cross_val_score(GaussianNB, X, Y), TYPE, "Pass an object: add the parentheses",
    ),
    "scores by another name": (
        lambda: ms.cross_val_score(NB, X, Y, scoring="auc"), PARAMETER, "Did you mean 'roc_auc'?",
    ),
    "scores of several": (
        lambda: ms.cross_val_score(NB, X, Y, scoring=["accuracy", "f1"]), PARAMETER,
        "Use cross_validate for several",
    ),
    "folds in scores": (
        lambda: ms.cross_val_score(NB, X, Y, cv=1), PARAMETER,
        "must be an int in the range [2, inf), an",
    ),
    "fewer labels in scores": (
        lambda: ms.cross_val_score(NB, X, Y[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer labels in scores, lazily": (
        lambda: ms.cross_val_score(NB, ARRAY, LAZY_Y[:30]), DATA, "Pass the same rows in each",
    ),
    "a method that is not there": (
        lambda: ms.cross_val_predict(NB, X, Y, method="predict_probability"), PARAMETER,
        "Did you mean 'predict_proba'?",
    ),
    "all rows to test": (
        lambda: ms.train_test_split(X, Y, test_size=1.5), PARAMETER,
        "must be a float in the range (0.0, 1.0),",
    ),
    "more rows than there are": (
        lambda: ms.train_test_split(X, Y, test_size=99), DATA,
        "Pass a fraction between 0 and 1, or fewer rows",
    ),
    "a share as a text": (
        lambda: ms.train_test_split(X, Y, test_size="20%"), PARAMETER,
        "must be a float in the range (0.0, 1.0),",
    ),
    "nothing to split": (
        lambda: ms.train_test_split(), DATA, "Pass X, or X and y: train_test_split(X, y)",
    ),
    "fewer labels to split": (
        lambda: ms.train_test_split(X, Y[:30]), DATA, "Pass the same rows in each",
    ),
    "fewer labels to split, lazily": (
        lambda: ms.train_test_split(ARRAY, LAZY_Y[:30]), DATA, "Pass the same rows in each",
    ),
    "strata of one row": (
        lambda: ms.train_test_split(X, Y, stratify=np.arange(40)), DATA,
        "Give each class two rows or more, or leave",
    ),
    "strata without shuffling": (
        lambda: ms.train_test_split(X, Y, stratify=Y, shuffle=False), DATA,
        "Leave stratify out, or set shuffle=True",
    ),
    "strata by a flag": (
        lambda: ms.train_test_split(X, Y, stratify=True), PARAMETER, "must be an array-like or",
    ),
    "a number of rows on Dask": (
        lambda: ms.train_test_split(ARRAY, LAZY_Y, test_size=1.5), PARAMETER,
        "or a share in (0, 1)",
    ),
    "one fold of KFold": (lambda: ms.KFold(1), PARAMETER, "n_splits=2 or more"),
    "folds of groups without groups": (
        lambda: next(ms.GroupKFold(2).split(X)), DATA, "Pass groups=..., one group per row",
    ),
    "strata of numbers": (
        lambda: next(ms.StratifiedKFold(2).split(X, T)), DATA, "Use KFold for a continuous target",
    ),
    "strata without labels": (
        lambda: next(ms.StratifiedKFold(2).split(X)), TYPE,
        "Pass one value per row: y is needed here",
    ),
    "a seed without shuffling": (
        lambda: ms.KFold(2, random_state=0), PARAMETER,
        "You should leave random_state to its default",
    ),
    "a curve of an unknown parameter": (
        lambda: ms.validation_curve(NB, X, Y, param_name="alpah", param_range=[1]), PARAMETER,
        "Valid parameters are: ['callbacks', 'device',",
    ),
    "shares above one": (
        lambda: ms.learning_curve(NB, X, Y, train_sizes=[2.0]), DATA,
        "Give fractions up to 1.0, or integer numbers of rows",
    ),
    "rates of what has none": (
        lambda: ms.learning_rate_range(NB, X, Y), PARAMETER,
        "give an estimator trained by gradient steps",
    ),
}  # fmt: skip

#: Callbacks and checkpoints.
CALLBACKS: dict[str, Mistake] = {
    "no patience": (
        lambda: EarlyStopping(patience=0), PARAMETER,
        "EarlyStopping(patience=0): give an integer >=",
    ),
    "patience by another name": (
        lambda: EarlyStopping(n_iter_no_change=3), TYPE, "It has min_delta, monitor, patience,",
    ),
    "a negative improvement": (
        lambda: EarlyStopping(min_delta=-1), PARAMETER,
        "EarlyStopping(min_delta=-1): give a number >= 0",
    ),
    "a number to watch": (
        lambda: SGDClassifier(callbacks=[EarlyStopping("val_loss")]).fit(X, Y), PARAMETER,
        "val_score needs early_stopping=True, and",
    ),
    "an evaluation without labels": (lambda: EvalMonitor(X), PARAMETER, "eval_set=(X_val, y_val)"),
    "an evaluation by another name": (
        lambda: EvalMonitor((X, Y), scoring="acc"), PARAMETER, "Did you mean 'accuracy'?",
    ),
    "a limit as a text": (
        lambda: TimeLimit("soon"), PARAMETER, "TimeLimit(limit='soon'): give seconds > 0, or a",
    ),
    "a limit below zero": (
        lambda: TimeLimit(-1), PARAMETER, "TimeLimit(limit=-1): give seconds > 0, or a",
    ),
    "a log in a folder that is not there": (
        lambda: SGDClassifier(callbacks=[CSVLogger("no/log.csv")]).fit(X, Y), PARAMETER,
        "Name a file in a folder that exists and that",
    ),
    "no trial": (
        lambda: OptunaPruning(None), PARAMETER, "Give the trial that Optuna passes to the",
    ),
    "a checkpoint of no passes": (
        lambda: Checkpoint("c.npz", every=0), PARAMETER,
        "Checkpoint(every=0): give an integer >= 1, in",
    ),
    "a checkpoint without a path": (
        lambda: Checkpoint(None), PARAMETER, "Checkpoint(path=None): give the path or the URL",
    ),
    "a checkpoint in a folder that is not there": (
        lambda: SGDClassifier(checkpoint=Checkpoint("no/c.npz")).fit(X, Y), errors.CheckpointError,
        "Name a file in a folder that exists, has room,",
    ),
    "a checkpoint in a folder": (
        lambda: SGDClassifier(checkpoint=Checkpoint(".")).fit(X, Y), errors.CheckpointError,
        "Name a file (for a link, its target)",
    ),
    "a checkpoint by another name": (
        lambda: Checkpoint("c.npz", frequency=3), TYPE, "It has every, keep, path, resume",
    ),
    "a damaged checkpoint": (
        lambda: (
            damaged("c.npz") or SGDClassifier(checkpoint=Checkpoint("c.npz", resume=True)).fit(X, Y)
        ), errors.CheckpointError, "Restore the file from a copy, or set",
    ),
}  # fmt: skip

#: Model files, exports and predictors.
FILES: dict[str, Mistake] = {
    "a file that is not there": (
        lambda: daskml_dist.load("no.skops"), FILE, "Name a file that save() wrote",
    ),
    "a file of another ending": (
        lambda: daskml_dist.load("model.pkl"), FILE, "for ONNX call to_onnx(path)",
    ),
    "a damaged file of tensors": (
        lambda: damaged("model.safetensors") or daskml_dist.load("model.safetensors"), FILE,
        "Save the model again, or restore the file from",
    ),
    "an object for a file": (
        lambda: daskml_dist.load(fitted()), TYPE, "Pass the name of a file: a str, a path or a URL",
    ),
    "an ending of another kind": (
        lambda: fitted().save("model.joblib"), FILE, "for ONNX call to_onnx(path)",
    ),
    "no ending": (lambda: fitted().save("model"), FILE, "for ONNX call to_onnx(path)"),
    "a file in a folder that is not there": (
        lambda: fitted().save("no/model.skops"), FILE,
        "Name a file in a folder that exists and that",
    ),
    "an unfitted model to save": (
        lambda: GaussianNB().save("model.skops"), UNFITTED, "Call fit first",
    ),
    "a path before a model": (
        lambda: daskml_dist.save("model.skops", fitted()), TYPE,
        "Pass the name of a file: a str, a path or a URL",
    ),
    "no model to save": (
        lambda: daskml_dist.save({"a": 1}, "model.skops"), errors.ExportError,
        "Pass a fitted estimator, transformer or pipeline",
    ),
    "a manifest that is not there": (
        lambda: inference.read_manifest("no.skops"), FILE, "Name a file that save() wrote",
    ),
    "an unfitted model to scikit-learn": (
        lambda: SGDClassifier().to_sklearn(), UNFITTED, "Call fit first",
    ),
    "what has no twin": (lambda: ALS().to_sklearn(), UNFITTED, "Call fit first"),
    "no model to scikit-learn": (
        lambda: inference.to_sklearn(X), errors.ExportError,
        "Pass a fitted estimator, transformer or pipeline",
    ),
    "an unfitted model to ONNX": (lambda: SGDClassifier().to_onnx(), UNFITTED, "Call fit first"),
    "an unfitted predictor": (
        lambda: inference.Predictor(SGDClassifier()), UNFITTED, "Call fit first",
    ),
    "no predictor": (lambda: inference.Predictor({"a": 1}), PARAMETER, "Give a fitted model"),
    "a method of a predictor": (
        lambda: inference.Predictor(fitted(), "classify"), PARAMETER,
        "Give a fitted model, and one of its methods",
    ),
}  # fmt: skip

#: Registries and services.
SERVING: dict[str, Mistake] = {
    "an unfitted model to publish": (
        lambda: serving.publish(SGDClassifier(), "models", "clicks"), UNFITTED, "Call fit first",
    ),
    "a name before a model": (
        lambda: serving.publish("clicks", "models", fitted()), PARAMETER,
        "use letters, digits, '.', '_' and '-', with",
    ),
    "no model to publish": (
        lambda: serving.publish({"a": 1}, "models", "clicks"), PARAMETER, "Give a fitted model",
    ),
    "a name of a path": (
        lambda: serving.publish(fitted(), "models", "a/b"), PARAMETER,
        "use letters, digits, '.', '_' and '-', with",
    ),
    "no name": (
        lambda: serving.publish(fitted(), "models", ""), PARAMETER,
        "use letters, digits, '.', '_' and '-', with",
    ),
    "no versions to keep": (
        lambda: serving.publish(fitted(), "models", "clicks", keep=0), PARAMETER,
        "use an integer >= 1, or None for all",
    ),
    "a version before": (
        lambda: serving.rollback("models", "clicks"), errors.UnknownModelError, "Publish it first",
    ),
    "a version that is not there": (
        lambda: serving.rollback(published(), "clicks", "7"), errors.UnknownModelError,
        "Its versions: 1",
    ),
    "a route to a version that is not there": (
        lambda: (
            serving.publish(fitted(), "models", "clicks")
            and serving.set_route(published(), "clicks", {"7": 1.0})
        ), errors.UnknownModelError, "Its versions: 1",
    ),
    "a route of negative shares": (
        lambda: (
            serving.publish(fitted(), "models", "clicks")
            and serving.set_route(published(), "clicks", {"1": -1.0})
        ), PARAMETER, "use numbers >= 0, one of them > 0",
    ),
    "a registry that is not there": (
        lambda: serving.Models("no such"), FILE, "Name a model file, or a registry",
    ),
    "a number for models": (
        lambda: serving.Models(5), TYPE, "give the path of a model file or a registry",
    ),
    "an unfitted model to serve": (
        lambda: serving.Models({"clicks": SGDClassifier()}), UNFITTED, "Call fit first",
    ),
    "a model that is not served": (
        lambda: serving.Models({"clicks": fitted()}).get("klicks"), errors.UnknownModelError,
        "Did you mean 'clicks'?",
    ),
    "a version that is not served": (
        lambda: serving.Models({"clicks": fitted()}).get("clicks", "7"), errors.UnknownModelError,
        "Other versions need all_versions",
    ),
    "a service of nothing": (
        lambda: serving.serve("no such"), FILE, "Name a model file, or a registry",
    ),
    "a publisher that goes on": (
        lambda: serving.Publisher("models", "clicks", on_error="ignore"), PARAMETER,
        "use one of ['raise', 'log']",
    ),
    "a publisher of a path": (
        lambda: serving.Publisher("models", "a/b"), PARAMETER,
        "use letters, digits, '.', '_' and '-', with",
    ),
}  # fmt: skip

#: Streams.
STREAMS: dict[str, Mistake] = {
    "a stream without classes": (
        lambda: in_stream(lambda s: s, None), PARAMETER, "name every label that will come",
    ),
    "partial_fit without classes": (
        lambda: SGDClassifier().partial_fit(X, Y), PARAMETER, "name every label that will come",
    ),
    "partial_fit with other classes": (
        lambda: SGDClassifier().partial_fit(X, Y, classes=[5, 6]), DATA,
        "Name every class in the first call to",
    ),
    "partial_fit without labels": (
        lambda: SGDClassifier().partial_fit(X, classes=[0, 1]), DATA, "Pass y as well",
    ),
    "classes named twice": (
        lambda: SGDClassifier().partial_fit(X, Y, classes=[0, 0, 1]), PARAMETER,
        "Name each once: np.unique(classes)",
    ),
    "a number of classes": (
        lambda: SGDClassifier().partial_fit(X, Y, classes=2), PARAMETER,
        "`classes=2`: give a list of all labels, such as",
    ),
    "Dask rows to a stream": (
        lambda: in_stream(lambda s: s.learn(ARRAY, LAZY_Y)), DATA,
        "Compute each batch first: X, y =",
    ),
    "one row to a stream": (
        lambda: in_stream(lambda s: s.learn(X[0], Y[0])), TYPE,
        "Pass one value per row: an array, or a Dask",
    ),
    "a stream without labels": (
        lambda: in_stream(lambda s: s.learn(X)), DATA, "Pass targets as in the first call",
    ),
    "a stream of new labels": (
        lambda: in_stream(lambda s: s.learn(X, Y + 5)), DATA, "Name every label that will come:",
    ),
    "a stream of other width": (
        lambda: in_stream(lambda s: s.learn(X[:, :2], Y)), DATA,
        "Select the columns that it was fitted on",
    ),
    "a stream that is closed": (
        lambda: in_stream(lambda s: s).learn(X, Y), PARAMETER,
        "Use it inside its context: with clf.stream(...)",
    ),
    "a stream saved nowhere": (
        lambda: in_stream(lambda s: s.save()), PARAMETER, 'stream(checkpoint=Checkpoint("m.npz"))',
    ),
    "parameters of an open stream": (
        lambda: in_stream(lambda s: s.estimator.set_params(alpha=1)), PARAMETER,
        "Leave the stream's context first, or use a",
    ),
    "a fit in an open stream": (
        lambda: in_stream(lambda s: s.estimator.fit(X, Y)), PARAMETER,
        "Leave the stream's context first, or use a",
    ),
    "a folder without a target": (
        lambda: next(folder("*.parquet")), PARAMETER,
        'Name the column of the targets, target="...",',
    ),
    "an order of files": (
        lambda: next(folder("*.parquet", target="y", order="size")), PARAMETER,
        'order=\'size\': give "name" or "mtime"',
    ),
    "a threshold below zero": (
        lambda: PageHinkley(threshold=-1), PARAMETER,
        "PageHinkley(threshold=-1): give a number >= 0",
    ),
    "a stream with epochs": (
        lambda: SGDClassifier().stream(classes=[0, 1], epochs=3), TYPE,
        "Here it is named 'max_iter'",
    ),
}  # fmt: skip

RATINGS = pd.DataFrame({"user": [1, 1, 2], "item": [5, 6, 5], "rating": [1.0, 2.0, 3.0]})
EDGES = pd.DataFrame({"source": [1, 2], "target": [2, 3]})
BASKETS = pd.DataFrame({"milk": [True, False], "bread": [True, True]})

#: Recommenders, graphs, item sets, ensembles, inspection and plans.
OTHERS: dict[str, Mistake] = {
    "columns of ratings by other names": (
        lambda: ALS().fit(RATINGS.rename(columns={"user": "userId"})), DATA,
        "Name the columns that hold the keys and the",
    ),
    "ratings as a matrix": (
        lambda: ALS().fit(X[0]), DATA, "Give a pandas or Dask dataframe, scipy.sparse,",
    ),
    "no rank": (lambda: ALS(0).fit(RATINGS), PARAMETER, "use an integer >= 1"),
    "factors as a rank": (
        lambda: ALS(factors=5), TYPE, "It has alpha, biases, callbacks, cg_steps,",
    ),
    "a missing rating": (
        lambda: ALS().fit(RATINGS.assign(rating=np.nan)), DATA,
        "Drop such rows: frame.dropna(subset=['rating'])",
    ),
    "ratings as texts": (
        lambda: MatrixFactorization().fit(RATINGS.assign(rating="good")), DATA,
        "drop rows with missing values",
    ),
    "recommendations before fit": (
        lambda: ALS().recommend([1]), UNFITTED, "Call 'fit' with appropriate arguments before",
    ),
    "columns of edges by other names": (
        lambda: pagerank(EDGES.rename(columns={"source": "from"})), DATA,
        "Name the columns that hold the keys and the",
    ),
    "a damping of one": (lambda: pagerank(EDGES, 1.5), PARAMETER, "use a number from 0 to 1"),
    "edges as a matrix": (
        lambda: connected_components(X), DATA, "Give ids of that kind in a dataframe",
    ),
    "no edges": (
        lambda: connected_components(None), DATA, "Give a pandas or Dask dataframe with one row",
    ),
    "a dict of neighbours": (
        lambda: connected_components({1: [2]}), DATA,
        "Give a pandas or Dask dataframe with one row per",
    ),
    "lists of items": (
        lambda: frequent_itemsets([["milk", "bread"], ["milk"]]), DATA,
        'frequent_itemsets(frame, basket="index", item="item")',
    ),
    "rules of baskets": (
        lambda: association_rules(BASKETS), DATA, "Give the frame that frequent_itemsets returned",
    ),
    "a measure of rules": (
        lambda: association_rules(frequent_itemsets(BASKETS), metric="lifts"), PARAMETER,
        "Did you mean 'lift'?",
    ),
    "platt": (
        lambda: CalibratedClassifierCV(GaussianNB(), method="platt").fit(X, Y), PARAMETER,
        "Did you mean 'sigmoid'?",
    ),
    "calibration of a regressor": (
        lambda: CalibratedClassifierCV(Ridge()).fit(X, Y), PARAMETER,
        "must be an object implementing 'fit' and",
    ),
    "votes without names": (
        lambda: VotingClassifier([GaussianNB()]).fit(X, Y), PARAMETER,
        "give (name, estimator) pairs",
    ),
    "votes of no one": (
        lambda: VotingClassifier([]).fit(X, Y), DATA,
        'Give (name, estimator) pairs, such as [("nb",',
    ),
    "votes of classes": (
        lambda: VotingClassifier([("a", GaussianNB)]).fit(X, Y), TYPE,
        "Pass an object: add the parentheses",
    ),
    "votes of another kind": (
        lambda: VotingClassifier([("a", GaussianNB())], voting="mean").fit(X, Y), PARAMETER,
        "must be a str among",
    ),
    "weights of other voters": (
        lambda: VotingClassifier([("a", GaussianNB())], weights=[1, 2]).fit(X, Y), DATA,
        "Give as many weights as members, or None",
    ),
    "a stack without names": (
        lambda: StackingClassifier([GaussianNB()]).fit(X, Y), PARAMETER,
        "give (name, estimator) pairs",
    ),
    "a stack of folds": (
        lambda: StackingClassifier([("a", GaussianNB())], cv=1).fit(X, Y), PARAMETER,
        "must be an int in the range [2, inf), an",
    ),
    "bags of nothing": (
        lambda: BaggingClassifier(GaussianNB(), n_estimators=0).fit(X, Y), PARAMETER,
        "must be an int in the range [1,",
    ),
    "dependence on a column that is not there": (
        lambda: inspection.partial_dependence(fitted(), FRAME, ["no"]), PARAMETER,
        "Name columns that X has, which a dataframe",
    ),
    "dependence on a place that is not there": (
        lambda: inspection.partial_dependence(fitted(), FRAME, [7]), PARAMETER,
        "Name columns that X has, which a dataframe",
    ),
    "dependence of an unfitted": (
        lambda: inspection.partial_dependence(GaussianNB(), FRAME, [0]), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "importance of an unfitted": (
        lambda: inspection.permutation_importance(GaussianNB(), FRAME, Y), UNFITTED,
        "Call 'fit' with appropriate arguments before",
    ),
    "importance of another score": (
        lambda: inspection.permutation_importance(fitted(), FRAME, Y, scoring="acc"), PARAMETER,
        "for rows in memory, a function",
    ),
    "no repeats": (
        lambda: inspection.permutation_importance(fitted(), FRAME, Y, n_repeats=0), PARAMETER,
        "use an integer >= 1",
    ),
    "advice on nothing": (
        lambda: daskml_dist.advise(None, SGDClassifier(), Y), TYPE,
        "forget to return something?",
    ),
    "advice on a class": (
        lambda: daskml_dist.advise(X, SGDClassifier, Y), PARAMETER,
        "pass an instance, SGDClassifier()",
    ),
    "a plan of a class": (
        lambda: SGDClassifier().plan(None, Y), TYPE,
        "forget to return something?",
    ),
}  # fmt: skip

#: All mistakes, by topic.
MISTAKES: dict[str, dict[str, Mistake]] = {
    "rows": ROWS,
    "targets": TARGETS,
    "calls": CALLS,
    "parameters": PARAMETERS,
    "transformers": TRANSFORMERS,
    "pipelines": PIPELINES,
    "metrics": METRICS,
    "searches": SEARCHES,
    "callbacks": CALLBACKS,
    "files": FILES,
    "serving": SERVING,
    "streams": STREAMS,
    "others": OTHERS,
}
