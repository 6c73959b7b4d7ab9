"""Policies, losses, optimizers and callbacks check their constructor parameters."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import daskml_dist
from daskml_dist.callbacks import CSVLogger
from daskml_dist.errors import DaskMLDistError, InvalidParameterError, InvalidTypeError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.optimizers import Adam
from daskml_dist.parameters.run import Run
from daskml_dist.policies import LocalSGD

#: Classes whose parameters are checked by the fit that receives them.
_CHECKED_LATER = {"Run", "GroupOptions", "RoundedTube"}


def _list_classes(kind: type) -> Iterator[type]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _list_classes(subclass)


def _find_parameters() -> dict[str, tuple[type, str, Any]]:
    """Return class, name and default of each parameter with a numeric or boolean default."""
    for subpackage in pkgutil.walk_packages(daskml_dist.__path__, "daskml_dist."):
        if (
            not subpackage.name.rpartition(".")[2].startswith("_")
            and subpackage.name.count(".") == 1
        ):
            importlib.import_module(subpackage.name)
    found = {}
    for kind in _list_classes(ParameterObject):
        is_public = kind.__module__.startswith("daskml_dist.") and not kind.__name__.startswith("_")
        if not is_public or inspect.isabstract(kind):
            continue
        parameters = inspect.signature(kind).parameters.values()
        if any(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters):
            continue  # cannot be made from defaults
        for p in parameters:
            if isinstance(p.default, (bool, int, float)):
                found[f"{kind.__name__}.{p.name}"] = (kind, p.name, p.default)
    return found


PARAMETERS = _find_parameters()


def test_some_of_each_kind_are_found() -> None:
    for name in ("Adam.beta1", "Huber.epsilon", "LocalSGD.sync_every", "EarlyStopping.patience"):
        assert name in PARAMETERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_numpy_scalars_become_python_numbers(name: str) -> None:
    kind, parameter, default = PARAMETERS[name]
    scalar = np.asarray(default)[()]
    instance = kind(**{parameter: scalar})
    assert isinstance(scalar, np.generic)
    stored = vars(instance).get(parameter, default)
    assert type(stored) is type(default)
    assert stored == default


@pytest.mark.parametrize("name", [n for n in PARAMETERS if n.split(".")[0] not in _CHECKED_LATER])
@pytest.mark.parametrize("wrong", ["0.1", [1], 1j])
def test_other_kinds_of_values_are_refused(name: str, wrong: Any) -> None:
    kind, parameter, _ = PARAMETERS[name]
    with pytest.raises(DaskMLDistError):
        kind(**{parameter: wrong})


def test_the_error_names_the_parameter_and_a_value() -> None:
    with pytest.raises(InvalidParameterError, match=r"Adam\(beta1='0\.9'\): give a number"):
        Adam(beta1="0.9")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match=r"\(deterministic=1\): give True or False"):
        Run(deterministic=1)  # type: ignore[arg-type]
    assert repr(LocalSGD(*(2 ** np.arange(3, 4)))) == "LocalSGD(sync_every=8)"


def _list_required() -> list[Any]:
    """Return the public classes of parameters that cannot be made without arguments."""
    return [
        kind
        for kind in _list_classes(ParameterObject)
        if kind.__module__.startswith("daskml_dist.")
        and not kind.__name__.startswith("_")
        and not inspect.isabstract(kind)
        and any(p.default is p.empty and p.kind is not p.VAR_POSITIONAL
                for p in inspect.signature(kind).parameters.values())
    ]  # fmt: skip


@pytest.mark.parametrize("kind", _list_required())
def test_a_missing_argument_is_named(kind: Any) -> None:
    first = next(iter(inspect.signature(kind).parameters))
    with pytest.raises(
        InvalidTypeError, match=rf"{kind.__name__}\(\): missing.*'{first}'.*\({first}"
    ):
        kind()


def test_classes_with_a_missing_argument_are_found() -> None:
    names = {kind.__name__ for kind in _list_required()}
    assert {"CSVLogger", "Checkpoint", "TimeLimit"} <= names


def test_errors_within_a_constructor_are_kept() -> None:
    class Own(CSVLogger):
        def __init__(self, path: str) -> None:
            len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as raised:
        Own("fit.csv")
    assert not isinstance(raised.value, DaskMLDistError)
