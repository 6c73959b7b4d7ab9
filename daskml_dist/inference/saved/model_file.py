"""Model files by their suffix: save, load, and the manifest alone."""

from __future__ import annotations

import os
from collections.abc import Collection
from types import ModuleType
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.inference.saved import skops_file
from daskml_dist.inference.saved.storage import read_bytes, write_bytes

__all__ = ["load", "read_manifest", "save"]

FORMATS: dict[str, ModuleType] = {module.SUFFIX: module for module in (skops_file,)}


def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator, transformer or pipeline to a file that holds no pickle.

    A file of skops opens in plain scikit-learn too: ``skops.io.load`` gives the twin that
    :func:`~daskml_dist.inference.to_sklearn` makes, where there is one. :func:`load` gives the
    estimator itself. A manifest in JSON holds the names and dtypes of the features, the classes,
    facts of the training, versions and checksums.

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, or a pipeline of scikit-learn's of such. Its callbacks are left
        out.
    path : str or path-like
        That ends in ``.skops``, or such a URL of a file system that fsspec knows. A file that is
        there is replaced in one move.

    Raises
    ------
    ModelFileError
        The suffix is another, the file cannot be written, the estimator holds what cannot be
        stored (functions of your own), or skops is not installed:
        ``pip install "daskml-dist[export]"``.
    NotFittedError
        The estimator is not fitted.
    """
    path = os.fspath(path)
    write_bytes(path, _format_of(path).write(estimator))


def load(path: Any, *, trusted: Collection[str] = ()) -> Any:
    """Read an estimator that :func:`save` wrote.

    Nothing of a file is run: it holds arrays, numbers, and objects of the classes of this package,
    scikit-learn and NumPy that only hold such.

    Parameters
    ----------
    path : str or path-like
        Or the URL of a file system that fsspec knows.
    trusted : collection of str, optional
        Names of further classes, of your own, that it may hold.

    Returns
    -------
    estimator
        Fitted; its answers are those of the one that was saved.

    Raises
    ------
    ModelFileError
        The file is not there, damaged, of a later version, or holds classes that are not trusted,
        which are named.
    """
    path = os.fspath(path)
    return _format_of(path).read(read_bytes(path), path, frozenset(trusted))


def read_manifest(path: Any) -> dict[str, Any]:
    """Read what a model file says of itself; its parts are checked against their checksums.

    Parameters
    ----------
    path : str or path-like
        Or the URL of a file system that fsspec knows.

    Returns
    -------
    dict
        With ``format``, ``estimator``, ``saved``, ``inputs``, ``outputs``, ``training``,
        ``versions`` and ``sha256``.

    Raises
    ------
    ModelFileError
        The file is not there, damaged, or of a later version.
    """
    path = os.fspath(path)
    found: dict[str, Any] = _format_of(path).read_manifest(read_bytes(path), path)
    return found


def _format_of(path: str) -> ModuleType:
    for suffix, module in FORMATS.items():
        if path.endswith(suffix):
            return module
    raise ModelFileError(
        f"{path} ends in none of {', '.join(FORMATS)}, by which a model file is known. Name it so; "
        "for ONNX call to_onnx(path)."
    )
