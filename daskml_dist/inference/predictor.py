"""Predictors: fitted models as fast functions of rows in memory, for services.

A method of an estimator checks at each call whether it is fitted, and the kind and names of the
rows. For one row that takes far longer than the arithmetic. A `Predictor` calls the method once
with a placeholder, which returns the function behind the checks (`RowFunctionCall`). From then on
it calls that function for a few plain rows; all others go to the method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.data.plain_rows import FLOAT_DTYPES, RowsPlaceholder, convert_few_rows
from daskml_dist.errors import InvalidParameterError
from daskml_dist.inference.export.sklearn_models import check_fitted_if_ours
from daskml_dist.inference.few_transformed_rows import make_scaler_function
from daskml_dist.inference.independent_rows import has_independent_rows, make_each_row_function
from daskml_dist.inference.row_mapping import FewRowsFunction, RowFunctionCall
from daskml_dist.inference.saved.manifest import make_manifest, needed_names
from daskml_dist.inference.saved.model_file import load

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


def _is_sklearn_tree(model: Any) -> bool:
    """Return whether a model is a scikit-learn tree, or a forest that adds its trees in order.

    With `n_jobs`, threads of a forest add the trees' predictions in the order in which they finish,
    which changes the last digit.
    """
    if not type(model).__module__.startswith("sklearn."):
        return False
    from sklearn import ensemble, tree

    # By class, not by attributes: boosting and isolation forests add and scale differently.
    forests = (
        ensemble.ExtraTreesClassifier, ensemble.ExtraTreesRegressor,
        ensemble.RandomForestClassifier, ensemble.RandomForestRegressor,
    )  # fmt: skip
    if isinstance(model, forests):
        return model.n_jobs in (None, 1)
    return isinstance(model, tree.BaseDecisionTree)


@dataclass(frozen=True)
class _FewRowsFunctions:
    """Functions from a few plain rows of one dtype to a method's answers.

    They return None if rows are too many, not plain, or not finite: the method handles these.

    Parameters
    ----------
    predict_together : callable
        Answers as the method gives them to the rows together.
    predict_each : callable or None
        Answers bit-identical to the method's for each row alone; None if only one call for each row
        gives these.
    apart : bool
        Whether a row's answer never depends on the other rows, also in the method itself: then
        `predict_together` and `predict_each` are the same.
    """

    predict_together: FewRowsFunction
    predict_each: FewRowsFunction | None
    apart: bool


def _make_few_rows_functions(
    model: Any, method: str, dtype: np.dtype[Any]
) -> _FewRowsFunctions | None:
    """Return functions for a few plain rows with a method's results; None if there are none."""
    from sklearn.pipeline import Pipeline  # imported here: workers need not load it

    if type(model) is Pipeline:
        return _make_pipeline_functions(model, method, dtype)
    if method == "transform" and (scaled := make_scaler_function(model, dtype)) is not None:
        scale = _scale_before([(model, scaled)], None)
        return _FewRowsFunctions(scale, scale, True)
    if not hasattr(model, "_map_rows"):
        return None
    # Called with a placeholder for the rows, the method returns the function that it would apply to
    # them; a method that reads the rows itself fails.
    try:
        call = getattr(model, method)(RowsPlaceholder(dtype))
    except (AttributeError, TypeError, ValueError):
        return None
    if not isinstance(call, RowFunctionCall):
        return None
    few_rows = call.make_few_rows_function(dtype)
    if has_independent_rows(call):
        return _FewRowsFunctions(few_rows, few_rows, True)
    return _FewRowsFunctions(few_rows, make_each_row_function(call, dtype), False)


def _make_pipeline_functions(
    model: Pipeline, method: str, dtype: np.dtype[Any]
) -> _FewRowsFunctions | None:
    """Return functions of a pipeline of scalers and a model; None if it has other steps."""
    # Only the arithmetic of scalers is written here; any other step goes through the method.
    functions = _make_few_rows_functions(model.steps[-1][1], method, dtype)
    earlier_steps = [step for _, step in model.steps[:-1] if step not in (None, "passthrough")]
    scalers = [(step, make_scaler_function(step, dtype)) for step in earlier_steps]
    if functions is None or any(scaled is None for _, scaled in scalers):
        return None
    if not scalers:
        return functions
    each_row = (
        None if functions.predict_each is None else _scale_before(scalers, functions.predict_each)
    )
    return _FewRowsFunctions(
        _scale_before(scalers, functions.predict_together), each_row, functions.apart
    )


def _scale_before(scalers: list[tuple[Any, Any]], last: FewRowsFunction | None) -> FewRowsFunction:
    """Return a function that scales a few rows, and then applies `last` if a model follows."""
    row_shape = (int(scalers[0][0].n_features_in_),)
    scale_functions = [scale for _, scale in scalers]

    def answer(X: NDArray[Any]) -> NDArray[Any] | None:
        # Checked before the scaling, which may clip infinity.
        rows = convert_few_rows(X, row_shape)
        if rows is None or not np.isfinite(rows).all():
            return None
        for scale in scale_functions:
            rows = scale(rows)
        return rows if last is None else last(rows)

    return answer


#: Default methods of a predictor: the first of these that the estimator has.
METHODS = ("predict_proba", "predict", "transform")


