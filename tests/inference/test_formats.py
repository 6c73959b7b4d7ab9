"""Every public estimator in every format predicts as before, or is a known exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import daskml_dist
from daskml_dist.errors import ExportError, ModelFileError
from daskml_dist.inference import mlflow as flavor
from daskml_dist.inference import to_onnx
from daskml_dist.inference.saved.safetensors_file import code_of
from tests.docs.blocks import ROOT
from tests.inference.formats import NO_ONNX, NO_TENSORS, REST, SUBJECTS, firsts, found, table, tried
from tests.inference.test_to_sklearn import _public
from tests.inference.twins import assert_answers

pytestmark = [
    pytest.mark.filterwarnings("ignore:n_quantiles", "ignore:.*failed to converge"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]


def test_the_table_has_every_public_estimator_and_equals_the_page() -> None:
    assert set(_public()) <= tried()
    assert set(NO_TENSORS) | set(NO_ONNX) <= set(_public())
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    missing = [line for line in table() if line not in page]
    assert not missing, "\n".join(missing)


def _answers(model: Any, loaded: Any, rows: Any) -> None:
    assert type(loaded) is type(model)
    aside = ("inverse_transform",) if hasattr(model, "transform") else ()
    assert_answers(model, loaded, rows, 0, aside)


@pytest.mark.parametrize("name", REST)
def test_other_estimators_in_skops_files(name: str, tmp_path: Path) -> None:
    model, rows = found(name)
    daskml_dist.save(model, tmp_path / "a.skops")
    _answers(model, daskml_dist.load(tmp_path / "a.skops"), rows)


def _error_of(function: Callable[[], Any]) -> str | None:
    """Return the error of an unsupported export."""
    try:
        function()
    except (ExportError, ModelFileError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", firsts())
def test_files_of_safetensors(name: str, tmp_path: Path) -> None:
    model, rows = found(name)
    kind = type(model)
    reason = NO_TENSORS.get(kind.__name__, "")
    ours = kind.__module__.startswith("daskml_dist.")
    error = _error_of(lambda: daskml_dist.save(model, tmp_path / "a.safetensors"))
    if error is not None:
        assert reason or not ours, error
        assert ".skops" in str(error)
        return
    assert ours
    assert reason in ("", "with some settings")
    _answers(model, daskml_dist.load(tmp_path / "a.safetensors", **code_of(model)), rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_onnx(name: str) -> None:
    """`to_onnx` itself compares the predictions."""
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    model, rows = found(name)
    reason = NO_ONNX.get(type(model).__name__, "")
    error = _error_of(lambda: to_onnx(model))
    if error is not None:  # rows that are not numeric
        error = _error_of(lambda: to_onnx(model, sample=rows[:5]))
    if error is not None:
        assert reason or name == "pipeline of texts", error
    else:
        assert reason in ("", "with some settings")


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_models_of_mlflow(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    model, rows = found(name)
    flavor.save_model(model, tmp_path / "model")
    _answers(model, flavor.load_model(str(tmp_path / "model")), rows)
