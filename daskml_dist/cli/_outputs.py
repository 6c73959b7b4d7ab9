"""Files that a fitted estimator is written to and read from, by their suffixes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import daskml_dist
from daskml_dist.errors import InvalidParameterError, ModelFileError

__all__ = ["check_output", "load", "save"]


def _pickle(model: Any, path: Path) -> str:
    path.write_bytes(pickle.dumps(model))
    return f"pickle.load(open({str(path)!r}, 'rb'))"


def _joblib(model: Any, path: Path) -> str:
    import_module("joblib").dump(model, path)  # scikit-learn's own
    return f"joblib.load({str(path)!r})"


def _onnx(model: Any, path: Path) -> str:
    from daskml_dist.inference import to_onnx

    to_onnx(model, str(path))
    return f"onnxruntime.InferenceSession({str(path)!r})"


def _model_file(model: Any, path: Path) -> str:
    daskml_dist.save(model, path)
    return f"daskml_dist.load({str(path)!r})"


#: Writer of each suffix, which returns the words that load the file.
_FORMATS: dict[str, Callable[[Any, Path], str]] = {
    ".skops": _model_file,
    ".safetensors": _model_file,
    ".pkl": _pickle,
    ".joblib": _joblib,
    ".onnx": _onnx,
}
#: Packages of the extra `export` that a suffix needs.
_NEEDS = {
    ".skops": ["skops"],
    ".safetensors": ["safetensors"],
    ".onnx": ["onnx", "onnxruntime", "skl2onnx"],
}


def check_output(path: str | None) -> None:
    """Check before a fit that its end can be written."""
    if path is None:
        return
    if Path(path).suffix not in _FORMATS:
        raise InvalidParameterError(f"--output {path}: end it with one of {', '.join(_FORMATS)}.")
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InvalidParameterError(f"--output {path}: there is no folder for it. Make it first.")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise InvalidParameterError(f"--output {path}: no file can be written there. Name another.")
    if lacking := [n for n in _NEEDS.get(Path(path).suffix, []) if find_spec(n) is None]:
        raise InvalidParameterError(
            f'--output {path} needs {", ".join(lacking)}: pip install "daskml-dist[export]", or '
            "end it with .joblib or .pkl."
        )


def save(model: Any, path: str) -> str:
    """Write a fitted estimator; the words that load it."""
    return _FORMATS[Path(path).suffix](model, Path(path))


def load(path: str, trusted: Collection[str] = ()) -> Any:
    """Read a fitted estimator that `save` has written."""
    suffix = Path(path).suffix
    if suffix not in _FORMATS or suffix == ".onnx":
        why = " ONNX's are run by onnxruntime, in any language." if suffix == ".onnx" else ""
        kinds = ", ".join(known for known in _FORMATS if known != ".onnx")
        raise InvalidParameterError(f"--model {path}: name a file that ends in {kinds}.{why}")
    if suffix in (".skops", ".safetensors"):
        model = daskml_dist.load(path, trusted=trusted)
    else:
        try:
            model = import_module("joblib").load(path)  # reads plain pickles too
        except Exception as error:  # a damaged pickle raises whatever it comes upon
            raise ModelFileError(
                f"{path} cannot be read: {type(error).__name__}: {error}. Name a file that "
                "`fit --output` has written with the same versions of Python and scikit-learn."
            ) from error
    if not hasattr(model, "predict"):
        raise InvalidParameterError(
            f"--model {path} holds a {type(model).__name__}, which predicts nothing. Name the file "
            "of a fitted model."
        )
    return model
