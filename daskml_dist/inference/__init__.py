"""Inference: predictions and transformations of fitted estimators, on the data's own workers."""

from __future__ import annotations

from daskml_dist.inference.export import to_onnx, to_sklearn
from daskml_dist.inference.predictor import Predictor
from daskml_dist.inference.row_mapping import map_rows
from daskml_dist.inference.saved import load, read_manifest, save

__all__ = ["Predictor", "load", "map_rows", "read_manifest", "save", "to_onnx", "to_sklearn"]
