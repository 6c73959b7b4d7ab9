"""Metamorphic relations: a change of the rows whose effect on the results is known.

A relation changes rows in memory, and sometimes parameters; the results of the changed rows must
equal those that the relation predicts from the original results. `RELATIONS` is the table.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from sklearn.base import is_classifier

from tests.contracts.cases import Case, cases
from tests.contracts.compare import Refusal, attempt, differences, plain
from tests.contracts.results import UserInput
from tests.contracts.same_rows import deliver, select_determined
from tests.contracts.subjects import SUBJECTS, Subject

__all__ = ["RELATIONS", "Related", "Relation", "check", "related"]

Results = dict[str, Any]

#: Powers of two change no digits.
SCALE = 4.0
COLUMN_SCALES = np.array([2.0, 0.5, 4.0, 1.0])
COLUMN_SHIFTS = np.array([1.0, -2.0, 3.0, 0.5])


@dataclass(frozen=True)
class Relation:
    """Change of rows, and its effect on the results.

    Parameters
    ----------
    change : callable
        From rows in memory and a generator to other rows.
    applies : callable
        Whether it holds for a subject.
    expect : callable
        From the results of the original rows, and these rows, to the results of the changed ones;
        results that it leaves out are not compared.
    params : callable
        From the parameters of the subject to those that change with the rows.
    rtol, rtol32 : float
        Minimum tolerance; for float32 rows.
    weight : str
        Weights that the rows must have: a name of `WEIGHTS`; "" for any.
    """

    change: Callable[[UserInput, np.random.Generator], UserInput]
    applies: Callable[[Subject], bool]
    expect: Callable[[Results, UserInput], Results] = lambda results, user_input: results
    params: Callable[[dict[str, Any]], dict[str, Any]] = lambda params: {}
    rtol: float = 1e-7
    rtol32: float = 0.0
    weight: str = ""


# --- subjects for which a relation holds -----------------------------------------------------


def _is(*names: str, **params: Any) -> Callable[[Subject], bool]:
    """Return a test whether a subject is one of these estimators, with these parameters."""

    def applies(subject: Subject) -> bool:
        if subject.name not in names:
            return False
        found = subject.model.get_params()
        return all(found.get(name, value) == value for name, value in params.items())

    return applies


def _either(*conditions: Callable[[Subject], bool]) -> Callable[[Subject], bool]:
    return lambda subject: any(condition(subject) for condition in conditions)


def _any(subject: Subject) -> bool:
    return True


def _classifies(subject: Subject) -> bool:
    return subject.model is not None and is_classifier(subject.model)


_LEAST_SQUARES = ("LinearRegression", "Ridge", "Lasso", "ElasticNet")
_GLM = ("PoissonRegressor", "GammaRegressor", "TweedieRegressor")
_BOOSTED = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")  # leaves count rows
_LEAVING_ONE_OUT = ("RidgeCV", "RidgeClassifierCV")  # of a repeated row the others stay
_COUNTING_CATEGORIES = ("CategoricalNB",)  # those of rows of weight 0 as well, as scikit-learn
# A covariance has two axes of columns, and its triangular factor changes completely. Random draws
# belong to positions of columns, or of classes. Of equal splits a tree uses the first column's.
_belongs_to_columns = _either(
    _is("MLPClassifier", "MLPRegressor", "GaussianMixture", *_BOOSTED), _is("NMF", init="random")
)
_with_intercept = _is(
    *_LEAST_SQUARES, *_GLM, "HuberRegressor", "LogisticRegression", fit_intercept=True
)
_moves_with_y = _either(
    _is(*_LEAST_SQUARES, "HuberRegressor", "SGDRegressor", fit_intercept=True),
    _is("TweedieRegressor", power=0),
)


# --- changes ---------------------------------------------------------------------------------


def _take(user_input: UserInput, at: Any) -> UserInput:
    X, y, row = user_input.X.iloc[at], user_input.y.iloc[at], user_input.row.iloc[at]
    return UserInput(X, y, None if user_input.w is None else user_input.w.iloc[at], row)


def _permute(user_input: UserInput, rng: np.random.Generator) -> UserInput:
    return _take(user_input, rng.permutation(len(user_input.row)))


def _reverse_columns(user_input: UserInput, rng: np.random.Generator) -> UserInput:
    return replace(user_input, X=user_input.X[list(user_input.X.columns[::-1])])


def _params_reversed(params: dict[str, Any]) -> dict[str, Any]:
    """Reverse the parameters that have an entry for each column."""
    found: dict[str, Any] = {}
    if isinstance(start := params.get("init"), np.ndarray):
        found["init"] = start[:, ::-1]
    if isinstance(n_bins := params.get("n_bins"), list):
        found["n_bins"] = n_bins[::-1]
    return found


def _repeat(user_input: UserInput, rng: np.random.Generator) -> UserInput:
    return replace(_take(user_input, _repeated(user_input)), w=None)


def _repeated(user_input: UserInput) -> Any:
    return np.repeat(np.arange(len(user_input.row)), np.asarray(user_input.w))


def _with_y(
    function: Callable[[Any], Any],
) -> Callable[[UserInput, np.random.Generator], UserInput]:
    return lambda user_input, rng: replace(
        user_input, y=pd.Series(function(plain(user_input.y).astype(float)))
    )


def _with_x(
    function: Callable[[Any], Any],
) -> Callable[[UserInput, np.random.Generator], UserInput]:
    return lambda user_input, rng: replace(user_input, X=function(user_input.X))


def _rename(names: list[str]) -> Callable[[UserInput, np.random.Generator], UserInput]:
    def change(user_input: UserInput, rng: np.random.Generator) -> UserInput:
        labels = np.unique(np.concatenate([plain(v) for v in _labels(user_input)]))
        new = dict(zip(labels, names[: len(labels)], strict=True))
        renamed = [pd.Series([new[label] for label in plain(v)]) for v in _labels(user_input)]
        if len(renamed) == 2:
            return replace(user_input, y=renamed[0], X=renamed[1])
        return replace(user_input, y=renamed[0])

    return change


def _labels(user_input: UserInput) -> list[Any]:
    """Return the targets, and the guesses if X holds guesses."""
    guesses = isinstance(user_input.X, pd.Series) and user_input.X.dtype == user_input.y.dtype
    return [user_input.y, user_input.X] if guesses else [user_input.y]


# --- expectations ----------------------------------------------------------------------------


def _is_of_rows(name: str, value: Any) -> bool:
    return name.endswith(")") and np.ndim(value) > 0


def _only(*names: str) -> Callable[[Results, UserInput], Results]:
    return lambda results, user_input: {n: v for n, v in results.items() if n in names}


def _without(*names: str) -> Callable[[Results, UserInput], Results]:
    return lambda results, user_input: {n: v for n, v in results.items() if n not in names}


_OF_ROWS = ("predict()", "predict_proba()", "decision_function()", "score()", "metric()")


#: Attributes with an entry for each component, if there are as many components as columns.
_OF_COMPONENTS = ("explained_variance_", "explained_variance_ratio_", "singular_values_")


def _columns_reversed(results: Results, user_input: UserInput) -> Results:
    found = {}
    for name, value in results.items():
        if name in {"transform()", "singular_"}:
            # The order of several output columns of one feature may differ.
            continue
        if name == "encodings_":  # one a class, of each column
            n = len(value) // len(results["categories_"])
            groups = [value[i : i + n] for i in range(0, len(value), n)]
            found[name] = [encoding for group in groups[::-1] for encoding in group]
        elif name in _OF_COMPONENTS or (name == "names" and "components_" in results):
            found[name] = value
        elif isinstance(value, list):
            found[name] = value[::-1] if len(value) == 4 else value
        elif np.ndim(value) and np.shape(value)[-1] == 4 and name not in _OF_ROWS:
            found[name] = np.asarray(value)[..., ::-1]
        else:
            found[name] = value
    return (
        found
        if "names" not in found or len(found["names"]) == 4
        else _without("names")(found, user_input)
    )


def _rows_repeated(results: Results, user_input: UserInput) -> Results:
    at = _repeated(user_input)
    return {
        name: np.asarray(value)[at] if _is_of_rows(name, value) else value
        for name, value in results.items()
        # A metric is called without weights, and scikit-learn's epsilon_ ignores weights.
        if name != "metric()" and ("epsilon_" not in results or name in {"theta_", "class_prior_"})
    }


def _y_moved(results: Results, user_input: UserInput, by: float) -> Results:
    moved = {"intercept_", "predict()"}
    return {name: value + by if name in moved else value for name, value in results.items()}


def _y_scaled(results: Results, user_input: UserInput) -> Results:
    powers = {"coef_": 1, "intercept_": 1, "predict()": 1, "metric()": 2, "score()": 0}
    return {n: v * SCALE ** powers[n] for n, v in results.items() if n in powers}


def _mean_scaled(results: Results, user_input: UserInput) -> Results:
    """Predict the results of a model of the logarithm of the mean."""
    found = _only("coef_", "score()")(results, user_input)
    found["intercept_"] = results["intercept_"] + np.log(SCALE)
    found["predict()"] = results["predict()"] * SCALE
    return found


def _x_scaled(results: Results, user_input: UserInput) -> Results:
    found = _only(*_OF_ROWS, "intercept_", "transform()")(results, user_input)
    if "coef_" in results:
        found["coef_"] = results["coef_"] / COLUMN_SCALES
    return found


def _renamed(results: Results, user_input: UserInput) -> Results:
    return _without("classes_", "predict()")(results, user_input)


def _order_reversed(results: Results, user_input: UserInput) -> Results:
    # Rows with equally likely classes get the first of them, so labels may change.
    at = "predict_proba()"
    return {at: results[at][:, ::-1]} if at in results else {}


def _far(results: Results, user_input: UserInput) -> Results:
    return _y_moved(results, user_input, 1e3)


#: All relations. The mathematically required results are in `expect`.
RELATIONS: dict[str, Relation] = {
    "rows permuted": Relation(_permute, _any),
    "columns reversed": Relation(
        _reverse_columns,
        lambda s: not s.is_metric and not s.needs_names and not _belongs_to_columns(s),
        _columns_reversed,
        _params_reversed,
    ),
    "weights are rows": Relation(
        _repeat,
        lambda s: s.weighted
        and s.name.split()[0] not in (*_BOOSTED, *_LEAVING_ONE_OUT, *_COUNTING_CATEGORIES),
        _rows_repeated,
        weight="whole",
    ),
    "weights scaled": Relation(
        lambda user_input, rng: replace(user_input, w=SCALE * user_input.w.astype(float)),
        _either(
            lambda s: s.is_metric and s.name != "confusion_matrix",  # whose counts are weights
            _is("LinearRegression", "Lasso", "ElasticNet", *_GLM),
        ),
        _without("singular_"),
        weight="float64",
    ),
    "y moved": Relation(
        _with_y(lambda y: y + 2.5), _moves_with_y, lambda r, rows: _y_moved(r, rows, 2.5)
    ),
    "y moved far": Relation(
        _with_y(lambda y: y + 1e3), _moves_with_y, _far, rtol=1e-6, rtol32=1e-2
    ),
    "y scaled": Relation(
        _with_y(lambda y: SCALE * y),
        _either(_is("LinearRegression"), _is("Ridge"), _is("TweedieRegressor", power=0)),
        _y_scaled,
    ),
    "y and the penalty scaled": Relation(
        _with_y(lambda y: SCALE * y),
        _is("Lasso"),
        _y_scaled,
        lambda params: {"alpha": SCALE * params["alpha"]},
    ),
    "mean scaled": Relation(
        _with_y(lambda y: SCALE * y), _is("GammaRegressor"), _mean_scaled, rtol=1e-5
    ),
    "X moved": Relation(
        _with_x(lambda X: X + COLUMN_SHIFTS),
        _either(_with_intercept, _is("GaussianNB"), _is("StandardScaler", with_mean=True),
                _is("MinMaxScaler", "RobustScaler")),
        # Raw predictions of several classes are only determined up to one number per row.
        _only("coef_", "transform()", *set(_OF_ROWS) - {"decision_function()"}),
    ),
    "X moved far": Relation(
        _with_x(lambda X: X + 1e3 * COLUMN_SHIFTS),
        _either(_is("LinearRegression", "Ridge", "Lasso", fit_intercept=True),
                _is("StandardScaler", with_mean=True), _is("MinMaxScaler", "RobustScaler")),
        _only("coef_", "transform()", *_OF_ROWS),
        rtol=1e-5,
    ),
    "columns scaled": Relation(
        _with_x(lambda X: X * COLUMN_SCALES),
        _either(_is("LinearRegression", "StandardScaler", "MinMaxScaler", "RobustScaler",
                    "MaxAbsScaler"), _is("BernoulliNB", binarize=0.0)),
        _x_scaled,
    ),
    "X scaled": Relation(
        _with_x(lambda X: X * SCALE), _is("GaussianNB"), _only(*_OF_ROWS)
    ),
    "labels renamed": Relation(
        _rename(["a", "b", "c"]), _either(_classifies, lambda s: s.name == "accuracy_score"
                                          or s.name == "confusion_matrix"), _renamed
    ),
    "labels in reverse": Relation(
        _rename(["z", "y", "x"]),
        lambda s: _classifies(s) and s.name != "MLPClassifier",
        _order_reversed,
        rtol=1e-4,
    ),
}  # fmt: skip


# --- cases -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Related(Case):
    """Case with rows in memory and a relation."""

    relation: str = "rows permuted"


@st.composite
def related(draw: Any, relation: str | None = None) -> Related:
    """Return cases of a relation."""
    name = relation or draw(st.sampled_from(list(RELATIONS)))
    chosen = RELATIONS[name]
    subjects = [s for s, subject in SUBJECTS.items() if chosen.applies(subject)]
    case = draw(cases(subjects=subjects, container="pandas"))
    facts = {f.name: getattr(case, f.name) for f in fields(case)}
    tame = facts["shape"] not in {"far", "constant column"}
    # A column with mostly zeros has a quantile range of 0, which counts as 1 at any scale.
    tame &= not (facts["subject"].startswith("RobustScaler") and facts["shape"] == "mostly zero")
    facts |= {"n_rows": 60, "shape": facts["shape"] if tame else "normal"}
    if chosen.weight:
        facts["weight"] = chosen.weight
    if name.startswith(("X", "columns scaled")):
        facts["dtype"] = "float64"
    return Related(**facts, relation=name)


def check(case: Related) -> list[str]:
    """Return the results of the changed rows that are not as expected, one line each."""
    relation = RELATIONS[case.relation]
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        user_input = deliver(case, Path(folder))
        changed = relation.change(user_input, np.random.default_rng(case.seed))
        before = attempt(case.of.results, user_input)
        params = {} if case.of.model is None else relation.params(case.of.model.get_params())
        after = attempt(partial(case.of.results, **params), changed)
    if isinstance(before, Refusal) and isinstance(after, Refusal):
        return []
    if isinstance(before, Refusal) or isinstance(after, Refusal):
        return [f"given rows: {_short(before)}; changed rows: {_short(after)}"]
    expected = select_determined(case, relation.expect(before, user_input))
    rtol = max(relation.rtol, case.of.setting.rtol, case.rtol)
    if case.dtype == "float32":
        rtol = max(rtol, relation.rtol32)
    return differences(after, expected, rtol, whole=False)


def _short(results: Any) -> str:
    return f"raise {results}" if isinstance(results, Refusal) else "give results"


if __name__ == "__main__":
    print("\n".join(check(Related(**ast.literal_eval(sys.argv[1]))) or ["no difference"]))
