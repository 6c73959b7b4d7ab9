"""A missing package of an extra skips only the tests that need it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Import names of packages of extras, which a machine with a GPU may lack.
OPTIONAL = (
    "array_api_strict", "bokeh", "cryptography", "cupy", "cupyx", "dask_cuda", "dask_jobqueue",
    "httptools", "hypothesis", "lightgbm", "matplotlib", "mlflow", "ml_dtypes", "msgspec", "nccl",
    "networkx", "nvidia", "onnx", "onnxruntime", "optuna", "safetensors", "skl2onnx", "skops",
    "tensorboard", "torch", "uvicorn", "uvloop", "xgboost",
)  # fmt: skip
IMPORTED = re.compile(rf"^(?:import|from) (?:{'|'.join(OPTIONAL)})\b", re.MULTILINE)


def _imports_before_looking(text: str) -> list[str]:
    """Return the optional packages that a module imports before any `importorskip`."""
    found = []
    for node in ast.parse(text).body:
        if "importorskip" in ast.dump(node):
            break
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return [name for name in found if name.partition(".")[0] in OPTIONAL]


@pytest.mark.parametrize("pattern", ["test_*.py", "conftest.py"])
def test_extras_are_imported_after_importorskip(pattern: str) -> None:
    # One module that cannot be imported stops the collection of all: `pytest -m gpu` would run
    # nothing on a machine without skops.
    texts = {path: path.read_text() for path in TESTS.rglob(pattern)}
    assert texts
    found = {
        str(path.relative_to(TESTS)): names
        for path, text in texts.items()
        if IMPORTED.search(text) and (names := _imports_before_looking(text))
    }
    assert not found
