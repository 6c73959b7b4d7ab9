"""Export of estimators to ONNX, through scikit-learn's equivalents, with a check of predictions.

An estimator is converted to scikit-learn's equivalent, its twin (`to_sklearn`); skl2onnx converts
the twin; `onnx_trees` adds the parts that skl2onnx leaves out; and ONNX Runtime's predictions are
compared with the twin's, since some conversions drop parts of a model without an error.
"""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.conversion import load_pandas
from daskml_dist.errors import ExportError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.inference.export.onnx_trees import (
    complete_trees,
    make_category_rows,
    prepare_trees,
)
from daskml_dist.inference.export.sklearn_models import to_sklearn
from daskml_dist.inference.saved.storage import path_to_text, write_bytes

_REMEDY = "If not all inputs are numbers, pass typical rows as `sample`, or use to_sklearn()."
#: Number of rows whose predictions are compared with the twin's.
_CHECKED_ROWS = 64
#: Largest allowed difference, as a share of the largest prediction: rounding to float32 is far
#: below it, and an error of the conversion far above.
_TOLERANCE = 1e-3


@suggest_arguments
def to_onnx(estimator: Any, path: Any = None, *, sample: Any = None) -> Any:
    """Convert a fitted estimator to ONNX, through its scikit-learn equivalent (see `to_sklearn`).

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, or a pipeline of scikit-learn's with such steps.
    path : str or path-like, optional
        File to write, or a URL of a file system that fsspec knows. An existing file is replaced in
        one move.
    sample : array-like or pandas.DataFrame of shape (n, n_features), optional
        A few rows like those to predict, whose dtypes become those of the inputs. None: all inputs
        are float32, in one matrix.

    Returns
    -------
    onnx.ModelProto
        The outputs of a classifier are labels and probabilities (a matrix). Columns of `sample`
        that the estimator's ``ColumnTransformer`` drops are no inputs.

    Raises
    ------
    ExportError
        scikit-learn or ONNX has no such estimator, or the predictions of ONNX differ from the
        estimator's (for `sample`, else for random rows); or skl2onnx is not installed: ``pip
        install "daskml-dist[export]"``.
    ModelFileError
        The file cannot be written.
    NotFittedError
        The estimator is not fitted.

    Notes
    -----
    Rows, thresholds and coefficients are float32 in ONNX, so results differ in the last digits of
    float32. Thresholds are rounded such that float32 rows take the same paths through trees.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.inference import to_onnx
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> model = to_onnx(clf, 'model.onnx')  # doctest: +SKIP
    """
    twin = to_sklearn(estimator)
    skl2onnx, session_of = _load_libraries()
    # Before the conversion, and before the twin predicts: thresholds are rounded in the twin.
    trees = prepare_trees(twin)
    more: dict[str, Any] = {"X": None if sample is None else sample[:1]}
    if sample is None:
        if not hasattr(twin, "n_features_in_"):
            raise ExportError(
                f"This {type(twin).__name__} does not accept a matrix of numbers. {_REMEDY}"
            )
        kind = skl2onnx.common.data_types.FloatTensorType
        more["initial_types"] = [("X", kind([None, twin.n_features_in_]))]
    # The default would be a dict by label for each row's probabilities.
    if _has_probabilities(twin):
        more["options"] = {"zipmap": False}
    model = _convert_with_skl2onnx(skl2onnx, twin, more)
    _drop_unread_inputs(model.graph)
    complete_trees(trees, model)
    _check_answers(twin, _open_session(model, session_of, twin), sample)
    if path is not None:
        write_bytes(path_to_text(path), model.SerializeToString())
    return model


def _convert_with_skl2onnx(skl2onnx: Any, twin: Any, options: dict[str, Any]) -> Any:
    """Return the ONNX model of an estimator of scikit-learn; `options` are skl2onnx's."""
    try:
        with warnings.catch_warnings():
            # skl2onnx passes booleans for numbers, of which protobuf warns.
            warnings.simplefilter("ignore")
            return skl2onnx.to_onnx(twin, **options)
    except Exception as error:  # of many kinds, of skl2onnx, onnx and protobuf
        raise ExportError(
            f"skl2onnx {skl2onnx.__version__} cannot convert this {type(twin).__name__}: "
            f"{str(error)[:400]}\n{_find_remedy(error)}"
        ) from error


def _find_remedy(error: Exception) -> str:
    """Return what to do about a conversion that failed."""
    installed = version("protobuf")
    if "Unable to create node" in str(error) and int(installed.partition(".")[0]) >= 7:
        return (
            f"protobuf {installed} refuses the booleans that skl2onnx passes for the missing "
            'values of trees: pip install "protobuf<7".'
        )
    return _REMEDY


def _drop_unread_inputs(graph: Any) -> None:
    """Remove inputs that no node reads, such as columns that a ColumnTransformer drops."""
    # A graph without inputs would be invalid; the check of predictions reports it.
    read = _find_read_names(graph)
    kept = [one for one in graph.input if one.name in read]
    if kept and len(kept) < len(graph.input):
        del graph.input[:]
        graph.input.extend(kept)


def _find_read_names(graph: Any) -> set[str]:
    """Return the names of the values that nodes of a graph, and of its subgraphs, read."""
    read = {one.name for one in graph.output}
    for node in graph.node:
        read.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                read |= _find_read_names(inner)
    return read


