"""`inspect.signature`, `help()` and IDEs show the real parameters of every public class."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from daskml_dist.linear_model import SGDClassifier
from tests.docs.blocks import ROOT


def _public_classes() -> list[Any]:
    """Return each class with a page in the reference, except exceptions and protocols."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        reference = importlib.import_module("reference_pages")
    subpackages = [name for some in reference.groups().values() for name in some]
    found = [getattr(reference.module_of(r), n) for r in subpackages for n in reference.names_of(r)]
    return [
        one
        for one in found
        if inspect.isclass(one)
        and not issubclass(one, BaseException)
        and not getattr(one, "_is_protocol", False)
    ]


def test_signatures_equal_those_of_the_constructors() -> None:
    classes = _public_classes()
    assert len(classes) > 150
    for one in classes:
        signature = inspect.signature(one)
        kinds = {p.kind for p in signature.parameters.values()}
        assert inspect.Parameter.VAR_POSITIONAL not in kinds, (one, signature)
        if inspect.isfunction(one.__init__):
            expected = list(inspect.signature(one.__init__).parameters)[1:]
            assert list(signature.parameters) == expected, one


def test_a_subclass_shows_its_own_parameters() -> None:
    class Narrow(SGDClassifier):
        def __init__(self, alpha: float = 1.0) -> None:
            super().__init__(alpha=alpha)

    assert list(inspect.signature(Narrow).parameters) == ["alpha"]
