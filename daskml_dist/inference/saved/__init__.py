"""Model files: fitted estimators with their schema, versions and checksums; never a pickle."""

from __future__ import annotations

from daskml_dist.inference.saved.model_file import load, read_manifest, save

__all__ = ["load", "read_manifest", "save"]
