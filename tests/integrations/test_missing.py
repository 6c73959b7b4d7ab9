"""Integrations where their library is not installed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from daskml_dist.errors import InvalidParameterError


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *args: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    module = importlib.import_module(f"daskml_dist.integrations.{library}")
    trees = importlib.import_module("daskml_dist.integrations._trees")
    monkeypatch.setattr(trees.importlib, "import_module", missing)
    with pytest.raises(InvalidParameterError, match=f"pip install {library}"):
        module.fit(object(), np.eye(2), np.arange(2))
