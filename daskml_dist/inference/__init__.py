"""Inference: a fitted estimator applied to rows, where they lie."""

from __future__ import annotations

from daskml_dist.inference.export import to_onnx, to_sklearn
from daskml_dist.inference.predict import map_rows

__all__ = ["map_rows", "to_onnx", "to_sklearn"]
