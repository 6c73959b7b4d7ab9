"""Files of ONNX, which other languages and ONNX Runtime read."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.optional import load_pandas
from daskml_dist.errors import ExportError
from daskml_dist.inference.export.onnx_categories import rows_of_categories
from daskml_dist.inference.export.onnx_trees import complete_trees, prepare_trees
from daskml_dist.inference.export.twins import to_sklearn

__all__ = ["to_onnx"]

_REMEDY = (
    "Pass rows like those to come as `sample` where inputs are not all numbers, or use "
    "to_sklearn()."
)
#: Rows that answers are compared for, and how near they must be in units of the largest: a model
#: that is another is further off.
_ROWS, _NEAR = 64, 1e-3


def to_onnx(estimator: Any, path: Any = None, *, sample: Any = None) -> Any:
    """Make a fitted estimator a model of ONNX, by way of scikit-learn's (see `to_sklearn`).

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, or a pipeline of scikit-learn's of such.
    path : str or path-like, optional
        Of the file to write.
    sample : array-like or pandas.DataFrame of shape (n, n_features), optional
        A few rows like those to come, which tell the dtypes of the inputs; None: all are float32,
        in one matrix.

    Returns
    -------
    onnx.ModelProto
        Of a classifier, the outputs are labels and probabilities (a matrix).

    Raises
    ------
    ExportError
        scikit-learn or ONNX has no such estimator, or answers of ONNX's are others than those of
        the estimator, for `sample` or rows that are drawn; or skl2onnx is not installed:
        ``pip install "daskml-dist[export]"``.
    NotFittedError
        The estimator is not fitted.

    Notes
    -----
    Rows, thresholds and coefficients are float32 there, so results differ in the last digits of
    float32. Thresholds are rounded such that float32 rows take the same ways through trees.
    """
    twin = to_sklearn(estimator)
    skl2onnx, session_of = _libraries()
    trees = prepare_trees(twin)
    more: dict[str, Any] = {"X": None if sample is None else sample[:1]}
    if sample is None:
        if not hasattr(twin, "n_features_in_"):
            raise ExportError(f"This {type(twin).__name__} takes no matrix of numbers. {_REMEDY}")
        kind = skl2onnx.common.data_types.FloatTensorType
        more["initial_types"] = [("X", kind([None, twin.n_features_in_]))]
    if _has_shares(twin):
        more["options"] = {"zipmap": False}
    model = _converted(skl2onnx, twin, more)
    complete_trees(trees, model)
    _check_answers(twin, session_of(model.SerializeToString()), sample)
    if path is not None:
        Path(path).write_bytes(model.SerializeToString())
    return model


def _converted(skl2onnx: Any, twin: Any, more: dict[str, Any]) -> Any:
    """The model of ONNX of an estimator of scikit-learn."""
    try:
        with warnings.catch_warnings():
            # protobuf warns of the booleans that skl2onnx gives it for numbers.
            warnings.simplefilter("ignore")
            return skl2onnx.to_onnx(twin, **more)
    except Exception as error:  # of many kinds, of skl2onnx, onnx and protobuf
        raise ExportError(
            f"skl2onnx {skl2onnx.__version__} has no ONNX for this {type(twin).__name__}: "
            f"{str(error)[:400]}\n{_REMEDY}"
        ) from error


def _libraries() -> tuple[Any, Any]:
    """skl2onnx, and a function that opens a model."""
    try:
        import onnxruntime
        import skl2onnx
    except ImportError as error:
        raise ExportError(
            'ONNX is made by skl2onnx and tried by ONNX Runtime: pip install "daskml-dist[export]".'
        ) from error

    def session_of(model: bytes) -> Any:
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    return skl2onnx, session_of


def _has_shares(estimator: Any) -> bool:
    """Whether answers are probabilities of classes."""
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator)) and hasattr(estimator, "predict_proba")


# --- answers ---------------------------------------------------------------------------------


def _check_answers(twin: Any, session: Any, sample: Any) -> None:
    """Check that ONNX answers as the twin does: not all that skl2onnx leaves out is an error."""
    if sample is None:
        drawn = np.random.default_rng(0).normal(size=(_ROWS, twin.n_features_in_))
        sample = np.abs(drawn).astype(np.float32)  # some take no negative ones
        sample = rows_of_categories(twin, sample)
    sample = sample[:_ROWS]
    # Some of scikit-learn's take rows of the dtype of the fit alone.
    wide = sample.astype(np.float64) if isinstance(sample, np.ndarray) else sample
    if isinstance(sample, np.ndarray) and hasattr(twin, "feature_names_in_"):
        wide = load_pandas().DataFrame(wide, columns=twin.feature_names_in_)
    wanted = _answers(twin, wide)
    found = session.run(None, _inputs(session, sample))
    number = int(_has_shares(twin))
    if not _are_near(np.asarray(found[number]), wanted):
        raise ExportError(
            f"skl2onnx makes ONNX of this {type(twin).__name__} that answers otherwise. Use "
            "to_sklearn(), or pass rows that the model is for as `sample`, if these are unlike "
            "numbers near 0."
        )


def _answers(twin: Any, sample: Any) -> NDArray[Any]:
    for method in ("predict_proba", "predict", "transform"):
        if hasattr(twin, method) and (method != "predict_proba" or _has_shares(twin)):
            found = getattr(twin, method)(sample)
            return np.asarray(found.toarray() if hasattr(found, "toarray") else found)
    raise ExportError(f"{type(twin).__name__} answers nothing that ONNX could. Use to_sklearn().")


def _inputs(session: Any, sample: Any) -> dict[str, Any]:
    names = [one.name for one in session.get_inputs()]
    if len(names) == 1:
        return {names[0]: np.asarray(sample)}
    return {name: np.asarray(sample[name]).reshape(-1, 1) for name in names}


def _are_near(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    if wanted.dtype.kind not in "fc":
        # Labels, which rows at a border of two may change by rounding.
        return bool(np.mean(found.reshape(wanted.shape) == wanted) > 0.9)
    if found.size != wanted.size:
        return False
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    return bool(np.allclose(found.reshape(wanted.shape), wanted, atol=_NEAR * scale, rtol=_NEAR))
