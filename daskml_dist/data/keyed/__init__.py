"""Entries of a row key, a column key and a value, partitioned by ranges of keys."""

from __future__ import annotations

from daskml_dist.data.keyed.collection import KeyedCollection
from daskml_dist.data.keyed.cut import KeyedBlock

__all__ = ["KeyedBlock", "KeyedCollection"]
