"""Entries of a row key, a column key and a value, cut into ranges of keys."""

from __future__ import annotations

from daskml_dist.data.keyed.blocks import KeyedBlock
from daskml_dist.data.keyed.collection import KeyedCollection

__all__ = ["KeyedBlock", "KeyedCollection"]
