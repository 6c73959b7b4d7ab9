"""Files that a fitted estimator is written to, by their suffixes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from daskml_dist.errors import InvalidParameterError

__all__ = ["check_output", "save"]


def _pickle(model: Any, path: Path) -> str:
    path.write_bytes(pickle.dumps(model))
    return f"pickle.load(open({str(path)!r}, 'rb'))"


def _joblib(model: Any, path: Path) -> str:
    import_module("joblib").dump(model, path)  # scikit-learn's own
    return f"joblib.load({str(path)!r})"


def _onnx(model: Any, path: Path) -> str:
    model.to_onnx(str(path))
    return f"onnxruntime.InferenceSession({str(path)!r})"


def _model_file(model: Any, path: Path) -> str:
    model.save(path)
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
    """Check before a fit that its end can be written.

    Raises
    ------
    InvalidParameterError
    """
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
    """Write a fitted estimator; the words that load it.

    Raises
    ------
    ExportError, ModelFileError
        The model has no such form.
    """
    return _FORMATS[Path(path).suffix](model, Path(path))
