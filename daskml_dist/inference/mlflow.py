"""MLflow's flavour: fitted estimators as models of MLflow, which hold model files and no pickle.

.. code-block:: python

    import daskml_dist.inference.mlflow as flavor

    with mlflow.start_run():
        info = flavor.log_model(clf, name="model")
    mlflow.pyfunc.load_model(info.model_uri).predict(X)   # in any of MLflow's services
    clf = flavor.load_model(info.model_uri)               # the estimator itself
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
        raise ModelFileError(f"{folder} is there and not empty. Name a new folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    data = f"model{suffix}"
    save(estimator, folder / data)
    manifest = read_manifest(folder / data)
    model = mlflow.models.Model() if mlflow_model is None else mlflow_model
    method = _default_method(estimator)
    if signature is None:
        signature = _make_signature(manifest, method, needed_names(estimator))
    model.signature = signature
    facts = {name: manifest[name] for name in ("estimator", "inputs", "outputs", "training")}
    model.metadata = {**(model.metadata or {}), **(metadata or {}), FLAVOR: facts}
    wanted = _requirements(manifest, suffix, estimator)
    wanted = wanted if pip_requirements is None else [*pip_requirements]
    (folder / "requirements.txt").write_text("\n".join([*wanted, ""]))
    (folder / _ENVIRONMENT).write_text(
        f"python: {platform.python_version()}\nbuild_dependencies: [pip]\n"
        "dependencies: [-r requirements.txt]\n"
    )
    code = _copy_user_code(code_paths, folder)
    mlflow.pyfunc.add_to_model(model, __name__, data=data, code=code, python_env=_ENVIRONMENT)
    model.add_flavor(
        FLAVOR, data=data, version=__version__, **_list_asked_classes(estimator, folder / data)
    )
    model.save(str(folder / "MLmodel"))


def log_model(estimator: Any, name: str = "model", **options: Any) -> Any:
    """Log a fitted estimator to the run of MLflow that is active, or to a new one."""
    return _load_mlflow().models.Model.log(
        artifact_path=None, name=name, flavor=_Flavor, estimator=estimator, **options
    )


def load_model(model_uri: str, *, trusted: Collection[str] = (), **given: Any) -> Any:
    """Read an estimator that :func:`save_model` or :func:`log_model` wrote."""
    from mlflow.artifacts import download_artifacts

    folder = Path(download_artifacts(artifact_uri=os.fspath(model_uri)))
    flavors = _load_mlflow().models.Model.load(str(folder)).flavors
    if FLAVOR not in flavors:
        raise ModelFileError(
            f"{model_uri} has the flavours {', '.join(flavors)}, and not {FLAVOR}. Read it by "
            "mlflow.pyfunc.load_model."
        )
    return load(folder / flavors[FLAVOR]["data"], trusted=trusted, **given)


# --- what a manifest becomes there -------------------------------------------------------------

#: Types of MLflow's columns, by those of NumPy.
_TYPES = {
    "float64": "double", "float32": "float", "float16": "float", "int64": "long",
    "int32": "integer", "int16": "integer", "int8": "integer", "bool": "boolean",
    "object": "string", "str": "string", "string": "string",
}  # fmt: skip


def _make_signature(manifest: dict[str, Any], default: str, needed: list[str] | None) -> Any:
    """Return the signature of names and dtypes of features; without inputs where unknown.

    Features that are not `needed`, as the model drops them, may be missing.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    told = manifest["inputs"]
    names, dtypes, n_features = told["names"], told["dtypes"], told["n_features"]
    inputs = None
    if names and dtypes:
        each = dtypes if len(dtypes) == len(names) else dtypes * len(names)
        # MLflow has no categories, and takes none for a text; the model looks at them itself.
        anything: Any = AnyType
        types: dict[str, Any] = {**_TYPES, "category": anything()}
        if all(one in types for one in each):
            columns = zip(names, each, strict=True)
            inputs = Schema([ColSpec(types[t], n, n in (needed or names)) for n, t in columns])
    elif n_features and dtypes and len(dtypes) == 1 and np.dtype(dtypes[0]).kind in "fiub":
        inputs = Schema([TensorSpec(np.dtype(dtypes[0]), (-1, n_features))])
    params = ParamSchema([ParamSpec("method", "string", default)])
    return ModelSignature(inputs=inputs, params=params)


