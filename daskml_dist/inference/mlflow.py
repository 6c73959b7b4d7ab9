"""Flavour of MLflow: fitted estimators as MLflow models, stored as model files without pickles.

.. code-block:: python

    import daskml_dist.inference.mlflow as flavor

    with mlflow.start_run():
        info = flavor.log_model(clf, name="model")
    mlflow.pyfunc.load_model(info.model_uri).predict(X)   # in any of MLflow's services
    clf = flavor.load_model(info.model_uri)               # the estimator itself

A model's folder has the model file, ``MLmodel`` (flavours, signature, facts of the training),
``requirements.txt`` and ``python_env.yaml`` for MLflow's environments, and ``code`` with the user's
modules. MLflow finds `_load_pyfunc` here by the name of this module, which ``MLmodel`` states.
"""

from __future__ import annotations

import os
import platform
import shutil
import warnings
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist._version import __version__
from daskml_dist.errors import ModelFileError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.inference.saved import load, read_manifest, save
from daskml_dist.inference.saved.manifest import needed_names
from daskml_dist.inference.saved.model_file import load_formats

#: Name of the flavour in MLflow's files.
FLAVOR = "daskml_dist"
_ENVIRONMENT = "python_env.yaml"
_CODE = "code"


def save_model(
    estimator: Any,
    path: Any,
    *,
    suffix: str = ".skops",
    code_paths: Collection[Any] | None = None,
    mlflow_model: Any = None,
    signature: Any = None,
    pip_requirements: Collection[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a fitted estimator as a folder of MLflow's."""
    mlflow = _load_mlflow()
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise ModelFileError(f"{folder} exists and is not empty. Name a new folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    data = f"model{suffix}"
    save(estimator, folder / data)
    # The file's description of the estimator, from which MLflow's files are made.
    manifest = read_manifest(folder / data)
    # `Model.log` passes the model of the run that it logs to.
    model = mlflow.models.Model() if mlflow_model is None else mlflow_model
    method = _default_method(estimator)
    if signature is None:
        signature = _make_signature(manifest, method, needed_names(estimator))
    model.signature = signature
    facts = {name: manifest[name] for name in ("estimator", "inputs", "outputs", "training")}
    model.metadata = {**(model.metadata or {}), **(metadata or {}), FLAVOR: facts}
    if pip_requirements is None:
        pip_requirements = _list_requirements(manifest, suffix, estimator)
    (folder / "requirements.txt").write_text("\n".join([*pip_requirements, ""]))
    (folder / _ENVIRONMENT).write_text(
        f"python: {platform.python_version()}\nbuild_dependencies: [pip]\n"
        "dependencies: [-r requirements.txt]\n"
    )
    # Two flavours: pyfunc, which MLflow's services load by `_load_pyfunc`, and this package's own,
    # which `load_model` reads.
    code = _copy_user_code(code_paths, folder)
    mlflow.pyfunc.add_to_model(model, __name__, data=data, code=code, python_env=_ENVIRONMENT)
    model.add_flavor(
        FLAVOR, data=data, version=__version__, **_describe_code(estimator, folder / data)
    )
    model.save(str(folder / "MLmodel"))


def log_model(estimator: Any, name: str = "model", **options: Any) -> Any:
    """Log a fitted estimator to the run of MLflow that is active, or to a new one."""
    return _load_mlflow().models.Model.log(
        artifact_path=None, name=name, flavor=_Flavor, estimator=estimator, **options
    )


def load_model(model_uri: str, *, trusted: Collection[str] = (), **user_params: Any) -> Any:
    """Read an estimator that :func:`save_model` or :func:`log_model` wrote."""
    from mlflow.artifacts import download_artifacts

    folder = Path(download_artifacts(artifact_uri=os.fspath(model_uri)))
    flavors = _load_mlflow().models.Model.load(str(folder)).flavors
    if FLAVOR not in flavors:
        raise ModelFileError(
            f"{model_uri} has the flavours {', '.join(flavors)}, but not {FLAVOR}. Load it with "
            "mlflow.pyfunc.load_model."
        )
    return load(folder / flavors[FLAVOR]["data"], trusted=trusted, **user_params)


# --- from a manifest to MLflow's files ----------------------------------------------------------

#: Types of MLflow's columns, by the names of NumPy's and pandas' dtypes.
_TYPES = {
    "float64": "double", "float32": "float", "float16": "float", "int64": "long",
    "int32": "integer", "int16": "integer", "int8": "integer", "bool": "boolean",
    "object": "string", "str": "string", "string": "string",
}  # fmt: skip


def _make_signature(
    manifest: dict[str, Any], default: str, required_features: list[str] | None
) -> Any:
    """Return the signature: names and dtypes of features; without inputs if they are unknown.

    `default` is the method that is called unless the parameter "method" names another. Features
    that are not `required_features`, as the model drops them, are optional.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    entry = manifest["inputs"]
    names, dtypes, n_features = entry["names"], entry["dtypes"], entry["n_features"]
    inputs = None
    # Named features become columns, whose names and types MLflow checks; other rows are a tensor.
    if names and dtypes:
        column_dtypes = dtypes if len(dtypes) == len(names) else dtypes * len(names)
        # MLflow has no type for categories, and refuses them for strings: AnyType accepts all
        # values, and the model checks them itself.
        any_type: Any = AnyType
        types: dict[str, Any] = {**_TYPES, "category": any_type()}
        if all(name in types for name in column_dtypes):
            columns = zip(names, column_dtypes, strict=True)
            inputs = Schema(
                [ColSpec(types[t], n, n in (required_features or names)) for n, t in columns]
            )
    elif n_features and dtypes and len(dtypes) == 1 and np.dtype(dtypes[0]).kind in "fiub":
        inputs = Schema([TensorSpec(np.dtype(dtypes[0]), (-1, n_features))])
    params = ParamSchema([ParamSpec("method", "string", default)])
    return ModelSignature(inputs=inputs, params=params)


def _list_requirements(manifest: dict[str, Any], suffix: str, estimator: Any) -> list[str]:
    """Return pip requirements of a model: the package versions that wrote its file."""
    versions = manifest["versions"]
    names = ("numpy", "scikit-learn", suffix[1:])  # the formats have the names of their packages
    requirements = [f"{name}=={versions[name]}" for name in names if name in versions]
    # For an estimator over a module of PyTorch. The label of a build, such as +cpu, is not on PyPI.
    if hasattr(estimator, "_take_tensors"):
        requirements.append(f"torch=={version('torch').partition('+')[0]}")
    return [f"daskml-dist=={versions['daskml-dist']}", *requirements]


# --- classes and functions, which no model file holds -------------------------------------------


def _copy_user_code(paths: Collection[Any] | None, folder: Path) -> str | None:
    """Copy the user's code into the folder of a model; return the name of its folder there."""
    if paths is None:
        return None
    (folder / _CODE).mkdir()
    for path in map(Path, paths):
        try:
            if path.is_dir():
                shutil.copytree(
                    path, folder / _CODE / path.name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(path, folder / _CODE)
        except OSError as error:
            raise ModelFileError(
                f"Cannot copy {path} ({error}). Name Python files and folders in code_paths."
            ) from error
    return _CODE


def _describe_code(estimator: Any, path: Path) -> dict[str, Any]:
    """Return the names of classes and functions that a loader must import, for ``MLmodel``.

    ``user_params`` has the parameters that the file leaves out, as "module:name"; ``trusted`` the
    classes that are not read unless the reader names them.
    """
    form = load_formats()[path.suffix]
    objects = form.code_of(estimator)
    imported_as = {name: f"{code.__module__}:{code.__qualname__}" for name, code in objects.items()}
    # A warning, not an error: `load_model` accepts them as arguments.
    if not_importable := [name for name in imported_as.values() if not _can_be_imported(name)]:
        warnings.warn(
            "mlflow.pyfunc will not be able to load this model: "
            f"{not_importable[0].replace(':', '.')} cannot be imported. Define it at the top level "
            "of a module, and name its file in code_paths; or pass it to "
            f"load_model(uri, {next(iter(imported_as))}=...).",
            UserWarning,
            stacklevel=user_stack_level(),
        )
    return {"given": imported_as, "trusted": form.types_asked(path.read_bytes())}


def _can_be_imported(name: str) -> bool:
    """Return whether another process finds the class or function "module:name"."""
    try:
        _find_object(name)
    except (ImportError, AttributeError):
        return False
    return not name.startswith("__main__:")


def _find_object(name: str) -> Any:
    """Return the class or function "module:name"."""
    module, _, qualified_name = name.partition(":")
    return getattr(import_module(module), qualified_name)


def _load_mlflow() -> Any:
    """Return MLflow with the modules that are used here; raise if it is not installed."""
    try:
        # MLflow's import warns of its own classes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mlflow
            import mlflow.models
            import mlflow.pyfunc
    except ImportError as error:
        raise ModelFileError(
            "MLflow models need MLflow: pip install 'daskml-dist[mlflow,export]'; save() only "
            "needs skops."
        ) from error
    return mlflow


class _Flavor:
    """Flavour for `Model.log`, which expects a module: an object with its `save_model`."""

    @staticmethod
    def save_model(path: str, mlflow_model: Any, estimator: Any, **options: Any) -> None:
        """Write an estimator into the folder `path` of the run's model."""
        save_model(estimator, path, mlflow_model=mlflow_model, **options)


class _PyfuncModel:
    """Estimator as ``mlflow.pyfunc`` and MLflow's services call it.

    Parameters
    ----------
    estimator : estimator
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return predictions, or results of the method that `params` names ("method")."""
        method = (params or {}).get("method")
        if method is None:
            method = _default_method(self.estimator)
        if method not in _METHODS or not hasattr(self.estimator, method):
            methods = [name for name in _METHODS if hasattr(self.estimator, name)]
            raise ModelFileError(f"method={method!r}: this model has {', '.join(methods)}.")
        return getattr(self.estimator, method)(model_input)


#: Methods that a caller may name: a request can reach no other attribute of a model.
_METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform",
)  # fmt: skip


def _default_method(estimator: Any) -> str:
    """Return the method that is called if none is named."""
    return "predict" if hasattr(estimator, "predict") else "transform"


def _load_pyfunc(path: str) -> _PyfuncModel:
    """Return the model of a data path, for ``mlflow.pyfunc``.

    MLflow imports the code in a model's folder anyway, so classes that ``MLmodel`` names are
    trusted as much as that code is.
    """
    flavor = _load_mlflow().models.Model.load(str(Path(path).parent)).flavors[FLAVOR]
    objects = {}
    for parameter, name in flavor.get("given", {}).items():
        try:
            objects[parameter] = _find_object(name)
        except (ImportError, AttributeError) as error:
            raise ModelFileError(
                f"This model needs {name.replace(':', '.')}, which cannot be imported here "
                f"({error}). Log the model again with its file in code_paths, or load it with "
                f"daskml_dist.inference.mlflow.load_model(uri, {parameter}=...)."
            ) from error
    return _PyfuncModel(load(path, trusted=flavor.get("trusted", ()), **objects))