class Predictor:
    """Fast callable for predictions of a fitted model or pipeline on rows in memory.

    A method looks up at each call whether the model is fitted, the feature names, the loss and the
    shapes; a predictor does so once. It passes up to 256 rows in an array of float32 or float64
    directly to the model's arithmetic. All other rows, and rows with NaN or infinity, go to the
    method itself, with its checks and errors. In both cases the results are bit-identical to the
    method's. Pipelines also skip their checks if all steps before a model of this package are
    `StandardScaler`, `MinMaxScaler`, `MaxAbsScaler` or `RobustScaler`.

    Threads may share a predictor. It refers to the model's arrays instead of copying them, and is
    pickled as model and method. If the model is fitted again, make a new predictor.

    Parameters
    ----------
    model : estimator
        Fitted; of this package, scikit-learn's, or a pipeline. For a model of a file see
        :meth:`of_file`.
    method : str, optional
        One of `METHODS` or any other method of rows, such as ``decision_function``; None: the first
        of `METHODS` that it has.

    Attributes
    ----------
    model : estimator
    method : str
    n_features : int or None
    names : list of str or None
        Names of the features, if the fit stored them. Rows in arrays need none.
    needed : list of str or None
        Names of the features that the model reads: all but those that a ``ColumnTransformer`` at
        its start drops. A frame of rows need not have the others.
    dtypes : list of str or None
        Dtypes of the features: one for all of them, or one each.
    classes : list or None
        Labels, in the order of the columns of ``predict_proba``.
    bare : bool
        Whether a few rows are passed directly to the arithmetic.
    rows_apart : bool
        Whether a row's answer is bit-identical for any number and content of other rows: true for
        models that compare and look up (trees, forests, most boosting; scikit-learn's trees, and
        its forests without `n_jobs`) or scale, and false for models with matrix products, whose
        rounding in BLAS depends on the number of rows.

    Raises
    ------
    InvalidParameterError
        The model has no such method.
    NotFittedError
        The model is of this package, and not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.inference import Predictor
    >>> from daskml_dist.linear_model import Ridge
    >>> X = np.arange(8.0).reshape(4, 2)
    >>> predict = Predictor(Ridge().fit(X, X[:, 0]))
    >>> np.round(predict(X[:1]), 3)
    array([0.073])
    """

    def __init__(self, model: Any, method: str | None = None) -> None:
        methods = [name for name in METHODS if hasattr(model, name)]
        if method is None and methods:
            method = methods[0]
        if method is None or not hasattr(model, method):
            raise InvalidParameterError(
                f"{type(model).__name__} has no method {method or 'of ' + ', '.join(METHODS)}; "
                f"it has {', '.join(methods) or 'none of them'}. Give a fitted model, and one of "
                "its methods."
            )
        check_fitted_if_ours(model, "serve")
        manifest = make_manifest(model)
        self.model, self.method = model, method
        self.n_features: int | None = manifest["inputs"]["n_features"]
        self.names: list[str] | None = manifest["inputs"]["names"]
        self.needed: list[str] | None = needed_names(model)
        self.dtypes: list[str] | None = manifest["inputs"]["dtypes"]
        self.classes: list[Any] | None = manifest["outputs"]["classes"]
        # Functions of few rows for each dtype of the arithmetic; rows of other dtypes go to the
        # method, which converts them.
        candidates = {
            dtype: _make_few_rows_functions(model, method, dtype) for dtype in FLOAT_DTYPES
        }
        by_dtype = {
            dtype: functions for dtype, functions in candidates.items() if functions is not None
        }
        self.bare = bool(by_dtype)
        rows_apart = self.bare and all(functions.apart for functions in by_dtype.values())
        self.rows_apart = rows_apart or _is_sklearn_tree(model)
        few_rows = {dtype: functions.predict_together for dtype, functions in by_dtype.items()}
        self._function = _try_few_rows_first(few_rows, getattr(model, method))
        self._each_by_dtype = {
            dtype: functions.predict_each for dtype, functions in by_dtype.items()
        }

    @classmethod
    def of_file(
        cls, path: Any, method: str | None = None, *, trusted: Collection[str] = ()
    ) -> Self:
        """Return the predictor of a saved model.

        Parameters
        ----------
        path, trusted
            As in :func:`daskml_dist.load`.
        method : str, optional
            As above.

        Returns
        -------
        Predictor

        Raises
        ------
        ModelFileError
            As :func:`daskml_dist.load` does.
        """
        return cls(load(path, trusted=trusted), method)

    # The functions are closures, which cannot be pickled: they are made again from the model.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.method)

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return the results of the model's method for rows.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features), or pandas.DataFrame

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs)
            Bit-identical to those of the method itself; sparse ones are made dense.

        Raises
        ------
        InvalidDataError, ValueError
            As raised by the method: InvalidDataError by models of this package.
        """
        return np.asarray(self._function(X))

    def each(self, X: NDArray[Any]) -> NDArray[Any] | None:
        """Return predictions of rows, bit-identical to predicting each row alone.

        A product of many rows may differ in the last digit from that of one row. Here each row is
        rounded as if alone, in little more time than one product of all rows.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            Up to 256 rows.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_outputs), or None
            Each bit-identical to ``self(X[i : i + 1])``. None if only such calls give these: for
            rows with NaN, and for all models but linear ones, networks (``MLPClassifier``,
            ``MLPRegressor``) and those with `rows_apart`.
        """
        answer = self._each_by_dtype.get(X.dtype)
        return None if answer is None else answer(X)


def _try_few_rows_first(
    bare: dict[np.dtype[Any], FewRowsFunction], method: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a function that tries the function for few rows of the dtype, then the method."""

    def function(X: Any) -> Any:
        # Frames and lists are left to the method, which checks their names and converts them.
        if type(X) is np.ndarray and (answer := bare.get(X.dtype)) is not None:
            if (result := answer(X)) is not None:
                return result
        answers = method(X)
        return answers.toarray() if sparse.issparse(answers) else answers

    return function
