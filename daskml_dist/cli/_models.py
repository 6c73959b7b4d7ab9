"""Estimators of the command line: made from the names of their classes, saved and loaded.

`make_estimator` accepts parameters as text; `save` and `load` choose the format by the suffix.
"""

from __future__ import annotations

import argparse
import ast
import os
import pickle
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import daskml_dist
from daskml_dist.errors import InvalidParameterError, ModelFileError
from daskml_dist.errors.suggestions import suggest_nearest


def _write_pickle(model: Any, path: Path, sample: Any) -> str:
    path.write_bytes(pickle.dumps(model))
    return f"pickle.load(open({str(path)!r}, 'rb'))"


def _write_joblib(model: Any, path: Path, sample: Any) -> str:
    import_module("joblib").dump(model, path)  # scikit-learn's own
    return f"joblib.load({str(path)!r})"


def _write_onnx(model: Any, path: Path, sample: Any) -> str:
    from daskml_dist.inference import to_onnx

    # Without encoded columns all inputs are numbers, in one matrix.
    to_onnx(model, str(path), sample=sample if hasattr(model, "steps") else None)
    return f"onnxruntime.InferenceSession({str(path)!r})"


def _write_model_file(model: Any, path: Path, sample: Any) -> str:
    daskml_dist.save(model, path)
    return f"daskml_dist.load({str(path)!r})"


#: Writer for each suffix: it returns the Python expression that loads the file, to be printed.
_FORMATS: dict[str, Callable[[Any, Path, Any], str]] = {
    ".skops": _write_model_file,
    ".safetensors": _write_model_file,
    ".pkl": _write_pickle,
    ".joblib": _write_joblib,
    ".onnx": _write_onnx,
}
#: Packages of the extra `export` that a suffix needs.
_NEEDS = {
    ".skops": ["skops"],
    ".safetensors": ["safetensors"],
    ".onnx": ["onnx", "onnxruntime", "skl2onnx"],
}


