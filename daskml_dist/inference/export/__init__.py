"""Export: fitted estimators as scikit-learn's own or as ONNX, usable without this package."""

from __future__ import annotations

from daskml_dist.inference.export.onnx import to_onnx
from daskml_dist.inference.export.sklearn_models import to_sklearn

__all__ = ["to_onnx", "to_sklearn"]
