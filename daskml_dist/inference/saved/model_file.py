"""Model files by their suffix: saving, loading, and reading the manifest alone.

A format is a module ``*_file`` beside this one, with ``SUFFIX``, ``RANK`` and the functions
``write(estimator)``, ``read(data, name, trusted, **given)``, ``read_manifest(data, name)``,
``code_of(estimator)`` and ``types_asked(data)``, all of bytes: reading and writing of files is done
here, once for all formats.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.inference.export.sklearn_models import check_is_estimator
from daskml_dist.inference.saved.storage import path_to_text, read_bytes, write_bytes

#: Subpackage that is searched for the modules of formats.
_PACKAGE = __name__.rpartition(".")[0]


@cache
def load_formats() -> dict[str, ModuleType]:
    """Return the modules of file formats by suffix, the preferred one first."""
    names = [one.name for one in pkgutil.iter_modules(import_module(_PACKAGE).__path__)]
    modules = [import_module(f"{_PACKAGE}.{name}") for name in names if name.endswith("_file")]
    # This module is no format, and has no suffix.
    found = [one for one in modules if hasattr(one, "SUFFIX")]
    return {one.SUFFIX: one for one in sorted(found, key=lambda one: one.RANK)}


@suggest_arguments
def save(estimator: Any, path: Any) -> None:
    """Write a fitted estimator, transformer or pipeline to a file without pickles.

    A file of skops (``.skops``) can also be opened with plain scikit-learn: ``skops.io.load``
    returns the twin that :func:`~daskml_dist.inference.to_sklearn` makes, if there is one.
    :func:`load` returns the estimator itself. A manifest in JSON holds the names and dtypes of the
    features, the classes, facts of the training, versions and checksums.

    A file of safetensors (``.safetensors``) is meant for networks and factor models, and can hold
    any estimator of this package that consists of arrays and numbers: arrays under the names of
    attributes, those of a module of PyTorch under its own names, all other values in the file's
    metadata.

    Parameters
    ----------
    estimator : estimator
        Fitted; of this package, or (for ``.skops``) a pipeline of scikit-learn's with such steps.
        Callbacks and checkpoints are left out, and so are a recommender's ratings; the items that
        each user has seen are kept if the ratings were in memory.
    path : str or path-like
        Path that ends in ``.skops`` or ``.safetensors``, or such a URL of a file system that fsspec
        supports. An existing file is replaced atomically.

    Raises
    ------
    ModelFileError
        The suffix is another, the file cannot be written, the estimator holds what cannot be
        stored (functions of your own), or skops or safetensors is not installed:
        ``pip install "daskml-dist[export]"``.
    InvalidTypeError
        `path` is neither a text nor a path.
    ExportError
        It is no estimator.
    NotFittedError
        The estimator is not fitted.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import daskml_dist
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     daskml_dist.save(clf, f'{folder}/model.skops')
    ...     again = daskml_dist.load(f'{folder}/model.skops')
    >>> again.predict(X).tolist()
    [0, 0, 1, 1]
    """
    # The whole file is made in memory, so a failure of the format leaves no file on disk.
    path = path_to_text(path)
    check_is_estimator(estimator)
    write_bytes(path, _find_format(path).write(estimator))


@suggest_arguments
def load(path: Any, *, trusted: Collection[str] = (), **given: Any) -> Any:
    """Read an estimator that :func:`save` wrote.

    No code of a file is run: it holds arrays, numbers, and objects of those classes of this
    package, scikit-learn and NumPy that hold data only.

    Parameters
    ----------
    path : str or path-like
        Or the URL of a file system that fsspec supports.
    trusted : collection of str, optional
        Names of further classes, of your own, that it may hold.
    **given
        Parameters that are classes or functions, which no file holds: ``module=Net`` for an
        estimator over a module of PyTorch, and its ``criterion`` if the fit had one.

    Returns
    -------
    estimator
        Fitted; its predictions are those of the saved one.

    Raises
    ------
    ModelFileError
        The file does not exist, is damaged, is of a later version, holds classes that are not
        trusted (the message names them), or needs parameters (named too).
    InvalidTypeError
        `path` is none.

    Warns
    -----
    UserWarning
        Another minor release of this package or of scikit-learn wrote the file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import daskml_dist
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     daskml_dist.save(clf, f'{folder}/model.skops')
    ...     again = daskml_dist.load(f'{folder}/model.skops')
    >>> again.predict(X).tolist()
    [0, 0, 1, 1]
    """
    path = path_to_text(path)
    return _find_format(path).read(read_bytes(path), path, frozenset(trusted), **given)


@suggest_arguments
def read_manifest(path: Any) -> dict[str, Any]:
    """Return a model file's manifest; the file's parts are checked against its checksums."""
    path = path_to_text(path)
    found: dict[str, Any] = _find_format(path).read_manifest(read_bytes(path), path)
    return found


def _find_format(path: str) -> ModuleType:
    """Return the format of a path's suffix; raise, listing all suffixes, if it has another."""
    for suffix, module in load_formats().items():
        if path.endswith(suffix):
            return module
    raise ModelFileError(
        f"{path} ends in none of {', '.join(load_formats())}, the endings of model files. Rename "
        "it; for ONNX call to_onnx(path)."
    )