def _open_session(model: Any, session_of: Any, twin: Any) -> Any:
    """Return an ONNX Runtime session of a model."""
    try:
        return session_of(model.SerializeToString())
    except Exception as error:  # of ONNX Runtime's own kinds
        raise ExportError(
            "ONNX Runtime cannot run the model that skl2onnx made from this "
            f"{type(twin).__name__}: {str(error)[-400:]}\nUse to_sklearn()."
        ) from error


def _load_libraries() -> tuple[Any, Any]:
    """Return the module skl2onnx, and a function that opens a model."""
    try:
        import onnxruntime
        import skl2onnx
    except ImportError as error:
        raise ExportError(
            'ONNX export needs skl2onnx and ONNX Runtime: pip install "daskml-dist[export]".'
        ) from error

    def session_of(model: bytes) -> Any:
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    return skl2onnx, session_of


def _has_probabilities(estimator: Any) -> bool:
    """Return whether an estimator predicts probabilities of classes."""
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator)) and hasattr(estimator, "predict_proba")


# --- answers ---------------------------------------------------------------------------------


def _check_answers(twin: Any, session: Any, sample: Any) -> None:
    """Raise if the predictions of ONNX differ from those of scikit-learn's estimator.

    skl2onnx leaves some parts of models out without an error.
    """
    if sample is None:
        drawn = np.random.default_rng(0).normal(size=(_CHECKED_ROWS, twin.n_features_in_))
        # Some estimators, such as naive Bayes of counts, refuse negative numbers.
        sample = np.abs(drawn).astype(np.float32)
        sample = make_category_rows(twin, sample)
    sample = sample[:_CHECKED_ROWS]
    wanted = _compute_expected_answers(twin, sample)
    # A classifier's outputs are labels (0) and probabilities (1).
    number = int(_has_probabilities(twin))
    try:
        found = np.asarray(session.run(None, _make_inputs(session, sample))[number])
    except Exception as error:  # of ONNX Runtime's own kinds, and of rows that are no such inputs
        raise ExportError(
            f"ONNX Runtime returned no predictions of this {type(twin).__name__}: "
            f"{str(error)[-400:]}\n{_REMEDY}"
        ) from error
    if not _are_near(found, wanted):
        raise ExportError(
            f"The ONNX model that skl2onnx made from this {type(twin).__name__} predicts "
            "differently. Use to_sklearn(), or, if typical rows are unlike numbers near 0, pass "
            "some as `sample`."
        )


def _compute_expected_answers(twin: Any, sample: Any) -> NDArray[Any]:
    """Return the predictions of scikit-learn's estimator, for the first dtype it accepts."""
    forms = [sample]
    if isinstance(sample, np.ndarray):
        # Some estimators accept only rows of the dtype of the fit.
        dtypes = (np.float64, np.float32) if sample.dtype.kind in "biuf" else (sample.dtype,)
        forms = [sample.astype(dtype) for dtype in dtypes]
        if hasattr(twin, "feature_names_in_"):
            forms = [load_pandas().DataFrame(one, columns=twin.feature_names_in_) for one in forms]
    errors = []
    for rows in forms:
        try:
            return _compute_onnx_answers(twin, rows)
        except ExportError:
            raise
        except (TypeError, ValueError) as error:
            errors.append(error)
    raise ExportError(
        f"This {type(twin).__name__} cannot predict the rows that test the ONNX model "
        f"({str(errors[0])[:400]}). {_REMEDY}"
    ) from errors[0]


def _compute_onnx_answers(twin: Any, sample: Any) -> NDArray[Any]:
    """Return the predictions of the scikit-learn method that the ONNX model implements."""
    for method in ("predict_proba", "predict", "transform"):
        if hasattr(twin, method) and (method != "predict_proba" or _has_probabilities(twin)):
            found = getattr(twin, method)(sample)
            if isinstance(found, list) and len({one.shape for one in found}) > 1:
                raise ExportError(
                    "ONNX has one array of probabilities, but the outputs have different "
                    "numbers of classes. Export one model per output, or use to_sklearn()."
                )
            return np.asarray(found.toarray() if hasattr(found, "toarray") else found)
    raise ExportError(f"{type(twin).__name__} has no method that ONNX supports. Use to_sklearn().")


def _make_inputs(session: Any, sample: Any) -> dict[str, Any]:
    """Return rows as the inputs of a session: one matrix, or a column for each feature."""
    names = [one.name for one in session.get_inputs()]
    if len(names) == 1 and names[0] not in getattr(sample, "columns", ()):
        return {names[0]: np.asarray(sample)}
    return {name: np.asarray(sample[name]).reshape(-1, 1) for name in names}


def _are_near(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Return whether predictions differ by no more than rounding to float32 explains."""
    if expected.dtype.kind not in "fc":
        # Labels: rounding may change those of rows at a decision boundary, but not those of 10% of
        # rows.
        return bool(np.mean(actual.reshape(expected.shape) == expected) > 0.9)
    if actual.size != expected.size:
        return False
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(
        np.allclose(
            actual.reshape(expected.shape), expected, atol=_TOLERANCE * scale, rtol=_TOLERANCE
        )
    )