def check_output(path: str | None, has_texts: bool = False) -> None:
    """Raise before a fit, which may take long, if its model could not be saved to a path.

    `has_texts`: some columns are texts, whose encoder ONNX does not have.
    """
    if path is None:
        return
    if Path(path).suffix not in _FORMATS:
        raise InvalidParameterError(f"--output {path}: end it with one of {', '.join(_FORMATS)}.")
    if has_texts and Path(path).suffix == ".onnx":
        raise InvalidParameterError(
            f"--output {path}: ONNX has no --text columns. Leave them out, or end it with .skops."
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InvalidParameterError(f"--output {path}: its folder does not exist. Create it first.")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise InvalidParameterError(f"--output {path}: the file cannot be written. Name another.")
    if missing := [n for n in _NEEDS.get(Path(path).suffix, []) if find_spec(n) is None]:
        raise InvalidParameterError(
            f'--output {path} needs {", ".join(missing)}: pip install "daskml-dist[export]", or '
            "end it with .joblib or .pkl."
        )


def save(model: Any, path: str, sample: Any = None) -> str:
    """Write a fitted estimator; return the Python expression that loads it.

    `sample` are a few rows of the fit, which ONNX needs for encoded columns.
    """
    return _FORMATS[Path(path).suffix](model, Path(path), sample)


def load(path: str, trusted: Collection[str] = ()) -> Any:
    """Read a fitted estimator written by `save`.

    `trusted` are names of classes outside this package that the file may hold.
    """
    suffix = Path(path).suffix
    if suffix not in _FORMATS or suffix == ".onnx":
        hint = " Run ONNX files with onnxruntime, in any language." if suffix == ".onnx" else ""
        kinds = ", ".join(form for form in _FORMATS if form != ".onnx")
        raise InvalidParameterError(f"--model {path}: name a file that ends in {kinds}.{hint}")
    # skops and safetensors run no code of the file; a pickle does, as the help text warns.
    if suffix in (".skops", ".safetensors"):
        model = daskml_dist.load(path, trusted=trusted)
    else:
        try:
            model = import_module("joblib").load(path)  # reads plain pickles too
        except Exception as error:  # unpickling a damaged file may raise anything
            raise ModelFileError(
                f"{path} cannot be read: {type(error).__name__}: {error}. Name a file written by "
                "`fit --output` with the same versions of Python and scikit-learn."
            ) from error
    if not hasattr(model, "predict"):
        raise InvalidParameterError(
            f"--model {path} holds a {type(model).__name__}, which cannot predict. Name the file "
            "of a fitted model."
        )
    return model


#: Subpackages of estimators that are fitted to a target, in the order of search.
_SUBPACKAGES = ("linear_model", "svm", "naive_bayes", "neural_network", "tree", "ensemble")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe an estimator, for `make_estimator`."""
    parser.add_argument(
        "--estimator", default="SGDClassifier", metavar="CLASS",
        help="estimator class of this package; default: SGDClassifier",
    )  # fmt: skip
    parser.add_argument(
        "--policy", help="synchronisation policy of fits by gradient steps, such as sync or local"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="parameter of the estimator; repeatable",
    )


def make_estimator(name: str, settings: Iterable[str], **params: Any) -> Any:
    """Return an estimator by the name of its class, with parameters given as NAME=VALUE."""
    estimator = _find_estimator_class(name)()
    params_by_name = dict(map(_parse_setting, settings))
    params_by_name |= {key: value for key, value in params.items() if value is not None}
    known_params = estimator.get_params()
    for key in params_by_name:
        # Parameters of a parameter, such as estimator__alpha, are checked by `set_params`.
        if key.partition("__")[0] not in known_params:
            raise InvalidParameterError(
                f"{name} has no parameter {key!r}. Use one of {sorted(known_params)}."
                f"{suggest_nearest(key, known_params)}"
            )
    return estimator.set_params(**params_by_name)


def encoding_columns(
    model: Any, columns: Sequence[str], categories: Sequence[str], texts: Sequence[str]
) -> Any:
    """Return a pipeline that encodes columns of categories and texts before a model.

    Without such columns it is the model itself.
    """
    if not (categories or texts):
        return model
    from sklearn.pipeline import make_pipeline

    from daskml_dist.compose import ColumnTransformer
    from daskml_dist.feature_extraction import TfidfVectorizer
    from daskml_dist.preprocessing import OneHotEncoder

    takes_sparse = model.__sklearn_tags__().input_tags.sparse
    # Rows to predict, and held-out rows, may have categories that the fit has not seen.
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=takes_sparse)
    steps: list[tuple[str, Any, Any]]
    steps = [("numbers", "passthrough", [c for c in columns if c not in (*categories, *texts)])]
    steps += [("categories", one_hot, list(categories))] if categories else []
    steps += [(f"text-{name}", TfidfVectorizer(), name) for name in texts]
    # Outputs of a lower density than this become sparse: scikit-learn's default, or 0, which no
    # density is below, for models that need dense rows.
    threshold = 0.3 if takes_sparse else 0.0
    return make_pipeline(ColumnTransformer(steps, sparse_threshold=threshold), model)


def _find_estimator_class(name: str) -> Any:
    """Return the class of an estimator; raise if no subpackage has one of the name."""
    # Subpackages are imported one after the other, until one of them has the class.
    for package in _SUBPACKAGES:
        if (estimator_class := _list_supervised_estimators(package).get(name)) is not None:
            return estimator_class
    known_names = sorted(
        name for package in _SUBPACKAGES for name in _list_supervised_estimators(package)
    )
    raise InvalidParameterError(
        f"There is no estimator {name!r}. Use one of {known_names}."
        f"{suggest_nearest(name, known_names)}"
    )


def _list_supervised_estimators(package: str) -> dict[str, Any]:
    """Return the classes of a subpackage that fit and predict, by name."""
    module = import_module(f"{daskml_dist.__name__}.{package}")
    classes = {name: getattr(module, name) for name in module.__all__}
    return {n: c for n, c in classes.items() if hasattr(c, "fit") and hasattr(c, "predict")}


def _parse_setting(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; a value that is no Python literal is text."""
    name, is_set, value = text.partition("=")
    if not is_set or not name.isidentifier():
        raise InvalidParameterError(
            f"--set {text}: give a parameter as NAME=VALUE, such as --set alpha=1e-4."
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        # For example --set loss=log_loss: quotes would have to be escaped in the shell.
        return name, value