def _requirements(manifest: dict[str, Any], suffix: str, estimator: Any) -> list[str]:
    versions = manifest["versions"]
    names = ("numpy", "scikit-learn", suffix[1:])
    wanted = [f"{name}=={versions[name]}" for name in names if name in versions]
    if hasattr(estimator, "_take_tensors"):  # without the label of a build, which is not for pip
        wanted.append(f"torch=={version('torch').partition('+')[0]}")
    return [f"daskml-dist=={versions['daskml-dist']}", *wanted]


# --- code that no model file holds -------------------------------------------------------------


def _copy_user_code(paths: Collection[Any] | None, folder: Path) -> str | None:
    """Copy the user's code into the folder of a model; return the name of its folder there."""
    if paths is None:
        return None
    (folder / _CODE).mkdir()
    for one in map(Path, paths):
        try:
            if one.is_dir():
                shutil.copytree(
                    one, folder / _CODE / one.name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(one, folder / _CODE)
        except OSError as error:
            raise ModelFileError(
                f"Cannot copy {one} ({error}). Name files and folders of Python in code_paths."
            ) from error
    return _CODE


def _list_asked_classes(estimator: Any, path: Path) -> dict[str, Any]:
    """Return, for the loader, names of the classes that a model file asks its reader for."""
    form = load_formats()[path.suffix]
    objects = form.code_of(estimator)
    given = {name: f"{one.__module__}:{one.__qualname__}" for name, one in objects.items()}
    if lost := [told for told in given.values() if not _is_there(told)]:
        warnings.warn(
            f"mlflow.pyfunc will not read this model: {lost[0].replace(':', '.')} is not found by "
            "its name. Define it at the top of a module, and name its file in code_paths; "
            f"load_model(uri, {next(iter(given))}=...) is given it.",
            UserWarning,
            stacklevel=user_stack_level(),
        )
    return {"given": given, "trusted": form.types_asked(path.read_bytes())}


def _is_there(told: str) -> bool:
    try:
        _find_object(told)
    except (ImportError, AttributeError):
        return False
    return not told.startswith("__main__:")


def _find_object(told: str) -> Any:
    """Return the class or function of a name."""
    module, _, short = told.partition(":")
    return getattr(import_module(module), short)


def _load_mlflow() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of MLflow, about its own classes
            import mlflow
            import mlflow.models
            import mlflow.pyfunc
    except ImportError as error:
        raise ModelFileError(
            "Models of MLflow need MLflow: pip install 'daskml-dist[mlflow,export]'; save() needs "
            "skops alone."
        ) from error
    return mlflow


class _Flavor:
    """Way in which MLflow calls a flavour."""

    @staticmethod
    def save_model(path: str, mlflow_model: Any, estimator: Any, **options: Any) -> None:
        save_model(estimator, path, mlflow_model=mlflow_model, **options)


class _Served:
    """Estimator as MLflow's services call it.

    Parameters
    ----------
    estimator : estimator
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return predictions, or answers of the method that `params` names ("method")."""
        method = (params or {}).get("method")
        if method is None:
            method = _default_method(self.estimator)
        if method not in _METHODS or not hasattr(self.estimator, method):
            known = [name for name in _METHODS if hasattr(self.estimator, name)]
            raise ModelFileError(f"method={method!r}: this model has {', '.join(known)}.")
        return getattr(self.estimator, method)(model_input)


_METHODS = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "transform",
)  # fmt: skip


def _default_method(estimator: Any) -> str:
    return "predict" if hasattr(estimator, "predict") else "transform"


def _load_pyfunc(path: str) -> _Served:
    """Return the model of a data path, for ``mlflow.pyfunc``.

    MLflow runs the code beside a model that it reads, so classes told there are as good as those.
    """
    told = _load_mlflow().models.Model.load(str(Path(path).parent)).flavors[FLAVOR]
    given = {}
    for parameter, name in told.get("given", {}).items():
        try:
            given[parameter] = _find_object(name)
        except (ImportError, AttributeError) as error:
            raise ModelFileError(
                f"This model needs {name.replace(':', '.')}, which is not here ({error}). Log it "
                "again with the file that defines it in code_paths, or read it by "
                f"daskml_dist.inference.mlflow.load_model(uri, {parameter}=...)."
            ) from error
    return _Served(load(path, trusted=told.get("trusted", ()), **given))
